"""Records of one kind as a CSV file whose header is always complete.

A record with new keys makes the file be rewritten with more columns, aside and then renamed, so that
no cell ever stands under no name or the wrong one. Where the columns are given, they stay as they
are, and what has none is kept as JSON in the column ``extra``; a value of that very name is called
``extra_``. A file that is there is appended to. A resume mark takes out the rows that are done again.

The state is the number of rows and bytes delivered and the columns: rows survive a rewrite that the
cursor does not know of yet, bytes make the usual cut cheap.
"""

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hookline.core.errors import OptionError
from hookline.record.durable import sync_descriptor
from hookline.record.reader import EVERY_AXIS, MAIN, Parcel, is_resume, resumed_steps
from hookline.record.records import clean
from hookline.record.sink import Sink, register_sink
from hookline.sinks.appended_file import AppendedFile, has_zeros, set_aside
from hookline.sinks.kinds import require_kinds
from hookline.sinks.rows import row

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

    def has_lost(self, run_dir: Path, state: Any) -> bool:
        path = self.path or run_dir / f"{self.kind}.csv"
        if not has_zeros(path, state["bytes"]):
            return False
        set_aside(path)
        return True

    @classmethod
    def uses(cls, settings: Mapping[str, Any]) -> list[str]:
        return []

    def open(self, run_dir: Path, state: Any) -> Any:
        path = self.path or run_dir / f"{self.kind}.csv"
        if state is None and self.path is None:  # ours alone: what is there was written under other settings
            path.unlink(missing_ok=True)
        self._table = Table(path, (*self.columns, EXTRA) if self.columns else (), fixed=bool(self.columns))
        return self._table.open(state)

    def write(self, parcels: Sequence[Parcel]) -> dict[str, Any]:
        assert self._table is not None
        if is_resume(parcels[0].record) and self.kind in DONE_AGAIN:
            return self._table.keep(_not_done_again(parcels[0]))
        return self._table.append([row(parcel) for parcel in parcels if parcel.kind == self.kind])

    def close(self) -> None:
        if self._table is not None:
            self._table.close()


def _not_done_again(mark: Parcel) -> Callable[[Mapping[str, str]], bool]:
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
    _file: AppendedFile | None = field(default=None, init=False)

    def open(self, state: Mapping[str, Any] | None) -> dict[str, Any]:
        """Open the file where a state left it, or as it is."""
        there = self._header()
        if state is not None and there == tuple(state["columns"]):
            self.rows = state["rows"]
            self._begin(there, state["bytes"])
        elif state is not None and there:  # rewritten by a batch that does not count
            self._rewrite(there, _first(state["rows"]))
        else:
            self.rows = sum(1 for _ in self._read()) if there else 0
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
        wanted = self._columns_for(rows)
        if wanted != self.columns:
            self._rewrite(wanted, _all)
        assert self._file is not None
        self._file.append(_encoded([self._cells(values) for values in rows]))
        self.rows += len(rows)
        return self._state()

    def keep(self, keeps: Callable[[Mapping[str, str]], bool]) -> dict[str, Any]:
        """Take out the rows that are not to be kept."""
        if self.columns:
            self._rewrite(self.columns, lambda rows: (kept for kept in rows if keeps(kept)))
        return self._state()

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

    def _begin(self, columns: tuple[str, ...], size: int | None) -> None:
        self.close()
        self.columns, self._file = columns, AppendedFile(self.path, size)

    def _rewrite(self, columns: tuple[str, ...], choose: Callable[[Iterable[dict[str, str]]], Iterable[Any]]) -> None:
        """Write the rows that are chosen under these columns, aside, and put the file in its place."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        aside = self.path.with_name(f".{self.path.name}.partial")
        rows = 0
        try:
            with aside.open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file)
                writer.writerow(columns)
                for kept in choose(self._read()) if self._header() else ():
                    writer.writerow([kept.get(column) or "" for column in columns])
                    rows += 1
                file.flush()
                sync_descriptor(file.fileno())
            aside.replace(self.path)
        except OSError:
            aside.unlink(missing_ok=True)
            raise
        self.rows = rows
        self._begin(columns, None)

    def _state(self) -> dict[str, Any]:
        size = self._file.size if self._file is not None else 0
        return {"rows": self.rows, "bytes": size, "columns": list(self.columns)}


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
