"""`Plan`: how many steps and epochs a training has, and when it validates."""

from hookline.loops.trainer_config import TrainerConfig


class Plan:
    """What follows from the settings and the length of the data.

    Args:
        batches: How many batches an epoch has, where that is known.
        validates: Whether there is something to validate on.
    """

    def __init__(self, config: TrainerConfig, batches: int | None, *, validates: bool) -> None:
        self._config, self._validates = config, validates
        per_epoch = None if batches is None else -(-batches // config.accumulation)
        by_epochs = None if per_epoch is None or config.epochs is None else per_epoch * config.epochs
        self.num_steps = min((limit for limit in (config.max_steps, by_epochs) if limit is not None), default=None)
        self.num_epochs = config.epochs
        if per_epoch is not None and self.num_steps is not None:
            self.num_epochs = -(-self.num_steps // per_epoch)

    def has_all_steps(self, step: int) -> bool:
        """Whether as many steps are done as were asked for."""
        return self._config.max_steps is not None and step >= self._config.max_steps

    def is_done(self, step: int, epoch: int, *, epoch_complete: bool) -> bool:
        """Whether nothing is left to train."""
        is_last = self._config.epochs is not None and epoch >= self._config.epochs - 1
        return (is_last and epoch_complete) or self.has_all_steps(step)

    def is_validated_at(self, step: int) -> bool:
        """Whether a validation follows a step."""
        every = self._config.validate_every_steps
        return self._validates and every is not None and step > 0 and step % every == 0

    def is_validated_after_epoch(self, epoch: int) -> bool:
        """Whether a validation ends an epoch: each of them, where nothing else was asked for."""
        every = self._config.validate_every_epochs or (None if self._config.validate_every_steps else 1)
        return self._validates and every is not None and (epoch + 1) % every == 0
