"""The records of an event file: each with its length, and checksums of both, as TFRecord files have them.

A record whose content is damaged is named and left out; where the length itself is, nothing behind it
can be found, and the rest of the file is named. A record that is cut off is the end: the writer was
killed, or is still writing.
"""

import functools
import struct
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

from hookline.integrations.ingest.source import Reading

_HEADER = struct.Struct("<QI")
_CHECKSUM = struct.Struct("<I")
_FRAME = _HEADER.size + _CHECKSUM.size


def records(path: Path, reading: Reading) -> Iterator[bytes]:
    """The contents of a file's whole records."""
    try:
        with path.open("rb") as file:
            yield from _whole(file, path, reading)
    except OSError as error:
        reading.skip(str(path), error)


def _whole(file: BinaryIO, path: Path, reading: Reading) -> Iterator[bytes]:
    size, begin = path.stat().st_size, 0
    while begin < size:
        try:
            content = _next(file, size - begin)
        except _DamagedError as damaged:
            reading.skip(f"{path}, byte {begin}", damaged)
            passed = damaged.size or size - begin
        else:
            yield content
            passed = len(content) + _FRAME
        reading.advance(passed)
        begin += passed


class _DamagedError(Exception):
    """A record that is no good; without a size nothing behind it can be found."""

    def __init__(self, reason: str, size: int = 0) -> None:
        super().__init__(reason)
        self.size = size


def _next(file: BinaryIO, room: int) -> bytes:
    header = file.read(_HEADER.size)
    if len(header) < _HEADER.size:
        raise _DamagedError("the last record is cut off")
    length, checksum = _HEADER.unpack(header)
    if _length_checksum(header[:8]) != checksum:
        raise _DamagedError("the length of a record is damaged; the rest of the file is left out")
    if length + _FRAME > room:
        raise _DamagedError("the last record is cut off")
    content = file.read(length)
    if _checksum(content) != _CHECKSUM.unpack(file.read(_CHECKSUM.size))[0]:
        raise _DamagedError("a record is damaged; it is left out", length + _FRAME)
    return content


def _checksum(content: bytes) -> int:
    """TensorBoard's own checksum, which is written in Python: it takes most of the time of an import."""
    return int(_masked_crc32c()(content))


_length_checksum = functools.lru_cache(maxsize=1 << 12)(_checksum)
"""Most records have one of a few lengths."""


@functools.cache
def _masked_crc32c() -> Any:
    return import_module("tensorboard.compat.tensorflow_stub.pywrap_tensorflow").masked_crc32c
