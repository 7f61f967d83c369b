"""Endpoints that receive runs from other machines (see `ReceivedRuns`) and status messages of other programs."""

from typing import Annotated

import msgspec

from hookline._engine.errors import OptionError
from hookline.server.endpoint import WriteContext, WriteEndpoint, WriteRequest
from hookline.server.limits import MAX_NAME_LENGTH, ROW_NAMES, RUN_NAMES, WHOLE_FILES
from hookline.server.parameters import MAX_INTEGER, Parameter
from hookline.server.status_runs import DEFAULT_PROJECT, StatusReply

MAX_FACTS_BYTES = 4 << 20
MAX_HEARTBEAT_SECONDS = 86_400.0

_PROJECT = Parameter("project", "string", f"The project, at most {MAX_NAME_LENGTH} characters.", required=True)
_RUN = Parameter("run", "string", "The name of the run in the project.", required=True)
_FILE = Parameter("file", "string", f"A journal file, or {' or '.join(WHOLE_FILES)}.", required=True)
_ORIGIN = Parameter(
    "origin",
    "string",
    "The sender's id: 32 digits of 0-9a-f, always the same for a run.",
    required=True,
    pattern="[0-9a-f]{32}",
)
_OFFSET = Parameter("offset", "integer", "The body's position in the file.", required=True, low=0, high=MAX_INTEGER)

_CONFLICT = {"409": "It conflicts with the stored data: see `taken`, `unclaimed`, `conflict` or `offset`."}
_NAMES = {
    "422": f"More than {ROW_NAMES:,} metrics in a row, or {RUN_NAMES:,} in the run: see `names_per_row` and `names`."
}
_FACTS = {"application/json": {"schema": {"type": "object"}}}
_LINES = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}


class ClaimReply(msgspec.Struct):
    """The stored size of each journal file: where to continue."""

    files: dict[str, int]


class AppendReply(msgspec.Struct):
    """The stored size of the file."""

    offset: int


class HeartbeatRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A heartbeat with its interval."""

    every_seconds: Annotated[float, msgspec.Meta(gt=0, le=MAX_HEARTBEAT_SECONDS)]


class HeartbeatReply(msgspec.Struct):
    """The accepted heartbeat interval."""

    every_seconds: float


def _claim(context: WriteContext, request: WriteRequest) -> ClaimReply:
    values = request.values
    return ClaimReply(context.received.claim(values["project"], values["run"], values["origin"], request.body))


def _append(context: WriteContext, request: WriteRequest) -> AppendReply:
    values = request.values
    names = values["project"], values["run"], values["file"]
    if values["file"] not in WHOLE_FILES:
        return AppendReply(
            context.received.append(*names, origin=values["origin"], offset=values["offset"], lines=request.body)
        )
    if values["offset"] != 0:
        raise OptionError(f"offset={values['offset']}: {values['file']} is sent whole, at offset 0.")
    return AppendReply(context.received.replace(*names, origin=values["origin"], content=request.body))


def _heartbeat(context: WriteContext, request: WriteRequest) -> HeartbeatReply:
    values = request.values
    try:
        every = msgspec.json.decode(request.body, type=HeartbeatRequest).every_seconds
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise OptionError(f'The body is not a heartbeat: {error}. Send {{"every_seconds": 5.0}}.') from None
    context.received.heartbeat(values["project"], values["run"], origin=values["origin"], every_seconds=every)
    return HeartbeatReply(every)


_PATH = "/api/journals/{project}/{run}"
RECEIVE_ENDPOINTS = (
    WriteEndpoint(
        "PUT", _PATH, "Claim a run for its sender, and write its run.json.", ClaimReply, _claim,
        (_ORIGIN,), (_PROJECT, _RUN), _FACTS, MAX_FACTS_BYTES, _CONFLICT,
    ),
    WriteEndpoint(
        "POST", f"{_PATH}/beat", "Send a heartbeat of the training process.", HeartbeatReply, _heartbeat,
        (_ORIGIN,), (_PROJECT, _RUN), {"application/json": {"schema": HeartbeatRequest}}, 1 << 10, _CONFLICT,
    ),
    WriteEndpoint(
        "PUT", f"{_PATH}/{{file}}", "Append whole lines to a journal file of a run.", AppendReply, _append,
        (_ORIGIN, _OFFSET), (_PROJECT, _RUN, _FILE), _LINES, refusals=_CONFLICT | _NAMES,
    ),
)  # fmt: skip


MAX_STATUS_BYTES = 1 << 20

_STATUS_PROJECT = Parameter("project", "string", f"The project; default: the message's, or {DEFAULT_PROJECT!r}.")
_STATUS_RUN = Parameter(
    "run", "string", "The run; default: the message's `run`, `run_id`, `job_id` or `experiment_name`."
)
_MESSAGE = {
    "type": "object",
    "description": "A line of TAO's status.json, a TrainJob's trainerStatus, a message of the `status` sink, or this.",
    "properties": {
        "status": {"type": "string"},
        "message": {"type": "string"},
        "step": {"type": "integer"},
        "max_step": {"type": "integer"},
        "metrics": {"type": "object", "additionalProperties": {"type": "number"}},
        "project": {"type": "string"},
        "run": {"type": "string"},
    },
}


def _status(context: WriteContext, request: WriteRequest) -> StatusReply:
    key = request.headers.get("idempotency-key")
    return context.statuses.record(request.body, project=request.values["project"], run=request.values["run"], key=key)


STATUS_ENDPOINTS = (
    WriteEndpoint(
        "POST", "/api/status", "Record status messages as a run.", StatusReply, _status,
        (_STATUS_PROJECT, _STATUS_RUN), (), {"application/json": {"schema": _MESSAGE}}, MAX_STATUS_BYTES,
        {"409": "Another sender owns the run of that name.", "422": "There are too many metric names."},
    ),
)  # fmt: skip
