"""What the reward functions of the library have in common: settings that are checked, and texts to look at."""

import math
from collections.abc import Iterable
from typing import Any

from hookline.core.errors import OptionError
from hookline.logging.completions import completion_text, extract_reasoning_and_answer
from hookline.loops.checked_struct import CheckedStruct


class TextReward(CheckedStruct, kw_only=True):
    """The settings that all have.

    Args:
        weight: What the function counts for beside others, as TRL's ``reward_weights``; it does not change what the
            function gives. 0 leaves it out of a `RewardConfig`.
    """

    weight: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, float) and not math.isfinite(value):
                raise OptionError(f"{type(self).__name__}({name}={value!r}): give a finite number.")

    def _require(self, name: str, least: float, most: float, wanted: str) -> None:
        value = getattr(self, name)
        if not least <= value <= most:
            raise OptionError(f"{type(self).__name__}({name}={value!r}): give {wanted}.")


def texts_of(completions: Iterable[Any]) -> list[str]:
    """Completions as texts, be they texts or chats."""
    return [completion_text(each) for each in completions]


def extract_xml_answer(text: str) -> str | None:
    """What stands in the last ``<answer>``; None where there is none that is closed.

    >>> extract_xml_answer("<reasoning>2 + 2</reasoning><answer> 4 </answer>")
    '4'
    """
    return extract_reasoning_and_answer(text)[1]


def answer_in(text: str, tagged: bool) -> str | None:
    """The answer that a completion gives: what is tagged as such, else the whole text where tags are not asked for."""
    answer = extract_xml_answer(text)
    return text.strip() if answer is None and not tagged else answer
