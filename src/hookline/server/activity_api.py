"""What happened in runs: events and statuses, log lines, what each hook costs, and in which order they run."""

from typing import Any

import msgspec

from hookline._record.records import BOOKKEEPING, clean
from hookline.server.endpoint import RUN, Endpoint
from hookline.server.json_column import mapping
from hookline.server.listing import Listing, Number
from hookline.server.parameters import Parameter, Values
from hookline.store.index import sql_quote

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")

_NAME = Parameter("name", "string", "Only events, or words of statuses, of this name.")
_LIMIT = Parameter("limit", "integer", "How many there are at most: the latest.", default=500, low=1, high=5000)
_OFFSET = Parameter("offset", "integer", "How many of the latest are passed over.", default=0, low=0)
_LEVEL = Parameter("level", "string", "Of this level or a graver one.", choices=LEVELS)
_TEXT = Parameter("text", "string", "Is in the message, in whatever case.")
_TELLING = (
    f"(kind <> 'status' OR name <> 'heartbeat') AND name NOT IN ({', '.join(map(sql_quote, sorted(BOOKKEEPING)))})"
)
_HISTORY = Parameter(
    "history", "string", "Whether every report is given, by time, or the last one.", default="no", choices=("no", "yes")
)


class EventRow(msgspec.Struct):
    """Something that happened, or a status."""

    run: str
    kind: str
    time: float
    step: int | None
    name: str
    message: str
    data: dict[str, Any]


class Events(msgspec.Struct):
    """Events and statuses by time, without heartbeats and without what is told about subscribers elsewhere."""

    total: int
    events: list[EventRow]


class LogRow(msgspec.Struct):
    """A line of a log."""

    run: str
    time: float
    level: str
    logger: str
    message: str
    step: int | None


class Logs(msgspec.Struct):
    """The latest log lines by time, and how many there are in all."""

    total: int
    lines: list[LogRow]


class HookRow(msgspec.Struct):
    """What a subscriber cost up to a step, in milliseconds, the share of the run's time, and its last error."""

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
    """What subscribers cost; those that failed before anything was reported have errors only."""

    hooks: list[HookRow]


class OrderRow(msgspec.Struct):
    """The order in which the subscribers of one writer of a run run, by moment, as it was last recorded."""

    run: str
    writer: str
    moments: dict[str, list[str]]
    left_out: int
    versions: int
    step: int | None
    time: float


class Order(msgspec.Struct):
    """In which order subscribers run."""

    order: list[OrderRow]


def _events(listing: Listing, values: Values) -> Events:
    where = _TELLING if values["name"] is None else "name = ?"
    parameters = [] if values["name"] is None else [values["name"]]
    query = f"SELECT * FROM events WHERE {where} ORDER BY time DESC"  # noqa: S608 - our own words
    found = listing.some(values["run"]).sql(query, parameters, limit=values["limit"])
    rows = [EventRow(**{**row, "data": mapping(row["data"])}) for row in map(_without_writer, found.rows()[::-1])]
    return Events(found.total(), rows)


def _logs(listing: Listing, values: Values) -> Logs:
    runs = listing.some(values["run"])
    level = None if values["level"] is None else LEVELS[LEVELS.index(values["level"]) :]
    chosen: dict[str, Any] = {"text": values["text"], "level": level}
    total = runs.logs(**chosen).total()
    end = max(0, total - values["offset"])
    begin = max(0, end - values["limit"])
    found = runs.logs(**chosen, limit=end - begin, offset=begin)
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
    """The share of the run's time: recorded at its end, before that of the time since it started."""
    share: float | None = row["share"]
    if share is not None or row["total_ms"] is None or started is None or row["time"] <= started:
        return share
    return float(row["total_ms"] / 1000 / (row["time"] - started))


def _with_errors(rows: list[dict[str, Any]], failed: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of costs with the last errors, and rows for those that failed and have no costs yet."""
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
    return Order([OrderRow(**row | {"moments": _moments(row["moments"])}) for row in found])


def _moments(text: str | None) -> dict[str, list[str]]:
    """The names by moment; whatever else somebody recorded under the event's name is left out."""
    given = mapping(text)
    return {moment: [str(name) for name in names] for moment, names in given.items() if isinstance(names, list)}


def _without_writer(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "writer"}


ENDPOINTS = (
    Endpoint("/api/events", "The latest events and statuses, by time.", Events, _events, (RUN, _NAME, _LIMIT)),
    Endpoint("/api/logs", "The latest log lines, by time.", Logs, _logs, (RUN, _LEVEL, _TEXT, _LIMIT, _OFFSET)),
    Endpoint("/api/hooks", "What each subscriber cost.", Hooks, _hooks, (RUN, _HISTORY)),
    Endpoint("/api/order", "In which order subscribers run, by moment.", Order, _order, (RUN,)),
)
