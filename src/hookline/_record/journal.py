"""The journal: an append-only file of a run's records that survives the death of the process.

Guarantees of `append`:

- A line whose `append` returned is in a page of the operating system: it is read back after
  ``kill -9`` of this process at any later moment.
- What was appended before `sync` is on the disk when that returns: it survives a power cut. With
  ``durability="checkpoint"``, `close` does that too, and files that are complete are brought to the disk
  off the training thread, so that `sync` has little left to do; with ``"power"`` everything is, every `sync_seconds`.
- A line is there whole or not at all. Its newline is written last, and a reader stops at a line without an end.
- A line carries its number and a checksum (see `records`), so a reader notices one that was changed,
  removed or doubled. ``<writer>.sha256`` lists the digests of the files that are complete.
- It makes no system call, waits for no other thread's I/O, wakes nobody (but once per segment) and
  takes no memory that grows. A segment is allocated in full before it is mapped, so a full disk is
  an error at a known place and never a fault in the middle of a copy. Where another program truncates the file, the
  fault is survived (see `mapped_pages`): lines that it cut off are counted as lost, and a new file is used.
- When there is no room, lines are counted as lost, loudly, and recording resumes when there is. What was
  given to `append_surely` is then written first.

One writer per file: each process has its own, also a forked child, which begins one of its own at
its first line. Where preallocation is no guarantee (copy-on-write and network file systems, macOS)
lines are appended with plain writes instead, and the journal says so once.

The hot path is `append`: reserve under a lock, copy, write the newline.
"""

import contextlib
import errno
import functools
import hashlib
import itertools
import logging
import mmap
import os
import secrets
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal
from zlib import crc32

from hookline._engine.errors import OptionError
from hookline._record.files import sync_descriptor, sync_directory
from hookline._record.reader import count_intact_lines
from hookline._record.records import SEAL
from hookline._record.segment import DIGESTS, Segment, can_map, install_handler, journal_files, reclaim_abandoned

logger = logging.getLogger("hookline")

Durability = Literal["process", "checkpoint", "power"]
DURABILITIES: tuple[Durability, ...] = ("process", "checkpoint", "power")
SEGMENT_BYTES = 4 << 20
RETRY_SECONDS = 1.0
KEEPER_SECONDS = 1.0
LOOK_SECONDS = 1.0
"""How often the keeper looks whether the file in use was truncated or removed."""
_SMALLEST_SEGMENT = 64 << 10
_NAME_BYTES = 100
"""What a writer's name may take of a file's name, here and on a server that receives it."""
_SPOILS = b"!\n"
"""Ends a torn line in front of the next, and makes it one that readers skip even if only its newline was missing."""
_MOST_ADDED = 48
"""Bytes that a line takes beside what was given, at most: its number, its checksum, its newline."""
_NO_GUARANTEE = "its file system gives no guarantee for preallocated files"


class Journal:
    """Appends lines to the files of one writer in a directory.

    Files are called ``<name>-<session>-<pid>-<token>-<number>.jsonl``: each start under a name is a
    new session, counted from the files that are there, so that readers can tell what came later
    without trusting a clock.

    Args:
        directory: Where the files go; made if need be.
        name: What the writer is called, e.g. ``main`` or ``rank1``: letters, digits and ``_``, in 100 bytes at most.
        segment_bytes: The size of one file.
        durability: ``"process"`` survives the death of the process; ``"checkpoint"`` also brings lines to
            the disk at `close`, besides at each `sync`; ``"power"`` every ``sync_seconds``, in the background, too.
        on_gap: Called with the number of lines lost when there is room again.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        name: str = "main",
        segment_bytes: int = SEGMENT_BYTES,
        durability: Durability = "process",
        sync_seconds: float = 1.0,
        on_gap: Callable[[int], None] | None = None,
    ) -> None:
        if segment_bytes < mmap.PAGESIZE:
            raise OptionError(f"segment_bytes={segment_bytes!r}: give at least {mmap.PAGESIZE}.")
        checked_durability(durability)
        _require_name(name)
        self.directory = Path(directory).resolve()
        self.directory.mkdir(parents=True, exist_ok=True)
        self.lost = 0
        earlier = (file.session for file in journal_files(self.directory) if file.name == name)
        self.session = 1 + max(earlier, default=-1)
        self._name = name
        self._segment_bytes = segment_bytes
        self._durability = durability
        self._sync_seconds = sync_seconds
        self._on_gap = on_gap
        self._lock = threading.RLock()  # re-entrant: a signal handler may log while a line is being appended
        self._syncing = threading.RLock()
        self._closed = False
        self._segment: Segment | None = None
        self._next: Segment | None = None
        self._plain: int | None = None
        self._map: Any = b""
        self._position = self._size = self._finished_bytes = self._number = self._first_number = 0
        self._full_since: float | None = None
        self._keeper: threading.Thread | None = None
        self._to_sync: list[int] = []
        self._to_close: list[tuple[Segment, int, int]] = []
        self._closing = threading.RLock()
        self._lost_before = self._slow = 0
        self._sync_fails = False
        self._sync_error: OSError | None = None
        self._to_say: list[tuple[Any, ...]] = []
        reclaim_abandoned(self.directory)
        self._maps = can_map(self.directory)
        self._begin()
        if not self._maps:
            self._use_plain_writes(_NO_GUARANTEE)
            self._speak()
        if self._plain is None:
            with contextlib.suppress(OSError):  # no room: `append` finds out, and says so
                self._next = Segment(self._prepared_path(), segment_bytes)
        _begin_anew_after_fork()
        _OPEN.add(self)

    def append(self, line: bytes) -> bool:
        """Write one line, a JSON object without a newline, with its number and checksum; whether there was room."""
        with self._lock:
            number = self._number
            seal = SEAL % (number, crc32(line, number))  # takes the place of the closing brace
            size, seal_size = len(line), len(seal)  # the last calls: a signal handler may come in at a call
            if number != self._number:  # one did, and its line has this number
                return self.append(line)
            position = self._position
            behind = position + size
            end = behind + seal_size - 1
            if end < self._size:
                view, is_reserved = self._map, False
                try:
                    # reserved first: what a signal handler appends now goes behind it
                    self._number, self._position, is_reserved = number + 1, end + 1, True
                    view[position:behind] = line
                    view[behind - 1 : end] = seal
                    view[end] = 10
                except BaseException:  # of a debugger or tracer, which can raise at each line: leave no hole
                    if is_reserved:
                        view[position:behind] = line
                        view[behind - 1 : end] = seal
                        view[end] = 10
                    raise
                return True
            self._slow += 1
            try:
                had_room = self._append_slowly(line)
            finally:
                self._slow -= 1
        if not self._slow:
            self._speak()
        return had_room

    def append_surely(self, line: bytes) -> None:
        """Write a line that what comes behind it depends on; with a full disk, as the first one when there is room."""
        if not self.append(line):
            with self._lock:
                if not self._closed:
                    self._owed.append(line)
                    self.lost -= 1

    def _speak(self) -> None:
        """Log what there is to say, without the lock: a handler may hold its own and wait to append."""
        while self._to_say:
            try:
                said = self._to_say.pop(0)
            except IndexError:  # another thread was faster
                return
            logger.log(*said)

    @property
    def lines_written(self) -> int:
        """How many lines this writer has written: the number of the next."""
        return self._number

    @property
    def bytes_written(self) -> int:
        """How much was written to all files of this writer."""
        return self._finished_bytes + self._position

    def sync(self) -> None:
        """Bring everything to the disk now; appends go on meanwhile.

        Raises:
            OSError: Something did not get there, now or in the background since the last call. What else there was did.
        """
        self._sync_all()
        error, self._sync_error = self._sync_error, None
        if error is not None:  # the system reports that pages were lost only once: a second sync would succeed
            raise error

    def _sync_all(self) -> None:
        with self._lock:
            current = self._segment.descriptor if self._segment is not None else self._plain
            if current is not None:
                self._to_sync.append(os.dup(current))
        self._sync_waiting()

    def _sync_waiting(self) -> None:
        """Bring the files that wait for it to the disk. It never takes the lock of `append`, whose holder may wait."""
        # One thread at a time: what another one is bringing to the disk is there, too, when this returns.
        with self._syncing, contextlib.ExitStack() as steps:  # last in, first out; one that fails stops no other
            descriptors = []
            with contextlib.suppress(IndexError):
                while True:
                    descriptors.append(self._to_sync.pop(0))
            for directory in (self.directory.parent, self.directory):  # the names of new files
                steps.callback(sync_directory, directory)
            for descriptor in reversed(descriptors):
                steps.callback(os.close, descriptor)
                steps.callback(sync_descriptor, descriptor)

    def close(self) -> None:
        """Finish the file; appending afterwards counts as lost. May be called again.

        Raises:
            OSError: Something did not get to the disk. The journal is closed all the same.
        """
        if not self._closed:  # what was lost to a truncated file is recorded while something can be
            self._leave_cut_segment()
        with contextlib.ExitStack() as without_lock, self._lock, contextlib.ExitStack() as steps:
            if self._closed:
                return
            self._closed = True
            self._wake.set()
            without_lock.callback(_OPEN.discard, self)
            without_lock.callback(self._await_keeper)
            steps.callback(self._let_go)
            if self._durability != "process":
                without_lock.callback(self.sync)
                if self._plain is not None:
                    self._to_sync.append(os.dup(self._plain))
            steps.callback(self._close_segments)
            self._finish_segment()

    def _let_go(self) -> None:
        """Close what is open beside the segment in use."""
        plain, self._plain = self._plain, None
        if plain is not None:
            os.close(plain)
            path = self._plain_path
            with contextlib.suppress(OSError), path.open("rb") as file:
                self._note_digest(path, hashlib.file_digest(file, "sha256").hexdigest())
        ready, self._next = self._next, None
        if ready is not None:
            self._discard(ready)

    def _await_keeper(self) -> None:
        """Wait for the keeper: it may be preparing a segment, which it takes away again."""
        keeper = self._keeper
        if keeper is not None and keeper.is_alive() and keeper is not threading.current_thread():
            keeper.join(KEEPER_SECONDS)

    def _begin(self) -> None:
        """Start as a new writer: at the beginning, and in a child after a fork."""
        self._to_close = []
        self._owed: list[bytes] = []
        self.writer = f"{self._name}-{self.session:04d}-{os.getpid()}-{secrets.token_hex(3)}"
        self._numbers = itertools.count()
        self._segment = self._next = self._plain = self._full_since = self._keeper = None
        self._map = b""
        self._position = self._size = self._finished_bytes = self._number = self._first_number = 0
        self._is_torn = False
        self._wake = threading.Event()

    def _append_slowly(self, line: bytes) -> bool:
        """Append where the segment does not hold the line: at its end, without a map, with a full disk."""
        if self._closed or (self._full_since is not None and time.monotonic() - self._full_since < RETRY_SECONDS):
            self.lost += 1
            return False
        try:
            if self._plain is not None:
                self._write_owed_plainly()
                self._write_plainly(line)
                return True
            self._rotate(len(line) + _MOST_ADDED + sum(len(owed) + _MOST_ADDED for owed in self._owed))
        except OSError as error:
            return self._note_full(error)
        while self._owed:
            self.append(self._owed.pop(0))
        if self._full_since is not None:
            self._note_room()
        return self.append(line)

    def _rotate(self, needed: int) -> None:
        """Take the prepared segment, or make one that holds the line."""
        if not self._maps:  # a forked child, which only now has something to write
            self._use_plain_writes(_NO_GUARANTEE)
            return
        ready, self._next = self._next, None
        if ready is not None and ready.size < needed:
            self._discard(ready)
            ready = None
        segment = ready or self._make(max(self._segment_bytes, needed), needed)
        if segment is None:
            return
        self._finish_segment()
        if self._segment is not None:  # a signal handler came between and brought its own
            self._discard(segment)
            return
        path = self._path()
        try:
            segment.taken(path)
        except FileNotFoundError:  # somebody on another machine took it for left over
            segment.close(0)
            segment = Segment(self._prepared_path(), segment.size)
            segment.taken(path)
        segment.on_fault = self._leave_soon
        self._first_number = self._number
        self._position, self._size, self._map, self._segment = 0, segment.size, segment.map, segment
        self._start_keeper()
        self._wake.set()

    def _start_keeper(self) -> None:
        if self._keeper is None:
            self._keeper = threading.Thread(target=self._keep, name="hookline-journal", daemon=True)
            with contextlib.suppress(RuntimeError):  # no more threads: segments are then made when they are needed
                self._keeper.start()

    def _make(self, size: int, needed: int) -> Segment | None:
        """A segment of this size or, where the disk is nearly full, a smaller one that holds the line."""
        while True:
            try:
                return Segment(self._prepared_path(), size)
            except OSError as error:
                if error.errno in (errno.EOPNOTSUPP, errno.ENODEV, errno.EINVAL):
                    self._use_plain_writes(f"files cannot be mapped there ({error.strerror})")
                    return None
                smaller = max(size // 2, needed, _SMALLEST_SEGMENT)
                if error.errno != errno.ENOSPC or smaller >= size:
                    raise
                size = smaller

    def _finish_segment(self) -> None:
        segment, used = self._segment, self._position
        if segment is not None:  # let go of first: a signal handler that appends now must not find it half closed
            self._segment, self._map, self._position, self._size = None, b"", 0, 0
            self._finished_bytes += used
            if self._durability != "process":
                self._to_sync.append(os.dup(segment.descriptor))
            self._to_close.append((segment, used, self._number - self._first_number))

    def _close_finished(self) -> None:
        # One thread at a time, so that `close` comes behind what is noted here; it may hold what this one waits for.
        if self._closing.acquire(timeout=KEEPER_SECONDS):
            try:
                self._close_segments()
            finally:
                self._closing.release()

    def _close_segments(self) -> None:
        with contextlib.suppress(IndexError):  # until there is none, whichever thread took the last
            while True:
                segment, used, lines = self._to_close.pop()
                with self._lock:
                    pass  # a signal handler may have rotated in the middle of an append: that line is written now
                digest = None if segment.is_cut() else segment.digest(used)
                is_cut = segment.is_cut()
                with contextlib.suppress(OSError):  # its directory is gone, too, or there is no room
                    segment.put_back(used)
                segment.close(used)
                if is_cut:
                    self._note_cut(segment.path, lines - count_intact_lines(segment.path))
                elif digest is not None:
                    self._note_digest(segment.path, digest)

    def _leave_soon(self, segment: Segment) -> None:
        """Begin another file with the next line: this one was truncated. Called in the middle of a store to it."""
        if segment is self._segment:
            self._size = 0

    def _leave_cut_segment(self) -> None:
        """Finish the segment in use if somebody truncated or removed its file, and report what was lost."""
        segment = self._segment
        install_handler()
        with contextlib.suppress(OSError):  # closed meanwhile
            if segment is not None and segment.is_cut():
                with self._lock:
                    if self._segment is segment:
                        self._finish_segment()
        self._close_finished()
        self._speak()

    def _note_cut(self, path: Path, lost: int) -> None:
        if lost:
            said = "%s was truncated or removed while it was being written: %d RECORDS ARE LOST. A new file is used."
            self._to_say.append((logging.ERROR, said, path, lost))
        else:
            said = "%s was truncated or removed while it was being written. All that it held is there."
            self._to_say.append((logging.WARNING, said, path))
        with self._lock:
            self.lost += lost
            self._lost_before += lost
        if self._on_gap is not None and lost and not self._closed:
            self._on_gap(lost)

    def _note_digest(self, path: Path, digest: str) -> None:
        """Note the digest of a complete file, in the form that ``sha256sum --check`` reads."""
        with contextlib.suppress(OSError), (self.directory / f"{self.writer}{DIGESTS}").open("ab") as noted:
            noted.write(digest.encode() + b"  " + os.fsencode(path.name) + b"\n")

    def _keep(self) -> None:
        """Off the training thread: prepare the next segment, and bring lines to the disk in time."""
        syncs = self._durability == "power"
        synced = time.monotonic()
        while not self._closed:
            woken = self._wake.wait(min(self._sync_seconds, LOOK_SECONDS) if syncs else LOOK_SECONDS)
            self._wake.clear()
            if syncs and time.monotonic() - synced >= self._sync_seconds:
                self._sync_in_time(self._sync_all)
                synced = time.monotonic()
            if self._durability == "checkpoint" and self._to_sync:
                self._sync_in_time(self._sync_waiting)  # complete files, as they come: or their descriptors pile up
            with contextlib.suppress(OSError):  # no room: `append` finds out when it needs the segment, and says so
                self._leave_cut_segment()
                if woken and self._next is None and self._plain is None and not self._closed:
                    self._offer(Segment(self._prepared_path(), self._segment_bytes))

    def _sync_in_time(self, sync: Callable[[], None]) -> None:
        try:
            sync()
        except OSError as error:
            if not self._sync_fails:
                said = "The journal in %s cannot be brought to the disk (%s): a power failure may take records."
                self._to_say.append((logging.ERROR, said, self.directory, error.strerror))
            self._sync_fails, self._sync_error = True, error
        else:
            self._sync_fails = False
        self._speak()

    def _offer(self, segment: Segment) -> None:
        with self._lock:
            if self._closed or self._next is not None:
                self._discard(segment)
            else:
                self._next = segment

    @staticmethod
    def _discard(segment: Segment) -> None:
        try:
            segment.close(0)
        finally:
            segment.path.unlink(missing_ok=True)

    def _prepared_path(self) -> Path:
        return self.directory / f"{self.writer}-{secrets.token_hex(3)}.prepared"

    def _path(self) -> Path:
        return self.directory / f"{self.writer}-{next(self._numbers):06d}.jsonl"

    def _use_plain_writes(self, why: str) -> None:
        said = "The journal in %s uses plain appends: %s. Each line costs a system call."
        self._to_say.append((logging.WARNING, said, self.directory, why))
        self._finish_segment()
        self._plain_path = self._path()
        self._plain = os.open(self._plain_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        if self._durability == "power":
            self._start_keeper()

    def _write_plainly(self, line: bytes) -> None:
        assert self._plain is not None
        number = self._number
        sealed = line[:-1] + SEAL % (number, crc32(line, number))
        if number != self._number:  # a signal handler came in at the call, and its line has this number
            self._write_plainly(line)
            return
        self._number = number + 1
        data = _SPOILS + sealed + b"\n" if self._is_torn else sealed + b"\n"
        written = 0
        try:
            written = os.write(self._plain, data)
        finally:
            if written < len(data):
                self._number = number  # the next line has it
        self._finished_bytes += written
        if written:
            self._is_torn = data[written - 1] != 10  # by a full disk
        if written < len(data):
            raise OSError(errno.ENOSPC, "the line did not fit")
        if self._full_since is not None:
            self._note_room()

    def _write_owed_plainly(self) -> None:
        while self._owed:
            line = self._owed.pop(0)  # first: to write it may note that there is room, which appends
            try:
                self._write_plainly(line)
            except OSError:
                self._owed.insert(0, line)
                raise

    def _note_full(self, error: OSError) -> bool:
        was_full, self._full_since = self._full_since is not None, time.monotonic()  # first: the log may lead here
        if not was_full:
            said = "The journal in %s cannot be written (%s): TRAINING GOES ON, RECORDS ARE LOST until there is room."
            self._to_say.append((logging.ERROR, said, self.directory, error.strerror))
        self.lost += 1
        return False

    def _note_room(self) -> None:
        self._full_since = None
        said = "The journal in %s can be written again; %d records were lost."
        self._to_say.append((logging.WARNING, said, self.directory, self.lost))
        lost, self._lost_before = self.lost - self._lost_before, self.lost
        if self._on_gap is not None:
            self._on_gap(lost)


def checked_durability(durability: Any) -> Durability:
    """A level of durability.

    Raises:
        OptionError: There is no such level.
    """
    if durability not in DURABILITIES:
        raise OptionError(f"durability={durability!r}: give 'process', 'checkpoint' or 'power'.")
    return durability  # type: ignore[no-any-return]


def _require_name(name: str) -> None:
    if not name.isidentifier() or len(name.encode()) > _NAME_BYTES:
        raise OptionError(f"name={name!r:.80}: give letters, digits and '_', {_NAME_BYTES} bytes at most.")


_OPEN: "weakref.WeakSet[Journal]" = weakref.WeakSet()


@functools.cache
def _begin_anew_after_fork() -> None:
    """Make forked children leave their parent's files alone; asked for by the first journal, not by the import."""
    os.register_at_fork(after_in_child=_after_fork)


def _after_fork() -> None:
    for journal in list(_OPEN):
        journal._lock = threading.RLock()  # a thread of the parent may hold the old one forever
        journal._syncing = threading.RLock()
        journal._closing = threading.RLock()
        journal._to_sync = []
        journal._segment_bytes = min(journal._segment_bytes, _SMALLEST_SEGMENT)  # many, short-lived, with little to say
        journal._begin()
