"""Loops that fire moments: the driver for a bare loop, and what all loops share."""

from typing import TYPE_CHECKING

from hookline.loops.loop import Loop, Row
from hookline.loops.run import Run, run
from hookline.loops.validation import Validation

if TYPE_CHECKING:
    from hookline.loops.trainer import Trainer
    from hookline.rl.rollouts.worker import RolloutWorker

    class EveryLoop(Trainer, Run, RolloutWorker):  # type: ignore[misc]
        """The loop of a moment to type checkers, so that a callback may name the loop it is written for.

        A method that overrides another may not require a narrower argument. So to a checker the loop of a moment is a
        `Trainer`, a `Run` and a `RolloutWorker` at once: ``trainer: "Trainer"`` and ``loop: LoopState`` both accept
        it, and ``loop: int`` does not. No such object exists.
        """


__all__ = ["Loop", "Row", "Run", "Validation", "run"]
