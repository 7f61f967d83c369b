"""What the interface says about runs: which there are, one in full, their metrics' names, their sinks."""

import msgspec

from hookline.server.endpoint import RUN, Endpoint
from hookline.server.listing import Listing
from hookline.server.parameters import Parameter, Values
from hookline.server.run_rows import RunDetails, RunRow, run_details

_TEXTS = "SELECT name, axis, count(*) AS texts FROM metrics WHERE text IS NOT NULL GROUP BY name, axis"
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
    Endpoint("/api/sinks", "How the sinks of some runs stand.", Sinks, _sinks, (RUN,)),
)
