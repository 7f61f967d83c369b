"""`BlobObjects`: keeps blobs in an object store, and fetches them to the local copy.

A blob is kept for as long as a run or an artifact uses it; see `hookline.server.storage.blob_copies`. Pieces of a blob
are gathered beside it until it is complete; abandoned ones are deleted after a day.
"""

import hashlib
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hookline._record.blobs import BLOBS, BlobStore, is_digest
from hookline.server.received_blobs import PIECE_SECONDS
from hookline.server.storage.blob_copies import BLOBS as _BLOBS
from hookline.server.storage.blob_copies import BlobView, collect_blob, find_copy, group_blobs, new_copy, use_blob
from hookline.server.storage.mirror import Remembered
from hookline.server.storage.objects import MissingObjectError, ObstoreObjects, StorageError
from hookline.server.storage.protocol import DIGITS, Extent, contiguous

_INCOMING = "incoming"
_LOCKS = 16
_AT_ONCE = 16
_ATTEMPTS = 3


class BlobObjects:
    """The blobs of a store.

    Args:
        root: The directory of the local copy.
    """

    def __init__(self, objects: ObstoreObjects, root: Path) -> None:
        self._objects, self._root = objects, root
        self._used: Remembered[tuple[str, str], bool] = Remembered()
        self._sizes: Remembered[str, int] = Remembered()
        self._pool = ThreadPoolExecutor(_AT_ONCE, "hookline-blobs")
        self._locks = [threading.Lock() for _ in range(_LOCKS)]

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()

    def lacking(self, digests: Iterable[str], user: str) -> list[str]:
        """Return which blobs the store lacks, and record the user of all of them.

        Args:
            user: The prefix of the user's objects. The store keeps the other blobs for as long as the user is there.
        """
        unknown = [digest for digest in dict.fromkeys(digests) if not self._used.get((digest, user))]
        copies = self._pool.map(lambda digest: use_blob(self._objects, digest, user), unknown)
        lacking = []
        for digest, copy in zip(unknown, copies, strict=True):
            if copy is None:
                lacking.append(digest)
            else:
                self._used.set((digest, user), True)
        return lacking

    def sizes(self, digests: Iterable[str]) -> dict[str, int | None]:
        """Return the sizes of blobs; None for one that the store does not have."""
        given = list(dict.fromkeys(digests))
        for digest, size in self._pool.map(self._size, [each for each in given if self._sizes.get(each) is None]):
            if size is not None:
                self._sizes.set(digest, size)
        return {digest: self._sizes.get(digest) for digest in given}

    def _size(self, digest: str) -> tuple[str, int | None]:
        folder = f"{BlobView(digest).prefix}/copies"
        return digest, next((entry.size for entry in self._objects.list(folder)), None)

    def add(self, contents: Mapping[str, bytes], user: str) -> None:
        """Store blobs that `lacking` has returned to this user, and whose digests the caller has verified."""
        for _ in self._pool.map(lambda each: self._objects.create(new_copy(each[0]), each[1]), contents.items()):
            pass
        for digest in contents:
            self._used.set((digest, user), True)

    def collect(self, is_gone: Callable[[str], bool], is_closing: Callable[[], bool]) -> int:
        """Delete unused blobs; returns how many copies.

        Args:
            is_gone: Whether a user is gone for good.
        """
        deleted = 0
        for view in group_blobs(self._objects.list(_BLOBS)):
            if is_closing():
                break
            deleted += collect_blob(self._objects, view, is_gone)
        return deleted

    def incoming(self, origin: str) -> dict[str, int]:
        """Return how many bytes have been received of each incomplete blob of a sender."""
        return {digest: _end(extents) for digest, extents in self._pieces(f"{_INCOMING}/{origin}").items()}

    def add_piece(self, origin: str, digest: str, offset: int, piece: bytes, size: int) -> tuple[int, int]:
        """Store a piece of a blob; returns how many bytes of the blob there are now, and how many of them are new."""
        prefix = f"{_INCOMING}/{origin}/{digest}"
        extents = self._pieces(prefix).get(digest, [])
        held = _end(extents)
        if held > size:  # a different blob: its size differs
            self._objects.delete([extent.name for extent in extents])
            held = 0
        new = piece[max(0, held - offset) :] if offset <= held else b""
        if new and not self._objects.create(f"{prefix}/{held:0{DIGITS}}", new):
            return _end(self._pieces(prefix).get(digest, [])), 0  # another server was faster
        return held + len(new), len(new)

    def complete(self, origin: str, digest: str, user: str) -> bool:
        """Make a blob of its pieces, and return whether they have its digest; the pieces are deleted."""
        prefix = f"{_INCOMING}/{origin}/{digest}"
        extents = self._pieces(prefix).get(digest, [])
        if not extents:  # another server has completed it
            return not self.lacking([digest], user)
        folder = self._root / BLOBS
        folder.mkdir(exist_ok=True)
        partial = folder / f"{secrets.token_hex(8)}.partial"
        computed = hashlib.sha256()
        try:
            with partial.open("wb") as file:
                for begin, extent in contiguous(extents):
                    data = self._objects.get(extent.name)[begin - extent.first :]
                    computed.update(data)
                    file.write(data)
            if computed.hexdigest() == digest:
                if self.lacking([digest], user):
                    self._objects.put_file(new_copy(digest), partial)
                self._used.set((digest, user), True)
        except MissingObjectError:  # another server has completed it in the meantime
            return not self.lacking([digest], user)
        finally:
            partial.unlink(missing_ok=True)
        self._objects.delete([extent.name for extent in extents])
        return computed.hexdigest() == digest

    def fetch(self, digest: str) -> bool:
        """Copy a blob to the local directory; returns whether there is one."""
        if not is_digest(digest):
            return False
        # One thread for each blob: the others wait for it, and find the file.
        with self._locks[int(digest[:8], 16) % _LOCKS]:
            store = BlobStore(self._root / BLOBS)
            if store.has(digest):
                return True
            for _ in range(_ATTEMPTS):
                try:
                    copy = find_copy(self._objects, digest)
                    if copy is None:
                        return False
                    with store.writing() as batch:
                        info = batch.add_file(_Reader(self._objects.read_chunks(copy)))
                        if info.digest == digest:
                            batch.commit()
                        return info.digest == digest
                except MissingObjectError:  # its content got another name in the meantime
                    continue
                except StorageError:
                    return False
            return False

    def remove_abandoned(self, now: float) -> None:
        """Delete pieces of uploads that were abandoned a day ago.

        Args:
            now: By the clock of the store.
        """
        old = [entry.name for entry in self._objects.list(_INCOMING) if now - entry.modified > PIECE_SECONDS]
        self._objects.delete(old)

    def _pieces(self, prefix: str) -> dict[str, list[Extent]]:
        found: dict[str, list[Extent]] = {}
        for entry in self._objects.list(prefix):
            digest, _, place = entry.name.removeprefix(f"{_INCOMING}/").partition("/")[2].partition("/")
            if is_digest(digest) and place.isascii() and place.isdigit():
                found.setdefault(digest, []).append(Extent(int(place), int(place) + entry.size, entry.name))
        return found


class _Reader:
    """Reads chunks as a file."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks

    def read(self, size: int, /) -> bytes:
        """Return the next chunk; its size may differ from the requested one."""
        return next(self._chunks, b"")


def _end(extents: list[Extent]) -> int:
    pieces = contiguous(extents)
    return pieces[-1].extent.end if pieces else 0
