"""The game as an environment of Gymnasium."""

from typing import Any

import gymnasium

from foreign.base import Case
from foreign.game import QUESTION, Plan, answer
from hookline import rl


class Game(gymnasium.Env[str, int]):
    """Ten seeds are ten digits."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.action_space: Any = gymnasium.spaces.Discrete(10)
        self.observation_space = gymnasium.spaces.Text(30)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        assert seed is not None
        self.plan.open()
        self.digit = seed
        return QUESTION, {}

    def step(self, action: int) -> Any:
        wrong = self.plan.step(self.digit)
        if wrong is not None:
            return wrong
        is_right = action == self.digit
        reward = self.plan.reward(self.digit, is_right=is_right)
        return answer(self.digit, action), reward, is_right, False, {}

    def close(self) -> None:
        if hasattr(self, "digit"):
            self.plan.close()


class GymnasiumCase(Case):
    name = "gymnasium"

    def environment(self, plan: Plan) -> Any:
        return rl.wrap_environment(lambda: Game(plan), seeds=10, held_out_share=0)
