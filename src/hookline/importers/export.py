"""Reads the tables that ``hookline runs export`` wrote, as CSV, JSON Lines or Parquet.

A file's table is recognised by its columns, which are those of ``hookline sql``. A metrics table has a row for each
value; values of one writer, axis, step and time become one row again. The tables are sorted by name or step, while a
run is written in the order of time, so the rows of one run are held in memory.

CSV cannot express a missing value: an empty cell is None here, even if it was an empty string.
"""

import glob
import json
import math
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from hookline._engine.errors import MissingExtraError
from hookline._record.reader import MAIN
from hookline._record.records import parse_nonfinite
from hookline.importers.csv import data_lines, parse_step, read_header
from hookline.importers.sources import EventRow, Item, ReadReport, Row, SampleRow, Source, StatusRow, json_lines
from hookline.store.tables import RUN_COLUMNS, TABLES

IMPORTED = ("metrics", "samples", "events")
"""The tables that can be imported."""
SUFFIXES = frozenset({".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet"})
_NOT_CSV = frozenset({".jsonl", ".ndjson", ".json", ".parquet"})
_VALUES = frozenset({"run", "step", "name", "value"})
"""A table with these columns is a query of the metrics, whatever else it has."""
_COLUMNS = {
    name: frozenset(["run", *(column for column in table.columns if not column.startswith("_"))])
    for name, table in TABLES.items()
}
_HOOKS = "run writer name calls total_ms mean_ms p95_ms max_ms errors disabled share step time"
_OTHERS = {"runs": frozenset(RUN_COLUMNS), "hooks": frozenset(_HOOKS.split())}
_ACCEPTED = (
    "Accepted are whole tables of metrics, samples or events, as `hookline runs export RUN --what metrics -o FILE` "
    "writes them."
)
_TEXTS = ("prompt", "completion", "expected", "reasoning", "answer", "group", "lesson")
_BATCH_ROWS = 1024
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
        for table in self._tables:
            for place, record in self._own_rows(table, report):
                try:
                    item = _MAKERS[table.table](record)
                except (TypeError, ValueError, RecursionError) as error:
                    report.skip(place, error)
                    continue
                if isinstance(item, Row):
                    _join(rows.setdefault((item.writer, item.axis, item.step, item.time), []), item)
                else:
                    others.append(item)
        yield from sorted([*(row for alike in rows.values() for row in alike), *others], key=lambda item: item.time)

    def _own_rows(self, table: TableFile, report: ReadReport) -> Iterator[tuple[str, dict[str, Any]]]:
        noted = report if table.reports_broken else ReadReport(on_progress=report.on_progress)
        for place, row in read_rows(table.file, noted):
            if row.get("run") == self.run:
                yield place, row
            elif not row.get("run"):
                noted.skip(place, "the row names no run")


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
    return next((name for name in IMPORTED if columns == _COLUMNS[name]), None)


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
    truncated = _mapping(row, "truncated") or None
    return SampleRow(_step(row), _time(row), fields, _text(row, "axis"), _text(row, "writer"), truncated)


def _event(row: dict[str, Any]) -> EventRow | StatusRow:
    step = None if row["step"] is None else _step(row)
    time, name, data, writer = _time(row), _text(row, "name"), _mapping(row, "data"), _text(row, "writer")
    if row["kind"] == "status":
        return StatusRow(step, time, name, row["message"] or "", data, writer)
    return EventRow(step, time, name, data, writer)


_MAKERS: dict[str, Callable[[dict[str, Any]], Item]] = {"metrics": _metric, "samples": _sample, "events": _event}


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


def _mapping(row: dict[str, Any], column: str) -> dict[str, Any]:
    """Return a nested value, which CSV and Parquet hold as JSON."""
    value = row[column]
    found = json.loads(value) if isinstance(value, str) else {} if value is None else value
    if not isinstance(found, dict):
        raise ValueError(f"{column}={value!r:.80} is not a mapping")  # noqa: TRY004
    return found
