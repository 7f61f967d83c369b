"""`RunHandler`: the lines that are logged, in the journal of a run."""

import logging
import threading
from typing import Any

from hookline.logging.journal_handler import JournalHandler
from hookline.logging.payloads import payload_of
from hookline.record.delivery import is_in_sink


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
