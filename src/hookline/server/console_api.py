"""Endpoints for the console lines of a run, and for why it failed."""

import msgspec

from hookline._record.console_reader import LOG, SHOWN, ConsolePage, CrashReport, console_page, crash_reports
from hookline.server.endpoint import Endpoint, Parameter, Values
from hookline.server.listing import Listing

MAX_LINES = 2000
_STREAMS = {"shown": SHOWN, "stdout": ("stdout",), "stderr": ("stderr",), LOG: (LOG,)}
_BAD_ENDS = ("failed", "killed", "stopped")

_ID = Parameter("id", "string", "The id of a run, as returned by /api/runs.", required=True)
_SEARCH = Parameter("search", "string", "A text in the line, ignoring case.")
_STREAM = Parameter(
    "stream",
    "string",
    "Which lines: standard output and error (shown), one of them, or records of `logging` and warnings (log).",
    default="shown",
    choices=tuple(_STREAMS),
)
_RANK = Parameter("rank", "integer", "Only the process of this rank.", low=0)
_LIMIT = Parameter("limit", "integer", "The maximum number of lines.", default=500, low=1, high=MAX_LINES)
_OFFSET = Parameter("offset", "integer", "How many of the latest lines to skip.", default=0, low=0, high=10_000_000)


class Failures(msgspec.Struct):
    """Why the processes of a run failed, the first first; none of a run that finished or is running."""

    failures: list[CrashReport]


def _console(listing: Listing, values: Values) -> ConsolePage:
    run = listing.find(lambda listed: listed.runs[values["id"]])
    which = {name: values[name] for name in ("search", "rank", "limit", "offset")}
    return console_page(run.directory, streams=_STREAMS[values["stream"]], **which)


def _failures(listing: Listing, values: Values) -> Failures:
    run = listing.find(lambda listed: listed.runs[values["id"]])
    return Failures(crash_reports(run.directory) if run.status in _BAD_ENDS else [])


ENDPOINTS = (
    Endpoint(
        "/api/console", "What a run printed, page by page from the end.", ConsolePage, _console,
        (_ID, _SEARCH, _STREAM, _RANK, _LIMIT, _OFFSET),
    ),
    Endpoint("/api/failures", "Why a run failed.", Failures, _failures, (_ID,)),
)  # fmt: skip
