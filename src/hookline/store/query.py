"""Runs queries over a read-only snapshot within a time limit, and returns their rows as a `Result`.

A user's query is a single SELECT. It runs in a read-only transaction of a database that can access only its own files,
no network and no extension (see `Index`), so even a SELECT with side effects is harmless. `Conditions` builds WHERE
clauses with parameters, so no user text becomes part of a query.

Columns with equal names, ignoring case, are numbered (``name``, ``name_1``), as in a subquery. Timestamps with a time
zone become datetimes in UTC; inside lists and structs they are texts.
"""

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeAlias

from hookline._engine import notebook
from hookline._engine.errors import MissingExtraError, OptionError
from hookline._record.terminal import plural
from hookline.store.index import duckdb_module, sql_quote
from hookline.store.query_limits import QueryError, QueryLimit
from hookline.store.run_info import RunInfo
from hookline.store.search import TEXTS, Matches
from hookline.store.store import Store

if TYPE_CHECKING:
    from duckdb import DuckDBPyRelation

_SHOWN_ROWS = 20
"""How many rows a notebook shows."""


def check_select(query: str) -> str:
    """The query without a final semicolon and the comments after it.

    Raises:
        QueryError: It is not a single SELECT.
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
    statement = str(statements[0].query)
    encoded = statement.encode()  # token positions count bytes
    operators = [start for start, kind in duckdb.tokenize(statement) if kind == duckdb.token_type.operator]
    end = next((start for start in operators if encoded[start : start + 1] == b";"), len(encoded))
    return encoded[:end].decode().strip()


@contextlib.contextmanager
def execute(
    store: Store,
    runs: Sequence[RunInfo],
    query: str,
    parameters: Any = None,
    timeout_seconds: float | None = None,
) -> Iterator["DuckDBPyRelation"]:
    """Prepare a query; it runs when its rows are fetched within the context.

    Raises:
        QueryError: It fails.
        QueryTimeoutError: It takes too long.
    """
    with QueryLimit(timeout_seconds) as limit, store.snapshot(runs, query) as cursor, limit.enforced():
        yield cursor.sql(query, params=parameters)


Execute = Callable[[str], AbstractContextManager["DuckDBPyRelation"]]


class Result:
    """A query that runs each time its rows are requested, over everything recorded so far."""

    def __init__(self, execute: Execute, query: str, *, unlimited: str | None = None) -> None:
        self._execute, self._query, self._unlimited = execute, query, unlimited or query

    def __repr__(self) -> str:
        return f"<Result of {' '.join(self._query.split())}>"

    def _repr_html_(self) -> str:
        return notebook.display(self._html)

    def _html(self) -> str:
        names, rows = self._fetch(_SHOWN_ROWS + 1)
        cells = [["" if value is None else notebook.text(value) for value in row] for row in rows[:_SHOWN_ROWS]]
        more = f"The first {_SHOWN_ROWS} rows; there are more." if len(rows) > _SHOWN_ROWS else ""
        return notebook.table(names, cells) + notebook.note(more or plural(len(rows), "row"))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows())

    def rows(self) -> list[dict[str, Any]]:
        """The rows as dicts."""
        names, rows = self._fetch()
        return [dict(zip(names, row, strict=True)) for row in rows]

    def columns(self) -> dict[str, list[Any]]:
        """The columns as lists."""
        names, rows = self._fetch()
        return {name: [row[position] for row in rows] for position, name in enumerate(names)}

    def total(self) -> int:
        """The number of rows without the limit."""
        # On lines of their own: the query may end with a comment.
        with self._execute(f"SELECT count(*) FROM (\n{self._unlimited}\n)") as relation:
            [(count,)] = relation.fetchall()
            return int(count)

    def pandas(self) -> Any:
        """A pandas data frame.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        require_package("pandas")
        with self._execute(self._query) as relation:
            return _with_unique_names(relation).df()

    def polars(self) -> Any:
        """A polars data frame.

        Raises:
            MissingExtraError: polars or pyarrow is not installed.
        """
        require_package("polars")
        import polars

        return polars.from_arrow(self.arrow())

    def arrow(self) -> Any:
        """An Arrow table.

        Raises:
            MissingExtraError: pyarrow is not installed.
        """
        require_package("pyarrow")
        with self._execute(self._query) as relation:
            return _with_unique_names(relation).to_arrow_table()

    def _fetch(self, limit: int | None = None) -> tuple[list[str], list[tuple[Any, ...]]]:
        with self._execute(self._query) as relation:
            unique = _with_unique_names(relation)
            unique = unique if limit is None else unique.limit(limit)
            names, kinds = unique.columns, [str(kind) for kind in unique.types]
            if not any(_ZONED in kind for kind in kinds):
                return names, unique.fetchall()
            rows = unique.select(", ".join(map(_without_zone, names, kinds))).fetchall()
        zoned = {position for position, kind in enumerate(kinds) if kind == _ZONED}

        def in_utc(position: int, value: Any) -> Any:
            # A year beyond Python's range comes as a text.
            return value.replace(tzinfo=UTC) if position in zoned and isinstance(value, datetime) else value

        return names, [tuple(in_utc(position, value) for position, value in enumerate(row)) for row in rows]


_ZONED = "TIMESTAMP WITH TIME ZONE"
"""DuckDB converts this type to Python only if pytz is installed."""


def _with_unique_names(relation: "DuckDBPyRelation") -> "DuckDBPyRelation":
    names = {name.lower() for name in relation.columns}
    return relation if len(names) == len(relation.columns) else relation.select("*")


def _without_zone(name: str, kind: str) -> str:
    """A column as an expression that converts to Python: naive in UTC, or a text inside lists and structs."""
    column = '"' + name.replace('"', '""') + '"'
    if kind == _ZONED:
        return f"{column} AT TIME ZONE 'UTC' AS {column}"
    return f"CAST({column} AS {kind.replace(_ZONED, 'VARCHAR')}) AS {column}" if _ZONED in kind else column


def require_package(package: str) -> None:
    """Check that the package of a data frame is installed.

    Raises:
        MissingExtraError: It is not.
    """
    from importlib.util import find_spec

    if find_spec(package) is None:
        raise MissingExtraError(f"A {package} table needs the package {package}. Install it: pip install {package}")


Names: TypeAlias = str | Iterable[str] | None
"""One name or several; ``*`` matches anything."""
Steps: TypeAlias = tuple[int | None, int | None] | None
"""The first and the last step, both included; None for no limit."""


class Conditions:
    """The conditions of a WHERE clause, all of which have to hold."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self.parameters: list[Any] = []

    def __str__(self) -> str:
        return f"WHERE {' AND '.join(self._parts)}" if self._parts else ""

    def add(self, condition: str, *parameters: Any) -> None:
        """Add a condition with a parameter for each ``?`` in it."""
        self._parts.append(condition)
        self.parameters += parameters

    def names(self, column: str, names: Names) -> None:
        """A column matches one of some names, if any are given."""
        if names is None:
            return
        given = [names] if isinstance(names, str) else [str(name) for name in names]
        exact = [name for name in given if "*" not in name]
        parts = [f"{column} IN ({', '.join('?' * len(exact))})"] if exact else []
        parts += [f"{column} LIKE ? ESCAPE '\\'" for name in given if "*" in name]
        escaped = [name.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") for name in given if "*" in name]
        self.add(f"({' OR '.join(parts)})" if parts else "false", *exact, *(each.replace("*", "%") for each in escaped))

    def equal(self, column: str, value: Any) -> None:
        """A column has a value, if one is given."""
        if value is not None:
            self.add(f"{column} = ?", value)

    def between(self, column: str, low: float | None, high: float | None) -> None:
        """A column lies between the given limits."""
        if low is not None:
            self.add(f"{column} >= ?", low)
        if high is not None:
            self.add(f"{column} <= ?", high)

    def number_between(self, column: str, low: float | None, high: float | None) -> None:
        """Like `between`, but never true for NaN, which the database sorts as the largest number."""
        self.between(column, low, high)
        if low is not None:
            self.add(f"NOT isnan({column})")

    def steps(self, steps: Steps) -> None:
        """The step lies in a range.

        Raises:
            OptionError: The range is not a pair.
        """
        self.range("step", "steps", steps)

    def range(self, column: str, name: str, limits: Steps) -> None:
        """A column lies in a range, if one is given.

        Args:
            name: The name of the option, for errors.

        Raises:
            OptionError: The range is not a pair.
        """
        if limits is None:
            return
        if not isinstance(limits, Sequence) or len(limits) != 2:
            raise OptionError(f"{name}={limits!r}: give the first and the last one, e.g. (100, None).")
        self.between(column, *limits)

    def samples(self, found: Sequence[tuple[str, str]]) -> None:
        """The sample is one of these runs and ids."""
        self.add(*_sample_list(found))

    def matches(self, matches: Matches, text: str, scanned: Sequence[str]) -> None:
        """A sample contains a text, by the search index or, for runs outside it, by a scan.

        Args:
            scanned: The runs that the index does not have.
        """
        listed, *parameters = _sample_list(matches.found)
        if scanned:  # only then: the alternative keeps the database from reading just the samples in the list
            pattern = re.escape(text)
            found = " OR ".join(f"regexp_matches({column}, ?, 'i')" for column in TEXTS)
            listed = f"({listed} OR (run IN (SELECT unnest(?)) AND ({found})))"
            parameters += [list(scanned), *[pattern] * len(TEXTS)]
        self.add(listed, *parameters)

    def text(self, columns: Iterable[str], text: str | None) -> None:
        """One of some columns contains a text, ignoring case."""
        if text:
            found = [f"regexp_matches({column}, ?, 'i')" for column in columns]  # three times as fast as ILIKE
            self.add(f"({' OR '.join(found)})", *[re.escape(text)] * len(found))


def _sample_list(found: Sequence[tuple[str, str]]) -> tuple[Any, ...]:
    """A condition, and its parameters."""
    if not found:
        return ("false",)
    runs, keys = [run for run, _ in found], [key for _, key in found]
    # Seven times as fast as a condition on pairs, which the database does not compare with the statistics of a file.
    listed = "id IN (SELECT unnest(?))"
    if len(set(runs)) == 1:
        return f"(run = ? AND {listed})", runs[0], keys
    return f"({listed} AND (run, id) IN (SELECT (unnest(?), unnest(?))))", keys, runs, keys


CHATS = ("prompt_messages", "completion_messages")
LENGTH = "coalesce(length, length(completion))"
"""The number of tokens of a completion, or of characters where the tokens were not counted."""


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
    role: str | None = None,
    finish: str | None = None,
    versions: Steps = None,
    lengths: Steps = None,
    matches: Matches | None = None,
    scanned: Sequence[str] = (),
) -> Conditions:
    """The conditions for samples; see `Runs.samples`.

    Args:
        matches: The samples that contain the text, as far as the search index knows.
        scanned: The runs that the index does not have.

    Raises:
        OptionError: The steps are not a range.
    """
    conditions = Conditions()
    conditions.names("lesson", lesson)
    conditions.equal('"group"', group)
    conditions.equal("axis", axis)
    conditions.steps(steps)
    conditions.number_between(reward_column(reward), min_reward, max_reward)
    conditions.equal("finish", finish)
    conditions.range("version", "versions", versions)
    conditions.range(LENGTH, "lengths", lengths)
    if role is not None:
        held = " OR ".join(f"list_contains(json_extract_string({name}, '$[*].role'), ?)" for name in CHATS)
        conditions.add(f"({held})", *[role] * len(CHATS))
    if text and matches is not None:
        conditions.matches(matches, text, scanned)
    else:
        conditions.text(TEXTS, text)
    return conditions


def reward_column(reward: str | None) -> str:
    """The SQL expression for the values of a reward function, or of the total."""
    return "reward" if reward is None else f"rewards[{sql_quote(reward)}]"
