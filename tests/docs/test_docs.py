"""Every code block in README.md and docs/ is run, page by page, from top to bottom."""

import logging
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import hosts
import pytest
from typer.testing import CliRunner

from hookline.cli import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(
    r"(?:<!-- file: (?P<file>\S+) -->\n)?^```(?P<language>\w*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)
SMALLER = {
    "experiments.md": {
        "repeats: 2": "repeats: 1",
        "repeats=3": "repeats=2",
        "trials: 20": "trials: 2",
        "search.trials=40": "search.trials=3",
    }
}
"""Sizes of a page, and the smaller ones that are run here: each run and each trial is a process."""
STARTING_OTHERS = ("exec", "run")
"""The commands that run code of a page, in processes of their own."""
DOCUMENTED_MAKE = re.compile(r"^make (\w+)", re.MULTILINE)


def run_commands(code, directory):
    """The commands of a console block that are hookline's; those of make are checked to exist."""
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(DOCUMENTED_MAKE.findall(code)) <= targets
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for line in code.splitlines():
        if line.startswith("hookline "):
            command = shlex.split(line, comments=True)
            if command[1] in STARTING_OTHERS:
                done = subprocess.run(command, cwd=directory, capture_output=True, text=True, env=environment)
                assert done.returncode == 0, done.stderr
            else:
                result = CliRunner().invoke(app, command[1:])
                assert result.exit_code == 0, result.output


def text_to_run(page):
    """What stands on a page, with smaller sizes."""
    text = page.read_text(encoding="utf-8")
    for size, smaller in SMALLER.get(page.name, {}).items():
        assert size in text, f"{page.name} has no {size!r}"
        text = text.replace(size, smaller)
    return text


STAND_INS = ("composer.md", "levanter.md", "maxtext.md", "ultralytics.md", "unsloth.md", "verl.md")
"""Pages of frameworks that are not installed: their code runs with the stand-ins of the contract tests."""


@pytest.fixture
def frameworks(page):
    """Makes the framework of a page importable, where it is not installed or apart from the others."""
    if page.name in STAND_INS:
        from hosts.stand_ins.everything import installed

        with installed():
            yield
    elif page.name == "deepspeed.md":
        if not (hosts.ISOLATED / "deepspeed").is_dir():
            pytest.skip("deepspeed is not installed")
        from hosts.deepspeed_loop import alone  # which imports it

        with alone():
            yield
    else:
        yield


@pytest.fixture
def quiet_again():
    """A page may turn the log down; the tests after it must not be affected."""
    level = logging.getLogger("hookline").level
    yield
    logging.getLogger("hookline").setLevel(level)


@pytest.mark.usefixtures("quiet_again", "frameworks")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page_code_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "__main__"}
    for match in BLOCK.finditer(text_to_run(page)):
        language, code = match["language"], match["code"]
        if match["file"]:
            (tmp_path / match["file"]).write_text(code)
        elif language == "python":
            exec(compile(code, str(page), "exec"), namespace)
        elif language == "bash":
            run_commands(code, tmp_path)
        else:
            assert language == "text", f"a block of {language!r} in {page.name} is not run: say 'text' if it is output"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page_links_lead_somewhere(page):
    links = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_moments_page_is_what_the_catalogue_says():
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        import moments_reference
    finally:
        sys.path.remove(str(ROOT / "scripts"))
    assert (ROOT / "docs" / "moments.md").read_text() == moments_reference.moments_page()
