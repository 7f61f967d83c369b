"""The import path of the drop-in: where `import wandb` finds it, and when it leaves an installed wandb alone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import hookline as hl
import hookline.compat.wandb as wandb

REPORT = "import wandb, importlib.metadata; print(wandb.__name__, importlib.metadata.version('wandb'))"


def python(code, cwd, **environment):
    """What a fresh interpreter prints, with these variables."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB_", "HOOKLINE_"))}
    variables |= {"PYTHONWARNINGS": "error", **environment}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, env=variables, capture_output=True, text=True, check=False
    )
    return done.stdout.split() if done.returncode == 0 else done.stderr


DIRECTORY = str(wandb.import_directory())
WITHOUT_WANDB = """
import sys
from importlib.machinery import PathFinder
real = PathFinder.find_spec
def find_spec(name, path=None, target=None):
    is_hidden = name == "wandb" and not any("import_path" in str(each) for each in path or sys.path)
    return None if is_hidden else real(name, path, target)
PathFinder.find_spec = find_spec
"""
"""Hides an installed wandb from a fresh interpreter."""


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        ({}, "wandb 0."),
        ({"HOOKLINE_AS_WANDB": "off"}, "wandb 0."),
        ({"HOOKLINE_AS_WANDB": "on"}, "hookline.compat.wandb 0."),
    ],
)
def test_import_path_leaves_an_installed_wandb_alone_unless_asked(tmp_path, variable, expected):
    pytest.importorskip("wandb")
    name, version = python(REPORT, tmp_path, PYTHONPATH=DIRECTORY, **variable)
    assert f"{name} {version}".startswith(expected)
    assert version.endswith("+hookline") == (name == "hookline.compat.wandb")


def test_import_path_is_the_drop_in_where_wandb_is_not_installed(tmp_path):
    assert python(WITHOUT_WANDB + REPORT, tmp_path, PYTHONPATH=DIRECTORY) == [
        "hookline.compat.wandb",
        "0.31.0+hookline",
    ]


def test_module_prints_the_directory_for_the_path(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "hookline.compat.wandb"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == DIRECTORY


def test_child_environment_keeps_the_path_and_asks_for_the_drop_in():
    found = wandb.child_environment({"PYTHONPATH": f"/a{os.pathsep}{DIRECTORY}", "X": "1"})
    assert found == {"PYTHONPATH": f"{DIRECTORY}{os.pathsep}/a", "X": "1", "HOOKLINE_AS_WANDB": "on"}
    assert wandb.child_environment({}, replace=False) == {"PYTHONPATH": DIRECTORY}


def test_install_replaces_wandb_only_if_asked(tmp_path):
    pytest.importorskip("wandb")
    code = f"""
import hookline.compat.wandb as drop_in
try:
    drop_in.install()
except drop_in.UsageError as error:
    print("refused" if "replace=True" in str(error) else error)
drop_in.install(replace=True)
drop_in.install(replace=True)
import wandb, wandb.sdk.lib.config_util, importlib.util
print(wandb is drop_in, wandb.sdk.lib.config_util.ConfigError is drop_in.errors.ConfigError)
print(importlib.util.find_spec("wandb") is not None)
{REPORT}
drop_in.uninstall()
import wandb
print(wandb.__name__)
"""
    assert python(code, tmp_path) == [
        "refused",
        "True",
        "True",
        "True",
        "hookline.compat.wandb",
        "0.31.0+hookline",
        "wandb",
    ]


def test_install_after_wandb_was_imported_is_refused(tmp_path):
    pytest.importorskip("wandb")
    code = "import wandb, hookline.compat.wandb as drop_in; drop_in.install(replace=True)"
    assert "wandb has been imported already" in python(code, tmp_path, PYTHONWARNINGS="ignore")


LAYOUT = """
import wandb
from wandb import Artifact, Image, Settings, Table
from wandb.apis.public import Api, Run as PublicRun
from wandb.data_types import Histogram
from wandb.errors import CommError, UsageError
from wandb.plot import confusion_matrix
from wandb.sdk.artifacts.artifact import Artifact as SameArtifact
from wandb.sdk.data_types.base_types.wb_value import WBValue
from wandb.sdk.data_types.table import Table as SameTable
from wandb.sdk.lib import RunDisabled
from wandb.sdk.lib.config_util import ConfigError
from wandb.sdk.lib.runid import generate_id
from wandb.sdk.wandb_run import Run
from wandb.sdk.wandb_settings import Settings as SameSettings
from wandb.wandb_run import Run as OldRun
import wandb.env, wandb.util
assert Artifact is SameArtifact and Table is SameTable and Settings is SameSettings and Run is OldRun is wandb.Run
assert issubclass(Table, WBValue) and issubclass(ConfigError, wandb.Error) and wandb.sdk.lib.RunDisabled is RunDisabled
assert wandb.sdk.wandb_run.Run is Run and wandb.apis.public.Api is Api is wandb.Api
wandb.env.set_project("from-env"); wandb.env.set_entity("team")
assert (wandb.env.get_project(), wandb.env.get_entity("x"), wandb.env.get_dir("d")) == ("from-env", "team", "d")
assert (wandb.env.is_quiet(), wandb.env.is_silent()) == (False, False)
assert wandb.api.settings("project") == "from-env" and wandb.api.default_entity == "team"
wandb.api.set_setting("project", "again")
assert wandb.api.settings()["project"] == "again" and wandb.api.api_key is None
assert len(generate_id(length=5)) == 5 and len(wandb.util.generate_id()) == 8
assert wandb.util.make_artifact_name_safe("a b/c") == "a_b_c" and wandb.util.to_forward_slash_path("a") == "a"
assert wandb.util.get_module("json").dumps(1) == "1" and wandb.util.get_module("no_such_module") is None
for name, use in (("keras", "hookline.integrations.keras"), ("integration.sb3", "stable_baselines3")):
    module = wandb
    for part in name.split("."):
        module = getattr(module, part)
    try:
        module.WandbCallback
    except AttributeError as error:
        assert use in str(error), error
try:
    import wandb.proto.wandb_internal_pb2
except ModuleNotFoundError:
    print("complete")
"""


def test_layout_of_wandb_is_importable_and_its_classes_are_the_same(tmp_path):
    assert python(LAYOUT, tmp_path, PYTHONPATH=DIRECTORY, HOOKLINE_AS_WANDB="on") == ["complete"]


def test_names_of_wandb_are_all_there():
    theirs = pytest.importorskip("wandb")
    left_out = {
        "ArtifactTTL",
        "helper",
        "profiler",
        "sagemaker_auth",
        "trigger",
        "wandb_lib",
        "wandb_sdk",
        "wandb_torch",
    }
    names = {name for name in theirs.__all__ if name not in left_out}
    assert sorted(name for name in names if not hasattr(wandb, name)) == []


def test_names_that_are_missing_are_attribute_errors():
    with pytest.raises(AttributeError, match="no attribute 'no_such_name'"):
        _ = wandb.no_such_name


def test_sink_wandb_refuses_the_drop_in(tmp_path):
    code = """
import hookline as hl
try:
    hl.start("x", sinks=[{"wandb": {"mode": "offline"}}], summary=False, console=False).finish()
except hl.RefusedError as error:
    print("drop-in" if "hookline's drop-in" in str(error) else error)
"""
    assert python(code, tmp_path, PYTHONPATH=DIRECTORY, HOOKLINE_AS_WANDB="on") == ["drop-in"]


def test_import_of_the_drop_in_loads_no_framework(tmp_path):
    code = """
import sys
import hookline.compat.wandb
heavy = {"torch", "numpy", "jax", "duckdb", "pandas", "optuna", "wandb", "matplotlib", "PIL", "transformers"}
print(*sorted(heavy & set(sys.modules)), "end")
"""
    assert python(code, tmp_path) == ["end"]


def test_import_directory_is_part_of_the_package():
    files = {
        path.relative_to(DIRECTORY).as_posix() for path in Path(DIRECTORY).rglob("*") if "__pycache__" not in path.parts
    }
    assert {"wandb/__init__.py", "wandb-0.31.0+hookline.dist-info/METADATA"} <= files
    assert wandb.__version__ == "0.31.0"
    assert hl.MissingExtraError("x", "y") is not None
