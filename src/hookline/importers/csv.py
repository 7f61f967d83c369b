"""Reads CSV files with a step column: those of hookline's own sink, of Lightning's `CSVLogger`, and any other.

A time column (``time``, ``timestamp``, ``wall time``; seconds or ISO dates) gives the rows' times. Empty cells are no
values. Numbers are parsed, NaN and infinities included; everything else stays text. A file with the columns ``prompt``
and ``completion`` holds samples. A line that does not fit the header is skipped and reported, and so is an unterminated
last line where the writer is known to terminate its lines.

Lightning's ``hparams.yaml`` may contain tags that ask for Python objects. None is constructed: the tag is ignored and
its value is read as a plain mapping, list or string.
"""

import csv
import io
import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

from hookline._engine.errors import OptionError, closest
from hookline._record.records import parse_nonfinite
from hookline.importers.sources import Item, ReadReport, Row, SampleRow, Source, modification_time, split_by_axis
from hookline.sinks.csv import EXTRA  # its module also lifts the standard library's limit on the length of a cell

STEP_COLUMNS = ("step", "global_step", "trainer/global_step", "_step", "iteration", "iter", "it", "epoch")
"""Columns that can hold the steps; the first one that exists is used."""
METRICS = "metrics.csv"
HPARAMS = "hparams.yaml"
_TIME_COLUMNS = ("time", "timestamp", "wall_time", "wall time", "_timestamp", "datetime", "date")
_OWN_COLUMNS = ("step", "axis", "time")
_TEXTS = ("prompt", "completion", "expected", "reasoning", "answer", "group", "lesson", "axis")
_NUMBERS = ("total", "advantage")
_ADVANCE_LINES = 1000
_MAX_NODES = 100_000


class CsvFile(Source):
    """A CSV file.

    Args:
        file: The file.
        step_column: The step column, if it is not one of `STEP_COLUMNS`.
    """

    format = "csv"
    terminates_lines: ClassVar[bool] = False
    """Whether an unterminated last line is certainly torn."""

    def __init__(self, file: Path, *, step_column: str | None = None) -> None:
        super().__init__([file])
        self._header = read_header(file)
        self._step = _step_index(self._header, file, step_column)
        self._is_own = tuple(self._header[:3]) == _OWN_COLUMNS
        lower = [name.strip().lower() for name in self._header]
        self._time = next((lower.index(name) for name in _TIME_COLUMNS if name in lower), None)
        self._holds_samples = {"prompt", "completion"} <= set(self._header)
        self.has_times = self._time is not None

    def items(self, report: ReadReport) -> Iterator[Item]:
        file = self.files[0]
        modified = modification_time(file)
        for place, cells in data_lines(file, report, terminated=self.terminates_lines or self._is_own):
            if len(cells) != len(self._header):
                report.skip(place, f"{len(cells)} cells for {len(self._header)} columns")
                continue
            step = parse_step(cells[self._step])
            if step is None:
                report.skip(place, f"{self._header[self._step]}={cells[self._step]!r} is not a whole number")
                continue
            time = modified if self._time is None else _seconds(cells[self._time])
            if time is None and self._time is not None:
                report.skip(f"{place}, {self._header[self._time]}={cells[self._time]!r}", "not a time")
            at = modified if time is None else time
            values = {
                name: parse_cell(cell)
                for index, (name, cell) in enumerate(zip(self._header, cells, strict=True))
                if cell and index not in (self._step, self._time)
            }
            if self._holds_samples:
                yield _sample(step, at, values, dict(zip(self._header, cells, strict=True)))
            elif self._is_own:
                yield _own_row(step, at, values)
            else:
                yield from split_by_axis(step, at, values)


class LightningMetrics(CsvFile):
    """The file of Lightning's `CSVLogger`: sparse rows with ``step`` and ``epoch``."""

    format = "lightning"
    terminates_lines = True


def read_header(file: Path) -> list[str]:
    """Return the names of a file's columns; repeated names are numbered."""
    with file.open(newline="", encoding="utf-8-sig", errors="replace") as opened:
        names = next(csv.reader(opened, delimiter=_delimiter(file)), [])
    seen: dict[str, int] = {}
    for index, name in enumerate(names):
        count = seen[name] = seen.get(name, -1) + 1
        names[index] = f"{name}.{count}" if count else name
    return names


def has_steps(header: list[str], step_column: str | None = None) -> bool:
    """Check whether a header has a step column."""
    lower = [name.strip().lower() for name in header]
    return step_column in header if step_column is not None else any(name in lower for name in STEP_COLUMNS)


def parse_cell(cell: str) -> Any:
    """Parse a cell as a number or a boolean; anything else stays text.

    >>> [parse_cell(cell) for cell in ("3", "0.5", "nan", "True", "1_000", "ok")]
    [3, 0.5, nan, True, '1_000', 'ok']
    """
    if cell in ("True", "False"):
        return cell == "True"
    if "_" in cell or not cell.isascii():  # Python accepts these as numbers, other tools do not
        return cell
    try:
        return int(cell) if cell.lstrip("-").isdigit() else float(cell)
    except ValueError:
        return cell


def parse_step(cell: str) -> int | None:
    """Parse a whole number, also one written as a float; None if it is not one."""
    value = parse_cell(cell)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if type(value) is int else None


def data_lines(file: Path, report: ReadReport, *, terminated: bool) -> Iterator[tuple[str, list[str]]]:
    """Yield the lines after the header, each with its location.

    Args:
        terminated: Whether the writer terminates its lines, so that an unterminated last line is torn.
    """
    with file.open("rb") as opened:
        size = opened.seek(0, io.SEEK_END)
        opened.seek(max(0, size - 1))
        torn = terminated and size > 0 and opened.read(1) not in (b"\n", b"\r")
        opened.seek(0)
        text = io.TextIOWrapper(opened, newline="", encoding="utf-8-sig", errors="replace")
        lines = csv.reader(text, delimiter=_delimiter(file))
        next(lines, None)
        # Each line is held back until the next one is read: only then is it known not to be the last.
        held: tuple[str, list[str]] | None = None
        done = 0
        while True:
            try:
                cells = next(lines, None)
            except csv.Error as error:
                report.skip(f"{file}, line {lines.line_num}", error)
                continue
            if cells is None:
                break
            if held is not None:
                yield held
            held = (f"{file}, line {lines.line_num}", cells) if cells else None
            if lines.line_num % _ADVANCE_LINES == 0:
                position = opened.tell()
                report.advance(position - done)
                done = position
        report.advance(opened.tell() - done)
        if held is not None and torn:
            report.skip(held[0], "the last line is cut off")
        elif held is not None:
            yield held


def read_hparams(file: Path, report: ReadReport) -> dict[str, Any]:
    """Read the settings in a file without running any code that it names."""
    import yaml

    class PlainLoader(yaml.SafeLoader):
        """Ignores custom tags."""

    PlainLoader.add_multi_constructor("", _plain_node)
    try:
        # The loader is a safe one: it makes only mappings, lists and scalars.
        found = yaml.load(file.read_text(encoding="utf-8"), Loader=PlainLoader)  # noqa: S506
        return _copied(found or {}, [_MAX_NODES]) if isinstance(found or {}, dict) else {"hparams": found}
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        report.skip(str(file), error)
        return {}


def _step_index(header: list[str], file: Path, step_column: str | None) -> int:
    if step_column is not None:
        if step_column not in header:
            raise OptionError(f"step_column={step_column!r}: {file} has no such column. {closest(step_column, header)}")
        return header.index(step_column)
    lower = [name.strip().lower() for name in header]
    for name in STEP_COLUMNS:
        if name in lower:
            return lower.index(name)
    raise OptionError(
        f"{file} has no step column ({', '.join(STEP_COLUMNS)}) among {', '.join(map(repr, header))}: "
        "name it with step_column= (--step-column)."
    )


def _own_row(step: int, time: float, values: dict[str, Any]) -> Row:
    """Restore a row of hookline's sink with the names under which it was recorded."""
    axis, writer, extra = values.pop("axis", "train"), values.pop("writer", None), values.pop(EXTRA, None)
    if extra is not None:
        values |= _unpack_extra(str(extra))
    prefix = "" if writer is None else f"{writer}/"
    return Row(step, time, {prefix + name.removeprefix("values/"): value for name, value in values.items()}, str(axis))


def _sample(step: int, time: float, values: dict[str, Any], texts: dict[str, str]) -> SampleRow:
    if EXTRA in values:
        del values[EXTRA]
        values |= _unpack_extra(texts[EXTRA])
    fields: dict[str, Any] = {"prompt": "", "completion": "", "rewards": {}, "extra": {}}
    for name, value in values.items():
        if name.startswith("rewards/"):
            fields["rewards"][name.removeprefix("rewards/")] = value
        elif name in _TEXTS:
            fields[name] = texts.get(name, str(value))  # also texts that look like numbers
        elif name in _NUMBERS:
            fields[name] = value
        elif not name.startswith("truncated/"):
            fields["extra"][name.removeprefix("extra/")] = value
    return SampleRow(step, time, fields, fields.pop("axis", "train"))


def _unpack_extra(extra: str) -> dict[str, Any]:
    """Decode the values that hookline's sink stores as JSON because they have no column."""
    try:
        found = json.loads(extra)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        return {"extra_text": extra}
    return {name: parse_nonfinite(value) for name, value in found.items()}


def _delimiter(file: Path) -> str:
    with file.open(encoding="utf-8-sig", errors="replace") as opened:
        header = opened.readline()
    return max(",\t;", key=lambda mark: (header.count(mark), mark == ","))


def _seconds(cell: str) -> float | None:
    value = parse_cell(cell)
    if type(value) in (int, float):
        return float(value)
    try:
        return datetime.fromisoformat(cell).timestamp()
    except (ValueError, OverflowError):
        return None


def _plain_node(loader: Any, suffix: str, node: Any) -> Any:
    import yaml

    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    return loader.construct_scalar(node) or node.tag.rpartition(":")[2]  # a class is named by its tag alone


def _copied(value: Any, room: list[int]) -> Any:
    """Copy a value without shared parts; aliases that expand without limit, or cycles, are refused."""
    room[0] -= 1
    if room[0] < 0:
        raise ValueError(f"more than {_MAX_NODES} values")
    if isinstance(value, dict):
        return {str(key): _copied(item, room) for key, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [_copied(item, room) for item in value]
    return value if isinstance(value, bool | int | float | str) or value is None else str(value)
