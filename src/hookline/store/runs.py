"""`runs`: the way into a store: which runs there are, and what they recorded.

import hookline as hl

runs = hl.runs("runs").filter(status="finished")
table = runs.metrics("loss").pandas()
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, overload

from hookline._engine.errors import OptionError, UnknownNameError, closest
from hookline.store.bands import Bands, aggregate_query, bands
from hookline.store.ingest import Ingested
from hookline.store.query import (
    Conditions,
    Names,
    Result,
    Steps,
    check_seconds,
    check_select,
    executed,
    sample_conditions,
)
from hookline.store.run_info import RunInfo
from hookline.store.run_summary import STALL_SECONDS, WORDS, Liveness
from hookline.store.series import MAX_POINTS, Chart, Series, series
from hookline.store.store import Progress, Store, open_store
from hookline.store.tables import HOOK_ERRORS, HOOK_ORDER

Test: TypeAlias = Callable[[RunInfo], bool]
SQL_SECONDS = 30.0
_ORDERS = {
    "step": "step, time",
    "-step": "step DESC, time DESC",
    # the database counts NaN as the largest number: it comes behind all others, with what is missing
    "reward": "isnan(reward), reward NULLS LAST, step, time",
    "-reward": "isnan(reward), reward DESC NULLS LAST, step, time",
    "advantage": "isnan(advantage), advantage NULLS LAST, step, time",
    "-advantage": "isnan(advantage), advantage DESC NULLS LAST, step, time",
}


def runs(root: str | Path = "runs", *, stall_seconds: float = STALL_SECONDS) -> "Runs":
    """The runs that were recorded below a directory, the latest first.

    Args:
        root: Has a directory for each project or experiment, with one for each run.
        stall_seconds: After how long without progress a run counts as stalled, unless its steps take longer.

    Raises:
        ConfigError: There is no such directory.
        MissingExtraError: DuckDB is not installed.
    """
    check_seconds("stall_seconds", stall_seconds)
    return Runs(open_store(root), Liveness(stall_seconds))


class Runs(Sequence[RunInfo]):
    """Some runs of a store, as they were when they were listed; queries see what was recorded up to now.

    Use `runs` to get one. ``runs["demo/2026-11-15-brave-otter-3"]`` is a run by its id, by the end of it, or by
    its name, where no other has that.
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
        """Where the runs lie."""
        return self._store.root

    @property
    def note(self) -> str:
        """Why the index is kept in memory for this process alone; empty where it is not."""
        return self._store.index.note

    @property
    def notes(self) -> list[str]:
        """What there is to say about the index, in sentences; nothing of it concerns what was recorded."""
        index = self._store.index
        private = [f"The index is kept in memory, for this process alone: {index.note}."] if index.note else []
        anew = f"The index was made anew from the journals: {index.made_anew}. Nothing that was recorded is lost."
        return private + ([anew] if index.made_anew else [])

    def refresh(self) -> "Runs":
        """List the runs again, with the same filters: new ones, and how the others are now."""
        listed = self._store.list(self._liveness)
        self._infos = [info for info in listed if all(test(info) for test in self._tests)]
        return self

    def ingest(self, progress: Progress | None = None) -> Ingested:
        """Read all that is new in these runs, as a query would, and say how much it was.

        Args:
            progress: Called with how many runs are read, and how many there are.
        """
        return self._store.take_in(self._infos, progress)

    def close(self) -> None:
        """Let another process have the index, until the next use of this object, or of another on the same root."""
        self._store.close()

    def filter(
        self,
        where: Test | None = None,
        *,
        id: Names = None,  # noqa: A002 - what it is called
        project: Names = None,
        experiment: Names = None,
        group: Names = None,
        arm: Names = None,
        stage: Names = None,
        status: Names = None,
        name: Names = None,
        tag: Names = None,
    ) -> "Runs":
        """Those runs to which all of this applies; ``*`` stands for anything.

        Args:
            where: A function of a run's `RunInfo`.
        """
        _check_words(status)
        wanted = {"id": id, "project": project, "experiment": experiment, "group": group, "arm": arm}
        wanted |= {"stage": stage, "status": status, "name": name}
        tests = [partial(_is_one_of, field, _patterns(names)) for field, names in wanted.items() if names is not None]
        tests += [partial(_has_tag, _patterns(tag))] if tag is not None else []
        return self._with(*([where] if where is not None else []), *tests)

    def latest(self) -> RunInfo:
        """The run that was started last.

        Raises:
            UnknownNameError: There is none.
        """
        if not self._infos:
            raise UnknownNameError(f"There are no such runs in {self.root}.")
        return self._infos[0]

    def metrics(self, names: Names = None, *, axis: str | None = None, steps: Steps = None) -> Result:
        """What was logged, a row a value: ``run, writer, axis, step, time, name, value, text``.

        Args:
            names: Names of metrics; ``*`` stands for anything.
            steps: The first and the last step.
        """
        conditions = Conditions()
        conditions.names("name", names)
        conditions.equal("axis", axis)
        conditions.steps(steps)
        return self._result(f"SELECT * FROM metrics {conditions} ORDER BY run, name, axis, step, time", conditions)

    def metric_names(self) -> Result:
        """Which metrics there are: ``name, axis, runs, points, first_step, last_step``."""
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
        """Samples to which all of this applies; `Result.total` says how many there are without the limit.

        Args:
            text: Is in the prompt or the completion, in whatever case.
            min_reward: Of the total, or of the sum of all rewards where no total was recorded.
            reward: The reward function that the limits are for instead.
            order: ``step``, ``reward`` or ``advantage``; with ``-`` the largest first. NaN and nothing come last.
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
            names: Of events, or words of statuses.
            kind: ``event`` or ``status``.
        """
        conditions = Conditions()
        conditions.names("name", names)
        conditions.equal("kind", kind)
        conditions.steps(steps)
        return self._result(f"SELECT * FROM events {conditions} ORDER BY time", conditions)

    def rewards(self, names: Names = None, *, steps: Steps = None) -> Result:
        """What reward functions gave: ``run, writer, step, time, name, position, value, sample``."""
        conditions = Conditions()
        conditions.names("name", names)
        conditions.steps(steps)
        return self._result(f"SELECT * FROM rewards {conditions} ORDER BY run, name, step, time, position", conditions)

    def hooks(self, *, history: bool = False) -> Result:
        """What each subscriber cost, the dearest first: ``run, writer, name, calls, total_ms, ..., step, time``.

        The report of a run's end also says which are ``disabled``, and the ``share`` of the run's time that each took.
        Counts begin anew with each session of a run: after a resume the last reports are those since it.

        Args:
            history: Every report by time, instead of the last of each subscriber.
        """
        last = "QUALIFY row_number() OVER (PARTITION BY run, writer, name ORDER BY time DESC) = 1"
        order = "time, name" if history else "run, total_ms DESC"
        return self._result(f"SELECT * FROM hooks {'' if history else last} ORDER BY {order}", Conditions())

    def hook_errors(self) -> Result:
        """Subscribers that failed: ``run, writer, name, errors, disabled, error, moment, step, time``, of the last."""
        return self._result(HOOK_ERRORS, Conditions())

    def hook_order(self) -> Result:
        """The order per moment, as last recorded: ``run, writer, moments, left_out, versions, step, time``.

        ``moments`` is a JSON object of lists of names; ``versions`` counts how often an order was recorded.
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
            text: Is in the message, in whatever case.
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
        """A metric over runs, step by step: ``<by>, axis, step, mean, std, min, max, n, not_finite``.

        All are over the ``n`` runs whose value is finite there; ``not_finite`` counts the others.

        Args:
            by: What runs are grouped by: ``arm``, ``group``, ``experiment``, ``stage``, ``name``, ...; or several.
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
        """Metrics as lines of a chart, each with at most so many points, in which no peak is lost.

        Args:
            x: ``step``, ``time``, ``elapsed`` (seconds since the run began), or a metric that was recorded at the same
                steps.
            between: The part of x that is wanted, which then has all the points to itself.
            smoothing: The weight of the past in an exponential moving average over all points, from 0 (none) and below
                1, as in TensorBoard.
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
        """A metric over groups of runs as bands of a chart: mean, spread and range along x, thinned out.

        Args:
            by: What runs are grouped by, as in `aggregate`.
            x: As in `series`. Over anything but steps runs are compared between their points.
            between: The part of x that is wanted.
            smoothing: As in `series`; the band is that of the smoothed runs.
        """
        return bands(self._store, self._infos, Chart(metric, x, axis, max_points, *between, smoothing), by)

    def read(self, key: str) -> RunInfo:
        """A run after all that it recorded was read, so that `RunInfo.problems` says all that is missing."""
        info = self._by_id(key)
        self._store.take_in([info])
        return self._store.look(info, self._liveness)

    def sql(
        self,
        query: str,
        parameters: Sequence[Any] | dict[str, Any] | None = None,
        *,
        limit: int | None = None,
        timeout_seconds: float | None = SQL_SECONDS,
    ) -> Result:
        """A query over these runs: one SELECT over ``runs, metrics, samples, rewards, events, hooks, logs``.

        It can change nothing, and read nothing else. It is run when the result is asked for its rows.

        Args:
            parameters: For each ``?`` or ``$name`` in it.
            limit: How many rows there are at most.

        Raises:
            QueryError: It is something else. When it is run: it fails.
            QueryTimeoutError: When it is run: it takes too long.
        """
        check_seconds("timeout_seconds", timeout_seconds)
        select = check_select(query)
        limited = select if limit is None else f"SELECT * FROM (\n{select}\n) LIMIT {int(limit)}"
        execute = partial(executed, self._store, self._infos, parameters=parameters, timeout_seconds=timeout_seconds)
        return Result(execute, limited, unlimited=select)

    def _result(self, query: str, conditions: Conditions, page: str = "") -> Result:
        execute = partial(executed, self._store, self._infos, parameters=conditions.parameters)
        return Result(execute, f"{query} {page}".strip(), unlimited=query)

    def _with(self, *tests: Test) -> "Runs":
        other = object.__new__(Runs)
        other._store, other._liveness, other._tests = self._store, self._liveness, (*self._tests, *tests)
        other._infos = [info for info in self._infos if all(test(info) for test in tests)]
        return other

    def _by_id(self, key: str) -> RunInfo:
        exact = [info for info in self._infos if info.id == key]
        found = exact or [info for info in self._infos if info.directory.name == key]
        found = found or [info for info in self._infos if info.name == key]
        if len(found) == 1:
            return found[0]
        if found:
            ids = ", ".join(info.id for info in found)
            raise UnknownNameError(f"There are several runs {key!r}: {ids}. Give the id of one.")
        known = {name for info in self._infos for name in (info.id, info.name)}
        raise UnknownNameError(f"There is no run {key!r} in {self.root}. {closest(key, known)}")


def _patterns(names: Names) -> list[str]:
    return [names] if isinstance(names, str) else list(names or ())


def _matches(value: object, patterns: Iterable[str]) -> bool:
    text = str(value)
    return any(text == pattern or fnmatchcase(text, _with_stars_only(pattern)) for pattern in patterns)


def _with_stars_only(pattern: str) -> str:
    return pattern.replace("[", "[[]").replace("?", "[?]")


def _is_one_of(field: str, patterns: list[str], info: RunInfo) -> bool:
    value = getattr(info, field)
    return value is not None and _matches(value, patterns)


def _has_tag(patterns: list[str], info: RunInfo) -> bool:
    return any(_matches(tag, patterns) for tag in info.tags)


def _check_words(status: Names) -> None:
    for word in _patterns(status):
        if "*" not in word and word not in WORDS:
            raise OptionError(f"status={word!r}: there is no such status. {closest(word, WORDS)}")


def _page(order: str, limit: int | None, offset: int) -> str:
    for name, value in (("limit", limit), ("offset", offset)):
        if value is not None and (not isinstance(value, int) or value < 0):
            raise OptionError(f"{name}={value!r}: give a whole number from 0.")
    shown = "" if limit is None else f" LIMIT {limit}"
    return f"ORDER BY {order}{shown}{f' OFFSET {offset}' if offset else ''}"
