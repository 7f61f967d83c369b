"""Rewards for answers: the right one, and one that is a whole number."""

import re
from decimal import Decimal
from typing import Any

from hookline.core.errors import OptionError, closest
from hookline.core.values import plain
from hookline.logging.completions import prompt_text
from hookline.rl.rewards.call import EXPECTED_COLUMNS, expected_column
from hookline.rl.rewards.library.text_reward import TextReward, answer_in, texts_of

_NUMBER = re.compile(r"[+-]?(?:[0-9]+|[0-9]{1,3}(?:,[0-9]{3})+)(?:\.[0-9]*)?|[+-]?\.[0-9]+")
_WHOLE = re.compile(r"[+-]?(?:[0-9]+|[0-9]{1,3}(?:,[0-9]{3})+)")


class Correctness(TextReward, kw_only=True):
    """Whether the answer is the right one: ``reward`` or ``wrong``, and None where nobody knows what is right.

    Answers are compared as numbers where both are (``1,234.0`` is ``1234``), otherwise as texts, in which case and
    the amount of white space do not matter.

    Args:
        reward: For the right answer.
        wrong: For any other, or none.
        tagged: The answer must stand in ``<answer>``; otherwise the whole completion is one where there is no tag.
        column: What holds the right answers; the first of the usual names that the dataset has, where None.
    """

    reward: float = 2.0
    wrong: float = 0.0
    tagged: bool = True
    column: str | None = None

    reward_name = "correctness"
    __name__ = "correctness_reward_func"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reward <= self.wrong:
            raise OptionError(
                f"Correctness(reward={self.reward!r}, wrong={self.wrong!r}): give more for right answers."
            )

    def __call__(self, prompts: Any, completions: Any, answer: Any = None, **columns: Any) -> list[float | None]:
        """A reward for each completion.

        Raises:
            OptionError: There is no column with the right answers, or not one answer for each completion.
        """
        columns = columns if answer is None else {"answer": answer, **columns}
        texts, answers = texts_of(completions), self._answers(columns, len(completions))
        return [
            None if expected is None else self._score(text, expected)
            for text, expected in zip(texts, answers, strict=True)
        ]

    def _score(self, text: str, expected: Any) -> float:
        given = answer_in(text, self.tagged)
        return self.reward if given is not None and same_answer(given, expected) else self.wrong

    def _answers(self, columns: dict[str, Any], count: int) -> list[Any]:
        name = expected_column(columns, self.column)
        if name is None:
            wanted = repr(self.column) if self.column else f"one of {', '.join(map(repr, EXPECTED_COLUMNS))}"
            raise OptionError(
                f"correctness: the right answers are looked for in the column {wanted}, which is not there. "
                f"{closest(self.column or 'answer', columns)} Say which it is with column=..."
            )
        answers = columns[name]
        answers = answers.tolist() if hasattr(answers, "tolist") else answers
        if not isinstance(answers, list | tuple) or len(answers) != count:
            raise OptionError(f"correctness: {name}={answers!r:.200}: give the right answer for each of {count}.")
        return list(answers)


class Integer(TextReward, kw_only=True):
    """Whether the answer is a whole number, such as ``-12`` or ``1,234``: ``reward`` or 0.

    Args:
        reward: For a whole number.
        tagged: As for `Correctness`.
    """

    reward: float = 0.5
    tagged: bool = True

    reward_name = "integer"
    __name__ = "int_reward_func"

    def __call__(self, prompts: Any, completions: Any, **columns: Any) -> list[float]:
        """A reward for each completion."""
        answers = [answer_in(text, self.tagged) for text in texts_of(completions)]
        return [self.reward if each is not None and _WHOLE.fullmatch(each) else 0.0 for each in answers]


def same_answer(given: str, expected: Any) -> bool:
    """Whether two answers are the same.

    >>> same_answer("1,234.0", 1234), same_answer(" New  York", "new york"), same_answer("4", "5")
    (True, True, False)
    """
    one, other = _normal(given), _normal(prompt_text(plain(expected)))
    if one == other:
        return True
    return bool(_NUMBER.fullmatch(one) and _NUMBER.fullmatch(other)) and _value(one) == _value(other)


def _normal(text: str) -> str:
    return " ".join(text.split()).casefold()


def _value(text: str) -> Decimal:
    return Decimal(text.replace(",", ""))
