"""Ready-made reward functions, called as TRL calls them: ``(prompts, completions, **columns)``.

Classes make functions with settings; the functions ending in ``_reward_func`` have the default settings. They accept
completions as texts or chats, and are not logged by themselves: use `hookline.rewards.wrap` or a `RewardConfig`. All
patterns take time in proportion to the length of the text, for any text.
"""

import math
import re
from decimal import Decimal
from typing import Any, Literal

from hookline._engine.errors import OptionError, closest
from hookline._engine.metrics import plain
from hookline._record.chats import completion_text, is_chat, prompt_text
from hookline.config.loading import CheckedStruct
from hookline.logging.payloads import extract_reasoning_and_answer
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


class Reward(CheckedStruct, kw_only=True):
    """The common settings.

    Args:
        weight: The weight of the function among others, as in TRL's ``reward_weights``; it does not change the values
            of the function. 0 leaves it out of a `RewardConfig`.
    """

    weight: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, float) and not math.isfinite(value):
                raise OptionError(f"{type(self).__name__}({name}={value!r}): give a finite number.")

    def _require(self, name: str, wanted: str, *, minimum: float, maximum: float = math.inf) -> None:
        value = getattr(self, name)
        if not minimum <= value <= maximum:
            raise OptionError(f"{type(self).__name__}({name}={value!r}): give {wanted}.")


class TextReward(Reward, kw_only=True):
    """A reward that depends on the text of the completion only."""

    def __call__(self, prompts: Any, completions: Any, **columns: Any) -> list[float]:
        return [self._score(completion_text(each)) for each in completions]

    def _score(self, text: str) -> float:
        raise NotImplementedError


def extract_xml_answer(text: str) -> str | None:
    """Return the content of the last closed ``<answer>``; None if there is none.

    >>> extract_xml_answer("<reasoning>2 + 2</reasoning><answer> 4 </answer>")
    '4'
    """
    return extract_reasoning_and_answer(text)[1]


def _answer(text: str, tagged: bool) -> str | None:
    """Return the tagged answer, or the whole text if there is none and tags are not required."""
    answer = extract_xml_answer(text)
    return text.strip() if answer is None and not tagged else answer


_NUMBER = re.compile(r"[+-]?(?:[0-9]+|[0-9]{1,3}(?:,[0-9]{3})+)(?:\.[0-9]*)?|[+-]?\.[0-9]+")
_WHOLE = re.compile(r"[+-]?(?:[0-9]+|[0-9]{1,3}(?:,[0-9]{3})+)")


class Correctness(Reward, kw_only=True):
    """Rewards the right answer: ``reward`` or ``wrong``, and None if the right answer is unknown.

    Answers are compared as numbers if both are numbers (``1,234.0`` equals ``1234``), otherwise as texts, ignoring case
    and the amount of white space.

    Args:
        reward: For the right answer.
        wrong: For any other answer, or none.
        tagged: Require the answer in ``<answer>``; otherwise a completion without tags is an answer as a whole.
        column: The column of right answers; by default the first of the usual names that the dataset has.
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
        """Return a reward for each completion.

        Raises:
            OptionError: There is no column of right answers, or it has a wrong number of them.
        """
        columns = columns if answer is None else {"answer": answer, **columns}
        rewards: list[float | None] = []
        for completion, expected in zip(completions, self._expected(columns, len(completions)), strict=True):
            given = _answer(completion_text(completion), self.tagged)
            is_right = expected is not None and given is not None and same_answer(given, expected)
            rewards.append(None if expected is None else self.reward if is_right else self.wrong)
        return rewards

    def _expected(self, columns: dict[str, Any], count: int) -> list[Any]:
        name = expected_column(columns, self.column)
        if name is None:
            wanted = repr(self.column) if self.column else f"one of {', '.join(map(repr, EXPECTED_COLUMNS))}"
            raise OptionError(
                f"correctness: there is no column {wanted} with the right answers. "
                f"{closest(self.column or 'answer', columns)} Name the column with column=..."
            )
        answers = columns[name]
        answers = answers.tolist() if hasattr(answers, "tolist") else answers
        if not isinstance(answers, list | tuple) or len(answers) != count:
            raise OptionError(f"correctness: {name}={answers!r:.200}: give a list of {count} right answers.")
        return list(answers)


class Integer(TextReward, kw_only=True):
    """Rewards an answer that is a whole number, such as ``-12`` or ``1,234``: ``reward`` or 0.

    Args:
        reward: For a whole number.
        tagged: As for `Correctness`.
    """

    reward: float = 0.5
    tagged: bool = True

    reward_name = "integer"
    __name__ = "int_reward_func"

    def _score(self, text: str) -> float:
        answer = _answer(text, self.tagged)
        return self.reward if answer is not None and _WHOLE.fullmatch(answer) else 0.0


def same_answer(given: str, expected: Any) -> bool:
    """Return whether two answers are equal, as numbers or as texts.

    >>> same_answer("1,234.0", 1234), same_answer(" New  York", "new york"), same_answer("4", "5")
    (True, True, False)
    """
    one, other = _normalized(given), _normalized(prompt_text(plain(expected)))
    if one == other:
        return True
    if not (_NUMBER.fullmatch(one) and _NUMBER.fullmatch(other)):
        return False
    return Decimal(one.replace(",", "")) == Decimal(other.replace(",", ""))


def _normalized(text: str) -> str:
    return " ".join(text.split()).casefold()


class Length(Reward, kw_only=True):
    """Rewards the right length: ``reward`` from ``minimum`` to ``maximum``, less outside.

    Below the minimum, the reward is proportional to the length; above the maximum, it falls to 0 at twice the maximum.

    Args:
        reward: For the right length.
        minimum: The smallest length with the full reward.
        maximum: The largest length with the full reward.
        unit: "words", "characters", or "tokens", which needs the ``completion_ids`` that TRL passes.
    """

    reward: float = 0.5
    minimum: int = 1
    maximum: int = 200
    unit: Literal["words", "characters", "tokens"] = "words"

    reward_name = "length"
    __name__ = "length_reward_func"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require("minimum", "a whole number of at least 0", minimum=0)
        self._require("maximum", "a whole number of at least 1 and the minimum", minimum=max(1, self.minimum))

    def __call__(self, prompts: Any, completions: Any, **columns: Any) -> list[float]:
        if self.unit == "tokens":
            ids = columns.get("completion_ids")
            if ids is None or len(ids) != len(completions):
                raise OptionError(
                    f"length: completion_ids={ids!r:.200}: unit='tokens' needs the ids of each completion."
                )
            return [self._score(len(each)) for each in ids]
        texts = [completion_text(each) for each in completions]
        return [self._score(len(text.split()) if self.unit == "words" else len(text)) for text in texts]

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
"""Words of questions that are unrelated to their topic."""


class TopicRelevance(Reward, kw_only=True):
    """Rewards the key words of the question in the completion: between 0 and ``reward``.

    Key words are the distinct words of the question (of a chat: of the user's last message) that have at least
    ``min_letters`` letters and are not common in questions. The reward is proportional to the share of key words in
    the completion, up to ``threshold``. A question without key words gets None.

    Args:
        reward: The largest reward.
        threshold: The share of key words with the full reward.
        min_letters: The least number of letters of a key word.
        column: A column of texts to use as the topic instead of the question.
    """

    reward: float = 0.5
    threshold: float = 0.5
    min_letters: int = 4
    column: str | None = None

    reward_name = "topic_relevance"
    __name__ = "topic_relevance_reward_func"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require("threshold", "a share above 0, and at most 1", minimum=1e-9, maximum=1)
        self._require("min_letters", "a whole number of at least 1", minimum=1)

    def __call__(self, prompts: Any, completions: Any, **columns: Any) -> list[float | None]:
        topics = prompts if self.column is None else columns.get(self.column)
        if topics is None or len(topics) != len(completions):
            raise OptionError(f"topic_relevance: {self.column or 'prompts'}={topics!r:.200}: give one per completion.")
        return [self._score(topic, completion_text(each)) for topic, each in zip(topics, completions, strict=True)]

    def _score(self, topic: Any, text: str) -> float | None:
        questions = [each for each in topic if each.get("role") == "user"] if is_chat(topic) else []
        question = prompt_text(questions[-1] if questions else topic)
        key_words = {word for word in _words(question) if len(word) >= self.min_letters} - _COMMON
        if not key_words:
            return None
        share = len(key_words & _words(text)) / len(key_words)
        return self.reward * min(1.0, share / self.threshold)


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.casefold()))


class AntiRepetition(TextReward, kw_only=True):
    """Penalizes repeated runs of words: between ``-penalty`` and 0.

    A share of repeated runs up to ``threshold`` is free; from there the penalty grows linearly, up to ``penalty`` for
    a text of repetitions only. A text that is shorter than a run is not penalized.

    Args:
        penalty: The largest penalty.
        threshold: The share of repeated runs without a penalty.
        run: The number of words in a run.
    """

    penalty: float = 0.5
    threshold: float = 0.1
    run: int = 4

    reward_name = "anti_repetition"
    __name__ = "anti_repetition_reward_func"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require("penalty", "a number of at least 0; it is subtracted", minimum=0)
        self._require("threshold", "a share of at least 0 and below 1", minimum=0, maximum=0.999)
        self._require("run", "a whole number of at least 1", minimum=1)

    def _score(self, text: str) -> float:
        excess = repetition(text, self.run) - self.threshold
        return -self.penalty * excess / (1 - self.threshold) if excess > 0 else 0.0


def repetition(text: str, run: int = 4) -> float:
    """Return the share of repeated runs of words in a text; 0 for a text without a run.

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
    """Rewards a reasoning directly followed by an answer, anywhere in the completion: ``reward`` or 0.

    Args:
        reward: For the right format.
    """

    reward: float = 0.5

    reward_name = "soft_format"
    __name__ = "soft_format_reward_func"
    _matches = _SOFT.search

    def _score(self, text: str) -> float:
        return self.reward if self._matches(text) else 0.0


class StrictFormat(SoftFormat, kw_only=True):
    """Rewards one reasoning and one answer, each tag on its own line, and nothing else: ``reward`` or 0.

    Args:
        reward: For the right format.
    """

    reward_name = "strict_format"
    __name__ = "strict_format_reward_func"
    _matches = _STRICT.fullmatch


class XMLCount(TextReward, kw_only=True):
    """Rewards tags that occur exactly once: a quarter of ``reward`` for each of the four.

    Each character after the last ``</answer>``, ignoring surrounding white space, costs ``trailing_penalty``. The
    reward is never negative.

    Args:
        reward: For all four tags, with nothing after them.
        trailing_penalty: For each character after the answer.
    """

    reward: float = 0.5
    trailing_penalty: float = 0.001

    reward_name = "xmlcount"
    __name__ = "xmlcount_reward_func"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require("reward", "a number of at least 0", minimum=0)
        self._require("trailing_penalty", "a number of at least 0", minimum=0)

    def _score(self, text: str) -> float:
        once = sum(text.count(tag) == 1 for tag in TAGS)
        _, closed, trailing = text.rpartition(TAGS[-1])
        penalty = self.trailing_penalty * len(trailing.strip()) if closed else 0.0
        return max(0.0, self.reward * once / len(TAGS) - penalty)


anti_repetition_reward_func = AntiRepetition()
correctness_reward_func = Correctness()
int_reward_func = Integer()
length_reward_func = Length()
soft_format_reward_func = SoftFormat()
strict_format_reward_func = StrictFormat()
topic_relevance_reward_func = TopicRelevance()
xmlcount_reward_func = XMLCount()
