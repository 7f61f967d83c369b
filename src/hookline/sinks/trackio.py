"""`TrackioSink`: metrics, samples and media in trackio's local database, for its dashboard.

Each record has its own id there (trackio's ``log_id``), which the table accepts once, so a repeated batch changes
nothing. A batch is committed when `write` returns. A resume mark removes the rows that will be recorded again. Names
that trackio reserves (``step``, ``time``, ...) are prefixed with ``__``, as trackio does it, and names of a writer
other than the main one with the writer's name.

Media are files in trackio's folder ``media``, as trackio writes them, but named by their digest: a repeated batch
writes the same files, and equal content of a step is stored once.

Only the local database is written: no server, no thread, no network, no Space. The sink uses its own copy of trackio's
storage module, because the original has one directory per process, read at import, which the user's own trackio may be
using.
"""

import functools
import importlib.util
import inspect
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from hookline._engine.errors import MissingExtraError, RefusedError
from hookline._record.reader import EVERY_AXIS, MAIN, JournalEntry, is_resume, resumed_steps
from hookline._record.records import Event, Media, Metrics, Sample, TableRows, clean
from hookline._record.sink import Sink, register_sink
from hookline.sinks.artifacts import leave_out_artifacts
from hookline.sinks.media import (
    CannotShowError,
    RunMedia,
    file_suffix,
    histogram_bins,
    media_of,
    plotly_html,
    plural,
    safe_name,
    table_of,
)
from hookline.sinks.output_files import file_loss
from hookline.sinks.run_progress import RunMetadata, clamped_step, read_metadata

_RESERVED = frozenset({"project", "run", "timestamp", "step", "time", "metrics"})
_INTEGERS = range(-(2**63), 2**64)
_MOST_MAGNITUDE = 10**308


@register_sink("trackio")
@dataclass(eq=False)
class TrackioSink(Sink):
    """Writes to trackio's database on this machine; ``trackio show`` shows it.

    Args:
        project: trackio's project; by default the run's.
        directory: The directory of the database; by default trackio's own (``TRACKIO_DIR``).
        group: trackio's group; by default ``<experiment>/<arm>`` for a run of an experiment.
        samples: Whether to write samples too, as traces.
        name: The sink's name in its run.
    """

    project: str | None = None
    directory: Path | None = None
    samples: bool = True
    group: str | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        self.directory = Path(self.directory).absolute() if self.directory is not None else None
        self._run: TrackioRun | None = None
        self._media = RunMedia("trackio")

    def check(self) -> None:
        if importlib.util.find_spec("trackio") is None:
            raise MissingExtraError("The sink 'trackio'", "trackio")

    @classmethod
    def uses(cls, settings: Mapping[str, Any]) -> list[str]:
        return ["trackio's database"]

    def check_foreign(self, run_dir: Path, state: Any) -> None:
        if (
            self.directory is None
            and Path(state["directory"]).resolve() != storage_of(None).get_project_db_path("any").parent.resolve()
        ):
            raise RefusedError(
                f"The sink's state names {state['directory']}, and was not written by a process of this user. Give "
                "directory= to choose where to deliver."
            )

    def find_loss(self, run_dir: Path, state: Any) -> str:
        return file_loss(Path(state["database"]), 1, state) if "database" in state else ""

    def is_intact(self) -> bool:
        return self._run is None or not file_loss(self._run.path, 1, {"inode": self._run.inode})

    def open(self, run_dir: Path, state: Any) -> dict[str, Any]:
        directory = self.directory or (Path(state["directory"]) if state else None)
        storage = storage_of(directory)
        metadata = read_metadata(run_dir)
        project = self.project or metadata.project
        try:
            storage.validate_project_name(project)
        except ValueError as error:
            raise RefusedError(f"project={project!r}: {error} Give the sink another project.") from error
        path = storage.init_db(project)
        self._media.open(run_dir, state)
        folder = Path(path.stem) / safe_name(metadata.id).replace("/", "_")
        files = MediaFiles(self._media, path.parent / "media", folder)
        config = _config(metadata, self.group)
        self._run = TrackioRun(storage, project, path, metadata, config, path.stat().st_ino, files)
        return self._run.state() | self._media.state()

    def write(self, entries: Sequence[JournalEntry]) -> dict[str, Any]:
        assert self._run is not None
        if is_resume(entries[0].record):
            self._run.remove_repeated(entries[0])
        else:
            self._run.add([entry for entry in entries if self.samples or not isinstance(entry.record, Sample)])
            leave_out_artifacts(self._media, entries)
        return self._run.state() | self._media.state()

    def ids(self, state: Any) -> dict[str, str]:
        return {"run_id": state["run_id"]}


@dataclass(slots=True)
class TrackioRun:
    """One run in a project's database."""

    storage: Any
    project: str
    path: Path
    metadata: RunMetadata
    config: dict[str, Any] | None
    inode: int
    files: "MediaFiles"

    def state(self) -> dict[str, Any]:
        """What identifies the run and its database."""
        database = {"directory": str(self.path.parent), "database": str(self.path), "inode": self.inode}
        return database | {"run_id": self.metadata.key}

    def add(self, entries: Sequence[JournalEntry]) -> None:
        """Write the entries that the table does not have yet, in one transaction."""
        rows = [(entry, values) for entry in entries if (values := _values(entry, self.files))]
        if not rows:
            return
        self.storage.bulk_log(
            project=self.project,
            run=self.metadata.id,
            run_id=self.metadata.key,
            metrics_list=[values for _, values in rows],
            steps=[clamped_step(getattr(entry.record, "step", 0)) for entry, _ in rows],
            timestamps=[_iso(entry.record.time) for entry, _ in rows],
            log_ids=[self._log_id(entry) for entry, _ in rows],
            config=self.config,
        )
        self.config = None

    def remove_repeated(self, mark: JournalEntry) -> None:
        """Remove the rows of the mark's writer after the step that it resumes from."""
        assert isinstance(mark.record, Event)
        with closing(sqlite3.connect(self.path, timeout=30.0)) as connection, connection:
            for axis, step in resumed_steps(mark.record).items():
                prefix = self._prefix(mark) + ("" if axis == EVERY_AXIS else f"{quote(axis, safe='')}/")
                for table in ("metrics", "traces"):
                    query = f"DELETE FROM {table} WHERE run_id = ? AND step > ? AND substr(log_id, 1, ?) = ?"  # noqa: S608
                    connection.execute(query, (self.metadata.key, clamped_step(step), len(prefix), prefix))

    def _prefix(self, entry: JournalEntry) -> str:
        return f"{self.metadata.key}/{entry.file.name}/"

    def _log_id(self, entry: JournalEntry) -> str:
        axis = quote(getattr(entry.record, "axis", "train"), safe="")
        return f"{self._prefix(entry)}{axis}/{entry.id}"


@dataclass(slots=True)
class MediaFiles:
    """Writes the files of media, and converts media to trackio's values.

    Args:
        media: Reads the run's media.
        root: trackio's folder for media.
        folder: The run's folder in it.
    """

    media: RunMedia
    root: Path
    folder: Path

    def value(self, record: Media | TableRows) -> Any:
        """The value for a record; None if trackio cannot show it, which is counted."""
        return self.media.convert(record, self._form if isinstance(record, Media) else self._table)

    def _form(self, record: Media) -> dict[str, Any]:
        match record.type, record.format:
            case "figure", "plotly.json":
                page = plotly_html(self.media.content(record)).encode()
                return self._file("trackio.html", record, page, ".html")
            case "image" | "figure", _:
                content, found, _ = self.media.picture(record)
                return self._file("trackio.image", record, content, f".{found}")
            case "video", "webp":
                return self._file("trackio.video", record, self.media.gif(record)[0], ".gif")
            case "audio" | "video" | "html", _:
                return self._file(f"trackio.{record.type}", record, None, file_suffix(record))
            case "histogram", _:
                counts, edges = histogram_bins(record)
                return {"_type": "trackio.histogram", "bins": edges, "values": counts}
            case "markdown", _:
                return {"_type": "trackio.markdown", "_value": self.media.text(record)}
            case "text", _:  # as a block, because only Markdown is shown
                block = "\n".join("    " + line for line in self.media.text(record).split("\n"))
                return {"_type": "trackio.markdown", "_value": block}
            case "plot", _:
                columns, rows = table_of(record)
                return {"_type": "trackio.table", "_value": [dict(zip(columns, row, strict=True)) for row in rows]}
        raise CannotShowError(plural(record.type))

    def _table(self, record: TableRows) -> dict[str, Any]:
        rows = [dict(zip(record.columns, map(partial(self._cell, record), row), strict=False)) for row in record.rows]
        return {"_type": "trackio.table", "_value": _storable(clean(rows))}

    def _cell(self, record: TableRows, cell: Any) -> Any:
        media = media_of(cell)
        if media is None:
            return cell
        media.step = record.step
        if media.type not in ("image", "figure"):  # the only media in cells that trackio shows
            return f"({media.type}) {media.caption}".strip()
        return self.media.convert(media, self._form) or f"({media.type})"

    def _file(self, kind: str, record: Media, content: bytes | None, suffix: str) -> dict[str, Any]:
        path = self.folder / str(clamped_step(record.step)) / f"{record.blob[:40]}{suffix}"
        if content is None:
            self.media.copy(record, self.root / path)
        else:
            (self.root / path).parent.mkdir(parents=True, exist_ok=True)
            (self.root / path).write_bytes(content)
        return {"_type": kind, "file_path": str(path), "caption": record.caption or None}


@functools.cache
def storage_of(directory: Path | None) -> Any:
    """A copy of trackio's storage with its own directory, separate from the user's trackio.

    Raises:
        RefusedError: The installed trackio has no ids for records, so they could be written twice.
    """
    spec = importlib.util.find_spec("trackio.sqlite_storage")
    if spec is None or spec.loader is None:
        raise RefusedError("This trackio has no local storage. Install a newer one: pip install -U trackio")
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if directory is not None:
        module.TRACKIO_DIR = directory
    storage = module.SQLiteStorage
    if not {"log_ids", "run_id"} <= set(inspect.signature(storage.bulk_log).parameters):
        raise RefusedError("This trackio is too old: it has no ids for records. Upgrade it: pip install -U trackio")
    storage._dataset_import_attempted = True  # fetch nothing from the Hub
    storage.write_trace_sessions = staticmethod(lambda project, trace_rows: 0)  # copies that only the Hub displays
    return storage


def _values(entry: JournalEntry, files: MediaFiles) -> dict[str, Any]:
    record = entry.record
    prefix = "" if entry.file.name == MAIN else f"{entry.file.name}/"
    if isinstance(record, Sample):
        return {f"{prefix}samples": _trace(record)}
    values: dict[str, Any] = {}
    if isinstance(record, Metrics):
        values = {name: _storable(value) for name, value in record.values.items()}
    elif isinstance(record, Media):
        values = {f"{record.name}/{record.index}" if record.index else record.name: files.value(record)}
    elif isinstance(record, TableRows) and record.rows:
        values = {record.name: files.value(record)}
    named = {f"{prefix}{name}": value for name, value in values.items() if value is not None}
    reserved = {name for name in named if name in _RESERVED or name.startswith("__")}
    return {f"__{name}" if name in reserved else name: value for name, value in named.items()}


def _trace(sample: Sample) -> dict[str, Any]:
    """Converts a sample to trackio's format for conversations."""
    turns = [("user", sample.prompt), ("assistant", sample.completion)]
    known = {name: getattr(sample, name) for name in sample.__struct_fields__}
    rest = {name: value for name, value in known.items() if name not in ("prompt", "completion", "time", "step")}
    return {
        "_type": "trackio.trace",
        "messages": [{"role": role, "content": content} for role, content in turns],
        "metadata": _storable({name: value for name, value in rest.items() if value not in (None, {})}),
        "spans": [],
    }


def _storable(value: Any) -> Any:
    """Converts a value for trackio's encoder: its charts need numbers for bools, and integers have 64 bits."""
    if isinstance(value, Mapping):
        return {str(key): _storable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_storable(item) for item in value]
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int) and value not in _INTEGERS:
        return float(max(min(value, _MOST_MAGNITUDE), -_MOST_MAGNITUDE))
    return value


def _config(metadata: RunMetadata, group: str | None) -> dict[str, Any]:
    config = metadata.config if isinstance(metadata.config, Mapping) else {"config": metadata.config}
    group = group or (metadata.membership.group_path if metadata.membership is not None else None)
    own = {"_Created": _iso(metadata.started), "_Username": metadata.user, "_Group": group}
    return {key: _storable(value) for key, value in config.items() if value is not None} | own


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds")
