"""The arguments of moments: the loop's read side, the experiment's context, and results.

`LoopState` is a protocol: any object with these members is a loop to a subscriber. The others are small data classes.
Nothing here depends on dispatch or recording.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from hookline._engine.metrics import collect

if TYPE_CHECKING:
    from pathlib import Path  # a few milliseconds of import that annotations are not worth


@runtime_checkable
class LoopState(Protocol):
    """The interface of a loop to its subscribers, whichever framework runs it."""

    @property
    def step(self) -> int:
        """The number of completed steps."""

    @property
    def current_step(self) -> int:
        """Another name for `step`."""

    @property
    def num_steps(self) -> int | None:
        """The planned number of steps, if known."""

    @property
    def total_steps(self) -> int | None:
        """Another name for `num_steps`."""

    @property
    def epoch(self) -> int:
        """The 0-based index of the current epoch."""

    @property
    def current_epoch(self) -> int:
        """Another name for `epoch`."""

    @property
    def num_epochs(self) -> int | None:
        """The planned number of epochs, if known."""

    @property
    def name(self) -> str:
        """The name of the run."""

    @property
    def config(self) -> Any:
        """The settings of the run."""

    @property
    def output_dir(self) -> "Path | None":
        """The directory of the loop's files, if any."""

    @property
    def dir(self) -> "Path | None":
        """Another name for `output_dir`: the run's directory."""

    @property
    def callbacks(self) -> Any:
        """The `CallbackCollection` of the loop's subscribers."""

    @property
    def recorder(self) -> Any:
        """Writes the run's journal, e.g. ``loop.recorder.event(...)``; None if nothing is recorded."""

    @property
    def model(self) -> Any:
        """The model in training, if known."""

    @property
    def optimizer(self) -> Any:
        """The optimizer, if known."""

    @property
    def scheduler(self) -> Any:
        """The learning-rate scheduler, if known."""

    @property
    def rank(self) -> int:
        """The index of this process among those that train together."""

    @property
    def world_size(self) -> int:
        """The number of processes that train together."""

    @property
    def ctx(self) -> "LogContext":
        """The experiment-scope context of this run."""

    @property
    def metrics(self) -> Mapping[str, Any]:
        """The latest value of each metric."""

    @property
    def validation_metrics(self) -> Mapping[str, Any]:
        """The metrics of the latest validation."""

    @property
    def history(self) -> Sequence[Any]:
        """All rows so far, each with ``step`` and ``metrics``; read from the journal."""

    @property
    def summary(self) -> dict[str, Any]:
        """Values of your own that summarize the run."""

    @property
    def checkpoints(self) -> "Sequence[ManifestRow]":
        """The checkpoints saved so far."""

    @property
    def native(self) -> Any:
        """The host framework's own trainer."""

    @property
    def stop_requested(self) -> bool:
        """Whether a stop was requested."""

    @property
    def stop_reason(self) -> str | None:
        """The reason of the requested stop, or None."""

    @property
    def should_stop(self) -> bool:
        """Whether a stop was requested; assigning True requests one."""

    @should_stop.setter
    def should_stop(self, value: bool) -> None: ...

    def get_metric(self, name: str) -> Any:
        """Return the latest value of a metric, or None; ``val_loss`` also finds ``val/loss``."""

    def log(self, *args: Any, step: int | None = None, **values: Any) -> None:
        """Record metrics: ``log(name, value)``, ``log({...})`` or ``log(name=value)``."""

    def log_samples(self, rows: Iterable[Mapping[str, Any]], *, step: int | None = None) -> None:
        """Record samples (prompt, completion, rewards, ...), one mapping each."""

    def status(self, status: str, /, message: str = "", **data: Any) -> None:
        """Record a status of the run, for monitors and sinks."""

    def record_evaluation(self, name: str, metrics: dict[str, Any], *, step: int | None = None) -> None:
        """Record an evaluation by a callback: ``record_evaluation("quiz", {"quiz/accuracy": 0.5})``."""

    def save_checkpoint(self, path: Any = None) -> "ManifestRow":
        """Save a checkpoint and return its manifest row; within a step of `hl.Trainer`, at the end of that step."""

    def save_artifact(
        self,
        name: str,
        files: Any,
        *,
        kind: str = ...,
        aliases: Iterable[str] = ...,
        metadata: Mapping[str, Any] | None = None,
        reference: bool = False,
        link: bool = False,
    ) -> Any:
        """Save files as a version of an artifact, off this thread: ``save_artifact("model", "out/", kind="model")``."""

    def use_artifact(self, reference: str, *, root: "str | Path | None" = None) -> Any:
        """Find a version of an artifact, and record that this run uses it: ``use_artifact("model:best")``."""

    def request_stop(self, reason: str = ...) -> None:
        """Request a stop at the next step boundary."""

    def request_checkpoint(self) -> None:
        """Request a checkpoint at the next step boundary."""

    def request_validation(self) -> None:
        """Request a validation at the next step boundary."""


@dataclass(slots=True)
class LogContext:
    """The position in an experiment; the first argument of experiment-scope moments.

    ``ids`` links records to their parents: ``experiment_id``, ``group:<name>``, ``run_id``. ``metrics`` collects what
    subscribers return at experiment scope.
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
        """Keep metrics of the experiment rather than of a step."""
        self.metrics.update(collect((values,), {}))

    def snapshot(self) -> "LogContext":
        """Return a copy; the ids stay shared, so that a logger on another thread can set them."""
        return replace(self)


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """A batch with its number of examples and tokens, if known."""

    data: Any
    size: int | None = None
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class ManifestRow:
    """One checkpoint: its path, and the step and metrics when it was saved."""

    step: int
    path: "Path"
    metrics: Mapping[str, Any] = field(default_factory=dict)
    kind: str = "step"
    bytes: int = 0
    time: float = 0.0


@dataclass(frozen=True, slots=True)
class LoopArtifacts:
    """The results of a loop, passed to `on_train_end`."""

    step: int
    metrics: Mapping[str, Any] = field(default_factory=dict)
    checkpoints: Sequence[ManifestRow] = ()
    output_dir: "Path | None" = None
    stop_reason: str | None = None


@dataclass(frozen=True, slots=True)
class EvalResult:
    """The result of one benchmark: metrics, breakdowns by tag, and a confidence interval for each metric."""

    name: str
    metrics: Mapping[str, float] = field(default_factory=dict)
    breakdowns: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    tags: Sequence[str] = ()
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of one run.

    Attributes:
        status: ``completed``, ``incomplete`` (trained, but a benchmark failed), ``failed``, ``pruned`` (ended early by
            a search), ``stopped`` (by a signal; resumable), ``skipped`` (the run it starts from failed) or ``waiting``
            (the experiment stopped before it began).
        metrics: The last value of each metric; those of benchmarks under the benchmark's name.
        evals: The results of the benchmarks after training.
        failed_evals: The errors of failed benchmarks, by name.
        error: The traceback of the error that ended it.
        repeat: The 0-based index among the arm's repeats.
        stage: The stage, if the experiment has stages.
        attempts: How often it was started.
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
        """Whether its training is complete, whether or not its benchmarks failed."""
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
        status: ``completed``, ``failed`` if a run or a benchmark did, or ``stopped`` by a signal.
        metric: The metric to compare arms by, if given.
        direction: Whether a smaller (``min``) or larger (``max``) value is better, if given.
    """

    name: str
    arms: Sequence[ArmResult] = ()
    output_dir: "Path | None" = None
    status: str = "completed"
    metric: str | None = None
    direction: str | None = None
