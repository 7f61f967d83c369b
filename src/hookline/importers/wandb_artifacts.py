"""Files of W&B's artifacts: those that a run saved, and the media in the cells of its tables.

An offline run's ``.wandb`` file names them by absolute paths: W&B keeps copies in a staging folder of its own, and
moves them to its cache when they are sent. The file is not trusted, and a path in it could be any. So a file is read
only if it is inside the source's directory or in one of W&B's two folders on this machine, reached without a link below
them, and only if it has the size and the MD5 that the manifest names. A version that lacks a file is not imported.
"""

import base64
import binascii
import functools
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

from hookline._engine.errors import OptionError
from hookline._record.artifact_versions import checked_aliases
from hookline._record.media import Media
from hookline._record.media_table import Table
from hookline.importers.media import MAX_PARSED_BYTES, SourceFile, open_inside
from hookline.importers.sources import ArtifactRow, ArtifactSource

TABLE = "run_table"
"""The type of the artifacts that W&B makes of logged tables."""
_OWN_TYPES = frozenset({TABLE, "job", "wandb-history", "wandb-events"})
_CLIENT = re.compile(r"wandb-client-artifact://([A-Za-z0-9]+)/(.+)")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.\-]")
_md5 = functools.partial(hashlib.md5, usedforsecurity=False)
MakeCell = Callable[[Mapping[str, Any], "Callable[[str], CheckedFile]"], Media]


class CheckedFile(SourceFile):
    """A file of an artifact, which is compared with its digest when it is read.

    Args:
        home: The folder that it is in.
        stored: Its path below that.
        called: Its path in the artifact.
        size, md5: Its size and digest.
        options: Those of `SourceFile`.
    """

    def __init__(self, home: Path, stored: str, called: str, *, size: int, md5: bytes, **options: Any) -> None:
        super().__init__(home, called, **options)
        self.stored, self.size, self.md5 = stored, size, md5

    def open(self) -> BinaryIO:
        """Open the file.

        Raises:
            OptionError: It cannot be read, or has another content than the manifest says.
        """
        try:
            file = open_inside(self.home, self.stored)
        except OSError as error:  # the source's fault, and not a full disk of the new run
            raise OptionError(f"{self.name} cannot be read: {error.strerror}; links are not followed") from error
        # Read only if it has the right size: a source may name a file that is large.
        is_long = os.fstat(file.fileno()).st_size != self.size
        if is_long or hashlib.file_digest(file, _md5).digest() != self.md5:  # type: ignore[arg-type]
            file.close()
            raise OptionError(f"{self.name} has another content than W&B saved")
        file.seek(0)
        return file

    def with_facts(self, kind: str, caption: str, data: Mapping[str, Any]) -> "CheckedFile":
        """Return it as media of a type."""
        options: dict[str, Any] = {"kind": kind, "caption": caption, "data": data}
        return CheckedFile(self.home, self.stored, self.name, size=self.size, md5=self.md5, **options)


class WandbArtifacts:
    """The artifacts that the records of one run describe.

    Args:
        directory: The source's directory.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory.resolve()
        env = import_module("wandb.env")
        data, cache = Path(env.get_data_dir()).expanduser(), Path(env.get_cache_dir()).expanduser()
        self._homes = [self._directory, (data / "artifacts" / "staging").resolve()]
        self._cache = cache.resolve() / "artifacts" / "obj" / "md5"
        self._tables: dict[str, dict[str, Any]] = {}
        """The entries of the manifests of tables, by the client's id of the artifact and by path."""

    def add(self, artifact: Any, step: int, time: float) -> Iterator[ArtifactRow]:
        """Note a table's artifact, or yield another one as a version.

        Raises:
            OptionError: A file is not there, or the record is not valid.
        """
        entries = list(artifact.manifest.contents)
        if artifact.type == TABLE:
            self._tables[artifact.client_id] = {entry.path: entry for entry in entries}
        if artifact.type in _OWN_TYPES:
            return
        files = [self._source(entry) for entry in entries]
        try:
            metadata = json.loads(artifact.metadata or "{}")
        except (ValueError, RecursionError):
            metadata = {}
        metadata = metadata if isinstance(metadata, dict) else {"metadata": metadata}
        metadata |= {"description": artifact.description} if artifact.description else {}
        name = _NOT_IN_NAMES.sub("_", artifact.name).lstrip(".-")[:128] or "artifact"
        kind = artifact.type if artifact.type.isprintable() and 0 < len(artifact.type) <= 64 else "artifact"
        aliases = [alias for alias in artifact.aliases if _is_alias(alias)]
        is_used = bool(artifact.use_after_commit)
        yield ArtifactRow(step, time, name, kind, aliases, metadata, files, is_used=is_used)

    def _source(self, entry: Any) -> ArtifactSource:
        if not entry.ref:
            found = self._find(entry)
            return ArtifactSource(entry.path, found.open)
        if entry.ref.startswith(("wandb-client-artifact:", "wandb-artifact:")):
            raise OptionError(f"{entry.path!r:.200} is a file of another artifact of W&B's")
        return ArtifactSource(entry.path, uri=entry.ref, size=entry.size or None)

    def _find(self, entry: Any) -> CheckedFile:
        try:
            md5 = base64.b64decode(entry.digest, validate=True)
        except (binascii.Error, ValueError):
            md5 = b""
        if len(md5) == 16:
            digest = md5.hex()
            places = [(self._cache, f"{digest[:2]}/{digest[2:]}")]
            path = Path(entry.local_path)
            # The folder may be reached through links, which are the user's; below it none is followed.
            for home in self._homes if path.is_absolute() else ():
                inside = Path(os.path.realpath(path.parent)) / path.name
                if inside.is_relative_to(home):
                    places.insert(0, (home, inside.relative_to(home).as_posix()))
            for home, stored in places:
                if (home / stored).is_file() and not (home / stored).is_symlink():
                    return CheckedFile(home, stored, entry.path, size=entry.size, md5=md5)
        raise OptionError(f"{entry.path!r:.200} is neither in the run's directory nor in W&B's folders on this machine")

    def table(self, value: Mapping[str, Any], make_cell: MakeCell) -> Table | None:
        """Return a logged table with the media in its cells; None if it has no artifact here.

        Args:
            value: The value of the history.
            make_cell: Makes media of a cell, given a function that finds a file of the artifact.
        """
        found = _CLIENT.fullmatch(str(value.get("artifact_path") or ""))
        entries = self._tables.get(found[1], {}) if found else {}
        if found is None or found[2] not in entries:
            return None

        def find(path: str) -> CheckedFile:
            if path not in entries:
                raise OptionError(f"{path!r:.200} is not in the table's artifact")
            return self._find(entries[path])

        file = find(found[2])
        if file.size > MAX_PARSED_BYTES:
            raise OptionError(f"{found[2]} has more than {MAX_PARSED_BYTES:,} bytes")
        with file.open() as opened:
            try:
                content = json.load(opened)
            except RecursionError:
                raise ValueError(f"{found[2]} is nested too deeply") from None
        rows = [[make_cell(cell, find) if _is_media(cell) else cell for cell in row] for row in content["data"]]
        return Table([str(column) for column in content["columns"]], rows)


def _is_media(cell: object) -> bool:
    return isinstance(cell, dict) and isinstance(cell.get("_type"), str)


def _is_alias(alias: str) -> bool:
    try:
        return bool(checked_aliases([alias]))
    except OptionError:
        return False
