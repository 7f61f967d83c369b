"""How queries are run: over a snapshot that nothing can be changed in, within limits of time.

Users' queries are one SELECT each. They run in a read-only transaction of a database that can touch no file but its
own, reach no network and load no extension (see `Index`), so this holds even for a SELECT that does more.

`Result`: the rows of a query, as whatever they are wanted in.

Where several columns have the same name, in whatever case, all but the first have a number behind it (``name``,
``name_1``), as in a subquery. Rows and columns have points in time as datetimes in UTC; within lists and the like they
are texts.

WHERE clauses: each condition with its parameters, so that no text of a user becomes a part of a query.

Which samples are meant by what is asked for: one answer for a page of them, their number and how they are spread.
"""

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeAlias

from hookline._engine.errors import MissingExtraError, OptionError
from hookline.store.index import duckdb_module, quoted
from hookline.store.query_limits import QueryError, QueryLimit
from hookline.store.run_info import RunInfo
from hookline.store.store import Store

if TYPE_CHECKING:
    from duckdb import DuckDBPyRelation


def check_select(query: str) -> str:
    """The query as it is run, without the semicolon at its end and the comments behind it.

    Raises:
        QueryError: It is not one SELECT.
    """
    duckdb = duckdb_module()
    try:
        statements = duckdb.extract_statements(query)
    except duckdb.Error as error:
        raise QueryError(str(error)) from None
    kinds = [statement.type.name for statement in statements]
    if kinds != ["SELECT"]:
        given = "nothing" if not kinds else " and ".join(kinds)
        raise QueryError(f"{query!r} is {given}; give one SELECT (or WITH ... SELECT, DESCRIBE, SUMMARIZE).")
    return _without_end(str(statements[0].query))


def _without_end(statement: str) -> str:
    duckdb = duckdb_module()
    text = statement.encode()  # places are counted in bytes
    operators = [place for place, kind in duckdb.tokenize(statement) if kind == duckdb.token_type.operator]
    end = next((place for place in operators if text[place : place + 1] == b";"), len(text))
    return text[:end].decode().strip()


def check_seconds(name: str, seconds: float | None) -> None:
    """Refuse a time limit that is none.

    Raises:
        OptionError: It is not above 0.
    """
    if seconds is not None and not seconds > 0:
        raise OptionError(f"{name}={seconds!r}: give seconds above 0, or None.")


@contextlib.contextmanager
def executed(
    store: Store,
    runs: Sequence[RunInfo],
    query: str,
    parameters: Any = None,
    timeout_seconds: float | None = None,
) -> Iterator["DuckDBPyRelation"]:
    """Prepare a query; it is run when its rows are fetched, within the context.

    Raises:
        QueryError: It fails.
        QueryTimeoutError: It takes too long.
    """
    with QueryLimit(timeout_seconds) as limit, store.snapshot(runs, query) as cursor, limit.enforced():
        yield cursor.sql(query, params=parameters)


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


Names: TypeAlias = str | Iterable[str] | None
"""One name or several; ``*`` stands for anything."""
Steps: TypeAlias = tuple[int | None, int | None] | None
"""The first and the last step, both included; None for no limit."""


class Conditions:
    """Conditions that all have to hold."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self.parameters: list[Any] = []

    def __str__(self) -> str:
        return f"WHERE {' AND '.join(self._parts)}" if self._parts else ""

    def add(self, condition: str, *parameters: Any) -> None:
        """Add one; each ``?`` in it stands for a parameter."""
        self._parts.append(condition)
        self.parameters += parameters

    def names(self, column: str, names: Names) -> None:
        """A column is one of some names."""
        if names is None:
            return
        given = [names] if isinstance(names, str) else [str(name) for name in names]
        exact = [name for name in given if "*" not in name]
        parts = [f"{column} IN ({', '.join('?' * len(exact))})"] if exact else []
        parts += [f"{column} LIKE ? ESCAPE '\\'" for name in given if "*" in name]
        patterns = [_escaped(name).replace("*", "%") for name in given if "*" in name]
        self.add(f"({' OR '.join(parts)})" if parts else "false", *exact, *patterns)

    def equal(self, column: str, value: Any) -> None:
        """A column has a value, if one is given."""
        if value is not None:
            self.add(f"{column} = ?", value)

    def between(self, column: str, low: float | None, high: float | None) -> None:
        """A column lies between two values, as far as they are given."""
        if low is not None:
            self.add(f"{column} >= ?", low)
        if high is not None:
            self.add(f"{column} <= ?", high)

    def number_between(self, column: str, low: float | None, high: float | None) -> None:
        """A column of numbers lies between two values; NaN, which the database counts as the largest, never does."""
        self.between(column, low, high)
        if low is not None:
            self.add(f"NOT isnan({column})")

    def steps(self, steps: Steps) -> None:
        """The step lies in a range.

        Raises:
            OptionError: It is no range.
        """
        if steps is None:
            return
        if not isinstance(steps, Sequence) or len(steps) != 2:
            raise OptionError(f"steps={steps!r}: give the first and the last step, e.g. (100, None).")
        self.between("step", *steps)

    def text(self, columns: Iterable[str], text: str | None) -> None:
        """One of some columns contains a text, in whatever case."""
        if text:
            found = [f"regexp_matches({column}, ?, 'i')" for column in columns]  # three times as fast as ILIKE
            self.add(f"({' OR '.join(found)})", *[re.escape(text)] * len(found))


def _escaped(text: str) -> str:
    """A text for LIKE in which nothing has a meaning but ``*``."""
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def sample_conditions(
    *,
    text: str | None = None,
    lesson: Names = None,
    group: str | None = None,
    min_reward: float | None = None,
    max_reward: float | None = None,
    reward: str | None = None,
    steps: Steps = None,
    axis: str | None = None,
) -> Conditions:
    """What has to hold for a sample; see `Runs.samples`.

    Raises:
        OptionError: The steps are no range.
    """
    conditions = Conditions()
    conditions.names("lesson", lesson)
    conditions.equal('"group"', group)
    conditions.equal("axis", axis)
    conditions.steps(steps)
    conditions.number_between(reward_column(reward), min_reward, max_reward)
    conditions.text(("completion", "prompt"), text)
    return conditions


def reward_column(reward: str | None) -> str:
    """Where a reward function's values are; those of the total, where none is named."""
    return "reward" if reward is None else f"rewards[{quoted(reward)}]"
