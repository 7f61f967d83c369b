"""`Listing`: the runs as everybody who looks at the page sees them, read anew at most so often.

A hundred viewers cost what one costs: the runs are listed once for all of them. A run that has not changed is the same
object in the next listing, so what changed is found without comparing values. What somebody asks for by its name and is
not there may have come a moment ago: it is looked for in a new listing before it is said that there is none.

`RunRow`: what the page's table shows of a run, and `RunDetails`: everything else that is known about it.
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

MOST_METRICS = 6
_UNINTERESTING = ("hooks/", "system/", "memory/", "throughput/")
_FIRST = ("val/loss", "loss", "reward", "accuracy", "val/accuracy")

Number = float | str | None
"""JSON has no NaN: numbers that are not finite are the texts ``NaN``, ``Infinity`` and ``-Infinity``."""


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
    """A run with its latest metrics, its configuration and the facts about where it ran."""

    run: RunRow
    metrics: dict[str, Any]
    config: Any
    facts: dict[str, Any]


def run_row(info: RunInfo) -> RunRow:
    """What is shown of a run."""
    return RunRow(
        id=info.id,
        name=info.name,
        project=info.project,
        status=info.status,
        message=info.message,
        experiment=info.experiment,
        group=info.group,
        arm=info.arm,
        repeat=info.repeat,
        stage=info.stage,
        seed=info.seed,
        started=info.started,
        ended=info.ended,
        step=info.step,
        num_steps=info.num_steps,
        seconds_per_step=number(info.seconds_per_step),
        eta_seconds=number(info.eta_seconds),
        last_seen=info.last_seen,
        tags=list(info.tags),
        problems=list(info.problems),
        metrics=_headline(info.metrics),
    )


def run_details(info: RunInfo) -> RunDetails:
    """Everything about a run."""
    return RunDetails(run_row(info), clean(info.metrics), clean(info.config), clean(info.facts))


def number(value: Any) -> Number:
    """A number as JSON can hold it; None where it is none."""
    if not isinstance(value, int | float):
        return None
    held: float | str = clean(as_float(value))
    return held


def _headline(metrics: dict[str, Any]) -> dict[str, Number]:
    """The few metrics that tell most about a run."""
    shown = [
        name
        for name, value in metrics.items()
        if isinstance(value, int | float) and not name.startswith(_UNINTERESTING)
    ]
    ordered = sorted(shown, key=lambda name: name not in _FIRST)  # stable: otherwise as they were recorded
    return {name: number(metrics[name]) for name in ordered[:MOST_METRICS]}


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
