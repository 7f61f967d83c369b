"""The game as environments of tinker-cookbook, with its own classes if it is installed."""

import importlib.util
from typing import Any

from foreign.base import Case
from foreign.game import QUESTION, Plan, answer
from hookline import rl
from hookline.testing import chat_tokenizer

IS_REAL = importlib.util.find_spec("tinker_cookbook") is not None
if IS_REAL:
    from tinker import ModelInput
    from tinker_cookbook.rl.types import Env, EnvGroupBuilder, StepResult
else:
    from foreign.stand_ins.tinker import Env, EnvGroupBuilder, ModelInput, StepResult

TOKENIZER = chat_tokenizer()


class Game(Env):
    """It renders the conversation itself, and continues it with the tokens that were sampled."""

    def __init__(self, plan: Plan, digit: int) -> None:
        self.plan, self.digit = plan, digit

    async def initial_observation(self) -> Any:
        self.plan.open()
        self.ids = TOKENIZER(f"<bos><user>{QUESTION}<eos><assistant>", add_special_tokens=False)["input_ids"]
        return ModelInput.from_ints(self.ids), [TOKENIZER.eos_token_id]

    async def step(self, action: list[int], *, extra: Any = None) -> Any:
        assert extra == {"stop_reason": "stop"}
        wrong = self.plan.step(self.digit)
        if wrong is not None:
            return await wrong if hasattr(wrong, "__await__") else wrong
        number = int(TOKENIZER.decode(action, skip_special_tokens=True))
        between = TOKENIZER(f"<user>{answer(self.digit, number)}<eos><assistant>", add_special_tokens=False)[
            "input_ids"
        ]
        self.ids = [*self.ids, *action, *between]
        is_right = number == self.digit
        return StepResult(
            reward=self.plan.reward(self.digit, is_right=is_right),
            episode_done=is_right,
            next_observation=ModelInput.from_ints(self.ids),
            next_stop_condition=[TOKENIZER.eos_token_id],
            metrics={"guess": number},
        )


class GameBuilder(EnvGroupBuilder):
    """A group of the same digit."""

    def __init__(self, plan: Plan, digit: int) -> None:
        self.plan, self.digit = plan, digit

    async def make_envs(self) -> list[Game]:
        return [Game(self.plan, self.digit)]

    async def cleanup(self) -> None:
        self.plan.close()


class TinkerCase(Case):
    name = "tinker-cookbook"
    is_real = IS_REAL
    is_async = True

    def environment(self, plan: Plan) -> Any:
        builders = [GameBuilder(plan, digit) for digit in range(10)]
        return rl.wrap_environment(builders, held_out_share=0)
