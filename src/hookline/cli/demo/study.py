"""`demo_experiment`: SFT, then GRPO, on sums, with two arms that reward different answers; `Summary`: its results.

Both arms first see the same examples, enough to write numbers and get some sums right. Then they learn from rewards:
``exact`` rewards the correct sum, ``close`` any answer near it, which is easier to get and teaches less. Nothing is
downloaded, and everything is recorded in the experiment's directory.
"""

import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import hookline as hl
import hookline.store
from hookline import rl
from hookline._engine.costs import Cost, Costs
from hookline._engine.errors import ConfigError, OptionError
from hookline.experiment.builtin_benchmarks import EnvironmentBenchmark
from hookline.experiment.evaluation import bootstrap_interval
from hookline.experiment.results.result import ExperimentResult
from hookline.experiment.results.statistics import completed, value
from hookline.loops.trainer_config import TrainerConfig
from hookline.loops.worker_config import DataOptions, ModelOptions, TinyModel, WorkerConfig
from hookline.rl.environments.base import CORRECT, TaskSpace
from hookline.rl.types import Rollout, Task
from hookline.store.runs import Runs

BELOW = 50
"""The upper limit of the summands."""
CLOSE = 2
"""The largest error of a close answer."""
ANSWER_TOKENS = 4
"""Two digits, the end of the text, and a spare."""
ARMS = {"exact": {"close": 0.0}, "close": {"correct": 0.0}}
"""The reward weights of each arm."""
EXAMPLES = "examples.jsonl"
EXAMPLE_COUNT = 2000
REWARD = "reward/mean"
"""The reward that an arm optimizes."""
RIGHT = "rewards/correct/mean"
"""The share of correct answers, recorded in all arms, whether or not it is rewarded."""
POINTS = 16
"""The number of points of a curve."""


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


def demo_experiment(directory: Path, size: Size) -> hl.Experiment:
    """Make the experiment of a directory; creates the directory and its examples if necessary.

    Raises:
        ConfigError: The directory cannot be written.
    """
    sft = WorkerConfig(
        model=ModelOptions(tiny=TinyModel()),
        data=DataOptions(train=str(_examples(directory))),
        train=TrainerConfig(max_steps=size.sft_steps, batch_size=64, learning_rate=2e-3, device="cpu"),
        save_model=False,
    )
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


@dataclass(frozen=True, slots=True)
class ArmSummary:
    """An arm: the benchmark after each stage, and the reward and accuracy over the steps of GRPO."""

    arm: str
    after_stages: Mapping[str, float]
    reward: Sequence[float]
    right: Sequence[float]


@dataclass(frozen=True, slots=True)
class Gap:
    """The difference between the two best arms.

    Attributes:
        by_repeat: In each repeat: both arms use the same seed, and so have the same weights after SFT.
        difference: The mean over repeats and tasks.
        interval: The 95% bootstrap interval over tasks: how far other sums might move it. The table of arms shows
            how far other seeds might.
    """

    better: str
    worse: str
    by_repeat: Sequence[float]
    difference: float
    interval: tuple[float, float]
    tasks: int


@dataclass(frozen=True, slots=True)
class Summary:
    """The results of a demo experiment."""

    result: ExperimentResult
    arms: Sequence[ArmSummary]
    gap: Gap | None
    costs: Costs

    @classmethod
    def of(cls, result: ExperimentResult) -> "Summary":
        """Summarize a result, reading its record.

        Raises:
            OptionError: The experiment has no directory.
        """
        directory = result.output_dir
        if directory is None:
            raise OptionError("result: its experiment has no directory, so there is no record of it.")
        found = hookline.store.runs(directory.parent).filter(project=directory.name)
        return cls(result, _arms(result), _gap(result, found), _costs(found))

    @property
    def hook_share(self) -> float:
        """The share of the runs' time spent in hooks."""
        seconds = sum(run.seconds for run in self.result.runs)
        return sum(cost.total_seconds for cost in self.costs) / seconds if seconds else 0.0

    def to_dict(self) -> dict[str, Any]:
        """The summary as JSON-compatible values."""
        return {
            "status": self.result.status,
            **self.result.to_dict(),
            "curves": [asdict(arm) for arm in self.arms],
            "gap": None if self.gap is None else asdict(self.gap),
            "hooks": [asdict(cost) for cost in self.costs],
            "hook_share": self.hook_share,
        }


def _arms(result: ExperimentResult) -> list[ArmSummary]:
    rows = result.table(by_stage=True)
    rewards, right = _curves(result, REWARD), _curves(result, RIGHT)
    after = {
        arm.name: {str(row.stage): row.mean for row in rows if row.arm == arm.name and row.mean is not None}
        for arm in result.arms
    }
    return [ArmSummary(name, stages, rewards.get(name, []), right.get(name, [])) for name, stages in after.items()]


def _curves(result: ExperimentResult, metric: str) -> dict[str, list[float]]:
    return {curve.arm: _means(curve.mean) for curve in result.curves(metric)}


def _means(values: Sequence[float]) -> list[float]:
    """The means of `POINTS` segments."""
    size = max(1, -(-len(values) // POINTS))
    return [fmean(values[start : start + size]) for start in range(0, len(values), size)]


def _gap(result: ExperimentResult, found: Runs) -> Gap | None:
    """The difference of the best two arms, task by task, with the repeats of each averaged first."""
    best = result.best_arms(2)
    if len(best) < 2:
        return None
    scores = {name: _task_scores(name, found) for name in best}
    shared = sorted(scores[best[0]].keys() & scores[best[1]].keys())
    differences = [scores[best[0]][task] - scores[best[1]][task] for task in shared]
    if not shared:
        return None
    by_repeat = _by_repeat(result, *best)
    return Gap(best[0], best[1], by_repeat, fmean(differences), bootstrap_interval(differences), len(shared))


def _by_repeat(result: ExperimentResult, better: str, worse: str) -> list[float]:
    """The difference in each repeat that both arms completed."""
    metric, last = result.main_metric or "", result.stages()[-1]
    scores = {arm.name: {run.repeat: value(run, metric) or 0.0 for run in completed(arm, last)} for arm in result.arms}
    shared = sorted(scores[better].keys() & scores[worse].keys())
    return [scores[better][repeat] - scores[worse][repeat] for repeat in shared]


def _task_scores(arm: str, found: Runs) -> dict[str, float]:
    """The mean score of each task of the benchmark after the last stage."""
    rows = found.filter(arm=arm, stage="grpo", status="finished").sql(
        "SELECT prompt, avg(reward) AS score FROM samples WHERE axis = 'final' GROUP BY prompt"
    )
    return {row["prompt"]: row["score"] for row in rows}


def _costs(found: Runs) -> Costs:
    """The total costs of each hook over all runs."""
    of_hook: dict[str, list[Any]] = {}
    for row in found.hooks():
        if row["calls"]:
            of_hook.setdefault(row["name"], []).append(row)
    return Costs(_cost(name, rows) for name, rows in of_hook.items())


def _cost(name: str, rows: Sequence[Mapping[str, Any]]) -> Cost:
    calls, total = sum(row["calls"] for row in rows), sum(row["total_ms"] for row in rows) / 1000
    return Cost(
        name=name,
        calls=calls,
        total_seconds=total,
        mean_seconds=total / calls,
        p95_seconds=max(row["p95_ms"] for row in rows) / 1000,
        max_seconds=max(row["max_ms"] for row in rows) / 1000,
        errors=sum(row["errors"] for row in rows),
    )
