"""The game as environments of verifiers: in several turns, and with a tool; its own classes if it is installed."""

import importlib.util
import random
from typing import Any

import datasets
from scripted_policy import last_turn

from foreign.base import Case
from foreign.game import Plan, answer, guess
from hookline import rl

IS_REAL = importlib.util.find_spec("verifiers") is not None
if IS_REAL:
    import verifiers as vf
else:
    import foreign.stand_ins.verifiers as vf

ROWS = [
    {"prompt": [{"role": "user", "content": "digit?"}], "answer": str(digit), "example_id": digit}
    for digit in range(10)
]


class Game(vf.MultiTurnEnv):  # type: ignore[misc,name-defined,unused-ignore]
    """The user says whether a guess is too small."""

    def __init__(self, plan: Plan, rubric: Any) -> None:
        super().__init__(dataset=datasets.Dataset.from_list(ROWS), rubric=rubric, max_turns=10)
        self.plan = plan

    async def setup_state(self, state: Any) -> Any:
        self.plan.open()
        return state

    @vf.stop
    async def is_right(self, state: Any) -> bool:
        if not state["trajectory"]:
            return False
        return bool(state["trajectory"][-1]["completion"][-1].content == state["answer"])

    @vf.cleanup
    async def count_the_end(self, state: Any) -> None:
        self.plan.close()

    async def env_response(self, messages: Any, state: Any, **options: Any) -> Any:
        digit = int(state["answer"])
        wrong = self.plan.step(digit)
        if wrong is not None:
            return await wrong if hasattr(wrong, "__await__") else wrong
        return [{"role": "user", "content": answer(digit, int(messages[-1].content))}]


class VerifiersCase(Case):
    name = "verifiers"
    is_real = IS_REAL
    is_async = True
    gives_none = False  # a rubric always has a number

    def environment(self, plan: Plan) -> Any:
        def right(completion: Any, answer: str) -> float:
            return float(completion[-1].content == answer)

        return rl.wrap_environment(Game(plan, vf.Rubric(funcs=[right], weights=[1.0])), held_out_share=0)


class VerifiersToolsCase(Case):
    name = "verifiers with tools"
    is_real = IS_REAL
    is_async = True
    gives_none = False
    fails_by = ("hangs",)  # what a tool returns or raises is a text for the policy
    closes = False
    observation = r"(<tool>((higher|lower) than \d|right)<eos><assistant>)+"

    def environment(self, plan: Plan) -> Any:
        async def check(number: int, digit: int) -> str:
            """Check a guess.

            Args:
                number: The guess.
                digit: Which digit it is about.
            """
            wrong = plan.step(digit)
            if wrong is not None:
                await wrong
            return "right" if number == digit else answer(digit, number)

        def right(completion: Any) -> float:
            return float(any(each.role == "tool" and each.content == "right" for each in completion))

        rows = [row | {"prompt": [{"role": "user", "content": f"digit? no {row['answer']}"}]} for row in ROWS]
        rubric = vf.Rubric(funcs=[right], weights=[1.0])
        made = vf.ToolEnv(tools=[check], dataset=datasets.Dataset.from_list(rows), rubric=rubric, max_turns=10)
        return rl.wrap_environment(made, held_out_share=0)

    def write(self, prompt: str, rng: random.Random) -> str:
        _, text = last_turn(prompt)
        digit = prompt.partition("no ")[2][:1]
        return "done" if text == "right" else f"<call>check number={guess(prompt)},digit={digit}</call>"
