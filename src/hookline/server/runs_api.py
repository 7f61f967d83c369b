"""Endpoints for runs, their metric names, texts and sinks, and for chart lines and bands.

Lines and bands are downsampled here with their peaks kept, so a browser gets no more points than it can show.
"""

import contextlib
from typing import Any

import msgspec

from hookline._record.blobs import BlobError
from hookline._record.environment import (
    Environment,
    RankEnvironment,
    read_environments,
    read_rank_environments,
)
from hookline._record.source_code import read_diff
from hookline.server.endpoint import METRIC, RUN, Endpoint, Parameter, Values, records_endpoint, version_of_runs
from hookline.server.listing import Listing, RunDetails, RunRow, run_details
from hookline.store import Series
from hookline.store.series import SMOOTHERS
from hookline.store.tables import ORDER_COLUMN, ORDERED_METRICS

_TEXT_ROWS = f"""
SELECT run, name, axis, step, time, left(text, $most) AS text, length(text) AS characters, total
FROM (
    SELECT *,
        row_number() OVER (PARTITION BY run, name, axis ORDER BY step DESC, {ORDER_COLUMN} DESC) AS rank,
        count(*) OVER (PARTITION BY run, name, axis) AS total
    FROM {ORDERED_METRICS} WHERE text IS NOT NULL AND ($name IS NULL OR name = $name)
) WHERE rank <= $limit ORDER BY name, step DESC, {ORDER_COLUMN} DESC, run, axis
"""  # noqa: S608 - constants only
MAX_CHARACTERS = 2000
"""How much of a text is sent; the page shows lists of them."""
MAX_TEXTS = 2000
MAX_DIFF = 200_000
MAX_WHOLE_DIFF = 16 << 20
_NAME = Parameter("name", "string", "The name of a metric; all by default.")
_LATEST = Parameter("limit", "integer", "The maximum number of texts per metric and run.", default=20, low=1, high=500)
_ID = Parameter("id", "string", "The id of a run, as returned by /api/runs.", required=True)
_CHARACTERS = Parameter(
    "diff_characters",
    "integer",
    "How many characters of the diff are sent.",
    default=MAX_DIFF,
    low=0,
    high=MAX_WHOLE_DIFF,
)


class RunsReply(msgspec.Struct):
    """All runs, the latest first."""

    root: str
    note: str
    notes: list[str]
    runs: list[RunRow]


class MetricName(msgspec.Struct):
    """A recorded metric on one axis; ``texts`` of its points are texts, which no chart shows."""

    name: str
    axis: str
    runs: int
    points: int
    first_step: int
    last_step: int
    texts: int


class MetricNames(msgspec.Struct):
    """The metrics of some runs."""

    metrics: list[MetricName]


class TextRow(msgspec.Struct):
    """A text recorded as a metric, cut to 2,000 characters.

    Attributes:
        characters: The length of the whole text.
        total: The number of texts of this metric of the run on this axis.
    """

    run: str
    name: str
    axis: str
    step: int
    time: float
    text: str
    characters: int
    total: int


class Texts(msgspec.Struct):
    """Texts by metric, the latest of each first."""

    texts: list[TextRow]


class SinkRow(msgspec.Struct):
    """The state of a run's sink."""

    run: str
    name: str
    status: str
    delivered: int
    behind_bytes: int
    error: str


class Sinks(msgspec.Struct):
    """The sinks of some runs."""

    sinks: list[SinkRow]


def _runs(listing: Listing, values: Values) -> RunsReply:
    listed = listing.now()
    return RunsReply(listed.runs.root.name, listed.runs.note, listed.notes, list(listed.rows.values()))


def _listing_version(listing: Listing, values: Values) -> int:
    return listing.now().generation


def _run(listing: Listing, values: Values) -> RunDetails:
    return run_details(listing.find(lambda listed: listed.runs.read(values["id"])))


def _metrics(listing: Listing, values: Values) -> MetricNames:
    return MetricNames([MetricName(**row) for row in listing.some(values["run"]).metric_names()])


def _texts(listing: Listing, values: Values) -> Texts:
    given = {"name": values["name"], "limit": values["limit"], "most": MAX_CHARACTERS}
    found = listing.some(values["run"]).sql(_TEXT_ROWS, given, limit=MAX_TEXTS)
    return Texts([TextRow(**row) for row in found])


def _sinks(listing: Listing, values: Values) -> Sinks:
    rows = [
        SinkRow(info.id, sink.name, sink.status, sink.delivered, sink.behind_bytes, sink.error)
        for info in listing.some(values["run"])
        for sink in info.sinks()
    ]
    return Sinks(rows)


class EnvironmentReply(msgspec.Struct):
    """The environment of each session of a run, the latest last, and the changes of the latest against its commit.

    Attributes:
        ranks: What differs on other ranks than zero.
        diff_characters: The length of the whole diff, of which as many characters are sent as requested.
    """

    sessions: list[Environment]
    ranks: list[RankEnvironment]
    diff: str
    diff_characters: int


def _environment(listing: Listing, values: Values) -> EnvironmentReply:
    directory = listing.find(lambda listed: listed.runs.read(values["id"])).directory
    sessions = read_environments(directory)
    diff = ""
    with contextlib.suppress(BlobError):  # not received yet
        diff = read_diff(directory, sessions[-1].git).decode("utf-8", "replace") if sessions else ""
    return EnvironmentReply(sessions, read_rank_environments(directory), diff[: values["diff_characters"]], len(diff))


RUN_ENDPOINTS = (
    Endpoint("/api/runs", "All runs, the latest first.", RunsReply, _runs, version=_listing_version),
    Endpoint("/api/run", "One run: its latest metrics, configuration and facts.", RunDetails, _run, (_ID,)),
    Endpoint(
        "/api/environment", "The environment of a run's sessions.", EnvironmentReply, _environment, (_ID, _CHARACTERS)
    ),
    Endpoint("/api/metrics", "The metrics of some runs.", MetricNames, _metrics, (RUN,), version_of_runs),
    records_endpoint("/api/texts", "The latest texts of some runs, by metric.", Texts, _texts, (RUN, _NAME, _LATEST)),
    Endpoint("/api/sinks", "The state of the sinks of some runs.", Sinks, _sinks, (RUN,)),
)


_POINTS = Parameter("max_points", "integer", "The maximum points per line.", default=1000, low=4, high=20_000)
_AXIS = Parameter("axis", "string", "Only records on this axis: train, eval, rollout, ...")
_X = Parameter(
    "x",
    "string",
    "step, time, elapsed (seconds since the run started), or a metric recorded at the same steps.",
    default="step",
)
_FIRST_X = Parameter("first_x", "number", "The start of the visible part of x, in the unit of x.")
_LAST_X = Parameter("last_x", "number", "The end of the visible part of x.")
_BY = Parameter(
    "by",
    "string",
    "What to group runs by: arm, group, experiment, stage, name, project, tag, ..., or settings: config.lr.",
    repeated=True,
)
_SMOOTHING = Parameter(
    "smoothing",
    "number",
    "The weight of earlier values in an exponential moving average over all points; 0 is none.",
    default=0.0,
    low=0,
    high=0.9999,
)
_SMOOTHER = Parameter(
    "smoother",
    "string",
    "The moving average: over points as in TensorBoard, or weighted by the distance along x as in W&B.",
    default="ema",
    choices=SMOOTHERS,
)
_RAW_POINTS = Parameter(
    "raw_points",
    "integer",
    "The maximum points of the raw line beside a smoothed one; max_points by default.",
    low=4,
    high=20_000,
)
_CHART = (RUN, METRIC, _X, _AXIS, _POINTS, _FIRST_X, _LAST_X, _SMOOTHING, _SMOOTHER)


class Lines(msgspec.Struct):
    """A metric as lines."""

    lines: list[Series]


class Band(msgspec.Struct):
    """Mean, standard deviation and range of a metric over a group of runs along x; null for missing values.

    Only the finite values of ``n`` runs count; the others are counted in ``not_finite``. With smoothing, each run is
    smoothed first.
    """

    key: list[str | None]
    axis: str
    points: int
    not_finite: int
    x: list[float]
    mean: list[float | None]
    std: list[float | None]
    min: list[float | None]
    max: list[float | None]
    n: list[int]


class Bands(msgspec.Struct):
    """A metric as bands; if there are none, ``problem`` gives the reason."""

    bands: list[Band]
    problem: str


class RunGroup(msgspec.Struct):
    """The values that a run shares with the runs of its group; null where it has none."""

    run: str
    key: list[str | None]


class RunGroups(msgspec.Struct):
    """Runs by group, in the order of the bands."""

    groups: list[RunGroup]


def _run_groups(listing: Listing, values: Values) -> RunGroups:
    found = listing.some(values["run"]).groups(values["by"] or "arm")
    return RunGroups([RunGroup(run, list(key)) for run, key in found.items()])


def _chart_options(values: Values) -> dict[str, Any]:
    options = {name: values[name] for name in ("x", "axis", "max_points", "smoothing", "smoother")}
    return options | {"between": (values["first_x"], values["last_x"])}


def _series(listing: Listing, values: Values) -> Lines:
    options = _chart_options(values) | {"raw_points": values["raw_points"]}
    found = listing.some(values["run"]).series([values["name"]], **options)
    return Lines(found)


def _bands(listing: Listing, values: Values) -> Bands:
    found = listing.some(values["run"]).bands(values["name"], values["by"] or "arm", **_chart_options(values))
    columns = ("axis", "points", "not_finite", "x", "mean", "std", "min", "max", "n")
    bands = [Band(key=list(band.key), **{name: getattr(band, name) for name in columns}) for band in found.bands]
    return Bands(bands, found.problem)


CHART_ENDPOINTS = (
    Endpoint("/api/series", "A metric of some runs as lines.", Lines, _series, (*_CHART, _RAW_POINTS), version_of_runs),
    Endpoint(
        "/api/bands", "A metric over the repeats of groups of runs.", Bands, _bands, (*_CHART, _BY), version_of_runs
    ),
    Endpoint("/api/run_groups", "The group of each run.", RunGroups, _run_groups, (RUN, _BY), version_of_runs),
)
