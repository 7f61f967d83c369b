"""`Api`: the entry point to recorded runs, artifacts and sweeps below a root."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from hookline._engine.errors import HooklineError, closest
from hookline._record.artifact_versions import ArtifactFolder, artifact_folders
from hookline.compat.wandb.active import current_project, current_root
from hookline.compat.wandb.artifacts import Artifact, ArtifactCollection, find_artifact
from hookline.compat.wandb.errors import CommError, UnsupportedError
from hookline.compat.wandb.public_api import filters as run_filters
from hookline.compat.wandb.public_api import sweeps
from hookline.compat.wandb.public_api.runs import Run, Runs
from hookline.compat.wandb.sweeps import load_sweep, sweep_ids
from hookline.store.run_info import RunInfo
from hookline.store.runs import runs as list_runs

_NOT_OFFERED = frozenset(
    (  # noqa: SIM905
        "automation automations create_automation create_custom_chart create_registry create_run_queue create_team "
        "create_user delete_automation integrations job list_jobs organization queued_run registries registry reports "
        "run_queue slack_integrations team update_automation upsert_run_queue user users webhook_integrations"
    ).split()
)
"""Methods of wandb's `Api` for features of its servers."""


class Project:
    """A project: a folder of runs.

    Attributes:
        name: Its name.
        entity: The entity that it was asked for.
    """

    def __init__(self, name: str, entity: str, root: Path) -> None:
        self.name, self.entity, self._root = name, entity, root

    def __repr__(self) -> str:
        return f"<Project {'/'.join(self.path)}>"

    @property
    def path(self) -> list[str]:
        """The entity, if there is one, and the name."""
        return [part for part in (self.entity, self.name) if part]

    @property
    def url(self) -> str:
        """The address of its folder."""
        return (self._root / self.name).as_uri()

    def runs(self, **options: Any) -> Runs:
        """Return its runs, with the options of `Api.runs`."""
        return Api(overrides={"root": self._root}).runs("/".join(self.path), **options)

    def sweeps(self) -> list[Any]:
        """Return its sweeps."""
        api = Api(overrides={"root": self._root})
        return [api.sweep(f"{self.name}/{each}") for each in sweep_ids(self._root / self.name)]


class ArtifactType:
    """A type of artifacts of a project.

    Attributes:
        name: The type.
    """

    def __init__(self, name: str, collections: Sequence[ArtifactCollection]) -> None:
        self.name, self._collections = name, list(collections)

    def collections(self, **_: Any) -> list[ArtifactCollection]:
        """Return its artifacts."""
        return self._collections

    def collection(self, name: str) -> ArtifactCollection:
        """Return an artifact by its name."""
        found = next((each for each in self._collections if each.name == name), None)
        if found is None:
            raise CommError(f"There is no artifact {name!r} of the type {self.name!r}.")
        return found


class Api:
    """Finds recorded runs.

    Args:
        overrides: ``entity``, ``project`` and ``run`` that paths leave out; ``root``, where runs are recorded.
        timeout: Accepted.
        api_key: Accepted; there are no accounts.
    """

    def __init__(
        self, overrides: Mapping[str, Any] | None = None, timeout: int | None = None, api_key: str | None = None
    ) -> None:
        given = dict(overrides or {})
        root = given.pop("root", None)
        self._root = current_root() if root is None else Path(root).absolute()
        project = given.get("project")
        self.settings: dict[str, Any] = {
            "entity": given.get("entity") or given.get("username"),
            "project": current_project() if project is None else project,
            "run": given.get("run"),
            "base_url": "",
        }

    def __getattr__(self, name: str) -> Any:
        if name not in _NOT_OFFERED:
            raise AttributeError(f"'Api' object has no attribute {name!r}. {closest(name, dir(type(self)))}")

        def refuse(*args: Any, **kwargs: Any) -> NoReturn:
            raise UnsupportedError(f"Api.{name} is a feature of W&B's servers, which hookline does not have.")

        return refuse

    @property
    def root(self) -> Path:
        """Where runs are recorded."""
        return self._root

    @property
    def default_entity(self) -> str | None:
        """The entity that paths leave out."""
        return self.settings["entity"]  # type: ignore[no-any-return]

    @property
    def viewer(self) -> Any:
        """The user of this machine."""
        from types import SimpleNamespace

        from hookline._record.run_directory import user_name

        name = user_name()
        return SimpleNamespace(username=name, name=name, entity=self.default_entity or name, email=None, teams=[])

    def flush(self) -> None:
        """Do nothing: each call reads the current records."""

    def runs(
        self,
        path: str | None = None,
        filters: Mapping[str, Any] | None = None,
        order: str = "+created_at",
        per_page: int = 50,
        include_sweeps: bool = True,
        lazy: bool = True,
    ) -> Runs:
        """Return the runs of a project.

        Args:
            path: ``[entity/]project``; the present project by default.
            filters: A filter in the style of MongoDB, see `hookline.compat.wandb.public_api.filters`.
            order: A field, with ``+`` or ``-`` in front: ``-summary_metrics.acc``.
            per_page: Accepted.
            include_sweeps: Accepted.
            lazy: Accepted.

        Raises:
            ValueError: There is no such project.
        """
        entity, project = self._project_of(path)
        found = [Run(info, entity, api=self) for info in self._infos(project)]
        if not found and not (self._root / project).is_dir():
            raise ValueError(f"Could not find project {path or project!r} in {self._root}.")
        kept = [run for run in found if run_filters.matches(run, filters or {})]
        return Runs(run_filters.ordered(kept, order))

    def run(self, path: str = "") -> Run:
        """Return a run.

        Args:
            path: ``[entity/][project/]id``.

        Raises:
            CommError: There is no such run.
        """
        parts = [part for part in path.strip("/").split("/") if part not in ("", "runs")]
        run_id = parts[-1] if parts else self.settings["run"]
        project = parts[-2] if len(parts) > 1 else self.settings["project"]
        entity = parts[-3] if len(parts) > 2 else self.settings["entity"] or ""
        for info in reversed(self._infos(str(project))):  # the latest of those with one id
            run = Run(info, entity, api=self)
            if run_id in (run.id, info.directory.name):
                return run
        raise CommError(f"Could not find run {path!r} in {self._root}.")

    def from_path(self, path: str) -> Any:
        """Return the run, the project or the sweep of a path.

        Args:
            path: ``[entity/]project[/id]``, or ``[entity/]project/sweeps/id``.
        """
        parts = path.strip("/").split("/")
        if "sweeps" in parts:
            return self.sweep(path)
        try:
            return self.run(path)
        except CommError:
            return self.project(parts[-1], entity=parts[0] if len(parts) > 1 else None)

    def projects(self, entity: str | None = None, per_page: int = 200) -> list[Project]:
        """Return all projects.

        Args:
            entity: Kept; hookline has none.
            per_page: Accepted.
        """
        names = sorted({info.project for info in self._infos(None)})
        return [Project(name, entity or "", self._root) for name in names]

    def project(self, name: str, entity: str | None = None) -> Project:
        """Return a project.

        Args:
            name: Its name.
            entity: Kept.
        """
        return Project(name, entity or "", self._root)

    def create_project(self, name: str, entity: str = "") -> None:
        """Create the folder of a project."""
        (self._root / name).mkdir(parents=True, exist_ok=True)

    def create_run(self, **_: Any) -> NoReturn:
        """Raise an error: `init` begins runs."""
        raise UnsupportedError("Api.create_run: begin a run with wandb.init.")

    def sweep(self, path: str = "") -> Any:
        """Return a sweep.

        Args:
            path: ``[entity/][project/]id``.
        """
        parts = [part for part in path.strip("/").split("/") if part != "sweeps"]
        project = parts[-2] if len(parts) > 1 else str(self.settings["project"])
        entity = parts[-3] if len(parts) > 2 else ""
        return sweeps.Sweep(load_sweep(self._root / project, parts[-1]), self, project, entity)

    def artifact(self, name: str, type: str | None = None) -> Artifact:  # noqa: A002 - wandb's name
        """Return a version of an artifact.

        Args:
            name: ``[entity/][project/]name[:alias]``.
            type: Its type, to be checked.

        Raises:
            CommError: There is none.
        """
        return find_artifact(name, root=self._root, project=str(self.settings["project"]), type=type)

    def artifact_exists(self, name: str, type: str | None = None) -> bool:  # noqa: A002
        """Return whether there is a version of an artifact; the arguments are those of `artifact`."""
        try:
            self.artifact(name, type)
        except (CommError, ValueError):
            return False
        return True

    def artifact_collection_exists(self, name: str, type: str) -> bool:  # noqa: A002
        """Return whether there is an artifact of a name and a type."""
        return any(each.name == name.rpartition("/")[2] and each.type == type for each in self._collections(None))

    def artifact_types(self, project: str | None = None) -> list[ArtifactType]:
        """Return the types of the artifacts of a project."""
        found: dict[str, list[ArtifactCollection]] = {}
        for each in self._collections(project):
            found.setdefault(each.type, []).append(each)
        return [ArtifactType(name, own) for name, own in sorted(found.items())]

    def artifact_type(self, type_name: str, project: str | None = None) -> ArtifactType:
        """Return a type of the artifacts of a project."""
        return next(
            (each for each in self.artifact_types(project) if each.name == type_name), ArtifactType(type_name, [])
        )

    def artifact_collections(self, project_name: str, type_name: str, per_page: int = 50) -> list[ArtifactCollection]:
        """Return the artifacts of a project and a type."""
        return self.artifact_type(type_name, project_name).collections()

    def artifact_collection(self, type_name: str, name: str) -> ArtifactCollection:
        """Return an artifact with all its versions.

        Args:
            type_name: Its type.
            name: ``[entity/][project/]name``.
        """
        parts = name.split("/")
        project = parts[-2] if len(parts) > 1 else None
        return self.artifact_type(type_name, project).collection(parts[-1])

    def artifacts(
        self, type_name: str, name: str, per_page: int = 50, tags: Sequence[str] | None = None
    ) -> list[Artifact]:
        """Return the versions of an artifact, the latest first.

        Args:
            type_name: Its type.
            name: ``[entity/][project/]name``.
            per_page, tags: Accepted.
        """
        return self.artifact_collection(type_name, name).artifacts()

    artifact_versions = artifacts

    def sync_tensorboard(self, root_dir: str, **_: Any) -> NoReturn:
        """Raise an error: ``hookline runs import`` reads event files."""
        raise UnsupportedError(f"Api.sync_tensorboard: run `hookline runs import {root_dir}`.")

    def _collections(self, project: str | None) -> Iterator[ArtifactCollection]:
        wanted = str(self.settings["project"]) if project is None else project.rpartition("/")[2]
        for folder in artifact_folders(self._root, wanted):
            yield ArtifactCollection(folder, _kind_of(folder))

    def _project_of(self, path: str | None) -> tuple[str, str]:
        parts = [part for part in (path or "").strip("/").split("/") if part]
        project = parts[-1] if parts else str(self.settings["project"])
        return (parts[-2] if len(parts) > 1 else self.settings["entity"] or ""), project

    def _infos(self, project: str | None) -> list[RunInfo]:
        if not self._root.is_dir():
            return []
        found = [info for info in list_runs(self._root) if project is None or info.project == project]
        return sorted(found, key=lambda info: info.started or 0.0)

    def info(self, run: str) -> RunInfo:
        """Return a run as hookline lists it, by hookline's id of it."""
        return list_runs(self._root)[run]


def _kind_of(folder: ArtifactFolder) -> str:
    try:
        return folder.manifest(folder.versions()[-1]).kind
    except HooklineError:  # a damaged version
        return "unknown"
