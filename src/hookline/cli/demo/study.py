"""`demo_experiment`: SFT, then GRPO, on sums, with two arms that reward different answers.

Both arms first see the same examples, enough to write numbers and get some sums right. Then they learn from rewards:
``exact`` rewards the correct sum, ``close`` any answer near it, which is easier to get and teaches less. Nothing is
downloaded, and everything is recorded in the experiment's directory.
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
    """The size of the demo; by default about two minutes on two cores.

    Attributes:
        prompts: The number of sums in a step of GRPO, each answered eight times.
        held_out: The number of held-out sums in the benchmark.
        processes: How many runs at a time; one executes them in this process.
    """

    repeats: int = 2
    sft_steps: int = 300
    grpo_steps: int = 250
    prompts: int = 32
    held_out: int = 200
    processes: int = 2


STANDARD = Size()


class OneThread(hl.Callback):
    """Limits a run to one core: runs execute in parallel, and the model is too small for more."""

    def on_run_start(self, ctx: hl.LogContext) -> None:
        import torch

        torch.set_num_threads(1)


class NearMisses(hl.Callback):
    """The share of answers that are wrong in only one digit, recorded as ``near_misses/share``."""

    def on_rollout_end(self, loop: Any, step_idx: int, rollouts: Sequence[Rollout]) -> dict[str, float]:
        near = [_is_near_miss(each.completion.text, each.task.expected or "") for each in rollouts]
        return {"share": sum(near) / max(1, len(near))}


def _is_near_miss(answer: str, expected: str) -> bool:
    return len(answer) == len(expected) and sum(a != b for a, b in zip(answer, expected, strict=True)) == 1


BELOW = 50
"""The upper limit of the summands."""
CLOSE = 2
"""The largest error of a close answer."""
ANSWER_TOKENS = 4
"""Two digits, the end of the text, and a spare."""


class Sums(TaskSpace):
    """Sums of two numbers, ``17+25=``; a completion gets two rewards: for being correct and for being close."""

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
    """Held-out sums, tagged by whether there is a carry."""

    def tags(self, task: Task) -> Mapping[str, Any]:
        first, second = (int(number) for number in task.prompt.rstrip("=").split("+"))
        return {"carry": "yes" if first % 10 + second % 10 > 9 else "no"}


ARMS = {"exact": {"close": 0.0}, "close": {"correct": 0.0}}
"""The reward weights of each arm."""
EXAMPLES = "examples.jsonl"
EXAMPLE_COUNT = 2000


def demo_experiment(directory: Path, size: Size) -> hl.Experiment:
    """Make the experiment of a directory; creates the directory and its examples if necessary.

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
    """The latest experiment below a directory, if it has this size and is incomplete; or a new ``demo-<number>``.

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
    """The number of complete runs."""
    results = [experiment.store.result(planned.key) for planned in experiment.plan()]
    return sum(result is not None and result.status == "completed" for result in results)


def _is_unfinished(experiment: hl.Experiment) -> bool:
    try:
        experiment.store.check(experiment.name, experiment.describe())
    except ConfigError:  # it has another size
        return False
    return complete_runs(experiment) < len(experiment.plan())


def _numbers(root: Path) -> list[int]:
    try:
        names = [re.fullmatch(r"demo-(\d+)", path.name) for path in root.iterdir()]
    except OSError:  # no directory yet; writing to it reports other errors
        return []
    return [int(name[1]) for name in names if name]
