"""`StepLoss`: the loss of a step from those of its batches."""

from typing import Any


class StepLoss:
    """Adds up, on the device, what the batches of one optimizer update gave.

    Lightning gives out each batch's loss divided by the number of batches that gradients are accumulated over: the mean
    over the batches of a step is that of the losses as they were.
    """

    def __init__(self) -> None:
        self._sum: Any = None
        self._batches = 0

    def add(self, outputs: Any) -> None:
        """A batch is done."""
        loss = outputs.get("loss") if isinstance(outputs, dict) else None
        if loss is not None:
            self._sum = loss if self._sum is None else self._sum + loss
            self._batches += 1

    def take(self, divided_by: int) -> dict[str, Any]:
        """The step's loss as a metric, if its batches had one; the next step begins.

        Args:
            divided_by: What each loss was divided by.
        """
        total, batches = self._sum, self._batches
        self._sum, self._batches = None, 0
        if total is None:
            return {}
        return {"loss": total if batches == divided_by else total * divided_by / batches}
