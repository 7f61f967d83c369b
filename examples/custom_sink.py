"""A custom sink: writes each row of the record once to an SQLite table, off the training thread.

Prints the number of rows of each metric, from an SQL query.
"""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hookline as hl
from hookline.sinks import JournalEntry, Metrics, register_sink


@register_sink("sqlite")
@dataclass
class SqliteSink(hl.Sink):
    """Writes every number to the table ``metrics``.

    A failed batch is delivered again: it is one transaction, and the key of a row is the id of its record.
    """

    path: str = "metrics.db"
    name: str | None = None
    _table: Any = field(default=None, init=False, repr=False, compare=False)

    def open(self, run_dir: Path, state: Any) -> Any:
        """Open the connection on the delivery thread, the only one that uses it."""
        self._table = sqlite3.connect(run_dir / self.path)
        self._table.execute(
            "CREATE TABLE IF NOT EXISTS metrics (id TEXT, step INT, name TEXT, value REAL, UNIQUE (id, name))"
        )
        return state

    def write(self, entries: Sequence[JournalEntry]) -> Any:
        """Write a batch; the returned state is passed to the next `open`."""
        rows = [
            (str(entry.id), entry.record.step, name, value)
            for entry in entries
            if isinstance(entry.record, Metrics)
            for name, value in entry.record.values.items()
            if isinstance(value, int | float)
        ]
        with self._table:
            self._table.executemany("INSERT OR IGNORE INTO metrics VALUES (?, ?, ?, ?)", rows)
        return {"rows": len(rows)}

    def close(self) -> None:
        """Close the file."""
        if self._table is not None:
            self._table.close()
            self._table = None


def main() -> None:
    """Record a run, and query the table."""
    with hl.run("tabled", sinks=[{"sqlite": {"path": "metrics.db"}}], summary=False) as run:
        for step in run.steps(100):
            run.log(loss=1.0 / (step + 1), tokens=8 * (step + 1))
    table = sqlite3.connect(Path(run.dir or ".") / "metrics.db")
    for name, count, last in table.execute(
        "SELECT name, count(*), max(step) FROM metrics WHERE name NOT LIKE 'hooks/%' GROUP BY name ORDER BY name"
    ):
        print(f"{name}: {count} rows, the last at step {last}")
    table.close()


if __name__ == "__main__":
    main()
