"""Media of other tools: files of the source as values of a run, and how they are written to the new run.

The source is not trusted. A file is read only if it is a regular file inside the source's directory, reached without a
link, and not larger than `MAX_FILE_BYTES`. Its content is copied and not interpreted; only small descriptions (tables,
figures) are parsed.
"""

import contextlib
import errno
import json
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from hookline._engine.errors import OptionError
from hookline._record.blobs import BlobBatch, references_in
from hookline._record.media import Captured, Encoded, Invalid, Media
from hookline._record.media_table import Table, table_records
from hookline._record.media_writer import media_facts
from hookline._record.records import Media as MediaRecord
from hookline._record.records import Record, TableRows, clean, encode

MAX_FILE_BYTES = 5 * 10**9
MAX_PARSED_BYTES = 64 << 20
"""The maximum size of a description that is parsed."""
KINDS = {
    **dict.fromkeys(("png", "jpg", "jpeg", "gif", "webp", "bmp", "svg"), "image"),
    **dict.fromkeys(("wav", "mp3", "ogg", "flac", "m4a"), "audio"),
    **dict.fromkeys(("mp4", "webm", "mov", "avi"), "video"),
    **dict.fromkeys(("html", "htm"), "html"),
    "md": "markdown",
}
"""The type of media that a file with a suffix becomes; ``file`` otherwise."""
_UNREADABLE = frozenset({errno.ENOENT, errno.EACCES, errno.ENOTDIR, errno.ELOOP, errno.EISDIR, errno.ENXIO})
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW


def open_inside(home: Path, name: str | PurePosixPath, limit: int = MAX_FILE_BYTES) -> BinaryIO:
    """Open a file below a directory.

    Raises:
        OptionError: The name leads out of the directory or through a link, or is not a regular file, or is too large.
        OSError: It cannot be opened.
    """
    parts = PurePosixPath(name).parts
    if not parts or PurePosixPath(name).is_absolute() or ".." in parts or "\0" in str(name):
        raise OptionError(f"{str(name)!r:.200} is not inside {home}")
    descriptor = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)  # the user's own path: it may be a link
    try:
        for part in parts[:-1]:
            inner = os.open(part, _FLAGS | os.O_DIRECTORY, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
        file = os.open(parts[-1], _FLAGS, dir_fd=descriptor)
    finally:
        os.close(descriptor)
    found = os.fstat(file)
    if not stat.S_ISREG(found.st_mode) or found.st_size > limit:
        os.close(file)
        reason = "is not a regular file" if not stat.S_ISREG(found.st_mode) else f"has more than {limit:,} bytes"
        raise OptionError(f"{name} {reason}")
    return os.fdopen(file, "rb")


def parse_json(home: Path, name: str) -> Any:
    """Parse a small JSON file below a directory.

    Raises:
        ValueError: It is not JSON.
        OptionError: See `open_inside`.
        OSError: It cannot be read.
    """
    with open_inside(home, name, MAX_PARSED_BYTES) as file:
        try:
            return json.load(file)
        except RecursionError:
            raise ValueError(f"{name} is nested too deeply") from None


def files_inside(home: Path) -> Iterator[Path]:
    """Yield the regular files below a directory in a fixed order; links are not followed."""
    for folder, folders, names in os.walk(home):
        folders.sort()
        for name in sorted(names):
            path = Path(folder, name)
            with contextlib.suppress(OSError):
                if stat.S_ISREG(path.lstat().st_mode):
                    yield path


class SourceFile(Media):
    """A file of the source, copied unchanged.

    Args:
        home: The source's directory.
        name: The file's path below it.
        kind: The type of media; by default from the file's suffix.
        caption: Shown below it.
        data: Facts for the record.
    """

    def __init__(
        self,
        home: Path,
        name: str,
        *,
        kind: str | None = None,
        caption: str = "",
        data: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(caption=caption)
        self.home, self.name, self.data = home, name, dict(data or {})
        self.suffix = PurePosixPath(name).suffix.lstrip(".").lower()[:16]
        self.type = kind or KINDS.get(self.suffix, "file")

    def _capture(self, name: str) -> Captured:
        return Captured(self.type, self._encode, 0, caption=self.caption)

    def _encode(self) -> Encoded:
        suffix = (
            "plotly.json" if self.type == "figure" else {"jpg": "jpeg", "htm": "html"}.get(self.suffix, self.suffix)
        )
        data = {"file": PurePosixPath(self.name).name} | self.data
        return Encoded(self.open(), suffix, clean(data))

    def open(self) -> BinaryIO:
        """Open the file.

        Raises:
            OptionError: See `open_inside`.
            OSError: It cannot be opened.
        """
        return open_inside(self.home, self.name)


class Stored(Media):
    """Media or rows of a table of an exported run: its record, and its blobs in a folder.

    Args:
        record: The record.
        blobs: The folder with the blobs, each named by its digest.
    """

    def __init__(self, record: MediaRecord | TableRows, blobs: Path) -> None:
        super().__init__()
        self.record, self.blobs = record, blobs


def media_records(item: Any, batch: BlobBatch) -> list[Record]:
    """Return the records of a media item, whose blobs are added to a batch.

    Raises:
        ValueError: It cannot be recorded.
    """
    stamp = (item.time, item.step, item.axis)
    value = item.media
    try:
        if isinstance(value, Table):
            new = value.take_new()
            rows = [[_cell(cell, batch) for cell in row] for row in new.rows]
            return table_records(new._replace(rows=rows), item.name, stamp)
        if isinstance(value, Stored):
            for digest in references_in(encode(value.record)):
                copy_blob(value.blobs, digest, batch)
            return [value.record]
        facts = _facts(value, item.name, batch)
    except OSError as error:
        if error.errno in _UNREADABLE:
            raise ValueError(f"{error.filename or 'a file'}: {error.strerror}; links are not followed") from error
        raise  # the disk of the new run is full
    time, step, axis = stamp
    return [MediaRecord(time=time, step=step, axis=axis, name=item.name, index=item.position, **facts)]


def _facts(value: Media, name: str, batch: BlobBatch) -> dict[str, Any]:
    captured = value.capture(name)
    if isinstance(captured, Invalid):
        raise ValueError(captured.reason)  # noqa: TRY004 - the source is at fault
    return _encoded_facts(captured, batch)


def _cell(cell: Any, batch: BlobBatch) -> Any:
    if not isinstance(cell, Captured):
        return f"({cell.reason})" if isinstance(cell, Invalid) else cell
    return {"media": _encoded_facts(cell, batch)}


def _encoded_facts(captured: Captured, batch: BlobBatch) -> dict[str, Any]:
    encoded = captured.encode()
    try:
        return media_facts(encoded, batch, captured.type, captured.caption)
    finally:
        if encoded.content is not None and not isinstance(encoded.content, bytes):
            encoded.content.close()


def copy_blob(folder: Path, digest: str, batch: BlobBatch) -> None:
    """Copy an exported blob, unless it is there.

    Raises:
        ValueError: Its content has another digest, or it is missing.
    """
    if batch.exists(digest):
        return
    try:
        opened = open_inside(folder, digest)
    except OSError as error:
        raise ValueError(f"{folder / digest}: {error.strerror}; links are not followed") from error
    with opened as file:
        if batch.add_file(file).digest != digest:  # kept under its own digest, which nothing refers to
            raise ValueError(f"{folder / digest} has other content than its name says")
