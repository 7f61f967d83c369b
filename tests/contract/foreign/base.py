"""The interface of a case: one kind of foreign environment with the game."""

import random
from abc import ABC, abstractmethod
from typing import Any, ClassVar

from foreign.game import Plan, guess

ROWS = [{"prompt": "digit?", "answer": str(digit)} for digit in range(10)]


class Case(ABC):
    """One kind of foreign environment.

    Attributes:
        is_real: Whether its package is installed; a stand-in with the same interface is used otherwise.
        is_async: Whether its steps are async.
        gives_none: Whether it can leave out a reward.
        fails_by: The ways in which one of its episodes can fail.
        closes: Whether there is something to close.
        observation: What the tokens of the environment look like, as a regular expression.
    """

    name: ClassVar[str]
    is_real: ClassVar[bool] = True
    is_async: ClassVar[bool] = False
    gives_none: ClassVar[bool] = True
    fails_by: ClassVar[tuple[str, ...]] = ("raises", "garbage", "hangs")
    closes: ClassVar[bool] = True
    observation: ClassVar[str] = r"(<user>(higher|lower) than \d<eos><assistant>)*"

    @abstractmethod
    def environment(self, plan: Plan) -> Any:
        """Wrap an environment with this plan."""

    def write(self, prompt: str, rng: random.Random) -> str:
        """What the policy writes after a prompt."""
        return str(guess(prompt))

    def stop(self) -> None:  # noqa: B027 - most run nothing
        """End what the case runs."""
