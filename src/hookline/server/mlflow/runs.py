"""`MlflowRuns`: creates, changes and reads the runs of MLflow's clients.

A request is checked completely before anything is written, and is then written in one piece, so it is recorded as a
whole or not at all. A row equal to one of the last `RECENT_ROWS` of its run is not recorded again: the client repeated
it because a response was lost. (MLflow's databases do not keep equal values of a metric twice either.)
"""

import contextlib
import os
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec

from hookline._record.reader import FINAL
from hookline._record.records import MLFLOW, AnyRecord, Event, Metrics, Status, decode, encode, valid_text
from hookline._record.row_batches import METRICS_PREFIX
from hookline.server.limits import MAX_BODY_BYTES, BodyError
from hookline.server.mlflow.experiments import DEFAULT_ID, ID_DIGITS, Experiment, Experiments
from hookline.server.mlflow.messages import (
    BAD_STATE,
    INVALID,
    MAX_DATASET_TEXT,
    MAX_DATASETS,
    MAX_METRICS,
    MAX_NAME,
    MAX_PARAM,
    MAX_TAG,
    MAX_TEXTS,
    MISSING,
    CreateRun,
    DatasetInput,
    KeyValue,
    LogBatch,
    LogInputs,
    MlflowError,
    RunRequest,
    SentMetric,
    checked_id,
    checked_integer,
    checked_key,
    checked_number,
    checked_texts,
    shown_number,
)
from hookline.server.mlflow.records import PARENT, RUN_NAME, facts_of, rows_of, shown_metric
from hookline.server.mlflow.state import (
    FILE,
    ORIGIN,
    SNAPSHOT,
    SNAPSHOT_BYTES,
    Change,
    Created,
    ModelMetric,
    RunState,
    read_state,
)
from hookline.server.received_runs import ConflictError, ReceivedRuns
from hookline.store.query_limits import check_limits

MAX_HISTORY = 25_000
"""The most values of a metric in one response."""
MAX_RUN_TEXT_BYTES = 4 << 20
"""The maximum size of a run's description: params, tags and so on."""
STATUSES = {
    "RUNNING": "running",
    "SCHEDULED": "running",
    "FINISHED": "finished",
    "FAILED": "failed",
    "KILLED": "stopped",
}
_LOCKS = 64
_ATTEMPTS = 20
_MAX_WEIGHT = 2_000_000
MAX_STATE_BYTES = 64 << 20
"""The maximum size of all params, tags, data sets, models and files sent for a run."""
_SMALL_CHANGE_BYTES = 4096
_RUN_DIGITS = 14

NewChange: TypeAlias = tuple[Change, Sequence[AnyRecord]]
"""A change, and records that are written with it."""


def run_id_of(experiment_id: str) -> str:
    """Make the id of a new run; it begins with that of its experiment."""
    return f"{int(experiment_id):0{ID_DIGITS}d}{secrets.token_hex(_RUN_DIGITS // 2)}"


def experiment_of_run(run_id: str) -> str:
    """The id of the experiment that a run belongs to, by the run's id; empty if it is not one of ours."""
    digits = run_id[:ID_DIGITS]
    if len(run_id) != ID_DIGITS + _RUN_DIGITS or not (digits.isascii() and digits.isdigit()):
        return ""
    return digits if int(digits) else DEFAULT_ID


@dataclass(slots=True)
class MlflowRuns:
    """The runs of MLflow's clients.

    Args:
        archive: Hides a run in hookline's listings, or shows it again; called with the project, the run and a boolean.
        clock: Seconds since 1970.
    """

    received: ReceivedRuns
    experiments: Experiments
    archive: Callable[[str, str, bool], None] = lambda project, run, hidden: None
    clock: Callable[[], float] = time.time
    _states: "OrderedDict[tuple[str, str], RunState]" = field(default_factory=OrderedDict)
    _projects: dict[str, str] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    """Acquired last and only briefly: the threads of all runs share the states."""
    _locks: list[threading.Lock] = field(default_factory=lambda: [threading.Lock() for _ in range(_LOCKS)])

    def place(self, run_id: str) -> tuple[str, str]:
        """The project and the name of a run.

        Raises:
            MlflowError: The id is not valid.
        """
        experiment_id = experiment_of_run(checked_id("run_id", run_id))
        project = self._projects.get(experiment_id)
        if project is None:
            found = self.experiments.find(experiment_id) if experiment_id else None
            if found is None:
                raise missing_run(run_id)
            project = self._projects[experiment_id] = found.project
        return project, run_id

    def ids_of(self, experiment: Experiment) -> list[str]:
        """Return the ids of the runs of an experiment that this server has."""
        with contextlib.suppress(OSError), os.scandir(self.received.root / experiment.project) as entries:
            return [entry.name for entry in entries if experiment_of_run(entry.name) == experiment.id]
        return []

    def create(self, request: CreateRun, experiment: Experiment, user: str) -> tuple[str, RunState]:
        """Create a run, and return its id and state.

        Args:
            user: Who creates it, if the request does not say.
        """
        if experiment.stage != "active":
            raise MlflowError(BAD_STATE, f"The experiment {experiment.name!r:.80} is deleted: restore it first.")
        tags = checked_texts("tag", request.tags, MAX_TAG)
        name = (request.run_name or tags.get(RUN_NAME) or _random_name())[:MAX_NAME]
        tags[RUN_NAME] = name
        now = round(self.clock() * 1000)
        start = checked_integer("start_time", now if request.start_time is None else request.start_time)
        run_id, project = run_id_of(experiment.id), experiment.project
        created = Created(experiment.id, start, (request.user_id or tags.get("mlflow.user") or user)[:MAX_NAME])
        change = Change(created=created, name=name, status="RUNNING", tags=tags)
        state = RunState()
        state.apply(change)
        self.received.claim(project, run_id, ORIGIN, self._facts(state, project, run_id))
        records: list[AnyRecord] = [Status(time=start / 1000, status="running", step=0), _event(change, start / 1000)]
        lines = b"".join(encode(record) + b"\n" for record in records)
        state.size = self.received.append(project, run_id, FILE, origin=ORIGIN, offset=None, lines=lines)
        self._keep((project, run_id), state)
        return run_id, state

    @contextlib.contextmanager
    def reading(self, project: str, run_id: str) -> Iterator[RunState]:
        """Yield the state of a run, which does not change inside the block.

        Raises:
            MlflowError: There is no such run.
        """
        # Held from reading the state until the change derived from it is stored. Other runs do not wait.
        with self._locks[hash((project, run_id)) % len(self._locks)]:
            yield self._load(project, run_id)

    def log(self, project: str, run_id: str, batch: LogBatch) -> None:
        """Record metrics, params and tags: all, or none.

        Raises:
            MlflowError: Something is not accepted.
        """
        if len(batch.metrics) > MAX_METRICS or len(batch.params) > MAX_TEXTS or len(batch.tags) > MAX_TEXTS:
            raise MlflowError(
                INVALID, f"Send at most {MAX_METRICS:,} metrics, {MAX_TEXTS} params and {MAX_TEXTS} tags at a time."
            )
        now = self.clock()
        rows = rows_of(batch.metrics, now)
        params, tags = checked_texts("param", batch.params, MAX_PARAM), checked_texts("tag", batch.tags, MAX_TAG)
        with self.reading(project, run_id) as state:
            _require_active(state, run_id)
            _check_params(state, batch.params, params, run_id)
            new = {key: value for key, value in params.items() if key not in state.params}
            measured = _model_metrics(batch.metrics, state, now)
            change = Change(params=new, tags=tags, name=tags.get(RUN_NAME), model_metrics=measured)
            self._write(project, run_id, state, rows, None if change == Change() else change, now)

    def untag(self, project: str, run_id: str, key: str) -> None:
        """Remove a tag.

        Raises:
            MlflowError: There is none.
        """
        with self.reading(project, run_id) as state:
            _require_active(state, run_id)
            if key not in state.tags:
                raise MlflowError(MISSING, f"The run {run_id} has no tag {key!r:.80}.")
            self._write(project, run_id, state, (), Change(untagged=[key]), self.clock())

    def update(self, project: str, run_id: str, request: RunRequest) -> RunState:
        """Change the status, the end and the name of a run."""
        if request.status and request.status not in STATUSES:
            raise MlflowError(INVALID, f"status={request.status!r:.80}: give {', '.join(STATUSES)}.")
        end = None if request.end_time is None else checked_integer("end_time", request.end_time)
        with self.reading(project, run_id) as state:
            _require_active(state, run_id)
            name = request.run_name[:MAX_NAME] or None
            tags = {RUN_NAME: name} if name else {}
            status = request.status or (state.status if end is not None else None)
            change = Change(name=name, tags=tags, status=status, end_time=end)
            now = self.clock()
            records: list[AnyRecord] = []
            if status is not None and (status != state.status or STATUSES[status] in FINAL):
                step = max((at for at, _, _ in state.latest.values()), default=0)
                records.append(Status(time=now if end is None else end / 1000, status=STATUSES[status], step=step))
            self._write(project, run_id, state, (), change, now, records)
            return self._load(project, run_id)

    def set_stage(self, project: str, run_id: str, stage: str) -> None:
        """Delete a run as MLflow does, so that it can be restored, or restore it."""
        with self.reading(project, run_id) as state:
            if state.stage != stage:
                self._write(project, run_id, state, (), Change(stage=stage), self.clock())
                self.archive(project, run_id, stage != "active")

    def log_inputs(self, project: str, run_id: str, request: LogInputs, *, are_outputs: bool = False) -> None:
        """Record which data sets and models a run uses, or which models it makes."""
        if len(request.datasets) > MAX_DATASETS or len(request.models) > MAX_DATASETS:
            raise MlflowError(INVALID, f"Send at most {MAX_DATASETS} data sets and models at a time.")
        datasets = [_checked_dataset(each) for each in request.datasets]
        models = [each for each in request.models if checked_id("model_id", each.model_id)]
        change = Change(datasets=datasets, outputs=models) if are_outputs else Change(datasets=datasets, inputs=models)
        self.change(project, run_id, change)

    def change(self, project: str, run_id: str, change: Change, records: Sequence[AnyRecord] = ()) -> None:
        """Record a change of an active run, with other records."""
        with self.reading(project, run_id) as state:
            _require_active(state, run_id)
            self._write(project, run_id, state, (), change, self.clock(), records)

    def change_from(self, project: str, run_id: str, make: Callable[[RunState], "NewChange"]) -> None:
        """Record a change of an active run that depends on its state: no other change comes in between.

        Args:
            make: Returns the change and other records. Called again if another server on the directory was faster.
        """
        for _ in range(_ATTEMPTS):
            with self.reading(project, run_id) as state:
                _require_active(state, run_id)
                change, records = make(state)
                try:
                    self._write(project, run_id, state, (), change, self.clock(), records, offset=state.size)
                except ConflictError as error:
                    if not error.facts.get("conflict"):
                        raise
                    self._forget((project, run_id))
                    self.received.refresh(project, run_id)
                else:
                    return
        raise BodyError(503, f"The run {run_id} is being changed by too many clients. Try again in a moment.")

    def history(self, project: str, run_id: str, key: str, limit: int, token: str = "") -> tuple[list[Any], str]:
        """The values of a metric in the order in which they were logged, and the token of the next page, if any."""
        found: list[dict[str, Any]] = []
        for at, value, timestamp, step in self.values(project, run_id, key, _offset_in(token)):
            if len(found) >= limit:
                return found, str(at)
            found.append(shown_metric(key, value, timestamp, step))
        return found, ""

    def values(self, project: str, run_id: str, key: str, start: int = 0) -> Iterator[tuple[int, float, int, int]]:
        """The values of a metric one by one: the offset of the row, the value, the time in milliseconds and the step.

        Args:
            start: The offset of the first row.

        Raises:
            MlflowError: There is no such run.
            QueryTimeoutError: The client has disconnected.
        """
        checked_key("metric_key", key)
        needle = msgspec.json.encode(key) + b":"
        with self.reading(project, run_id):  # there is such a run
            pass
        for lines, end in self.received.lines_from(project, run_id, origin=ORIGIN, file=FILE, start=start):
            check_limits()
            following = end - sum(map(len, lines)) - len(lines)
            for line in lines:
                at, following = following, following + len(line) + 1
                if line.startswith(METRICS_PREFIX) and needle in line:
                    with contextlib.suppress(msgspec.DecodeError):
                        record = decode(line)
                        value = record.values.get(key) if isinstance(record, Metrics) else None
                        if isinstance(record, Metrics) and isinstance(value, int | float):
                            yield at, value, round(record.time * 1000), record.step

    def _write(
        self,
        project: str,
        run_id: str,
        state: RunState,
        rows: Iterable[tuple[bytes, Metrics]],
        change: Change | None,
        now: float,
        records: Sequence[AnyRecord] = (),
        *,
        offset: int | None = None,
    ) -> None:
        """Store rows and a change, and apply them to the state.

        Args:
            offset: Where the journal has to end; anywhere by default.
        """
        # In a dict, so that of two equal rows in one request only one is new.
        unique = {line: row for line, row in rows if not state.is_repeated(line)}
        lines = [*unique, *map(encode, records)]
        facts: bytes | None = None
        if change is not None:
            _check_room(state, change, run_id)
            lines.append(encode(_event(change, now)))
            facts = self._facts(_described(state, change), project, run_id) if _describes(change) else None
        if not lines:
            return
        data = b"\n".join(lines) + b"\n"
        if len(data) > MAX_BODY_BYTES:
            raise MlflowError(INVALID, "The request is too large.")
        size = self.received.append(project, run_id, FILE, origin=ORIGIN, offset=offset, lines=data)
        if size == state.size + len(data):
            for line, row in unique.items():
                state.add_row(line, row.values, row.step, row.time)
            if change is not None:
                state.apply(change)
            state.size = size
            self._keep((project, run_id), state)
        else:  # another server has written to it as well
            self._forget((project, run_id))
            self.received.refresh(project, run_id)
            state = self._load(project, run_id)
            facts = None if facts is None else self._facts(state, project, run_id)
        if facts is not None:
            self.received.describe(project, run_id, origin=ORIGIN, facts=facts)
        if state.size - state.saved > SNAPSHOT_BYTES or (change is not None and STATUSES[state.status] in FINAL):
            self._save(project, run_id, state)

    def _save(self, project: str, run_id: str, state: RunState) -> None:
        with contextlib.suppress(OSError, ConflictError):  # it is read from the journal instead
            self.received.write_hidden(project, run_id, origin=ORIGIN, name=SNAPSHOT, content=state.snapshot())
            state.saved = state.size

    def _load(self, project: str, run_id: str) -> RunState:
        key = project, run_id
        try:
            size = self.received.stored_size(project, run_id, origin=ORIGIN, file=FILE)
            state = self._states.get(key)
            if state is None or state.size != size:
                state = read_state(self.received, project, run_id)
        except ConflictError:
            raise missing_run(run_id) from None
        if not state.created.experiment_id:
            raise missing_run(run_id)
        self._keep(key, state)
        return state

    def _keep(self, key: tuple[str, str], state: RunState) -> None:
        with self._lock:
            self._states[key] = state
            self._states.move_to_end(key)
            if len(self._states) % 64 == 0 or state.weight > 50_000:  # check all of them now and then
                weight = sum(each.weight for each in self._states.values())
                while weight > _MAX_WEIGHT and len(self._states) > 1:
                    weight -= self._states.popitem(last=False)[1].weight

    def _forget(self, key: tuple[str, str]) -> None:
        with self._lock:
            self._states.pop(key, None)

    def _facts(self, state: RunState, project: str, run_id: str) -> bytes:
        """The ``run.json`` of a run.

        Raises:
            MlflowError: It is too large.
        """
        facts = facts_of(state, project, run_id, self._parent_name(project, state.tags.get(PARENT, "")))
        if len(facts) > MAX_RUN_TEXT_BYTES:
            raise MlflowError(INVALID, f"The run {run_id} has too many params and tags; no others are accepted.")
        return facts

    def _parent_name(self, project: str, parent: str) -> str | None:
        """The name of the run that a run is nested in; its id if it is not known here."""
        if not parent:
            return None
        state = self._states.get((project, parent))
        return state.name if state is not None else parent[:MAX_NAME]


def missing_run(run_id: str) -> MlflowError:
    """The error for a run that does not exist, or that a token may not see."""
    return MlflowError(MISSING, f"There is no run with the id {run_id!r:.80}.")


def _describes(change: Change) -> bool:
    """Whether a change affects ``run.json``."""
    return change.name is not None or change.stage is not None or bool(change.params or change.tags or change.untagged)


def _described(state: RunState, change: Change) -> RunState:
    """Return the parts of ``run.json`` after a change."""
    described = RunState(state.created, state.name, stage=state.stage)
    described.params, described.tags = dict(state.params), dict(state.tags)
    described.apply(change)
    return described


def _event(change: Change, at: float) -> Event:
    return Event(time=at, name=MLFLOW, data=msgspec.to_builtins(change))


def _check_room(state: RunState, change: Change, run_id: str) -> None:
    """Refuse more texts, data sets, models and files for a run at its limit; it can still be ended and deleted."""
    size = len(msgspec.json.encode(change))
    if size > _SMALL_CHANGE_BYTES and state.text_bytes + size > MAX_STATE_BYTES:
        problem = f"The run {run_id} has {state.text_bytes:,} bytes of params, tags, data sets, models and files"
        raise MlflowError(INVALID, f"{problem}; at most {MAX_STATE_BYTES:,} are accepted.")


def _require_active(state: RunState, run_id: str) -> None:
    if state.stage != "active":
        raise MlflowError(BAD_STATE, f"The run {run_id} is deleted: restore it first.")


def _check_params(state: RunState, given: Iterable[KeyValue], params: dict[str, str], run_id: str) -> None:
    """Refuse params that already have another value, in the run or in the request."""
    for each in given:
        value, known = valid_text(each.value[:MAX_PARAM]), state.params.get(each.key, params[each.key])
        if known != value:
            problem = f"The param {each.key!r:.80} of the run {run_id} is {known!r:.80} and cannot be changed to"
            hint = "Params are logged once; use a tag or a metric for what changes."
            raise MlflowError(INVALID, f"{problem} {value!r:.80}. {hint}")


def _checked_dataset(given: DatasetInput) -> DatasetInput:
    dataset = given.dataset
    checked_key("name", dataset.name)
    checked_key("digest", dataset.digest)
    size = sum(map(len, (dataset.source, dataset.schema, dataset.profile, dataset.source_type)))
    if size > MAX_DATASET_TEXT or len(given.tags) > MAX_TEXTS:
        raise MlflowError(INVALID, f"The description of the data set {dataset.name!r:.80} is too large.")
    checked_texts("tag", given.tags, MAX_TAG)
    return given


def _model_metrics(metrics: Iterable[SentMetric], state: RunState, now: float) -> dict[str, list[ModelMetric]]:
    found: dict[str, list[ModelMetric]] = {}
    for metric in metrics:
        if metric.model_id in state.models:
            at = round(now * 1000) if metric.timestamp is None else metric.timestamp
            value = shown_number(checked_number(metric.key, metric.value))
            own = ModelMetric(metric.key, value, at, metric.step, metric.dataset_name, metric.dataset_digest)
            found.setdefault(metric.model_id, []).append(own)
    return found


def _offset_in(token: str) -> int:
    if not token:
        return 0
    if not (token.isascii() and token.isdigit() and len(token) <= 15):
        raise MlflowError(INVALID, f"page_token={token!r:.80}: give the one of the page before.")
    return int(token)


_ADJECTIVES = "amber bold brave calm clever crisp eager fleet gentle keen lively mellow quick quiet sharp steady sunny"
_ANIMALS = "badger bear crane deer falcon finch fox gecko hare heron ibis lark lynx marten otter owl raven seal swan"


def _random_name() -> str:
    """Return a name for a run that was created without one."""
    words = (secrets.choice(each.split()) for each in (_ADJECTIVES, _ANIMALS))
    return f"{'-'.join(words)}-{secrets.randbelow(1000)}"
