"""Fixed completions, as a learner gets them and as TRL's trainer does, and a source that gives them to a learner."""

from dataclasses import dataclass, field
from typing import Any

import torch

from hookline import rl
from hookline.testing import character_tokenizer, tiny_causal_lm

torch.set_num_threads(1)
TOKENIZER = character_tokenizer("0123456789>")
GROUPS, GROUP_SIZE, MAX_TOKENS = 4, 4, 7
COUNT = GROUPS * GROUP_SIZE


@dataclass
class Fixed:
    """Completions of prompts of several lengths, with masks, rewards of two functions, and log-probabilities."""

    prompts: list[list[int]] = field(default_factory=list)
    completions: list[list[int]] = field(default_factory=list)
    masks: list[list[int]] = field(default_factory=list)
    reported: list[list[float]] = field(default_factory=list)
    rewards: dict[str, list[float | None]] = field(default_factory=dict)

    def rollouts(self, some: slice) -> list[rl.Rollout]:
        made = []
        for index in range(COUNT)[some]:
            ids, end = self.completions[index], TOKENIZER.eos_token_id
            completion = rl.Completion(
                text=str(index),
                token_ids=ids,
                logprobs=self.reported[index],
                finish="stop" if ids[-1] == end else "length",
                prompt_ids=self.prompts[index],
                sampled_logprobs=self.reported[index],
                mask=self.masks[index],
            )
            rewards = {name: own[index] for name, own in self.rewards.items() if own[index] is not None}
            task = rl.Task(str(self.prompts[index]))
            made.append(rl.Rollout(task, completion, rewards, sum(rewards.values())))
        return made


def fixed() -> Fixed:
    made, generator = Fixed(), torch.Generator().manual_seed(0)

    def draw(low: int, high: int, count: int) -> list[int]:
        return torch.randint(low, high, (count,), generator=generator).tolist()

    for group in range(GROUPS):
        prompt = [TOKENIZER.bos_token_id, *draw(4, 14, 2 + group % 3)]
        for member in range(GROUP_SIZE):
            length = 2 + (5 * group + 2 * member) % (MAX_TOKENS - 1)
            ends = member != 2
            ids = [*draw(4, 14, length - ends), *([TOKENIZER.eos_token_id] if ends else [])]
            made.prompts.append(prompt)
            made.completions.append(ids)
            made.masks.append([0 if length > 4 and place in (1, 2) else 1 for place in range(length)])
            made.reported.append([-2.4 - 0.1 * number for number in draw(0, 10, length)])
    first: list[float | None] = [number / 4 for number in draw(0, 9, COUNT)]
    second: list[float | None] = [float(number) for number in draw(0, 2, COUNT)]
    first[3] = second[3] = first[6] = second[9] = None
    made.rewards = {"first": first, "second": second}
    return made


FIXED = fixed()


class Source:
    """Gives a learner the fixed completions in several rollout steps, or one of several processes its part of them."""

    step = latest_version = 0

    def __init__(self, *, parts: int = 1, own: int | None = None, exact: bool = True) -> None:
        size = COUNT // parts
        self.exact_logprobs = exact
        made = [FIXED.rollouts(slice(start, start + size)) for start in range(0, COUNT, size)]
        self._parts = made if own is None else [made[own]]

    def roll_out(self) -> list[rl.Rollout]:
        self.step += 1
        return self._parts[(self.step - 1) % len(self._parts)]

    def attach_to(self, loop: Any) -> None: ...

    def share_results(self, gather: Any) -> None: ...

    def update_weights(self, version: int, weights: Any) -> None: ...

    def close_hooks(self) -> None: ...

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step}

    def load_state_dict(self, state: Any) -> None:
        self.step = state["step"]


def model() -> Any:
    made = tiny_causal_lm(TOKENIZER, hidden_size=16, layers=1, heads=2)
    with torch.no_grad():  # fresh weights find all tokens alike
        generator = torch.Generator().manual_seed(0)
        for parameter in made.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.25, generator=generator)
    return made
