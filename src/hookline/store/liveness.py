"""Which word says how a run is: ``running``, ``stalled``, ``finished``, ``failed``, ``stopped`` or ``killed``.

A run that said how it ended is that. Otherwise its lock tells whether its process lives: one that lives and completed
nothing for a while is stalled, one that does not was killed. The lock of a run on another machine cannot be
seen, nor one that another user lets nobody read: there only the time tells when it recorded last.

A run that is received from another machine was killed when it neither sent anything nor said that it lives for longer
than it promised. One that was last heard of before whoever receives was there is waited for a little longer: after an
outage a sender tries again only now and then. Times of that machine are only compared with each other, so its clock
may be wrong.
"""

import math
import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hookline.record import run_directory
from hookline.record.reader import JOURNAL
from hookline.store.glance import Glance
from hookline.store.received import Sign, last_sign

STALL_SECONDS = 300.0
"""How long a run may complete nothing, unless its steps take long."""
_STEPS = 20
"""So many usual steps' time is not yet a stall."""
_LOST = 10
"""After so many times the time that makes a stall, a run of another machine counts as killed."""
_BEATS, _SILENT_SECONDS = 3, 15.0
"""A received run may leave out so many signs of life, and be silent for so long in any case."""
_RETURN_SECONDS = 45.0
"""A sender waits half a minute between two attempts at most, and then for an answer."""
WORDS = ("running", "stalled", "finished", "failed", "stopped", "killed")


@dataclass(frozen=True, slots=True)
class Liveness:
    """Tells how runs are.

    Args:
        stall_seconds: How long a run may complete nothing.
        clock: Seconds since 1970.
        host: This machine's name.
        since: Since when runs can be received, by the clock; where nobody receives, they always could.
    """

    stall_seconds: float = STALL_SECONDS
    clock: Callable[[], float] = time.time
    host: str = socket.gethostname()
    since: float = -math.inf

    def word(self, glance: Glance, directory: Path, facts: Mapping[str, Any]) -> str:
        """The word for a run of which ``run.json`` says the facts."""
        if glance.has_ended:
            return glance.status
        host, started = facts.get("host"), facts.get("started")
        limit = max(self.stall_seconds, _STEPS * (glance.seconds_per_step or 0.0))
        sign = last_sign(directory)
        if sign is not None:
            return self._received(glance, directory, sign, limit)
        is_alive = run_directory.is_alive(directory)
        if is_alive:
            idle = self.clock() - glance.progress_time if glance.progress_time else 0.0
            return "stalled" if glance.hangs or idle > limit else "running"
        if not glance.last_seen and isinstance(started, float) and self.clock() - started < limit:
            return "running"  # it is being prepared, and has recorded nothing yet
        is_seen = is_alive is not None and host in (None, self.host)
        return "killed" if is_seen else self._by_time(glance, limit)

    def _by_time(self, glance: Glance, limit: float) -> str:
        silent = self.clock() - glance.last_seen
        if silent > _LOST * limit:
            return "killed"
        return "stalled" if glance.hangs or silent > limit else "running"

    def _received(self, glance: Glance, directory: Path, sign: Sign, limit: float) -> str:
        silent = self.clock() - sign.time
        promised = _LOST * limit if sign.every_seconds is None else max(_SILENT_SECONDS, _BEATS * sign.every_seconds)
        if silent > promised and not self._may_return(sign):
            return "killed"
        since = glance.last_seen - glance.progress_time if glance.progress_time else 0.0
        idle = self.clock() - _came(directory, sign.time) + since
        return "stalled" if glance.hangs or idle > limit else "running"

    def _may_return(self, sign: Sign) -> bool:
        """Whether a sender that was silent over an outage may not have tried again yet."""
        return sign.time < self.since and self.clock() - self.since <= _RETURN_SECONDS


def _came(directory: Path, otherwise: float) -> float:
    """When something was last added to a journal, by this machine's clock."""
    try:
        with os.scandir(directory / JOURNAL) as entries:
            return max((entry.stat(follow_symlinks=False).st_mtime for entry in entries), default=otherwise)
    except OSError:
        return otherwise
