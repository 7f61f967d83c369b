"""What ``hookline runs export`` wrote of a run: its metrics, samples and events, as they were recorded.

A table of metrics has a row for each value; those of one writer, axis, step and time are a row again. The tables are
sorted by name or step, and runs are written by time: what a file has of one run is held in memory.
"""

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from hookline.integrations.ingest.csv import whole
from hookline.integrations.ingest.exported_table import rows_of
from hookline.integrations.ingest.items import Item, Occurrence, Row, SampleRow, StatusRow
from hookline.integrations.ingest.source import Reading, Source
from hookline.record.reader import MAIN
from hookline.record.records import finite_back

_TEXTS = ("prompt", "completion", "expected", "reasoning", "answer", "group", "lesson")


class Part(NamedTuple):
    """What one file has of a run."""

    file: Path
    table: str
    tells_broken: bool = True
    """Whether broken lines of the file are told with this run: each is told once."""


class Export(Source):
    """The tables of one run.

    Args:
        run: What the column ``run`` says.
        parts: The files, each with its table.
        has_statuses: Whether they say how the run went.
    """

    format = "hookline"
    has_times = True

    def __init__(self, run: str, parts: list[Part], *, has_statuses: bool = False) -> None:
        super().__init__([part.file for part in parts])
        self.run = run
        self.has_statuses = has_statuses
        self._parts = parts

    def items(self, reading: Reading) -> Iterator[Item]:
        reading.facts["run"] = self.run
        joined, others = _Joined(), list[Item]()
        for part in self._parts:
            for place, row in self._rows(part, reading):
                try:
                    item = _MAKERS[part.table](row)
                except (TypeError, ValueError, RecursionError) as error:
                    reading.skip(place, error)
                    continue
                if isinstance(item, Row):
                    joined.add(item)
                else:
                    others.append(item)
        yield from sorted([*joined.rows(), *others], key=lambda item: item.time)

    def _rows(self, part: Part, reading: Reading) -> Iterator[tuple[str, dict[str, Any]]]:
        noted = reading if part.tells_broken else Reading(passed=reading.passed)
        for place, row in rows_of(part.file, noted):
            if row.get("run") == self.run:
                yield place, row
            elif not row.get("run"):
                noted.skip(place, "it names no run")


class Contents(NamedTuple):
    """What a file has of a run, as far as it has to be known beforehand."""

    table: str
    has_statuses: bool


def runs_in(file: Path, table: str) -> dict[str, Contents]:
    """The runs in a file, in its order."""
    found: dict[str, Contents] = {}
    for _, row in rows_of(file, Reading()):
        if run := row.get("run"):
            known = found.get(run)
            if known is None or (row.get("kind") == "status" and not known.has_statuses):
                found[run] = Contents(table, row.get("kind") == "status")
    return found


class _Joined:
    """Single values put together as they were recorded."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str, int, float], list[Row]] = {}

    def add(self, row: Row) -> None:
        alike = self._rows.setdefault((row.writer, row.axis, row.step, row.time), [])
        for known in alike:
            if known.values.keys().isdisjoint(row.values):
                known.values.update(row.values)
                return
        alike.append(row)

    def rows(self) -> Iterator[Row]:
        for alike in self._rows.values():
            yield from alike


def _metric(row: dict[str, Any]) -> Row:
    value = _number(row, "value")
    writer = _text(row, "writer")
    name = _text(row, "name")
    own = name if writer == MAIN else name.removeprefix(f"{writer}/")  # which readers of the run put there again
    values = {own: row["text"] if value is None else value}
    return Row(_step(row), _time(row), values, _text(row, "axis"), writer)


def _sample(row: dict[str, Any]) -> SampleRow:
    numbers = {name: _number(row, name) for name in ("total", "advantage")}
    fields: dict[str, Any] = {name: row[name] for name in _TEXTS if row[name] is not None}
    fields |= {name: value for name, value in numbers.items() if value is not None}
    fields["rewards"] = {name: finite_back(value) for name, value in _mapping(row, "rewards").items()}
    fields["extra"] = _mapping(row, "extra")
    cut = _mapping(row, "truncated")
    return SampleRow(_step(row), _time(row), fields, _text(row, "axis"), _text(row, "writer"), cut or None)


def _event(row: dict[str, Any]) -> Occurrence | StatusRow:
    step = None if row["step"] is None else _step(row)
    time, name, data, writer = _time(row), _text(row, "name"), _mapping(row, "data"), _text(row, "writer")
    if row["kind"] == "status":
        return StatusRow(step, time, name, row["message"] or "", data, writer)
    return Occurrence(step, time, name, data, writer)


_MAKERS: dict[str, Callable[[dict[str, Any]], Item]] = {"metrics": _metric, "samples": _sample, "events": _event}


def _text(row: dict[str, Any], column: str) -> str:
    if not isinstance(row[column], str):
        raise ValueError(f"{column}={row[column]!r} is no text")  # noqa: TRY004 - of the file, not of the program
    return str(row[column])


def _step(row: dict[str, Any]) -> int:
    step = whole(str(row["step"]))
    if step is None:
        raise ValueError(f"step={row['step']!r} is no whole number")
    return step


def _time(row: dict[str, Any]) -> float:
    time = _number(row, "time")
    if time is None or not math.isfinite(time):
        raise ValueError(f"time={row['time']!r} is no time")
    return time


def _number(row: dict[str, Any], column: str) -> float | None:
    try:
        return None if row[column] is None else float(row[column])
    except (TypeError, ValueError):
        raise ValueError(f"{column}={row[column]!r} is no number") from None


def _mapping(row: dict[str, Any], column: str) -> dict[str, Any]:
    """A nested value, which CSV and Parquet have as JSON."""
    value = row[column]
    found = json.loads(value) if isinstance(value, str) else {} if value is None else value
    if not isinstance(found, dict):
        raise ValueError(f"{column}={value!r:.80} is no mapping")  # noqa: TRY004 - of the file
    return found
