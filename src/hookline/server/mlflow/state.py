"""`RunState`: a run as MLflow's routes see it, read from its journal.

Each change is an event ``mlflow`` in the journal; metrics are rows. The state is the result of applying them in order,
both when they are written and after a restart, so the two agree. From time to time it is saved beside the journal
(`SNAPSHOT`), so that only later records are read again. That file may be deleted: it is only a cache.
"""

import contextlib
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from hookline._record.records import MLFLOW, Event, Metrics, decode, parse_nonfinite
from hookline._record.row_batches import METRICS_PREFIX, Row
from hookline.server.mlflow.messages import DatasetInput, ModelUse, shown_number
from hookline.server.received_runs import ReceivedRuns

ORIGIN = "mlflow"
"""Senders' ids have 32 digits, so no sender can claim such a run, and MLflow's clients cannot write to theirs."""
FILE = "main-0000-0-mlflow-000000.jsonl"
SNAPSHOT = ".mlflow.json"
SNAPSHOT_BYTES = 4 << 20
"""How much a journal grows before the state is saved again."""
RECENT_ROWS = 4000
"""How many recent rows are compared with new ones: more than a client has in flight."""
_EVENT_PREFIX = b'{"kind":"event"'
_row = msgspec.json.Decoder(Row)


class StoredFile(msgspec.Struct, frozen=True):
    """The content of a file of a run or a model."""

    path: str
    blob: str
    size: int


class LoggedTable(msgspec.Struct, frozen=True):
    """A table that was recorded from a file: its id, its number of rows, and a digest of them."""

    id: str
    rows: int
    digest: str


class ModelMetric(msgspec.Struct, frozen=True, omit_defaults=True):
    """A metric that was measured with a model."""

    key: str
    value: float | str
    timestamp: int
    step: int = 0
    dataset_name: str = ""
    dataset_digest: str = ""


class Model(msgspec.Struct, omit_defaults=True):
    """A logged model; times are in milliseconds since 1970."""

    model_id: str
    name: str = ""
    model_type: str = ""
    source_run_id: str = ""
    status: str = "LOGGED_MODEL_PENDING"
    created: int = 0
    updated: int = 0
    params: dict[str, str] = {}
    tags: dict[str, str] = {}
    metrics: list[ModelMetric] = []
    stage: str = "active"


class Created(msgspec.Struct, frozen=True, omit_defaults=True):
    """The facts of a run that are set when it is created."""

    experiment_id: str
    start_time: int
    user: str = ""


class Change(msgspec.Struct, frozen=True, omit_defaults=True):
    """A change of a run as stored in an event: each given field replaces or extends the earlier value."""

    created: Created | None = None
    name: str | None = None
    status: str | None = None
    end_time: int | None = None
    stage: str | None = None
    params: dict[str, str] = {}
    tags: dict[str, str] = {}
    untagged: list[str] = []
    datasets: list[DatasetInput] = []
    inputs: list[ModelUse] = []
    outputs: list[ModelUse] = []
    model: Model | None = None
    model_metrics: dict[str, list[ModelMetric]] = {}
    files: list[StoredFile] = []
    removed_files: list[str] = []
    tables: dict[str, LoggedTable] = {}


@dataclass(slots=True)
class RunState:
    """A run as MLflow sees it.

    Attributes:
        latest: The step, the time and the value of each metric where the step, and then the time, is highest.
        files: By their path in the run; those of a model begin with `model_folder`.
        tables: By the path of their file.
        size: The size of the journal that this state is from.
        saved: The size of the journal that the snapshot is from.
        text_bytes: The size of all changes.
    """

    created: Created = field(default_factory=lambda: Created("", 0))
    name: str = ""
    status: str = "RUNNING"
    end_time: int | None = None
    stage: str = "active"
    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    latest: dict[str, tuple[int, int, float]] = field(default_factory=dict)
    datasets: list[DatasetInput] = field(default_factory=list)
    inputs: list[ModelUse] = field(default_factory=list)
    outputs: list[ModelUse] = field(default_factory=list)
    models: dict[str, Model] = field(default_factory=dict)
    files: dict[str, StoredFile] = field(default_factory=dict)
    tables: dict[str, LoggedTable] = field(default_factory=dict)
    size: int = 0
    saved: int = 0
    text_bytes: int = 0
    recent: "OrderedDict[int, None]" = field(default_factory=OrderedDict)

    @property
    def weight(self) -> int:
        """Its approximate memory use, in entries."""
        texts = len(self.params) + len(self.tags) + len(self.models) + len(self.files) + 10 * len(self.datasets)
        return 10 + texts + len(self.latest) + len(self.recent) + self.text_bytes // 100

    def is_repeated(self, line: bytes) -> bool:
        """Whether an equal row was recorded recently, because the client repeated a request or logged it twice."""
        return hash(line) in self.recent

    def add_row(self, line: bytes, values: Mapping[str, float], step: int, time: float) -> None:
        """Apply a row of metrics."""
        at, latest = round(time * 1000), self.latest
        for name, value in values.items():
            known = latest.get(name)
            # MLflow's rule: the highest step, then the latest time, then the largest value; NaN is below all.
            if known is None or (step, at) > known[:2] or ((step, at) == known[:2] and not value < known[2]):
                latest[name] = step, at, value
        self.recent[hash(line)] = None
        if len(self.recent) > RECENT_ROWS:
            self.recent.popitem(last=False)

    def apply(self, change: Change) -> None:
        """Apply a change."""
        self.text_bytes += len(msgspec.json.encode(change))
        self.created = change.created or self.created
        self.name = self.name if change.name is None else change.name
        if change.status is not None:
            self.status, self.end_time = change.status, change.end_time
        self.stage = change.stage or self.stage
        self.params |= change.params
        self.tags |= change.tags
        for key in change.untagged:
            self.tags.pop(key, None)
        known = {(each.dataset.name, each.dataset.digest) for each in self.datasets}
        self.datasets += [each for each in change.datasets if (each.dataset.name, each.dataset.digest) not in known]
        self.inputs += [each for each in change.inputs if each not in self.inputs]
        self.outputs += [each for each in change.outputs if each not in self.outputs]
        if change.model is not None:
            self.models[change.model.model_id] = change.model
        for model_id, metrics in change.model_metrics.items():
            if (model := self.models.get(model_id)) is not None:
                names = {(each.key, each.dataset_name, each.dataset_digest) for each in metrics}
                kept = [e for e in model.metrics if (e.key, e.dataset_name, e.dataset_digest) not in names]
                self.models[model_id] = msgspec.structs.replace(model, metrics=[*kept, *metrics])
        for file in change.files:
            self.files[file.path] = file
        for path in change.removed_files:
            self.files.pop(path, None)
        self.tables |= change.tables

    def apply_lines(self, lines: Iterable[bytes]) -> None:
        """Apply lines of the journal; unknown ones are skipped."""
        for line in lines:
            if line.startswith(METRICS_PREFIX):
                try:
                    row = _row.decode(line)
                    self.add_row(line, row.values, row.step, row.time)
                except (msgspec.DecodeError, UnicodeDecodeError):  # a value that is not finite
                    self._apply_odd(line)
            elif line.startswith(_EVENT_PREFIX):
                self._apply_odd(line)

    def _apply_odd(self, line: bytes) -> None:
        with contextlib.suppress(msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError):
            record = decode(line)
            if isinstance(record, Metrics):
                numbers = {name: value for name, value in record.values.items() if isinstance(value, int | float)}
                self.add_row(line, numbers, record.step, record.time)
            elif isinstance(record, Event) and record.name == MLFLOW:
                self.apply(msgspec.convert(record.data, Change, strict=False))

    def snapshot(self) -> bytes:
        """Return the content of a snapshot file."""
        kept = {name: getattr(self, name) for name in _Snapshot.__struct_fields__}
        kept["latest"] = {name: (step, at, shown_number(value)) for name, (step, at, value) in self.latest.items()}
        return msgspec.json.encode(_Snapshot(**kept))


class _Snapshot(msgspec.Struct):
    created: Created
    name: str
    status: str
    end_time: int | None
    stage: str
    params: dict[str, str]
    tags: dict[str, str]
    latest: dict[str, tuple[int, int, float | str]]
    datasets: list[DatasetInput]
    inputs: list[ModelUse]
    outputs: list[ModelUse]
    models: dict[str, Model]
    files: dict[str, StoredFile]
    tables: dict[str, LoggedTable]
    size: int
    text_bytes: int = 0


def model_folder(model_id: str) -> str:
    """Return the prefix of a model's file paths; paths of a run's own files never begin with a slash."""
    return f"/{model_id}/"


def read_state(received: ReceivedRuns, project: str, run: str) -> RunState:
    """Read the state of a run from its snapshot and the later part of its journal.

    Raises:
        ConflictError: It is not a run of MLflow's routes.
    """
    state = _from_snapshot(received.read_hidden(project, run, origin=ORIGIN, name=SNAPSHOT))
    size = received.stored_size(project, run, origin=ORIGIN, file=FILE)
    if state is None or state.size > size:  # a snapshot of another journal
        state = RunState()
    state.saved = state.size
    start = state.size
    for lines, end in received.lines_from(project, run, origin=ORIGIN, file=FILE, start=start):
        state.apply_lines(lines)
        state.size = end
    if start and len(state.recent) < RECENT_ROWS:
        _add_recent(state, received, project, run)
    return state


def _from_snapshot(content: bytes) -> RunState | None:
    if not content:
        return None
    with contextlib.suppress(msgspec.DecodeError, ValueError, RecursionError):
        found = msgspec.json.decode(content, type=_Snapshot)
        kept = {name: getattr(found, name) for name in _Snapshot.__struct_fields__}
        latest = found.latest.items()
        kept["latest"] = {name: (step, at, float(parse_nonfinite(value))) for name, (step, at, value) in latest}
        return RunState(**kept)
    return None


def _add_recent(state: RunState, received: ReceivedRuns, project: str, run: str) -> None:
    """Note the last rows of the journal, of which only a part was read."""
    rows: list[int] = []
    with contextlib.closing(received.lines_reversed(project, run, origin=ORIGIN, file=FILE)) as lines:
        for line in lines:
            if len(rows) == RECENT_ROWS:
                break
            if line.startswith(METRICS_PREFIX):
                rows.append(hash(line))
    state.recent = OrderedDict.fromkeys(reversed(rows))
