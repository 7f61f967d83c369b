"""How queries are run: over a snapshot that nothing can be changed in, within limits of time.

Users' queries are one SELECT each. They run in a read-only transaction of a database that can touch no file but its
own, reach no network and load no extension (see `Index`), so this holds even for a SELECT that does more.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from hookline.core.errors import OptionError
from hookline.store.index import duckdb_module
from hookline.store.query_error import QueryError
from hookline.store.query_limit import QueryLimit
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
