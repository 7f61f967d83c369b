"""Trailing arguments that a moment does not need are left off."""

from typing import Any

import hookline as hl


class Announcer(hl.Callback):
    def on_train_start(self) -> None:
        print("here we go")

    def on_train_end(self, trainer: hl.LoopState) -> None:
        print(trainer.step)

    def on_step_end(self, loop: hl.LoopState, step_idx: int) -> dict[str, int]:
        return {"seen": step_idx}

    async def on_log(self, loop: hl.LoopState) -> None:
        print(loop.metrics)

    def on_eval(self, loop: hl.LoopState, *_: Any) -> None:
        print(loop.step)


class Scores(hl.Callback):
    """The step of a benchmark is a keyword, and may be left off like the rest."""

    def on_benchmark_eval(self, ctx: hl.LogContext, result: hl.EvalResult, rows: list[dict[str, Any]]) -> None:
        ctx.log(result.metrics)

    def on_experiment_end(self, ctx: hl.LogContext) -> None:
        print(ctx.metrics)


class ScoresByName(hl.Callback):
    async def on_benchmark_eval(self, ctx: hl.LogContext, result: hl.EvalResult) -> dict[str, float]:
        return {result.name: 1.0}


class ScoresWithStep(hl.Callback):
    def on_benchmark_eval(
        self, ctx: hl.LogContext, result: hl.EvalResult, rows: list[dict[str, Any]], step: int | None
    ) -> None:
        print(step)


class ScoresWithStepByKeyword(hl.Callback):
    def on_benchmark_eval(
        self, ctx: hl.LogContext, result: hl.EvalResult, rows: list[dict[str, Any]], *, step: int | None
    ) -> None:
        print(step)


class ScoresWithDefaultStep(hl.Callback):
    def on_benchmark_eval(
        self, ctx: hl.LogContext, result: hl.EvalResult, rows: list[dict[str, Any]], step: int | None = None
    ) -> None:
        print(step)


def announce(loop: hl.LoopState, step_idx: int) -> None:
    """A function that is subscribed may leave them off, too."""
    loop.log(seen=step_idx)


callbacks = hl.CallbackCollection([Announcer(), hl.on("step_end", announce, every=10)])


def fire(loop: hl.LoopState, ctx: hl.LogContext) -> None:
    """A collection is called with all of them."""
    callbacks.on_step_end(loop, 0, None, {"loss": 1.0})
    callbacks.on_train_end(loop, hl.LoopArtifacts(step=1))
    callbacks.on_benchmark_eval(ctx, hl.EvalResult("sums"), [], step=1)
    callbacks.on_experiment_end(ctx, hl.ExperimentResult("sums"))
