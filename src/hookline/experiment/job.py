"""`Job`: executes one run of an experiment, in whichever process it was sent to.

A failure ends this run only and is reported in its `Outcome`. Training, callbacks and benchmarks draw from random
states that are seeded when the run begins, so its results do not depend on what ran earlier in the process.

While it runs, a job sends `Progress` and `BenchmarkScored` messages to the scheduler. Assignments, messages and
outcomes can be pickled.
"""

import contextlib
import copy
import logging
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from hookline._engine.collection import CallbackCollection
from hookline._engine.errors import CheckpointError, HooklineError, OptionError
from hookline._engine.metrics import Deferred, plain
from hookline._engine.moments import Callback
from hookline._engine.state import ArmResult, EvalResult, LogContext, RunResult
from hookline._record import run_directory
from hookline._record.records import RUN_RESULT
from hookline._record.redaction import Redactor
from hookline._record.run_directory import checked_tags
from hookline.experiment.arms import PlannedRun
from hookline.experiment.benchmark import BenchmarkCallback
from hookline.experiment.directory import RecordedResult, write_run_ids
from hookline.experiment.evaluation import EvaluationStopped, evaluate
from hookline.experiment.results.tables import error_line
from hookline.experiment.subscribers import RunSubscribers, collected
from hookline.loops import checkpoint, rng
from hookline.loops.loop import EVALUATIONS
from hookline.loops.recording import BENCHMARK_AXIS
from hookline.loops.session import Session
from hookline.loops.signals import is_signal
from hookline.loops.trainer_config import TrainerConfig

logger = logging.getLogger("hookline")

FINAL = "final"
"""The axis of benchmarks that are scored after training."""
OLD_PROCESS_SECONDS = 30.0
"""How long to wait for the process of an earlier attempt to release the run's directory."""
_POLL_SECONDS = 0.05
_NOT_RESULTS = ("hooks/",)
"""Prefixes of metrics that are no result of a run."""
NOT_STARTED = "It was stopped before it had begun."
PRUNED = "pruned by the search"
"""Begins the stop reason of a run that a search ends early."""
REPORT_SECONDS = 0.25
REPORTED_METRICS = 4


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a run.

    Attributes:
        doing: ``training``, or the name of the benchmark being scored.
    """

    key: str
    step: int
    num_steps: int | None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    doing: str = "training"


@dataclass(frozen=True, slots=True)
class BenchmarkScored:
    """A benchmark was scored: at a step of the training, or after it (``step`` is None)."""

    key: str
    eval_result: EvalResult
    predictions: list[dict[str, Any]]
    step: int | None


Message: TypeAlias = Progress | BenchmarkScored
Send = Callable[[Message], None]
Predicted = tuple[EvalResult, list[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a run.

    Attributes:
        ids: Those of the run's context, with the ids that were added to them.
        signal: The signal that asked the run to stop, whatever its status.
        died: The run began, and its process died or could not report its end, so its own subscribers do not know.
    """

    key: str
    result: RunResult
    ids: Mapping[str, Any] = field(default_factory=dict)
    signal: str | None = None
    died: bool = False


@dataclass(frozen=True)
class Assignment:
    """Everything that a process needs to execute a run.

    Attributes:
        facts: Entries of ``run.json`` besides those that every run has.
        start_from: The run directory or checkpoint whose weights it starts with.
        earlier: The results of the arm's runs that had ended when it started.
    """

    planned: PlannedRun
    ctx: LogContext
    directory: Path
    subscribers: RunSubscribers = field(default_factory=RunSubscribers)
    benchmarks: list[Any] = field(default_factory=list)
    sinks: list[Any] = field(default_factory=list)
    facts: Mapping[str, Any] = field(default_factory=dict)
    start_from: Path | None = None
    strict: bool = False
    attempt: int = 1
    earlier: tuple[RunResult, ...] = ()

    @property
    def key(self) -> str:
        """The key of the planned run."""
        return self.planned.key


def lost_outcome(assignment: Assignment, error: str, *, status: str = "failed", began: bool = True) -> Outcome:
    """The outcome of a run that cannot report it itself."""
    planned = assignment.planned
    result = RunResult(
        run_key=assignment.key,
        status=status,
        error=error,
        repeat=planned.repeat,
        stage=planned.stage,
        seed=planned.seed,
        output_dir=assignment.directory,
        attempts=assignment.attempt,
    )
    return Outcome(assignment.key, result, died=began)


def execute(assignment: Assignment, send: Send) -> Outcome:
    """Execute a run, resuming an earlier attempt where there is one.

    Args:
        send: Called with the run's messages.
    """
    return Job(assignment, send).execute()


class Job:
    """A run in progress: recipes get the run's parts from it and attach their loop to it."""

    def __init__(self, assignment: Assignment, send: Send) -> None:
        self._assignment, self._send = assignment, send
        self.ctx = assignment.ctx
        self.run_key, self.seed = assignment.key, assignment.planned.seed
        self.directory, self.strict = assignment.directory, assignment.strict
        self.sinks, self._benchmarks = copy.deepcopy((assignment.sinks, assignment.benchmarks))
        self.start_from: Path | None = None
        self.results: dict[str, Any] = {}
        """The values that a training function returned."""
        self._own = CallbackCollection()
        self._session: Session | None = None
        self._subject: Callable[[], Any] = lambda: None
        self._evals: list[EvalResult] = []
        self._failed_evals: dict[str, str] = {}
        self._began = 0.0
        self._seconds: float | None = None

    def callbacks(self, given: Any = ()) -> CallbackCollection:
        """The subscribers of the run: those of its arm, and those of the experiment."""
        parts: Iterable[Any] = [given] if isinstance(given, CallbackCollection | Mapping) else given or ()
        own = RunSubscribers(list(parts)).copies()
        collection = collected([*own, *self._assignment.subscribers.copies()], strict=self.strict)
        collection.borrow(self._own)  # they stay open until on_run_end
        return collection

    def attach(self, session: Session, subject: Callable[[], Any]) -> None:
        """Connect the job to the loop that trains, before it begins.

        Args:
            subject: Returns the object that answers benchmarks.
        """
        self._session, self._subject = session, subject
        self.ctx.run_config, self.ctx.rank = session.config, session.rank
        session.ctx = self.ctx
        benchmarks = [benchmark for benchmark in self._benchmarks if benchmark.every]
        if benchmarks:
            session.callbacks.add(BenchmarkCallback(benchmarks, self._score, self._record_during_training))
        session.callbacks.add(ProgressReporter(self.run_key, self._send))
        session.afterwards = self._score_after_training

    def execute(self) -> Outcome:
        """Train, score the benchmarks, and notify the run's own subscribers of its end."""
        self._began, error = time.perf_counter(), None
        try:
            with rng.seeded(self.seed):
                self._train()
        except BaseException as failure:
            if isinstance(failure, KeyboardInterrupt) or (self._is_interrupted() and isinstance(failure, SystemExit)):
                raise
            error = failure
        result = self._result(error)
        self.ctx.status, self.ctx.error = result.status, error_line(result.error) or None
        arm = ArmResult(self._assignment.planned.arm, self.ctx.run_config, (*self._assignment.earlier, result))
        try:
            with contextlib.closing(self._own):
                self._own.on_run_end(self.ctx, result, arm)
        except Exception:  # of a critical subscriber: it fails the run
            result = replace(result, status="failed", error=traceback.format_exc())
        signal = None if self._session is None else self._session.signal
        return Outcome(self.run_key, result, dict(self.ctx.ids), signal)

    def _train(self) -> None:
        self._make_directory()
        self._own = self._assignment.subscribers.make()
        self._own.strict = self.strict
        self._own.on_run_start(self.ctx)
        write_run_ids(self.directory, self.ctx.ids)  # at once: if this process dies, the next attempt reuses them
        self.start_from = self._starting_point()
        self._assignment.planned.recipe.train(self)

    def _make_directory(self) -> None:
        # The process of an earlier attempt that was just killed may still hold the directory. One that stays alive
        # is an error later.
        deadline = time.monotonic() + OLD_PROCESS_SECONDS
        while run_directory.is_alive(self.directory) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        if (self.directory / run_directory.METADATA).is_file():
            return
        home, planned = self.directory.parent, self._assignment.planned
        facts = {"name": self.run_key, "project": home.name, "config": planned.recipe.describe()}
        facts |= {"parents": self.ctx.ids, **self._assignment.facts}
        config = planned.recipe.config
        tags = checked_tags([*planned.tags, *(config.tags if isinstance(config, TrainerConfig) else ())])
        if tags:
            facts["tags"] = list(tags)
        redactor = Redactor(config.redact if isinstance(config, TrainerConfig) else None)
        run_directory.create(home.parent, home.name, facts, run_id=self.directory.name, redactor=redactor)

    def _starting_point(self) -> Path | None:
        """The checkpoint whose weights to start with; None where the run resumes its own checkpoint."""
        source = self._assignment.start_from
        if source is None or checkpoint.last(self.directory) is not None:
            return None
        if checkpoint.is_checkpoint(source):
            return source
        saved = checkpoint.last(source)
        if saved is None:
            raise CheckpointError(
                f"{self.run_key} starts from {source.name}, which has no checkpoint: let it save one at its end "
                "(a function sets that up with run.checkpoint_with)."
            )
        return saved

    def _record_during_training(self, loop: Any, result: EvalResult, predictions: list[dict[str, Any]]) -> None:
        axis = BENCHMARK_AXIS if EVALUATIONS in loop.other_axes else EVALUATIONS
        _record_samples(loop, predictions, axis)
        loop.record_evaluation(result.name, benchmark_metrics(result), axis=axis)
        self._announce(result, predictions, loop.step)

    def _score_after_training(self) -> None:
        session = self._session
        if session is None or self._is_interrupted() or self._is_pruned():
            return
        recorder = session.recorder
        if session.resumed_from is not None and recorder is not None:
            recorder.resume(**{FINAL: -1})  # benchmarks scored before an interruption are scored again
        for benchmark in self._benchmarks:
            self._send(Progress(self.run_key, session.step, session.num_steps, doing=benchmark.name))
            scored = self._score(benchmark, self._is_interrupted)
            if self._is_interrupted():
                return
            if scored is None:
                continue
            result, predictions = scored
            self._failed_evals.pop(benchmark.name, None)  # it may have failed at an earlier step
            self._evals.append(result)
            # The loop has ended, so its subscribers get no further moments: record directly.
            values = benchmark_metrics(result)
            session.metrics.update(values)
            if recorder is not None:
                recorder.metrics(dict(values), session.step, FINAL)
            _record_samples(session, predictions, FINAL)
            self._announce(result, predictions, None)
        self._seconds = time.perf_counter() - self._began  # before sinks close, which is not part of the run
        if recorder is not None:
            # The journal then holds the result wherever it is copied. Values from a device must precede it.
            recorder.flush()
            recorder.event(RUN_RESULT, step=session.step, **RecordedResult.data_of(self._result(None)))

    def _score(self, benchmark: Any, should_stop: Callable[[], bool] = lambda: False) -> Predicted | None:
        """Score a benchmark; if it fails, log and record that, and let the run continue."""
        try:
            return evaluate(benchmark, self._required_subject(), should_stop=should_stop)
        except EvaluationStopped:
            return None
        except Exception as error:
            self._failed_evals[benchmark.name] = traceback.format_exc()
            with_traceback = None if isinstance(error, HooklineError) else error  # our own messages need none
            message = "The benchmark %s of %s failed, and the run continues: %s"
            logger.log(logging.ERROR, message, benchmark.name, self.run_key, error, exc_info=with_traceback)
            if self._session is not None and self._session.recorder is not None:
                facts = {"benchmark": benchmark.name, "error": f"{type(error).__name__}: {error}"}
                self._session.recorder.event("benchmark_failed", step=self._session.step, **facts)
            return None

    def _required_subject(self) -> Any:
        subject = self._subject()
        if subject is None:
            raise OptionError(
                "Nothing answers it: set run.answers in the function that trains, or give the arm answers=, to a "
                "policy or a function of a list of prompts."
            )
        return subject

    def _announce(self, result: EvalResult, predictions: list[dict[str, Any]], step: int | None) -> None:
        self._own.on_benchmark_eval(self.ctx, result, predictions, step=step)
        self._send(BenchmarkScored(self.run_key, result, predictions, step))

    def _is_interrupted(self) -> bool:
        return self._session is not None and (
            self._session.signal is not None or is_signal(self._session.stop_reason or "")
        )

    def _is_pruned(self) -> bool:
        return self._session is not None and (self._session.stop_reason or "").startswith(PRUNED)

    def _result(self, error: BaseException | None) -> RunResult:
        session, planned = self._session, self._assignment.planned
        message = None
        if error is not None:
            status, message = "failed", "".join(traceback.format_exception(error))
        elif session is not None and self._is_interrupted():
            status, message = "stopped", f"Stopped by {session.stop_reason}."
        elif session is not None and self._is_pruned():
            status, message = "pruned", session.stop_reason
        elif self._failed_evals:
            failed = [f"{name}: {error_line(why)}" for name, why in self._failed_evals.items()]
            status, message = "incomplete", f"Benchmarks failed: {'; '.join(failed)}"
        else:
            status = "completed"
        last = {} if session is None else dict(session.metrics)
        kept = {name: value for name, value in last.items() if not name.startswith(_NOT_RESULTS)}
        if session is not None:
            self.ctx.ids.update(session.recording.sinks.ids())
        return RunResult(
            run_key=self.run_key,
            status=status,
            metrics=plain({**self.results, **kept, **self.results}),  # returned values come first, and win
            evals=tuple(self._evals),
            artifacts=None if session is None else session.artifacts(),
            error=message,
            seconds=time.perf_counter() - self._began if self._seconds is None else self._seconds,
            failed_evals=dict(self._failed_evals),
            repeat=planned.repeat,
            stage=planned.stage,
            seed=planned.seed,
            output_dir=self.directory,
            attempts=self._assignment.attempt,
            returned=tuple(self.results),
        )


def benchmark_metrics(result: EvalResult) -> dict[str, float]:
    """The metrics of a benchmark under the names they are recorded by."""
    return {f"{result.name}/{name}": value for name, value in result.metrics.items()}


def _record_samples(loop: Any, predictions: list[dict[str, Any]], axis: str) -> None:
    if loop.recorder is None:
        return
    samples = [
        {
            "prompt": row["instruction"],
            "completion": row["output"] if isinstance(row["output"], str) else repr(row["output"]),
            "expected": row["expected"],
            "rewards": row["scores"],
            "total": row["reward"],
            "lesson": row["benchmark"],
            "task_id": row["task_id"],
            "metadata": row["metadata"],
        }
        for row in predictions
    ]
    loop.recorder.samples(samples, loop.step, axis)


class ProgressReporter(Callback):
    """Sends a run's progress to the scheduler, at most every `REPORT_SECONDS`.

    Args:
        key: The run's key in its experiment.
        clock: Seconds, from any starting point.
    """

    name = "progress_reports"
    priority = -1001

    def __init__(self, key: str, send: Send, clock: Callable[[], float] = time.monotonic) -> None:
        self._key, self._send, self._clock = key, send, clock
        self._due = float("-inf")

    def on_train_start(self, loop: Any) -> None:
        """Report the step it starts at."""
        self._report(loop)

    def on_step_end(self, loop: Any, step_idx: int, batch: Any, metrics: Any) -> None:
        """Report the step, if the last report is old enough."""
        if self._clock() >= self._due:
            self._due = self._clock() + REPORT_SECONDS
            self._report(loop)

    def on_train_end(self, loop: Any, artifacts: Any) -> None:
        """Report the last step."""
        self._report(loop)

    def _report(self, loop: Any) -> None:
        ready: dict[str, Any] = {}
        for name, value in dict.items(loop.metrics):
            if isinstance(value, Deferred):  # never wait for a device here
                value = value.get() if value.source.ready() else None
            if type(value) in (int, float):
                ready[name] = value
            if len(ready) == REPORTED_METRICS:
                break
        self._send(Progress(self._key, loop.step, loop.num_steps, ready))


class StopRequests(Callback):
    """Passes stop requests to a run's training, whether they come before or after it begins."""

    name = "stop_requests"

    def __init__(self) -> None:
        self.reason: str | None = None
        self._loop: Any = None

    def __deepcopy__(self, memo: Any) -> "StopRequests":
        return self  # it belongs to one run

    def on_train_start(self, loop: Any) -> None:
        """Pass on a request that came before the training began."""
        self._loop = loop
        if self.reason is not None:
            loop.request_stop(self.reason)

    def request_stop(self, reason: str) -> None:
        """Ask the run to stop, from any thread."""
        self.reason = reason
        if self._loop is not None:
            self._loop.request_stop(reason)

    def attached_to(self, assignment: Assignment) -> Assignment:
        """The assignment with this callback among its subscribers."""
        subscribers = replace(assignment.subscribers, instances=[*assignment.subscribers.instances, self])
        return replace(assignment, subscribers=subscribers)
