"""`Spool`: a small journal of a handler's own, and the thread that delivers it to one sink.

Guarantees:

- What is recorded is in the journal when `recorder` returned: nothing is waited for, no queue fills up,
  and it survives ``kill -9``. The next start with the same directory delivers what was left, and so does
  ``hookline runs sync``.
- Each record reaches the sink once, in order (see `Delivery`).
- Several processes, and forked children, may spool to one directory, as the ranks of a training do with one
  configuration: each has a journal of its own, one of them delivers for all, and another takes over
  when it ends or dies.
- What was delivered stays in the journal until the last one closes, and is delivered again if its file is deleted,
  cut or replaced meanwhile. Then the directory is removed.

The directory holds ``journal/`` and ``sinks/`` as a run's does, ``writers/`` (a lock file for each
process at work), ``turn`` (held by the process that delivers), ``gate`` (held while somebody enters or
removes the directory), ``life`` (a name for what lies between) and ``handler.json`` (the handler's name and
settings, from which `hookline.logging.setup` builds it again).
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
from hookline._record.delivery import SINKS_FOLDER, Delivery, Pace, Progress, SinkState, sink_states
from hookline._record.reader import JOURNAL, MAIN, JournalEntry, read_lines
from hookline._record.recorder import Recorder
from hookline._record.records import clean
from hookline._record.segment import journal_files
from hookline._record.sink import Sink

logger = logging.getLogger("hookline")

SEGMENT_BYTES = 1 << 20
LOOK_SECONDS = 0.02
RETRY_SECONDS = 1.0
LIFE = "life"
SETTINGS = "handler.json"


class Spool:
    """Records to a journal in a directory, and delivers it to a sink.

    Args:
        directory: Where the journal lies until it is delivered.
        make_sink: Makes the sink, once in each process.
        name: What the sink is called in messages.
        poll_seconds: How often new records are delivered.
        settings: What its handler is built from, but for its place.
    """

    def __init__(
        self,
        directory: Path,
        make_sink: Callable[[], Sink],
        *,
        name: str,
        poll_seconds: float,
        settings: Mapping[str, Any],
    ) -> None:
        self.directory = directory.absolute()
        self.name = name
        self._make_sink = make_sink
        self._poll_seconds = poll_seconds
        self._settings = {"handler": name, "settings": dict(settings)}
        self._turn = self.directory / "turn"
        self._progress = self.directory / SINKS_FOLDER / f"{name}.json"
        self._spec = clean(make_sink().spec())
        self._process = 0
        self._recorder: Recorder | None = None

    @property
    def is_started(self) -> bool:
        """Whether this very process has begun: a forked child has not."""
        return self._process == os.getpid()

    @property
    def recorder(self) -> Recorder:
        """Where records go, once it is started."""
        assert self._recorder is not None
        return self._recorder

    def has_left_over(self) -> bool:
        """Whether an earlier process left something that nobody is delivering."""
        return self.directory.is_dir() and not files.is_locked(self._turn)

    def start(self) -> None:
        """Begin, in this process; a second call does nothing."""
        if self.is_started:
            return
        with _gate(self.directory):
            writers = self.directory / "writers"
            writers.mkdir(exist_ok=True)
            self._mark = writers / f"{os.getpid()}-{secrets.token_hex(3)}"
            files.acquire_lock(self._mark)
            _name_life(self.directory)
            aside = self.directory / f"{SETTINGS}.partial"
            aside.write_bytes(trust.sign(self.directory / SETTINGS, self._settings))
            aside.replace(self.directory / SETTINGS)
            self._recorder = Recorder(self.directory, name=_writer_name(), segment_bytes=SEGMENT_BYTES)
        self._ending, self._woken = threading.Event(), threading.Event()
        self._deadline = 0.0
        self._thread = threading.Thread(target=self._run, name=f"hookline-{self.name}", daemon=True)
        with contextlib.suppress(RuntimeError):  # the interpreter is going down: the next start delivers
            self._thread.start()
        self._process = os.getpid()

    def flush(self, seconds: float) -> None:
        """Deliver what was recorded so far, and wait for that, for so long at most, unless the sink lags."""
        if self.is_started and self._thread.is_alive():
            self.recorder.flush()
            deadline = time.monotonic() + seconds
            self._woken.set()
            while self._waits() and not self._lags() and time.monotonic() < deadline:
                self._ending.wait(LOOK_SECONDS)

    def deliver_left_over(
        self, seconds: float, progress: Callable[[list[SinkState]], object] = lambda states: None
    ) -> list[SinkState]:
        """Deliver what other processes left, for so long at most, and close; how the sink stands then.

        Args:
            progress: Called with the state now and then.
        """
        self.start()
        deadline = time.monotonic() + seconds
        while self._leaves_something() and time.monotonic() < deadline:
            progress(sink_states(self.directory))
            self._ending.wait(LOOK_SECONDS)
        states = sink_states(self.directory)
        self.close(max(0.0, deadline - time.monotonic()))
        return states

    def close(self, seconds: float) -> None:
        """Deliver what is left, for so long at most, and remove what is not needed any more."""
        if not self.is_started:
            return
        self._process = 0
        self.recorder.close()
        self._deadline = time.monotonic() + seconds
        self._ending.set()
        self._woken.set()
        if self._thread.ident is not None:
            self._thread.join(seconds + 0.5)
        files.release_lock(self._mark)
        self._mark.unlink(missing_ok=True)
        self._tidy()

    def _tidy(self) -> None:
        """Remove the directory if nobody uses it and all was delivered."""
        if self.directory.is_dir():
            with _gate(self.directory):
                if not self._is_in_use() and not self._leaves_something():
                    shutil.rmtree(self.directory, ignore_errors=True)
                    return
        if self._waits():
            kept = "%s: not all was delivered in time. It is kept: the next start delivers it, or hookline runs sync %s"
            logger.warning(kept, self.name, self.directory)

    def _run(self) -> None:
        while self._wait_for_turn():
            try:
                self._deliver()
            except OSError as error:  # e.g. a full disk, before anything could be begun
                logger.warning("%s cannot be delivered to: %s", self.name, error)
                if not self._ending.wait(RETRY_SECONDS):
                    continue
            finally:
                files.release_lock(self._turn)
            return

    def _wait_for_turn(self) -> bool:
        """Wait until no other process delivers; not any more, at the end, once nothing is left for this one to do."""
        while not files.acquire_lock(self._turn):
            if self._ending.is_set():
                if not self._waits() or time.monotonic() > self._deadline:
                    return False
                time.sleep(LOOK_SECONDS)
            else:
                self._woken.wait(self._poll_seconds)
                self._woken.clear()
        return True

    def _deliver(self) -> None:
        delivery = Delivery(self.directory, self.name, self._make_sink(), Pace(poll_seconds=self._poll_seconds))
        while True:  # once at least: what an earlier process delivered may be lost
            self._woken.clear()
            pause = delivery.round()
            if self._ending.is_set():
                break
            self._woken.wait(pause)
        delivery.close(max(0.0, self._deadline - time.monotonic()))
        delivery.run()

    def _waits(self) -> bool:
        """Whether something that this process recorded has not been delivered."""
        cursor = Progress.load(self._progress, self._spec).cursor
        own = [file for file in journal_files(self.directory / JOURNAL) if file.writer == self.recorder.journal.writer]
        places = [(file, cursor.offset(file)) for file in own]
        return any(next(read_lines(file.path, place), None) for file, place in places if place is not None)

    def _leaves_something(self) -> bool:
        """Whether something has not been delivered, whoever recorded it."""
        return Progress.load(self._progress, self._spec).cursor.behind(self.directory / JOURNAL) > 0

    def _lags(self) -> bool:
        return Progress.load(self._progress, self._spec).status != "ok"

    def _is_in_use(self) -> bool:
        return any(map(files.is_locked, [self._turn, *(self.directory / "writers").glob("*")]))


@contextlib.contextmanager
def _gate(directory: Path) -> Iterator[None]:
    """Be the only one who enters a directory or removes it; it is made if need be."""
    with contextlib.ExitStack() as at_end:
        while True:
            directory.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):  # removed by another process just now: begin again
                descriptor = os.open(directory / "gate", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
                at_end.callback(os.close, descriptor)
                at_end.enter_context(files.exclusive(descriptor))
                if _is_same(descriptor, directory / "gate"):
                    break
                at_end.close()
        yield


def _is_same(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def life_of(directory: Path) -> str:
    """What no other life of the directory, from its making to its removal, is called; later ones sort behind."""
    return (directory / LIFE).read_text(encoding="ascii")


def _name_life(directory: Path) -> None:
    path = directory / LIFE
    if not path.exists() or not path.read_bytes():
        path.write_text(f"{time.time_ns()}.{secrets.token_hex(3)}", encoding="ascii")


def by_rank(parcel: JournalEntry) -> JournalEntry:
    """A parcel as if the processes of one rank, one after the other, had one journal, as they do in a run."""
    return parcel._replace(file=parcel.file._replace(name=parcel.file.name.partition("_")[0]))


def _writer_name() -> str:
    """A name for this process's journal that nobody else's has; those of a rank sort in the order they were begun."""
    rank = os.environ.get("RANK", "0")
    who = MAIN if rank == "0" or not rank.isdigit() else f"rank{rank}"
    return f"{who}_{time.time_ns()}_{os.getpid()}_{secrets.token_hex(3)}"
