"""`SlowCalls`: warns about a call that takes long while it is still running.

One thread watches all calls of a process. It is started by the first one, looks once a second, and ends when nothing
is watched any more; a call itself costs two entries in a dict. A warning is repeated after twice the time.
"""

import logging
import threading
import time
from typing import Any

logger = logging.getLogger("hookline")

SLOW_SECONDS = 5.0
"""After how long a call is warned about."""
LOOK_SECONDS = 1.0
IDLE_SECONDS = 60.0
"""How long the thread waits for another call before it ends."""


class _Call:
    __slots__ = ("advice", "began", "name", "step", "warn_after")

    def __init__(self, name: str, step: int, advice: str) -> None:
        self.name, self.step, self.advice = name, step, advice
        self.began = time.monotonic()
        self.warn_after = SLOW_SECONDS


class SlowCalls:
    """The calls that are under way."""

    def __init__(self) -> None:
        self._calls: dict[int, _Call] = {}
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()

    def begin(self, owner: Any, name: str, step: int, advice: str) -> None:
        """Watch a call from now on.

        Args:
            owner: Who is called; it has one call under way at a time.
            name: What it is called in the warning.
            step: The step that it is called for.
            advice: What to do about it, for the warning.
        """
        self._calls[id(owner)] = _Call(name, step, advice)
        if self._thread is None or not self._thread.is_alive():  # a forked child has the object, not the thread
            self._wake.clear()
            self._thread = threading.Thread(target=self._watch, name="hookline-slow-calls", daemon=True)
            self._thread.start()

    def end(self, owner: Any) -> None:
        """The call has returned, or raised."""
        self._calls.pop(id(owner), None)

    def close(self) -> None:
        """End the thread, unless a call is under way; another call starts it again."""
        self._wake.set()

    def _watch(self) -> None:
        last_seen = time.monotonic()
        while True:
            woken = self._wake.wait(LOOK_SECONDS)
            self._wake.clear()
            now = time.monotonic()
            for call in list(self._calls.values()):
                last_seen = now
                seconds = now - call.began
                if seconds >= call.warn_after:
                    call.warn_after = 2 * seconds
                    logger.warning(
                        "%s has been running for %.0f s at step %d. %s", call.name, seconds, call.step, call.advice
                    )
            if not self._calls and (woken or now - last_seen >= IDLE_SECONDS):
                # Unset before the last look: a call that begins now either is seen here or starts another thread.
                self._thread = None
                if not self._calls:
                    return
                self._thread = threading.current_thread()


SLOW_CALLS = SlowCalls()
"""Those of this process."""
