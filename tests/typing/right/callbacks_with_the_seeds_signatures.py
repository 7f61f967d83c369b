"""Callbacks with the argument names, the types and the defaults of seed 003."""

from typing import Any

import hookline as hl


class Typed(hl.Callback):
    def on_step_end(
        self, state: hl.LoopState, step_idx: int, batch: hl.TrainingBatch, metrics: dict[str, float]
    ) -> None:
        state.request_stop(f"{state.step} {step_idx + 1} {batch.tokens} {metrics['loss'] + 1}")

    def on_benchmark_eval(
        self,
        ctx: hl.LogContext,
        eval_result: hl.EvalResult,
        predictions: list[dict[str, Any]],
        *,
        step: int | None = None,
    ) -> None:
        ctx.ids[eval_result.name] = step

    def on_experiment_end(self, ctx: hl.LogContext, result: hl.ExperimentResult) -> None:
        ctx.ids["best"] = result.best_arms(1)


class LeavesOff(hl.Callback):
    def on_benchmark_eval(
        self, ctx: hl.LogContext, eval_result: hl.EvalResult, predictions: list[dict[str, Any]]
    ) -> None: ...
