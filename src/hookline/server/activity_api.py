"""Endpoints for the events, log lines, hook costs and hook order of runs."""

from typing import Any

import msgspec

from hookline._record.records import BOOKKEEPING, clean
from hookline.server.endpoint import RUN, Parameter, Values, records_endpoint
from hookline.server.listing import Listing, Number, json_object
from hookline.store.index import sql_quote

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")

_NAME = Parameter("name", "string", "Only events or statuses of these names.", repeated=True)
_LIMIT = Parameter("limit", "integer", "The maximum number of the latest entries.", default=500, low=1, high=5000)
_OFFSET = Parameter("offset", "integer", "How many of the latest entries to skip.", default=0, low=0)
_LEVEL = Parameter("level", "string", "The minimum level.", choices=LEVELS)
_TEXT = Parameter("text", "string", "A text in the message, ignoring case.")
_SHOWN = f"(kind <> 'status' OR name <> 'heartbeat') AND name NOT IN ({', '.join(map(sql_quote, sorted(BOOKKEEPING)))})"
_HISTORY = Parameter(
    "history",
    "string",
    "Return every report by time, not only the last one.",
    default="no",
    choices=("no", "yes"),
)


class EventRow(msgspec.Struct):
    """An event or a status."""

    run: str
    kind: str
    time: float
    step: int | None
    name: str
    message: str
    data: dict[str, Any]


class Events(msgspec.Struct):
    """Events and statuses by time, without heartbeats and without reports about subscribers."""

    total: int
    events: list[EventRow]


class LogRow(msgspec.Struct):
    """A log line."""

    run: str
    time: float
    level: str
    logger: str
    message: str
    step: int | None


class Logs(msgspec.Struct):
    """The latest log lines by time, and their total number."""

    total: int
    lines: list[LogRow]


class HookRow(msgspec.Struct):
    """The cost of a subscriber up to a step in milliseconds, its share of the run's time, and its last error."""

    run: str
    writer: str
    name: str
    calls: int | None
    total_ms: Number
    mean_ms: Number
    p95_ms: Number
    max_ms: Number
    errors: int | None
    disabled: bool
    share: Number
    error: str | None
    error_at: str | None
    step: int | None
    time: float


class Hooks(msgspec.Struct):
    """The cost of subscribers; those that failed before the first report have only errors."""

    hooks: list[HookRow]


class OrderRow(msgspec.Struct):
    """The last recorded order of the subscribers of one writer, by moment."""

    run: str
    writer: str
    moments: dict[str, list[str]]
    left_out: int
    versions: int
    step: int | None
    time: float


class Order(msgspec.Struct):
    """The order in which subscribers run."""

    order: list[OrderRow]


def _events(listing: Listing, values: Values) -> Events:
    names = values["name"]
    where = f"name IN ({', '.join('?' * len(names))})" if names else _SHOWN
    query = f"SELECT * FROM events WHERE {where} ORDER BY time DESC"  # noqa: S608 - constants only
    found = listing.some(values["run"]).sql(query, names, limit=values["limit"])
    rows = [EventRow(**{**row, "data": json_object(row["data"])}) for row in map(_without_writer, found.rows()[::-1])]
    return Events(found.total(), rows)


def _logs(listing: Listing, values: Values) -> Logs:
    runs = listing.some(values["run"])
    level = None if values["level"] is None else LEVELS[LEVELS.index(values["level"]) :]
    filters: dict[str, Any] = {"text": values["text"], "level": level}
    total = runs.logs(**filters).total()
    end = max(0, total - values["offset"])
    start = max(0, end - values["limit"])
    found = runs.logs(**filters, limit=end - start, offset=start)
    return Logs(total, [LogRow(**_without_writer(row)) for row in found])


def _hooks(listing: Listing, values: Values) -> Hooks:
    runs = listing.some(values["run"])
    with_history = values["history"] == "yes"
    started = {info.id: info.started for info in runs}
    rows = [
        row
        | {"share": _share(row, started.get(row["run"])), "disabled": bool(row["disabled"])}
        | {"error": None, "error_at": None}
        for row in runs.hooks(history=with_history)
    ]
    if not with_history:
        rows = _with_errors(rows, runs.hook_errors().rows())
    return Hooks([HookRow(**clean(row)) for row in rows])


def _share(row: dict[str, Any], started: float | None) -> float | None:
    """The recorded share of the run's time; while it runs, the share of the time since its start."""
    share: float | None = row["share"]
    if share is not None or row["total_ms"] is None or started is None or row["time"] <= started:
        return share
    return float(row["total_ms"] / 1000 / (row["time"] - started))


def _with_errors(rows: list[dict[str, Any]], failed: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add the last errors to the rows of costs, and rows for failed subscribers without costs."""
    known = {(row["run"], row["writer"], row["name"]): row for row in rows}
    for failure in failed:
        key = (failure["run"], failure["writer"], failure["name"])
        row = known.get(key)
        if row is None:
            row = dict.fromkeys(HookRow.__struct_fields__) | failure
            rows.append(row)
        row["errors"] = max(row["errors"] or 0, failure["errors"])
        row["disabled"] = row["disabled"] or failure["disabled"]
        where = [failure["moment"], None if failure["step"] is None else f"step {failure['step']}"]
        row["error"], row["error_at"] = failure["error"], ", ".join(filter(None, where)) or None
    return [{name: row[name] for name in HookRow.__struct_fields__} for row in rows]


def _order(listing: Listing, values: Values) -> Order:
    found = listing.some(values["run"]).hook_order()
    rows = []
    for row in found:
        # Anyone can record an event of this name: anything but lists is left out.
        recorded = json_object(row["moments"]).items()
        moments = {moment: [str(name) for name in names] for moment, names in recorded if isinstance(names, list)}
        rows.append(OrderRow(**row | {"moments": moments}))
    return Order(rows)


def _without_writer(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "writer"}


ENDPOINTS = (
    records_endpoint("/api/events", "The latest events and statuses, by time.", Events, _events, (RUN, _NAME, _LIMIT)),
    records_endpoint("/api/logs", "The latest log lines, by time.", Logs, _logs, (RUN, _LEVEL, _TEXT, _LIMIT, _OFFSET)),
    records_endpoint("/api/hooks", "The cost of each subscriber.", Hooks, _hooks, (RUN, _HISTORY)),
    records_endpoint("/api/order", "The order of subscribers by moment.", Order, _order, (RUN,)),
)
