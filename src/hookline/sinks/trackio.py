"""Metrics and samples in trackio's local database, for its dashboard.

Every record has an id of its own there (trackio's ``log_id``), which its table takes once, so a batch
that comes again changes nothing; it is committed when `write` returns. A resume mark takes out the
rows that are done again. Names that trackio keeps for itself (``step``, ``time``, ...) get ``__`` in
front, as trackio does it; those of a writer other than the main one, its name.

Only the local database is written: no server, no thread, no network, no Space. It goes through a
copy of trackio's storage module that belongs to the sink, because the original has one directory for
the whole process, read when it is imported, and the user's own trackio may be using that.
"""

import functools
import importlib.util
import inspect
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from hookline._engine.errors import MissingExtraError, RefusedError
from hookline._record.reader import EVERY_AXIS, MAIN, JournalEntry, is_resume, resumed_steps
from hookline._record.records import Event, Metrics, Sample
from hookline._record.sink import Sink, register_sink
from hookline.sinks.output_files import file_loss
from hookline.sinks.run_progress import RunMetadata, clamped_step, read_metadata

_RESERVED = frozenset({"project", "run", "timestamp", "step", "time", "metrics"})
_INTEGERS = range(-(2**63), 2**64)
_LARGEST = 10**308


@register_sink("trackio")
@dataclass(eq=False)
class TrackioSink(Sink):
    """Writes to trackio's database on this machine; ``trackio show`` shows it.

    Args:
        project: trackio's project; the run's where none is given.
        directory: Where the database lies; trackio's own place (``TRACKIO_DIR``) where none is given.
        group: What the run is grouped under; ``<experiment>/<arm>`` where none is given and it belongs to one.
        samples: Whether samples are written too, as traces.
        name: What the sink is called in its run.
    """

    project: str | None = None
    directory: Path | None = None
    samples: bool = True
    group: str | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        self.directory = Path(self.directory).absolute() if self.directory is not None else None
        self._place: Place | None = None

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
                f"The state in the run's directory names {state['directory']}, and was not written by a process of "
                "this user. Give directory= to say where to deliver."
            )

    def find_loss(self, run_dir: Path, state: Any) -> str:
        return file_loss(Path(state["database"]), 1, state) if "database" in state else ""

    def is_intact(self) -> bool:
        return self._place is None or not file_loss(self._place.path, 1, {"inode": self._place.inode})

    def open(self, run_dir: Path, state: Any) -> dict[str, Any]:
        directory = self.directory or (Path(state["directory"]) if state else None)
        storage = storage_of(directory)
        facts = read_metadata(run_dir)
        project = self.project or facts.project
        try:
            storage.validate_project_name(project)
        except ValueError as error:
            raise RefusedError(f"project={project!r}: {error} Give the sink another project.") from error
        path = storage.init_db(project)
        self._place = Place(storage, project, path, facts, _config(facts, self.group), path.stat().st_ino)
        return self._place.state()

    def write(self, entries: Sequence[JournalEntry]) -> dict[str, Any]:
        assert self._place is not None
        if is_resume(entries[0].record):
            self._place.forget(entries[0])
        else:
            self._place.add([entry for entry in entries if self.samples or not isinstance(entry.record, Sample)])
        return self._place.state()

    def ids(self, state: Any) -> dict[str, str]:
        return {"run_id": state["run_id"]}


@dataclass(slots=True)
class Place:
    """One run in a project's database."""

    storage: Any
    project: str
    path: Path
    facts: RunMetadata
    config: dict[str, Any] | None
    inode: int

    def state(self) -> dict[str, Any]:
        """What tells the run and its database again."""
        place = {"directory": str(self.path.parent), "database": str(self.path), "inode": self.inode}
        return place | {"run_id": self.facts.key}

    def add(self, entries: Sequence[JournalEntry]) -> None:
        """Write what the table does not have yet, in one transaction."""
        rows = [(entry, values) for entry in entries if (values := _values(entry))]
        if not rows:
            return
        self.storage.bulk_log(
            project=self.project,
            run=self.facts.id,
            run_id=self.facts.key,
            metrics_list=[values for _, values in rows],
            steps=[clamped_step(getattr(entry.record, "step", 0)) for entry, _ in rows],
            timestamps=[_iso(entry.record.time) for entry, _ in rows],
            log_ids=[self._log_id(entry) for entry, _ in rows],
            config=self.config,
        )
        self.config = None

    def forget(self, mark: JournalEntry) -> None:
        """Take out what the mark's writer wrote past the steps from which it goes on."""
        assert isinstance(mark.record, Event)
        with closing(sqlite3.connect(self.path, timeout=30.0)) as connection, connection:
            for axis, step in resumed_steps(mark.record).items():
                prefix = self._prefix(mark) + ("" if axis == EVERY_AXIS else f"{quote(axis, safe='')}/")
                for table in ("metrics", "traces"):
                    query = f"DELETE FROM {table} WHERE run_id = ? AND step > ? AND substr(log_id, 1, ?) = ?"  # noqa: S608
                    connection.execute(query, (self.facts.key, clamped_step(step), len(prefix), prefix))

    def _prefix(self, entry: JournalEntry) -> str:
        return f"{self.facts.key}/{entry.file.name}/"

    def _log_id(self, entry: JournalEntry) -> str:
        axis = quote(getattr(entry.record, "axis", "train"), safe="")
        return f"{self._prefix(entry)}{axis}/{entry.id}"


@functools.cache
def storage_of(directory: Path | None) -> Any:
    """The storage of trackio for a directory of its own, which leaves the user's trackio as it is.

    Raises:
        RefusedError: The trackio that is installed cannot take a record only once.
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
        raise RefusedError("This trackio is too old to take a record only once: pip install -U trackio")
    storage._dataset_import_attempted = True  # nothing is fetched from the Hub
    storage.write_trace_sessions = staticmethod(lambda project, trace_rows: 0)  # copies that only the Hub shows
    return storage


def _values(entry: JournalEntry) -> dict[str, Any]:
    record = entry.record
    prefix = "" if entry.file.name == MAIN else f"{entry.file.name}/"
    if isinstance(record, Metrics):
        named = {f"{prefix}{name}": _storable(value) for name, value in record.values.items() if value is not None}
        return {f"__{name}" if _is_reserved(name) else name: value for name, value in named.items()}
    return {f"{prefix}samples": _trace(record)} if isinstance(record, Sample) else {}


def _is_reserved(name: str) -> bool:
    return name in _RESERVED or name.startswith("__")


def _trace(sample: Sample) -> dict[str, Any]:
    """A sample as trackio shows a conversation."""
    said = [("user", sample.prompt), ("assistant", sample.completion)]
    known = {name: getattr(sample, name) for name in sample.__struct_fields__}
    rest = {name: value for name, value in known.items() if name not in ("prompt", "completion", "time", "step")}
    return {
        "_type": "trackio.trace",
        "messages": [{"role": role, "content": content} for role, content in said],
        "metadata": _storable({name: value for name, value in rest.items() if value not in (None, {})}),
        "spans": [],
    }


def _storable(value: Any) -> Any:
    """A value that trackio's encoder takes: a bool is a number to its charts, and integers have 64 bits."""
    if isinstance(value, Mapping):
        return {str(key): _storable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_storable(item) for item in value]
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int) and value not in _INTEGERS:
        return float(max(min(value, _LARGEST), -_LARGEST))
    return value


def _config(facts: RunMetadata, group: str | None) -> dict[str, Any]:
    config = facts.config if isinstance(facts.config, Mapping) else {"config": facts.config}
    group = group or (facts.membership.group_path if facts.membership is not None else None)
    own = {"_Created": _iso(facts.started), "_Username": facts.user, "_Group": group}
    return {key: _storable(value) for key, value in config.items() if value is not None} | own


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds")
