"""`RewardWeights`: the weights of rewards, and a word about those that no reward goes by."""

import logging
from collections.abc import Iterable, Mapping

from hookline.core.errors import closest

logger = logging.getLogger("hookline")


class RewardWeights:
    """Weighs rewards; one without a weight counts as it is.

    What an environment's rewards are called shows when it gives some. A weight that has no reward once every lesson
    gave some, or at the end, is named in a warning, once.

    Args:
        weights: By the name of the reward.
        lessons: The ids of all lessons.
    """

    def __init__(self, weights: Mapping[str, float], lessons: Iterable[str]) -> None:
        self._weights = weights
        self._unused = set(weights)
        self._silent = set(lessons)
        self._known: set[str] = set()

    def total(self, rewards: Mapping[str, float]) -> float:
        """The weighted sum."""
        return sum(self._weights.get(name, 1.0) * value for name, value in rewards.items())

    def note(self, lesson: str, rewards: Iterable[Mapping[str, float]]) -> None:
        """Take note of what the rewards of a lesson are called."""
        names = {name for each in rewards for name in each} if self._unused else None
        if names:
            self._known |= names
            self._unused -= names
            self._silent.discard(lesson)
            if not self._silent:
                self.tell_unused()

    def tell_unused(self) -> None:
        """Warn of weights that had no effect, if any reward was given at all."""
        for name in sorted(self._unused) if self._known else ():
            logger.warning(
                "reward_weights: no rollout so far has a reward called %r. %s", name, closest(name, self._known)
            )
        self._unused = set()
