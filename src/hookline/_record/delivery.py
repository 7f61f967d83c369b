"""`Delivery`: brings one sink what is in a run's journals, and remembers durably how far it came.

Guarantees:

- Records come in order, and none is skipped: the cursor moves only when `write` has returned.
- The cursor and the sink's own state are saved together, in one file that is replaced as a whole
  (``sinks/<name>.json`` in the run's directory), so that after a crash the sink goes on exactly
  behind what counts as delivered.
- A fault is retried for ever, after waits that double up to half a minute, with jitter. What waits
  is in the journal; memory holds one batch.
- A file that is gone, cut or replaced, also while the sink is open, is delivered again from the beginning.
- One deliverer per sink: a lock keeps a second process, or a thread that was given up on, out.
"""

import contextlib
import json
import logging
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from hookline._engine.errors import HooklineError, RefusedError
from hookline._record import files, trust
from hookline._record.reader import JOURNAL, Cursor, JournalEntry, Reader, is_resume
from hookline._record.records import clean
from hookline._record.sink import Sink

logger = logging.getLogger("hookline")

SINKS_FOLDER = "sinks"
"""The folder of a run's directory that holds a file for each sink."""
BATCH_BYTES = 1 << 20

SinkStatus = Literal["ok", "lagging", "refused"]


@dataclass(frozen=True, slots=True)
class Pace:
    """How often a delivery looks for news, and how long it waits after a fault."""

    poll_seconds: float = 0.5
    retry_seconds: float = 0.5
    longest_seconds: float = 30.0
    jitter: Callable[[], float] = random.random
    clock: Callable[[], float] = time.monotonic

    def after(self, faults: int) -> float:
        """How long to wait after so many faults in a row."""
        return min(self.longest_seconds, self.retry_seconds * 2.0 ** min(faults - 1, 30)) * (0.5 + self.jitter() / 2)


@dataclass(frozen=True, slots=True)
class SinkState:
    """How a sink stands: ``ok``, ``lagging`` (a fault, it is being retried) or ``refused`` (it needs a fix).

    ``sent_again_bytes`` is what `sync` brought again because the destination had lost it. ``is_own`` says whether this
    user's own process wrote the settings down (see `hookline._record.trust`). ``left_out`` is how many values of
    delivered rows the destination did not take; they are in the run.
    """

    name: str
    status: SinkStatus = "ok"
    delivered: int = 0
    behind_bytes: int = 0
    error: str = ""
    spec: dict[str, Any] = field(default_factory=dict)
    sent_again_bytes: int = 0
    is_own: bool = False
    left_out: int = 0


@dataclass(slots=True)
class Progress:
    """What a delivery saves.

    ``is_own`` says whether this user's own process wrote the file; where it did not, it stays unsigned.
    """

    path: Path
    spec: dict[str, Any]
    cursor: Cursor = field(default_factory=Cursor)
    state: Any = None
    delivered: int = 0
    status: SinkStatus = "ok"
    error: str = ""
    was_saved: bool = field(default=False, compare=False)
    is_own: bool = field(default=True, compare=False)

    @classmethod
    def load(cls, path: Path, spec: dict[str, Any]) -> "Progress":
        """What was saved for the same sink; a sink with other settings begins at the beginning."""
        saved, is_own = _saved(path)
        if saved.get("sink") != spec:
            return cls(path, spec)
        facts = saved["state"], saved["delivered"], saved["status"], saved["error"]
        return cls(path, spec, _cursor(saved), *facts, was_saved=True, is_own=is_own)

    def save(self, *, sign: bool = True) -> None:
        """Replace the file as a whole; signed, unless its settings came from a file that was not."""
        data = {"sink": self.spec, "status": self.status, "error": self.error, "delivered": self.delivered}
        data |= {"places": self.cursor.places, "state": self.state}
        aside = self.path.with_suffix(f".{os.getpid()}.partial")
        self.was_saved = False
        try:
            aside.unlink(missing_ok=True)
            with aside.open("xb") as file:  # never through a link that somebody put there
                file.write(trust.sign(self.path, data) if sign else json.dumps(data).encode())
            aside.replace(self.path)
            self.was_saved = True
        except OSError:
            with contextlib.suppress(OSError):
                aside.unlink()
            raise


def sink_states(run_dir: Path) -> list[SinkState]:
    """How each sink of a run stands, by what was saved last."""
    journal, found = Path(run_dir) / JOURNAL, []
    for path in sorted((Path(run_dir) / SINKS_FOLDER).glob("*.json")):
        saved, is_own = _saved(path)
        if saved:
            behind, status, error = _cursor(saved).behind(journal), saved["status"], saved["error"]
            if status == "ok" and behind and not saved["delivered"]:
                status, error = "lagging", "Nothing has been delivered yet."
            left_out = saved["state"].get("left_out") if isinstance(saved["state"], dict) else 0
            found.append(
                SinkState(
                    path.stem,
                    status,
                    saved["delivered"],
                    behind,
                    error,
                    saved["sink"],
                    is_own=is_own,
                    left_out=left_out if isinstance(left_out, int) else 0,
                )
            )
    return found


_here = threading.local()


def is_in_sink() -> bool:
    """Whether this thread is at work in a sink: what it logs comes of delivering, and must not make more to deliver."""
    return getattr(_here, "is_in_sink", False)


@contextlib.contextmanager
def _in_sink() -> Iterator[None]:
    _here.is_in_sink = True
    try:
        yield
    finally:
        _here.is_in_sink = False


class Delivery:
    """Feeds one sink, from a thread of its own or one round at a time."""

    def __init__(
        self, run_dir: Path, name: str, sink: Sink, pace: Pace | None = None, *, is_trusted: bool = True
    ) -> None:
        self.run_dir, self.name, self.sink, self.pace = Path(run_dir), name, sink, pace or Pace()
        self._is_trusted = is_trusted  # False: the settings came from a file that nobody vouches for
        self.opened = threading.Event()
        self.refusal: RefusedError | None = None
        self.beats = True
        self.starting = False
        folder = self.run_dir / SINKS_FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = folder / f"{name}.lock"
        self.progress = Progress.load(folder / f"{name}.json", clean(sink.spec()))
        if not self.progress.was_saved:
            with contextlib.suppress(OSError):  # tried again when the sink is opened
                self._save()
        self._reader: Reader | None = None
        self._news: Iterator[JournalEntry] = iter(())
        self._held: JournalEntry | None = None
        self._faults = 0
        self._said: SinkStatus | None = None
        self._holds = False
        self._closing = threading.Event()
        self._deadline = 0.0

    def run(self) -> None:
        """Deliver until `close` is called, and then what is left, within its time."""
        try:
            while not self._closing.wait(self.round()):
                pass
            self._drain()
        finally:
            self._shut()
            if self._holds:
                files.release_lock(self._lock)

    def close(self, seconds: float) -> None:
        """Ask for the end; what is new is still delivered, for so long at most."""
        self._deadline = self.pace.clock() + seconds
        self._closing.set()

    def round(self) -> float:
        """Deliver what is new, and say how long to wait before the next round."""
        try:
            if not self._is_intact():
                self._reader = self._held = None
            self._news = self._open().new()
            while parcels := self._batch():
                if not self._is_intact():  # or it would be written behind a hole; the next round delivers all again
                    self._reader = self._held = None
                    return 0.0
                self._write(parcels)
                if self._closing.is_set() and self.pace.clock() > self._deadline:
                    break
            else:
                self._pass_what_is_no_record()
            if self.beats and not self._closing.is_set():
                with _in_sink():
                    self.sink.beat()
        except BaseException as error:  # also SystemExit: the thread must live on
            return self._note_fault(error)
        finally:
            self.opened.set()
        self._note_success()
        return self.pace.poll_seconds

    def is_done(self) -> bool:
        """Whether nothing waits to be delivered."""
        return self._faults == 0 and self.progress.cursor.behind(self.run_dir / JOURNAL) == 0

    def _drain(self) -> None:
        while not (self.is_done() and self._is_intact()) and (left := self._deadline - self.pace.clock()) > 0:
            wait = self.round()
            if self._faults:
                time.sleep(min(wait, max(0.0, left), 1.0))

    def _open(self) -> Reader:
        if self._reader is None:
            self._hold()
            self._shut()
            if self.progress.state is not None and not self.progress.is_own:
                self.sink.check_foreign(self.run_dir, self.progress.state)
            self._look_for_losses()
            with _in_sink():
                state = clean(self.sink.open(self.run_dir, self.progress.state))
            if state != self.progress.state or not self.progress.was_saved:
                self.progress.state = state
                self._save()
            self._reader = Reader(self.run_dir / JOURNAL, Cursor(dict(self.progress.cursor.places)))
        return self._reader

    def _look_for_losses(self) -> None:
        """Begin at the beginning where the destination does not have any more what it had."""
        if self.progress.state is None:
            return
        with _in_sink():
            reason = self.sink.find_loss(self.run_dir, self.progress.state)
            if reason:
                self.sink.set_aside(self.run_dir, self.progress.state)
            elif self.sink.has_lost(self.run_dir, self.progress.state):
                reason = "it was damaged, as by a power cut"
        if reason:
            logger.warning("%s has lost records: %s. It is delivered again from the journal.", self.name, reason)
            journal, before = self.run_dir / JOURNAL, self.progress.cursor
            self.progress.cursor, self.progress.state, self.progress.delivered = Cursor(), None, 0
            self.sink.sent_again_bytes += self.progress.cursor.behind(journal) - before.behind(journal)
            self._save()

    def _is_intact(self) -> bool:
        """Whether an open sink still has everything; one that is not open is looked at when it is opened."""
        if self._reader is None:
            return True
        with _in_sink():
            return self.sink.is_intact()

    def _save(self) -> None:
        self.progress.save(sign=self._is_trusted)

    def _hold(self) -> None:
        """Become the only deliverer, and go on from where the one before ended."""
        if self._holds:
            return
        if not files.acquire_lock(self._lock):
            raise BusyError(f"another process, or a thread that hangs, is delivering to {self.name}")
        self._holds = True
        self.progress = Progress.load(self.progress.path, self.progress.spec)

    def _pass_what_is_no_record(self) -> None:
        """Move the cursor behind lines at the end that are no records."""
        assert self._reader is not None
        if self.progress.cursor.places != self._reader.cursor.places:
            self.progress.cursor.places.update(self._reader.cursor.places)
            self._save()

    def _batch(self) -> list[JournalEntry]:
        """The next records; a resume mark alone, so that a sink can cut back without losing count."""
        parcels: list[JournalEntry] = []
        size = 0
        while len(parcels) < self.sink.batch_records and size < BATCH_BYTES:
            parcel = self._held or next(self._news, None)
            self._held = None
            if parcel is None:
                break
            if is_resume(parcel.record) and parcels:
                self._held = parcel
                break
            parcels.append(parcel)
            size += parcel.size
            if is_resume(parcel.record):
                break
        return parcels

    def _write(self, parcels: list[JournalEntry]) -> None:
        with _in_sink():
            state = clean(self.sink.write(parcels))
        progress = self.progress
        progress.state = state
        progress.delivered += len(parcels)
        for parcel in parcels:
            progress.cursor.pass_by(parcel.file, parcel.end)
        self._save()  # nothing more is written until that was possible: one batch at most comes again after a crash
        self._faults = 0

    def _note_fault(self, error: BaseException) -> float:
        self._faults += 1
        self._reader = self._held = None
        status: SinkStatus = "refused" if isinstance(error, RefusedError) else "lagging"
        if isinstance(error, RefusedError):
            self.refusal = error
        self._say(status, str(error) if isinstance(error, HooklineError) else f"{type(error).__name__}: {error}")
        return self.pace.longest_seconds if status == "refused" else self.pace.after(self._faults)

    def _note_success(self) -> None:
        self._faults = 0
        if self._said not in (None, "ok"):
            self._said = "ok"
            logger.warning("%s takes records again.", self.name)
        self._set("ok", "")

    def _say(self, status: SinkStatus, error: str) -> None:
        """Say it when a sink begins to lag or to refuse, not at every attempt."""
        told = error.rstrip(". ") or "no reason given"
        if self._said != status and not (self.starting and status == "refused"):  # that is raised where it is started
            self._said = status
            if status == "refused":
                logger.error("%s refuses: %s. Its records are kept, and tried again now and then.", self.name, told)
            else:
                logger.warning("%s lags: %s. Its records are kept and delivered later.", self.name, told)
        self._set(status, error)

    def _set(self, status: SinkStatus, error: str) -> None:
        changed = (self.progress.status, self.progress.error) != (status, error)
        self.progress.status, self.progress.error = status, error
        if changed and self._holds:
            with contextlib.suppress(OSError):
                self._save()

    def _shut(self) -> None:
        try:
            with _in_sink():
                self.sink.close()
        except Exception:
            logger.warning("%s could not be closed.", self.name, exc_info=True)


class BusyError(HooklineError, RuntimeError):
    """Somebody else is delivering to the sink."""


def _saved(path: Path) -> tuple[dict[str, Any], bool]:
    """What a file says, where it has the form of one that was saved; and whether it is the user's own."""
    saved, is_own = trust.read(path)
    return (saved, is_own) if _is_whole(saved) else ({}, False)


def _is_whole(saved: dict[str, Any]) -> bool:
    kinds = {"sink": dict, "status": str, "error": str, "delivered": int, "places": dict}
    places = saved.get("places")
    return (
        "state" in saved
        and all(isinstance(saved.get(name), kind) for name, kind in kinds.items())
        and isinstance(places, dict)
        and all(
            isinstance(place, list) and len(place) == 2 and all(type(number) is int for number in place)
            for place in places.values()
        )
    )


def _cursor(saved: dict[str, Any]) -> Cursor:
    return Cursor({writer: (number, offset) for writer, (number, offset) in saved["places"].items()})
