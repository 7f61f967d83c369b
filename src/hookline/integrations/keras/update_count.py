"""`UpdateCount`: how many times an optimizer of Keras has moved the weights."""

from typing import Any


class UpdateCount:
    """Counts updates by batches: with ``gradient_accumulation_steps`` an update takes several of them.

    Args:
        optimizer: That of the model, as it is before the first batch to be counted.
    """

    def __init__(self, optimizer: Any) -> None:
        self._each = getattr(optimizer, "gradient_accumulation_steps", None) or 1
        # its public count is of updates, and does not tell how many batches wait for the next one
        updates = int(getattr(optimizer, "iterations", 0))
        self._batches = int(getattr(optimizer, "_iterations", updates * self._each))

    @property
    def updates(self) -> int:
        """All so far, also those of earlier trainings."""
        return self._batches // self._each

    def planned(self, batches: int) -> int:
        """How many updates so many more batches make."""
        return (self._batches + batches) // self._each - self.updates

    def add(self, batches: int) -> int:
        """Count batches that are done; returns how many updates they made."""
        made = self.planned(batches)
        self._batches += batches
        return made
