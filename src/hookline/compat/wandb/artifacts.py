"""`Artifact`: wandb's artifacts over hookline's: a draft that files are added to, and a saved version that is read.

Files of a draft are copied when they are added (``policy="mutable"``), so a program may overwrite a checkpoint that it
has added. The copies are below the root of the runs, where the version hard-links them instead of copying them again.
Hashing and saving happen off the training thread; `Artifact.wait` waits for them.

Versions, aliases and files are hookline's: equal content is one version, ``latest`` is the last one that was saved, and
every file that is read is compared with its SHA-256. A link to another project (a registry) is a version of the same
files in that project.
"""

import contextlib
import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import weakref
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self
from urllib.parse import unquote, urlsplit

from hookline._engine.errors import HooklineError, UnknownNameError
from hookline._record import artifacts as stored
from hookline._record.artifact_versions import ArtifactFile, ArtifactFolder, make_manifest, parse_reference
from hookline.compat.wandb.active import active_run, current_root, package
from hookline.compat.wandb.errors import CommError, Error, UnsupportedError
from hookline.compat.wandb.terminal import ignored, termwarn
from hookline.compat.wandb.values import WBValue, plain_value

if TYPE_CHECKING:
    from hookline._record.artifact_saving import ArtifactSave

STAGING = ".staging"
"""The folder below the root with the files of drafts."""
_NAME = re.compile(r"[a-zA-Z0-9_\-.]{1,128}")
_DESCRIPTION = "_description"


class ArtifactNotLoggedError(Error):
    """An attribute or method was used that needs a logged artifact."""


class ArtifactManifestEntry:
    """A file of an artifact.

    Attributes:
        path: Its name in the artifact.
        ref: The target of a reference; None for a stored file.
        size: Its size in bytes, if known.
        local_path: Where it was added from, or where a stored file is.
    """

    def __init__(
        self,
        artifact: "Artifact",
        path: str,
        *,
        ref: str | None = None,
        local_path: str | None = None,
        size: Any = None,
    ) -> None:
        self._artifact = artifact
        self.path, self.ref, self.local_path = path, ref, local_path
        self.size: int | None = size
        self._digest = ""

    def __repr__(self) -> str:
        return f"<ArtifactManifestEntry {self.path!r}>"

    @property
    def name(self) -> str:
        """Its name in the artifact."""
        return self.path

    @property
    def digest(self) -> str:
        """The SHA-256 of its content; of a reference whose content is not known, its address."""
        if not self._digest and self.local_path is not None:
            with Path(self.local_path).open("rb") as file:
                self._digest = hashlib.file_digest(file, "sha256").hexdigest()
        return self._digest or str(self.ref)

    def download(self, root: str | os.PathLike[str] | None = None, **_: Any) -> str:
        """Copy it below a directory, and return its path.

        Args:
            root: The directory; the artifact's own by default.
        """
        found = self._artifact._require_saved("download")
        target = Path(self._artifact._default_root() if root is None else root) / self.path
        _place(found.path(self.path), target, base=target.parents[len(Path(self.path).parts) - 1])
        return str(target)

    def ref_target(self) -> str:
        """Return the target of a reference."""
        if self.ref is None:
            raise ValueError("Only reference entries support ref_target().")
        return self.ref

    def ref_url(self) -> str:
        """Return the target of a reference, or the name of a stored file in its version."""
        return self.ref or f"{self._artifact.qualified_name}/{self.path}"


class ArtifactManifest:
    """The files of an artifact by name, in ``entries``."""

    def __init__(self, entries: dict[str, ArtifactManifestEntry]) -> None:
        self.entries = entries

    def __len__(self) -> int:
        return len(self.entries)

    def get_entry_by_path(self, path: str) -> ArtifactManifestEntry | None:
        """Return a file by its name; None if there is none."""
        return self.entries.get(path)


class Artifact:
    """A named, versioned set of files.

    Args:
        name: Its name: letters, digits, ``_``, ``-`` and ``.``.
        type: What it is: ``model``, ``dataset``, ...
        description: A text about it.
        metadata: Facts about it, as plain data.
        incremental: Accepted; a version lists all of its files.
        use_as: Accepted.
        storage_region: Accepted.
    """

    def __init__(
        self,
        name: str,
        type: str,  # noqa: A002 - wandb's name
        description: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        incremental: bool = False,
        use_as: str | None = None,
        storage_region: str | None = None,
    ) -> None:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValueError(
                f"Artifact name may only contain alphanumeric characters, dashes, underscores, and dots. "
                f"Invalid name: {name!r:.200}"
            )
        if type in ("job",) or str(type).startswith("wandb-"):
            raise ValueError(f"Artifact type {type!r} is reserved for internal use. Please use a different type.")
        self._name, self._type = name, str(type)
        self.description = description
        self._metadata = _checked_metadata(metadata)
        self._is_incremental = incremental
        self._entries: dict[str, ArtifactManifestEntry] = {}
        self._objects: dict[str, str] = {}
        self._staging: Path | None = None
        self._save: ArtifactSave | None = None
        self._saved: stored.Artifact | None = None
        self._is_final = False
        self._tags: list[str] = []
        self.distributed_id: str | None = None
        self.ttl: Any = None
        self._root: Path | None = None

    @classmethod
    def from_stored(cls, found: stored.Artifact) -> "Artifact":
        """Return a saved version as wandb's."""
        made = cls.__new__(cls)
        metadata = dict(found.metadata)
        Artifact.__init__(made, found.name, "unknown", metadata=metadata)
        made._type, made.description = found.kind, metadata.pop(_DESCRIPTION, None)
        made._metadata, made._saved, made._is_final = metadata, found, True
        return made

    def __repr__(self) -> str:
        return f"<Artifact {self.name}>"

    # What it is

    @property
    def id(self) -> str | None:
        """Its digest in the store, once it is logged."""
        return None if self.is_draft() else self._require_saved("id").digest

    @property
    def entity(self) -> str:
        """The entity; hookline has none."""
        return ""

    @property
    def project(self) -> str:
        """The project that it was logged in."""
        return self._require_saved("project").project

    @property
    def name(self) -> str:
        """Its name, with the version once it is logged."""
        return self._name if self.is_draft() else f"{self._name}:{self.version}"

    @property
    def qualified_name(self) -> str:
        """``project/name:version``."""
        return f"{self.project}/{self.name}"

    @property
    def version(self) -> str:
        """Its version: ``v0``, ..."""
        return self._require_saved("version").version

    source_entity, source_project, source_version = entity, project, version
    source_name, source_qualified_name = name, qualified_name

    @property
    def type(self) -> str:
        """What it is: ``model``, ``dataset``, ..."""
        return self._type

    @property
    def collection(self) -> "ArtifactCollection":
        """All versions of its name."""
        found = self._require_saved("collection")
        return ArtifactCollection(found.folder, self._type)

    source_collection = collection

    @property
    def metadata(self) -> dict[str, Any]:
        """Facts about it."""
        return self._metadata

    @metadata.setter
    def metadata(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = _checked_metadata(metadata)

    @property
    def aliases(self) -> list[str]:
        """The aliases that name this version."""
        return _Aliases(self, self._require_saved("aliases").aliases)

    @aliases.setter
    def aliases(self, aliases: Sequence[str]) -> None:
        found = self._require_saved("aliases")
        wanted = set(checked_aliases(aliases))
        for alias in set(found.aliases) - wanted - {"latest"}:
            found.folder.remove_alias(alias)
        if wanted:
            found.tag(*sorted(wanted))

    @property
    def tags(self) -> list[str]:
        """Its tags; kept in this object only."""
        return self._tags

    @tags.setter
    def tags(self, tags: Sequence[str]) -> None:
        ignored("Artifact.tags", "use aliases")
        self._tags = list(tags)

    @property
    def incremental(self) -> bool:
        """Whether it was made with ``incremental=True``."""
        return self._is_incremental

    @property
    def state(self) -> str:
        """``PENDING`` or ``COMMITTED``."""
        return "PENDING" if self.is_draft() else "COMMITTED"

    @property
    def manifest(self) -> ArtifactManifest:
        """Its files."""
        return ArtifactManifest(self._all_entries())

    @property
    def digest(self) -> str:
        """The SHA-256 of its content."""
        if self._saved is not None:
            return self._saved.digest
        listed = sorted((entry.path, entry.digest) for entry in self._entries.values())
        return hashlib.sha256(json.dumps(listed).encode()).hexdigest()

    @property
    def commit_hash(self) -> str:
        """Its digest, once it is logged."""
        return self._require_saved("commit_hash").digest

    @property
    def size(self) -> int:
        """The size of its files in bytes."""
        return sum(entry.size or 0 for entry in self._all_entries().values())

    @property
    def file_count(self) -> int:
        """The number of its files."""
        return len(self._all_entries())

    @property
    def created_at(self) -> str:
        """When it was saved, in ISO form."""
        return datetime.fromtimestamp(self._require_saved("created_at").time).astimezone().isoformat()

    updated_at = created_at

    @property
    def history_step(self) -> int | None:
        """The step at which it was logged."""
        return self._require_saved("history_step").step

    @property
    def is_link(self) -> bool:
        """Whether it was linked here from another project."""
        return False

    @property
    def url(self) -> str:
        """The directory of its versions."""
        return self._require_saved("url").folder.directory.as_uri()

    def is_draft(self) -> bool:
        """Return whether it has not been saved yet."""
        if self._saved is None and self._save is not None and self._save.done:
            self.wait()
        return self._saved is None

    def finalize(self) -> None:
        """Accept no more files."""
        self._is_final = True

    # Adding files to a draft

    @contextlib.contextmanager
    def new_file(self, name: str, mode: str = "x", encoding: str | None = None) -> Iterator[IO[Any]]:
        """Open a new file of the artifact for writing.

        Args:
            name: Its name in the artifact.
            mode: ``x`` for a new one, ``w`` to replace one; with ``b`` for bytes.
            encoding: The encoding of a text.
        """
        self._require_open("new_file")
        self._check_new(name, overwrite="x" not in mode)
        path = self._staged(name)
        with open(path, mode.replace("x", "w"), encoding=encoding) as file:  # noqa: PTH123 - the mode is the caller's
            yield file
        self._add(name, path)

    def add_file(
        self,
        local_path: str | os.PathLike[str],
        name: str | None = None,
        is_tmp: bool | None = False,
        skip_cache: bool | None = False,
        policy: str | None = "mutable",
        overwrite: bool = False,
    ) -> ArtifactManifestEntry:
        """Add a file.

        Args:
            local_path: Its path.
            name: Its name in the artifact; its own by default.
            is_tmp: Name it by its digest, to avoid collisions.
            skip_cache: Accepted.
            policy: ``"mutable"`` copies it now, ``"immutable"`` when it is saved: it must not change until then.
            overwrite: Replace a file of this name.
        """
        self._require_open("add_file")
        _check_policy(policy)
        path = Path(local_path)
        if not path.is_file():
            raise ValueError(f"Path is not a file: {os.fspath(local_path)!r}")
        inside = Path(name or path.name).as_posix()
        if is_tmp:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            inside = str(Path(inside).parent / f"{digest[:20]}{Path(inside).suffix}").removeprefix("./")
        self._check_new(inside, overwrite=overwrite)
        return self._add(inside, self._copied(path, inside) if policy != "immutable" else path.absolute())

    def add_dir(
        self,
        local_path: str | os.PathLike[str],
        name: str | None = None,
        skip_cache: bool | None = False,
        policy: str | None = "mutable",
        merge: bool = False,
    ) -> None:
        """Add all files of a directory.

        Args:
            local_path: Its path.
            name: A folder in the artifact.
            skip_cache: Accepted.
            policy: As of `add_file`.
            merge: Replace files of the same names.
        """
        self._require_open("add_dir")
        _check_policy(policy)
        directory = Path(local_path)
        if not directory.is_dir():
            raise ValueError(f"Path is not a directory: {os.fspath(local_path)!r}")
        for path in sorted(each for each in directory.rglob("*") if each.is_file()):
            inside = path.relative_to(directory).as_posix()
            inside = f"{Path(name).as_posix()}/{inside}" if name else inside
            self._check_new(inside, overwrite=merge)
            self._add(inside, self._copied(path, inside) if policy != "immutable" else path.absolute())

    def add_reference(
        self,
        uri: Any,
        name: str | None = None,
        checksum: bool = True,
        max_objects: int | None = None,
    ) -> Sequence[ArtifactManifestEntry]:
        """Add the address of a file that stays where it is.

        Args:
            uri: ``s3://...``, ``https://...``, ``file:///...``, or a file of another artifact.
            name: Its name in the artifact.
            checksum: Accepted; the digest is computed where the file is on this machine.
            max_objects: Accepted.
        """
        self._require_open("add_reference")
        if isinstance(uri, ArtifactManifestEntry):
            return [self._add(name or uri.path, Path(uri.download()))]
        parts = urlsplit(str(uri))
        if not parts.scheme:
            raise ValueError("References must be URIs. To reference a local file, use file://")
        if parts.scheme != "file":
            inside = name or parts.path.rstrip("/").rpartition("/")[2] or parts.netloc
            self._check_new(inside, overwrite=True)
            self._entries[inside] = ArtifactManifestEntry(self, inside, ref=str(uri))
            return [self._entries[inside]]
        path = Path(unquote(parts.path))
        if not path.exists():
            raise ValueError(f"Path {str(path)!r} must be a valid file or directory path")
        files = [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())
        added = []
        for each in files:
            below = each.name if each is path else each.relative_to(path).as_posix()
            inside = below if not name else name if each is path else f"{name}/{below}"
            ref, size = each.absolute().as_uri(), each.stat().st_size
            entry = ArtifactManifestEntry(self, inside, ref=ref, local_path=str(each.absolute()), size=size)
            self._entries[inside] = entry
            added.append(entry)
        return added

    def add(self, obj: WBValue, name: str, overwrite: bool = False) -> ArtifactManifestEntry:
        """Add a table or an image under a name; `get` returns it.

        Args:
            obj: The value.
            name: Its name in the artifact.
            overwrite: Replace a value of this name.
        """
        self._require_open("add")
        from hookline.compat.wandb import artifact_objects

        suffix = artifact_objects.suffix_of(obj)
        inside = name if name.endswith(suffix) else f"{name}{suffix}"
        self._check_new(inside, overwrite=overwrite)
        document = artifact_objects.encode(obj, self._add_content)
        return self._add_content(inside, json.dumps(document).encode())

    def remove(self, item: Any) -> None:
        """Remove a file, or a folder with its files."""
        self._require_open("remove")
        name = item.path if isinstance(item, ArtifactManifestEntry) else os.fspath(item)
        gone = [path for path in self._entries if path == name or path.startswith(f"{name.rstrip('/')}/")]
        if not gone:
            raise FileNotFoundError(errno.ENOENT, f"No such file or directory: {name!r}")
        for path in gone:
            del self._entries[path]

    def __setitem__(self, name: str, item: WBValue) -> None:
        self.add(item, name)

    def __getitem__(self, name: str) -> Any:
        return self.get(name)

    # Reading a version

    def get_entry(self, name: str | os.PathLike[str]) -> ArtifactManifestEntry:
        """Return a file by its name.

        Raises:
            KeyError: There is none.
        """
        inside = Path(name).as_posix()
        found = self._all_entries().get(inside)
        if found is None:
            raise KeyError(f"Path not contained in artifact: {inside}")
        return found

    get_path = get_entry

    def get(self, name: str) -> Any:
        """Return a table or an image that was added with `add`; None if there is none."""
        from hookline.compat.wandb import artifact_objects

        for suffix in ("", *artifact_objects.SUFFIXES):
            entry = self._all_entries().get(f"{name}{suffix}")
            if entry is not None and entry.path.endswith(tuple(artifact_objects.SUFFIXES)):
                return artifact_objects.decode(json.loads(self._content(entry.path)), self._content)
        return None

    def files(self, names: Sequence[str] | None = None, per_page: int = 50) -> list[Any]:
        """Return its files.

        Args:
            names: Only these.
            per_page: Accepted.
        """
        entries = self._all_entries().values()
        return [entry for entry in entries if names is None or entry.path in names]

    def download(
        self,
        root: str | os.PathLike[str] | None = None,
        allow_missing_references: bool = False,
        skip_cache: bool | None = None,
        path_prefix: str | None = None,
        multipart: bool | None = None,
    ) -> str:
        """Copy its files into a directory, and return the directory.

        Args:
            root: The directory; ``artifacts/<name>:<version>`` below ``WANDB_ARTIFACT_DIR`` or here by default.
            allow_missing_references: Leave out references that cannot be fetched.
            skip_cache: Accepted.
            path_prefix: Only files below this folder.
            multipart: Accepted.
        """
        found = self._require_saved("download")
        target = Path(self._default_root() if root is None else root).absolute()
        target.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".{target.name}.{secrets.token_hex(4)}.partial")
        wanted = [file for file in found.files if path_prefix is None or file.path.startswith(path_prefix)]
        try:
            whole = _with_files(found, [file for file in wanted if not file.uri])
            if whole.files:
                whole.get(partial)
            for file in wanted:
                if not file.uri:
                    _place(partial / file.path, target / file.path, base=target)
            self._fetch_references([file for file in wanted if file.uri], target, allow_missing_references)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        return str(target)

    def checkout(self, root: str | None = None) -> str:
        """Copy its files into a directory, and remove all others there."""
        target = Path(self.download(root))
        wanted = {file.path for file in self._require_saved("checkout").files}
        for path in [each for each in target.rglob("*") if not each.is_dir()]:
            if path.relative_to(target).as_posix() not in wanted:
                path.unlink()
        return str(target)

    def verify(self, root: str | None = None) -> None:
        """Compare downloaded files with their digests.

        Raises:
            ValueError: A file differs, or does not belong to the artifact.
        """
        target = Path(self._default_root() if root is None else root)
        wanted = {file.path: file for file in self._require_saved("verify").files}
        for path in [each for each in target.rglob("*") if not each.is_dir()]:
            name = path.relative_to(target).as_posix()
            if name not in wanted:
                raise ValueError(f"Found file {path} which is not a member of artifact {self.name}")
        for name, file in wanted.items():
            if not (target / name).is_file() and file.uri:
                continue
            with (target / name).open("rb") as opened:
                digest = hashlib.file_digest(opened, "sha256").hexdigest()
            if file.digest and digest != file.digest:
                raise ValueError(f"Digest mismatch for file: {target / name}")

    def file(self, root: str | None = None) -> str:
        """Copy the only file into a directory, and return its path."""
        found = self._require_saved("file")
        if len(found.files) != 1:
            raise ValueError(
                "This artifact contains more than one file, call `.download()` to get all files or call "
                '.get_entry("filename").download()'
            )
        return self.get_entry(found.files[0].path).download(root)

    # Versions

    def save(self, project: str | None = None, settings: Any = None) -> None:
        """Log it with the active run, or with a run of its own.

        Args:
            project: The project of a run of its own.
            settings: Settings of that run.
        """
        if self._save is not None or self._saved is not None:
            return
        run = active_run()
        if run is not None:
            run.log_artifact(self)
            return
        run = package().init(project=project, job_type="auto", settings=settings)
        run.log_artifact(self)
        run.finish()

    def wait(self, timeout: float | None = None) -> Self:
        """Wait until it is saved.

        Args:
            timeout: How many seconds to wait at most.

        Raises:
            ArtifactNotLoggedError: It was not logged.
            CommError: It could not be saved.
            TimeoutError: It is not saved yet.
        """
        if self._saved is None:
            if self._save is None:
                raise ArtifactNotLoggedError("'Artifact.wait' used prior to logging artifact or while in offline mode.")
            try:
                self._saved = self._save.wait(timeout)
            except HooklineError as error:
                raise CommError(str(error), error) from error
            if self._saved is None:
                raise ArtifactNotLoggedError(f"The artifact {self._name!r} is not recorded.")
            self._remove_staging()
        return self

    def new_draft(self) -> "Artifact":
        """Return a draft with the files of this version, for another one."""
        found = self._require_saved("new_draft")
        draft = Artifact(self._name, self._type, self.description, self._metadata)
        for file in found.files:
            if file.uri:
                draft._entries[file.path] = ArtifactManifestEntry(draft, file.path, ref=file.uri, size=file.size)
            else:
                # Hard-linked: the store updates a blob's times on use, which must not look like a change.
                draft._add(file.path, draft._copied(found.path(file.path), file.path, links=True))
        return draft

    def delete(self, delete_aliases: bool = False) -> None:
        """Delete the version.

        Args:
            delete_aliases: Also where aliases name it; otherwise that is an error.
        """
        found = self._require_saved("delete")
        if not delete_aliases and [alias for alias in found.aliases if alias != "latest"]:
            raise CommError(f"{self.name} has aliases ({', '.join(found.aliases)}). Give delete_aliases=True.")
        found.folder.delete(found.number)

    def link(self, target_path: str, aliases: Sequence[str] | None = None) -> "Artifact":
        """Link the files as a version in another project: ``link("model-registry/best-model")``.

        Args:
            target_path: ``project/name``; an entity in front is left out.
            aliases: Aliases of that version.
        """
        self.wait() if self._save is not None else None
        found = self._require_saved("link")
        parts = target_path.split("/")
        if len(parts) < 2:
            parts = [found.project, *parts]
        project, name = parts[-2], parts[-1].partition(":")[0]
        folder = ArtifactFolder(found.root, project, _checked_artifact_name(name))
        linked_from = {**found.metadata, "_linked_from": found.id}
        manifest = make_manifest(found.kind, linked_from, found.files, run=found.run, step=found.step)
        number, _ = folder.publish(manifest, checked_aliases(aliases))
        return Artifact.from_stored(stored.Artifact(folder, number))

    def unlink(self) -> None:
        """Delete a version that `link` made."""
        found = self._require_saved("unlink")
        if "_linked_from" not in found.metadata:
            raise ValueError(f"{self.name} is not a linked artifact")
        found.folder.delete(found.number)

    def logged_by(self) -> Any:
        """Return the run that saved it, as of `Api`; None if it is gone."""
        found = self._require_saved("logged_by")
        return _run_of(found.root, found.run) if found.run else None

    def used_by(self) -> list[Any]:
        """Return the runs that used it, as of `Api`."""
        found = self._require_saved("used_by")
        runs = [_run_of(found.root, each.run) for each in found.runs if each.role == "used"]
        return [run for run in runs if run is not None]

    def json_encode(self) -> dict[str, Any]:
        """Return the value that represents it in a configuration."""
        if self.is_draft():
            return {"_type": "artifactVersion", "_version": "v0", "name": self._name}
        names = {"id": self.id, "version": self.version, "sequenceName": self._name, "usedAs": None}
        return {"_type": "artifactVersion", "_version": "v0", **names}

    # Behind

    def begin_saving(self, save: "ArtifactSave") -> None:
        """Note that a run is saving it."""
        self._save, self._is_final = save, True

    def sources(self) -> tuple[dict[str, str], bool]:
        """Return the files to save by name, and whether they are references to this machine's files.

        Raises:
            UnsupportedError: It has no files, or stored files beside references to local ones.
        """
        if not self._entries:
            raise UnsupportedError(f"The artifact {self._name!r} has no files. Add one; hookline saves none without.")
        local = [entry for entry in self._entries.values() if entry.ref and entry.ref.startswith("file:")]
        if local and len(local) < len(self._entries):
            raise UnsupportedError(
                f"The artifact {self._name!r} has stored files beside references to files of this machine. hookline "
                "saves either; use two artifacts, or add_file."
            )
        places = {path: entry.local_path or str(entry.ref) for path, entry in self._entries.items()}
        return places, bool(local)

    @property
    def is_staged(self) -> bool:
        """Whether all stored files are copies that nothing changes."""
        staging = self._staging
        return staging is not None and all(
            entry.local_path is None or Path(entry.local_path).is_relative_to(staging)
            for entry in self._entries.values()
        )

    def saved_metadata(self) -> dict[str, Any]:
        """Return the metadata as saved, with the description."""
        return {**self._metadata, **({_DESCRIPTION: self.description} if self.description else {})}

    def set_root(self, root: Path) -> None:
        """Set where files that are added from now on are copied."""
        self._root = root

    def _all_entries(self) -> dict[str, ArtifactManifestEntry]:
        if self._saved is None:
            return self._entries
        return {file.path: _entry_of(self, file) for file in self._saved.files}

    def _add(self, name: str, path: Path) -> ArtifactManifestEntry:
        entry = ArtifactManifestEntry(self, name, local_path=str(path), size=path.stat().st_size)
        self._entries[name] = entry
        return entry

    def _add_content(self, name: str, content: bytes) -> ArtifactManifestEntry:
        path = self._staged(name)
        path.write_bytes(content)
        return self._add(name, path)

    def _content(self, name: str) -> bytes:
        entry = self.get_entry(name)
        if self._saved is not None:
            return self._saved.path(name).read_bytes()
        return Path(str(entry.local_path)).read_bytes()

    def _staged(self, name: str) -> Path:
        if self._staging is None:
            self._staging = new_staging(self._root)
            self._finalizer = weakref.finalize(self, shutil.rmtree, self._staging, ignore_errors=True)
            # Not at exit: the run that saves the artifact ends later. Later processes remove leftover folders.
            self._finalizer.atexit = False
        path = self._staging / f"{len(self._entries)}-{secrets.token_hex(4)}" / Path(name).name
        path.parent.mkdir(parents=True)
        return path

    def _copied(self, path: Path, name: str, *, links: bool = False) -> Path:
        target = self._staged(name)
        if links:
            with contextlib.suppress(OSError):  # another file system
                os.link(path, target)
                return target
        shutil.copyfile(path, target)
        return target

    def _remove_staging(self) -> None:
        if self._staging is not None:
            self._finalizer()
            self._staging = None

    def _require_open(self, what: str) -> None:
        if self._is_final:
            raise Error(f"{what}: Can't modify finalized artifact {self._name!r}")

    def _check_new(self, name: str, *, overwrite: bool) -> None:
        parts = Path(name).parts
        if not parts or Path(name).is_absolute() or ".." in parts:
            raise ValueError(f"{name!r:.200} is not a file's name in an artifact.")
        if name in self._entries and not overwrite:
            raise ValueError(f"File with name {name!r} already exists in the artifact. Give overwrite=True.")

    def _require_saved(self, what: str) -> stored.Artifact:
        if self._saved is None and self._save is not None:
            self.wait()
        if self._saved is None:
            raise ArtifactNotLoggedError(f"'Artifact.{what}' used prior to logging artifact.")
        return self._saved

    def _default_root(self) -> str:
        home = os.environ.get("WANDB_ARTIFACT_DIR") or "artifacts"
        return str(Path(home, f"{self._name}:{self.version}"))

    def _fetch_references(self, files: Sequence[ArtifactFile], target: Path, allow_missing: bool) -> None:
        from hookline._record import remote_files

        found = self._require_saved("download")
        for file in files:
            try:
                if file.uri.startswith("file:"):
                    _place(found.path(file.path), target / file.path, base=target)
                else:
                    path = target / file.path
                    path.parent.mkdir(parents=True, exist_ok=True)
                    remote_files.fetch(file.uri, path, size=file.size, etag=file.etag, sha256=file.sha256)
            except (HooklineError, OSError) as error:
                if not allow_missing:
                    raise CommError(f"Unable to find {file.uri}: {error}") from error
                termwarn(f"Unable to find {file.uri}, skipping: {error}")


class _Aliases(list[str]):
    """The aliases of a version; changes name it, or no longer do."""

    def __init__(self, artifact: Artifact, aliases: Sequence[str]) -> None:
        super().__init__(aliases)
        self._artifact = artifact

    def append(self, alias: str) -> None:
        super().append(alias)
        self._artifact.aliases = self

    def extend(self, aliases: Any) -> None:
        super().extend(aliases)
        self._artifact.aliases = self

    def remove(self, alias: str) -> None:
        super().remove(alias)
        self._artifact.aliases = self


class ArtifactCollection:
    """All versions of an artifact's name.

    Attributes:
        name: The name.
        type: What they are.
    """

    def __init__(self, folder: ArtifactFolder, kind: str) -> None:
        self._folder, self.name, self.type = folder, folder.name, kind

    @property
    def project(self) -> str:
        """The project."""
        return self._folder.project

    @property
    def aliases(self) -> list[str]:
        """The aliases of all versions."""
        return list(self._folder.aliases())

    def artifacts(self, per_page: int = 50) -> list[Artifact]:
        """Return all versions, the latest first."""
        numbers = reversed(self._folder.versions())
        return [Artifact.from_stored(stored.Artifact(self._folder, number)) for number in numbers]

    versions = artifacts


def find_artifact(reference: str, *, root: Path, project: str, type: str | None = None) -> Artifact:  # noqa: A002
    """Return a version by ``[entity/][project/]name[:alias]``.

    Raises:
        CommError: There is none.
        ValueError: It is of another type.
    """
    text = str(reference).removeprefix("wandb-artifact://")
    *before, last = text.split("/")
    name = f"{before[-1]}/{last}" if before else last
    try:
        parsed = parse_reference(name, project)
        folder = ArtifactFolder(root, parsed.project, parsed.name)
        found = stored.Artifact(folder, folder.resolve(parsed.version))
    except (HooklineError, UnknownNameError) as error:
        raise CommError(f"artifact {reference!r} not found: {error}", error) from error
    if type is not None and type != found.kind:
        raise ValueError(f"Supplied type {type} does not match type {found.kind} of artifact {found.name}")
    return Artifact.from_stored(found)


def checked_aliases(aliases: Any) -> list[str]:
    """Return aliases without ``latest``, which is always set.

    Raises:
        ValueError: One has a ``/`` or ``:``, or is a version number.
    """
    given = [] if aliases is None else [aliases] if isinstance(aliases, str) else list(aliases)
    found = []
    for alias in given:
        text = str(alias)
        if any(mark in text for mark in "/:") or re.fullmatch(r"v\d+", text):
            raise ValueError(f"The alias {text!r:.200} must not contain '/' or ':', nor be a version number.")
        if text != "latest":
            found.append(re.sub(r"[^A-Za-z0-9_.\-]", "-", text)[:128])
    return list(dict.fromkeys(found))


def make_artifact_name_safe(name: str) -> str:
    """Return a name with characters that artifacts do not have replaced by ``_``."""
    cleaned = re.sub(r"[^a-zA-Z0-9_\-.]", "_", name)
    return cleaned if len(cleaned) <= 128 else f"{cleaned[:63]}..{cleaned[-63:]}"


def new_staging(root: Path | None) -> Path:
    """Create a folder for the files of a draft below a root, and remove those that dead processes left."""
    home = (current_root() if root is None else root) / STAGING
    home.mkdir(parents=True, exist_ok=True)
    for left in home.iterdir():
        owner = left.name.partition("-")[0]
        if owner.isdigit() and not _is_alive(int(owner)):
            shutil.rmtree(left, ignore_errors=True)
    folder = home / f"{os.getpid()}-{secrets.token_hex(6)}"
    folder.mkdir()
    return folder


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _checked_metadata(metadata: Any) -> dict[str, Any]:
    if metadata is None:
        return {}
    if not isinstance(metadata, Mapping):
        raise TypeError(f"metadata must be dict, not {type(metadata)}")
    if len(metadata) > 100:
        raise ValueError(f"metadata has {len(metadata)} keys; at most 100 are accepted")
    plain = plain_value(dict(metadata))
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def _checked_artifact_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r:.200} is not the name of an artifact.")
    return name


def _check_policy(policy: str | None) -> None:
    if policy not in ("mutable", "immutable", None):
        raise ValueError(f"Invalid policy {policy!r}. Policy may only be `mutable` or `immutable`.")


def _entry_of(artifact: Artifact, file: ArtifactFile) -> ArtifactManifestEntry:
    entry = ArtifactManifestEntry(artifact, file.path, ref=file.uri or None, size=file.size)
    entry._digest = file.digest
    return entry


def _with_files(found: stored.Artifact, files: Sequence[ArtifactFile]) -> stored.Artifact:
    """Return a version with some of its files only."""
    part = stored.Artifact(found.folder, found.number)
    part.files = tuple(files)
    return part


def _place(source: Path, target: Path, *, base: Path) -> None:
    """Copy a file below a directory, replacing one that is there, but not through links.

    Raises:
        CommError: A folder on the way is a link, so the file would be written elsewhere.
    """
    for parent in target.parents:
        if parent == base:
            break
        if parent.is_symlink():
            raise CommError(f"{parent} is a link; files are not written through it.")
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        shutil.copyfile(source, partial)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def _run_of(root: Path, run: str) -> Any:
    project, _, name = run.partition("/")
    try:
        return package().Api(overrides={"root": root}).run(f"{project}/{name}")
    except (CommError, ValueError):
        return None
