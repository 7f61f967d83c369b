"""`Table`: wandb's in-memory table, recorded as a table of hookline when it is logged.

A column keeps the type of its first values; a row with another type is refused, unless ``allow_mixed_types`` is given.
With ``log_mode="IMMUTABLE"`` a table that is logged again records nothing new, with ``"MUTABLE"`` the whole table as a
new one, and with ``"INCREMENTAL"`` the rows since the last time.
"""

import datetime
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any, Literal, NamedTuple, get_args

from hookline._engine.metrics import MediaValue
from hookline._record import media_table
from hookline.compat.wandb.terminal import termwarn
from hookline.compat.wandb.values import MOST_LISTED, WBValue, as_array, plain_value

LogMode = Literal["IMMUTABLE", "MUTABLE", "INCREMENTAL"]
_ANY = "any"
_NO_VALUE = "none"


_KINDS: tuple[tuple[Any, str], ...] = (
    (type(None), _NO_VALUE),
    (bool, "boolean"),
    (int | float, "number"),
    (str, "string"),
    (datetime.datetime | datetime.date, "timestamp"),
    (Mapping, "typedDict"),
    (list | tuple | set | frozenset, "list"),
)
"""The types of cells that columns distinguish, in the order in which they are tried."""


def _kind(value: Any) -> str:
    """Return the type of a cell, as far as columns keep it."""
    if isinstance(value, WBValue):
        return type(value).__name__
    if value.__class__ is float and value != value:  # NaN, as data frames have it where a cell is missing
        return _NO_VALUE
    for kind, name in _KINDS:
        if isinstance(value, kind):
            return name
    array = as_array(value)
    if array is None:
        return "pythonObject"
    return "ndarray" if array.ndim else {"b": "boolean", "U": "string"}.get(array.dtype.kind, "number")


class Table(WBValue):
    """A table of values and media.

    Args:
        columns: The names of the columns.
        data: Rows as lists, a NumPy array, or a data frame of pandas.
        rows: An older name of ``data``.
        dataframe: A data frame of pandas; the others are then ignored.
        dtype: A type for all columns, or one for each: ``int``, ``str``, ``bool``, ...
        optional: Whether cells may be None; one value, or one for each column.
        allow_mixed_types: Accept any type in any column.
        log_mode: ``"IMMUTABLE"``, ``"MUTABLE"`` or ``"INCREMENTAL"``.

    Attributes:
        columns: The names of the columns.
        data: The rows.
    """

    _log_type = "table-file"
    MAX_ROWS = 10_000
    MAX_ARTIFACT_ROWS = 200_000

    def __init__(
        self,
        columns: list[Any] | None = None,
        data: Any = None,
        rows: Any = None,
        dataframe: Any = None,
        dtype: Any = None,
        optional: bool | list[bool] = True,
        allow_mixed_types: bool = False,
        log_mode: LogMode | None = "IMMUTABLE",
    ) -> None:
        assert log_mode in get_args(LogMode), f"Invalid log_mode: {log_mode}. Must be one of {get_args(LogMode)}"
        frame = dataframe if dataframe is not None else data if _is_frame(data) else None
        if frame is not None:
            columns, data = list(frame.columns), _rows_of(frame)
        names = ["Input", "Output", "Expected"] if columns is None else columns
        assert isinstance(names, list), "columns argument expects a `list` object"
        assert all(type(name) in (str, int) for name in names), "columns argument expects list of strings or ints"
        given = data if data is not None else rows if rows is not None else []
        array = as_array(given)
        assert array is not None or isinstance(given, list), "data argument expects a `list` object"
        self.columns: list[Any] = names
        self.data: list[list[Any]] = []
        self.log_mode = log_mode
        self._is_mixed = allow_mixed_types
        self._optional = optional if isinstance(optional, list) else [optional] * len(names)
        self._kinds = [_kind_of_dtype(each) for each in (dtype if isinstance(dtype, list) else [dtype] * len(names))]
        self._pk_col: Any = None
        self._recorded: dict[str, _Recorded] = {}
        self._changes = 0
        for row in given:
            self.add_data(*row)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Table) or self.columns != other.columns or len(self.data) != len(other.data):
            return False
        mine, theirs = (plain_value(table.data) for table in (self, other))
        return bool(mine == theirs)

    __hash__ = object.__hash__

    def add_data(self, *data: Any) -> None:
        """Add a row.

        Raises:
            ValueError: It has another number of cells than there are columns.
            TypeError: A cell has another type than its column.
        """
        if len(data) != len(self.columns):
            raise ValueError(f"This table expects {len(self.columns)} columns: {self.columns}, found {len(data)}")
        if not self._is_mixed:
            self._kinds = [self._checked_kind(index, cell, data) for index, cell in enumerate(data)]
        self.data.append(list(data))
        self._changes += 1

    def add_row(self, *row: Any) -> None:
        """Add a row; an older name of `add_data`."""
        self.add_data(*row)

    def add_column(self, name: str, data: Any, optional: bool = False) -> None:
        """Add a column.

        Args:
            name: Its name.
            data: A cell for each row, as a list or an array.
            optional: Whether cells may be None.
        """
        assert isinstance(name, str)
        assert name not in self.columns, f"the column {name!r} exists"
        assert isinstance(data, list) or as_array(data) is not None, "give a list or an array"
        cells = list(data)
        if not self.columns and not self.data:
            self.data = [[] for _ in cells]
        assert len(cells) == len(self.data), f"Expected length {len(self.data)}, found {len(cells)}"
        self.columns = [*self.columns, name]
        self._kinds.append("")
        self._optional.append(optional)
        for row, cell in zip(self.data, cells, strict=True):
            row.append(cell)
        if not self._is_mixed:
            for row in self.data:
                self._kinds[-1] = self._checked_kind(len(self.columns) - 1, row[-1], row)
        self._changes += 1

    def add_computed_columns(self, fn: Callable[[int, dict[str, Any]], Mapping[str, Any]]) -> None:
        """Add columns that a function computes from the index and the cells of each row."""
        new: dict[str, list[Any]] = {}
        for index, row in enumerate(self.data):
            for name, cell in fn(index, dict(zip(self.columns, row, strict=True))).items():
                new.setdefault(name, []).append(cell)
        for name, cells in new.items():
            self.add_column(name, cells)

    def get_column(self, name: Any, convert_to: str | None = None) -> Any:
        """Return the cells of a column.

        Args:
            name: Its name.
            convert_to: ``"numpy"`` for an array.
        """
        assert name in self.columns, f"there is no column {name!r}"
        assert convert_to in (None, "numpy"), f"convert_to={convert_to!r}: give 'numpy' or None"
        index = self.columns.index(name)
        cells = [row[index] for row in self.data]
        if convert_to is None:
            return cells
        import numpy

        return numpy.array(cells)

    def get_index(self) -> list[int]:
        """Return the numbers of the rows."""
        return list(range(len(self.data)))

    def get_dataframe(self) -> Any:
        """Return the table as a data frame of pandas."""
        pandas = import_module("pandas")
        return pandas.DataFrame.from_records(self.data, columns=self.columns)

    def index_ref(self, index: int) -> int:
        """Return the number of a row."""
        assert index < len(self.data)
        return index

    def iterrows(self) -> Iterator[tuple[int, list[Any]]]:
        """Yield the number and the cells of each row."""
        yield from enumerate(self.data)

    def set_pk(self, col_name: Any) -> None:
        """Name the column that identifies rows."""
        assert col_name in self.columns
        self._pk_col = col_name

    def set_fk(self, col_name: Any, table: "Table", table_col: str) -> None:
        """Name a column that refers to another table; accepted."""
        assert col_name in self.columns
        assert table is not self

    def cast(self, col_name: Any, dtype: Any, optional: bool = False) -> str:
        """Give a column a type.

        Raises:
            TypeError: A cell has another one.
        """
        index = self.columns.index(col_name)
        self._kinds[index], self._optional[index] = _kind_of_dtype(dtype), optional
        for row in self.data:
            self._kinds[index] = self._checked_kind(index, row[index], row)
        return self._kinds[index]

    def has_been_logged(self) -> bool:
        """Return whether it was logged."""
        return bool(self._recorded)

    def native(self, name: str = "") -> media_table.Table | None:
        """Return the table as hookline records it under a name; None if there is nothing new."""
        known = self._recorded.get(name)
        if known is not None and self.log_mode == "IMMUTABLE":
            if known.changes != self._changes:
                termwarn(
                    "A wandb.Table that was logged is not recorded again after a change. Make it with "
                    "log_mode='MUTABLE' or 'INCREMENTAL'.",
                    repeat=False,
                )
            return None
        if known is None or (self.log_mode == "MUTABLE" and known.changes != self._changes):
            columns = [str(column) for column in self.columns] or ["(no columns)"]
            known = _Recorded(media_table.Table(columns), 0, 0)
        known.table.extend([_cell(cell) for cell in row] for row in self.data[known.rows :])
        self._recorded[name] = _Recorded(known.table, len(self.data), self._changes)
        return known.table

    def to_json(self, run_or_artifact: Any = None) -> dict[str, Any]:
        """Return the table's entry in the summary."""
        kind = "incremental-table-file" if self.log_mode == "INCREMENTAL" else self._log_type
        return {"_type": kind, "ncols": len(self.columns), "nrows": len(self.data), "log_mode": self.log_mode}

    def _checked_kind(self, index: int, cell: Any, row: Iterable[Any]) -> str:
        known, kind = self._kinds[index], _kind(cell)
        fits = self._optional[index] if kind == _NO_VALUE else known in ("", _ANY, kind)
        if not fits:
            name = self.columns[index]
            shown = dict(zip(self.columns, row, strict=False))
            raise TypeError(
                f"Data row contained incompatible types:\n{shown!r:.500}\nKey {name!r}: {kind} is not assignable to "
                f"{known or 'a value that is not None'}. With allow_mixed_types=True any type is accepted."
            )
        return kind if known == "" and kind != _NO_VALUE else known


class _Recorded(NamedTuple):
    """How much of a table was recorded under a name: its first rows, after so many changes."""

    table: media_table.Table
    rows: int
    changes: int


def _kind_of_dtype(dtype: Any) -> str:
    if dtype is None:
        return ""
    if dtype is Any or dtype is object:
        return _ANY
    if isinstance(dtype, type) and issubclass(dtype, WBValue):
        return dtype.__name__
    examples: dict[Any, Any] = {bool: True, int: 0, float: 0.0, str: "", list: [], dict: {}}
    examples |= {datetime.datetime: datetime.datetime.min, datetime.date: datetime.date.min, tuple: (), set: set()}
    return _kind(examples[dtype]) if dtype in examples else _kind(dtype) if not isinstance(dtype, type) else _ANY


def _is_frame(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == "pandas" and hasattr(value, "columns")


def _rows_of(frame: Any) -> list[tuple[Any, ...]]:
    columns = [frame[name].to_numpy() for name in frame.columns]
    return list(zip(*columns, strict=True))


def _cell(cell: Any) -> Any:
    """Return a cell as hookline records it."""
    if isinstance(cell, WBValue):
        native = getattr(cell, "native", None)
        made = None if native is None else native()
        return str(cell) if not isinstance(made, MediaValue) or isinstance(made, media_table.Table) else made
    array = as_array(cell)
    if array is not None and array.size > MOST_LISTED:
        return array.tolist()
    return plain_value(cell) if array is not None or isinstance(cell, Mapping | list | tuple | set) else cell


class EvalTable(Table):
    """A table of an evaluation, recorded as every table.

    Args:
        columns, data, rows, dataframe, dtype, optional, allow_mixed_types, log_mode: As of `Table`.
        options: ``input_columns``, ``output_columns`` and ``score_columns``, which are its columns where ``columns`` is
            not given; others are accepted.
    """

    def __init__(
        self,
        columns: list[Any] | None = None,
        data: Any = None,
        rows: Any = None,
        dataframe: Any = None,
        dtype: Any = None,
        optional: bool | list[bool] = True,
        allow_mixed_types: bool = False,
        log_mode: LogMode = "IMMUTABLE",
        **options: Any,
    ) -> None:
        parts = [options.get(f"{part}_columns") or [] for part in ("input", "output", "score")]
        named = [name for part in parts for name in part]
        super().__init__(
            columns=columns if columns is not None or not named else named,
            data=data,
            rows=rows,
            dataframe=dataframe,
            dtype=dtype,
            optional=optional,
            allow_mixed_types=allow_mixed_types,
            log_mode=log_mode,
        )


class JoinedTable(WBValue):
    """Two tables with a column in common. It is not recorded; log the tables themselves.

    Args:
        table1, table2: The tables.
        join_key: The columns.
    """

    _log_type = "joined-table"

    def __init__(self, table1: Any, table2: Any, join_key: Any) -> None:
        termwarn("Of a wandb.JoinedTable nothing is recorded: log the two tables.", repeat=False)
        self._table1, self._table2, self._join_key = table1, table2, join_key

    def native(self) -> None:
        """Return None: nothing of it is recorded."""


class PartitionedTable(WBValue):
    """A table in several files of an artifact. It is not recorded; log its parts.

    Args:
        parts_path: The folder in the artifact.
    """

    _log_type = "partitioned-table"

    def __init__(self, parts_path: str) -> None:
        termwarn("Of a wandb.PartitionedTable nothing is recorded: log its parts.", repeat=False)
        self.parts_path = parts_path

    def native(self) -> None:
        """Return None: nothing of it is recorded."""
