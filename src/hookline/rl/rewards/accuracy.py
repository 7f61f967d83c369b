"""How many answers are right, counted sample by sample.

A mean reward divided by a constant is no such count: it changes with the constant, with penalties for wrong answers,
and with samples that could not be scored.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hookline.core.values import plain
from hookline.record.records import Record, Sample


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Counts of answers.

    Attributes:
        unscored: Samples that the function gave nothing for, or no finite number: they are neither right nor wrong.
    """

    right: int = 0
    wrong: int = 0
    unscored: int = 0

    @property
    def total(self) -> int:
        """How many were scored."""
        return self.right + self.wrong

    @property
    def value(self) -> float | None:
        """The share of right answers among those that were scored; None where none was."""
        return self.right / self.total if self.total else None

    def __add__(self, other: "Accuracy") -> "Accuracy":
        return Accuracy(self.right + other.right, self.wrong + other.wrong, self.unscored + other.unscored)


def accuracy(
    samples: Iterable[Any], *, function: str = "correctness", above: float = 0.0, axis: str | None = None
) -> Accuracy:
    """Count the right answers among samples: those whose reward for correctness is above a limit.

    >>> accuracy([2.0, 0.0, 2.0, None])
    Accuracy(right=2, wrong=1, unscored=1)

    Args:
        samples: Records, as ``hl.read(directory)`` gives them, of which those that are no samples are passed over;
            rows with ``rewards``; rollouts; or the rewards themselves.
        function: The reward function that tells right from wrong.
        above: A reward above this is that of a right answer.
        axis: Count only "train" or "eval" samples; all of them where it is None.
    """
    right = wrong = unscored = 0
    for sample in samples:
        if isinstance(sample, Record) and not isinstance(sample, Sample):
            continue
        if axis is not None and _field(sample, "axis", "train") != axis:
            continue
        reward = _reward(sample, function)
        if reward is None or not math.isfinite(reward):
            unscored += 1
        elif reward > above:
            right += 1
        else:
            wrong += 1
    return Accuracy(right, wrong, unscored)


def _reward(sample: Any, function: str) -> float | None:
    rewards = _field(sample, "rewards", None)
    value = plain(rewards.get(function) if isinstance(rewards, Mapping) else sample)
    return float(value) if isinstance(value, int | float) else None


def _field(sample: Any, name: str, default: Any) -> Any:
    return sample.get(name, default) if isinstance(sample, Mapping) else getattr(sample, name, default)
