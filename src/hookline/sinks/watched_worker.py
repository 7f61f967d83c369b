"""`WatchedWorker`: a worker that an outbox reports for, which neither keeps it alive nor misses why it failed."""

import weakref
from collections.abc import Callable
from typing import Any


class WatchedWorker:
    """Knows why a worker failed, also when the worker is gone.

    Args:
        worker: What hook functions are given. Its ``ctx.error`` says why it failed, if it has one.
    """

    def __init__(self, worker: Any) -> None:
        try:
            self._worker: Callable[[], Any] = weakref.ref(worker)
        except TypeError:  # an object that cannot be watched is taken to live
            self._worker = lambda: worker
        ctx = getattr(worker, "ctx", None)
        self._ctx = ctx if hasattr(ctx, "error") else None  # kept: who catches the error lets the worker go

    @property
    def error(self) -> str | None:
        """Why it failed, once it has."""
        if self._ctx is not None:  # asked before the state, which says that it failed a moment before it is known why
            return str(self._ctx.error) if self._ctx.error else None
        return "The worker failed." if getattr(self._worker(), "state", None) == "failed" else None

    @property
    def is_gone(self) -> bool:
        """Whether nobody has the worker any more."""
        return self._worker() is None
