"""`Listing`: the list of runs shared by all viewers, refreshed at a limited rate.

A hundred viewers cost as much as one, because runs are listed once for all of them. An unchanged run keeps its row
object in the next listing, so changes are found without comparing values. `RunRow` is a row of the page's table,
`RunDetails` everything else about a run.

`Listing.version` tells whether anything was recorded since an answer was computed.
"""

import contextlib
import hashlib
import math
import os
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from hookline._engine.errors import UnknownNameError
from hookline._record.reader import JOURNAL
from hookline._record.records import clean
from hookline._record.segment import PlainFile, end_of_data
from hookline.server.tokens import ALL_PROJECTS, ProjectScope
from hookline.store import RunInfo, Runs
from hookline.store.columns import as_float
from hookline.store.runs import only

MAX_METRICS = 6
MAX_TEXT, MAX_TEXTS = 1000, 100
"""The length of a name, a message or a tag in a row, and the number of tags."""
HIDDEN_PREFIXES = ("hooks/", "system/", "memory/", "throughput/")
PREFERRED = ("val/loss", "loss", "reward", "accuracy", "val/accuracy")

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
    notes: str
    archived: bool
    problems: list[str]
    metrics: dict[str, Number]


class RunDetails(msgspec.Struct, frozen=True):
    """A run with its notes, its latest metrics, its configuration and the facts of its ``run.json``."""

    run: RunRow
    notes: str
    metrics: dict[str, Any]
    config: Any
    facts: dict[str, Any]


def run_row(info: RunInfo) -> RunRow:
    """The row of a run in the table; whatever its description holds, a row is short, because all viewers get it."""
    # Made again for every run that grows, at each listing.
    values = {name: getattr(info, name) for name in RunRow.__struct_fields__}
    values["seconds_per_step"], values["eta_seconds"] = number(info.seconds_per_step), number(info.eta_seconds)
    for name, value in values.items():
        if value.__class__ is str and len(value) > MAX_TEXT and name != "id":
            values[name] = value[:MAX_TEXT]
    values["tags"] = [text[:MAX_TEXT] for text in info.tags[:MAX_TEXTS]]
    values["problems"] = [text[:MAX_TEXT] for text in info.problems[:MAX_TEXTS]]
    values["metrics"] = _headline(info.metrics)
    return RunRow(**values)


def run_details(info: RunInfo) -> RunDetails:
    """All details of a run."""
    return RunDetails(run_row(info), info.notes, clean(info.metrics), clean(info.config), clean(info.facts))


def number(value: Any) -> Number:
    """A number for JSON; None if it is not a number."""
    if value.__class__ is float and math.isfinite(value):
        return float(value)
    if not isinstance(value, int | float):
        return None
    held: float | str = clean(as_float(value))
    return held


def _headline(metrics: dict[str, Any]) -> dict[str, Number]:
    """The most important metrics of a run."""
    shown = [
        name
        for name, value in metrics.items()
        if isinstance(value, int | float) and len(name) <= MAX_TEXT and not name.startswith(HIDDEN_PREFIXES)
    ]
    first = [name for name in shown if name in PREFERRED]
    ordered = [*first, *(name for name in shown if name not in PREFERRED)][:MAX_METRICS]
    return {name: number(metrics[name]) for name in ordered}


MAX_AGE_SECONDS = 0.5
REST_FACTOR = 4
"""A listing stays valid for this many times its duration, so that many runs do not keep a core busy."""
MAX_REST_SECONDS = 5.0
"""An upper limit: one slow listing must not freeze the page."""
BUSY_SECONDS = 0.15
"""How long a listing waits for a thread that reads a run; after that, the last one is used, within the same limit."""
MAX_SCOPES = 256
"""How many scopes keep their part of the listing."""

_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True)
class ListedRuns:
    """The runs at one time, the latest first, their table rows by id, and the store's notes.

    Attributes:
        infos: The runs by id.
        generation: Changes whenever a row or a note changes.
        version: Changes whenever anything about a run changes, whether its row shows it or not.
    """

    runs: Runs
    rows: dict[str, RunRow] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    infos: dict[str, RunInfo] = field(default_factory=dict)
    generation: int = 0
    version: int = 0

    def next(self, runs: Runs) -> "ListedRuns":
        """The listing after this one; unchanged runs keep their rows."""
        rows: dict[str, RunRow] = {}
        infos: dict[str, RunInfo] = {}
        is_same = len(runs) == len(self.rows) and runs.notes == self.notes
        is_equal = len(runs) == len(self.rows)
        for info in runs:
            old = self.rows.get(info.id)
            # Most runs are over: where the store returns the same object, not even a row has to be made to compare.
            if old is None or self.infos.get(info.id) is not info:
                is_equal = is_equal and self.infos.get(info.id) == info
                row = run_row(info)
                if row != old:
                    old, is_same = row, False
            rows[info.id], infos[info.id] = old, info
        version = self.version if is_equal else self.version + 1
        # Also the order, which a listing shows.
        if is_same and list(rows) == list(self.rows):
            return ListedRuns(runs.filter(), self.rows, self.notes, infos, self.generation, version)
        return ListedRuns(runs.filter(), rows, runs.notes, infos, self.generation + 1, version)


class Listing:
    """Lists the runs of a store for all requests.

    Args:
        clock: A monotonic clock in seconds.

    Attributes:
        scope: The projects that are listed; a shared answer is shared by requests of an equal scope only.
    """

    scope: ProjectScope = ALL_PROJECTS

    def __init__(
        self, runs: Runs, *, max_age_seconds: float = MAX_AGE_SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._runs, self._max_age_seconds, self._clock = runs, max_age_seconds, clock
        self._lock, self._scoped_lock = threading.Lock(), threading.Lock()
        self._listed = ListedRuns(runs).next(runs)
        self._until = self._next_search = clock() + max_age_seconds
        self._scoped: OrderedDict[ProjectScope, ScopedListing] = OrderedDict()

    def scoped(self, scope: ProjectScope) -> "Listing":
        """The same listing, of some projects only: nothing shows that there are others."""
        if scope.is_all:
            return self
        with self._scoped_lock:
            found = self._scoped.get(scope) or ScopedListing(self, scope)
            self._scoped[scope] = found
            self._scoped.move_to_end(scope)
            if len(self._scoped) > MAX_SCOPES:
                self._scoped.popitem(last=False)
        return found

    def fresh(self) -> ListedRuns | None:
        """The last listing without waiting; None if it is outdated."""
        # Without the lock, which is held while runs are listed: the event loop asks. `_list` sets the time last.
        return self._listed if self._clock() < self._until else None

    @property
    def fresh_seconds(self) -> float:
        """How long the last listing stays the current one; 0 if it is outdated."""
        return max(0.0, self._until - self._clock())

    def now(self) -> ListedRuns:
        """The current listing, at most a moment old."""
        outdated = self._clock() - self._until
        if outdated < 0:
            return self._listed
        # One thread lists. Others do not wait for it but use the last listing, unless that is really old: with many
        # runs, every chart would wait for a listing that it does not need.
        if self._lock.acquire(blocking=outdated > MAX_REST_SECONDS):
            try:
                if self._clock() >= self._until:
                    self._list(seconds=-1.0 if outdated > MAX_REST_SECONDS else BUSY_SECONDS)
            finally:
                self._lock.release()
        return self._listed

    def version(self, ids: Collection[str]) -> Hashable:
        """A version of the records and the description of some runs: another one if anything was recorded since.

        It costs a few system calls per run, and does not depend on when the runs were listed last: a record that was
        written before this call changes it.

        Raises:
            UnknownNameError: There is no such run.
        """

        def search(listed: ListedRuns) -> list[RunInfo]:
            return [listed.infos.get(each) or listed.runs[each] for each in ids]

        parts = [(_description(info), _journal_version(info.directory / JOURNAL)) for info in self.find(search)]
        return hashlib.blake2b(msgspec.msgpack.encode(parts), digest_size=16).digest()

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
            return only(listed.runs, [listed.infos.get(each) or listed.runs[each] for each in ids])

        return self.find(search)

    def _list(self, *, seconds: float = -1.0) -> None:
        start = self._clock()
        self._runs.refresh(seconds=seconds)
        self._listed = self._listed.next(self._runs)
        now = self._clock()
        took = now - start
        self._until = now + max(self._max_age_seconds, min(MAX_REST_SECONDS, REST_FACTOR * took))
        self._next_search = now + max(self._max_age_seconds, min(MAX_REST_SECONDS, took))


class ScopedListing(Listing):
    """A listing of the runs of some projects. What it returns has no other runs in it, nor in its errors.

    Everything that an endpoint knows about runs comes from the listing it is given, so this is the one place where
    the projects of a token are enforced for reading.
    """

    def __init__(self, whole: Listing, scope: ProjectScope) -> None:
        self._whole, self.scope = whole, scope
        self._filtered: tuple[ListedRuns, ListedRuns] | None = None

    def scoped(self, scope: ProjectScope) -> Listing:
        """As of the whole listing, if the scope is the same."""
        if scope != self.scope:
            raise ValueError("A scoped listing has one scope.")
        return self

    def fresh(self) -> ListedRuns | None:
        """See `Listing.fresh`."""
        listed = self._whole.fresh()
        return None if listed is None else self._filter(listed)

    def now(self) -> ListedRuns:
        """See `Listing.now`."""
        return self._filter(self._whole.now())

    def find(self, search: Callable[[ListedRuns], _Found]) -> _Found:
        """See `Listing.find`."""
        return self._whole.find(lambda listed: search(self._filter(listed)))

    def _filter(self, listed: ListedRuns) -> ListedRuns:
        # Viewers with the same scope share the result. Two threads may filter at the same time: both results are right.
        known = self._filtered
        if known is None or known[0] is not listed:
            projects = {info.project for info in listed.runs}
            allowed = {project for project in projects if self.scope.allows(project)}
            runs = listed.runs.filter(lambda info: info.project in allowed)
            rows = {id_: row for id_, row in listed.rows.items() if row.project in allowed}
            infos = {id_: listed.infos[id_] for id_ in rows}
            notes = listed.runs.index_notes  # the progress of reading counts runs of all projects
            known = self._filtered = (
                listed,
                ListedRuns(runs, rows, notes, infos, listed.generation, listed.version),
            )
        return known[1]


class UnlistedRuns(Listing):
    """Stands for the listing in a server whose query process lists the runs: it has a scope, and no runs."""

    def __init__(self, scope: ProjectScope = ALL_PROJECTS) -> None:
        self.scope = scope

    def scoped(self, scope: ProjectScope) -> Listing:
        """See `Listing.scoped`."""
        return UnlistedRuns(scope)


def _description(info: RunInfo) -> tuple[Any, ...]:
    """The attributes of a run that charts and tables show or group by."""
    names = (info.id, info.name, info.project, info.experiment, info.group, info.arm, info.stage, info.status)
    return (*names, info.repeat, info.seed, info.started)


_CHECKED_BYTES = 16 << 10
"""Threads of a training process fill their lines in any order, but none lags behind the others by more than this."""


def _journal_version(folder: Path) -> list[tuple[Any, ...]]:
    """The state of each journal file: its identity, size and time and, of a file in use, the end of its data."""
    found = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if ".jsonl" in entry.name:  # compressed ones, too
                    with contextlib.suppress(OSError):
                        stat = entry.stat(follow_symlinks=False)
                        data = _end_in_use(entry.path, stat.st_size) if entry.name.endswith(".jsonl") else ()
                        found.append((entry.name, stat.st_ino, stat.st_size, stat.st_mtime_ns, *data))
    except OSError:
        return []
    return sorted(found)


def _end_in_use(path: str, size: int) -> tuple[int, ...]:
    """The end of the data in a preallocated file, and a checksum of what is before it; empty for another file.

    Such a file is written through memory, which changes neither its size nor its time.
    """
    if not size:
        return ()
    # It may have been replaced by a link or a pipe since it was listed.
    with PlainFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)) as file:
        if file.pread(1, size - 1) != b"\0":
            return ()
        end = end_of_data(file, 0, size)
        start = max(0, end - _CHECKED_BYTES)
        return end, zlib.crc32(file.pread(end - start, start))


def json_object(text: str | None) -> dict[str, Any]:
    """Decode a JSON column: empty for no text; anything but an object becomes its ``value``."""
    found = msgspec.json.decode(text) if text else {}
    return found if isinstance(found, dict) else {"value": found}
