"""`HooklineLogger`: what a module logs reaches the record, as one of the trainer's loggers.

On its own it records what Lightning gives its loggers, every ``log_every_n_steps``, at the steps that Lightning says
(it counts from 0). Where a `HooklineCallback` is among the trainer's callbacks as well, that one records every step, in
its run, and the logger adds what else it is given: the hyper-parameters, and what somebody logs through it directly.

A logger has one run, and goes on in it with every fit and test. It begins with the first thing to record.

`LoggedMetrics`: what a module has logged since the last time somebody asked.

``trainer.callback_metrics`` keeps the latest value of each name for ever: after a validation, ``val_loss`` stands there
at every step. A name was logged anew where its tensor is another one, which is seen without reading the value, so that
no device is waited for.

A metric that is logged with both ``on_step`` and ``on_epoch`` has three names in Lightning: its values at steps are
``NAME_step``, those of epochs ``NAME_epoch``, and ``NAME`` is whichever came last. Here ``NAME`` is that of epochs.

`FRAMEWORK`: Lightning, as the package that is installed, and loaded already if one is.

``lightning.pytorch`` and ``pytorch_lightning`` hold the same classes twice. Their trainers take callbacks and loggers
of either.
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

_LOADER = "/dataloader_idx_"


class LoggedMetrics:
    """The metrics of a trainer, each of them once."""

    def __init__(self) -> None:
        self._seen: dict[str, Any] = {}  # held, so that no later tensor takes its place in memory

    def take(self, trainer: Any) -> dict[str, Any]:
        """What was logged since the last time."""
        now = dict(trainer.callback_metrics)
        new = {name: value for name, value in now.items() if not _is_same(value, self._seen.get(name))}
        self._seen.update(new)
        return {name: value for name, value in new.items() if f"{name}_step" not in new}

    def forget(self) -> None:
        """Let go of everything: the trainer has as well."""
        self._seen.clear()


def also_as_ours(metrics: dict[str, Any], evaluation: str) -> dict[str, Any]:
    """The metrics of an evaluation, also by the names that hookline's own loops use.

    >>> also_as_ours({"val_loss": 1.0, "accuracy": 0.5, "val_loss/dataloader_idx_1": 2.0}, "val")
    ... # doctest: +NORMALIZE_WHITESPACE
    {'val/loss': 1.0, 'val/accuracy': 0.5, 'val/dataloader_idx_1/loss': 2.0,
     'val_loss': 1.0, 'accuracy': 0.5, 'val_loss/dataloader_idx_1': 2.0}
    """
    return {**{_our_name(name, evaluation): value for name, value in metrics.items()}, **metrics}


def _our_name(name: str, evaluation: str) -> str:
    metric, _, loader = name.partition(_LOADER)  # which Lightning adds where there are several
    own = metric.removeprefix(f"{evaluation}_").removeprefix(f"{evaluation}/")
    return f"{evaluation}/{_LOADER[1:]}{loader}/{own}" if loader else f"{evaluation}/{own}"


def _is_same(value: Any, other: Any) -> bool:
    if value is other:
        return True
    return callable(getattr(value, "data_ptr", None)) and type(value) is type(other) and _place(value) == _place(other)


def _place(tensor: Any) -> Any:
    return tensor.device, tensor.data_ptr()


NAMES = ("lightning.pytorch", "pytorch_lightning")


def _find() -> Any:
    for name in sorted(NAMES, key=lambda name: name not in sys.modules):
        try:
            return import_module(name)
        except ModuleNotFoundError as error:
            if error.name not in (name, name.partition(".")[0]):
                raise  # it is there, and something that it needs is not
    raise MissingExtraError("hookline.integrations.lightning", "lightning")


FRAMEWORK: Any = _find()


logger = logging.getLogger("hookline")


class Companion(Protocol):
    """The `HooklineCallback` beside a logger."""

    loop: HostLoop
    is_recording: bool

    def has_recorded(self, name: str) -> bool:
        """Whether it records a metric by itself."""


class HooklineLogger(FRAMEWORK.loggers.Logger):  # type: ignore[misc]
    """A logger of Lightning that writes hookline's record.

    Args:
        name, summary, options: As for every run of hookline; beside a `HooklineCallback`, those of the callback hold.
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
        self._companion: Companion | None = None
        self._state: dict[str, Any] | None = None
        self._early: list[tuple[dict[str, Any], int | None]] = []  # what came while the callback's run was not open

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
        return self._own if self._companion is None else self._companion.loop

    def join(self, companion: Companion) -> None:
        """Record in the run of a callback from now on, until the trainer finalizes its loggers."""
        own, theirs = self._own, companion.loop
        if own.outlets or (own.name, own.project, own.root) != (theirs.name, theirs.project, theirs.root):
            logger.warning("HooklineLogger: the run is that of HooklineCallback, by its name, project, root and sinks.")
        self.finalize("success")  # a run of its own, of what was logged before
        own.name, own.project, own.root = theirs.name, theirs.project, theirs.root
        if own.config:
            theirs.update_config(own.config)
        self._companion = companion

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Record metrics at a step."""
        companion = self._companion
        if not _is_rank_zero():
            return
        if companion is None:
            self._begin()
            self._own.step = max(self._own.step, step or 0)
            self._own.host_log(metrics, step=step)
        elif companion.is_recording:
            self._log_early()
            others = {name: value for name, value in metrics.items() if not companion.has_recorded(name)}
            if others:
                companion.loop.host_log(others, step=step)
        else:
            self._early.append((dict(metrics), step))

    def log_hyperparams(self, params: Mapping[str, Any] | Namespace, *args: Any, **options: Any) -> None:
        """Add hyper-parameters to the run's configuration; once it has begun, an event says so too."""
        if _is_rank_zero() and params:
            self.experiment.update_config(params)

    def after_save_checkpoint(self, checkpoint_callback: Any) -> None:
        """Record where the latest checkpoint of a `ModelCheckpoint` lies; beside a callback, that one does."""
        names = ("best_model_path", "last_model_path", "kth_best_model_path")
        given = {getattr(checkpoint_callback, name, "") for name in names}
        given |= set(getattr(checkpoint_callback, "best_k_models", ()))
        there = [Path(path) for path in given if path and Path(path).exists()]
        if self._companion is None and there and _is_rank_zero():
            self._begin()
            self._own.checkpoint_saved(max(there, key=lambda path: path.stat().st_mtime))

    def finalize(self, status: str) -> None:
        """The trainer is done, or an error ended it; the logger goes on in the same run with what comes later."""
        if self._companion is not None:
            self._leave(self._companion.loop)
            self._log_early()
        if self._own.is_running and status == "failed":
            self._own.failed(sys.exception() or RuntimeError("the training failed"))
        elif self._own.is_running:
            self._own.train_end()

    def _leave(self, loop: HostLoop) -> None:
        self._companion = None
        if loop.dir is not None:
            self._state = loop.state_dict() | {"callbacks": {}}

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


def _is_rank_zero() -> bool:
    return not getattr(FRAMEWORK.utilities.rank_zero_only, "rank", 0)
