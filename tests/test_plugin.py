"""The example of a package: built, installed into a directory of its own, found by its names, and used by them."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

from hookline.cli.new import Names

PLUGIN = Path(__file__).parents[1] / "examples" / "plugin"
PROGRAM = Path(sysconfig.get_path("scripts")) / "hookline"


class Installed:
    """A place where the package is installed, and programs that find it there."""

    def __init__(self, place: Path) -> None:
        self.site, self.project = place / "site", place / "plugin"
        shutil.copytree(PLUGIN, self.project, ignore=shutil.ignore_patterns("__pycache__"))
        options = ["--quiet", "--no-deps", "--no-build-isolation", "--disable-pip-version-check", "--no-compile"]
        command = [sys.executable, "-m", "pip", "install", *options, "--target", self.site, self.project]
        subprocess.run(command, check=True, capture_output=True, timeout=120)

    def run(self, *command: object, cwd: Path) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "COLUMNS": "200", "PYTHONPATH": str(self.site)}
        return subprocess.run(
            [*map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=120
        )


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Installed:
    return Installed(tmp_path_factory.mktemp("plugin"))


def test_plugin_installed_passes_its_own_tests(installed):
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "-W", "error"]
    result = installed.run(*command, cwd=installed.project)
    assert result.returncode == 0, result.stdout
    assert "9 passed" in result.stdout


def test_plugin_installed_is_listed_with_its_distribution(installed, tmp_path):
    result = installed.run(PROGRAM, "hooks", "list", "--json", cwd=tmp_path)
    ours = [offer for offer in json.loads(result.stdout) if offer["source"] == "hookline-spikes"]
    assert [(offer["name"], offer["kind"], offer["error"]) for offer in ours] == [
        ("best_metric", "hook", None),
        ("loss_spikes", "callback", None),
    ]


def test_plugin_installed_is_explained_with_its_arguments(installed, tmp_path):
    result = installed.run(PROGRAM, "hooks", "show", "loss_spikes", "--json", cwd=tmp_path)
    shown = json.loads(result.stdout)
    assert (shown["path"], shown["moments"]) == ("hookline_spikes.loss_spikes:LossSpikes", ["on_step_end"])
    assert [argument["name"] for argument in shown["arguments"]] == ["factor", "monitor", "memory"]


def test_plugin_installed_serves_a_run_by_its_names(installed, tmp_path):
    (tmp_path / "train.py").write_text(
        """
import random

import hookline as hl
from hookline import rl

callbacks = [{"loss_spikes": {"factor": 2.0}}, {"best_metric": {"frequency": 2}}]
sinks = [{"markdown": {"columns": ["loss", "loss_spikes/count"]}}]
with hl.run("spiky", callbacks=callbacks, sinks=sinks, strict=True, summary=False) as run:
    for loss in run.steps([1.0, 1.0, 9.0, 0.5]):
        run.log(loss=loss)
print(run.get_metric("best_metric/loss"), (run.dir / "metrics.md").read_text())
print(rl.make_environment({"reversing": {"length": 2}}).sample(1, random.Random(0))[0].expected)
"""
    )
    result = installed.run(sys.executable, "train.py", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[:-1] == [
        *("0.5 | step | loss | loss_spikes/count |", "|---|---|---|"),
        *("| 1 | 1 | 0 |", "| 2 | 1 | 0 |", "| 3 | 9 | 1 |", "| 4 | 0.5 | 1 |", ""),
    ]
    assert len(result.stdout.splitlines()[-1]) == 2


def test_plugin_that_is_not_installed_is_not_found(tmp_path):
    result = subprocess.run(
        [PROGRAM, "hooks", "show", "loss_spikes"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert result.returncode == 2
    assert "Nothing is registered as 'loss_spikes'" in result.stderr


def test_plugin_project_is_set_up_as_a_new_one_is():
    made = tomllib.loads(Names("hookline-spikes", "hookline_spikes", "HooklineSpikes").files()["pyproject.toml"])
    ours = tomllib.loads((PLUGIN / "pyproject.toml").read_text(encoding="utf-8"))
    for section in (made, ours):
        del section["project"]["description"], section["project"]["entry-points"]
    assert ours == made


def test_wheel_of_hookline_tells_type_checkers_that_it_is_typed(tmp_path):
    """Without ``py.typed`` in it, nothing of what users write with hookline would be checked."""
    from hatchling.builders.wheel import WheelBuilder

    files = {file.distribution_path for file in WheelBuilder(str(PLUGIN.parents[1])).recurse_included_files()}
    assert "hookline/py.typed" in files
