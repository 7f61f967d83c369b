"""`demo_experiment`: SFT, then GRPO, on sums; two arms that differ in what an answer is rewarded for.

Both arms are shown the same examples first, as long as it takes to write numbers and to get some of them right. Then
they answer, and learn from the rewards: ``exact`` gets one for the right sum, ``close`` for whatever is near it, which
is easier to come by, and teaches less. Nothing is downloaded, and everything is recorded in the experiment's directory.

`Size`: how much the demo trains.

The demo's own callbacks: what anybody would write beside a training.

`Sums`: what the demo's model learns, ``17+25=`` with ``42``; and `SumsBenchmark`, sums it has never seen.
"""

import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hookline as hl
from hookline import rl
from hookline._engine.errors import ConfigError
from hookline.experiment.builtin_benchmarks import EnvironmentBenchmark
from hookline.loops.trainer_config import TrainerConfig
from hookline.loops.worker_config import DataOptions, ModelOptions, TinyModel, WorkerConfig
from hookline.rl.environments.base import CORRECT, TaskSpace
from hookline.rl.types import Rollout, Task


@dataclass(frozen=True, slots=True)
class Size:
    """How much is trained; as it is, it takes about two minutes on two cores.

    Attributes:
        prompts: How many sums are asked in a step of GRPO, each eight times.
        held_out: How many sums that were never trained on the benchmark asks.
        processes: How many runs are made at a time; one makes them in this process.
    """

    repeats: int = 2
    sft_steps: int = 300
    grpo_steps: int = 250
    prompts: int = 32
    held_out: int = 200
    processes: int = 2


STANDARD = Size()


class OneThread(hl.Callback):
    """Keeps a run to one core: there are as many runs at a time as cores, and the model is too small for more."""

    def on_run_start(self, ctx: hl.LogContext) -> None:
        import torch

        torch.set_num_threads(1)


class NearMisses(hl.Callback):
    """The share of answers that are wrong in one digit only; it stands in the record as ``near_misses/share``."""

    def on_rollout_end(self, loop: Any, step_idx: int, rollouts: Sequence[Rollout]) -> dict[str, float]:
        near = [_is_near_miss(each.completion.text, each.task.expected or "") for each in rollouts]
        return {"share": sum(near) / max(1, len(near))}


def _is_near_miss(answer: str, expected: str) -> bool:
    return len(answer) == len(expected) and sum(a != b for a, b in zip(answer, expected, strict=True)) == 1


BELOW = 50
"""The numbers that are added are below this."""
CLOSE = 2
"""How far off an answer may be to be close."""
ANSWER_TOKENS = 4
"""Two digits, the end of the text, and one to be wrong with."""


class Sums(TaskSpace):
    """Sums of two numbers; a completion gets two rewards: whether it is right, and whether it is close to that."""

    name = "sums"

    @property
    def size(self) -> int:
        return BELOW**2

    def task(self, index: int) -> Task:
        first, second = divmod(index, BELOW)
        return Task(f"{first}+{second}=", str(first + second))

    def score(self, task: Task, completion: str) -> dict[str, float]:
        answer, expected = completion.strip(), task.expected or ""
        is_number = answer.isascii() and answer.isdigit()
        is_close = is_number and abs(int(answer) - int(expected)) <= CLOSE
        return {CORRECT: float(answer == expected), "close": float(is_close)}


class SumsBenchmark(EnvironmentBenchmark):
    """Sums that are held out, broken down by whether there is something to carry."""

    def tags(self, task: Task) -> Mapping[str, Any]:
        first, second = (int(number) for number in task.prompt.rstrip("=").split("+"))
        return {"carry": "yes" if first % 10 + second % 10 > 9 else "no"}


ARMS = {"exact": {"close": 0.0}, "close": {"correct": 0.0}}
"""The rewards that do not count in each arm."""
EXAMPLES = "examples.jsonl"
EXAMPLE_COUNT = 2000


def demo_experiment(directory: Path, size: Size) -> hl.Experiment:
    """The experiment of a directory, which is made and gets the examples, unless it has them.

    Raises:
        ConfigError: The directory cannot be written.
    """
    sft = _sft(_examples(directory), size)
    arms = [hl.Arm(name, sft, stages={"grpo": _grpo(weights, size)}) for name, weights in ARMS.items()]
    return hl.Experiment(
        directory.name,
        arms,
        stages=["sft", "grpo"],
        repeats=size.repeats,
        benchmarks=[SumsBenchmark(Sums(), size.held_out, every=50, max_tokens=ANSWER_TOKENS)],
        callbacks=[OneThread, NearMisses, "gradient_monitor", "learning_rate_monitor", "throughput_monitor"],
        executor={"local": {"processes": size.processes}} if size.processes > 1 else "local",
        output_dir=directory,
    )


def _sft(examples: Path, size: Size) -> WorkerConfig:
    return WorkerConfig(
        model=ModelOptions(tiny=TinyModel()),
        data=DataOptions(train=str(examples)),
        train=TrainerConfig(max_steps=size.sft_steps, batch_size=64, learning_rate=2e-3, device="cpu"),
        save_model=False,
    )


def _grpo(weights: dict[str, float], size: Size) -> rl.RLConfig:
    return rl.RLConfig(
        model=ModelOptions(tiny=TinyModel()),
        curriculum=rl.CurriculumConfig(
            lessons=[rl.Lesson("sums", Sums())], micro_eval_frequency=0, eval_frequency=100, eval_n_examples=50
        ),
        rollout=rl.RolloutConfig(prompts=size.prompts, group_size=8, max_tokens=ANSWER_TOKENS, reward_weights=weights),
        train=TrainerConfig(
            max_steps=size.grpo_steps,
            learning_rate=7e-4,
            warmup_steps=10,
            schedule="linear",
            gradient_clip_norm=1.0,
            device="cpu",
        ),
    )


def _examples(directory: Path) -> Path:
    path = directory.resolve() / EXAMPLES
    tasks = Sums().sample(EXAMPLE_COUNT, random.Random(0))  # noqa: S311 - sampling, not secrets
    lines = [json.dumps({"prompt": task.prompt, "completion": task.expected}) for task in tasks]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{directory} cannot be written: {error.strerror}. Give another --root.") from error
    return path


def next_experiment(root: Path, size: Size) -> hl.Experiment:
    """The latest one below a directory, where it is of this size and not complete; else a new one, ``demo-<number>``.

    Raises:
        ConfigError: The directory cannot be written.
    """
    latest = max(_numbers(root), default=0)
    if latest:
        experiment = demo_experiment(root / f"demo-{latest}", size)
        if _is_unfinished(experiment):
            return experiment
    return demo_experiment(root / f"demo-{latest + 1}", size)


def complete_runs(experiment: hl.Experiment) -> int:
    """How many of its runs are complete already."""
    results = [experiment.store.result(planned.key) for planned in experiment.plan()]
    return sum(result is not None and result.status == "completed" for result in results)


def _is_unfinished(experiment: hl.Experiment) -> bool:
    try:
        experiment.store.check(experiment.name, experiment.describe())
    except ConfigError:  # it is of another size
        return False
    return complete_runs(experiment) < len(experiment.plan())


def _numbers(root: Path) -> list[int]:
    try:
        names = [re.fullmatch(r"demo-(\d+)", path.name) for path in root.iterdir()]
    except OSError:  # there is none yet, or it is not one: the error comes with the attempt to write
        return []
    return [int(name[1]) for name in names if name]
