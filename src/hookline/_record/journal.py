"""The journal: an append-only file of a run's records that survives the death of the process.

Guarantees of `Journal.append`:

- A line whose `append` returned is in a page of the operating system: it can be read after ``kill -9``.
- What was appended before `sync` is on the disk when `sync` returns and survives a power cut. With
  ``durability="checkpoint"``, `close` does the same, and complete files are synced off the training thread, so `sync`
  has little left to do; with ``"power"``, everything is synced every ``sync_seconds``.
- A line is there whole or not at all: its newline is written last, and a reader stops at a line without one.
- A line carries its number and a checksum (see `records`), so a reader notices lines that were changed, removed or
  doubled. ``<writer>.sha256`` lists the digests of complete files.
- It is bounded and does not block: no system call, no waiting for another thread's I/O, no wake-up (but one per
  segment), no memory that grows. A segment is preallocated before it is mapped, so a full disk is an error at a known
  place and never a fault in the middle of a copy. If another program truncates the file, the fault is survived (see
  `segment`): the lines that were cut off are counted as lost, and a new file is used.
- When there is no room, lines are lost, counted, and reported; recording resumes when there is room again. Lines given
  to `append_surely` are then written first.

One writer per file: each process has its own files, and a forked child starts new ones with its first line. Where
preallocation guarantees nothing (copy-on-write and network file systems, macOS), lines are appended with plain writes,
and the journal reports that once.

Locks, in this order: ``_closing`` (closing finished segments), ``_lock`` (the position in the current segment).
``_syncing`` (one sync at a time) is never held together with ``_lock``. All are re-entrant, because a signal handler
that logs may interrupt any call. Messages are queued and logged without ``_lock``: a logging handler may hold its own
lock and wait for `append`.
"""

import contextlib
import errno
import functools
import itertools
import logging
import mmap
import os
import secrets
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal
from zlib import crc32

from hookline._engine.checks import require_integer
from hookline._engine.errors import OptionError
from hookline._record.files import file_digest, sync_descriptor, sync_directory
from hookline._record.reader import count_intact_lines
from hookline._record.records import SEAL, seal_line
from hookline._record.segment import DIGESTS, Segment, can_map, install_handler, journal_files, reclaim_abandoned

logger = logging.getLogger("hookline")

Durability = Literal["process", "checkpoint", "power"]
DURABILITIES: tuple[Durability, ...] = ("process", "checkpoint", "power")
SEGMENT_BYTES = 4 << 20
RETRY_SECONDS = 1.0
"""How long lines are counted as lost before a full disk is tried again."""
JOIN_SECONDS = 1.0
CHECK_SECONDS = 1.0
"""How often the background thread checks whether the current file was truncated or removed."""
_MIN_SEGMENT_BYTES = 64 << 10
_MAX_NAME_BYTES = 100
"""The share of a writer's name in a file name, here and on a server that receives it."""
_TORN_LINE_END = b"!\n"
"""Ends a torn line before the next one; readers skip the line even if only its newline was missing."""
_MAX_SEALED_BYTES = 48
"""The most that the number, the checksum and the newline add to a line."""
_NO_GUARANTEE = "its file system gives no guarantee for preallocated files"


class Journal:
    """Appends lines to the files of one writer in a directory.

    Files are called ``<name>-<session>-<pid>-<token>-<number>.jsonl``. Each start under a name is a new session,
    counted from the files that exist, so readers can order sessions without trusting a clock.

    Args:
        directory: Where the files go; created if it does not exist.
        name: The writer's name, e.g. ``main`` or ``rank1``: letters, digits and ``_``, at most 100 bytes.
        segment_bytes: The size of one file.
        durability: ``"process"`` survives the death of the process; ``"checkpoint"`` also syncs at `close`;
            ``"power"`` also syncs every ``sync_seconds``, in the background.
        prepares: Whether the next file is preallocated before it is needed. False halves what a small run takes on
            the disk, for a writer whose thread may wait for it.
        joins: Continue the latest session of this name beside its writer, for a process that records to a run of
            another one; otherwise a new session begins.
        token: Six hexadecimal digits that tell this writer's files from those of others; random by default.
        on_gap: Called with the number of lost lines when there is room again.
    """

    _segment: Segment | None
    _next: Segment | None
    _plain: int | None  # the file for plain writes, where segments cannot be mapped

    def __init__(
        self,
        directory: str | Path,
        *,
        name: str = "main",
        segment_bytes: int = SEGMENT_BYTES,
        durability: Durability = "process",
        sync_seconds: float = 1.0,
        prepares: bool = True,
        joins: bool = False,
        token: str | None = None,
        on_gap: Callable[[int], None] | None = None,
    ) -> None:
        require_integer("segment_bytes", segment_bytes, minimum=mmap.PAGESIZE)
        checked_durability(durability)
        if not name.isidentifier() or len(name.encode()) > _MAX_NAME_BYTES:
            raise OptionError(f"name={name!r:.80}: give letters, digits and '_', {_MAX_NAME_BYTES} bytes at most.")
        self.directory = Path(directory).resolve()
        self.directory.mkdir(parents=True, exist_ok=True)
        self.lost = 0
        earlier = (file.session for file in journal_files(self.directory) if file.name == name)
        latest = max(earlier, default=-1)
        self.session = max(0, latest) if joins else latest + 1
        self._name = name
        self._segment_bytes = segment_bytes
        self._durability = durability
        self._sync_seconds = sync_seconds
        self._prepares = prepares
        self._on_gap = on_gap
        self._closed = False
        self._reported_lost = self._slow_appends = 0
        self._sync_fails = False
        self._sync_error: OSError | None = None
        self._messages: list[tuple[Any, ...]] = []
        # First: what killed writers had preallocated may be the room that this one needs.
        reclaim_abandoned(self.directory)
        self._can_map = can_map(self.directory)
        self._reset(token)
        if not self._can_map:
            self._use_plain_writes(_NO_GUARANTEE)
            self._log_messages()
        if self._plain is None and prepares:
            with contextlib.suppress(OSError):  # no room: `append` finds out and reports it
                self._next = Segment(self._prepared_path(), segment_bytes)
        _reset_in_children()
        _open_journals.add(self)

    def _reset(self, token: str | None = None) -> None:
        """Become a new writer: at the start, and in a forked child."""
        self._lock, self._syncing, self._closing = threading.RLock(), threading.RLock(), threading.RLock()
        # The token: pids are reused, other machines have the same ones, and two journals of one name may be open at
        # once.
        self.writer = f"{self._name}-{self.session:04d}-{os.getpid()}-{token or secrets.token_hex(3)}"
        self._file_numbers = itertools.count()
        self._segment = self._next = self._plain = None
        self._map: Any = b""
        self._position = self._size = self._finished_bytes = self._number = self._first_number = 0
        self._full_since: float | None = None
        self._is_torn = False
        self._owed: list[bytes] = []
        self._to_sync: list[int] = []
        self._to_close: list[tuple[Segment, int, int]] = []
        self._worker: threading.Thread | None = None
        self._wake = threading.Event()
        self._tasks: deque[Callable[[], None]] = deque()

    def append(self, line: bytes) -> bool:
        """Write one line (a JSON object without a newline) with its number and checksum; returns whether it fit."""
        with self._lock:
            number = self._number
            seal = SEAL % (number, crc32(line, number))  # replaces the closing brace
            size, seal_size = len(line), len(seal)  # the last calls: a signal handler can run at a call
            if number != self._number:  # one did, and its line has this number
                return self.append(line)
            position = self._position
            # The seal takes the place of the closing brace, so it begins one byte before the end of the line.
            behind = position + size
            end = behind + seal_size - 1
            # Also false without a segment, in a closed journal and after a fault: ``_size`` is 0 then. One comparison
            # decides.
            if end < self._size:
                # A local reference: if a signal handler rotates, this line still goes to the segment that it was
                # reserved in.
                view, is_reserved = self._map, False
                try:
                    # Reserve first: what a signal handler appends from here on goes after this line.
                    self._number, self._position, is_reserved = number + 1, end + 1, True
                    view[position:behind] = line
                    view[behind - 1 : end] = seal
                    # Last: until here the line is absent for readers, and after ``kill -9``.
                    view[end] = 10
                except BaseException:  # a debugger or tracer can raise at any line: leave no hole
                    if is_reserved:
                        view[position:behind] = line
                        view[behind - 1 : end] = seal
                        view[end] = 10
                    raise
                return True
            # Counts nested calls. The lock is re-entrant, so only the outermost has really released it when it logs the
            # messages.
            self._slow_appends += 1
            try:
                had_room = self._append_slowly(line)
            finally:
                self._slow_appends -= 1
        if not self._slow_appends:
            self._log_messages()
        return had_room

    def append_surely(self, line: bytes) -> None:
        """Write a line that later ones depend on; with a full disk, it is the first line when there is room again."""
        if not self.append(line):
            with self._lock:
                # A closed journal gets no room again, so nobody would write the line: it stays counted as lost.
                if not self._closed:
                    self._owed.append(line)
                    self.lost -= 1

    @property
    def lines_written(self) -> int:
        """How many lines this writer has written: the number of the next."""
        return self._number

    @property
    def bytes_written(self) -> int:
        """How many bytes were written to all files of this writer."""
        return self._finished_bytes + self._position

    def close_complete_files(self) -> None:
        """Close the complete files now, instead of soon on the background thread, so that they can be removed."""
        # One thread at a time, so that `close` comes after what is reported here. With a timeout, because `close`
        # holds the lock that this thread waits for in `_close_segments`.
        if self._closing.acquire(timeout=JOIN_SECONDS):
            try:
                self._close_segments()
            finally:
                self._closing.release()
        self._log_messages()

    def sync(self) -> None:
        """Write everything to the disk now; appends continue meanwhile.

        Raises:
            OSError: Something did not reach the disk, now or in the background since the last call. The rest did.
        """
        self._sync_all()
        error, self._sync_error = self._sync_error, None
        if error is not None:  # the system reports lost pages only once: a second sync would succeed
            raise error

    def run_soon(self, task: Callable[[], None]) -> bool:
        """Run something short on the background thread; returns whether there is one to run it."""
        worker = self._worker
        if self._closed or worker is None or not worker.is_alive():
            return False
        self._tasks.append(task)
        self._wake.set()
        return True

    def close(self) -> None:
        """Finish the file; lines appended afterwards count as lost. May be called again.

        Raises:
            OSError: Something did not reach the disk. The journal is closed all the same.
        """
        if not self._closed:  # while a loss can still be recorded
            self._leave_cut_segment()
            self._append_owed()
        # Each step runs even if another fails; last in, first out, and those of `unlocked` after the lock is released.
        with contextlib.ExitStack() as unlocked, self._lock, contextlib.ExitStack() as steps:
            if self._closed:
                return
            self._closed = True
            # The worker would otherwise notice it only at its next check.
            self._wake.set()
            # In effect: segments, then the plain file and the prepared segment; and without the lock: the sync, the
            # worker, the set. The sync comes without the lock because ``_syncing`` is never held together with it.
            unlocked.callback(_open_journals.discard, self)
            unlocked.callback(self._join_worker)
            steps.callback(self._close_unused)
            if self._durability != "process":
                unlocked.callback(self.sync)
                if self._plain is not None:
                    # A descriptor of its own: the file is closed before it is synced.
                    self._to_sync.append(os.dup(self._plain))
            steps.callback(self._close_segments)
            self._finish_segment()

    def _append_owed(self) -> None:
        """Try once more to write the lines of `append_surely`: there may be room since the last attempt."""
        with self._lock:
            if self._owed:
                self._full_since = -RETRY_SECONDS  # long ago: tried at once
                owed = self._owed.pop(0)
                self.append_surely(owed)
        self._log_messages()

    def _join_worker(self) -> None:
        # It may be preparing a segment, which it removes again.
        worker = self._worker
        if worker is not None and worker.is_alive() and worker is not threading.current_thread():
            # With a limit: a thread that hangs in I/O must not keep the program from ending. It is a daemon.
            worker.join(JOIN_SECONDS)

    def _close_unused(self) -> None:
        """Close all segments but the current one."""
        plain, self._plain = self._plain, None
        if plain is not None:
            os.close(plain)
            with contextlib.suppress(OSError):
                self._record_digest(self._plain_path, file_digest(self._plain_path))
        prepared, self._next = self._next, None
        if prepared is not None:
            self._discard(prepared)

    # Appending where the current segment does not hold the line: at its end, without a map, with a full disk.

    def _append_slowly(self, line: bytes) -> bool:
        # A full disk is not tried again for each line: each attempt is several system calls on the training thread.
        if self._closed or (self._full_since is not None and time.monotonic() - self._full_since < RETRY_SECONDS):
            self.lost += 1
            return False
        try:
            if self._plain is not None:
                while self._owed:
                    owed = self._owed.pop(0)  # first: writing it may report that there is room, which appends
                    try:
                        self._write_plainly(owed)
                    except OSError:
                        self._owed.insert(0, owed)
                        raise
                self._write_plainly(line)
                return True
            # Room for all of it at once: otherwise the appends below would end up here again, and the marks might not
            # come first.
            self._rotate(len(line) + _MAX_SEALED_BYTES + sum(len(owed) + _MAX_SEALED_BYTES for owed in self._owed))
        except OSError as error:
            was_full, self._full_since = self._full_since is not None, time.monotonic()
            if not was_full:
                text = "The journal in %s cannot be written (%s): RECORDS ARE LOST until there is room."
                self._messages.append((logging.ERROR, text, self.directory, error.strerror))
            self.lost += 1
            return False
        # Before the line, which depends on them, and before the report below, which appends a line of its own. Each is
        # taken off the list first, because `append` may come back here.
        while self._owed:
            self.append(self._owed.pop(0))
        if self._full_since is not None:
            self._report_room()
        # Through `append`: the new segment is current now, or plain writes have replaced it.
        return self.append(line)

    def _report_room(self) -> None:
        self._full_since = None
        text = "The journal in %s can be written again; %d records were lost."
        self._messages.append((logging.WARNING, text, self.directory, self.lost))
        # Before the call: it appends, and may come back here.
        lost, self._reported_lost = self.lost - self._reported_lost, self.lost
        if self._on_gap is not None:
            self._on_gap(lost)

    def _rotate(self, needed: int) -> None:
        """Switch to the prepared segment, or to a new one that holds the line."""
        if not self._can_map:  # a forked child that has its first line to write
            self._use_plain_writes(_NO_GUARANTEE)
            return
        # Taken in one statement, so a signal handler that rotates does not get the same segment.
        prepared, self._next = self._next, None
        if prepared is not None and prepared.size < needed:
            self._discard(prepared)
            prepared = None
        # On the training thread only if the worker has not kept up, or for a line larger than a segment.
        segment = prepared or self._make_segment(max(self._segment_bytes, needed), needed)
        if segment is None:
            return
        # Only now: if there is no room for another segment, the current one still takes shorter lines.
        self._finish_segment()
        if self._segment is not None:  # a signal handler ran in between and rotated
            self._discard(segment)
            return
        # The number is drawn at the first use: a prepared segment that is discarded leaves no gap, which would look
        # like a lost file.
        path = self._next_path()
        try:
            segment.rename(path)
        except FileNotFoundError:  # a process on another machine took it for abandoned
            segment.close(0)
            segment = Segment(self._prepared_path(), segment.size)
            segment.rename(path)
        segment.on_fault = self._leave_faulty_segment
        self._first_number = self._number
        # One statement without a call: a signal handler finds the old segment or the new one, not a mixture.
        self._position, self._size, self._map, self._segment = 0, segment.size, segment.map, segment
        self._start_worker()
        self._wake.set()

    def _make_segment(self, size: int, needed: int) -> Segment | None:
        """Make a segment of this size or, if the disk is nearly full, a smaller one that holds the line."""
        while True:
            try:
                return Segment(self._prepared_path(), size)
            except OSError as error:
                if error.errno in (errno.EOPNOTSUPP, errno.ENODEV, errno.EINVAL):
                    self._use_plain_writes(f"files cannot be mapped there ({error.strerror})")
                    return None
                # Half the size, again and again: what is left of a nearly full disk still holds many lines.
                smaller = max(size // 2, needed, _MIN_SEGMENT_BYTES)
                if error.errno != errno.ENOSPC or smaller >= size:
                    raise
                size = smaller

    def _use_plain_writes(self, reason: str) -> None:
        text = "The journal in %s uses plain appends: %s. Each line costs a system call."
        self._messages.append((logging.WARNING, text, self.directory, reason))
        self._finish_segment()
        self._plain_path = self._next_path()
        self._plain = os.open(self._plain_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        # Otherwise there is nothing to do for it: no segments to prepare, to close or to check.
        if self._durability == "power":
            self._start_worker()

    def _write_plainly(self, line: bytes) -> None:
        assert self._plain is not None
        # The number is reserved as in `append`.
        number = self._number
        sealed = seal_line(line, number)
        if number != self._number:  # a signal handler ran during the call, and its line has this number
            self._write_plainly(line)
            return
        self._number = number + 1
        data = _TORN_LINE_END + sealed + b"\n" if self._is_torn else sealed + b"\n"
        written = 0
        try:
            # One call for the line and its newline: a kill between two would leave a line without an end.
            written = os.write(self._plain, data)
        finally:
            if written < len(data):
                self._number = number  # the next line has it
        self._finished_bytes += written
        if written:
            self._is_torn = data[written - 1] != 10  # a full disk takes a part
        if written < len(data):
            raise OSError(errno.ENOSPC, "the line did not fit")
        if self._full_since is not None:
            self._report_room()

    # Finishing segments.

    def _finish_segment(self) -> None:
        segment, used = self._segment, self._position
        if segment is not None:  # detach it first: a signal handler that appends must not find it half closed
            self._segment, self._map, self._position, self._size = None, b"", 0, 0
            self._finished_bytes += used
            if self._durability != "process":
                # A descriptor of its own: the segment may be closed before it is synced.
                self._to_sync.append(os.dup(segment.descriptor))
            self._to_close.append((segment, used, self._number - self._first_number))

    def _close_segments(self) -> None:
        with contextlib.suppress(IndexError):  # until none is left, whichever thread takes the last
            while True:
                segment, used, lines = self._to_close.pop()
                with self._lock:
                    pass  # a signal handler may have rotated in the middle of an append: wait for that line
                # Checked before, because reading the map of a truncated file faults, and again afterwards, because it
                # may be truncated in between; the fault is then counted in the segment.
                digest = None if segment.is_cut() else segment.digest(used)
                is_cut = segment.is_cut()
                with contextlib.suppress(OSError):  # its directory is gone as well, or there is no room
                    # Before it is unmapped: the map is the only copy of a removed file.
                    segment.restore_removed(used)
                segment.close(used)
                if is_cut:
                    self._report_cut(segment.path, lines - count_intact_lines(segment.path))
                elif digest is not None:
                    self._record_digest(segment.path, digest)

    def _leave_faulty_segment(self, segment: Segment) -> None:
        """Make the next line start another file; called in the middle of a store to a truncated file."""
        if segment is self._segment:
            # Nothing more: this runs in the signal handler, inside a store. It sends the next `append` to the slow
            # path.
            self._size = 0

    def _leave_cut_segment(self) -> None:
        """Finish the current segment if its file was truncated or removed, and report what was lost."""
        segment = self._segment
        # Again and again, because other libraries replace the handler at any time.
        install_handler()
        with contextlib.suppress(OSError):  # closed meanwhile
            # The system call without the lock, so no `append` waits for it; the segment is compared again under the
            # lock.
            if segment is not None and segment.is_cut():
                with self._lock:
                    if self._segment is segment:
                        self._finish_segment()
        self.close_complete_files()

    def _report_cut(self, path: Path, lost: int) -> None:
        if lost:
            text = "%s was truncated or removed while it was being written: %d RECORDS ARE LOST. A new file is used."
            self._messages.append((logging.ERROR, text, path, lost))
        else:
            text = "%s was truncated or removed while it was being written. No record was lost."
            self._messages.append((logging.WARNING, text, path))
        with self._lock:
            self.lost += lost
            # Reported here, so that `_report_room` does not report them a second time.
            self._reported_lost += lost
        if self._on_gap is not None and lost and not self._closed:
            self._on_gap(lost)

    def _record_digest(self, path: Path, digest: str) -> None:
        """Append the digest of a complete file, in the format that ``sha256sum --check`` reads."""
        # Without a digest the lines still have their numbers and checksums, so a failure here stops nothing.
        with contextlib.suppress(OSError), (self.directory / f"{self.writer}{DIGESTS}").open("ab") as digests:
            digests.write(digest.encode() + b"  " + os.fsencode(path.name) + b"\n")

    # The background thread, and syncing.

    def _start_worker(self) -> None:
        if self._worker is None:
            # A daemon: a program may end without `close`. Its lines are in pages of the system, which outlive the
            # thread.
            self._worker = threading.Thread(target=self._work, name="hookline-journal", daemon=True)
            with contextlib.suppress(RuntimeError):  # no more threads: segments are then made when they are needed
                self._worker.start()

    def _work(self) -> None:
        """Prepare the next segment, close finished ones, sync, and run tasks, off the training thread."""
        syncs = self._durability == "power"
        synced = time.monotonic()
        while not self._closed:
            was_woken = self._wake.wait(min(self._sync_seconds, CHECK_SECONDS) if syncs else CHECK_SECONDS)
            self._wake.clear()
            while self._tasks:
                try:
                    self._tasks.popleft()()
                except Exception:  # it must not end the thread, which prepares segments
                    logger.exception("A task on the thread of the journal in %s failed.", self.directory)
            if syncs and time.monotonic() - synced >= self._sync_seconds:
                self._sync_in_background(self._sync_all)
                synced = time.monotonic()
            if self._durability == "checkpoint" and self._to_sync:
                # Complete files as they come: otherwise their descriptors pile up until the next `sync`.
                self._sync_in_background(self._sync_waiting)
            with contextlib.suppress(OSError):  # no room: `append` finds out when it needs the segment, and reports it
                self._leave_cut_segment()
                if was_woken and self._prepares and self._next is None and self._plain is None and not self._closed:
                    # Without the lock: allocating and touching all pages takes milliseconds, and `append` must not wait
                    # for that.
                    segment = Segment(self._prepared_path(), self._segment_bytes)
                    with self._lock:
                        if self._closed or self._next is not None:
                            self._discard(segment)
                        else:
                            self._next = segment

    def _sync_in_background(self, sync: Callable[[], None]) -> None:
        try:
            sync()
        except OSError as error:
            if not self._sync_fails:
                text = "The journal in %s cannot be synced to the disk (%s): a power failure may lose records."
                self._messages.append((logging.ERROR, text, self.directory, error.strerror))
            # Kept for the next `sync`, which fails with it: the system reports lost pages once and then considers them
            # clean.
            self._sync_fails, self._sync_error = True, error
        else:
            self._sync_fails = False
        self._log_messages()

    def _sync_all(self) -> None:
        # Only for as long as it takes to duplicate the descriptor, so that it is not closed meanwhile: a sync takes
        # long.
        with self._lock:
            current = self._segment.descriptor if self._segment is not None else self._plain
            if current is not None:
                self._to_sync.append(os.dup(current))
        self._sync_waiting()

    def _sync_waiting(self) -> None:
        """Sync the files in ``_to_sync``, without the lock of `append`."""
        # One thread at a time: what another thread is syncing is on the disk as well when this returns.
        with self._syncing, contextlib.ExitStack() as steps:  # last in, first out; one that fails stops no other
            descriptors = []
            with contextlib.suppress(IndexError):
                while True:
                    descriptors.append(self._to_sync.pop(0))
            # Executed last: names after data, and the inner directory before its parent.
            for directory in (self.directory.parent, self.directory):  # the names of new files
                steps.callback(sync_directory, directory)
            for descriptor in reversed(descriptors):
                steps.callback(os.close, descriptor)
                steps.callback(sync_descriptor, descriptor)

    def _log_messages(self) -> None:
        while self._messages:
            try:
                message = self._messages.pop(0)
            except IndexError:  # another thread was faster
                return
            logger.log(*message)

    @staticmethod
    def _discard(segment: Segment) -> None:
        try:
            segment.close(0)
        finally:
            segment.path.unlink(missing_ok=True)

    def _prepared_path(self) -> Path:
        return self.directory / f"{self.writer}-{secrets.token_hex(3)}.prepared"

    def _next_path(self) -> Path:
        return self.directory / f"{self.writer}-{next(self._file_numbers):06d}.jsonl"


def checked_durability(durability: Any) -> Durability:
    """Return a level of durability.

    Raises:
        OptionError: There is no such level.
    """
    if durability not in DURABILITIES:
        raise OptionError(f"durability={durability!r}: give 'process', 'checkpoint' or 'power'.")
    return durability  # type: ignore[no-any-return]


_open_journals: "weakref.WeakSet[Journal]" = weakref.WeakSet()


@functools.cache
def _reset_in_children() -> None:
    """Make forked children leave their parent's files alone; registered by the first journal, not by the import."""
    os.register_at_fork(after_in_child=_reset_after_fork)


def _reset_after_fork() -> None:
    for journal in list(_open_journals):
        # Smaller segments: there may be many children, with little to record.
        journal._segment_bytes = min(journal._segment_bytes, _MIN_SEGMENT_BYTES)
        journal._reset()  # with new locks: a thread of the parent may hold the old ones for ever
