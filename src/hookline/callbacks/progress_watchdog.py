"""Detects a training that hangs and dumps the stacks of all threads; optionally ends the process.

Progress is a completed step, batch, rollout, evaluation or checkpoint. Without an exit code, the watchdog interrupts
nothing. It does not detect a hang in native code that never releases the interpreter.
"""

import faulthandler
import logging
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hookline._engine.background import Ticker
from hookline._engine.checks import require_integer, require_number
from hookline._engine.moments import Callback
from hookline._engine.registry import register
from hookline._engine.state import LoopArtifacts, LoopState, ManifestRow

logger = logging.getLogger("hookline")

CHECKS = 4
"""How often the thread checks within the time limit."""
REPORT_SECONDS = 30.0
"""How long a report may take before the exit: the hanging thread may hold a lock that the report needs."""


@register("progress_watchdog")
class ProgressWatchdog(Callback):
    """Dumps all stacks when there was no progress for ``seconds``, once per hang.

    The stacks go to standard error and to ``stacks-rank<N>.txt`` in the loop's directory, if it has one.

    Args:
        seconds: The time limit; longer than the longest step, and than the first, which may compile.
        exit_code: End the process with this code, for example 124; None keeps it running.
        exit_process: The function that ends it.
    """

    def __init__(
        self,
        seconds: float = 1800.0,
        exit_code: int | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        exit_process: Callable[[int], object] = os._exit,
    ) -> None:
        self.seconds = require_number("seconds", seconds, above=0)
        self.exit_code = require_integer("exit_code", exit_code, minimum=0, maximum=255, optional=True)
        self.hangs = 0
        self._clock = clock
        self._exit = exit_process
        self._loop: LoopState | None = None
        self._last = 0.0
        self._has_reported = False
        self._ticker: Ticker | None = None

    def on_train_start(self, loop: LoopState, /) -> None:
        self.close()
        self._loop = loop
        self._progress()
        self._ticker = Ticker(self.name, self.seconds / CHECKS, self.check)

    def on_rollout_end(self, loop: LoopState, step_idx: int, rollouts: Any, /) -> None:
        self._progress()

    def on_train_batch_end(self, loop: LoopState, outputs: Any, batch: Any, batch_idx: int, /) -> None:
        self._progress()

    def on_step_end(self, loop: LoopState, step_idx: int, batch: Any, metrics: dict[str, Any], /) -> None:
        self._progress()

    def on_validation_batch_end(self, loop: LoopState, outputs: Any, batch: Any, batch_idx: int, /) -> None:
        self._progress()

    def on_eval(self, loop: LoopState, step_idx: int, eval_name: str, metrics: dict[str, Any], /) -> None:
        self._progress()

    def on_checkpoint(self, loop: LoopState, row: ManifestRow, /) -> None:
        self._progress()

    def on_train_end(self, loop: LoopState, artifacts: LoopArtifacts, /) -> None:
        self.close()

    def on_exception(self, loop: LoopState, error: BaseException, /) -> None:
        self.close()

    def close(self) -> None:
        if self._ticker is not None:
            self._ticker.close()
            self._ticker = None
        self._loop = None

    def check(self) -> None:
        """Report a hang if there was no progress for too long; the background thread calls this."""
        loop = self._loop
        if getattr(getattr(loop, "control", None), "is_paused", False) is True:
            self._progress()  # somebody paused it
        idle = self._clock() - self._last
        if loop is None or self._has_reported or idle < self.seconds:
            return
        self._has_reported = True
        self.hangs += 1
        if self.exit_code is None:
            self._report(loop, idle)
            return
        last_resort = threading.Timer(REPORT_SECONDS, self._exit, [self.exit_code])
        last_resort.daemon = True
        last_resort.start()
        try:
            self._report(loop, idle)
        finally:
            last_resort.cancel()
            self._exit(self.exit_code)

    def _progress(self) -> None:
        self._last = self._clock()
        self._has_reported = False

    def _report(self, loop: LoopState, idle: float) -> None:
        message = f"{self.name}: no progress for {idle:.0f} s after step {loop.step} on rank {loop.rank}"
        # The stacks come first: unlike the record and logging, they need no lock that the hanging thread may hold.
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as file:
            faulthandler.dump_traceback(file, all_threads=True)
            file.seek(0)
            text = f"{message}\n{file.read()}\n"
        sys.stderr.write(text)
        sys.stderr.flush()
        path = _append_to_file(loop, text)
        recorder = getattr(loop, "recorder", None)
        if recorder is not None:
            seconds, exit_code = round(idle, 3), self.exit_code
            recorder.event("hang", step=loop.step, seconds=seconds, exit_code=exit_code, stacks=path and str(path))
        logger.error("%s; the stacks are in %s", message, path or "standard error")


def _append_to_file(loop: LoopState, text: str) -> Path | None:
    if loop.output_dir is None:
        return None
    path = Path(loop.output_dir) / f"stacks-rank{loop.rank}.txt"
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        logger.warning("Cannot write the stacks to %s: %s", path, error)
        return None
    return path
