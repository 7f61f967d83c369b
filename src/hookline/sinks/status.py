"""`StatusSink`: reports a run's status to a monitor, over HTTP or in a file of JSON lines.

Statuses and events are always reported, in order and each once: over HTTP by an ``Idempotency-Key`` that stays the same
when a message is sent again, in a file by truncation. To a monitor, metrics are a state rather than a history: by
default those of each validation are reported, and the latest others are sent with the heartbeats.

Heartbeats are sent while the training process is alive and the run has not ended, at most every ``heartbeat_seconds``.
They carry the last completed step, so a run that is alive but stuck can be recognized. The first one is sent at the
start, so that a wrong address or a bad token fails early. A heartbeat that failed is not repeated; the next one has
newer information.

Samples, rewards and log lines are not reported. The formats are:

- ``json``: one object per record, each with the run's progress.
- ``tao``: the lines of NVIDIA TAO's ``status.json``.
- ``kubeflow``: the ``trainerStatus`` of a Kubeflow TrainJob; a state, so events are not sent.

JSON has no NaN: numbers that are not finite are written as ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``.
"""

import importlib.util
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args
from urllib.parse import quote

import msgspec

from hookline._engine.errors import MissingExtraError, OptionError, closest
from hookline._record.reader import MAIN, JournalEntry
from hookline._record.records import BOOKKEEPING, AnyRecord, Event, Metrics, Status, clean
from hookline._record.sink import Sink, register_sink
from hookline.sinks.http import MessageEndpoint, expanded, require_url, without_secrets
from hookline.sinks.output_files import AppendedFile, file_loss, set_aside
from hookline.sinks.run_progress import CREATED, STATUS_WRITERS, RunMetadata, RunProgress, is_report, read_metadata

Format = Literal["json", "tao", "kubeflow"]
WhichMetrics = Literal["latest", "all", "none"]
KUBEFLOW = ("KUBEFLOW_TRAINER_SERVER_", "KUBEFLOW_TRAINER_STATUS_")
"""The prefixes of the variables that Kubeflow Trainer sets in a TrainJob's pods: the one that Hugging Face's trainer
reads, and that of Kubeflow's proposal."""
Payload = dict[str, Any]
_INT32 = 2**31 - 1
_VALIDATION = ("val", "eval", "test", "benchmark")
_VERBOSITY = {"failed": "ERROR", "training_failed": "ERROR", "hook_error": "WARNING", "records_lost": "ERROR"}
_MESSAGES = {"running": "Training starts.", "finished": "Training is complete.", "failed": "Training failed."}


@register_sink("status")
@dataclass(eq=False)
class StatusSink(Sink):
    """Posts the run's status to an HTTP endpoint, or appends it to a file.

    Args:
        endpoint: The address; ``${NAME}`` in it is taken from the environment. With ``format="kubeflow"`` it may be
            omitted in a TrainJob's pod, where the environment has address, token and certificate.
        path: A file to append lines to instead, not shared with other writers, e.g. TAO's ``status.json``.
        format: ``json``, ``tao`` or ``kubeflow``.
        headers: Sent with every message. ``${NAME}`` is taken from the environment; a literal value is never written
            to disk: a later delivery takes it from ``HOOKLINE_HEADER_<NAME>``.
        component: The name of the reporting component; by default the run's name.
        metrics: ``latest`` reports each validation and sends the latest others with the heartbeats, ``all`` reports
            every row as one message, ``none`` reports none.
        heartbeat_seconds: The minimum time between heartbeats; 0 for none.
        timeout_seconds: How long to wait for a response.
        skip_rejected: Skip a message that the endpoint rejects (400, 413, 422, ...), with a warning. Otherwise the
            delivery stops there, and the sink is shown as refused.
        ca_file: Certificates to trust instead of the system's.
        name: The sink's name in its run.
    """

    batch_records: ClassVar[int] = 20  # at most this many are reported again after a crash

    endpoint: str | None = None
    path: Path | None = None
    format: Format = "json"
    headers: dict[str, str] = field(default_factory=dict)
    component: str = ""
    metrics: WhichMetrics = "latest"
    heartbeat_seconds: float = 10.0
    timeout_seconds: float = 5.0
    skip_rejected: bool = False
    ca_file: Path | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        known_options = {"format": FORMATS, "metrics": get_args(WhichMetrics)}
        for option, known in known_options.items():
            given = getattr(self, option)
            if given not in known:
                raise OptionError(f"{option}={given!r} is not known. {closest(str(given), known)}")
        if self.endpoint is not None:
            require_url(self.endpoint, "endpoint")
        if (self.endpoint is None) == (self.path is None) and not (self.format == "kubeflow" and self.path is None):
            raise OptionError(f"endpoint={self.endpoint!r}, path={self.path!r}: give one of them.")
        if not self.heartbeat_seconds >= 0 or not self.timeout_seconds > 0:
            given = f"heartbeat_seconds={self.heartbeat_seconds!r}, timeout_seconds={self.timeout_seconds!r}"
            raise OptionError(f"{given}: give numbers of seconds; heartbeat_seconds=0 sends none.")
        self.path = Path(self.path).absolute() if self.path is not None else None
        self.ca_file = Path(self.ca_file).absolute() if self.ca_file is not None else None
        self.clock: Callable[[], float] = time.monotonic
        self.pulse: Callable[[], int | None] | None = None
        self.watch: Callable[[], None] | None = None
        self._destination: MessageEndpoint | StatusFile | None = None
        self._http: MessageEndpoint | None = None
        self._progress, self._metadata = RunProgress(), RunMetadata("", "")
        self._begin = 0
        self._last_beat = self._last_sent = float("-inf")
        self._has_unsent_metrics = False

    def check(self) -> None:
        if self.path is not None:
            return
        if importlib.util.find_spec("httpx") is None:
            raise MissingExtraError("The sink 'status'", "status")
        if self.endpoint is None and _pod_setting("URL") is None:
            raise OptionError(
                f"endpoint=None: not in a TrainJob's pod ({KUBEFLOW[0]}URL is not set). Give an endpoint."
            )
        for what, text in {"endpoint": self.endpoint or "", **self.headers}.items():
            expanded(text, what)

    def spec(self) -> dict[str, Any]:
        described = super().spec()
        if self.headers:
            described["with"]["headers"] = without_secrets(self.headers)
        return described

    def find_loss(self, run_dir: Path, state: Any) -> str:
        return "" if self.path is None else file_loss(self.path, state.get("bytes") or 0, state)

    def set_aside(self, run_dir: Path, state: Any) -> None:
        if self.path is not None:
            set_aside(self.path, state.get("begin", 0), state.get("inode"))

    def is_intact(self) -> bool:
        return not isinstance(self._destination, StatusFile) or self._destination.is_intact()

    @classmethod
    def uses(cls, settings: Mapping[str, Any]) -> list[str]:
        if settings.get("path") is not None:
            return []
        return [f"address {settings.get('endpoint') or KUBEFLOW[0] + 'URL'}"]

    def open(self, run_dir: Path, state: Any) -> dict[str, Any]:
        saved = state or {}
        self._metadata = read_metadata(run_dir)
        self._progress = RunProgress.restored(saved.get("standing"))
        if self.path is not None:
            self._destination = StatusFile(self.path, saved.get("bytes"), saved)
            self._begin = saved.get("begin", 0) if state else self._destination.size
        else:
            self._http = self._http or self._new_endpoint()  # kept when reopened: it knows which messages were accepted
            self._http.open()
            self._destination = self._http
        return self._state()

    def write(self, entries: Sequence[JournalEntry]) -> dict[str, Any]:
        assert self._destination is not None
        for entry in entries:
            self._progress.add(entry)
            if self._is_reported(entry):
                self._send(f"{quote(self._metadata.id)}-{entry.id}", entry.record.time, entry.record, entry.file.name)
            elif isinstance(entry.record, Metrics):
                self._has_unsent_metrics = self.metrics == "latest"
        self._destination.settle()
        return self._state()

    def beat(self) -> None:
        if self.watch is not None:  # called each time, so that a failure is reported without waiting for a heartbeat
            self.watch()
        now = self.clock()
        quiet_since = self._last_beat if self._has_unsent_metrics else max(self._last_beat, self._last_sent)
        if not self.heartbeat_seconds or self._progress.has_ended or now - quiet_since < self.heartbeat_seconds:
            return
        if self.pulse is not None:
            step = self.pulse()
            if step is None or self._progress.status == CREATED:  # the first status comes before any heartbeat
                return
            self._progress.reach(step, time.time())
        self._send(f"{quote(self._metadata.id)}-beat-{os.getpid()}-{time.time_ns()}", time.time(), None)
        self._last_beat, self._has_unsent_metrics = now, False

    def close(self) -> None:
        if self._destination is not None:
            self._destination.close()

    def _is_reported(self, entry: JournalEntry) -> bool:
        match entry.record:
            case Event() if entry.record.name in BOOKKEEPING:
                return False
            case Status() | Event():
                return True
            case Metrics():
                is_validation = entry.record.axis == "eval" and entry.file.name == MAIN
                return self.metrics == "all" or (self.metrics == "latest" and is_validation)
        return False

    def _send(self, key: str, when: float, record: AnyRecord | None, writer: str = MAIN) -> None:
        message = Message(key, when, record, self._progress, self._metadata, self.component, writer)
        payload = FORMATS[self.format](message)
        if payload is not None and self._destination is not None:
            self._destination.send(key, payload)
            self._last_sent = self.clock()

    def _new_endpoint(self) -> MessageEndpoint:
        url, ca_file, token_file = self.endpoint, self.ca_file, None
        if url is None:
            certificates, token = _pod_setting("CA_CERT"), _pod_setting("TOKEN")
            url = _pod_setting("URL") or ""
            ca_file = ca_file or (Path(certificates) if certificates else None)
            token_file = Path(token) if token else None
        return MessageEndpoint(
            url,
            self.headers,
            skips_rejected=self.skip_rejected,
            token_file=token_file,
            ca_file=ca_file,
            timeout_seconds=self.timeout_seconds,
            clock=self.clock,
        )

    def _state(self) -> dict[str, Any]:
        state: dict[str, Any] = {"standing": self._progress.saved()}
        if not isinstance(self._destination, StatusFile):
            return state
        return state | {"bytes": self._destination.size, "begin": self._begin} | self._destination.mark()


def _pod_setting(name: str) -> str | None:
    """What Kubeflow Trainer has set in the environment of a TrainJob's pod; None outside of one."""
    return next((value for prefix in KUBEFLOW if (value := os.environ.get(prefix + name))), None)


class StatusFile(AppendedFile):
    """A file of messages, one per line."""

    def send(self, key: str, payload: dict[str, Any]) -> None:
        """Append a message."""
        self.append(msgspec.json.encode(payload) + b"\n")

    def settle(self) -> None:
        """Do nothing: reopening the file truncates messages that were not delivered."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message to send: a record, or None for a heartbeat, with the run's progress and metadata."""

    id: str
    time: float
    record: AnyRecord | None
    progress: RunProgress
    metadata: RunMetadata
    component: str
    writer: str = MAIN

    @property
    def source(self) -> str:
        """The reporting component: that of the record, else the configured one, else the run."""
        own = self.report.get("component")
        return str(own or self.component or self.progress.component or self.metadata.name or self.metadata.id)

    @property
    def report(self) -> dict[str, Any]:
        """The data of a status function."""
        return self.record.data if isinstance(self.record, Status) and is_report(self.record) else {}

    @property
    def phase(self) -> str | None:
        """The name of a status or an event."""
        match self.record:
            case Status():
                return str(self.report.get("phase") or self.record.status)
            case Event():
                return self.record.name
        return None

    @property
    def step(self) -> int:
        """The step of the record, else of the run."""
        own = getattr(self.record, "step", None)
        return self.progress.step if own is None else own

    @property
    def values(self) -> dict[str, Any]:
        """The metrics of the record; a heartbeat has the latest of all."""
        match self.record:
            case Metrics():
                return self.record.values
            case Status():
                return dict(self.report.get("metrics") or {})
            case None:
                return {name: value for values in self.progress.metrics.values() for name, value in values.items()}
        return {}

    @property
    def data(self) -> dict[str, Any]:
        """The data of a status or an event."""
        if not isinstance(self.record, Status | Event):
            return {}
        return dict(self.report.get("report", self.record.data))


def as_json(message: Message) -> Payload:
    """Formats a message as a plain object."""
    progress, record = message.progress, message.record
    payload: Payload = {
        "id": message.id,
        "kind": "heartbeat" if record is None else str(record.__struct_config__.tag),
        "component": message.source,
        "project": message.metadata.project if message.metadata.name else None,
        "run": message.metadata.id if message.metadata.name else None,
        "timestamp": message.time,
        "status": progress.status,
        "step": message.step,
        "num_steps": progress.num_steps,
        "progress": progress.progress,
        "eta_seconds": progress.eta_seconds,
        "phase": message.phase,
        "message": getattr(record, "message", None) or None,
        "axis": getattr(record, "axis", None),
        "writer": None if message.writer == MAIN else message.writer,
        "metrics": message.values or None,
        "data": message.data or None,
    }
    return _without_none(payload)


def as_tao(message: Message) -> Payload | None:
    """Formats a message as a line of TAO's ``status.json``."""
    if message.writer not in STATUS_WRITERS:
        return None
    progress, moment = message.progress, time.localtime(message.time)
    is_eval = isinstance(message.record, Metrics) and message.record.axis == "eval"
    groups: dict[str, Payload] = {}  # validation metrics are kpi, other numbers graphical, everything else categorical
    for name, value in message.values.items():
        if isinstance(value, bool | str):
            group = "categorical"
        else:
            group = "kpi" if is_eval or name.lower().startswith(_VALIDATION) else "graphical"
        groups.setdefault(group, {})[name] = value
    payload: Payload = {
        "date": f"{moment.tm_mon}/{moment.tm_mday}/{moment.tm_year}",
        "time": f"{moment.tm_hour}:{moment.tm_min}:{moment.tm_sec}",
        "status": _tao_status(message),
        "verbosity": _VERBOSITY.get(message.phase or "", "INFO"),
        "message": _tao_message(message),
        "component": message.source,
        "phase": message.phase,
        "data": message.data or None,
        **groups,
        "epoch": progress.epoch,
        "max_epoch": progress.num_epochs,
        "step": message.step,
        "max_step": progress.num_steps,
        "time_per_epoch": _duration(progress.seconds_per_epoch),
        "time_per_step": _duration(progress.seconds_per_step),
        "eta": _duration(progress.eta_seconds),
    }
    return _without_none(payload)


def as_trainer_status(message: Message) -> Payload | None:
    """Formats a message as the ``trainerStatus`` of a Kubeflow TrainJob."""
    if isinstance(message.record, Event) or message.writer not in STATUS_WRITERS:
        return None
    progress = message.progress
    counts = {"currentEpoch": progress.epoch, "totalEpochs": progress.num_epochs}
    counts |= {"currentStep": progress.step, "totalSteps": progress.num_steps}
    latest = {name: value for values in progress.metrics.values() for name, value in values.items()}
    shown = {name: str(clean(value)) for name, value in (counts | latest).items() if name and value is not None}
    payload = {
        "progressPercentage": None if progress.progress is None else int(100 * progress.progress),
        "estimatedRemainingSeconds": None if progress.eta_seconds is None else min(_INT32, int(progress.eta_seconds)),
        "metrics": [{"name": name, "value": value} for name, value in shown.items() if value],
        "lastUpdatedTime": datetime.fromtimestamp(message.time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    return {"trainerStatus": _without_none(payload)}


FORMATS: Mapping[str, Callable[[Message], Payload | None]] = {
    "json": as_json,
    "kubeflow": as_trainer_status,
    "tao": as_tao,
}
"""The formats by name; a message that gives None is not sent."""


def _without_none(payload: Payload) -> Payload:
    return {key: clean(value) for key, value in payload.items() if value is not None}


def _tao_status(message: Message) -> str:
    record = message.record
    is_start = isinstance(record, Status) and "num_steps" in record.data
    if is_start or (record is None and message.progress.status == CREATED):
        return "STARTED"
    if not isinstance(record, Status):
        return "RUNNING"
    if record.status == "stopped":  # TAO has no word for it: an interrupted run failed, early stopping did not
        is_interrupt = record.message.startswith(("SIG", "KeyboardInterrupt", "SystemExit"))
        return "FAILURE" if is_interrupt else "SUCCESS"
    return {"finished": "SUCCESS", "failed": "FAILURE"}.get(record.status, "RUNNING")


def _tao_message(message: Message) -> str:
    match message.record:
        case None:
            return "Alive."
        case Status():
            return message.record.message or _MESSAGES.get(message.record.status, str(message.phase))
        case Metrics():
            return f"{message.record.axis} metrics at step {message.step}"
    return str(message.phase)


def _duration(seconds: float | None) -> str | None:
    return None if seconds is None else str(timedelta(seconds=seconds))
