"""The game that every environment of the contract offers: guess a digit; the answers are "higher" and "lower".

A `Plan` is what the environments of a test share: which digit goes wrong, and how, and how many are open.
"""

import asyncio
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

QUESTION = "digit?"
BAD = 3
"""The digit whose episodes go wrong in tests of faults."""


@dataclass
class Plan:
    """What the environments of a test share.

    Attributes:
        fault: Called instead of a step, in episodes whose digit is `BAD`.
        unrewarded: Whether those episodes have no reward.
        opened: How many environments were made for an episode.
        closed: How many of them were closed.
    """

    fault: Callable[[], Any] | None = None
    unrewarded: bool = False
    opened: int = 0
    closed: int = 0
    most_open: int = 0
    released: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def open(self) -> None:
        """An environment begins an episode."""
        with self.lock:
            self.opened += 1
            self.most_open = max(self.most_open, self.opened - self.closed)

    def close(self) -> None:
        """An environment is closed."""
        with self.lock:
            self.closed += 1

    def step(self, digit: int) -> Any:
        """Go wrong, where that is planned; what this returns replaces the result of the step, if it is not None."""
        return self.fault() if self.fault is not None and digit == BAD else None

    def reward(self, digit: int, *, is_right: bool) -> float | None:
        return None if self.unrewarded and digit == BAD else float(is_right)

    def raises(self) -> Any:
        raise ConnectionError("the service has gone")

    def garbage(self) -> Any:
        return [42]

    def hangs(self) -> Any:
        self.released.wait()

    async def hangs_on_the_loop(self) -> Any:
        await asyncio.Event().wait()


def answer(digit: int, guess: int) -> str:
    """What the environment says about a wrong guess."""
    return f"higher than {guess}" if digit > guess else f"lower than {guess}"


def guess(prompt: str) -> int:
    """The policy: halve what is left."""
    low, high = 0, 9
    for direction, text in re.findall(r"(higher|lower) than (\d)", prompt):
        low, high = (max(low, int(text) + 1), high) if direction == "higher" else (low, min(high, int(text) - 1))
    return (low + high) // 2
