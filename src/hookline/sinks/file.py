"""All records as lines of a file: `JsonlSink` for programs, `FileSink` for people, rotated when it is full.

A line of `FileSink` is the time, the kind, the writer unless it is the main one, and ``name=value`` for the rest.
Texts are quoted, with line breaks escaped, so one record is one line. Records that a resume makes obsolete stay: it is
a log. Media are lines too, with the digest of their blob.

A full file is renamed to ``run.log.1``, the next one to ``run.log.2``: the highest number is the newest, and numbers
never change. Rotation happens only between batches, so a file may exceed its limit by a batch. The state is the size
and the number. Opening the file undoes a rotation that was not delivered and truncates the file, so each record is in
the files once.
"""

import json
import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hookline._engine.checks import require_integer
from hookline._record.reader import JournalEntry
from hookline._record.recorder import cleaned
from hookline._record.records import clean, encode
from hookline._record.sink import Sink, register_sink
from hookline.sinks.output_files import AppendedFile, file_loss, flat_row, has_zeros, require_kinds, set_aside

_PLAIN_NAME = re.compile(r"[^\s=\"\\]+")
_UNSEEN = re.compile(r"[\x7f-\xa0\u2028\u2029]")


@register_sink("file")
@dataclass(eq=False)
class FileSink(Sink):
    """Writes a readable line for each record.

    Args:
        path: The file; ``run.log`` in the run's directory by default. An existing file is appended to.
        max_bytes: The size at which the file is rotated.
        backups: How many full files are kept.
        kinds: Which records: ``metrics``, ``sample``, ``rewards``, ``media``, ``table``, ``status``, ``event``,
            ``log``; by default all.
        name: The sink's name in its run.
    """

    path: Path | None = None
    max_bytes: int = 10 << 20
    backups: int = 5
    kinds: tuple[str, ...] = ()
    name: str | None = None

    def __post_init__(self) -> None:
        self.kinds = require_kinds(self.kinds)
        self.path = Path(self.path).absolute() if self.path is not None else None
        require_integer("max_bytes", self.max_bytes)
        require_integer("backups", self.backups)
        self._log: RotatingFile | None = None
        self._begin: dict[str, int] = {}

    def find_loss(self, run_dir: Path, state: Any) -> str:
        path = self._path(run_dir)
        if not any(number > state["number"] for number in rotated_numbers(path)):
            return file_loss(path, state["size"], state)
        rotated = path.with_name(f"{path.name}.{state['number'] + 1}")  # by a batch that was not delivered
        return file_loss(rotated, state["size"], state) if rotated.exists() else ""  # else too old to be kept

    def set_aside(self, run_dir: Path, state: Any) -> None:
        path = self._path(run_dir)
        begin = state.get("begin") or {"number": state["number"] if self.path else 0, "size": 0}
        if path.exists() and path.stat().st_ino != state.get("inode"):
            set_aside(path)
        RotatingFile(path, self.max_bytes, self.backups, begin).close()

    def is_intact(self) -> bool:
        return self._log is None or self._log.is_intact()

    @classmethod
    def uses(cls, settings: Mapping[str, Any]) -> list[str]:
        return []

    def open(self, run_dir: Path, state: Any) -> dict[str, Any]:
        before = state or {}
        if state is None and self.path is None:  # any content is from a sink with other settings
            state = {"number": 0, "size": 0}
        self._log = RotatingFile(self._path(run_dir), self.max_bytes, self.backups, state)
        self._begin = before.get("begin") or self._log.state()
        return self._state(self._log)

    def write(self, entries: Sequence[JournalEntry]) -> dict[str, Any]:
        assert self._log is not None
        wanted = [entry for entry in entries if not self.kinds or entry.kind in self.kinds]
        self._log.append("".join(map(_line, wanted)).encode("utf-8", "replace"))
        return self._state(self._log)

    def close(self) -> None:
        if self._log is not None:
            self._log.close()

    def _path(self, run_dir: Path) -> Path:
        return self.path or run_dir / "run.log"

    def _state(self, log: "RotatingFile") -> dict[str, Any]:
        return log.state() | log.mark() | {"begin": self._begin}


class RotatingFile:
    """Appends to a file, and renames it when it is full.

    Args:
        path: The file.
        max_bytes: The size at which it is rotated.
        backups: How many full files are kept.
        state: The result of `state` to continue from; None keeps the files as they are.
    """

    def __init__(self, path: Path, max_bytes: int, backups: int, state: dict[str, Any] | None) -> None:
        self.path, self._max_bytes, self._backups = path, max_bytes, backups
        self.number = max(rotated_numbers(path), default=0) if state is None else state["number"]
        if state is not None:
            self._undo_rotations()
        self._file = AppendedFile(path, None if state is None else state["size"], state)

    def append(self, data: bytes) -> None:
        """Write at the end, after rotating a full file."""
        if data and self._file.size and self._file.size + len(data) > self._max_bytes:
            self._file.close()
            self.path.replace(self._rotated_path(self.number + 1))
            self.number += 1
            for old in rotated_numbers(self.path):
                if old <= self.number - self._backups:
                    self._rotated_path(old).unlink(missing_ok=True)
            self._file = AppendedFile(self.path)
        self._file.append(data)

    def mark(self) -> dict[str, int]:
        """A value that identifies the current file."""
        return self._file.mark()

    def is_intact(self) -> bool:
        """Whether the current file still has all bytes."""
        return self._file.is_intact()

    def state(self) -> dict[str, int]:
        """The position to continue from."""
        return {"number": self.number, "size": self._file.size}

    def close(self) -> None:
        """Close the file. May be called again."""
        self._file.close()

    def _undo_rotations(self) -> None:
        """Undo rotations after the state: the first renamed the state's file, and the later files are removed."""
        later = sorted(number for number in rotated_numbers(self.path) if number > self.number)
        if not later:
            return
        self.path.unlink(missing_ok=True)
        for number in reversed(later):  # the state's file last, so that this can be repeated after a crash
            if number == self.number + 1:
                self._rotated_path(number).replace(self.path)
            else:
                self._rotated_path(number).unlink(missing_ok=True)

    def _rotated_path(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")


def rotated_numbers(path: Path) -> list[int]:
    """The numbers of a file's rotated files."""
    pattern = re.compile(rf"{re.escape(path.name)}\.([1-9][0-9]*)")
    found = (pattern.fullmatch(other.name) for other in path.parent.glob("*"))
    return [int(match[1]) for match in found if match]


def _line(entry: JournalEntry) -> str:
    fields = flat_row(entry)
    seconds = fields.pop("time")
    clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
    values = fields
    if entry.kind != "metrics":
        values = {key: value for key, value in fields.items() if value is not None and value not in ("", [])}
    words = " ".join(f"{_name(name)}={_value(value)}" for name, value in values.items())
    return f"{clock}.{int(seconds % 1 * 1000):03d} {entry.kind:<7} {words}\n"


def _name(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) and name.isprintable() else _value(name)


def _value(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return str(clean(value))
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(clean(value), ensure_ascii=False))


@register_sink("jsonl")
@dataclass(eq=False)
class JsonlSink(Sink):
    """Writes each record as a line of JSON, in the journal's format, from all writers of the run.

    Args:
        path: The file; ``records.jsonl`` in the run's directory by default.
        kinds: Which records: ``metrics``, ``sample``, ``rewards``, ``media``, ``table``, ``status``, ``event``,
            ``log``; by default all.
        name: The sink's name in its run.
    """

    path: Path | None = None
    kinds: tuple[str, ...] = ()
    name: str | None = None

    def __post_init__(self) -> None:
        self.kinds = require_kinds(self.kinds)
        self.path = Path(self.path).absolute() if self.path is not None else None
        self._file: AppendedFile | None = None
        self._begin = 0

    def find_loss(self, run_dir: Path, state: Any) -> str:
        known = _known(state)
        return file_loss(self._path(run_dir), known["bytes"], known)

    def set_aside(self, run_dir: Path, state: Any) -> None:
        known = _known(state)
        set_aside(self._path(run_dir), known["begin"], known.get("inode"))

    def is_intact(self) -> bool:
        return self._file is None or self._file.is_intact()

    def has_lost(self, run_dir: Path, state: Any) -> bool:
        if not has_zeros(self._path(run_dir), _known(state)["bytes"]):
            return False
        set_aside(self._path(run_dir))
        return True

    @classmethod
    def uses(cls, settings: Mapping[str, Any]) -> list[str]:
        return []

    def open(self, run_dir: Path, state: Any) -> dict[str, Any]:
        known = None if state is None else _known(state)
        size: int | None = known["bytes"] if known is not None else None
        if known is None and self.path is None:  # any content is from a sink with other settings
            size = 0
        self._file = AppendedFile(self._path(run_dir), size, known)
        self._begin = self._file.size if known is None else known["begin"]
        return self._state(self._file)

    def write(self, entries: Sequence[JournalEntry]) -> dict[str, Any]:
        assert self._file is not None
        wanted = [entry.record for entry in entries if not self.kinds or entry.kind in self.kinds]
        self._file.append(b"".join(encode(cleaned(record)) + b"\n" for record in wanted))
        return self._state(self._file)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _path(self, run_dir: Path) -> Path:
        return self.path or run_dir / "records.jsonl"

    def _state(self, file: AppendedFile) -> dict[str, Any]:
        return {"bytes": file.size, "begin": self._begin} | file.mark()


def _known(state: Any) -> dict[str, Any]:
    """A saved state; that of version 0.1 was only the size."""
    return state if isinstance(state, dict) else {"bytes": state, "begin": 0}
