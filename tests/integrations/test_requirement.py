"""Missing or outdated packages of integrations: the error names the extra to install."""

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
INTEGRATIONS = {
    "accelerate": {"torch": "torch", "accelerate": "torch"},
    "jax": {"jax": "jax"},
    "keras": {"keras": "keras"},
    "lightning": {"torch": "lightning", "lightning": "lightning"},
    "ray": {"ray": "ray"},
    "torch": {"torch": "torch"},
    "transformers": {"torch": "hf", "transformers": "hf", "accelerate": "hf"},
}
"""The packages each integration needs, and the extra that installs them."""
OF_ANY_VERSION = {"jax": {"jaxlib": "jax"}}
"""Further packages whose versions follow from another one."""
IMPORT_WITHOUT = """
import importlib.metadata, json, sys

missing, old, errors = set(), set(), []
version = importlib.metadata.version
importlib.metadata.version = lambda name: "0.0.1" if name in old else version(name)


class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Blocker())
for name, package in json.loads(sys.argv[1]):
    for where in (missing, old):
        where.update({package, "pytorch_lightning"} if package == "lightning" else {package})
        try:
            importlib.import_module(f"hookline.integrations.{name}")
            errors.append("")
        except Exception as error:
            errors.append(f"{type(error).__name__}: {error}")
        where.clear()
print(json.dumps(errors))
"""


@pytest.fixture(scope="module")
def errors():
    """The errors of importing integrations with a missing and with an outdated package."""
    cells = [
        (b, package) for needs in (INTEGRATIONS, OF_ANY_VERSION) for b, needed in needs.items() for package in needed
    ]
    command = [sys.executable, "-c", IMPORT_WITHOUT, json.dumps(cells)]
    lines = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return dict(zip(cells, zip(lines[::2], lines[1::2], strict=True), strict=True))


@pytest.mark.parametrize(("name", "package"), [(b, p) for b, needed in INTEGRATIONS.items() for p in needed])
def test_integration_without_its_package_names_the_extra(name, package, errors):
    missing, old = errors[name, package]
    command = f"'hookline[{INTEGRATIONS[name][package]}]'"
    assert missing.startswith(f"MissingExtraError: hookline.integrations.{name} needs ")
    assert missing.endswith(f"is not installed. Install it with: pip install {command}")
    assert re.match(rf"MissingExtraError: hookline.integrations.{name} needs {package}>=[\d.]+, and 0.0.1 is", old)
    assert old.endswith(f"Install a supported version with: pip install -U {command}")


def test_jax_without_jaxlib_names_the_extra(errors):
    missing, old = errors["jax", "jaxlib"]
    assert missing.startswith("MissingExtraError: hookline.integrations.jax needs a package")
    assert missing.endswith("pip install 'hookline[jax]'")
    assert old == ""


def test_integrations_require_the_versions_of_their_extras(errors):
    wanted = {found[1] for _, old in errors.values() if (found := re.search(r"needs (\S+), and", old))}
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    brought = {re.sub(r"\[.*\]", "", each) for packages in extras.values() for each in packages}
    assert wanted - brought == set()


def test_all_integrations_are_listed():
    folder = ROOT / "src" / "hookline" / "integrations"
    modules = {path.parent.name: path for path in folder.glob("*/__init__.py")}
    modules |= {path.stem: path for path in folder.glob("*.py")}
    assert {name for name, path in modules.items() if "require(" in path.read_text()} == set(INTEGRATIONS)


@pytest.mark.parametrize(
    ("installed", "versions"),
    [("2.4", ">=2.4"), ("2.13.0+cpu", ">=2.4"), ("3.0.0rc1", ">=2.4,<4"), ("2.4.0", ">=2.4,<2.4.1")],
)
def test_require_accepts_supported_versions(installed, versions, monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda name: installed)
    require("json", versions, extra="files")


@pytest.mark.parametrize(("installed", "versions"), [("2.3.9", ">=2.4"), ("4.0", ">=2.4,<4"), ("1.10", ">=2")])
def test_require_refuses_other_versions_with_range_and_command(installed, versions, monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda name: installed)
    text = f"an integration needs json{versions}, and {installed} is installed"
    with pytest.raises(MissingExtraError, match=f"{re.escape(text)}.*pip install -U 'hookline\\[files\\]'"):
        require("json", versions, extra="files", what="an integration")


def test_require_accepts_an_installed_alternative():
    require("no_such_package", ">=1", extra="files", alternative="json")


def test_require_accepts_a_module_without_distribution():
    require("json", ">=99", extra="files")
