"""`ReportCallback`: a run in a worker of Ray Train, or in a trial of Tune, reports to Ray.

A step that is due, a validation and a checkpoint are one report, made when all of them are known: as the next step
begins, with the checkpoint, or at the end. Ray wants every worker to report equally often, and a report waits for the
others: so validations and checkpoints are made on all of them, as hookline's own are, and an error here ends the run.
"""

import importlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import ray.train

from hookline._engine.checks import require_integer
from hookline._engine.errors import OptionError
from hookline._engine.metrics import plain
from hookline._engine.moments import Callback
from hookline._engine.state import LoopArtifacts, LoopState, ManifestRow
from hookline._engine.subscriber import WRITER_PRIORITY
from hookline.callbacks.monitoring import is_nth

HOME = "hookline_checkpoint"
"""In the metadata of Ray's checkpoint: where hookline's own lies."""


def last_checkpoint() -> Path | None:
    """The checkpoint that Ray wants this worker to go on from, for ``resume=``; None at the beginning.

    It is the one in the run's own directory, if that is still there, so that the run goes on; otherwise Ray's copy.

    Raises:
        OptionError: This is no worker of Ray Train, and no trial of Tune.
    """
    given = _session("last_checkpoint()").get_checkpoint()
    if given is None:
        return None
    home = Path(given.get_metadata().get(HOME, ""))
    if home.name and home.is_dir():
        return home
    local = type(given.filesystem).__name__ == "LocalFileSystem"
    return Path(given.path if local else given.to_directory())


class ReportCallback(Callback):
    """Reports metrics and checkpoints of a run to Ray, as ``ray.train.report`` or ``ray.tune.report``.

    Args:
        every_n_steps: How often metrics are reported besides validations and checkpoints; None for not.
        metrics: Which are reported; by default the latest of each name, but for what hooks cost. ``step`` and
            ``epoch`` always are.
        checkpoints: Hand checkpoints over, which Ray copies to its storage.
    """

    critical = True
    priority = WRITER_PRIORITY - 2  # behind those that save checkpoints

    def __init__(
        self, every_n_steps: int | None = 1, *, metrics: Iterable[str] | None = None, checkpoints: bool = True
    ) -> None:
        require_integer("every_n_steps", every_n_steps, optional=True)
        self.every_n_steps = every_n_steps
        self.metrics = None if metrics is None else list(metrics)
        self.checkpoints = checkpoints
        self._is_due = False
        self._reported_at = -1

    def on_train_start(self, loop: LoopState, /) -> None:
        _session("ReportCallback")
        self._is_due, self._reported_at = False, loop.step

    def on_step_start(self, loop: LoopState, step_idx: int, /) -> None:
        self._report_if_due(loop)

    def on_step_end(self, loop: LoopState, step_idx: int, batch: Any, metrics: dict[str, Any], /) -> None:
        self._is_due = self._is_due or is_nth(step_idx + 1, self.every_n_steps)

    def on_eval(self, loop: LoopState, step_idx: int, eval_name: str, metrics: dict[str, Any], /) -> None:
        self._is_due = True

    def on_checkpoint(self, loop: LoopState, row: ManifestRow, /) -> None:
        if self.checkpoints:
            self._report(loop, row)

    def on_train_end(self, loop: LoopState, artifacts: LoopArtifacts, /) -> None:
        self._is_due = self._is_due or (self.every_n_steps is not None and loop.step > self._reported_at)
        self._report_if_due(loop)

    def _report_if_due(self, loop: LoopState) -> None:
        if self._is_due:
            self._report(loop, None)

    def _report(self, loop: LoopState, row: ManifestRow | None) -> None:
        session = _session("ReportCallback")
        checkpoint = None
        if row is not None and loop.rank == 0 and _is_first(session):
            checkpoint = session.Checkpoint.from_directory(str(row.path))
            checkpoint.update_metadata({HOME: str(row.path.resolve())})
        self._is_due, self._reported_at = False, loop.step
        session.report(self._values(loop), checkpoint=checkpoint)

    def _values(self, loop: LoopState) -> dict[str, Any]:
        names = [name for name in loop.metrics if not name.startswith("hooks/")]
        if self.metrics is not None:
            names = [name for name in self.metrics if name in loop.metrics]
        return {"step": loop.step, "epoch": loop.epoch} | {name: plain(loop.metrics[name]) for name in names}


def _is_first(session: Any) -> bool:
    """Whether this is the worker that hands checkpoints over; trials of Tune have no others."""
    return session.__name__ != "ray.train" or bool(session.get_context().get_world_rank() == 0)


def _session(what: str) -> Any:
    """The module that reports here.

    Raises:
        OptionError: Nothing of Ray runs here.
    """
    try:
        ray.train.get_context()
    except DeprecationWarning:  # what Ray raises in a trial of Tune
        return importlib.import_module("ray.tune")
    except RuntimeError:
        raise OptionError(
            f"{what} belongs into a training function that Ray runs: train_loop_per_worker of a trainer of Ray Train, "
            "or a function given to ray.tune.Tuner."
        ) from None
    return importlib.import_module("ray.train")
