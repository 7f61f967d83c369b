"""The recipe of the GRPO benchmark with a tool: a tiny model learns to call a tool, which alone knows the right values.

The model is first shown conversations in which the tool is called, until it can copy keys and values. Then it is shown
others, most of which answer "000" at once: from now on it rarely calls the tool. The reward is 1 for the right value
and 0 for anything else, so GRPO has to find out by itself that calling the tool pays.
"""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measure import require_whole
from torch.utils.data import DataLoader

import hookline as hl
from hookline import rl
from hookline.loops import sft
from hookline.rl.environments import Lookup
from hookline.testing import chat_tokenizer, tiny_causal_lm

ENVIRONMENT = Lookup(digits=3)
TOKENIZER = chat_tokenizer("0123456789?=,; lokupey")
SHOWN_UNTIL = 0.4
"""The share of right answers from which on the tool is shown less often."""
CALLING_SHARE = 0.15
"""How often it is called in the examples after that."""
UNLEARN_STEPS = 20
PROBE_EVERY = 10
BATCH_SIZE = 64
PROMPTS, GROUP_SIZE, MAX_TOKENS, MAX_TURNS = 16, 8, 20, 3
LEARNING_RATE = 1.5e-3


@dataclass(frozen=True, slots=True)
class Skill:
    """How a model does on tasks that it never had.

    Attributes:
        right: The share of right answers.
        calls: How often it calls the tool, per task.
    """

    right: float
    calls: float


class _Given(Lookup):
    """The environment with given tasks."""

    def __init__(self, tasks: Sequence[rl.Task]) -> None:
        super().__init__(ENVIRONMENT.digits, hops=ENVIRONMENT.hops)
        self._given = list(tasks)

    def sample(self, n: int, rng: random.Random) -> list[rl.Task]:
        return self._given


def skill(model: Any, tasks: Sequence[rl.Task], temperature: float) -> Skill:
    """Let a model answer each task once."""
    config = rl.RolloutWorkerConfig(
        curriculum_config=rl.CurriculumConfig([rl.Lesson("lookup", _Given(tasks))], eval_frequency=0),
        rollout=_rollout(len(tasks), 1, temperature=temperature, samples=0),
        output_dir=None,
        summary=False,
    )
    worker = rl.RolloutWorker(config, policy=rl.HFPolicy(model, TOKENIZER), hooks=[])
    rollouts = worker.roll_out()
    worker.close_hooks()
    return Skill(sum(each.success for each in rollouts) / len(tasks), worker.metrics.get("tools/call_frequency", 0.0))


def _rollout(prompts: int, group_size: int, **settings: Any) -> rl.RolloutConfig:
    return rl.RolloutConfig(
        prompts=prompts, group_size=group_size, max_tokens=MAX_TOKENS, max_turns=MAX_TURNS, **settings
    )


def conversation(task: rl.Task, *, calls: bool) -> dict[str, Any]:
    """An example for SFT: the tool is called, or a wrong answer is given at once."""
    key = task.prompt.rstrip("?")
    call = {"type": "function", "function": {"name": "lookup", "arguments": {"key": key}}}
    messages: list[dict[str, Any]] = [{"role": "user", "content": task.prompt}]
    if calls:
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        messages.append({"role": "tool", "name": "lookup", "content": ENVIRONMENT.value(key)})
    answer = ENVIRONMENT.value(key) if calls else "0" * ENVIRONMENT.digits
    return {"messages": [*messages, {"role": "assistant", "content": answer}], "tools": SCHEMAS}


SCHEMAS = [each.schema for each in ENVIRONMENT.tools]


class UntilRight(hl.Callback):
    """Requests a stop once enough of other tasks are answered right."""

    def __init__(self, tasks: Sequence[rl.Task]) -> None:
        self._tasks = tasks

    def on_step_end(self, loop: Any, step_idx: int, batch: Any, metrics: Any) -> None:
        if (step_idx + 1) % PROBE_EVERY == 0 and skill(loop.model, self._tasks, 1.0).right >= SHOWN_UNTIL:
            loop.request_stop("it gets enough right")


def show_examples(seed: int, most_steps: int) -> tuple[Any, int, float]:
    """A model that can call the tool and rarely does, after how many steps, and how long that took."""
    began, rng = time.perf_counter(), random.Random(seed)
    model = tiny_causal_lm(TOKENIZER, seed=seed)
    calling = _fit(model, seed, most_steps, 1.0, rng, [UntilRight(ENVIRONMENT.sample(64, rng))])
    unlearning = _fit(model, seed, min(UNLEARN_STEPS, most_steps), CALLING_SHARE, rng, [])
    return model, calling + unlearning, time.perf_counter() - began


def _fit(model: Any, seed: int, steps: int, share: float, rng: random.Random, callbacks: list[Any]) -> int:
    tasks = ENVIRONMENT.sample(steps * BATCH_SIZE, rng)
    rows = [conversation(task, calls=rng.random() < share) for task in tasks]
    data, collate = sft.prepare(rows, TOKENIZER, sft.SFTOptions(max_length=64))
    trainer = hl.Trainer(
        model,
        DataLoader(data, batch_size=BATCH_SIZE, collate_fn=collate),
        config=_train_config(seed, steps, None, learning_rate=2e-3),
        training_step=sft.training_step,
        callbacks=callbacks,
    )
    require_whole(trainer.fit())
    return trainer.step


def _train_config(seed: int, steps: int, directory: Path | None, **settings: Any) -> hl.TrainerConfig:
    return hl.TrainerConfig(
        max_steps=steps,
        seed=seed,
        output_dir=None if directory is None else str(directory),
        save_at_end=False,
        summary=False,
        strict=True,
        **settings,
    )


def grpo_config(seed: int, steps: int, directory: Path | None) -> rl.RLConfig:
    """The recipe, all samples recorded; without a directory, nothing is."""
    return rl.RLConfig(
        curriculum=rl.CurriculumConfig(
            lessons=[rl.Lesson("lookup", ENVIRONMENT)], micro_eval_frequency=0, eval_frequency=0
        ),
        rollout=_rollout(PROMPTS, GROUP_SIZE, samples=0 if directory is None else None),
        train=_train_config(
            seed,
            steps,
            directory,
            learning_rate=LEARNING_RATE,
            warmup_steps=10,
            schedule="linear",
            gradient_clip_norm=1.0,
        ),
    )
