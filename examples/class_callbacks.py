"""Callbacks as classes: several moments, a metric in the step's row, state in checkpoints, and order.

Prints the order in which they run, a warning when the loss jumps, and the state of a resumed run.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import hookline as hl


class Smooth(hl.Callback):
    """Records a moving average of the loss, and continues it after a restart."""

    priority = 10  # before the others, which use its metric

    def __init__(self, weight: float = 0.9) -> None:
        self.weight = weight
        self.value: float | None = None

    def on_step_end(self, loop: hl.LoopState, step_idx: int, batch: Any, metrics: dict[str, Any]) -> None:
        """Log to the row of this step."""
        before = metrics["loss"] if self.value is None else self.value
        self.value = self.weight * before + (1 - self.weight) * metrics["loss"]
        loop.log(smooth_loss=self.value)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"value": self.value}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from a checkpoint."""
        self.value = state["value"]


class Spikes(hl.Callback):
    """Warns when the loss is far above its average, and prints the number of warnings at the end."""

    def __init__(self, factor: float = 2.0) -> None:
        self.factor, self.seen = factor, 0

    def on_step_end(self, loop: hl.LoopState, step_idx: int, batch: Any, metrics: dict[str, Any]) -> None:
        """Compare with the average that `Smooth` has just logged."""
        if metrics["loss"] > self.factor * (loop.get_metric("smooth_loss") or 0):
            self.seen += 1
            print(f"step {loop.step}: the loss jumped to {metrics['loss']}")

    def on_train_end(self, loop: hl.LoopState, artifacts: hl.LoopArtifacts) -> None:
        """Use another moment of the same callback."""
        print(f"{self.seen} spikes in {loop.step} steps")


def train(losses: list[float], *, resume: Path | None = None) -> hl.Run:
    """Run a step for each loss after the checkpoint, and save a checkpoint at the end."""
    callbacks = hl.CallbackCollection([Spikes(), Smooth()])
    with hl.run("classes", callbacks=callbacks, summary=False) as run:
        if resume is not None:
            run.load_checkpoint(resume)
        for loss in run.steps(losses):
            run.log(loss=loss)
        run.save_checkpoint()
    return run


def main() -> None:
    """Train, and resume from the checkpoint."""
    losses = [1.0, 0.9, 0.8, 3.0, 0.7]
    first = train(losses)
    print(f"order: {first.callbacks.plan()['on_step_end']}")
    again = train([*losses, 0.6, 0.6], resume=first.checkpoints[-1].path)
    for run in (first, again):
        print(f"step {run.step}: average {run.metrics['smooth_loss']:.3f}")


if __name__ == "__main__":
    main()
