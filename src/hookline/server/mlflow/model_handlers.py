"""Handlers for artifacts and logged models: each takes a request and returns the response's content."""

from typing import Any

from hookline.server.mlflow.experiments import DEFAULT_ID
from hookline.server.mlflow.files import Place, checked_path, place_of, run_of_model
from hookline.server.mlflow.messages import MISSING, ChangeModel, CreateModel, MlflowError, decoded
from hookline.server.mlflow.models import ATTRIBUTES, NUMBERS, as_entity, models_of, shown_model
from hookline.server.mlflow.records import shown_info
from hookline.server.mlflow.run_handlers import paged, search_of, states
from hookline.server.mlflow.search import ordered, page_of, parse_filter, parse_order
from hookline.server.mlflow.service import Call, Mlflow


def list_run_files(mlflow: Mlflow, call: Call) -> Any:
    """The files in a folder of a run, with their whole paths."""
    run_id = call.query.get("run_id") or call.query.get("run_uuid") or ""
    project = mlflow.project(call, run_id)
    place = Place(run_id, "", checked_path(call.query.get("path", "").strip("/")))
    with mlflow.runs.reading(project, run_id) as state:
        root = shown_info(run_id, state)["artifact_uri"]
    return {"root_uri": root, "files": mlflow.files.listed(project, place, whole_paths=True)}


def list_files(mlflow: Mlflow, call: Call) -> Any:
    """The files in a folder."""
    place = place_of(call.query.get("path", "").strip("/"))
    return {"files": mlflow.files.listed(mlflow.project(call, place.run_id), place)}


def remove_files(mlflow: Mlflow, call: Call) -> Any:
    """Remove a file or a folder from listings."""
    place = place_of(call.path["path"])
    mlflow.files.remove(mlflow.project(call, place.run_id), place)
    return {}


def create_model(mlflow: Mlflow, call: Call) -> Any:
    """Create a logged model."""
    request = decoded(call.body, CreateModel)
    experiment = mlflow.experiment(call, request.experiment_id or DEFAULT_ID)
    if request.source_run_id:
        mlflow.project(call, request.source_run_id)
    run_id, model = mlflow.models.create(request, experiment, call.principal.name)
    call.named.append((experiment.project, run_id))
    return {"model": shown_model(model, run_id, experiment.id)}


def get_model(mlflow: Mlflow, call: Call) -> Any:
    """A logged model."""
    run_id, project = _model_place(mlflow, call)
    with_deleted = call.query.get("allow_deleted", "") == "true"
    model = mlflow.models.get(project, call.path["model_id"], with_deleted=with_deleted)
    return {"model": shown_model(model, run_id, _experiment_id(mlflow, project, run_id))}


def change_model(mlflow: Mlflow, call: Call) -> Any:
    """Change the status, params or tags of a logged model."""
    run_id, project = _model_place(mlflow, call)
    model = mlflow.models.change(project, call.path["model_id"], decoded(call.body, ChangeModel))
    return {"model": shown_model(model, run_id, _experiment_id(mlflow, project, run_id))}


def delete_model(mlflow: Mlflow, call: Call) -> Any:
    """Delete a logged model."""
    _, project = _model_place(mlflow, call)
    mlflow.models.change(project, call.path["model_id"], ChangeModel(), stage="deleted")
    return {}


def delete_model_tag(mlflow: Mlflow, call: Call) -> Any:
    """Remove a tag of a logged model."""
    _, project = _model_place(mlflow, call)
    mlflow.models.change(project, call.path["model_id"], ChangeModel(), untagged=call.path["key"])
    return {}


def search_models(mlflow: Mlflow, call: Call) -> Any:
    """The logged models of some experiments that match a filter."""
    request = search_of(call)
    conditions = parse_filter(request.filter, ATTRIBUTES, NUMBERS)
    orders = parse_order([*request.order_by, "creation_time DESC"], ATTRIBUTES)
    found = []
    for _, run_id, state in states(mlflow, call, request):
        for model in models_of(state):
            entity = as_entity(model, state.created.experiment_id)
            if all(condition.holds(entity) for condition in conditions):
                found.append((entity, shown_model(model, run_id, state.created.experiment_id)))
    page, token = page_of(ordered(found, orders), request.max_results, request.page_token)
    return paged({"models": list(page)}, token)


def list_model_files(mlflow: Mlflow, call: Call) -> Any:
    """The files in a folder of a logged model."""
    run_id, project = _model_place(mlflow, call)
    experiment_id, model_id = _experiment_id(mlflow, project, run_id), call.path["model_id"]
    inner = call.query.get("artifact_directory_path", "").strip("/")
    root = f"{experiment_id}/models/{model_id}/artifacts"
    files = mlflow.files.listed(project, place_of(f"{root}/{inner}"), whole_paths=True)
    return {"root_uri": f"mlflow-artifacts:/{root}", "files": files}


def _model_place(mlflow: Mlflow, call: Call) -> tuple[str, str]:
    model_id = call.path["model_id"]
    run_id = run_of_model(model_id)
    try:
        return run_id, mlflow.project(call, run_id)
    except MlflowError:
        raise MlflowError(MISSING, f"There is no model with the id {model_id!r:.80}.") from None


def _experiment_id(mlflow: Mlflow, project: str, run_id: str) -> str:
    with mlflow.runs.reading(project, run_id) as state:
        return state.created.experiment_id
