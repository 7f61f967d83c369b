"""Recorded media and tables of runs: `MediaItem`, and queries that page, sort and filter a table in the database.

A table of any length is read page by page: rows stay in DuckDB until they are requested. Cells are stored as JSON, so
the type of a column is found from its cells; a column of different types is returned as JSON texts.

Recorded names, formats and digests may come from elsewhere: `MediaItem.read` compares the content with its digest, and
names of exported files are sanitized.
"""

import io
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

from hookline._engine.checks import require_integer
from hookline._engine.errors import MissingExtraError, OptionError, UnknownNameError, closest
from hookline._record.blobs import open_blob, read_blob
from hookline._record.records import parse_nonfinite
from hookline.store.index import sql_quote
from hookline.store.query import Conditions, Names, Result, Steps, execute
from hookline.store.run_info import RunInfo
from hookline.store.series import Chart, Series, series
from hookline.store.store import Store, open_store

Comparison: TypeAlias = Literal["contains", "=", "!=", "<", "<=", ">", ">="]
COMPARISONS = ("contains", "=", "!=", "<", "<=", ">", ">=")
MAX_FILE_NAME = 120

MEDIA_NAMES = """
SELECT name, axis, type, count(DISTINCT run) AS runs,
    if(type = 'table', count(DISTINCT data ->> '$.table') FILTER (type = 'table'), count(*)) AS items,
    min(step) AS first_step, max(step) AS last_step
FROM media GROUP BY name, axis, type ORDER BY name, axis, type
"""
TABLES_OF_RUNS = """
SELECT m.run, m.name, m.axis, m.table_id, m.step, m.time, m.columns, coalesce(r.rows, 0) AS rows,
    greatest(m.step, r.last_step) AS last_step
FROM (
    SELECT run, name, axis, data ->> '$.table' AS table_id, min(step) AS step, min(time) AS time,
        any_value(json_extract(data, '$.columns')) AS columns
    FROM media WHERE type = 'table' GROUP BY ALL
) m LEFT JOIN (
    SELECT run, name, axis, table_id, count(*) AS rows, max(step) AS last_step FROM table_rows GROUP BY ALL
) r USING (run, name, axis, table_id)
ORDER BY m.run, m.name, m.axis, m.step, m.time
"""


@dataclass(frozen=True, slots=True)
class MediaItem:
    """One recorded image, sound, histogram, file, ...

    Attributes:
        run: The id of its run.
        index: Its position in a list that was logged under one name.
        type: ``image``, ``audio``, ``video``, ``histogram``, ``plot``, ``figure``, ``html``, ``markdown``, ``text`` or
            ``file``.
        blob: The SHA-256 of its content; empty where ``data`` holds all of it.
        size: The size of its content in bytes.
        format: The format of its content, as a file's suffix.
        data: Facts of this type: width and height, the counts of a histogram, the points of a plot, ...
    """

    run: str
    writer: str
    axis: str
    step: int
    time: float
    name: str
    index: int
    type: str
    blob: str
    size: int
    format: str
    caption: str
    data: dict[str, Any] = field(repr=False)
    run_dir: Path = field(repr=False)

    def read(self) -> bytes:
        """Its content, compared with the digest.

        Raises:
            BlobError: It has none, or the content is missing or damaged.
        """
        return read_blob(self.run_dir, self.blob)

    def open(self) -> io.BufferedReader:
        """Its content as an open file, for content larger than memory; not compared with the digest.

        Raises:
            BlobError: It has none, or it is missing.
        """
        return open_blob(self.run_dir, self.blob)

    def text(self) -> str:
        """Its content as text, for Markdown, HTML, texts and Plotly figures."""
        return self.read().decode(errors="replace")

    def image(self) -> Any:
        """Its content as a Pillow image.

        Raises:
            MissingExtraError: Pillow is not installed.
        """
        try:
            import PIL.Image
        except ModuleNotFoundError as error:
            raise MissingExtraError("MediaItem.image", "media") from error
        return PIL.Image.open(io.BytesIO(self.read()))

    @property
    def file_name(self) -> str:
        """A safe name for a file with its content: from its name, step and index."""
        number = f"-{self.index}" if self.index else ""
        return safe_file_name(f"{self.name}-{self.step}{number}", self.format if self.blob else "json")


def safe_file_name(stem: str, suffix: str) -> str:
    """A name for a file from recorded texts, without separators, leading dots or control characters."""
    cleaned = re.sub(r"[^\w.-]+", "_", stem, flags=re.ASCII).strip("._-")[:MAX_FILE_NAME] or "media"
    ending = re.sub(r"[^a-z0-9.]+", "", suffix.lower())[:16].strip(".")
    return f"{cleaned}.{ending}" if ending else cleaned


def media_query(
    store: Store,
    runs: Sequence[RunInfo],
    names: Names = None,
    *,
    type: Names = None,  # noqa: A002 - the column's name
    axis: str | None = None,
    steps: Steps = None,
    page: str = "",
) -> Result:
    """The rows of the table ``media``; see `Runs.media`."""
    conditions = Conditions()
    conditions.names("name", names)
    conditions.names("type", type)
    conditions.equal("axis", axis)
    conditions.steps(steps)
    query = f"SELECT * FROM media {conditions}"
    ordered = f"{query} {page or 'ORDER BY run, name, axis, step, time, index'}"
    return Result(partial(execute, store, runs, parameters=conditions.parameters), ordered, unlimited=query)


def media_items(runs: Sequence[RunInfo], result: Result) -> list[MediaItem]:
    """The rows of `media_query` as objects; tables are left out, which have contents of their own."""
    directories = {info.id: info.directory for info in runs}
    return [
        MediaItem(**row | {"data": parsed_object(row["data"]), "run_dir": directories[row["run"]]})
        for row in result
        if row["type"] != "table"
    ]


def parsed_object(text: str | None) -> dict[str, Any]:
    """A JSON column with floats in place of the names of those that are not finite."""
    found = json.loads(text) if text else {}
    return _parsed(found) if isinstance(found, dict) else {}


def _parsed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _parsed(each) for key, each in value.items()}
    return [_parsed(each) for each in value] if isinstance(value, list) else parse_nonfinite(value)


@dataclass(frozen=True, slots=True)
class StoredRecords:
    """Answers `RunInfo.media` and `RunInfo.table` of the runs below a root."""

    root: Path

    def media(self, run: RunInfo, names: Names, **options: Any) -> list[MediaItem]:
        """See `RunInfo.media`."""
        return media_items([run], media_query(open_store(self.root), [run], names, **options))

    def table(
        self,
        run: RunInfo,
        name: str,
        *,
        text: str | None = None,
        where: tuple[str, Comparison, Any] | None = None,
        sort: str | None = None,
        **options: Any,
    ) -> Result:
        """See `RunInfo.table`."""
        column, comparison, value = where or (None, "contains", None)
        is_descending = sort is not None and sort.startswith("-")
        rows = TableFilter(
            text=text,
            column=column,
            comparison=comparison,
            # As JSON has it: true, not True.
            value=None if value is None else json.dumps(value) if isinstance(value, bool) else str(value),
            sort=None if sort is None else sort.removeprefix("-"),
            descending=is_descending,
        )
        return table_result(open_store(self.root), run, name, rows=rows, **options)

    def series(self, run: RunInfo, names: Names, *, max_points: int) -> list[Series]:
        """Metrics of the run as lines of a chart."""
        return series(open_store(self.root), [run], Chart(names, max_points=max_points))


@dataclass(frozen=True, slots=True)
class TableFilter:
    """Which rows of a table, and in which order.

    Args:
        text: A text in any cell, ignoring case.
        column: The column that ``value`` is compared with.
        comparison: How: as numbers if ``value`` is one, otherwise as texts.
        sort: The column to sort by: numbers first, then texts; by default the recorded order.
    """

    text: str | None = None
    column: str | None = None
    comparison: str = "contains"
    value: str | None = None
    sort: str | None = None
    descending: bool = False

    def apply(self, conditions: Conditions) -> None:
        """Add the conditions."""
        # The values only: the names of the columns are in every row.
        conditions.text(["array_to_string(cells ->> '$.*', chr(31))"], self.text)
        if self.column is None or self.value is None:
            return
        if self.comparison not in COMPARISONS:
            known = closest(self.comparison, COMPARISONS)
            raise OptionError(f"comparison={self.comparison!r:.80}: there is no such comparison. {known}")
        cell = cell_text(self.column)
        number = _number(self.value)
        if self.comparison == "contains":
            conditions.text([cell], self.value)
        elif number is None:
            conditions.add(f"{cell} {self.comparison} ?", self.value)
        else:
            conditions.add(f"TRY_CAST({cell} AS DOUBLE) {self.comparison} ?", number)
            conditions.add(f"NOT isnan(TRY_CAST({cell} AS DOUBLE))")

    @property
    def order(self) -> str:
        """The ORDER BY clause."""
        recorded = "time, table_id, position"
        if self.sort is None:
            return f"ORDER BY {recorded}"
        cell, way = cell_text(self.sort), "DESC" if self.descending else "ASC"
        number = f"TRY_CAST({cell} AS DOUBLE)"
        # The database sorts NaN as the largest number; here it comes last, before missing values.
        return f"ORDER BY isnan({number}), {number} {way} NULLS LAST, {cell} {way} NULLS LAST, {recorded}"


def cell_text(column: str) -> str:
    """The SQL expression for the cells of a column as text."""
    return f"(cells ->> {sql_quote(_pointer(column))})"


def _pointer(column: str) -> str:
    """A JSON pointer: unlike a path, it can name any key."""
    return "/" + column.replace("~", "~0").replace("/", "~1")


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def table_conditions(name: str, *, axis: str | None, table_id: str | None, step: int | None) -> Conditions:
    """The conditions for the rows of a table."""
    conditions = Conditions()
    conditions.equal("name", name)
    conditions.equal("axis", axis)
    conditions.equal("table_id", table_id)
    conditions.equal("step", step)
    return conditions


def table_result(
    store: Store,
    run: RunInfo,
    name: str,
    *,
    latest: bool = False,
    step: int | None = None,
    axis: str | None = None,
    rows: TableFilter | None = None,
    limit: int | None = None,
    offset: int = 0,
) -> Result:
    """The rows of a run's table; see `RunInfo.table`."""
    require_integer("limit", limit, minimum=0, optional=True)
    require_integer("offset", offset, minimum=0)
    read = partial(execute, store, [run])
    known = [row for row in Result(read, TABLES_OF_RUNS) if axis in (None, row["axis"])]
    found = [row for row in known if row["name"] == name]
    if not found:
        names = {row["name"] for row in known}
        raise UnknownNameError(f"{run.id} has no table {name!r}. {closest(name, names)}")
    if latest:
        found = found[-1:]
    columns = list(dict.fromkeys(column for row in found for column in json.loads(row["columns"] or "[]")))
    table_id = found[0]["table_id"] if latest else None
    conditions = table_conditions(name, axis=axis, table_id=table_id, step=step)
    chosen = rows or TableFilter()
    types = _column_types(partial(read, parameters=list(conditions.parameters)), columns, str(conditions))
    for given in (chosen.column, chosen.sort):
        if given is not None and given not in columns:
            raise UnknownNameError(f"The table {name!r} has no column {given!r}. {closest(given, columns)}")
    chosen.apply(conditions)
    shown = ", ".join(f"{_typed(column, types[column])} AS {_identifier(column)}" for column in columns)
    query = f"SELECT {shown or 'position'} FROM table_rows {conditions} {chosen.order}"
    page = ("" if limit is None else f" LIMIT {limit}") + (f" OFFSET {offset}" if offset else "")
    return Result(partial(read, parameters=conditions.parameters), query + page, unlimited=query)


_NONFINITE = "('NaN', 'Infinity', '-Infinity')"


def _column_types(read: Any, columns: list[str], conditions: str) -> dict[str, set[str]]:
    """The JSON types of the cells of each column."""
    if not columns:
        return {}
    kinds = ", ".join(
        f"list(DISTINCT CASE WHEN {cell_text(column)} IN {_NONFINITE} THEN 'DOUBLE' ELSE "
        # A whole number beyond 64 bits is still a number.
        f"CASE json_type(cells, {sql_quote(_pointer(column))}) WHEN 'UBIGINT' THEN "
        f"if(TRY_CAST({cell_text(column)} AS BIGINT) IS NULL, 'DOUBLE', 'BIGINT') "
        f"ELSE json_type(cells, {sql_quote(_pointer(column))}) END END)"
        for column in columns
    )
    with read(f"SELECT {kinds} FROM table_rows {conditions}") as relation:
        [row] = relation.fetchall()
    return {column: set(found or ()) - {None, "NULL"} for column, found in zip(columns, row, strict=True)}


def _typed(column: str, types: set[str]) -> str:
    """The cells of a column with the type that all of them have; JSON texts if they have several."""
    if types <= {"VARCHAR"}:
        return cell_text(column)
    if types <= {"BIGINT"}:
        return f"TRY_CAST({cell_text(column)} AS BIGINT)"
    if types <= {"BIGINT", "DOUBLE"}:
        return f"TRY_CAST({cell_text(column)} AS DOUBLE)"
    if types == {"BOOLEAN"}:
        return f"TRY_CAST({cell_text(column)} AS BOOLEAN)"
    return f"CAST(json_extract(cells, {sql_quote(_pointer(column))}) AS VARCHAR)"


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
