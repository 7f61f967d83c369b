"""`StepUnderWay`: what is known of a trainer's step before Hugging Face tells about it."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class StepUnderWay:
    """One optimizer update.

    Attributes:
        ended_at: The number of completed steps, while the step is complete and waits for its log.
        batch: Its last batch.
        loss: The sum of the batches' shares, which is the step's loss; on its device.
        logged: What was logged before it ended.
        optimizer_was_told: Whether `on_before_optimizer_step` has fired.
    """

    ended_at: int | None = None
    batch: Any = None
    loss: Any = None
    logged: dict[str, Any] = field(default_factory=dict)
    optimizer_was_told: bool = False

    def add(self, loss: Any, batch: Any) -> None:
        """A batch is done."""
        self.batch = batch
        self.loss = loss if self.loss is None else self.loss + loss

    def known(self) -> dict[str, Any]:
        """What is known of the step before it is logged."""
        return self.logged if self.loss is None else {**self.logged, "loss": self.loss}
