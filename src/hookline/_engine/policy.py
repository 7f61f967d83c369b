"""Settings of a collection: errors, queues, time limits, and the clock and threads it uses.

Tests replace the clock and the threads here.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


class Joinable(Protocol):
    """The part of a thread that the engine uses."""

    def join(self, timeout: float | None = None) -> None:
        """Wait until it ends, at most ``timeout`` seconds."""
        ...

    def is_alive(self) -> bool:
        """Return whether it is running."""
        ...


def start_thread(target: Callable[[], None], name: str) -> Joinable:
    """Start a daemon thread: a subscriber that hangs must not keep the process from ending."""
    thread = threading.Thread(target=target, name=name, daemon=True)
    thread.start()
    return thread


@dataclass(frozen=True, slots=True)
class Policy:
    """Settings of the engine for all subscribers of a collection.

    Args:
        strict: Let every exception propagate, not only those of critical subscribers.
        failures_allowed: Failures in a row after which a subscriber is disabled. It is also disabled when a third of
            its last ``10 * failures_allowed`` calls failed.
        queue_size: Calls that may wait for a background or async subscriber; further ones of
            repeating moments are dropped and counted.
        drain_seconds: How long `close()` waits for background work.
        report_seconds: How often the costs are logged as ``hooks/<name>/...``.
        clock: Returns monotonic nanoseconds.
        start_thread: Starts a named thread.
    """

    strict: bool = False
    failures_allowed: int = 3
    queue_size: int = 1024
    drain_seconds: float = 10.0
    report_seconds: float = 60.0
    clock: Callable[[], int] = time.perf_counter_ns
    start_thread: Callable[[Callable[[], None], str], Joinable] = start_thread


@dataclass(frozen=True, slots=True)
class Failure:
    """One exception of a subscriber, with its moment and step, and whether it disabled the subscriber."""

    subscriber: str
    moment: str
    step: int | None
    error: BaseException
    disabled: bool

    @property
    def where(self) -> str:
        """The moment and the step."""
        return self.moment if self.step is None else f"{self.moment}, step {self.step}"

    def __str__(self) -> str:
        return f"{self.subscriber} failed at {self.where}: {type(self.error).__name__}: {self.error}"
