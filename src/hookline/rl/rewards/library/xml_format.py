"""Rewards for a completion's form: ``<reasoning>...</reasoning>`` and then ``<answer>...</answer>``.

All patterns take time in proportion to the text's length, whatever it is.
"""

import re
from typing import Any

from hookline.rl.rewards.library.text_reward import TextReward, texts_of

TAGS = ("<reasoning>", "</reasoning>", "<answer>", "</answer>")

_INSIDE = r"(?:[^<]++|<(?!/?(?:reasoning|answer)>))*+"
_SOFT = re.compile(rf"<reasoning>{_INSIDE}</reasoning>\s*+<answer>{_INSIDE}</answer>")
_STRICT = re.compile(rf"<reasoning>\n{_INSIDE}(?<=\n)</reasoning>\n<answer>\n{_INSIDE}(?<=\n)</answer>\n?")


class SoftFormat(TextReward, kw_only=True):
    """Whether a reasoning, directly followed by an answer, stands anywhere in it: ``reward`` or 0.

    Args:
        reward: For one that is well formed.
    """

    reward: float = 0.5

    reward_name = "soft_format"
    __name__ = "soft_format_reward_func"

    def __call__(self, prompts: Any, completions: Any, **columns: Any) -> list[float]:
        """A reward for each completion."""
        return [self.reward if _SOFT.search(text) else 0.0 for text in texts_of(completions)]


class StrictFormat(TextReward, kw_only=True):
    """Whether it is one reasoning and one answer, each tag on a line of its own, and nothing else: ``reward`` or 0.

    Args:
        reward: For one that is well formed.
    """

    reward: float = 0.5

    reward_name = "strict_format"
    __name__ = "strict_format_reward_func"

    def __call__(self, prompts: Any, completions: Any, **columns: Any) -> list[float]:
        """A reward for each completion."""
        return [self.reward if _STRICT.fullmatch(text) else 0.0 for text in texts_of(completions)]


class XMLCount(TextReward, kw_only=True):
    """How many of the four tags stand in it exactly once: a quarter of ``reward`` for each.

    What follows the last ``</answer>``, white space at its ends aside, costs ``trailing_penalty`` a character. The
    reward is between 0 and ``reward``.

    Args:
        reward: For all four tags, with nothing behind them.
        trailing_penalty: For each character behind the answer.
    """

    reward: float = 0.5
    trailing_penalty: float = 0.001

    reward_name = "xmlcount"
    __name__ = "xmlcount_reward_func"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require("reward", 0, float("inf"), "a number of at least 0")
        self._require("trailing_penalty", 0, float("inf"), "a number of at least 0")

    def __call__(self, prompts: Any, completions: Any, **columns: Any) -> list[float]:
        """A reward for each completion."""
        return [self._score(text) for text in texts_of(completions)]

    def _score(self, text: str) -> float:
        once = sum(text.count(tag) == 1 for tag in TAGS)
        _, closed, behind = text.rpartition(TAGS[-1])
        penalty = self.trailing_penalty * len(behind.strip()) if closed else 0.0
        return max(0.0, self.reward * once / len(TAGS) - penalty)
