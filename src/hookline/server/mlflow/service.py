"""`Mlflow`: the state behind the routes of MLflow's clients; `Call`: a request with its access rights."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from starlette.requests import Request

from hookline.server.endpoint import WriteContext, principal_of, visible_scope
from hookline.server.limits import UploadSlots
from hookline.server.mlflow.experiments import Experiment, ExperimentFiles, Experiments
from hookline.server.mlflow.files import MlflowFiles
from hookline.server.mlflow.messages import MISSING, MlflowError
from hookline.server.mlflow.models import MlflowModels
from hookline.server.mlflow.runs import MlflowRuns
from hookline.server.received_artifacts import ReceivedArtifacts
from hookline.server.received_blobs import ReceivedBlobs
from hookline.server.received_runs import ReceivedRuns
from hookline.server.tokens import Principal, ProjectScope

WRITTEN = "run.written"
"""The action of the audit log for everything that a training sends."""


@dataclass(frozen=True, slots=True)
class Call:
    """A request with its access rights."""

    query: Mapping[str, str]
    path: Mapping[str, str]
    body: bytes
    principal: Principal
    scope: ProjectScope
    address: str = ""
    runs: Sequence[str] = ()
    """The values of a parameter ``run_ids``, which is repeated."""
    named: list[tuple[str, str]] = field(default_factory=list)
    """The projects and runs that it was found to name; those of an experiment without a run."""


@dataclass(slots=True)
class Mlflow:
    """The state that the routes share."""

    context: WriteContext
    experiments: Experiments
    runs: MlflowRuns
    files: MlflowFiles
    models: MlflowModels
    uploads: UploadSlots = field(default_factory=UploadSlots)

    @classmethod
    def over(
        cls,
        context: WriteContext,
        stored: ExperimentFiles,
        archive: Callable[[str, str, bool], None] = lambda project, run, hidden: None,
    ) -> "Mlflow":
        """Create the state for received runs.

        Args:
            stored: The files of the experiments.
            archive: Hides a deleted run in hookline's listings.
        """
        received: ReceivedRuns = context.received
        blobs: ReceivedBlobs = context.blobs
        artifacts: ReceivedArtifacts = context.artifacts
        experiments = Experiments(received.root, stored, received.clock)
        runs = MlflowRuns(received, experiments, archive, received.clock)
        files = MlflowFiles(runs, blobs, received.clock)
        return cls(context, experiments, runs, files, MlflowModels(runs, artifacts, received.clock))

    def experiment(self, call: Call, experiment_id: str) -> Experiment:
        """An experiment that a request may see.

        Raises:
            MlflowError: There is none.
        """
        found = self.experiments.by_id(experiment_id)
        if not call.scope.allows(found.project):
            self.note_claim(call, found.project, "", "refused: another project")
            raise MlflowError(MISSING, f"There is no experiment with the id {experiment_id!r:.80}.")
        call.named.append((found.project, ""))
        return found

    def project(self, call: Call, run_id: str) -> str:
        """The project of a run that a request may see.

        Raises:
            MlflowError: There is no such run.
        """
        project, _ = self.runs.place(run_id)
        if not call.scope.allows(project):
            # Without the run, which need not exist: a client could fill the log with names that it makes up.
            self.note_claim(call, project, "", "refused: another project")
            raise MlflowError(MISSING, f"There is no run with the id {run_id!r:.80}.")
        call.named.append((project, run_id))
        return project

    def note_claim(self, call: Call, project: str, run: str, result: str = "ok") -> None:
        """Note in the audit log that a token was used for a run, once."""
        if self.context.audit is not None:
            about = {"address": call.address, "project": project, "target": run, "result": result}
            self.context.audit.record_first("run.claimed", call.principal, **about)

    def note_change(self, call: Call, action: str) -> None:
        """Note in the audit log that a request has changed the runs or the experiments that it named.

        A run that is being trained changes all the time: ``run.written`` gets one entry for each token, address and
        run. Other changes are rare, but a client can cause them at will, so they are counted.
        """
        if self.context.audit is None:
            return
        note = self.context.audit.record_first if action == WRITTEN else self.context.audit.count
        for project, run in dict.fromkeys(call.named):
            if bool(run) == action.startswith("run."):
                note(action, call.principal, address=call.address, project=project, target=run)


def call_of(request: Request, body: bytes = b"") -> Call:
    """A request with its unpacked body."""
    address = request.client.host if request.client else ""
    query, path = dict(request.query_params), {name: str(value) for name, value in request.path_params.items()}
    runs = request.query_params.getlist("run_ids")
    return Call(query, path, body, principal_of(request), visible_scope(request), address, runs)
