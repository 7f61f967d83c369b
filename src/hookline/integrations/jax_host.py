"""`JaxHost`: the common base of the bridges for trainers in JAX.

With several processes (`jax.distributed`) the first one runs the callbacks and records. They agree on nothing with the
others, which may not even reach the end of a step at the same time: so a stop, a checkpoint or a validation that a
callback requests there is refused with a warning, and signals keep the meaning that the framework gives them.
"""

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Unpack

import jax

from hookline._engine.defaults import NAME
from hookline.integrations.host_callback import HostCallback
from hookline.loops.options import RunOptions

logger = logging.getLogger("hookline")


class JaxHost(HostCallback):
    """The run of a trainer in JAX."""

    def __init__(
        self,
        callbacks: Iterable[Any] = (),
        *,
        name: str = NAME,
        resume: str | Path | None = None,
        **options: Unpack[RunOptions],
    ) -> None:
        self._processes = jax.process_count()
        if jax.process_index() > 0:
            callbacks, options = (), {"root": None, "summary": False}
        super().__init__(callbacks, name=name, resume=resume, **options)
        self._has_warned_of_processes = False
        if self._processes > 1:
            self.loop.no_stops = self.loop.no_checkpoints = self._refusal.removesuffix(".")

    def _begin(self, model: Any, **given: Any) -> None:
        super()._begin(model, **given)
        if self._processes > 1:
            self.loop.leave_signals()

    def _boundary(self) -> str | None:
        if self._processes == 1:
            return super()._boundary()
        requests = self.loop.requests()
        is_asked = requests.stop is not None or requests.checkpoint or requests.validation
        if is_asked and not self._has_warned_of_processes:
            self._has_warned_of_processes = True
            logger.warning("A callback requested a stop, a checkpoint or a validation. %s", self._refusal)
        return None

    def _cannot(self, command: str) -> str | None:
        is_shared = command in ("stop", "checkpoint", "validate", "pause")
        return self._refusal if self._processes > 1 and is_shared else super()._cannot(command)

    @property
    def _refusal(self) -> str:
        return f"{self._processes} processes of JAX train together, and callbacks run on the first one alone."
