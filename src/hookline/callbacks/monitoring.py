"""Parts shared by the callbacks that watch metrics.

- `StatefulCallback` resets a callback for each new training, but not for a resumed one.
- `PendingValues` queues metrics that a device is still computing, so that no step waits for them.
- `MonitorCheck` warns once about a monitored metric that never appears, which is most often a misspelled name.
- The functions check the ``monitor`` and ``mode`` options and read the monitored value.
"""

import logging
import re
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Generic, Literal, TypeVar

from hookline._engine.errors import OptionError
from hookline._engine.metrics import Deferred, MetricsRow, find_metric
from hookline._engine.moments import Callback
from hookline._engine.state import LoopArtifacts, LoopState

logger = logging.getLogger("hookline")

Context = TypeVar("Context")

MOST_PENDING = 256


class StatefulCallback(Callback):
    """The base of callbacks that remember something from step to step, which `_reset` clears.

    A callback instance that is used for a second training starts from scratch. One that is resumed, or whose state was
    loaded before the training started, keeps its state.
    """

    _was_loaded = False

    def on_train_start(self, loop: LoopState, /) -> None:
        if loop.step == 0 and not self._was_loaded:
            self._reset()
        self._was_loaded = False

    def on_train_end(self, loop: LoopState, artifacts: LoopArtifacts, /) -> None:
        self._was_loaded = False  # a state loaded during this training is not meant for the next one

    def on_exception(self, loop: LoopState, error: BaseException, /) -> None:
        self._was_loaded = False

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._was_loaded = True

    def _reset(self) -> None:
        """Clear the state."""


class PendingValues(Generic[Context]):
    """A first-in, first-out queue of metric values that may still be on a device.

    Args:
        limit: Above this length the oldest value is read even if that waits; by then it has long been computed.
    """

    def __init__(self, limit: int = MOST_PENDING) -> None:
        self._limit = limit
        self._queue: deque[tuple[Any, Context]] = deque()

    def append(self, value: Any, context: Context) -> None:
        """Add a value and what to return with it."""
        self._queue.append((value, context))

    def ready(self, *, wait: bool = False) -> Iterator[tuple[Any, Context]]:
        """Remove and yield the values up to the first that is not computed yet; with ``wait``, all of them.

        The values are yielded as they were added: a `Deferred` one is for the caller to read.
        """
        while self._queue:
            value = self._queue[0][0]
            is_ready = not isinstance(value, Deferred) or value.source.ready()
            if not (wait or is_ready or len(self._queue) > self._limit):
                return
            yield self._queue.popleft()

    def clear(self) -> None:
        """Remove all values."""
        self._queue.clear()


class MonitorCheck:
    """Warns once, with the metrics that exist, about a monitored metric that was not logged.

    The check runs with the first row of a step after the first evaluation: by then all evaluations that follow the same
    step are logged. A training that ends earlier is checked at its end, unless it was stopped before any evaluation.
    Only rank zero warns, because other ranks need not evaluate.

    Args:
        metric: The name that is monitored.
        consequence: What follows if it is missing, for the warning.
    """

    def __init__(self, metric: str, *, consequence: str = "") -> None:
        self._metric, self._consequence = metric, consequence
        self.reset()

    def reset(self) -> None:
        """Start over, for another training."""
        self._evaluated_at: int | None = None
        self._done = False

    def evaluated(self, step: int) -> None:
        """Note that an evaluation after this many steps was logged."""
        if self._evaluated_at is None:
            self._evaluated_at = step

    def after_row(self, loop: LoopState, step: int, *, who: str) -> None:
        """Check the metric once, if the first evaluation belongs to an earlier step than this row."""
        if not self._done and self._evaluated_at is not None and step > self._evaluated_at:
            self._warn_if_missing(loop, who, f" up to the first evaluation, at step {self._evaluated_at}")

    def at_end(self, loop: LoopState, *, who: str) -> None:
        """Check the metric at the end of training, unless it was checked or a stop came before any evaluation."""
        if not self._done and (self._evaluated_at is not None or not loop.stop_requested):
            self._warn_if_missing(loop, who, "")

    def _warn_if_missing(self, loop: LoopState, who: str, when: str) -> None:
        self._done = True
        is_asked = not getattr(loop, "is_watched", False)  # a rule of a server is for runs that may not have it
        if is_asked and loop.rank == 0 and not has_metric(loop.metrics, self._metric):
            seen = ", ".join(sorted(loop.metrics)) or "none"
            logger.warning("%s never saw %r%s%s. Metrics seen: %s.", who, self._metric, when, self._consequence, seen)


def has_metric(metrics: Mapping[str, Any], name: str) -> bool:
    """Whether a metric is in a row, without waiting for its value."""
    return bool(find_metric(dict.fromkeys(metrics, True), name))


def pending_metric(metrics: Mapping[str, Any], name: str) -> Any:
    """A metric without waiting for it: a `Deferred` one stays deferred."""
    return find_metric(dict(dict.items(metrics)) if isinstance(metrics, MetricsRow) else metrics, name)


def monitored_number(monitor: str, value: Any) -> float:
    """The value of the monitored metric, which has to be a number."""
    if isinstance(value, int | float):
        return float(value)
    raise OptionError(f"monitor={monitor!r} is {value!r}: give the name of a metric that is a number.")


def require_metric_name(option: str, value: Any, *, optional: bool = False) -> None:
    """Check that an option names a metric."""
    if not (isinstance(value, str) and value) and not (optional and value is None):
        or_none = ", or None" if optional else ""
        raise OptionError(f"{option}={value!r}: give the name of a metric, such as 'val/loss'{or_none}.")


_LARGER = re.compile(
    r"(^|[/_.-])(acc|accuracy|auc|auroc|bleu|correct|dice|exact_match|f1|iou|map|ndcg|pass|precision|psnr|r2|recall"
    r"|return|reward|rewards|rouge|score|ssim|success|success_rate|win_rate)([/_.@-]|\d|$)",
    re.IGNORECASE,
)
_SMALLER = re.compile(r"(^|[/_.-])(loss|error|perplexity|ppl|nll|mse|mae|rmse|wer|cer|kl)([/_.-]|$)", re.IGNORECASE)


def direction(monitor: str | None, mode: Any) -> Literal["min", "max"]:
    """Whether smaller ("min") or larger ("max") values are better: the given mode, or a guess from the metric's name.

    >>> direction("val/accuracy", None), direction("val/loss", None), direction("val/accuracy", "min")
    ('max', 'min', 'min')
    """
    if mode is not None:
        if mode not in ("min", "max"):
            raise OptionError(f"mode={mode!r}: give 'min' or 'max'.")
        return "min" if mode == "min" else "max"
    is_larger = monitor is not None and _LARGER.search(monitor) is not None and _SMALLER.search(monitor) is None
    return "max" if is_larger else "min"


def is_nth(count: int, every: int | None) -> bool:
    """Whether a count is a multiple of ``every``; never if that is None."""
    return every is not None and count % every == 0
