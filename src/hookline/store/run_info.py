"""`RunInfo` describes a run as of when it was listed, and `find_runs` finds the runs below a root.

Runs are directories ``<root>/<project>/<run>/`` with a ``run.json``. Hidden directories and symbolic links are skipped,
so nothing outside the root is read.
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


class RunLocation(NamedTuple):
    """A run's directory and project."""

    project: str
    directory: Path

    @property
    def id(self) -> str:
        """``<project>/<directory name>``, unique below the root."""
        return f"{self.project}/{self.directory.name}"

    @property
    def journal(self) -> Path:
        """The folder with the journal files."""
        return self.directory / JOURNAL

    @property
    def facts(self) -> Path:
        """The run's ``run.json``."""
        return self.directory / METADATA


def find_runs(root: Path) -> Iterator[RunLocation]:
    """All runs below a root; one removed meanwhile is left out."""
    for project in _folders(root):
        for directory in _folders(project):
            if is_regular_file(directory / METADATA):
                yield RunLocation(project.name, directory)


def read_facts(path: Path) -> tuple[dict[str, Any], str]:
    """The content of ``run.json``, and an error text if it cannot be read."""
    try:
        facts = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return {}, f"{METADATA} cannot be read: {error}"
    return (clean(facts), "") if isinstance(facts, dict) else ({}, f"{METADATA} is not a JSON object")


def is_regular_file(path: Path) -> bool:
    """Whether the path is a regular file and not a link."""
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
    """A run: its configuration, progress, status, and problems with its record.

    Attributes:
        id: ``<project>/<run>``, as in the column ``run`` of all tables.
        status: ``running``, ``stalled``, ``finished``, ``failed``, ``stopped`` or ``killed``.
        message: The final message: an error, or why the run stopped.
        started: Seconds since 1970, like all times.
        ended: When it ended, or the time of its last record if it was killed; None while it runs.
        metrics: The latest values near the end of its journal.
        notes: The user's description of the run.
        summary: The user's results: ``run.summary``.
        problems: Missing or damaged parts of its record, as sentences.
        facts: The content of ``run.json``.
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
        """The current state of each sink, and how many bytes it lags behind."""
        return sink_states(self.directory)

    @property
    def is_over(self) -> bool:
        """Whether the run has ended and records nothing more."""
        return self.status not in ("running", "stalled")


def run_info(
    location: RunLocation, facts: dict[str, Any], summary: RunSummary, *, status: str, problems: list[str]
) -> RunInfo:
    """Describe a run from its facts and its summary; facts of an unexpected type count as unknown."""
    experiment = facts.get("experiment")
    own = experiment if isinstance(experiment, dict) else {}
    user_summary = facts.get("summary")
    last_seen = summary.last_seen or None
    is_over = status not in ("running", "stalled")
    return RunInfo(
        id=location.id,
        name=_text(facts.get("name")) or location.directory.name,
        project=location.project,
        directory=location.directory,
        status=status,
        message=summary.message if summary.has_ended else "",
        experiment=_text(own.get("name")),
        group=_text(own.get("group")) or _text(facts.get("group")),
        arm=_text(own.get("arm")),
        repeat=_integer(own.get("repeat")),
        stage=_text(own.get("stage")),
        seed=_integer(own.get("seed")),
        started=_time(facts.get("started")),
        ended=(summary.status_time if summary.has_ended else last_seen) if is_over else None,
        step=summary.step,
        num_steps=summary.num_steps,
        seconds_per_step=summary.seconds_per_step,
        eta_seconds=None if is_over else summary.eta_seconds,
        last_seen=last_seen,
        host=_text(facts.get("host")),
        tags=_tags(facts.get("tags")),
        notes=_text(facts.get("notes")) or "",
        problems=tuple(problems),
        config=facts.get("config"),
        summary={k: parse_nonfinite(v) for k, v in user_summary.items()} if isinstance(user_summary, dict) else {},
        metrics=summary.latest,
        facts=facts,
    )


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _integer(value: Any) -> int | None:
    fits = isinstance(value, int) and abs(value) < 1 << 63
    return value if fits else None


def _time(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _tags(value: Any) -> tuple[str, ...]:
    if isinstance(value, dict):
        return tuple(f"{name}={tag}" for name, tag in value.items())
    return tuple(map(str, value)) if isinstance(value, list) else ()
