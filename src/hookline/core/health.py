"""What happens when a subscriber raises.

An observer's exception is logged with its name, moment and step, counted, and kept from the others;
after several in a row the observer is disabled, loudly. The exception of a critical subscriber, or
any under a strict policy, is counted too, gets a note that says where it came from, and propagates.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from hookline.core.entry import Leaf
from hookline.core.moment import Moment
from hookline.core.policy import Failure, Policy
from hookline.core.timing import Meter

logger = logging.getLogger("hookline")


class Health:
    """The failures of a roster's subscribers, and who is disabled for them."""

    def __init__(self, policy: Policy) -> None:
        self.strict = policy.strict
        self._allowed = policy.failures_allowed
        self.failures: deque[Failure] = deque(maxlen=100)
        self.on_failure: Callable[[Failure], None] | None = None
        self.log_failure: Callable[[Failure], None] = _log_failure

    def propagates(self, leaf: Leaf) -> bool:
        """Whether this subscriber's exceptions reach the loop."""
        return self.strict or leaf.critical

    def failed(self, leaf: Leaf, moment: Moment, subject: Any, error: BaseException) -> bool:
        """Note a failed call, already counted in its meter; return whether the subscriber is disabled for it."""
        entry = leaf.entry
        meter = entry.meters[moment.name]
        meter.errors += 1
        last, streak = entry.streaks.get(moment.name, (-1, 0))
        streak = streak + 1 if last == meter.calls - 1 else 1
        entry.streaks[moment.name] = (meter.calls, streak)
        fatal = self.propagates(leaf)
        disable = not fatal and not entry.disabled and streak >= self._allowed
        entry.disabled = entry.disabled or disable
        step = getattr(subject, "step", None)
        self._note(Failure(leaf.path, moment.name, step, error, disable), fatal=fatal)
        return disable

    def guarded(self, leaf: Leaf, what: str, function: Callable[[], Any]) -> Any:
        """Call something other than a moment (state, close) under the same policy; None if it failed."""
        try:
            return function()
        except Exception as error:
            leaf.entry.meters.setdefault(what, Meter()).errors += 1
            fatal = self.propagates(leaf)
            self._note(Failure(leaf.path, what, None, error, disabled=False), fatal=fatal)
            if fatal:
                raise
            return None

    def _note(self, failure: Failure, *, fatal: bool) -> None:
        self.failures.append(failure)
        if fatal:
            failure.error.add_note(f"hookline: raised by {failure.subscriber} at {failure.where}")
        else:
            self.log_failure(failure)
        if failure.disabled:
            logger.error("%s is DISABLED from here on: it failed %d times in a row.", failure.subscriber, self._allowed)
        if self.on_failure is not None:
            self.on_failure(failure)


def _log_failure(failure: Failure) -> None:
    logger.error("%s (training goes on)", failure, exc_info=failure.error)


def make_all(calls: Iterable[Callable[[], Any]]) -> None:
    """Make every call, then raise the first exception; an exit or an interrupt goes before any other."""
    errors: list[BaseException] = []
    for call in calls:
        try:
            call()
        except BaseException as error:
            errors.append(error)
    if not errors:
        return
    raised = next((each for each in errors if not isinstance(each, Exception)), errors[0])
    for other in errors:
        if other is not raised:
            logger.error("%s: %s (beside the exception that is raised)", type(other).__name__, other, exc_info=other)
    raise raised
