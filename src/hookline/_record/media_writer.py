"""`MediaWriter`: encodes captured media on threads of its own, writes blobs, and then the records that name them.

Guarantees:

- `submit` never waits: not for an encoder, a disk or a device. It never raises because of a fault of the system.
- A record is written after its blobs are on the disk under their names. A killed process leaves both, or neither;
  blobs without a record are removed by ``hookline artifacts gc``.
- Records are in the order of `submit`, whichever was encoded first.
- What waits is bounded: `MEMORY_BYTES` of captured and encoded values in memory, and beyond half of that in spill files
  on disk of at most `SPILL_BYTES`. Beyond both, and when the disk is full, values are lost: counted exactly, logged,
  and recorded as events ``media_lost``. A record that has no room in the journal is counted there (``records_lost``).
- `flush` and `close` return when everything submitted before is written or counted as lost, also if no thread could be
  started or a thread has died: then they encode themselves.

Threads: encoders take jobs from a queue, spilled jobs come back to it. Whichever encoder completes the oldest job
commits those that are complete by then as one batch, so a busy writer syncs many blobs at once. ``_lock`` guards order
and counters and is never held during I/O; it is re-entrant, because a signal handler may log. ``_committing`` is held
for a batch. A forked child starts with an empty writer: what waits is its parent's.
"""

import atexit
import contextlib
import errno
import logging
import os
import pickle
import tempfile
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import islice, takewhile
from operator import attrgetter
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, BinaryIO

from hookline._record.blobs import BLOBS, BlobBatch, BlobStore, blob_directory
from hookline._record.media import Captured, CapturedFile, Encoded, Invalid, invalid
from hookline._record.media_table import DeviceCell, NewRows, table_records
from hookline._record.records import MEDIA_ERROR, MEDIA_LOST, Event, Media, Record, clean
from hookline._record.redaction import Redactor
from hookline._record.samples import CapturedSample

logger = logging.getLogger("hookline")

MEMORY_BYTES = 256_000_000
SPILL_BYTES = 4 * 10**9
SPILL_FILE_BYTES = 64 << 20
ENCODERS = 2
BATCH_JOBS = 512
JOB_BYTES = 1024
"""What a job holds besides its value: so many small ones are bounded, too."""
TEXT_FORMATS = frozenset({"txt", "md", "html", "json", "plotly.json"})
PROGRESS_SECONDS = 5.0
"""How often `flush` logs how much it still waits for."""
REPORT_SECONDS = 1.0
"""How often losses are recorded while they continue."""
_NOT_OURS = frozenset(
    {errno.EROFS, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENOTDIR, errno.EEXIST, errno.ETIMEDOUT}
)
"""Errors of a directory for blobs that the run's own does not have."""


class Job:
    """One submitted value, and the record that is made of it.

    Attributes:
        value: What is to be encoded; None while it is in a spill file, and when it is done.
        result: What it was encoded to, or why it could not be.
    """

    __slots__ = (
        *("caption", "index", "is_done", "name", "nbytes", "place", "result", "rows", "shape", "stamp", "type"),
        "value",
    )

    def __init__(self, stamp: tuple[float, int, str], name: str, index: int, value: Any) -> None:
        self.stamp, self.name, self.index, self.value = stamp, name, index, value
        self.type, self.caption = getattr(value, "type", "table"), getattr(value, "caption", "")
        self.shape = getattr(value, "shape", None)
        self.rows = len(value.rows) if isinstance(value, NewRows) else 0
        self.nbytes = getattr(value, "nbytes", 0) + JOB_BYTES
        self.place: Any = None
        self.result: Any = None
        self.is_done = False


class MediaWriter:
    """Records media of one run.

    Args:
        run_dir: The run's directory.
        append: Writes a record to the journal.
        append_surely: Writes one that must not be lost: as soon as there is room. ``append`` by default.
        redactor: Redacts texts, Markdown, HTML and figures of Plotly; ``append`` redacts the rest.
        memory_bytes: How many bytes of values may wait in memory.
        spill_bytes: How many bytes may wait on disk.
        encoders: How many threads encode.
    """

    def __init__(
        self,
        run_dir: Path,
        append: Callable[[Record], object],
        *,
        append_surely: Callable[[Record], object] | None = None,
        redactor: Redactor | None = None,
        memory_bytes: int = MEMORY_BYTES,
        spill_bytes: int = SPILL_BYTES,
        encoders: int = ENCODERS,
    ) -> None:
        self._run_dir, self._append, self._append_surely = Path(run_dir), append, append_surely or append
        self._redactor = Redactor() if redactor is None else redactor
        self._memory_bytes, self._spill_bytes, self._encoders = memory_bytes, spill_bytes, encoders
        self._reset()

    def _reset(self) -> None:
        self._process = os.getpid()
        self._lock, self._committing, self._starting = threading.RLock(), threading.Lock(), threading.Lock()
        self._progress = threading.Condition(self._lock)
        self._order: deque[Job] = deque()
        self._submitted = self._completed = self._in_memory = 0
        self.lost = self._lost_rows = self._logged_lost = 0
        self._reported = (0, 0)
        self._next_report = 0.0
        self._has_logged_loss = self._is_closed = False
        self._to_encode: SimpleQueue[Job | None] = SimpleQueue()
        self._to_spill: SimpleQueue[Job | None] = SimpleQueue()
        self._encoder_threads: list[threading.Thread] = []
        self._spill_thread: threading.Thread | None = None
        self._spill = SpillFiles(self._run_dir, self._spill_bytes)
        self._blobs: BlobStore | None = None

    def submit(self, name: str, values: Sequence[Any], stamp: tuple[float, int, str]) -> None:
        """Record values under a name, at a time, step and axis."""
        if self._process != os.getpid():  # forked: the threads are the parent's, and so is what they work on
            self._reset()
        for index, value in enumerate(values):
            job = Job(stamp, name, index, value)
            with self._lock:
                needed = self._in_memory + job.nbytes
                # One value of any size is taken while nothing else waits.
                has_room = not self._is_closed and (needed <= self._memory_bytes or not self._in_memory)
                if has_room:
                    self._in_memory += job.nbytes
                    self._order.append(job)
                    self._submitted += 1
            if not has_room:
                self._lose(job, "the run has ended" if self._is_closed else "more than can wait was logged at once")
                continue
            spills = needed > self._memory_bytes // 2 and isinstance(value, Captured)
            (self._to_spill if spills else self._to_encode).put(job)
            if not self._encoder_threads or (spills and self._spill_thread is None):
                self._start_threads(spills=spills)

    def flush(self) -> None:
        """Wait until everything submitted so far is written."""
        if self._process != os.getpid():
            return
        target, logged = self._submitted, time.monotonic()
        while True:
            with self._progress:
                if self._completed >= target:
                    break
                self._progress.wait(min(0.5, PROGRESS_SECONDS))
                waiting = target - self._completed
            if time.monotonic() - logged >= PROGRESS_SECONDS and waiting > 0:
                logged = time.monotonic()
                logger.info("Waiting for %d images, tables or files to be written.", waiting)
            self._work_without_threads()
        self._record_losses()
        if self.lost > self._logged_lost:
            logger.error("%d images, tables or files of %s are lost.", self.lost - self._logged_lost, self._run_dir)
            self._logged_lost = self.lost

    def close(self) -> None:
        """Write everything, and end the threads; what is submitted afterwards is lost. May be called again."""
        if self._process != os.getpid():
            return
        self.flush()
        with self._lock:
            self._is_closed = True
        self.flush()  # what another thread has submitted in between
        with self._starting:
            threads, self._encoder_threads = self._encoder_threads, []
            for _ in threads:
                self._to_encode.put(None)
            if self._spill_thread is not None:
                self._to_spill.put(None)
                threads.append(self._spill_thread)
                self._spill_thread = None
        for thread in threads:
            thread.join()
        self._spill.close()
        _open_writers.discard(self)

    def _start_threads(self, *, spills: bool) -> None:
        with self._starting:
            if self._is_closed:
                return
            # Without more threads (a limit of the system), `flush` does their work.
            with contextlib.suppress(RuntimeError):
                while len(self._encoder_threads) < self._encoders:
                    self._encoder_threads.append(_started(self._encode_jobs, "hookline-media"))
                if spills and self._spill_thread is None:
                    self._spill_thread = _started(self._spill_jobs, "hookline-media-spill")
            _open_writers.add(self)
            _flush_at_exit()

    def _work_without_threads(self) -> None:
        """Do the work of the threads if none is alive."""
        if self._spill_thread is None or not self._spill_thread.is_alive():
            with contextlib.suppress(Empty):
                while True:
                    self._to_encode.put(self._to_spill.get_nowait())
        if not any(thread.is_alive() for thread in self._encoder_threads):
            with contextlib.suppress(Empty):
                while True:
                    if (job := self._to_encode.get_nowait()) is not None:
                        self._encode(job)
            self._commit_complete()

    def _spill_jobs(self) -> None:
        while (job := self._to_spill.get()) is not None:
            with contextlib.suppress(Exception):  # no room on disk, or not a value that can be written: encode now
                job.place = self._spill.write(job.value)
                job.value.release()
                job.value = None
                self._hold(job, JOB_BYTES)
            self._to_encode.put(job)

    def _encode_jobs(self) -> None:
        while (job := self._to_encode.get()) is not None:
            self._encode(job)
            self._commit_complete()

    def _encode(self, job: Job) -> None:
        try:
            value = job.value if job.place is None else self._spill.read(job.place)
            if isinstance(value, Captured):
                job.result = self._encoded(value)
                value.release()
            elif isinstance(value, NewRows) and value.has_media:
                rows = [[self._encoded_cell(cell, job) for cell in row] for row in value.rows]
                job.result = value._replace(rows=rows)
            elif isinstance(value, CapturedSample):
                cells = [(facts, self._encoded_cell(cell, job)) for facts, cell in value.blobs]
                job.result = CapturedSample(value.sample, cells)
            else:
                job.result = value
        except BaseException as error:  # whatever a library raises here must not end the thread
            job.result = invalid(job.type, job.name, error, job.shape)
        job.value = None
        self._hold(job, JOB_BYTES + _held_bytes(job.result))
        with self._lock:
            job.is_done = True

    def _encoded(self, value: Captured) -> Encoded:
        encoded: Encoded = value.encode()
        content = encoded.content
        # Texts only: a file, also one of text, is kept as it is.
        if isinstance(content, bytes) and encoded.format in TEXT_FORMATS:
            content = self._redactor.encoded_text(content, is_json=encoded.format.endswith("json"))
        return encoded._replace(content=content)

    def _encoded_cell(self, cell: Any, job: Job) -> Any:
        try:
            if isinstance(cell, Captured):
                return _EncodedCell(cell, self._encoded(cell))
            return cell.fetch() if isinstance(cell, DeviceCell) else cell
        except Exception as error:
            return invalid(getattr(cell, "type", "cell"), job.name, error, getattr(cell, "shape", None))

    def _commit_complete(self) -> None:
        """Write the oldest jobs, as far as they are complete; one thread does it for all."""
        # Without the lock being free there is no need to wait: its holder looks again after it has released it.
        while self._is_oldest_done() and self._committing.acquire(blocking=False):
            batch: list[Job] = []
            try:
                with self._lock:
                    batch = list(islice(takewhile(attrgetter("is_done"), self._order), BATCH_JOBS))
                if batch:  # another thread may have written them just now
                    self._commit(batch)
            finally:
                with self._progress:
                    for job in batch:
                        self._order.popleft()
                        self._in_memory -= job.nbytes
                    self._completed += len(batch)
                    self._progress.notify_all()
                self._committing.release()
            if self.lost > self._reported[0] and time.monotonic() >= self._next_report:
                self._record_losses()

    def _is_oldest_done(self) -> bool:
        with self._lock:
            return bool(self._order) and self._order[0].is_done

    def _commit(self, batch: list[Job]) -> None:
        try:
            with self._blob_store().writing() if any(map(_needs_blobs, batch)) else nullcontext() as blobs:
                records = [self._records(job, blobs) for job in batch]
                if blobs is not None:
                    blobs.commit()
                # Still in the block: a collection of unused blobs waits until the records refer to them.
                for job, made in zip(batch, records, strict=True):
                    self._append_all(job, made)
        except Exception as error:
            if self._uses_shared_blobs() and getattr(error, "errno", None) in _NOT_OURS:
                self._use_own_blobs(error)
                self._commit(batch)
            elif len(batch) > 1:  # one by one: those for which there is room are written
                for job in batch:
                    self._commit([job])
            else:
                self._lose(batch[0], str(error))
            return
        for job in batch:
            if isinstance(job.result, Encoded) and isinstance(job.result.content, CapturedFile):
                job.result.content.close()
            job.result = None

    def _append_all(self, job: Job, records: list[Record]) -> None:
        try:
            for record in records:
                self._append(record)
        except Exception as error:  # here, so that the rest of the batch is not written a second time
            self._lose(job, str(error))

    def _blob_store(self) -> BlobStore:
        if self._blobs is None:
            self._blobs = BlobStore(blob_directory(self._run_dir))
        return self._blobs

    def _uses_shared_blobs(self) -> bool:
        return self._blob_store().directory != self._run_dir / BLOBS

    def _use_own_blobs(self, error: Exception) -> None:
        logger.warning("%s; the files of %s are kept in the run's own directory.", error, self._run_dir)
        self._blobs = BlobStore(self._run_dir / BLOBS)

    def _records(self, job: Job, blobs: BlobBatch | None) -> list[Record]:
        time, step, axis = job.stamp
        result = job.result
        try:
            if isinstance(result, Encoded):
                facts = media_facts(result, blobs, job.type, job.caption)
                return [Media(time=time, step=step, axis=axis, name=job.name, index=job.index, **facts)]
            if isinstance(result, NewRows):
                if result.has_media:
                    rows = [[_stored_cell(cell, blobs) for cell in row] for row in result.rows]
                    result = result._replace(rows=rows, nbytes=0)  # the media are in blobs: rows are short
                return table_records(result, job.name, job.stamp)
            if isinstance(result, CapturedSample):
                return self._sample_records(job, result, blobs)
        except OSError:
            raise
        except Exception as error:  # a file that changed before it was copied
            result = invalid(job.type, job.name, error, job.shape)
        data = {"name": job.name, "type": result.type, "reason": result.reason}
        return [Event(time=time, name=MEDIA_ERROR, step=step, data=clean(data))]

    def _sample_records(self, job: Job, captured: CapturedSample, blobs: BlobBatch | None) -> list[Record]:
        """Return the record of a sample, and an event for each of its parts that could not be recorded."""
        time, step, _ = job.stamp
        records: list[Record] = [captured.sample]
        for facts, cell in captured.blobs:
            if isinstance(cell, _EncodedCell):
                facts.update(media_facts(cell.encoded, blobs, cell.type, cell.caption))
            else:
                data = {"name": job.name, "type": cell.type, "reason": cell.reason}
                facts["problem"] = str(clean(cell.reason))
                records.append(Event(time=time, name=MEDIA_ERROR, step=step, data=clean(data)))
        return records

    def _hold(self, job: Job, nbytes: int) -> None:
        """Note how much memory a job holds from now on."""
        with self._lock:
            self._in_memory += nbytes - job.nbytes
            job.nbytes = nbytes

    def _lose(self, job: Job, reason: str) -> None:
        captured = job.value if isinstance(job.value, CapturedSample) else job.result
        if isinstance(captured, CapturedSample):  # its tokens and images are lost, but its texts need no blob
            for facts, _ in captured.blobs:
                facts["problem"] = "lost"
            with contextlib.suppress(Exception):  # counted by the journal
                self._append(captured.sample)
        with self._lock:
            self.lost += 1
            self._lost_rows += job.rows
            is_first, self._has_logged_loss = not self._has_logged_loss, True
        if is_first:
            logger.error("Media of %s cannot be recorded (%s): SOME ARE LOST and counted.", self._run_dir, reason)

    def _record_losses(self) -> None:
        """Record how many were lost since the last time."""
        with self._lock:
            count, rows = self.lost - self._reported[0], self._lost_rows - self._reported[1]
            self._reported = (self.lost, self._lost_rows)
            self._next_report = time.monotonic() + REPORT_SECONDS
        if count:
            data = {"count": count} | ({"rows": rows} if rows else {})
            self._append_surely(Event(time=time.time(), name=MEDIA_LOST, data=data))


_open_writers: "weakref.WeakSet[MediaWriter]" = weakref.WeakSet()
_is_registered = False


def _flush_at_exit() -> None:
    """Write pending media when a program ends without closing its recorder; registered by the first writer."""
    global _is_registered
    if not _is_registered:
        _is_registered = True
        atexit.register(_flush_all)


def _flush_all() -> None:
    for writer in list(_open_writers):
        writer.flush()


def _started(target: Callable[[], None], name: str) -> threading.Thread:
    thread = threading.Thread(target=target, name=name, daemon=True)
    thread.start()
    return thread


def _held_bytes(result: Any) -> int:
    if isinstance(result, Encoded):
        content = len(result.content) if isinstance(result.content, bytes) else 0
        return content + sum(map(len, result.parts.values()))
    if isinstance(result, NewRows):
        cells = (cell for row in result.rows for cell in row if isinstance(cell, _EncodedCell))
        return result.nbytes + sum(_held_bytes(cell.encoded) for cell in cells) if result.has_media else result.nbytes
    if isinstance(result, CapturedSample):
        return sum(_held_bytes(cell.encoded) for _, cell in result.blobs if isinstance(cell, _EncodedCell))
    return 0


class _EncodedCell:
    """A cell with media: the captured value and its encoding."""

    __slots__ = ("caption", "encoded", "type")

    def __init__(self, value: Captured, encoded: Encoded) -> None:
        self.type, self.caption, self.encoded = value.type, value.caption, encoded


def _needs_blobs(job: Job) -> bool:
    result = job.result
    if isinstance(result, NewRows):
        return result.has_media and any(isinstance(cell, _EncodedCell) for row in result.rows for cell in row)
    if isinstance(result, CapturedSample):
        return any(isinstance(cell, _EncodedCell) for _, cell in result.blobs)
    return isinstance(result, Encoded) and (result.content is not None or bool(result.parts))


def _stored_cell(cell: Any, blobs: BlobBatch | None) -> Any:
    if isinstance(cell, _EncodedCell):
        return {"media": media_facts(cell.encoded, blobs, cell.type, cell.caption)}
    return f"({cell.reason})" if isinstance(cell, Invalid) else cell


def media_facts(encoded: Encoded, blobs: BlobBatch | None, kind: str, caption: str) -> dict[str, Any]:
    """Return the fields of a record of media from ``type`` on; its blobs are added to the batch."""
    facts: dict[str, Any] = {"type": kind, "caption": str(caption)} if caption else {"type": kind}
    data = dict(encoded.data)
    if blobs is None:
        return facts | ({"data": data} if data else {})
    if encoded.content is not None:
        content = encoded.content
        if isinstance(content, bytes):
            info = blobs.add(content)
        else:
            content.seek(0)  # a batch that failed is written again, one by one
            info = blobs.add_file(content)
        facts |= {"blob": info.digest, "size": info.size, "format": encoded.format}
    for name, part in encoded.parts.items():
        info = blobs.add(part)
        data.setdefault("parts", {})[name] = {"blob": info.digest, "size": info.size}
    return facts | ({"data": data} if data else {})


class SpillFiles:
    """Captured values on disk, in files without a name, which disappear with their process.

    A file is released when nothing in it is waited for, so a writer that is never idle needs no more room than what
    waits, and a file.

    Args:
        directory: A directory of the file system that holds them.
        limit: How many bytes may wait.
    """

    def __init__(self, directory: Path, limit: int) -> None:
        self._directory, self._limit = directory, limit
        self._waiting_bytes = 0
        self._current: SpillFile | None = None
        self._lock = threading.Lock()

    def write(self, value: Any) -> tuple["SpillFile", int, int]:
        """Write a value, and return its place.

        Raises:
            OSError: There is no room.
        """
        content = pickle.dumps(value, protocol=5)
        with self._lock:
            if self._waiting_bytes + len(content) > self._limit:
                raise OSError(errno.ENOSPC, "the spill files are full")
            if self._current is None or self._current.end >= SPILL_FILE_BYTES:
                self._release(self._current)
                self._current = SpillFile(self._directory)
            file = self._current
            place = file, file.end, len(content)
            file.end += len(content)
            file.waiting += 1
            self._waiting_bytes += len(content)
        try:
            view, written = memoryview(content), 0
            while written < len(content):
                written += os.pwrite(file.descriptor, view[written:], place[1] + written)
        except BaseException:
            self._free(place)
            raise
        return place

    def read(self, place: tuple["SpillFile", int, int]) -> Any:
        """Return a value, and free its place."""
        file, offset, size = place
        content = bytearray()
        try:
            while len(content) < size:
                piece = os.pread(file.descriptor, size - len(content), offset + len(content))
                if not piece:
                    raise OSError(errno.EIO, "a spill file was truncated")
                content += piece
        finally:
            self._free(place)
        return pickle.loads(content)  # noqa: S301 - written by this process, in a file without a name

    def _free(self, place: tuple["SpillFile", int, int]) -> None:
        file, _, size = place
        with self._lock:
            self._waiting_bytes -= size
            file.waiting -= 1
            self._release(file)

    def _release(self, file: "SpillFile | None") -> None:
        if file is not None and not file.waiting:
            if file is self._current:
                self._current = None
            file.close()

    def close(self) -> None:
        """Release the file that is kept for the next values."""
        with self._lock:
            self._release(self._current)


class SpillFile:
    """One of them.

    Attributes:
        end: Where the next value goes.
        waiting: How many values in it are waited for.
    """

    def __init__(self, directory: Path) -> None:
        self._file: BinaryIO = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115
        self.descriptor = self._file.fileno()
        self.end = self.waiting = 0

    def close(self) -> None:
        """Give its room back."""
        self._file.close()
