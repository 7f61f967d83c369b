"""`Result`: the rows of a query, as whatever they are wanted in.

Where several columns have the same name, in whatever case, all but the first have a number behind it (``name``,
``name_1``), as in a subquery. Rows and columns have points in time as datetimes in UTC; within lists and the like they
are texts.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from hookline.core.errors import MissingExtraError

if TYPE_CHECKING:
    from duckdb import DuckDBPyRelation

Execute = Callable[[str], AbstractContextManager["DuckDBPyRelation"]]
"""Prepares a query; within the context its rows can be fetched."""


class Result:
    """A query that is run each time it is asked for its rows, over what was recorded up to then."""

    def __init__(self, execute: Execute, query: str, *, unlimited: str | None = None) -> None:
        self._execute, self._query, self._unlimited = execute, query, unlimited or query

    def __repr__(self) -> str:
        return f"<Result of {' '.join(self._query.split())}>"

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows())

    def rows(self) -> list[dict[str, Any]]:
        """A dict for each row."""
        names, rows = self._fetched()
        return [dict(zip(names, row, strict=True)) for row in rows]

    def columns(self) -> dict[str, list[Any]]:
        """A list for each column."""
        names, rows = self._fetched()
        return {name: [row[position] for row in rows] for position, name in enumerate(names)}

    def total(self) -> int:
        """How many rows there are, those left out by a limit included."""
        with self._execute(f"SELECT count(*) FROM (\n{self._unlimited}\n)") as done:
            [(count,)] = done.fetchall()
            return int(count)

    def pandas(self) -> Any:
        """A pandas data frame.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        _require("pandas")
        with self._execute(self._query) as done:
            return _told_apart(done).df()

    def polars(self) -> Any:
        """A polars data frame.

        Raises:
            MissingExtraError: polars or pyarrow is not installed.
        """
        _require("polars")
        import polars

        return polars.from_arrow(self.arrow())

    def arrow(self) -> Any:
        """An Arrow table.

        Raises:
            MissingExtraError: pyarrow is not installed.
        """
        _require("pyarrow")
        with self._execute(self._query) as done:
            return _told_apart(done).to_arrow_table()

    def _fetched(self) -> tuple[list[str], list[tuple[Any, ...]]]:
        with self._execute(self._query) as done:
            own = _told_apart(done)
            names, kinds = own.columns, [str(kind) for kind in own.types]
            if not any(_ZONED in kind for kind in kinds):
                return names, own.fetchall()
            rows = own.select(", ".join(map(_without_zone, names, kinds))).fetchall()
        zoned = {place for place, kind in enumerate(kinds) if kind == _ZONED}
        return names, [
            tuple(_in_utc(value) if place in zoned else value for place, value in enumerate(row)) for row in rows
        ]


_ZONED = "TIMESTAMP WITH TIME ZONE"
"""What DuckDB makes Python values of only where pytz is installed."""


def _told_apart(done: "DuckDBPyRelation") -> "DuckDBPyRelation":
    """The same with a name of its own for each column."""
    names = {name.lower() for name in done.columns}
    return done if len(names) == len(done.columns) else done.select("*")


def _without_zone(name: str, kind: str) -> str:
    """A column as an expression that Python can have: in UTC, without saying so; texts where it is within a list."""
    column = '"' + name.replace('"', '""') + '"'
    if kind == _ZONED:
        return f"{column} AT TIME ZONE 'UTC' AS {column}"
    return f"CAST({column} AS {kind.replace(_ZONED, 'VARCHAR')}) AS {column}" if _ZONED in kind else column


def _in_utc(value: Any) -> Any:
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) else value  # a year far away is a text


def _require(package: str) -> None:
    from importlib.util import find_spec

    if find_spec(package) is None:
        raise MissingExtraError(f"A result as a table of {package} needs it. Install it with: pip install {package}")
