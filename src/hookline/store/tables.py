"""The tables of the store: their columns and layout, and how records become their rows.

A table has the same columns in the database, which holds the rows of live runs, and in the Parquet file of an ended
run. Columns that begin with ``_`` belong to the index and are not shown. Rows are handed to DuckDB as arrays, column by
column, which it copies without looking at each value.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from hookline._record.reader import JournalEntry
from hookline._record.records import HOOKS_COST, HOOKS_PLAN, Event, LogLine, Metrics, Rewards, Sample, Status, clean
from hookline.store.run_info import RunInfo

VERSION = 5
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
            "lesson VARCHAR; extra JSON; truncated JSON"
        ),
        "step, time",
        group_rows=4096,
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
}
"""One row per metric value, sample, reward value, event or status, and log line."""

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
_MAX_INTEGER = (1 << 63) - 1


class Rows:
    """Collects rows from records, by table."""

    def __init__(self) -> None:
        self.tables: dict[str, list[Row]] = {name: [] for name in TABLES}
        self.count = 0

    def add(self, entry: JournalEntry, order: float | None = None) -> None:
        """Add a record.

        Args:
            order: Places a row of metrics behind its writer's earlier ones; None if its time does.
        """
        record, writer = entry.record, entry.file.name
        if isinstance(record, Metrics):
            append = self.tables["metrics"].append
            axis, step, time, session = record.axis, record.step, record.time, entry.file.session
            for name, value in record.values.items():
                if type(value) is float:  # the usual case
                    append((writer, axis, step, time, name, value, None, session, order))
                else:
                    append((writer, axis, step, time, name, number(value), _text(value), session, order))
            self.count += len(record.values)
        elif isinstance(record, Sample):
            self._put("samples", _sample_row(record, writer, entry.id))
        elif isinstance(record, LogLine):
            self._put("logs", (writer, record.time, record.level, record.logger, record.message, record.step))
        elif isinstance(record, Rewards):
            samples = [*record.samples, *[None] * len(record.values)]
            for position, (value, sample) in enumerate(zip(record.values, samples, strict=False)):
                self._put("rewards", (writer, record.step, record.time, record.name, position, number(value), sample))
        elif isinstance(record, Event):
            self._put("events", (writer, "event", record.time, record.step, record.name, "", _json(record.data)))
        elif isinstance(record, Status):
            row = (writer, "status", record.time, record.step, record.status, record.message, _json(record.data))
            self._put("events", row)

    def _put(self, table: str, row: Row) -> None:
        self.tables[table].append(row)
        self.count += 1


def number(value: Any) -> float | None:
    """A value as a float; None if it is not a number."""
    if not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


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


def _sample_row(record: Sample, writer: str, key: str) -> Row:
    rewards = {name: number(value) for name, value in record.rewards.items()}
    texts = (record.prompt, record.completion, record.expected, record.reasoning, record.answer)
    total = number(record.total)
    given = [value for value in rewards.values() if value is not None]
    reward = total if total is not None or not given else sum(given)
    numbers = (_json(rewards), total, reward, number(record.advantage))
    rest = (record.group, record.lesson, _json(record.extra), _json(record.truncated))
    return (key, writer, record.axis, record.step, record.time, *texts, *numbers, *rest)


def _text(value: Any) -> str | None:
    """A metric's value as text; None if it is a number."""
    if value is None or isinstance(value, int | float):
        return None
    return value if isinstance(value, str) else _json(value)


def _json(value: Any) -> str:
    return "{}" if value == {} else msgspec.json.encode(clean(value)).decode()


def run_arrays(runs: Sequence[RunInfo]) -> tuple[dict[str, Any], list[str]]:
    """The table ``runs``, like `column_arrays`."""
    rows = [tuple(_run_value(info, name) for name in RUN_COLUMNS) for info in runs]
    return column_arrays(Table(RUN_COLUMNS, "id"), rows)


def _run_value(info: RunInfo, name: str) -> Any:
    value = getattr(info, name)
    if name in ("tags", "problems"):
        return json.dumps(list(value))
    if name in ("config", "summary"):
        return None if value is None else json.dumps(clean(value))
    return str(value) if name == "directory" else value
