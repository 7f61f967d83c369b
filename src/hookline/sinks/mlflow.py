"""`MlflowSink`: metrics, configuration, status, media, artifacts and optionally samples in an MLflow run.

The run has a tag by which it is found again, so an interrupted start leaves no second run. A metric is sent with its
own time, and a tracking database keeps one row per name, step, time and value, so a repeated batch changes nothing.
MLflow's file store would append it again and is refused. Steps that are repeated after a resume stay in the history
beside the first attempt: MLflow cannot remove them.

A run of an experiment is nested below a run for its group, which is nested below one for the experiment. These two have
no metrics and are finished from the start. The first run that needs them creates them, under a lock in the experiment's
directory. Runs that share no directory find them by a tag; if two were created at once, all use the older one.

MLflow stores numbers as 64-bit floats, and its databases store infinity as the largest of them. None is left out. A
text is the value of a tag, up to 5,000 characters. Characters that MLflow does not allow in names become ``_``,
followed by a short digest, so that two names never become one.

Media are artifacts. Their paths are made of the record, so a repeated batch replaces them: images have the names that
``mlflow.log_image`` gives them, for MLflow's image charts, and tables the format of ``mlflow.log_table``. The rows that
a table gains are a new file; ``log_table`` would download and rewrite all of it each time.

Versions of artifacts that the run saves are below ``artifacts/<name>/<version>/``, and beside that folder a file
``<version>.json`` has the manifest and the aliases. The files of a version that existed before are not copied again.

mlflow's own HTTP client waits for minutes and retries. Here a request has one attempt and ``timeout_seconds``, in the
sink's thread only, because the delivery retries.
"""

import hashlib
import importlib.util
import json
import re
import shutil
import stat
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from hookline._engine.checks import require_number
from hookline._engine.errors import MissingExtraError, RefusedError
from hookline._record.artifacts import Artifact
from hookline._record.reader import MAIN, JournalEntry
from hookline._record.recorder import cleaned
from hookline._record.records import Event, Media, Metrics, Sample, Status, TableRows, clean, encode
from hookline._record.sink import Sink, register_sink
from hookline.sinks.artifacts import aliases_of, convert_artifact, leave_out_artifacts, saved_artifacts
from hookline.sinks.media import RunMedia, file_name, file_suffix, media_of, plotly_html, table_of, webp_thumbnail
from hookline.sinks.mlflow_connection import (
    Connection,
    absolute,
    artifact_location,
    check_uri,
    default_uri,
    exclusive_start,
    has_password,
    local_database,
)
from hookline.sinks.output_files import file_loss
from hookline.sinks.run_progress import STATUS_WRITERS, Membership, RunMetadata, clamped_step, read_metadata

KEY_TAG = "hookline.key"
PARENT_TAG = "mlflow.parentRunId"

_NAME_LENGTH, _TAG_LENGTH, _PARAM_LENGTH = 250, 5000, 6000
_BATCH_METRICS, _BATCH_TEXTS, _BATCH_BYTES = 1000, 100, 900_000
_NOT_IN_NAMES = re.compile(r"[^\w.\- :/]")
_LOGGED_IMAGES, _LOGGED_TABLES = "mlflow.loggedImages", "mlflow.loggedArtifacts"
_ENDED = {"finished": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}


@register_sink("mlflow")
@dataclass(eq=False)
class MlflowSink(Sink):
    """Writes to a run of an MLflow tracking server or database.

    Args:
        tracking_uri: ``http(s)://...`` or ``sqlite:///...``; by default ``MLFLOW_TRACKING_URI``, or else ``mlflow.db``
            in the root of the runs.
        experiment: MLflow's experiment; by default the run's project.
        run_name: The run's name in MLflow; by default its id, or its key in its experiment.
        tags: Further tags; the run's own become the tag ``hookline.tags``. ``mlflow.parentRunId`` nests the run there.
        samples: Whether to store samples too, as artifacts below ``samples/``, one file per batch.
        media: Whether to store media and artifacts; give False for a server without a place for artifacts.
        timeout_seconds: The time limit of a request.
        name: The sink's name in its run.
    """

    tracking_uri: str | None = None
    experiment: str | None = None
    run_name: str | None = None
    tags: dict[str, str] | None = None
    samples: bool = False
    media: bool = True
    timeout_seconds: float = 10.0
    name: str | None = None

    def __post_init__(self) -> None:
        require_number("timeout_seconds", self.timeout_seconds, above=0)
        self.tracking_uri = absolute(self.tracking_uri) if self.tracking_uri else None
        self._connection: Connection | None = None
        self._client: Any = None
        self._state: dict[str, Any] = {}
        self._has_ended = False
        self._media = RunMedia("MLflow")

    def check(self) -> None:
        if importlib.util.find_spec("mlflow") is None:
            raise MissingExtraError("The sink 'mlflow'", "mlflow")
        check_uri(self.tracking_uri)

    @classmethod
    def uses(cls, settings: Mapping[str, Any]) -> list[str]:
        return [f"address {settings.get('tracking_uri') or 'MLFLOW_TRACKING_URI'}, with MLflow's credentials"]

    def check_foreign(self, run_dir: Path, state: Any) -> None:
        uri = state.get("uri")
        if self.tracking_uri is None and uri is not None and uri != default_uri(run_dir):
            raise RefusedError(
                f"The sink's state names {uri}, and was not written by a process of this user. Give tracking_uri= to "
                "choose where to deliver."
            )

    def find_loss(self, run_dir: Path, state: Any) -> str:
        # Only if it is gone: a database that was restored from a copy is another file, but may have the run.
        path = local_database(state.get("uri") or "")
        return file_loss(path, 1, {}) if path is not None and not path.exists() else ""

    def open(self, run_dir: Path, state: Any) -> dict[str, Any]:
        uri = self.tracking_uri or (state or {}).get("uri") or default_uri(run_dir)
        self._connection = Connection(uri, self.timeout_seconds)
        self._media.open(run_dir, state)
        with self._connection:
            if state:
                self._client = self._connection.client()
                run = self._run(state["run_id"])
            else:
                metadata = read_metadata(run_dir)
                # Runs of an experiment start one after another, because they share their parents.
                with exclusive_start(run_dir.parent) if metadata.membership is not None else nullcontext():
                    self._client = self._connection.client()
                    experiment = self._experiment(self.experiment or metadata.project, uri)
                    run = self._oldest(experiment, metadata.key) or self._create(experiment, metadata)
                    self._state = {"run_id": run.info.run_id}
                    self._log(params=dict(_flat("", metadata.config)))
        self._has_ended = run.info.status != "RUNNING"
        self._state = {
            "run_id": run.info.run_id,
            "experiment_id": run.info.experiment_id,
            "parent_run_id": run.data.tags.get(PARENT_TAG),
            "uri": None if has_password(uri) else uri,
            "status_time": state["status_time"] if state else 0.0,
            "tables": (state or {}).get("tables", []),
        }
        return self._state | self._media.state()

    def write(self, entries: Sequence[JournalEntry]) -> dict[str, Any]:
        assert self._connection is not None
        with self._connection:
            self._log(metrics=_metrics(entries), tags=_tags(entries))
            if self.samples:
                self._log_samples(entries)
            self._log_media([entry for entry in entries if isinstance(entry.record, Media | TableRows)])
            self._log_artifacts(entries)
            self._update_status(entries)
        return self._state | self._media.state()

    def ids(self, state: Any) -> dict[str, str]:
        names = ("run_id", "experiment_id", "parent_run_id")
        return {name: state[name] for name in names if state.get(name)}

    def _run(self, run_id: str) -> Any:
        again = "To deliver everything to a new run, remove the sink's file in the run's folder 'sinks'."
        try:
            run = self._client.get_run(run_id)
        except Exception as error:
            if getattr(error, "error_code", None) == "RESOURCE_DOES_NOT_EXIST":
                raise RefusedError(f"MLflow no longer has the run {run_id}. {again}") from error
            raise
        if run.info.lifecycle_stage != "active":
            raise RefusedError(f"The run {run_id} was deleted in MLflow: restore it there. {again}")
        return run

    def _oldest(self, experiment: str, key: str) -> Any:
        """The run with a key; if there are two, all processes use the same one. None if there is none."""
        order = ["attributes.start_time ASC", "attributes.run_id ASC"]
        found = self._client.search_runs([experiment], f"tags.`{KEY_TAG}` = '{key}'", max_results=1, order_by=order)
        return found[0] if found else None

    def _create(self, experiment: str, metadata: RunMetadata) -> Any:
        own = self.tags or {}
        known = {KEY_TAG: metadata.key, "hookline.run": metadata.id} | _source(metadata)
        known |= {"hookline.tags": ", ".join(metadata.tags)} if metadata.tags else {}
        if metadata.membership is not None:
            known |= {f"hookline.{name}": value for name, value in metadata.membership.facts().items()}
            if PARENT_TAG not in own:
                known[PARENT_TAG] = self._group_run(experiment, metadata, metadata.membership)
        started = int(metadata.started * 1000) or None
        return self._client.create_run(
            experiment, start_time=started, tags=_as_tags(known | own), run_name=self.run_name or metadata.title
        )

    def _group_run(self, experiment: str, metadata: RunMetadata, place: Membership) -> str:
        """The id of the run for the group, which is nested below the one for the experiment."""
        about = {"hookline.experiment": place.experiment, "hookline.experiment_id": place.experiment_id}
        about |= _source(metadata)
        root = self._parent(experiment, place.experiment_key, place.experiment, about)
        about |= {"hookline.group": place.group, "hookline.group_id": place.group_id, PARENT_TAG: root}
        return self._parent(experiment, place.group_key, place.group, about)

    def _parent(self, experiment: str, key: str, name: str, about: Mapping[str, Any]) -> str:
        """The id of a run that serves as a folder for others; created if needed, and finished."""
        run = self._oldest(experiment, key)
        if run is None:
            made = self._client.create_run(experiment, tags=_as_tags({KEY_TAG: key, **about}), run_name=name)
            run = self._oldest(experiment, key) or made
            if run.info.run_id != made.info.run_id:  # a run elsewhere, without access to the lock, was faster
                self._client.delete_run(made.info.run_id)
        if run.info.status == "RUNNING":
            self._client.set_terminated(run.info.run_id, "FINISHED")
        return str(run.info.run_id)

    def _experiment(self, name: str, uri: str) -> str:
        found = self._client.get_experiment_by_name(name)
        if found is None:
            try:
                return str(self._client.create_experiment(name, artifact_location(uri, entity_name(name))))
            except Exception:  # another process may have created it in between
                found = self._client.get_experiment_by_name(name)
                if found is None:
                    raise
        if found.lifecycle_stage != "active":
            raise RefusedError(f"MLflow's experiment {name!r} is deleted: restore it, or give the sink another one.")
        return str(found.experiment_id)

    def _log(
        self,
        *,
        metrics: Iterable[Any] = (),
        tags: Mapping[str, Any] | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> None:
        from mlflow.entities import Param, RunTag

        log = partial(self._client.log_batch, self._state["run_id"], synchronous=True)
        for batch in _batches(metrics, _BATCH_METRICS):
            log(metrics=batch)
        for batch in _batches((RunTag(key, _text(v, _TAG_LENGTH)) for key, v in (tags or {}).items()), _BATCH_TEXTS):
            log(tags=batch)
        for batch in _batches((Param(key, _text(v, _PARAM_LENGTH)) for key, v in (params or {}).items()), _BATCH_TEXTS):
            log(params=batch)

    def _log_samples(self, entries: Sequence[JournalEntry]) -> None:
        """Write one file per writer, named after its first sample, so that a repeated batch replaces it."""
        by_writer: dict[str, list[JournalEntry]] = {}
        for entry in entries:
            if isinstance(entry.record, Sample):
                by_writer.setdefault(entry.file.writer, []).append(entry)
        for own in by_writer.values():
            lines = b"".join(encode(cleaned(entry.record)) + b"\n" for entry in own)
            self._client.log_text(self._state["run_id"], lines.decode(), f"samples/{own[0].id}.jsonl")

    def _log_media(self, entries: Sequence[JournalEntry]) -> None:
        if not self.media:
            for _ in entries:
                self._media.leave_out("media (media=False)")
            return
        if not entries:
            return
        with tempfile.TemporaryDirectory(prefix="hookline-mlflow-") as folder:
            files = MediaFiles(self._media, Path(folder))
            for entry in entries:
                files.add(entry)
            if any(Path(folder).iterdir()):
                self._client.log_artifacts(self._state["run_id"], folder)
        tags: dict[str, Any] = {_LOGGED_IMAGES: True} if files.has_images else {}
        known = [*self._state["tables"], *(path for path in files.tables if path not in self._state["tables"])]
        # MLflow's page reads from this tag which files are tables; a tag has room for some dozens.
        text = json.dumps([{"path": path, "type": "table"} for path in known])
        if known != self._state["tables"] and len(text) <= _TAG_LENGTH:
            tags[_LOGGED_TABLES] = text
            self._state["tables"] = known
        self._log(tags=tags)

    def _log_artifacts(self, entries: Sequence[JournalEntry]) -> None:
        if not self.media:
            leave_out_artifacts(self._media, entries, "artifacts (media=False)")
            return
        events = saved_artifacts(entries)
        if not events:
            return
        with tempfile.TemporaryDirectory(prefix="hookline-mlflow-") as folder:
            for event in events:
                convert_artifact(self._media, event, partial(_add_artifact, Path(folder), event))
            if any(Path(folder).iterdir()):
                self._client.log_artifacts(self._state["run_id"], folder)

    def _update_status(self, entries: Sequence[JournalEntry]) -> None:
        # The latest by time: the delivery may report a death before the last records of the dead process.
        records = [entry.record for entry in entries if entry.file.name in STATUS_WRITERS]
        statuses = (record for record in records if isinstance(record, Status) and record.status != "heartbeat")
        last = max(statuses, key=lambda status: status.time, default=None)
        if last is None or last.time < self._state["status_time"]:
            return
        self._log(tags={"hookline.status": last.status, "hookline.message": last.message})
        if last.status in _ENDED:
            self._client.set_terminated(self._state["run_id"], _ENDED[last.status], int(last.time * 1000))
        elif self._has_ended:  # the run was resumed
            self._client.update_run(self._state["run_id"], status="RUNNING")
        self._has_ended = last.status in _ENDED
        self._state["status_time"] = last.time


class MediaFiles:
    """Writes media to a folder, with the paths that they get among a run's artifacts.

    Args:
        media: Reads the run's media.
        folder: The folder.

    Attributes:
        tables: The paths of tables.
        has_images: Whether an image has the form of ``mlflow.log_image``.
    """

    def __init__(self, media: RunMedia, folder: Path) -> None:
        self._media, self._folder = media, folder
        self.tables: list[str] = []
        self.has_images = False

    def add(self, entry: JournalEntry) -> None:
        """Write the media of an entry."""
        name = _name(entry, entry.record.name).replace(":", "_")  # type: ignore[union-attr]
        if isinstance(record := entry.record, TableRows):
            self._media.convert(record, lambda table: self._add_rows(table, name))
        elif isinstance(record, Media):
            self._media.convert(record, lambda media: self._add(media, name, entry.id))

    def _add(self, record: Media, name: str, entry_id: str) -> None:
        axis = "" if record.axis == "train" else f"{entity_name(record.axis).replace('/', '_')}/"
        place = f"media/{axis}{name}/{file_name(record)}"
        match record.type, record.format:
            case "image", _:
                content = self._media.png(record)
                # As `log_image` names them, with an id that stays the same when the batch is repeated.
                unique = uuid.uuid5(uuid.NAMESPACE_URL, f"hookline:{entry_id}")
                key = re.sub(r"[^\w\-. ~]", "_", f"{axis}{name}".replace("/", "~"), flags=re.ASCII)
                step, at = clamped_step(record.step), int(record.time * 1000)
                stem = f"images/{key}+step+{step}+timestamp+{at}+{unique}"
                self._write(f"{stem}.png", content)
                self._write(f"{stem}+compressed.webp", webp_thumbnail(content))
                self.has_images = True
            case "figure", "plotly.json":
                page = plotly_html(self._media.content(record)).encode()
                self._write(place.removesuffix("plotly.json") + "html", page)
            case "histogram" | "plot", _:
                columns, rows = table_of(record)
                self._write_table(f"tables/{axis}{name}/{record.step}-{record.index}.json", columns, rows)
            case _:
                self._media.copy(record, self._folder / place)

    def _add_rows(self, record: TableRows, name: str) -> None:
        rows = [[self._cell(cell, name) for cell in row] for row in record.rows]
        place = f"tables/{name}/{record.step}-{entity_name(record.table).replace('/', '_')}-{record.start}.json"
        self._write_table(place, record.columns, rows)
        self.tables.append(place)

    def _cell(self, cell: Any, name: str) -> Any:
        """A cell; media are files of their own, and the cell has the path."""
        media = media_of(cell)
        if media is None:
            return cell
        place = f"media/{name}/cells/{media.blob[:16]}{file_suffix(media)}"
        path = self._folder / place
        copied = self._media.convert(media, lambda media: self._media.copy(media, path)) if media.blob else None
        return f"({media.type})" if copied is None else place

    def _write_table(self, place: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        self._write(place, json.dumps({"columns": columns, "data": clean(rows)}, ensure_ascii=False).encode())

    def _write(self, place: str, content: bytes) -> None:
        path = self._folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def _add_artifact(folder: Path, event: Event, found: Artifact) -> None:
    """Put a version into a folder: its manifest, and links to its stored files if the version is new."""
    aliases = aliases_of(event)
    is_new = event.data.get("new") is not False
    # All files are checked first, so that a damaged version leaves nothing.
    files = [(file.path, found.path(file.path)) for file in found.files if is_new and not file.uri]
    place = folder / "artifacts" / found.name / found.version
    place.parent.mkdir(parents=True, exist_ok=True)
    for name, source in files:
        target = place / entity_name(name).replace(":", "_")
        if target.exists():  # saved twice in one batch
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.stat().st_mode & stat.S_IWUSR:
            target.symlink_to(source)
        else:  # mlflow copies the mode too, and could not replace the file when the batch is repeated
            shutil.copyfile(source, target)
    about = {"artifact": f"{found.project}/{found.name}", "version": found.version, "aliases": aliases}
    about |= {name: getattr(found, name) for name in ("kind", "digest", "time", "run", "step", "metadata")}
    about["files"] = msgspec.to_builtins(found.files)
    place.with_name(f"{found.version}.json").write_text(json.dumps(about, indent=1), encoding="utf-8")


def _source(metadata: RunMetadata) -> dict[str, Any]:
    return {
        "mlflow.user": metadata.user,
        "mlflow.source.name": metadata.command,
        "mlflow.source.git.commit": metadata.commit,
    }


def _as_tags(wanted: Mapping[str, Any]) -> dict[str, str]:
    given = {key: value for key, value in wanted.items() if value not in (None, "")}
    return {entity_name(key): _text(value, _TAG_LENGTH) for key, value in given.items()}


def entity_name(name: str) -> str:
    """Converts a name to one that MLflow accepts; different names stay different."""
    parts = [part for part in _NOT_IN_NAMES.sub("_", name).split("/") if part.strip(".")]
    plain = "/".join(parts)
    if plain == name and 0 < len(name) <= _NAME_LENGTH:
        return name
    digest = hashlib.blake2s(name.encode(), digest_size=4).hexdigest()
    return f"{plain[: _NAME_LENGTH - 9]}-{digest}"


def _metrics(entries: Iterable[JournalEntry]) -> Iterator[Any]:
    from mlflow.entities import Metric

    for entry in entries:
        if isinstance(record := entry.record, Metrics):
            at = int(record.time * 1000)
            for name, value in record.values.items():
                if isinstance(value, int | float):
                    try:
                        number = float(value)
                    except OverflowError:  # a large integer
                        number = float("inf") if value > 0 else float("-inf")
                    yield Metric(_name(entry, name), number, at, clamped_step(record.step))


def _tags(entries: Iterable[JournalEntry]) -> dict[str, Any]:
    """The latest values of the metrics that are not numbers."""
    tags: dict[str, Any] = {}
    for entry in entries:
        if isinstance(record := entry.record, Metrics):
            texts = {name: value for name, value in record.values.items() if not isinstance(value, int | float | None)}
            tags |= {_name(entry, name): value for name, value in texts.items()}
    return tags


def _name(entry: JournalEntry, name: str) -> str:
    return entity_name(name if entry.file.name == MAIN else f"{entry.file.name}/{name}")


def _text(value: Any, length: int) -> str:
    return str(value).replace("\0", "\ufffd")[:length]


def _flat(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
    """A configuration as names and values, with nested names joined by ``/``."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flat(f"{prefix}/{key}" if prefix else str(key), item)
    elif value is not None or prefix:
        yield entity_name(prefix or "config"), value


def _batches(entities: Iterable[Any], most: int) -> Iterator[list[Any]]:
    """Splits entities into requests by number and size."""
    batch: list[Any] = []
    size = 0
    for entity in entities:
        own = len(json.dumps([entity.key, entity.value])) + 120
        if batch and (len(batch) == most or size + own > _BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(entity)
        size += own
    if batch:
        yield batch
