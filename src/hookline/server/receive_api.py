"""Endpoints that receive runs from other machines (see `ReceivedRuns`) and status messages of other programs."""

from collections.abc import Mapping
from typing import Annotated

import msgspec

from hookline._engine.errors import OptionError
from hookline.server.endpoint import Parameter, WriteContext, WriteEndpoint, WriteRequest, check_project
from hookline.server.limits import MAX_BODY_BYTES, MAX_INTEGER, MAX_NAME_LENGTH, ROW_NAMES, RUN_NAMES, WHOLE_FILES
from hookline.server.received_artifacts import MAX_ARTIFACT_BYTES, ArtifactReply, SentArtifact, decode_artifact
from hookline.server.received_blobs import (
    MAX_ASKED,
    BlobPart,
    BlobRefusal,
    BlobsRefusedError,
    Digest,
    MissingBlobs,
    Size,
    StoredBlobs,
)
from hookline.server.received_control import MAX_REPORT_BYTES, ControlReply, decode_report
from hookline.server.received_runs import ConflictError
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
_REFUSED_BLOBS = {
    "413": "The body, or a blob, is too large: see `refused`.",
    "422": "The content of a blob has another digest: see `refused`.",
    "507": "The disk is full; with `refused`, a limit for blobs is reached.",
}
_PARTS = {
    "application/octet-stream": {
        "schema": {
            "type": "string",
            "format": "binary",
            "description": 'A line `{"parts": [{"digest": ..., "size": ..., "offset": ..., "length": ...}]}`, and the '
            "bytes of the parts, one after the other.",
        }
    }
}
_MAX_HEAD_BYTES = 512 << 10
_REPORT = {
    "application/octet-stream": {
        "schema": {
            "type": "string",
            "format": "binary",
            "description": 'A line `{"offset": ..., "offer": {...}}`, and new lines of the log of commands, from that '
            "offset on.",
        }
    }
}
_LINES = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}


class ClaimReply(msgspec.Struct):
    """The stored size of each journal file: where to continue."""

    files: dict[str, int]


class AppendReply(msgspec.Struct, omit_defaults=True):
    """The stored size of the file.

    Attributes:
        control: Whether commands for the run wait: its sender fetches them with ``POST .../control``.
    """

    offset: int
    control: bool = False


class HeartbeatRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A heartbeat with its interval."""

    every_seconds: Annotated[float, msgspec.Meta(gt=0, le=MAX_HEARTBEAT_SECONDS)]


class HeartbeatReply(msgspec.Struct, omit_defaults=True):
    """The accepted heartbeat interval.

    Attributes:
        every_seconds: When to send the next one; later than offered if very many runs send heartbeats.
        control: Whether commands for the run wait: its sender fetches them with ``POST .../control``.
    """

    every_seconds: float
    control: bool = False


def _claim(context: WriteContext, request: WriteRequest) -> ClaimReply:
    values = request.values
    try:
        sizes = context.received.claim(
            values["project"], values["run"], values["origin"], request.body, own_blobs_only=_is_scoped(request)
        )
    except ConflictError as error:
        _note_claim(context, request, values["project"], values["run"], result=str(error))
        raise
    _note_claim(context, request, values["project"], values["run"])
    return ClaimReply(sizes)


def _is_scoped(request: WriteRequest) -> bool:
    """Whether a request's token is for some projects only: it must not learn which blobs others have."""
    return not request.principal.scope.is_all


def _note_claim(context: WriteContext, request: WriteRequest, project: str, run: str, result: str = "ok") -> None:
    # Senders claim again after each connection: one entry for each token, address and run.
    if context.audit is not None:
        context.audit.record_first(
            "run.claimed", request.principal, address=request.address, project=project, target=run, result=result
        )


def _note_refused(context: WriteContext, request: WriteRequest, refused: Mapping[str, BlobRefusal]) -> None:
    for status in sorted({refusal.status for refusal in refused.values()}):
        if context.audit is not None:
            context.audit.count(
                "blobs.refused",
                request.principal,
                address=request.address,
                project=request.values["project"],
                target=request.values["run"],
                result=str(status),
            )


def _append(context: WriteContext, request: WriteRequest) -> AppendReply:
    values = request.values
    names = values["project"], values["run"], values["file"]
    if values["file"] not in WHOLE_FILES:
        stored = context.received.append(*names, origin=values["origin"], offset=values["offset"], lines=request.body)
        return AppendReply(stored, context.control.has_mail(*names[:2]))
    if values["offset"] != 0:
        raise OptionError(f"offset={values['offset']}: {values['file']} is sent whole, at offset 0.")
    return AppendReply(context.received.replace(*names, origin=values["origin"], content=request.body))


def _heartbeat(context: WriteContext, request: WriteRequest) -> HeartbeatReply:
    values = request.values
    try:
        every = msgspec.json.decode(request.body, type=HeartbeatRequest).every_seconds
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise OptionError(f'The body is not a heartbeat: {error}. Send {{"every_seconds": 5.0}}.') from None
    every = context.beat_seconds(f"{values['project']}/{values['run']}", every)
    context.received.heartbeat(values["project"], values["run"], origin=values["origin"], every_seconds=every)
    return HeartbeatReply(every, context.control.has_mail(values["project"], values["run"]))


def _control(context: WriteContext, request: WriteRequest) -> ControlReply:
    values = request.values
    head, _, lines = request.body.partition(b"\n")
    report = decode_report(head)
    return context.control.exchange(
        values["project"], values["run"], origin=values["origin"], report=report, lines=bytes(lines)
    )


class BlobsRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The blobs that a run refers to, by digest, with their sizes."""

    blobs: Annotated[dict[Digest, Size], msgspec.Meta(max_length=MAX_ASKED)]


class BlobsHead(msgspec.Struct, forbid_unknown_fields=True):
    """The first line of a body with pieces of blobs, which follow one after the other."""

    parts: Annotated[list[BlobPart], msgspec.Meta(max_length=MAX_ASKED)]


def _missing_blobs(context: WriteContext, request: WriteRequest) -> MissingBlobs:
    values = request.values
    try:
        sizes = msgspec.json.decode(request.body, type=BlobsRequest).blobs
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise OptionError(f'The body is not valid: {error}. Send {{"blobs": {{"<SHA-256>": <size>}}}}.') from None
    reply = context.blobs.missing(
        values["project"], values["run"], origin=values["origin"], sizes=sizes, own_only=_is_scoped(request)
    )
    _note_refused(context, request, reply.refused)
    return reply


def _receive_blobs(context: WriteContext, request: WriteRequest) -> StoredBlobs:
    values = request.values
    head, newline, _ = request.body[:_MAX_HEAD_BYTES].partition(b"\n")
    try:
        if not newline:
            raise OptionError("The body has no first line with the parts in it.")
        parts = msgspec.json.decode(head, type=BlobsHead).parts
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise OptionError(f"The first line of the body is not valid: {error}.") from None
    content = memoryview(request.body)[len(head) + 1 :]
    names = values["project"], values["run"]
    try:
        return context.blobs.receive(
            *names, origin=values["origin"], parts=parts, content=content, own_only=_is_scoped(request)
        )
    except BlobsRefusedError as error:
        _note_refused(context, request, error.refused)
        raise


def _receive_artifact(context: WriteContext, request: WriteRequest) -> ArtifactReply:
    values = request.values
    sent = decode_artifact(request.body)
    if sent.role == "used" and not request.principal.scope.allows(sent.project or values["project"]):
        return ArtifactReply("")  # as if it were not here
    return context.artifacts.receive(
        values["project"], values["run"], origin=values["origin"], sent=sent, own_only=_is_scoped(request)
    )


_PATH = "/api/journals/{project}/{run}"
# The routes are compared in this order: what is requested most often comes as early as it can.
RECEIVE_ENDPOINTS = (
    WriteEndpoint(
        "PUT", f"{_PATH}/blobs", "Store pieces of blobs.", StoredBlobs, _receive_blobs, (_ORIGIN,), (_PROJECT, _RUN),
        _PARTS, MAX_BODY_BYTES, _CONFLICT | _REFUSED_BLOBS,
    ),
    WriteEndpoint(
        "PUT", f"{_PATH}/artifacts", "Store a version of an artifact whose blobs are there, its aliases, or its use.",
        ArtifactReply, _receive_artifact, (_ORIGIN,), (_PROJECT, _RUN), {"application/json": {"schema": SentArtifact}},
        MAX_ARTIFACT_BYTES, _CONFLICT | _REFUSED_BLOBS,
    ),
    WriteEndpoint(
        "PUT", f"{_PATH}/{{file}}", "Append whole lines to a journal file of a run.", AppendReply, _append,
        (_ORIGIN, _OFFSET), (_PROJECT, _RUN, _FILE), _LINES, refusals=_CONFLICT | _NAMES,
    ),
    WriteEndpoint(
        "PUT", _PATH, "Claim a run for its sender, and write its run.json.", ClaimReply, _claim,
        (_ORIGIN,), (_PROJECT, _RUN), _FACTS, MAX_FACTS_BYTES, _CONFLICT,
    ),
    WriteEndpoint(
        "POST", f"{_PATH}/beat", "Send a heartbeat of the training process.", HeartbeatReply, _heartbeat,
        (_ORIGIN,), (_PROJECT, _RUN), {"application/json": {"schema": HeartbeatRequest}}, 1 << 10, _CONFLICT,
        is_news=False,
    ),
    WriteEndpoint(
        "POST", f"{_PATH}/control", "Report what a live run offers and how it answered commands, and fetch new ones.",
        ControlReply, _control, (_ORIGIN,), (_PROJECT, _RUN), _REPORT, MAX_REPORT_BYTES, _CONFLICT, is_news=False,
    ),
    WriteEndpoint(
        "POST", f"{_PATH}/blobs", "Ask which blobs the server lacks, and where to continue.", MissingBlobs,
        _missing_blobs, (_ORIGIN,), (_PROJECT, _RUN), {"application/json": {"schema": BlobsRequest}}, 1 << 20,
        _CONFLICT,
    ),
)  # fmt: skip


MAX_STATUS_BYTES = 1 << 20

_STATUS_PROJECT = Parameter("project", "string", f"The project; default: the message's, or {DEFAULT_PROJECT!r}.")
_STATUS_RUN = Parameter(
    "run", "string", "The run; default: the message's `run`, `run_id`, `job_id` or `experiment_name`."
)
_TRAINJOB = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/{project}/trainjobs/{run}/status"
_STATUS_REFUSALS = {"409": "Another sender owns the run of that name.", "422": "There are too many metric names."}
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
    scope = request.principal.scope
    reply = context.statuses.record(
        request.body,
        project=request.values["project"],
        run=request.values["run"],
        key=key,
        check=lambda project: check_project(scope, project),
    )
    _note_claim(context, request, reply.project, reply.run)
    return reply


STATUS_ENDPOINTS = (
    WriteEndpoint(
        "POST", "/api/status", "Record status messages as a run.", StatusReply, _status,
        (_STATUS_PROJECT, _STATUS_RUN), (), {"application/json": {"schema": _MESSAGE}}, MAX_STATUS_BYTES,
        _STATUS_REFUSALS,
    ),
    WriteEndpoint(
        "POST", _TRAINJOB, "Record the status of a TrainJob as a run, at the path of Kubeflow's own server.",
        StatusReply, _status, (), (_PROJECT, _RUN), {"application/json": {"schema": _MESSAGE}}, MAX_STATUS_BYTES,
        _STATUS_REFUSALS,
    ),
)  # fmt: skip
