"""Everything that is recorded as lines of text for people, in a file that is replaced when it is full.

A line is the time, the kind, the writer where it is not the main one, and ``name=value`` for the rest;
texts stand in quotes with line breaks escaped, so that one record is one line. What a resume makes
obsolete stays: it is a log, not a table.

A full file is set aside as ``run.log.1``, the next one as ``run.log.2``: the highest number is the
newest, and the numbers never change. Files are exchanged only between batches, so that one may be
larger than asked for by a batch. The state is the size and the number: opening takes back an exchange
that does not count yet, and cuts the file. So every record is in the files once.
"""

import json
import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hookline._engine.errors import OptionError
from hookline._record.reader import JournalEntry
from hookline._record.records import clean
from hookline._record.sink import Sink, register_sink
from hookline.sinks.output_files import AppendedFile, file_loss, set_aside
from hookline.sinks.rows import flat_row, require_kinds

_PLAIN_NAME = re.compile(r"[^\s=\"\\]+")
_UNSEEN = re.compile(r"[\x7f-\xa0\u2028\u2029]")


@register_sink("file")
@dataclass(eq=False)
class FileSink(Sink):
    """Writes a readable line for each record.

    Args:
        path: The file; ``run.log`` in the run's directory where none is given. One that is there is appended to.
        max_bytes: How large a file gets before the next one is begun.
        backups: How many full files are kept.
        kinds: Which records: ``metrics``, ``sample``, ``rewards``, ``status``, ``event``, ``log``; all of them
            where none are given.
        name: What the sink is called in its run.
    """

    path: Path | None = None
    max_bytes: int = 10 << 20
    backups: int = 5
    kinds: tuple[str, ...] = ()
    name: str | None = None

    def __post_init__(self) -> None:
        self.kinds = require_kinds(self.kinds)
        self.path = Path(self.path).absolute() if self.path is not None else None
        for name, least in (("max_bytes", 1), ("backups", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise OptionError(f"{name}={value!r}: give a whole number of at least {least}.")
        self._log: RotatingFile | None = None
        self._begin: dict[str, int] = {}

    def find_loss(self, run_dir: Path, state: Any) -> str:
        path = self._path(run_dir)
        later = [number for number in numbers_of(path) if number > state["number"]]  # by batches that do not count yet
        if not later:
            return file_loss(path, state["size"], state)
        exchanged = path.with_name(f"{path.name}.{state['number'] + 1}")
        return file_loss(exchanged, state["size"], state) if exchanged.exists() else ""  # too old to be kept

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
        if state is None and self.path is None:  # ours alone: what is there was written under other settings
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
    """A file that is set aside under the next number when it is full.

    Args:
        path: The file that is written to.
        max_bytes: From which size on the next file is begun.
        backups: How many of those set aside are kept.
        state: Where to go on, as `state` gave it; None takes the files as they are.
    """

    def __init__(self, path: Path, max_bytes: int, backups: int, state: dict[str, Any] | None) -> None:
        self.path, self._max_bytes, self._backups = path, max_bytes, backups
        self.number = max(numbers_of(path), default=0) if state is None else state["number"]
        if state is not None:
            self._take_back()
        self._file = AppendedFile(path, None if state is None else state["size"], state)

    def append(self, data: bytes) -> None:
        """Write at the end, after setting a full file aside."""
        if data and self._file.size and self._file.size + len(data) > self._max_bytes:
            self._rotate()
        self._file.append(data)

    def mark(self) -> dict[str, int]:
        """What tells the file that is written to."""
        return self._file.mark()

    def is_intact(self) -> bool:
        """Whether the file still has what was written to it."""
        return self._file.is_intact()

    def state(self) -> dict[str, int]:
        """Where to go on."""
        return {"number": self.number, "size": self._file.size}

    def close(self) -> None:
        """Close the file. May be called again."""
        self._file.close()

    def _rotate(self) -> None:
        self._file.close()
        self.path.replace(self._aside(self.number + 1))
        self.number += 1
        for old in numbers_of(self.path):
            if old <= self.number - self._backups:
                self._aside(old).unlink(missing_ok=True)
        self._file = AppendedFile(self.path)

    def _take_back(self) -> None:
        """Undo exchanges behind the state: what they set aside is the file of the state, and all later ones go."""
        later = sorted(number for number in numbers_of(self.path) if number > self.number)
        if not later:
            return
        self.path.unlink(missing_ok=True)
        for number in reversed(later):  # the file of the state last: after a crash in between it is done again
            if number == self.number + 1:
                self._aside(number).replace(self.path)
            else:
                self._aside(number).unlink(missing_ok=True)

    def _aside(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")


def numbers_of(path: Path) -> list[int]:
    """The numbers of the full files that were set aside for a file."""
    pattern = re.compile(rf"{re.escape(path.name)}\.([1-9][0-9]*)")
    found = (pattern.fullmatch(other.name) for other in path.parent.glob("*"))
    return [int(match[1]) for match in found if match]


def _line(entry: JournalEntry) -> str:
    fields = flat_row(entry)
    seconds = fields.pop("time")
    clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
    values = fields if entry.kind == "metrics" else {key: value for key, value in fields.items() if _says(value)}
    words = " ".join(f"{_name(name)}={_value(value)}" for name, value in values.items())
    return f"{clock}.{int(seconds % 1 * 1000):03d} {entry.kind:<7} {words}\n"


def _says(value: Any) -> bool:
    return value is not None and value not in ("", [])


def _name(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) and name.isprintable() else _value(name)


def _value(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return str(clean(value))
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(clean(value), ensure_ascii=False))
