"""`Outbox`: a small journal of its own, and the delivery of it to sinks, for what is recorded outside of a run.

The handlers of `hookline.logging` and the status functions of `hookline.status` use it. Guarantees:

- What is recorded is in the journal when the recorder's method returns: it waits for nothing, no queue fills up, and
  it survives ``kill -9``. The next outbox with the same directory delivers what was left, before anything new.
- Each record reaches each sink once, in order (see `Delivery`).
- Several processes may record to one directory, as the ranks of a training with one configuration do. Each has a
  journal of its own; the one that holds the turn delivers for all, and another takes over when it ends or dies.
  `claim` takes a directory for this process alone instead.
- What was delivered stays in the journal until the last process closes, and is delivered again if its destination
  is deleted, truncated or replaced meanwhile. Then the directory is removed.

The directory holds ``journal/`` and ``sinks/`` as a run's does, ``writers/`` (a lock file for each process at work),
a lock file for the turn, ``gate`` (locked while a process enters or removes the directory) and, with ``settings``,
``handler.json`` and ``life`` (a name for the time from the directory's creation to its removal).

Lock order: the gate, then the turn or a writer's lock. The gate is never held during I/O to a sink.
"""

import contextlib
import logging
import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hookline._record import files, trust
from hookline._record.delivery import SINKS_FOLDER, Pace, Progress, SinkState, sink_states
from hookline._record.delivery_manager import DeliveryManager
from hookline._record.reader import JOURNAL, MAIN, JournalEntry, read_lines
from hookline._record.recorder import Recorder
from hookline._record.records import clean
from hookline._record.redaction import Redactor
from hookline._record.segment import journal_files
from hookline._record.sink import Sink

logger = logging.getLogger("hookline")

SEGMENT_BYTES = 1 << 20
POLL_SECONDS = 0.02
RETRY_SECONDS = 1.0
TURN = "turn"
SETTINGS = "handler.json"
LIFE = "life"


class Outbox:
    """Records to a journal in a directory, and delivers it to sinks.

    Args:
        directory: Where the journal lies until it is delivered; created by `claim` or `start`.
        make_sinks: Makes the sinks, by name, once in each process that delivers.
        pace: How often new records are delivered, and how long to wait after failures.
        turn: The name of the lock file of the process that delivers.
        settings: Written to ``handler.json``, so that another program can build the sinks again.
        beats: Whether the sinks get heartbeats.
    """

    def __init__(
        self,
        directory: Path,
        make_sinks: Callable[[], Mapping[str, Sink]],
        *,
        pace: Pace,
        turn: str = TURN,
        settings: Mapping[str, Any] | None = None,
        beats: bool = True,
    ) -> None:
        self.directory = directory.absolute()
        self._make_sinks, self._pace, self._settings, self._beats = make_sinks, pace, settings, beats
        self._specs = {name: clean(sink.spec()) for name, sink in make_sinks().items()}
        self._label = ", ".join(self._specs)
        self._turn = self.directory / turn
        self._claimed_by = 0  # a pid: a forked child has not claimed what its parent has
        self._process = 0
        self._recorder: Recorder | None = None
        self._redactor = Redactor()
        self._manager: DeliveryManager | None = None

    @property
    def is_started(self) -> bool:
        """Whether it was started in this process; in a forked child it was not."""
        return self._process == os.getpid()

    @property
    def recorder(self) -> Recorder:
        """Where to record, once it is started."""
        assert self._recorder is not None
        return self._recorder

    def redact_with(self, redactor: Redactor) -> None:
        """Redact all later records."""
        self._redactor = redactor
        if self._recorder is not None:
            self._recorder.redactor = redactor

    def has_leftovers(self) -> bool:
        """Return whether an earlier process left something that no process is delivering."""
        return self.directory.is_dir() and not files.is_locked(self._turn)

    def claim(self) -> bool:
        """Take the directory for this process alone; returns False if another process delivers from it."""
        # Inside the gate, so that the directory is not removed between its creation and the lock.
        with _gate(self.directory):
            if not files.acquire_lock(self._turn):
                return False
            self._claimed_by = os.getpid()
            return True

    def start(self, *, writer: str | None = None, segment_bytes: int = SEGMENT_BYTES, records: bool = True) -> None:
        """Start recording and delivering in this process; does nothing if it is started.

        Args:
            writer: The name of the journal's writer; unique to this process by default, which a shared directory needs.
            records: False only delivers what other processes left.
        """
        if self.is_started:
            return
        with _gate(self.directory):
            # A writer's lock keeps the directory from being removed by another process that closes.
            self._writer_lock = self.directory / "writers" / f"{os.getpid()}-{secrets.token_hex(3)}"
            self._writer_lock.parent.mkdir(exist_ok=True)
            files.acquire_lock(self._writer_lock)
            if self._settings is not None:
                life = self.directory / LIFE
                # Empty: a process was killed between creating and writing it.
                if not life.exists() or not life.read_bytes():
                    life.write_text(f"{time.time_ns()}.{secrets.token_hex(3)}", encoding="ascii")
                path = self.directory / SETTINGS
                files.write_atomically(path, trust.sign(path, dict(self._settings)), sync=False)
            if records:
                name = writer or _unique_writer()
                self._recorder = Recorder(self.directory, name=name, segment_bytes=segment_bytes, redact=self._redactor)
        # A forked child has inherited those of its parent, whose threads do not exist here.
        self._manager = None
        self._closing, self._wake = threading.Event(), threading.Event()
        self._deadline = 0.0
        self._thread = threading.Thread(target=self._run, name=f"hookline-{self._label}", daemon=True)
        with contextlib.suppress(RuntimeError):  # the interpreter is shutting down: the next start delivers
            self._thread.start()
        # Last: `is_started` promises all of the above.
        self._process = os.getpid()

    def drain(self, seconds: float) -> bool:
        """Deliver what this process recorded so far; waits at most this long, and not for a sink that fails.

        Returns:
            Whether everything was delivered.
        """
        if not (self.is_started and self._thread.is_alive()):
            return self.is_drained()
        # Values from a device are not in the journal yet.
        self.recorder.flush()
        deadline = time.monotonic() + seconds
        self._wake_up()
        while not (done := self.is_drained()) and not self.has_failed() and time.monotonic() < deadline:
            self._closing.wait(POLL_SECONDS)
        return done

    def is_drained(self) -> bool:
        """Return whether everything that this process recorded has been delivered."""
        if self._recorder is None:
            return self.is_empty()
        journal, writer = self.directory / JOURNAL, self._recorder.journal.writer
        own = [file for file in journal_files(journal) if file.writer == writer]
        for progress in self._saved():
            positions = [(file.path, progress.cursor.offset(file)) for file in own]
            # One line is enough to know, so nothing is counted.
            if any(next(read_lines(path, offset), None) for path, offset in positions if offset is not None):
                return False
        return True

    def is_empty(self) -> bool:
        """Return whether everything in the directory has been delivered, whichever process recorded it."""
        return all(progress.cursor.behind(self.directory / JOURNAL) == 0 for progress in self._saved())

    def has_failed(self) -> bool:
        """Return whether a sink lags or refuses, as far as the process that delivers has tried."""
        if self._manager is not None:
            return self._manager.has_failed()
        # Of a claimed directory the file was saved by an earlier process, and this one has not tried yet.
        return not self._is_claimed() and any(progress.status != "ok" for progress in self._saved())

    def deliver_leftovers(
        self, seconds: float, progress: Callable[[list[SinkState]], object] = lambda states: None
    ) -> list[SinkState]:
        """Deliver what other processes left, for at most this long, and close; returns the states of the sinks.

        Args:
            progress: Called repeatedly with the states.
        """
        self.start()
        deadline = time.monotonic() + seconds
        while not self.is_empty() and time.monotonic() < deadline:
            progress(sink_states(self.directory))
            self._closing.wait(POLL_SECONDS)
        states = sink_states(self.directory)
        self.close(max(0.0, deadline - time.monotonic()))
        return states

    def begin_close(self, seconds: float) -> None:
        """Stop recording, and give the delivery this long to finish; `close` waits for it."""
        # First: nothing is added to what has to be delivered in time.
        if self._recorder is not None:
            self._recorder.close()
        # Before the flag: the thread reads the deadline when it sees the flag.
        self._deadline = time.monotonic() + seconds
        self._closing.set()
        if (manager := self._manager) is not None:
            for delivery in manager.deliveries:
                delivery.close(seconds)
        self._wake_up()

    def close(self, seconds: float) -> None:
        """Deliver what is left, for at most this long, and remove the directory if it is not needed any more."""
        if not self.is_started:
            return
        if not self._closing.is_set():
            self.begin_close(seconds)
        # Before waiting: a second call, as at the exit of the interpreter, returns at once.
        self._process = 0
        if self._thread.ident is not None:
            self._thread.join(seconds + 0.5)
        # After the wait: meanwhile no other process may remove the directory.
        files.release_lock(self._writer_lock)
        self._writer_lock.unlink(missing_ok=True)
        if self._is_claimed():  # also if the thread hangs in a sink: the next start may have this directory
            files.release_lock(self._turn)
            self._claimed_by = 0
        if self.directory.is_dir():
            with _gate(self.directory):
                # Everything is checked and removed inside the gate: no process enters in between.
                locks = [self._turn, *(self.directory / "writers").glob("*")]
                if not any(map(files.is_locked, locks)) and not self._thread.is_alive() and self.is_empty():
                    shutil.rmtree(self.directory, ignore_errors=True)
                    return
        if self._settings is not None and not self.is_drained():
            logger.warning(
                "%s: some records were not delivered in time. The next start delivers them, or: hookline runs sync %s",
                self._label,
                self.directory,
            )

    def _is_claimed(self) -> bool:
        return self._claimed_by == os.getpid()

    def _run(self) -> None:
        is_claimed = self._is_claimed()  # now: `close` may release the turn, and another outbox acquire it, meanwhile
        while is_claimed or self._wait_for_turn():
            try:
                manager = DeliveryManager(self.directory, self._make_sinks(), pace=self._pace, check=False)
                if not self._beats:
                    manager.stop_beating()
                self._manager = manager
                if self._closing.is_set():  # `begin_close` may have come before there was a manager
                    for delivery in manager.deliveries:
                        delivery.close(max(0.0, self._deadline - time.monotonic()))
                manager.run()
            except OSError as error:  # e.g. a full disk, before a sink's file could be created
                logger.warning("Cannot deliver to %s: %s", self._label, error)
                if not self._closing.wait(RETRY_SECONDS):
                    continue
            finally:
                # Also before another attempt, so that a process that fares better can take the turn.
                if not is_claimed:
                    files.release_lock(self._turn)
            return

    def _wait_for_turn(self) -> bool:
        """Wait until no other process delivers; returns False once it is closing and has nothing left to deliver."""
        while not files.acquire_lock(self._turn):
            if self._closing.is_set():
                if self.is_drained() or time.monotonic() > self._deadline:
                    return False
                time.sleep(POLL_SECONDS)
            else:
                self._wake.wait(self._pace.poll_seconds)
                self._wake.clear()
        return True

    def _wake_up(self) -> None:
        self._wake.set()
        if (manager := self._manager) is not None:
            for delivery in manager.deliveries:
                delivery.wake()

    def _saved(self) -> Iterator[Progress]:
        # From the files, not from this process's deliveries: another process may hold the turn.
        for name, spec in self._specs.items():
            yield Progress.load(self.directory / SINKS_FOLDER / f"{name}.json", spec)


@contextlib.contextmanager
def _gate(directory: Path) -> Iterator[None]:
    """Exclude all others from entering or removing a directory, which is created if it does not exist."""
    with contextlib.ExitStack() as stack:
        while True:
            directory.mkdir(parents=True, exist_ok=True)
            path = directory / "gate"
            with contextlib.suppress(FileNotFoundError):  # removed by another process just now: start over
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
                stack.callback(os.close, descriptor)
                stack.enter_context(files.exclusive(descriptor))
                # The lock counts only if its file is still the one in the directory.
                if os.path.samestat(os.fstat(descriptor), path.stat()):
                    break
            stack.close()
        yield


def life_of(directory: Path) -> str:
    """Return a name that is unique to this life of an outbox's directory; names of later lives sort after it."""
    return (directory / LIFE).read_text(encoding="ascii")


def by_rank(entry: JournalEntry) -> JournalEntry:
    """Name an entry's writer by its rank, as in a run, where the processes of one rank share a journal's name."""
    return entry._replace(file=entry.file._replace(name=entry.file.name.partition("_")[0]))


def _unique_writer() -> str:
    """Return a writer's name that no other process has; those of a rank sort by the time they were started."""
    rank = os.environ.get("RANK", "0")
    name = MAIN if rank == "0" or not rank.isdigit() else f"rank{rank}"
    return f"{name}_{time.time_ns()}_{os.getpid()}_{secrets.token_hex(3)}"
