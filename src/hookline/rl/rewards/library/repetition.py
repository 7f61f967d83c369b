"""A penalty for repeating oneself."""

from typing import Any

from hookline.rl.rewards.library.text_reward import TextReward, texts_of


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
