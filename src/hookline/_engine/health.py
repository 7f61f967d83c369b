"""What happens when a subscriber raises.

An observer's exception is logged with its name, moment and step, counted, and kept from the others. An observer
that fails several times in a row, or in a third of its recent calls, is disabled, loudly. The exception of a
critical subscriber, or any under a strict policy, is counted too, gets a note that says where it came from, and
propagates.

Looks after what subscribers cost while a loop runs: budgets, and a report at a low rate.

Both are looked at after a timed pass of the moment that paces the loop, so at most once in a dozen
steps, never on the usual path.
"""

import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from hookline._engine.costs import Costs, Meter
from hookline._engine.moments import Moment
from hookline._engine.policy import Failure, Policy
from hookline._engine.registration import FlatRegistration, Registration

logger = logging.getLogger("hookline")

RECENT_CALLS = 10
"""How many calls for each failure allowed in a row are looked at for a subscriber that fails now and then."""
FAILING_SHARE = 1 / 3
"""The share of them whose failure disables it."""


class Health:
    """The failures of a roster's subscribers, and who is disabled for them."""

    def __init__(self, policy: Policy) -> None:
        self.strict = policy.strict
        self._allowed = policy.failures_allowed
        self._recent = RECENT_CALLS * self._allowed
        self._share = math.ceil(self._recent * FAILING_SHARE)
        self.failures: deque[Failure] = deque(maxlen=100)
        self.on_failure: Callable[[Failure], None] | None = None
        self.log_failure: Callable[[Failure], None] = _log_failure

    def propagates(self, leaf: FlatRegistration) -> bool:
        """Whether this subscriber's exceptions reach the loop."""
        return self.strict or leaf.critical

    def failed(self, leaf: FlatRegistration, moment: Moment, subject: Any, error: BaseException) -> bool:
        """Note a failed call, already counted in its meter; return whether the subscriber is disabled for it."""
        entry = leaf.entry
        meter = entry.meters[moment.name]
        meter.errors += 1
        # Only failures are noted, by the number of the call: a call that succeeds costs nothing.
        failed = entry.failed_calls.setdefault(moment.name, deque(maxlen=max(self._allowed, self._share)))
        failed.append(meter.calls)
        fatal = self.propagates(leaf)
        why = None if fatal or entry.disabled else self._reason_to_disable(failed)
        entry.disabled = entry.disabled or why is not None
        step = getattr(subject, "step", None)
        self._note(Failure(leaf.path, moment.name, step, error, why is not None), fatal=fatal)
        if why is not None:
            logger.error("%s is DISABLED from here on: it failed %s.", leaf.path, why)
        return why is not None

    def _reason_to_disable(self, failed: Sequence[int]) -> str | None:
        """How often a subscriber failed, if that is too often; given the numbers of the calls that failed."""
        allowed, share = self._allowed, self._share
        if len(failed) >= allowed and failed[-1] - failed[-allowed] < allowed:
            return f"{allowed} times in a row"
        if len(failed) >= share and failed[-1] - failed[-share] < self._recent:
            return f"{share} times in its last {failed[-1] - failed[-share] + 1} calls"
        return None

    def guarded(self, leaf: FlatRegistration, what: str, function: Callable[[], Any]) -> Any:
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


class Budgets:
    """Compares what subscribers took with the time that passed."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._began_ns: int | None = None
        self._report_at_ns = 0
        self._spent_before: dict[Registration, float] = {}

    def is_due(self) -> bool:
        """Whether it is time for a report."""
        return self._policy.clock() >= self._report_at_ns

    def review(self, leaves: Iterable[FlatRegistration], subject: Any) -> None:
        """Warn once about each subscriber over its budget, and log all costs when it is time."""
        now = self._policy.clock()
        leaves = list(leaves)
        if self._began_ns is None:
            self._began_ns = now
            self._report_at_ns = now + int(self._policy.report_seconds * 1e9)
        for leaf in leaves:
            self._check(leaf, now - self._began_ns)
        if now >= self._report_at_ns:
            self._report_at_ns = now + int(self._policy.report_seconds * 1e9)
            if hasattr(subject, "log"):
                subject.log(Costs(leaf.cost() for leaf in leaves).as_metrics())

    def _check(self, leaf: FlatRegistration, elapsed_ns: int) -> None:
        entry, budget = leaf.entry, leaf.entry.options.budget
        if budget is None or entry.over_budget or leaf.background:
            return
        spent_before = self._spent_before.setdefault(entry, entry.total_ns)
        if elapsed_ns <= 0:
            return
        share = (entry.total_ns - spent_before) / elapsed_ns
        if share > budget:
            entry.over_budget = True
            logger.warning(
                "%s takes %.1f%% of the step time; its budget is %.1f%%. Give it a cadence (every=), "
                "less to do, or background=True.",
                leaf.path,
                100 * share,
                100 * budget,
            )
