"""Handlers for experiments, runs and metrics: each takes a request and returns the response's content."""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from hookline.server.endpoint import check_project
from hookline.server.limits import MAX_INTEGER
from hookline.server.mlflow.experiments import DEFAULT_ID
from hookline.server.mlflow.messages import (
    BAD_STATE,
    INVALID,
    MAX_TAG,
    MISSING,
    NOT_OFFERED,
    CreateExperiment,
    CreateRun,
    ExperimentRequest,
    KeyValue,
    LogBatch,
    LogInputs,
    LogMetric,
    LogModel,
    MlflowError,
    RunRequest,
    Search,
    SentMetric,
    checked_texts,
    decoded,
)
from hookline.server.mlflow.records import shown_info, shown_metric, shown_run
from hookline.server.mlflow.runs import MAX_HISTORY, NewChange
from hookline.server.mlflow.search import Entity, ordered, page_of, parse_filter, parse_order
from hookline.server.mlflow.service import Call, Mlflow
from hookline.server.mlflow.state import Change, RunState
from hookline.store.query_limits import check_limits

Handler = Callable[[Mlflow, Call], Any]

_MAX_SEARCHED = 1000
_MAX_INTERVAL_RUNS, _MAX_INTERVAL_POINTS = 100, 2500
_HELD_POINTS = 8
"""How many times the requested number of points is held while a history is thinned."""
_RUN_ATTRIBUTES = ("run_id", "run_name", "user_id", "status", "start_time", "end_time", "artifact_uri")
_RUN_NUMBERS = ("start_time", "end_time")
_EXPERIMENT_ATTRIBUTES = ("name", "experiment_id", "creation_time", "last_update_time")
_EXPERIMENT_NUMBERS = ("creation_time", "last_update_time")


def create_experiment(mlflow: Mlflow, call: Call) -> Any:
    """Create an experiment."""
    request = decoded(call.body, CreateExperiment)

    def check(project: str) -> None:
        if not call.scope.allows(project):
            mlflow.note_claim(call, project, "", "refused: another project")
        check_project(call.scope, project)

    created = mlflow.experiments.create(request.name, request.tags, check)
    call.named.append((created.project, ""))
    return {"experiment_id": created.id}


def get_experiment(mlflow: Mlflow, call: Call) -> Any:
    """An experiment by its id."""
    return {"experiment": mlflow.experiment(call, call.query.get("experiment_id", "")).shown()}


def get_experiment_by_name(mlflow: Mlflow, call: Call) -> Any:
    """An experiment by its name."""
    name = call.query.get("experiment_name", "")
    found = mlflow.experiments.by_name(name)
    if not call.scope.allows(found.project):
        raise MlflowError(MISSING, f"There is no experiment called {name!r:.80}.")
    return {"experiment": found.shown()}


def search_experiments(mlflow: Mlflow, call: Call) -> Any:
    """The experiments that match a filter."""
    request = search_of(call)
    conditions = parse_filter(request.filter, _EXPERIMENT_ATTRIBUTES, _EXPERIMENT_NUMBERS)
    orders = parse_order(request.order_by or ["creation_time DESC", "name"], _EXPERIMENT_ATTRIBUTES)
    found = []
    for each in mlflow.experiments.all():
        if call.scope.allows(each.project) and has_stage(each.stage, request.view_type):
            about: dict[str, Any] = {"name": each.name, "experiment_id": each.id}
            about |= {"creation_time": each.created, "last_update_time": each.updated}
            entity = Entity(about, tags=each.tags)
            if all(condition.holds(entity) for condition in conditions):
                found.append((entity, each))
    page, token = page_of(ordered(found, orders), request.max_results, request.page_token)
    return paged({"experiments": [each.shown() for each in page]}, token)


def change_experiment(stage: str | None = None) -> Handler:
    """Delete or restore an experiment; renaming is refused."""

    def handle(mlflow: Mlflow, call: Call) -> Any:
        request = decoded(call.body, ExperimentRequest)
        found = mlflow.experiment(call, request.experiment_id)
        if stage == "deleted" and found.id == DEFAULT_ID:
            raise MlflowError(BAD_STATE, f"The experiment {found.name!r} cannot be deleted.")
        if stage is not None:
            mlflow.experiments.change(found.id, stage=stage)
        elif request.new_name and request.new_name != found.name:
            raise MlflowError(
                NOT_OFFERED, f"The experiment {found.name!r:.80} is a project of hookline, which cannot be renamed."
            )
        return {}

    return handle


def set_experiment_tag(mlflow: Mlflow, call: Call) -> Any:
    """Set a tag of an experiment."""
    request = decoded(call.body, ExperimentRequest)
    tags = checked_texts("tag", [KeyValue(request.key, request.value)], MAX_TAG)
    mlflow.experiments.change(mlflow.experiment(call, request.experiment_id).id, tags=tags)
    return {}


def delete_experiment_tag(mlflow: Mlflow, call: Call) -> Any:
    """Remove a tag of an experiment."""
    request = decoded(call.body, ExperimentRequest)
    mlflow.experiments.change(mlflow.experiment(call, request.experiment_id).id, untagged=request.key)
    return {}


def create_run(mlflow: Mlflow, call: Call) -> Any:
    """Create a run."""
    request = decoded(call.body, CreateRun)
    experiment = mlflow.experiment(call, request.experiment_id or DEFAULT_ID)
    run_id, state = mlflow.runs.create(request, experiment, call.principal.name)
    mlflow.note_claim(call, experiment.project, run_id)
    return {"run": shown_run(run_id, state)}


def get_run(mlflow: Mlflow, call: Call) -> Any:
    """A run with its latest metrics, params and tags."""
    run_id = call.query.get("run_id") or call.query.get("run_uuid") or ""
    with mlflow.runs.reading(mlflow.project(call, run_id), run_id) as state:
        return {"run": shown_run(run_id, state)}


def update_run(mlflow: Mlflow, call: Call) -> Any:
    """Change the status, the end and the name of a run."""
    request = decoded(call.body, RunRequest)
    state = mlflow.runs.update(mlflow.project(call, request.id), request.id, request)
    return {"run_info": shown_info(request.id, state)}


def set_stage(stage: str) -> Handler:
    """Delete or restore a run."""

    def handle(mlflow: Mlflow, call: Call) -> Any:
        run_id = decoded(call.body, RunRequest).id
        mlflow.runs.set_stage(mlflow.project(call, run_id), run_id, stage)
        return {}

    return handle


def log_metric(mlflow: Mlflow, call: Call) -> Any:
    """Record one value of a metric."""
    request = decoded(call.body, LogMetric)
    about = request.model_id, request.dataset_name, request.dataset_digest
    metric = SentMetric(request.key, request.value, request.timestamp, request.step, *about)
    mlflow.runs.log(mlflow.project(call, request.id), request.id, LogBatch(request.id, [metric]))
    return {}


def log_param(mlflow: Mlflow, call: Call) -> Any:
    """Record one param."""
    request = decoded(call.body, RunRequest)
    batch = LogBatch(request.id, params=[KeyValue(request.key, request.value)])
    mlflow.runs.log(mlflow.project(call, request.id), request.id, batch)
    return {}


def set_tag(mlflow: Mlflow, call: Call) -> Any:
    """Set one tag."""
    request = decoded(call.body, RunRequest)
    batch = LogBatch(request.id, tags=[KeyValue(request.key, request.value)])
    mlflow.runs.log(mlflow.project(call, request.id), request.id, batch)
    return {}


def delete_tag(mlflow: Mlflow, call: Call) -> Any:
    """Remove a tag."""
    request = decoded(call.body, RunRequest)
    mlflow.runs.untag(mlflow.project(call, request.id), request.id, request.key)
    return {}


def log_batch(mlflow: Mlflow, call: Call) -> Any:
    """Record metrics, params and tags."""
    request = decoded(call.body, LogBatch)
    mlflow.runs.log(mlflow.project(call, request.run_id), request.run_id, request)
    return {}


def log_inputs(*, are_outputs: bool) -> Handler:
    """Record which data sets and models a run uses, or which models it makes."""

    def handle(mlflow: Mlflow, call: Call) -> Any:
        request = decoded(call.body, LogInputs)
        project = mlflow.project(call, request.run_id)
        mlflow.runs.log_inputs(project, request.run_id, request, are_outputs=are_outputs)
        return {}

    return handle


def log_model(mlflow: Mlflow, call: Call) -> Any:
    """Note a model in a tag of its run, as old clients ask for it."""
    request = decoded(call.body, LogModel)
    key, project = "mlflow.log-model.history", mlflow.project(call, request.run_id)

    def add(state: RunState) -> NewChange:
        try:
            before = msgspec.json.decode(state.tags.get(key, "[]"), type=list[Any])
            history = [*before, msgspec.json.decode(request.model_json)]
        except (msgspec.DecodeError, RecursionError) as error:
            raise MlflowError(INVALID, f"model_json is not valid: {error}.") from None
        while len(text := msgspec.json.encode(history).decode()) > MAX_TAG and history:
            del history[0]  # drop the oldest: a tag has room for a few only
        return Change(tags=checked_texts("tag", [KeyValue(key, text)], MAX_TAG)), ()

    mlflow.runs.change_from(project, request.run_id, add)
    return {}


def search_runs(mlflow: Mlflow, call: Call) -> Any:
    """The runs of some experiments that match a filter."""
    request = search_of(call)
    conditions = parse_filter(request.filter, _RUN_ATTRIBUTES, _RUN_NUMBERS)
    orders = parse_order([*request.order_by, "start_time DESC", "run_id"], _RUN_ATTRIBUTES)
    found = []
    for project, run_id, state in states(mlflow, call, request):
        if has_stage(state.stage, request.run_view_type):
            entity = _run_entity(run_id, state)
            if all(condition.holds(entity) for condition in conditions):
                found.append((entity, (project, run_id)))
    page, token = page_of(ordered(found, orders), request.max_results, request.page_token)
    shown = []
    for project, run_id in page:
        with contextlib.suppress(MlflowError), mlflow.runs.reading(project, run_id) as state:
            shown.append(shown_run(run_id, state))
    return paged({"runs": shown}, token)


def states(mlflow: Mlflow, call: Call, request: Search) -> Iterator[tuple[str, str, RunState]]:
    """The runs of the experiments of a search."""
    if len(request.experiment_ids) > _MAX_SEARCHED:
        raise MlflowError(INVALID, f"Search at most {_MAX_SEARCHED:,} experiments at a time.")
    for experiment_id in dict.fromkeys(request.experiment_ids):
        experiment = mlflow.experiments.find(experiment_id)
        if experiment is None or not call.scope.allows(experiment.project):
            continue
        for run_id in mlflow.runs.ids_of(experiment):
            check_limits()
            # Runs that were just deleted, or are just being created, are skipped.
            with contextlib.suppress(MlflowError), mlflow.runs.reading(experiment.project, run_id) as state:
                yield experiment.project, run_id, state


def _run_entity(run_id: str, state: RunState) -> Entity:
    about = {
        "run_id": run_id,
        "run_name": state.name,
        "user_id": state.created.user,
        "status": state.status,
        "start_time": state.created.start_time,
        "end_time": state.end_time,
        "artifact_uri": shown_info(run_id, state)["artifact_uri"],
    }
    metrics = {key: value for key, (_, _, value) in state.latest.items()}
    datasets: dict[str, list[str]] = {"name": [], "digest": [], "context": []}
    for each in state.datasets:
        datasets["name"].append(each.dataset.name)
        datasets["digest"].append(each.dataset.digest)
        datasets["context"] += [tag.value for tag in each.tags if tag.key == "mlflow.data.context"]
    return Entity(about, metrics, dict(state.params), dict(state.tags), datasets)


def get_history(mlflow: Mlflow, call: Call) -> Any:
    """The values of a metric."""
    run_id = call.query.get("run_id") or call.query.get("run_uuid") or ""
    limit = max(1, number_in(call.query, "max_results", MAX_HISTORY, MAX_HISTORY))
    token = call.query.get("page_token", "")
    project = mlflow.project(call, run_id)
    values, following = mlflow.runs.history(project, run_id, call.query.get("metric_key", ""), limit, token)
    return paged({"metrics": values}, following)


def get_history_interval(mlflow: Mlflow, call: Call) -> Any:
    """The values of a metric of several runs, thinned evenly."""
    if not 0 < len(call.runs) <= _MAX_INTERVAL_RUNS:
        raise MlflowError(INVALID, f"Give run_ids, 1 to {_MAX_INTERVAL_RUNS} times.")
    limit = max(1, number_in(call.query, "max_results", _MAX_INTERVAL_POINTS, _MAX_INTERVAL_POINTS))
    first = number_in(call.query, "start_step", -MAX_INTEGER, MAX_INTEGER)
    last = number_in(call.query, "end_step", MAX_INTEGER, MAX_INTEGER)
    key = call.query.get("metric_key", "")
    metrics: list[bytes] = []  # encoded run by run: as objects, those of a hundred runs would take ten times the memory
    for run_id in dict.fromkeys(call.runs):
        found = mlflow.runs.values(mlflow.project(call, run_id), run_id, key)
        kept = _thinned((value for value in found if first <= value[-1] <= last), limit)
        if kept:
            shown = [{**shown_metric(key, value, at, step), "run_id": run_id} for _, value, at, step in kept]
            metrics.append(msgspec.json.encode(shown)[1:-1])
    return {"metrics": msgspec.Raw(b"[" + b",".join(metrics) + b"]")}


def _thinned(values: Iterable[tuple[int, float, int, int]], limit: int) -> list[tuple[int, float, int, int]]:
    """About `limit` values, evenly, and the last one. Never holds more than a few times as many."""
    kept: list[tuple[int, float, int, int]] = []
    stride, latest = 1, None
    for count, latest in enumerate(values):
        if count % stride == 0:
            kept.append(latest)
            if len(kept) > _HELD_POINTS * limit:
                kept, stride = kept[::2], 2 * stride
    kept = kept[:: max(1, math.ceil(len(kept) / limit))]
    if latest is not None and kept[-1] is not latest:
        kept.append(latest)
    return kept


def search_of(call: Call) -> Search:
    """Return a request's search, from its body or its parameters."""
    if call.body:
        return decoded(call.body, Search)
    return decoded(msgspec.json.encode(dict(call.query)), Search)


def has_stage(stage: str, view: str) -> bool:
    """Whether a view includes an active or deleted entry."""
    return view == "ALL" or (stage == "active") == (view != "DELETED_ONLY")


def paged(reply: dict[str, Any], token: str) -> dict[str, Any]:
    """A reply with the token of the next page."""
    return reply | {"next_page_token": token} if token else reply


def number_in(query: Mapping[str, str], name: str, default: int, highest: int) -> int:
    """A whole number among the parameters of a request."""
    text = query.get(name, "")
    if not text:
        return default
    try:
        return min(int(text[:20]), highest)
    except ValueError:
        raise MlflowError(INVALID, f"{name}={text!r:.80}: give a whole number.") from None
