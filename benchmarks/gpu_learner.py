"""What `GRPOLearner` adds to a plain loop of GRPO on a GPU, for a model of 124M parameters.

At each step both are given the same 256 completions of 128 tokens as lists. They train in bfloat16 with four
micro-batches, clipping and AdamW. The plain loop is as short as such a loop can be: it makes a tensor of the token ids,
computes the loss and three numbers to show, and waits for the device, as the generation that follows would. The learner
pads and checks its rollouts, and computes and records all of its metrics. They train in turns, round by round, and must
change the weights alike.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import torch
import transformers
from measure import at_least, met, require_whole

import hookline as hl
from hookline import rl
from hookline.rl.learner.learner import GRPOLearner

VOCABULARY, ROWS, PROMPT, TOKENS, MICRO = 50257, 256, 64, 128, 64
WARM_UP = 3
SHARE = 0.03
RATE, EPSILON = 1e-5, 0.2


def make_model() -> Any:
    """A model of GPT-2's size and architecture with random weights."""
    torch.manual_seed(0)
    options = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return transformers.AutoModelForCausalLM.from_config(transformers.GPT2Config(**options)).cuda()


def make_rollouts() -> list[rl.Rollout]:
    """Completions of random tokens, in groups of eight with random rewards."""
    generator = torch.Generator().manual_seed(1)
    prompts = torch.randint(0, VOCABULARY, (ROWS // 8, PROMPT), generator=generator).repeat_interleave(8, 0).tolist()
    completions = torch.randint(0, VOCABULARY, (ROWS, TOKENS), generator=generator).tolist()
    rewards = torch.rand(ROWS, generator=generator).tolist()
    logprobs = [-10.8] * TOKENS  # of the newest weights: the learner computes them again
    return [
        rl.Rollout(
            rl.Task(str(index // 8), id=str(index // 8)),
            rl.Completion(str(index), ids, logprobs, "length", prompt_ids=prompt, sampled_logprobs=logprobs),
            {"reward": reward},
            reward,
        )
        for index, (prompt, ids, reward) in enumerate(zip(prompts, completions, rewards, strict=True))
    ]


class Clock:
    """The seconds of the steps after the first ones, until the device has done them."""

    def __init__(self, steps: int) -> None:
        self._steps, self._count = steps, 0
        self.seconds = 0.0

    def step_begins(self) -> None:
        """Called at the start of each step, and once after the last."""
        if self._count in (WARM_UP, WARM_UP + self._steps):
            torch.cuda.synchronize()
            self.seconds = time.perf_counter() - self.seconds
        self._count += 1


class Source:
    """Gives a learner the same rollouts at each step."""

    step = latest_version = 0
    exact_logprobs = True

    def __init__(self, rollouts: list[rl.Rollout], clock: Clock) -> None:
        self._rollouts, self._clock = rollouts, clock

    def roll_out(self) -> list[rl.Rollout]:
        self._clock.step_begins()
        self.step += 1
        return self._rollouts

    def attach_to(self, loop: Any) -> None: ...

    def share_results(self, gather: Any) -> None: ...

    def update_weights(self, version: int, weights: Any) -> None: ...

    def close_hooks(self) -> None: ...

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Any) -> None: ...


def plain(rollouts: Sequence[rl.Rollout], steps: int) -> tuple[float, torch.Tensor]:
    """Milliseconds a step of a plain loop, and how it changed the weights."""
    model, clock = make_model(), Clock(steps)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    rewards = torch.tensor([each.total for each in rollouts]).view(-1, 8)
    advantages = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)
    advantages = advantages.flatten().cuda()
    for _ in range(WARM_UP + steps + 1):
        clock.step_begins()
        rows = [[*each.completion.prompt_ids, *each.completion.token_ids] for each in rollouts]
        ids = torch.tensor(rows, device="cuda")
        shown = torch.zeros(3, device="cuda")
        for start in range(0, ROWS, MICRO):
            own = slice(start, start + MICRO)
            with torch.autocast("cuda", torch.bfloat16):
                logits = model(input_ids=ids[own, :-1], use_cache=False, logits_to_keep=TOKENS).logits
            distribution = torch.log_softmax(logits.float(), -1)
            logprobs = distribution.gather(-1, ids[own, -TOKENS:, None]).squeeze(-1)
            with torch.no_grad():
                entropy = -(distribution.exp() * distribution).sum(-1).mean()
            ratio = (logprobs - logprobs.detach()).exp()
            advantage = advantages[own, None]
            clipped = ratio.clamp(1 - EPSILON, 1 + EPSILON)
            loss = -torch.minimum(ratio * advantage, clipped * advantage).sum() / (ROWS * TOKENS)
            loss.backward()
            shown += torch.stack([loss.detach(), entropy, ratio.detach().mean()])
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        shown.tolist()
    return clock.seconds / steps * 1e3, change(model)


def learnt(rollouts: list[rl.Rollout], steps: int) -> tuple[float, torch.Tensor]:
    """Milliseconds a step of the learner, and how it changed the weights."""
    model, clock = make_model(), Clock(steps)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    with tempfile.TemporaryDirectory() as directory:
        config = hl.TrainerConfig(
            max_steps=WARM_UP + steps + 1,
            output_dir=directory,
            precision="bf16",
            gradient_clip_norm=1.0,
            save_at_end=False,
            summary=False,
            strict=True,
        )
        grpo = rl.GRPOConfig(micro_batch_size=MICRO)
        source = Source(rollouts, clock)
        learner = GRPOLearner(model, source, pad_id=0, config=config, grpo=grpo, optimizer=optimizer)
        require_whole(learner.fit())
    return clock.seconds / steps * 1e3, change(model)


def change(model: Any) -> torch.Tensor:
    """How the embeddings, which are also the output layer, differ from those of the initial model."""
    difference: torch.Tensor = model.get_input_embeddings().weight - make_model().get_input_embeddings().weight
    return difference.detach().flatten()


def require_alike(own: torch.Tensor, base: torch.Tensor) -> None:
    """Raise if they did not learn the same; Adam turns rounding errors of small gradients into whole steps."""
    likeness = torch.nn.functional.cosine_similarity(own, base, dim=0).item()
    if not likeness > 0.9:
        raise RuntimeError(f"The weights changed differently: the cosine of both changes is {likeness:.3f}.")


def main() -> None:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=at_least(1), default=5)
    parser.add_argument("--steps", type=at_least(1), default=20)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.exit(2, "This measures a GPU: there is none.\n")
    rollouts = make_rollouts()
    taken: dict[str, list[float]] = {"plain loop": [], "GRPOLearner": []}
    for _ in range(options.rounds + 1):
        base, its_change = plain(rollouts, options.steps)
        own, own_change = learnt(rollouts, options.steps)
        require_alike(own_change, its_change)
        taken["plain loop"].append(base)
        taken["GRPOLearner"].append(own)
    counted = {name: times[1:] for name, times in taken.items()}
    ratio = median(own / base for base, own in zip(*counted.values(), strict=True))
    found = {name: round(median(times), 2) for name, times in counted.items()}
    is_met = ratio <= 1 + SHARE
    if options.json:
        print(json.dumps({"milliseconds": found, "ratio": ratio, "bar": 1 + SHARE, "met": is_met}))
        return
    print(f"{torch.cuda.get_device_name()}, 124M parameters, {ROWS} x {TOKENS} tokens in micro-batches of {MICRO}")
    for name, milliseconds in found.items():
        print(f"{name:12} {milliseconds:8.2f} ms a step")
    print(f"x {ratio:.3f}, at most {1 + SHARE:.2f}: {met(is_met)}")


if __name__ == "__main__":
    main()
