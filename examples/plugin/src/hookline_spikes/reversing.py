"""An environment: words to write backwards."""

import random

from hookline import rl

__all__ = ["Reversing"]

LETTERS = "abcdefgh"


class Reversing:
    """Asks for letters in reverse order: ``abc>`` expects ``cba``.

    Args:
        length: The number of letters.
    """

    name = "reversing"

    def __init__(self, length: int = 3) -> None:
        self.length = length

    def sample(self, n: int, rng: random.Random) -> list[rl.Task]:
        """Draw tasks."""
        words = ["".join(rng.choices(LETTERS, k=self.length)) for _ in range(n)]
        return [rl.Task(f"{word}>", word[::-1]) for word in words]

    def score(self, task: rl.Task, completion: str) -> dict[str, float]:
        """Return 1 for the right word."""
        return {"exact": float(completion == task.expected)}
