"""`Callback`: the catalogue of moments.

One typed, documented no-op method per moment, in the order in which they fire. `MOMENTS` is read from the class, so
there is no second list. A moment that repeats is marked with `@repeats`, whose argument is the expression for the
completed count at that moment. It is source text because the dispatcher inserts it into the code it generates: a call
would cost more than the rest of a cadence check.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, overload

from hookline._engine.subscriber import Subscriber

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Moment:
    """A named point in a loop's life.

    Attributes:
        axis: The axis on which it repeats, if it does.
        count: The expression for the completed count.
        of_row: Whether it may be about another count than the current one.
        restarts: Whether counts may repeat after it.
    """

    name: str
    arguments: tuple[str, ...]
    keywords: tuple[str, ...] = ()
    axis: str | None = None
    count: str = ""
    doc: str = ""
    of_row: bool = False
    restarts: bool = False

    @property
    def subject(self) -> str:
        """The first argument: the loop, or the context in experiment scope."""
        return self.arguments[0]

    @property
    def repeating(self) -> bool:
        """Whether a cadence governs this moment."""
        return self.axis is not None

    @property
    def everything(self) -> tuple[str, ...]:
        """All arguments as source text of a call."""
        return (*self.arguments, *(f"{name}={name}" for name in self.keywords))

    def signature(self) -> str:
        """Return the moment as a user writes it, e.g. ``on_step_start(loop, step_idx)``."""
        keywords = ["*", *(f"{name}=None" for name in self.keywords)] if self.keywords else []
        return f"{self.name}({', '.join([*self.arguments, *keywords])})"


def repeats(count: str, *, axis: str = "train", of_row: bool = False) -> Callable[[F], F]:
    """Mark a moment as repeating, counted by the expression ``count`` on ``axis``."""

    def mark(function: F) -> F:
        function.__dict__.update(_count=count, _axis=axis, _of_row=of_row)
        return function

    return mark


def restarts(function: F) -> F:
    """Mark a moment after which counts may repeat: cadences decide again."""
    function.__dict__.update(_restarts=True)
    return function


S = TypeVar("S")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
R = TypeVar("R")


@overload
def lenient(
    function: Callable[[S, A, B, C, D], R],
) -> (
    Callable[[Any, A, B, C, D], R]
    | Callable[[Any, A, B, C], R]
    | Callable[[Any, A, B], R]
    | Callable[[Any, A], R]
    | Callable[[Any], R]
): ...
@overload
def lenient(
    function: Callable[[S, A, B, C], R],
) -> Callable[[Any, A, B, C], R] | Callable[[Any, A, B], R] | Callable[[Any, A], R] | Callable[[Any], R]: ...
@overload
def lenient(
    function: Callable[[S, A, B], R],
) -> Callable[[Any, A, B], R] | Callable[[Any, A], R] | Callable[[Any], R]: ...
@overload
def lenient(function: Callable[[S, A], R]) -> Callable[[Any, A], R] | Callable[[Any], R]: ...
def lenient(function: Any) -> Any:
    """Declare to type checkers that an override may leave off trailing arguments; return the function unchanged.

    A method is compatible with a union if it is compatible with one of its members.
    """
    return function


def catalogue(owner: type) -> Mapping[str, Moment]:
    """Return the moments that a class declares, in the order of definition."""
    moments = {
        name: _moment(name, function)
        for name, function in vars(owner).items()
        if name.startswith("on_") and callable(function)
    }
    return MappingProxyType(moments)


def _moment(name: str, function: Any) -> Moment:
    code = function.__code__
    positional, keyword = code.co_argcount, code.co_kwonlyargcount
    return Moment(
        name=name,
        arguments=code.co_varnames[1:positional],
        keywords=code.co_varnames[positional : positional + keyword],
        axis=getattr(function, "_axis", None),
        count=getattr(function, "_count", ""),
        doc=function.__doc__ or "",
        of_row=getattr(function, "_of_row", False),
        restarts=getattr(function, "_restarts", False),
    )


if TYPE_CHECKING:  # annotations are not worth the import of ten data classes
    from hookline._engine.state import ArmResult, EvalResult, LogContext, LoopArtifacts, ManifestRow, RunResult
    from hookline._record.commands import Command

    # An override may narrow the loop's type, `trainer: "Trainer"`; that module explains how checkers accept it.
    from hookline.loops import EveryLoop as LoopState

    # The class that users import is a subclass in a layer above, which this one cannot name. Any lets overrides use
    # it: a checker would refuse an argument type that is narrower than the declared one.
    ExperimentResult: TypeAlias = Any

Metrics: TypeAlias = Mapping[str, Any]
Returned: TypeAlias = Metrics | Coroutine[Any, Any, Metrics | None] | None
MomentFunction = TypeVar("MomentFunction")
G = TypeVar("G")


def _or_as(other: MomentFunction) -> Callable[[G], MomentFunction | G]:
    """Declare to type checkers that an override may also have the signature of ``other``; change nothing."""
    return lambda function: function


def _with_step(
    self: Any, ctx: LogContext, eval_result: EvalResult, predictions: list[dict[str, Any]], /, *, step: int | None
) -> Returned:
    """`Callback.on_benchmark_eval` with the keyword ``step``, which `lenient` does not cover."""


_FRAMEWORK_OF = {
    "on_init_end": "transformers",
    "on_train_begin": "transformers",
    "state_key": "lightning",
    "setup": "lightning",
    "set_params": "keras",
    "set_model": "keras",
    "on_batch_end": "keras",
    "init_callback": "stable_baselines3",
    "after_iteration": "catboost",
}
"""Attributes that trainers of other frameworks read first from their callbacks."""


class Callback(Subscriber):
    """The base class of callbacks: override any of these methods; the defaults are no-ops.

    An override may leave off trailing arguments, may be ``async``, and may return a dict of metrics, which is recorded
    under the callback's name. This is the loop::

        on_experiment_start(ctx)
        for group in experiment:
            on_group_start(ctx, group_name)
            for run in group:
                on_run_start(ctx)
                on_train_start(loop)
                on_checkpoint_load(loop, row)                 (a run that is resumed)
                for epoch in epochs:
                    on_train_epoch_start(loop)
                    for step_idx in steps:
                        on_weights_update(loop, version)      (loops that generate their own data)
                        on_rollout_start(loop, step_idx, lesson_id)
                        on_rollout_end(loop, step_idx, rollouts)
                        on_step_start(loop, step_idx)
                        for batch in micro_batches:           (one, without accumulation)
                            on_train_batch_start(loop, batch, batch_idx)
                            on_train_batch_end(loop, outputs, batch, batch_idx)
                        on_before_optimizer_step(loop, optimizer)
                        on_step_end(loop, step_idx, batch, metrics)   (before the row is written)
                        on_log(loop, step, metrics)                   (after it)
                        on_command(loop, command)                     (for each one that was sent)
                        when due: validation; on_checkpoint(loop, row), before it or after
                    on_train_epoch_end(loop)
                on_train_end(loop, artifacts)     (an orderly end; otherwise on_exception(loop, error))
                on_benchmark_eval(ctx, eval_result, predictions)
                on_run_end(ctx, run_result, arm)
            on_group_end(ctx, group_name)
        on_experiment_end(ctx, result)

    and a validation::

        on_validation_start(loop)
        on_validation_epoch_start(loop)
        for batch in batches:
            on_validation_batch_start(loop, batch, batch_idx)
            on_validation_batch_end(loop, outputs, batch, batch_idx)
        on_validation_epoch_end(loop)         (its metrics are known from here on)
        on_validation_end(loop)
        on_eval(loop, step_idx, eval_name, metrics)
    """

    _declares_moments = True

    def __getattr__(self, name: str) -> Any:
        """Called for missing attributes only; some show that another framework's trainer uses this callback."""
        home = _FRAMEWORK_OF.get(name)
        if home is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        raise AttributeError(
            f"{type(self).__name__} is a callback of hookline, and has no {name!r}. Under {home} use "
            f"hookline.integrations.{home}: docs/integrations.md shows how."
        )

    # Arguments are positional-only so that a subclass may name them as its framework does.

    @lenient
    def on_experiment_start(self, ctx: LogContext, /) -> Returned:
        """Once, before any arm. A logger creates the experiment's record: ``ctx.ids['experiment_id']``."""

    @lenient
    def on_group_start(self, ctx: LogContext, group_name: str, /) -> Returned:
        """When a group of runs (repeats or stages) begins. A logger sets ``ctx.ids[f'group:{group_name}']``."""

    @lenient
    def on_run_start(self, ctx: LogContext, /) -> Returned:
        """Before a run trains; ``ctx.run_config`` is set. A logger sets ``ctx.ids['run_id']``."""

    @lenient
    @restarts
    def on_train_start(self, loop: LoopState, /) -> Returned:
        """Once, before the first step."""

    @lenient
    @restarts
    def on_checkpoint_load(self, loop: LoopState, row: ManifestRow, /) -> Returned:
        """After a checkpoint was loaded; the loop's counters are those of the checkpoint."""

    @lenient
    def on_train_epoch_start(self, loop: LoopState, /) -> Returned:
        """Before the first step of an epoch."""

    @lenient
    @repeats("step_idx + 1", axis="rollout")
    def on_rollout_start(self, loop: LoopState, step_idx: int, lesson_id: str | None, /) -> Returned:
        """Before completions are generated for a rollout step."""

    @lenient
    @repeats("step_idx + 1", axis="rollout")
    def on_rollout_end(self, loop: LoopState, step_idx: int, rollouts: Any, /) -> Returned:
        """After completions were generated and scored."""

    @lenient
    def on_weights_update(self, loop: LoopState, version: int, /) -> Returned:
        """After new weights arrived in a loop that generates."""

    @lenient
    @repeats("step_idx + 1")
    def on_step_start(self, loop: LoopState, step_idx: int, /) -> Returned:
        """Before a step (one optimizer update) begins; ``step_idx`` counts from 0."""

    @lenient
    @repeats("loop.step + 1")
    def on_train_batch_start(self, loop: LoopState, batch: Any, batch_idx: int, /) -> Returned:
        """Before one forward and backward pass; ``batch_idx`` counts from 0 in each epoch."""

    @lenient
    @repeats("loop.step + 1")
    def on_train_batch_end(self, loop: LoopState, outputs: Any, batch: Any, batch_idx: int, /) -> Returned:
        """After one forward and backward pass; ``outputs`` is its result, e.g. ``{"loss": ...}``."""

    @lenient
    @repeats("loop.step + 1")
    def on_before_optimizer_step(self, loop: LoopState, optimizer: Any, /) -> Returned:
        """Before the optimizer's step; gradients are complete and not clipped yet."""

    @lenient
    @repeats("step_idx + 1")
    def on_step_end(self, loop: LoopState, step_idx: int, batch: Any, metrics: dict[str, Any], /) -> Returned:
        """After a step, before its row is written; metrics logged or returned here are part of that row."""

    @lenient
    @repeats("step", of_row=True)
    def on_log(self, loop: LoopState, step: int, metrics: dict[str, Any], /) -> Returned:
        """After a row of metrics was written; ``step`` is its completed count."""

    @lenient
    def on_validation_start(self, loop: LoopState, /) -> Returned:
        """Before a validation."""

    @lenient
    def on_validation_epoch_start(self, loop: LoopState, /) -> Returned:
        """Before the first batch of a pass over the validation data."""

    @lenient
    @repeats("batch_idx + 1", axis="validation")
    def on_validation_batch_start(self, loop: LoopState, batch: Any, batch_idx: int, /) -> Returned:
        """Before a validation batch."""

    @lenient
    @repeats("batch_idx + 1", axis="validation")
    def on_validation_batch_end(self, loop: LoopState, outputs: Any, batch: Any, batch_idx: int, /) -> Returned:
        """After a validation batch."""

    @lenient
    def on_validation_epoch_end(self, loop: LoopState, /) -> Returned:
        """After the last validation batch; ``loop.get_metric("val/loss")`` is that of this validation."""

    @lenient
    def on_validation_end(self, loop: LoopState, /) -> Returned:
        """After a validation."""

    @lenient
    def on_eval(self, loop: LoopState, step_idx: int, eval_name: str, metrics: dict[str, Any], /) -> Returned:
        """After an evaluator finished inside the loop, with its metrics; once per evaluator."""

    @lenient
    def on_checkpoint(self, loop: LoopState, row: ManifestRow, /) -> Returned:
        """After a checkpoint was saved and its manifest row written."""

    @lenient
    def on_command(self, loop: LoopState, command: Command, /) -> Returned:
        """Before a command from outside is applied: change its ``arguments``, or ``command.refuse(reason)``."""

    @lenient
    def on_train_epoch_end(self, loop: LoopState, /) -> Returned:
        """After the last step of an epoch."""

    @lenient
    def on_train_end(self, loop: LoopState, artifacts: LoopArtifacts, /) -> Returned:
        """Once, after an orderly end: all steps done, or a requested stop."""

    @lenient
    def on_exception(self, loop: LoopState, error: BaseException, /) -> Returned:
        """Instead of `on_train_end`, when an error or an interrupt ends the training."""

    @_or_as(_with_step)
    @lenient
    def on_benchmark_eval(
        self,
        ctx: LogContext,
        eval_result: EvalResult,
        predictions: list[dict[str, Any]],
        /,
        *,
        step: int | None = None,
    ) -> Returned:
        """After a benchmark was scored: in the loop with the step, after training with ``step=None``."""

    @lenient
    def on_run_end(self, ctx: LogContext, run_result: RunResult, arm: ArmResult, /) -> Returned:
        """After a run and its benchmarks; ``ctx.status`` and ``ctx.error`` are set."""

    @lenient
    def on_group_end(self, ctx: LogContext, group_name: str, /) -> Returned:
        """After the last run of a group."""

    @lenient
    def on_experiment_end(self, ctx: LogContext, result: ExperimentResult, /) -> Returned:
        """Once, after the last arm."""


MOMENTS = catalogue(Callback)
"""All moments by name, in the order in which they fire."""
