"""The game as TRL's environment_factory, and as reward functions with a dataset; TRL is installed."""

import random
from typing import Any

from scripted_policy import last_turn

from foreign.base import ROWS, Case
from foreign.game import Plan, answer, guess
from hookline import rl


class Guesser:
    """An environment of TRL: its public methods are tools."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._is_right = False

    def reset(self, *, answer: str, **row: Any) -> str:
        self._plan.open()
        self._digit = int(answer)
        return ""

    def check(self, number: int) -> Any:
        """Check a guess.

        Args:
            number: The guess.
        """
        self._is_right = number == self._digit
        return "right" if self._is_right else answer(self._digit, number)

    def get_reward(self) -> Any:
        wrong = self._plan.step(self._digit)
        return self._plan.reward(self._digit, is_right=self._is_right) if wrong is None else wrong

    def close(self) -> None:
        if hasattr(self, "_digit"):
            self._plan.close()


class ToolsCase(Case):
    name = "TRL environment_factory"
    observation = r"(<tool>((higher|lower) than \d|right)<eos><assistant>)+"

    def environment(self, plan: Plan) -> Any:
        return rl.wrap_environment(lambda: Guesser(plan), dataset=ROWS, held_out_share=0)

    def write(self, prompt: str, rng: random.Random) -> str:
        _, text = last_turn(prompt)
        return "done" if text == "right" else f"<call>check number={guess(prompt)}</call>"


class RewardsCase(Case):
    """One completion of each prompt: reward functions see no turns."""

    name = "TRL reward functions"
    closes = False
    fails_by = ()  # a reward function scores all completions at once
    observation = ""

    def environment(self, plan: Plan) -> Any:
        def right(completions: list[Any], answer: list[str], log_metric: Any, **columns: Any) -> Any:
            wrong = [plan.step(int(each)) for each in answer]
            if any(each is not None for each in wrong):
                return "garbage"
            log_metric("scored", len(answer))
            return [plan.reward(int(each), is_right=True) for each in answer]

        rows = [{"prompt": [{"role": "user", "content": row["prompt"]}], "answer": row["answer"]} for row in ROWS]
        return rl.wrap_environment(right, dataset=rows, held_out_share=0)
