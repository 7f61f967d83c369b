"""The pages that are made from the code say what the code says, and the site builds without a broken link."""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def scripts(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))


def test_configuration_page_is_what_the_code_says():
    made = importlib.import_module("configuration_reference").page()
    assert (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8") == made


def test_every_setting_on_the_configuration_page_is_explained():
    reference = importlib.import_module("configuration_reference")
    unexplained = [
        f"{kind}.{name}"
        for kind, found in reference.documented().items()
        for name, _, _, meaning in reference.settings(found)
        if not meaning
    ]
    assert unexplained == []


def test_reference_pages_are_what_the_namespaces_make_public():
    reference = importlib.import_module("api_reference")
    written = {page.stem: page.read_text(encoding="utf-8") for page in reference.PAGES.glob("hookline*.md")}
    assert written == {namespace: reference.page(namespace) for namespace in reference.NAMESPACES}


def test_site_builds_with_no_broken_link_and_every_page_in_its_navigation(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "DISABLE_MKDOCS_2_WARNING": "true"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=quiet, check=False)
    assert done.returncode == 0, done.stderr
    built = (tmp_path / "site" / "reference" / "hookline.html").read_text(encoding="utf-8")
    assert "Drives a loop of your own" in built
    assert re.findall(r'(?:src|href)="https?://[^"]*\.(?:js|css|woff2?)', built) == []


def test_index_for_language_models_is_what_the_pages_say():
    llms_txt = importlib.import_module("llms_txt")
    written = llms_txt.PAGE.read_text(encoding="utf-8")
    assert written == llms_txt.index(), "run: python scripts/llms_txt.py"
    title, _, summary, *rest = written.splitlines()
    assert (title, summary[:2]) == ("# hookline", "> ")
    links = [line for line in rest if line.startswith("- ")]
    pages = [re.fullmatch(rf"- \[[^]]+\]\({llms_txt.ADDRESS}([\w./-]+)\): \S.*", line) for line in links]
    assert all(page is not None and (ROOT / "docs" / page[1]).is_file() for page in pages)
    assert "## Optional" in rest


def test_architecture_page_names_files_that_exist():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:[a-z_]+/)+(?:[a-z_]+\.py)?)`", page)) - {"tests/public_api.txt"}
    assert len(named) > 30
    assert sorted(name for name in named if not (ROOT / "src" / "hookline" / name).exists()) == []
