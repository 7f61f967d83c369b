"""`RunInfo`: what is known about a run, as of when it was listed.

Finds the runs below a root: ``<root>/<project>/<run>/`` with a ``run.json``.

Hidden directories and symbolic links are passed by: nothing outside the root is ever looked at.
"""

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from hookline._record.delivery import SinkState, sink_states
from hookline._record.reader import JOURNAL
from hookline._record.records import clean, parse_nonfinite
from hookline._record.run_directory import METADATA
from hookline.store.run_summary import RunSummary


class Place(NamedTuple):
    """Where a run lies. Its id is ``<project>/<name of its directory>``."""

    project: str
    directory: Path

    @property
    def id(self) -> str:
        """What no other run below the root has."""
        return f"{self.project}/{self.directory.name}"

    @property
    def journal(self) -> Path:
        """The folder with its journals."""
        return self.directory / JOURNAL

    @property
    def facts(self) -> Path:
        """The file that says what was run."""
        return self.directory / METADATA


def places(root: Path) -> Iterator[Place]:
    """All runs below a root; one that is removed meanwhile is left out."""
    for project in _folders(root):
        for directory in _folders(project):
            if is_plain_file(directory / METADATA):
                yield Place(project.name, directory)


def read_facts(path: Path) -> tuple[dict[str, Any], str]:
    """What ``run.json`` says, and what is wrong with it, if something is."""
    try:
        facts = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return {}, f"{METADATA} cannot be read: {error}"
    return (clean(facts), "") if isinstance(facts, dict) else ({}, f"{METADATA} holds no facts")


def is_plain_file(path: Path) -> bool:
    """Whether there is a file of that name that is no link."""
    return path.is_file() and not path.is_symlink()


def _folders(parent: Path) -> list[Path]:
    try:
        with os.scandir(parent) as entries:
            names = [entry.name for entry in entries if entry.name[0] != "." and entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return [parent / name for name in sorted(names)]


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


def run_info(place: Place, facts: dict[str, Any], glance: RunSummary, *, status: str, problems: list[str]) -> RunInfo:
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
    return {name: parse_nonfinite(item) for name, item in value.items()} if isinstance(value, dict) else {}


def _tags(value: Any) -> tuple[str, ...]:
    if isinstance(value, dict):
        return tuple(f"{name}={tag}" for name, tag in value.items())
    return tuple(map(str, value)) if isinstance(value, list) else ()
