"""Endpoints for the sweep view: the settings that differ between runs with their results, and their importance.

Both are about the runs that the request names or that match its filter; without either, about the latest project in
which several runs have different settings. Values are sent by column, because all runs have the same columns.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import msgspec

from hookline.callbacks.monitoring import direction
from hookline.server.endpoint import Endpoint, Parameter, Values
from hookline.server.listing import HIDDEN_PREFIXES, PREFERRED, Listing
from hookline.server.table_api import MAX_CELL, Cell, cell
from hookline.store import RunInfo, Runs
from hookline.store.filters import ATTRIBUTES, flattened, parse_field, parse_filter
from hookline.store.importance import Mode, field_text, importance, varying_settings

MAX_RUNS = 5000
MAX_SETTINGS = 60
MAX_METRICS = 500
MAX_COLUMNS = 20
_SEVERAL = 3

_RUN = Parameter("run", "string", "Ids of runs.", repeated=True)
_WHERE = Parameter("where", "string", "A filter: lr > 1e-4 and val/loss < 1.5.")
_METRIC = Parameter("metric", "string", "A metric: val/loss or min(val/loss). By default the most common one.")
_MODE = Parameter("mode", "string", "Whether smaller or larger values are better.", choices=("min", "max"))
_COLUMN = Parameter("column", "string", "More fields whose values are wanted.", repeated=True)


class SweepColumn(msgspec.Struct):
    """The values of a setting or a metric, in the order of the runs; texts are cut.

    Attributes:
        kind: ``setting`` or ``metric``.
        is_exact: Whether a filter can name all the values: none was cut, or is a list.
    """

    field: str
    kind: str
    values: list[Cell]
    is_exact: bool


class Sweep(msgspec.Struct):
    """Runs with the settings that differ between them, the latest first.

    Attributes:
        project: The project that was chosen because the request selects no runs.
        metric: The metric that tells how good a run is; empty if no run has one.
        metrics: The metrics that runs have, the most common first.
        runs: The number of all selected runs, of which the first `MAX_RUNS` are sent.
        settings: The number of all settings that differ, of which the first `MAX_SETTINGS` are sent.
        columns: The settings, the metric, and the other wanted fields.
    """

    project: str | None
    metric: str
    mode: str
    metrics: list[str]
    runs: int
    settings: int
    ids: list[str]
    statuses: list[str]
    started: list[float | None]
    columns: list[SweepColumn]


class RatedSetting(msgspec.Struct):
    """A setting with its importance; see `hookline.store.importance`."""

    setting: str
    importance: float
    explained: float
    p_value: float
    correlation: float | None
    values: int
    missing: int


class SettingRatings(msgspec.Struct):
    """The settings, the most important first."""

    metric: str
    mode: str
    settings: list[RatedSetting]
    runs: int
    best: int
    diverged: int
    left_out: int
    problem: str
    note: str


def _selected(listing: Listing, values: Values) -> tuple[Runs, str | None]:
    """The runs, and the project that was chosen if the request selects none."""
    runs = listing.now().runs
    if values["run"]:
        wanted = set(values["run"])
        return runs.filter(lambda info: info.id in wanted), None
    where = values["where"]
    # Archived runs are hidden unless the filter asks for them: archived = true.
    if where is None or all(each.name != "archived" for each in parse_filter(where).fields):
        runs = runs.filter(lambda info: not info.archived)
    if where is not None:
        return runs.filter(where), None
    project = _latest_sweep(runs)
    return runs.filter(lambda info: info.project == project), project


def _latest_sweep(runs: Iterable[RunInfo]) -> str | None:
    """The latest project in which several runs have different settings; otherwise the latest one."""
    projects: dict[str, list[RunInfo]] = {}
    for info in runs:
        projects.setdefault(info.project, []).append(info)
    for project, infos in projects.items():
        if len(infos) >= _SEVERAL and any(info.config != infos[0].config for info in infos):
            return project
    return next(iter(projects), None)


def _metric_fields(infos: Sequence[RunInfo]) -> list[str]:
    """The metrics of runs as a filter names them: the most common first, those about the machine last."""
    counts = Counter(name for info in infos for name, value in info.metrics.items() if isinstance(value, int | float))
    taken = {*ATTRIBUTES, *(name for info in infos for name, _ in flattened(info.config))}
    taken.update(name for info in infos for name in info.summary)
    places = {name: place for place, name in enumerate(PREFERRED)}

    def order(name: str) -> tuple[bool, int, int]:
        return name.startswith(HIDDEN_PREFIXES), -counts[name], places.get(name, len(places))

    texts = [field_text("metric", name, taken) for name in sorted(counts, key=order)[:MAX_METRICS]]
    return [text for text in texts if text is not None and len(text) <= MAX_CELL]


def _sweep(listing: Listing, values: Values) -> Sweep:
    runs, project = _selected(listing, values)
    infos = runs[:MAX_RUNS]
    metrics = _metric_fields(infos)
    metric = values["metric"] or next(iter(metrics), "")
    settings = varying_settings(infos)
    sent = dict(list(settings.items())[:MAX_SETTINGS])
    columns = [_column(name, "setting", own) for name, own in sent.items()]
    for text in dict.fromkeys([*([metric] if metric else []), *values["column"][:MAX_COLUMNS]]):
        if text not in sent:
            field = parse_field(text)
            columns.append(_column(text, "metric", [runs.values_of(info).first(field) for info in infos]))
    return Sweep(
        project=project,
        metric=metric,
        mode=_mode(metric, values),
        metrics=metrics,
        runs=len(runs),
        settings=len(settings),
        ids=[info.id for info in infos],
        statuses=[info.status for info in infos],
        started=[info.started for info in infos],
        columns=columns,
    )


def _mode(metric: str, values: Values) -> Mode:
    return direction(parse_field(metric).name if metric else None, values["mode"])


def _column(field: str, kind: str, found: Sequence[Any]) -> SweepColumn:
    texts = [value for value in found if isinstance(value, str)]
    is_exact = all(len(text) <= MAX_CELL and text[:1] not in "[{" for text in texts)
    return SweepColumn(field, kind, [cell([] if value is None else [value]) for value in found], is_exact)


def _importance(listing: Listing, values: Values) -> SettingRatings:
    runs, _ = _selected(listing, values)
    infos = runs[:MAX_RUNS]
    metric = values["metric"] or next(iter(_metric_fields(infos)), "")
    field = parse_field(metric) if metric else None
    results = [None if field is None else runs.values_of(info).first(field) for info in infos]
    found = importance(infos, results, metric, _mode(metric, values))
    rated = [RatedSetting(**each) for each in found.rows()]
    counts = found.runs, found.best, found.diverged, found.left_out
    return SettingRatings(found.metric, found.mode, rated[:MAX_SETTINGS], *counts, found.problem, found.note)


def _version(listing: Listing, values: Values) -> Hashable:
    return listing.now().version


ENDPOINTS = (
    Endpoint(
        "/api/sweep",
        "Runs with the settings that differ between them, and a metric.",
        Sweep,
        _sweep,
        (_RUN, _WHERE, _METRIC, _MODE, _COLUMN),
        _version,
        is_slow=True,
    ),
    Endpoint(
        "/api/importance",
        "The importance of settings for a metric.",
        SettingRatings,
        _importance,
        (_RUN, _WHERE, _METRIC, _MODE),
        _version,
        is_slow=True,
    ),
)
