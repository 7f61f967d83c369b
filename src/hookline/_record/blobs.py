"""Blobs: content-addressed files that records and artifacts refer to by their SHA-256.

They are in ``<root>/.blobs/<first two digits>/<digest>``, beside the projects, so runs of one root share equal files.
A run that was copied elsewhere may carry its own in ``<run>/.blobs``, which readers look into first.

Guarantees:

- A blob is whole or absent: it is written aside, synced, and renamed. `BlobBatch.commit` returns when all blobs of the
  batch survive a power cut, so a record that names one is written afterwards.
- A blob never changes. Equal content is stored once.
- `collect_garbage` removes only what nothing refers to, and nothing if it cannot read all that might refer to it. A
  batch holds a shared lock until the records that name its blobs are written, and touches blobs that exist already; the
  collection looks for references after it has held the exclusive lock once, and removes only blobs that were not
  touched since. So it never takes a blob from a record that is being written.
- A received run with a list of sent blobs that says so may use only those blobs of its root.

Directories may be shared or received: digests are checked before they become part of a path, links are not followed,
and `read_blob` compares the content with the digest.
"""

import contextlib
import errno
import fcntl
import hashlib
import io
import os
import re
import secrets
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol

from hookline._engine.errors import HooklineError
from hookline._record.files import exclusive, sync_directory, sync_file
from hookline._record.seekable import SUFFIX
from hookline._record.segment import open_journal

BLOBS = ".blobs"
ARTIFACTS = ".artifacts"
"""The folder of a root with the manifests of artifacts, which refer to blobs as journals do."""
_LOCK = "lock"
LOCK_SECONDS = 60.0
"""How long a batch waits for a collection, before its writer uses the run's own directory."""
SYNC_THREADS = 8
_REMOVED_AT_ONCE = 500
_MAX_KNOWN = 100_000
_DIGEST = re.compile(r"[0-9a-f]{64}")
_REFERENCE = re.compile(rb'"blob": ?"([0-9a-f]{64})"')
_PIECE = 1 << 20
_OVERLAP = 128
"""Longer than a reference, so that one across two pieces is found."""
_RECEIVED = "received.json"
"""In the directory of a run that came from another machine."""
SENT_BLOBS = ".sent-blobs"
"""In the directory of a received run: the digests of the blobs that its sender has sent, one per line."""
OWN_BLOBS_ONLY = "only"
"""The first line of that file, if the run may refer to no other blobs of the root."""
_ENVIRONMENT = "environment.json"
"""In the directory of a run: refers to its list of packages, its diff and its untracked files."""
_ARRIVAL_SECONDS = 3600.0
_FICLONE = 0x40049409
"""The request of Linux that makes a file share the blocks of another until one of them is changed."""


class BlobError(HooklineError):
    """A blob is missing or damaged."""


class Readable(Protocol):
    """An open file, read from its current position to its end."""

    def read(self, size: int, /) -> bytes:
        """Return so many bytes at most; none at the end."""


class BlobInfo(NamedTuple):
    """A blob's digest and its size in bytes."""

    digest: str
    size: int


class Removed(NamedTuple):
    """The blobs that a collection removed, or would remove."""

    blobs: int
    bytes: int


def is_digest(text: str) -> bool:
    """Return whether a text is a SHA-256 in lower-case hexadecimal digits."""
    return _DIGEST.fullmatch(text) is not None


def blob_directory(run_dir: Path) -> Path:
    """Return where a run's blobs are written: beside the projects of its root."""
    return Path(run_dir).resolve().parent.parent / BLOBS


_sources: dict[Path, Callable[[str], bool]] = {}


def set_blob_source(directory: Path, fetch: Callable[[str], bool] | None) -> None:
    """Set where the blobs of a directory come from that are not in it: the copy of an object store gets them on demand.

    Args:
        directory: ``<root>/.blobs``.
        fetch: Stores a blob in the directory, and returns whether there is one; None for no source.
    """
    if fetch is None:
        _sources.pop(directory.resolve(), None)
    else:
        _sources[directory.resolve()] = fetch


def fetch_blob(directory: Path, digest: str) -> None:
    """Get a blob that is not in a directory from its source, if it has one."""
    fetch = _sources.get(directory.resolve()) if _sources else None
    if fetch is not None and not BlobStore(directory).has(digest):
        fetch(digest)


def find_blob(run_dir: Path, digest: str) -> Path | None:
    """Return the file of a blob that a run refers to, or None if it is not there."""
    if not is_digest(digest):
        return None
    path = _find_local(run_dir, digest)
    # A run that may refer to its own blobs only gets none of another run from the store either.
    if path is None and _sources and _may_refer_to(Path(run_dir), digest):
        fetch = _sources.get(blob_directory(run_dir))
        if fetch is not None and fetch(digest):
            path = _find_local(run_dir, digest)
    return path


def _find_local(run_dir: Path, digest: str) -> Path | None:
    directories = [Path(run_dir) / BLOBS]
    if _may_refer_to(Path(run_dir), digest):
        directories.append(blob_directory(run_dir))
    for directory in directories:
        path = directory / digest[:2] / digest
        with contextlib.suppress(OSError):
            # No part of it may be a link: the directory may come from elsewhere.
            folders = (stat.S_ISDIR(folder.lstat().st_mode) for folder in (directory, path.parent))
            if all(folders) and stat.S_ISREG(path.lstat().st_mode):
                return path
    return None


def _may_refer_to(run_dir: Path, digest: str) -> bool:
    """Whether a run may use a blob of its root: one whose sender may see some projects only must have sent it."""
    try:
        descriptor = os.open(run_dir / SENT_BLOBS, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    except OSError:  # a link, or not to be read: it cannot be known
        return False
    with os.fdopen(descriptor, "rb") as file:
        head = f"{OWN_BLOBS_ONLY}\n".encode()
        return file.read(len(head)) != head or f"{digest}\n".encode() in file.read()


def open_blob(run_dir: Path, digest: str) -> io.BufferedReader:
    """Open a blob that a run refers to.

    Raises:
        BlobError: It is missing.
    """
    path = find_blob(run_dir, digest)
    try:
        if path is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    except OSError as error:
        raise BlobError(f"The blob {digest!r:.80} of {run_dir} cannot be read: {error.strerror}.") from error


def read_blob(run_dir: Path, digest: str, *, max_bytes: int | None = None) -> bytes:
    """Return the content of a blob that a run refers to.

    Args:
        max_bytes: A larger one is not read.

    Raises:
        BlobError: It is missing or too large, or its content has changed.
    """
    with open_blob(run_dir, digest) as file:
        if max_bytes is not None and (size := os.fstat(file.fileno()).st_size) > max_bytes:
            raise BlobError(f"The blob {digest} of {run_dir} has {size:,} bytes, more than {max_bytes:,}.")
        content = file.read()
    if hashlib.sha256(content).hexdigest() != digest:
        raise BlobError(f"The blob {digest} of {run_dir} is damaged: its content has another digest.")
    return content


def blob_problem(run_dir: Path, digest: str, size: int | None = None) -> str:
    """Return the problem of a blob that a run refers to, or an empty string; reads all of it."""
    try:
        with open_blob(run_dir, digest) as file:
            if size is not None and (found := os.fstat(file.fileno()).st_size) != size:
                return f"has {found} bytes instead of {size}"
            return "" if hashlib.file_digest(file, "sha256").hexdigest() == digest else "has other content"
    except (BlobError, OSError):
        return "is missing"


class BlobStore:
    """The blobs of one root.

    Args:
        directory: ``<root>/.blobs``; created when the first blob is written.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = Path(directory)
        self._durable: set[str] = set()

    def path(self, digest: str) -> Path:
        """Return the file of a digest, whether or not it exists."""
        if not is_digest(digest):
            raise BlobError(f"{digest!r:.80} is not a SHA-256 digest.")
        return self.directory / digest[:2] / digest

    def has(self, digest: str) -> bool:
        """Return whether a blob is there."""
        with contextlib.suppress(OSError):
            return stat.S_ISREG(self.path(digest).lstat().st_mode)
        return False

    def digests(self) -> Iterator[str]:
        """Yield the digests of all blobs."""
        with contextlib.suppress(FileNotFoundError):
            for folder in sorted(self.directory.iterdir()):
                if len(folder.name) == 2 and folder.is_dir() and not folder.is_symlink():
                    yield from (path.name for path in sorted(folder.iterdir()) if is_digest(path.name))

    @contextlib.contextmanager
    def writing(self) -> Iterator["BlobBatch"]:
        """Write blobs, and then, still in the block, the records that refer to them."""
        with self._locked(shared=True, seconds=LOCK_SECONDS):
            batch = BlobBatch(self)
            try:
                yield batch
            finally:
                batch.discard()

    @contextlib.contextmanager
    def _locked(self, *, shared: bool, seconds: float | None = None) -> Iterator[None]:
        try:
            # A link would have blobs written to, and collected from, a directory of somebody else's choice.
            if stat.S_ISLNK(self.directory.lstat().st_mode):
                raise OSError(errno.ELOOP, f"{self.directory} is a link, which is not followed")
        except FileNotFoundError:
            self.directory.mkdir(parents=True, exist_ok=True)
            sync_directory(self.directory.parent)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(self.directory / _LOCK, flags, 0o666)
        try:
            with exclusive(descriptor, shared=shared, seconds=seconds):
                yield
        finally:
            os.close(descriptor)

    def collect_garbage(
        self,
        referenced: Callable[[], set[str]],
        *,
        candidates: Iterable[str] | None = None,
        min_age_seconds: float = 0.0,
        dry_run: bool = False,
    ) -> Removed:
        """Remove blobs that nothing refers to.

        Args:
            referenced: Returns the digests that are referred to; called once, without a lock.
            candidates: Consider only these; all by default.
            min_age_seconds: Keep younger ones: a blob that a server received may still wait for its record.
            dry_run: Only count.
        """
        if not self.directory.is_dir():
            return Removed(0, 0)
        with self._locked(shared=False):
            # Nobody writes now: every record of a finished batch is in its journal. By the clock of the file system,
            # which need not be this machine's.
            began = self._file_system_time()
        kept = referenced()
        unused = [digest for digest in (self.digests() if candidates is None else candidates) if digest not in kept]
        count = size = 0
        for first in range(0, len(unused), _REMOVED_AT_ONCE):
            with self._locked(shared=False):  # for a moment each time, so that writers do not wait for long
                for digest in unused[first : first + _REMOVED_AT_ONCE]:
                    path = self.path(digest)
                    with contextlib.suppress(FileNotFoundError):
                        found = path.lstat()
                        # Touched since: a batch that started after `began` refers to it.
                        if found.st_mtime_ns < began - int(min_age_seconds * 1e9):
                            if not dry_run:
                                path.unlink()
                            count, size = count + 1, size + found.st_size
        if not dry_run:
            with self._locked(shared=False):
                self._remove_partial_files(began)
        return Removed(count, size)

    def _file_system_time(self) -> int:
        path = self.directory / _LOCK
        os.utime(path)
        return path.stat().st_mtime_ns

    def _remove_partial_files(self, began: int) -> None:
        # Under the exclusive lock no batch is open: such files were left by killed processes.
        for path in self.directory.glob("*.partial"):
            with contextlib.suppress(OSError):
                if path.lstat().st_mtime_ns < began:
                    path.unlink()


def run_blob_store(run_dir: Path) -> BlobStore:
    """Return where a run writes its blobs: its root's, or its own where it may not write to the root."""
    directory = blob_directory(run_dir)
    try:
        directory.mkdir(exist_ok=True)
    except OSError:  # not ours to write to, unlike the run's directory
        directory = Path(run_dir) / BLOBS
    return BlobStore(directory)


class BlobBatch:
    """Blobs that become durable together, by one `commit`: syncing many files at once is cheaper than one by one."""

    def __init__(self, store: BlobStore) -> None:
        self._store = store
        self._new: dict[str, Path] = {}
        self._found: set[str] = set()

    def add(self, content: bytes | memoryview) -> BlobInfo:
        """Add a blob, and return its digest and size."""
        info = BlobInfo(hashlib.sha256(content).hexdigest(), len(content))
        if not self.exists(info.digest):
            partial, file = self._create()
            try:
                with file:
                    file.write(content)
            except BaseException:  # a full disk: a part of it must not stay
                partial.unlink(missing_ok=True)
                raise
            self._new[info.digest] = partial
        return info

    def add_file(self, source: Readable, limit: int | None = None) -> BlobInfo:
        """Add the content of an open file, read from its current position, and return its digest and size."""
        digest, size = hashlib.sha256(), 0
        partial, file = self._create()
        try:
            with file:
                while piece := source.read(_PIECE):
                    size += len(piece)
                    if limit is not None and size > limit:
                        raise BlobError(f"The file has more than {limit} bytes.")  # noqa: TRY301
                    digest.update(piece)
                    file.write(piece)
            info = BlobInfo(digest.hexdigest(), size)
            if self.exists(info.digest):
                partial.unlink()
            else:
                self._new[info.digest] = partial
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        return info

    def add_open_file(self, file: io.BufferedReader, linked: Path | None = None) -> BlobInfo:
        """Add the content of an open file of the file system, copied only where there is no cheaper way.

        File systems that can share blocks between files (Btrfs, XFS) store a large file at once.

        Args:
            file: Opened for reading.
            linked: The file's path, if it is never changed in place: then it is hard-linked where that is possible.
        """
        info = self._link(file, linked) if linked is not None else self._clone(file)
        if info is None:
            file.seek(0)
            info = self.add_file(file)
        return info

    def _link(self, file: io.BufferedReader, path: Path) -> BlobInfo | None:
        info = BlobInfo(hashlib.file_digest(file, "sha256").hexdigest(), os.fstat(file.fileno()).st_size)
        if self.exists(info.digest):
            return info
        partial = self._store.directory / f"{secrets.token_hex(8)}.partial"
        try:
            os.link(path, partial, follow_symlinks=False)
            # Touched, as a collection goes by the time; it is the owner's to touch, so another user's file is copied.
            os.utime(partial, follow_symlinks=False)
            is_same = os.path.samestat(partial.lstat(), os.fstat(file.fileno()))  # it may have been replaced meanwhile
        except OSError:  # deleted meanwhile, on another file system, or on one without links
            is_same = False
        if not is_same:
            partial.unlink(missing_ok=True)
            return None
        self._new[info.digest] = partial
        return info

    def _clone(self, file: io.BufferedReader) -> BlobInfo | None:
        partial, copy = self._create()
        try:
            with copy:
                fcntl.ioctl(copy.fileno(), _FICLONE, file.fileno())
            with partial.open("rb") as clone:
                info = BlobInfo(hashlib.file_digest(clone, "sha256").hexdigest(), os.fstat(clone.fileno()).st_size)
            if not self.exists(info.digest):
                self._new[info.digest] = partial
                return info
        except OSError:  # another file system, or one that cannot
            info = None
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        partial.unlink(missing_ok=True)
        return info

    def adopt(self, path: Path, digest: str) -> None:
        """Add a file of the same file system, whose content the caller has verified; it is moved."""
        if self.exists(digest):
            path.unlink(missing_ok=True)
        else:
            os.utime(path)  # by its age a collection sees whether the record that names it may still come
            self._new[digest] = path

    def commit(self) -> None:
        """Bring the blobs added so far to the disk, under their names."""
        # Of blobs that were there already: another process may have named them just now, and not synced the names yet.
        folders = {self._store.path(digest).parent for digest in self._found}
        _for_each(sync_file, list(self._new.values()))
        for digest, partial in self._new.items():
            path = self._store.path(digest)
            if not path.parent.is_dir():
                path.parent.mkdir(exist_ok=True)
                folders.add(self._store.directory)
            # Replacing an equal file that another process has just written does no harm.
            partial.replace(path)
            folders.add(path.parent)
        _for_each(sync_directory, list(folders))
        durable = self._store._durable
        if len(durable) > _MAX_KNOWN:
            durable.clear()
        durable.update(self._new, self._found)
        self._new.clear()
        self._found.clear()

    def discard(self) -> None:
        """Remove blobs that were added and not committed."""
        for partial in self._new.values():
            partial.unlink(missing_ok=True)
        self._new.clear()

    def _create(self) -> tuple[Path, BinaryIO]:
        partial = self._store.directory / f"{secrets.token_hex(8)}.partial"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return partial, os.fdopen(os.open(partial, flags, 0o644), "wb")

    def exists(self, digest: str) -> bool:
        """Return whether the blob is there; touches it, so that no collection that runs now removes it."""
        if digest in self._new:
            return True
        try:
            os.utime(self._store.path(digest), follow_symlinks=False)
        except PermissionError:  # another user's: it is theirs to collect
            pass
        except OSError:
            return False
        is_there = self._store.has(digest)
        if is_there and digest not in self._store._durable:
            self._found.add(digest)
        return is_there


def _for_each(sync: Callable[[Path], None], paths: list[Path]) -> None:
    """Sync many files at the same time: file systems then write them together, which takes a tenth of the time.

    Raises:
        OSError: One of them did not reach the disk.
    """
    errors: list[OSError] = []
    rest = iter(paths)
    taking = threading.Lock()

    def work() -> None:
        while True:
            with taking:
                path = next(rest, None)
            if path is None or errors:
                return
            try:
                sync(path)
            except OSError as error:
                errors.append(error)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(SYNC_THREADS, len(paths) // 4))]
    started = []
    with contextlib.suppress(RuntimeError):  # no more threads, or the program is ending: this one does it alone
        for thread in threads:
            thread.start()
            started.append(thread)
    work()
    for thread in started:
        thread.join()
    if errors:
        raise errors[0]


def references_in(data: bytes) -> list[str]:
    """Return the digests that lines of a journal refer to, each once, in their order."""
    return [found.decode() for found in dict.fromkeys(_REFERENCE.findall(data))]


def referenced_blobs(paths: Iterable[Path]) -> set[str]:
    """Return the digests that files (journals, manifests) refer to, found by a search of their bytes.

    Raises:
        OSError: A file cannot be read. What it refers to is unknown then, and nothing may be removed.
    """
    found: set[str] = set()
    for path in paths:
        try:
            file = open_journal(path)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EISDIR, errno.EINVAL):  # anything may have the name of a journal
                continue
            raise
        with file:
            rest = b""
            for piece in file.pieces():
                rest += piece
                found.update(match.decode() for match in _REFERENCE.findall(rest))
                rest = rest[-_OVERLAP:]
    return found


def root_references(root: Path) -> set[str]:
    """Return the digests that the runs and artifacts below a root refer to.

    Raises:
        OSError: A folder or file cannot be read. What it refers to is unknown then, and nothing may be removed.
    """
    runs = [run for project in _folders(Path(root)) for run in _folders(project)]
    journals = (path for run in runs for path in journals_of(run))
    environments = (run / _ENVIRONMENT for run in runs)
    manifests = (path for path in (Path(root) / ARTIFACTS).rglob("*.json"))
    return referenced_blobs([*journals, *environments, *manifests])


def remove_unused_blobs(root: Path, candidates: Iterable[str] | None = None, *, dry_run: bool = False) -> Removed:
    """Remove blobs that no run and no artifact below a root refers to: all such, or those among the candidates.

    Below a root that receives runs, those of the last hour are kept: a blob arrives before the record that names it.
    """
    is_receiving = any(Path(root).glob(f"*/*/{_RECEIVED}"))
    return BlobStore(Path(root) / BLOBS).collect_garbage(
        lambda: root_references(root),
        candidates=candidates,
        min_age_seconds=_ARRIVAL_SECONDS if is_receiving else 0.0,
        dry_run=dry_run,
    )


def _folders(directory: Path) -> list[Path]:
    # Not `glob`, which passes over folders that may not be read.
    return [path for path in directory.iterdir() if path.is_dir()]


def journals_of(run_dir: Path) -> list[Path]:
    """Return the journal files of a run, whatever their names are like, without the suffix of compressed ones."""
    folder = run_dir / "journal"
    names = [path.name.removesuffix(SUFFIX) for path in folder.iterdir()] if folder.is_dir() else []
    return [folder / name for name in dict.fromkeys(names) if name.endswith(".jsonl")]
