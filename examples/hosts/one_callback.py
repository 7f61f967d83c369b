"""A callback that the scripts in this directory use unchanged in other trainers."""

from typing import Any

import hookline as hl


class GoodEnough(hl.Callback):
    """Stops training once a step's loss is good enough, and records the distance to that."""

    def __init__(self, loss: float) -> None:
        self.loss = loss

    def on_step_end(self, loop: hl.LoopState, step_idx: int, batch: Any, metrics: dict[str, Any]) -> dict[str, float]:
        if metrics["loss"] < self.loss:
            loop.request_stop(f"the loss is below {self.loss}")
        return {"missing": max(0.0, metrics["loss"] - self.loss)}

    def on_train_end(self, loop: hl.LoopState, artifacts: hl.LoopArtifacts) -> None:
        print(f"{type(loop.native).__name__}: ended after {loop.step} steps: {artifacts.stop_reason}")
