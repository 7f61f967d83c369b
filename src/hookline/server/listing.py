"""`Listing`: the runs as everybody who looks at the page sees them, read anew at most so often.

A hundred viewers cost what one costs: the runs are listed once for all of them. A run that has not changed is the same
object in the next listing, so what changed is found without comparing values. What somebody asks for by its name and is
not there may have come a moment ago: it is looked for in a new listing before it is said that there is none.
"""

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TypeVar

from hookline.core.errors import UnknownNameError
from hookline.server.run_rows import RunRow, run_row
from hookline.store import Runs

MAX_AGE_SECONDS = 0.5
REST = 4
"""For so many times as long as listing took, what was listed counts as new: very many runs do not keep a core busy."""
LONGEST_REST_SECONDS = 5.0
"""No longer than that, or a disk that was slow once would keep the page as it was."""

_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True)
class Listed:
    """The runs at one time, the latest first, what is shown of each by its id, and what is said about the store."""

    runs: Runs
    rows: dict[str, RunRow] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


class Listing:
    """Lists the runs of a store for all requests.

    Args:
        clock: Seconds that only ever grow.
    """

    def __init__(
        self, runs: Runs, *, max_age_seconds: float = MAX_AGE_SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._runs, self._max_age_seconds, self._clock = runs, max_age_seconds, clock
        self._lock = threading.Lock()
        self._listed = Listed(runs.filter(), _rows(runs, {}), runs.notes)
        self._until = self._again = clock() + max_age_seconds

    def fresh(self) -> Listed | None:
        """The runs as they were a moment ago, without waiting for anything; None where that was too long ago."""
        return self._listed if self._clock() < self._until else None

    def now(self) -> Listed:
        """The runs as they are now, or were a moment ago."""
        with self._lock:
            if self._clock() >= self._until:
                self._list()
            return self._listed

    def find(self, search: Callable[[Listed], _Found]) -> _Found:
        """What a search finds in the runs as they are now; what is not there is looked for in a new listing, too.

        How often runs are listed for what there is not is limited, as it is for everybody who looks.

        Raises:
            UnknownNameError: There is no such thing, as the search says.
        """
        listed = self.now()
        try:
            return search(listed)
        except UnknownNameError:
            with self._lock:
                if self._listed is listed:  # nobody else has listed them meanwhile
                    if self._clock() < self._again:
                        raise
                    self._list()
                listed = self._listed
            return search(listed)

    def some(self, ids: Collection[str]) -> Runs:
        """Some runs by their ids.

        Raises:
            UnknownNameError: There is no such run.
        """
        return self.find(lambda listed: _some(listed, ids))

    def _list(self) -> None:
        begin = self._clock()
        self._runs.refresh()
        self._listed = Listed(self._runs.filter(), _rows(self._runs, self._listed.rows), self._runs.notes)
        now = self._clock()
        self._until, self._again = now + self._rest(REST * (now - begin)), now + self._rest(now - begin)

    def _rest(self, seconds: float) -> float:
        return max(self._max_age_seconds, min(LONGEST_REST_SECONDS, seconds))


def _some(listed: Listed, ids: Collection[str]) -> Runs:
    wanted = {each if each in listed.rows else listed.runs[each].id for each in ids}
    return listed.runs.filter(lambda info: info.id in wanted)


def _rows(runs: Runs, before: dict[str, RunRow]) -> dict[str, RunRow]:
    rows = {}
    for info in runs:
        row, old = run_row(info), before.get(info.id)
        rows[info.id] = old if old == row else row
    return rows
