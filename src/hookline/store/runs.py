"""`runs`: the entry point to recorded runs: lists, filters and queries them.

runs = hl.runs("runs").filter(status="finished")
table = runs.metrics("loss").pandas()
"""

from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, overload

from hookline._engine.checks import require_integer, require_number
from hookline._engine.errors import OptionError, UnknownNameError, closest
from hookline.store.bands import Bands, aggregate_query, bands
from hookline.store.ingest import Ingested
from hookline.store.query import (
    Conditions,
    Names,
    Result,
    Steps,
    check_select,
    execute,
    sample_conditions,
)
from hookline.store.run_info import RunInfo
from hookline.store.run_summary import STALL_SECONDS, STATUSES, Liveness
from hookline.store.series import MAX_POINTS, Chart, Series, series
from hookline.store.store import Progress, Store, open_store
from hookline.store.tables import HOOK_ERRORS, HOOK_ORDER

Test: TypeAlias = Callable[[RunInfo], bool]
SQL_SECONDS = 30.0
_ORDERS = {
    "step": "step, time",
    "-step": "step DESC, time DESC",
    # The database sorts NaN as the largest number; here it comes last, with missing values.
    "reward": "isnan(reward), reward NULLS LAST, step, time",
    "-reward": "isnan(reward), reward DESC NULLS LAST, step, time",
    "advantage": "isnan(advantage), advantage NULLS LAST, step, time",
    "-advantage": "isnan(advantage), advantage DESC NULLS LAST, step, time",
}


def runs(root: str | Path = "runs", *, stall_seconds: float = STALL_SECONDS) -> "Runs":
    """The recorded runs below a directory, the latest first.

    Args:
        root: Has a directory for each project or experiment, which has one for each run.
        stall_seconds: A run without progress for this long counts as stalled, unless its steps take longer.

    Raises:
        ConfigError: The directory does not exist.
        MissingExtraError: DuckDB is not installed.
    """
    require_number("stall_seconds", stall_seconds, above=0)
    return Runs(open_store(root), Liveness(stall_seconds))


class Runs(Sequence[RunInfo]):
    """Runs of a store as of the last listing. Queries see everything recorded so far.

    Create one with `runs`. ``runs["demo/2026-11-15-brave-otter-3"]`` finds a run by its id, its directory's name, or
    its name if that is unique.
    """

    def __init__(self, store: Store, liveness: Liveness, tests: tuple[Test, ...] = ()) -> None:
        self._store, self._liveness, self._tests = store, liveness, tests
        self._infos: list[RunInfo] = []
        self.refresh()

    @overload
    def __getitem__(self, key: int | str) -> RunInfo: ...
    @overload
    def __getitem__(self, key: slice) -> list[RunInfo]: ...
    def __getitem__(self, key: int | str | slice) -> RunInfo | list[RunInfo]:
        return self._by_id(key) if isinstance(key, str) else self._infos[key]

    def __len__(self) -> int:
        return len(self._infos)

    def __iter__(self) -> Iterator[RunInfo]:
        return iter(self._infos)

    def __contains__(self, key: object) -> bool:
        return any(key in (info, info.id) for info in self._infos)

    def __repr__(self) -> str:
        return f"<{len(self)} runs in {self._store.root}>"

    @property
    def root(self) -> Path:
        """The directory with the runs."""
        return self._store.root

    @property
    def note(self) -> str:
        """Why the index is in memory, for this process only; empty if it is on disk."""
        return self._store.index.note

    @property
    def notes(self) -> list[str]:
        """Messages about the state of the index, as sentences. They never mean that records are lost."""
        index = self._store.index
        notes = [f"The index is kept in memory, for this process only: {index.note}."] if index.note else []
        if index.rebuild_reason:
            notes.append(f"The index was rebuilt from the journals: {index.rebuild_reason}. No records are lost.")
        return notes

    def refresh(self) -> "Runs":
        """List the runs again with the same filters."""
        listed = self._store.list_runs(self._liveness)
        self._infos = [info for info in listed if all(test(info) for test in self._tests)]
        return self

    def ingest(self, progress: Progress | None = None) -> Ingested:
        """Read the new records of these runs into the index, as a query would.

        Args:
            progress: Called with the number of runs read so far, and their total number.
        """
        return self._store.ingest(self._infos, progress)

    def close(self) -> None:
        """Release the index for other processes, until this or another object on the same root is used again."""
        self._store.close()

    def filter(
        self,
        where: Test | None = None,
        *,
        id: Names = None,  # noqa: A002 - the attribute's name
        project: Names = None,
        experiment: Names = None,
        group: Names = None,
        arm: Names = None,
        stage: Names = None,
        status: Names = None,
        name: Names = None,
        tag: Names = None,
    ) -> "Runs":
        """The runs that match all of these; ``*`` matches anything.

        Args:
            where: A predicate on a run's `RunInfo`.

        Raises:
            OptionError: There is no such status.
        """
        for each in _patterns(status):
            if "*" not in each and each not in STATUSES:
                raise OptionError(f"status={each!r}: there is no such status. {closest(each, STATUSES)}")
        wanted = {"id": id, "project": project, "experiment": experiment, "group": group, "arm": arm}
        wanted |= {"stage": stage, "status": status, "name": name}
        tests = [where] if where is not None else []
        tests += [partial(_is_one_of, field, _patterns(names)) for field, names in wanted.items() if names is not None]
        tests += [partial(_has_tag, _patterns(tag))] if tag is not None else []
        other = object.__new__(Runs)
        other._store, other._liveness, other._tests = self._store, self._liveness, (*self._tests, *tests)
        other._infos = [info for info in self._infos if all(test(info) for test in tests)]
        return other

    def latest(self) -> RunInfo:
        """The run that was started last.

        Raises:
            UnknownNameError: There are no runs.
        """
        if not self._infos:
            raise UnknownNameError(f"There are no matching runs in {self.root}.")
        return self._infos[0]

    def metrics(self, names: Names = None, *, axis: str | None = None, steps: Steps = None) -> Result:
        """The logged metrics, one row per value: ``run, writer, axis, step, time, name, value, text``.

        Args:
            names: Names of metrics; ``*`` matches anything.
            steps: The first and the last step.
        """
        conditions = Conditions()
        conditions.names("name", names)
        conditions.equal("axis", axis)
        conditions.steps(steps)
        return self._result(f"SELECT * FROM metrics {conditions} ORDER BY run, name, axis, step, time", conditions)

    def metric_names(self) -> Result:
        """The names of the metrics: ``name, axis, runs, points, first_step, last_step``."""
        return self._result(
            "SELECT name, axis, count(DISTINCT run) AS runs, count(*) AS points, min(step) AS first_step, "
            "max(step) AS last_step FROM metrics GROUP BY name, axis ORDER BY name, axis",
            Conditions(),
        )

    def samples(
        self,
        *,
        text: str | None = None,
        lesson: Names = None,
        group: str | None = None,
        min_reward: float | None = None,
        max_reward: float | None = None,
        reward: str | None = None,
        steps: Steps = None,
        axis: str | None = None,
        order: str = "step",
        limit: int | None = None,
        offset: int = 0,
    ) -> Result:
        """The samples that match all of these; `Result.total` is their number without the limit.

        Args:
            text: A text in the prompt or the completion, ignoring case.
            min_reward: A limit for the total, or for the sum of all rewards if no total was recorded.
            reward: Apply the limits to this reward function instead.
            order: ``step``, ``reward`` or ``advantage``; ``-`` sorts descending. NaN and missing values come last.
        """
        if order not in _ORDERS:
            raise OptionError(f"order={order!r}: samples cannot be sorted by that. {closest(order, _ORDERS)}")
        conditions = sample_conditions(
            text=text,
            lesson=lesson,
            group=group,
            min_reward=min_reward,
            max_reward=max_reward,
            reward=reward,
            steps=steps,
            axis=axis,
        )
        return self._result(f"SELECT * FROM samples {conditions}", conditions, _page(_ORDERS[order], limit, offset))

    def events(self, names: Names = None, *, kind: str | None = None, steps: Steps = None) -> Result:
        """Events and statuses by time: ``run, writer, kind, time, step, name, message, data``.

        Args:
            names: Names of events, or statuses.
            kind: ``event`` or ``status``.
        """
        conditions = Conditions()
        conditions.names("name", names)
        conditions.equal("kind", kind)
        conditions.steps(steps)
        return self._result(f"SELECT * FROM events {conditions} ORDER BY time", conditions)

    def rewards(self, names: Names = None, *, steps: Steps = None) -> Result:
        """The values of reward functions: ``run, writer, step, time, name, position, value, sample``."""
        conditions = Conditions()
        conditions.names("name", names)
        conditions.steps(steps)
        return self._result(f"SELECT * FROM rewards {conditions} ORDER BY run, name, step, time, position", conditions)

    def hooks(self, *, history: bool = False) -> Result:
        """The cost of each subscriber, highest first: ``run, writer, name, calls, total_ms, ..., step, time``.

        The final report of a run also has ``disabled`` and the ``share`` of the run's time. Counts start again with
        each session: after a resume the last reports cover the time since then.

        Args:
            history: Return every report by time, instead of the last one of each subscriber.
        """
        last = "QUALIFY row_number() OVER (PARTITION BY run, writer, name ORDER BY time DESC) = 1"
        order = "time, name" if history else "run, total_ms DESC"
        return self._result(f"SELECT * FROM hooks {'' if history else last} ORDER BY {order}", Conditions())

    def hook_errors(self) -> Result:
        """Failed subscribers: ``run, writer, name, errors, disabled, error, moment, step, time`` of the last error."""
        return self._result(HOOK_ERRORS, Conditions())

    def hook_order(self) -> Result:
        """The last recorded order per moment: ``run, writer, moments, left_out, versions, step, time``.

        ``moments`` is a JSON object of lists of names; ``versions`` is the number of recorded orders.
        """
        return self._result(HOOK_ORDER, Conditions())

    def logs(
        self,
        *,
        text: str | None = None,
        level: Names = None,
        logger: Names = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> Result:
        """Log lines by time: ``run, writer, time, level, logger, message, step``.

        Args:
            text: A text in the message, ignoring case.
        """
        conditions = Conditions()
        conditions.names("level", level)
        conditions.names("logger", logger)
        conditions.text(["message"], text)
        return self._result(f"SELECT * FROM logs {conditions}", conditions, _page("time", limit, offset))

    def aggregate(
        self,
        metric: str,
        by: str | Sequence[str] = "arm",
        *,
        axis: str | None = None,
        steps: Steps = None,
        ddof: int = 1,
    ) -> Result:
        """A metric over groups of runs, per step: ``<by>, axis, step, mean, std, min, max, n, not_finite``.

        Only the ``n`` runs with a finite value at a step count; ``not_finite`` counts the others.

        Args:
            by: The attributes to group by: ``arm``, ``group``, ``experiment``, ``stage``, ``name``, ...
            ddof: 1 gives the standard deviation of a sample (none for a single run), 0 that of a population.
        """
        conditions = Conditions()
        conditions.equal("name", metric)
        conditions.equal("axis", axis)
        conditions.steps(steps)
        conditions.add("value IS NOT NULL")
        return self._result(aggregate_query(by, ddof, str(conditions)), conditions)

    def series(
        self,
        metrics: Names,
        *,
        x: str = "step",
        axis: str | None = None,
        max_points: int = MAX_POINTS,
        between: tuple[float | None, float | None] = (None, None),
        smoothing: float = 0.0,
    ) -> list[Series]:
        """Metrics as lines of a chart, downsampled without losing a peak.

        Args:
            x: ``step``, ``time``, ``elapsed`` (seconds since the run started), or a metric recorded at the same steps.
            max_points: The maximum number of points of a line.
            between: The visible part of x, which gets all the points.
            smoothing: The weight of earlier values in an exponential moving average over all points, from 0 (none) to
                below 1, as in TensorBoard.
        """
        return series(self._store, self._infos, Chart(metrics, x, axis, max_points, *between, smoothing))

    def bands(
        self,
        metric: str,
        by: str | Sequence[str] = "arm",
        *,
        x: str = "step",
        axis: str | None = None,
        max_points: int = MAX_POINTS,
        between: tuple[float | None, float | None] = (None, None),
        smoothing: float = 0.0,
    ) -> Bands:
        """A metric over groups of runs as bands of a chart: mean, spread and range along x, downsampled.

        Args:
            by: The attributes to group by, as in `aggregate`.
            x: As in `series`. Over anything but steps, runs are interpolated between their points.
            between: The visible part of x.
            smoothing: As in `series`; the band is that of the smoothed runs.
        """
        return bands(self._store, self._infos, Chart(metric, x, axis, max_points, *between, smoothing), by)

    def read(self, key: str) -> RunInfo:
        """A run after reading all its records, so that `RunInfo.problems` is complete."""
        info = self._by_id(key)
        self._store.ingest([info])
        return self._store.refresh(info, self._liveness)

    def sql(
        self,
        query: str,
        parameters: Sequence[Any] | dict[str, Any] | None = None,
        *,
        limit: int | None = None,
        timeout_seconds: float | None = SQL_SECONDS,
    ) -> Result:
        """A query over these runs: one SELECT over ``runs, metrics, samples, rewards, events, hooks, logs``.

        It cannot change anything, nor read anything else. It runs when rows of the result are requested.

        Args:
            parameters: A value for each ``?`` or ``$name`` in it.
            limit: The maximum number of rows.

        Raises:
            QueryError: It is not a single SELECT. When it runs: it fails.
            QueryTimeoutError: When it runs: it takes too long.
        """
        require_number("timeout_seconds", timeout_seconds, above=0, optional=True)
        select = check_select(query)
        limited = select if limit is None else f"SELECT * FROM (\n{select}\n) LIMIT {int(limit)}"
        run_query = partial(execute, self._store, self._infos, parameters=parameters, timeout_seconds=timeout_seconds)
        return Result(run_query, limited, unlimited=select)

    def _result(self, query: str, conditions: Conditions, page: str = "") -> Result:
        run_query = partial(execute, self._store, self._infos, parameters=conditions.parameters)
        return Result(run_query, f"{query} {page}".strip(), unlimited=query)

    def _by_id(self, key: str) -> RunInfo:
        exact = [info for info in self._infos if info.id == key]
        found = exact or [info for info in self._infos if info.directory.name == key]
        found = found or [info for info in self._infos if info.name == key]
        if len(found) == 1:
            return found[0]
        if found:
            ids = ", ".join(info.id for info in found)
            raise UnknownNameError(f"Several runs are called {key!r}: {ids}. Give an id.")
        known = {name for info in self._infos for name in (info.id, info.name)}
        raise UnknownNameError(f"There is no run {key!r} in {self.root}. {closest(key, known)}")


def _patterns(names: Names) -> list[str]:
    return [names] if isinstance(names, str) else list(names or ())


def _matches(value: object, patterns: list[str]) -> bool:
    text = str(value)
    # Only `*` is a wildcard: the other special characters of fnmatch are escaped.
    escaped = (pattern.replace("[", "[[]").replace("?", "[?]") for pattern in patterns)
    return text in patterns or any(fnmatchcase(text, pattern) for pattern in escaped)


def _is_one_of(field: str, patterns: list[str], info: RunInfo) -> bool:
    value = getattr(info, field)
    return value is not None and _matches(value, patterns)


def _has_tag(patterns: list[str], info: RunInfo) -> bool:
    return any(_matches(tag, patterns) for tag in info.tags)


def _page(order: str, limit: int | None, offset: int) -> str:
    require_integer("limit", limit, minimum=0, optional=True)
    require_integer("offset", offset, minimum=0)
    shown = "" if limit is None else f" LIMIT {limit}"
    return f"ORDER BY {order}{shown}{f' OFFSET {offset}' if offset else ''}"
