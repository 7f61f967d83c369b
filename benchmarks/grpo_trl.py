"""TRL's `GRPOTrainer` with the model, the prompts and the settings of the GRPO benchmark, timed by its parts.

Both get the same prompts in the same order, and the same number of steps with the same loss, learning rate and batch.
They draw their completions from different generators. Times are those of this process on the CPU, all threads
together, since other programs hardly change them, and by the clock on the wall.
"""

import copy
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from grpo_recipe import ENVIRONMENT, GROUP_SIZE, LEARNING_RATE, MAX_TOKENS, PROMPTS, TOKENIZER, WARMUP_STEPS

import hookline as hl
from hookline import rl
from hookline._record.reader import read
from hookline._record.records import Metrics

PARTS = ("generate", "score", "learn")
LAST_SHARE = 0.1
"""The share of the steps, the last ones, whose mean reward is compared."""


@dataclass(slots=True)
class Side:
    """What one of both trainings did.

    Attributes:
        reward: The mean reward over the last steps.
        cpu_milliseconds: The time of a step on the CPU.
        wall_milliseconds: The time of a step by the clock.
        parts: What of the time by the clock its parts took.
    """

    reward: float
    cpu_milliseconds: float
    wall_milliseconds: float
    parts: dict[str, float] = field(default_factory=dict)


class SameTasks:
    """Gives the tasks of a list one after the other, and holds out what the environment itself holds out."""

    name = "sorting"

    def __init__(self, tasks: Sequence[rl.Task]) -> None:
        self._tasks = iter(tasks)
        self.score, self.held_out = ENVIRONMENT.score, ENVIRONMENT.held_out

    def sample(self, n: int, rng: random.Random) -> list[rl.Task]:
        """Return the next tasks."""
        return [next(self._tasks) for _ in range(n)]


def tasks_of(seed: int, steps: int) -> list[rl.Task]:
    """The tasks of a training."""
    return ENVIRONMENT.sample(steps * PROMPTS, random.Random(seed))


def train_with_trl(start: Any, seed: int, tasks: Sequence[rl.Task], steps: int) -> tuple[Any, Side]:
    """Train a copy of a model with TRL; returns it and what the training took."""
    from datasets import Dataset  # type: ignore[import-untyped]
    from transformers import TrainerCallback
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    rewards: list[float] = []
    steps_began: list[tuple[float, float]] = []
    seconds = dict.fromkeys(PARTS, 0.0)

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*args, **options)
            finally:
                seconds[name] += time.perf_counter() - began

        return call

    class Watch(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, args: Any, state: Any, control: Any, **options: Any) -> None:
            steps_began.append((time.process_time(), time.perf_counter()))

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **options: Any) -> None:
            if "reward" in (logs or {}):
                rewards.append(logs["reward"])

    def exact(prompts: Any, completions: Any, expected: Any, **columns: Any) -> list[float]:
        return [float(given == right) for given, right in zip(completions, expected, strict=True)]

    with tempfile.TemporaryDirectory() as directory:
        args = GRPOConfig(
            directory,
            seed=seed,
            max_steps=steps,
            per_device_train_batch_size=PROMPTS * GROUP_SIZE,
            num_generations=GROUP_SIZE,
            max_completion_length=MAX_TOKENS,
            learning_rate=LEARNING_RATE,
            lr_scheduler_type="linear",
            warmup_steps=WARMUP_STEPS,
            max_grad_norm=1.0,
            shuffle_dataset=False,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        data = Dataset.from_list([{"prompt": task.prompt, "expected": task.expected} for task in tasks])
        trainer = GRPOTrainer(
            copy.deepcopy(start), exact, args=args, train_dataset=data, processing_class=TOKENIZER, callbacks=[Watch()]
        )
        for name, method in {"generate": "_generate", "score": "_calculate_rewards"}.items():
            setattr(trainer, method, timed(name, getattr(trainer, method)))
        trainer.train()
        steps_began.append((time.process_time(), time.perf_counter()))
    cpu, wall = (1e3 * (steps_began[-1][clock] - steps_began[0][clock]) / steps for clock in (0, 1))
    parts = {name: 1e3 * own / steps for name, own in seconds.items()}
    parts["learn"] = wall - sum(parts.values())
    return trainer.model, Side(_last(rewards), cpu, wall, parts)


class Watch(hl.Callback):
    """Takes the time of all steps of a training of ours."""

    def __init__(self) -> None:
        self._began: tuple[float, float] | None = None
        self.taken = (0.0, 0.0)

    def on_rollout_start(self, loop: Any, step_idx: int, lesson_id: Any) -> None:
        if self._began is None:
            self._began = time.process_time(), time.perf_counter()

    def on_train_end(self, loop: Any, artifacts: Any) -> None:
        assert self._began is not None
        self.taken = time.process_time() - self._began[0], time.perf_counter() - self._began[1]


def side_of(done: Any, watch: Watch) -> Side:
    """What a training of ours did, from its record."""
    rows = [each.values for each in read(done.output_dir) if isinstance(each, Metrics) and each.axis == "train"]
    rows = [row for row in rows if "loss" in row]
    cpu, wall = (1e3 * taken / done.step for taken in watch.taken)
    parts = {name: 1e3 * fmean(row[f"seconds/{name}"] for row in rows) for name in (*PARTS, "weights")}
    return Side(_last([row["reward/mean"] for row in rows]), cpu, wall, parts)


def _last(rewards: Sequence[float]) -> float:
    return fmean(rewards[-max(1, round(LAST_SHARE * len(rewards))) :])
