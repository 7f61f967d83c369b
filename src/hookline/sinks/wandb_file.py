"""Reads the file in which wandb's own process writes down a run before it sends it anywhere.

The ``.wandb`` file is a log in LevelDB's format: blocks of 32 KiB with chunks of records, each record
one of wandb's protocol buffers. What stands in it survives the death of every process, and
``wandb sync`` sends it.
"""

import struct
from collections.abc import Iterator
from pathlib import Path

from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]

_BLOCK = 32768
_BEGINNING = 7
_CHUNK = struct.Struct("<IHB")
_FULL, _FIRST, _LAST = 1, 2, 4


class WandbFile:
    """Follows a ``.wandb`` file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = _BEGINNING

    def new(self) -> Iterator[Record]:
        """The records since the last time, without one that is not complete yet."""
        for data, end in _records(self.path, self._offset):
            self._offset = end
            yield Record.FromString(data)

    def new_rows(self) -> Iterator[int]:
        """The numbers of the rows since the last time."""
        return (record.history.step.num for record in self.new() if record.HasField("history"))


def _records(path: Path, offset: int) -> Iterator[tuple[bytes, int]]:
    """The records from an offset on, each with the offset behind it."""
    record = b""
    with path.open("rb") as file:
        file.seek(offset)
        while True:
            left = _BLOCK - file.tell() % _BLOCK
            if left < _CHUNK.size:  # the rest of a block that is too small for a chunk
                file.seek(left, 1)
            header = file.read(_CHUNK.size)
            _, size, kind = _CHUNK.unpack(header) if len(header) == _CHUNK.size else (0, 0, 0)
            chunk = file.read(size)
            if not kind or len(chunk) < size:
                return
            record = chunk if kind in (_FULL, _FIRST) else record + chunk
            if kind in (_FULL, _LAST):
                yield record, file.tell()
