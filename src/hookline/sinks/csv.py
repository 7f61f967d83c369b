"""Records of one kind as a CSV file whose header is always complete.

A record with new keys makes the file be rewritten with more columns, aside and then renamed, so that
no cell ever stands under no name or the wrong one. Where the columns are given, they stay as they
are, and what has none is kept as JSON in the column ``extra``; a value of that very name is called
``extra_``. A file that is there is appended to. A resume mark takes out the rows that are done again.

The state is the number of rows and bytes delivered and the columns: rows survive a rewrite that the
cursor does not know of yet, bytes make the usual cut cheap. With the inode it tells a file that somebody
replaced; one that a sink itself rewrote just before a crash is told by a note in the run's folder ``sinks``.
"""

import csv
import io
import json
import math
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hookline._engine.errors import OptionError
from hookline._record.delivery import SINKS_FOLDER
from hookline._record.files import sync_descriptor
from hookline._record.reader import EVERY_AXIS, MAIN, JournalEntry, is_resume, resumed_steps
from hookline._record.records import clean
from hookline._record.sink import Sink, register_sink
from hookline.sinks.output_files import AppendedFile, file_loss, has_zeros, set_aside
from hookline.sinks.rows import flat_row, require_kinds

EXTRA = "extra"
DONE_AGAIN = ("metrics", "sample", "rewards")
"""The kinds of which a resume makes earlier records obsolete."""
csv.field_size_limit(1 << 30)


@register_sink("csv")
@dataclass(eq=False)
class CsvSink(Sink):
    """Writes a table of metrics, or of another kind of record.

    Args:
        path: The file; ``<kind>.csv`` in the run's directory where none is given.
        kind: Which records: ``metrics``, ``sample``, ``rewards``, ``status``, ``event`` or ``log``.
        columns: The columns, where they are to be these and no others; the rest goes into ``extra``.
        name: What the sink is called in its run.
    """

    path: Path | None = None
    kind: str = "metrics"
    columns: tuple[str, ...] = ()
    name: str | None = None

    def __post_init__(self) -> None:
        require_kinds(self.kind)
        self.columns = (self.columns,) if isinstance(self.columns, str) else tuple(self.columns)
        if EXTRA in self.columns:
            raise OptionError(f"columns={self.columns!r}: {EXTRA!r} is added, for what has no column.")
        if len(set(self.columns)) < len(self.columns):
            raise OptionError(f"columns={self.columns!r}: a name is given twice.")
        self.path = Path(self.path).absolute() if self.path is not None else None
        self._table: Table | None = None

    def find_loss(self, run_dir: Path, state: Any) -> str:
        path, known = self._path(run_dir), state.get("inode")
        there = _inode(path)
        is_own_rewrite = there is not None and there != known and there == _noted(self._note(run_dir))
        return "" if is_own_rewrite else file_loss(path, state["bytes"], state)

    def set_aside(self, run_dir: Path, state: Any) -> None:
        path = self._path(run_dir)
        begin, inode = state.get("begin", 0), state.get("inode")
        if begin and inode == _inode(path):  # with rows that others wrote before
            Table(path).cut(begin)
        else:
            set_aside(path, 0, inode)

    def is_intact(self) -> bool:
        return self._table is None or self._table.is_intact()

    def has_lost(self, run_dir: Path, state: Any) -> bool:
        if not has_zeros(self._path(run_dir), state["bytes"]):
            return False
        set_aside(self._path(run_dir))
        return True

    @classmethod
    def uses(cls, settings: Mapping[str, Any]) -> list[str]:
        return []

    def open(self, run_dir: Path, state: Any) -> Any:
        path = self._path(run_dir)
        if state is None and self.path is None:  # ours alone: what is there was written under other settings
            path.unlink(missing_ok=True)
        self._table = Table(path, (*self.columns, EXTRA) if self.columns else (), fixed=bool(self.columns))
        self._table.note = self._note(run_dir)
        return self._table.open(state)

    def write(self, entries: Sequence[JournalEntry]) -> dict[str, Any]:
        assert self._table is not None
        if is_resume(entries[0].record) and self.kind in DONE_AGAIN:
            return self._table.keep(_not_done_again(entries[0]))
        return self._table.append([flat_row(entry) for entry in entries if entry.kind == self.kind])

    def close(self) -> None:
        if self._table is not None:
            self._table.close()

    def _path(self, run_dir: Path) -> Path:
        return self.path or run_dir / f"{self.kind}.csv"

    def _note(self, run_dir: Path) -> Path:
        path = self._path(run_dir)
        return run_dir / SINKS_FOLDER / f"{path.stem}-{zlib.crc32(os.fsencode(path)):08x}.rewritten"


def _not_done_again(mark: JournalEntry) -> Callable[[Mapping[str, str]], bool]:
    steps = resumed_steps(mark.record)

    def keeps(kept: Mapping[str, str]) -> bool:
        step = kept.get("step") or ""
        if (kept.get("writer") or MAIN) != mark.file.name or not step.lstrip("-").isdigit():
            return True
        limits = [steps[axis] for axis in (kept.get("axis") or "train", EVERY_AXIS) if axis in steps]
        return all(int(step) <= limit for limit in limits)

    return keeps


@dataclass(eq=False)
class Table:
    """A CSV file with a header."""

    path: Path
    columns: tuple[str, ...] = ()
    fixed: bool = False
    rows: int = 0
    begin: int = 0
    """How many rows were there before the first was delivered."""
    note: Path | None = None
    """Where it is noted which file a rewrite made."""
    _file: AppendedFile | None = field(default=None, init=False)
    _has_note: bool = field(default=True, init=False)

    def open(self, state: Mapping[str, Any] | None) -> dict[str, Any]:
        """Open the file where a state left it, or as it is."""
        there = self._header()
        self.begin = 0 if state is None else state.get("begin", 0)
        if state is not None and there == tuple(state["columns"]):
            self.rows = state["rows"]
            self._begin(there, state["bytes"], state)
        elif state is not None and there:  # rewritten by a batch that does not count
            self._rewrite(there, _first(state["rows"]))
        else:
            self.rows = sum(1 for _ in self._read()) if there else 0
            self.begin = self.rows
            self._begin(there, None)
        if there and self.fixed and there != self.columns_wanted:
            self._rewrite((*self.columns_wanted, *(c for c in there if c not in self.columns_wanted)), _all)
        return self._state()

    def __post_init__(self) -> None:
        self.columns_wanted = self.columns
        self.columns = ()

    def append(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Write rows at the end, with more columns if need be."""
        if not rows:
            return self._state()
        if self._has_note and self.note is not None:  # what it tells is in the state by now
            self.note.unlink(missing_ok=True)
            self._has_note = False
        assert self._file is not None
        wanted, header = self._columns_for(rows), b""
        if not self.columns and not self._file.size:
            self.columns, header = wanted, _encoded([list(wanted)])
        elif wanted != self.columns:
            self._rewrite(wanted, _all)
        self._file.append(header + _encoded([self._cells(values) for values in rows]))
        self.rows += len(rows)
        return self._state()

    def keep(self, keeps: Callable[[Mapping[str, str]], bool]) -> dict[str, Any]:
        """Take out the rows that are not to be kept."""
        if self.columns:
            before = 0  # of those that were there before the first was delivered

            def chosen(rows: Iterable[dict[str, str]]) -> Iterator[dict[str, str]]:
                nonlocal before
                for number, kept in enumerate(rows):
                    if keeps(kept):
                        before += number < self.begin
                        yield kept

            self._rewrite(self.columns, chosen)
            self.begin = before
        return self._state()

    def cut(self, rows: int) -> None:
        """Keep only the first rows of a file."""
        header = self._header()
        if header:
            self._rewrite(header, _first(rows))
            self.close()

    def is_intact(self) -> bool:
        """Whether the file still has what was written to it."""
        return self._file is None or self._file.is_intact()

    def close(self) -> None:
        """Close the file. May be called again."""
        if self._file is not None:
            self._file.close()

    def _columns_for(self, rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
        if self.fixed:
            return self.columns or self.columns_wanted
        new = dict.fromkeys(key for values in rows for key in values)
        return tuple(dict.fromkeys((*self.columns, *new)))

    def _cells(self, values: Mapping[str, Any]) -> list[str]:
        if self.fixed and EXTRA in values:
            values = {f"{EXTRA}_" if key == EXTRA else key: value for key, value in values.items()}
        cells = [_cell(values.get(column)) for column in self.columns]
        if self.fixed:
            rest = {key: value for key, value in values.items() if key not in self.columns and value is not None}
            cells[self.columns.index(EXTRA)] = json.dumps(clean(rest), ensure_ascii=False) if rest else ""
        return cells

    def _header(self) -> tuple[str, ...]:
        try:
            with self.path.open(newline="", encoding="utf-8") as file:
                return tuple(next(csv.reader(file), ()))
        except FileNotFoundError:
            return ()

    def _read(self) -> Iterator[dict[str, str]]:
        with self.path.open(newline="", encoding="utf-8") as file:
            yield from csv.DictReader(file)

    def _begin(self, columns: tuple[str, ...], size: int | None, mark: Mapping[str, Any] | None = None) -> None:
        self.close()
        self.columns, self._file = columns, AppendedFile(self.path, size, mark)

    def _rewrite(self, columns: tuple[str, ...], choose: Callable[[Iterable[dict[str, str]]], Iterable[Any]]) -> None:
        """Write the rows that are chosen under these columns, aside, and put the file in its place."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        aside = self.path.with_name(f".{self.path.name}.partial")
        rows = 0
        aside.unlink(missing_ok=True)
        try:
            with aside.open("x", newline="", encoding="utf-8") as file:  # never through a link that somebody put there
                writer = csv.writer(file)
                writer.writerow(columns)
                for kept in choose(self._read()) if self._header() else ():
                    writer.writerow([kept.get(column) or "" for column in columns])
                    rows += 1
                file.flush()
                sync_descriptor(file.fileno())
            # After a crash from here on, the state knows another file: this tells that it was not somebody else.
            if self.note is not None:
                self.note.parent.mkdir(parents=True, exist_ok=True)
                self.note.write_text(str(aside.stat().st_ino), encoding="ascii")
            aside.replace(self.path)
        except OSError:
            aside.unlink(missing_ok=True)
            raise
        self.rows, self._has_note = rows, True
        self._begin(columns, None)

    def _state(self) -> dict[str, Any]:
        size, mark = (0, {}) if self._file is None else (self._file.size, self._file.mark())
        return {"rows": self.rows, "bytes": size, "columns": list(self.columns), "begin": self.begin} | mark


def _noted(note: Path) -> int | None:
    """The inode that the last rewrite by a sink made, where its state may not know it yet."""
    try:
        return int(note.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None


def _all(rows: Iterable[dict[str, str]]) -> Iterable[dict[str, str]]:
    return rows


def _first(count: int) -> Callable[[Iterable[dict[str, str]]], Iterable[dict[str, str]]]:
    return lambda rows: (kept for _, kept in zip(range(count), rows, strict=False))


def _encoded(rows: Iterable[list[str]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    return text.getvalue().encode("utf-8", "replace")


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float) and not math.isfinite(value):
        return str(clean(value))
    if isinstance(value, list | dict):
        return json.dumps(clean(value), ensure_ascii=False)
    return value if isinstance(value, str) else repr(value) if isinstance(value, float) else str(value)
