"""`Outbox`: a small journal of its own with deliveries to status sinks, for functions that have no run.

Guarantees:

- `tell` appends one record to a journal: microseconds, no network, no waiting. What was told survives the
  death of the process.
- It begins at the first `tell`, not when it is made. Outboxes for the same place are one object, so what
  is told through it arrives in the order in which it was told.
- Its directory is ``<root>/.outbox/<place>``. What an endpoint that was down did not get stays there, and
  the next outbox for the same place delivers it, before anything new. What was delivered is deleted at exit.
- Heartbeats are sent while something is under way: from a training's or a validation's beginning to its
  end, or until the worker that runs it has failed or is gone, which is told, too. That it failed is told at
  once, with the reason, and also where the script catches the error and exits.
- A forked child writes a journal of its own in the same directory, which its parent delivers.

Several processes may tell the same place at once: each has a directory of its own, numbered.

`WatchedWorker`: a worker that an outbox reports for, which neither keeps it alive nor misses why it failed.
"""

import atexit
import contextlib
import dataclasses
import hashlib
import itertools
import logging
import os
import re
import shutil
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hookline._record import files
from hookline._record.delivery import Delivery, Pace, sink_states
from hookline._record.reader import FINAL, JOURNAL, Reader
from hookline._record.recorder import Recorder
from hookline._record.records import Status
from hookline._record.run_directory import LOCK
from hookline.sinks.status import StatusSink


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


logger = logging.getLogger("hookline")

EXIT_SECONDS = 5.0
"""How long the end of the process waits for what is left to be delivered."""
UNEXPLAINED = "The process ended before the training was over, and no error says why."
PACE = Pace(poll_seconds=0.2)
_SEGMENT_BYTES = 256 << 10
_FAILED: dict[str, Any] = {"phase": "training_failed", "report": {}}
_OUTBOXES: dict[tuple[Any, ...], "StatusOutbox"] = {}
_TABLE = threading.Lock()


def outbox_for(sinks: Mapping[str, StatusSink], root: str | Path = "runs") -> "StatusOutbox":
    """The outbox of this process for these sinks; the same one each time, with the shortest heartbeat asked for."""
    home = Path(root).absolute() / ".outbox"
    with _TABLE:
        outbox = _OUTBOXES.setdefault((home, *(_settings(*sink) for sink in sinks.items())), StatusOutbox(sinks, home))
        for name, sink in sinks.items():
            own = outbox.sinks[name]
            own.heartbeat_seconds = min(own.heartbeat_seconds, sink.heartbeat_seconds)
    return outbox


def _settings(name: str, sink: StatusSink) -> tuple[str, ...]:
    """What tells one destination from another."""
    fields = (field.name for field in dataclasses.fields(sink) if field.name != "heartbeat_seconds")
    return (name, *(repr(getattr(sink, field)) for field in fields))


class StatusOutbox:
    """Tells status sinks what it is told; made by `outbox_for`.

    Args:
        sinks: The sinks by name.
        home: The directory that holds its own.
    """

    def __init__(self, sinks: Mapping[str, StatusSink], home: Path) -> None:
        self.sinks, self.home = dict(sinks), home
        self._recorder: Recorder | None = None
        self._slots: list[Slot] = []
        self._under_way: dict[str, WatchedWorker] = {}
        self._lock = threading.RLock()
        self._failing = threading.RLock()  # not the other: `close` holds that while it waits for the threads
        self._pid = 0
        self.step = 0

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy is the outbox itself, and one that is sent to another process is the one for the same place there."""
        return outbox_for, (self.sinks, self.home.parent)

    def tell(self, status: str, message: str = "", *, step: int | None = None, **data: Any) -> None:
        """Record a status, to be delivered in the background."""
        (self._recorder or self._start()).status(status, message, step=step, **data)

    def begin(self, activity: str, worker: Any) -> None:
        """Send heartbeats from now on, until the activity ends or the worker that runs it fails or is gone."""
        self.tell_failures()  # of the worker before, which may have failed just now
        self._under_way[activity] = WatchedWorker(worker)

    def end(self, activity: str) -> None:
        """Note that an activity is over."""
        self._under_way.pop(activity, None)

    def drain(self, seconds: float) -> bool:
        """Wait until all is delivered, for so long at most, and not for what cannot be reached; whether it is."""
        deadline = time.monotonic() + seconds
        while not self.is_done() and time.monotonic() < deadline and not any(slot.fails() for slot in self._slots):
            threading.Event().wait(0.01)
        return self.is_done()

    def is_done(self) -> bool:
        """Whether nothing waits to be delivered."""
        return all(slot.is_done() for slot in self._slots)

    def close(self, seconds: float = EXIT_SECONDS) -> None:
        """Deliver what is left, for so long at most, and end; the next `tell` begins anew. May be called again."""
        with self._lock:
            if self._recorder is None or self._pid != os.getpid():
                return
            recorder, slots, self._recorder, self._slots = self._recorder, self._slots, None, []
            recorder.close()
            for slot in slots:
                slot.ask_to_end(seconds)
            deadline = time.monotonic() + seconds + 0.5
            for slot in slots:
                slot.end(deadline)
            atexit.unregister(self._at_exit)

    def pulse(self) -> int | None:
        """The last completed step, while something is under way."""
        self.tell_failures()
        for activity, worker in list(self._under_way.items()):
            if worker.is_gone:
                self._fail(activity, "The worker went away before the training was over.")
        return self.step if self._under_way else None

    def tell_failures(self) -> None:
        """Tell that a training failed, and why, if its worker says so by now."""
        for activity, worker in list(self._under_way.items()):
            error = worker.error
            if error is not None:
                self._fail(activity, error)

    def _fail(self, activity: str, reason: str) -> None:
        with self._failing:  # several sinks ask at the same time, and the exit waits until it is told
            was_under_way = self._under_way.pop(activity, None) is not None
            if was_under_way and activity == "training":
                self.tell("failed", reason, step=self.step, **_FAILED)

    def _start(self) -> Recorder:
        with self._lock:
            if self._recorder is None:
                own, *others = _slots(self.home, _place(self.sinks))
                died = _left_a_training_open(own)
                recorder = Recorder(own, segment_bytes=_SEGMENT_BYTES)
                if died:
                    recorder.status("failed", "The process died without saying why.", **_FAILED)
                self._slots = [Slot(own, self.sinks, self), *(Slot(other, self.sinks) for other in others)]
                self._pid = os.getpid()
                atexit.register(self._at_exit)
                self._recorder = recorder
            return self._recorder

    def _at_exit(self) -> None:
        if self._pid == os.getpid():
            self.tell_failures()
            error = getattr(sys, "last_value", None)
            self._fail("training", f"{type(error).__name__}: {error}" if error else UNEXPLAINED)
            self.close(0.0 if any(slot.fails() for slot in self._slots) else EXIT_SECONDS)


class Slot:
    """A directory that this process holds, and the threads that deliver from it.

    Args:
        writer: The outbox that writes to the directory; one that it only delivers from sends no heartbeats.
    """

    def __init__(self, directory: Path, sinks: Mapping[str, StatusSink], writer: StatusOutbox | None = None) -> None:
        self.directory = directory
        copies = {name: dataclasses.replace(sink) for name, sink in sinks.items()}
        self._deliveries = [Delivery(directory, name, sink, PACE) for name, sink in copies.items()]
        for delivery, sink in zip(self._deliveries, copies.values(), strict=True):
            delivery.beats = writer is not None
            if writer is not None:
                sink.pulse, sink.watch = writer.pulse, writer.tell_failures
        self._threads = [
            threading.Thread(target=delivery.run, name=f"hookline-{delivery.name}", daemon=True)
            for delivery in self._deliveries
        ]
        for thread in self._threads:
            thread.start()

    def is_done(self) -> bool:
        """Whether nothing waits to be delivered."""
        return all(delivery.is_done() for delivery in self._deliveries)

    def fails(self) -> bool:
        """Whether a sink cannot be reached or refuses, as far as this process has tried."""
        return any(delivery.opened.is_set() and delivery.progress.status != "ok" for delivery in self._deliveries)

    def ask_to_end(self, seconds: float) -> None:
        """Deliver what is left, for so long at most."""
        for delivery in self._deliveries:
            delivery.close(seconds)

    def end(self, deadline: float) -> None:
        """Wait for the threads, and delete the directory if everything was delivered."""
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if self.is_done() and not any(thread.is_alive() for thread in self._threads):
            shutil.rmtree(self.directory, ignore_errors=True)
        files.release_lock(self.directory / LOCK)


def _left_a_training_open(directory: Path) -> bool:
    """Whether the process that had a directory before died in the middle of a training."""
    training = False
    for parcel in Reader(directory / JOURNAL).new():
        if isinstance(parcel.record, Status):
            training = (training or "num_steps" in parcel.record.data) and parcel.record.status not in FINAL
    return training


def _place(sinks: Mapping[str, StatusSink]) -> str:
    """A name for where sinks deliver to, the same at each start, without anything secret in it."""
    places = [f"{sink.format} {sink.endpoint or sink.path}" for sink in sinks.values()]
    words = re.sub(r"[^A-Za-z0-9]+", "-", (places[0].split("://")[-1]).split("?")[0]).strip("-")[-40:]
    return f"{words}-{hashlib.sha256(chr(10).join(places).encode()).hexdigest()[:8]}"


def _slots(home: Path, place: str) -> list[Path]:
    """The directories to deliver from, held: the first one to write to, the others left by processes that died."""
    try:
        home.mkdir(parents=True, exist_ok=True)
        own = next(path for path in _numbered(home, place) if _take(path, make=True))
    except OSError as error:
        logger.warning("%s cannot be written (%s): what is not delivered by the end is lost.", home, error.strerror)
        own = Path(tempfile.mkdtemp(prefix="hookline-outbox-"))
        return [own]
    others = [
        path for path in sorted(home.glob(f"{place}*")) if path != own and not path.is_symlink() and _has_news(path)
    ]
    return [own, *(path for path in others if _take(path))]


def _numbered(home: Path, place: str) -> "itertools.chain[Path]":
    return itertools.chain([home / place], (home / f"{place}.{number}" for number in itertools.count(2)))


def _take(path: Path, *, make: bool = False) -> bool:
    if make:
        path.mkdir(exist_ok=True)
    with contextlib.suppress(FileNotFoundError):  # deleted by the process that had it
        return files.acquire_lock(path / LOCK)
    return False


def _has_news(path: Path) -> bool:
    return any(state.behind_bytes for state in sink_states(path))
