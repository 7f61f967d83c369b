"""How the hosts train, from which the expected facts of a host are derived."""

from dataclasses import dataclass

from hosts.base import BATCHES, STEPS


@dataclass(frozen=True)
class Training:
    """A kind of training of eight steps.

    Attributes:
        reference: The host that trains like this and fires every moment.
        evaluated: The steps after which it validates.
    """

    reference: str
    evaluated: tuple[int, ...]


EPOCHS_OF_BATCHES = Training("hosts.trainer:OwnTrainer", evaluated=(BATCHES, STEPS))
"""Two epochs of four batches, with a validation at the end of each: how neural networks are trained."""
ROUNDS = Training("hosts.trainer:Rounds", evaluated=tuple(range(1, STEPS + 1)))
"""One epoch of eight steps, with a validation after each: how boosters and solvers train, on all rows at once."""
ROUNDS_AFTER_ONE = Training("hosts.trainer:RoundsAfterOne", evaluated=tuple(range(STEPS + 1)))
"""The same, with a validation before the training."""
