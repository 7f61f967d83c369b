"""Rows as they are compared: a step with names and values; what was recorded, and what counts of it."""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from destinations.base import LEFT_OUT

import hookline as hl
from hookline._record.reader import MAIN, Reader
from hookline._record.records import Metrics

Row = tuple[int, tuple[tuple[str, Any], ...]]
"""A step, and the values by name."""
Records = list[Metrics]


def row(step: int, values: dict[str, Any], shown: Callable[[Any], Any] = lambda value: value) -> Row:
    """A row with the values as a destination shows them."""
    kept = {name: shown(value) for name, value in values.items()}
    return step, tuple(sorted((name, value) for name, value in kept.items() if value is not LEFT_OUT))


def joined(cells: Iterable[tuple[Any, int, str, Any]]) -> list[Row]:
    """Rows of single values that come with the time of their row: what has one time and step is one row."""
    rows: dict[tuple[Any, int], list[tuple[str, Any]]] = defaultdict(list)
    for time, step, name, value in cells:
        rows[time, step].append((name, value))
    return [(step, tuple(sorted(values))) for (_, step), values in rows.items()]


def cells(records: Records, time: Callable[[Metrics], Any]) -> Iterator[tuple[Any, int, str, Any]]:
    """The single values of records, for `joined`."""
    for record in records:
        for name, value in record.values.items():
            yield time(record), record.step, name, value


def history(run_dir: Path) -> Records:
    """All rows that were ever recorded, also those that were done again."""
    entries = Reader(run_dir / "journal").new()
    return [entry.record for entry in entries if isinstance(entry.record, Metrics) and entry.file.name == MAIN]


def view(run_dir: Path) -> Records:
    """The rows that count."""
    return [record for record in hl.read(run_dir) if isinstance(record, Metrics)]


def without_costs(values: dict[str, Any]) -> dict[str, Any]:
    """The values of a row but for what hooks cost, which now and then stands in the row of a step."""
    return {name: value for name, value in values.items() if not name.startswith("hooks/")}


def trained(records: Records) -> Counter[Row]:
    """What was trained: the rows without what hooks cost, and without the session that they come from."""
    own = [(record.step, without_costs(record.values)) for record in records]
    return Counter(
        row(step, {name: value for name, value in values.items() if not name.endswith("attempt")})
        for step, values in own
        if values
    )


def reported(directory: Path) -> dict[int, tuple[Counter[tuple[int, int]], int]]:
    """What each session says to have recorded, by (step, number of names), and how many records it says were lost."""
    sessions = {}
    for path in sorted(directory.glob("[0-9]*")):
        lines = [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]
        rows = Counter((line["step"], tuple(line["names"])) for line in lines)
        sessions[int(path.name)] = (rows, max((line["lost"] for line in lines), default=0))
    return sessions  # type: ignore[return-value]
