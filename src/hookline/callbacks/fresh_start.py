"""`FreshStart`: a callback that is part of a second training begins it with nothing of the first.

A training that goes on, and one for which a state was loaded, finds everything as it was.
"""

from collections.abc import Mapping
from typing import Any

from hookline.core.callback import Callback
from hookline.core.state import LoopArtifacts, LoopState


class FreshStart(Callback):
    """The base of callbacks that remember something from step to step, which `_forget` empties."""

    _was_loaded = False

    def on_train_start(self, loop: LoopState, /) -> None:
        if loop.step == 0 and not self._was_loaded:
            self._forget()
        self._was_loaded = False

    def on_train_end(self, loop: LoopState, artifacts: LoopArtifacts, /) -> None:
        self._was_loaded = False  # what was loaded while training is not for the next one

    def on_exception(self, loop: LoopState, error: BaseException, /) -> None:
        self._was_loaded = False

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._was_loaded = True

    def _forget(self) -> None:
        """Begin anew."""
