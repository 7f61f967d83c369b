"""Reads the tables that ``hookline runs export`` wrote, as CSV, JSON Lines or Parquet.

Of a whole run (``--what all``) also its facts, log lines, rewards, media with their blobs, console lines, the
environments of its sessions, and the versions of artifacts that it saved.

A file's table is recognised by its columns, which are those of ``hookline sql``. A metrics table has a row for each
value; values of one writer, axis, step and time become one row again. The tables are sorted by name or step, while a
run is written in the order of time, so the rows of one run are held in memory.

CSV cannot express a missing value: an empty cell is None here, even if it was an empty string.
"""

import glob
import json
import math
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec

from hookline._engine.errors import HooklineError, MissingExtraError
from hookline._record.artifact_saving import ARTIFACT_SAVED
from hookline._record.artifact_versions import ArtifactFile, check_files, checked_aliases, parse_reference
from hookline._record.blobs import is_digest
from hookline._record.console_reader import STREAMS, ConsoleRow
from hookline._record.environment import convert_environment
from hookline._record.reader import MAIN
from hookline._record.records import LogLine, Media, Rewards, SampleUse, TableRows, parse_nonfinite
from hookline.importers.csv import data_lines, parse_step, read_header
from hookline.importers.facts import FACTS, checked_facts
from hookline.importers.media import Stored, open_inside
from hookline.importers.sources import (
    ArtifactRow,
    ArtifactSource,
    ConsoleItem,
    EnvironmentItem,
    EventRow,
    Item,
    MediaRow,
    ReadReport,
    RecordItem,
    Row,
    SampleRow,
    Source,
    StatusRow,
    json_lines,
)
from hookline.store.tables import CONSOLE_COLUMNS, METRIC_NAME_COLUMNS, METRIC_NAMES, RUN_COLUMNS, TABLES

IMPORTED = ("metrics", "samples", "events")
"""The tables that can be imported."""
MEDIA = "media"
MEDIA_FILE, MEDIA_BLOBS = "media.jsonl", "blobs"
"""The file with the records of media in a directory of `hookline runs export --what all`, and the folder of blobs."""
CONSOLE, CONSOLE_FILE = "console", "console.jsonl"
ENVIRONMENT, ENVIRONMENT_FILE = "environment", "environment.jsonl"
ARTIFACT, ARTIFACT_FILE = "artifact", "artifacts.jsonl"
ENTRY, ENTRY_FILE = "entry", "records.jsonl"
"""The files with the console lines, environments, artifacts, and log lines, rewards and uses of samples in such a
directory."""
_OWN_COLUMNS = {
    MEDIA: frozenset({"run", "writer", "record"}),
    CONSOLE: frozenset({"run", "console"}),
    ENVIRONMENT: frozenset({"run", "environment"}),
    ARTIFACT: frozenset({"run", "artifact"}),
    ENTRY: frozenset({"run", "writer", "entry"}),
    FACTS: frozenset({"run", "facts"}),
}
SUFFIXES = frozenset({".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet"})
_NOT_CSV = frozenset({".jsonl", ".ndjson", ".json", ".parquet"})
_VALUES = frozenset({"run", "step", "name", "value"})
"""A table with these columns is a query of the metrics, whatever else it has."""
_COLUMNS = {
    name: frozenset(["run", *(column for column in table.columns if not column.startswith("_"))])
    for name, table in TABLES.items()
}
_SAMPLE_TEXTS = ("finish", "rollout", "parent")
_SAMPLE_NUMBERS = ("version", "length", "prompt_length", "last_version")
_NEW_SAMPLE_COLUMNS = frozenset(
    {*_SAMPLE_TEXTS, *_SAMPLE_NUMBERS, "prompt_messages", "completion_messages", "tokens", "timings"}
)
"""Columns that tables of samples of version 0.2 and earlier do not have."""
_HOOKS = "run writer name calls total_ms mean_ms p95_ms max_ms errors disabled share step time"
_OTHERS = {
    "runs": frozenset(RUN_COLUMNS),
    "hooks": frozenset(_HOOKS.split()),
    CONSOLE: frozenset(CONSOLE_COLUMNS),
    METRIC_NAMES: frozenset(METRIC_NAME_COLUMNS),
}
_ACCEPTED = (
    "Accepted are whole tables of metrics, samples or events, as `hookline runs export RUN --what metrics -o FILE` "
    "writes them."
)
_TEXTS = ("prompt", "completion", "expected", "reasoning", "answer", "group", "lesson")
_BATCH_ROWS = 1024
MAX_RANK = 100_000
_LINE_BYTES = 64 << 20


class TableFile(NamedTuple):
    """The rows of one run in one file."""

    file: Path
    table: str
    reports_broken: bool = True
    """Whether this run reports the file's broken lines: each is reported once."""


class RunInFile(NamedTuple):
    """What has to be known of a run in a file before it is read."""

    table: str
    has_statuses: bool


class ExportedArtifact(msgspec.Struct):
    """A version of an artifact that an exported run saved; its files are blobs of the export.

    Attributes:
        artifact: ``<project>/<name>``, as in the event.
        digest: The digest of the version, as in the event.
        aliases: The aliases that named it when it was exported.
    """

    artifact: str
    digest: str
    kind: str
    metadata: dict[str, Any]
    files: list[ArtifactFile]
    aliases: list[str] = []


class Export(Source):
    """The exported tables of one run.

    Args:
        run: The value of the column ``run``.
        tables: The files with their tables.
        has_statuses: Whether they say how the run ended.
    """

    format = "hookline"
    has_times = True

    def __init__(self, run: str, tables: list[TableFile], *, has_statuses: bool = False) -> None:
        super().__init__([table.file for table in tables])
        self.run = run
        self.has_statuses = has_statuses
        self._tables = tables

    def items(self, report: ReadReport) -> Iterator[Item]:
        report.facts["run"] = self.run
        rows: dict[tuple[str, str, int, float], list[Row]] = {}
        others: list[Item] = []
        artifacts = self._artifacts(report)
        for table in self._tables:
            if table.table in (FACTS, ARTIFACT):
                continue
            for place, record in self._own_rows(table, report):
                try:
                    if table.table in _WITH_BLOBS:
                        item: Item = _WITH_BLOBS[table.table](record, table.file.parent / MEDIA_BLOBS)
                    else:
                        item = _MAKERS[table.table](record)
                except (TypeError, ValueError, RecursionError) as error:
                    report.skip(place, error)
                    continue
                if isinstance(item, Row):
                    _join(rows.setdefault((item.writer, item.axis, item.step, item.time), []), item)
                elif isinstance(item, EventRow) and item.name == ARTIFACT_SAVED:
                    version = (item.data.get("artifact"), item.data.get("digest"))
                    made = artifacts.get(version) if all(isinstance(each, str) for each in version) else None
                    others.append(made._replace(step=item.step, time=item.time, data=item.data) if made else item)
                else:
                    others.append(item)
        yield from sorted([*(row for alike in rows.values() for row in alike), *others], key=lambda item: item.time)

    def _artifacts(self, report: ReadReport) -> dict[tuple[Any, Any], ArtifactRow]:
        """Return the exported versions, by artifact and digest; the events of the run say when they were saved."""
        found: dict[tuple[Any, Any], ArtifactRow] = {}
        for table in self._tables:
            for place, row in self._own_rows(table, report) if table.table == ARTIFACT else ():
                try:
                    version = msgspec.convert(row["artifact"], ExportedArtifact)
                    check_files(version.files)
                    name = parse_reference(version.artifact).name
                    kind = version.kind if version.kind.isprintable() and 0 < len(version.kind) <= 64 else "artifact"
                    blobs = table.file.parent / MEDIA_BLOBS
                    files = [_artifact_file(file, blobs) for file in version.files]
                    aliases = checked_aliases(version.aliases)
                except (ValueError, HooklineError) as error:
                    report.skip(place, error)
                    continue
                found[version.artifact, version.digest] = ArtifactRow(
                    None, 0.0, name, kind, aliases, version.metadata, files, keeps_aliases=True
                )
        return found

    def run_facts(self, report: ReadReport) -> dict[str, Any]:
        for table in self._tables:
            if table.table == FACTS:
                if table.file.stat().st_size > _LINE_BYTES:
                    report.skip(str(table.file), f"has more than {_LINE_BYTES:,} bytes")
                    continue
                for place, row in self._own_rows(table, report):
                    facts, problems = checked_facts(row["facts"])
                    for problem in problems:
                        report.skip(place, problem)
                    return facts
        return {}

    def _own_rows(self, table: TableFile, report: ReadReport) -> Iterator[tuple[str, dict[str, Any]]]:
        noted = report if table.reports_broken else ReadReport(on_progress=report.on_progress)
        for place, row in read_rows(table.file, noted):
            if row.get("run") == self.run:
                yield place, row
            elif not row.get("run"):
                noted.skip(place, "the row names no run")


def _media(row: dict[str, Any], blobs: Path) -> MediaRow:
    try:
        record = msgspec.convert(row["record"], type=Media | TableRows)
    except (msgspec.ValidationError, KeyError) as error:
        raise ValueError(f"not a record of media: {error}") from None
    if isinstance(record, Media) and record.blob and not is_digest(record.blob):
        raise ValueError(f"blob={record.blob!r:.80} is not a digest")
    return MediaRow(
        record.step, record.time, record.name, Stored(record, blobs), record.axis, str(row.get("writer") or MAIN)
    )


def _artifact_file(file: ArtifactFile, blobs: Path) -> ArtifactSource:
    if file.uri:
        return ArtifactSource(file.path, uri=file.uri, size=file.size, sha256=file.sha256, etag=file.etag)
    return ArtifactSource(file.path, partial(_open_blob, blobs, file.blob, file.size or 0), sha256=file.blob)


def _open_blob(blobs: Path, digest: str, size: int) -> BinaryIO:
    try:
        return open_inside(blobs, digest, size)
    except OSError as error:
        raise ValueError(f"{blobs / digest}: {error.strerror}; links are not followed") from error


def _console(row: dict[str, Any]) -> ConsoleItem:
    try:
        line = msgspec.convert(row["console"], type=ConsoleRow)
    except (msgspec.ValidationError, KeyError) as error:
        raise ValueError(f"not a console line: {error}") from None
    is_writer = 0 <= line.rank < MAX_RANK and (not line.actor or (line.actor.isidentifier() and len(line.actor) <= 80))
    if line.stream not in STREAMS or not is_writer or not math.isfinite(line.time):
        raise ValueError(f"stream={line.stream!r:.80}, rank={line.rank}: not those of a console line")
    return ConsoleItem(line.step, line.time, line)


def _entry(row: dict[str, Any]) -> RecordItem:
    try:
        record = msgspec.convert(row["entry"], type=LogLine | Rewards | SampleUse)
    except (msgspec.ValidationError, KeyError) as error:
        raise ValueError(f"no log line, rewards or use of samples: {error}") from None
    if not math.isfinite(record.time):
        raise ValueError("its time is not finite")
    return RecordItem(record.step, record.time, record, str(row.get("writer") or MAIN))


def _environment(row: dict[str, Any], blobs: Path) -> EnvironmentItem:
    if not isinstance(row.get("environment"), dict):
        raise ValueError("not an environment")  # noqa: TRY004
    found = convert_environment(row["environment"])
    if not math.isfinite(found.time):
        raise ValueError("its time is not finite")
    return EnvironmentItem(None, found.time, found, blobs)


def runs_in(file: Path, table: str) -> dict[str, RunInFile]:
    """Find the runs in a file, in its order."""
    found: dict[str, RunInFile] = {}
    for _, row in read_rows(file, ReadReport()):
        if run := row.get("run"):
            known = found.get(run)
            if known is None or (row.get("kind") == "status" and not known.has_statuses):
                found[run] = RunInFile(table, row.get("kind") == "status")
    return found


def columns_of(file: Path) -> frozenset[str]:
    """Return the columns of a table; none if the file holds no table.

    Raises:
        MissingExtraError: The file is Parquet, and DuckDB is not installed.
    """
    notation = _notation(file)
    if notation == "parquet":
        duckdb = _duckdb()
        try:
            with duckdb.connect() as database:
                return frozenset(name for name, *_ in _query(database, file).description)
        except duckdb.Error:  # it is torn
            return frozenset()
    if notation == "csv":  # also the answer for unknown contents, unless the suffix names another notation
        return frozenset(read_header(file)) if file.suffix not in _NOT_CSV else frozenset()
    with file.open("rb") as opened:
        try:
            first = json.loads(opened.readline(_LINE_BYTES))
        except (ValueError, RecursionError):
            return frozenset()
    return frozenset(first) if isinstance(first, dict) else frozenset()


def table_of(columns: frozenset[str]) -> str | None:
    """Return the importable table that has exactly these columns, if there is one.

    >>> table_of(frozenset({"step", "loss"}))
    """
    own = next((name for name, known in _OWN_COLUMNS.items() if columns == known), None)
    if columns == _COLUMNS["samples"] - _NEW_SAMPLE_COLUMNS:
        return "samples"
    return own or next((name for name in IMPORTED if columns == _COLUMNS[name]), None)


def refusal(columns: frozenset[str]) -> str | None:
    """Explain why a file with another of hookline's tables, or a part of one, cannot be imported.

    >>> refusal(frozenset({"step", "loss"}))
    """
    if table_of(columns) is not None:
        return None
    for name, known in (_COLUMNS | _OTHERS).items():
        if columns == known:
            return f"holds hookline's table {name!r}, which cannot be imported as a run. {_ACCEPTED}"
    for name, known in _COLUMNS.items():
        selects_columns = "run" in columns and len(columns) > 1 and columns < known
        if selects_columns or columns > known or columns & known >= _VALUES:
            changes = [f"{_listed(known - columns)} missing"] if known - columns else []
            changes += [f"{_listed(columns - known)} added"] if columns - known else []
            return f"looks like a query of hookline's table {name!r}, with {' and '.join(changes)}. {_ACCEPTED}"
    return None


def read_rows(file: Path, report: ReadReport) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the rows of a table, each with its location; broken ones are reported."""
    read = {"csv": _csv_rows, "jsonl": json_lines, "parquet": _parquet_rows}[_notation(file)]
    yield from read(file, report)


def _notation(file: Path) -> str:
    with file.open("rb") as opened:
        start = opened.read(4)
    return "parquet" if start == b"PAR1" else "jsonl" if start[:1] in (b"{", b"[") else "csv"


def _csv_rows(file: Path, report: ReadReport) -> Iterator[tuple[str, dict[str, Any]]]:
    header = read_header(file)
    for place, cells in data_lines(file, report, terminated=True):
        if len(cells) == len(header):
            yield place, {name: cell or None for name, cell in zip(header, cells, strict=True)}
        else:
            report.skip(place, f"{len(cells)} cells for {len(header)} columns")


def _parquet_rows(file: Path, report: ReadReport) -> Iterator[tuple[str, dict[str, Any]]]:
    duckdb = _duckdb()
    number = 0
    try:
        with duckdb.connect() as database:
            found = _query(database, file)
            names = [name for name, *_ in found.description]
            while rows := found.fetchmany(_BATCH_ROWS):
                for row in rows:
                    number += 1
                    yield f"{file}, row {number}", dict(zip(names, row, strict=True))
    except duckdb.Error as error:
        report.skip(f"{file}, row {number + 1}", error)
    report.advance(file.stat().st_size)


def _duckdb() -> Any:
    try:
        return import_module("duckdb")
    except ImportError:
        raise MissingExtraError("Reading Parquet", "ui") from None


def _query(database: Any, file: Path) -> Any:
    return database.execute("SELECT * FROM read_parquet(?)", [glob.escape(str(file))])


def _listed(names: frozenset[str]) -> str:
    return ", ".join(map(repr, sorted(names)))


def _join(alike: list[Row], row: Row) -> None:
    """Add values to the first row that lacks them: values logged together were one row when they were recorded."""
    for known in alike:
        if known.values.keys().isdisjoint(row.values):
            known.values.update(row.values)
            return
    alike.append(row)


def _metric(row: dict[str, Any]) -> Row:
    value = _number(row, "value")
    writer = _text(row, "writer")
    name = _text(row, "name")
    own = name if writer == MAIN else name.removeprefix(f"{writer}/")  # readers add the writer's name again
    values = {own: row["text"] if value is None else value}
    return Row(_step(row), _time(row), values, _text(row, "axis"), writer)


def _sample(row: dict[str, Any]) -> SampleRow:
    numbers = {name: _number(row, name) for name in ("total", "advantage")}
    fields: dict[str, Any] = {name: row[name] for name in _TEXTS if row[name] is not None}
    fields |= {name: value for name, value in numbers.items() if value is not None}
    fields["rewards"] = {name: parse_nonfinite(value) for name, value in _mapping(row, "rewards").items()}
    fields["extra"] = _mapping(row, "extra")
    fields |= {name: row[name] for name in _SAMPLE_TEXTS if isinstance(row.get(name), str) and row[name]}
    if row.get("timings"):
        timings = _mapping(row, "timings").items()
        fields["timings"] = {str(name): value for name, value in timings if _is_finite_number(value)}
    for name in _SAMPLE_NUMBERS:
        if row.get(name) not in (None, ""):
            fields[name] = int(row[name])
    for name in ("prompt_messages", "completion_messages"):  # JSON; absent from tables of earlier versions
        if row.get(name) not in (None, ""):
            fields[name] = _list(row, name)
    truncated = _mapping(row, "truncated") or None
    return SampleRow(_step(row), _time(row), fields, _text(row, "axis"), _text(row, "writer"), truncated)


def _event(row: dict[str, Any]) -> EventRow | StatusRow:
    step = None if row["step"] is None else _step(row)
    time, name, data, writer = _time(row), _text(row, "name"), _mapping(row, "data"), _text(row, "writer")
    if row["kind"] == "status":
        return StatusRow(step, time, name, row["message"] or "", data, writer)
    return EventRow(step, time, name, data, writer)


_MAKERS: dict[str, Callable[[dict[str, Any]], Item]] = {
    "metrics": _metric,
    "samples": _sample,
    "events": _event,
    CONSOLE: _console,
    ENTRY: _entry,
}
_WITH_BLOBS: dict[str, Callable[[dict[str, Any], Path], Item]] = {MEDIA: _media, ENVIRONMENT: _environment}


# These raise ValueError, also for wrong types: the file is at fault, not the program.
def _text(row: dict[str, Any], column: str) -> str:
    if not isinstance(row[column], str):
        raise ValueError(f"{column}={row[column]!r} is not a string")  # noqa: TRY004
    return str(row[column])


def _step(row: dict[str, Any]) -> int:
    step = parse_step(str(row["step"]))
    if step is None:
        raise ValueError(f"step={row['step']!r} is not a whole number")
    return step


def _time(row: dict[str, Any]) -> float:
    time = _number(row, "time")
    if time is None or not math.isfinite(time):
        raise ValueError(f"time={row['time']!r} is not a time")
    return time


def _number(row: dict[str, Any], column: str) -> float | None:
    try:
        return None if row[column] is None else float(row[column])
    except (TypeError, ValueError):
        raise ValueError(f"{column}={row[column]!r} is not a number") from None


def _list(row: dict[str, Any], column: str) -> list[Any]:
    value = row[column]
    found = json.loads(value) if isinstance(value, str) else value
    if not isinstance(found, list):
        raise ValueError(f"{column}={value!r:.80} is not a list")  # noqa: TRY004
    return found


def _is_finite_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _mapping(row: dict[str, Any], column: str) -> dict[str, Any]:
    """Return a nested value, which CSV and Parquet hold as JSON."""
    value = row[column]
    found = json.loads(value) if isinstance(value, str) else {} if value is None else value
    if not isinstance(found, dict):
        raise ValueError(f"{column}={value!r:.80} is not a mapping")  # noqa: TRY004
    return found
