"""What moments carry: the loop's read side, the experiment's context, and the results.

`LoopState` is a protocol: any object with these members is a loop to a subscriber. The rest are
small data classes. Nothing here knows about dispatch or recording.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from hookline._engine.metrics import collect

if TYPE_CHECKING:
    from pathlib import Path  # a few milliseconds of import that annotations are not worth


@runtime_checkable
class LoopState(Protocol):
    """What a loop offers to its subscribers, whichever framework runs it."""

    @property
    def step(self) -> int:
        """The number of completed steps."""

    @property
    def current_step(self) -> int:
        """Another name for `step`."""

    @property
    def num_steps(self) -> int | None:
        """The planned number of steps, where it is known."""

    @property
    def total_steps(self) -> int | None:
        """Another name for `num_steps`."""

    @property
    def epoch(self) -> int:
        """The 0-based index of the epoch under way."""

    @property
    def current_epoch(self) -> int:
        """Another name for `epoch`."""

    @property
    def num_epochs(self) -> int | None:
        """The planned number of epochs, where it is known."""

    @property
    def name(self) -> str:
        """What the run is called."""

    @property
    def config(self) -> Any:
        """The settings that were given."""

    @property
    def output_dir(self) -> "Path | None":
        """Where the loop writes its files, if anywhere."""

    @property
    def dir(self) -> "Path | None":
        """Another name for `output_dir`: the run's directory."""

    @property
    def callbacks(self) -> Any:
        """The `CallbackCollection` of those that the loop notifies."""

    @property
    def recorder(self) -> Any:
        """Writes the run's journal, e.g. ``loop.recorder.event(...)``; None where nothing is recorded."""

    @property
    def model(self) -> Any:
        """The model in training, if the loop knows it."""

    @property
    def optimizer(self) -> Any:
        """The optimizer, if the loop knows it."""

    @property
    def scheduler(self) -> Any:
        """The learning-rate scheduler, if the loop knows it."""

    @property
    def rank(self) -> int:
        """This process's index among those that train together."""

    @property
    def world_size(self) -> int:
        """How many processes train together."""

    @property
    def ctx(self) -> "LogContext":
        """The experiment-scope context that this run belongs to."""

    @property
    def metrics(self) -> Mapping[str, Any]:
        """The latest value of each metric."""

    @property
    def validation_metrics(self) -> Mapping[str, Any]:
        """The metrics of the latest validation."""

    @property
    def history(self) -> Sequence[Any]:
        """All rows so far, each with ``step`` and ``metrics``; they are read back from the record."""

    @property
    def summary(self) -> dict[str, Any]:
        """What the run came to, in values of your own."""

    @property
    def checkpoints(self) -> "Sequence[ManifestRow]":
        """The checkpoints saved so far."""

    @property
    def native(self) -> Any:
        """The host framework's own trainer."""

    @property
    def stop_requested(self) -> bool:
        """Whether somebody asked for a stop."""

    @property
    def stop_reason(self) -> str | None:
        """Why a stop was asked for; None where none was."""

    @property
    def should_stop(self) -> bool:
        """Whether somebody asked for a stop; assigning True asks for one."""

    @should_stop.setter
    def should_stop(self, value: bool) -> None: ...

    def get_metric(self, name: str) -> Any:
        """The latest value of a metric, or None; ``val_loss`` also finds ``val/loss``."""

    def log(self, *args: Any, step: int | None = None, **values: Any) -> None:
        """Record metrics: ``log(name, value)``, ``log({...})`` or ``log(name=value)``."""

    def log_samples(self, rows: Iterable[Mapping[str, Any]], *, step: int | None = None) -> None:
        """Record samples (prompt, completion, rewards, ...), one mapping each."""

    def status(self, status: str, /, message: str = "", **data: Any) -> None:
        """Record where the run is, for monitors and sinks."""

    def record_evaluation(self, name: str, metrics: dict[str, Any], *, step: int | None = None) -> None:
        """Record an evaluation by a callback: ``record_evaluation("quiz", {"quiz/accuracy": 0.5})``."""

    def save_checkpoint(self, path: Any = None) -> "ManifestRow":
        """Save a checkpoint and return its manifest row; under `hl.Trainer`, within a step, at the end of that step."""

    def request_stop(self, reason: str = ...) -> None:
        """Ask for a stop at the next step boundary."""

    def request_checkpoint(self) -> None:
        """Ask for a checkpoint at the next step boundary."""

    def request_validation(self) -> None:
        """Ask for a validation at the next step boundary."""


@dataclass(slots=True)
class LogContext:
    """Where in an experiment something happens; the first argument of experiment-scope moments.

    ``ids`` links records to their parents: ``experiment_id``, ``group:<name>``, ``run_id``.
    ``metrics`` gathers what subscribers returned at experiment scope.
    """

    output_dir: "Path | None" = None
    config: Any = None
    store: Any = None
    run_key: str | None = None
    run_config: Any = None
    group_name: str | None = None
    ids: dict[str, Any] = field(default_factory=dict)
    extras: dict[str, Any] = field(default_factory=dict)
    status: str | None = None
    error: str | None = None
    metrics: dict[str, Any] = field(default_factory=dict)
    rank: int = 0

    def log(self, values: Mapping[str, Any]) -> None:
        """Keep metrics that belong to the experiment rather than to a step."""
        self.metrics.update(collect((values,), {}))

    def snapshot(self) -> "LogContext":
        """This context as it is now; the ids stay shared, so that a logger on another thread can set them."""
        return replace(self)


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """A batch together with what its loop knows about it."""

    data: Any
    size: int | None = None
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class ManifestRow:
    """One checkpoint: where it lies and what held when it was saved."""

    step: int
    path: "Path"
    metrics: Mapping[str, Any] = field(default_factory=dict)
    kind: str = "step"
    bytes: int = 0
    time: float = 0.0


@dataclass(frozen=True, slots=True)
class LoopArtifacts:
    """What a loop leaves behind, handed to `on_train_end`."""

    step: int
    metrics: Mapping[str, Any] = field(default_factory=dict)
    checkpoints: Sequence[ManifestRow] = ()
    output_dir: "Path | None" = None
    stop_reason: str | None = None


@dataclass(frozen=True, slots=True)
class EvalResult:
    """One benchmark scored: metrics, breakdowns by tag, and a confidence interval for each metric."""

    name: str
    metrics: Mapping[str, float] = field(default_factory=dict)
    breakdowns: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    tags: Sequence[str] = ()
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunResult:
    """How one run ended.

    Attributes:
        status: ``completed``, ``incomplete`` (it is trained, and a benchmark failed), ``failed``, ``stopped`` (by a
            signal, to be resumed), ``skipped`` (what it was to start from failed) or ``waiting`` (the experiment was
            stopped before it began).
        metrics: The last of each metric; those of benchmarks under the benchmark's name.
        evals: What the benchmarks after the training gave.
        failed_evals: Why a benchmark gave nothing, by its name.
        error: The traceback of what ended it.
        repeat: Which of the arm's repeats it is, counted from 0.
        stage: The stage, where the experiment has stages.
        attempts: How often it was begun.
        returned: The metrics that a function returned as its results.
    """

    run_key: str
    status: str = "completed"
    metrics: Mapping[str, Any] = field(default_factory=dict)
    evals: Sequence[EvalResult] = ()
    artifacts: LoopArtifacts | None = None
    error: str | None = None
    seconds: float = 0.0
    failed_evals: Mapping[str, str] = field(default_factory=dict)
    repeat: int = 0
    stage: str | None = None
    seed: int | None = None
    output_dir: "Path | None" = None
    attempts: int = 1
    returned: Sequence[str] = ()

    @property
    def is_trained(self) -> bool:
        """Whether its training is complete, whatever its benchmarks gave."""
        return self.status in ("completed", "incomplete")


@dataclass(frozen=True, slots=True)
class ArmResult:
    """One arm of an experiment: its configuration and its runs."""

    name: str
    config: Any = None
    runs: Sequence[RunResult] = ()


@dataclass(frozen=True, slots=True)
class ExperimentResult:
    """A whole experiment: its arms, in the order in which they were given.

    Attributes:
        status: ``completed``, ``failed`` where a run or a benchmark of it did, or ``stopped`` by a signal.
        metric: What it is about, where somebody said so.
        direction: Whether that is better when it is smaller (``min``) or larger (``max``), where somebody said so.
    """

    name: str
    arms: Sequence[ArmResult] = ()
    output_dir: "Path | None" = None
    status: str = "completed"
    metric: str | None = None
    direction: str | None = None
