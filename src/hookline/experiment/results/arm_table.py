"""The table of an experiment: what each arm reached."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from hookline.core.state import ArmResult, RunResult
from hookline.experiment.results.arm_runs import last_stage, stages, values
from hookline.experiment.results.spread import spread


@dataclass(frozen=True, slots=True)
class ArmRow:
    """What an arm reached, in a stage where there are stages.

    Attributes:
        stage: The stage that the numbers are about; None where the experiment has none.
        metric: What was measured; None where no run of the experiment has a metric.
        mean: Over the repeats that completed; None where none did.
        std: The standard deviation of the sample; None for fewer than two repeats.
        n: How many repeats the mean is of.
        best: The best of the repeats, and the worst.
        runs: How many repeats there are.
        failed: How many runs failed, in any stage of it where the row is about the whole arm.
        seconds: How long the runs took, all together.
    """

    arm: str
    stage: str | None
    metric: str | None
    mean: float | None
    std: float | None
    n: int
    best: float | None
    worst: float | None
    runs: int
    failed: int
    seconds: float


def table(arms: Sequence[ArmResult], metric: str | None, mode: Literal["min", "max"]) -> list[ArmRow]:
    """A row for each arm, in the order given; of the last stage where there are stages."""
    stage = last_stage(arms)
    return [_row(arm, arm.runs, metric, mode, stage) for arm in arms]


def stage_table(arms: Sequence[ArmResult], metric: str | None, mode: Literal["min", "max"]) -> list[ArmRow]:
    """A row for each arm and stage; without stages, one for each arm."""
    every: Sequence[str | None] = stages(arms) or [None]
    return [
        _row(arm, [run for run in arm.runs if run.stage == stage], metric, mode, stage)
        for arm in arms
        for stage in every
    ]


def ranked(rows: Iterable[ArmRow], mode: Literal["min", "max"]) -> list[ArmRow]:
    """The rows with the best mean first; those without one, or with one that is no number, last."""
    return sorted(rows, key=lambda row: _rank(row.mean, mode))


def best_row(rows: Iterable[ArmRow], mode: Literal["min", "max"]) -> ArmRow | None:
    """The row with the best mean; None where no row has one."""
    first = min(rows, key=lambda row: _rank(row.mean, mode), default=None)
    return None if first is None or first.mean is None or math.isnan(first.mean) else first


def _rank(value: float | None, mode: Literal["min", "max"]) -> tuple[int, float]:
    if value is None or math.isnan(value):
        return (2 if value is None else 1), 0.0
    return 0, value if mode == "min" else -value


def _row(
    arm: ArmResult, runs: Sequence[RunResult], metric: str | None, mode: Literal["min", "max"], stage: str | None
) -> ArmRow:
    found = values(arm, metric, stage)
    over = spread(found)
    ordered = sorted(found, key=lambda value: _rank(value, mode))
    return ArmRow(
        arm=arm.name,
        stage=stage,
        metric=metric,
        mean=over.mean,
        std=over.std,
        n=over.n,
        best=ordered[0] if ordered else None,
        worst=ordered[-1] if ordered else None,
        runs=len({run.repeat for run in runs}),
        failed=sum(run.status == "failed" for run in runs),
        seconds=math.fsum(run.seconds for run in runs),
    )
