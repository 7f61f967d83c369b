"""A reward for keeping to the topic."""

import re
from collections.abc import Mapping
from typing import Any

from hookline.core.errors import OptionError
from hookline.logging.completions import is_chat, prompt_text
from hookline.rl.rewards.library.text_reward import TextReward, texts_of

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
