"""``hookline hooks new``: what it writes can be installed, passes its own tests and is found by its name."""

import functools
import json
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from hookline.cli import app


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Creates a package and installs it, once for each name; gives its directory, and the one it is installed into."""

    @functools.cache
    def create(name):
        home = tmp_path_factory.mktemp("packages")
        assert CliRunner().invoke(app, ["hooks", "new", name, "--directory", str(home)]).exit_code == 0
        options = ["--quiet", "--no-deps", "--no-build-isolation", "--disable-pip-version-check", "--no-compile"]
        command = [sys.executable, "-m", "pip", "install", *options, "--target", home / "site", home / name]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        return home / name, home / "site"

    return create


@pytest.mark.parametrize("name", ["gradient-alarm", "top_5"])
def test_new_package_installed_passes_its_own_tests(installed, name):
    package, site = installed(name)
    environment = {**os.environ, "PYTHONPATH": str(site), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-W", "error"]
    result = subprocess.run(
        command, cwd=package, env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert result.returncode == 0, result.stdout
    assert "5 passed" in result.stdout


def test_new_package_installed_is_listed_with_its_distribution(installed, program):
    _, site = installed("gradient-alarm")
    result = program("hooks", "list", "--json", imports=[site])
    assert {
        "name": "gradient_alarm",
        "kind": "hook",
        "source": "gradient-alarm",
        "summary": "Warns when a metric is above a threshold, and counts how often it was.",
        "error": None,
    } in json.loads(result.stdout)


def test_new_package_installed_can_be_configured_by_its_name(installed, program, tmp_path):
    _, site = installed("gradient-alarm")
    (tmp_path / "callbacks.yaml").write_text("callbacks:\n  - gradient_alarm: {threshold: 5.0, frequency: 25}\n")
    result = program("hooks", "plan", "callbacks.yaml", "--json", imports=[site])
    assert json.loads(result.stdout)["moments"] == {"on_step_end": ["gradient_alarm"]}


def test_new_output_says_what_was_made_and_what_to_type_next(cli, tmp_path):
    result = cli("hooks", "new", "gradient-alarm", "--directory", "made here")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "Created made here/gradient-alarm:",
        "  pyproject.toml",
        "  README.md",
        "  src/gradient_alarm/__init__.py",
        "  src/gradient_alarm/py.typed",
        "  tests/test_gradient_alarm.py",
        "",
        "Next:",
        "  cd 'made here/gradient-alarm'",
        '  pip install -e ".[test]"',
        "  pytest",
        "  hookline hooks show gradient_alarm",
    ]
    assert (tmp_path / "made here/gradient-alarm/src/gradient_alarm/__init__.py").is_file()


def test_new_name_in_camel_case_is_spelt_as_each_place_needs(cli, tmp_path):
    assert cli("hooks", "new", "GradientAlarm").exit_code == 0
    module = (tmp_path / "GradientAlarm/src/gradient_alarm/__init__.py").read_text()
    project = (tmp_path / "GradientAlarm/pyproject.toml").read_text()
    assert "class GradientAlarm(hooks.PeriodicHook):" in module
    assert 'name = "gradient-alarm"\n' in project
    assert 'gradient_alarm = "gradient_alarm:GradientAlarm"\n' in project


def test_new_directory_that_exists_is_left_alone(cli, tmp_path):
    (tmp_path / "gradient-alarm").mkdir()
    result = cli("hooks", "new", "gradient-alarm")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "gradient-alarm exists already" in result.stderr
    assert list((tmp_path / "gradient-alarm").iterdir()) == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("9lives", "'9lives' is not a name: give letters, digits, '-' and '_', beginning with a letter."),
        ("two words", "'two words' is not a name"),
        ("../escape", "'../escape' is not a name"),
        ("gradient\n", "is not a name"),
        ("class", "'class' is a Python keyword"),
        ("none", "'none' is a Python keyword"),
        ("json", "A module 'json' exists already"),
        ("pytest", "A module 'pytest' exists already"),
        ("early-stopping", "'early_stopping' is registered already"),
    ],
)
def test_new_name_that_cannot_be_used_is_refused_before_writing(cli, tmp_path, name, message):
    result = cli("hooks", "new", name)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_new_place_that_cannot_be_written_is_an_error(cli, tmp_path):
    (tmp_path / "file").write_text("")
    result = cli("hooks", "new", "gradient-alarm", "--directory", "file")
    assert result.exit_code == 2
    assert "file/gradient-alarm cannot be written: Not a directory." in result.stderr
