"""`ValidationRequest`: a validation in the middle of a training, by the trainer's own settings.

Lightning decides after each batch whether to validate, by ``val_check_batch`` (every so many batches) and
``check_val_every_n_epoch``. For one batch they say "every", and then again what they said before. A trainer that
validates by time looks at neither: it cannot be asked.
"""

import logging
from typing import Any

logger = logging.getLogger("hookline")

_SETTINGS = ("val_check_batch", "check_val_every_n_epoch")


class ValidationRequest:
    """Has a trainer validate behind the batch under way."""

    def __init__(self) -> None:
        self._trainer: Any = None
        self._before: dict[str, Any] = {}

    def make(self, trainer: Any) -> None:
        """Ask for it; `withdraw` is due when it begins, or with the next batch."""
        why = _why_not(trainer)
        if why is not None:
            logger.warning("A validation was asked for, and there is none now: %s.", why)
            return
        self.withdraw()
        self._trainer = trainer
        self._before = {name: getattr(trainer, name) for name in _SETTINGS}
        trainer.val_check_batch = 1
        if trainer.check_val_every_n_epoch is not None:
            trainer.check_val_every_n_epoch = 1

    def withdraw(self) -> None:
        """Give the trainer its settings back."""
        for name, value in self._before.items():
            setattr(self._trainer, name, value)
        self._trainer, self._before = None, {}


def _why_not(trainer: Any) -> str | None:
    if not trainer.enable_validation:
        return "the trainer has no validation data, or the module no validation_step"
    return "the trainer validates by time" if trainer.val_check_batch is None else None
