"""`JsonFormatter`: log records as lines of JSON, what ``format: json`` stands for in a configuration."""

import json
import logging
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from hookline.core.errors import OptionError
from hookline.logging.payloads import fields_of
from hookline.record.records import clean

FIELDS = ("timestamp", "level", "name", "message")
_ATTRIBUTES = {"level": "levelname", "logger": "name"}


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON.

    An exception is added as ``exception``, whichever fields are named. What JSON cannot hold is written as
    text; numbers that are not finite as ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``.

    Args:
        fields: What to write, in this order: ``timestamp``, ``level``, ``name`` (or ``logger``), ``message``, any
            attribute of a log record, any field of the data that it carries; null where it has none. Without
            them: the four, and all of the data.
        datefmt: The timestamp's format for `time.strftime`; ISO 8601 with milliseconds where none is given.
    """

    def __init__(self, fields: Sequence[str] | None = None, *, datefmt: str | None = None) -> None:
        super().__init__(datefmt=datefmt)
        if fields is not None and (isinstance(fields, str) or not all(isinstance(name, str) for name in fields)):
            raise OptionError(f"fields={fields!r}: give a list of names.")
        self.fields = tuple(fields) if fields is not None else None

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        data = fields_of(record)
        names = self.fields if self.fields is not None else dict.fromkeys((*FIELDS, *data))
        row = {name: self._value(name, record, data) for name in names}
        if record.exc_info and "exception" not in row:
            row["exception"] = self.formatException(record.exc_info)
        return json.dumps(clean(row), ensure_ascii=False)

    def _value(self, name: str, record: logging.LogRecord, data: dict[str, Any]) -> Any:
        match name:
            case "message":
                return record.getMessage()
            case "timestamp":
                return self._timestamp(record)
            case "exception":
                return self.formatException(record.exc_info) if record.exc_info else None
            case "level" | "name":
                return getattr(record, _ATTRIBUTES.get(name, name))
        return data[name] if name in data else getattr(record, _ATTRIBUTES.get(name, name), None)

    def _timestamp(self, record: logging.LogRecord) -> str:
        if self.datefmt is not None:
            return self.formatTime(record, self.datefmt)
        return datetime.fromtimestamp(record.created).astimezone().isoformat(timespec="milliseconds")
