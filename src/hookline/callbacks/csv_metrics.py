"""Writes every row of metrics to a CSV file, for loops without a record. Loops with one can use the ``csv`` sink.

The header is always complete, an existing file is appended to, and a resume removes the rows that will be written
again. A background thread writes about once per second and waits for values on devices; a checkpoint and the end of
training write all rows. Rows that cannot be written are kept and retried.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hookline._engine.background import Ticker
from hookline._engine.metrics import copied, plain
from hookline._engine.moments import Callback
from hookline._engine.registry import register
from hookline._engine.state import LoopArtifacts, LoopState
from hookline._engine.subscriber import WRITER_PRIORITY

WRITE_SECONDS = 1.0
_RESERVED = ("step", "epoch", "time")

Row = tuple[int, int, float, dict[str, Any]]


@register("csv_metrics")
class CsvMetrics(Callback):
    """Writes the columns ``step``, ``epoch``, ``time`` (seconds since 1970), and one per metric.

    A metric named like one of the first three is written as ``values/<name>``.

    Args:
        path: The file, relative to the loop's directory, or to the working directory if it has none.
    """

    priority = WRITER_PRIORITY
    ranks = "zero"

    def __init__(self, path: str | Path = "metrics.csv", *, clock: Callable[[], float] = time.time) -> None:
        self.path = Path(path)
        self._clock = clock
        self._writer: _Writer | None = None
        self._state: dict[str, Any] | None = None
        self._resumes_from: dict[str, Any] | None = None

    def on_train_start(self, loop: LoopState, /) -> None:
        self.close()
        self._writer = _Writer(self.name, Path(loop.output_dir or Path.cwd()) / self.path, self._resumes_from)
        self._resumes_from = None

    def on_log(self, loop: LoopState, step: int, metrics: dict[str, Any], /) -> None:
        if self._writer is None:  # added while training
            self.on_train_start(loop)
        if self._writer is not None and metrics:
            self._writer.rows.append((step, loop.epoch, self._clock(), copied(metrics)))

    def on_train_end(self, loop: LoopState, artifacts: LoopArtifacts, /) -> None:
        if self._writer is not None:
            self._writer.write()

    def state_dict(self) -> dict[str, Any]:
        if self._writer is not None:
            self._state = self._writer.write()
        return {"file": self._state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._state = state["file"]
        if self._writer is None:
            self._resumes_from = self._state
        elif self._state is not None:
            self._writer.rewind(self._state)

    def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            self._state = writer.close()


class _Writer:
    """The open file, its queue of rows, and the thread that writes them."""

    def __init__(self, name: str, path: Path, state: Mapping[str, Any] | None) -> None:
        from hookline.sinks.csv import Table  # here, to keep importing the callbacks cheap

        self.rows: deque[Row] = deque()
        self._lock = threading.Lock()
        self._table = Table(path)
        self._table.open(state)
        self._ticker = Ticker(name, WRITE_SECONDS, self.write)

    def write(self) -> dict[str, Any]:
        """Write the queued rows and return the state of the file."""
        with self._lock:
            queued = list(self.rows)
            state = self._table.append([_cells(row) for row in queued])
            for _ in queued:  # not before: rows that could not be written stay in the queue
                self.rows.popleft()
            return state

    def rewind(self, state: Mapping[str, Any]) -> None:
        """Remove the rows written since a state."""
        self.write()
        with self._lock:
            self._table.open(state)

    def close(self) -> dict[str, Any]:
        """Write the queued rows and close the file."""
        self._ticker.close()
        try:
            return self.write()
        finally:
            self._table.close()


def _cells(row: Row) -> dict[str, Any]:
    step, epoch, when, metrics = row
    values = {f"values/{name}" if name in _RESERVED else name: value for name, value in metrics.items()}
    return {"step": step, "epoch": epoch, "time": when, **plain(values)}
