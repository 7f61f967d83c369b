"""Records at regular intervals that a training is alive and how far it is, even during a long step or validation.

A heartbeat is an ordinary status, so all sinks that handle statuses receive it. A background thread records it until
the run ends. A loop without a record gets none.
"""

from typing import Any

from hookline._engine.background import Ticker
from hookline._engine.checks import require_number
from hookline._engine.moments import Callback
from hookline._engine.registry import register
from hookline._engine.state import LoopArtifacts, LoopState


@register("heartbeat")
class Heartbeat(Callback):
    """Records the status ``heartbeat`` with ``phase``, ``total_steps``, ``epoch`` and ``total_epochs``.

    The phase is "training" or "validation". Runs on rank zero unless configured with ``ranks="all"``.

    Args:
        every_seconds: The time between two heartbeats.
    """

    ranks = "zero"

    def __init__(self, every_seconds: float = 10.0) -> None:
        self.every_seconds = require_number("every_seconds", every_seconds, above=0)
        self._loop: LoopState | None = None
        self._phase = "training"
        self._ticker: Ticker | None = None

    def on_train_start(self, loop: LoopState, /) -> None:
        self.close()
        self._phase = "training"
        if getattr(loop, "recorder", None) is not None:
            self._loop = loop
            self._ticker = Ticker(self.name, self.every_seconds, self.beat)

    def on_validation_start(self, loop: LoopState, /) -> None:
        self._phase = "validation"

    def on_validation_end(self, loop: LoopState, /) -> None:
        self._phase = "training"

    def on_train_end(self, loop: LoopState, artifacts: LoopArtifacts, /) -> None:
        self.close()

    def on_exception(self, loop: LoopState, error: BaseException, /) -> None:
        self.close()

    def close(self) -> None:
        if self._ticker is not None:
            self._ticker.close()
        self._ticker = self._loop = None

    def beat(self) -> None:
        """Record one heartbeat; the background thread calls this."""
        loop: Any = self._loop
        if loop is not None:
            progress = {"total_steps": loop.num_steps, "epoch": loop.epoch, "total_epochs": loop.num_epochs}
            loop.recorder.status("heartbeat", step=loop.step, phase=self._phase, **progress)
