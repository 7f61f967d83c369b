"""Stops training after a budget of wall-clock time, at a step boundary, so that everything is saved.

The clock starts with the training. A resumed run starts from zero unless the time of its earlier sessions counts too.
"""

import logging
import re
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from hookline._engine.errors import OptionError
from hookline._engine.registry import register
from hookline._engine.state import LoopState
from hookline.callbacks.monitoring import StatefulCallback

logger = logging.getLogger("hookline")

Duration = float | str | timedelta

_UNITS = {"d": 86400, "h": 3600, "m": 60, "min": 60, "s": 1}
_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(min|[dhms])\s*")
_COLONS = re.compile(r"(?:(\d+):)?(\d+):(\d+):(\d+)")


def seconds_in(what: str, duration: Duration) -> float:
    """Converts a duration to seconds.

    >>> seconds_in("duration", "1h30m"), seconds_in("duration", "1:00:00:30")
    (5400.0, 86430.0)
    """
    match duration:
        case timedelta():
            return duration.total_seconds()
        case str() if colons := _COLONS.fullmatch(duration.strip()):
            days, hours, minutes, seconds = (int(part or 0) for part in colons.groups())
            return float(days * 86400 + hours * 3600 + minutes * 60 + seconds)
        case str() if duration.strip() and not _PART.sub("", duration):
            return float(sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(duration)))
        case int() | float() if not isinstance(duration, bool) and 0 <= duration < float("inf"):
            return float(duration)
    raise OptionError(
        f"{what}={duration!r}: give a number of seconds, text such as '8h', '1h30m' or '[days:]08:00:00', "
        "or a timedelta."
    )


@register("timer")
class Timer(StatefulCallback):
    """Requests a stop when the budget less the margin is used up. Without a budget it only measures.

    Args:
        duration: The budget: seconds, ``"8h"``, ``"1h30m"``, ``"[days:]08:00:00"`` or a `timedelta`.
        seconds: The budget in seconds.
        hours: The budget in hours.
        margin: How much earlier to stop, for example for a last validation and checkpoint; formats as ``duration``.
        includes_earlier_sessions: Also count the earlier sessions of a resumed run.
    """

    def __init__(
        self,
        duration: Duration | None = None,
        *,
        seconds: float | None = None,
        hours: float | None = None,
        margin: Duration = 0.0,
        includes_earlier_sessions: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.budget_seconds = _budget(duration, seconds, hours)
        self.margin_seconds = seconds_in("margin", margin)
        if self.budget_seconds is not None and self.margin_seconds >= self.budget_seconds:
            raise OptionError(f"margin={margin!r}: give less than the budget, which is {self.budget_seconds:g} s.")
        self.includes_earlier_sessions = includes_earlier_sessions
        self._clock = clock
        self._began: float | None = None
        self._counted_from: float | None = None  # the start of training, or a later load of a state
        self._earlier = 0.0

    @property
    def elapsed_seconds(self) -> float:
        """The time since training started in this session."""
        return 0.0 if self._began is None else self._clock() - self._began

    @property
    def total_seconds(self) -> float:
        """The time of this session and, in a resumed run, of the earlier ones."""
        return self._earlier + (0.0 if self._counted_from is None else self._clock() - self._counted_from)

    @property
    def remaining_seconds(self) -> float | None:
        """The time left before the stop, at least 0; None without a budget."""
        if self.budget_seconds is None:
            return None
        used = self.total_seconds if self.includes_earlier_sessions else self.elapsed_seconds
        return max(0.0, self.budget_seconds - self.margin_seconds - used)

    def on_train_start(self, loop: LoopState, /) -> None:
        super().on_train_start(loop)
        self._began = self._counted_from = self._clock()
        if self.budget_seconds is not None and (reason := getattr(loop, "no_stops", None)):
            logger.warning("timer stops nothing: %s.", reason)
        self._stop_if_over(loop)

    def on_step_end(self, loop: LoopState, step_idx: int, batch: Any, metrics: dict[str, Any], /) -> None:
        self._stop_if_over(loop)

    def on_validation_end(self, loop: LoopState, /) -> None:
        self._stop_if_over(loop)

    def state_dict(self) -> dict[str, Any]:
        return {"total_seconds": self.total_seconds}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._earlier = float(state["total_seconds"])
        if self._counted_from is not None:  # the saved total includes the time up to then
            self._counted_from = self._clock()

    def _reset(self) -> None:
        self._earlier = 0.0

    def _stop_if_over(self, loop: LoopState) -> None:
        if self.remaining_seconds == 0.0 and not loop.stop_requested:
            margin = f" less a margin of {self.margin_seconds:g} s" if self.margin_seconds else ""
            loop.request_stop(f"timer: the budget of {self.budget_seconds:g} s{margin} is used up")


def _budget(duration: Duration | None, seconds: float | None, hours: float | None) -> float | None:
    options = {"duration": duration, "seconds": seconds, "hours": hours}
    given = {name: value for name, value in options.items() if value is not None}
    if len(given) > 1:
        raise OptionError(f"{', '.join(f'{name}={value!r}' for name, value in given.items())}: give one of them.")
    for name, value in given.items():
        budget = seconds_in(name, value) * (3600 if name == "hours" else 1)
        if budget <= 0:
            raise OptionError(f"{name}={value!r}: give more than 0.")
        return budget
    return None
