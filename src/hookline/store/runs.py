"""`runs`: the entry point to recorded runs: lists, filters and queries them.

runs = hl.runs("runs").filter(status="finished")
table = runs.metrics("loss").pandas()
"""

from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias, overload

from hookline._engine import notebook
from hookline._engine.checks import require_integer, require_number
from hookline._engine.defaults import ROOT, resolved
from hookline._engine.errors import OptionError, UnknownNameError, closest
from hookline._record.terminal import one_line, plural
from hookline.callbacks.monitoring import direction
from hookline.store.annotations import LABELS, Annotation, read_annotations
from hookline.store.bands import (
    Bands,
    aggregate_query,
    bands,
    check_chart_groups,
    group_of,
    group_order,
    group_text,
)
from hookline.store.code_comparison import CodeComparison, compare_code
from hookline.store.comparison import Comparison, compare_runs
from hookline.store.compression import CompressedRun, compress_runs, ended_before
from hookline.store.filters import Field, Filter, Missing, flattened, parse_field, parse_filter
from hookline.store.importance import Importance, importance
from hookline.store.index import BusyIndexError
from hookline.store.ingest import Ingested
from hookline.store.latest_samples import latest_samples
from hookline.store.media import MEDIA_NAMES, TABLES_OF_RUNS, StoredRecords, media_query
from hookline.store.outcomes import outcomes
from hookline.store.query import (
    LENGTH,
    Conditions,
    Names,
    Result,
    Steps,
    check_select,
    execute,
    require_package,
    reward_column,
    sample_conditions,
)
from hookline.store.run_columns import RunColumns
from hookline.store.run_info import RunInfo, metric_text
from hookline.store.run_summary import STALL_SECONDS, STATUSES, Liveness
from hookline.store.run_values import RunValues, check_fields, is_missing, sort_key
from hookline.store.sample_export import export_rows
from hookline.store.series import MAX_POINTS, Chart, Series, series
from hookline.store.store import Progress, Store, open_store
from hookline.store.tables import HOOK_ERRORS, HOOK_ORDER

Test: TypeAlias = Callable[[RunInfo], bool]
SQL_SECONDS = 30.0
_SHOWN_RUNS, _SHOWN_METRICS, _CHART_POINTS = 20, 3, 60
_LONG_READING_BYTES = 16 << 20
"""Reading journals of this size takes about a second."""
"""How many runs a notebook shows, how many metrics, and how many points of the chart of the first."""
SAMPLE_ORDERS = {
    "step": "step, time",
    "-step": "step DESC, time DESC",
    # The database sorts NaN as the largest number; here it comes last, with missing values.
    "reward": "isnan({reward}), {reward} NULLS LAST, step, time",
    "-reward": "isnan({reward}), {reward} DESC NULLS LAST, step, time",
    "advantage": "isnan(advantage), advantage NULLS LAST, step, time",
    "-advantage": "isnan(advantage), advantage DESC NULLS LAST, step, time",
    "length": f"{LENGTH}, step, time",
    "-length": f"{LENGTH} DESC, step, time",
    "version": "version NULLS LAST, step, time",
    "-version": "version DESC NULLS LAST, step, time",
    "lesson": "lesson NULLS LAST, step, time",
    "prompt": "prompt, step, time",
}


def runs(
    root: str | Path = ROOT,
    *,
    where: str | None = None,
    sort: str | None = None,
    stall_seconds: float = STALL_SECONDS,
) -> "Runs":
    """The recorded runs below a directory, the latest first.

    Args:
        root: Has a directory for each project or experiment, which has one for each run; by default that of
            ``HOOKLINE_ROOT``, or ``runs``.
        where: A filter, e.g. ``lr > 1e-4 and val/loss < 1.5``; see `Runs.filter`.
        sort: A field to sort by, e.g. ``min(val/loss)``; ``-`` before it sorts descending. See `Runs.sort`.
        stall_seconds: A run without progress for this long counts as stalled, unless its steps take longer.

    Raises:
        ConfigError: The directory does not exist.
        FilterError: The filter or the field cannot be understood.
        MissingExtraError: DuckDB is not installed.
    """
    require_number("stall_seconds", stall_seconds, above=0)
    found = Runs(open_store(resolved(root)), Liveness(stall_seconds))
    found = found if where is None else found.filter(where)
    return found if sort is None else found.sort(sort)


class Runs(Sequence[RunInfo]):
    """Runs of a store as of the last listing. Queries see everything recorded so far.

    Create one with `runs`. ``runs["demo/2026-11-15-brave-otter-3"]`` finds a run by its id, its directory's name, or
    its name if that is unique.
    """

    def __init__(self, store: Store, liveness: Liveness, tests: tuple[Test, ...] = ()) -> None:
        self._store, self._liveness, self._tests = store, liveness, tests
        self._infos: list[RunInfo] = []
        self._sort_by: tuple[Field, bool] | None = None
        # Here and not by the store: the queries import it.
        store.records = StoredRecords(store.root)
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
        shown = self._infos[:_SHOWN_RUNS]
        lines = [f"<{plural(len(self), 'run')} in {self._store.root}>"]
        lines += [f"  {one_line(info.id)}  {one_line(info.name)}  {info.status}  step {info.step:,}" for info in shown]
        left = len(self) - len(shown)
        return "\n".join([*lines, *([f"  and {left:,} more"] if left else [])])

    def _repr_html_(self) -> str:
        return notebook.display(self._html)

    def _html(self) -> str:
        shown = self._infos[:_SHOWN_RUNS]
        names = dict.fromkeys(name for info in shown for name in info.metrics if not name.startswith("hooks/"))
        metrics = list(names)[:_SHOWN_METRICS]
        rows = [
            (
                *map(notebook.text, (info.id, info.name, info.status, f"{info.step:,}")),
                *(metric_text(info.metrics.get(name, "")) for name in metrics),
                self._chart(info, metrics[0]) if metrics else "",
            )
            for info in shown
        ]
        columns = ("run", "name", "status", "step", *metrics, metrics[0] if metrics else "")
        left = len(self) - len(shown)
        return "".join(
            [
                notebook.note(f"{plural(len(self), 'run')} in {self._store.root}"),
                notebook.table(columns, rows, numbers=range(3, 4 + len(metrics))),
                *([notebook.note(f"{left:,} more runs are not shown.")] if left else ()),
                *(
                    notebook.note(f"{info.id}: {problem}", is_problem=True)
                    for info in shown
                    for problem in info.problems[:1]
                ),
            ]
        )

    def _chart(self, info: RunInfo, metric: str) -> str:
        try:
            lines = series(self._store, [info], Chart([metric], max_points=_CHART_POINTS))
        except Exception as error:  # one damaged run must not hide the others
            return notebook.note(f"{type(error).__name__}: {error}", is_problem=True)
        return notebook.line_chart(lines[0].x, lines[0].y, metric) if lines else ""

    def to_pandas(self) -> Any:
        """A pandas data frame with one row per run: id, name, status, step, settings and last values of metrics.

        Settings are called ``config.<name>``, metrics ``metric.<name>``, as in `filter`.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        require_package("pandas")
        pandas = import_module("pandas")

        rows = self._frame_rows()
        return pandas.DataFrame(rows, columns=list(dict.fromkeys([*_FRAME, *(key for row in rows for key in row)])))

    def to_polars(self) -> Any:
        """A polars data frame with the rows of `to_pandas`.

        Raises:
            MissingExtraError: polars is not installed.
        """
        require_package("polars")
        polars = import_module("polars")

        rows = self._frame_rows()
        names = dict.fromkeys([*_FRAME, *(key for row in rows for key in row)])
        # Not strict: a setting may be a number in one run and a text in another.
        return polars.DataFrame([polars.Series(name, [row.get(name) for row in rows], strict=False) for name in names])

    def _frame_rows(self) -> list[dict[str, Any]]:
        return [
            {name: getattr(info, name) for name in _FRAME}
            | {f"config.{name}": value for name, value in flattened(info.config)}
            | {f"metric.{name}": value for name, value in info.metrics.items()}
            for info in self._infos
        ]

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
        """Messages about the state of the index and the progress of reading, as sentences.

        They never mean that records are lost.
        """
        background = self._store.background
        progress = "" if background is None else background.note
        return [*self.index_notes, *([progress] if progress else [])]

    @property
    def index_notes(self) -> list[str]:
        """Messages about the state of the index, not about the runs."""
        index = self._store.index
        notes = [f"The index is kept in memory, for this process only: {index.note}."] if index.note else []
        if index.rebuild_reason:
            notes.append(f"The index was rebuilt from the journals: {index.rebuild_reason}. No records are lost.")
        return notes

    def refresh(self, *, seconds: float = -1.0) -> "Runs":
        """List the runs again with the same filters.

        Args:
            seconds: How long to wait while another thread reads a run; by default as long as it takes. After that, the
                last listing is kept.
        """
        try:
            listed = self._store.list_runs(self._liveness, seconds=seconds)
        except BusyIndexError:
            return self
        self._infos = self._sorted([info for info in listed if all(test(info) for test in self._tests)])
        return self

    def ingest(self, progress: Progress | None = None) -> Ingested:
        """Read the new records of these runs into the index, as a query would.

        Args:
            progress: Called with the number of runs read so far, and their total number.
        """
        return self._store.ingest(self._infos, progress)

    def compress(
        self,
        *,
        older_than_days: float | None = None,
        undo: bool = False,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> list[CompressedRun]:
        """Compress the journals of these runs with zstd, or unpack them. Everything still reads them.

        Runs that have not ended are left alone; their result has the reason in ``refused``.

        Args:
            older_than_days: Only runs that ended at least this many days ago.
            undo: Unpack compressed journals, byte for byte.
            dry_run: Only count.
            progress: Called with the number of runs done so far, and their total number.

        Raises:
            MissingExtraError: The package for zstd is not installed.
        """
        require_number("older_than_days", older_than_days, minimum=0, optional=True)
        infos = self._infos if older_than_days is None else ended_before(self._infos, older_than_days)
        return compress_runs(infos, undo=undo, dry_run=dry_run, progress=progress or (lambda done, total: None))

    def close(self) -> None:
        """Release the index for other processes, until this or another object on the same root is used again."""
        self._store.close()

    def filter(
        self,
        where: Test | str | None = None,
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
            where: A predicate on a run's `RunInfo`, or a filter over attributes, settings and metrics, e.g.
                ``lr > 1e-4 and min(val/loss) < 1.5 and tag = "ablation"``.

        Raises:
            FilterError: The filter cannot be understood, or no run has one of its fields.
            OptionError: There is no such status.
        """
        for each in _patterns(status):
            if "*" not in each and each not in STATUSES:
                raise OptionError(f"status={each!r}: there is no such status. {closest(each, STATUSES)}")
        wanted = {"id": id, "project": project, "experiment": experiment, "group": group, "arm": arm}
        wanted |= {"stage": stage, "status": status, "name": name}
        tests = []
        if isinstance(where, str):
            tests.append(self._filter_test(where))
        elif where is not None:
            tests.append(where)
        tests += [partial(_is_one_of, field, _patterns(names)) for field, names in wanted.items() if names is not None]
        tests += [partial(_has_tag, _patterns(tag))] if tag is not None else []
        return self._derived(tests, [info for info in self._infos if all(test(info) for test in tests)])

    def _derived(self, tests: Sequence[Test], infos: list[RunInfo]) -> "Runs":
        other = object.__new__(Runs)
        other._store, other._liveness, other._tests = self._store, self._liveness, (*self._tests, *tests)
        other._sort_by, other._infos = self._sort_by, infos
        return other

    def _filter_test(self, text: str) -> Test:
        wanted = parse_filter(text)
        check_fields(self._store, self._infos, wanted)
        return lambda info: wanted.matches(RunValues(self._store, info))

    def sort(self, by: str) -> "Runs":
        """The runs sorted by an attribute, a setting or a metric: ``sort("min(val/loss)")``.

        Runs without a value, or with NaN, come last.

        Args:
            by: A field as in `filter`; ``-`` before it sorts descending.

        Raises:
            FilterError: It is not a field, or no run has it.
        """
        if not isinstance(by, str):
            raise OptionError(f"sort={by!r}: give one field, e.g. 'min(loss)' or '-step'.")
        text = by.removeprefix("-")
        field = parse_field(text)
        check_fields(self._store, self._infos, Filter(text, Missing(field), (field,)))
        other = self.filter()
        other._sort_by = field, by.startswith("-")
        other._infos = other._sorted(other._infos)
        return other

    def _sorted(self, infos: list[RunInfo]) -> list[RunInfo]:
        if self._sort_by is None:
            return infos
        field, is_descending = self._sort_by
        values = [(RunValues(self._store, info).first(field), info) for info in infos]
        present = [pair for pair in values if not is_missing(pair[0])]
        present.sort(key=lambda pair: sort_key(pair[0]), reverse=is_descending)
        return [info for _, info in present] + [info for value, info in values if is_missing(value)]

    def values(self, fields: Sequence[str]) -> list[dict[str, Any]]:
        """A table of the runs with some of their attributes, settings and metrics, one dict per run.

        Args:
            fields: As in `filter`: ``["lr", "min(val/loss)", "duration"]``. A run without one has None.

        Raises:
            FilterError: One is not a field, or no run has it.
        """
        if isinstance(fields, str):
            raise OptionError(f"fields={fields!r}: give a list of fields, e.g. [{fields!r}].")
        parsed = {text: parse_field(text) for text in fields}
        for text, field in parsed.items():
            check_fields(self._store, self._infos, Filter(text, Missing(field), (field,)))
        rows = []
        for info in self._infos:
            values = RunValues(self._store, info)
            rows.append({"id": info.id, **{text: values.first(field) for text, field in parsed.items()}})
        return rows

    def importance(self, metric: str, *, mode: str | None = None) -> Importance:
        """How much each setting that differs between these runs matters for a metric, by PED-ANOVA.

        Completed runs are compared; one with NaN or infinity counts as the worst. At least ten are needed, and each
        setting is rated by itself: see `hookline.store.importance` for the method and its limits.

        Args:
            metric: A field as in `filter`: ``val/loss`` is its last value, ``min(val/loss)`` the best one.
            mode: Whether smaller (``"min"``) or larger (``"max"``) values are better; a guess from the name by default.

        Raises:
            FilterError: It is not a field, or no run has it.
            MissingExtraError: NumPy is not installed.
        """
        results = [row[metric] for row in self.values([metric])]
        return importance(self._infos, results, metric, direction(parse_field(metric).name, mode))

    def values_of(self, info: RunInfo) -> RunValues:
        """The values of one run, by field."""
        return RunValues(self._store, info)

    def columns(self) -> Iterator[tuple[RunInfo, RunColumns]]:
        """Each run with all its metrics, up to date with its journal."""
        return zip(self._infos, self._store.columns(self._infos), strict=True)

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
        """The names of the metrics: ``name, axis, runs, points, first_step, last_step, texts``."""
        return self._result(
            "SELECT name, axis, count(*) AS runs, sum(points)::BIGINT AS points, min(first_step) AS first_step, "
            "max(last_step) AS last_step, sum(texts)::BIGINT AS texts FROM metric_names "
            "GROUP BY name, axis ORDER BY name, axis",
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
        role: str | None = None,
        finish: str | None = None,
        versions: Steps = None,
        lengths: Steps = None,
        label: str | None = None,
        order: str = "step",
        limit: int | None = None,
        offset: int = 0,
    ) -> Result:
        """The samples that match all of these; `Result.total` is their number without the limit.

        Args:
            text: A text in the prompt, the completion or its messages, ignoring case.
            min_reward: A limit for the total, or for the sum of all rewards if no total was recorded.
            reward: Apply the limits, and the order by reward, to this reward function instead.
            role: The role of at least one of its messages, such as ``tool``.
            finish: Why the completion ended.
            versions: The first and the last version of the weights that generated it.
            lengths: The smallest and the largest number of tokens, or of characters where tokens were not counted.
            label: Its annotation, ``good`` or ``bad``; ``any`` for all with a label or a note.
            order: ``step``, ``reward``, ``advantage``, ``length`` or ``version``; ``-`` sorts descending. Also
                ``lesson`` and ``prompt``. NaN and missing values come last.
        """
        if order not in SAMPLE_ORDERS:
            raise OptionError(f"order={order!r}: samples cannot be sorted by that. {closest(order, SAMPLE_ORDERS)}")
        conditions = self.sample_conditions(
            text=text,
            lesson=lesson,
            group=group,
            min_reward=min_reward,
            max_reward=max_reward,
            reward=reward,
            steps=steps,
            axis=axis,
            role=role,
            finish=finish,
            versions=versions,
            lengths=lengths,
            label=label,
        )
        by = SAMPLE_ORDERS[order].format(reward=reward_column(reward))
        return self._result(f"SELECT * FROM samples {conditions}", conditions, _page(by, limit, offset))

    def sample_conditions(self, *, text: str | None = None, label: str | None = None, **given: Any) -> Conditions:
        """The conditions of `samples`, for queries of the page."""
        matches = self._store.search.find(text, self._infos) if text else None
        scanned: list[str] = []
        if matches is not None:
            scanned = [info.id for info in self._infos if info.id not in matches.runs and self._may_have_samples(info)]
        conditions = sample_conditions(text=text, matches=matches, scanned=scanned, **given)
        if label is not None:
            if label not in (*LABELS, "any"):
                raise OptionError(f"label={label!r:.80}: give 'good', 'bad' or 'any'.")
            labels = (label,) if label != "any" else ("", *LABELS)
            noted = ((info.id, read_annotations(info.directory)[0]) for info in self._infos)
            conditions.samples([(run, key) for run, own in noted for key, each in own.items() if each.label in labels])
        return conditions

    def sample_page(self, *, order: str, limit: int, offset: int = 0, **given: Any) -> tuple[int, list[dict[str, Any]]]:
        """The number of samples that match, and a page of them, with the arguments of `samples`."""
        if not given.get("text"):
            found = self.samples(order=order, limit=limit, offset=offset, **given)
            return found.total(), found.rows()
        # Texts are read once, for the number and for the page, and other columns for the page only.
        conditions = self.sample_conditions(**given)
        by = SAMPLE_ORDERS[order].format(reward=reward_column(given.get("reward")))
        narrow = f"SELECT run, id, count(*) OVER () AS total FROM samples {conditions}"
        rows = self._result(narrow, conditions, _page(by, limit, offset)).rows()
        if not rows:
            return (self._result(narrow, conditions).total() if offset else 0), []
        listed = Conditions()
        keys = [(row["run"], row["id"]) for row in rows]
        listed.samples(keys)
        wide = self._result(f"SELECT * FROM samples {listed}", listed)
        by_key = {(row["run"], row["id"]): row for row in wide}
        return rows[0]["total"], [by_key[key] for key in keys if key in by_key]

    def unread_samples(self, limit: int) -> list[dict[str, Any]]:
        """The latest samples from the ends of the journals, if reading all samples takes long.

        Empty if most records are read already, or come from an object store: then `samples` returns them at once, or as
        soon as they are copied.
        """
        unread = [info for info in self._infos if not self._store.is_read(info)]
        size = sum(self._store.journal_bytes(info) for info in unread)
        if not unread or size < _LONG_READING_BYTES or self._store.before_read is not None:
            return []
        with self._store.paused_background():
            return latest_samples(self._infos, limit)

    def _may_have_samples(self, info: RunInfo) -> bool:
        state = self._store.index.states.get(info.id)
        read = None if state is None else state.read
        return not info.is_over or read is None or bool(read.rows.get("samples"))

    def annotations(self) -> dict[tuple[str, str], Annotation]:
        """The annotations of samples, by the run and the id of the sample."""
        found = ((info.id, read_annotations(info.directory)[0]) for info in self._infos)
        return {(run, key): each for run, own in found for key, each in own.items()}

    def export_samples(self, format: str = "sft", *, limit: int | None = None, **given: Any) -> list[dict[str, Any]]:  # noqa: A002
        """Samples as training data: rows of JSON.

        Args:
            format: ``sft``: ``messages``, or ``prompt`` and ``completion``, without samples annotated as bad.
                ``preference``: ``prompt``, ``chosen`` and ``rejected`` for each group of completions, by annotations or
                else by reward.
            limit: The maximum number of samples that are read.
            given: The arguments of `samples`.
        """
        labels = {key: each.label for key, each in self.annotations().items()}
        return list(export_rows(self.samples(limit=limit, **given), format, labels))

    @property
    def search_note(self) -> str:
        """The reason why searches in samples are slow, as a sentence; empty if they are not."""
        return self._store.search.note

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

    def sample_uses(self, *, outcome: str | None = None, steps: Steps = None) -> Result:
        """How training steps used samples: ``run, writer, axis, step, time, rollout, outcome, tokens``."""
        conditions = Conditions()
        conditions.equal("outcome", outcome)
        conditions.steps(steps)
        return self._result(f"SELECT * FROM sample_uses {conditions} ORDER BY run, step, time, rollout", conditions)

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

    def media(
        self,
        names: Names = None,
        *,
        type: Names = None,  # noqa: A002 - the column's name
        axis: str | None = None,
        steps: Steps = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> Result:
        """Images, histograms, files, ...: ``run, writer, axis, step, time, name, index, type, blob, size, ...``.

        `RunInfo.media` returns those of one run as objects with their content.

        Args:
            type: ``image``, ``histogram``, ...; a ``table`` has one row here, and its rows in the table ``table_rows``.
        """
        page = _page("run, name, axis, step, time, index", limit, offset)
        return media_query(self._store, self._infos, names, type=type, axis=axis, steps=steps, page=page)

    def media_names(self) -> Result:
        """The names of media and tables: ``name, axis, type, runs, items, first_step, last_step``."""
        return self._result(MEDIA_NAMES, Conditions())

    def tables(self) -> Result:
        """The recorded tables: ``run, name, axis, table_id, step, time, columns, rows, last_step``.

        A name that was logged at several steps has several. `RunInfo.table` returns the rows.
        """
        return self._result(TABLES_OF_RUNS, Conditions())

    def console(
        self,
        *,
        text: str | None = None,
        stream: Names = None,
        rank: int | None = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> Result:
        """Lines that the processes printed, by time: ``run, rank, stream, time, step, text, level, logger``.

        Args:
            text: A text in the line, ignoring case.
            stream: ``stdout``, ``stderr``, ``log`` for records of `logging` and warnings, or ``note``.
            rank: Only the process of this rank.
        """
        conditions = Conditions()
        conditions.names("stream", stream)
        conditions.equal("rank", rank)
        conditions.text(["text"], text)
        return self._result(f"SELECT * FROM console {conditions}", conditions, _page("time", limit, offset))

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
        smoother: str = "ema",
        raw_points: int | None = None,
    ) -> list[Series]:
        """Metrics as lines of a chart, downsampled without losing a peak.

        Args:
            x: ``step``, ``time``, ``elapsed`` (seconds since the run started), or a metric recorded at the same steps.
            max_points: The maximum number of points of a line.
            between: The visible part of x, which gets all the points.
            smoothing: The weight of earlier values in an exponential moving average over all points, from 0 (none) to
                below 1.
            smoother: ``ema`` as in TensorBoard, or W&B's ``time_weighted``, which weights by the distance along x.
            raw_points: The maximum number of points of the raw line beside a smoothed one.
        """
        chart = Chart(metrics, x, axis, max_points, *between, smoothing, smoother, raw_points)
        return series(self._store, self._infos, chart)

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
        smoother: str = "ema",
    ) -> Bands:
        """A metric over groups of runs as bands of a chart: mean, spread and range along x, downsampled.

        Args:
            by: The attributes to group by, as in `aggregate`, ``tag``, ``host``, or settings: ``config.lr``.
            x: As in `series`. Over anything but steps, runs are interpolated between their points.
            between: The visible part of x.
            smoothing: As in `series`; the band is that of the smoothed runs.
            smoother: As in `series`.
        """
        chart = Chart(metric, x, axis, max_points, *between, smoothing, smoother)
        return bands(self._store, self._infos, chart, by)

    def groups(self, by: str | Sequence[str]) -> dict[str, tuple[str | None, ...]]:
        """The group of each run, as `bands` names it, by the run's id; group by group.

        Args:
            by: As in `bands`.
        """
        keys = check_chart_groups(by)
        found = [(info.id, group_of(self._store, info, keys)) for info in self._infos]
        return {run: group_text(group) for run, group in sorted(found, key=lambda each: group_order(each[1]))}

    def compare(self, *keys: str, baseline: str | None = None, everything: bool = False) -> Comparison:
        """Compare runs in settings, environment and packages, with their metrics side by side.

        Args:
            keys: Ids or names of two or more runs; without any, all of these runs.
            baseline: The run that the others are compared with; by default the first.
            everything: Include the settings, facts and packages that all runs share.

        Raises:
            OptionError: There are fewer than two runs, or one is given twice.
            UnknownNameError: There is no such run.
        """
        chosen = [self._by_id(key) for key in keys] if keys else list(self._infos)
        ids = [info.id for info in chosen]
        if len(ids) < 2 or len(set(ids)) < len(ids):
            raise OptionError(f"compare {' '.join(keys) or 'these runs'}: give two or more runs, each once.")
        base = ids[0] if baseline is None else self._by_id(baseline).id
        if base not in ids:
            raise OptionError(f"baseline={baseline!r}: give one of the compared runs. {closest(base, ids)}")
        wanted = set(ids)
        found = outcomes(self.filter(lambda info: info.id in wanted))
        compared = [(info, found[info.id]) for info in chosen]
        return compare_runs(compared, baseline=ids.index(base), everything=everything)

    def compare_code(self, before: str, after: str) -> CodeComparison:
        """Compare the code of two runs, given by ids or names.

        Runs of one commit are compared file by file; of different commits, their changes are.
        """
        return compare_code(self._by_id(before), self._by_id(after))

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
        """A query over these runs: one SELECT over their tables.

        They are ``runs``, ``metrics``, ``metric_names``, ``samples``, ``sample_uses``, ``rewards``, ``events``,
        ``hooks``, ``logs``, ``media``, ``table_rows``, ``blobs`` and ``console``.

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


_FRAME = ("id", "name", "status", "step")
"""The attributes of a run that are columns of a data frame."""


def only(found: Runs, infos: Sequence[RunInfo]) -> Runs:
    """Some of the runs, in the order of a listing, without testing each of the others as `Runs.filter` does."""
    wanted = {info.id: info for info in infos}
    ordered = sorted(wanted.values(), key=lambda info: (info.started or 0.0, info.id), reverse=True)
    return found._derived([lambda info: info.id in wanted], ordered)


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
