"""What programs that know nothing of hookline say about where they are, as one form.

Understood are the lines of NVIDIA TAO's ``status.json``, the ``trainerStatus`` of a Kubeflow TrainJob, what hookline's
own ``status`` sink posts, and plain JSON: ``{"status": ..., "message": ..., "step": ..., "max_step": ..., "metrics":
{...}}``. Times of the sender are kept where they have a zone, TAO's have none, and lie between the years 2000 and 2200.
How many steps or epochs there will be counts as not said where it is less than one.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from hookline._engine.errors import OptionError
from hookline._record.records import clean, parse_nonfinite, valid_text
from hookline.server.limits import check_depth
from hookline.server.parameters import LARGEST

MOST_MESSAGES = 10_000
_LONGEST_TEXT = 10_000
_STEP = ("step", "current_step", "global_step")
_NUM_STEPS = ("num_steps", "max_step", "total_steps", "max_steps")
_EPOCH = ("epoch", "current_epoch")
_NUM_EPOCHS = ("num_epochs", "max_epoch", "total_epochs")
_RUN = ("run", "run_id", "job_id", "experiment_name")
_TAO = ("verbosity", "graphical", "kpi", "categorical")
_FIRST_TIME, _LAST_TIME = (datetime(year, 1, 1, tzinfo=UTC).timestamp() for year in (2000, 2200))
_KINDS = ("heartbeat", "metrics", "status", "event")
_WORDS = {
    **dict.fromkeys(("started", "running", "in_progress"), "running"),
    **dict.fromkeys(("success", "succeeded", "finished", "complete", "completed", "done"), "finished"),
    **dict.fromkeys(("failure", "failed", "error"), "failed"),
    **dict.fromkeys(("stopped", "skipped", "cancelled", "canceled", "aborted"), "stopped"),
}
"""What others call the statuses of runs. Any other word is kept as it is."""


@dataclass(frozen=True, slots=True)
class Told:
    """What a message says."""

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


def told(body: bytes) -> list[Told]:
    """The messages in a body: one object, a list of them, or one in each line.

    Raises:
        OptionError: There is something else in it.
    """
    messages = list(_objects(body))
    if not 0 < len(messages) <= MOST_MESSAGES:
        raise OptionError(f"The body holds {len(messages):,} messages: send 1 to {MOST_MESSAGES:,} at a time.")
    return [_told(message) for message in messages]


def _objects(body: bytes) -> Iterator[dict[str, Any]]:
    for found in _documents(body):
        if not isinstance(found, dict):
            raise OptionError(f"A status message is a JSON object, not {json.dumps(found)[:80]}.")
        check_depth("A status message", found)
        yield found


def _documents(body: bytes) -> list[Any]:
    try:
        whole = json.loads(body)
    except (ValueError, RecursionError):
        try:
            return [json.loads(line) for line in body.splitlines() if line.strip()]
        except (ValueError, RecursionError) as error:
            raise OptionError(f"The body is no JSON, and its lines are none: {error}.") from None
    return whole if isinstance(whole, list) else [whole]


def _told(message: Mapping[str, Any]) -> Told:
    if isinstance(message.get("trainerStatus"), dict):
        found = _of_kubeflow(message["trainerStatus"], message)
    elif message.get("kind") in _KINDS and "status" in message:
        found = _of_hookline(message)
    elif any(name in message for name in _TAO):
        found = _of_tao(message)
    else:
        found = _plain(message)
    if not (found.status or found.message or found.values or found.event or found.is_heartbeat):
        raise OptionError(
            "A status message says nothing: give a 'status', a 'message' or 'metrics', e.g. "
            '{"run": "night", "status": "running", "step": 3, "max_step": 10, "metrics": {"loss": 0.5}}.'
        )
    return found


def _common(message: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "project": _text(message.get("project")),
        "run": next((_text(message[name]) for name in _RUN if message.get(name) not in (None, "")), None),
        "message": _text(message.get("message")) or "",
        "step": _whole(message, _STEP),
        "num_steps": _count(message, _NUM_STEPS),
        "num_epochs": _count(message, _NUM_EPOCHS),
    }


def _plain(message: Mapping[str, Any]) -> Told:
    data = {name: clean(value) for name in (*_EPOCH, "component", "data") if (value := message.get(name)) is not None}
    own = _common(message) | {"time": _time(message.get("timestamp")), "values": _values(message.get("metrics"))}
    return Told(**own, status=_word(message.get("status")), data=data)


def _of_hookline(message: Mapping[str, Any]) -> Told:
    kind, phase = message["kind"], _text(message.get("phase"))
    own = _common(message) | {"time": _time(message.get("timestamp")), "values": _values(message.get("metrics"))}
    data = message.get("data")
    own["data"] = clean(data) if isinstance(data, dict) else {}
    own["axis"] = _text(message.get("axis")) or "train"
    if kind == "event":
        return Told(**own, event=phase or "event")
    return Told(**own, status=_word(message["status"]) if kind == "status" else None, is_heartbeat=kind == "heartbeat")


def _of_tao(message: Mapping[str, Any]) -> Told:
    groups = [_values(message.get(name)) for name in ("categorical", "graphical", "kpi")]
    values = {name: value for group in groups for name, value in group.items()}
    axis = "eval" if message.get("kpi") and not message.get("graphical") else "train"
    data = {name: clean(value) for name in (*_EPOCH, "verbosity") if (value := message.get(name)) is not None}
    return Told(**_common(message), status=_word(message.get("status")), values=values, axis=axis, data=data)


def _of_kubeflow(status: Mapping[str, Any], message: Mapping[str, Any]) -> Told:
    listed = status.get("metrics")
    pairs = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    metrics = {str(each.get("name")): _number(each.get("value")) for each in pairs}
    counts = {name: (_whole if name == "step" else _count)(metrics, (key,)) for name, key in _COUNTS.items()}
    own = _common(message) | {name: count for name, count in counts.items() if count is not None}
    values = {name: value for name, value in metrics.items() if name not in _COUNTS.values()}
    percent = status.get("progressPercentage")
    is_done = isinstance(percent, int | float) and percent >= 100
    own["time"] = _time(status.get("lastUpdatedTime"))
    return Told(**own, status="finished" if is_done else "running", values=_values(values))


_COUNTS = {"step": "currentStep", "num_steps": "totalSteps", "num_epochs": "totalEpochs"}


def _values(given: Any, prefix: str = "") -> dict[str, Any]:
    """Metrics by name; those in groups carry the group's name."""
    values: dict[str, Any] = {}
    for name, value in given.items() if isinstance(given, dict) else ():
        if isinstance(value, dict):
            values |= _values(value, f"{prefix}{name}/")
        elif isinstance(value, str | bool | int | float):
            values[valid_text(f"{prefix}{name}")] = clean(value[:_LONGEST_TEXT] if isinstance(value, str) else value)
    return values


def _word(status: Any) -> str | None:
    word = _text(status)
    return None if not word else _WORDS.get(word.lower(), word[:100])


def _whole(message: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    for name in names:
        value = message.get(name)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool):
            if not -LARGEST <= value <= LARGEST:
                raise OptionError(f"{name}={value!s:.40}: give a whole number that fits 53 bits.")
            return value
    return None


def _count(message: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    """How many there will be; some programs say -1 where they do not know."""
    found = (_whole(message, (name,)) for name in names)
    return next((count for count in found if count is not None and count >= 1), None)


def _number(value: Any) -> Any:
    """Kubeflow writes numbers as texts."""
    if not isinstance(value, str):
        return value
    try:
        return float(parse_nonfinite(value))
    except ValueError:
        return value


def _text(value: Any) -> str | None:
    return None if value is None else str(clean(value if isinstance(value, str) else str(value)))[:_LONGEST_TEXT]


def _time(value: Any) -> float | None:
    """Seconds since 1970; None for what can be no time of a training."""
    if isinstance(value, str):
        value = _moment(value)
    is_time = isinstance(value, int | float) and not isinstance(value, bool) and _FIRST_TIME <= value < _LAST_TIME
    return float(value) if is_time else None


def _moment(given: str) -> float | None:
    try:
        moment = datetime.fromisoformat(given)
    except ValueError:
        return None
    return moment.timestamp() if moment.tzinfo is not None else None
