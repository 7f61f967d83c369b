"""`LoopFacts`: what is known of a loop's plan and data, whichever loop it is; None is what is not known."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class LoopFacts:
    """A `Trainer` knows its data and its settings; other loops at most how many steps and epochs they have."""

    loop: Any

    @property
    def settings(self) -> Any:
        """The `TrainerConfig`, where a `Trainer` runs."""
        return self.loop.config if hasattr(self.loop, "train_batches") else None

    @property
    def accumulation(self) -> int:
        """Batches that make up a step."""
        return 1 if self.settings is None else int(self.settings.accumulation)

    @property
    def batches_per_epoch(self) -> int | None:
        """Training batches in an epoch."""
        if self.settings is not None:
            length: int | None = self.loop.train_batches.length
            return length
        steps, epochs = self.loop.num_steps, self.loop.num_epochs
        return steps // epochs if steps and epochs and steps % epochs == 0 else None

    @property
    def steps_per_epoch(self) -> int | None:
        """Steps in an epoch."""
        batches = self.batches_per_epoch
        return None if batches is None else -(-batches // self.accumulation)

    @property
    def epochs_done(self) -> float:
        """How many epochs are done, with a fraction for the one under way where its length is known."""
        steps = self.steps_per_epoch
        return float(self.loop.epoch) if steps is None else self.loop.step / steps

    @property
    def train_data(self) -> Any:
        """The loader, or what else gives the training batches."""
        return getattr(getattr(self.loop, "train_batches", None), "data", None)

    @property
    def val_data(self) -> Any:
        """The same for validations."""
        return getattr(getattr(self.loop, "val_batches", None), "data", None)

    @property
    def val_sets(self) -> list[str]:
        """The names of the validation sets, where a `Trainer` has several."""
        return [name for name in getattr(self.loop, "val_sets", ()) if name]

    @property
    def val_batches(self) -> int | None:
        """Batches in a validation; 0 where a `Trainer` has no data for one."""
        if self.settings is None:
            return None
        if self.val_data is None:
            return 0
        limit: int | None = self.settings.validation_batches
        counts = (limit, self.loop.val_batches.length)
        return min((count for count in counts if count is not None), default=None)

    @property
    def train_batch_size(self) -> int | None:
        """Samples in a training batch, where a loader puts them together."""
        return getattr(self.train_data, "batch_size", None)

    @property
    def val_batch_size(self) -> int | None:
        """The same for validations."""
        return getattr(self.val_data, "batch_size", None)

    def of_optimizer(self, name: str) -> Any:
        """A setting that the optimizer was made with, e.g. ``lr``."""
        return getattr(self.loop.optimizer, "defaults", {}).get(name)
