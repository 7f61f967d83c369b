"""What killed processes leave of their console: ``.rest`` and ``.faults`` files.

Both are written when the process that records can no longer run code: ``.rest`` by its pump (what was printed and not
confirmed as recorded), ``.faults`` by `faulthandler`. So they hold text as it was printed, secrets included, until
`redact_leftovers` replaces them: the next session of the run calls it, and ``runs verify`` and ``runs sync`` do. Until
then, and for secrets that only the built-in patterns know, readers redact what they return.

No line is read twice: a process may be killed between recording a line and confirming it, and then the pump saves the
line as well. Each recorded line names the offset after it in its stream, and each saved piece its own, so what was
recorded is cut off the saved text.

The directory may have been received from elsewhere: links are not followed, sizes are bounded, and what cannot be read
is skipped.
"""

import contextlib
import fcntl
import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from hookline._record.console import FAULTS, REST
from hookline._record.console_text import LineAssembler
from hookline._record.files import write_atomically
from hookline._record.reader import CONSOLE, read_lines
from hookline._record.records import ConsoleLine, decode
from hookline._record.redaction import redact_secrets
from hookline._record.segment import JournalFile, journal_files

_MAX_FILE_BYTES = 8 << 20
_CHANNELS = ("stdout", "stderr")
_IS_REDACTED = {"redacted": True}
"""The first line of a file that `redact_leftovers` has written: its pieces are whole lines, none of them recorded."""


class RestLine(NamedTuple):
    """A line that was printed and not recorded."""

    time: float
    stream: str
    text: str


def leftover_files(run_dir: str | Path, suffix: str) -> list[Path]:
    """Return the files of a suffix that processes of a run left."""
    directory = Path(run_dir) / CONSOLE
    return [] if directory.is_symlink() else sorted(directory.glob(f"{CONSOLE}*{suffix}"))


def rest_lines(path: Path, files: Iterable[JournalFile]) -> Iterator[RestLine]:
    """Return the lines of a ``.rest`` file that its process did not record, not redacted.

    Args:
        files: The run's files with console lines.
    """
    pieces = list(_pieces(read_bounded(path)))
    recorded: dict[str, int] = {}
    if any(offset is not None for _, _, offset, _ in pieces):
        recorded = _recorded_offsets([file for file in files if is_of_process(file, path)])
    assemblers: dict[str, LineAssembler] = {}
    time = 0.0
    for stream, time, offset, text in pieces:
        new = text if offset is None else text[max(0, recorded.get(stream, 0) - offset) :]
        for line in assemblers.setdefault(stream, LineAssembler()).feed(new.decode("utf-8", "replace")):
            yield RestLine(time, stream, line)
    for stream, assembler in assemblers.items():
        for line in assembler.finish():
            yield RestLine(time, stream, line)


def _pieces(data: bytes) -> Iterator[tuple[str, float, int | None, bytes]]:
    """Return stream, time, offset and text of each piece; the bytes of one character may be in two of them."""
    for line in data.splitlines():
        try:
            piece = json.loads(line)
            index, time, text = int(piece["channel"]), float(piece["time"]), str(piece["text"])
            offset = None if piece.get("offset") is None else int(piece["offset"])
            stream = str(piece.get("stream") or _CHANNELS[index if 0 <= index < len(_CHANNELS) else 0])
            content = text.encode("utf-8", "surrogateescape")
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            continue
        yield stream if stream in _CHANNELS else _CHANNELS[0], time, offset, content


def is_of_process(file: JournalFile, path: Path) -> bool:
    """Return whether a process wrote this file and left that one: their names have its pid and a token in common."""
    name, _, process = path.name.removesuffix(REST).partition("-")
    return file.name == name and file.writer.split("-", 2)[2] == process


def _recorded_offsets(files: list[JournalFile]) -> dict[str, int]:
    """Return the offset up to which each stream of a writer was recorded."""
    found: dict[str, int] = {}
    for file in reversed(files):  # the last file has the last line of a stream, unless it printed nothing for long
        with contextlib.suppress(OSError):
            for line, _ in read_lines(file.path):
                # A search for bytes first: lines that were recorded at Python level have no offset.
                if b'"end":' not in line:
                    continue
                with contextlib.suppress(msgspec.DecodeError):
                    record = decode(line)
                    if isinstance(record, ConsoleLine):
                        found[record.stream] = max(record.end, found.get(record.stream, 0))
        if len(found) == len(_CHANNELS):
            break
    return found


def redact_leftovers(run_dir: str | Path, redact: Callable[[str], str] = redact_secrets) -> int:
    """Redact what killed processes left on the disk; returns how many files were rewritten. Never fails.

    Files of living processes are left alone: they hold locks on them.
    """
    directory = Path(run_dir) / CONSOLE
    files = [] if directory.is_symlink() else journal_files(directory)
    return sum(
        _redact_file(path, files, redact) for suffix in (REST, FAULTS) for path in leftover_files(run_dir, suffix)
    )


def _redact_file(path: Path, files: list[JournalFile], redact: Callable[[str], str]) -> bool:
    with contextlib.suppress(OSError):  # a link, without permission, on a disk that is full or can only be read
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while its writer lives
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_FILE_BYTES:
                return False
            if not os.path.samestat(status, path.lstat()):
                return False  # another process has replaced it meanwhile
            before = file.read(_MAX_FILE_BYTES)
            after = _redacted_rest(path, before, files, redact) if path.suffix == REST else _redacted(before, redact)
            if after != before:
                write_atomically(path, after, sync=False)
                return True
    return False


def _redacted(text: bytes, redact: Callable[[str], str]) -> bytes:
    return redact(text.decode("utf-8", "replace")).encode("utf-8", "replace")


def _redacted_rest(path: Path, before: bytes, files: list[JournalFile], redact: Callable[[str], str]) -> bytes:
    marker = json.dumps(_IS_REDACTED).encode()
    if before.partition(b"\n")[0] == marker:
        return before
    # By line and not by piece: a secret may be in two pieces.
    lines = [(line, redact(line.text)) for line in rest_lines(path, files)]
    if all(line.text == text for line, text in lines):
        return before
    rewritten = [
        json.dumps({"channel": 0, "stream": line.stream, "time": line.time, "text": f"{text}\n"}).encode()
        for line, text in lines
    ]
    return b"\n".join([marker, *rewritten, b""])


def read_bounded(path: Path) -> bytes:
    """Return the beginning of a regular file; nothing for another kind of file."""
    try:
        # Neither through a link nor waiting at a pipe: others may have put either there.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    with os.fdopen(descriptor, "rb") as file:
        return file.read(_MAX_FILE_BYTES) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
