"""What the record says of a run's subscribers: in which order they run, and what each of them has cost.

The order per moment is an event when training starts, and again when somebody comes, goes, moves or is disabled; after
the first few such changes at a low rate, and what was held back is written at the end. The costs are an event at the
end, however the run ends, once. Both are bounded in size: what does not fit is counted.
"""

import time
from collections.abc import Callable, Collection
from dataclasses import asdict
from typing import Any

from hookline.core.roster import Roster
from hookline.record.recorder import Recorder
from hookline.record.records import HOOKS_COST, HOOKS_PLAN

AT_ONCE = 8
"""How many changes of the order are written as they come."""
CHANGE_SECONDS = 60.0
"""How long the ones behind these wait after the last that was written."""
PLAN_CHARACTERS = 64 << 10
"""How many characters the names in an order may have in all."""
MOST_COSTS = 500


class HookRecord:
    """Writes the order and the costs of the subscribers of one run.

    Args:
        recorder: Of the writer that these subscribers run in.
        step: Says how many steps are complete.
        clock: Seconds that only go forward.
    """

    def __init__(
        self, recorder: Recorder, step: Callable[[], int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._recorder, self._step, self._clock = recorder, step, clock
        self._began = clock()
        self._rosters: list[tuple[Roster, Collection[str] | None]] = []
        self._is_open = False
        self._written: dict[str, list[str]] = {}
        self._changes = 0
        self._changed_at = self._began

    def follow(self, roster: Roster, moments: Collection[str] | None = None) -> None:
        """Have the order of these subscribers in the record, at all moments or at some."""
        self._rosters.append((roster, moments))
        roster.on_change = self._note_change
        self._note_change()

    def open(self) -> None:
        """Write the order; from now on its changes are written."""
        self._is_open = True
        self._write_order()

    def close(self, roster: Roster | None = None) -> None:
        """Write the order, if it is not in the record as it is, and what the subscribers of a roster have cost."""
        self._write_order()
        self._is_open = False
        for each, _ in self._rosters:
            if each.on_change == self._note_change:  # another run may have taken the roster over
                each.on_change = None
        if roster is not None:
            self._write_costs(roster)

    def _note_change(self) -> None:
        if not self._is_open:
            return
        if self._changes < AT_ONCE or self._clock() - self._changed_at >= CHANGE_SECONDS:
            self._write_order()

    def _write_order(self) -> None:
        order: dict[str, list[str]] = {}
        for roster, moments in self._rosters:
            for moment, names in roster.plan().items():
                if moments is None or moment in moments:
                    order.setdefault(moment, []).extend(names)
        if order == self._written:
            return
        self._written = order
        self._changes += 1
        self._changed_at = self._clock()
        self._recorder.event(HOOKS_PLAN, step=self._step(), **_bounded(order))

    def _write_costs(self, roster: Roster) -> None:
        costs = roster.costs()
        if costs:
            facts: dict[str, Any] = {"seconds": self._clock() - self._began}
            facts["costs"] = [asdict(cost) for cost in costs[:MOST_COSTS]]
            left_out = len(costs) - len(facts["costs"])
            facts |= {"left_out": left_out} if left_out else {}
            self._recorder.event(HOOKS_COST, step=self._step(), **facts)


def _bounded(order: dict[str, list[str]]) -> dict[str, Any]:
    """What of an order is written, and how many names are not."""
    kept: dict[str, list[str]] = {}
    room, left_out = PLAN_CHARACTERS, 0
    for moment, names in order.items():
        kept[moment] = []
        for name in names:
            if len(name) < room:
                room -= len(name)
                kept[moment].append(name)
            else:
                left_out += 1
    return {"moments": kept} | ({"left_out": left_out} if left_out else {})
