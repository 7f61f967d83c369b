"""`DiskTrouble`: faults of the server's disk that may pass; they are told in words, and logged once in a while.

Whoever sends tries again and again: a fault that lasts must not fill the log.
"""

import errno
import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

logger = logging.getLogger("hookline")

AGAIN_SECONDS = 60.0
"""After so long the same fault is logged again."""
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_FAULTS = _FULL | {errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.EMFILE, errno.ENFILE}


@dataclass(frozen=True, slots=True)
class Fault:
    """What is answered."""

    status: int
    error: str


@dataclass(frozen=True, slots=True)
class DiskTrouble:
    """Knows the faults of a disk.

    Args:
        clock: Seconds that only ever grow.
    """

    clock: Callable[[], float] = time.monotonic
    _logged: dict[int, float] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def fault(self, error: BaseException, path: str) -> Fault | None:
        """What is answered to a request that failed; None where it was something else.

        Args:
            path: Where the request went.
        """
        number = error.errno if isinstance(error, OSError) else None
        if number not in _FAULTS:
            return None
        if self._is_news(number):
            logger.error("%s failed: %s", path, error)
        if number in _FULL:
            return Fault(507, "There is no room left on the server's disk. Send it again later.")
        return Fault(
            503, f"The server cannot use its directory: {os.strerror(number)}. Its log says more. Try it later."
        )

    def _is_news(self, number: int) -> bool:
        with self._lock:
            now = self.clock()
            if now - self._logged.get(number, now - AGAIN_SECONDS) < AGAIN_SECONDS:
                return False
            self._logged[number] = now
            return True
