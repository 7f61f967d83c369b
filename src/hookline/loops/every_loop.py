"""`EveryLoop`: what a moment's loop is to type checkers, so that a callback may say which one it is written for.

A method that overrides another may not ask for a narrower argument. To a checker the loop of a moment is therefore one
that is a `Trainer`, a `Run` and a `RolloutWorker` at once: ``trainer: "Trainer"`` and ``loop: LoopState`` both take it,
and ``loop: int`` does not. There is no such object, and this module is never imported when a program runs.
"""

from hookline.loops.run import Run
from hookline.loops.trainer import Trainer
from hookline.rl.rollouts.worker import RolloutWorker


class EveryLoop(Trainer, Run, RolloutWorker):  # type: ignore[misc]
    """A loop of every kind."""
