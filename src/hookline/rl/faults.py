"""`Faults`: rewards that could not be had, counted by the name of what failed; training goes on without them."""

import logging
import math
import reprlib
import threading
from collections import Counter
from typing import Any

logger = logging.getLogger("hookline")

LARGEST = 1e30
"""The largest reward: with larger ones the arithmetic of a learner, in 32 bits, overflows."""

_LOCK = threading.Lock()  # not in the counter: environments are copied and sent to other processes


class Faults(Counter[str]):
    """How often each reward function, or environment, failed. The first failure of each is logged."""

    def note(self, name: str, problem: str) -> None:
        """Count a failure, e.g. ``note("correctness", "raised ValueError: no answer")``."""
        with _LOCK:
            self[name] += 1
            first = self[name] == 1
        if first:
            logger.warning(
                "Reward of %s: %s. Its reward is missing there, and training goes on; further failures of it are "
                "only counted.", name, problem,
            )  # fmt: skip


def described(error: BaseException) -> str:
    """An exception in a message: its type and the beginning of its text."""
    try:
        return f"raised {type(error).__name__}: {error!s:.300}"
    except Exception:  # one whose text cannot be had must not become another failure
        return f"raised {type(error).__name__}"


def finite(value: Any, name: str, faults: Faults) -> float | None:
    """A reward as a float; None, and a fault of ``name``, where it is no finite number, or too large to learn from."""
    try:
        reward = math.nan if isinstance(value, str | bytes) else float(value)
    except Exception:  # whatever stands there instead of a number
        reward = math.nan
    if abs(reward) <= LARGEST:  # neither NaN nor infinity is
        return reward
    faults.note(name, f"gave {reprlib.repr(value)}, where a finite number is accepted")
    return None
