"""What the interface says about runs: which there are, one in full, their metrics' names, their sinks."""

import msgspec

from hookline.server.endpoint import RUN, Endpoint
from hookline.server.listing import Listing
from hookline.server.parameters import Parameter, Values
from hookline.server.run_rows import RunDetails, RunRow, run_details
from hookline.store.tables import IN_ORDER, ORDER

_TEXTS = "SELECT name, axis, count(*) AS texts FROM metrics WHERE text IS NOT NULL GROUP BY name, axis"
_TEXT_ROWS = f"""
SELECT run, name, axis, step, time, left(text, $most) AS text, length(text) AS characters, total
FROM (
    SELECT *,
        row_number() OVER (PARTITION BY run, name, axis ORDER BY step DESC, {ORDER} DESC) AS place,
        count(*) OVER (PARTITION BY run, name, axis) AS total
    FROM {IN_ORDER} WHERE text IS NOT NULL AND ($name IS NULL OR name = $name)
) WHERE place <= $limit ORDER BY name, step DESC, {ORDER} DESC, run, axis
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


ENDPOINTS = (
    Endpoint("/api/runs", "All runs, the latest first.", RunsReply, _runs),
    Endpoint("/api/run", "One run: its latest metrics, configuration and facts.", RunDetails, _run, (_ID,)),
    Endpoint("/api/metrics", "Which metrics some runs recorded.", MetricNames, _metrics, (RUN,)),
    Endpoint("/api/texts", "The latest texts of some runs, by metric.", Texts, _texts, (RUN, _NAME, _LATEST)),
    Endpoint("/api/sinks", "How the sinks of some runs stand.", Sinks, _sinks, (RUN,)),
)
