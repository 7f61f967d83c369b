"""A file with a table of hookline's own, as ``hookline runs export`` writes it: CSV, JSON lines or Parquet.

What a file holds is told by its columns, which are those of ``hookline sql``. CSV has no word for nothing: an empty
cell is None here, also where it was an empty text.
"""

import glob
import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from hookline.core.errors import MissingExtraError
from hookline.integrations.ingest.csv import lines, read_header
from hookline.integrations.ingest.source import Reading
from hookline.integrations.ingest.verl import json_lines
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
