"""Writes every row of metrics to a CSV file, for loops that keep no record; with a record, the sink ``csv`` does.

The header is always complete, a file that is there is appended to, and a resume takes out the rows that are done
again. Rows are written about once a second by a thread of its own, which also waits for values from devices; all
are in the file at a checkpoint and at the end. Rows that cannot be written are kept and tried again.
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
"""How often the thread writes what there is."""
_OURS = ("step", "epoch", "time")

Row = tuple[int, int, float, dict[str, Any]]


@register("csv_metrics")
class CsvMetrics(Callback):
    """Columns ``step``, ``epoch``, ``time`` (seconds since 1970), and one for each metric.

    A metric that is called like one of the first three is ``values/step``.

    Args:
        path: The file; a relative one lies in the loop's directory, or where the program runs if it has none.
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
            self._writer.go_back(self._state)

    def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            self._state = writer.close()


class _Writer:
    """The open file, the rows that wait for it, and the thread that writes them."""

    def __init__(self, name: str, path: Path, state: Mapping[str, Any] | None) -> None:
        from hookline.sinks.csv import Table  # which loads more than a list of callbacks should

        self.rows: deque[Row] = deque()
        self._lock = threading.Lock()
        self._table = Table(path)
        self._table.open(state)
        self._ticker = Ticker(name, WRITE_SECONDS, self.write)

    def write(self) -> dict[str, Any]:
        """Write what waits, and return the state of the file then."""
        with self._lock:
            waiting = list(self.rows)
            state = self._table.append([_cells(row) for row in waiting])
            for _ in waiting:
                self.rows.popleft()
            return state

    def go_back(self, state: Mapping[str, Any]) -> None:
        """Take out what was written since a state."""
        self.write()
        with self._lock:
            self._table.open(state)

    def close(self) -> dict[str, Any]:
        """Write what waits and close the file."""
        self._ticker.close()
        try:
            return self.write()
        finally:
            self._table.close()


def _cells(row: Row) -> dict[str, Any]:
    step, epoch, when, metrics = row
    values = {f"values/{name}" if name in _OURS else name: value for name, value in metrics.items()}
    return {"step": step, "epoch": epoch, "time": when, **plain(values)}
