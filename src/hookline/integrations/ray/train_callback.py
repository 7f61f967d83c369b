"""`HooklineTrainCallback`: what the workers of a Ray Train run report, and their failures, become a run of hookline.

The run lives in the driver, as a context around ``trainer.fit()``, which says how it ended. Ray's controller, another
process, is told the reports, and records them: both need to see one directory. Each report is a row, with the metrics
of rank zero under their names and those of the others as ``rank1/loss``.
"""

import logging
from pathlib import Path
from types import TracebackType
from typing import Any, Self, Unpack

from ray.train import UserCallback

from hookline._engine.errors import OptionError
from hookline._engine.metrics import collect
from hookline._record import run_directory
from hookline._record.journal import checked_durability
from hookline._record.recorder import Recorder
from hookline.loops import recording
from hookline.loops.options import RecordOptions
from hookline.loops.run_sinks import DRAIN_SECONDS, RunSinks

logger = logging.getLogger("hookline")


class HooklineTrainCallback(UserCallback):
    """Records a fit of Ray Train.

    It is entered around it::

        with HooklineTrainCallback("fit") as recorded:
            TorchTrainer(..., run_config=RunConfig(callbacks=[recorded])).fit()

    Args:
        name, options: As for every run of hookline.
    """

    def __init__(
        self,
        name: str = "ray",
        **options: Unpack[RecordOptions],
    ) -> None:
        root = options.get("root", "runs")
        if root is None:
            raise OptionError("root=None: the controller of Ray Train and this process meet in the run's directory.")
        delivery, drain_seconds = options.get("delivery", "thread"), options.get("drain_seconds", DRAIN_SECONDS)
        self._durability = checked_durability(options.get("durability", "checkpoint"))
        self._project, self._root = options.get("project", "default"), Path(root).resolve()
        self._facts = recording.facts(name, options.get("config"), options.get("tags", ()), options.get("notes", ""))
        self._facts |= {"project": self._project, "parents": {}}
        self._outlets: RunSinks | None = RunSinks(
            options.get("sinks", ()), delivery=delivery, drain_seconds=drain_seconds
        )
        self.dir: Path | None = None
        self._recorder: Recorder | None = None
        self._step = self._reports = 0
        self._has_failed = False  # and no report came since

    def __enter__(self) -> Self:
        if self.dir is not None or self._outlets is None:
            raise OptionError("A HooklineTrainCallback records one fit: make another.")
        self.dir = run_directory.create(self._root, self._project, self._facts)
        run_directory.acquire(self.dir)
        self._say("running")
        self._outlets.open(self.dir)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.dir is None or self._outlets is None:
            return
        self._say("finished" if error is None else "failed", "" if error is None else _told(error))
        try:
            self._outlets.close()
        finally:
            run_directory.release(self.dir)

    def __getstate__(self) -> dict[str, Any]:
        """What Ray's controller needs."""
        if self.dir is None:
            raise OptionError("Enter it around the fit: with HooklineTrainCallback(...) as recorded.")
        return self.__dict__ | {"_outlets": None, "_recorder": None, "_facts": {}}

    def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
        """All workers have reported."""
        self._reports += 1
        given = metrics[0].get("step") if metrics else None
        step = given if isinstance(given, int) else self._reports
        recorder = self._recording_at(step)
        row = {_name(rank, name): value for rank, each in enumerate(metrics) for name, value in each.items()}
        recorder.log({name: value for name, value in row.items() if _can_log(name, value)}, step=step)
        if checkpoint is not None:
            recorder.event("checkpoint", step=step, path=str(checkpoint.path), kind="ray")
            self._sync(recorder)

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        """Workers have failed; Ray may start them again."""
        self._has_failed = True
        for rank, error in worker_exceptions.items():
            self._recording().event("worker_failed", step=self._step, rank=rank, error=_told(error))

    def _recording(self) -> Recorder:
        """The recorder of the controller."""
        if self._recorder is None:
            self._recorder = Recorder(self._required_dir(), durability=self._durability)
        return self._recorder

    def _sync(self, recorder: Recorder) -> None:
        """Sync the record before a checkpoint; where that fails, training continues: Ray has saved the checkpoint."""
        try:
            if self._durability != "process":
                recorder.journal.sync()
        except OSError as error:
            logger.warning("The record before the checkpoint of step %d cannot be synced: %s", self._step, error)

    def _recording_at(self, step: int) -> Recorder:
        """The recorder for a step; workers that went back begin a new session of it, behind that step.

        A step that is reported twice is done again only if workers failed in between; otherwise there is more of it.
        """
        goes_back = step < self._step + self._has_failed
        self._has_failed = False
        if self._recorder is not None and goes_back:
            self._recorder.close()
            self._recorder = None
            self._recording().resume(step - 1)
        self._step = step
        return self._recording()

    def _required_dir(self) -> Path:
        if self.dir is None:
            raise OptionError("Enter it around the fit: with HooklineTrainCallback(...) as recorded.")
        return self.dir

    def _say(self, status: str, message: str = "") -> None:
        """Record a status, in a journal of its own: the controller has another."""
        recorder = Recorder(self._required_dir(), durability=self._durability)
        recorder.status(status, message)
        recorder.close()


def _name(rank: int, name: str) -> str:
    return name if rank == 0 else f"rank{rank}/{name}"


def _can_log(name: str, value: Any) -> bool:
    try:
        collect(({name: value},), {})
    except OptionError:
        return False
    return True


def _told(error: BaseException) -> str:
    cause = getattr(error, "cause", None)
    found = cause if isinstance(cause, BaseException) else error
    return f"{type(found).__name__}: {found}"
