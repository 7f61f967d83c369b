"""Settings that are not those with which a checkpoint was saved: each is said, with what comes of it."""

import logging
from collections.abc import Mapping
from typing import Any

logger = logging.getLogger("hookline")


def say_what_changed(then: Mapping[str, Any], now: Mapping[str, Any], consequence: str) -> None:
    """Warn about each of the settings of then that is another one now."""
    for name, before in then.items():
        if before != now[name]:
            logger.warning(
                "The checkpoint was saved with %s=%s, now it is %s: %s.", name, before, now[name], consequence
            )
