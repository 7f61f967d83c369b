"""Log handlers that write to a journal first: to a run's, to a CSV file, or to TensorBoard.

`RunHandler` records log lines in a run. `CSVHandler` and `TensorBoardHandler` are `OutboxHandler`s: each has a journal
of its own, which a background thread delivers to a sink (see `hookline._record.outbox`).
"""

import importlib
import json
import logging
import tempfile
import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from hookline._engine.checks import require_integer, require_number
from hookline._engine.errors import OptionError
from hookline._record.delivery import Pace, is_in_sink
from hookline._record.outbox import Outbox, by_rank, life_of
from hookline._record.reader import MAIN, JournalEntry
from hookline._record.recorder import Recorder, checked_step
from hookline._record.records import clean
from hookline._record.sink import Sink
from hookline.logging.payloads import fields_of, iso_time, payload_of
from hookline.sinks.csv import EXTRA, CsvSink
from hookline.sinks.tensorboard import TensorboardSink


class JournalHandler(logging.Handler):
    """A handler that writes records to a journal. Each subclass has a ``_thread`` of its own."""

    _thread: ClassVar[threading.local]

    @abstractmethod
    def keep(self, record: logging.LogRecord) -> None:
        """Write the data of a log record to the journal."""

    def handle(self, record: logging.LogRecord) -> bool:
        """Emit a record that passes the filters, without the handler's lock: a journal has its own, and may log."""
        kept: bool | logging.LogRecord = self.filter(record)
        if kept:
            self.emit(kept if isinstance(kept, logging.LogRecord) else record)
        return bool(kept)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, unless this thread is writing one: the journal's own messages are for other handlers."""
        if getattr(self._thread, "emits", False):
            return
        self._thread.emits = True
        try:
            self.keep(record)
        except Exception:
            self.handleError(record)
        finally:
            self._thread.emits = False


class RunHandler(JournalHandler):
    """Records log lines with the run's step.

    Left out are records of ``log_*`` functions, which are recorded as metrics, samples and rewards whatever the
    loggers' levels, and what sinks log while they deliver (e.g. a line for each request), which would be delivered in
    turn, for ever.

    Args:
        run: Has a ``step``, and a ``recorder`` that is None while nothing is recorded.
    """

    _thread = threading.local()

    def __init__(self, run: Any) -> None:
        super().__init__()
        self.run = run

    def keep(self, record: logging.LogRecord) -> None:
        """Record a line."""
        recorder = self.run.recorder
        if recorder is None or payload_of(record) is not None or is_in_sink():
            return
        message = record.getMessage()
        if record.exc_info:
            message += "\n" + _plain.formatException(record.exc_info)
        recorder.line(record.levelname, record.name, message, step=step_of(self.run))


_plain = logging.Formatter()


def step_of(run: Any) -> int:
    """Return the current step of a run, including one in progress, as for metrics logged in it."""
    return int(run.step) + bool(getattr(run, "in_step", False))


DRAIN_SECONDS = 10.0
FLUSH_SECONDS = 5.0


class OutboxHandler(JournalHandler):
    """A handler whose records stay in an `Outbox` until a sink has them.

    `emit` costs an append to a memory-mapped journal: it waits for nothing. The first one in a process, also in a
    forked child, starts the outbox; one after `close` starts it again, as with the standard library's file handlers.

    Args:
        beside: The file or directory that the sink writes; the journal lies beside it.
        make_sink: Makes the sink.
        name: The sink's name in messages.
        batch_records: The most records to deliver at once.
        poll_seconds: How often to deliver.
        drain_seconds: How long `close` waits for the delivery of what is left.
        settings: The handler's other arguments that ``hookline runs sync`` needs to deliver what a dead process left.
    """

    _thread = threading.local()

    def __init__(
        self,
        beside: Path,
        make_sink: Callable[[], Sink],
        *,
        name: str,
        batch_records: int,
        poll_seconds: float,
        drain_seconds: float = DRAIN_SECONDS,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        def made() -> Sink:
            sink = make_sink()
            vars(sink)["batch_records"] = batch_records
            return sink

        made().check()
        require_writable(beside.absolute().parent)
        self.drain_seconds = drain_seconds
        folder = outbox_directory(beside)
        self.outbox = Outbox(
            folder,
            lambda: {name: made()},
            pace=Pace(poll_seconds=poll_seconds),
            settings={"handler": name, "settings": dict(settings or {})},
        )
        super().__init__()
        if self.outbox.has_leftovers():
            self.start()

    @abstractmethod
    def write(self, recorder: Recorder, record: logging.LogRecord) -> None:
        """Write the data of a log record to the journal."""

    def start(self) -> None:
        """Start delivering, also what an earlier process left; the first record does it as well."""
        self.acquire()
        try:
            self.outbox.start()
        finally:
            self.release()

    def keep(self, record: logging.LogRecord) -> None:
        """Write a record to the journal; the first one starts the outbox."""
        if not self.outbox.is_started:
            self.start()
        self.write(self.outbox.recorder, record)

    def flush(self) -> None:
        """Deliver what was emitted so far; waits a few seconds at most."""
        self.outbox.drain(FLUSH_SECONDS)

    def close(self) -> None:
        """Deliver the rest within ``drain_seconds``; the next start or ``hookline runs sync`` delivers what is left."""
        self.outbox.close(self.drain_seconds)
        super().close()


def outbox_directory(beside: Path) -> Path:
    """Return the directory of the journal for a handler that writes a file or directory."""
    return beside.with_name(f".{beside.name}.journal")


def require_writable(folder: Path) -> None:
    """Reject a directory in which no file can be created; creates it if it does not exist.

    Creates an unnamed file, because `os.access` checks the real user, which may differ after `os.seteuid`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise OptionError(f"{folder} cannot be written to ({error.strerror}): give another directory.") from error


_ATTRIBUTES = {"level": "levelname", "logger": "name", "timestamp": "created"}
"""Columns with another name in a log record."""


class CSVHandler(OutboxHandler):
    """Writes log records to a CSV file, off the training thread.

    A row has the data of a record (see `payloads`), its time, and the message, level and logger of an ordinary record.
    Columns without a value are empty; fields without a column are kept as JSON in the column ``extra``. Every record
    is in the file once, also after ``kill -9``.

    Args:
        filename: The file; an existing one is appended to.
        columns: Its columns. They may name fields of the data (``question``, ``step``, ...), ``timestamp``,
            ``message``, ``level``, ``logger``, and any attribute of a log record. By default the file gets a column
            for each field that occurs.
        buffer_size: The most rows to write at once.
        flush_interval: After how many seconds at most a record is in the file.
        messages: Whether ordinary records, without data, are rows as well.
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
        require_integer("buffer_size", buffer_size)
        require_number("flush_interval", flush_interval, above=0)
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
                attribute = _ATTRIBUTES.get(column, column)
                row[column] = record.getMessage() if column == "message" else getattr(record, attribute, None)
        recorder.metrics(row, 0)

    def _add_message(self, row: dict[str, Any], record: logging.LogRecord) -> None:
        row.setdefault("message", record.getMessage())
        row.setdefault("level", record.levelname)
        row.setdefault("logger", record.name)
        if record.exc_info:
            row.setdefault("exception", (self.formatter or _plain).formatException(record.exc_info))


def _require_file(filename: str | Path) -> None:
    path = Path(filename)
    if not str(filename) or "\0" in str(filename) or (path.exists() and not path.is_file()):
        raise OptionError(f"filename={str(filename)!r}: give the name of a file, which need not exist.")
    if path.exists():
        try:
            path.open("ab").close()
        except OSError as error:
            raise OptionError(f"{path} cannot be written to ({error.strerror}): give another file.") from error


@dataclass(eq=False)
class RowsSink(CsvSink):
    """Writes the fields that the handler recorded, without those of a journal's records."""

    def spec(self) -> dict[str, Any]:
        """Return the file alone: with other columns it is the same destination."""
        return {"use": f"{__name__}:{type(self).__qualname__}", "with": {"path": str(self.path)}}

    def write(self, entries: Sequence[JournalEntry]) -> dict[str, Any]:
        assert self._table is not None
        return self._table.append([_row(entry) for entry in entries if entry.kind == "metrics"])


def _row(entry: JournalEntry) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for key, value in entry.record.values.items():  # type: ignore[union-attr]  # only metrics come here
        _add(row, "extra_" if key == EXTRA else key, value)
    if isinstance(row.get("timestamp"), float):
        row["timestamp"] = iso_time(row["timestamp"])
    writer = by_rank(entry).file.name
    return row if writer == MAIN else {**row, "writer": writer}


def _add(row: dict[str, Any], key: str, value: Any) -> None:
    """Add a value to a row: nested ones under joined names, lists as JSON."""
    if isinstance(value, Mapping):
        for inner, item in value.items():
            _add(row, f"{key}/{inner}", item)
    elif isinstance(value, list):
        row[key] = json.dumps(clean(value), ensure_ascii=False)
    else:
        row[key] = value


class TensorBoardHandler(OutboxHandler):
    """Writes the data of log records as TensorBoard events, off the training thread.

    Metrics, rewards and outputs of the ``log_*`` functions are written as those of a run are. Of other records,
    numbers are written if the record has a ``step``; messages are not. Every value is written once, also after
    ``kill -9``.

    Args:
        log_dir: The directory for TensorBoard.
        flush_secs: After how many seconds at most a value is visible.
        max_queue: The most records to write at once.
        drain_seconds: How long `close` waits for what is left to be written.
    """

    def __init__(
        self,
        log_dir: str | Path,
        flush_secs: float = 30.0,
        max_queue: int = 100,
        *,
        drain_seconds: float = DRAIN_SECONDS,
    ) -> None:
        require_number("flush_secs", flush_secs, above=0)
        require_integer("max_queue", max_queue)
        _require_directory(log_dir)
        self.log_dir = Path(log_dir).absolute()
        super().__init__(
            self.log_dir,
            partial(LogDirectorySink, self.log_dir),
            name="tensorboard",
            batch_records=max_queue,
            poll_seconds=flush_secs,
            drain_seconds=drain_seconds,
        )

    def write(self, recorder: Recorder, record: logging.LogRecord) -> None:
        payload = payload_of(record)
        if payload is not None:
            payload.record(recorder)
            return
        fields = fields_of(record)
        step = fields.pop("step", None)
        numbers = {key: value for key, value in fields.items() if _is_number(value)}
        if step is not None and numbers:
            recorder.log(numbers, step=checked_step(step))


@dataclass(eq=False)
class LogDirectorySink(TensorboardSink):
    """Writes to new files in a directory that may have files of earlier trainings."""

    def check(self) -> None:
        super().check()
        # Now, not at the first delivery: modules cannot be imported while the interpreter shuts down.
        importlib.import_module("hookline.sinks.tensorboard_events")

    def _file_name(self, run_dir: Path) -> str:
        return super()._file_name(run_dir / life_of(run_dir))

    def write(self, entries: Sequence[JournalEntry]) -> dict[str, Any]:
        return super().write([by_rank(entry) for entry in entries])


def _require_directory(log_dir: str | Path) -> None:
    path = Path(log_dir).absolute()
    if not str(log_dir) or "\0" in str(log_dir) or (path.exists() and not path.is_dir()):
        raise OptionError(f"log_dir={str(log_dir)!r}: give a directory, which need not exist.")
    if path.exists():
        require_writable(path)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) or (hasattr(value, "item") and getattr(value, "ndim", 0) == 0)
