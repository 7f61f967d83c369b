"""`JournalHandler`: what handlers that write to a journal share.

It takes no lock of its own: a journal has no need of it, and may log while it holds its own. What the
journal has to say while a record is being kept is for other handlers.
"""

import logging
import threading
from abc import abstractmethod
from typing import ClassVar


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
