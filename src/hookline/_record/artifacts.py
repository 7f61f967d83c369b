"""`Artifact`: a version of a named set of files, and `artifact`, which finds one.

Every file that is read is compared with its digest. `Artifact.get` writes all files or none, and nothing outside of its
directory: the names were checked when the manifest was read, and it writes into a new directory without links.
"""

import contextlib
import hashlib
import os
import secrets
import shutil
import stat
from pathlib import Path
from urllib.parse import unquote, urlsplit

from hookline._engine.defaults import PROJECT, ROOT, resolved
from hookline._engine.errors import ArtifactError, OptionError, UnknownNameError, closest
from hookline._record import remote_files
from hookline._record.artifact_versions import ArtifactFile, ArtifactFolder, ArtifactRun, parse_reference
from hookline._record.blobs import BLOBS, BlobStore
from hookline._record.terminal import plural

_PIECE = 1 << 20


class Artifact:
    """A version of an artifact.

    Attributes:
        project: The project it belongs to.
        name: Its name.
        version: Its version, e.g. ``"v3"``.
        kind: What it is, e.g. ``"model"``.
        metadata: What was given when it was saved.
        files: Its files and references.
        digest: The SHA-256 of its content: kind, metadata and files.
        time: When it was saved, in seconds since 1970.
        run: The run that saved it first, ``<project>/<run id>``; empty where it was saved outside of a run.
        step: That run's step.
        is_received: Whether it came from elsewhere: received by `hookline serve`, or imported.
    """

    def __init__(self, folder: ArtifactFolder, number: int) -> None:
        manifest = folder.manifest(number)
        self.folder, self.number = folder, number
        self.project, self.name, self.version = folder.project, folder.name, f"v{number}"
        self.kind, self.metadata = manifest.kind, manifest.metadata
        self.files: tuple[ArtifactFile, ...] = tuple(manifest.files)
        self.digest, self.time = manifest.digest, manifest.time
        self.run, self.step = manifest.run, manifest.step
        self.is_received = manifest.received

    def __repr__(self) -> str:
        return f"<Artifact {self.id}: {plural(len(self.files), 'file')}, {plural(self.size, 'byte')}>"

    @property
    def id(self) -> str:
        """The reference of this version: ``<project>/<name>:<version>``."""
        return f"{self.project}/{self.name}:{self.version}"

    @property
    def root(self) -> Path:
        """The root that it is stored below."""
        return self.folder.root

    @property
    def size(self) -> int:
        """The size of its files in bytes, references of known size included."""
        return sum(file.size or 0 for file in self.files)

    @property
    def aliases(self) -> list[str]:
        """The aliases that name this version now."""
        return [alias for alias, number in self.folder.aliases().items() if number == self.number]

    @property
    def runs(self) -> list[ArtifactRun]:
        """The runs that saved and used this version, by time."""
        return self.folder.runs(self.number)

    def tag(self, *aliases: str) -> None:
        """Move aliases to this version."""
        for alias in aliases:
            self.folder.set_alias(alias, self.number)

    def path(self, name: str | None = None) -> Path:
        """Return where a file can be read, after checking its digest; do not change it.

        A stored file is called by its digest. To get files under their names, use `get`.

        Args:
            name: The file's name; may be left out if there is only one.

        Raises:
            UnknownNameError: There is no such file.
            ArtifactError: The file is missing or damaged, or a reference to another machine.
        """
        names = [file.path for file in self.files]
        if name is None and len(names) != 1:
            raise OptionError(f"{self.id} has {len(names)} files; give the name of one. {closest('', names)}")
        file = next((file for file in self.files if name in (None, file.path)), None)
        if file is None:
            raise UnknownNameError(f"{self.id} has no file {name!r:.200}. {closest(str(name), names)}")
        place = self.place(file)
        self._copy(file, place, None)
        return place

    def get(self, directory: str | Path | None = None, *, references: bool = False) -> Path:
        """Copy the files into a directory, checking the digest of each, and return the directory.

        All files are written, or none. A directory that has exactly these files already is left as it is.

        Args:
            directory: A directory that is new or empty; ``artifacts/<name>-<version>`` by default.
            references: Also copy referenced files, remote ones through fsspec. By default they stay where they are.

        Raises:
            ArtifactError: A file is missing or damaged, or the directory has other files.
        """
        target = Path("artifacts") / f"{self.name}-{self.version}" if directory is None else Path(directory)
        target = target.absolute()
        wanted = [file for file in self.files if references or not file.uri]
        if target.is_symlink() or (target.exists() and not target.is_dir()):
            raise ArtifactError(f"{target} is not a directory. Give one that is new or empty.")
        if target.is_dir() and any(target.iterdir()):
            if self._is_complete(target, wanted):
                return target
            raise ArtifactError(
                f"{target} has files that are not those of {self.id}. Give a directory that is new or empty."
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".{target.name}.{secrets.token_hex(4)}.partial")
        partial.mkdir()
        try:
            for file in wanted:
                path = partial / file.path
                path.parent.mkdir(parents=True, exist_ok=True)
                if file.uri and not file.uri.startswith("file:"):
                    remote_files.fetch(file.uri, path, size=file.size, etag=file.etag, sha256=file.sha256)
                else:
                    self._copy(file, self.place(file), path)
            partial.rename(target)  # replaces an empty directory, and fails for any other
        except OSError as error:
            raise ArtifactError(f"{self.id} cannot be written to {target}: {error}") from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        return target

    def verify(self) -> list[str]:
        """Read all files that are stored or on this machine, and return what is wrong."""
        problems = []
        for file in self.files:
            if not file.uri or (file.uri.startswith("file:") and not self.is_received):
                try:
                    self._copy(file, self.place(file), None)
                except ArtifactError as error:
                    problems.append(str(error))
        return problems

    def place(self, file: ArtifactFile) -> Path:
        """Return where a file is, without a look at it.

        Raises:
            ArtifactError: It is on another machine.
        """
        if not file.uri:
            return BlobStore(self.root / BLOBS).path(file.blob)
        if not file.uri.startswith("file:"):
            raise ArtifactError(f"{file.path!r} of {self.id} is at {file.uri}; get(references=True) copies it.")
        if self.is_received:
            # Its name was chosen by the sender: here it could name any file.
            raise ArtifactError(f"{file.path!r} of {self.id} stayed on the machine that saved it: {file.uri}.")
        return Path(unquote(urlsplit(file.uri).path))

    def _copy(self, file: ArtifactFile, source: Path, target: Path | None) -> None:
        """Read a file, compare it with its digest, and copy it on the way if a target is given."""
        what = f"{file.path!r} of {self.id}"
        digest, size = hashlib.sha256(), 0
        # A blob is never a link. A referenced file is the user's own, who may have linked it.
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if file.uri else os.O_NOFOLLOW)
        try:
            descriptor = os.open(source, flags)
        except OSError as error:
            raise ArtifactError(f"{what} is missing: {source} cannot be read ({error.strerror}).") from error
        with os.fdopen(descriptor, "rb") as reader, contextlib.ExitStack() as stack:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ArtifactError(f"{what} is damaged: {source} is not a regular file.")
            writer = None if target is None else stack.enter_context(target.open("xb"))
            try:
                while piece := reader.read(_PIECE):
                    digest.update(piece)
                    size += len(piece)
                    if writer is not None:
                        writer.write(piece)
            except OSError as error:
                raise ArtifactError(f"{what} cannot be copied: {error}") from error
        if (file.digest and digest.hexdigest() != file.digest) or (file.size is not None and size != file.size):
            kind = "changed since it was saved" if file.uri else "is damaged"
            raise ArtifactError(f"{what} {kind}: the content of {source} does not match its digest.")

    def _is_complete(self, directory: Path, wanted: list[ArtifactFile]) -> bool:
        there = {str(path.relative_to(directory)) for path in directory.rglob("*") if not path.is_dir()}
        if there != {file.path for file in wanted} or any(file.uri for file in wanted):
            return False
        try:
            for file in wanted:
                self._copy(file, directory / file.path, None)
        except ArtifactError:
            return False
        return True


def artifact(reference: str, *, root: str | Path = ROOT, project: str = PROJECT) -> Artifact:
    """Find a version of an artifact, outside of a run; within one, use `run.use_artifact`, which records the use.

    Args:
        reference: ``project/name:version``, where the version is an alias such as ``best``, a number such as ``v3``, or
            left out for the latest; ``project/name@sha256:...`` names it by its digest.
        root: The directory of the runs, by default that of ``HOOKLINE_ROOT``, or ``runs``.
        project: The project, where the reference names none.

    Raises:
        UnknownNameError: There is no such artifact or version.
        ArtifactError: Its manifest is damaged.
    """
    found = parse_reference(reference, resolved(project))
    folder = ArtifactFolder(Path(resolved(root)), found.project, found.name)
    return Artifact(folder, folder.resolve(found.version))
