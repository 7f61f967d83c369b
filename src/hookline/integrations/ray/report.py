"""`ReportCallback`: reports a run in a worker of Ray Train, or in a trial of Tune, to Ray.

A step that is due, a validation and a checkpoint make one report, when all of them are known: as the next step starts,
with the checkpoint, or at the end. Every worker must report equally often, and a report waits for the other workers. So
validations and checkpoints must happen on all of them, as in hookline's loops, and an error here ends the run.
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

ORIGINAL = "hookline_checkpoint"
"""The key of hookline's own checkpoint in the metadata of Ray's."""


def last_checkpoint() -> Path | None:
    """Return the checkpoint from which this worker has to resume, for ``resume=``; None in a first start.

    It is the one in the run's own directory if that still exists, so that the run continues; otherwise Ray's copy.

    Raises:
        OptionError: This is neither a worker of Ray Train nor a trial of Tune.
    """
    given = _session("last_checkpoint()").get_checkpoint()
    if given is None:
        return None
    original = Path(given.get_metadata().get(ORIGINAL, ""))
    if original.name and original.is_dir():
        return original
    local = type(given.filesystem).__name__ == "LocalFileSystem"
    return Path(given.path if local else given.to_directory())


class ReportCallback(Callback):
    """Reports metrics and checkpoints of a run to Ray, as ``ray.train.report`` or ``ray.tune.report``.

    Args:
        every_n_steps: How often metrics are reported besides validations and checkpoints; None for never.
        metrics: The metrics to report; by default all, except for the costs of hooks. ``step`` and ``epoch`` are always
            reported.
        checkpoints: Report checkpoints, which Ray copies to its storage.
    """

    critical = True
    priority = WRITER_PRIORITY - 2  # after the callbacks that save checkpoints

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
        if self._is_due:
            self._report(loop, None)

    def on_step_end(self, loop: LoopState, step_idx: int, batch: Any, metrics: dict[str, Any], /) -> None:
        self._is_due = self._is_due or is_nth(step_idx + 1, self.every_n_steps)

    def on_eval(self, loop: LoopState, step_idx: int, eval_name: str, metrics: dict[str, Any], /) -> None:
        self._is_due = True

    def on_checkpoint(self, loop: LoopState, row: ManifestRow, /) -> None:
        if self.checkpoints:
            self._report(loop, row)

    def on_train_end(self, loop: LoopState, artifacts: LoopArtifacts, /) -> None:
        self._is_due = self._is_due or (self.every_n_steps is not None and loop.step > self._reported_at)
        if self._is_due:
            self._report(loop, None)

    def _report(self, loop: LoopState, row: ManifestRow | None) -> None:
        session = _session("ReportCallback")
        checkpoint = None
        if row is not None and loop.rank == 0 and _is_rank_zero(session):
            checkpoint = session.Checkpoint.from_directory(str(row.path))
            checkpoint.update_metadata({ORIGINAL: str(row.path.resolve())})
        self._is_due, self._reported_at = False, loop.step
        names = [name for name in loop.metrics if not name.startswith("hooks/")]
        if self.metrics is not None:
            names = [name for name in self.metrics if name in loop.metrics]
        values = {"step": loop.step, "epoch": loop.epoch} | {name: plain(loop.metrics[name]) for name in names}
        session.report(values, checkpoint=checkpoint)


def _is_rank_zero(session: Any) -> bool:
    """Check whether this worker reports the checkpoints; a trial of Tune has only one."""
    return session.__name__ != "ray.train" or bool(session.get_context().get_world_rank() == 0)


def _session(what: str) -> Any:
    """Return the module whose ``report`` works here.

    Raises:
        OptionError: This is not a function that Ray runs.
    """
    try:
        ray.train.get_context()
    except DeprecationWarning:  # raised by Ray in a trial of Tune
        return importlib.import_module("ray.tune")
    except RuntimeError:
        raise OptionError(
            f"{what} works only in a training function that Ray runs: train_loop_per_worker of a trainer of Ray Train, "
            "or a function given to ray.tune.Tuner."
        ) from None
    return importlib.import_module("ray.train")
