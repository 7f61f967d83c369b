"""`ReceivedBlobs`: stores the blobs that received journals refer to, in the root's ``.blobs``.

- Only the sender that claimed a run may ask about blobs and send them, in the name of that run.
- A blob is stored under the SHA-256 that this server computes. Content with another digest is refused and removed.
- A large blob comes in pieces, which are kept in ``.blobs/incoming``, a file for each sender and digest. A sender that
  was interrupted asks how much is there and continues. Pieces that nobody continues are removed after a day.
- A blob is durable, and whole, before the sender learns that it is there (see `hookline._record.blobs`).
- A blob is refused if it is too large (413), or if there is no room for it (507): a run has used up its share, the
  blobs of the server have reached their limit, or the disk would have less free space than journals need.
- Memory is bounded by the limits of request bodies: a piece is one request.

A sender with a token for all projects learns whether the server has a blob that another run sent: that saves sending
it again. It does not learn more, because the write token reads nothing: all its holders may ask about any digest, and
none gets the content.

A sender with a token for some projects (``own_only``) learns nothing about the blobs of others: what its run has not
sent itself counts as missing, is received and verified as a whole, and counts for the run's limit, whether or not the
server has it. It is stored once all the same. Its runs may refer only to blobs that they have sent (`SentBlobs`), so
the digest of a blob of another project does not help to read it. What remains is the time that an answer takes: storing
a blob that exists is faster, for a sender that has its whole content.

All methods may be called from any thread, and by several servers on the same root.
"""

import contextlib
import hashlib
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from hookline._engine.errors import HooklineError, OptionError
from hookline._record.blobs import BLOBS, BlobBatch, BlobStore
from hookline._record.files import exclusive
from hookline.server.received_runs import ConflictError, ReceivedRuns, SentBlobs, write_all

INCOMING = "incoming"
"""The folder of pieces in ``.blobs``; blobs are in folders named by two digits."""
MAX_ASKED = 1000
"""How many blobs one request may name."""
MAX_DECLARED_BYTES = 1 << 50
PIECE_SECONDS = 24 * 3600.0
"""Pieces that were not continued for this long are removed."""
_CLEANUP_SECONDS = 3600.0
_USAGE_SECONDS = 600.0
"""How long a count of all blobs is used: local runs and collections change it without this server."""
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK

Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
Size = Annotated[int, msgspec.Meta(ge=0, le=MAX_DECLARED_BYTES)]


@dataclass(frozen=True, slots=True)
class BlobLimits:
    """How much a server stores in blobs.

    Args:
        blob_bytes: The maximum size of one blob.
        run_bytes: How many bytes one run may add.
        total_bytes: The maximum size of all blobs of the root; None for no limit.
        free_bytes: How much of the disk stays free for journals.
    """

    blob_bytes: int = 5 * 10**9
    run_bytes: int = 100 * 10**9
    total_bytes: int | None = None
    free_bytes: int = 10**9


class BlobPart(msgspec.Struct, forbid_unknown_fields=True):
    """A piece of a blob, or all of it: the digest and size of the blob, and the place of the piece in it."""

    digest: Digest
    size: Size
    offset: Size
    length: Size


class BlobRefusal(msgspec.Struct):
    """Why a blob is not accepted, with the status code for a request that sends it."""

    status: int
    error: str


class MissingBlobs(msgspec.Struct):
    """The blobs that the server lacks, with the number of bytes it has of each, and those that it does not accept."""

    missing: dict[str, int]
    refused: dict[str, BlobRefusal]


class StoredBlobs(msgspec.Struct):
    """How many bytes of each blob are stored now."""

    stored: dict[str, int]


class BlobsRefusedError(HooklineError, ValueError):
    """Some blobs of a request are not accepted; ``facts`` tells programs which, and what was stored of the others."""

    def __init__(self, stored: dict[str, int], refused: dict[str, BlobRefusal]) -> None:
        first = next(iter(refused.values()))
        super().__init__(first.error)
        self.status = first.status
        self.refused = refused
        self.facts = {"stored": stored, "refused": refused}


class _Reply(NamedTuple):
    stored: dict[str, int]
    refused: dict[str, BlobRefusal]
    own: SentBlobs | None = None
    """What the run has sent, if only that counts as stored."""


@dataclass(slots=True)
class ReceivedBlobs:
    """Stores received blobs.

    Args:
        runs: The received runs of the root.
        limits: How much is stored.
        clock: Seconds since 1970, as file systems count them.
    """

    runs: ReceivedRuns
    limits: BlobLimits = field(default_factory=BlobLimits)
    clock: Callable[[], float] = time.time
    _usage: int = 0
    _counted_at: float = float("-inf")
    _cleaned_at: float = float("-inf")
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def store(self) -> BlobStore:
        """The blobs of the root."""
        return BlobStore(self.runs.root / BLOBS)

    def missing(
        self, project: str, run: str, *, origin: str, sizes: Mapping[str, int], own_only: bool = False
    ) -> MissingBlobs:
        """Return which of some blobs the server lacks; a collection keeps the others until their record comes.

        Args:
            own_only: Only blobs that the run has sent count as stored.

        Raises:
            ConflictError: The run is not claimed, or belongs to another origin.
        """
        reply = MissingBlobs({}, {})
        with self.runs.owned(project, run, origin=origin) as directory, self._writing() as batch:
            self._remove_abandoned()
            used, sent = self.runs.blob_bytes(directory), self.runs.sent_blobs(directory)
            known = []
            for digest, size in sizes.items():
                if (not own_only or digest in sent.digests) and batch.exists(digest):
                    known.append(digest)
                    continue
                held = self._held(origin, digest, size)
                refusal = self.refusal(size, size - held, used)
                if refusal is None:
                    reply.missing[digest] = held
                else:
                    reply.refused[digest] = refusal
            if sent.is_limited:  # a token for all projects may let the run refer to any blob
                self.runs.add_sent_blobs(directory, [digest for digest in known if digest not in sent.digests])
        return reply

    def receive(
        self,
        project: str,
        run: str,
        *,
        origin: str,
        parts: Sequence[BlobPart],
        content: memoryview,
        own_only: bool = False,
    ) -> StoredBlobs:
        """Store pieces of blobs; what is stored already is not written again.

        Args:
            own_only: Only blobs that the run has sent count as stored.

        Raises:
            ConflictError: The run is not claimed, or belongs to another origin.
            OptionError: The pieces do not fit their blobs, or the content.
            BlobsRefusedError: Some of the blobs are not accepted; the others are stored.
        """
        check_parts(parts, content)
        start = 0
        with self.runs.owned(project, run, origin=origin) as directory, self._writing() as batch:
            used, sent = self.runs.blob_bytes(directory), self.runs.sent_blobs(directory)
            reply = _Reply({}, {}, sent if own_only else None)
            written = 0
            try:
                for part in parts:
                    piece = content[start : start + part.length]
                    start += part.length
                    written += self._store(part, piece, batch, reply, origin=origin, used=used + written)
                batch.commit()
                if own_only or sent.is_limited:
                    sizes = {part.digest: part.size for part in parts}
                    whole = [digest for digest, held in reply.stored.items() if held == sizes[digest]]
                    self.runs.add_sent_blobs(directory, [digest for digest in whole if digest not in sent.digests])
            finally:
                # Also after a fault: pieces that were written use space.
                self.runs.add_blob_bytes(directory, written)
                with self._lock:
                    self._usage += written
        if reply.refused:
            raise BlobsRefusedError(reply.stored, reply.refused)
        return StoredBlobs(reply.stored)

    def _store(
        self, part: BlobPart, piece: memoryview, batch: BlobBatch, reply: _Reply, *, origin: str, used: int
    ) -> int:
        """Store a piece, note the result in the reply, and return how many bytes were added."""
        digest, size = part.digest, part.size
        is_whole = part.length == size
        if (reply.own is None or digest in reply.own.digests) and batch.exists(digest):
            reply.stored[digest] = size
            if not is_whole:  # another sender was faster
                self._incoming(origin, digest).unlink(missing_ok=True)
            return 0
        held = 0 if is_whole else self._held(origin, digest, size)
        refusal = self.refusal(size, size - held, used)
        if refusal is None and is_whole:
            if hashlib.sha256(piece).hexdigest() == digest:
                batch.add(piece)
                reply.stored[digest] = size
                return size
            refusal = other_content()
        if refusal is not None:
            reply.refused[digest] = refusal
            return 0
        return self._append(part, piece, batch, reply, origin)

    def _append(self, part: BlobPart, piece: memoryview, batch: BlobBatch, reply: _Reply, origin: str) -> int:
        path = self._incoming(origin, part.digest)
        path.parent.mkdir(exist_ok=True)
        descriptor = os.open(path, _FLAGS, 0o644)
        try:
            with exclusive(descriptor):
                if not _is_at(path, descriptor):
                    # Completed or removed since it was opened: what is open may be a blob. The sender asks again.
                    reply.stored[part.digest] = 0
                    return 0
                held = os.fstat(descriptor).st_size
                if held > part.size:
                    os.ftruncate(descriptor, held := 0)
                new = piece[max(0, held - part.offset) :] if part.offset <= held else piece[:0]
                if new:
                    write_all(descriptor, new, held)
                reply.stored[part.digest] = held + len(new)
                if held + len(new) == part.size:
                    self._complete(part, path, descriptor, batch, reply)
                return len(new)
        finally:
            os.close(descriptor)

    def _complete(self, part: BlobPart, path: Path, descriptor: int, batch: BlobBatch, reply: _Reply) -> None:
        # Read again from the beginning: pieces may have come before a restart, or through another server.
        os.lseek(descriptor, 0, os.SEEK_SET)
        with os.fdopen(os.dup(descriptor), "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest == part.digest:
            batch.adopt(path, digest)
            # Still under the file's lock, so nobody appends to a blob.
            batch.commit()
        else:
            path.unlink(missing_ok=True)
            del reply.stored[part.digest]
            reply.refused[part.digest] = other_content()

    def _held(self, origin: str, digest: str, size: int) -> int:
        """How many bytes of a blob are there; 0 if more, which is not this blob."""
        with contextlib.suppress(OSError):
            found = self._incoming(origin, digest).lstat()
            if stat.S_ISREG(found.st_mode) and found.st_size <= size:
                return found.st_size
        return 0

    def _incoming(self, origin: str, digest: str) -> Path:
        return self.store.directory / INCOMING / f"{origin}-{digest}"

    @contextlib.contextmanager
    def _writing(self) -> Iterator[BlobBatch]:
        with contextlib.suppress(FileNotFoundError):
            # The root may be a link, as its user chose it; nothing below it may.
            for directory in (self.store.directory, self.store.directory / INCOMING):
                if not stat.S_ISDIR(directory.lstat().st_mode):
                    raise ConflictError(f"{directory.name!r} is a link or not a directory; nothing is stored in it.")
        with self.store.writing() as batch:
            yield batch

    def refusal(self, size: int, new: int, used: int) -> BlobRefusal | None:
        """Why a blob of a size, of which some bytes are new, is not accepted."""
        limits = self.limits
        if size > limits.blob_bytes:
            error = f"The blob has {size:,} bytes; this server accepts at most {limits.blob_bytes:,} (--max-blob)."
            return BlobRefusal(413, error)
        reason = ""
        if used + new > limits.run_bytes:
            reason = f"The run has sent {used:,} of the {limits.run_bytes:,} bytes that it may send (--max-run-blobs)"
        elif limits.total_bytes is not None and (total := self._total()) + new > limits.total_bytes:
            reason = f"The server has {total:,} of at most {limits.total_bytes:,} bytes of blobs (--max-blobs)"
        elif (free := _free_bytes(self.runs.root)) - new < limits.free_bytes:
            reason = f"The server's disk has {free:,} bytes left, and keeps {limits.free_bytes:,} free (--keep-free)"
        return BlobRefusal(507, f"{reason}: there is no room for {new:,} more.") if reason else None

    def _total(self) -> int:
        with self._lock:
            if self.clock() - self._counted_at >= _USAGE_SECONDS:
                self._usage = _disk_usage(self.store.directory)
                self._counted_at = self.clock()
            return self._usage

    def _remove_abandoned(self) -> None:
        with self._lock:
            if self.clock() - self._cleaned_at < _CLEANUP_SECONDS:
                return
            self._cleaned_at = self.clock()
        with contextlib.suppress(FileNotFoundError), os.scandir(self.store.directory / INCOMING) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if self.clock() - entry.stat(follow_symlinks=False).st_mtime > PIECE_SECONDS:
                        Path(entry.path).unlink()


def check_parts(parts: Sequence[BlobPart], content: memoryview) -> None:
    """Refuse parts that do not fit their blobs, or the content after them.

    Raises:
        OptionError: They do not.
    """
    if sum(part.length for part in parts) != len(content):
        raise OptionError(f"The parts have other lengths than the {len(content):,} bytes after the first line.")
    sizes: dict[str, int] = {}
    for part in parts:
        # Otherwise a piece of one size could pass for all of a blob of another.
        if sizes.setdefault(part.digest, part.size) != part.size:
            raise OptionError(f"The parts of {part.digest} name different sizes.")
        if part.offset + part.length > part.size:
            raise OptionError(f"A part of {part.digest} ends at {part.offset + part.length:,}, beyond its size.")


def _is_at(path: Path, descriptor: int) -> bool:
    """Whether a path still names the regular file that is open."""
    opened = os.fstat(descriptor)
    with contextlib.suppress(FileNotFoundError):
        found = path.lstat()
        return stat.S_ISREG(found.st_mode) and (found.st_dev, found.st_ino) == (opened.st_dev, opened.st_ino)
    return False


def other_content() -> BlobRefusal:
    """The refusal of a blob whose content is not what its digest says."""
    return BlobRefusal(422, "The content has another SHA-256 than its digest; it was removed.")


def _free_bytes(path: Path) -> int:
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def _disk_usage(directory: Path) -> int:
    """The size of all files in the folders of a directory."""
    size = 0
    with contextlib.suppress(FileNotFoundError), os.scandir(directory) as folders:
        for folder in folders:
            if folder.is_dir(follow_symlinks=False):
                with os.scandir(folder) as entries:
                    size += sum(entry.stat(follow_symlinks=False).st_size for entry in entries)
    return size
