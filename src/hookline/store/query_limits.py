"""`QueryLimit`: ends the queries of one caller after a time, or when their result is no longer wanted.

DuckDB forgets an interrupt that comes between two statements, so a query that must end is interrupted again and again
until it has. How long reading new records takes does not count: the next query would begin with the same work.

What queries fail with: no error of the database itself reaches a user.
"""

import contextlib
import threading
import time
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Self

from hookline._engine.errors import HooklineError
from hookline.store.index import duckdb_module

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


class QueryError(HooklineError, ValueError):
    """A query that is not accepted, or that fails; the message says where."""


class QueryTimeoutError(HooklineError, TimeoutError):
    """A query that took longer than it may."""


AGAIN_SECONDS = 0.05
_limits: ContextVar[tuple["QueryLimit", ...]] = ContextVar("limits", default=())


class QueryLimit:
    """A limit for queries that begin within its context, on the same thread.

    Args:
        seconds: How long each may take; None is for ever, or until `cancel`.
    """

    def __init__(self, seconds: float | None = None) -> None:
        self.seconds = seconds
        self._lock = threading.Lock()
        self._running: dict[DuckDBPyConnection, float] = {}
        self._is_cancelled = False

    def __enter__(self) -> Self:
        self._before = _limits.set((*_limits.get(), self))
        return self

    def __exit__(self, *error: object) -> None:
        _limits.reset(self._before)

    def cancel(self) -> None:
        """End every query from now on; may be called from any thread."""
        self._is_cancelled = True
        self.enforce()

    def enforce(self) -> None:
        """Interrupt what must end; call it every `AGAIN_SECONDS` as long as queries run."""
        with self._lock:
            for cursor, begun in self._running.items():
                if self._must_end(begun):
                    cursor.interrupt()

    @contextlib.contextmanager
    def enforced(self) -> Iterator[None]:
        """Enforce it from a thread of its own."""
        if self.seconds is None:
            yield
            return
        is_over, seconds = threading.Event(), self.seconds

        def watch() -> None:
            wait = seconds
            while not is_over.wait(wait):
                wait = AGAIN_SECONDS
                self.enforce()

        thread = threading.Thread(target=watch, name="hookline-query-limit", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    def _must_end(self, begun: float) -> bool:
        return self._is_cancelled or (self.seconds is not None and time.monotonic() >= begun + self.seconds)

    def _error(self) -> QueryTimeoutError:
        if self._is_cancelled:
            return QueryTimeoutError("The query was ended: nobody waits for it any more.")
        return QueryTimeoutError(f"The query took longer than {self.seconds:g} s, and was ended.")


@contextlib.contextmanager
def limited(cursor: "DuckDBPyConnection") -> Iterator[None]:
    """Run what is done with a cursor within the limits of this context.

    Raises:
        QueryTimeoutError: It was ended by one of them.
    """
    limits, begun = _limits.get(), time.monotonic()
    with contextlib.ExitStack() as registered:
        for limit in limits:
            registered.enter_context(_registered(limit, cursor, begun))
        try:
            yield
        except duckdb_module().InterruptException:
            for limit in limits:
                if limit._must_end(begun):
                    raise limit._error() from None
            raise


@contextlib.contextmanager
def _registered(limit: QueryLimit, cursor: "DuckDBPyConnection", begun: float) -> Iterator[None]:
    with limit._lock:
        limit._running[cursor] = begun
    try:
        if limit._is_cancelled:
            raise limit._error()
        yield
    finally:
        with limit._lock:  # whoever interrupts holds it: a cursor that is closed cannot be interrupted
            del limit._running[cursor]
