"""Parses status messages of other programs into one form.

Supported are lines of NVIDIA TAO's ``status.json``, the ``trainerStatus`` of a Kubeflow TrainJob, messages of
hookline's ``status`` sink, and plain JSON: ``{"status": ..., "message": ..., "step": ..., "max_step": ..., "metrics":
{...}}``. The sender's time is used if it has a time zone (TAO's has none) and lies between the years 2000 and 2200. A
total number of steps or epochs below one counts as unknown.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from hookline._engine.errors import OptionError
from hookline._record.records import clean, parse_nonfinite, valid_text
from hookline.server.limits import check_depth
from hookline.server.parameters import MAX_INTEGER

MAX_MESSAGES = 10_000
_MAX_TEXT = 10_000
_STEP = ("step", "current_step", "global_step")
_NUM_STEPS = ("num_steps", "max_step", "total_steps", "max_steps")
_EPOCH = ("epoch", "current_epoch")
_NUM_EPOCHS = ("num_epochs", "max_epoch", "total_epochs")
_RUN = ("run", "run_id", "job_id", "experiment_name")
_TAO = ("verbosity", "graphical", "kpi", "categorical")
_FIRST_TIME, _LAST_TIME = (datetime(year, 1, 1, tzinfo=UTC).timestamp() for year in (2000, 2200))
_KINDS = ("heartbeat", "metrics", "status", "event")
_KUBEFLOW_COUNTS = {"step": "currentStep", "num_steps": "totalSteps", "num_epochs": "totalEpochs"}
_STATUSES = {
    **dict.fromkeys(("started", "running", "in_progress"), "running"),
    **dict.fromkeys(("success", "succeeded", "finished", "complete", "completed", "done"), "finished"),
    **dict.fromkeys(("failure", "failed", "error"), "failed"),
    **dict.fromkeys(("stopped", "skipped", "cancelled", "canceled", "aborted"), "stopped"),
}
"""Other names of our statuses. Unknown ones are kept unchanged."""


@dataclass(frozen=True, slots=True)
class StatusMessage:
    """A parsed status message."""

    project: str | None = None
    run: str | None = None
    time: float | None = None
    status: str | None = None
    message: str = ""
    step: int | None = None
    num_steps: int | None = None
    num_epochs: int | None = None
    values: dict[str, Any] = field(default_factory=dict)
    axis: str = "train"
    event: str | None = None
    data: dict[str, Any] = field(default_factory=dict)
    is_heartbeat: bool = False


def parse_messages(body: bytes) -> list[StatusMessage]:
    """Parse a body: one JSON object, a list of objects, or one object per line.

    Raises:
        OptionError: A message is not valid.
    """
    try:
        whole = json.loads(body)
        messages = whole if isinstance(whole, list) else [whole]
    except (ValueError, RecursionError):
        try:
            messages = [json.loads(line) for line in body.splitlines() if line.strip()]
        except (ValueError, RecursionError) as error:
            raise OptionError(f"The body is neither JSON nor lines of JSON: {error}.") from None
    for message in messages:
        if not isinstance(message, dict):
            raise OptionError(f"A status message is a JSON object, not {json.dumps(message)[:80]}.")
        check_depth("A status message", message)
    if not 0 < len(messages) <= MAX_MESSAGES:
        raise OptionError(f"The body has {len(messages):,} messages: send 1 to {MAX_MESSAGES:,} at a time.")
    return [_parse(message) for message in messages]


def _parse(message: Mapping[str, Any]) -> StatusMessage:
    if isinstance(message.get("trainerStatus"), dict):
        found = _parse_kubeflow(message["trainerStatus"], message)
    elif message.get("kind") in _KINDS and "status" in message:
        found = _parse_hookline(message)
    elif any(name in message for name in _TAO):
        found = _parse_tao(message)
    else:
        found = _parse_plain(message)
    if not (found.status or found.message or found.values or found.event or found.is_heartbeat):
        raise OptionError(
            "A status message is empty: give a 'status', a 'message' or 'metrics', e.g. "
            '{"run": "night", "status": "running", "step": 3, "max_step": 10, "metrics": {"loss": 0.5}}.'
        )
    return found


def _common_fields(message: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "project": _text(message.get("project")),
        "run": next((_text(message[name]) for name in _RUN if message.get(name) not in (None, "")), None),
        "message": _text(message.get("message")) or "",
        "step": _integer(message, _STEP),
        "num_steps": _total(message, _NUM_STEPS),
        "num_epochs": _total(message, _NUM_EPOCHS),
    }


def _parse_plain(message: Mapping[str, Any]) -> StatusMessage:
    data = {name: clean(value) for name in (*_EPOCH, "component", "data") if (value := message.get(name)) is not None}
    own = _common_fields(message) | {"time": _time(message.get("timestamp")), "values": _values(message.get("metrics"))}
    return StatusMessage(**own, status=_status(message.get("status")), data=data)


def _parse_hookline(message: Mapping[str, Any]) -> StatusMessage:
    kind, phase = message["kind"], _text(message.get("phase"))
    own = _common_fields(message) | {"time": _time(message.get("timestamp")), "values": _values(message.get("metrics"))}
    data = message.get("data")
    own["data"] = clean(data) if isinstance(data, dict) else {}
    own["axis"] = _text(message.get("axis")) or "train"
    if kind == "event":
        return StatusMessage(**own, event=phase or "event")
    return StatusMessage(
        **own, status=_status(message["status"]) if kind == "status" else None, is_heartbeat=kind == "heartbeat"
    )


def _parse_tao(message: Mapping[str, Any]) -> StatusMessage:
    groups = [_values(message.get(name)) for name in ("categorical", "graphical", "kpi")]
    values = {name: value for group in groups for name, value in group.items()}
    axis = "eval" if message.get("kpi") and not message.get("graphical") else "train"
    data = {name: clean(value) for name in (*_EPOCH, "verbosity") if (value := message.get(name)) is not None}
    return StatusMessage(
        **_common_fields(message), status=_status(message.get("status")), values=values, axis=axis, data=data
    )


def _parse_kubeflow(status: Mapping[str, Any], message: Mapping[str, Any]) -> StatusMessage:
    listed = status.get("metrics")
    pairs = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    metrics = {str(each.get("name")): _number(each.get("value")) for each in pairs}
    counts = {name: (_integer if name == "step" else _total)(metrics, (key,)) for name, key in _KUBEFLOW_COUNTS.items()}
    own = _common_fields(message) | {name: count for name, count in counts.items() if count is not None}
    values = {name: value for name, value in metrics.items() if name not in _KUBEFLOW_COUNTS.values()}
    percent = status.get("progressPercentage")
    is_done = isinstance(percent, int | float) and percent >= 100
    own["time"] = _time(status.get("lastUpdatedTime"))
    return StatusMessage(**own, status="finished" if is_done else "running", values=_values(values))


def _values(given: Any, prefix: str = "") -> dict[str, Any]:
    """Metrics by name; nested ones get the group's name as a prefix."""
    values: dict[str, Any] = {}
    for name, value in given.items() if isinstance(given, dict) else ():
        if isinstance(value, dict):
            values |= _values(value, f"{prefix}{name}/")
        elif isinstance(value, str | bool | int | float):
            values[valid_text(f"{prefix}{name}")] = clean(value[:_MAX_TEXT] if isinstance(value, str) else value)
    return values


def _status(status: Any) -> str | None:
    text = _text(status)
    return None if not text else _STATUSES.get(text.lower(), text[:100])


def _integer(message: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    for name in names:
        value = message.get(name)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool):
            if not -MAX_INTEGER <= value <= MAX_INTEGER:
                raise OptionError(f"{name}={value!s:.40}: give a whole number that fits 53 bits.")
            return value
    return None


def _total(message: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    """A total; some programs send -1 if they do not know it."""
    found = (_integer(message, (name,)) for name in names)
    return next((count for count in found if count is not None and count >= 1), None)


def _number(value: Any) -> Any:
    """Kubeflow sends numbers as texts."""
    if not isinstance(value, str):
        return value
    try:
        return float(parse_nonfinite(value))
    except ValueError:
        return value


def _text(value: Any) -> str | None:
    return None if value is None else str(clean(value if isinstance(value, str) else str(value)))[:_MAX_TEXT]


def _time(value: Any) -> float | None:
    """Seconds since 1970; None for an implausible time."""
    if isinstance(value, str):
        try:
            parsed = datetime.fromisoformat(value)
        except ValueError:
            return None
        value = parsed.timestamp() if parsed.tzinfo is not None else None
    is_time = isinstance(value, int | float) and not isinstance(value, bool) and _FIRST_TIME <= value < _LAST_TIME
    return float(value) if is_time else None
