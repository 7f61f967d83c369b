"""What happened in runs: events and statuses, log lines, and what each hook costs."""

from typing import Any

import msgspec

from hookline.record.records import clean
from hookline.server.endpoint import RUN, Endpoint
from hookline.server.listing import Listing
from hookline.server.parameters import Parameter, Values
from hookline.server.run_rows import Number

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")

_NAME = Parameter("name", "string", "Only events, or words of statuses, of this name.")
_LIMIT = Parameter("limit", "integer", "How many there are at most: the latest.", default=500, low=1, high=5000)
_OFFSET = Parameter("offset", "integer", "How many of the latest are passed over.", default=0, low=0)
_LEVEL = Parameter("level", "string", "Of this level or a graver one.", choices=LEVELS)
_TEXT = Parameter("text", "string", "Is in the message, in whatever case.")
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
    """Events and statuses by time, without heartbeats."""

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
    """What a subscriber cost up to a step, in milliseconds."""

    run: str
    name: str
    calls: int | None
    total_ms: Number
    mean_ms: Number
    p95_ms: Number
    max_ms: Number
    errors: int | None
    step: int
    time: float


class Hooks(msgspec.Struct):
    """What subscribers cost."""

    hooks: list[HookRow]


def _events(listing: Listing, values: Values) -> Events:
    where = "kind <> 'status' OR name <> 'heartbeat'" if values["name"] is None else "name = ?"
    parameters = [] if values["name"] is None else [values["name"]]
    query = f"SELECT * FROM events WHERE {where} ORDER BY time DESC"  # noqa: S608 - our own words
    found = listing.some(values["run"]).sql(query, parameters, limit=values["limit"])
    rows = [EventRow(**{**row, "data": _mapping(row["data"])}) for row in map(_without_writer, found.rows()[::-1])]
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
    found = listing.some(values["run"]).hooks(history=values["history"] == "yes")
    return Hooks([HookRow(**clean(_without_writer(row))) for row in found])


def _without_writer(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "writer"}


def _mapping(text: str | None) -> dict[str, Any]:
    found = msgspec.json.decode(text) if text else {}
    return found if isinstance(found, dict) else {"value": found}


ENDPOINTS = (
    Endpoint("/api/events", "The latest events and statuses, by time.", Events, _events, (RUN, _NAME, _LIMIT)),
    Endpoint("/api/logs", "The latest log lines, by time.", Logs, _logs, (RUN, _LEVEL, _TEXT, _LIMIT, _OFFSET)),
    Endpoint("/api/hooks", "What each subscriber cost.", Hooks, _hooks, (RUN, _HISTORY)),
)
