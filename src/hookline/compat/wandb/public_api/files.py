"""The files of a recorded run: saved files, media, and files that describe the run, as wandb writes them."""

import io
import json
import mimetypes
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, TextIO, TypeVar

import msgspec

from hookline._record.blobs import read_blob
from hookline._record.reader import CONSOLE, read
from hookline._record.records import ConsoleLine, Media, TableRows
from hookline.compat.wandb.errors import CommError, UnsupportedError
from hookline.compat.wandb.saved_files import FILES

FOLDERS = {"image": "images", "figure": "plotly", "audio": "audio", "video": "videos", "html": "html"}
"""The folders of media below ``media/``; other types have that of ``files``."""
Item = TypeVar("Item")


class File:
    """A file of a run.

    Args:
        name: Its name.
        content: Returns its content.
        size: Its size in bytes; that of the content by default.
        time: When it was written, in seconds since 1970.
        path: Where it is, for a file that was saved.
    """

    def __init__(
        self, name: str, content: Callable[[], bytes], *, size: int | None = None, time: float = 0.0, path: Any = None
    ) -> None:
        self.name = name
        self._content, self._size, self._time, self._path = content, size, time, path

    def __repr__(self) -> str:
        return f"<File {self.name} ({self.mimetype})>"

    @property
    def size(self) -> int:
        """Its size in bytes."""
        return len(self._content()) if self._size is None else self._size

    @property
    def mimetype(self) -> str:
        """The type of its content."""
        return mimetypes.guess_type(self.name)[0] or "application/octet-stream"

    @property
    def md5(self) -> str:
        """A digest of its content: its SHA-256."""
        return sha256(self._content()).hexdigest()

    @property
    def updated_at(self) -> str:
        """When it was written, in ISO form."""
        return datetime.fromtimestamp(self._time).astimezone().isoformat()

    @property
    def url(self) -> str:
        """Its address, for a file that was saved."""
        return Path(self._path).as_uri() if self._path is not None else ""

    direct_url = url

    def download(self, root: str = ".", replace: bool = False, exist_ok: bool = False, api: Any = None) -> TextIO:
        """Copy it below a directory, and open it.

        Args:
            root: The directory.
            replace: Replace a file that is there.
            exist_ok: Open a file that is there instead of raising.
            api: Accepted.

        Raises:
            ValueError: The file is there already, or its name leads out of the directory: names come from the record.
        """
        target = Path(root, self.name)
        if ".." in target.parts[len(Path(root).parts) :] or not target.resolve().is_relative_to(Path(root).resolve()):
            raise ValueError(f"{self.name!r:.200} leads out of {root}.")
        if target.exists() and not replace:
            if exist_ok:
                return target.open(encoding="utf-8")
            raise ValueError("File already exists, pass replace=True to overwrite or exist_ok=True to leave it as is.")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(self._content())
        return target.open(encoding="utf-8")

    def delete(self) -> None:
        """Delete a file that was saved.

        Raises:
            UnsupportedError: It is part of the record.
        """
        if self._path is None:
            raise UnsupportedError(f"{self.name!r} is part of the run's record and cannot be deleted.")
        Path(self._path).unlink()


class Found(Sequence[Item]):
    """The items that a call of the API found.

    Args:
        found: The items.
    """

    def __init__(self, found: Sequence[Item]) -> None:
        self._found = list(found)

    def __getitem__(self, index: Any) -> Any:
        return self._found[index]

    def __len__(self) -> int:
        return len(self._found)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} ({len(self)})>"


class Files(Found[File]):
    """The files of a run."""


def saved_files(directory: Path) -> Iterator[File]:
    """Yield the files that were saved with a run, without links."""
    folder = directory / FILES
    if folder.is_symlink() or not folder.is_dir():
        return
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink() and path.resolve().is_relative_to(folder.resolve()):
            status = path.stat()
            name = path.relative_to(folder).as_posix()
            yield File(name, path.read_bytes, size=status.st_size, time=status.st_mtime, path=path)


def media_path(record: Media | TableRows) -> str:
    """Return the name of the file with a value of media, as wandb forms it."""
    if isinstance(record, TableRows):
        return f"media/table/{record.name}_{record.step}_{record.table[:20]}.table.json"
    suffix = record.format or "json"
    return f"media/{FOLDERS.get(record.type, 'files')}/{record.name}_{record.step}_{record.blob[:20]}.{suffix}"


def media_files(directory: Path, records: Sequence[Media | TableRows]) -> Iterator[File]:
    """Yield the files with media; of a table, one with all rows that were recorded at a step and before."""
    tables: dict[str, list[TableRows]] = {}
    for record in records:
        if isinstance(record, TableRows):
            tables.setdefault(record.table, []).append(record)
            rows = list(tables[record.table])
            yield File(media_path(record), lambda rows=rows: _table_document(rows), time=record.time)  # type: ignore[misc]
        elif record.blob:
            yield File(media_path(record), _Blob(directory, record.blob), size=record.size, time=record.time)


class _Blob:
    """Returns the content of a blob."""

    def __init__(self, directory: Path, digest: str) -> None:
        self._directory, self._digest = directory, digest

    def __call__(self) -> bytes:
        try:
            return read_blob(self._directory, self._digest)
        except OSError as error:
            raise CommError(f"The file cannot be read: {error}") from error


def _table_document(records: Sequence[TableRows]) -> bytes:
    rows = [row for record in records for row in record.rows]
    return msgspec.json.encode({"columns": records[0].columns, "data": rows})


def described_files(run: Any) -> Iterator[File]:
    """Yield descriptions of a run: ``config.yaml``, ``wandb-summary.json``, ``wandb-metadata.json``, ``output.log``."""
    yield File("config.yaml", lambda: _config_document(run.config))
    yield File("wandb-summary.json", lambda: json.dumps(dict(run.summary_values), default=str).encode())
    yield File("wandb-metadata.json", lambda: json.dumps(run.metadata, default=str).encode())
    yield File("output.log", lambda: _console_text(run.directory))


def _config_document(config: Any) -> bytes:
    import yaml

    text = io.StringIO()
    yaml.safe_dump({"wandb_version": 1, **{key: {"value": value} for key, value in config.items()}}, text)
    return text.getvalue().encode()


def _console_text(directory: Path) -> bytes:
    lines = [record for record in read(directory, writer=CONSOLE) if isinstance(record, ConsoleLine)]
    return "".join(f"{line.text}\n" for line in lines if not line.partial).encode()
