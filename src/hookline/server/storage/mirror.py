"""`Mirror`: a local copy of the runs in an object store, as ordinary run directories.

The page, queries and commands read the copy and do not know the store.

- A run is copied incrementally: only bytes that the local files lack are read, from segments and batches, in order.
- The copy never holds the only instance of anything: it may be deleted at any time and is rebuilt. A local run that
  disagrees with the store is removed and copied again.
- Content of the store is checked like content from senders: names, whole lines of UTF-8, the depth of JSON.
- The time of a sender's last contact comes from the store's clock, or from the server that it contacted.

All methods may be called from any thread; one run is copied by one thread at a time.
"""

import contextlib
import fcntl
import hashlib
import heapq
import itertools
import logging
import os
import shutil
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from hookline._engine.errors import ConfigError, HooklineError, OptionError
from hookline._record.blobs import is_digest
from hookline._record.console import is_console_file
from hookline._record.files import boot_id
from hookline._record.reader import JOURNAL
from hookline._record.run_directory import METADATA, RECEIVED
from hookline.server.limits import check_file, check_name
from hookline.server.received_runs import ConflictError, ReceivedRuns, check_lines, write_all
from hookline.server.storage.compaction import middle_console_files
from hookline.server.storage.objects import Entry, MissingObjectError, ObjectStore, without_secrets
from hookline.server.storage.protocol import (
    Claim,
    RunObjects,
    RunView,
    list_run,
    parse_listing,
    read_claim,
    read_deletion,
    read_file,
)

logger = logging.getLogger("hookline")

_LOCKS = 64
_REMEMBERED = 100_000
MARKER = ".hookline-storage.json"
"""The file in the copy's directory that identifies its store."""
_SYNCED = ".synced"
"""The file in a run's directory with a digest of the listing of which it is a complete copy."""

K = TypeVar("K")
V = TypeVar("V")


class Remembered(Generic[K, V]):
    """A bounded, thread-safe dictionary; drops the entry that was set longest ago."""

    def __init__(self, size: int = _REMEMBERED) -> None:
        self._size, self._values, self._lock = size, OrderedDict[K, V](), threading.Lock()

    def get(self, key: K) -> V | None:
        """Return a value, or None."""
        with self._lock:
            return self._values.get(key)

    def set(self, key: K, value: V) -> None:
        """Set a value."""
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            while len(self._values) > self._size:
                self._values.popitem(last=False)

    def forget(self, key: K) -> None:
        """Remove a value."""
        with self._lock:
            self._values.pop(key, None)


@dataclass(frozen=True, slots=True)
class Contact:
    """When a run's sender last contacted the server, and its heartbeat interval."""

    time: float
    every_seconds: float | None = None


@dataclass(slots=True)
class Mirror:
    """Copies runs from a store to a directory.

    Args:
        local: The directory.

    Attributes:
        clock_offset: How much the store's clock is ahead of this machine's.
    """

    objects: ObjectStore
    local: ReceivedRuns
    claims: Remembered[RunObjects, Claim] = field(default_factory=Remembered)
    contacts: Remembered[RunObjects, Contact] = field(default_factory=Remembered)
    clock_offset: float = 0.0
    _tags: Remembered[str, str] = field(default_factory=Remembered)
    _locks: list[threading.Lock] = field(default_factory=lambda: [threading.Lock() for _ in range(_LOCKS)])
    _reported: set[str] = field(default_factory=set)
    _removed: set[RunObjects] = field(default_factory=set)

    def claim_of(self, run: RunObjects) -> Claim | None:
        """The claim of a run, which never changes; None if it is not claimed."""
        claim = self.claims.get(run)
        if claim is None:
            claim = read_claim(self.objects, run)
            if claim is not None:
                self.claims.set(run, claim)
        return claim

    def is_current(self, run: RunObjects, entries: list[Entry]) -> bool:
        """Whether the copy of a run is complete by a listing, and no other work is due for it."""
        names = run.names_of()
        view = parse_listing(run, entries)
        if view.deleted is not None:
            return not view.leftovers and run in self._removed
        batches = sum(map(len, view.batches.values()))
        if names is None or batches > 1 or len(view.manifests) > 1:  # it may be worth compacting
            return False
        with contextlib.suppress(OptionError):  # untrusted: anyone with write access to the store can choose them
            directory = self.local.root / check_name("project", names[0]) / check_name("run", names[1])
            return _read_stamp(directory) == _stamp(view)
        return False

    def sync(self, run: RunObjects, entries: Iterable[Entry] | None = None) -> RunView:
        """Bring the copy of a run up to date, and return its listing.

        Args:
            entries: Its listing, if available.

        Raises:
            StorageError: The store cannot be read.
            OSError: The directory cannot be written.
        """
        with self._locks[hash(run.prefix) % _LOCKS]:
            view = list_run(self.objects, run, entries)
            if view.deleted is not None:
                self._remove(run)
                return view
            claim = self.claim_of(run) if view.claim is not None else None
            if claim is None or view.facts is None:  # its sender is about to claim it, or will claim it again
                return view
            try:
                if RunObjects.of(check_name("project", claim.project), check_name("run", claim.run)) != run:
                    raise ConflictError(f"{run.prefix} holds the claim of another run.")
                try:
                    self._copy(view, claim)
                except ConflictError:
                    # The copy is outdated or damaged, and can be made again. Remove the claim file first: without it,
                    # the next copy is restricted again.
                    (self._directory(claim) / RECEIVED).unlink(missing_ok=True)
                    shutil.rmtree(self._directory(claim), ignore_errors=True)
                    self._copy(view, claim)
            except HooklineError as error:
                self._report(run, error)
                raise
            return view

    def _remove(self, run: RunObjects) -> None:
        """Remove the copy of a run that is deleted."""
        self.claims.forget(run)
        self.contacts.forget(run)
        deletion = read_deletion(self.objects, run)
        if RunObjects.of(check_name("project", deletion.project), check_name("run", deletion.run)) == run:
            directory = self.local.root / deletion.project / deletion.run
            (directory / RECEIVED).unlink(missing_ok=True)
            shutil.rmtree(directory, ignore_errors=True)
        if len(self._removed) < _REMEMBERED:
            self._removed.add(run)

    def _directory(self, claim: Claim) -> Path:
        return self.local.root / claim.project / claim.run

    def _copy(self, view: RunView, claim: Claim) -> None:
        project, name, origin = claim.project, claim.run, claim.origin
        directory, stamp = self._directory(claim), _stamp(view)
        if _read_stamp(directory) != stamp:
            self._copy_facts(view, claim, directory)
            for file, entry in view.whole.items():
                if self._is_known(entry) and (directory / check_file(file)).is_file():
                    continue
                content = self.objects.get(entry.name)
                if _content(directory / file) != content:
                    self.local.replace(project, name, file, origin=origin, content=content)
                self._tags.set(entry.name, _tag(entry))
            self._copy_sent(view, claim)
            sizes = self.local.stored_sizes(project, name, origin=origin)
            skipped = set(middle_console_files(view.files))
            for file in view.files:
                check_file(file)
                start = sizes.get(file, 0)
                if file in skipped or start == view.end(file):
                    continue
                # Bytes are stored before they are copied, so a listing that is newer than the copy has all of them.
                if start > view.end(file) and start > list_run(self.objects, view.objects).end(file):
                    raise ConflictError(f"The copy of {file} is longer than the file itself.")
                for offset, data in read_file(self.objects, view, file, start):
                    check_lines(data)
                    self.local.write_lines(project, name, file, origin=origin, offset=offset, lines=data)
                if not is_console_file(file):
                    with contextlib.suppress(OSError):  # when it changed: a run without new records is stalled
                        changed = view.newest - self.clock_offset
                        os.utime(directory / JOURNAL / file, (changed, changed), follow_symlinks=False)
            _write_stamp(directory, stamp)
        self.note_contact(view.objects, claim, view.newest - self.clock_offset)

    def _copy_facts(self, view: RunView, claim: Claim, directory: Path) -> None:
        assert view.facts is not None
        if self._is_known(view.facts) and (directory / RECEIVED).is_file():
            return
        facts = self.objects.get(view.facts.name)
        if _content(directory / METADATA) != facts or not (directory / RECEIVED).is_file():
            self.local.claim(claim.project, claim.run, claim.origin, facts, own_blobs_only=claim.own_blobs_only)
        self._tags.set(view.facts.name, _tag(view.facts))

    def _copy_sent(self, view: RunView, claim: Claim) -> None:
        if view.sent:
            with self.local.owned(claim.project, claim.run, origin=claim.origin) as descriptor:
                known = self.local.sent_blobs(descriptor).digests
                new = [digest for digest in view.sent if is_digest(digest) and digest not in known]
                self.local.add_sent_blobs(descriptor, new)

    def _is_known(self, entry: Entry) -> bool:
        return self._tags.get(entry.name) == _tag(entry)

    def fill(self, run: RunObjects) -> None:
        """Rewrite the journals of a run in the copy, which may have holes.

        Raises:
            StorageError: The store cannot be read.
            OSError: The directory cannot be written.
        """
        with self._locks[hash(run.prefix) % _LOCKS]:
            view = list_run(self.objects, run)
            claim = self.claim_of(run)
            if claim is None:
                raise MissingObjectError(f"{run.prefix} is not in the store.")
            for file in view.files:
                path = self._directory(claim) / JOURNAL / check_file(file)
                if is_console_file(file) or not path.is_file():
                    continue
                descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
                try:
                    found = os.fstat(descriptor)
                    for offset, data in read_file(self.objects, view, file, 0):
                        if offset < found.st_size:
                            write_all(descriptor, memoryview(data)[: found.st_size - offset], offset)
                    os.utime(descriptor, ns=(found.st_atime_ns, found.st_mtime_ns))
                finally:
                    os.close(descriptor)

    def note_contact(self, run: RunObjects, claim: Claim, at: float, every_seconds: float | None = None) -> None:
        """Note when the sender of a run contacted a server; earlier times than the last one change nothing."""
        known = self.contacts.get(run)
        every = every_seconds if every_seconds is not None else known.every_seconds if known is not None else None
        contact = Contact(max(at, known.time if known is not None else 0.0), every)
        if contact == known:
            return
        with contextlib.suppress(ConflictError, OSError):  # not copied yet
            self.local.note_contact(claim.project, claim.run, origin=claim.origin, at=contact.time, every_seconds=every)
            self.contacts.set(run, contact)

    def _report(self, run: RunObjects, error: HooklineError) -> None:
        if run.prefix not in self._reported and len(self._reported) < _REMEMBERED:
            self._reported.add(run.prefix)
            logger.warning("%s cannot be copied from the storage: %s", run.prefix, error)


def _tag(entry: Entry) -> str:
    return f"{entry.tag} {entry.size} {entry.modified}"


def _stamp(view: RunView) -> str:
    """Return a digest of a listing's entries for the files of a run."""
    digest = hashlib.blake2s(digest_size=16)
    for entry in (view.facts, *sorted(view.whole.values())):
        digest.update(repr(entry).encode())
    for file in sorted(view.batches):
        digest.update(repr((file, sorted(view.batches[file]))).encode())
    digest.update(repr((max(view.manifests, default=0), sorted(view.sent))).encode())
    return digest.hexdigest()


def _read_stamp(directory: Path) -> str:
    return (_content(directory / _SYNCED) or b"").decode(errors="replace")


def _write_stamp(directory: Path, stamp: str) -> None:
    with contextlib.suppress(OSError):
        (directory / _SYNCED).write_text(stamp)


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


class SyncQueue(Generic[K]):
    """The runs and artifacts waiting to be copied, the most urgent first, without duplicates."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, K]] = []
        self._due: dict[K, float] = {}
        self._counter = itertools.count()
        self._condition = threading.Condition()
        self._is_closed = False

    def add(self, run: K, due: float) -> None:
        """Schedule a copy at a time; an earlier one that is already scheduled counts."""
        with self._condition:
            known = self._due.get(run)
            if known is None or due < known:
                self._due[run] = due
                heapq.heappush(self._heap, (due, next(self._counter), run))
                self._condition.notify()

    def take(self, clock: Callable[[], float]) -> K | None:
        """Wait for the next entry; None when the queue is closed."""
        with self._condition:
            while not self._is_closed:
                while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][0]:
                    heapq.heappop(self._heap)  # it became more urgent, or was taken
                wait = self._heap[0][0] - clock() if self._heap else None
                if wait is not None and wait <= 0:
                    _, _, run = heapq.heappop(self._heap)
                    del self._due[run]
                    return run
                self._condition.wait(wait)
            return None

    def close(self) -> None:
        """End all waiting."""
        with self._condition:
            self._is_closed = True
            self._condition.notify_all()


class _Marker(msgspec.Struct):
    """Describes a local copy.

    Attributes:
        id: That of the store.
        boot: Identifies the time since the machine was started, where the system has that.
    """

    id: str
    boot: str = ""


STORE = "store.json"
"""Identifies a store."""


class StoreIdentity(msgspec.Struct, frozen=True):
    """The content of the object that identifies a store, and the version of its format."""

    id: str
    version: int = 2


def read_store_id(objects: ObjectStore) -> str | None:
    """The id of a store; None if no server has used it yet."""
    try:
        return msgspec.json.decode(objects.get(STORE), type=StoreIdentity).id
    except (MissingObjectError, msgspec.DecodeError):
        return None


def copied_store(root: Path) -> str | None:
    """Return the id of the store that a directory is a copy of; None if it is not a copy."""
    try:
        return msgspec.json.decode((root / MARKER).read_bytes(), type=_Marker).id
    except (OSError, msgspec.DecodeError):
        return None


def lock_copy(root: Path) -> int:
    """Lock the directory of a copy for this process, and return the descriptor that holds the lock.

    Raises:
        ConfigError: Another server uses it.
    """
    descriptor = os.open(root / f"{MARKER}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise ConfigError(
            f"cache={str(root)!r} is used by another server: give each server its own (--cache)."
        ) from None
    return descriptor


def open_copy(root: Path, store_id: str, url: str) -> None:
    """Check that a directory is the copy of a store, or may become it.

    The files of a copy are not synced. After a crash of the machine some may have holes, so the runs are copied again.

    Raises:
        ConfigError: It is the copy of another store, or not a copy.
    """
    path = root / MARKER
    try:
        marker = msgspec.json.decode(path.read_bytes(), type=_Marker)
    except FileNotFoundError:
        others = [each.name for each in root.iterdir() if each.name[0] != "."]
        if others:
            raise ConfigError(
                f"cache={str(root)!r} holds other files, such as {others[0]!r}: give an empty directory (--cache)."
            ) from None
        marker = _Marker(store_id, boot_id())
    except msgspec.DecodeError:
        raise ConfigError(f"{path} is damaged: delete the directory, which is only a copy.") from None
    if marker.id != store_id:
        raise ConfigError(
            f"cache={str(root)!r} is a copy of another storage than {without_secrets(url)!r}: delete it, or give "
            "another directory (--cache)."
        )
    if marker.boot != boot_id():
        logger.info("%s: the machine was started again; the runs are copied again", root)
        for each in root.iterdir():
            if each.name[0] != ".":
                shutil.rmtree(each)
    partial = root / f"{MARKER}.partial"
    partial.write_bytes(msgspec.json.encode(_Marker(store_id, boot_id())))
    partial.replace(path)
