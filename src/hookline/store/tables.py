"""The tables of the store: their columns, and how each is laid out in files.

A table is the same in the database, where the rows of live runs are, and in the Parquet file of a run that has ended.
Columns that begin with ``_`` are the index's own and are not shown.
"""

import json
from dataclasses import dataclass

from hookline.record.records import HOOKS_COST, HOOKS_PLAN

VERSION = 4
"""Of everything that is kept: what another version wrote is thrown away and made anew."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table's columns with their types, behind ``run``, and how its rows lie in a file.

    Attributes:
        order: What they are sorted by.
        group_rows: How many lie together: fewer of wide rows, of which a query wants few and would read all.
    """

    columns: dict[str, str]
    order: str
    group_rows: int = 122_880

    @property
    def shown(self) -> str:
        """The columns that users see."""
        return ", ".join(["run", *(f'"{name}"' for name in self.columns if not name.startswith("_"))])

    @property
    def definition(self) -> str:
        """The columns as CREATE TABLE wants them."""
        return ", ".join(["run VARCHAR", *(f'"{name}" {kind}' for name, kind in self.columns.items())])


TABLES = {
    "metrics": Table(
        {
            "writer": "VARCHAR",
            "axis": "VARCHAR",
            "step": "BIGINT",
            "time": "DOUBLE",
            "name": "VARCHAR",
            "value": "DOUBLE",
            "text": "VARCHAR",
            "_session": "INTEGER",
            "_order": "DOUBLE",
        },
        "name, axis, step, coalesce(_order, time)",
    ),
    "samples": Table(
        {
            "id": "VARCHAR",
            "writer": "VARCHAR",
            "axis": "VARCHAR",
            "step": "BIGINT",
            "time": "DOUBLE",
            "prompt": "VARCHAR",
            "completion": "VARCHAR",
            "expected": "VARCHAR",
            "reasoning": "VARCHAR",
            "answer": "VARCHAR",
            "rewards": "MAP(VARCHAR, DOUBLE)",
            "total": "DOUBLE",
            "reward": "DOUBLE",
            "advantage": "DOUBLE",
            "group": "VARCHAR",
            "lesson": "VARCHAR",
            "extra": "JSON",
            "truncated": "JSON",
        },
        "step, time",
        group_rows=4096,
    ),
    "rewards": Table(
        {
            "writer": "VARCHAR",
            "step": "BIGINT",
            "time": "DOUBLE",
            "name": "VARCHAR",
            "position": "BIGINT",
            "value": "DOUBLE",
            "sample": "VARCHAR",
        },
        "name, step, time, position",
    ),
    "events": Table(
        {
            "writer": "VARCHAR",
            "kind": "VARCHAR",
            "time": "DOUBLE",
            "step": "BIGINT",
            "name": "VARCHAR",
            "message": "VARCHAR",
            "data": "JSON",
        },
        "time",
    ),
    "logs": Table(
        {
            "writer": "VARCHAR",
            "time": "DOUBLE",
            "level": "VARCHAR",
            "logger": "VARCHAR",
            "message": "VARCHAR",
            "step": "BIGINT",
        },
        "time",
    ),
}
"""What the journals' records become: a metric, a sample, a reward, an event or status, or a log line a row."""

IN_ORDER = "metrics_in_order"
"""The view for our own queries: ``metrics`` with a column more, by which rows come in the order they were recorded."""
ORDER = "recorded"
"""That column: the time, or ``_order`` where a clock that stood still or went back says something else."""

RUN_COLUMNS = {
    "id": "VARCHAR",
    "name": "VARCHAR",
    "project": "VARCHAR",
    "experiment": "VARCHAR",
    "group": "VARCHAR",
    "arm": "VARCHAR",
    "repeat": "BIGINT",
    "stage": "VARCHAR",
    "seed": "BIGINT",
    "status": "VARCHAR",
    "message": "VARCHAR",
    "started": "DOUBLE",
    "ended": "DOUBLE",
    "step": "BIGINT",
    "num_steps": "BIGINT",
    "last_seen": "DOUBLE",
    "directory": "VARCHAR",
    "config": "JSON",
    "summary": "JSON",
    "notes": "VARCHAR",
    "tags": "VARCHAR[]",
    "host": "VARCHAR",
    "problems": "VARCHAR[]",
}
"""The table ``runs``: what `RunInfo` says."""

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
"""The view ``hooks``: what subscribers cost, a row a report; those of the end say their share of the run's time."""

HOOK_ERRORS = """
SELECT run, writer, data ->> '$.subscriber' AS name, count(*) AS errors,
    coalesce(bool_or(TRY_CAST(data ->> '$.disabled' AS BOOLEAN)), false) AS disabled,
    arg_max(data ->> '$.error', time) AS error, arg_max(data ->> '$.moment', time) AS moment,
    arg_max(step, time) AS step, max(time) AS time
FROM events WHERE kind = 'event' AND name = 'hook_error' AND data ->> '$.subscriber' IS NOT NULL
GROUP BY ALL ORDER BY run, max(time) DESC
"""
"""The subscribers that failed: how often, whether they are disabled for it, and the last error of each."""

HOOK_ORDER = f"""
SELECT run, writer, json_extract(data, '$.moments') AS moments,
    coalesce(TRY_CAST(data ->> '$.left_out' AS BIGINT), 0) AS left_out,
    count(*) OVER (PARTITION BY run, writer) AS versions, step, time
FROM events WHERE kind = 'event' AND name = '{HOOKS_PLAN}'
QUALIFY row_number() OVER (PARTITION BY run, writer ORDER BY time DESC) = 1 ORDER BY run, writer
"""
"""In which order subscribers run at each moment, as last recorded by each writer."""
