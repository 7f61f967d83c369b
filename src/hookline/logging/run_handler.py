"""`RunHandler`: the lines that are logged, in the journal of a run."""

import logging
import threading
from typing import Any

from hookline.logging.payloads import payload_of

_here = threading.local()


class RunHandler(logging.Handler):
    """Records log lines with the run's step.

    What a ``log_*`` function logs is left out: it is recorded as what it is (metrics, samples, rewards), and
    whatever the levels of the loggers are.

    Args:
        run: Has a ``recorder``, or None while nothing is recorded, and a ``step``.
    """

    def __init__(self, run: Any) -> None:
        super().__init__()
        self.run = run

    def handle(self, record: logging.LogRecord) -> bool:
        """Emit a record that passes the filters, without a lock: the journal may log while it holds its own."""
        kept: bool | logging.LogRecord = self.filter(record)
        if kept:
            self.emit(kept if isinstance(kept, logging.LogRecord) else record)
        return bool(kept)

    def emit(self, record: logging.LogRecord) -> None:
        """Record a line; what the journal itself has to say meanwhile is for other handlers."""
        recorder = self.run.recorder
        if recorder is None or payload_of(record) is not None or getattr(_here, "emits", False):
            return
        _here.emits = True
        try:
            message = record.getMessage()
            if record.exc_info:
                message += "\n" + _plain.formatException(record.exc_info)
            recorder.line(record.levelname, record.name, message, step=step_of(self.run))
        except Exception:
            self.handleError(record)
        finally:
            _here.emits = False


_plain = logging.Formatter()


def step_of(run: Any) -> int:
    """The step that a run is at; one under way counts, as it does for the metrics logged in it."""
    return int(run.step) + bool(getattr(run, "in_step", False))
