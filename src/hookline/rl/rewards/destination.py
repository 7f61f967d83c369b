"""Where the rows of reward functions go.

A function's own ``recorder=`` comes first, then what `record_to` set, then the topics of `hookline.logging`: an
output of the model for each sample, and the values of each function, where somebody listens to them or logging was
initialized with a run. Where there is none of these, rows are kept nowhere; statistics are always kept.

A destination that fails never stops training: it is said, and counted in `lost_rows`.
"""

import logging
from collections.abc import Mapping
from typing import Any

from hookline.core.errors import OptionError
from hookline.logging import topics
from hookline.logging.functions import log_model_output, log_reward
from hookline.logging.state import current
from hookline.rl.rewards.batch import Batch
from hookline.rl.rewards.occasion import is_occasion

logger = logging.getLogger("hookline")

_present: Any = None
_lost = 0
_failures = 0


def present() -> Any:
    """What `record_to` set."""
    return _present


def replace(target: Any) -> None:
    """Make another destination the present one."""
    global _present
    _present = target


def checked(target: Any) -> Any:
    """A destination, or None.

    Raises:
        OptionError: It cannot take samples.
    """
    if target is None or callable(getattr(target, "log_samples", None)) or callable(getattr(target, "samples", None)):
        return target
    raise OptionError(
        f"{target!r:.200} cannot record rewards: give a run, a Recorder, or an object with log_samples()."
    )


def lost_rows() -> int:
    """How many rows of samples a destination failed to take."""
    return _lost


def deliver(target: Any, batch: Batch, weights: Mapping[str, float]) -> None:
    """Write the rows of a batch; never raises."""
    global _lost, _failures
    target = _present if target is None else target
    try:
        if target is None:
            _log(batch)
        else:
            _record(target, batch, weights)
    except Exception as error:
        count = len(batch.call.completions)
        _lost, _failures = _lost + count, _failures + 1
        if is_occasion(_failures):
            logger.warning("%d samples with their rewards could not be recorded: %r", count, error)


def _record(target: Any, batch: Batch, weights: Mapping[str, float]) -> None:
    rows = batch.rows(weights)
    if callable(getattr(target, "log_samples", None)):
        target.log_samples(rows)
    else:
        target.samples(rows)
    event: Any = getattr(getattr(target, "recorder", None) or target, "event", None)
    for name, error in batch.errors.items() if callable(event) else ():
        event("reward_error", step=batch.step, function=name, error=error, completions=len(rows))


def _log(batch: Batch) -> None:
    """Give the topics of logging what they take."""
    recorded = current().run is not None
    if recorded or topics.get_model_logger().isEnabledFor(logging.INFO):
        for row in batch.rows({}):
            log_model_output(
                row["prompt"],
                row.get("expected"),
                row["completion"],
                step=row["step"],
                rewards=row["rewards"],
                group=row["group"],
                axis=row["axis"],
            )
    if recorded or topics.get_reward_logger().isEnabledFor(logging.INFO):
        for name, values in batch.values.items():
            log_reward(name, values, batch.ids, step=batch.step)
