"""A package that a bridge needs and has not got, or has of another version: the message says what to install."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from hookline._engine.errors import MissingExtraError
from hookline._engine.optional import require

ROOT = Path(__file__).parents[2]
BRIDGES = {
    "accelerate": {"torch": "torch", "accelerate": "torch"},
    "jax": {"jax": "jax"},
    "keras": {"keras": "keras"},
    "lightning": {"torch": "lightning", "lightning": "lightning"},
    "ray": {"ray": "ray"},
    "torch": {"torch": "torch"},
    "transformers": {"torch": "hf", "transformers": "hf", "accelerate": "hf"},
}
"""What each bridge needs, and the extra that brings it."""
OF_ANY_VERSION = {"jax": {"jaxlib": "jax"}}
"""What it needs as well, of the version that another package brings."""
IMPORT_WITHOUT = """
import importlib.metadata, json, sys

missing, old, said = set(), set(), []
version = importlib.metadata.version
importlib.metadata.version = lambda name: "0.0.1" if name in old else version(name)


class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Blocker())
for bridge, package in json.loads(sys.argv[1]):
    for where in (missing, old):
        where.update({package, "pytorch_lightning"} if package == "lightning" else {package})
        try:
            importlib.import_module(f"hookline.integrations.{bridge}")
            said.append("")
        except Exception as error:
            said.append(f"{type(error).__name__}: {error}")
        where.clear()
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def said():
    """What importing a bridge says without a package that it needs, and with an old one."""
    cells = [(b, package) for needs in (BRIDGES, OF_ANY_VERSION) for b, needed in needs.items() for package in needed]
    command = [sys.executable, "-c", IMPORT_WITHOUT, json.dumps(cells)]
    lines = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return dict(zip(cells, zip(lines[::2], lines[1::2], strict=True), strict=True))


@pytest.mark.parametrize(("bridge", "package"), [(b, p) for b, needed in BRIDGES.items() for p in needed])
def test_bridge_without_what_it_needs_says_what_to_install(bridge, package, said):
    missing, old = said[bridge, package]
    command = f"'hookline[{BRIDGES[bridge][package]}]'"
    assert missing.startswith(f"MissingExtraError: hookline.integrations.{bridge} needs ")
    assert missing.endswith(f"is not installed. Install it with: pip install {command}")
    assert re.match(
        rf"MissingExtraError: hookline.integrations.{bridge} works with {package}>=[\d.]+, and 0.0.1 is", old
    )
    assert old.endswith(f"Install one that is supported with: pip install -U {command}")


def test_jax_bridge_without_jaxlib_says_what_to_install(said):
    missing, old = said["jax", "jaxlib"]
    assert missing.startswith("MissingExtraError: hookline.integrations.jax needs a package")
    assert missing.endswith("pip install 'hookline[jax]'")
    assert old == ""


def test_bridges_want_the_versions_that_the_extras_bring(said):
    wanted = {found[1] for _, old in said.values() if (found := re.search(r"works with (\S+),", old))}
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    brought = {re.sub(r"\[.*\]", "", each) for packages in extras.values() for each in packages}
    assert wanted - brought == set()


def test_bridges_are_all_listed():
    folder = ROOT / "src" / "hookline" / "integrations"
    asking = {path.parent.name for path in folder.glob("*/__init__.py") if "require(" in path.read_text()}
    assert asking == set(BRIDGES)


@pytest.mark.parametrize(
    ("installed", "versions"),
    [("2.4", ">=2.4"), ("2.13.0+cpu", ">=2.4"), ("3.0.0rc1", ">=2.4,<4"), ("2.4.0", ">=2.4,<2.4.1")],
)
def test_require_takes_versions_that_are_supported(installed, versions, monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda name: installed)
    require("json", versions, extra="files")


@pytest.mark.parametrize(("installed", "versions"), [("2.3.9", ">=2.4"), ("4.0", ">=2.4,<4"), ("1.10", ">=2")])
def test_require_refuses_others_with_the_range_and_the_command(installed, versions, monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda name: installed)
    text = f"a bridge works with json{versions}, and {installed} is installed"
    with pytest.raises(MissingExtraError, match=f"{re.escape(text)}.*pip install -U 'hookline\\[files\\]'"):
        require("json", versions, extra="files", what="a bridge")


def test_require_takes_the_alternative_where_the_package_is_missing():
    require("no_such_package", ">=1", extra="files", alternative="json")


def test_require_takes_a_module_that_is_no_distribution():
    require("json", ">=99", extra="files")
