"""What ``hookline runs export`` wrote of a run: its metrics, samples and events, as they were recorded.

A table of metrics has a row for each value; those of one writer, axis, step and time are a row again. The tables are
sorted by name or step, and runs are written by time: what a file has of one run is held in memory.

A file with a table of hookline's own, as ``hookline runs export`` writes it: CSV, JSON lines or Parquet.

What a file holds is told by its columns, which are those of ``hookline sql``. CSV has no word for nothing: an empty
cell is None here, also where it was an empty text.
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
from hookline._record.records import finite_back
from hookline.importers.csv import lines, read_header, whole
from hookline.importers.source import Item, Occurrence, Reading, Row, SampleRow, Source, StatusRow
from hookline.importers.verl import json_lines
from hookline.store.tables import RUN_COLUMNS, TABLES

IMPORTED = ("metrics", "samples", "events")
"""The tables of which runs can be made."""
SUFFIXES = frozenset({".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet"})
_NOT_CSV = frozenset({".jsonl", ".ndjson", ".json", ".parquet"})
_VALUES = frozenset({"run", "step", "name", "value"})
"""What is a table of values and not one of metrics, whatever else it has."""
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
_BATCH_ROWS = 1024
_LINE_BYTES = 64 << 20

Place = tuple[str, dict[str, Any]]
"""A row, and where it stands."""


def columns_of(file: Path) -> frozenset[str]:
    """The columns of a table; none where the file holds no table.

    Raises:
        MissingExtraError: It is Parquet, and DuckDB is not installed.
    """
    notation = _notation(file)
    if notation == "parquet":
        return _parquet_columns(file)
    if notation == "csv":  # also what is nothing of all this, but then its name does not say that it is a table
        return frozenset(read_header(file)) if file.suffix not in _NOT_CSV else frozenset()
    with file.open("rb") as opened:
        try:
            first = json.loads(opened.readline(_LINE_BYTES))
        except (ValueError, RecursionError):
            return frozenset()
    return frozenset(first) if isinstance(first, dict) else frozenset()


def table_of(columns: frozenset[str]) -> str | None:
    """The table that has just these columns, if runs can be made of it.

    >>> table_of(frozenset({"step", "loss"}))
    """
    return next((name for name in IMPORTED if columns == _COLUMNS[name]), None)


def refusal(columns: frozenset[str]) -> str | None:
    """Why no run can be made of a file that holds another table of hookline's, or a part of one.

    >>> refusal(frozenset({"step", "loss"}))
    """
    if table_of(columns) is not None:
        return None
    for name, known in (_COLUMNS | _OTHERS).items():
        if columns == known:
            return f"holds hookline's table {name!r}, of which no run can be made. {_ACCEPTED}"
    for name, known in _COLUMNS.items():
        if _is_query(columns, known):
            told = [f"{_listed(known - columns)} missing"] if known - columns else []
            told += [f"{_listed(columns - known)} added"] if columns - known else []
            return f"looks like a query of hookline's table {name!r}, with {' and '.join(told)}. {_ACCEPTED}"
    return None


def _is_query(columns: frozenset[str], known: frozenset[str]) -> bool:
    """Whether columns were chosen from those of a table, or added to them."""
    chosen = "run" in columns and len(columns) > 1 and columns < known
    return chosen or columns > known or columns & known >= _VALUES


def rows_of(file: Path, reading: Reading) -> Iterator[Place]:
    """The rows of a table, each with its place; what is broken is noted."""
    read = {"csv": _csv_rows, "jsonl": json_lines, "parquet": _parquet_rows}[_notation(file)]
    yield from read(file, reading)


def _notation(file: Path) -> str:
    with file.open("rb") as opened:
        start = opened.read(4)
    return "parquet" if start == b"PAR1" else "jsonl" if start[:1] in (b"{", b"[") else "csv"


def _csv_rows(file: Path, reading: Reading) -> Iterator[Place]:
    header = read_header(file)
    for place, cells in lines(file, reading, must_end=True):
        if len(cells) == len(header):
            yield place, {name: cell or None for name, cell in zip(header, cells, strict=True)}
        else:
            reading.skip(place, f"it has {len(cells)} cells for {len(header)} columns")


def _parquet_columns(file: Path) -> frozenset[str]:
    duckdb = _duckdb()
    try:
        with duckdb.connect() as database:
            return frozenset(name for name, *_ in _query(database, file).description)
    except duckdb.Error:  # it is torn
        return frozenset()


def _parquet_rows(file: Path, reading: Reading) -> Iterator[Place]:
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
        reading.skip(f"{file}, row {number + 1}", error)
    reading.advance(file.stat().st_size)


def _duckdb() -> Any:
    try:
        return import_module("duckdb")
    except ImportError:
        raise MissingExtraError("Reading Parquet", "ui") from None


def _query(database: Any, file: Path) -> Any:
    return database.execute("SELECT * FROM read_parquet(?)", [glob.escape(str(file))])


def _listed(names: frozenset[str]) -> str:
    return ", ".join(map(repr, sorted(names)))


_TEXTS = ("prompt", "completion", "expected", "reasoning", "answer", "group", "lesson")


class Part(NamedTuple):
    """What one file has of a run."""

    file: Path
    table: str
    tells_broken: bool = True
    """Whether broken lines of the file are told with this run: each is told once."""


class Export(Source):
    """The tables of one run.

    Args:
        run: What the column ``run`` says.
        parts: The files, each with its table.
        has_statuses: Whether they say how the run went.
    """

    format = "hookline"
    has_times = True

    def __init__(self, run: str, parts: list[Part], *, has_statuses: bool = False) -> None:
        super().__init__([part.file for part in parts])
        self.run = run
        self.has_statuses = has_statuses
        self._parts = parts

    def items(self, reading: Reading) -> Iterator[Item]:
        reading.facts["run"] = self.run
        joined, others = _Joined(), list[Item]()
        for part in self._parts:
            for place, row in self._rows(part, reading):
                try:
                    item = _MAKERS[part.table](row)
                except (TypeError, ValueError, RecursionError) as error:
                    reading.skip(place, error)
                    continue
                if isinstance(item, Row):
                    joined.add(item)
                else:
                    others.append(item)
        yield from sorted([*joined.rows(), *others], key=lambda item: item.time)

    def _rows(self, part: Part, reading: Reading) -> Iterator[tuple[str, dict[str, Any]]]:
        noted = reading if part.tells_broken else Reading(passed=reading.passed)
        for place, row in rows_of(part.file, noted):
            if row.get("run") == self.run:
                yield place, row
            elif not row.get("run"):
                noted.skip(place, "it names no run")


class Contents(NamedTuple):
    """What a file has of a run, as far as it has to be known beforehand."""

    table: str
    has_statuses: bool


def runs_in(file: Path, table: str) -> dict[str, Contents]:
    """The runs in a file, in its order."""
    found: dict[str, Contents] = {}
    for _, row in rows_of(file, Reading()):
        if run := row.get("run"):
            known = found.get(run)
            if known is None or (row.get("kind") == "status" and not known.has_statuses):
                found[run] = Contents(table, row.get("kind") == "status")
    return found


class _Joined:
    """Single values put together as they were recorded."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str, int, float], list[Row]] = {}

    def add(self, row: Row) -> None:
        alike = self._rows.setdefault((row.writer, row.axis, row.step, row.time), [])
        for known in alike:
            if known.values.keys().isdisjoint(row.values):
                known.values.update(row.values)
                return
        alike.append(row)

    def rows(self) -> Iterator[Row]:
        for alike in self._rows.values():
            yield from alike


def _metric(row: dict[str, Any]) -> Row:
    value = _number(row, "value")
    writer = _text(row, "writer")
    name = _text(row, "name")
    own = name if writer == MAIN else name.removeprefix(f"{writer}/")  # which readers of the run put there again
    values = {own: row["text"] if value is None else value}
    return Row(_step(row), _time(row), values, _text(row, "axis"), writer)


def _sample(row: dict[str, Any]) -> SampleRow:
    numbers = {name: _number(row, name) for name in ("total", "advantage")}
    fields: dict[str, Any] = {name: row[name] for name in _TEXTS if row[name] is not None}
    fields |= {name: value for name, value in numbers.items() if value is not None}
    fields["rewards"] = {name: finite_back(value) for name, value in _mapping(row, "rewards").items()}
    fields["extra"] = _mapping(row, "extra")
    cut = _mapping(row, "truncated")
    return SampleRow(_step(row), _time(row), fields, _text(row, "axis"), _text(row, "writer"), cut or None)


def _event(row: dict[str, Any]) -> Occurrence | StatusRow:
    step = None if row["step"] is None else _step(row)
    time, name, data, writer = _time(row), _text(row, "name"), _mapping(row, "data"), _text(row, "writer")
    if row["kind"] == "status":
        return StatusRow(step, time, name, row["message"] or "", data, writer)
    return Occurrence(step, time, name, data, writer)


_MAKERS: dict[str, Callable[[dict[str, Any]], Item]] = {"metrics": _metric, "samples": _sample, "events": _event}


def _text(row: dict[str, Any], column: str) -> str:
    if not isinstance(row[column], str):
        raise ValueError(f"{column}={row[column]!r} is no text")  # noqa: TRY004 - of the file, not of the program
    return str(row[column])


def _step(row: dict[str, Any]) -> int:
    step = whole(str(row["step"]))
    if step is None:
        raise ValueError(f"step={row['step']!r} is no whole number")
    return step


def _time(row: dict[str, Any]) -> float:
    time = _number(row, "time")
    if time is None or not math.isfinite(time):
        raise ValueError(f"time={row['time']!r} is no time")
    return time


def _number(row: dict[str, Any], column: str) -> float | None:
    try:
        return None if row[column] is None else float(row[column])
    except (TypeError, ValueError):
        raise ValueError(f"{column}={row[column]!r} is no number") from None


def _mapping(row: dict[str, Any], column: str) -> dict[str, Any]:
    """A nested value, which CSV and Parquet have as JSON."""
    value = row[column]
    found = json.loads(value) if isinstance(value, str) else {} if value is None else value
    if not isinstance(found, dict):
        raise ValueError(f"{column}={value!r:.80} is no mapping")  # noqa: TRY004 - of the file
    return found
