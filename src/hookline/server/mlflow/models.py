"""`MlflowModels`: logged models, each of which belongs to a run of its experiment.

A model that was logged without a run gets a run of its own. A complete model becomes a version of an artifact of its
run, with the model's files, so that pages and commands show it too.
"""

import re
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from hookline._engine.errors import HooklineError
from hookline._record.artifact_saving import ARTIFACT_SAVED
from hookline._record.artifact_versions import ArtifactFile, content_digest
from hookline._record.records import Event, parse_nonfinite
from hookline.server.mlflow.experiments import Experiment
from hookline.server.mlflow.files import run_of_model
from hookline.server.mlflow.messages import (
    INVALID,
    MAX_NAME,
    MAX_PARAM,
    MAX_TAG,
    MAX_TEXTS,
    MISSING,
    ChangeModel,
    CreateModel,
    CreateRun,
    KeyValue,
    MlflowError,
    RunRequest,
    checked_texts,
    shown_texts,
)
from hookline.server.mlflow.runs import MlflowRuns, NewChange
from hookline.server.mlflow.search import Entity
from hookline.server.mlflow.state import ORIGIN, Change, Model, RunState, StoredFile, model_folder
from hookline.server.received_artifacts import ReceivedArtifacts, SentArtifact, SentFile, SentManifest

READY = "LOGGED_MODEL_READY"
STATUSES = (READY, "LOGGED_MODEL_PENDING", "LOGGED_MODEL_UPLOAD_FAILED")
_MAX_MODELS, _MAX_MODEL_PARAMS = 1000, 1000
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]+")


@dataclass(slots=True)
class MlflowModels:
    """Creates, changes and reads logged models.

    Args:
        clock: Seconds since 1970.
    """

    runs: MlflowRuns
    artifacts: ReceivedArtifacts
    clock: Callable[[], float] = time.time

    def create(self, request: CreateModel, experiment: Experiment, user: str) -> tuple[str, Model]:
        """Create a model, and return the id of its run and the model.

        Raises:
            MlflowError: Something is not accepted.
        """
        params = checked_texts("param", request.params[:_MAX_MODEL_PARAMS], MAX_PARAM)
        tags = checked_texts("tag", request.tags[:MAX_TEXTS], MAX_TAG)
        name = request.name[:MAX_NAME] or f"model-{secrets.token_hex(4)}"
        if not name.isprintable():
            raise MlflowError(INVALID, f"name={name!r:.80}: give printable characters.")
        run_id = request.source_run_id
        if run_id:
            project, _ = self.runs.place(run_id)
        else:
            made = CreateRun(experiment.id, user, name, tags=[KeyValue("mlflow.source.type", "MODEL")])
            run_id, _ = self.runs.create(made, experiment, user)
            project = experiment.project
            self.runs.update(project, run_id, RunRequest(status="FINISHED", end_time=round(self.clock() * 1000)))
        now = round(self.clock() * 1000)
        model = Model(
            f"m-{run_id}{secrets.token_hex(4)}",
            name,
            request.model_type[:MAX_NAME],
            request.source_run_id,
            created=now,
            updated=now,
            params=params,
            tags=tags,
        )

        def add(state: RunState) -> NewChange:
            if state.created.experiment_id != experiment.id:
                raise MlflowError(INVALID, f"The run {run_id} belongs to another experiment.")
            if len(state.models) >= _MAX_MODELS:
                raise MlflowError(INVALID, f"The run {run_id} has {_MAX_MODELS:,} models; no others are accepted.")
            return Change(model=model), ()

        self.runs.change_from(project, run_id, add)
        return run_id, model

    def get(self, project: str, model_id: str, *, with_deleted: bool = True) -> Model:
        """Find a model.

        Raises:
            MlflowError: There is none.
        """
        with self.runs.reading(project, run_of_model(model_id)) as state:
            return _model(state, model_id, with_deleted=with_deleted)

    def change(
        self, project: str, model_id: str, request: ChangeModel, *, untagged: str = "", stage: str | None = None
    ) -> Model:
        """Change the status, params or tags of a model, or delete it.

        Raises:
            MlflowError: There is no such model, or something is not accepted.
        """
        run_id = run_of_model(model_id)
        if request.status and request.status not in STATUSES:
            raise MlflowError(INVALID, f"status={request.status!r:.80}: give {', '.join(STATUSES)}.")
        params = checked_texts("param", request.params[:_MAX_MODEL_PARAMS], MAX_PARAM)
        tags = checked_texts("tag", request.tags[:MAX_TEXTS], MAX_TAG)
        changed = Model(model_id)

        def apply(state: RunState) -> NewChange:
            nonlocal changed
            model = _model(state, model_id, with_deleted=True)
            if untagged and untagged not in model.tags:
                raise MlflowError(MISSING, f"The model {model_id} has no tag {untagged!r:.80}.")
            changed = msgspec.structs.replace(
                model,
                status=request.status or model.status,
                stage=stage or model.stage,
                params=model.params | params,
                tags={key: value for key, value in (model.tags | tags).items() if key != untagged},
                updated=round(self.clock() * 1000),
            )
            files = {path: file for path, file in state.files.items() if path.startswith(model_folder(model_id))}
            is_complete = changed.status == READY and model.status != READY and files
            event = self._as_artifact(project, run_id, changed, files) if is_complete else None
            return Change(model=changed), [] if event is None else [event]

        # The journal has the whole model: of two changes made from one state, the later would undo the other.
        self.runs.change_from(project, run_id, apply)
        return changed

    def _as_artifact(self, project: str, run_id: str, model: Model, files: dict[str, StoredFile]) -> Event | None:
        """Save the files of a model as a version of an artifact."""
        name = _NOT_IN_NAMES.sub("-", model.name).strip("-.")[:128] or "model"
        start = model_folder(model.model_id)
        own = [ArtifactFile(path.removeprefix(start), file.size, file.blob) for path, file in files.items()]
        metadata = {"model_id": model.model_id, "mlflow": {"model_type": model.model_type, "params": model.params}}
        digest = content_digest("model", metadata, own)
        listed = [SentFile(file.path, file.size, file.blob) for file in own]
        manifest = SentManifest("model", msgspec.Raw(msgspec.json.encode(metadata)), listed)
        sent = SentArtifact("saved", name, digest, self.clock(), manifest=manifest)
        try:
            reply = self.artifacts.receive(project, run_id, origin=ORIGIN, sent=sent)
        except HooklineError:  # no space, or paths that artifacts do not allow: the model is complete in any case
            return None
        facts = {"version": reply.version, "new": True, "kind": "model", "digest": digest, "aliases": []}
        facts |= {"files": len(own), "bytes": sum(file.size or 0 for file in own)}
        return Event(time=self.clock(), name=ARTIFACT_SAVED, data={"artifact": f"{project}/{name}", **facts})


def models_of(state: RunState) -> Iterator[Model]:
    """The models of a run that are not deleted."""
    return (model for model in state.models.values() if model.stage == "active")


def as_entity(model: Model, experiment_id: str) -> Entity:
    """Return a model as an entity for searches."""
    attributes = {
        "model_id": model.model_id,
        "model_name": model.name,
        "name": model.name,
        "model_type": model.model_type,
        "status": model.status.removeprefix("LOGGED_MODEL_"),
        "source_run_id": model.source_run_id,
        "experiment_id": experiment_id,
        "creation_timestamp": model.created,
        "creation_time": model.created,
        "last_updated_timestamp": model.updated,
        "last_updated_time": model.updated,
    }
    metrics = {each.key: float(parse_nonfinite(each.value)) for each in model.metrics}
    return Entity(attributes, metrics, model.params, model.tags)


ATTRIBUTES = tuple(as_entity(Model(""), "").attributes)
NUMBERS = tuple(name for name in ATTRIBUTES if "time" in name)


def shown_model(model: Model, run_id: str, experiment_id: str) -> dict[str, Any]:
    """Return a model as sent to clients."""
    info = {
        "model_id": model.model_id,
        "experiment_id": experiment_id,
        "name": model.name,
        "creation_timestamp_ms": model.created,
        "last_updated_timestamp_ms": model.updated,
        "artifact_uri": f"mlflow-artifacts:/{experiment_id}/models/{model.model_id}/artifacts",
        "status": model.status,
        "model_type": model.model_type,
        "source_run_id": model.source_run_id,
        "tags": shown_texts(model.tags),
    }
    metrics = [
        {**msgspec.to_builtins(each), "step": each.step, "model_id": model.model_id, "run_id": run_id}
        for each in model.metrics
    ]
    return {"info": info, "data": {"params": shown_texts(model.params), "metrics": metrics}}


def _model(state: RunState, model_id: str, *, with_deleted: bool) -> Model:
    model = state.models.get(model_id)
    if model is None or not (with_deleted or model.stage == "active"):
        raise MlflowError(MISSING, f"There is no model with the id {model_id!r:.80}.")
    return model
