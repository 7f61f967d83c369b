"""Ready-made reward functions, called as TRL calls them: ``(prompts, completions, **columns)``.

Classes make functions with settings; the functions ending in ``_reward_func`` have the default ones. All take any
text, as a string or as a chat, and are not logged by themselves: `hookline.rewards.wrap` or a `RewardConfig` does it.

What the reward functions of the library have in common: settings that are checked, and texts to look at.

Rewards for answers: the right one, and one that is a whole number.

A reward for completions that are neither too short nor too long.

A reward for keeping to the topic.

A penalty for repeating oneself.

Rewards for a completion's form: ``<reasoning>...</reasoning>`` and then ``<answer>...</answer>``.

All patterns take time in proportion to the text's length, whatever it is.
"""

import math
import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any, Literal

from hookline._engine.errors import OptionError, closest
from hookline._engine.metrics import plain
from hookline.config.structs import CheckedStruct
from hookline.logging.completions import completion_text, extract_reasoning_and_answer, is_chat, prompt_text
from hookline.rl.rewards.batch import EXPECTED_COLUMNS, expected_column

__all__ = [
    "AntiRepetition",
    "Correctness",
    "Integer",
    "Length",
    "SoftFormat",
    "StrictFormat",
    "TopicRelevance",
    "XMLCount",
    "anti_repetition_reward_func",
    "correctness_reward_func",
    "extract_reasoning_and_answer",
    "extract_xml_answer",
    "int_reward_func",
    "length_reward_func",
    "repetition",
    "same_answer",
    "soft_format_reward_func",
    "strict_format_reward_func",
    "topic_relevance_reward_func",
    "xmlcount_reward_func",
]


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


class Length(TextReward, kw_only=True):
    """Whether it has the right length: ``reward`` from ``minimum`` to ``maximum``, less outside.

    Below, the reward is in proportion to the length; above, it falls to 0 at twice the maximum. It is between 0 and
    ``reward``.

    Args:
        reward: For the right length.
        minimum: The shortest that earns all of it.
        maximum: The longest that earns all of it.
        unit: What is counted: "words", "characters", or "tokens", of which TRL says the ids.
    """

    reward: float = 0.5
    minimum: int = 1
    maximum: int = 200
    unit: Literal["words", "characters", "tokens"] = "words"

    reward_name = "length"
    __name__ = "length_reward_func"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require("minimum", 0, float("inf"), "a whole number of at least 0")
        self._require("maximum", max(1, self.minimum), float("inf"), "a whole number of at least 1 and the minimum")

    def __call__(self, prompts: Any, completions: Any, **columns: Any) -> list[float]:
        """A reward for each completion."""
        return [self._score(length) for length in self._lengths(completions, columns)]

    def _lengths(self, completions: Any, columns: dict[str, Any]) -> list[int]:
        if self.unit != "tokens":
            texts = texts_of(completions)
            return [len(text.split()) if self.unit == "words" else len(text) for text in texts]
        ids = columns.get("completion_ids")
        if ids is None or len(ids) != len(completions):
            raise OptionError(f"length: completion_ids={ids!r:.200}: unit='tokens' needs the ids of each completion.")
        return [len(each) for each in ids]

    def _score(self, length: int) -> float:
        if length < self.minimum:
            return self.reward * length / self.minimum
        if length > self.maximum:
            return self.reward * max(0.0, 2 - length / self.maximum)
        return self.reward


_WORD = re.compile(r"[^\W\d_]+")
_COMMON = frozenset(
    re.split(
        r"\s+",
        """about also answer because been could does each from give have having into itself just like made make many
        more most much must only other please question should some such than that their them then there these they
        this those through very want were what when where which while whom whose will with would write your""",
    )
)
"""Words of questions that say nothing about their topic."""


class TopicRelevance(TextReward, kw_only=True):
    """How many of the question's key words the completion has: between 0 and ``reward``.

    Key words are the different words of the question (of a chat: of its last message of the user) that have at
    least ``min_letters`` letters and are not among the most common of questions. ``reward`` is given in proportion
    to the share of them that the completion has, and in full from ``threshold`` on. A question without key words is
    given None: it does not apply.

    Args:
        reward: The most that is given.
        threshold: The share of key words that earns all of it.
        min_letters: How many letters a key word has.
        column: What holds the topic, as a text, where it is not the question itself.
    """

    reward: float = 0.5
    threshold: float = 0.5
    min_letters: int = 4
    column: str | None = None

    reward_name = "topic_relevance"
    __name__ = "topic_relevance_reward_func"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require("threshold", 1e-9, 1, "a share above 0, and at most 1")
        self._require("min_letters", 1, float("inf"), "a whole number of at least 1")

    def __call__(self, prompts: Any, completions: Any, **columns: Any) -> list[float | None]:
        """A reward for each completion."""
        topics = prompts if self.column is None else columns.get(self.column)
        if topics is None or len(topics) != len(completions):
            raise OptionError(f"topic_relevance: {self.column or 'prompts'}={topics!r:.200}: give one per completion.")
        texts = texts_of(completions)
        return [self._score(_question(topic), text) for topic, text in zip(topics, texts, strict=True)]

    def _score(self, topic: str, text: str) -> float | None:
        wanted = {word for word in _words(topic) if len(word) >= self.min_letters} - _COMMON
        if not wanted:
            return None
        share = len(wanted & _words(text)) / len(wanted)
        return self.reward * min(1.0, share / self.threshold)


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.casefold()))


def _question(prompt: Any) -> str:
    """What is asked: the last that the user of a chat said, or the whole prompt."""
    asked = [each for each in prompt if each.get("role") == "user"] if is_chat(prompt) else []
    last: Mapping[str, Any] | Any = asked[-1] if asked else prompt
    return prompt_text(last)


class AntiRepetition(TextReward, kw_only=True):
    """Costs up to ``penalty`` for runs of words that stood in the completion before.

    The share of such runs among all is tolerated up to ``threshold``; from there the cost grows in proportion, and
    reaches ``penalty`` where everything is repetition. The reward is between ``-penalty`` and 0, and 0 for a text
    that is shorter than a run.

    Args:
        penalty: The most that it costs.
        threshold: The share of repeated runs that costs nothing.
        run: How many words in a row make a run.
    """

    penalty: float = 0.5
    threshold: float = 0.1
    run: int = 4

    reward_name = "anti_repetition"
    __name__ = "anti_repetition_reward_func"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require("penalty", 0, float("inf"), "a number of at least 0; it is taken off")
        self._require("threshold", 0, 0.999, "a share of at least 0 and below 1")
        self._require("run", 1, float("inf"), "a whole number of at least 1")

    def __call__(self, prompts: Any, completions: Any, **columns: Any) -> list[float]:
        """A reward for each completion."""
        return [self._score(text) for text in texts_of(completions)]

    def _score(self, text: str) -> float:
        excess = repetition(text, self.run) - self.threshold
        return -self.penalty * excess / (1 - self.threshold) if excess > 0 else 0.0


def repetition(text: str, run: int = 4) -> float:
    """The share of a text's runs of words that stood in it before; 0 for a text without a run.

    >>> repetition("one two three four five"), repetition("no no no no no no")
    (0.0, 0.6666666666666667)
    """
    words = text.casefold().split()
    runs = [tuple(words[start : start + run]) for start in range(len(words) - run + 1)]
    return 1 - len(set(runs)) / len(runs) if runs else 0.0


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


anti_repetition_reward_func = AntiRepetition()
correctness_reward_func = Correctness()
int_reward_func = Integer()
length_reward_func = Length()
soft_format_reward_func = SoftFormat()
strict_format_reward_func = StrictFormat()
topic_relevance_reward_func = TopicRelevance()
xmlcount_reward_func = XMLCount()
