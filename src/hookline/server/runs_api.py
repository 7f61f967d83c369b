"""What the interface says about runs: which there are, one in full, their metrics' names, their sinks.

Lines and bands of charts: thinned out here, with their peaks kept, so that a browser draws what it can show.
"""

import msgspec

from hookline.server.endpoint import METRIC, RUN, Endpoint
from hookline.server.listing import Listing, RunDetails, RunRow, run_details
from hookline.server.parameters import Parameter, Values
from hookline.store.bands import BY
from hookline.store.tables import ORDER_COLUMN, ORDERED_METRICS

_TEXTS = "SELECT name, axis, count(*) AS texts FROM metrics WHERE text IS NOT NULL GROUP BY name, axis"
_TEXT_ROWS = f"""
SELECT run, name, axis, step, time, left(text, $most) AS text, length(text) AS characters, total
FROM (
    SELECT *,
        row_number() OVER (PARTITION BY run, name, axis ORDER BY step DESC, {ORDER_COLUMN} DESC) AS place,
        count(*) OVER (PARTITION BY run, name, axis) AS total
    FROM {ORDERED_METRICS} WHERE text IS NOT NULL AND ($name IS NULL OR name = $name)
) WHERE place <= $limit ORDER BY name, step DESC, {ORDER_COLUMN} DESC, run, axis
"""  # noqa: S608 - our own words
MOST_CHARACTERS = 2000
"""How much of a text is sent: the page shows lists of them."""
MOST_TEXTS = 2000
_NAME = Parameter("name", "string", "The name of a metric; all by default.")
_LATEST = Parameter("limit", "integer", "How many texts a metric of a run has at most.", default=20, low=1, high=500)
_ID = Parameter("id", "string", "The id of a run, as /api/runs gives it.", required=True)


class RunsReply(msgspec.Struct):
    """All runs, the latest first."""

    root: str
    note: str
    notes: list[str]
    runs: list[RunRow]


class MetricName(msgspec.Struct):
    """A metric that was recorded, on one axis; so many of its points are texts, which no chart shows."""

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
    """A text that was recorded as a metric, cut to 2,000 characters.

    Attributes:
        characters: How many it has in full.
        total: How many texts the run recorded of this metric on this axis.
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
    """How a sink of a run stands."""

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


def _run(listing: Listing, values: Values) -> RunDetails:
    return run_details(listing.find(lambda listed: listed.runs.read(values["id"])))


def _metrics(listing: Listing, values: Values) -> MetricNames:
    runs = listing.some(values["run"])
    texts = {(row["name"], row["axis"]): row["texts"] for row in runs.sql(_TEXTS)}
    return MetricNames(
        [MetricName(**row, texts=texts.get((row["name"], row["axis"]), 0)) for row in runs.metric_names()]
    )


def _texts(listing: Listing, values: Values) -> Texts:
    given = {"name": values["name"], "limit": values["limit"], "most": MOST_CHARACTERS}
    found = listing.some(values["run"]).sql(_TEXT_ROWS, given, limit=MOST_TEXTS)
    return Texts([TextRow(**row) for row in found])


def _sinks(listing: Listing, values: Values) -> Sinks:
    rows = [
        SinkRow(info.id, sink.name, sink.status, sink.delivered, sink.behind_bytes, sink.error)
        for info in listing.some(values["run"])
        for sink in info.sinks()
    ]
    return Sinks(rows)


RUN_ENDPOINTS = (
    Endpoint("/api/runs", "All runs, the latest first.", RunsReply, _runs),
    Endpoint("/api/run", "One run: its latest metrics, configuration and facts.", RunDetails, _run, (_ID,)),
    Endpoint("/api/metrics", "Which metrics some runs recorded.", MetricNames, _metrics, (RUN,)),
    Endpoint("/api/texts", "The latest texts of some runs, by metric.", Texts, _texts, (RUN, _NAME, _LATEST)),
    Endpoint("/api/sinks", "How the sinks of some runs stand.", Sinks, _sinks, (RUN,)),
)


_POINTS = Parameter("max_points", "integer", "How many points a line has at most.", default=1000, low=4, high=20_000)
_AXIS = Parameter("axis", "string", "Only what was recorded on this axis: train, eval, rollout, ...")
_X = Parameter(
    "x",
    "string",
    "step, time, elapsed (seconds since a run began), or a metric that was recorded at the same steps.",
    default="step",
)
_FIRST_X = Parameter("first_x", "number", "Where the part of x begins that is wanted, in what x is.")
_LAST_X = Parameter("last_x", "number", "Where it ends.")
_BY = Parameter("by", "string", "What runs are grouped by; several make finer groups.", repeated=True, choices=BY)
_SMOOTHING = Parameter(
    "smoothing",
    "number",
    "The weight of the past in an exponential moving average over all points; 0 is none.",
    default=0.0,
    low=0,
    high=0.9999,
)
_DRAWN = (RUN, METRIC, _X, _AXIS, _POINTS, _FIRST_X, _LAST_X, _SMOOTHING)


class Line(msgspec.Struct):
    """A metric of a run. Values that are not finite cannot be drawn; they are left out and counted.

    The smoothed line is there where smoothing was asked for; its points need not be those of the plain line.
    """

    run: str
    name: str
    axis: str
    points: int
    not_finite: int
    x: list[float]
    y: list[float]
    smoothed_x: list[float]
    smoothed_y: list[float]


class Lines(msgspec.Struct):
    """A metric as lines."""

    lines: list[Line]


class Band(msgspec.Struct):
    """Mean, standard deviation and range of a metric over the runs of a group along x; null where there is none.

    They are those of the finite values, which ``n`` runs have; the others are counted. With smoothing, each run is
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
    """A metric as bands; where that makes no sense there are none, and the problem says why."""

    bands: list[Band]
    problem: str


def _series(listing: Listing, values: Values) -> Lines:
    found = listing.some(values["run"]).series(
        [values["name"]],
        x=values["x"],
        axis=values["axis"],
        max_points=values["max_points"],
        between=(values["first_x"], values["last_x"]),
        smoothing=values["smoothing"],
    )
    columns = ("run", "name", "axis", "points", "not_finite", "x", "y", "smoothed_x", "smoothed_y")
    return Lines([Line(**{name: getattr(each, name) for name in columns}) for each in found])


def _bands(listing: Listing, values: Values) -> Bands:
    found = listing.some(values["run"]).bands(
        values["name"],
        values["by"] or "arm",
        x=values["x"],
        axis=values["axis"],
        max_points=values["max_points"],
        between=(values["first_x"], values["last_x"]),
        smoothing=values["smoothing"],
    )
    columns = ("axis", "points", "not_finite", "x", "mean", "std", "min", "max", "n")
    bands = [Band(key=list(band.key), **{name: getattr(band, name) for name in columns}) for band in found.bands]
    return Bands(bands, found.problem)


CHART_ENDPOINTS = (
    Endpoint("/api/series", "A metric of some runs as lines.", Lines, _series, _DRAWN),
    Endpoint("/api/bands", "A metric over the repeats of groups of runs.", Bands, _bands, (*_DRAWN, _BY)),
)
