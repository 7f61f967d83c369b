"""A reward for completions that are neither too short nor too long."""

from typing import Any, Literal

from hookline.core.errors import OptionError
from hookline.rl.rewards.library.text_reward import TextReward, texts_of


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
