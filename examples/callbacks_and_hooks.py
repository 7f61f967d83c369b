"""A callback with state, a conditional hook, an async callback and a group, in one bare loop."""

import math
from collections.abc import Mapping
from typing import Any

import hookline as hl
from hookline.hooks import Hook, HookContext


class BestLoss(hl.Callback):
    """Tracks the best loss, also across restarts."""

    def __init__(self) -> None:
        self.best = math.inf

    def on_step_end(self, loop: hl.LoopState, step_idx: int, batch: Any, metrics: dict[str, Any]) -> dict[str, float]:
        """Record the best loss in the row of the step."""
        self.best = min(self.best, metrics["loss"])
        return {"value": self.best}

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"best": self.best}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from a checkpoint."""
        self.best = state["best"]


class Plateau(Hook):
    """Stops training when the loss has hardly changed since the last step."""

    def __init__(self, tolerance: float = 1e-3) -> None:
        self.tolerance = tolerance
        self.last = math.inf

    def should_run(self, context: HookContext) -> bool:
        """Compare with the previous step."""
        loss = context.metadata["loss"]
        moved, self.last = abs(self.last - loss), loss
        return bool(moved < self.tolerance)

    def run(self, context: HookContext) -> dict[str, int]:
        """Request a stop."""
        context.worker.request_stop(f"the loss is flat at {self.last:.3f}")
        return {"step": context.step}


class Uploader(hl.Callback):
    """Sends rows to a slow destination while training continues."""

    def __init__(self) -> None:
        self.sent: list[int] = []

    async def on_log(self, loop: hl.LoopState, step: int, metrics: dict[str, Any]) -> None:
        """Runs on hookline's own event loop, in order."""
        self.sent.append(step)


def main() -> None:
    """Follow a loss that decays until it is flat."""
    uploader = Uploader()
    monitoring = hl.CallbackCollection([BestLoss(), Plateau()], name="monitoring")
    callbacks = hl.CallbackCollection([monitoring])
    callbacks.add(uploader, every=10)
    with hl.run("decay", callbacks=callbacks) as run:
        for i in run.steps(1000):
            run.log(loss=0.5 + math.exp(-i / 10))
    print(f"stopped at step {run.step}: {run.stop_reason}; rows sent: {uploader.sent}")
    print(f"best loss {run.get_metric('monitoring/best_loss/value'):.4f}")


if __name__ == "__main__":
    main()
