"""`StatusOutbox`: status reports of functions that have no run, on top of `hookline._record.outbox.Outbox`.

Guarantees:

- `report` appends one record to a journal: microseconds, no network, no waiting. It survives the death of the process.
- The first `report` starts it. Outboxes for the same destination are one object, so reports arrive in order.
- Its directory is ``<root>/.outbox/<destination>``. What an endpoint that was down did not get stays there, and the
  next outbox for the same destination delivers it before anything new. What was delivered is deleted at exit.
- Heartbeats are sent from the start of a training or a validation to its end, or until the worker that runs it has
  failed or is gone, which is reported as well: at once, with the reason, also if the script catches the error.
- A forked child writes a journal of its own in the same directory, which its parent delivers.
- Processes that report to the same destination at once have a directory each, numbered. Each sends its own heartbeats.
"""

import atexit
import dataclasses
import hashlib
import itertools
import logging
import os
import re
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hookline._record.delivery import Pace, sink_states
from hookline._record.outbox import Outbox
from hookline._record.reader import FINAL, JOURNAL, Reader
from hookline._record.recorder import Recorder
from hookline._record.records import Status
from hookline._record.run_directory import LOCK
from hookline.sinks.status import StatusSink

logger = logging.getLogger("hookline")

EXIT_SECONDS = 5.0
"""How long the exit of the process waits for what is left to be delivered."""
UNEXPLAINED = "The process ended before the training was over, and no error says why."
PACE = Pace(poll_seconds=0.2)
_SEGMENT_BYTES = 256 << 10
_FAILED: dict[str, Any] = {"phase": "training_failed", "report": {}}
_OUTBOXES: dict[tuple[Any, ...], "StatusOutbox"] = {}
_TABLE = threading.Lock()
"""Held while `_OUTBOXES` is searched: two threads must not make two outboxes for one destination."""


class WatchedWorker:
    """Knows why a worker failed, also when the worker is gone, without keeping it alive.

    Args:
        worker: What hook functions are given. If it has ``ctx.error``, that is why it failed.
    """

    def __init__(self, worker: Any) -> None:
        try:
            self._worker: Callable[[], Any] = weakref.ref(worker)
        except TypeError:  # not weakly referable: counts as alive
            self._worker = lambda: worker
        ctx = getattr(worker, "ctx", None)
        # Kept strongly: code that catches the error lets go of the worker, and the reason would be lost.
        self._ctx = ctx if hasattr(ctx, "error") else None

    @property
    def error(self) -> str | None:
        """Why it failed, or None."""
        if self._ctx is not None:  # before the state, which is "failed" a moment before the reason is known
            return str(self._ctx.error) if self._ctx.error else None
        return "The worker failed." if getattr(self._worker(), "state", None) == "failed" else None

    @property
    def is_gone(self) -> bool:
        """Whether the worker was garbage-collected."""
        return self._worker() is None


def outbox_for(sinks: Mapping[str, StatusSink], root: str | Path = "runs") -> "StatusOutbox":
    """Return this process's outbox for these sinks, with the shortest heartbeat requested so far."""
    home = Path(root).absolute() / ".outbox"
    key = (home, *(_destination(*sink) for sink in sinks.items()))
    with _TABLE:
        outbox = _OUTBOXES.setdefault(key, StatusOutbox(sinks, home))
        for name, sink in sinks.items():
            own = outbox.sinks[name]
            own.heartbeat_seconds = min(own.heartbeat_seconds, sink.heartbeat_seconds)
    return outbox


def _destination(name: str, sink: StatusSink) -> tuple[str, ...]:
    fields = (field.name for field in dataclasses.fields(sink) if field.name != "heartbeat_seconds")
    return (name, *(repr(getattr(sink, field)) for field in fields))


class StatusOutbox:
    """Reports to status sinks in the background; made by `outbox_for`.

    Args:
        sinks: The sinks by name.
        home: The directory that holds the outboxes' directories.
    """

    def __init__(self, sinks: Mapping[str, StatusSink], home: Path) -> None:
        self.sinks, self.home = dict(sinks), home
        self.step = 0
        self._recorder: Recorder | None = None
        self._outboxes: list[Outbox] = []
        self._active: dict[str, WatchedWorker] = {}
        self._lock = threading.RLock()
        self._failing = threading.RLock()  # not `_lock`: `close` holds that while it waits for threads that need this
        self._pid = 0

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy is the outbox itself; in another process it is that process's outbox for the same destination."""
        return outbox_for, (self.sinks, self.home.parent)

    def report(self, status: str, message: str = "", *, step: int | None = None, **data: Any) -> None:
        """Record a status, to be delivered in the background."""
        (self._recorder or self._start()).status(status, message, step=step, **data)

    def begin(self, activity: str, worker: Any) -> None:
        """Send heartbeats until the activity ends or the worker that runs it fails or is gone."""
        self.report_failures()  # of the previous worker, which may just have failed
        self._active[activity] = WatchedWorker(worker)

    def end(self, activity: str) -> None:
        """Note that an activity is over."""
        self._active.pop(activity, None)

    def drain(self, seconds: float) -> bool:
        """Wait at most this long until everything is delivered, and not for an endpoint that is known to be down."""
        deadline = time.monotonic() + seconds
        while not self.is_done() and time.monotonic() < deadline and not self.has_failed():
            threading.Event().wait(0.01)
        return self.is_done()

    def is_done(self) -> bool:
        """Return whether everything has been delivered."""
        return all(outbox.is_empty() for outbox in self._outboxes)

    def has_failed(self) -> bool:
        """Return whether a sink cannot be reached or refuses, as far as this process has tried."""
        return any(outbox.has_failed() for outbox in self._outboxes)

    def close(self, seconds: float = EXIT_SECONDS) -> None:
        """Deliver what is left, for at most this long, and stop; the next `report` starts again."""
        with self._lock:
            # A forked child inherits the object, but not the threads: its parent delivers and closes.
            if self._recorder is None or self._pid != os.getpid():
                return
            outboxes, self._recorder, self._outboxes = self._outboxes, None, []
            deadline = time.monotonic() + seconds
            for outbox in outboxes:  # all at once, then wait for each
                outbox.begin_close(seconds)
            for outbox in outboxes:
                outbox.close(max(0.0, deadline - time.monotonic()))
            atexit.unregister(self._at_exit)

    def pulse(self) -> int | None:
        """Return the last completed step while something is active; the sinks' heartbeats ask for it."""
        self.report_failures()
        for activity, worker in list(self._active.items()):
            if worker.is_gone:
                self._fail(activity, "The worker went away before the training was over.")
        return self.step if self._active else None

    def report_failures(self) -> None:
        """Report a training as failed, with the reason, if its worker has failed."""
        for activity, worker in list(self._active.items()):
            error = worker.error
            if error is not None:
                self._fail(activity, error)

    def _fail(self, activity: str, reason: str) -> None:
        with self._failing:  # the threads of several sinks may come at once, and the exit waits for the report
            was_active = self._active.pop(activity, None) is not None
            if was_active and activity == "training":
                self.report("failed", reason, step=self.step, **_FAILED)

    def _start(self) -> Recorder:
        with self._lock:
            if self._recorder is None:
                own, *leftovers = self._claim_outboxes()
                died = _was_training(own.directory)
                own.start(writer="main", segment_bytes=_SEGMENT_BYTES)
                for leftover in leftovers:
                    leftover.start(records=False)
                if died:
                    own.recorder.status("failed", "The process died without saying why.", **_FAILED)
                self._outboxes = [own, *leftovers]
                self._pid = os.getpid()
                atexit.register(self._at_exit)
                self._recorder = own.recorder  # last: `report` uses it without the lock
            return self._recorder

    def _claim_outboxes(self) -> list[Outbox]:
        """Claim a directory to write to, and those that dead processes left undelivered."""
        destinations = [f"{sink.format} {sink.endpoint or sink.path}" for sink in self.sinks.values()]
        words = re.sub(r"[^A-Za-z0-9]+", "-", destinations[0].split("://")[-1].split("?")[0]).strip("-")[-40:]
        # The same name at each start; a digest, because addresses may contain secrets.
        name = f"{words}-{hashlib.sha256(chr(10).join(destinations).encode()).hexdigest()[:8]}"
        numbered = itertools.chain([name], (f"{name}.{number}" for number in itertools.count(2)))
        try:
            own = next(outbox for each in numbered if (outbox := self._outbox(self.home / each)).claim())
        except OSError as error:
            text = "%s cannot be written (%s): reports not delivered by the end are lost."
            logger.warning(text, self.home, error.strerror)
            own = self._outbox(Path(tempfile.mkdtemp(prefix="hookline-outbox-")))
            own.claim()
            return [own]
        undelivered = [
            path
            for path in sorted(self.home.glob(f"{name}*"))
            if path != own.directory and not path.is_symlink() and any(s.behind_bytes for s in sink_states(path))
        ]
        leftovers = (self._outbox(path, is_own=False) for path in undelivered)
        return [own, *(leftover for leftover in leftovers if leftover.claim())]

    def _outbox(self, directory: Path, *, is_own: bool = True) -> Outbox:
        def make_sinks() -> dict[str, StatusSink]:
            copies = {name: dataclasses.replace(sink) for name, sink in self.sinks.items()}
            for sink in copies.values() if is_own else ():
                sink.pulse, sink.watch = self.pulse, self.report_failures
            return copies

        return Outbox(directory, make_sinks, pace=PACE, turn=LOCK, beats=is_own)

    def _at_exit(self) -> None:
        if self._pid == os.getpid():
            self.report_failures()
            error = getattr(sys, "last_value", None)
            self._fail("training", f"{type(error).__name__}: {error}" if error else UNEXPLAINED)
            self.close(0.0 if self.has_failed() else EXIT_SECONDS)


def _was_training(directory: Path) -> bool:
    """Return whether the process that used a directory before died in the middle of a training."""
    training = False
    for entry in Reader(directory / JOURNAL).new():
        if isinstance(entry.record, Status):
            training = (training or "num_steps" in entry.record.data) and entry.record.status not in FINAL
    return training
