"""The address that programs which know nothing of hookline post their status to."""

from hookline.server.parameters import Parameter
from hookline.server.status_runs import PROJECT, Kept
from hookline.server.write_endpoint import Desk, Sent, WriteEndpoint

MOST_STATUS_BYTES = 1 << 20

_PROJECT = Parameter("project", "string", f"The project; else what the message says, else {PROJECT!r}.")
_RUN = Parameter("run", "string", "The run; else `run`, `run_id`, `job_id` or `experiment_name` of the message.")
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


ENDPOINTS = (
    WriteEndpoint(
        "POST", "/api/status", "Keep status messages as records of a run.", Kept, _status,
        (_PROJECT, _RUN), (), {"application/json": {"schema": _MESSAGE}}, MOST_STATUS_BYTES,
        {"409": "The run of that name is somebody else's.", "422": "Metrics have more names than are taken."},
    ),
)  # fmt: skip
