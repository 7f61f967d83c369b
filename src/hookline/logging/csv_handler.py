"""`CSVHandler`: log records as the rows of a CSV file, written off the training thread.

A row has the data that a record carries (see `payloads`), its time, and the message, level and logger
of an ordinary record. Columns that are named and not given are empty; what is given and not named is
kept as JSON in the column ``extra``. Every record is in the file once, also after ``kill -9``; see
`Spool` for how.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from hookline.core.errors import OptionError
from hookline.logging.payloads import fields_of, payload_of
from hookline.logging.spool import by_rank
from hookline.logging.spool_handler import DRAIN_SECONDS, SpoolHandler, require_positive
from hookline.record.reader import MAIN, Parcel
from hookline.record.recorder import Recorder
from hookline.record.records import clean
from hookline.sinks.csv import EXTRA, CsvSink

_ATTRIBUTES = {"level": "levelname", "logger": "name", "timestamp": "created"}
"""Columns that go by another name in a log record."""


class CSVHandler(SpoolHandler):
    """Writes log records to a CSV file.

    Args:
        filename: The file; one that is there is appended to.
        columns: Its columns. They may name fields of the data (``question``, ``step``, ...), ``timestamp``,
            ``message``, ``level``, ``logger``, and any attribute of a log record. Without them the file has a
            column for each field that comes.
        buffer_size: How many rows are written at once, at most.
        flush_interval: After how many seconds, at the latest, a record is in the file.
        messages: Whether ordinary records, which carry no data, are rows as well.
        drain_seconds: How long `close` waits for what is left to be written.
    """

    def __init__(
        self,
        filename: str | Path,
        columns: Sequence[str] = (),
        buffer_size: int = 100,
        flush_interval: float = 5.0,
        *,
        messages: bool = True,
        drain_seconds: float = DRAIN_SECONDS,
    ) -> None:
        if isinstance(columns, str) or not all(isinstance(column, str) for column in columns):
            raise OptionError(f"columns={columns!r}: give a list of names.")
        require_positive("buffer_size", buffer_size)
        require_positive("flush_interval", flush_interval)
        _require_file(filename)
        self.path = Path(filename).absolute()
        self.columns = tuple(column for column in columns if column != EXTRA)
        self.messages = messages
        super().__init__(
            self.path,
            partial(RowsSink, self.path, columns=self.columns),
            name="csv",
            batch_records=buffer_size,
            poll_seconds=flush_interval,
            drain_seconds=drain_seconds,
            settings={"columns": list(self.columns)},
        )

    def write(self, recorder: Recorder, record: logging.LogRecord) -> None:
        row = fields_of(record)
        if not row and not self.messages:
            return
        if payload_of(record) is None:
            self._add_message(row, record)
        for column in self.columns or ("timestamp",):
            if column not in row:
                row[column] = _attribute(record, column)
        recorder.metrics(row, 0)

    def _add_message(self, row: dict[str, Any], record: logging.LogRecord) -> None:
        row.setdefault("message", record.getMessage())
        row.setdefault("level", record.levelname)
        row.setdefault("logger", record.name)
        if record.exc_info:
            row.setdefault("exception", (self.formatter or _plain).formatException(record.exc_info))


_plain = logging.Formatter()


def _require_file(filename: str | Path) -> None:
    path = Path(filename)
    if not str(filename) or "\0" in str(filename) or (path.exists() and not path.is_file()):
        raise OptionError(f"filename={str(filename)!r}: give the name of a file, which need not be there yet.")
    if path.exists():
        try:
            path.open("ab").close()
        except OSError as error:
            raise OptionError(f"{path} cannot be written to ({error.strerror}): give another file.") from error


def _attribute(record: logging.LogRecord, column: str) -> Any:
    return record.getMessage() if column == "message" else getattr(record, _ATTRIBUTES.get(column, column), None)


@dataclass(eq=False)
class RowsSink(CsvSink):
    """Writes what the handler recorded, and nothing that a journal's records have besides."""

    def spec(self) -> dict[str, Any]:
        """What the rows are delivered to: the file. Other columns do not make it another one."""
        return {"use": f"{__name__}:{type(self).__qualname__}", "with": {"path": str(self.path)}}

    def write(self, parcels: Sequence[Parcel]) -> dict[str, Any]:
        assert self._table is not None
        return self._table.append([_row(parcel) for parcel in parcels if parcel.kind == "metrics"])


def _row(parcel: Parcel) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for key, value in parcel.record.values.items():  # type: ignore[union-attr]  # only metrics come here
        _add(row, "extra_" if key == EXTRA else key, value)
    if isinstance(row.get("timestamp"), float):
        row["timestamp"] = datetime.fromtimestamp(row["timestamp"]).astimezone().isoformat(timespec="milliseconds")
    writer = by_rank(parcel).file.name
    return row if writer == MAIN else {**row, "writer": writer}


def _add(row: dict[str, Any], key: str, value: Any) -> None:
    """Put a value into a row: what is nested under joined names, lists as JSON."""
    if isinstance(value, Mapping):
        for inner, item in value.items():
            _add(row, f"{key}/{inner}", item)
    elif isinstance(value, list):
        row[key] = json.dumps(clean(value), ensure_ascii=False)
    else:
        row[key] = value
