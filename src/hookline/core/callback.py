"""`Callback`: the catalogue of moments.

One typed, documented method per moment, in the order in which they fire, listed nowhere else:
`MOMENTS` is read off the class. Every method is a no-op, so a callback overrides what it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from hookline.core.moment import catalogue, lenient, repeats, restarts
from hookline.core.subscriber import Subscriber

if TYPE_CHECKING:  # annotations are not worth the import of ten data classes
    from hookline.core.state import (
        ArmResult,
        EvalResult,
        LogContext,
        LoopArtifacts,
        ManifestRow,
        RunResult,
    )

    # A callback may say which loop it is written for: `trainer: "Trainer"`. The module says how checkers accept that.
    from hookline.loops.every_loop import EveryLoop as LoopState

    # The one that users import is a subclass with methods, in a layer above. A checker refuses an argument that is
    # narrower than it was declared, and this layer cannot name that class: so it is told nothing.
    ExperimentResult: TypeAlias = Any

Metrics: TypeAlias = Mapping[str, Any]
Returned: TypeAlias = Metrics | Coroutine[Any, Any, Metrics | None] | None
F = TypeVar("F")
G = TypeVar("G")


def _or_as(other: F) -> Callable[[G], F | G]:
    """Tell type checkers that who overrides a moment may also write it as ``other``; otherwise nothing changes."""
    return lambda function: function


def _with_step(
    self: Any, ctx: LogContext, eval_result: EvalResult, predictions: list[dict[str, Any]], /, *, step: int | None
) -> Returned:
    """`Callback.on_benchmark_eval` of who takes the step: a keyword, which `lenient` does not know."""


_ASKED_BY = {
    "on_init_end": "transformers",
    "on_train_begin": "transformers",
    "state_key": "lightning",
    "setup": "lightning",
    "set_params": "keras",
    "set_model": "keras",
    "on_batch_end": "keras",
}
"""What trainers of other frameworks ask their callbacks for first."""


class Callback(Subscriber):
    """Override any of these; the defaults are no-ops.

    A moment may leave off trailing arguments that it does not need, may be ``async``, and may
    return a dict of metrics, which is recorded under the callback's name. This is the loop::

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
        """Only asked for what is not there: some of that shows that another framework's trainer holds this one."""
        home = _ASKED_BY.get(name)
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
        """After one forward and backward pass; ``outputs`` is what it gave, e.g. ``{"loss": ...}``."""

    @lenient
    @repeats("loop.step + 1")
    def on_before_optimizer_step(self, loop: LoopState, optimizer: Any, /) -> Returned:
        """Gradients are complete and not clipped yet, the optimizer has not moved."""

    @lenient
    @repeats("step_idx + 1")
    def on_step_end(self, loop: LoopState, step_idx: int, batch: Any, metrics: dict[str, Any], /) -> Returned:
        """After a step, before its row is written: what is logged or returned here lands in that row."""

    @lenient
    @repeats("step", of_row=True)
    def on_log(self, loop: LoopState, step: int, metrics: dict[str, Any], /) -> Returned:
        """After a row of metrics was written; ``step`` is the completed count it belongs to."""

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
        """After the last validation batch; ``loop.get_metric("val/loss")`` is the one of this validation."""

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
    def on_train_epoch_end(self, loop: LoopState, /) -> Returned:
        """After the last step of an epoch."""

    @lenient
    def on_train_end(self, loop: LoopState, artifacts: LoopArtifacts, /) -> Returned:
        """Once, after an orderly end: all steps done, or a stop that was asked for."""

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
"""Every moment by name, in the order in which they fire."""
