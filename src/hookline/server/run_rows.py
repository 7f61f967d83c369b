"""`RunRow`: what the page's table shows of a run, and `RunDetails`: everything else that is known about it."""

from typing import Any

import msgspec

from hookline.record.records import clean
from hookline.store import RunInfo
from hookline.store.columns import number as as_float

MOST_METRICS = 6
_UNINTERESTING = ("hooks/", "system/", "memory/", "throughput/")
_FIRST = ("val/loss", "loss", "reward", "accuracy", "val/accuracy")

Number = float | str | None
"""JSON has no NaN: numbers that are not finite are the texts ``NaN``, ``Infinity`` and ``-Infinity``."""


class RunRow(msgspec.Struct, frozen=True):
    """A run in the table of runs; times are seconds since 1970."""

    id: str
    name: str
    project: str
    status: str
    message: str
    experiment: str | None
    group: str | None
    arm: str | None
    repeat: int | None
    stage: str | None
    seed: int | None
    started: float | None
    ended: float | None
    step: int
    num_steps: int | None
    seconds_per_step: Number
    eta_seconds: Number
    last_seen: float | None
    tags: list[str]
    problems: list[str]
    metrics: dict[str, Number]


class RunDetails(msgspec.Struct, frozen=True):
    """A run with its latest metrics, its configuration and the facts about where it ran."""

    run: RunRow
    metrics: dict[str, Any]
    config: Any
    facts: dict[str, Any]


def run_row(info: RunInfo) -> RunRow:
    """What is shown of a run."""
    return RunRow(
        id=info.id,
        name=info.name,
        project=info.project,
        status=info.status,
        message=info.message,
        experiment=info.experiment,
        group=info.group,
        arm=info.arm,
        repeat=info.repeat,
        stage=info.stage,
        seed=info.seed,
        started=info.started,
        ended=info.ended,
        step=info.step,
        num_steps=info.num_steps,
        seconds_per_step=number(info.seconds_per_step),
        eta_seconds=number(info.eta_seconds),
        last_seen=info.last_seen,
        tags=list(info.tags),
        problems=list(info.problems),
        metrics=_headline(info.metrics),
    )


def run_details(info: RunInfo) -> RunDetails:
    """Everything about a run."""
    return RunDetails(run_row(info), clean(info.metrics), clean(info.config), clean(info.facts))


def number(value: Any) -> Number:
    """A number as JSON can hold it; None where it is none."""
    if not isinstance(value, int | float):
        return None
    held: float | str = clean(as_float(value))
    return held


def _headline(metrics: dict[str, Any]) -> dict[str, Number]:
    """The few metrics that tell most about a run."""
    shown = [
        name
        for name, value in metrics.items()
        if isinstance(value, int | float) and not name.startswith(_UNINTERESTING)
    ]
    ordered = sorted(shown, key=lambda name: name not in _FIRST)  # stable: otherwise as they were recorded
    return {name: number(metrics[name]) for name in ordered[:MOST_METRICS]}
