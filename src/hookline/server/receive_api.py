"""The addresses that runs of other machines are sent to; `ReceivedRuns` says what holds for them.

The address that programs which know nothing of hookline post their status to.
"""

from typing import Annotated, Any

import msgspec

from hookline._engine.errors import OptionError
from hookline.server.endpoint import Desk, Sent, WriteEndpoint
from hookline.server.limits import LONGEST_NAME, ROW_NAMES, RUN_NAMES, WHOLE_FILES
from hookline.server.parameters import LARGEST, Parameter
from hookline.server.status_runs import PROJECT, Kept

MOST_FACTS_BYTES = 4 << 20
MOST_EVERY_SECONDS = 86_400.0

_PROJECT = Parameter("project", "string", f"The project: a name of at most {LONGEST_NAME} characters.", required=True)
_RUN = Parameter("run", "string", "The run: its name in the project.", required=True)
_FILE = Parameter("file", "string", f"A file of the journal, or {' or '.join(WHOLE_FILES)}.", required=True)
_ORIGIN = Parameter(
    "origin",
    "string",
    "Who sends: 32 digits of 0-9a-f, the same ones for a run each time.",
    required=True,
    pattern="[0-9a-f]{32}",
)
_OFFSET = Parameter("offset", "integer", "Where in the file the body belongs.", required=True, low=0, high=LARGEST)

_CONFLICT = {"409": "It does not fit what is held: `taken`, `unclaimed`, `conflict` or `offset` says how."}
_NAMES = {
    "422": f"There are more than {ROW_NAMES:,} metrics in a row, or {RUN_NAMES:,} in the run: `names_per_row` and "
    "`names` say which are taken."
}
_FACTS = {"application/json": {"schema": {"type": "object"}}}
_LINES = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}


class Claimed(msgspec.Struct):
    """How many bytes of each file of the journal are held: where to go on."""

    files: dict[str, int]


class Taken(msgspec.Struct):
    """How many bytes of the file are held now."""

    offset: int


class Beat(msgspec.Struct, forbid_unknown_fields=True):
    """A sign of life, and how often there will be one."""

    every_seconds: Annotated[float, msgspec.Meta(gt=0, le=MOST_EVERY_SECONDS)]


class Alive(msgspec.Struct):
    """The sign of life was noted."""

    every_seconds: float


def _claim(desk: Desk, sent: Sent) -> Claimed:
    values = sent.values
    return Claimed(desk.received.claim(values["project"], values["run"], values["origin"], sent.body))


def _append(desk: Desk, sent: Sent) -> Taken:
    values = sent.values
    place: dict[str, Any] = {"origin": values["origin"]}
    names = values["project"], values["run"], values["file"]
    if values["file"] not in WHOLE_FILES:
        return Taken(desk.received.append(*names, **place, offset=values["offset"], lines=sent.body))
    if values["offset"] != 0:
        raise OptionError(f"offset={values['offset']}: {values['file']} is sent whole, from 0.")
    return Taken(desk.received.replace(*names, **place, content=sent.body))


def _beat(desk: Desk, sent: Sent) -> Alive:
    values = sent.values
    try:
        every = msgspec.json.decode(sent.body, type=Beat).every_seconds
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise OptionError(f'The body is no sign of life: {error}. Send {{"every_seconds": 5.0}}.') from None
    desk.received.beat(values["project"], values["run"], origin=values["origin"], every_seconds=every)
    return Alive(every)


_HOME = "/api/journals/{project}/{run}"
RECEIVE_ENDPOINTS = (
    WriteEndpoint(
        "PUT", _HOME, "Claim a run for its sender, and write its run.json.", Claimed, _claim,
        (_ORIGIN,), (_PROJECT, _RUN), _FACTS, MOST_FACTS_BYTES, _CONFLICT,
    ),
    WriteEndpoint(
        "POST", f"{_HOME}/beat", "Say that the process that trains is alive.", Alive, _beat,
        (_ORIGIN,), (_PROJECT, _RUN), {"application/json": {"schema": Beat}}, 1 << 10, _CONFLICT,
    ),
    WriteEndpoint(
        "PUT", f"{_HOME}/{{file}}", "Add whole lines to a file of a run's journal.", Taken, _append,
        (_ORIGIN, _OFFSET), (_PROJECT, _RUN, _FILE), _LINES, refusals=_CONFLICT | _NAMES,
    ),
)  # fmt: skip


MOST_STATUS_BYTES = 1 << 20

_STATUS_PROJECT = Parameter("project", "string", f"The project; else what the message says, else {PROJECT!r}.")
_STATUS_RUN = Parameter("run", "string", "The run; else `run`, `run_id`, `job_id` or `experiment_name` of the message.")
_MESSAGE = {
    "type": "object",
    "description": "A line of TAO's status.json, a TrainJob's trainerStatus, what the sink `status` posts, or this.",
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


def _status(desk: Desk, sent: Sent) -> Kept:
    key = sent.headers.get("idempotency-key")
    return desk.statuses.take(sent.body, project=sent.values["project"], run=sent.values["run"], key=key)


STATUS_ENDPOINTS = (
    WriteEndpoint(
        "POST", "/api/status", "Keep status messages as records of a run.", Kept, _status,
        (_STATUS_PROJECT, _STATUS_RUN), (), {"application/json": {"schema": _MESSAGE}}, MOST_STATUS_BYTES,
        {"409": "The run of that name is somebody else's.", "422": "Metrics have more names than are taken."},
    ),
)  # fmt: skip
