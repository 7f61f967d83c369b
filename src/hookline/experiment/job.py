"""`Job`: one run of an experiment, carried out in whichever process it is given to.

Whatever goes wrong in it ends this run only, and is told in its outcome. Training, callbacks and benchmarks draw from
random states that are set when it begins, so it gives the same results whatever ran before it in the process.

What a run tells whoever started it, from wherever it runs; all of it can be pickled.

`ProgressReports`: tells whoever started a run how far it is, a few times a second at the most.

`StopRequests`: stops a run's training when it is asked to, whether that comes before or after its beginning.
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
from hookline._record.run_directory import checked_tags
from hookline.experiment.benchmark import BenchmarkCallback
from hookline.experiment.directory import RecordedResult, keep_run_ids
from hookline.experiment.evaluation import EvaluationStopped, evaluate
from hookline.experiment.plan import PlannedRun
from hookline.experiment.results.tables import error_line
from hookline.experiment.subscribers import RunSubscribers, collected
from hookline.loops import checkpoint, rng
from hookline.loops.loop import EVALUATIONS
from hookline.loops.recording import BENCHMARK_AXIS
from hookline.loops.session import Session
from hookline.loops.signals import is_signal
from hookline.loops.trainer_config import TrainerConfig


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is.

    Attributes:
        doing: ``training``, or the name of the benchmark that is being scored.
    """

    key: str
    step: int
    num_steps: int | None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    doing: str = "training"


@dataclass(frozen=True, slots=True)
class Scored:
    """A benchmark was scored: within the training at a step, or after it."""

    key: str
    eval_result: EvalResult
    predictions: list[dict[str, Any]]
    step: int | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """A run ended, one way or another.

    Attributes:
        ids: Those of the run's context, with what was added to them.
        signal: The signal that it was asked to stop by, however it ended.
        died: It began, and its process died or could not say how it ended, so its own subscribers do not know.
    """

    key: str
    result: RunResult
    ids: Mapping[str, Any] = field(default_factory=dict)
    signal: str | None = None
    died: bool = False


Message: TypeAlias = Progress | Scored


SECONDS = 0.25
SHOWN = 4
"""How many metrics are told; whoever wants more reads the record."""


class ProgressReports(Callback):
    """Reports the progress of a run.

    Args:
        key: The run's name in its experiment.
        tell: Called with the reports.
        clock: Seconds, from anywhere.
    """

    name = "progress_reports"
    priority = -1001

    def __init__(self, key: str, tell: Callable[[Message], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._key, self._tell, self._clock = key, tell, clock
        self._due = float("-inf")

    def on_train_start(self, loop: Any) -> None:
        """Say that it begins."""
        self._report(loop)

    def on_step_end(self, loop: Any, step_idx: int, batch: Any, metrics: Any) -> None:
        """Say how far it is, unless that was just said."""
        if self._clock() >= self._due:
            self._due = self._clock() + SECONDS
            self._report(loop)

    def on_train_end(self, loop: Any, artifacts: Any) -> None:
        """Say how far it came."""
        self._report(loop)

    def _report(self, loop: Any) -> None:
        self._tell(Progress(self._key, loop.step, loop.num_steps, _ready(loop.metrics)))


def _ready(metrics: dict[str, Any]) -> dict[str, Any]:
    """The first numbers that are there; those still on their way from a device are not waited for."""
    ready: dict[str, Any] = {}
    for name, value in dict.items(metrics):
        if isinstance(value, Deferred):
            value = value.get() if value.source.ready() else None
        if type(value) in (int, float):
            ready[name] = value
        if len(ready) == SHOWN:
            break
    return ready


logger = logging.getLogger("hookline")

FINAL = "final"
"""The axis that benchmarks after a training are recorded on."""
OLD_PROCESS_SECONDS = 30.0
"""How long a process that has the run's directory still may take to leave it."""
_LOOK_SECONDS = 0.05
_UNINTERESTING = ("hooks/",)
Tell = Callable[[Message], None]
NEVER_BEGUN = "It was stopped before it had begun."
Predicted = tuple[EvalResult, list[dict[str, Any]]]


@dataclass(frozen=True)
class Assignment:
    """Everything that a process needs to carry out a run.

    Attributes:
        facts: What is written down about the run besides what every run knows of itself.
        start_from: The run's directory, or the checkpoint, whose weights it starts with.
        earlier: The results of those runs of its arm that had ended when it started.
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
        """The run's key, as it was planned."""
        return self.planned.key


def lost_outcome(assignment: Assignment, why: str, *, status: str = "failed", began: bool = True) -> Outcome:
    """The outcome of a run that cannot tell it itself."""
    planned = assignment.planned
    result = RunResult(
        run_key=assignment.key,
        status=status,
        error=why,
        repeat=planned.repeat,
        stage=planned.stage,
        seed=planned.seed,
        output_dir=assignment.directory,
        attempts=assignment.attempt,
    )
    return Outcome(assignment.key, result, died=began)


def carry_out(assignment: Assignment, tell: Tell) -> Outcome:
    """Make a run, from wherever it was left off, and say what came of it.

    Args:
        tell: Called with how far it is, and with what its benchmarks give.
    """
    return Job(assignment, tell).carry_out()


class Job:
    """A run under way; what recipes need of it, and what they tell it."""

    def __init__(self, assignment: Assignment, tell: Tell) -> None:
        self._assignment, self._tell = assignment, tell
        self.ctx = assignment.ctx
        self.run_key, self.seed = assignment.key, assignment.planned.seed
        self.directory, self.strict = assignment.directory, assignment.strict
        self.sinks, self._benchmarks = copy.deepcopy((assignment.sinks, assignment.benchmarks))
        self.start_from: Path | None = None
        self.results: dict[str, Any] = {}
        """What a function returned."""
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
        collection = collected([*_copied(parts), *self._assignment.subscribers.copies()], strict=self.strict)
        collection.borrow(self._own)  # they live until the run's end has been told
        return collection

    def follow(self, session: Session, subject: Callable[[], Any]) -> None:
        """Take note of the loop that trains, before it begins.

        Args:
            subject: Gives what answers benchmarks.
        """
        self._session, self._subject = session, subject
        self.ctx.run_config, self.ctx.rank = session.config, session.rank
        session.ctx = self.ctx
        benchmarks = [benchmark for benchmark in self._benchmarks if benchmark.every]
        if benchmarks:
            session.callbacks.add(BenchmarkCallback(benchmarks, self._scored, self._record_within))
        session.callbacks.add(ProgressReports(self.run_key, self._tell))
        session.afterwards = self._score_afterwards

    def carry_out(self) -> Outcome:
        """Train and score, and say what came of it."""
        self._began, error = time.perf_counter(), None
        try:
            with rng.seeded(self.seed):
                self._train()
        except BaseException as failure:
            if isinstance(failure, KeyboardInterrupt) or (self._is_interrupted() and isinstance(failure, SystemExit)):
                raise
            error = failure
        result = self._told_end(self._result(error))
        signal = None if self._session is None else self._session.signal
        return Outcome(self.run_key, result, dict(self.ctx.ids), signal)

    def _told_end(self, result: RunResult) -> RunResult:
        """Tell the run's own subscribers how it ended, and close them; one that is critical can still make it fail."""
        self.ctx.status, self.ctx.error = result.status, error_line(result.error) or None
        arm = ArmResult(self._assignment.planned.arm, self.ctx.run_config, (*self._assignment.earlier, result))
        try:
            with contextlib.closing(self._own):
                self._own.on_run_end(self.ctx, result, arm)
        except Exception:
            return replace(result, status="failed", error=traceback.format_exc())
        return result

    def _train(self) -> None:
        self._make_directory()
        self._own = self._assignment.subscribers.made()
        self._own.strict = self.strict
        self._own.on_run_start(self.ctx)
        keep_run_ids(self.directory, self.ctx.ids)  # at once: whatever ends this process, the next one has them
        self.start_from = self._starting_point()
        self._assignment.planned.recipe.train(self)

    def _make_directory(self) -> None:
        self._wait_for_another_process()
        if not (self.directory / run_directory.METADATA).is_file():
            home = self.directory.parent
            facts = {"name": self.run_key, "project": home.name, "config": self._assignment.planned.recipe.describe()}
            facts |= {"parents": self.ctx.ids, **self._assignment.facts, **self._tags()}
            run_directory.create(home.parent, home.name, facts, run_id=self.directory.name)

    def _tags(self) -> dict[str, list[str]]:
        """The tags of the arm and of its settings, where it has any."""
        planned = self._assignment.planned
        config = planned.recipe.config
        tags = checked_tags([*planned.tags, *(config.tags if isinstance(config, TrainerConfig) else ())])
        return {"tags": list(tags)} if tags else {}

    def _wait_for_another_process(self) -> None:
        """Let the process of an earlier attempt die, if it was just killed; what lives on is an error later."""
        deadline = time.monotonic() + OLD_PROCESS_SECONDS
        while run_directory.is_alive(self.directory) and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)

    def _starting_point(self) -> Path | None:
        """The checkpoint whose weights to start with, unless the run itself has one to go on from."""
        source = self._assignment.start_from
        if source is None or checkpoint.last(self.directory) is not None:
            return None
        if checkpoint.is_checkpoint(source):
            return source
        saved = checkpoint.last(source)
        if saved is None:
            raise CheckpointError(
                f"{self.run_key} starts from {source.name}, which has no checkpoint: let it save one at its end "
                "(a function says how with run.checkpoint_with)."
            )
        return saved

    def _record_within(self, loop: Any, result: EvalResult, predictions: list[dict[str, Any]]) -> None:
        """Record a benchmark that was scored in the middle of the training, as every evaluation is."""
        axis = BENCHMARK_AXIS if EVALUATIONS in loop.other_axes else EVALUATIONS
        self._record_samples(loop, predictions, axis)
        loop.record_evaluation(result.name, benchmark_metrics(result), axis=axis)
        self._announce(result, predictions, loop.step)

    def _score_afterwards(self) -> None:
        session = self._session
        if session is None or self._is_interrupted():
            return
        if session.resumed_from is not None and session.recorder is not None:
            session.recorder.resume(**{FINAL: -1})  # what was scored before it was interrupted is scored again
        for benchmark in self._benchmarks:
            self._tell(Progress(self.run_key, session.step, session.num_steps, doing=benchmark.name))
            scored = self._scored(benchmark, self._is_interrupted)
            if self._is_interrupted():
                return
            if scored is not None:
                self._failed_evals.pop(benchmark.name, None)  # it failed at an earlier step
                self._evals.append(scored[0])
                self._record_final(session, *scored)
                self._announce(*scored, None)
        self._record_result(session)

    def _record_result(self, session: Session) -> None:
        """Record what the run came to while that is possible: wherever the journal goes, it is known then."""
        self._seconds = time.perf_counter() - self._began  # what it takes to close sinks is no part of it
        if session.recorder is not None:
            session.recorder.flush()  # what comes from a device belongs before it
            session.recorder.event(RUN_RESULT, step=session.step, **RecordedResult.data_of(self._result(None)))

    def _scored(self, benchmark: Any, should_stop: Callable[[], bool] = lambda: False) -> Predicted | None:
        """Score a benchmark; its failure does not concern the training."""
        try:
            return evaluate(benchmark, self._answering(), should_stop=should_stop)
        except EvaluationStopped:
            return None
        except Exception as error:
            self._failed_evals[benchmark.name] = traceback.format_exc()
            told = None if isinstance(error, HooklineError) else error  # ours say all there is to say
            words = "The benchmark %s of %s failed, and the run continues: %s"
            logger.log(logging.ERROR, words, benchmark.name, self.run_key, error, exc_info=told)
            if self._session is not None and self._session.recorder is not None:
                words = f"{type(error).__name__}: {error}"
                facts = {"benchmark": benchmark.name, "error": words}
                self._session.recorder.event("benchmark_failed", step=self._session.step, **facts)
            return None

    def _answering(self) -> Any:
        subject = self._subject()
        if subject is None:
            raise OptionError(
                "There is nobody to answer it: set run.answers in the function that trains, or give the arm answers=, "
                "to a policy or a function of a list of prompts."
            )
        return subject

    def _record_final(self, session: Session, result: EvalResult, predictions: list[dict[str, Any]]) -> None:
        """Record a benchmark of what was trained: the loop has ended, and its subscribers hear no more of it."""
        values = benchmark_metrics(result)
        session.metrics.update(values)
        if session.recorder is not None:
            session.recorder.metrics(dict(values), session.step, FINAL)
        self._record_samples(session, predictions, FINAL)

    def _record_samples(self, loop: Any, predictions: list[dict[str, Any]], axis: str) -> None:
        if loop.recorder is not None:
            loop.recorder.samples([_sample(row) for row in predictions], loop.step, axis)

    def _announce(self, result: EvalResult, predictions: list[dict[str, Any]], step: int | None) -> None:
        self._own.on_benchmark_eval(self.ctx, result, predictions, step=step)
        self._tell(Scored(self.run_key, result, predictions, step))

    def _is_interrupted(self) -> bool:
        return self._session is not None and (
            self._session.signal is not None or is_signal(self._session.stop_reason or "")
        )

    def _result(self, error: BaseException | None) -> RunResult:
        session, planned = self._session, self._assignment.planned
        trained = "incomplete" if self._failed_evals else "completed"
        status = "failed" if error is not None else "stopped" if self._is_interrupted() else trained
        if session is not None:
            self.ctx.ids.update(session.outlets.ids())
        return RunResult(
            run_key=self.run_key,
            status=status,
            metrics=self._metrics(),
            evals=tuple(self._evals),
            artifacts=None if session is None else session.artifacts(),
            error=self._why(error),
            seconds=time.perf_counter() - self._began if self._seconds is None else self._seconds,
            failed_evals=dict(self._failed_evals),
            repeat=planned.repeat,
            stage=planned.stage,
            seed=planned.seed,
            output_dir=self.directory,
            attempts=self._assignment.attempt,
            returned=tuple(self.results),
        )

    def _why(self, error: BaseException | None) -> str | None:
        if error is not None:
            return "".join(traceback.format_exception(error))
        if self._session is not None and self._is_interrupted():
            return f"Stopped by {self._session.stop_reason}."
        failed = [f"{name}: {error_line(why)}" for name, why in self._failed_evals.items()]
        return f"Benchmarks failed: {'; '.join(failed)}" if failed else None

    def _metrics(self) -> dict[str, Any]:
        last = {} if self._session is None else dict(self._session.metrics)
        kept = {name: value for name, value in last.items() if not name.startswith(_UNINTERESTING)}
        plain_values: dict[str, Any] = plain({**self.results, **kept, **self.results})  # what it returned comes first
        return plain_values


def benchmark_metrics(result: EvalResult) -> dict[str, float]:
    """The metrics of a benchmark, as they are called in the record."""
    return {f"{result.name}/{name}": value for name, value in result.metrics.items()}


def _sample(row: Mapping[str, Any]) -> dict[str, Any]:
    """A prediction as a sample of the record."""
    shown = {
        "prompt": row["instruction"],
        "completion": row["output"] if isinstance(row["output"], str) else repr(row["output"]),
        "expected": row["expected"],
        "rewards": row["scores"],
        "total": row["reward"],
        "lesson": row["benchmark"],
    }
    return shown | {"task_id": row["task_id"], "metadata": row["metadata"]}


def _copied(parts: Iterable[Any]) -> list[Any]:
    return RunSubscribers(list(parts)).copies()


class StopRequests(Callback):
    """Stops a run's training when it is asked to."""

    name = "stop_requests"

    def __init__(self) -> None:
        self.reason: str | None = None
        self._loop: Any = None

    def __deepcopy__(self, memo: Any) -> "StopRequests":
        return self  # it belongs to one run

    def on_train_start(self, loop: Any) -> None:
        """Take note of the loop."""
        self._loop = loop
        if self.reason is not None:
            loop.request_stop(self.reason)

    def ask(self, reason: str) -> None:
        """Ask for a stop, from any thread."""
        self.reason = reason
        if self._loop is not None:
            self._loop.request_stop(reason)

    def added_to(self, assignment: Assignment) -> Assignment:
        """The run with this among those who listen to it."""
        subscribers = replace(assignment.subscribers, instances=[*assignment.subscribers.instances, self])
        return replace(assignment, subscribers=subscribers)
