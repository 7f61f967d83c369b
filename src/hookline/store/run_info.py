"""`RunInfo`: what is known about a run, as of when it was listed."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hookline.record.delivery import SinkState, sink_states
from hookline.record.records import finite_back
from hookline.store.catalogue import Place
from hookline.store.glance import Glance


@dataclass(frozen=True, slots=True)
class RunInfo:
    """A run: what was run, how far it is, how it ended, and what is wrong with its record.

    Attributes:
        id: ``<project>/<run>``, as in the column ``run`` of all tables.
        status: ``running``, ``stalled``, ``finished``, ``failed``, ``stopped`` or ``killed``.
        message: What it said at its end: an error, or why it stopped.
        started: Seconds since 1970, as all times.
        ended: When it ended, or was last heard of if it was killed; None while it runs.
        metrics: The latest values near the end of its journal.
        notes: What the run is about, as its user wrote it.
        summary: What its user said that it came to: ``run.summary``.
        problems: What is missing or damaged, in words.
        facts: All that ``run.json`` says.
    """

    id: str
    name: str
    project: str
    directory: Path
    status: str
    message: str = ""
    experiment: str | None = None
    group: str | None = None
    arm: str | None = None
    repeat: int | None = None
    stage: str | None = None
    seed: int | None = None
    started: float | None = None
    ended: float | None = None
    step: int = 0
    num_steps: int | None = None
    seconds_per_step: float | None = None
    eta_seconds: float | None = None
    last_seen: float | None = None
    host: str | None = None
    tags: tuple[str, ...] = ()
    notes: str = ""
    problems: tuple[str, ...] = ()
    config: Any = field(default=None, repr=False)
    summary: dict[str, Any] = field(default_factory=dict, repr=False)
    metrics: dict[str, Any] = field(default_factory=dict, repr=False)
    facts: dict[str, Any] = field(default_factory=dict, repr=False)

    def sinks(self) -> list[SinkState]:
        """How each of its sinks stands now, and how many bytes it lags behind."""
        return sink_states(self.directory)

    @property
    def is_over(self) -> bool:
        """Whether it records nothing more."""
        return self.status not in ("running", "stalled")


def run_info(place: Place, facts: dict[str, Any], glance: Glance, *, status: str, problems: list[str]) -> RunInfo:
    """What the files of a run say about it; facts of an unexpected kind count as unknown."""
    belongs = facts.get("experiment")
    own = belongs if isinstance(belongs, dict) else {}
    last_seen = glance.last_seen or None
    is_over = status not in ("running", "stalled")
    return RunInfo(
        id=place.id,
        name=_text(facts.get("name")) or place.directory.name,
        project=place.project,
        directory=place.directory,
        status=status,
        message=glance.message if glance.has_ended else "",
        experiment=_text(own.get("name")),
        group=_text(own.get("group")) or _text(facts.get("group")),
        arm=_text(own.get("arm")),
        repeat=_whole(own.get("repeat")),
        stage=_text(own.get("stage")),
        seed=_whole(own.get("seed")),
        started=_time(facts.get("started")),
        ended=(glance.status_time if glance.has_ended else last_seen) if is_over else None,
        step=glance.step,
        num_steps=glance.num_steps,
        seconds_per_step=glance.seconds_per_step,
        eta_seconds=None if is_over else glance.eta_seconds,
        last_seen=last_seen,
        host=_text(facts.get("host")),
        tags=_tags(facts.get("tags")),
        notes=_text(facts.get("notes")) or "",
        problems=tuple(problems),
        config=facts.get("config"),
        summary=_summary(facts.get("summary")),
        metrics=glance.latest,
        facts=facts,
    )


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _whole(value: Any) -> int | None:
    fits = isinstance(value, int) and abs(value) < 1 << 63
    return value if fits else None


def _time(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _summary(value: Any) -> dict[str, Any]:
    return {name: finite_back(item) for name, item in value.items()} if isinstance(value, dict) else {}


def _tags(value: Any) -> tuple[str, ...]:
    if isinstance(value, dict):
        return tuple(f"{name}={tag}" for name, tag in value.items())
    return tuple(map(str, value)) if isinstance(value, list) else ()
