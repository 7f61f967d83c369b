"""`StoredArtifacts`: stores the versions of received artifacts in an object store, and copies them to each server.

Below ``artifacts/<project>/<name>/`` an artifact has:

- ``manifests/<digest>``: the files of a version. Created once, when all of them are in the store. Its name is
  that of the user of these files (see `hookline.server.storage.blob_copies`), so they are never collected.
- ``log/<n>``: the n-th change: a run saved a version, named it by aliases, or used it. Created once, by a server that
  knows all earlier changes. A server that is late finds the name taken, reads that change, and decides again.

Guarantees:

- All servers read the same changes in the same order, so they agree on numbers, aliases and the latest version.
- A repeated request, on any server, adds nothing: its change is in the log. After a kill between the files, the
  manifest and the log, a repeated request finds the existing objects.
- Of two aliases, the one that was set later by the time of its event counts. Times in the future count as the time
  at which the change was received; no other clock is involved.
- The local copy is an ordinary artifact directory, which the page reads. It is derived from the log; its ``.applied``
  is the number of applied changes. Content of the store is checked like content from senders.

Versions are not deleted, and the log is not compacted.
"""

import contextlib
import itertools
import logging
import shutil
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote

import msgspec

from hookline._engine.errors import ArtifactError, HooklineError, OptionError, UnknownNameError
from hookline._record.artifact_versions import (
    ArtifactFolder,
    Manifest,
    check_files,
    check_foreign_files,
    checked_aliases,
    checked_name,
    content_digest,
)
from hookline._record.blobs import is_digest
from hookline._record.files import write_atomically
from hookline.server.limits import check_name
from hookline.server.received_artifacts import (
    MAX_ALIASES,
    ArtifactReply,
    ReceivedArtifacts,
    SentArtifact,
    checked_manifest,
    lowest_number,
    missing_error,
)
from hookline.server.received_blobs import BlobsRefusedError
from hookline.server.received_runs import ConflictError
from hookline.server.storage.mirror import Remembered
from hookline.server.storage.objects import Entry, MissingObjectError, ObjectStore, StorageError
from hookline.server.storage.protocol import RunObjects, component

if TYPE_CHECKING:
    from hookline.server.storage.service import Storage

logger = logging.getLogger("hookline")

ARTIFACTS = "artifacts"
_APPLIED = ".applied"
_DIGITS = 10
_ATTEMPTS = 20
_LOCKS = 64
_MAX_NUMBER = 999_999_999
_LOGS = 10_000


@dataclass(frozen=True, slots=True)
class ArtifactObjects:
    """The names of an artifact's objects.

    Args:
        prefix: ``artifacts/<project>/<name>``.
    """

    prefix: str

    @classmethod
    def of(cls, project: str, name: str) -> "ArtifactObjects":
        """Those of an artifact by its names."""
        return cls(f"{ARTIFACTS}/{component(project)}/{component(name)}")

    @property
    def log(self) -> str:
        """The prefix of the changes."""
        return f"{self.prefix}/log"

    def change(self, position: int) -> str:
        """The name of a change; the first one has the position 1."""
        return f"{self.log}/{position:0{_DIGITS}}"

    def manifest(self, digest: str) -> str:
        """The name of a version's manifest, and of the user of its files."""
        return f"{self.prefix}/manifests/{digest}"


class ArtifactChange(msgspec.Struct, frozen=True, omit_defaults=True):
    """A change of an artifact.

    Attributes:
        role: What the run did: it saved the version, which becomes the latest; only set aliases; or used it.
        number: That of the version.
        time: Of the event, in seconds since 1970.
        aliases: Those that name the version from now on.
    """

    role: Literal["saved", "tagged", "used"]
    project: str
    name: str
    digest: str
    number: int
    run: str
    time: float
    aliases: list[str] = []


@dataclass(slots=True)
class ArtifactLog:
    """The changes of an artifact that a server has read, and the state derived from them. Not thread-safe.

    Attributes:
        changes: In order; None for one that is not valid, which all servers leave out.
        numbers: The number of each version by its digest.
        noted: When a run saved or used a version, by number, run and role.
        aliases: For each alias the time at which it was set, and the version.
    """

    objects: ArtifactObjects
    changes: list[ArtifactChange | None] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)
    noted: dict[tuple[int, str, str], float] = field(default_factory=dict)
    aliases: dict[str, tuple[float, int]] = field(default_factory=dict)

    @property
    def highest(self) -> int:
        """The highest number of a version; -1 if there is none."""
        return max(self.numbers.values(), default=-1)

    def read(self, store: ObjectStore, in_parallel: Callable[..., Iterable[Any]] = map) -> None:
        """Read the changes that were added since."""
        first = len(self.changes)
        names = {entry.name for entry in store.list(self.objects.log, self.objects.change(first))}
        new: list[str] = []
        while (name := self.objects.change(first + len(new) + 1)) in names:
            new.append(name)
        for content in in_parallel(store.get, new):
            self._add(content)

    def append(self, store: ObjectStore, decide: Callable[[], ArtifactChange | None]) -> bool:
        """Add the change that is needed after all others; returns whether there was one.

        Args:
            decide: Returns the change for this log; called again when another server was faster.
        """
        for _ in range(_ATTEMPTS):
            change = decide()
            if change is None:
                return False
            content = msgspec.json.encode(change)
            if store.create(self.objects.change(len(self.changes) + 1), content):
                self._add(content)
                return True
            self.read(store)
        raise StorageError(f"{self.objects.prefix} is changed by too many servers at once. Try again in a moment.")

    def _add(self, content: bytes) -> None:
        change = None
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError, OptionError):
            change = self._checked(msgspec.json.decode(content, type=ArtifactChange))
        self.changes.append(change)
        if change is None:
            return
        self.numbers[change.digest] = change.number
        if change.role != "tagged":
            key = (change.number, change.run, change.role)
            self.noted[key] = max(change.time, self.noted.get(key, 0.0))
        for alias in change.aliases:
            self.aliases[alias] = (change.time, change.number)

    def _checked(self, change: ArtifactChange) -> ArtifactChange | None:
        """Return a change if it is valid after the others; its content is untrusted."""
        names = check_name("project", change.project), checked_name(change.name)
        project, _, run = change.run.partition("/")
        check_name("project", project)
        check_name("run", run)
        are_aliases = len(change.aliases) <= MAX_ALIASES and checked_aliases(change.aliases) == change.aliases
        number = self.numbers.get(change.digest)
        is_next = change.role == "saved" and self.highest < change.number <= _MAX_NUMBER
        follows = is_next if number is None else change.number == number
        is_valid = are_aliases and follows and is_digest(change.digest) and ArtifactObjects.of(*names) == self.objects
        return change if is_valid else None


class ArtifactCopies:
    """The logs that a server has read, and its local copy of the artifacts. All methods may be called from any thread.

    Args:
        root: The directory of the local copy.
        in_parallel: Reads several objects at a time.
    """

    def __init__(self, store: ObjectStore, root: Path, in_parallel: Callable[..., Iterable[Any]] = map) -> None:
        self._store, self._root, self._in_parallel = store, root, in_parallel
        self._logs: Remembered[ArtifactObjects, ArtifactLog] = Remembered(_LOGS)
        self._locks = [threading.Lock() for _ in range(_LOCKS)]

    @contextlib.contextmanager
    def opened(self, objects: ArtifactObjects) -> Iterator[ArtifactLog]:
        """Yield the log of an artifact as read so far, to one thread at a time."""
        with self._locks[hash(objects.prefix) % _LOCKS]:
            log = self._logs.get(objects) or ArtifactLog(objects)
            self._logs.set(objects, log)
            yield log

    def read(self, log: ArtifactLog) -> None:
        """Read the changes that other servers have added to an opened log."""
        log.read(self._store, self._in_parallel)

    def groups(self) -> Iterator[tuple[ArtifactObjects, int]]:
        """List all artifacts of the store, with the number of their changes."""
        prefix, count = "", 0
        for entry in itertools.chain(self._store.list(ARTIFACTS), [Entry("", 0, 0.0)]):
            parts = entry.name.split("/")
            own = "/".join(parts[:3])
            if own != prefix:
                if count:
                    yield ArtifactObjects(prefix), count
                prefix, count = own, 0
            count += len(parts) == 5 and parts[3] == "log"

    def is_current(self, objects: ArtifactObjects, count: int) -> bool:
        """Whether so many changes of an artifact are in the local copy."""
        _, project, name = objects.prefix.split("/")
        if "~" in objects.prefix:  # a name that is too long to be read from the prefix
            return False
        with contextlib.suppress(OptionError):
            folder = ArtifactFolder(self._root, check_name("project", unquote(project)), checked_name(unquote(name)))
            return _applied(folder) >= count
        return True  # no server gives such names

    def sync(self, objects: ArtifactObjects) -> None:
        """Bring the local copy of an artifact up to date.

        Raises:
            StorageError: The store cannot be read.
            OSError: The directory cannot be written.
        """
        with self.opened(objects) as log:
            self.read(log)
            self.apply(log)

    def apply(self, log: ArtifactLog) -> None:
        """Apply the changes of an opened log to the local copy."""
        change = next((change for change in log.changes if change is not None), None)
        if change is None:
            return
        folder = ArtifactFolder(self._root, change.project, change.name)
        first = _applied(folder)
        if first >= len(log.changes):
            return
        try:
            self._apply(log, folder, first)
        except ConflictError:  # the copy is damaged or outdated
            shutil.rmtree(folder.directory)
            self._apply(log, folder, 0)

    def _apply(self, log: ArtifactLog, folder: ArtifactFolder, first: int) -> None:
        for change in log.changes[first:]:
            if change is None or (change.role == "saved" and not self._publish(log.objects, folder, change)):
                continue
            if change.number not in folder.versions():  # its manifest is damaged in the store
                continue
            if change.role != "tagged":
                folder.note_run(change.number, change.run, change.role, at=change.time)
            for alias in change.aliases:
                folder.set_alias(alias, change.number)
        if folder.exists():
            # Last: after a kill before this, changes are applied again, in the same order.
            write_atomically(folder.directory / _APPLIED, b"%d\n" % len(log.changes))

    def _publish(self, objects: ArtifactObjects, folder: ArtifactFolder, change: ArtifactChange) -> bool:
        """Make the version of a change the latest one; returns False if it is damaged in the store."""
        try:
            manifest = self._manifest(objects, folder, change)
        except (ArtifactError, OptionError, MissingObjectError, msgspec.DecodeError, RecursionError) as error:
            logger.warning("%s: version v%s cannot be copied: %s", objects.prefix, change.number, error)
            return False
        number, _ = folder.publish(manifest, number=change.number)
        if number != change.number:
            raise ConflictError(f"The copy of {folder.id} has other versions than the store.")
        return True

    def _manifest(self, objects: ArtifactObjects, folder: ArtifactFolder, change: ArtifactChange) -> Manifest:
        if change.number in folder.versions():
            with contextlib.suppress(ArtifactError, UnknownNameError):
                known = folder.manifest(change.number)
                if known.digest == change.digest:
                    return known
        manifest = msgspec.json.decode(self._store.get(objects.manifest(change.digest)), type=Manifest)
        check_foreign_files(manifest.files)
        check_files(manifest.files)
        if not change.digest == manifest.digest == content_digest(manifest.kind, manifest.metadata, manifest.files):
            raise ArtifactError("its manifest has another digest.")
        # Regardless of the store: references to local files belong to another machine.
        return msgspec.structs.replace(manifest, received=True)


def _applied(folder: ArtifactFolder) -> int:
    """Return the number of changes in the local copy."""
    try:
        text = (folder.directory / _APPLIED).read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return 0
    return int(text) if text.isdigit() else 0


@dataclass(frozen=True, slots=True)
class StoredArtifacts(ReceivedArtifacts):
    """Stores received artifacts in an object store, and in a local copy."""

    storage: "Storage" = field(kw_only=True)

    def receive(
        self, project: str, run: str, *, origin: str, sent: SentArtifact, own_only: bool = False
    ) -> ArtifactReply:
        home = sent.project if sent.project and sent.role == "used" else project
        objects = ArtifactObjects.of(check_name("project", home), checked_name(sent.name))
        aliases, at = checked_aliases(sent.aliases), min(sent.time, self.clock())
        copies, own = self.storage.artifacts, f"{project}/{run}"
        with self.blobs.runs.owned(project, run, origin=origin) as directory:
            size = 0
            if sent.role == "saved":
                manifest = checked_manifest(sent, own, at)
                size = self._store_manifest(objects, manifest, RunObjects.of(project, run), directory, own_only)
            with copies.opened(objects) as log:
                if sent.digest not in log.numbers:  # another server may have it
                    copies.read(log)
                is_new = sent.digest not in log.numbers

                def decide() -> ArtifactChange | None:
                    return _change(log, sent, home, own, at, aliases)

                if log.append(self.storage.objects, decide):
                    self.storage.note_artifact(objects, len(log.changes))
                number = log.numbers.get(sent.digest)
                self._copy(log)
            self.blobs.runs.add_blob_bytes(directory, size if is_new else 0)
        return ArtifactReply("" if number is None else f"v{number}")

    def _copy(self, log: ArtifactLog) -> None:
        try:
            self.storage.artifacts.apply(log)
        except (HooklineError, OSError):  # it is stored; the local copy is updated later
            self.storage.request_sync(log.objects, within_seconds=5.0)

    def _store_manifest(
        self, objects: ArtifactObjects, manifest: Manifest, run: RunObjects, directory: int, own_only: bool
    ) -> int:
        """Store a manifest whose files are in the store, as their user; returns its size."""
        with self.storage.artifacts.opened(objects) as log:
            number = log.numbers.get(manifest.digest)
            if number is not None and log.noted.get((number, manifest.run, "saved"), -1.0) >= manifest.time:
                return 0  # sent again
        own = self.storage.sent_blobs(run) if own_only else None
        self._require_files(objects, manifest, run, own)
        content = msgspec.json.encode(manifest)
        refusal = self.blobs.refusal(len(content), len(content), self.blobs.runs.blob_bytes(directory))
        if refusal is not None and number is None:
            raise BlobsRefusedError({}, {manifest.digest: refusal})
        self.storage.objects.create(objects.manifest(manifest.digest), content)
        return len(content)

    def _require_files(
        self, objects: ArtifactObjects, manifest: Manifest, run: RunObjects, own: Collection[str] | None
    ) -> None:
        """Check that every stored file is there, with its size; from then on the version keeps them."""
        blobs, digests = self.storage.blobs, list(dict.fromkeys(file.blob for file in manifest.files if file.blob))
        # As the run's first: a version that is refused does not keep the files that are there.
        missing = [digest for digest in digests if own is not None and digest not in own]
        missing = missing or blobs.lacking(digests, run.prefix)
        if not missing:
            sizes = blobs.sizes(digests)
            for file in manifest.files:
                if file.blob and sizes[file.blob] not in (file.size, None):
                    raise ArtifactError(f"{file.path!r:.200} has another size than the blob {file.blob}.")
            missing = blobs.lacking(digests, objects.manifest(manifest.digest))
        if missing:
            raise missing_error(manifest.digest, missing)


def _change(
    log: ArtifactLog, sent: SentArtifact, project: str, run: str, at: float, aliases: list[str]
) -> ArtifactChange | None:
    """Return the change that a request makes after those in the log."""
    number = log.numbers.get(sent.digest)
    if number is None:
        if sent.role != "saved":
            return None
        number = max(lowest_number(sent, log.highest), log.highest + 1)
    is_noted = sent.role == "tagged" or log.noted.get((number, run, sent.role), -1.0) >= at
    # For equal times, the higher number: otherwise two repeated requests would move an alias back and forth.
    moved = [alias for alias in aliases if sent.role != "used" and log.aliases.get(alias, (-1.0, -1)) < (at, number)]
    if is_noted and not moved:
        return None
    role = "tagged" if is_noted else sent.role
    return ArtifactChange(role, project, sent.name, sent.digest, number, run, at, moved)
