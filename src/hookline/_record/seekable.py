"""The format of compressed journal files: zstd in independent frames, with an index that gives random access.

``X.jsonl.zst`` holds the bytes of ``X.jsonl`` in frames of at most `FRAME_BYTES` of content, cut after a line where
that is possible, each with a checksum. A skippable frame at the end lists the two sizes of each frame. This is the
seekable format of the zstd project, so ``zstd -d`` unpacks a file as well. A reader finds the frame of an offset in
the index and decompresses only that one. All offsets are those of the content.

A file may come from a shared directory or another machine, so nothing in it is trusted:

- The decoder stops at the size that the index promises, which is at most `FRAME_BYTES`, and gets a window no larger.
- A frame that cannot be decompressed, has another size or contains a zero byte reads as one line of blanks. Such a line
  is not a record: readers skip, count and report it, and only the lines of that frame are lost.
- The content of a file is at most `_FREE_BYTES` + `_MAX_RATIO` times its size, so that time is bounded as well.
- A damaged or missing index is rebuilt from the headers of the frames, up to the first that cannot be read.

The package (``compression.zstd`` of Python 3.14, ``backports.zstd`` before) is imported when a frame is compressed or
decompressed. Listing files and their sizes does not need it.
"""

import bisect
import contextlib
import errno
import itertools
import os
import struct
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Self, TypeVar

from hookline._engine.errors import MissingExtraError

if TYPE_CHECKING:
    from types import ModuleType

K = TypeVar("K")
V = TypeVar("V")
SUFFIX = ".zst"
"""Follows the name of a journal file that is compressed."""
FRAME_BYTES = 1 << 20
"""The most content of a frame: what a reader decompresses to read one byte."""
MAX_LINE_BYTES = 16 << 20
"""The longest line of a compressed file. A reader has to keep a line in memory, and a bomb could be a single one."""
_LEVEL = 9
"""A tenth to a fifth smaller than the default of 3, for twice the time to compress and the same to read."""
_MAX_COMPRESSED = FRAME_BYTES + (64 << 10)
"""More than zstd ever needs for a frame, however little its content compresses."""
_WINDOW_LOG = 20
_MAX_FRAMES = 1 << 17
_FREE_BYTES = 64 << 20
_MAX_RATIO = 200
_CACHED = 16

_SKIPPABLE = 0x184D2A5E
_SEEKABLE = 0x8F92EAB1
_HEADER = struct.Struct("<II")
_FOOTER = struct.Struct("<IBI")
_ENTRY = struct.Struct("<II")


def zstd() -> "ModuleType":
    """Return the package for zstd.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        if sys.version_info >= (3, 14):
            from compression import zstd as module
        else:
            from backports import zstd as module
    except ImportError as error:
        raise MissingExtraError("A compressed journal", "ui") from error
    return module  # type: ignore[no-any-return,unused-ignore]  # mypy has no types for it on every version


class TooDenseError(ValueError):
    """Content that compresses so well that a reader would take the file for a bomb."""


def write_frames(content: Iterable[bytes], file: BinaryIO) -> None:
    """Compress pieces of content, of at most `FRAME_BYTES` each, to a file, and add the index.

    Raises:
        TooDenseError: No reader would accept the result.
    """
    module = zstd()
    options = {
        module.CompressionParameter.compression_level: _LEVEL,
        module.CompressionParameter.checksum_flag: 1,
        module.CompressionParameter.content_size_flag: 1,
    }
    entries = bytearray()
    size = total = 0
    for piece in content:
        frame = module.compress(piece, options=options)
        file.write(frame)
        entries += _ENTRY.pack(len(frame), len(piece))
        size, total = size + len(frame), total + len(piece)
    count = len(entries) // _ENTRY.size
    file.write(_HEADER.pack(_SKIPPABLE, len(entries) + _FOOTER.size) + entries + _FOOTER.pack(count, 0, _SEEKABLE))
    size += _HEADER.size + len(entries) + _FOOTER.size
    if count > _MAX_FRAMES or total > _FREE_BYTES + _MAX_RATIO * size:
        raise TooDenseError(f"{total:,} bytes in {count:,} frames compress to {size:,} bytes")


def cut_frames(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Cut content into frames: after the last line that fits, or at the size if a line is longer than a frame."""
    rest = b""
    for piece in pieces:
        rest += piece
        while len(rest) > FRAME_BYTES:
            cut = rest.rfind(b"\n", 0, FRAME_BYTES) + 1 or FRAME_BYTES
            yield rest[:cut]
            rest = rest[cut:]
    if rest:
        yield rest


class DamagedFrame(NamedTuple):
    """A frame that cannot be read: the offset and the size of its content, and why."""

    offset: int
    size: int
    problem: str


class _Index(NamedTuple):
    """Where frames begin in the file and in the content; both lists end with the end of the last frame."""

    places: list[int]
    offsets: list[int]
    problem: str = ""


_Identity = tuple[int, int, int, int, int]
_frames: dict[tuple[_Identity, int], bytes] = {}
"""The frames that were read last, of all files. Readers open a file for each chunk, of which a frame has several."""
_rebuilt: dict[_Identity, _Index] = {}
"""Indexes that had to be rebuilt, which takes a pass over the file."""


class CompressedFile:
    """A compressed journal file, open for reading at offsets of its content.

    Args:
        descriptor: An open regular file, which `close` closes.

    Raises:
        OSError: It cannot be read, or is not a compressed journal.
    """

    is_compressed = True

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        found = os.fstat(descriptor)
        # The change time as well: the others are copied from the original file.
        self._identity = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
        self._index = self._read_index(found.st_size) or self._rebuild_index(found.st_size)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def size(self) -> int:
        """The size of the content."""
        return self._index.offsets[-1]

    def stat(self) -> os.stat_result:
        """Return the status of the compressed file."""
        return os.fstat(self._descriptor)

    def pread(self, count: int, offset: int) -> bytes:
        """Return at most so many bytes of the content at an offset, fewer only at its end.

        Raises:
            OSError: The file cannot be read.
            MissingExtraError: The package for zstd is not installed.
        """
        end = min(offset + count, self.size)
        pieces = []
        number = bisect.bisect_right(self._index.offsets, offset) - 1
        while offset < end:
            begin = self._index.offsets[number]
            piece = self._frame(number)[offset - begin : end - begin]
            pieces.append(piece)
            offset += len(piece)
            number += 1
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def pieces(self) -> Iterator[bytes]:
        """Yield all of the content; unlike `pread`, with an error where it is damaged.

        Raises:
            OSError: A frame or the index is damaged.
        """
        if self._index.problem:
            raise OSError(errno.EIO, f"Damaged: {self._index.problem}")
        for number in range(len(self._index.offsets) - 1):
            content, problem = self._decompressed(number)
            if problem:
                raise OSError(errno.EIO, f"The frame at byte {self._index.offsets[number]:,} is damaged: {problem}")
            yield content

    def damage(self) -> Iterator[DamagedFrame]:
        """Decompress everything, and yield the frames that cannot be read; the index counts as one without content."""
        if self._index.problem:
            yield DamagedFrame(self.size, 0, self._index.problem)
        for number, (begin, end) in enumerate(itertools.pairwise(self._index.offsets)):
            _, problem = self._decompressed(number)
            if problem:
                yield DamagedFrame(begin, end - begin, problem)

    def _frame(self, number: int) -> bytes:
        key = (self._identity, number)
        content = _frames.get(key)
        if content is None:
            content, problem = self._decompressed(number)
            if problem:
                # As a line, not as zeros: zeros at the end of a file are space that is not written yet.
                size = self._index.offsets[number + 1] - self._index.offsets[number]
                content = b" " * (size - 1) + b"\n"
        _remember(_frames, key, content)
        return content

    def _decompressed(self, number: int) -> tuple[bytes, str]:
        """Return the content of a frame, and why it is not what the index promises."""
        module = zstd()
        place, behind = self._index.places[number : number + 2]
        size = self._index.offsets[number + 1] - self._index.offsets[number]
        data = os.pread(self._descriptor, behind - place, place)
        decoder = module.ZstdDecompressor(options={module.DecompressionParameter.window_log_max: _WINDOW_LOG})
        try:
            content = decoder.decompress(data, max_length=size)
            # The checksum may come after the last byte of content: the decoder reads it at the next call.
            more = b"" if decoder.eof else decoder.decompress(b"", max_length=1)
        except module.ZstdError as error:
            return b"", str(error)
        if more or not decoder.eof or len(content) != size or decoder.unused_data:
            return b"", "its content does not have the size in the index"
        if b"\0" in content:
            return b"", "its content has zeros, which no line contains"
        return content, ""

    def _read_index(self, size: int) -> _Index | None:
        """Read the index at the end of the file; None if it is not there, or does not describe this file."""
        footer = os.pread(self._descriptor, _FOOTER.size, size - _FOOTER.size) if size >= _FOOTER.size else b""
        if len(footer) != _FOOTER.size:
            return None
        count, flags, magic = _FOOTER.unpack(footer)
        begin = size - _FOOTER.size - count * _ENTRY.size - _HEADER.size
        if magic != _SEEKABLE or flags or count > _MAX_FRAMES or begin < 0:
            return None
        table = os.pread(self._descriptor, _HEADER.size + count * _ENTRY.size, begin)
        if table[: _HEADER.size] != _HEADER.pack(_SKIPPABLE, count * _ENTRY.size + _FOOTER.size):
            return None
        sizes = list(_ENTRY.iter_unpack(table[_HEADER.size :]))
        are_possible = all(0 < packed <= _MAX_COMPRESSED and 0 < content <= FRAME_BYTES for packed, content in sizes)
        index = _index(sizes)
        return index if are_possible and index.places[-1] == begin and _is_bounded(index.offsets[-1], size) else None

    def _rebuild_index(self, size: int) -> _Index:
        """Find the frames by their headers; content after one that cannot be read is lost."""
        known = _rebuilt.get(self._identity)
        if known is not None:
            return known
        module, sizes, place, total = zstd(), list[tuple[int, int]](), 0, 0
        problem = "the index of its frames is missing or damaged"
        while place < size and len(sizes) < _MAX_FRAMES:
            data = os.pread(self._descriptor, _MAX_COMPRESSED, place)
            if data[:4] == _SKIPPABLE.to_bytes(4, "little"):  # the index, which follows the last frame
                break
            try:
                packed, content = module.get_frame_size(data), module.get_frame_info(data).decompressed_size
            except module.ZstdError:
                packed = content = 0
            if not (packed and content and content <= FRAME_BYTES and _is_bounded(total + content, size)):
                problem += f", and what follows byte {total:,} cannot be read"
                break
            sizes.append((packed, content))
            place, total = place + packed, total + content
        if not sizes:
            raise OSError(errno.EIO, "It is not a compressed journal, or damaged at its beginning")
        index = _index(sizes)._replace(problem=problem)
        _remember(_rebuilt, self._identity, index)
        return index


def _remember(cache: dict[K, V], key: K, value: V) -> None:
    """Make an entry the latest one, and forget the oldest."""
    # Without a lock, which a forked child could inherit locked: each operation on a dict is atomic, and what another
    # thread removes in between is only read again.
    cache.pop(key, None)
    cache[key] = value
    while len(cache) > _CACHED:
        with contextlib.suppress(StopIteration, RuntimeError):
            cache.pop(next(iter(cache)), None)


def _index(sizes: list[tuple[int, int]]) -> _Index:
    places = list(itertools.accumulate((packed for packed, _ in sizes), initial=0))
    return _Index(places, list(itertools.accumulate((content for _, content in sizes), initial=0)))


def _is_bounded(content: int, size: int) -> bool:
    return content <= _FREE_BYTES + _MAX_RATIO * size
