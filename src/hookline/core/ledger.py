"""Looks after what subscribers cost while a loop runs: budgets, and a report at a low rate.

Both are looked at after a timed pass of the moment that paces the loop, so at most once in a dozen
steps, never on the usual path.
"""

import logging
from collections.abc import Iterable
from typing import Any

from hookline.core.entry import Entry, Leaf
from hookline.core.policy import Policy
from hookline.core.timing import Costs

logger = logging.getLogger("hookline")


class Ledger:
    """Compares what subscribers took with the time that passed."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._began_ns: int | None = None
        self._report_at_ns = 0
        self._spent_before: dict[Entry, float] = {}

    def is_due(self) -> bool:
        """Whether it is time for a report."""
        return self._policy.clock() >= self._report_at_ns

    def review(self, leaves: Iterable[Leaf], subject: Any) -> None:
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

    def _check(self, leaf: Leaf, elapsed_ns: int) -> None:
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
