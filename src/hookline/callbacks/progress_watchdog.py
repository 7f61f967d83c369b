"""Notices a training that hangs, and says where: the stacks of all threads, an event, and an exit if asked for.

Progress is a step, a batch, a rollout, an evaluation or a checkpoint that is complete. Nothing is interrupted: a
watchdog without an exit code only tells. A hang inside native code that never lets Python run is not noticed.
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

from hookline._engine.background import Ticker, require_seconds
from hookline._engine.errors import OptionError
from hookline._engine.moments import Callback
from hookline._engine.registry import register
from hookline._engine.state import LoopArtifacts, LoopState, ManifestRow

logger = logging.getLogger("hookline")

LOOKS = 4
"""How often the thread looks within the time limit."""
TELL_SECONDS = 30.0
"""How long telling may take before an exit that was asked for: the hanging thread may hold a lock that it needs."""


@register("progress_watchdog")
class ProgressWatchdog(Callback):
    """Dumps all stacks when nothing was completed for a time, once for each hang.

    They go to standard error and, where the loop has a directory, to ``stacks-rank<N>.txt`` in it.

    Args:
        seconds: How long there may be no progress; more than the longest step and the first, which may compile.
        exit_code: End the process with this code then, e.g. 124; None lets it be.
        exit_process: What ends it.
    """

    def __init__(
        self,
        seconds: float = 1800.0,
        exit_code: int | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        exit_process: Callable[[int], object] = os._exit,
    ) -> None:
        self.seconds = require_seconds("seconds", seconds)
        if exit_code is not None and (isinstance(exit_code, bool) or exit_code not in range(256)):
            raise OptionError(f"exit_code={exit_code!r}: give a whole number from 0 to 255, or None.")
        self.exit_code = exit_code
        self.hangs = 0
        self._clock = clock
        self._exit = exit_process
        self._loop: LoopState | None = None
        self._last = 0.0
        self._has_told = False
        self._ticker: Ticker | None = None

    def on_train_start(self, loop: LoopState, /) -> None:
        self.close()
        self._loop = loop
        self._progress()
        self._ticker = Ticker(self.name, self.seconds / LOOKS, self.check)

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
        """Look once, as the thread does: whether there was no progress for too long."""
        loop, idle = self._loop, self._clock() - self._last
        if loop is None or self._has_told or idle < self.seconds:
            return
        self._has_told = True
        self.hangs += 1
        if self.exit_code is None:
            self._tell(loop, idle)
        else:
            self._tell_and_exit(loop, idle, self.exit_code)

    def _progress(self) -> None:
        self._last = self._clock()
        self._has_told = False

    def _tell_and_exit(self, loop: LoopState, idle: float, exit_code: int) -> None:
        last_resort = threading.Timer(TELL_SECONDS, self._exit, [exit_code])
        last_resort.daemon = True
        last_resort.start()
        try:
            self._tell(loop, idle)
        finally:
            last_resort.cancel()
            self._exit(exit_code)

    def _tell(self, loop: LoopState, idle: float) -> None:
        """The stacks first: they need nothing that a hanging thread may hold."""
        message = f"{self.name}: no progress for {idle:.0f} s after step {loop.step} on rank {loop.rank}"
        text = f"{message}\n{_stacks()}\n"
        sys.stderr.write(text)
        sys.stderr.flush()
        path = _keep(loop, text)
        recorder = getattr(loop, "recorder", None)
        if recorder is not None:
            seconds, exit_code = round(idle, 3), self.exit_code
            recorder.event("hang", step=loop.step, seconds=seconds, exit_code=exit_code, stacks=path and str(path))
        logger.error("%s; the stacks are in %s", message, path or "standard error")


def _stacks() -> str:
    """What every thread is doing."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read()


def _keep(loop: LoopState, text: str) -> Path | None:
    if loop.output_dir is None:
        return None
    path = Path(loop.output_dir) / f"stacks-rank{loop.rank}.txt"
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        logger.warning("The stacks cannot be written to %s: %s", path, error)
        return None
    return path
