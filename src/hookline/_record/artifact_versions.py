"""`ArtifactFolder`: the versions and aliases of an artifact, as manifests of digests beside the blobs of a root.

``<root>/.artifacts/<project>/<name>/`` holds:

    v0.json, v1.json, ...   a manifest per version: its digest, kind, metadata, producing run, and files
    v3.deleted              marks a deleted version, so that its number is never given to other content
    aliases/<alias>         the version that an alias names, as text
    latest                  only where the version saved last is not the highest: equal content was saved again
    runs/v3/<digest>.json   a run that saved or used the version

Guarantees:

- A version never changes, and its number is given once: a manifest is written aside, synced, and linked to the next
  free name, which fails if another process or machine was faster. A killed process leaves the version or nothing.
- The same content (files, kind and metadata) gives the version that exists already. Two processes that save it at the
  same time get one version where the file system has locks; without locks they may get two.
- Aliases are replaced atomically; the last writer wins.
- Everything that is read is checked: names before they become paths, and a manifest by its digest.
"""

import contextlib
import hashlib
import itertools
import json
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from hookline._engine.errors import ArtifactError, OptionError, UnknownNameError, closest
from hookline._record.blobs import ARTIFACTS, is_digest
from hookline._record.files import exclusive, sync_directory, write_atomically
from hookline._record.records import clean

LATEST = "latest"
MAX_FILES = 100_000
_MAX_MANIFEST_BYTES = 256 << 20
_MAX_NOTE_BYTES = 4096
_PARTIAL_SECONDS = 3600.0
"""Manifests that are being written are younger than this; older ones were left by killed processes."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,127}")
_VERSION = re.compile(r"v(0|[1-9][0-9]{0,8})")
_DIGEST_PART = re.compile(r"[0-9a-f]{8,64}")
_SCHEMES = frozenset(
    "s3 s3a gs gcs az abfs abfss adl wasb wasbs oss hdfs hf http https ftp sftp file".split()  # noqa: SIM905
)
"""The stores that a foreign reference may lead to. Others that fsspec knows read files of the machine that asks."""
_HEAD = re.compile(rb'\{"digest":"([0-9a-f]{64})"')


class ArtifactFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file of an artifact: stored as a blob, or a reference to a file that stays where it is.

    Attributes:
        path: Its name in the artifact, with ``/`` between folders.
        size: Its size in bytes, if known.
        blob: The SHA-256 of a stored file; empty for a reference.
        uri: Where a reference leads: ``s3://...``, ``https://...``, ``file:///...``; empty for a stored file.
        sha256: The SHA-256 of a referenced file, if known.
        etag: The version that the store of a referenced file reported, if it did.
    """

    path: str
    size: int | None = None
    blob: str = ""
    uri: str = ""
    sha256: str = ""
    etag: str = ""

    @property
    def digest(self) -> str:
        """The SHA-256 of the content; empty if it is not known."""
        return self.blob or self.sha256


class Manifest(msgspec.Struct, frozen=True, omit_defaults=True):
    """The content and the origin of a version. The digest covers kind, metadata and files.

    Attributes:
        received: Whether it came from elsewhere, to a server or by an import: references to local files are then those
            of another machine.
    """

    digest: str  # first, so that it is found without reading all of it
    kind: str
    time: float
    run: str
    step: int | None
    metadata: dict[str, Any]
    files: list[ArtifactFile]
    received: bool = False


class ArtifactRun(msgspec.Struct, frozen=True):
    """A run that saved or used a version of an artifact."""

    run: str
    role: str
    time: float


class Reference(NamedTuple):
    """A parsed reference to an artifact: which version is an alias, ``v3``, or a digest after ``sha256:``."""

    project: str
    name: str
    version: str


def parse_reference(text: str, project: str = "default") -> Reference:
    """Parse ``project/name:version``.

    >>> parse_reference("vision/model:best")
    Reference(project='vision', name='model', version='best')
    >>> parse_reference("model")
    Reference(project='default', name='model', version='latest')

    Args:
        project: The project, where the text names none.

    Raises:
        OptionError: It has another form.
    """
    given, slash, rest = str(text).rpartition("/")
    name, mark, version = rest.partition("@") if "@" in rest else rest.partition(":")
    digest = version.removeprefix("sha256:")
    pattern = _DIGEST_PART if mark == "@" else _NAME if mark else re.compile("")
    is_named = _NAME.fullmatch(name) and (not slash or _is_project(given))
    if not is_named or not pattern.fullmatch(digest if mark == "@" else version):
        raise OptionError(
            f"{text!r:.200} does not name an artifact. Give e.g. 'model', 'model:best', 'model:v3' or "
            "'project/model:best'."
        )
    version = f"sha256:{digest}" if mark == "@" else version or LATEST
    return Reference(given if slash else project, name, version)


def _is_project(name: str) -> bool:
    return bool(name) and name[0] != "." and "\0" not in name and Path(name).name == name


def checked_name(name: Any) -> str:
    """Return the name of an artifact.

    Raises:
        OptionError: It has other characters than a file's name may have everywhere.
    """
    if not (isinstance(name, str) and _NAME.fullmatch(name)):
        raise OptionError(
            f"save_artifact({name!r:.200}): give a name of at most 128 letters, digits, '_', '-' and '.', e.g. 'model'."
        )
    return name


def checked_aliases(aliases: Any) -> list[str]:
    """Return recorded or received aliases without duplicates, and without ``latest``, which is set by itself.

    Raises:
        OptionError: One of them is not an alias.
    """
    return [alias for alias in _valid_aliases(aliases) if alias != LATEST]


def chosen_aliases(aliases: Any) -> list[str]:
    """Return the aliases that a user chose, without duplicates.

    Raises:
        OptionError: One of them is not an alias, or is ``latest``.
    """
    found = _valid_aliases(aliases)
    if LATEST in found:
        raise OptionError(f"aliases: {LATEST!r} always names the version that was saved last; choose another alias.")
    return found


def _valid_aliases(aliases: Any) -> list[str]:
    given = list(aliases) if isinstance(aliases, Iterable) and not isinstance(aliases, str | bytes) else [aliases]
    for alias in given:
        if not (isinstance(alias, str) and _NAME.fullmatch(alias)) or _VERSION.fullmatch(alias):
            raise OptionError(
                f"aliases: {alias!r:.200} is not an alias. Give words of letters, digits, '_', '-' and '.' that are no "
                "version numbers, e.g. aliases=['best']."
            )
    return list(dict.fromkeys(given))


def content_digest(kind: str, metadata: Mapping[str, Any], files: Iterable[ArtifactFile]) -> str:
    """Return the SHA-256 of what makes a version: kind, metadata and files, in the order of their names."""
    listed = sorted((file.path, file.blob, file.uri, file.sha256, file.etag, file.size) for file in files)
    return hashlib.sha256(json.dumps([kind, metadata, listed], sort_keys=True).encode()).hexdigest()


def check_files(files: Iterable[ArtifactFile]) -> None:
    """Check the names of files, which become paths, and their digests.

    Raises:
        ArtifactError: A name is absolute, leads out of its directory, or is there twice; or a digest is none.
    """
    names: list[str] = []
    for file in files:
        parts = file.path.split("/")
        is_safe = not {"", ".", ".."}.intersection(parts) and "\0" not in file.path and "\\" not in file.path
        if not is_safe or any(len(os.fsencode(part)) > 255 for part in parts):
            raise ArtifactError(f"{file.path!r:.200} is not a file's name in an artifact.")
        is_blob = is_digest(file.blob) and not file.uri and file.size is not None
        is_reference = not file.blob and bool(file.uri) and (not file.sha256 or is_digest(file.sha256))
        if not (is_blob or is_reference) or (file.size is not None and file.size < 0):
            raise ArtifactError(f"{file.path!r:.200} has neither a digest nor an address.")
        # The separator sorts before every other character, so what is in a folder follows its name directly. A set of
        # all folders would take far more memory than the manifest, which may come from a sender.
        names.append(file.path.replace("/", "\0"))
    names.sort()
    for name, following in itertools.pairwise(names):
        shown = name.replace("\0", "/")
        if name == following:
            raise ArtifactError(f"{shown!r:.200} is listed twice.")
        if following.startswith(f"{name}\0"):
            raise ArtifactError(f"{shown!r:.200} is both a file and a folder.")


def check_foreign_files(files: Iterable[ArtifactFile]) -> None:
    """Check the addresses in a manifest that came from elsewhere.

    Raises:
        OptionError: One is not that of a remote store, nor of a local file, which is not followed.
    """
    for file in files:
        scheme, mark, _ = file.uri.partition(":")
        if file.uri and not (mark and scheme in _SCHEMES and "::" not in file.uri and file.uri.isprintable()):
            raise OptionError(f"{file.uri!r:.200} is not an accepted address: give one of a remote store.")


class ArtifactFolder:
    """All versions of one artifact.

    Args:
        root: The directory of the projects.
        project: The folder of the root that the artifact belongs to.
        name: Its name.
    """

    def __init__(self, root: Path, project: str, name: str) -> None:
        self.root, self.project, self.name = Path(root).resolve(), project, name
        self.directory = self.root / ARTIFACTS / project / name

    @property
    def id(self) -> str:
        """The artifact as commands and the page name it: ``<project>/<name>``."""
        return f"{self.project}/{self.name}"

    def exists(self) -> bool:
        """Whether it has a directory of its own, not through a link."""
        folders = (self.directory, self.directory.parent, self.directory.parent.parent)
        return self.directory.is_dir() and not any(folder.is_symlink() for folder in folders)

    def versions(self, suffix: str = ".json") -> list[int]:
        """Return the numbers of the versions, ascending."""
        if not self.exists():
            return []
        with contextlib.suppress(OSError):
            names = [path.name for path in self.directory.iterdir()]
            found = (_VERSION.fullmatch(name.removesuffix(suffix)) for name in names if name.endswith(suffix))
            return sorted(int(match[1]) for match in found if match)
        return []

    def manifest(self, number: int) -> Manifest:
        """Read a version.

        Raises:
            UnknownNameError: There is no such version.
            ArtifactError: Its manifest is damaged.
        """
        path = self._manifest_path(number)
        content = _read(path, _MAX_MANIFEST_BYTES) if self.exists() else None
        if content is None:
            raise self._unknown(f"v{number}")
        try:
            manifest = msgspec.json.decode(content, type=Manifest)
            check_files(manifest.files)
            is_same = content_digest(manifest.kind, manifest.metadata, manifest.files) == manifest.digest
        except (msgspec.DecodeError, ArtifactError, RecursionError) as error:
            raise ArtifactError(f"The manifest {path} is damaged: {error}") from error
        if not is_same:
            raise ArtifactError(f"The manifest {path} is damaged: its content does not match its digest.")
        return manifest

    def resolve(self, version: str) -> int:
        """Return the number of the version that an alias, ``v3`` or a digest names.

        Raises:
            UnknownNameError: There is none.
        """
        numbers = self.versions()
        found: int | None = None
        if match := _VERSION.fullmatch(version):
            found = int(match[1])
        elif version.startswith("sha256:"):
            digest = version.removeprefix("sha256:")
            found = next((number for number in reversed(numbers) if self._digest_of(number).startswith(digest)), None)
        elif version == LATEST:
            found = self.latest(numbers)
        else:
            found = self._alias(version)
        if found is None or found not in numbers:
            raise self._unknown(version)
        return found

    def latest(self, numbers: list[int] | None = None) -> int | None:
        """Return the version that was saved last."""
        numbers = self.versions() if numbers is None else numbers
        highest = numbers[-1] if numbers else None
        # The file counts only while no version was added after it. So a new version needs no second file to become the
        # latest, and a kill between two writes cannot leave an older one.
        noted = (_read(self.directory / LATEST, _MAX_NOTE_BYTES) or b"").decode("ascii", "replace").split()
        if len(noted) == 2 and noted[1] == f"v{highest}" and (match := _VERSION.fullmatch(noted[0])):
            return int(match[1]) if int(match[1]) in numbers else highest
        return highest

    def aliases(self) -> dict[str, int]:
        """Return the version that each alias names, ``latest`` included."""
        numbers = self.versions()
        found: dict[str, int] = {}
        if (latest := self.latest(numbers)) is not None:
            found[LATEST] = latest
        with contextlib.suppress(OSError):
            for name in sorted(path.name for path in (self.directory / "aliases").iterdir()):
                number = self._alias(name) if _NAME.fullmatch(name) and name != LATEST else None
                if number in numbers and number is not None:
                    found[name] = number
        return found

    def _alias(self, alias: str) -> int | None:
        folder = self.directory / "aliases"
        content = None if folder.is_symlink() else _read(folder / alias, _MAX_NOTE_BYTES)
        match = None if content is None else _VERSION.fullmatch(content.decode("ascii", "replace").strip())
        return int(match[1]) if match else None

    def publish(self, manifest: Manifest, aliases: Iterable[str] = (), *, number: int = 0) -> tuple[int, bool]:
        """Make a version of a manifest whose blobs are stored; returns its number, and whether it is new.

        Args:
            number: The lowest number that a new version gets.
        """
        self._create()
        with self._locked():
            numbers = self.versions()
            found = self.same(manifest.digest, numbers)
            is_new = found is None
            if found is None:
                found = self._add(manifest, numbers, number)
            elif found != self.latest(numbers):
                write_atomically(self.directory / LATEST, f"v{found} v{numbers[-1]}\n".encode())
            for alias in aliases:
                self._write_alias(alias, found)
        return found, is_new

    def same(self, digest: str, numbers: list[int] | None = None) -> int | None:
        """Return the version with this content, if there is one; a damaged one is none."""
        for number in reversed(self.versions() if numbers is None else numbers):
            if self._digest_of(number) == digest:
                with contextlib.suppress(ArtifactError):  # a damaged one is left alone, and saved again as a new one
                    self.manifest(number)
                    return number
        return None

    def _add(self, manifest: Manifest, numbers: list[int], lowest: int) -> int:
        partial = self.directory / f".{secrets.token_hex(8)}.partial"
        try:
            write_atomically(partial, msgspec.json.encode(manifest))
            number = max([lowest - 1, *numbers, *self.versions(".deleted")]) + 1
            while True:
                try:
                    # A link, unlike a rename, fails if the name exists: another machine may not see the lock.
                    os.link(partial, self._manifest_path(number))
                    break
                except FileExistsError:
                    number += 1
            sync_directory(self.directory)
        finally:
            partial.unlink(missing_ok=True)
        return number

    def set_alias(self, alias: str, number: int, *, at: float | None = None) -> None:
        """Move an alias to a version.

        Args:
            at: When that was decided, in seconds since 1970: an alias that was set later is left alone. Now by default.
        """
        (checked,) = chosen_aliases([alias])
        with self._locked():
            if number not in self.versions():
                raise self._unknown(f"v{number}")
            self._write_alias(checked, number, at)

    def _write_alias(self, alias: str, number: int, at: float | None = None) -> None:
        folder = self.directory / "aliases"
        if folder.is_symlink():
            raise ArtifactError(f"{folder} is a link; aliases are not written through it.")
        path = folder / alias
        if at is not None:
            at = min(at, time.time())  # a time in the future would hold an alias for ever
            with contextlib.suppress(FileNotFoundError):
                if path.lstat().st_mtime > at:
                    return
        write_atomically(path, f"v{number}\n".encode(), parents=True)
        if at is not None:
            os.utime(path, (at, at))

    def remove_alias(self, alias: str) -> None:
        """Remove an alias.

        Raises:
            UnknownNameError: There is no such alias.
        """
        if alias == LATEST:
            raise OptionError(f"{LATEST!r} always names the version that was saved last; it cannot be removed.")
        if alias not in self.aliases():
            raise self._unknown(alias)
        (self.directory / "aliases" / alias).unlink(missing_ok=True)

    def delete(self, number: int) -> None:
        """Delete a version and the aliases that name it. Its files go with the next collection of unused blobs."""
        with self._locked():
            if number not in self.versions():
                raise self._unknown(f"v{number}")
            # The mark first: after a kill in between, the number is neither free nor given again. It holds the digest,
            # so a sender that delivers the version again does not bring it back.
            write_atomically(self.directory / f"v{number}.deleted", self._digest_of(number).encode())
            for alias in [name for name, named in self.aliases().items() if named == number and name != LATEST]:
                (self.directory / "aliases" / alias).unlink(missing_ok=True)
            self._manifest_path(number).unlink(missing_ok=True)
            shutil.rmtree(self.directory / "runs" / f"v{number}", ignore_errors=True)
            sync_directory(self.directory)

    def deleted_at(self, digest: str) -> float | None:
        """Return when a version of this content was deleted, in seconds since 1970; None if none was."""
        times = []
        for number in self.versions(".deleted"):
            path = self.directory / f"v{number}.deleted"
            if _read(path, _MAX_NOTE_BYTES) == digest.encode():
                with contextlib.suppress(OSError):
                    times.append(path.lstat().st_mtime)
        return max(times, default=None)

    def note_run(self, number: int, run: str, role: str, *, at: float | None = None) -> bool:
        """Note that a run saved or used a version; returns whether that was not known.

        Args:
            at: When, in seconds since 1970: a later time replaces the one that is noted. Now by default, which does
                not.
        """
        name = hashlib.sha256(f"{role} {run}".encode()).hexdigest()[:32]
        path = self.directory / "runs" / f"v{number}" / f"{name}.json"
        if path.parent.is_symlink() or path.parent.parent.is_symlink() or (path.exists() and at is None):
            return False
        if at is not None:
            with contextlib.suppress(msgspec.DecodeError, RecursionError):
                if msgspec.json.decode(_read(path, _MAX_NOTE_BYTES) or b"", type=ArtifactRun).time >= at:
                    return False
        note = ArtifactRun(run, role, time.time() if at is None else at)
        write_atomically(path, msgspec.json.encode(note), parents=True)
        return True

    def runs(self, number: int) -> list[ArtifactRun]:
        """Return the runs that saved or used a version, by time."""
        folder = self.directory / "runs" / f"v{number}"
        found: list[ArtifactRun] = []
        if not folder.is_symlink():
            with contextlib.suppress(OSError):
                for path in folder.iterdir():
                    with contextlib.suppress(msgspec.DecodeError, RecursionError):
                        found.append(msgspec.json.decode(_read(path, _MAX_NOTE_BYTES) or b"", type=ArtifactRun))
        return sorted(found, key=lambda each: each.time)

    def _create(self) -> None:
        new = [path for path in (self.directory, *self.directory.parents) if not path.exists()]
        self.directory.mkdir(parents=True, exist_ok=True)
        if not self.exists():
            raise ArtifactError(f"{self.directory} is reached through a link; artifacts are not written through it.")
        for path in new:  # each is a name in its parent, which has to survive a power cut with it
            sync_directory(path.parent)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            descriptor = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise UnknownNameError(f"There is no artifact {self.id!r} in {self.root}.") from error
        try:
            with exclusive(descriptor):
                yield
        finally:
            os.close(descriptor)

    def _manifest_path(self, number: int) -> Path:
        return self.directory / f"v{number}.json"

    def _digest_of(self, number: int) -> str:
        """The digest at the head of a manifest, which may be long."""
        match = _HEAD.match(_read(self._manifest_path(number), None) or b"")
        return match[1].decode() if match else ""

    def _unknown(self, version: str) -> UnknownNameError:
        numbers = self.versions()
        if not numbers:
            others = [folder.id for folder in artifact_folders(self.root)]
            hint = closest(self.id, others, listed=others[:8]) if others else "There are no artifacts."
            return UnknownNameError(f"There is no artifact {self.id!r} in {self.root}. {hint}")
        known = [*self.aliases(), *(f"v{number}" for number in numbers[-8:])]
        return UnknownNameError(f"{self.id} has no version {version!r:.80}. {closest(version, known, listed=known)}")


def _read(path: Path, limit: int | None) -> bytes | None:
    """Return a file's content, or with no limit its beginning; None if it is not a regular file, or too long."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or (limit is not None and found.st_size > limit):
            return None
        return file.read(128 if limit is None else limit)


def artifact_folders(root: str | Path, project: str | None = None) -> list[ArtifactFolder]:
    """Return the artifacts below a root, by project and name."""
    home = Path(root).resolve() / ARTIFACTS
    found: list[ArtifactFolder] = []
    with contextlib.suppress(OSError):
        for folder in sorted(home.iterdir()):
            if _is_project(folder.name) and not folder.is_symlink() and project in (None, folder.name):
                names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
                found += [ArtifactFolder(Path(root), folder.name, name) for name in names if _NAME.fullmatch(name)]
    return [folder for folder in found if folder.versions()]


def remove_partial_manifests(root: Path) -> None:
    """Remove manifests that killed processes were writing."""
    for path in (Path(root) / ARTIFACTS).glob("*/*/.*.partial"):
        with contextlib.suppress(OSError):
            if time.time() - path.lstat().st_mtime > _PARTIAL_SECONDS:
                path.unlink()


def make_manifest(
    kind: str,
    metadata: Mapping[str, Any],
    files: Iterable[ArtifactFile],
    *,
    run: str = "",
    step: int | None = None,
    at: float | None = None,
    received: bool = False,
) -> Manifest:
    """Return the manifest of a new version.

    Args:
        kind: See `Manifest`, as for the others.
        at: When it was saved, in seconds since 1970; now by default.

    Raises:
        ArtifactError: The files cannot make a version.
    """
    listed = sorted(files, key=lambda file: file.path)
    check_files(listed)
    plain = clean(dict(metadata))
    digest, saved_at = content_digest(kind, plain, listed), time.time() if at is None else at
    return Manifest(digest, kind, saved_at, run, step, plain, listed, received)
