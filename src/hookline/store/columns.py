"""Records as rows of the tables, and rows as columns that DuckDB takes over without looking at each value."""

import math
from typing import Any

import msgspec

from hookline.record.reader import Parcel
from hookline.record.records import Event, LogLine, Metrics, Rewards, Sample, Status, clean
from hookline.store.tables import TABLES, Table

Row = tuple[Any, ...]
_LARGEST = (1 << 63) - 1


class Rows:
    """Collects the rows that records become, table by table."""

    def __init__(self) -> None:
        self.tables: dict[str, list[Row]] = {name: [] for name in TABLES}
        self.count = 0

    def add(self, parcel: Parcel, order: float | None = None) -> None:
        """Take a record in.

        Args:
            order: The time by which it comes behind what its writer recorded before, where its own is another.
        """
        record, writer = parcel.record, parcel.file.name
        if isinstance(record, Metrics):
            self._add_metrics(record, writer, parcel.file.session, order)
        elif isinstance(record, Sample):
            self._put("samples", _sample_row(record, writer, parcel.id))
        elif isinstance(record, LogLine):
            self._put("logs", (writer, record.time, record.level, record.logger, record.message, record.step))
        elif isinstance(record, Rewards):
            self._add_rewards(record, writer)
        elif isinstance(record, Event):
            self._put("events", (writer, "event", record.time, record.step, record.name, "", _json(record.data)))
        elif isinstance(record, Status):
            row = (writer, "status", record.time, record.step, record.status, record.message, _json(record.data))
            self._put("events", row)

    def _put(self, table: str, row: Row) -> None:
        self.tables[table].append(row)
        self.count += 1

    def _add_metrics(self, record: Metrics, writer: str, session: int, order: float | None) -> None:
        append = self.tables["metrics"].append
        axis, step, time = record.axis, record.step, record.time
        for name, value in record.values.items():
            if type(value) is float:  # the usual case
                append((writer, axis, step, time, name, value, None, session, order))
            else:
                append((writer, axis, step, time, name, number(value), _text(value), session, order))
        self.count += len(record.values)

    def _add_rewards(self, record: Rewards, writer: str) -> None:
        samples = [*record.samples, *[None] * len(record.values)]
        for position, (value, sample) in enumerate(zip(record.values, samples, strict=False)):
            self._put("rewards", (writer, record.step, record.time, record.name, position, number(value), sample))


def number(value: Any) -> float | None:
    """A value as a float; None where it is no number."""
    if not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def columns(table: Table, rows: list[Row]) -> tuple[dict[str, Any], list[str]]:
    """Rows as arrays, and the expressions that make the table's columns of them.

    DuckDB takes NaN in an array for a missing value: whether it is one stands in an array beside it.
    """
    import numpy as np

    arrays: dict[str, Any] = {}
    expressions = []
    for position, (name, kind) in enumerate(table.columns.items()):
        values = [row[position] for row in rows]
        expression = f'"{name}"'
        if kind == "DOUBLE":
            arrays[name] = floats = np.array(values, dtype=np.float64)
            if np.isnan(floats).any():
                arrays[f"{name} is nan"] = np.array([value != value for value in values])
                expression = f'CASE WHEN "{name} is nan" THEN \'NaN\'::DOUBLE ELSE "{name}" END'
        elif kind in ("BIGINT", "INTEGER"):
            arrays[name] = _whole(values)
        else:
            arrays[name] = array = np.empty(len(values), dtype=object)
            array[:] = values
            is_nested = kind.startswith("MAP") or kind.endswith("[]")
            expression = f"CAST({expression} AS JSON)" if is_nested else expression
        expressions.append(f"CAST({expression} AS {kind})")
    return arrays, expressions


def _whole(values: list[int | None]) -> Any:
    import numpy as np

    try:
        return np.array(values, dtype=np.int64)
    except (TypeError, OverflowError):  # one is missing, or larger than any step should be
        fits = [0 if value is None else max(-_LARGEST, min(_LARGEST, value)) for value in values]
        return np.ma.masked_array(np.array(fits, dtype=np.int64), [value is None for value in values])


def _sample_row(record: Sample, writer: str, key: str) -> Row:
    rewards = {name: number(value) for name, value in record.rewards.items()}
    texts = (record.prompt, record.completion, record.expected, record.reasoning, record.answer)
    total = number(record.total)
    given = [value for value in rewards.values() if value is not None]
    reward = total if total is not None or not given else sum(given)
    numbers = (_json(rewards), total, reward, number(record.advantage))
    rest = (record.group, record.lesson, _json(record.extra), _json(record.truncated))
    return (key, writer, record.axis, record.step, record.time, *texts, *numbers, *rest)


def _text(value: Any) -> str | None:
    """A metric's value as text where it is no number."""
    if value is None or isinstance(value, int | float):
        return None
    return value if isinstance(value, str) else _json(value)


def _json(value: Any) -> str:
    return "{}" if value == {} else msgspec.json.encode(clean(value)).decode()
