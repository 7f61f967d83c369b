"""`Listing`: the list of runs shared by all viewers, refreshed at a limited rate.

A hundred viewers cost as much as one, because runs are listed once for all of them. An unchanged run keeps its row
object in the next listing, so changes are found without comparing values. `RunRow` is a row of the page's table,
`RunDetails` everything else about a run.
"""

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from hookline._engine.errors import UnknownNameError
from hookline._record.records import clean
from hookline.store import RunInfo, Runs
from hookline.store.tables import number as as_float

MAX_METRICS = 6
_HIDDEN_PREFIXES = ("hooks/", "system/", "memory/", "throughput/")
_PREFERRED = ("val/loss", "loss", "reward", "accuracy", "val/accuracy")

Number = float | str | None
"""JSON has no NaN: non-finite numbers are the texts ``NaN``, ``Infinity`` and ``-Infinity``."""


class RunRow(msgspec.Struct, frozen=True):
    """A run in the table of runs; times are seconds since 1970."""

    id: str
    name: str
    project: str
    status: str
    message: str
    experiment: str | None
    group: str | None
    arm: str | None
    repeat: int | None
    stage: str | None
    seed: int | None
    started: float | None
    ended: float | None
    step: int
    num_steps: int | None
    seconds_per_step: Number
    eta_seconds: Number
    last_seen: float | None
    tags: list[str]
    problems: list[str]
    metrics: dict[str, Number]


class RunDetails(msgspec.Struct, frozen=True):
    """A run with its latest metrics, its configuration and the facts of its ``run.json``."""

    run: RunRow
    metrics: dict[str, Any]
    config: Any
    facts: dict[str, Any]


def run_row(info: RunInfo) -> RunRow:
    """The row of a run in the table."""
    values = {name: getattr(info, name) for name in RunRow.__struct_fields__}
    values |= {name: number(values[name]) for name in ("seconds_per_step", "eta_seconds")}
    return RunRow(
        **values | {"tags": list(info.tags), "problems": list(info.problems), "metrics": _headline(info.metrics)}
    )


def run_details(info: RunInfo) -> RunDetails:
    """All details of a run."""
    return RunDetails(run_row(info), clean(info.metrics), clean(info.config), clean(info.facts))


def number(value: Any) -> Number:
    """A number for JSON; None if it is not a number."""
    if not isinstance(value, int | float):
        return None
    held: float | str = clean(as_float(value))
    return held


def _headline(metrics: dict[str, Any]) -> dict[str, Number]:
    """The most important metrics of a run."""
    shown = [
        name
        for name, value in metrics.items()
        if isinstance(value, int | float) and not name.startswith(_HIDDEN_PREFIXES)
    ]
    ordered = sorted(shown, key=lambda name: name not in _PREFERRED)  # stable: otherwise in recorded order
    return {name: number(metrics[name]) for name in ordered[:MAX_METRICS]}


MAX_AGE_SECONDS = 0.5
REST_FACTOR = 4
"""A listing stays valid for this many times its duration, so that many runs do not keep a core busy."""
MAX_REST_SECONDS = 5.0
"""An upper limit: one slow listing must not freeze the page."""

_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True)
class ListedRuns:
    """The runs at one time, the latest first, their table rows by id, and the store's notes."""

    runs: Runs
    rows: dict[str, RunRow] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


class Listing:
    """Lists the runs of a store for all requests.

    Args:
        clock: A monotonic clock in seconds.
    """

    def __init__(
        self, runs: Runs, *, max_age_seconds: float = MAX_AGE_SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._runs, self._max_age_seconds, self._clock = runs, max_age_seconds, clock
        self._lock = threading.Lock()
        self._listed = ListedRuns(runs.filter(), _rows(runs, {}), runs.notes)
        self._until = self._next_search = clock() + max_age_seconds

    def fresh(self) -> ListedRuns | None:
        """The last listing without waiting; None if it is outdated."""
        return self._listed if self._clock() < self._until else None

    def now(self) -> ListedRuns:
        """The current listing, at most a moment old."""
        with self._lock:
            if self._clock() >= self._until:
                self._list()
            return self._listed

    def find(self, search: Callable[[ListedRuns], _Found]) -> _Found:
        """Search the current listing and, if that fails, a new one: the run may have just started.

        The rate of new listings is limited here, too.

        Raises:
            UnknownNameError: The search finds nothing.
        """
        listed = self.now()
        try:
            return search(listed)
        except UnknownNameError:
            with self._lock:
                if self._listed is listed:  # no other thread has refreshed it meanwhile
                    if self._clock() < self._next_search:
                        raise
                    self._list()
                listed = self._listed
            return search(listed)

    def some(self, ids: Collection[str]) -> Runs:
        """Some runs by their ids.

        Raises:
            UnknownNameError: There is no such run.
        """

        def search(listed: ListedRuns) -> Runs:
            wanted = {each if each in listed.rows else listed.runs[each].id for each in ids}
            return listed.runs.filter(lambda info: info.id in wanted)

        return self.find(search)

    def _list(self) -> None:
        start = self._clock()
        self._runs.refresh()
        self._listed = ListedRuns(self._runs.filter(), _rows(self._runs, self._listed.rows), self._runs.notes)
        now = self._clock()
        took = now - start
        self._until = now + max(self._max_age_seconds, min(MAX_REST_SECONDS, REST_FACTOR * took))
        self._next_search = now + max(self._max_age_seconds, min(MAX_REST_SECONDS, took))


def _rows(runs: Runs, before: dict[str, RunRow]) -> dict[str, RunRow]:
    rows = {}
    for info in runs:
        row, old = run_row(info), before.get(info.id)
        rows[info.id] = old if old == row else row
    return rows


def json_object(text: str | None) -> dict[str, Any]:
    """Decode a JSON column: empty for no text; anything but an object becomes its ``value``."""
    found = msgspec.json.decode(text) if text else {}
    return found if isinstance(found, dict) else {"value": found}
