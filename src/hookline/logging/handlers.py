"""`JournalHandler`: what handlers that write to a journal share.

It takes no lock of its own: a journal has no need of it, and may log while it holds its own. What the
journal has to say while a record is being kept is for other handlers.

`RunHandler`: the lines that are logged, in the journal of a run.

`SpoolHandler`: what the handlers that deliver to a sink share.

`emit` costs an append to a memory-mapped journal: it takes no lock that another thread holds during
I/O, and waits for nothing. The first one in a process, also in a forked child, begins the spool; one
after `close` begins it anew, as the standard library's file handlers do.

`CSVHandler`: log records as the rows of a CSV file, written off the training thread.

A row has the data that a record carries (see `payloads`), its time, and the message, level and logger
of an ordinary record. Columns that are named and not given are empty; what is given and not named is
kept as JSON in the column ``extra``. Every record is in the file once, also after ``kill -9``; see
`Spool` for how.

`TensorBoardHandler`: the metrics that log records carry, in TensorBoard, off the training thread.

Metrics, rewards and outputs of the ``log_*`` functions go there as records of a run do. Of other
records, the numbers they carry are taken if there is a ``step`` among them; their messages are not.
Every value is there once, also after ``kill -9``; see `Spool` for how.
"""

import importlib
import json
import logging
import tempfile
import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from hookline._engine.errors import OptionError
from hookline._record.delivery import Pace, is_in_sink
from hookline._record.outbox import Outbox, by_rank, life_of
from hookline._record.reader import MAIN, JournalEntry
from hookline._record.recorder import Recorder, checked_step
from hookline._record.records import clean
from hookline._record.sink import Sink
from hookline.logging.payloads import fields_of, payload_of
from hookline.sinks.csv import EXTRA, CsvSink
from hookline.sinks.tensorboard import TensorboardSink


class JournalHandler(logging.Handler):
    """A handler that keeps records in a journal; subclasses say which, and have a ``_here`` of their own."""

    _here: ClassVar[threading.local]

    @abstractmethod
    def keep(self, record: logging.LogRecord) -> None:
        """Write what a log record carries to the journal."""

    def handle(self, record: logging.LogRecord) -> bool:
        """Emit a record that passes the filters, without the handler's lock."""
        kept: bool | logging.LogRecord = self.filter(record)
        if kept:
            self.emit(kept if isinstance(kept, logging.LogRecord) else record)
        return bool(kept)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record, unless this thread is keeping one already."""
        if getattr(self._here, "emits", False):
            return
        self._here.emits = True
        try:
            self.keep(record)
        except Exception:
            self.handleError(record)
        finally:
            self._here.emits = False


class RunHandler(JournalHandler):
    """Records log lines with the run's step.

    What a ``log_*`` function logs is left out: it is recorded as what it is (metrics, samples, rewards), and
    whatever the levels of the loggers are. So is what sinks log while they deliver (a line for each request, say): it
    would be delivered in its turn, for ever.

    Args:
        run: Has a ``recorder``, or None while nothing is recorded, and a ``step``.
    """

    _here = threading.local()

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
    """The step that a run is at; one under way counts, as it does for the metrics logged in it."""
    return int(run.step) + bool(getattr(run, "in_step", False))


DRAIN_SECONDS = 10.0
FLUSH_SECONDS = 5.0


class OutboxHandler(JournalHandler):
    """A handler whose records are kept in a journal of its own until a sink has them.

    Args:
        beside: The file or folder that the sink writes; the journal lies beside it.
        make_sink: Makes the sink.
        name: What the sink is called in messages.
        batch_records: How many records are delivered at once, at most.
        poll_seconds: How often.
        drain_seconds: How long `close` waits for what is left to be delivered.
        settings: The handler's other arguments that ``hookline runs sync`` needs to deliver what a dead process left.
    """

    _here = threading.local()

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
        """Write what a log record carries to the journal."""

    def start(self) -> None:
        """Begin to deliver, also what an earlier process left; the first record does it as well."""
        self.acquire()
        try:
            self.outbox.start()
        finally:
            self.release()

    def keep(self, record: logging.LogRecord) -> None:
        """Write a record to the journal, which the first one begins."""
        if not self.outbox.is_started:
            self.start()
        self.write(self.outbox.recorder, record)

    def flush(self) -> None:
        """Deliver what was emitted so far, and wait a few seconds for that at most."""
        self.outbox.drain(FLUSH_SECONDS)

    def close(self) -> None:
        """Deliver the rest within ``drain_seconds``; the next start or ``hookline runs sync`` delivers what is left."""
        self.outbox.close(self.drain_seconds)
        super().close()


def outbox_directory(beside: Path) -> Path:
    """Where the journal of a handler lies that writes to a file or folder."""
    return beside.with_name(f".{beside.name}.journal")


def require_positive(name: str, value: float) -> None:
    """Refuse a setting that is not above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise OptionError(f"{name}={value!r}: give a number above 0.")


def require_writable(folder: Path) -> None:
    """Refuse a directory in which no file can be made; it is made itself if need be.

    By making a file without a name, since asking for permissions answers for another user after `os.seteuid`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise OptionError(f"{folder} cannot be written to ({error.strerror}): give another place.") from error


_ATTRIBUTES = {"level": "levelname", "logger": "name", "timestamp": "created"}
"""Columns that go by another name in a log record."""


class CSVHandler(OutboxHandler):
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
            row.setdefault("exception", (self.formatter or _plain_cell).formatException(record.exc_info))


_plain_cell = logging.Formatter()


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

    def write(self, parcels: Sequence[JournalEntry]) -> dict[str, Any]:
        assert self._table is not None
        return self._table.append([_row(parcel) for parcel in parcels if parcel.kind == "metrics"])


def _row(parcel: JournalEntry) -> dict[str, Any]:
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


class TensorBoardHandler(OutboxHandler):
    """Writes the data of log records as TensorBoard events.

    Args:
        log_dir: The directory that TensorBoard is given.
        flush_secs: After how many seconds, at the latest, a value can be seen.
        max_queue: How many records are written at once, at most.
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
        require_positive("flush_secs", flush_secs)
        require_positive("max_queue", max_queue)
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
    """Writes to files of its own in a directory where earlier trainings may have left theirs."""

    def check(self) -> None:
        super().check()
        # now, not when the first record is delivered: at the end of a program it could not be imported any more
        importlib.import_module("hookline.sinks.tensorboard_events")

    def _file_name(self, run_dir: Path) -> str:
        return super()._file_name(run_dir / life_of(run_dir))

    def write(self, parcels: Sequence[JournalEntry]) -> dict[str, Any]:
        return super().write([by_rank(parcel) for parcel in parcels])


def _require_directory(log_dir: str | Path) -> None:
    path = Path(log_dir).absolute()
    if not str(log_dir) or "\0" in str(log_dir) or (path.exists() and not path.is_dir()):
        raise OptionError(f"log_dir={str(log_dir)!r}: give a directory, which need not be there yet.")
    if path.exists():
        require_writable(path)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) or (hasattr(value, "item") and getattr(value, "ndim", 0) == 0)
