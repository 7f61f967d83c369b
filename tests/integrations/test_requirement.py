"""Missing or outdated packages of integrations: the error names the extra to install."""

import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError
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
    "catboost": {"catboost": "catboost"},
    "lightgbm": {"lightgbm": "lightgbm"},
    "sklearn": {"sklearn": "sklearn"},
    "stable_baselines3": {"torch": "stable_baselines3", "stable_baselines3": "stable_baselines3"},
    "xgboost": {"xgboost": "xgboost"},
    "composer": {"torch": "torch"},
    "deepspeed": {"torch": "torch"},
    "fabric": {"torch": "lightning", "lightning": "lightning"},
    "fastai": {"torch": "fastai", "fastai": "fastai"},
    "ignite": {"torch": "ignite", "ignite": "ignite"},
    "levanter": {"jax": "jax"},
    "maxtext": {"jax": "jax"},
    "tunix": {"jax": "tunix", "tunix": "tunix"},
    "ultralytics": {"torch": "torch"},
}
"""The packages each integration needs, and the extra that installs them."""
DISTRIBUTIONS = {
    "ignite": "pytorch-ignite",
    "sklearn": "scikit-learn",
    "stable_baselines3": "stable-baselines3",
    "tunix": "google-tunix",
    "xgboost": "xgboost-cpu",
}
"""The names that packages are installed by, where those are not their import names."""
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
        where.update({package, "pytorch_lightning", "lightning_fabric"} if package == "lightning" else {package})
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
    needed = {found[1] for _, old in errors.values() if (found := re.search(r"needs (\S+), and", old))}
    wanted = {DISTRIBUTIONS.get(name, name) + bounds for name, bounds in (re.split(r"(?=>=)", each) for each in needed)}
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    brought = {re.sub(r"\[.*\]", "", each) for packages in extras.values() for each in packages}
    assert wanted - brought == set()


def test_all_integrations_are_listed():
    folder = ROOT / "src" / "hookline" / "integrations"
    modules = {path.parent.name: path for path in folder.glob("*/__init__.py")}
    modules |= {path.stem: path for path in folder.glob("*.py")}
    assert {name for name, path in modules.items() if "require(" in path.read_text()} == set(INTEGRATIONS)


def refusal(package, versions, **options):
    """The message of a requirement that is not met; None if it is."""
    try:
        require(package, versions, extra="files", **options)
    except MissingExtraError as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    ("installed", "versions"),
    [("2.4", ">=2.4"), ("2.13.0+cpu", ">=2.4"), ("3.0.0rc1", ">=2.4,<4"), ("2.4.0", ">=2.4,<2.4.1")],
)
def test_require_supported_version_is_accepted(installed, versions, monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda name: installed)
    assert refusal("json", versions) is None


@pytest.mark.parametrize(("installed", "versions"), [("2.3.9", ">=2.4"), ("4.0", ">=2.4,<4"), ("1.10", ">=2")])
def test_require_other_version_is_refused_with_range_and_command(installed, versions, monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda name: installed)
    message = refusal("json", versions, what="an integration")
    assert message.startswith(f"an integration needs json{versions}, and {installed} is installed")
    assert message.endswith("pip install -U 'hookline[files]'")


@pytest.mark.parametrize(("alternative", "is_met"), [("json", True), ("no_other_package", False)])
def test_require_missing_package_is_replaced_by_an_installed_alternative(alternative, is_met):
    assert (refusal("no_such_package", ">=1", alternative=alternative) is None) == is_met


def test_require_checks_the_version_of_a_distribution_of_another_name(monkeypatch):
    def version(name):
        if name != "json-cpu":
            raise PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr("importlib.metadata.version", version)
    assert refusal("json", ">=2", distribution="json-cpu").startswith("hookline needs json>=2, and 1.0 is installed")
    assert refusal("json", ">=1", distribution="json-cpu") is None


def test_require_module_without_a_distribution_has_no_version_to_check():
    assert refusal("json", ">=99") is None
