"""`sync`: records in a run everything that MLflow's client logs in this process, whatever its tracking server.

    with hl.run("churn") as run, hookline.compat.mlflow.sync(run):
        train()  # mlflow.log_metric(...), autolog, MlflowClient: also recorded in the run

The module-level functions of MLflow, its autologging and `MlflowClient` all use one class, whose methods are patched
while a `Sync` is active (see `hookline.compat.patches`); MLflow itself still works as before. To log to hookline
instead of MLflow's server, give its client the address of ``hookline serve``.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hookline._engine.metrics import axis_of, plain
from hookline._record.media import File, Image, Media
from hookline._record.media_encoding import IMAGE_FILES
from hookline.compat.patches import Patch, Sync
from hookline.compat.tensorboard.runs import record_media, record_row
from hookline.loops.session import Session

__all__ = ["sync"]

_MOST_FILES = 1000
"""The most files of one directory that are recorded."""
_CALLS = Patch(
    ("mlflow.tracking._tracking_service.client",),
    "TrackingServiceClient",
    ("log_metric", "log_param", "set_tag", "log_batch", "log_artifact", "log_artifacts"),
)


def sync(run: Session) -> Sync:
    """Record in a run everything that MLflow's client logs in this process, until the result is stopped.

    Metrics keep their steps and times; params become settings, tags a setting ``mlflow.tags``, artifacts media. If
    several runs of MLflow are logged to, the names of all but the first begin with the start of their id.

    Args:
        run: A run that has begun.
    """
    return MlflowSync(run)


class MlflowSync(Sync):
    """Records the calls of MLflow's client in a run."""

    def __init__(self, run: Session) -> None:
        self._first: str | None = None
        self._tags: dict[str, str] = {}
        super().__init__(run, _CALLS)

    def record_call(self, method: str, owner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self.run.has_ended:
            getattr(self, f"_{method}")(*args, **kwargs)

    def _log_metric(
        self, run_id: str, key: str, value: Any, timestamp: int | None = None, step: int | None = None, **_: Any
    ) -> None:
        self._row(run_id, key, value, timestamp, step)

    def _log_param(self, run_id: str, key: str, value: Any, **_: Any) -> None:
        self.run.update_config({self._name(run_id, key): plain(value)})

    def _set_tag(self, run_id: str, key: str, value: Any, **_: Any) -> None:
        self._add_tags(run_id, {key: value})

    def _log_batch(
        self,
        run_id: str,
        metrics: Iterable[Any] = (),
        params: Iterable[Any] = (),
        tags: Iterable[Any] = (),
        **_: Any,
    ) -> None:
        for metric in metrics:
            self._row(run_id, metric.key, metric.value, metric.timestamp, metric.step)
        if settings := {self._name(run_id, each.key): each.value for each in params}:
            self.run.update_config(settings)
        self._add_tags(run_id, {each.key: each.value for each in tags})

    def _log_artifact(self, run_id: str, local_path: Any, artifact_path: str | None = None) -> None:
        path = Path(local_path)
        if path.is_dir():
            self._log_artifacts(run_id, path, f"{artifact_path}/{path.name}" if artifact_path else path.name)
        else:
            self._file(run_id, path, f"{artifact_path}/{path.name}" if artifact_path else path.name)

    def _log_artifacts(self, run_id: str, local_dir: Any, artifact_path: str | None = None) -> None:
        files = sorted(path for path in Path(local_dir).rglob("*") if path.is_file())
        for path in files[:_MOST_FILES]:
            name = path.relative_to(local_dir).as_posix()
            self._file(run_id, path, f"{artifact_path}/{name}" if artifact_path else name)

    def _row(self, run_id: str, key: str, value: Any, timestamp: int | None, step: int | None) -> None:
        name = self._name(run_id, key)
        at = None if timestamp is None else timestamp / 1000
        record_row(self.run, {name: float(plain(value))}, int(step or 0), axis_of(name), at)

    def _file(self, run_id: str, path: Path, name: str) -> None:
        suffix = path.suffix.lstrip(".").lower().replace("jpg", "jpeg")
        media: Media = Image(path) if suffix in IMAGE_FILES else File(path)
        shown = self._name(run_id, name)
        record_media(self.run, shown, [media], self.run.step, axis_of(shown))

    def _add_tags(self, run_id: str, tags: dict[str, Any]) -> None:
        own = {self._name(run_id, key): str(value) for key, value in tags.items() if not key.startswith("mlflow.")}
        if own:
            self._tags |= own
            self.run.update_config({"mlflow.tags": dict(self._tags)})

    def _name(self, run_id: str, name: str) -> str:
        with self._lock:
            self._first = self._first or run_id
        return name if run_id == self._first else f"{run_id[:8]}/{name}"
