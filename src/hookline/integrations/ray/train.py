"""`HooklineTrainCallback`: records the reports and failures of Ray Train's workers as a run of hookline.

The driver enters the callback around ``trainer.fit()`` and records how the run ended. Ray's controller, another
process, records the reports, so both need access to the same directory. Each report is a row, with the metrics of rank
zero under their names and those of other ranks as ``rank1/loss``.
"""

import logging
from pathlib import Path
from types import TracebackType
from typing import Any, Self, Unpack

from ray.train import UserCallback

from hookline._engine.defaults import mode
from hookline._engine.errors import OptionError
from hookline._engine.metrics import MediaValue, collect
from hookline._record import run_directory
from hookline._record.console import ConsoleWriter
from hookline._record.console_capture import Attachment, attach, checked_mode
from hookline._record.environment import EnvironmentGathering
from hookline._record.journal import checked_durability
from hookline._record.recorder import Recorder
from hookline._record.redaction import as_redactor
from hookline._record.source_code import checked_code
from hookline.config.variables import choose
from hookline.loops import run_facts
from hookline.loops.options import RecordOptions
from hookline.loops.run_sinks import DRAIN_SECONDS, RunSinks

logger = logging.getLogger("hookline")


class HooklineTrainCallback(UserCallback):
    """Records a fit of Ray Train; enter it around the fit.

    ::

        with HooklineTrainCallback("fit") as recorded:
            TorchTrainer(..., run_config=RunConfig(callbacks=[recorded])).fit()

    Args:
        name, options: As for every run of hookline. ``console`` records what the driver prints, to which Ray forwards
            the output of workers.
    """

    def __init__(
        self,
        name: str = "ray",
        **options: Unpack[RecordOptions],
    ) -> None:
        given = {key: options[key] for key in ("project", "root", "tags", "sinks") if key in options}
        chosen = choose(name=name, **given)  # type: ignore[arg-type]
        self._is_disabled = mode() == "disabled"
        if chosen.root is None and not self._is_disabled:
            raise OptionError("root=None: Ray Train's controller and this process share the run's directory. Give one.")
        delivery, drain_seconds = options.get("delivery", "thread"), options.get("drain_seconds", DRAIN_SECONDS)
        self._durability = checked_durability(options.get("durability", "checkpoint"))
        self._console_mode = checked_mode(options.get("console", True))
        self._console: Attachment | None = None
        self._redactor, self._code = as_redactor(options.get("redact")), checked_code(options.get("code", "diff"))
        self._project, self._root = chosen.project, Path(chosen.root or ".").resolve()
        self._facts = run_facts.user_facts(chosen.name, options.get("config"), chosen.tags, options.get("notes", ""))
        self._facts |= {"project": self._project, "parents": {}}
        self._sinks: RunSinks | None = RunSinks(chosen.sinks, delivery=delivery, drain_seconds=drain_seconds)
        self.dir: Path | None = None
        self._recorder: Recorder | None = None
        self._environment: EnvironmentGathering | None = None
        self._step = self._reports = 0
        self._has_failed = False  # since the last report

    def __enter__(self) -> Self:
        if self.dir is not None or self._sinks is None:
            raise OptionError("A HooklineTrainCallback records one fit: create another one.")
        if self._is_disabled:
            return self
        self.dir = run_directory.create(self._root, self._project, self._facts, redactor=self._redactor)
        run_directory.acquire(self.dir)
        self._record_status("running")
        self._environment = EnvironmentGathering(self.dir, self._redactor, code=self._code)
        self._environment.start()
        self._sinks.open(self.dir)
        self._console = attach(ConsoleWriter(self.dir, redact=self._redactor), self._console_mode)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.dir is None or self._sinks is None:
            return
        if self._console is not None:
            self._console.close()
        if self._environment is not None:
            self._environment.finish()
        self._record_status("finished" if error is None else "failed", "" if error is None else _describe(error))
        try:
            self._sinks.close()
        finally:
            run_directory.release(self.dir)

    def __getstate__(self) -> dict[str, Any]:
        if not self._is_disabled:
            self._entered_dir()  # the copy for Ray's controller needs it
        not_sent = dict.fromkeys(("_sinks", "_recorder", "_console", "_environment"))
        return self.__dict__ | not_sent | {"_facts": {}}

    def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
        """Record a report of all workers."""
        if self._is_disabled:
            return
        self._reports += 1
        given = metrics[0].get("step") if metrics else None
        step = given if isinstance(given, int) else self._reports
        # Workers that restart from a checkpoint report earlier steps again: a new session makes the rows after its
        # start obsolete. A step that is reported twice without a failure in between has more metrics.
        went_back = step < self._step + self._has_failed
        self._has_failed = False
        if self._recorder is not None and went_back:
            self._recorder.close()
            self._recorder = None
            self._open_recorder().resume(step - 1)
        self._step = step
        recorder = self._open_recorder()
        row = {
            name if rank == 0 else f"rank{rank}/{name}": value
            for rank, reported in enumerate(metrics)
            for name, value in reported.items()
        }
        recorder.log({name: value for name, value in row.items() if _can_log(name, value)}, step=step)
        if checkpoint is not None:
            recorder.event("checkpoint", step=step, path=str(checkpoint.path), kind="ray")
            try:
                if self._durability != "process":
                    recorder.journal.sync()
            except OSError as error:  # training continues: Ray has saved the checkpoint
                logger.warning("The record before the checkpoint of step %d cannot be synced: %s", step, error)

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        """Record the failures of workers, which Ray may start again."""
        if self._is_disabled:
            return
        self._has_failed = True
        for rank, error in worker_exceptions.items():
            self._open_recorder().event("worker_failed", step=self._step, rank=rank, error=_describe(error))

    def _open_recorder(self) -> Recorder:
        if self._recorder is None:
            self._recorder = Recorder(self._entered_dir(), durability=self._durability, redact=self._redactor)
        return self._recorder

    def _entered_dir(self) -> Path:
        if self.dir is None:
            raise OptionError("Enter the callback around the fit: with HooklineTrainCallback(...) as recorded.")
        return self.dir

    def _record_status(self, status: str, message: str = "") -> None:
        # The driver writes its own journal: the controller has another.
        recorder = Recorder(self._entered_dir(), durability=self._durability, redact=self._redactor)
        recorder.status(status, message)
        recorder.close()


def _can_log(name: str, value: Any) -> bool:
    if isinstance(value, MediaValue):  # not captured twice
        return True
    try:
        collect(({name: value},), {})
    except OptionError:
        return False
    return True


def _describe(error: BaseException) -> str:
    cause = getattr(error, "cause", None)
    found = cause if isinstance(cause, BaseException) else error
    return f"{type(found).__name__}: {found}"
