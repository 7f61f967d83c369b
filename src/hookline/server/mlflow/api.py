"""The routes of MLflow's clients, below ``/api/2.0/mlflow`` and ``/api/2.0/mlflow-artifacts``.

Requests that write run on the threads reserved for writing, reads on others. A run that a token may not read is
reported as missing. Routes that hookline does not offer are answered with an error that says so.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from hookline.server.endpoint import Responder, run_cancellable
from hookline.server.limits import MAX_BODY_BYTES
from hookline.server.mlflow import model_handlers as models
from hookline.server.mlflow import run_handlers as runs
from hookline.server.mlflow.messages import NOT_OFFERED, MlflowError
from hookline.server.mlflow.run_handlers import Handler
from hookline.server.mlflow.service import WRITTEN, Call, Mlflow, call_of
from hookline.server.mlflow.transfer import Download, Upload

PREFIX, ARTIFACTS = "/api/2.0/mlflow", "/api/2.0/mlflow-artifacts"
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
_MULTIPART = "Multipart upload is not supported for the current artifact repository"
"""The error text that makes MLflow's client send a file in one piece."""
_SERVER_INFO = {
    "store_type": "hookline",
    "workspaces_enabled": False,
    "trace_archival_enabled": False,
    "multipart_uploads_enabled": False,
    "multipart_downloads_enabled": False,
    "presigned_upload_run_id_supported": False,
    "presigned_upload_model_id_supported": False,
    "features_enabled": {},
}


Respond = Callable[[Request], Awaitable[Response]]


def _not_offered(mlflow: Mlflow, call: Call) -> Any:
    path = call.path.get("rest", "")
    offered = "experiments, runs, metrics, artifacts and logged models"
    what = next((what for start, what in _WITHOUT.items() if path.startswith(start)), f"{path!r:.80}")
    raise MlflowError(NOT_OFFERED, f"hookline does not keep {what}: it offers MLflow's {offered}.")


_WITHOUT = {
    "traces": "traces",
    "registered-models": "a model registry",
    "model-versions": "a model registry",
    "prompts": "prompts",
    "datasets": "evaluation data sets",
    "scorers": "scorers",
    "gateway": "gateways",
    "webhooks": "webhooks",
}


def _multipart(mlflow: Mlflow, call: Call) -> Any:
    raise MlflowError(NOT_OFFERED, f"{_MULTIPART}. Send the file in one piece.")


class _Route(NamedTuple):
    method: str
    path: str
    handle: Handler
    action: str | None = WRITTEN
    """What the audit log calls it; None for a request that only reads."""


_MODEL, _FILE = f"{PREFIX}/logged-models/{{model_id}}", f"{ARTIFACTS}/artifacts/{{path:path}}"
ROUTES = (
    _Route("POST", f"{PREFIX}/experiments/create", runs.create_experiment, "experiment.created"),
    _Route("GET", f"{PREFIX}/experiments/get", runs.get_experiment, None),
    _Route("GET", f"{PREFIX}/experiments/get-by-name", runs.get_experiment_by_name, None),
    _Route("GET", f"{PREFIX}/experiments/search", runs.search_experiments, None),
    _Route("POST", f"{PREFIX}/experiments/search", runs.search_experiments, None),
    _Route("POST", f"{PREFIX}/experiments/update", runs.change_experiment(), "experiment.edited"),
    _Route("POST", f"{PREFIX}/experiments/delete", runs.change_experiment("deleted"), "experiment.deleted"),
    _Route("POST", f"{PREFIX}/experiments/restore", runs.change_experiment("active"), "experiment.restored"),
    _Route("POST", f"{PREFIX}/experiments/set-experiment-tag", runs.set_experiment_tag, "experiment.edited"),
    _Route("POST", f"{PREFIX}/experiments/delete-experiment-tag", runs.delete_experiment_tag, "experiment.edited"),
    _Route("POST", f"{PREFIX}/runs/create", runs.create_run),
    _Route("GET", f"{PREFIX}/runs/get", runs.get_run, None),
    _Route("POST", f"{PREFIX}/runs/search", runs.search_runs, None),
    _Route("POST", f"{PREFIX}/runs/update", runs.update_run),
    _Route("POST", f"{PREFIX}/runs/delete", runs.set_stage("deleted"), "run.deleted"),
    _Route("POST", f"{PREFIX}/runs/restore", runs.set_stage("active"), "run.restored"),
    _Route("POST", f"{PREFIX}/runs/log-metric", runs.log_metric),
    _Route("POST", f"{PREFIX}/runs/log-parameter", runs.log_param),
    _Route("POST", f"{PREFIX}/runs/set-tag", runs.set_tag),
    _Route("POST", f"{PREFIX}/runs/delete-tag", runs.delete_tag),
    _Route("POST", f"{PREFIX}/runs/log-batch", runs.log_batch),
    _Route("POST", f"{PREFIX}/runs/log-inputs", runs.log_inputs(are_outputs=False)),
    _Route("POST", f"{PREFIX}/runs/outputs", runs.log_inputs(are_outputs=True)),
    _Route("POST", f"{PREFIX}/runs/log-model", runs.log_model),
    _Route("GET", f"{PREFIX}/metrics/get-history", runs.get_history, None),
    _Route("GET", f"{PREFIX}/metrics/get-history-bulk-interval", runs.get_history_interval, None),
    _Route("GET", f"{PREFIX}/artifacts/list", models.list_run_files, None),
    _Route("POST", f"{PREFIX}/logged-models", models.create_model),
    _Route("POST", f"{PREFIX}/logged-models/search", models.search_models, None),
    _Route("GET", _MODEL, models.get_model, None),
    _Route("PATCH", _MODEL, models.change_model),
    _Route("DELETE", _MODEL, models.delete_model, "run.edited"),
    _Route("POST", f"{_MODEL}/params", models.change_model),
    _Route("PATCH", f"{_MODEL}/tags", models.change_model),
    _Route("DELETE", f"{_MODEL}/tags/{{key}}", models.delete_model_tag),
    _Route("GET", f"{_MODEL}/artifacts/directories", models.list_model_files, None),
    _Route("GET", f"{ARTIFACTS}/artifacts", models.list_files, None),
    _Route("DELETE", _FILE, models.remove_files, "run.edited"),
    _Route("POST", f"{ARTIFACTS}/mpu/{{rest:path}}", _multipart, None),
    _Route("GET", "/api/3.0/mlflow/server-info", lambda mlflow, call: _SERVER_INFO, None),
)


def routes(mlflow: Mlflow) -> list[BaseRoute]:
    """The Starlette routes, most specific first."""
    by_path: dict[str, dict[str, Respond]] = {}
    for route in ROUTES:
        by_path.setdefault(route.path, {})[route.method] = _Respond(mlflow, route)
    by_path[_FILE] |= {"PUT": Upload(mlflow), "GET": Download(mlflow)}
    missing = _Respond(mlflow, _Route("", "", _not_offered, None))
    for prefix in (PREFIX, "/api/3.0/mlflow", ARTIFACTS):
        by_path[f"{prefix}/{{rest:path}}"] = dict.fromkeys(_METHODS, missing)
    # One route for all methods of a path, because only the first route of a path is matched.
    return [Route(path, Responder(_by_method(own)), methods=list(own)) for path, own in by_path.items()]


def _by_method(responders: Mapping[str, Respond]) -> Respond:
    async def respond(request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        return await responders[method](request)

    return respond


@dataclass(frozen=True, slots=True)
class _Respond:
    """Responds to a request with JSON."""

    mlflow: Mlflow
    route: _Route

    async def __call__(self, request: Request) -> Response:
        context, action = self.mlflow.context, self.route.action
        if action is not None:
            context.check_load()
        try:
            async with context.bodies.read(request, MAX_BODY_BYTES) as body:

                def handle() -> Response:
                    content = body.unpack(request.headers.get("content-encoding", ""), MAX_BODY_BYTES)
                    call = call_of(request, content)
                    reply = msgspec.json.encode(self.route.handle(self.mlflow, call))
                    if action is not None:
                        self.mlflow.note_change(call, action)
                    return Response(reply, headers={"Cache-Control": "no-store"}, media_type="application/json")

                if action is None:
                    return await run_cancellable(request, handle)
                response: Response = await context.run(handle)
        except ClientDisconnect:
            return Response(status_code=400)  # the client has disconnected
        context.on_received()
        return response
