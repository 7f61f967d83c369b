"""Endpoints for media and tables: their names and steps, media at a step, histograms over steps, pages of tables.

Whatever a run recorded may come from elsewhere, so every reply is bounded: the number of names, steps, items and cells,
and the length of texts. A page says how many there are in all.
"""

import json
import math
from typing import Any

import msgspec

from hookline._record.records import clean
from hookline.server.endpoint import RUN, Parameter, Values, records_endpoint
from hookline.server.listing import Listing, Number, json_object, number
from hookline.store.media import COMPARISONS, MEDIA_NAMES, TABLES_OF_RUNS, TableFilter, table_conditions

MAX_NAMES = 1000
MAX_STEPS = 2000
MAX_TABLES = 500
MAX_COLUMNS = 200
MAX_CHARACTERS = 2000
"""How much of a caption or of a cell is sent."""
MAX_DATA_BYTES = 8_000_000
"""How much data (counts, points, boxes) a reply has; further items come without."""
MAX_PAGE_CHARACTERS = 4 << 20
"""How much text the cells of a page have in all."""
MAX_BINS = 128
"""Histograms with more bins are merged: their counts are added, so that none is lost."""
MAX_HISTOGRAMS = 4000

_NAME = Parameter("name", "string", "The name of media or of a table, as returned by /api/media/names.", required=True)
_TYPE = Parameter("type", "string", "The type, as returned by /api/media/names.", required=True)
_AXIS = Parameter("axis", "string", "The axis: train, eval, rollout, ...", default="train")
_ANY_NAME = Parameter("name", "string", "The name of media; all by default.")
_ANY_TYPE = Parameter("type", "string", "The type; by default all but histograms and tables, which show all steps.")
_ANY_AXIS = Parameter("axis", "string", "The axis; all by default.")
_STEP = Parameter("step", "integer", "The step; each run shows its last media up to it. By default the last step.")
_LIMIT = Parameter("limit", "integer", "The maximum number of media per run.", default=24, low=1, high=100)
_OFFSET = Parameter("offset", "integer", "How many to skip.", default=0, low=0)
_MOST = Parameter("max_steps", "integer", "The maximum number of histograms per run.", default=80, low=2, high=400)
_TABLE_RUN = Parameter("run", "string", "The id of a run, as returned by /api/runs.", required=True)
_TABLE = Parameter("table", "string", "The id of one table; by default the rows of all tables with the name.")
_TEXT = Parameter("text", "string", "A text in any cell, ignoring case.")
_COLUMN = Parameter("column", "string", "The column to compare with value.")
_COMPARISON = Parameter("comparison", "string", "How to compare.", default="contains", choices=COMPARISONS)
_VALUE = Parameter("value", "string", "The value to compare with: as a number, if it is one.")
_SORT = Parameter("sort", "string", "The column to sort by; by default the recorded order.")
_ORDER = Parameter("order", "string", "The direction of the sort order.", default="up", choices=("up", "down"))
_ROWS = Parameter("limit", "integer", "The maximum number of rows.", default=25, low=1, high=200)

_STEPS = """
SELECT DISTINCT step FROM media
WHERE ($name IS NULL OR name = $name) AND ($axis IS NULL OR axis = $axis)
    AND if($type IS NULL, type NOT IN ('histogram', 'table'), type = $type)
ORDER BY step
"""
_AT_STEP = """
SELECT run, axis, step, time, left(name, 1000) AS name, index, type, blob, size, format,
    left(caption, $characters) AS caption, if(length(data) <= $most, data, NULL) AS data, total
FROM (
    SELECT *, row_number() OVER (PARTITION BY run ORDER BY time, index) AS rank,
        count(*) OVER (PARTITION BY run) AS total
    FROM (
        SELECT *, max(step) OVER (PARTITION BY run) AS shown FROM media
        WHERE name = $name AND axis = $axis AND type = $type AND ($step IS NULL OR step <= $step)
    ) WHERE step = shown
) WHERE rank > $offset AND rank <= $offset + $limit ORDER BY run, rank
"""
_HISTOGRAMS = """
SELECT run, step, time, data FROM (
    SELECT *, row_number() OVER (PARTITION BY run ORDER BY step, time) AS rank,
        count(*) OVER (PARTITION BY run) AS total
    FROM media WHERE name = $name AND axis = $axis AND type = 'histogram' AND index = 0 AND length(data) <= $most
) WHERE (total - rank) % greatest(1, CAST(ceil(total / $limit) AS BIGINT)) = 0 ORDER BY run, step, time
"""


class MediaName(msgspec.Struct):
    """A name under which media of a type were logged."""

    name: str
    axis: str
    type: str
    runs: int
    items: int
    first_step: int
    last_step: int


class MediaNames(msgspec.Struct):
    """The names of media and tables of some runs; ``total`` counts those that are left out as well."""

    total: int
    names: list[MediaName]


class MediaSteps(msgspec.Struct):
    """The steps with media, evenly thinned if there are very many; ``total`` counts all."""

    total: int
    steps: list[int]


class MediaRow(msgspec.Struct):
    """A medium of a run; ``cut`` if its data is too large to be sent."""

    run: str
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
    data: dict[str, Any]
    cut: bool


class MediaPage(msgspec.Struct):
    """Media at a step, by run, and how many each run has there."""

    totals: dict[str, int]
    media: list[MediaRow]


class HistogramRow(msgspec.Struct):
    """A histogram; ``edges`` only if the bins are not of equal width."""

    run: str
    step: int
    time: float
    low: float
    high: float
    counts: list[float]
    edges: list[float] | None
    count: float
    mean: Number
    std: Number
    nonfinite: int


class Histograms(msgspec.Struct):
    """Histograms of a name by step, evenly thinned."""

    histograms: list[HistogramRow]


class TableInfo(msgspec.Struct):
    """A table: one name may have several, logged at different steps."""

    run: str
    name: str
    axis: str
    table: str
    step: int
    last_step: int
    columns: list[str]
    rows: int


class Tables(msgspec.Struct):
    """The tables of some runs with a name."""

    total: int
    tables: list[TableInfo]


class TableRow(msgspec.Struct):
    """A row of a table: its cells in the order of the columns."""

    table: str
    step: int
    position: int
    cells: list[Any]


class TablePage(msgspec.Struct):
    """A page of a table's rows, and how many rows match in all.

    A cell with more than 2,000 characters is an object ``{"text": ..., "characters": ...}`` with its first ones.
    """

    columns: list[str]
    total: int
    rows: list[TableRow]


def _names(listing: Listing, values: Values) -> MediaNames:
    found = listing.some(values["run"]).sql(MEDIA_NAMES, limit=MAX_NAMES)
    rows = [MediaName(**row) for row in found if len(row["name"]) <= MAX_CHARACTERS]
    return MediaNames(found.total() if len(rows) >= MAX_NAMES else len(rows), rows)


def _steps(listing: Listing, values: Values) -> MediaSteps:
    given = {name: values[name] for name in ("name", "axis", "type")}
    steps = listing.some(values["run"]).sql(_STEPS, given).columns()["step"]
    every = max(1, -(-len(steps) // MAX_STEPS))
    return MediaSteps(len(steps), steps[::-1][::every][::-1])  # including the last one


def _media(listing: Listing, values: Values) -> MediaPage:
    given = {name: values[name] for name in ("name", "axis", "type", "step", "limit", "offset")}
    given |= {"characters": MAX_CHARACTERS, "most": MAX_DATA_BYTES}
    totals: dict[str, int] = {}
    media, left = [], MAX_DATA_BYTES
    for row in listing.some(values["run"]).sql(_AT_STEP, given):
        totals[row["run"]] = row.pop("total")
        text = row.pop("data")
        is_cut = text is None or len(text) > left
        left -= 0 if is_cut else len(text)
        media.append(MediaRow(**row, data={} if is_cut else json_object(text), cut=is_cut))
    return MediaPage(totals, media)


def _histograms(listing: Listing, values: Values) -> Histograms:
    runs = listing.some(values["run"])
    most = max(2, min(values["max_steps"], MAX_HISTOGRAMS // max(1, len(runs))))
    given = {"name": values["name"], "axis": values["axis"], "limit": most, "most": MAX_DATA_BYTES // 64}
    rows = [_histogram(row) for row in runs.sql(_HISTOGRAMS, given)]
    return Histograms([row for row in rows if row is not None])


def _histogram(row: dict[str, Any]) -> HistogramRow | None:
    """A histogram as recorded, if it is one: anyone may have written it."""
    data = json_object(row["data"])
    given: list[Any] = [data.get(name) for name in ("counts", "low", "high", "edges")]
    counts, low, high, edges = given
    if not _are_numbers(counts) or not _are_numbers([low, high]) or low > high:
        return None
    if edges is not None and (not _are_numbers(edges) or len(edges) != len(counts) + 1):
        return None
    together = -(-len(counts) // MAX_BINS)
    if together > 1:
        # The last bin may span fewer of the old ones: then the edges are needed.
        width = (high - low) / len(counts)
        old = edges or [low + width * place for place in range(len(counts))] + [high]
        edges = [*old[:-1:together], old[-1]]
        counts = [sum(counts[place : place + together]) for place in range(0, len(counts), together)]
    lost = data.get("nonfinite")
    return HistogramRow(
        run=row["run"],
        step=row["step"],
        time=row["time"],
        low=low,
        high=high,
        counts=counts,
        edges=edges,
        count=float(sum(counts)),
        mean=number(data.get("mean")),
        std=number(data.get("std")),
        nonfinite=lost if isinstance(lost, int) and 0 <= lost < 1 << 53 else 0,
    )


def _are_numbers(values: Any) -> bool:
    return (
        isinstance(values, list)
        and bool(values)
        and all(isinstance(each, int | float) and abs(each) < 1e300 and math.isfinite(each) for each in values)
    )


def _tables(listing: Listing, values: Values) -> Tables:
    query = f"SELECT * FROM ({TABLES_OF_RUNS}) WHERE name = ? AND axis = ? ORDER BY run, step, time"  # noqa: S608
    found = listing.some(values["run"]).sql(query, [values["name"], values["axis"]], limit=MAX_TABLES)
    rows = [
        TableInfo(
            columns=_columns(row["columns"]),
            table=row["table_id"] or "",
            **{name: row[name] for name in ("run", "name", "axis", "step", "rows")},
            last_step=row["last_step"] if row["last_step"] is not None else row["step"],
        )
        for row in found
    ]
    return Tables(found.total() if len(rows) >= MAX_TABLES else len(rows), rows)


def _columns(text: str | None) -> list[str]:
    found = json.loads(text) if text else []
    return [str(name) for name in found][:MAX_COLUMNS]


def _table(listing: Listing, values: Values) -> TablePage:
    runs = listing.some([values["run"]])
    query = f"SELECT columns FROM ({TABLES_OF_RUNS}) WHERE name = ? AND axis = ? AND (? IS NULL OR table_id = ?)"  # noqa: S608
    parameters = [values["name"], values["axis"], values["table"], values["table"]]
    known = [column for row in runs.sql(query, parameters, limit=MAX_TABLES) for column in _columns(row["columns"])]
    columns = list(dict.fromkeys(known))[:MAX_COLUMNS]
    chosen = TableFilter(
        text=values["text"],
        column=values["column"],
        comparison=values["comparison"],
        value=values["value"],
        sort=values["sort"],
        descending=values["order"] == "down",
    )
    conditions = table_conditions(values["name"], axis=values["axis"], table_id=values["table"], step=None)
    chosen.apply(conditions)
    inner = f"SELECT table_id, step, position, cells FROM table_rows {conditions}"  # noqa: S608 - with parameters
    [(total,)] = (
        row.values()
        for row in runs.sql(f"SELECT count(*) AS total FROM ({inner})", conditions.parameters)  # noqa: S608
    )
    page = f"{inner} {chosen.order} LIMIT {int(values['limit'])} OFFSET {int(values['offset'])}"
    found = runs.sql(page, conditions.parameters).rows()
    most = max(40, min(MAX_CHARACTERS, MAX_PAGE_CHARACTERS // max(1, len(found) * len(columns))))
    rows = []
    for row in found:
        cells = json_object(row["cells"])
        shown = [_cell(cells.get(column), most) for column in columns]
        rows.append(TableRow(row["table_id"] or "", row["step"], row["position"], shown))
    return TablePage(columns, total, rows)


def _cell(value: Any, most: int) -> Any:
    if isinstance(value, dict | list):
        if isinstance(value, dict) and isinstance(value.get("media"), dict):
            medium = value["media"]
            known = ("type", "blob", "size", "format", "caption", "data")
            described = {name: medium[name] for name in known if name in medium}
            return {"media": described} if len(msgspec.json.encode(described)) <= 16 * MAX_CHARACTERS else None
        text = msgspec.json.encode(value).decode()
        return value if len(text) <= most else {"text": text[:most], "characters": len(text)}
    if isinstance(value, str) and len(value) > most:
        return {"text": value[:most], "characters": len(value)}
    return clean(value)


_FILTER = (_TEXT, _COLUMN, _COMPARISON, _VALUE, _SORT, _ORDER)
ENDPOINTS = (
    records_endpoint("/api/media/names", "The names of media and tables of some runs.", MediaNames, _names, (RUN,)),
    records_endpoint(
        "/api/media/steps", "The steps with media.", MediaSteps, _steps, (RUN, _ANY_NAME, _ANY_TYPE, _ANY_AXIS)
    ),
    records_endpoint(
        "/api/media",
        "Media of some runs at a step.",
        MediaPage,
        _media,
        (RUN, _NAME, _TYPE, _AXIS, _STEP, _LIMIT, _OFFSET),
    ),
    records_endpoint(
        "/api/media/histograms", "Histograms over the steps.", Histograms, _histograms, (RUN, _NAME, _AXIS, _MOST)
    ),
    records_endpoint("/api/tables", "The tables with a name.", Tables, _tables, (RUN, _NAME, _AXIS)),
    records_endpoint(
        "/api/table",
        "Rows of a table, sorted and filtered, page by page.",
        TablePage,
        _table,
        (_TABLE_RUN, _NAME, _AXIS, _TABLE, *_FILTER, _ROWS, _OFFSET),
    ),
)
