"""Callbacks as users write them: arguments named as they like, metrics returned, async moments, own state."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import hookline as hl
from hookline.rl import RolloutWorker

if TYPE_CHECKING:
    from hookline import DreamTrainer, Trainer


class BestLoss(hl.Callback):
    """Typed in full, under the names that hookline's own documentation has."""

    name = "best_loss"
    priority = 10

    def __init__(self) -> None:
        self.best = float("inf")

    def on_step_end(self, loop: hl.LoopState, step_idx: int, batch: Any, metrics: dict[str, Any]) -> dict[str, float]:
        self.best = min(self.best, metrics["loss"])
        if loop.num_steps is not None and loop.step > loop.num_steps // 2:
            loop.request_stop("half is enough")
        return {"value": self.best}

    def on_train_end(self, trainer: hl.LoopState, artifacts: hl.LoopArtifacts) -> None:
        trainer.log(best=self.best)
        trainer.log("best", self.best)
        trainer.log({"best": self.best})

    def on_eval(self, loop: hl.LoopState, step_idx: int, eval_name: str, metrics: dict[str, Any]) -> None:
        loop.log_samples([{"prompt": eval_name, "completion": str(metrics)}])

    def on_exception(self, loop: hl.LoopState, error: BaseException) -> None:
        print(type(error).__name__)

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.best = state["best"]


class Uploader(hl.Callback):
    """Moments may be coroutines."""

    async def on_log(self, loop: hl.LoopState, step: int, metrics: dict[str, Any]) -> None:
        print(step, metrics)

    async def on_validation_end(self, loop: hl.LoopState) -> dict[str, float]:
        return {"uploaded": 1.0}


class Positional(hl.Callback):
    """Arguments may be positional only, as they are declared, and other names may be given."""

    def on_checkpoint(self, state: hl.LoopState, saved: hl.ManifestRow, /) -> None:
        print(saved.path, saved.step)

    def on_rollout_end(self, worker: hl.LoopState, step_idx: int, rollouts: Any) -> None:
        print(len(rollouts), worker.rank)


class WholeExperiment(hl.Callback):
    """Moments of an experiment's scope."""

    def on_experiment_start(self, ctx: hl.LogContext) -> None:
        ctx.ids["experiment_id"] = "1"

    def on_benchmark_eval(
        self,
        ctx: hl.LogContext,
        eval_result: hl.EvalResult,
        predictions: list[dict[str, Any]],
        *,
        step: int | None = None,
    ) -> None:
        print(eval_result.name, eval_result.metrics, predictions[:1], step)

    def on_run_end(self, ctx: hl.LogContext, run_result: hl.RunResult, arm: hl.ArmResult) -> None:
        print(run_result.status, arm.name, ctx.status)

    def on_experiment_end(self, ctx: hl.LogContext, result: hl.ExperimentResult) -> None:
        print(result.best_arms(1), result.to_markdown())


class OfATrainer(hl.Callback):
    """A callback may name the loop that it is written for, as those of other trainers do."""

    def on_train_start(self, trainer: "Trainer") -> None:
        print(trainer.config.learning_rate, trainer.val_sets)

    def on_step_end(self, trainer: hl.Trainer, step_idx: int, batch: Any, metrics: dict[str, Any]) -> None:
        trainer.log(doubled=2 * metrics["loss"])

    def on_train_batch_end(
        self, trainer: "DreamTrainer", outputs: dict[str, Any], batch: Any, batch_idx: int
    ) -> dict[str, float]:
        return {"twice": 2 * outputs["loss"]}

    def on_train_end(self, trainer: hl.DreamTrainer) -> None:
        trainer.save_checkpoint()

    def on_log(self, run: hl.Run) -> None:
        print(run.notes)

    def on_rollout_end(self, worker: RolloutWorker, step_idx: int, rollouts: Any) -> None:
        print(worker.lesson_id)
