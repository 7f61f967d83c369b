"""`SpoolHandler`: what the handlers that deliver to a sink share.

`emit` costs an append to a memory-mapped journal: it takes no lock that another thread holds during
I/O, and waits for nothing. The first one in a process, also in a forked child, begins the spool; one
after `close` begins it anew, as the standard library's file handlers do.
"""

import logging
import tempfile
import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hookline.core.errors import OptionError
from hookline.logging.journal_handler import JournalHandler
from hookline.logging.spool import Spool
from hookline.record.recorder import Recorder
from hookline.record.sink import Sink

DRAIN_SECONDS = 10.0
FLUSH_SECONDS = 5.0


class SpoolHandler(JournalHandler):
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
        folder = spool_directory(beside)
        self.spool = Spool(folder, made, name=name, poll_seconds=poll_seconds, settings=settings or {})
        super().__init__()
        if self.spool.has_left_over():
            self.start()

    @abstractmethod
    def write(self, recorder: Recorder, record: logging.LogRecord) -> None:
        """Write what a log record carries to the journal."""

    def start(self) -> None:
        """Begin to deliver, also what an earlier process left; the first record does it as well."""
        self.acquire()
        try:
            self.spool.start()
        finally:
            self.release()

    def keep(self, record: logging.LogRecord) -> None:
        """Write a record to the journal, which the first one begins."""
        if not self.spool.is_started:
            self.start()
        self.write(self.spool.recorder, record)

    def flush(self) -> None:
        """Deliver what was emitted so far, and wait a few seconds for that at most."""
        self.spool.flush(FLUSH_SECONDS)

    def close(self) -> None:
        """Deliver the rest within ``drain_seconds``; the next start or ``hookline runs sync`` delivers what is left."""
        self.spool.close(self.drain_seconds)
        super().close()


def spool_directory(beside: Path) -> Path:
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
