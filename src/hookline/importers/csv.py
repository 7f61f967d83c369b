"""CSV files with a column of steps: what hookline's own sink writes, and anybody else's.

A column of times (``time``, ``timestamp``, ``wall time``; seconds or ISO dates) gives the rows' times. Empty
cells are no values. Numbers are read as numbers, NaN and infinities included, everything else stays text.
A file with the columns ``prompt`` and ``completion`` holds samples. A line whose cells do not fit the header is
named and left out, and so is a last line without an end where the writer is known to end its lines.

Lightning's ``metrics.csv`` and ``hparams.yaml``.

The settings may hold tags that ask for Python objects to be made. None is: a tag is ignored, and what
stands behind it is taken as the plain mapping, list or text that it is.
"""

import csv
import io
import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

from hookline._engine.errors import OptionError, closest
from hookline._record.records import finite_back
from hookline.importers.source import Item, Reading, Row, SampleRow, Source, rows, written
from hookline.sinks.csv import EXTRA  # its module also lifts the standard library's limit of a cell's length

STEP_COLUMNS = ("step", "global_step", "trainer/global_step", "_step", "iteration", "iter", "it", "epoch")
"""The columns that are taken for the steps, the first that is there."""
_TIME_COLUMNS = ("time", "timestamp", "wall_time", "wall time", "_timestamp", "datetime", "date")
_OURS = ("step", "axis", "time")
_TEXTS = ("prompt", "completion", "expected", "reasoning", "answer", "group", "lesson", "axis")
_NUMBERS = ("total", "advantage")
_ADVANCE_LINES = 1000


class CsvFile(Source):
    """A CSV file.

    Args:
        file: The file.
        step_column: The column of steps, where it is none of the usual ones.
    """

    format = "csv"
    ends_lines: ClassVar[bool] = False
    """Whether a line without an end is surely torn."""

    def __init__(self, file: Path, *, step_column: str | None = None) -> None:
        super().__init__([file])
        self._header = read_header(file)
        self._step = _step_place(self._header, file, step_column)
        self._is_ours = tuple(self._header[:3]) == _OURS
        lower = [name.strip().lower() for name in self._header]
        self._time = next((lower.index(name) for name in _TIME_COLUMNS if name in lower), None)
        self._holds_samples = {"prompt", "completion"} <= set(self._header)
        self.has_times = self._time is not None

    def items(self, reading: Reading) -> Iterator[Item]:
        file = self.files[0]
        modified = written(file)
        make = self._sample if self._holds_samples else self._rows
        for place, cells in lines(file, reading, must_end=self.ends_lines or self._is_ours):
            if len(cells) != len(self._header):
                reading.skip(place, f"it has {len(cells)} cells for {len(self._header)} columns")
                continue
            step = whole(cells[self._step])
            if step is None:
                reading.skip(place, f"{self._header[self._step]}={cells[self._step]!r} is no whole number")
                continue
            time = modified if self._time is None else _seconds(cells[self._time])
            if time is None and self._time is not None:
                reading.skip(f"{place}, {self._header[self._time]}={cells[self._time]!r}", "it is no time")
            yield from make(step, modified if time is None else time, cells)

    def _values(self, cells: list[str]) -> dict[str, Any]:
        """What stands in the cells besides step and time, by column."""
        return {
            name: parsed(cell)
            for place, (name, cell) in enumerate(zip(self._header, cells, strict=True))
            if cell and place not in (self._step, self._time)
        }

    def _rows(self, step: int, time: float, cells: list[str]) -> Iterator[Item]:
        values = self._values(cells)
        if not self._is_ours:
            yield from rows(step, time, values)
            return
        axis, values = _as_recorded(values)
        yield Row(step, time, values, axis)

    def _sample(self, step: int, time: float, cells: list[str]) -> Iterator[Item]:
        texts = dict(zip(self._header, cells, strict=True))
        values = self._values(cells)
        if EXTRA in values:
            values = {name: value for name, value in values.items() if name != EXTRA} | _unpacked(texts[EXTRA])
        fields: dict[str, Any] = {"prompt": "", "completion": "", "rewards": {}, "extra": {}}
        for name, value in values.items():
            if name.startswith("rewards/"):
                fields["rewards"][name.removeprefix("rewards/")] = value
            elif name in _TEXTS:
                fields[name] = texts.get(name, str(value))  # also those that look like numbers
            elif name in _NUMBERS:
                fields[name] = value
            elif not name.startswith("truncated/"):
                fields["extra"][name.removeprefix("extra/")] = value
        yield SampleRow(step, time, fields, fields.pop("axis", "train"))


def read_header(file: Path) -> list[str]:
    """The names of a file's columns; one that stands twice is numbered."""
    with file.open(newline="", encoding="utf-8-sig", errors="replace") as opened:
        names = next(csv.reader(opened, delimiter=_delimiter(file)), [])
    seen: dict[str, int] = {}
    for place, name in enumerate(names):
        count = seen[name] = seen.get(name, -1) + 1
        names[place] = f"{name}.{count}" if count else name
    return names


def has_steps(header: list[str], step_column: str | None = None) -> bool:
    """Whether a header names a column of steps."""
    lower = [name.strip().lower() for name in header]
    return step_column in header if step_column is not None else any(name in lower for name in STEP_COLUMNS)


def parsed(cell: str) -> Any:
    """A cell as the number or bool that it says, or as the text that it is.

    >>> [parsed(cell) for cell in ("3", "0.5", "nan", "True", "1_000", "ok")]
    [3, 0.5, nan, True, '1_000', 'ok']
    """
    if cell in ("True", "False"):
        return cell == "True"
    if "_" in cell or not cell.isascii():  # what Python takes for a number and nobody else does
        return cell
    try:
        return int(cell) if cell.lstrip("-").isdigit() else float(cell)
    except ValueError:
        return cell


def whole(cell: str) -> int | None:
    """A step: a whole number, also one written as a float."""
    value = parsed(cell)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if type(value) is int else None


def _step_place(header: list[str], file: Path, step_column: str | None) -> int:
    if step_column is not None:
        if step_column not in header:
            raise OptionError(f"step_column={step_column!r}: {file} has none. {closest(step_column, header)}")
        return header.index(step_column)
    lower = [name.strip().lower() for name in header]
    for name in STEP_COLUMNS:
        if name in lower:
            return lower.index(name)
    raise OptionError(
        f"{file} has no column of steps ({', '.join(STEP_COLUMNS)}) among {', '.join(map(repr, header))}: "
        "name it with step_column= (--step-column)."
    )


def lines(file: Path, reading: Reading, *, must_end: bool) -> Iterator[tuple[str, list[str]]]:
    """The lines behind the header, each with its place."""
    torn = must_end and not _ends_with_newline(file)
    with file.open("rb") as opened:
        text = io.TextIOWrapper(opened, newline="", encoding="utf-8-sig", errors="replace")
        lines = csv.reader(text, delimiter=_delimiter(file))
        next(lines, None)
        before: tuple[str, list[str]] | None = None
        done = 0
        while (cells := _next(lines, file, reading)) is not None:
            if before is not None:
                yield before
            before = (f"{file}, line {lines.line_num}", cells) if cells else None
            if lines.line_num % _ADVANCE_LINES == 0:
                position = opened.tell()
                reading.advance(position - done)
                done = position
        reading.advance(file.stat().st_size - done)
        if before is not None and torn:
            reading.skip(before[0], "the last line has no end: it is cut off")
        elif before is not None:
            yield before


def _next(lines: Any, file: Path, reading: Reading) -> list[str] | None:
    while True:
        try:
            cells: list[str] | None = next(lines, None)
        except csv.Error as error:
            reading.skip(f"{file}, line {lines.line_num}", error)
        else:
            return cells


def _ends_with_newline(file: Path) -> bool:
    with file.open("rb") as opened:
        size = opened.seek(0, 2)
        opened.seek(max(0, size - 1))
        return size == 0 or opened.read(1) in (b"\n", b"\r")


def _delimiter(file: Path) -> str:
    with file.open(encoding="utf-8-sig", errors="replace") as opened:
        header = opened.readline()
    return max(",\t;", key=lambda mark: (header.count(mark), mark == ","))


def _seconds(cell: str) -> float | None:
    value = parsed(cell)
    if type(value) in (int, float):
        return float(value)
    try:
        return datetime.fromisoformat(cell).timestamp()
    except (ValueError, OverflowError):
        return None


def _as_recorded(values: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """A row of our own sink with the names that it was recorded under."""
    axis, writer, extra = values.pop("axis", "train"), values.pop("writer", None), values.pop(EXTRA, None)
    if extra is not None:
        values |= _unpacked(str(extra))
    named = {name.removeprefix("values/"): value for name, value in values.items()}
    return str(axis), named if writer is None else {f"{writer}/{name}": value for name, value in named.items()}


def _unpacked(extra: str) -> dict[str, Any]:
    """What our own sink keeps as JSON, because it has no column."""
    try:
        found = json.loads(extra)
    except ValueError:
        found = None
    return (
        {name: finite_back(value) for name, value in found.items()}
        if isinstance(found, dict)
        else {"extra_text": extra}
    )


METRICS = "metrics.csv"
HPARAMS = "hparams.yaml"
_MOST_NODES = 100_000


class LightningMetrics(CsvFile):
    """What `CSVLogger` wrote: sparse rows with ``step`` and ``epoch``."""

    format = "lightning"
    ends_lines = True


def read_hparams(file: Path, reading: Reading) -> dict[str, Any]:
    """The settings in a file, without running anything that it names."""
    import yaml

    class PlainLoader(yaml.SafeLoader):
        """Takes what has a tag of its own as if it had none."""

    PlainLoader.add_multi_constructor("", _plain_node)
    try:
        # the loader is a safe one: nothing but mappings, lists and scalars comes out of it
        found = yaml.load(file.read_text(encoding="utf-8"), Loader=PlainLoader)  # noqa: S506
        return _copied(found or {}, [_MOST_NODES]) if isinstance(found or {}, dict) else {"hparams": found}
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        reading.skip(str(file), error)
        return {}


def _plain_node(loader: Any, suffix: str, node: Any) -> Any:
    import yaml

    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    return loader.construct_scalar(node) or node.tag.rpartition(":")[2]  # a class is named by its tag alone


def _copied(value: Any, room: list[int]) -> Any:
    """A value without shared parts; one that aliases blow up, or that contains itself, is refused."""
    room[0] -= 1
    if room[0] < 0:
        raise ValueError(f"it has more than {_MOST_NODES} values")
    if isinstance(value, dict):
        return {str(key): _copied(item, room) for key, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [_copied(item, room) for item in value]
    return value if isinstance(value, bool | int | float | str) or value is None else str(value)
