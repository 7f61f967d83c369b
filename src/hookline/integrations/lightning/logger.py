"""`HooklineLogger`: records what a module logs, as one of the trainer's loggers.

On its own it records what Lightning gives its loggers, every ``log_every_n_steps``, at Lightning's steps (counted from
0). If the trainer also has a `HooklineCallback`, the callback records every step in its own run, and the logger adds
the rest to that run: hyperparameters, and what is logged through it directly.

A logger has one run, which starts with the first thing to record and continues with every fit and test.
"""

import logging
import sys
from argparse import Namespace
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, Unpack

from hookline._engine.errors import MissingExtraError
from hookline.integrations.host_loop import HostLoop
from hookline.integrations.passive_run import PassiveRun
from hookline.loops.options import RecordOptions

logger = logging.getLogger("hookline")

_LOADER = "/dataloader_idx_"


def _find_framework() -> Any:
    """Import Lightning: the package that is already loaded, or one that is installed.

    ``lightning.pytorch`` and ``pytorch_lightning`` hold the same classes twice; their trainers accept callbacks and
    loggers of either.
    """
    for name in sorted(("lightning.pytorch", "pytorch_lightning"), key=lambda name: name not in sys.modules):
        try:
            return import_module(name)
        except ModuleNotFoundError as error:
            if error.name not in (name, name.partition(".")[0]):
                raise  # it is installed, but a package that it needs is not
    raise MissingExtraError("hookline.integrations.lightning", "lightning")


FRAMEWORK: Any = _find_framework()


class RunOwner(Protocol):
    """The `HooklineCallback` that a logger shares a run with."""

    loop: HostLoop
    is_recording: bool

    def has_recorded(self, name: str) -> bool:
        """Check whether the callback itself records a metric."""


class HooklineLogger(FRAMEWORK.loggers.Logger):  # type: ignore[misc]
    """A Lightning logger that writes hookline's record.

    Args:
        name, summary, options: As for every run of hookline; beside a `HooklineCallback`, those of the callback count.
    """

    def __init__(
        self,
        name: str = "run",
        *,
        summary: bool = True,
        **options: Unpack[RecordOptions],
    ) -> None:
        super().__init__()
        self._own = PassiveRun(name, summary=summary, **options)
        self._owner: RunOwner | None = None
        self._state: dict[str, Any] | None = None
        self._early: list[tuple[dict[str, Any], int | None]] = []  # logged before the callback's run was open

    @property
    def name(self) -> str:
        """The run's name."""
        return self.experiment.name

    @property
    def version(self) -> str:
        """The run's id, once it has begun."""
        directory = self.experiment.dir
        return "" if directory is None else directory.name

    @property
    def log_dir(self) -> str | None:
        """The run's directory, once it has begun."""
        directory = self.experiment.dir
        return None if directory is None else str(directory)

    @property
    def experiment(self) -> HostLoop:
        """The run, e.g. for ``self.logger.experiment.log_samples(...)``."""
        return self._own if self._owner is None else self._owner.loop

    def join_run(self, owner: RunOwner) -> None:
        """Record in the run of a callback from now on, until the trainer finalizes its loggers."""
        own, theirs = self._own, owner.loop
        if own.recording.sinks or (own.name, own.project, own.root) != (theirs.name, theirs.project, theirs.root):
            logger.warning("HooklineLogger records in the run of HooklineCallback, with its name, project and sinks.")
        self.finalize("success")  # the logger's own run, of what was logged before
        own.name = theirs.name
        own.recording.project, own.recording.root = theirs.project, theirs.root
        if own.config:
            theirs.update_config(own.config)
        self._owner = owner

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Record metrics at a step."""
        owner = self._owner
        if not _is_rank_zero():
            return
        if owner is None:
            self._begin()
            self._own.step = max(self._own.step, step or 0)
            self._own.host_log(metrics, step=step)
        elif owner.is_recording:
            self._log_early()
            others = {name: value for name, value in metrics.items() if not owner.has_recorded(name)}
            if others:
                owner.loop.host_log(others, step=step)
        else:
            self._early.append((dict(metrics), step))

    def log_hyperparams(self, params: Mapping[str, Any] | Namespace, *args: Any, **options: Any) -> None:
        """Add hyperparameters to the run's configuration; during the run, an event records the change."""
        if _is_rank_zero() and params:
            self.experiment.update_config(params)

    def after_save_checkpoint(self, checkpoint_callback: Any) -> None:
        """Record the path of a `ModelCheckpoint`'s latest checkpoint, unless a `HooklineCallback` does."""
        names = ("best_model_path", "last_model_path", "kth_best_model_path")
        given = {getattr(checkpoint_callback, name, "") for name in names}
        given |= set(getattr(checkpoint_callback, "best_k_models", ()))
        existing = [Path(path) for path in given if path and Path(path).exists()]
        if self._owner is None and existing and _is_rank_zero():
            self._begin()
            self._own.checkpoint_saved(max(existing, key=lambda path: path.stat().st_mtime))

    def finalize(self, status: str) -> None:
        """End the run, which continues if something is logged later."""
        if self._owner is not None:
            loop, self._owner = self._owner.loop, None
            if loop.dir is not None:
                self._state = loop.state_dict() | {"callbacks": {}}
            self._log_early()
        if self._own.is_running and status == "failed":
            self._own.failed(sys.exception() or RuntimeError("the training failed"))
        elif self._own.is_running:
            self._own.train_end()

    def _log_early(self) -> None:
        early, self._early = self._early, []
        for metrics, step in early:
            self.log_metrics(metrics, step)

    def _begin(self) -> None:
        own = self._own
        if own.is_running:
            return
        if own.dir is not None:
            self._state = own.state_dict()
        own.begin(state=self._state)
        own.train_start(step=own.step)


class LoggedMetrics:
    """Finds the metrics that a module has logged since the last call.

    ``trainer.callback_metrics`` keeps the latest value of each name: after a validation, ``val_loss`` is there at every
    step. A name was logged again if its tensor is a different one. This check does not read the value, so it does not
    wait for the device.

    A metric logged with both ``on_step`` and ``on_epoch`` has three names in Lightning: ``NAME_step``, ``NAME_epoch``,
    and ``NAME`` for the latest of both. Here ``NAME`` is that of epochs.
    """

    def __init__(self) -> None:
        self._seen: dict[str, Any] = {}  # keeps the tensors alive, so that no new one has the same address

    def take_new(self, trainer: Any) -> dict[str, Any]:
        """Return what was logged since the last call."""
        new = {
            name: value
            for name, value in dict(trainer.callback_metrics).items()
            if not _is_same(value, self._seen.get(name))
        }
        self._seen.update(new)
        return {name: value for name, value in new.items() if f"{name}_step" not in new}

    def clear(self) -> None:
        """Forget all values, as the trainer has done."""
        self._seen.clear()


def with_hookline_names(metrics: dict[str, Any], evaluation: str) -> dict[str, Any]:
    """Add the metrics of an evaluation under the names that hookline's own loops use.

    >>> with_hookline_names({"val_loss": 1.0, "accuracy": 0.5, "val_loss/dataloader_idx_1": 2.0}, "val")
    ... # doctest: +NORMALIZE_WHITESPACE
    {'val/loss': 1.0, 'val/accuracy': 0.5, 'val/dataloader_idx_1/loss': 2.0,
     'val_loss': 1.0, 'accuracy': 0.5, 'val_loss/dataloader_idx_1': 2.0}
    """
    named = {}
    for name, value in metrics.items():
        metric, _, loader = name.partition(_LOADER)  # Lightning adds it if there are several loaders
        own = metric.removeprefix(f"{evaluation}_").removeprefix(f"{evaluation}/")
        named[f"{evaluation}/{_LOADER[1:]}{loader}/{own}" if loader else f"{evaluation}/{own}"] = value
    return {**named, **metrics}


def _is_same(value: Any, other: Any) -> bool:
    if value is other:
        return True
    if not callable(getattr(value, "data_ptr", None)) or type(value) is not type(other):
        return False
    return bool((value.device, value.data_ptr()) == (other.device, other.data_ptr()))


def _is_rank_zero() -> bool:
    return not getattr(FRAMEWORK.utilities.rank_zero_only, "rank", 0)
