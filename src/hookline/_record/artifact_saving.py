"""`ArtifactSaver`: makes versions of artifacts on a thread of its own, while training continues.

Guarantees:

- `save` never waits for a disk or a network: it lists and opens the files. Hashing, copying and writing are done on the
  thread `hookline-artifacts`, in the order of the calls.
- A version holds the files as they were at the call. A file that is deleted or replaced afterwards is saved from the
  open file; the first `OPEN_FILES` files that wait are open, others must stay until they are saved. A file that is
  changed in place before it is saved makes the save fail, because part of its old content is gone: call ``wait()``
  before changing it.
- A failure is logged and recorded as the event ``artifact_failed``, and raised by ``wait()``; nothing else stops.
- `close` waits until everything is saved.
"""

import hashlib
import io
import logging
import os
import resource
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

from hookline._engine.errors import ArtifactError, HooklineError, OptionError
from hookline._record import remote_files
from hookline._record.artifact_versions import (
    MAX_FILES,
    ArtifactFile,
    ArtifactFolder,
    checked_name,
    chosen_aliases,
    make_manifest,
)
from hookline._record.artifacts import Artifact
from hookline._record.blobs import BlobBatch, BlobStore, blob_directory
from hookline._record.records import ARTIFACT_TAGGED

logger = logging.getLogger("hookline")

ARTIFACT_SAVED, ARTIFACT_USED, ARTIFACT_FAILED = "artifact_saved", "artifact_used", "artifact_failed"
"""The events for artifacts in a run's journal."""
SAVED, USED = "saved", "used"
"""What a run did with a version, noted beside the version."""
OPEN_FILES = 256
"""How many files that wait to be saved are held open."""
PROGRESS_SECONDS = 5.0
"""How often `close` logs how much it still waits for."""


class ArtifactSave:
    """An artifact that is being saved, returned by `run.save_artifact`.

    Attributes:
        name: The artifact's name.
    """

    def __init__(self, name: str, tag: Callable[["ArtifactSave", list[str]], None] | None = None) -> None:
        self.name = name
        self._tag = tag
        self._done = threading.Event()
        self._artifact: Artifact | None = None
        self._error: HooklineError | None = None
        if tag is None:  # nothing is saved
            self._done.set()

    def __repr__(self) -> str:
        state = "saving" if not self.done else "failed" if self._error else getattr(self._artifact, "id", "not saved")
        return f"<ArtifactSave {self.name}: {state}>"

    @property
    def done(self) -> bool:
        """Whether it is saved, or has failed."""
        return self._done.is_set()

    @property
    def version(self) -> str | None:
        """Its version, e.g. ``"v3"``; waits until it is saved."""
        artifact = self.wait()
        return None if artifact is None else artifact.version

    def wait(self, timeout: float | None = None) -> Artifact | None:
        """Wait until it is saved, and return it; None where nothing is saved (``root=None``, ranks other than zero).

        Args:
            timeout: How many seconds to wait at most.

        Raises:
            ArtifactError: It could not be saved.
            TimeoutError: It is not saved yet.
        """
        if not self._done.wait(timeout):
            raise TimeoutError(f"The artifact {self.name!r} was not saved within {timeout} seconds; saving continues.")
        if self._error is not None:
            raise self._error
        return self._artifact

    def tag(self, *aliases: str) -> None:
        """Let aliases name this version, once it is saved; does not wait."""
        checked = chosen_aliases(aliases)
        if self._tag is not None:
            self._tag(self, checked)

    def finish(self, artifact: Artifact | None, error: HooklineError | None = None) -> None:
        """Set how it ended."""
        self._artifact, self._error = artifact, error
        self._done.set()


class Source(NamedTuple):
    """A file to save: its name in the artifact, where it is, its state at the call, and an open descriptor.

    An address has no state; a file beyond those that may be held open has no descriptor.
    """

    name: str
    place: str
    before: os.stat_result | None = None
    descriptor: int | None = None


class _Request(NamedTuple):
    """The arguments of a call of `save`."""

    save: ArtifactSave
    sources: list[Source]
    kind: str
    aliases: list[str]
    metadata: dict[str, Any]
    reference: bool
    link: bool
    step: int | None


class ArtifactSaver:
    """Saves artifacts of one run.

    Args:
        run_dir: The run's directory, whose grandparent is the root.
        event: Records an event: ``event(name, step=..., **data)``.
    """

    def __init__(self, run_dir: Path, event: Callable[..., None]) -> None:
        run_dir = Path(run_dir).resolve()
        self.root, self.project = run_dir.parent.parent, run_dir.parent.name
        self.run = f"{self.project}/{run_dir.name}"
        self._blobs = BlobStore(blob_directory(run_dir))
        self._event = event
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._most_open = OPEN_FILES if soft < 0 else min(OPEN_FILES, soft // 4)
        self._unknown_stores: set[str] = set()
        self._reset()

    def _reset(self) -> None:
        self._process = os.getpid()
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._waiting = self._open = 0
        self._thread: threading.Thread | None = None

    def save(
        self,
        name: str,
        files: Any,
        *,
        kind: str,
        aliases: Any,
        metadata: Mapping[str, Any] | None,
        reference: bool,
        link: bool,
        step: int | None,
    ) -> ArtifactSave:
        """Begin to save a version; see `Loop.save_artifact`."""
        self._check_process()
        checked_name(name)
        if not isinstance(kind, str) or not kind or not kind.isprintable() or len(kind) > 64:
            raise OptionError(f"kind={kind!r:.200}: give a short word, e.g. 'model' or 'dataset'.")
        if metadata is not None and not isinstance(metadata, Mapping):
            raise OptionError(f"metadata={metadata!r:.200}: give a dict.")
        wanted = chosen_aliases(aliases)
        sources = self._open_sources(name, files, holds=not reference)
        save = ArtifactSave(name, lambda own, more: self._submit(lambda: self._add_aliases(own, more)))
        request = _Request(save, sources, kind, wanted, dict(metadata or {}), reference, link, step)
        self._submit(lambda: self._save(request))
        return save

    def note_use(self, artifact: Artifact) -> None:
        """Note beside an artifact that this run uses it."""
        self._check_process()

        def note() -> None:
            artifact.folder.note_run(artifact.number, self.run, USED)

        self._submit(note)

    def flush(self) -> None:
        """Wait until everything submitted so far is saved."""
        if self._process != os.getpid():
            return
        with self._idle:
            while self._waiting:
                if not self._idle.wait(PROGRESS_SECONDS) and self._waiting:
                    logger.info("Waiting for %d artifacts to be saved.", self._waiting)

    def close(self) -> None:
        """Save everything, and end the thread. May be called again."""
        if self._process != os.getpid():
            return
        self.flush()
        thread, self._thread = self._thread, None
        if thread is not None:
            self._jobs.put(None)
            thread.join()

    def _check_process(self) -> None:
        if self._process != os.getpid():  # forked: the thread is the parent's, and so is what it works on
            self._reset()

    def _submit(self, job: Callable[[], None]) -> None:
        with self._lock:
            self._waiting += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="hookline-artifacts", daemon=True)
                self._thread.start()
        self._jobs.put(job)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception as error:  # a note or an alias: nothing may end the thread
                logger.warning("A change of an artifact was not saved: %s", error)
            with self._idle:
                self._waiting -= 1
                if not self._waiting:
                    self._idle.notify_all()

    def _open_sources(self, name: str, files: Any, *, holds: bool) -> list[Source]:
        """List the files to save, and open as many as may be held open.

        Raises:
            OptionError: There is no such file, or something cannot be saved.
        """
        found: list[Source] = []
        try:
            for inside, place in _listed(name, files):
                if len(found) >= MAX_FILES:
                    raise OptionError(f"save_artifact({name!r}): there are more than {MAX_FILES:,} files.")  # noqa: TRY301
                if "://" in place:
                    found.append(Source(inside, place))
                    continue
                descriptor = _opened(name, place)
                before = os.fstat(descriptor)
                is_file = stat.S_ISREG(before.st_mode)
                if is_file and holds and self._open < self._most_open:
                    with self._lock:
                        self._open += 1
                    found.append(Source(inside, place, before, descriptor))
                else:
                    os.close(descriptor)
                    found.append(Source(inside, place, before))
                if not is_file:
                    raise OptionError(f"save_artifact({name!r}): {place} is neither a file nor a directory.")  # noqa: TRY301
            if not found:
                raise OptionError(f"save_artifact({name!r}): there are no files in {files}.")  # noqa: TRY301
        except BaseException:
            self._close_sources(found)
            raise
        return found

    def _close_sources(self, sources: list[Source]) -> None:
        for source in sources:
            if source.descriptor is not None:
                os.close(source.descriptor)
                with self._lock:
                    self._open -= 1

    def _save(self, request: _Request) -> None:
        save = request.save
        folder = ArtifactFolder(self.root, self.project, save.name)
        try:
            with self._blobs.writing() as batch:
                files = [file for source in request.sources for file in self._stored(source, request, batch)]
                batch.commit()
                manifest = make_manifest(request.kind, request.metadata, files, run=self.run, step=request.step)
                # Still in the block: a collection of unused blobs waits until the manifest refers to them.
                number, is_new = folder.publish(manifest, request.aliases)
            artifact = Artifact(folder, number)
            folder.note_run(number, self.run, SAVED)
        except Exception as error:  # a full disk, a missing file, a store that is down: training continues
            reason = str(error) if isinstance(error, HooklineError) else f"{type(error).__name__}: {error}"
            logger.error("The artifact %r is not saved: %s", save.name, reason)  # noqa: TRY400 - the reason is all
            self._event(ARTIFACT_FAILED, step=request.step, artifact=f"{self.project}/{save.name}", reason=reason)
            save.finish(None, error if isinstance(error, ArtifactError) else ArtifactError(reason))
            return
        finally:
            self._close_sources(request.sources)
        facts = {"version": artifact.version, "new": is_new, "kind": artifact.kind, "digest": artifact.digest}
        facts |= {"aliases": request.aliases, "files": len(artifact.files), "bytes": artifact.size}
        self._event(ARTIFACT_SAVED, step=request.step, artifact=folder.id, **facts)
        save.finish(artifact)

    def _add_aliases(self, save: ArtifactSave, aliases: list[str]) -> None:
        artifact = save._artifact
        if artifact is not None and aliases:  # the saves before it in the queue have ended
            artifact.tag(*aliases)
            # A sink learns of it only from the journal.
            facts = {"version": artifact.version, "digest": artifact.digest, "aliases": aliases}
            self._event(ARTIFACT_TAGGED, artifact=f"{artifact.project}/{artifact.name}", **facts)

    def _stored(self, source: Source, request: _Request, batch: BlobBatch) -> Iterator[ArtifactFile]:
        """Store a file, or look up what a reference leads to."""
        if source.before is None:
            yield from self._remote(source)
            return
        try:
            if source.descriptor is not None:
                file: io.BufferedReader = os.fdopen(source.descriptor, "rb", closefd=False)
            else:
                file = Path(source.place).open("rb")  # noqa: SIM115 - closed below
        except OSError as error:
            raise ArtifactError(f"{source.place} was removed before it was saved ({error.strerror}).") from error
        with file:
            if request.reference:
                digest, uri = hashlib.file_digest(file, "sha256").hexdigest(), Path(source.place).absolute().as_uri()
                entry = ArtifactFile(source.name, source.before.st_size, uri=uri, sha256=digest)
            else:
                info = batch.add_open_file(file, Path(source.place) if request.link else None)
                entry = ArtifactFile(source.name, info.size, blob=info.digest)
            after = os.fstat(file.fileno())
            is_same = entry.size == after.st_size == source.before.st_size and os.path.samestat(after, source.before)
            # Linking touches the file: where it was promised not to change, the time says nothing.
            if not is_same or (after.st_mtime_ns != source.before.st_mtime_ns and not request.link):
                raise ArtifactError(
                    f"{source.place} was changed before it was saved. Wait before changing it: "
                    f"run.save_artifact(...).wait(), or write each version to a separate file."
                )
        yield entry

    def _remote(self, source: Source) -> Iterator[ArtifactFile]:
        try:
            found = remote_files.look_up(source.place)
        except remote_files.UnreachableError as error:
            store = source.place.partition("://")[0]
            if store not in self._unknown_stores:  # once for each kind of store
                self._unknown_stores.add(store)
                logger.warning("References to %s:// are saved without size and version: %s", store, error)
            found = [("", remote_files.RemoteFile(source.place, None, ""))]
        for below, remote in found:
            name = f"{source.name}/{below}" if below else source.name
            yield ArtifactFile(name, remote.size, uri=remote.uri, etag=remote.etag)


def _listed(name: str, files: Any) -> Iterator[tuple[str, str]]:
    """Yield each file's name in the artifact and its place: a path, or an address with ``://``."""
    if isinstance(files, Mapping):
        for inside, each in files.items():
            if not isinstance(inside, str) or not inside.strip("/"):
                raise OptionError(f"save_artifact({name!r}): {inside!r:.200} is not a file's name in the artifact.")
            place = _place(name, each)
            yield from ((f"{inside.strip('/')}{rest}", path) for rest, path in _walked(name, place))
        return
    place = _place(name, files)
    for rest, path in _walked(name, place):
        # A directory's own name is left out; a file's is all there is.
        yield rest.lstrip("/") or place.rstrip("/").rpartition("/")[2] or "file", path


def _place(name: str, given: Any) -> str:
    if isinstance(given, os.PathLike):
        given = os.fspath(given)
    if not isinstance(given, str) or not given:
        raise OptionError(
            f"save_artifact({name!r}, {given!r:.200}): give a file, a directory, an address such as "
            "'s3://bucket/file', or a dict of those by their names in the artifact."
        )
    if given.startswith("file://"):
        raise OptionError(
            f"save_artifact({name!r}, {given!r:.200}): give the path, with reference=True to leave it there."
        )
    return given


def _walked(name: str, place: str) -> Iterator[tuple[str, str]]:
    """Yield the files of a directory, by their path below it, or the file itself."""
    if "://" in place or not os.path.isdir(place):  # noqa: PTH112 - of many files
        yield "", place
        return
    # Links to files are the user's own and saved as what they lead to; one to a directory may lead back here.
    for entry in sorted(os.scandir(place), key=lambda entry: entry.name):
        try:
            entry.name.encode()
        except UnicodeEncodeError:
            raise OptionError(f"save_artifact({name!r}): {entry.path!r:.200} is not valid UTF-8; rename it.") from None
        if entry.is_dir():
            if entry.is_symlink():
                raise OptionError(f"save_artifact({name!r}): {entry.path} is a link to a directory; give that instead.")
            yield from ((f"/{entry.name}{rest}", path) for rest, path in _walked(name, entry.path))
        else:
            yield f"/{entry.name}", entry.path


def _opened(name: str, place: str) -> int:
    try:
        # Without waiting at a pipe, which is refused afterwards.
        return os.open(place, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise OptionError(f"save_artifact({name!r}): {place} cannot be read: {error.strerror}.") from error
