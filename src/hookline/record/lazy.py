"""Records whose values are still on their way from a device.

`Waiting` holds them. A thread of its own looks at the oldest every few milliseconds and writes what has
arrived; nobody wakes it, because waking a thread costs the one that does it. A value that cannot be
fetched (its array was deleted) is recorded as None, and said.
"""

import contextlib
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from hookline.core.values import Deferred, Source
from hookline.record.records import Metrics, Record, Rewards, Sample

logger = logging.getLogger("hookline")

POLL_SECONDS = 0.05


class Waiting:
    """Records whose values are on their way, written in their order by a thread of its own.

    Args:
        write: Called with a record once all of its values are numbers.
        poll_seconds: How often the thread looks whether the oldest has arrived.
    """

    def __init__(self, write: Callable[[Record], None], *, poll_seconds: float = POLL_SECONDS) -> None:
        self._write = write
        self._poll_seconds = poll_seconds
        self._records: deque[tuple[Record, set[Source]]] = deque()
        self._writing = threading.Lock()
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        self._process = os.getpid()

    def add(self, record: Record, sources: set[Source]) -> None:
        """Take a record and the sources of its values (`sources_of`); it is written when they have arrived."""
        if os.getpid() != self._process:  # forked: what waits is the parent's to write
            self._records, self._thread, self._process = deque(), None, os.getpid()
            self._writing, self._ended = threading.Lock(), threading.Event()
        self._records.append((record, sources))
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="hookline-device-values", daemon=True)
            with contextlib.suppress(RuntimeError):  # no more threads: it is written by `flush`, or tried again
                thread.start()
                self._thread = thread

    def flush(self) -> None:
        """Write everything that waits, and wait for it."""
        if self._process != os.getpid():  # forked: the lock may be held for ever, and what waits is the parent's
            return
        with self._writing:
            while self._records:
                self._write_first()

    def close(self) -> None:
        """Write everything that waits, and end the thread."""
        self.flush()
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(self._poll_seconds):
            with self._writing:
                while self._records and self._has_arrived():
                    self._write_first()

    def _has_arrived(self) -> bool:
        """Whether the oldest can be written. What does not arrive by itself is waited for: this thread has time."""
        try:
            return all(source.ready() or not source.arrives for source in self._records[0][1])
        except Exception:  # it never arrives: writing it says so
            return True

    def _write_first(self) -> None:
        record, _ = self._records[0]
        try:
            self._write(with_numbers(record))
        except Exception:
            logger.exception("A record with values from a device could not be written.")
        self._records.popleft()


def sources_of(record: Record) -> set[Source]:
    """Where the values of a record that are on their way come from."""
    return {value.source for value in _values_of(record) if type(value) is Deferred}


def with_numbers(record: Record) -> Record:
    """The record with every value that was on its way as a number."""
    match record:
        case Metrics():
            items = dict.items(record.values)
            try:  # all at once: this thread takes its time from the training thread's
                record.values = {
                    key: value.source.number(value.index) if type(value) is Deferred else value for key, value in items
                }
            except Exception:
                record.values = {key: _number(key, value) for key, value in items}
        case Sample():
            record.rewards = {key: _number(key, value) for key, value in dict.items(record.rewards)}
            record.total, record.advantage = _number("total", record.total), _number("advantage", record.advantage)
            record.extra = {key: _number(key, value) for key, value in record.extra.items()}
        case Rewards():
            record.values = [_number(record.name, value) for value in record.values]
    return record


def _values_of(record: Record) -> Iterable[Any]:
    match record:
        case Metrics():
            return dict.values(record.values)
        case Sample():
            return [*dict.values(record.rewards), record.total, record.advantage, *record.extra.values()]
        case Rewards():
            return record.values
    return ()


def _number(name: str, value: Any) -> Any:
    if type(value) is not Deferred:
        return value
    try:
        return value.source.number(value.index)
    except Exception as error:
        logger.warning("%r could not be fetched from its device and is recorded as None: %s", name, error)
        return None
