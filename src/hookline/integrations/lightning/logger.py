"""`HooklineLogger`: records a module's logged values, as one of the trainer's loggers.

On its own it records the values that Lightning passes to loggers, every ``log_every_n_steps``, at Lightning's steps
(counted from 0). If the trainer also has a `HooklineCallback`, the callback records every step in its own run, and the
logger adds the rest to that run: hyperparameters, and what is logged through it directly.

A logger has one run, which starts with the first thing to record and continues with every fit and test.
"""

import logging
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, Unpack

from hookline._engine.defaults import NAME
from hookline._engine.errors import MissingExtraError, OptionError
from hookline._record.media import Audio, Image, Video
from hookline._record.media_table import Table
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


class LoggerRun(PassiveRun):
    """The run of a logger, which Fabric does not finalize: a program that ends without an error has finished it."""

    def _end_with_the_program(self) -> None:
        error = getattr(sys, "last_value", None)  # the uncaught exception, if there was one
        self.finish(error if isinstance(error, BaseException) else None)


class HooklineLogger(FRAMEWORK.loggers.Logger):  # type: ignore[misc]
    """A Lightning logger that writes hookline's record.

    Args:
        name, summary, options: As for every run of hookline; beside a `HooklineCallback`, those of the callback count.
    """

    def __init__(
        self,
        name: str = NAME,
        *,
        summary: bool = True,
        **options: Unpack[RecordOptions],
    ) -> None:
        super().__init__()
        self._own = LoggerRun(name, summary=summary, **options)
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
        self.finalize("success")  # the logger's own run, with the values logged before
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

    def log_image(self, key: str, images: Sequence[Any], step: int | None = None, **options: Any) -> None:
        """Record images under a name, as `WandbLogger.log_image` does.

        Args:
            images: Anything that `hookline.Image` accepts.
            options: Options of `hookline.Image`, one for each image: ``caption=["a cat", "a dog"]``.
        """
        self._log_media(Image, key, images, step, options)

    def log_audio(self, key: str, audios: Sequence[Any], step: int | None = None, **options: Any) -> None:
        """Record sounds under a name, as `WandbLogger.log_audio` does; the options are those of `hookline.Audio`."""
        if "sample_rate" in options:  # W&B's name
            options["rate"] = options.pop("sample_rate")
        self._log_media(Audio, key, audios, step, options)

    def log_video(self, key: str, videos: Sequence[Any], step: int | None = None, **options: Any) -> None:
        """Record videos under a name, as `WandbLogger.log_video` does; the options are those of `hookline.Video`."""
        self._log_media(Video, key, videos, step, options)

    def log_table(
        self,
        key: str,
        columns: Sequence[str] | None = None,
        data: Sequence[Sequence[Any]] | None = None,
        dataframe: Any = None,
        step: int | None = None,
    ) -> None:
        """Record a table, as `WandbLogger.log_table` does: columns and rows, or a data frame."""
        self.log_metrics({key: Table(dataframe if columns is None else columns, data or ())}, step)

    log_text = log_table

    def _log_media(self, kind: Any, key: str, values: Sequence[Any], step: int | None, options: dict[str, Any]) -> None:
        if isinstance(values, str | bytes) or not isinstance(values, Sequence):
            raise OptionError(f"{key!r}: {type(values).__name__} is not a list; give a list of values.")
        for name, given in options.items():
            if isinstance(given, str) or not isinstance(given, Sequence) or len(given) != len(values):
                raise OptionError(f"{name}={given!r:.100}: give a list with one for each of the {len(values)} values.")
        own = [{name: given[number] for name, given in options.items()} for number in range(len(values))]
        made = [kind(value, **chosen) for value, chosen in zip(values, own, strict=True)]
        self.log_metrics({key: made}, step)

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
        """Return the values logged since the last call."""
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
