"""`QueryLimit` ends queries after a timeout or on cancellation; also defines the errors of queries.

DuckDB ignores an interrupt between two statements, so a query is interrupted repeatedly until it has ended. The time
for reading new records does not count: the next query would start with the same work. Errors of the database itself
never reach the user.
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
    """A query is not accepted, or fails."""


class QueryTimeoutError(HooklineError, TimeoutError):
    """A query took too long, or was cancelled."""


INTERRUPT_SECONDS = 0.05
_limits: ContextVar[tuple["QueryLimit", ...]] = ContextVar("limits", default=())


class QueryLimit:
    """Limits the queries that start within its context, on the same thread.

    Args:
        seconds: The timeout of each; None for no timeout. `cancel` works either way.
    """

    def __init__(self, seconds: float | None = None) -> None:
        self.seconds = seconds
        self._lock = threading.Lock()
        self._running: dict[DuckDBPyConnection, float] = {}
        self._is_cancelled = False

    def __enter__(self) -> Self:
        self._token = _limits.set((*_limits.get(), self))
        return self

    def __exit__(self, *error: object) -> None:
        _limits.reset(self._token)

    def cancel(self) -> None:
        """End all current and later queries; may be called from any thread."""
        self._is_cancelled = True
        self.enforce()

    def enforce(self) -> None:
        """Interrupt queries over the limit; call it every `INTERRUPT_SECONDS` while queries run."""
        with self._lock:
            for cursor, started in self._running.items():
                if self._must_end(started):
                    cursor.interrupt()

    @contextlib.contextmanager
    def enforced(self) -> Iterator[None]:
        """Enforce the limit from a separate thread."""
        if self.seconds is None:
            yield
            return
        done, seconds = threading.Event(), self.seconds

        def watch() -> None:
            wait = seconds
            while not done.wait(wait):
                wait = INTERRUPT_SECONDS
                self.enforce()

        thread = threading.Thread(target=watch, name="hookline-query-limit", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _must_end(self, started: float) -> bool:
        return self._is_cancelled or (self.seconds is not None and time.monotonic() >= started + self.seconds)

    def _error(self) -> QueryTimeoutError:
        if self._is_cancelled:
            return QueryTimeoutError("The query was cancelled.")
        return QueryTimeoutError(f"The query took longer than {self.seconds:g} s and was cancelled.")


def check_limits() -> None:
    """End work outside the database if it was cancelled; reading new records has no time limit.

    Raises:
        QueryTimeoutError: It was cancelled.
    """
    for limit in _limits.get():
        if limit._is_cancelled:
            raise limit._error()


@contextlib.contextmanager
def limited(cursor: "DuckDBPyConnection") -> Iterator[None]:
    """Apply the limits of the current context to a cursor's queries.

    Raises:
        QueryTimeoutError: A limit ended a query.
    """
    limits, started = _limits.get(), time.monotonic()
    with contextlib.ExitStack() as registered:
        for limit in limits:
            registered.enter_context(_registered(limit, cursor, started))
        try:
            yield
        except duckdb_module().InterruptException:
            for limit in limits:
                if limit._must_end(started):
                    raise limit._error() from None
            raise


@contextlib.contextmanager
def _registered(limit: QueryLimit, cursor: "DuckDBPyConnection", started: float) -> Iterator[None]:
    with limit._lock:
        limit._running[cursor] = started
    try:
        if limit._is_cancelled:
            raise limit._error()
        yield
    finally:
        with limit._lock:  # held while interrupting: a closed cursor cannot be interrupted
            del limit._running[cursor]
