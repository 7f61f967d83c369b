"""Checks that the metric a callback monitors exists: a name that never comes is most often a misspelt one.

Whether a metric is better when it is smaller or larger: as it was said, or as its name suggests.

`FreshStart`: a callback that is part of a second training begins it with nothing of the first.

A training that goes on, and one for which a state was loaded, finds everything as it was.

Every so many steps or epochs, given as a number or None: what callbacks with such arguments share.
"""

import logging
import re
from collections.abc import Mapping
from typing import Any, Literal

from hookline._engine.errors import OptionError
from hookline._engine.metrics import find_metric, whole
from hookline._engine.moments import Callback
from hookline._engine.state import LoopArtifacts, LoopState

logger = logging.getLogger("hookline")


class MonitorCheck:
    """Warns once, with the names that exist, about a monitored metric that was not logged.

    The metric is checked after the first evaluation, with the first row of a later step: by then all evaluations that
    follow the same step have been logged. A training that ends before it is checked at its end, unless it was stopped
    before any evaluation. Only rank zero warns; other ranks need not evaluate at all.

    Args:
        metric: The name that is monitored.
        consequence: What follows from its absence, for the warning.
    """

    def __init__(self, metric: str, *, consequence: str = "") -> None:
        self._metric, self._consequence = metric, consequence
        self.forget()

    def forget(self) -> None:
        """Start over, for another training."""
        self._evaluated_at: int | None = None
        self._done = False

    def evaluated(self, step: int) -> None:
        """Note that an evaluation of this completed step has been logged."""
        if self._evaluated_at is None:
            self._evaluated_at = step

    def after_row(self, loop: LoopState, step: int, *, who: str) -> None:
        """Check the metric once, if the first evaluation belongs to an earlier step than this row."""
        if not self._done and self._evaluated_at is not None and step > self._evaluated_at:
            self._warn_unless_seen(loop, who, f" up to the first evaluation, at step {self._evaluated_at}")

    def at_end(self, loop: LoopState, *, who: str) -> None:
        """Check the metric when training ends, unless that is done or a stop came before the first evaluation."""
        if not self._done and (self._evaluated_at is not None or not loop.stop_requested):
            self._warn_unless_seen(loop, who, "")

    def _warn_unless_seen(self, loop: LoopState, who: str, when: str) -> None:
        self._done = True
        # Names only: reading a value could wait for a device.
        if loop.rank == 0 and not find_metric(dict.fromkeys(loop.metrics, True), self._metric):
            seen = ", ".join(sorted(loop.metrics)) or "none"
            logger.warning("%s never saw %r%s%s. Metrics seen: %s.", who, self._metric, when, self._consequence, seen)


_LARGER = re.compile(
    r"(^|[/_.-])(acc|accuracy|auc|auroc|bleu|correct|dice|exact_match|f1|iou|map|ndcg|pass|precision|psnr|r2|recall"
    r"|return|reward|rewards|rouge|score|ssim|success|success_rate|win_rate)([/_.@-]|\d|$)",
    re.IGNORECASE,
)
_SMALLER = re.compile(r"(^|[/_.-])(loss|error|perplexity|ppl|nll|mse|mae|rmse|wer|cer|kl)([/_.-]|$)", re.IGNORECASE)


def direction(monitor: str | None, mode: Any) -> Literal["min", "max"]:
    """Which of "min" and "max" it is.

    >>> direction("val/accuracy", None), direction("val/loss", None), direction("val/accuracy", "min")
    ('max', 'min', 'min')
    """
    if mode is not None:
        if mode not in ("min", "max"):
            raise OptionError(f"mode={mode!r}: give 'min' or 'max'.")
        return "min" if mode == "min" else "max"
    is_larger = monitor is not None and _LARGER.search(monitor) is not None and _SMALLER.search(monitor) is None
    return "max" if is_larger else "min"


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


def is_nth(count: int, every: int | None) -> bool:
    """Whether a count is one of every so many; never where there is no cadence."""
    return every is not None and count % every == 0


def require_cadence(name: str, value: object) -> None:
    """Refuse what is neither a whole number of at least 1 nor None."""
    number = whole(value)
    if value is not None and (number is None or number < 1):
        raise OptionError(f"{name}={value!r}: give a whole number of at least 1, or None.")
