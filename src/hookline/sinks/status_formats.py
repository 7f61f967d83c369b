"""What a status endpoint is told, in the words that it knows.

- ``json``: one object for each record, with the run's progress in all of them.
- ``tao``: the lines of NVIDIA TAO's ``status.json``.
- ``kubeflow``: the ``trainerStatus`` of a Kubeflow TrainJob; a state, so events are not told.

JSON has no NaN: numbers that are not finite are written as ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from hookline._record.reader import MAIN
from hookline._record.records import AnyRecord, Event, Metrics, Status, clean
from hookline.sinks.run_progress import CREATED, SPEAKERS, RunFacts, RunProgress, is_report

Payload = dict[str, Any]
_INT32 = 2**31 - 1
_VALIDATION = ("val", "eval", "test", "benchmark")
_VERBOSITY = {"failed": "ERROR", "training_failed": "ERROR", "hook_error": "WARNING", "records_lost": "ERROR"}
_MESSAGES = {"running": "Training starts.", "finished": "Training is complete.", "failed": "Training failed."}


@dataclass(frozen=True, slots=True)
class Message:
    """Something to tell: a record, or None for a heartbeat, and where the run stands with it."""

    id: str
    time: float
    record: AnyRecord | None
    standing: RunProgress
    sender: RunFacts
    component: str
    writer: str = MAIN

    @property
    def speaker(self) -> str:
        """What reports: what the record says, or else the component's name, or else the run's."""
        own = self.report.get("component")
        return str(own or self.component or self.standing.component or self.sender.name or self.sender.id)

    @property
    def report(self) -> dict[str, Any]:
        """What a status function said."""
        return self.record.data if isinstance(self.record, Status) and is_report(self.record) else {}

    @property
    def word(self) -> str | None:
        """What a status or an event is called."""
        match self.record:
            case Status():
                return str(self.report.get("phase") or self.record.status)
            case Event():
                return self.record.name
        return None

    @property
    def step(self) -> int:
        """The step that it is about."""
        own = getattr(self.record, "step", None)
        return self.standing.step if own is None else own

    @property
    def values(self) -> dict[str, Any]:
        """The metrics that it brings; a heartbeat has the latest of all."""
        match self.record:
            case Metrics():
                return self.record.values
            case Status():
                return dict(self.report.get("metrics") or {})
            case None:
                return {name: value for values in self.standing.metrics.values() for name, value in values.items()}
        return {}

    @property
    def data(self) -> dict[str, Any]:
        """What goes with a status or an event."""
        if not isinstance(self.record, Status | Event):
            return {}
        return dict(self.report.get("report", self.record.data))


def as_json(message: Message) -> Payload:
    """A plain object."""
    standing, record = message.standing, message.record
    told: Payload = {
        "id": message.id,
        "kind": "heartbeat" if record is None else str(record.__struct_config__.tag),
        "component": message.speaker,
        "project": message.sender.project if message.sender.name else None,
        "run": message.sender.id if message.sender.name else None,
        "timestamp": message.time,
        "status": standing.status,
        "step": message.step,
        "num_steps": standing.num_steps,
        "progress": standing.progress,
        "eta_seconds": standing.eta_seconds,
        "phase": message.word,
        "message": getattr(record, "message", None) or None,
        "axis": getattr(record, "axis", None),
        "writer": None if message.writer == MAIN else message.writer,
        "metrics": message.values or None,
        "data": message.data or None,
    }
    return _filled(told)


def as_tao(message: Message) -> Payload | None:
    """A line of TAO's ``status.json``."""
    if message.writer not in SPEAKERS:
        return None
    moment = time.localtime(message.time)
    told: Payload = {
        "date": f"{moment.tm_mon}/{moment.tm_mday}/{moment.tm_year}",
        "time": f"{moment.tm_hour}:{moment.tm_min}:{moment.tm_sec}",
        "status": _tao_status(message),
        "verbosity": _VERBOSITY.get(message.word or "", "INFO"),
        "message": _tao_message(message),
        "component": message.speaker,
        "phase": message.word,
        "data": message.data or None,
    }
    return _filled(told | _tao_values(message) | _tao_progress(message))


def as_trainer_status(message: Message) -> Payload | None:
    """What a Kubeflow TrainJob shows as its ``trainerStatus``."""
    if isinstance(message.record, Event) or message.writer not in SPEAKERS:
        return None
    standing = message.standing
    counts = {"currentEpoch": standing.epoch, "totalEpochs": standing.num_epochs}
    counts |= {"currentStep": standing.step, "totalSteps": standing.num_steps}
    latest = {name: value for values in standing.metrics.values() for name, value in values.items()}
    shown = {name: str(clean(value)) for name, value in (counts | latest).items() if name and value is not None}
    told = {
        "progressPercentage": None if standing.progress is None else int(100 * standing.progress),
        "estimatedRemainingSeconds": None if standing.eta_seconds is None else min(_INT32, int(standing.eta_seconds)),
        "metrics": [{"name": name, "value": value} for name, value in shown.items() if value],
        "lastUpdatedTime": datetime.fromtimestamp(message.time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    return {"trainerStatus": _filled(told)}


FORMATS: Mapping[str, Callable[[Message], Payload | None]] = {
    "json": as_json,
    "kubeflow": as_trainer_status,
    "tao": as_tao,
}
"""How a message is written, by the name of the format; None is not told."""


def _filled(told: Payload) -> Payload:
    return {key: clean(value) for key, value in told.items() if value is not None}


def _tao_status(message: Message) -> str:
    record, standing = message.record, message.standing
    begins = isinstance(record, Status) and "num_steps" in record.data
    if begins or (record is None and standing.status == CREATED):
        return "STARTED"
    if isinstance(record, Status):
        return {"finished": "SUCCESS", "stopped": _stopped(record.message), "failed": "FAILURE"}.get(
            record.status, "RUNNING"
        )
    return "RUNNING"


def _stopped(reason: str) -> str:
    """TAO has no word for a run that was stopped: one that was interrupted failed, early stopping did not."""
    return "FAILURE" if reason.startswith(("SIG", "KeyboardInterrupt", "SystemExit")) else "SUCCESS"


def _tao_message(message: Message) -> str:
    match message.record:
        case None:
            return "Alive."
        case Status():
            return message.record.message or _MESSAGES.get(message.record.status, str(message.word))
        case Metrics():
            return f"{message.record.axis} metrics at step {message.step}"
    return str(message.word)


def _tao_values(message: Message) -> Payload:
    """Metrics of validations are ``kpi``, other numbers ``graphical``, what is no number ``categorical``."""
    evaluates = isinstance(message.record, Metrics) and message.record.axis == "eval"
    groups: dict[str, Payload] = {}
    for name, value in message.values.items():
        if isinstance(value, bool | str):
            group = "categorical"
        else:
            group = "kpi" if evaluates or name.lower().startswith(_VALIDATION) else "graphical"
        groups.setdefault(group, {})[name] = value
    return dict(groups)


def _tao_progress(message: Message) -> Payload:
    standing = message.standing
    return {
        "epoch": standing.epoch,
        "max_epoch": standing.num_epochs,
        "step": message.step,
        "max_step": standing.num_steps,
        "time_per_epoch": _duration(standing.seconds_per_epoch),
        "time_per_step": _duration(standing.seconds_per_step),
        "eta": _duration(standing.eta_seconds),
    }


def _duration(seconds: float | None) -> str | None:
    return None if seconds is None else str(timedelta(seconds=seconds))
