"""The tables of the store: their columns, and how each is laid out in files.

A table is the same in the database, where the rows of live runs are, and in the Parquet file of a run that has ended.
Columns that begin with ``_`` are the index's own and are not shown.
"""

from dataclasses import dataclass

VERSION = 1
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
        },
        "name, axis, step, time",
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
    "tags": "VARCHAR[]",
    "host": "VARCHAR",
    "problems": "VARCHAR[]",
}
"""The table ``runs``: what `RunInfo` says."""

HOOK_KEYS = ("calls", "errors", "total_seconds", "mean_seconds", "p95_seconds", "max_seconds")
_KEY = f"({'|'.join(HOOK_KEYS)})$"
HOOKS = f"""
SELECT run, writer, any_value(hook) AS name,
    CAST(max(value) FILTER (key = 'calls') AS BIGINT) AS calls,
    1000 * max(value) FILTER (key = 'total_seconds') AS total_ms,
    1000 * max(value) FILTER (key = 'mean_seconds') AS mean_ms,
    1000 * max(value) FILTER (key = 'p95_seconds') AS p95_ms,
    1000 * max(value) FILTER (key = 'max_seconds') AS max_ms,
    CAST(max(value) FILTER (key = 'errors') AS BIGINT) AS errors,
    step, time
FROM (
    SELECT *, regexp_extract(name, '(?:^|/)hooks/(.+)/{_KEY}', 1) AS hook, regexp_extract(name, '/{_KEY}', 1) AS key
    FROM metrics WHERE contains(name, 'hooks/')
) WHERE hook <> '' AND key <> ''
GROUP BY run, writer, hook, axis, step, time
"""
"""The view ``hooks``: the costs that were recorded as ``hooks/<name>/...``, a row a report."""
