"""The warning about a metric that a callback waited for and that never came, most often a misspelt one."""

import logging

from hookline.core.state import LoopState
from hookline.core.values import find_metric

logger = logging.getLogger("hookline")


def warn_of_unseen(metric: str, loop: LoopState, *, who: str) -> None:
    """Say at the end of training that a metric was never logged, and which were."""
    if find_metric(loop.metrics, metric) is None:
        seen = ", ".join(sorted(loop.metrics)) or "none"
        logger.warning("%s never saw %r. Metrics seen: %s.", who, metric, seen)
