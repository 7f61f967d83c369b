"""A drop-in for wandb: ``import hookline.compat.wandb as wandb``.

Names and behaviour are those of wandb 0.31. Runs are recorded by hookline in a local directory,
without an account, a network or another process. `install` makes ``import wandb`` find this package.
"""

from typing import Any

from hookline.compat.wandb import data_types, env, errors, layout, lifecycle, plot, util, wandb_run
from hookline.compat.wandb.agents import agent, controller, sweep
from hookline.compat.wandb.artifacts import Artifact
from hookline.compat.wandb.configuration import Config
from hookline.compat.wandb.data_types import (
    Audio,
    Bokeh,
    Classes,
    EvalTable,
    Graph,
    Histogram,
    Html,
    Image,
    JoinedTable,
    Molecule,
    Object3D,
    Plotly,
    Table,
    Video,
    box3d,
)
from hookline.compat.wandb.errors import CommError, Error, UsageError
from hookline.compat.wandb.install import child_environment, import_directory, install, uninstall
from hookline.compat.wandb.lifecycle import (
    _attach,
    configure,
    ensure_configured,
    finish,
    init,
    login,
    require,
    restore,
    setup,
    teardown,
)
from hookline.compat.wandb.plot import plot_table, visualize
from hookline.compat.wandb.settings import Settings
from hookline.compat.wandb.terminal import termerror, termlog, termsetup, termwarn
from hookline.compat.wandb.wandb_run import AlertLevel, Run

__all__ = [
    "AlertLevel",
    "Api",
    "Artifact",
    "Audio",
    "Bokeh",
    "Classes",
    "CommError",
    "Config",
    "Error",
    "EvalTable",
    "Graph",
    "Histogram",
    "Html",
    "Image",
    "JoinedTable",
    "Molecule",
    "Object3D",
    "Plotly",
    "Run",
    "Settings",
    "Table",
    "UsageError",
    "Video",
    "agent",
    "alert",
    "attach",
    "box3d",
    "child_environment",
    "config",
    "configure",
    "controller",
    "data_types",
    "define_metric",
    "ensure_configured",
    "env",
    "errors",
    "finish",
    "import_directory",
    "init",
    "install",
    "join",
    "link_model",
    "log",
    "log_artifact",
    "log_model",
    "login",
    "mark_preempting",
    "pin_config_keys",
    "plot",
    "plot_table",
    "require",
    "restore",
    "run",
    "save",
    "setup",
    "summary",
    "sweep",
    "teardown",
    "termerror",
    "termlog",
    "termsetup",
    "termwarn",
    "uninstall",
    "unwatch",
    "use_artifact",
    "use_model",
    "util",
    "visualize",
    "wandb_run",
    "watch",
]

__version__ = "0.31.0"
IS_HOOKLINE = True
"""Tells this package from wandb, wherever it is imported from."""

run: Run | None
config: Any
summary: Any
log: Any
save: Any
watch: Any
unwatch: Any
alert: Any
define_metric: Any
use_artifact: Any
log_artifact: Any
log_model: Any
use_model: Any
link_model: Any
mark_preempting: Any
pin_config_keys: Any
globals().update(lifecycle.inactive_names())


def __getattr__(name: str) -> Any:
    # It needs the store, and with it DuckDB.
    if name == "Api":
        from hookline.compat.wandb.public_api import Api

        return Api
    if not name.startswith("_") and layout.has_module(name):
        return layout.module(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


api = layout.InternalApi()
attach = _attach
_teardown = teardown
join = finish
patched: dict[str, list[Any]] = {"tensorboard": [], "keras": [], "gym": []}
