"""Each line that is marked must be reported, and no other."""

from typing import Any

import hookline as hl


class WrongLoop(hl.Callback):
    def on_train_start(self, loop: int) -> None: ...  # error


class WrongTrainer(hl.Callback):
    def on_train_start(self, trainer: hl.TrainerConfig) -> None: ...  # error
    def on_train_end(self, trainer: hl.Trainer) -> None:
        trainer.fits()  # error


class WrongStep(hl.Callback):
    def on_step_start(self, loop: hl.LoopState, step_idx: str) -> None: ...  # error


class WrongArtifacts(hl.Callback):
    def on_train_end(self, loop: hl.LoopState, artifacts: hl.ManifestRow) -> None: ...  # error


class WrongRow(hl.Callback):
    def on_checkpoint(self, state: hl.LoopState, row: int) -> None: ...  # error


class WrongMetrics(hl.Callback):
    def on_log(self, loop: hl.LoopState, step: int, metrics: list[float]) -> None: ...  # error


class WrongContext(hl.Callback):
    def on_run_start(self, ctx: hl.LoopState) -> None: ...  # error


class WrongReturn(hl.Callback):
    def on_step_end(self, loop: hl.LoopState, step_idx: int, batch: Any, metrics: dict[str, Any]) -> float:  # error
        return 1.0


class WrongAsyncReturn(hl.Callback):
    async def on_validation_end(self, loop: hl.LoopState) -> int:  # error
        return 1


class TooMany(hl.Callback):
    def on_train_start(self, loop: hl.LoopState, step_idx: int) -> None: ...  # error


class WrongOptions(hl.Callback):
    priority = "high"  # error
    critical = 1.5  # error

    def state_dict(self) -> list[int]:  # error
        return []


class WrongUse(hl.Callback):
    def on_train_start(self, loop: hl.LoopState) -> None:
        loop.request_stop(3)  # error
        loop.stop()  # error
        loop.step.upper()  # error


class WrongWithSomeLeftOff(hl.Callback):
    def on_step_end(self, loop: hl.LoopState, step_idx: str) -> None: ...  # error
    def on_log(self, step: int) -> None: ...  # error


class WrongBenchmark(hl.Callback):
    def on_benchmark_eval(self, ctx: hl.LogContext, eval_result: hl.RunResult) -> None: ...  # error


class WrongBenchmarkStep(hl.Callback):
    def on_benchmark_eval(  # error
        self, ctx: hl.LogContext, eval_result: hl.EvalResult, predictions: list[dict[str, Any]], *, step: str
    ) -> None: ...


class WrongBenchmarkKeyword(hl.Callback):
    def on_benchmark_eval(self, ctx: hl.LogContext, *, steps: int) -> None: ...  # error


class WrongExperiment(hl.Callback):
    def on_experiment_end(self, ctx: hl.LoopState, result: hl.ExperimentResult) -> None: ...  # error


def fire(callbacks: hl.CallbackCollection, loop: hl.LoopState, ctx: hl.LogContext) -> None:
    callbacks.on_step_start(loop, "3")  # error
    callbacks.on_train_end(loop)  # error
    callbacks.on_benchmark_eval(ctx, hl.EvalResult("sums"), [], step="3")  # error
    callbacks.on_experiment_end(ctx, hl.RunResult("sums"))  # error
