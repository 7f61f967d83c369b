"""`Run`: a run as ``wandb.init`` returns it.

What it records is a run of hookline (`hookline.compat.wandb.recording`); a run with ``mode="disabled"`` records nothing
and accepts everything. In a forked process the object records to files of its own; pickled and loaded in another
process, it attaches to the run's directory. Only the process that began the run ends it.
"""

import functools
import html
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, NoReturn, ParamSpec, Self, TextIO, TypeVar

from hookline._engine.errors import HooklineError
from hookline._engine.metrics import MediaValue
from hookline._record.recorder import Recorder
from hookline.callbacks.alert import ALERT
from hookline.compat.wandb import saved_files
from hookline.compat.wandb.artifacts import (
    Artifact,
    ArtifactNotLoggedError,
    checked_aliases,
    find_artifact,
    make_artifact_name_safe,
)
from hookline.compat.wandb.configuration import Config, ConfigStatic
from hookline.compat.wandb.errors import CommError, Error, RunStopped, UnsupportedError, UsageError
from hookline.compat.wandb.history import History, Replayed, replay
from hookline.compat.wandb.logged import capture
from hookline.compat.wandb.metrics import Definitions, Metric, checked_metric
from hookline.compat.wandb.recording import Backend, OwnBackend, id_of
from hookline.compat.wandb.run_summary import Summary, SummaryValues
from hookline.compat.wandb.settings import Settings
from hookline.compat.wandb.terminal import ignored, termerror, termwarn

if TYPE_CHECKING:
    from hookline._record.artifact_saving import ArtifactSave

P = ParamSpec("P")
T = TypeVar("T")
REGISTRY = "model-registry"
"""The project in which `Run.link_model` links models."""
MOST_OPEN_FILES = 200
"""Saving an artifact with more files blocks, because hookline keeps each file open while it copies."""
_LATEST = object()


class AlertLevel(Enum):
    """The level of an alert."""

    INFO = "INFO"
    WARN = "WARN"
    ERROR = "ERROR"


class RunStatus(NamedTuple):
    """How much of a run is not delivered yet; always zero, because the record is local."""

    sync_items_total: int = 0
    sync_items_pending: int = 0
    sync_time: Any = None


def active(method: "Callable[Concatenate[Run, P], T]") -> "Callable[Concatenate[Run, P], T]":
    """Make a method raise after its run has finished, and attach to the run in a process that unpickled it."""

    @functools.wraps(method)
    def checked(self: "Run", *args: P.args, **kwargs: P.kwargs) -> T:
        if self._is_finished:
            self._raise_finished(method.__name__)
        return method(self, *args, **kwargs)

    return checked  # type: ignore[return-value]


class Run:
    """A run that is being recorded.

    Args:
        settings: The run's settings.
        config: Its configuration.
        backend: Its record; None where nothing is recorded.
        earlier: What earlier sessions of a resumed run recorded.
        next_step: The step that it continues at.
        on_finish: Called with the run when it is finished.

    Attributes:
        summary: One value for each metric.
    """

    def __init__(
        self,
        settings: Settings,
        config: Config,
        backend: Backend | None,
        *,
        earlier: Replayed | None = None,
        next_step: int | None = None,
        on_finish: "Callable[[Run], None] | None" = None,
    ) -> None:
        self._settings, self._config, self._backend = settings, config, backend
        self._on_finish = on_finish
        self.process, self._is_finished = os.getpid(), False
        self._is_shared = settings.is_shared
        self._start_time = time.time()
        self._saves: list[tuple[Artifact, ArtifactSave]] = []
        self._alerts: dict[str, float] = {}
        self._exit_code: int | None = None
        self._watcher: Any = None
        self._synced: Any = None
        definitions = Definitions() if earlier is None else earlier.definitions
        self._values = SummaryValues(definitions) if earlier is None else earlier.summary
        self._history: History | None = None
        self._files: saved_files.SavedFiles | None = None
        self.summary = Summary(self._values, self._read_summary, self._record_summary)
        if backend is not None:
            self._attach_id: str | None = str(backend.directory)
            self._history = History(
                backend.recorder, definitions, self._values, capture=capture, boundary=backend.row_completed
            )
            if earlier is not None:
                self._history.restore(earlier, step=next_step)
            folder = backend.directory / saved_files.FILES
            folder.mkdir(exist_ok=True)
            self._files = saved_files.SavedFiles(folder, self._record_file)
        else:
            self._attach_id = None
        self._starting_step = 0 if self._history is None else self._history.step
        allows = bool(settings.allow_val_change) or is_notebook()
        record = None if backend is None else self._record_config
        config.connect(record, self._use_artifact_of_config, allows_changes=allows)

    def __repr__(self) -> str:
        return f"<hookline.compat.wandb.Run {self.path}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        failure = None if isinstance(error, RunStopped) else error
        if failure is not None:
            traceback.print_exception(kind, failure, trace)
        self._end(0 if failure is None else 1, failure)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {"_attach_id": self._attach_id, "_init_pid": os.getpid(), "_is_finished": self._is_finished}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if not isinstance(state.get("_attach_id"), str):
            raise UsageError("A run that records nothing cannot be attached to.")
        other = attached(Path(state["_attach_id"]))
        self.__dict__.update(other.__dict__)
        self._is_finished = bool(state["_is_finished"])
        self._config.connect(self._record_config, self._use_artifact_of_config, allows_changes=True)

    # What it is

    @property
    def settings(self) -> Settings:
        """A copy of its settings."""
        return self._settings.model_copy()

    @property
    def config(self) -> Config:
        """Its configuration."""
        return self._config

    @property
    def config_static(self) -> ConfigStatic:
        """A copy of its configuration that cannot be changed."""
        return ConfigStatic(self._config)

    @property
    def id(self) -> str:
        """Its id."""
        return str(self._settings.run_id)

    @property
    def name(self) -> str | None:
        """Its name."""
        return self._settings.run_name  # type: ignore[no-any-return]

    @name.setter
    @active
    def name(self, name: str) -> None:
        self._set_fact("run_name", "name", str(name))

    @property
    def notes(self) -> str | None:
        """A text about it."""
        return self._settings.run_notes  # type: ignore[no-any-return]

    @notes.setter
    @active
    def notes(self, notes: str) -> None:
        self._set_fact("run_notes", "notes", str(notes))

    @property
    def tags(self) -> tuple[str, ...]:
        """Words that it is found by."""
        return self._settings.run_tags or ()

    @tags.setter
    @active
    def tags(self, tags: Sequence[str]) -> None:
        try:
            self._set_fact("run_tags", "tags", tags)
        except UsageError as error:
            termwarn(f"Invalid tag detected: {error} Tags not updated.")

    @property
    def dir(self) -> str:
        """The folder of its files: what is written there is recorded when the run ends."""
        return str(self._require_files().folder) if self._files is not None else "/"

    @property
    def sync_dir(self) -> str:
        """Its directory."""
        return str(self.directory) if self._backend is not None else "/"

    @property
    def directory(self) -> Path:
        """Its directory, as hookline's commands take it."""
        if self._backend is None:
            raise UsageError("A run with mode='disabled' has no directory.")
        return self._backend.directory

    @property
    def entity(self) -> str:
        """The entity that was given; hookline has none."""
        return self._settings.entity or ""

    @property
    def project(self) -> str:
        """Its project."""
        return str(self._settings.project)

    @property
    def path(self) -> str:
        """``[entity/]project/id``."""
        return "/".join(part for part in (self.entity, self.project, self.id) if part)

    @property
    def group(self) -> str:
        """Its group."""
        return self._settings.run_group or ""

    @property
    def job_type(self) -> str:
        """What it does in its group."""
        return self._settings.run_job_type or ""

    @property
    def sweep_id(self) -> str | None:
        """The sweep that it belongs to."""
        return self._settings.sweep_id  # type: ignore[no-any-return]

    @property
    def start_time(self) -> float:
        """When it began, in seconds since 1970."""
        return self._start_time

    @property
    def starting_step(self) -> int:
        """The step that it began with."""
        return self._starting_step

    @property
    def step(self) -> int:
        """The step of the next call of `log`."""
        return 0 if self._history is None else self._history.step

    @property
    def resumed(self) -> bool:
        """Whether it continues an earlier run."""
        return bool(self._settings.resumed)

    @property
    def offline(self) -> bool:
        """Whether ``mode="offline"`` was given; it is recorded here in any mode."""
        return self._settings.is_offline

    @property
    def disabled(self) -> bool:
        """Whether nothing is recorded."""
        return self._backend is None

    @property
    def url(self) -> str | None:
        """The address of its directory; None offline, as in wandb."""
        return self._address(self._backend.directory if self._backend is not None else None)

    @property
    def project_url(self) -> str | None:
        """The address of its project's directory; None offline."""
        return self._address(self._backend.directory.parent if self._backend is not None else None)

    @property
    def sweep_url(self) -> str | None:
        """The address of its project's directory if it belongs to a sweep; None offline."""
        return self.project_url if self.sweep_id else None

    def get_url(self) -> str | None:
        """Return `url`; an older name."""
        return self.url

    get_project_url = get_sweep_url = get_url

    def project_name(self) -> str:
        """Return `project`; an older name."""
        return self.project

    def _get_path(self) -> str:
        return self.path

    def _address(self, directory: Path | None) -> str | None:
        if directory is None:
            return None
        if self.offline:
            termwarn("URL not available in offline run", repeat=False)
            return None
        return directory.as_uri()

    # Metrics

    def log(
        self, data: Mapping[str, Any], step: int | None = None, commit: bool | None = None, sync: bool | None = None
    ) -> None:
        """Record values: numbers, texts, lists, dicts of these, and wandb's data types.

        Without ``step`` and ``commit`` the row is complete, and the next call has the next step. A step that is lower
        than the current one is recorded there; wandb ignores it.

        Args:
            data: The values by name.
            step: The step; what is logged at one step is one row.
            commit: Whether the row is complete; by default it is without ``step``.
            sync: Accepted.

        Raises:
            TypeError: ``data`` is no dict of names, or a value cannot be recorded.
        """
        if self._is_finished or self._history is None or (step is not None and self._is_shared):
            self._log_unusual(data, commit)
        else:
            self._history.log(data, step, commit)

    def _log_unusual(self, data: Mapping[str, Any], commit: bool | None) -> None:
        if self._is_finished:
            self._raise_finished("log")
        if self._history is None:
            self.summary.update(data)
        else:
            ignored("log(step=...) of a shared run", "define a metric for the x-axis")
            self._history.log(data, None, commit)

    def _log(self, data: Mapping[str, Any], step: int | None = None, commit: bool | None = None) -> None:
        self.log(data, step, commit)

    @active
    def define_metric(
        self,
        name: str,
        step_metric: str | Metric | None = None,
        step_sync: bool | None = None,
        hidden: bool | None = None,
        summary: str | None = None,
        overwrite: bool | None = None,
        goal: str | None = None,
    ) -> Metric:
        """Define the x-axis of a metric, and which of its values the summary shows.

        Args:
            name: Its name; ``val/*`` for all that begin so.
            step_metric: The metric of its x-axis.
            step_sync: Add the last value of the x-axis to rows that have none; on with ``step_metric``.
            hidden: Leave it out of charts; recorded, and without an effect on hookline's page.
            summary: ``min``, ``max``, ``mean``, ``best``, ``first``, ``last``, ``copy``, ``none``; several with commas.
            overwrite: Replace an earlier definition instead of adding to it.
            goal: ``minimize`` or ``maximize``, for ``best``.
        """
        metric = checked_metric(name, step_metric, step_sync, hidden, summary, goal, overwrite)
        if self._history is not None:
            self._history.define(metric, overwrite=bool(overwrite))
        return metric

    @active
    def watch(
        self,
        models: Any,
        criterion: Any = None,
        log: str | None = "gradients",
        log_freq: int = 1000,
        idx: int | None = None,
        log_graph: bool = False,
    ) -> None:
        """Record histograms of the gradients and parameters of models of torch.

        Args:
            models: A model, or a list of models.
            criterion: Accepted.
            log: ``"gradients"``, ``"parameters"``, ``"all"``, or None.
            log_freq: Record every N backward or forward passes.
            idx: The number of the model in names, where several are watched.
            log_graph: Record the model as text.
        """
        if self._history is not None:
            self._require_watcher().watch(models, criterion, log, log_freq, idx, log_graph)

    @active
    def unwatch(self, models: Any = None) -> None:
        """Remove the hooks of `watch`.

        Args:
            models: A model, or a list of models; all by default.
        """
        if self._watcher is not None:
            self._watcher.unwatch(models)

    # Files and artifacts

    @active
    def save(
        self,
        glob_str: Any = None,
        base_path: Any = None,
        policy: str = "live",
        glob: bool = True,
    ) -> bool | list[str]:
        """Save files with the run, and return their places in `dir`.

        Args:
            glob_str: A path, or a pattern.
            base_path: The part of the path that is left out in `dir`.
            policy: ``"now"``, or ``"live"`` and ``"end"``, which also record the file at the end if it has changed.
            glob: Whether the path is a pattern.
        """
        if self._files is None:
            return False
        if glob_str is None:
            return True
        return self._files.save(glob_str, base_path, policy, expands=glob)

    def restore(
        self, name: str, run_path: str | None = None, replace: bool = False, root: str | None = None
    ) -> TextIO | None:
        """Copy a saved file of a run to a directory, and open it; None if there is none.

        Args:
            name: Its name.
            run_path: ``project/id``; this run by default.
            replace: Replace a file that is there.
            root: The directory; `dir` by default.
        """
        if self._backend is None:
            return None
        return saved_files.restore(
            name,
            run_path or self.path,
            home=self._root,
            project=self._project_folder,
            folder=Path(root or self.dir),
            replace=replace,
        )

    @active
    def log_artifact(
        self,
        artifact_or_path: Any,
        name: str | None = None,
        type: str | None = None,  # noqa: A002 - wandb's name
        aliases: Sequence[str] | None = None,
        tags: Sequence[str] | None = None,
    ) -> Any:
        """Save a version of an artifact.

        Args:
            artifact_or_path: An `Artifact`, a file, a directory, or an address.
            name: Its name; ``run-<id>-<file>`` by default.
            type: What it is; ``unspecified`` by default.
            aliases: Names of the version; ``latest`` comes by itself.
            tags: Accepted.
        """
        if self._backend is None:
            return _NothingLogged()
        if tags:
            ignored("log_artifact(tags=...)", "use aliases")
        names = checked_aliases(aliases)
        artifact = self._artifact_of(artifact_or_path, name, type)
        artifact.finalize()
        places, is_reference = artifact.sources()
        try:
            save = self._backend.recorder.save_artifact(
                artifact._name,
                places,
                kind=artifact.type,
                aliases=names,
                metadata=artifact.saved_metadata(),
                reference=is_reference,
                link=artifact.is_staged,
                step=self.step,
            )
        except HooklineError as error:
            raise ValueError(str(error)) from error
        artifact.begin_saving(save)
        self._saves.append((artifact, save))
        if len(places) > MOST_OPEN_FILES:
            artifact.wait()
        return artifact

    @active
    def use_artifact(
        self,
        artifact_or_name: Any,
        type: str | None = None,  # noqa: A002
        aliases: Sequence[str] | None = None,
        use_as: str | None = None,
    ) -> Any:
        """Return a version of an artifact, and record that the run uses it.

        Args:
            artifact_or_name: ``[project/]name[:alias]``, or an `Artifact`; a draft is logged first.
            type: Its type, to be checked.
            aliases: Names to give to the version.
            use_as: Accepted.
        """
        if self._backend is None:
            return None
        if isinstance(artifact_or_name, Artifact):
            artifact = artifact_or_name
            if artifact.is_draft():
                self.log_artifact(artifact, aliases=aliases)
                artifact.wait()
            elif aliases:
                artifact.aliases = [*artifact.aliases, *aliases]
        elif isinstance(artifact_or_name, str):
            self._flush_artifacts()
            artifact = find_artifact(artifact_or_name, root=self._root, project=self._project_folder, type=type)
        else:
            raise ValueError(  # noqa: TRY004 - as wandb
                'You must pass an artifact name (e.g. "pedestrian-dataset:v1"), an instance of `wandb.Artifact`, or '
                "`wandb.Api().artifact()` to `use_artifact`"
            )
        reference = f"{artifact.project}/{artifact._name}:{artifact.version}"
        self._backend.recorder.use_artifact(reference, step=self.step)
        return artifact

    @active
    def log_model(self, path: Any, name: str | None = None, aliases: Sequence[str] | None = None) -> None:
        """Save a model as an artifact of the type ``model``.

        Args:
            path: A file, a directory, or an address.
            name: Its name.
            aliases: Names of the version.
        """
        self.log_artifact(path, name=name, type="model", aliases=aliases)

    @active
    def use_model(self, name: str) -> str:
        """Download a model, and return its path: of the file if there is one, else of the directory.

        Args:
            name: ``[project/]name[:alias]``.
        """
        if self._backend is None:
            return ""
        artifact = self.use_artifact(name)
        if "model" not in artifact.type.lower():
            raise AssertionError("You can only use this method for 'model' artifacts.")
        path = str(artifact.download())
        found = list(Path(path).iterdir())
        return str(found[0]) if len(found) == 1 else path

    @active
    def link_model(
        self,
        path: Any,
        registered_model_name: str,
        name: str | None = None,
        aliases: Sequence[str] | None = None,
    ) -> Any:
        """Save a model, and link it in the project ``model-registry``.

        Args:
            path: A file, a directory, or an address.
            registered_model_name: Its name there.
            name: Its name in this project.
            aliases: Names of the linked version.
        """
        if "/" in registered_model_name:
            raise AssertionError(
                "Please provide only the name of the registered model. Do not append the entity or project name."
            )
        if self._backend is None:
            return None
        artifact = self.log_artifact(path, name=name, type="model")
        return self.link_artifact(artifact, f"{REGISTRY}/{registered_model_name}", aliases)

    @active
    def link_artifact(self, artifact: Artifact, target_path: str, aliases: Sequence[str] | None = None) -> Any:
        """Make a version of the same files in another project.

        Args:
            artifact: The artifact; a draft is logged first.
            target_path: ``project/name``.
            aliases: Names of that version.
        """
        if self._backend is None:
            return None
        if artifact.is_draft() and artifact._save is None:
            self.log_artifact(artifact)
        return artifact.link(target_path, aliases)

    def upsert_artifact(self, artifact_or_path: Any, *_: Any, **__: Any) -> Any:
        """Raise an error: hookline saves whole versions."""
        raise UnsupportedError(
            "upsert_artifact: several processes cannot add to one version. Gather the files, then call log_artifact."
        )

    finish_artifact = upsert_artifact

    @active
    def log_code(
        self,
        root: str | None = ".",
        name: str | None = None,
        include_fn: Callable[..., bool] = saved_files.is_code,
        exclude_fn: Callable[..., bool] = saved_files.is_left_out,
    ) -> Any:
        """Save the code below a directory as an artifact of the type ``code``; None if there is none.

        Args:
            root: The directory.
            name: The artifact's name.
            include_fn: Called with a path, and the root: whether to include it.
            exclude_fn: Likewise: whether to leave it out.
        """
        if self._backend is None or root is None:
            return None
        program = os.path.relpath(sys.argv[0]) if sys.argv and sys.argv[0] else "code"
        artifact = Artifact(make_artifact_name_safe(name or f"source-{self.project}-{program}"), "code")
        artifact.set_root(self._root)
        for inside, path in saved_files.code_files(root, include_fn, exclude_fn):
            artifact.add_file(path, name=inside)
        if not artifact.file_count:
            termwarn("No relevant files were detected in the specified directory. No code will be logged to your run.")
            return None
        return self.log_artifact(artifact)

    def logged_artifacts(self, per_page: int = 100) -> list[Artifact]:
        """Return the artifacts that this process has logged, saved."""
        return [artifact.wait() for artifact, _ in self._saves]

    # The run

    @active
    def alert(
        self,
        title: str,
        text: str,
        level: str | AlertLevel | None = None,
        wait_duration: float | timedelta | None = None,
    ) -> None:
        """Record an alert; ``hookline ui --alerts`` and ``hookline serve --alerts`` deliver it.

        Args:
            title: Its title.
            text: Its text.
            level: ``INFO``, ``WARN`` or ``ERROR``.
            wait_duration: Seconds before an alert of this title is recorded again; a minute by default.
        """
        chosen = AlertLevel.INFO if level is None else level
        known = chosen.value if isinstance(chosen, AlertLevel) else chosen
        if known not in {each.value for each in AlertLevel}:
            raise ValueError("level must be one of 'INFO', 'WARN', or 'ERROR'")
        waits = timedelta(minutes=1) if wait_duration is None else wait_duration
        if isinstance(waits, int | float):
            waits = timedelta(seconds=waits)
        elif not callable(getattr(waits, "total_seconds", None)):
            raise TypeError("wait_duration must be an int, float, or datetime.timedelta")
        now = time.monotonic()
        if self._backend is None or now < self._alerts.get(title, now):
            return
        self._alerts[title] = now + waits.total_seconds()
        severity = {"WARN": "warning"}.get(known, known.lower())
        message = f"{title}: {text}" if text else title
        self._backend.recorder.event(ALERT, step=self.step, rule=title, severity=severity, message=message)

    @active
    def mark_preempting(self) -> None:
        """Record that the machine is about to be preempted."""
        if self._backend is not None:
            self._backend.recorder.event("preempting", step=self.step)

    def write_logs(self, text: str) -> None:
        """Record a line of logging."""
        if self._backend is not None and not self._is_finished:
            self._backend.recorder.line("INFO", "wandb", text.rstrip("\n"), step=self.step)

    def pin_config_keys(self, keys: Sequence[str] = ()) -> None:
        """Accept the settings that wandb's overview shows first."""
        ignored("pin_config_keys")

    def status(self) -> RunStatus:
        """Return how much is not delivered yet."""
        return RunStatus()

    def finish(self, exit_code: int | None = None, quiet: bool | None = None) -> None:
        """End the run.

        Args:
            exit_code: 0 for success; any other marks the run as failed.
            quiet: Accepted.
        """
        self._end(exit_code, None)

    def join(self, exit_code: int | None = None) -> None:
        """End the run; an older name of `finish`."""
        self._end(exit_code, None)

    def display(self, height: int = 420, hidden: bool = False) -> bool:
        """Show the run in a notebook; returns whether it could.

        Args:
            height, hidden: Accepted.
        """
        if self._settings.silent or not is_notebook():
            return False
        from IPython.display import HTML, display  # type: ignore[import-not-found,unused-ignore]

        display(HTML(self.to_html()))  # type: ignore[no-untyped-call,unused-ignore]
        return True

    def to_html(self, height: int = 420, hidden: bool = False) -> str:
        """Return a line of HTML with the run's name and directory.

        Args:
            height, hidden: Accepted.
        """
        place = "nothing is recorded" if self._backend is None else str(self._backend.directory)
        return f"<div><b>{html.escape(self.name or self.id)}</b> {html.escape(place)}</div>"

    def _repr_html_(self) -> str:
        return self.to_html()

    def _label(self, code: str | None = None, **_: Any) -> None:
        """Accept labels of integrations."""

    def _set_config_wandb(self, key: str, val: Any) -> None:
        """Accept wandb's own settings."""

    @property
    def _is_attached(self) -> bool:
        return self._backend is not None and type(self._backend) is Backend

    # Behind

    def add_row_hook(self, hook: Callable[[int, Mapping[str, Any]], None]) -> None:
        """Call a function after each complete row, with its step; a sweep's agent uses it to stop runs."""
        if self._history is None or self._backend is None:
            return
        completed = self._backend.row_completed

        def both(step: int, row: Mapping[str, Any]) -> None:
            completed(step, row)
            hook(step, row)

        self._history.boundary = both

    def record_tensorboard(self, sync: Callable[[Any], Any]) -> None:
        """Also record events of TensorBoard's writers, until the run is finished.

        Args:
            sync: Begins it for a run of hookline; what it returns has a method ``stop``.
        """
        if self._synced is None and self._backend is not None and self._history is not None:
            if not isinstance(self._backend, OwnBackend):
                raise UnsupportedError("sync_tensorboard: only the process that began the run can record it.")
            self._history.note_sync()
            self._synced = sync(self._backend.run)

    def request_stop(self, reason: str) -> None:
        """Record that the run is stopped, and why, when it is finished."""
        if self._backend is not None:
            self._backend.request_stop(reason)

    def _raise_finished(self, what: str) -> NoReturn:
        raise UsageError(
            f"Run ({self.id}) is finished. The call to `{what}` will be ignored. Please make sure that you are using "
            "an active run."
        )

    def end_at_exit(self, exit_code: int | None, error: BaseException | None) -> None:
        """End the run with the program."""
        self._end(exit_code, error)

    def _end(self, exit_code: int | None, error: BaseException | None) -> None:
        if self._is_finished or os.getpid() != self.process:
            return
        try:
            if self._backend is not None and self._history is not None:
                self._history.flush()
                self._require_files().finish()
                self._flush_artifacts()
        finally:
            self._is_finished, self._exit_code = True, exit_code
            if self._watcher is not None:
                self._watcher.unwatch()
            if self._synced is not None:
                self._synced.stop()
            try:
                if self._backend is not None:
                    failure = error if error is not None or not exit_code else FailedRunError(exit_code)
                    self._backend.close(failure, self._values.by_definition())
            finally:
                for artifact, _ in self._saves:
                    artifact._remove_staging()
                if self._on_finish is not None:
                    self._on_finish(self)

    def _read_summary(self) -> dict[str, Any]:
        shown, history = self._values.shown(), self._history
        if self._synced is not None and self._backend is not None:
            self._backend.recorder.flush()  # writers of TensorBoard record beside the history
            shown = replay(self._backend.directory).summary.shown() | shown
        if history is not None and history.last_step is not None:
            at = history.last_time or self._start_time
            shown |= {"_step": history.last_step, "_timestamp": at, "_runtime": max(0.0, at - self._start_time)}
        return shown

    def _record_summary(self, changed: Mapping[str, Any], removed: tuple[str, ...]) -> None:
        if self._is_finished:
            raise UsageError(f"Run ({self.id}) is finished: its summary cannot be changed. Use wandb.Api().run(...).")
        if self._backend is not None:
            self._backend.update_summary(changed, removed)

    def _record_config(self, changed: dict[str, Any]) -> None:
        if self._is_finished:
            raise UsageError(f"Run ({self.id}) is finished: its config cannot be changed. Use wandb.Api().run(...).")
        if self._backend is not None:
            plain = {key: each.json_encode() if isinstance(each, Artifact) else each for key, each in changed.items()}
            self._backend.update_config({key: each for key, each in plain.items() if key != "_wandb"})

    def _use_artifact_of_config(self, key: str, value: Any) -> Any:
        return self.use_artifact(value)

    def _record_file(self, name: str, file: MediaValue) -> None:
        if self._backend is not None:
            self._backend.recorder.media({name: [file.capture(name)]}, self.step)

    def _set_fact(self, setting: str, fact: str, value: Any) -> None:
        setattr(self._settings, setting, value)
        if self._backend is not None:
            kept = getattr(self._settings, setting)
            self._backend.set_fact(fact, list(kept) if isinstance(kept, tuple) else kept)

    def _artifact_of(self, given: Any, name: str | None, kind: str | None) -> Artifact:
        if isinstance(given, Artifact):
            return given
        if not isinstance(given, str | os.PathLike):
            raise TypeError("You must pass an instance of wandb.Artifact or a valid file path to log_artifact")
        text = os.fspath(given)
        default = f"run-{self.id}-{os.path.basename(text.rstrip('/'))}"  # noqa: PTH119 - may be an address
        artifact = Artifact(name or make_artifact_name_safe(default), kind or "unspecified")
        artifact.set_root(self._root)
        if "://" in text:
            artifact.add_reference(text)
        elif Path(text).is_file():
            artifact.add_file(text)
        elif Path(text).is_dir():
            artifact.add_dir(text)
        else:
            raise ValueError("path must be a file, directory or externalreference like s3://bucket/path")
        return artifact

    def _flush_artifacts(self) -> None:
        """Wait for the artifacts that are being saved; a failure is printed, and does not stop the program."""
        for artifact, save in self._saves:
            if not save.done or artifact._saved is None:
                try:
                    artifact.wait()
                except (CommError, ArtifactNotLoggedError) as error:
                    termerror(f"The artifact {artifact._name!r} was not saved: {error}", repeat=False)

    @property
    def _root(self) -> Path:
        return self.directory.parent.parent

    @property
    def _project_folder(self) -> str:
        return self.directory.parent.name

    def _require_files(self) -> saved_files.SavedFiles:
        if self._files is None:
            raise UsageError("A run with mode='disabled' has no files.")
        return self._files

    def _require_watcher(self) -> Any:
        if self._watcher is None:
            from hookline.compat.wandb.watching import Watcher

            self._watcher = Watcher(lambda values: self.log(values, commit=False))
        return self._watcher


class FailedRunError(Error):
    """The recorded error of a run that was finished with a nonzero exit code."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(f"The run was finished with the exit code {exit_code}.")


class _NothingLogged:
    """The result of `log_artifact` when nothing is recorded: every attribute and call returns the object itself."""

    def __getattr__(self, name: str) -> "_NothingLogged":
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> "_NothingLogged":
        return self


def attached(directory: Path, *, is_shared: bool = False) -> Run:
    """Return a run that another process owns; values are written to this process's own files in its directory.

    Args:
        directory: The run's directory.
        is_shared: Whether the run is in the mode ``shared``.

    Raises:
        UsageError: There is no such run.
    """
    from hookline._record.run_directory import METADATA, read_metadata

    facts = read_metadata(directory)
    if not (directory / METADATA).is_file() or not facts:
        raise UsageError(f"Unable to attach to run {str(directory)!r}: there is no such run.")
    tags = facts.get("tags")
    settings = Settings(run_id=id_of(facts, directory), project=directory.parent.name, run_name=facts.get("name"))
    settings.update_from_dict({"run_group": facts.get("group"), "run_job_type": facts.get("job_type")})
    settings.mode = "shared" if is_shared else "online"
    settings.run_tags = tuple(map(str, tags)) if isinstance(tags, list) else None
    config = Config()
    known = facts.get("config")
    config._update(known if isinstance(known, dict) else {}, True)
    earlier = replay(directory)
    return Run(settings, config, Backend(directory, Recorder(directory, joins=True)), earlier=earlier)


def is_notebook() -> bool:
    """Return whether this runs in a notebook."""
    shell = sys.modules.get("IPython")
    found = None if shell is None else shell.get_ipython()
    return found is not None and "ZMQ" in type(found).__name__
