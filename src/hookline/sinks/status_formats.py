"""The message formats of `StatusSink`.

- ``json``: one object per record, each with the run's progress.
- ``tao``: the lines of NVIDIA TAO's ``status.json``.
- ``kubeflow``: the ``trainerStatus`` of a Kubeflow TrainJob; a state, so events are not sent.

JSON has no NaN: numbers that are not finite are written as ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from hookline._record.reader import MAIN
from hookline._record.records import AnyRecord, Event, Metrics, Status, clean
from hookline.sinks.run_progress import CREATED, STATUS_WRITERS, RunMetadata, RunProgress, is_report

Payload = dict[str, Any]
_INT32 = 2**31 - 1
_VALIDATION = ("val", "eval", "test", "benchmark")
_VERBOSITY = {"failed": "ERROR", "training_failed": "ERROR", "hook_error": "WARNING", "records_lost": "ERROR"}
_MESSAGES = {"running": "Training starts.", "finished": "Training is complete.", "failed": "Training failed."}


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
