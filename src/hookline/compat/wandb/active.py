"""The process-wide state: the active runs, the settings for later ones, and where they are recorded.

`lifecycle` changes it; other modules ask for the root and the project without importing the runs.
"""

import os
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, runtime_checkable

from hookline._engine.defaults import ROOT_VARIABLE
from hookline.compat.wandb.errors import UsageError
from hookline.compat.wandb.settings import Settings, default_project
from hookline.loops.options import RunOptions
from hookline.loops.session import Session

PACKAGE = "hookline.compat.wandb"


@runtime_checkable
class ActiveRun(Protocol):
    """A run that is not finished."""

    process: int
    """The id of the process that began it."""

    @property
    def disabled(self) -> bool:
        """Whether nothing is recorded."""

    @property
    def directory(self) -> Path:
        """Its directory."""

    @property
    def project(self) -> str:
        """Its project."""


class State:
    """The state of the process.

    Attributes:
        settings: The settings of `setup`.
        options: The options of hookline that `configure` gave.
        runs: The active runs, in the order in which they began.
        sweep_config: The settings that an agent of a sweep gives to the next run.
        row_hook: Called after each complete row of the next run; set by an agent.
        owner: The run of the whole script, which the drop-in's first run joins; None without one.
        syncs_tensorboard: Whether the next run records what is written with SummaryWriter.
        lock: Held while a run begins or ends.
    """

    def __init__(self) -> None:
        self.settings = Settings()
        self.options: RunOptions = {}
        self.runs: list[Any] = []
        self.sweep_config: dict[str, Any] | None = None
        self.row_hook: Callable[[int, Mapping[str, Any]], None] | None = None
        self.owner: Session | None = None
        self.syncs_tensorboard = False
        self.lock = threading.RLock()


state = State()


def _renew_lock() -> None:
    """Replace the lock in a forked child: a thread of the parent may have held it."""
    state.lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)


def package() -> ModuleType:
    """Return the package, whose names the active run sets."""
    return sys.modules[PACKAGE]


def global_run() -> Any:
    """Return ``wandb.run``."""
    return getattr(sys.modules.get(PACKAGE), "run", None)


def active_run() -> Any:
    """Return the latest unfinished run of this process; None if there is none."""
    return next((run for run in reversed(state.runs) if run.process == os.getpid()), None)


def make_settings(given: Any, **arguments: Any) -> Settings:
    """Return settings: those of `setup`, of the environment, given ones, and arguments that are not None."""
    settings = state.settings.model_copy()
    settings.update_from_environment()
    if isinstance(given, Mapping):
        given = Settings(**given)
    elif given is not None and not isinstance(given, Settings):
        raise UsageError(f"settings={given!r:.200}: give a wandb.Settings or a dict.")
    if given is not None:
        settings.update_from_settings(given)
    settings.update_from_dict(arguments)
    return settings


def root_of(settings: Settings) -> Path:
    """Return where runs with some settings are recorded."""
    given = state.options.get("root") or os.environ.get(ROOT_VARIABLE)
    return Path(given).absolute() if given else Path(settings.root_dir, "runs").absolute()


def current_root() -> Path:
    """Return where runs are recorded: the active run's root, or the one the next run would have."""
    run = active_run()
    if run is not None and not run.disabled:
        directory: Path = run.directory
        return directory.parent.parent
    return root_of(make_settings(None))


def current_project() -> str:
    """Return the project of the active run, or the one the next run would have."""
    run = active_run()
    return str(run.project) if run is not None else make_settings(None).project or default_project()
