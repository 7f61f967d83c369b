"""`Delivery`: feeds one sink from a run's journals and durably remembers its position.

Guarantees:

- Records arrive in order and none is skipped: the cursor moves only after `Sink.write` has returned.
- The cursor and the sink's own state are saved together, in one file that is replaced as a whole
  (``sinks/<name>.json`` in the run's directory). After a crash the sink continues exactly after what counts as
  delivered; at most one batch is written twice.
- A failed write is retried for ever, with exponential backoff up to half a minute and jitter. What waits is in the
  journal; memory holds one batch.
- A file that was deleted, truncated or replaced, also while the sink is open, is delivered again from the beginning.
- One deliverer per sink: a lock keeps out a second process, and the thread of a run that did not end in time.
"""

import contextlib
import json
import logging
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


class BusyError(HooklineError, RuntimeError):
    """Another process or thread is delivering to the sink."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How often a delivery polls the journal, and how long it waits after a failure."""

    poll_seconds: float = 0.5
    retry_seconds: float = 0.5
    longest_seconds: float = 30.0
    # A generator of our own: delivery threads must not draw from the global state that user code has seeded.
    jitter: Callable[[], float] = random.Random().random  # noqa: S311 - spreads retries, no secret
    clock: Callable[[], float] = time.monotonic

    def after(self, faults: int) -> float:
        """Return how long to wait after this many failures in a row."""
        # With jitter: runs that lost the same server do not all come back at the same instant.
        return min(self.longest_seconds, self.retry_seconds * 2.0 ** min(faults - 1, 30)) * (0.5 + self.jitter() / 2)


@dataclass(frozen=True, slots=True)
class SinkState:
    """The state of one sink of a run, from its saved file.

    Attributes:
        status: ``ok``, ``lagging`` (a failure is being retried) or ``refused`` (the settings need a fix).
        sent_again_bytes: What `sync` delivered again because the destination had lost it.
        is_own: Whether a process of this user wrote the file (see `hookline._record.trust`).
        left_out: How many values the destination did not accept or cannot show; the run has them.
        blobs_left_out: How many images, files and other blobs it does not have.
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
    blobs_left_out: int = 0


@dataclass(slots=True)
class Progress:
    """The saved position and state of a delivery.

    ``is_own`` says whether a process of this user wrote the file; if not, the file stays unsigned.
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
        """Load the state of this sink; with other settings, delivery starts from the beginning."""
        saved, is_own = _read_saved(path)
        if saved.get("sink") != spec:
            return cls(path, spec)
        values = saved["state"], saved["delivered"], saved["status"], saved["error"]
        return cls(path, spec, _cursor(saved), *values, was_saved=True, is_own=is_own)

    def save(self, *, sign: bool = True) -> None:
        """Replace the file as a whole; ``sign=False`` if its settings came from a file without a valid signature."""
        data = {"sink": self.spec, "status": self.status, "error": self.error, "delivered": self.delivered}
        data |= {"places": self.cursor.places, "state": self.state}
        # False until the file is replaced: after a failure, as on a full disk, `_open` saves again.
        self.was_saved = False
        content = trust.sign(self.path, data) if sign else json.dumps(data).encode()
        # Not synced: this happens for every batch. After a power cut the sink finds out itself what it holds.
        files.write_atomically(self.path, content, sync=False)
        self.was_saved = True


def sink_states(run_dir: Path) -> list[SinkState]:
    """Return the saved state of each sink of a run."""
    journal, states = Path(run_dir) / JOURNAL, []
    for path in sorted((Path(run_dir) / SINKS_FOLDER).glob("*.json")):
        saved, is_own = _read_saved(path)
        if not saved:
            continue
        behind, status, error = _cursor(saved).behind(journal), saved["status"], saved["error"]
        if status == "ok" and behind and not saved["delivered"]:
            status, error = "lagging", "Nothing has been delivered yet."
        counts = saved["state"] if isinstance(saved["state"], dict) else {}
        left_out, blobs = (counts.get(key) for key in ("left_out", "blobs_left_out"))
        states.append(
            SinkState(
                path.stem,
                status,
                saved["delivered"],
                behind,
                error,
                saved["sink"],
                is_own=is_own,
                left_out=left_out if isinstance(left_out, int) else 0,
                blobs_left_out=blobs if isinstance(blobs, int) else 0,
            )
        )
    return states


_thread = threading.local()


def is_in_sink() -> bool:
    """Return whether this thread is executing a sink: what it logs must not become more to deliver."""
    return getattr(_thread, "is_in_sink", False)


@contextlib.contextmanager
def _in_sink() -> Iterator[None]:
    _thread.is_in_sink = True
    try:
        yield
    finally:
        _thread.is_in_sink = False


class Delivery:
    """Feeds one sink, from a thread that calls `run` or one `round` at a time.

    Args:
        is_trusted: False if the settings came from a file without a valid signature.
    """

    def __init__(
        self, run_dir: Path, name: str, sink: Sink, pace: Pace | None = None, *, is_trusted: bool = True
    ) -> None:
        self.run_dir, self.name, self.sink, self.pace = Path(run_dir), name, sink, pace or Pace()
        self._is_trusted = is_trusted
        self.opened = threading.Event()
        self.refusal: RefusedError | None = None
        self.beats = True
        self.starting = False
        folder = self.run_dir / SINKS_FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = folder / f"{name}.lock"
        self.progress = Progress.load(folder / f"{name}.json", clean(sink.spec()))
        # At once: the sink is listed, and `hookline runs sync` finds it, even if the process dies before it is opened.
        if not self.progress.was_saved:
            with contextlib.suppress(OSError):  # tried again when the sink is opened
                self._save()
        self._reader: Reader | None = None
        self._entries: Iterator[JournalEntry] = iter(())
        self._held_back: JournalEntry | None = None
        self._faults = 0
        self._reported: SinkStatus | None = None
        self._is_locked = False
        self._closing = False
        self._wake = threading.Event()
        self._deadline = 0.0

    def run(self) -> None:
        """Deliver until `close` is called, then what is left, within its time limit."""
        try:
            while True:
                # Before the round: a wake-up that comes during it is not lost.
                self._wake.clear()
                seconds = self.round()
                if self._closing:
                    break
                self._wake.wait(seconds)
            # Intact as well: a file that was deleted after the last batch is written again before the run ends.
            while not (self.is_done() and self._is_intact()) and (left := self._deadline - self.pace.clock()) > 0:
                seconds = self.round()
                if self._faults:
                    time.sleep(min(seconds, max(0.0, left), 1.0))
        finally:
            # In this order: who gets the lock next must not find the sink still open.
            self._close_sink()
            if self._is_locked:
                files.release_lock(self._lock)

    def wake(self) -> None:
        """Start the next round now instead of at its time."""
        self._wake.set()

    def close(self, seconds: float) -> None:
        """Make `run` return; what is in the journal is still delivered, for at most this long."""
        # Before the flag: the thread reads the deadline as soon as it sees the flag.
        self._deadline = self.pace.clock() + seconds
        self._closing = True
        self._wake.set()

    def round(self) -> float:
        """Deliver new records, and return how long to wait before the next round."""
        try:
            if not self._is_intact():
                self._reader = self._held_back = None
            self._entries = self._open().new()
            while entries := self._next_batch():
                if not self._is_intact():  # writing would leave a gap; the next round delivers everything again
                    self._reader = self._held_back = None
                    return 0.0
                self._write(entries)
                # This leaves out the `else`: not everything was read, so trailing lines are not known to be damaged.
                if self._closing and self.pace.clock() > self._deadline:
                    break
            else:
                self._skip_damaged_lines()
            if self.beats and not self._closing:
                with _in_sink():
                    self.sink.beat()
        except BaseException as error:  # SystemExit as well: the thread must survive
            return self._handle_failure(error)
        finally:
            # After a failure, too: `DeliveryManager.start` waits for an attempt, not for success.
            self.opened.set()
        self._faults = 0
        if self._reported not in (None, "ok"):
            self._reported = "ok"
            logger.warning("%s accepts records again.", self.name)
        self._set_status("ok", "")
        return self.pace.poll_seconds

    def is_done(self) -> bool:
        """Return whether everything in the journal has been delivered."""
        return self._faults == 0 and self.progress.cursor.behind(self.run_dir / JOURNAL) == 0

    def _open(self) -> Reader:
        if self._reader is None:
            if not self._is_locked:
                if not files.acquire_lock(self._lock):
                    raise BusyError(f"another process, or a thread that hangs, is delivering to {self.name}")
                self._is_locked = True
                # Another process may have delivered since this one read the file.
                self.progress = Progress.load(self.progress.path, self.progress.spec)
            # After a failure it may be half open.
            self._close_sink()
            if self.progress.state is not None:
                # Before the sink touches anything that this state names.
                if not self.progress.is_own:
                    self.sink.check_foreign(self.run_dir, self.progress.state)
                self._restart_if_lost()
            with _in_sink():
                state = clean(self.sink.open(self.run_dir, self.progress.state))
            # Before the first write: after a crash the sink finds what `open` has created.
            if state != self.progress.state or not self.progress.was_saved:
                self.progress.state = state
                self._save()
            # A copy: the reader runs ahead of what is delivered, and is thrown away after a failure.
            self._reader = Reader(self.run_dir / JOURNAL, Cursor(dict(self.progress.cursor.places)))
        return self._reader

    def _restart_if_lost(self) -> None:
        """Start from the beginning if the destination has lost what was delivered."""
        with _in_sink():
            reason = self.sink.find_loss(self.run_dir, self.progress.state)
            if reason:
                self.sink.set_aside(self.run_dir, self.progress.state)
            elif self.sink.has_lost(self.run_dir, self.progress.state):
                reason = "it was damaged, as by a power cut"
        if reason:
            logger.warning("%s has lost records: %s. They are delivered again from the journal.", self.name, reason)
            journal, before = self.run_dir / JOURNAL, self.progress.cursor
            self.progress.cursor, self.progress.state, self.progress.delivered = Cursor(), None, 0
            self.sink.sent_again_bytes += self.progress.cursor.behind(journal) - before.behind(journal)
            # Before `open`: after a crash in between, the old cursor must not count any more.
            self._save()

    def _is_intact(self) -> bool:
        if self._reader is None:  # checked when the sink is opened
            return True
        with _in_sink():
            return self.sink.is_intact()

    def _skip_damaged_lines(self) -> None:
        """Move the cursor past trailing lines that hold no record."""
        assert self._reader is not None
        if self.progress.cursor.places != self._reader.cursor.places:
            self.progress.cursor.places.update(self._reader.cursor.places)
            self._save()

    def _next_batch(self) -> list[JournalEntry]:
        """Return the next records; a resume mark comes alone, so that a sink can truncate without losing count."""
        batch: list[JournalEntry] = []
        size = 0
        while len(batch) < self.sink.batch_records and size < BATCH_BYTES:
            entry = self._held_back or next(self._entries, None)
            self._held_back = None
            if entry is None:
                break
            if is_resume(entry.record) and batch:
                self._held_back = entry
                break
            batch.append(entry)
            size += entry.size
            if is_resume(entry.record):
                break
        return batch

    def _write(self, entries: list[JournalEntry]) -> None:
        with _in_sink():
            state = clean(self.sink.write(entries))
        # Only after the write. State and cursor belong together and are saved as one.
        progress = self.progress
        progress.state = state
        progress.delivered += len(entries)
        for entry in entries:
            progress.cursor.pass_by(entry.file, entry.end)
        self._save()  # before anything more is written: after a crash at most one batch comes twice
        self._faults = 0

    def _save(self) -> None:
        self.progress.save(sign=self._is_trusted)

    def _handle_failure(self, error: BaseException) -> float:
        self._faults += 1
        # The next round opens the sink again, from the last saved cursor and state.
        self._reader = self._held_back = None
        status: SinkStatus = "lagging"
        if isinstance(error, RefusedError):
            status, self.refusal = "refused", error
        text = str(error) if isinstance(error, HooklineError) else f"{type(error).__name__}: {error}"
        # Reported when the status changes, not at every attempt; while starting, a refusal is raised by the caller.
        if self._reported != status and not (self.starting and status == "refused"):
            self._reported = status
            reason = text.rstrip(". ") or "no reason given"
            if status == "refused":
                logger.error("%s refuses: %s. Records are kept, and delivery is retried.", self.name, reason)
            else:
                logger.warning("%s lags: %s. Its records are kept and delivered later.", self.name, reason)
        self._set_status(status, text)
        return self.pace.longest_seconds if status == "refused" else self.pace.after(self._faults)

    def _set_status(self, status: SinkStatus, error: str) -> None:
        changed = (self.progress.status, self.progress.error) != (status, error)
        self.progress.status, self.progress.error = status, error
        # Without the lock, the file belongs to the process that delivers.
        if changed and self._is_locked:
            with contextlib.suppress(OSError):
                self._save()

    def _close_sink(self) -> None:
        try:
            with _in_sink():
                self.sink.close()
        except Exception:
            logger.warning("%s could not be closed.", self.name, exc_info=True)


def _read_saved(path: Path) -> tuple[dict[str, Any], bool]:
    """Read a sink's file, and whether it is this user's own; nothing if it does not have the expected form."""
    saved, is_own = trust.read(path)
    kinds = {"sink": dict, "status": str, "error": str, "delivered": int, "places": dict}
    if "state" not in saved or not all(isinstance(saved.get(name), kind) for name, kind in kinds.items()):
        return {}, False
    # The file may be damaged or planted: a position of another form would raise where it is used.
    for position in saved["places"].values():
        if not (isinstance(position, list) and len(position) == 2 and all(type(number) is int for number in position)):
            return {}, False
    return saved, is_own


def _cursor(saved: dict[str, Any]) -> Cursor:
    return Cursor({writer: (number, offset) for writer, (number, offset) in saved["places"].items()})
