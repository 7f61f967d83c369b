"""The tables of the store: their columns and layout, and how records become their rows.

A table has the same columns in the database, which holds the rows of live runs, and in the Parquet file of an ended
run. Columns that begin with ``_`` belong to the index and are not shown. Rows are handed to DuckDB as arrays, column by
column, which it copies without looking at each value.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import msgspec

from hookline._record.blobs import is_digest
from hookline._record.console_reader import STREAMS, read_console
from hookline._record.reader import JournalEntry
from hookline._record.records import (
    HOOKS_COST,
    HOOKS_PLAN,
    Event,
    LogLine,
    Media,
    Rewards,
    Sample,
    SampleUse,
    Status,
    TableRows,
    clean,
)
from hookline.store.columns import Block, OddValue, as_float
from hookline.store.run_info import RunInfo

VERSION = 9
"""The version of the index: one of another version is deleted and rebuilt."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table's columns with their types, after ``run``, and the layout of its Parquet file.

    Attributes:
        order: The sort order.
        group_rows: The size of a row group: smaller for wide rows, because a query reads whole groups.
    """

    columns: dict[str, str]
    order: str
    group_rows: int = 122_880

    @property
    def shown(self) -> str:
        """The visible columns."""
        return ", ".join(["run", *(f'"{name}"' for name in self.columns if not name.startswith("_"))])

    @property
    def definition(self) -> str:
        """The columns for CREATE TABLE."""
        return ", ".join(["run VARCHAR", *(f'"{name}" {kind}' for name, kind in self.columns.items())])


def _columns(declared: str) -> dict[str, str]:
    return dict(column.split(" ", 1) for column in declared.split("; "))


TABLES = {
    "metrics": Table(
        _columns(
            "writer VARCHAR; axis VARCHAR; step BIGINT; time DOUBLE; name VARCHAR; value DOUBLE; text VARCHAR; "
            "_session INTEGER; _order DOUBLE"
        ),
        "name, axis, step, coalesce(_order, time)",
    ),
    "samples": Table(
        _columns(
            "id VARCHAR; writer VARCHAR; axis VARCHAR; step BIGINT; time DOUBLE; prompt VARCHAR; "
            "completion VARCHAR; expected VARCHAR; reasoning VARCHAR; answer VARCHAR; "
            "rewards MAP(VARCHAR, DOUBLE); total DOUBLE; reward DOUBLE; advantage DOUBLE; group VARCHAR; "
            "lesson VARCHAR; extra JSON; truncated JSON; prompt_messages JSON; completion_messages JSON; "
            "finish VARCHAR; version BIGINT; length BIGINT; tokens JSON; rollout VARCHAR; parent VARCHAR; "
            "prompt_length BIGINT; last_version BIGINT; timings MAP(VARCHAR, DOUBLE)"
        ),
        "step, time",
        group_rows=4096,
    ),
    "sample_uses": Table(
        _columns(
            "writer VARCHAR; axis VARCHAR; step BIGINT; time DOUBLE; rollout VARCHAR; outcome VARCHAR; tokens JSON"
        ),
        "step, time",
        group_rows=16_384,
    ),
    "rewards": Table(
        _columns(
            "writer VARCHAR; step BIGINT; time DOUBLE; name VARCHAR; position BIGINT; value DOUBLE; sample VARCHAR"
        ),
        "name, step, time, position",
    ),
    "events": Table(
        _columns("writer VARCHAR; kind VARCHAR; time DOUBLE; step BIGINT; name VARCHAR; message VARCHAR; data JSON"),
        "time",
    ),
    "logs": Table(
        _columns("writer VARCHAR; time DOUBLE; level VARCHAR; logger VARCHAR; message VARCHAR; step BIGINT"),
        "time",
    ),
    "media": Table(
        _columns(
            "writer VARCHAR; axis VARCHAR; step BIGINT; time DOUBLE; name VARCHAR; index BIGINT; type VARCHAR; "
            "blob VARCHAR; size BIGINT; format VARCHAR; caption VARCHAR; data JSON"
        ),
        "name, axis, step, index, time",
        group_rows=4096,
    ),
    "table_rows": Table(
        _columns(
            "writer VARCHAR; axis VARCHAR; step BIGINT; time DOUBLE; name VARCHAR; table_id VARCHAR; "
            "position BIGINT; cells JSON"
        ),
        "name, table_id, position",
        group_rows=16_384,
    ),
    "blobs": Table(
        _columns(
            "writer VARCHAR; step BIGINT; name VARCHAR; type VARCHAR; blob VARCHAR; size BIGINT; format VARCHAR; "
            "file VARCHAR"
        ),
        "blob",
        group_rows=16_384,
    ),
}
"""One row per metric value, sample, use of a sample in training, reward value, event or status, log line, medium, row
of a table, and reference to a blob.

``media`` also has one row for each table, of the type ``table``, with its columns: a table without rows is listed too.
``blobs`` has what media, their masks and the cells of tables refer to.
"""

ORDERED_METRICS = "metrics_in_order"
"""A view for our own queries: ``metrics`` with an additional column for the recorded order."""
ORDER_COLUMN = "recorded"
"""That column: the time, or ``_order`` where the clock stood still or went back."""

RUN_COLUMNS = _columns(
    "id VARCHAR; name VARCHAR; project VARCHAR; experiment VARCHAR; group VARCHAR; arm VARCHAR; repeat BIGINT; "
    "stage VARCHAR; seed BIGINT; status VARCHAR; message VARCHAR; started DOUBLE; ended DOUBLE; step BIGINT; "
    "num_steps BIGINT; last_seen DOUBLE; directory VARCHAR; config JSON; summary JSON; notes VARCHAR; "
    "tags VARCHAR[]; host VARCHAR; problems VARCHAR[]"
)
"""The table ``runs``: attributes of `RunInfo`."""

HOOK_KEYS = ("calls", "errors", "total_seconds", "mean_seconds", "p95_seconds", "max_seconds")
_KEY = f"({'|'.join(HOOK_KEYS)})$"
_COST = json.dumps(
    [
        {"name": "VARCHAR", "calls": "BIGINT", "errors": "BIGINT", "disabled": "BOOLEAN"}
        | {key: "DOUBLE" for key in HOOK_KEYS if key.endswith("_seconds")}
    ]
)
HOOKS = f"""
SELECT run, writer, any_value(hook) AS name,
    TRY_CAST(max(value) FILTER (key = 'calls') AS BIGINT) AS calls,
    1000 * max(value) FILTER (key = 'total_seconds') AS total_ms,
    1000 * max(value) FILTER (key = 'mean_seconds') AS mean_ms,
    1000 * max(value) FILTER (key = 'p95_seconds') AS p95_ms,
    1000 * max(value) FILTER (key = 'max_seconds') AS max_ms,
    TRY_CAST(max(value) FILTER (key = 'errors') AS BIGINT) AS errors,
    CAST(NULL AS BOOLEAN) AS disabled, CAST(NULL AS DOUBLE) AS share,
    step, time
FROM (
    SELECT *, regexp_extract(name, '(?:^|/)hooks/(.+)/{_KEY}', 1) AS hook, regexp_extract(name, '/{_KEY}', 1) AS key
    FROM metrics WHERE contains(name, 'hooks/')
) WHERE hook <> '' AND key <> ''
GROUP BY run, writer, hook, axis, step, time
UNION ALL
SELECT run, writer, cost.name, cost.calls, 1000 * cost.total_seconds, 1000 * cost.mean_seconds,
    1000 * cost.p95_seconds, 1000 * cost.max_seconds, cost.errors, cost.disabled,
    cost.total_seconds / nullif(seconds, 0), step, time
FROM (
    SELECT run, writer, step, time, TRY_CAST(data ->> '$.seconds' AS DOUBLE) AS seconds,
        unnest(from_json(json_extract(data, '$.costs'), '{_COST}')) AS cost
    FROM events WHERE kind = 'event' AND name = '{HOOKS_COST}'
) WHERE cost.name IS NOT NULL
"""
"""The view ``hooks``: the cost of subscribers, one row per report; final ones have their share of the run's time."""

HOOK_ERRORS = """
SELECT run, writer, data ->> '$.subscriber' AS name, count(*) AS errors,
    coalesce(bool_or(TRY_CAST(data ->> '$.disabled' AS BOOLEAN)), false) AS disabled,
    arg_max(data ->> '$.error', time) AS error, arg_max(data ->> '$.moment', time) AS moment,
    arg_max(step, time) AS step, max(time) AS time
FROM events WHERE kind = 'event' AND name = 'hook_error' AND data ->> '$.subscriber' IS NOT NULL
GROUP BY ALL ORDER BY run, max(time) DESC
"""
"""The subscribers that failed: how often, whether that disabled them, and their last error."""

HOOK_ORDER = f"""
SELECT run, writer, json_extract(data, '$.moments') AS moments,
    coalesce(TRY_CAST(data ->> '$.left_out' AS BIGINT), 0) AS left_out,
    count(*) OVER (PARTITION BY run, writer) AS versions, step, time
FROM events WHERE kind = 'event' AND name = '{HOOKS_PLAN}'
QUALIFY row_number() OVER (PARTITION BY run, writer ORDER BY time DESC) = 1 ORDER BY run, writer
"""
"""The order of subscribers at each moment, as each writer last recorded it."""


Row = tuple[Any, ...]
_PLAIN_CELLS = frozenset({str, int, bool, type(None)})
_MAX_INTEGER = (1 << 63) - 1


class Rows:
    """Collects the rows of one run, by table. Metrics are kept as blocks of columns."""

    def __init__(self) -> None:
        self.tables: dict[str, list[Row]] = {name: [] for name in TABLES}
        self.blocks: list[Block] = []
        self.count = 0

    def counts(self) -> dict[str, int]:
        """The number of rows of each table that has some."""
        counts = {name: len(rows) for name, rows in self.tables.items()}
        counts["metrics"] += sum(block.values.size for block in self.blocks)
        return {name: count for name, count in counts.items() if count}

    def add_block(self, block: Block) -> None:
        """Add metrics that are numbers."""
        self.blocks.append(block)
        self.count += block.values.size

    def add_odd(self, odd: OddValue) -> None:
        """Add a metric whose value is not a number."""
        order = None if odd.order == odd.time else odd.order
        text = odd.value if odd.value is None or isinstance(odd.value, str) else _json(odd.value)
        place = (odd.file.name, odd.axis, odd.step, odd.time, odd.full_name)
        self._put("metrics", (*place, None, text, odd.file.session, order))

    def add(self, entry: JournalEntry) -> None:
        """Add a record that is not a row of metrics."""
        record, writer = entry.record, entry.file.name
        if isinstance(record, Sample):
            self._put("samples", sample_row(record, writer, entry.id))
            self._add_sample_blobs(record, writer)
        elif isinstance(record, SampleUse):
            self._add_sample_use(record, writer)
        elif isinstance(record, LogLine):
            self._put("logs", (writer, record.time, record.level, record.logger, record.message, record.step))
        elif isinstance(record, Rewards):
            self._add_rewards(record, writer)
        elif isinstance(record, Media):
            self._add_media(record, writer)
        elif isinstance(record, TableRows):
            self._add_table_rows(record, writer)
        elif isinstance(record, Event | Status):
            self._add_event(record, writer)

    def _add_rewards(self, record: Rewards, writer: str) -> None:
        samples = [*record.samples, *[None] * len(record.values)]
        for position, (value, sample) in enumerate(zip(record.values, samples, strict=False)):
            self._put("rewards", (writer, record.step, record.time, record.name, position, as_float(value), sample))

    def _add_event(self, record: Event | Status, writer: str) -> None:
        if isinstance(record, Event):
            words = ("event", record.time, record.step, record.name, "")
        else:
            words = ("status", record.time, record.step, record.status, record.message)
        self._put("events", (writer, *words, _json(record.data)))

    def _add_media(self, record: Media, writer: str) -> None:
        stamp = (writer, record.axis, record.step, record.time, record.name)
        content = (record.index, record.type, record.blob, record.size, record.format, record.caption)
        self._put("media", (*stamp, *content, _json(record.data)))
        described = {"type": record.type, "blob": record.blob, "size": record.size, "format": record.format}
        self._add_blobs((writer, record.step, record.name), described | {"data": record.data})

    def _add_sample_blobs(self, record: Sample, writer: str) -> None:
        """Add the blobs of a sample's tokens and of the images in its messages."""
        stamp = (writer, record.step, "samples")
        if record.tokens is not None:
            self._add_blobs(stamp, record.tokens)
        for message in (*(record.prompt_messages or ()), *(record.completion_messages or ())):
            content = message.get("content") if isinstance(message, dict) else None
            for part in content if isinstance(content, list) else ():
                if isinstance(part, dict) and isinstance(part.get("media"), dict):
                    self._add_blobs(stamp, part["media"])

    def _add_sample_use(self, record: SampleUse, writer: str) -> None:
        for name in record.rollouts:
            tokens = record.tokens.get(name)
            stamp = (writer, record.axis, record.step, record.time)
            self._put("sample_uses", (*stamp, name, record.outcome, None if tokens is None else _json(tokens)))
            if tokens is not None:
                self._add_blobs((writer, record.step, "samples"), tokens)

    def _add_table_rows(self, record: TableRows, writer: str) -> None:
        stamp = (writer, record.axis, record.step, record.time, record.name)
        if record.start == 0:
            facts = _json({"table": record.table, "columns": record.columns})
            self._put("media", (*stamp, 0, "table", "", 0, "", "", facts))
        for position, cells in enumerate(record.rows, start=record.start):
            row = dict(zip(record.columns, cells, strict=False))
            # Cleaning looks at each value again: rows of plain values, which are nearly all, need none.
            is_plain = all(type(cell) in _PLAIN_CELLS or (type(cell) is float and isfinite(cell)) for cell in cells)
            text = msgspec.json.encode(row).decode() if is_plain else _json(row)
            self._put("table_rows", (*stamp, record.table, position, text))
            for cell in cells:
                if isinstance(cell, dict) and isinstance(cell.get("media"), dict):
                    self._add_blobs((writer, record.step, record.name), cell["media"])

    def _add_blobs(self, stamp: tuple[str, int, str], described: dict[str, Any]) -> None:
        """Add the blob of a medium, and those of its masks; anyone may have written the description.

        Args:
            stamp: The writer, the step and the name of what refers to it.
        """
        data = described.get("data")
        facts = data if isinstance(data, dict) else {}
        parts = facts.get("parts")
        masks = parts.values() if isinstance(parts, dict) else ()
        found = [(described, described.get("type"), described.get("format"), facts.get("file"))]
        found += [(mask, "mask", "png", None) for mask in masks if isinstance(mask, dict)]
        for source, kind, suffix, file in found:
            digest, size = source.get("blob"), source.get("size")
            if isinstance(digest, str) and is_digest(digest):
                size = size if isinstance(size, int) else 0
                texts = (_plain_text(kind), digest, size, _plain_text(suffix), _plain_text(file) or None)
                self._put("blobs", (*stamp, *texts))

    def _put(self, table: str, row: Row) -> None:
        self.tables[table].append(row)
        self.count += 1


_MAX_LISTED_NAMES = 1000
"""Up to this many distinct texts of a column become part of a query; more are passed row by row."""


def row_selects(name: str, batches: Sequence[tuple[str, Rows]]) -> list[tuple[dict[str, Any], str]]:
    """The rows of a table of several runs: arrays, and for each set of them the columns of a SELECT from it."""
    table = TABLES[name]
    selects = []
    if name == "metrics":
        blocks = [(run, block) for run, rows in batches for block in rows.blocks]
        if blocks:
            selects.append(_metric_arrays(blocks))
    rows = [(run, row) for run, batch in batches for row in batch.tables[name]]
    if rows:
        arrays, expressions = column_arrays(table, [row for _, row in rows])
        arrays["run"], run = _text_column("run", [run for run, _ in rows], [1] * len(rows))
        columns = zip(["run", *table.columns], [run, *expressions], strict=True)
        selects.append((arrays, ", ".join(f'{expression} AS "{column}"' for column, expression in columns)))
    return selects


def _metric_arrays(blocks: list[tuple[str, Block]]) -> tuple[dict[str, Any], str]:
    """Blocks of metrics as arrays with a row per value, and the columns of a SELECT from them."""
    import numpy as np

    arrays: dict[str, Any] = {}
    sizes = [block.values.size for _, block in blocks]
    for column in ("step", "time", "order"):
        arrays[column] = np.concatenate([np.tile(getattr(block, column), len(block.names)) for _, block in blocks])
    arrays["value"] = np.concatenate([block.values.ravel() for _, block in blocks])
    value = '"value"'
    # DuckDB reads NaN in an array as NULL, so a second array marks the values that are NaN.
    if (is_nan := np.isnan(arrays["value"])).any():
        arrays["value is nan"] = is_nan
        value = 'CASE WHEN "value is nan" THEN \'NaN\'::DOUBLE ELSE "value" END'
    order = "NULL::DOUBLE"
    if (is_odd := arrays["order"] != arrays["time"]).any():
        arrays["order"] = np.where(is_odd, arrays["order"], np.nan)  # NULL where the time is the order
        order = '"order"'
    else:
        del arrays["order"]
    names = [(name, len(block)) for _, block in blocks for name in block.full_names]
    texts = {
        "run": ([run for run, _ in blocks], sizes),
        "writer": ([block.file.name for _, block in blocks], sizes),
        "axis": ([block.axis for _, block in blocks], sizes),
        "name": ([name for name, _ in names], [size for _, size in names]),
    }
    columns = {}
    for column, (values, counts) in texts.items():
        arrays[column], columns[column] = _text_column(column, values, counts)
    arrays["session"] = np.repeat([block.file.session for _, block in blocks], sizes)
    columns |= {"step": "step", "time": '"time"', "value": value, "text": "NULL::VARCHAR"}
    columns |= {"_session": "session::INTEGER", "_order": order}
    return arrays, ", ".join(f'{columns[column]} AS "{column}"' for column in ("run", *TABLES["metrics"].columns))


def _text_column(column: str, values: list[str], counts: list[int]) -> tuple[Any, str]:
    """An array for a column of texts that repeat, and its expression.

    Numbers that stand for texts are handed over much faster than the texts.
    """
    import numpy as np

    distinct = {value: position for position, value in enumerate(dict.fromkeys(values), start=1)}
    if len(distinct) > _MAX_LISTED_NAMES:
        texts = np.empty(len(values), dtype=object)
        texts[:] = values
        return np.repeat(texts, counts), f'"{column}"'
    codes = np.repeat(np.array([distinct[value] for value in values], dtype=np.int32), counts)
    listed = ", ".join("'" + value.replace("'", "''") + "'" for value in distinct)
    return codes, f'list_extract([{listed}], "{column}")'


def column_arrays(table: Table, rows: list[Row]) -> tuple[dict[str, Any], list[str]]:
    """Rows as arrays, and the SQL expressions that turn them into the table's columns.

    DuckDB reads NaN in an array as NULL, so a second array marks the values that are NaN.
    """
    import numpy as np

    arrays: dict[str, Any] = {}
    expressions = []
    for position, (name, kind) in enumerate(table.columns.items()):
        values = [row[position] for row in rows]
        expression = f'"{name}"'
        if kind == "DOUBLE":
            arrays[name] = floats = np.array(values, dtype=np.float64)
            if np.isnan(floats).any():
                arrays[f"{name} is nan"] = np.array([value != value for value in values])
                expression = f'CASE WHEN "{name} is nan" THEN \'NaN\'::DOUBLE ELSE "{name}" END'
        elif kind in ("BIGINT", "INTEGER"):
            try:
                arrays[name] = np.array(values, dtype=np.int64)
            except (TypeError, OverflowError):  # a value is None, or larger than any step should be
                fits = [0 if value is None else max(-_MAX_INTEGER, min(_MAX_INTEGER, value)) for value in values]
                arrays[name] = np.ma.masked_array(np.array(fits, dtype=np.int64), [value is None for value in values])
        else:
            arrays[name] = array = np.empty(len(values), dtype=object)
            array[:] = values
            is_nested = kind.startswith("MAP") or kind.endswith("[]")
            expression = f"CAST({expression} AS JSON)" if is_nested else expression
        expressions.append(f"CAST({expression} AS {kind})")
    return arrays, expressions


def sample_row(record: Sample, writer: str, key: str) -> Row:
    """The row of a sample in the table ``samples``, whose id is ``key``; JSON as text."""
    rewards = {name: as_float(value) for name, value in record.rewards.items()}
    texts = (record.prompt, record.completion, record.expected, record.reasoning, record.answer)
    total = as_float(record.total)
    given = [value for value in rewards.values() if value is not None]
    reward = total if total is not None or not given else sum(given)
    numbers = (_json(rewards), total, reward, as_float(record.advantage))
    rest = (record.group, record.lesson, _json(record.extra), _json(record.truncated))
    chats = tuple(
        None if each is None else _json(each) for each in (record.prompt_messages, record.completion_messages)
    )
    facts = (record.finish, _stored_integer(record.version), _stored_integer(record.length))
    tokens = None if not record.tokens else _json(record.tokens)
    origin = (record.rollout, record.parent, _stored_integer(record.prompt_length))
    own = (tokens, *origin, _stored_integer(record.last_version), _json(record.timings))
    return (key, writer, record.axis, record.step, record.time, *texts, *numbers, *rest, *chats, *facts, *own)


def _stored_integer(value: int | None) -> int | None:
    return value if value is None or abs(value) <= _MAX_INTEGER else None


def _plain_text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _json(value: Any) -> str:
    return "{}" if value == {} else msgspec.json.encode(clean(value)).decode()


def run_arrays(runs: Sequence[RunInfo]) -> tuple[dict[str, Any], list[str]]:
    """The table ``runs``, like `column_arrays`."""
    rows = [tuple(_run_value(info, name) for name in RUN_COLUMNS) for info in runs]
    return column_arrays(Table(RUN_COLUMNS, "id"), rows)


METRIC_NAMES = "metric_names"
"""The table of the metrics of each run, made from the columns of the runs when a query names it."""
METRIC_NAME_COLUMNS = _columns(
    "run VARCHAR; name VARCHAR; axis VARCHAR; points BIGINT; texts BIGINT; first_step BIGINT; last_step BIGINT"
)


def metric_name_arrays(runs: Iterable[tuple[str, Mapping[tuple[str, str], Any]]]) -> tuple[dict[str, Any], list[str]]:
    """The table ``metric_names``, like `column_arrays`.

    Args:
        runs: For each run its id, and the facts of its metrics by name and axis.
    """
    rows = [
        (run, name, axis, facts.points, facts.texts, facts.first_step, facts.last_step)
        for run, metrics in runs
        for (name, axis), facts in metrics.items()
    ]
    return column_arrays(Table(METRIC_NAME_COLUMNS, "name"), rows)


CONSOLE_COLUMNS = _columns(
    "run VARCHAR; rank BIGINT; stream VARCHAR; time DOUBLE; step BIGINT; text VARCHAR; level VARCHAR; logger VARCHAR"
)
"""The table ``console``, which is read from the files of the runs when a query names it: they are bounded."""


def console_arrays(runs: Sequence[RunInfo]) -> tuple[dict[str, Any], list[str]]:
    """The table ``console``, like `column_arrays`."""
    rows = [
        (info.id, row.rank, row.stream, row.time, row.step, row.text, row.level, row.logger)
        for info in runs
        for row in read_console(info.directory, streams=STREAMS)
    ]
    return column_arrays(Table(CONSOLE_COLUMNS, "time"), rows)


def _run_value(info: RunInfo, name: str) -> Any:
    value = getattr(info, name)
    if name in ("tags", "problems"):
        return json.dumps(list(value))
    if name in ("config", "summary"):
        return None if value is None else json.dumps(clean(value))
    return str(value) if name == "directory" else value
