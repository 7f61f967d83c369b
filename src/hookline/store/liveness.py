"""Which word says how a run is: ``running``, ``stalled``, ``finished``, ``failed``, ``stopped`` or ``killed``.

A run that said how it ended is that. Otherwise its lock tells whether its process lives: one that lives and completed
nothing for a while is stalled, one that does not was killed. The lock of a run on another machine cannot be seen: there
only the time tells when it recorded last.
"""

import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hookline.record import run_directory
from hookline.store.glance import Glance

STALL_SECONDS = 300.0
"""How long a run may complete nothing, unless its steps take long."""
_STEPS = 20
"""So many usual steps' time is not yet a stall."""
_LOST = 10
"""After so many times the time that makes a stall, a run of another machine counts as killed."""
WORDS = ("running", "stalled", "finished", "failed", "stopped", "killed")


@dataclass(frozen=True, slots=True)
class Liveness:
    """Tells how runs are.

    Args:
        stall_seconds: How long a run may complete nothing.
        clock: Seconds since 1970.
        host: This machine's name.
    """

    stall_seconds: float = STALL_SECONDS
    clock: Callable[[], float] = time.time
    host: str = socket.gethostname()

    def word(self, glance: Glance, directory: Path, facts: Mapping[str, Any]) -> str:
        """The word for a run of which ``run.json`` says the facts."""
        if glance.has_ended:
            return glance.status
        host, started = facts.get("host"), facts.get("started")
        limit = max(self.stall_seconds, _STEPS * (glance.seconds_per_step or 0.0))
        if run_directory.is_alive(directory):
            idle = self.clock() - glance.progress_time if glance.progress_time else 0.0
            return "stalled" if glance.hangs or idle > limit else "running"
        if not glance.last_seen and isinstance(started, float) and self.clock() - started < limit:
            return "running"  # it is being prepared, and has recorded nothing yet
        return "killed" if host in (None, self.host) else self._by_time(glance, limit)

    def _by_time(self, glance: Glance, limit: float) -> str:
        silent = self.clock() - glance.last_seen
        if silent > _LOST * limit:
            return "killed"
        return "stalled" if glance.hangs or silent > limit else "running"
