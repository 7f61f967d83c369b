"""`RunInfo` describes a run as of when it was listed, and `find_runs` finds the runs below a root.

Runs are directories ``<root>/<project>/<run>/`` with a ``run.json``. Hidden directories and symbolic links are skipped,
so nothing outside the root is read. `RunState` is what the index keeps about a run: its listing data, and how much of
its journals is in the tables (`ReadState`).
"""

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from hookline._engine import notebook
from hookline._engine.errors import ConfigError
from hookline._record.blobs import read_blob
from hookline._record.delivery import SinkState, sink_states
from hookline._record.reader import JOURNAL
from hookline._record.records import Event, clean, parse_nonfinite
from hookline._record.run_directory import METADATA
from hookline._record.terminal import plural
from hookline.sinks.run_progress import clamped_step
from hookline.store.columns import Chunk
from hookline.store.edits import EDITS_FILE, NOT_EDITED, Edits, tags_of
from hookline.store.journal_files import FileState, Stamp, directory_stamp
from hookline.store.run_summary import RunSummary

if TYPE_CHECKING:
    from hookline.store.media import Comparison, MediaItem
    from hookline.store.query import Names, Result, Steps
    from hookline.store.series import Series

CLOCK_SECONDS = 10.0
"""How far a record's time may go back, because device values are written a little later than others."""
MAX_CLOCK_BACK_SECONDS = 1e15
"""A larger step back means that one of the values is not a time."""


class RunLocation(NamedTuple):
    """A run's directory and project."""

    project: str
    directory: Path

    @property
    def id(self) -> str:
        """``<project>/<directory name>``, unique below the root."""
        return f"{self.project}/{self.directory.name}"

    @property
    def edits_stamp(self) -> Stamp | None:
        """The stamp of its edits."""
        return Stamp.of(f"{self.directory}/{EDITS_FILE}")

    @property
    def journal_stamp(self) -> tuple[int, int] | None:
        """Identifies its set of journal files; see `directory_stamp`."""
        return directory_stamp(f"{self.directory}/{JOURNAL}")

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
    return (location for location, _ in find_stamped_runs(root))


def find_stamped_runs(root: Path) -> Iterator[tuple[RunLocation, Stamp]]:
    """All runs below a root, each with the stamp of its ``run.json``."""
    for project in _folders(root):
        for directory in _folders(project):
            # Texts, because making a path takes longer than looking for the file.
            stamp = Stamp.of(f"{directory}/{METADATA}")
            if stamp is not None:
                yield RunLocation(project.name, directory), stamp


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


_SHOWN_METRICS, _CHART_POINTS = 6, 120
"""How many metrics of a run a notebook shows, and how many points of each."""


def metric_text(value: Any) -> str:
    """A metric's value as HTML."""
    return notebook.text(f"{value:.4g}" if isinstance(value, float) else value)


class RunRecords(Protocol):
    """Queries the records of a run. A protocol, because the queries import this module."""

    def media(self, run: "RunInfo", names: "Names", **options: Any) -> "list[MediaItem]":
        """See `RunInfo.media`."""

    def table(self, run: "RunInfo", name: str, **options: Any) -> "Result":
        """See `RunInfo.table`."""

    def series(self, run: "RunInfo", names: "Names", *, max_points: int) -> "list[Series]":
        """Metrics of the run as lines of a chart."""


@dataclass(frozen=True, slots=True)
class RunInfo:
    """A run: its configuration, progress, status, and problems with its record.

    Attributes:
        id: ``<project>/<run>``, as in the column ``run`` of all tables.
        status: ``running``, ``stalled``, ``finished``, ``failed``, ``stopped`` or ``killed``.
        message: The final message: an error, or why the run stopped.
        started: Seconds since 1970, like all times.
        ended: When it ended, or the time of its last record if it was killed; None while it runs.
        num_steps: The planned number of steps; None if it is not known, or was exceeded.
        metrics: The latest values near the end of its journal.
        notes: The user's description of the run.
        archived: Whether listings hide it.
        summary: The user's results: ``run.summary``.
        problems: Missing or damaged parts of its record, as sentences.
        facts: The content of ``run.json``.
        records: Queries its records for `media` and `table`.
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
    archived: bool = False
    problems: tuple[str, ...] = ()
    config: Any = field(default=None, repr=False)
    summary: dict[str, Any] = field(default_factory=dict, repr=False)
    metrics: dict[str, Any] = field(default_factory=dict, repr=False)
    facts: dict[str, Any] = field(default_factory=dict, repr=False)
    records: "RunRecords | None" = field(default=None, repr=False, compare=False)

    def sinks(self) -> list[SinkState]:
        """The current state of each sink, and how many bytes it lags behind."""
        return sink_states(self.directory)

    def media(
        self,
        names: "Names" = None,
        *,
        type: "Names" = None,  # noqa: A002 - the attribute's name
        axis: str | None = None,
        steps: "Steps" = None,
    ) -> "list[MediaItem]":
        """The run's images, histograms, files, ... by name and step, as objects with their content.

        Args:
            names: Names given to `log`; ``*`` matches anything.
            type: ``image``, ``histogram``, ...; tables are not media: see `table`.
            steps: The first and the last step.
        """
        return self._records().media(self, names, type=type, axis=axis, steps=steps)

    def table(
        self,
        name: str,
        *,
        latest: bool = False,
        step: int | None = None,
        axis: str | None = None,
        text: str | None = None,
        where: "tuple[str, Comparison, Any] | None" = None,
        sort: str | None = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> "Result":
        """The rows of a table, in the order in which they were added: ``run.table("answers").pandas()``.

        Sorting, filtering and paging happen in the database: a long table is not loaded for a few of its rows. Cells
        of lists, dicts or media, and columns of different types, are JSON texts.

        Args:
            latest: Only the table that was logged last, where several were logged under this name.
            step: Only rows that were added at this step.
            text: A text in any cell, ignoring case.
            where: A column, a comparison (``contains``, ``=``, ``!=``, ``<``, ``<=``, ``>``, ``>=``) and a value.
            sort: A column; ``-`` before it sorts descending.

        Raises:
            UnknownNameError: There is no such table or column.
        """
        rows = {"latest": latest, "step": step, "axis": axis, "text": text, "where": where}
        return self._records().table(self, name, **rows, sort=sort, limit=limit, offset=offset)

    def blob(self, digest: str) -> bytes:
        """The content of a blob that the run refers to, compared with its digest.

        Raises:
            BlobError: It is missing or damaged.
        """
        return read_blob(self.directory, digest)

    def _records(self) -> "RunRecords":
        if self.records is None:
            raise ConfigError(f"{self.id} was not listed by hookline.runs, so its records cannot be queried.")
        return self.records

    def _repr_html_(self) -> str:
        return notebook.display(self._html)

    def _html(self) -> str:
        step = f"step {self.step:,}" + (f" of {self.num_steps:,}" if self.num_steps else "")
        about = notebook.text(f"{self.name}: {self.status}, {step}")
        parts = [f"<div><b>{notebook.text(self.id)}</b> {about}</div>"]
        parts += [notebook.note(self.message)] if self.message else []
        parts += [notebook.note(problem, is_problem=True) for problem in self.problems[:_SHOWN_METRICS]]
        names = [name for name in self.metrics if not name.startswith("hooks/")]
        shown = names[:_SHOWN_METRICS]
        charts: dict[str, str] = {}
        try:
            for line in self.records.series(self, shown, max_points=_CHART_POINTS) if self.records and shown else ():
                charts.setdefault(line.name, notebook.line_chart(line.x, line.y, line.name))
        except Exception as error:  # the listing is shown even if the journal cannot be read
            parts.append(notebook.note(f"Its charts cannot be drawn: {error}", is_problem=True))
        rows = [(notebook.text(name), metric_text(self.metrics[name]), charts.get(name, "")) for name in shown]
        parts += [notebook.table(("metric", "last", ""), rows, numbers=[1])] if rows else []
        if len(names) > len(shown):
            parts.append(notebook.note(f"{len(names) - len(shown):,} more metrics are not shown."))
        return "".join(parts)

    @property
    def is_over(self) -> bool:
        """Whether the run has ended and records nothing more."""
        return self.status not in ("running", "stalled")


def run_info(
    location: RunLocation,
    facts: dict[str, Any],
    summary: RunSummary,
    *,
    status: str,
    problems: list[str],
    records: RunRecords | None = None,
    edits: Edits = NOT_EDITED,
) -> RunInfo:
    """Describe a run from its facts, its summary and its edits; facts of an unexpected type count as unknown."""
    experiment = facts.get("experiment")
    own = experiment if isinstance(experiment, dict) else {}
    user_summary = facts.get("summary")
    last_seen = summary.last_seen or None
    is_over = status not in ("running", "stalled")
    return RunInfo(
        id=location.id,
        name=edits.name or _text(facts.get("name")) or location.directory.name,
        project=location.project,
        directory=location.directory,
        status=status,
        message=summary.message if summary.has_ended else "",
        experiment=_text(own.get("name")),
        group=_text(own.get("group")) or _text(facts.get("group")),
        arm=_text(own.get("arm")),
        repeat=_integer(own.get("repeat")),
        stage=_text(own.get("stage")) or _text(facts.get("job_type")),
        seed=_integer(own.get("seed")),
        started=_time(facts.get("started")),
        ended=(summary.status_time if summary.has_ended else last_seen) if is_over else None,
        step=summary.step,
        num_steps=_total(summary),
        seconds_per_step=summary.seconds_per_step,
        eta_seconds=None if is_over else summary.eta_seconds,
        last_seen=last_seen,
        host=_text(facts.get("host")),
        tags=tags_of(facts.get("tags")) if edits.tags is None else tuple(edits.tags),
        notes=(_text(facts.get("notes")) or "") if edits.notes is None else edits.notes,
        archived=edits.archived,
        problems=tuple(problems),
        config=facts.get("config"),
        summary={k: parse_nonfinite(v) for k, v in user_summary.items()} if isinstance(user_summary, dict) else {},
        metrics=summary.latest,
        facts=facts,
        records=records,
    )


def _total(summary: RunSummary) -> int | None:
    """Return the planned number of steps, or None if the run exceeded it: ``run.steps()`` inside a plain loop does."""
    return None if summary.num_steps is not None and summary.step > summary.num_steps else summary.num_steps


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _integer(value: Any) -> int | None:
    fits = isinstance(value, int) and abs(value) < 1 << 63
    return value if fits else None


def _time(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


class ReadState(msgspec.Struct):
    """How much of a run's journals is in the tables, and the problems found in them.

    Attributes:
        positions: The file number and offset that each writer was read up to.
        files: Each file that was read, and how far.
        rows: The number of rows by table.
        parquet: The run's Parquet files by table, with sizes and checksums; empty while its rows are in the database.
        boot: The boot of the machine in which these files were written or last compared with their checksums.
        times: The time of each writer's last record.
        clocks: The order value of each writer's last row of metrics; the next one has to be larger.
    """

    positions: dict[str, tuple[int, int]] = {}
    files: dict[str, FileState] = {}
    rows: dict[str, int] = {}
    parquet: dict[str, tuple[str, int, int]] = {}
    generation: int = 0
    is_compact: bool = False
    boot: str = ""
    skipped: int = 0
    lost: int = 0
    clock_back_seconds: float = 0.0
    clock_back_step: int | None = None
    times: dict[str, float] = {}
    clocks: dict[str, float] = {}
    replaced: int = 0

    def copy(self) -> "ReadState":
        """A copy that can be changed independently."""
        copy: ReadState = msgspec.structs.replace(self)
        copy.positions, copy.files, copy.clocks = dict(self.positions), dict(self.files), dict(self.clocks)
        copy.rows, copy.times, copy.parquet = dict(self.rows), dict(self.times), dict(self.parquet)
        return copy

    def note(self, chunk: Chunk) -> None:
        """Update the clock check and the count of lost records."""
        import numpy as np

        writer = chunk.file.writer
        if chunk.times:
            times = np.array([self.times.get(writer, chunk.times[0]), *chunk.times])
            with np.errstate(over="ignore"):
                steps_back = times[:-1] - times[1:]
            largest = int(steps_back.argmax())
            if steps_back[largest] > max(CLOCK_SECONDS, self.clock_back_seconds):
                self.clock_back_seconds = min(float(steps_back[largest]), MAX_CLOCK_BACK_SECONDS)
                step = chunk.steps[largest]
                self.clock_back_step = None if step is None else clamped_step(step)
            self.times[writer] = chunk.times[-1]
        for entry in chunk.others:
            record = entry.record
            if isinstance(record, Event) and record.name == "records_lost":
                count = record.data.get("count")
                self.lost += clamped_step(count) if isinstance(count, int) else 0

    @property
    def problems(self) -> list[str]:
        """The problems found while reading, as sentences."""
        found = []
        if self.skipped:
            lines = "1 line is not a record" if self.skipped == 1 else f"{self.skipped:,} lines are not records"
            found.append(f"{lines}; skipped")
        if self.lost:
            found.append(
                f"{plural(self.lost, 'record')} could not be written: the disk was full, or a journal was truncated"
            )
        if self.clock_back_seconds:
            where = "" if self.clock_back_step is None else f" at step {self.clock_back_step:,}"
            found.append(f"the clock went back by {self.clock_back_seconds:,.0f} s{where}: times are not in order")
        if self.replaced:
            found.append("a journal file was truncated, removed or replaced: the current content is shown")
        return found


class RunState(msgspec.Struct):
    """Everything the index keeps about a run.

    Attributes:
        is_live: The run was alive when last listed. Its later writes need not change its files' times.
        journal: Identifies the set of its journal files, if it is over; see `directory_stamp`.
        damage: The damage found in these files when they were last checked.
        edits: Its later edits; see `hookline.store.edits`.
    """

    facts_stamp: Stamp | None = None
    edits_stamp: Stamp | None = None
    edits: Edits = NOT_EDITED
    edits_problem: str = ""
    journal: tuple[int, int] | None = None
    damage: list[str] = []
    facts: dict[str, Any] = {}
    facts_problem: str = ""
    stamps: dict[str, Stamp] = {}
    is_live: bool = True
    status: str = ""
    summary: RunSummary = msgspec.field(default_factory=RunSummary)
    read: ReadState | None = None
