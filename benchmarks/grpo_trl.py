"""TRL's `GRPOTrainer` with the model, the prompts and the settings of the GRPO benchmark, and how both compare.

Both get the same prompts in the same order, and the same number of steps with the same loss, batch, optimizer and
learning rate. TRL gets the schedule of ours, because the warm-up of transformers begins with a step at a rate of 0.
They draw their completions from different generators. No prompt comes twice in a step: ours are one group then, in
TRL they are two. Times are those of this process on the CPU, all threads together, since other programs hardly change
them, and by the clock on the wall.
"""

import copy
import math
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

from grpo_pair import CheckError
from grpo_recipe import ENVIRONMENT, GROUP_SIZE, MAX_TOKENS, PROMPTS, TOKENIZER, grpo_config
from measure import require_whole

import hookline as hl
from hookline import rl
from hookline._record.reader import read
from hookline._record.records import Metrics
from hookline.loops.trainer_setup import make_scheduler

PARTS = ("generate", "score", "learn")
LAST_SHARE = 0.1
"""The share of the steps, the last ones, whose mean reward is compared."""
TOLERANCE = 1e-5
"""The largest difference of losses and weights where both learn from the same completions: that of rounding."""
QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
"""Of Student's t for a confidence of 95%, by the degrees of freedom from 1 on."""


@dataclass(slots=True)
class Side:
    """What one of both trainings did.

    Attributes:
        reward: The mean reward over the last steps.
        reward_of_all: The mean reward over all steps.
        cpu_milliseconds: The time of a step on the CPU.
        wall_milliseconds: The time of a step by the clock.
        parts: What of the time by the clock its parts took.
    """

    reward: float
    reward_of_all: float
    cpu_milliseconds: float
    wall_milliseconds: float
    parts: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Difference:
    """The mean of paired differences of rewards, and its confidence interval of 95%.

    Attributes:
        low: From here; a single pair says nothing, so its interval has all differences that there can be.
        high: To here.
    """

    mean: float
    low: float
    high: float

    def is_equal_or_better(self, tolerated: float) -> bool:
        """Whether nothing shows that ours is lower, and the pairs would show it if it were lower by ``tolerated``."""
        return self.high >= 0 and self.low > -tolerated


def difference(own: Sequence[float], other: Sequence[float]) -> Difference:
    """Compare rewards of pairs."""
    pairs = [mine - its for mine, its in zip(own, other, strict=True)]
    mean, margin = fmean(pairs), math.inf
    if len(pairs) > 1:
        margin = QUANTILES[min(len(pairs) - 1, len(QUANTILES)) - 1] * stdev(pairs) / math.sqrt(len(pairs))
    return Difference(mean, max(-1.0, mean - margin), min(1.0, mean + margin))


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
    """The tasks of a training, of which no step has one twice."""
    rng = random.Random(seed)
    tasks: list[rl.Task] = []
    for _ in range(steps):
        drawn: dict[str, rl.Task] = {}
        while len(drawn) < PROMPTS:
            drawn |= {task.id: task for task in ENVIRONMENT.sample(PROMPTS - len(drawn), rng)}
        tasks += drawn.values()
    return tasks


def train_with_trl(start: Any, config: rl.RLConfig, tasks: Sequence[rl.Task]) -> tuple[Any, Side]:
    """Train a copy of a model with TRL; returns it and what the training took."""
    from transformers import TrainerCallback

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

    with tempfile.TemporaryDirectory() as directory:
        trainer = _trl_trainer(start, config, tasks, directory, callbacks=[Watch()])
        for name, method in {"generate": "_generate", "score": "_calculate_rewards"}.items():
            setattr(trainer, method, timed(name, getattr(trainer, method)))
        trainer.train()
        steps_began.append((time.process_time(), time.perf_counter()))
    steps = len(rewards)
    cpu, wall = (1e3 * (steps_began[-1][clock] - steps_began[0][clock]) / steps for clock in (0, 1))
    parts = {name: 1e3 * own / steps for name, own in seconds.items()}
    parts["learn"] = wall - sum(parts.values())
    return trainer.model, Side(_last(rewards), fmean(rewards), cpu, wall, parts)


def _trl_trainer(start: Any, config: rl.RLConfig, tasks: Sequence[rl.Task], directory: str, **options: Any) -> Any:
    """TRL's trainer of a copy of a model, with the settings of ours."""
    from datasets import Dataset  # type: ignore[import-untyped]
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    def exact(prompts: Any, completions: Any, expected: Any, **columns: Any) -> list[float]:
        return [float(given == right) for given, right in zip(completions, expected, strict=True)]

    train = config.train
    assert train.learning_rate is not None
    args = GRPOConfig(
        directory,
        seed=train.seed,
        max_steps=train.max_steps,
        per_device_train_batch_size=PROMPTS * GROUP_SIZE,
        num_generations=GROUP_SIZE,
        max_completion_length=MAX_TOKENS,
        learning_rate=train.learning_rate,
        max_grad_norm=train.gradient_clip_norm,
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
    model = copy.deepcopy(start)
    made = GRPOTrainer(model, exact, args=args, train_dataset=data, processing_class=TOKENIZER, **options)
    made.lr_scheduler = make_scheduler(None, made.create_optimizer(), train, train.max_steps)
    return made


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


def train_with_ours(start: Any, config: rl.RLConfig) -> tuple[Any, Side]:
    """Train a copy of a model here; returns it and what the training took, from its record."""
    model, watch = copy.deepcopy(start), Watch()
    done = rl.train(config, model=model, tokenizer=TOKENIZER, hooks=[], callbacks=[watch])
    require_whole(done)
    assert done.output_dir is not None
    rows = [each.values for each in read(done.output_dir) if isinstance(each, Metrics) and each.axis == "train"]
    rows = [row for row in rows if "loss" in row]
    cpu, wall = (1e3 * taken / done.step for taken in watch.taken)
    parts = {name: 1e3 * fmean(row[f"seconds/{name}"] for row in rows) for name in (*PARTS, "weights")}
    rewards = [row["reward/mean"] for row in rows]
    return model, Side(_last(rewards), fmean(rewards), cpu, wall, parts)


def _last(rewards: Sequence[float]) -> float:
    return fmean(rewards[-max(1, round(LAST_SHARE * len(rewards))) :])


class Kept(hl.Callback):
    """Keeps the completions of each step."""

    def __init__(self) -> None:
        self.steps: list[Sequence[rl.Rollout]] = []
        self.facts: list[tuple[float, ...]] = []

    def on_rollout_end(self, loop: Any, step_idx: int, rollouts: Any) -> None:
        self.steps.append(list(rollouts))

    def on_step_end(self, loop: Any, step_idx: int, batch: Any, metrics: Any) -> None:
        names = ("reward/mean", "learning_rate", "loss", "grad_norm")
        self.facts.append(tuple(float(metrics[name]) for name in names))


def check_equal(start: Any, seed: int, steps: int) -> float:
    """See that TRL learns the same from the completions of ours; returns the largest difference of a weight.

    Raises:
        CheckError: A reward, learning rate, loss, norm of a gradient or weight differs by more than rounding.
    """
    tasks, kept, model = tasks_of(seed, steps), Kept(), copy.deepcopy(start)
    config = grpo_config(seed, steps, None, SameTasks(tasks))
    require_whole(rl.train(config, model=model, tokenizer=TOKENIZER, hooks=[], callbacks=[kept]))
    given = iter(kept.steps)

    def completions(prompts: Any, trainer: Any) -> dict[str, Any]:
        made = [each.completion for each in next(given)]
        return {
            "prompt_ids": [list(each.prompt_ids) for each in made],
            "completion_ids": [list(each.token_ids) for each in made],
            "logprobs": [list(each.logprobs) for each in made],
        }

    with tempfile.TemporaryDirectory() as directory:
        trainer = _trl_trainer(start, config, tasks, directory, rollout_func=completions)
        trainer.train()
    names = ("reward", "learning_rate", "loss", "grad_norm")
    facts = [tuple(row[name] for name in names) for row in trainer.state.log_history if "reward" in row]
    for step, (own, its) in enumerate(zip(kept.facts, facts, strict=True), 1):
        for name, one, other in zip(names, own, its, strict=True):
            if not math.isclose(one, other, rel_tol=1e-3 if name == "grad_norm" else 0.0, abs_tol=TOLERANCE):
                raise CheckError(f"With the same completions, {name} of step {step} is {one} here and {other} in TRL.")
    pairs = zip(model.parameters(), trainer.model.parameters(), strict=True)
    found = max(float((own - its).abs().max()) for own, its in pairs)
    if not found <= TOLERANCE:
        raise CheckError(f"With the same completions, a weight differs by {found} from TRL's after {steps} steps.")
    return found
