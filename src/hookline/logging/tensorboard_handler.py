"""`TensorBoardHandler`: the metrics that log records carry, in TensorBoard, off the training thread.

Metrics, rewards and outputs of the ``log_*`` functions go there as records of a run do. Of other
records, the numbers they carry are taken if there is a ``step`` among them; their messages are not.
Every value is there once, also after ``kill -9``; see `Spool` for how.
"""

import importlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hookline.core.errors import OptionError
from hookline.logging.payloads import fields_of, payload_of
from hookline.logging.spool import by_rank, life_of
from hookline.logging.spool_handler import DRAIN_SECONDS, SpoolHandler, require_positive, require_writable
from hookline.record.reader import Parcel
from hookline.record.recorder import Recorder, whole_step
from hookline.sinks.tensorboard import TensorboardSink


class TensorBoardHandler(SpoolHandler):
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
            recorder.log(numbers, step=whole_step(step))


@dataclass(eq=False)
class LogDirectorySink(TensorboardSink):
    """Writes to files of its own in a directory where earlier trainings may have left theirs."""

    def check(self) -> None:
        super().check()
        # now, not when the first record is delivered: at the end of a program it could not be imported any more
        importlib.import_module("hookline.sinks.tensorboard_files")

    def _file_name(self, run_dir: Path) -> str:
        return super()._file_name(run_dir / life_of(run_dir))

    def write(self, parcels: Sequence[Parcel]) -> dict[str, Any]:
        return super().write([by_rank(parcel) for parcel in parcels])


def _require_directory(log_dir: str | Path) -> None:
    path = Path(log_dir).absolute()
    if not str(log_dir) or "\0" in str(log_dir) or (path.exists() and not path.is_dir()):
        raise OptionError(f"log_dir={str(log_dir)!r}: give a directory, which need not be there yet.")
    if path.exists():
        require_writable(path)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) or (hasattr(value, "item") and getattr(value, "ndim", 0) == 0)
