"""`CheckpointWatch`: hears of every checkpoint that a trainer saves, and where.

Lightning tells callbacks that a checkpoint is about to be made, and neither its path nor when it is there. All of
them, whoever asks (`ModelCheckpoint`, this bridge, a user), go through the trainer's public ``save_checkpoint``: for
the length of a fit, that method of this one trainer also says so.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any


class CheckpointWatch:
    """Watches one trainer at a time.

    Args:
        tell: Called with the path of a checkpoint when it is saved, on every process.
    """

    def __init__(self, tell: Callable[[Any], None]) -> None:
        self._tell = tell
        self._trainer: Any = None
        self._ours: Any = None
        self._before: dict[str, Any] = {}

    def begin(self, trainer: Any) -> None:
        """Watch this trainer."""
        self.end()
        save = trainer.save_checkpoint

        @wraps(save)
        def save_checkpoint(filepath: Any, *args: Any, **options: Any) -> None:
            save(filepath, *args, **options)
            if self._ours is save_checkpoint:
                self._tell(filepath)

        # somebody else may have put a method there as well
        self._before = {"save_checkpoint": save} if "save_checkpoint" in vars(trainer) else {}
        self._trainer, self._ours = trainer, save_checkpoint
        trainer.save_checkpoint = save_checkpoint

    def end(self) -> None:
        """Leave the trainer as it was; what somebody has put around the method since stays, and is told no more."""
        trainer, ours = self._trainer, self._ours
        self._trainer = self._ours = None
        if trainer is not None and vars(trainer).get("save_checkpoint") is ours:
            del trainer.save_checkpoint
            vars(trainer).update(self._before)
