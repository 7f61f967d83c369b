"""Handles exceptions of subscribers, and compares their costs with their budgets.

An observer's exception is logged with its name, moment and step, counted, and does not reach the others. An observer
that fails several times in a row, or in a third of its recent calls, is disabled with an error message. The exception
of a critical subscriber, or any under a strict policy, is counted too, gets a note with its origin, and propagates.

Budgets and the cost report are reviewed after a timed pass of the moment that paces the loop: at most once in a dozen
steps, never on the usual path.

`Policy` holds the limits, and the clock and the threads, which tests replace. `Failure` is one exception.
"""

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hookline._engine.background import StartThread, start_thread
from hookline._engine.costs import Costs, Meter
from hookline._engine.moments import Moment
from hookline._engine.registration import FlatRegistration, Registration

logger = logging.getLogger("hookline")

RECENT_CALLS = 10
"""The window for a subscriber that fails now and then, in calls per failure allowed in a row."""
FAILING_SHARE = 1 / 3
"""The share of failed calls in that window that disables a subscriber."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Settings of the engine for all subscribers of a collection.

    Args:
        strict: Let every exception propagate, not only those of critical subscribers.
        failures_allowed: Failures in a row after which a subscriber is disabled. It is also disabled when a third of
            its last ``10 * failures_allowed`` calls failed.
        queue_size: Calls that may wait for a background or async subscriber; further ones of
            repeating moments are dropped and counted.
        drain_seconds: How long `close()` waits for background work.
        report_seconds: How often the costs are logged as ``hooks/<name>/...``.
        clock: Returns monotonic nanoseconds.
        start_thread: Starts a named thread.
    """

    strict: bool = False
    failures_allowed: int = 3
    queue_size: int = 1024
    drain_seconds: float = 10.0
    report_seconds: float = 60.0
    clock: Callable[[], int] = time.perf_counter_ns
    start_thread: StartThread = start_thread


@dataclass(frozen=True, slots=True)
class Failure:
    """One exception of a subscriber, with its moment and step, and whether it disabled the subscriber."""

    subscriber: str
    moment: str
    step: int | None
    error: BaseException
    disabled: bool

    @property
    def where(self) -> str:
        """The moment and the step."""
        return self.moment if self.step is None else f"{self.moment}, step {self.step}"

    def __str__(self) -> str:
        return f"{self.subscriber} failed at {self.where}: {type(self.error).__name__}: {self.error}"


class Health:
    """Counts the failures of a list's subscribers and disables those that fail too often."""

    def __init__(self, policy: Policy) -> None:
        self.strict = policy.strict
        self._allowed = policy.failures_allowed
        self._recent = RECENT_CALLS * self._allowed
        self._share = math.ceil(self._recent * FAILING_SHARE)
        # Bounded: a long run with a flaky server must not collect tracebacks, which keep their frames alive.
        self.failures: deque[Failure] = deque(maxlen=100)
        self.on_failure: Callable[[Failure], None] | None = None
        self.log_failure: Callable[[Failure], None] = _log_failure

    def propagates(self, flat: FlatRegistration) -> bool:
        """Return whether this subscriber's exceptions reach the loop."""
        return self.strict or flat.critical

    def failed(self, flat: FlatRegistration, moment: Moment, subject: Any, error: BaseException) -> bool:
        """Handle a failed call, already counted in its meter; return whether the subscriber is disabled for it."""
        registration = flat.registration
        meter = registration.meters[moment.name]
        meter.errors += 1
        # Failures are stored by the number of the call, so that a successful call costs nothing.
        failed = registration.failed_calls.setdefault(moment.name, deque(maxlen=max(self._allowed, self._share)))
        failed.append(meter.calls)
        fatal = self.propagates(flat)
        # A call that was already running may fail after the subscriber was disabled: that is not announced again.
        why = None if fatal or registration.disabled else self._reason_to_disable(failed)
        registration.disabled = registration.disabled or why is not None
        step = getattr(subject, "step", None)
        # Before the message about disabling, so that the log shows the cause first.
        self._report(Failure(flat.path, moment.name, step, error, why is not None), fatal=fatal)
        if why is not None:
            logger.error("%s is DISABLED from here on: it failed %s.", flat.path, why)
        return why is not None

    def _reason_to_disable(self, failed: Sequence[int]) -> str | None:
        """Return how often a subscriber failed, if that is too often, from the numbers of its failed calls."""
        allowed, share = self._allowed, self._share
        # The numbers of n failures in a row span less than n; the same comparison serves the wider window.
        if len(failed) >= allowed and failed[-1] - failed[-allowed] < allowed:
            return f"{allowed} times in a row"
        if len(failed) >= share and failed[-1] - failed[-share] < self._recent:
            return f"{share} times in its last {failed[-1] - failed[-share] + 1} calls"
        return None

    def guarded(self, flat: FlatRegistration, what: str, function: Callable[[], Any]) -> Any:
        """Call something other than a moment (state, close) under the same policy; return None if it failed."""
        try:
            return function()
        except Exception as error:
            # Never a reason to disable: it does not happen at every step, and close() must still be called.
            flat.registration.meters.setdefault(what, Meter()).errors += 1
            fatal = self.propagates(flat)
            self._report(Failure(flat.path, what, None, error, disabled=False), fatal=fatal)
            if fatal:
                raise
            return None

    def _report(self, failure: Failure, *, fatal: bool) -> None:
        self.failures.append(failure)
        if fatal:
            # A note keeps the exception's type, which the program around the loop may catch.
            failure.error.add_note(f"hookline: raised by {failure.subscriber} at {failure.where}")
        else:
            self.log_failure(failure)
        if self.on_failure is not None:
            self.on_failure(failure)


def _log_failure(failure: Failure) -> None:
    logger.error("%s (training continues)", failure, exc_info=failure.error)


def call_all(calls: Iterable[Callable[[], Any]]) -> None:
    """Call all functions, then raise the first exception; an exit or an interrupt takes precedence."""
    errors: list[BaseException] = []
    for call in calls:
        try:
            call()
        # An interrupt during one close must not leave the others unclosed.
        except BaseException as error:
            errors.append(error)
    if not errors:
        return
    # Only one can be raised. An exit or an interrupt is what the user wants now; the others are logged.
    raised = next((each for each in errors if not isinstance(each, Exception)), errors[0])
    for other in errors:
        if other is not raised:
            logger.error(
                "%s: %s (in addition to the exception that is raised)", type(other).__name__, other, exc_info=other
            )
    raise raised


class Budgets:
    """Compares the time that subscribers took with the time that passed, and reports all costs now and then."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._began_ns: int | None = None
        self._report_at_ns = 0
        self._spent_before: dict[Registration, float] = {}

    def is_due(self) -> bool:
        """Return whether a report is due."""
        return self._policy.clock() >= self._report_at_ns

    def review(self, subscribers: Iterable[FlatRegistration], subject: Any) -> None:
        """Warn once about each subscriber over its budget, and log all costs if a report is due."""
        now = self._policy.clock()
        # Gone through twice below.
        subscribers = list(subscribers)
        # Time is counted from the first review: loading data before the loop is not step time and would hide an
        # expense.
        if self._began_ns is None:
            self._began_ns = now
            self._report_at_ns = now + int(self._policy.report_seconds * 1e9)
        for flat in subscribers:
            self._check(flat, now - self._began_ns)
        if now >= self._report_at_ns:
            self._report_at_ns = now + int(self._policy.report_seconds * 1e9)
            if hasattr(subject, "log"):
                subject.log(Costs(flat.cost() for flat in subscribers).as_metrics())

    def _check(self, flat: FlatRegistration, elapsed_ns: int) -> None:
        registration, budget = flat.registration, flat.registration.options.budget
        # The loop does not wait for a background subscriber, so it takes no share of the step.
        if budget is None or registration.over_budget or flat.background:
            return
        # A subscriber added later must not be charged for what it took before its first review.
        spent_before = self._spent_before.setdefault(registration, registration.total_ns)
        if elapsed_ns <= 0:
            return
        share = (registration.total_ns - spent_before) / elapsed_ns
        if share > budget:
            registration.over_budget = True
            logger.warning(
                "%s takes %.1f%% of the step time; its budget is %.1f%%. Give it a cadence (every=), "
                "less to do, or background=True.",
                flat.path,
                100 * share,
                100 * budget,
            )
