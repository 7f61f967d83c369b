"""`Result`: the rows of a query, as whatever they are wanted in."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
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
        with self._execute(self._query) as done:
            names = done.columns
            return [dict(zip(names, row, strict=True)) for row in done.fetchall()]

    def columns(self) -> dict[str, list[Any]]:
        """A list for each column."""
        with self._execute(self._query) as done:
            names, rows = done.columns, done.fetchall()
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
            return done.df()

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
            return done.to_arrow_table()


def _require(package: str) -> None:
    from importlib.util import find_spec

    if find_spec(package) is None:
        raise MissingExtraError(f"A result as a table of {package} needs it. Install it with: pip install {package}")
