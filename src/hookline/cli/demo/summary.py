"""`Summary`: the results of the demo's experiment, from its result and from the record."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

import hookline.store
from hookline._engine.costs import Cost, Costs
from hookline._engine.errors import OptionError
from hookline.experiment.evaluation import bootstrap_interval
from hookline.experiment.results.result import ExperimentResult
from hookline.experiment.results.statistics import completed, value
from hookline.store.runs import Runs

REWARD = "reward/mean"
"""The reward that an arm optimizes."""
RIGHT = "rewards/correct/mean"
"""The share of correct answers, recorded in all arms, whether or not it is rewarded."""
POINTS = 16
"""The number of points of a curve."""


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
