"""`Table`: a table that grows, as a value of `log()`.

Each row is recorded once, at a cost that does not depend on how many there are: a table keeps no rows in memory. Cells
may be media. A row that does not fit the columns is refused when it is added.
"""

import logging
import os
import secrets
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import msgspec

from hookline._engine.errors import OptionError
from hookline._engine.metrics import MediaValue, is_on_device, plain
from hookline._record.media import MAX_TEXT_BYTES, Captured, Encoded, Invalid, Media, invalid
from hookline._record.media_encoding import Staged, stage
from hookline._record.records import Record, TableRows, clean

logger = logging.getLogger("hookline")

MAX_CELL_BYTES = 64_000
"""A larger cell of a table becomes a blob, so that lines of the journal stay short."""


class NewRows(NamedTuple):
    """Rows of a table that are not recorded yet, with media captured.

    Attributes:
        nbytes: About how much memory they hold.
        has_media: Whether a cell has to be encoded.
    """

    table: str
    columns: list[str]
    start: int
    rows: list[list[Any]]
    nbytes: int
    has_media: bool


class Table(MediaValue):
    """A table that grows: each row is recorded once.

    ``run.log(predictions=table)`` records its rows and binds it to that run and name. From then on `append` records new
    rows as they come, at the run's step, and the table keeps none in memory::

        table = hl.Table(["prompt", "answer", "correct"])
        run.log(answers=table)
        ...
        table.append(["2 + 2", "4", True])

    Threads may append to one table. A process that was forked continues with a table of its own under the same name.

    Args:
        columns: The names of the columns, or a data frame of pandas or polars, or a table of pyarrow, with its rows.
        rows: Rows, as lists in the order of the columns or dicts by column. Cells are plain values, lists and dicts of
            these, or media such as `Image`. A cell of more than 64 kB is kept as a file, like media.
    """

    type = "table"

    def __init__(self, columns: Any, rows: Iterable[Any] = ()) -> None:
        frame = _rows_of_frame(columns)
        is_list = isinstance(columns, Iterable) and not isinstance(columns, str)
        names, given = (list(columns) if is_list else [], rows) if frame is None else frame
        if not names or len({str(name) for name in names}) != len(names):
            raise OptionError(f"Table({columns!r:.200}): give a list of distinct column names, or a data frame.")
        self.columns = [str(name) for name in names]
        self.id = secrets.token_hex(6)
        self._owner: tuple[str, str] | None = None
        self._record: Callable[[Table], None] | None = None
        self._recorded = 0
        self._forget_new()
        # Held while rows are recorded: their numbers rise in the journal. Re-entrant, because a signal handler may
        # append as well.
        self._lock, self._process = threading.RLock(), os.getpid()
        self.extend(given)

    def __len__(self) -> int:
        return self._recorded + len(self._new)

    def append(self, row: Sequence[Any] | Mapping[str, Any]) -> None:
        """Add one row.

        Raises:
            OptionError: It does not fit the columns.
        """
        self.extend([row])

    def extend(self, rows: Iterable[Sequence[Any] | Mapping[str, Any]]) -> None:
        """Add rows: all of them, or none where one does not fit the columns."""
        width, captured = len(self.columns), list[Any]()
        # Plain rows, the usual case, are checked and measured without a Python call for each cell.
        new = [
            list(row)
            if type(row) in _SEQUENCES and len(row) == width and _ARE_PLAIN(map(type, row))
            else self._checked(row, captured)
            for row in rows
        ]
        size = sum(map(sys.getsizeof, chain.from_iterable(new)))
        if size > MAX_CELL_BYTES:  # a cell may be too long
            is_long = [max(map(sys.getsizeof, row)) > MAX_CELL_BYTES for row in new]
            new = [self._checked(row, captured) if long else row for row, long in zip(new, is_long, strict=True)]
        if self._process != os.getpid():
            self._continue_in_child()
        with self._lock:
            self._new += new
            self._new_bytes += size + 64 * len(new) + sum(getattr(cell, "nbytes", 0) for cell in captured)
            self._new_has_media |= bool(captured)
            if self._record is not None and self._new:
                self._record(self)

    def capture(self, name: str) -> "Table":
        """Return the table itself: its rows are copied as they are added."""
        return self

    def bind(self, owner: tuple[str, str], record: Callable[["Table"], None]) -> None:
        """Record rows in a run under a name from now on, by calling a function whenever rows are added.

        Raises:
            OptionError: It is recorded elsewhere already, and keeps no rows that could be recorded again.
        """
        if self._process != os.getpid():
            self._continue_in_child()
        if self._owner not in (None, owner):
            run_dir, name = self._owner
            raise OptionError(
                f"the table is already recorded as {name!r} of {run_dir}; make another hl.Table for this name"
            )
        self._owner, self._record = owner, record

    def unbind(self) -> None:
        """Keep rows that are added from now on until the table is logged again: its run has ended."""
        self._record = None

    def take_new(self) -> NewRows:
        """Return the rows that are not recorded yet, which then count as recorded."""
        with self._lock:
            new = NewRows(
                self.id, self.columns, self._recorded, self._new, self._new_bytes, has_media=self._new_has_media
            )
            self._recorded += len(new.rows)
            self._forget_new()
        return new

    def _forget_new(self) -> None:
        self._new: list[list[Any]] = []
        self._new_bytes, self._new_has_media = 0, False

    def _continue_in_child(self) -> None:
        """Become another table: rows of parent and child would otherwise have the same numbers."""
        self.id, self._lock, self._process = secrets.token_hex(6), threading.RLock(), os.getpid()
        if self._owner is not None:
            self._recorded = 0
            self._forget_new()

    def _checked(self, row: Any, captured: list[Any]) -> list[Any]:
        """Return the cells of a row; those that have to be encoded are added to ``captured``."""
        if isinstance(row, Mapping):
            if unknown := [key for key in row if key not in self.columns]:
                raise OptionError(f"Table: the column {unknown[0]!r} is not one of {', '.join(self.columns)}.")
            row = [row.get(name) for name in self.columns]
        elif isinstance(row, str | bytes) or not isinstance(row, Iterable):
            row = [row]
        cells = [_captured_cell(cell) for cell in row]
        if len(cells) != len(self.columns):
            raise OptionError(f"Table: a row of {len(cells)} for {len(self.columns)} columns: {row!r:.200}")
        captured += [cell for cell in cells if isinstance(cell, _NOT_PLAIN)]
        return cells


class DeviceCell:
    """A number or an array on a device as a cell: its values are fetched on another thread."""

    def __init__(self, staged: Staged) -> None:
        self._staged, self.nbytes = staged, staged.nbytes

    def fetch(self) -> Any:
        """Wait for the values."""
        return clean(self._staged.fetch().tolist())


_SEQUENCES = frozenset({list, tuple})
_NOT_PLAIN = (Captured, Invalid, DeviceCell)
_PLAIN_CELLS = frozenset({str, int, float, bool, type(None)})
_ARE_PLAIN = _PLAIN_CELLS.issuperset


def _captured_cell(cell: Any) -> Any:
    if type(cell) in _PLAIN_CELLS:
        return cell if sys.getsizeof(cell) <= MAX_CELL_BYTES else _captured_text(clean(cell))
    if type(cell) in _NOT_PLAIN:  # looked at before
        return cell
    if isinstance(cell, Media):
        return cell.capture(_CELL)
    if is_on_device(cell):
        try:
            return DeviceCell(stage(cell))
        except Exception as error:
            return invalid("cell", _CELL, error, getattr(cell, "shape", None))
    if callable(to_text := getattr(cell, "isoformat", None)):  # dates and times
        return str(to_text())
    return _captured_text(clean(plain(cell)))


_CELL = "a cell of a table"


def _captured_text(cell: Any) -> Any:
    """Return a cell, or a blob of its text or JSON where that is long."""
    content = cell.encode("utf-8", "replace") if isinstance(cell, str) else msgspec.json.encode(cell)
    if len(content) <= MAX_CELL_BYTES:
        return cell
    if len(content) > MAX_TEXT_BYTES:
        error = OptionError(f"it has {len(content)} bytes, {MAX_TEXT_BYTES} at most are recorded; use hl.File")
        return invalid("cell", _CELL, error)
    suffix = "txt" if isinstance(cell, str) else "json"
    return Captured("text", partial(Encoded, content, suffix), len(content))


def _rows_of_frame(value: Any) -> tuple[list[str], list[Any]] | None:
    """Return the columns and rows of a data frame of pandas or polars or a table of pyarrow; None for anything else."""
    package = type(value).__module__.partition(".")[0]
    if package == "pandas":
        missing = value.isna().to_numpy()
        rows = value.to_numpy(dtype=object)
        # NaN stays, as a number; pandas' own marks of missing values become None.
        rows[missing] = [cell if isinstance(cell, float) else None for cell in rows[missing]]
        return [str(name) for name in value.columns], rows.tolist()
    if package == "polars":
        return list(value.columns), value.rows()
    if package == "pyarrow":
        return list(value.column_names), list(zip(*(column.to_pylist() for column in value.columns), strict=True))
    return None


ROWS_AT_ONCE = 500
RECORD_BYTES = 1 << 20


def table_records(new: NewRows, name: str, stamp: tuple[float, int, str]) -> list[Record]:
    """Return the records of new rows: each holds a bounded number of them, and a bounded number of bytes."""
    time, step, axis = stamp
    row_bytes = new.nbytes // max(1, len(new.rows))
    rows_at_once = max(1, min(ROWS_AT_ONCE, RECORD_BYTES // (row_bytes + 1)))
    return [
        TableRows(
            time=time,
            step=step,
            axis=axis,
            name=name,
            table=new.table,
            columns=new.columns,
            start=new.start + first,
            rows=new.rows[first : first + rows_at_once],
        )
        for first in range(0, max(1, len(new.rows)), rows_at_once)
    ]
