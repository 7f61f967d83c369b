"""`CsvSink`: records of one kind as a CSV file whose header is always complete.

A record with new keys rewrites the file with more columns, to a temporary file that is then renamed, so no cell is ever
without a column name or under a wrong one. Configured columns stay as they are: other values go into the column
``extra`` as JSON, and a value named ``extra`` becomes ``extra_``. An existing file is appended to. A resume mark
removes the rows that will be recorded again.

The state is the number of delivered rows and bytes, and the columns. Rows remain valid after a rewrite that the saved
state does not include yet; bytes make the usual truncation cheap. The inode detects a file that was replaced by someone
else. A rewrite just before a crash is recognized by a note in the run's folder ``sinks``.

A table of metrics has no place for media: they are left out and counted. ``kind="media"`` is a table of all media with
their names, types and digests.
"""

import contextlib
import csv
import io
import itertools
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
from hookline._record.records import Media, TableRows, clean
from hookline._record.sink import Sink, register_sink
from hookline.sinks.artifacts import leave_out_artifacts
from hookline.sinks.media import TABLE, RunMedia, plural
from hookline.sinks.output_files import AppendedFile, file_loss, flat_row, has_zeros, require_kinds, set_aside

EXTRA = "extra"
REPEATED = ("metrics", "sample", "rewards", "media", "table")
"""The kinds of records that a resumed run records again."""
Selection = Callable[[Iterable[dict[str, str]]], Iterable[dict[str, str]]]
csv.field_size_limit(1 << 30)


@register_sink("csv")
@dataclass(eq=False)
class CsvSink(Sink):
    """Writes a table of metrics, or of another kind of record.

    Args:
        path: The file; ``<kind>.csv`` in the run's directory by default.
        kind: Which records: ``metrics``, ``sample``, ``rewards``, ``media``, ``table``, ``status``, ``event`` or
            ``log``.
        columns: The columns; other values go into ``extra``. By default one column per key.
        name: The sink's name in its run.
    """

    path: Path | None = None
    kind: str = "metrics"
    columns: tuple[str, ...] = ()
    name: str | None = None

    def __post_init__(self) -> None:
        require_kinds(self.kind)
        self.columns = (self.columns,) if isinstance(self.columns, str) else tuple(self.columns)
        if EXTRA in self.columns:
            raise OptionError(f"columns={self.columns!r}: {EXTRA!r} is reserved for values without a column.")
        if len(set(self.columns)) < len(self.columns):
            raise OptionError(f"columns={self.columns!r}: a name is given twice.")
        self.path = Path(self.path).absolute() if self.path is not None else None
        self._table: Table | None = None
        self._media = RunMedia("csv")

    def find_loss(self, run_dir: Path, state: Any) -> str:
        path, known = self._path(run_dir), state.get("inode")
        found = _inode(path)
        is_own_rewrite = False
        if found is not None and found != known:
            with contextlib.suppress(OSError, ValueError):
                is_own_rewrite = found == int(self._note(run_dir).read_text(encoding="ascii"))
        return "" if is_own_rewrite else file_loss(path, state["bytes"], state)

    def set_aside(self, run_dir: Path, state: Any) -> None:
        path = self._path(run_dir)
        begin, inode = state.get("begin", 0), state.get("inode")
        if begin and inode == _inode(path):  # the file has rows from before the sink
            Table(path).truncate(begin)
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
        if state is None and self.path is None:  # left by a sink with other settings
            path.unlink(missing_ok=True)
        self._table = Table(path, (*self.columns, EXTRA) if self.columns else (), fixed=bool(self.columns))
        self._table.note = self._note(run_dir)
        self._media.open(run_dir, state)
        return self._table.open(state) | self._media.state()

    def write(self, entries: Sequence[JournalEntry]) -> dict[str, Any]:
        assert self._table is not None
        if is_resume(entries[0].record) and self.kind in REPEATED:
            return self._table.keep(_not_repeated(entries[0])) | self._media.state()
        for entry in entries:
            if self.kind == "metrics" and isinstance(record := entry.record, Media | TableRows):
                self._media.leave_out(plural(record.type if isinstance(record, Media) else TABLE))
        if self.kind == "metrics":
            leave_out_artifacts(self._media, entries)
        rows = [flat_row(entry) for entry in entries if entry.kind == self.kind]
        return self._table.append(rows) | self._media.state()

    def close(self) -> None:
        if self._table is not None:
            self._table.close()

    def _path(self, run_dir: Path) -> Path:
        return self.path or run_dir / f"{self.kind}.csv"

    def _note(self, run_dir: Path) -> Path:
        path = self._path(run_dir)
        return run_dir / SINKS_FOLDER / f"{path.stem}-{zlib.crc32(os.fsencode(path)):08x}.rewritten"


def _not_repeated(mark: JournalEntry) -> Callable[[Mapping[str, str]], bool]:
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
    """The number of rows before the first delivery."""
    note: Path | None = None
    """A file with the inode of the last rewrite, until a state includes it."""
    _file: AppendedFile | None = field(default=None, init=False)
    _has_note: bool = field(default=True, init=False)

    def open(self, state: Mapping[str, Any] | None) -> dict[str, Any]:
        """Open the file and restore a state; None keeps all of it."""
        header = self._header()
        self.begin = 0 if state is None else state.get("begin", 0)
        if state is not None and header == tuple(state["columns"]):
            self.rows = state["rows"]
            self._open_file(header, state["bytes"], state)
        elif state is not None and header:  # rewritten by a batch that was not delivered
            self._rewrite(header, _first(state["rows"]))
        else:
            self.rows = sum(1 for _ in self._read()) if header else 0
            self.begin = self.rows
            self._open_file(header, None)
        if header and self.fixed and header != self.columns_wanted:
            self._rewrite((*self.columns_wanted, *(c for c in header if c not in self.columns_wanted)))
        return self._state()

    def __post_init__(self) -> None:
        self.columns_wanted = self.columns
        self.columns = ()

    def append(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Write rows at the end, with more columns if needed."""
        if not rows:
            return self._state()
        if self._has_note and self.note is not None:  # the saved state includes the rewrite by now
            self.note.unlink(missing_ok=True)
            self._has_note = False
        assert self._file is not None
        if self.fixed:
            wanted = self.columns or self.columns_wanted
        else:
            wanted = tuple(dict.fromkeys((*self.columns, *(key for values in rows for key in values))))
        header = b""
        if not self.columns and not self._file.size:
            self.columns, header = wanted, _encoded([list(wanted)])
        elif wanted != self.columns:
            self._rewrite(wanted)
        self._file.append(header + _encoded([self._cells(values) for values in rows]))
        self.rows += len(rows)
        return self._state()

    def keep(self, keeps: Callable[[Mapping[str, str]], bool]) -> dict[str, Any]:
        """Remove the rows that the function does not keep."""
        if self.columns:
            begin = 0

            def selected(rows: Iterable[dict[str, str]]) -> Iterator[dict[str, str]]:
                nonlocal begin
                for number, values in enumerate(rows):
                    if keeps(values):
                        begin += number < self.begin
                        yield values

            self._rewrite(self.columns, selected)
            self.begin = begin
        return self._state()

    def truncate(self, rows: int) -> None:
        """Keep only the first rows of a file."""
        header = self._header()
        if header:
            self._rewrite(header, _first(rows))
            self.close()

    def is_intact(self) -> bool:
        """Whether the file still has all rows."""
        return self._file is None or self._file.is_intact()

    def close(self) -> None:
        """Close the file. May be called again."""
        if self._file is not None:
            self._file.close()

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

    def _open_file(self, columns: tuple[str, ...], size: int | None, mark: Mapping[str, Any] | None = None) -> None:
        self.close()
        self.columns, self._file = columns, AppendedFile(self.path, size, mark)

    def _rewrite(self, columns: tuple[str, ...], select: Selection | None = None) -> None:
        """Write the selected rows with these columns to a temporary file, and replace the file by it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_name(f".{self.path.name}.partial")
        rows = 0
        partial.unlink(missing_ok=True)
        try:
            with partial.open("x", newline="", encoding="utf-8") as file:  # "x", so as never to follow a planted link
                writer = csv.writer(file)
                writer.writerow(columns)
                existing: Iterable[dict[str, str]] = self._read() if self._header() else ()
                for values in existing if select is None else select(existing):
                    writer.writerow([values.get(column) or "" for column in columns])
                    rows += 1
                file.flush()
                sync_descriptor(file.fileno())
            # After a crash from here on, the saved state has another inode: the note identifies the file as ours.
            if self.note is not None:
                self.note.parent.mkdir(parents=True, exist_ok=True)
                self.note.write_text(str(partial.stat().st_ino), encoding="ascii")
            partial.replace(self.path)
        except OSError:
            partial.unlink(missing_ok=True)
            raise
        self.rows, self._has_note = rows, True
        self._open_file(columns, None)

    def _state(self) -> dict[str, Any]:
        size, mark = (0, {}) if self._file is None else (self._file.size, self._file.mark())
        return {"rows": self.rows, "bytes": size, "columns": list(self.columns), "begin": self.begin} | mark


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None


def _first(count: int) -> Selection:
    return lambda rows: itertools.islice(rows, count)


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
