"""`StatusRuns`: records status messages of other programs as ordinary runs.

A message with an ``Idempotency-Key`` is recorded once, as long as the server runs. Such programs promise no heartbeat:
a run counts as stalled when it is silent for long, and as killed after ten times that. Each message is a contact, and
one with a new step shows progress, with or without metrics; without them, a row without values is recorded.

The state of a run comes from its journal. The journal is read again if this server did not write its end: after a
restart, or after a message to another server on the same root. The number of steps or epochs may lie far back, and is
searched only when a message gives one: the journal of a program that never does is not searched.

`parse_messages` accepts lines of NVIDIA TAO's ``status.json``, the ``trainerStatus`` of a Kubeflow TrainJob, messages
of hookline's ``status`` sink, and plain JSON: ``{"status": ..., "message": ..., "step": ..., "max_step": ...,
"metrics": {...}}``. The sender's time is used if it has a time zone (TAO's has none) and lies between the years 2000
and 2200. A total number of steps or epochs below one counts as unknown.
"""

import contextlib
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, TypeAlias

import msgspec

from hookline._engine.errors import OptionError
from hookline._record.reader import FINAL
from hookline._record.records import (
    AnyRecord,
    Event,
    Metrics,
    Status,
    clean,
    decode,
    encode,
    parse_nonfinite,
    valid_text,
)
from hookline.server.limits import MAX_INTEGER, check_depth, check_name
from hookline.server.received_runs import ConflictError, ReceivedRuns

DEFAULT_PROJECT = "status"
ORIGIN = "status"
"""Senders have ids of 32 digits: none can claim such a run, and messages cannot write to senders' runs."""
FILE = "main-0000-0-status-000000.jsonl"
_MAX_REMEMBERED = 10_000
_LOCKS = 64
_STATUS_PREFIX = b'{"kind":"status"'

_Totals: TypeAlias = tuple[int | None, int | None]
"""The total number of steps and epochs."""


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
_KUBEFLOW_COUNTS = {
    "step": ("currentStep", "current_step"),
    "num_steps": ("totalSteps", "total_steps"),
    "num_epochs": ("totalEpochs", "total_epochs"),
}
"""The names of counts among the metrics of a TrainJob: those of Kubeflow's SDK, and of Hugging Face's trainer."""
_KUBEFLOW_EPOCH = ("currentEpoch", "current_epoch")
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
    counts = {name: (_integer if name == "step" else _total)(metrics, keys) for name, keys in _KUBEFLOW_COUNTS.items()}
    own = _common_fields(message) | {name: count for name, count in counts.items() if count is not None}
    known = {key for keys in _KUBEFLOW_COUNTS.values() for key in keys}
    values = {name: value for name, value in metrics.items() if name not in known}
    for name in _KUBEFLOW_EPOCH:  # a fraction, in which Hugging Face's trainer counts
        if name in values:
            values.setdefault("epoch", values.pop(name))
            values.pop(name, None)
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


class StatusReply(msgspec.Struct):
    """The run of a status message, and the number of its records."""

    project: str
    run: str
    records: int


@dataclass(slots=True)
class _RunState:
    """What a run has recorded, as far as it must not be repeated."""

    status: str | None = None
    totals: _Totals | None = None
    """None until they are searched."""
    step: int = 0
    latest: tuple[int, dict[str, Any]] | None = None
    size: int = 0
    """The size of the journal this state is from."""


@dataclass(slots=True)
class StatusRuns:
    """Records status messages."""

    received: ReceivedRuns
    clock: Callable[[], float] = time.time
    _states: "OrderedDict[tuple[str, str], _RunState]" = field(default_factory=OrderedDict)
    _keys: "OrderedDict[tuple[str, str, str], int]" = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    """Taken last, for a moment: the dictionaries are shared by the threads of all runs."""
    _locks: list[threading.Lock] = field(default_factory=lambda: [threading.Lock() for _ in range(_LOCKS)])

    def record(
        self,
        body: bytes,
        *,
        project: str | None,
        run: str | None,
        key: str | None,
        check: Callable[[str], None] = lambda project: None,
    ) -> StatusReply:
        """Record the messages of a body.

        Args:
            check: Refuses a project that the sender may not write to; the messages may name it.

        Raises:
            OptionError: A message is not valid, or does not name its run.
            ConflictError: The run belongs to another sender.
        """
        messages = parse_messages(body)
        project = project or _common_name("projects", [each.project for each in messages]) or DEFAULT_PROJECT
        check_name("project", project)
        check(project)
        run = run or _common_name("runs", [each.run for each in messages])
        if not run:
            raise OptionError(
                "The run is missing. Give ?run=<name> in the URL, or 'run', 'run_id', 'job_id' or 'experiment_name' in "
                "the message."
            )
        check_name("run", run)
        # Held from reading the state until the records are stored: of two equal messages at once, one is new. Those of
        # other runs do not wait: an object store takes its time.
        with self._locks[hash((project, run)) % len(self._locks)]:
            once = (project, run, key) if key else None
            if once is not None and once in self._keys:
                return StatusReply(project, run, self._keys[once])
            state = self._load(project, run, with_totals=any(map(_gives_totals, messages)))
            records = [record for message in messages for record in self._records(message, state)]
            facts = {"id": run, "name": run, "project": project, "started": self.clock(), "source": "status messages"}
            state.size = self.received.append_or_create(
                project,
                run,
                origin=ORIGIN,
                file=FILE,
                facts=msgspec.json.encode(facts) + b"\n",
                lines=b"".join(encode(record) + b"\n" for record in records),
            )
            # Only after the records are stored: otherwise a retry would omit them.
            with self._lock:
                self._states[project, run] = state
                self._states.move_to_end((project, run))
                if once is not None:
                    self._keys[once] = len(records)
                for remembered in (self._states, self._keys):
                    while len(remembered) > _MAX_REMEMBERED:
                        remembered.popitem(last=False)
        return StatusReply(project, run, len(records))

    def _load(self, project: str, run: str, *, with_totals: bool) -> _RunState:
        """A copy of a run's state."""
        file = {"origin": ORIGIN, "file": FILE}
        try:
            size = self.received.stored_size(project, run, **file)
            state = self._states.get((project, run))
            if state is None or state.size != size:
                with contextlib.closing(self.received.lines_reversed(project, run, **file)) as lines:
                    state = _state_from(lines)
            if with_totals and state.totals is None:
                with contextlib.closing(self.received.lines_reversed(project, run, **file)) as lines:
                    state = replace(state, totals=_totals_from(lines))
            return replace(state)
        except ConflictError:  # the run is new, or of another sender, which writing to it will report
            return _RunState(totals=(None, None))

    def _records(self, message: StatusMessage, state: _RunState) -> list[AnyRecord]:
        at = message.time or self.clock()
        has_progress = message.step not in (None, state.step)
        state.step = state.step if message.step is None else message.step
        records: list[AnyRecord] = [*_statuses(message, state, at)]
        if message.event is not None:
            records.append(Event(time=at, name=message.event, step=message.step, data=message.data))
        latest = state.step, message.values
        if message.values and not (message.is_heartbeat and state.latest == latest):
            state.latest = latest
            records.append(Metrics(time=at, step=state.step, values=message.values, axis=message.axis))
        if has_progress and not any(map(_gives_step, records)):  # a heartbeat has the step, but is not progress
            records.append(Metrics(time=at, step=state.step, values={}))
        return records or [Status(time=at, status="heartbeat", step=message.step)]


def _gives_step(record: AnyRecord) -> bool:
    """Whether the listing takes the run's step from a record."""
    if isinstance(record, Status):
        return record.step is not None and (record.status in FINAL or "num_steps" in record.data)
    return isinstance(record, Metrics)


def _statuses(message: StatusMessage, state: _RunState, at: float) -> Iterator[Status]:
    totals = state.totals
    if _gives_totals(message):
        num_steps, num_epochs = state.totals or (None, None)  # a number that is left out stays
        totals = (
            num_steps if message.num_steps is None else message.num_steps,
            num_epochs if message.num_epochs is None else message.num_epochs,
        )
    has_new_totals = totals != state.totals
    state.totals = totals
    data = {name: value for name, value in message.data.items() if name not in ("report", "num_steps", "num_epochs")}
    if has_new_totals and totals is not None:
        data |= {"num_steps": totals[0], "num_epochs": totals[1]}
    status = message.status or state.status or "running"
    is_change = message.status is not None and (message.status != state.status or message.status in FINAL)
    has_text = bool(message.message) and not message.values
    if message.event is None and (has_new_totals or is_change or (has_text and not message.is_heartbeat)):
        state.status = status
        step = state.step if has_new_totals else message.step  # without a step, a new start would be at 0
        yield Status(time=at, status=status, message=message.message, step=step, data=data)
    if message.is_heartbeat:
        yield Status(time=at, status="heartbeat", step=message.step)


def _gives_totals(message: StatusMessage) -> bool:
    """Whether a message gives totals in a status; an event makes no status and leaves them to the next message."""
    return message.event is None and (message.num_steps, message.num_epochs) != (None, None)


def _state_from(lines: Iterable[bytes]) -> _RunState:
    """The state of a run without its totals, from its lines in reverse order; reads no more than necessary."""
    state, has_step = _RunState(), False
    for line in lines:
        record = _decode(line) if not has_step or line.startswith(_STATUS_PREFIX) else None
        if record is None:
            continue
        step = getattr(record, "step", None)
        if step is not None and not has_step:
            state.step, has_step = step, True
        if isinstance(record, Metrics) and record.values and state.latest is None:
            state.latest = record.step, clean(record.values)
        if isinstance(record, Status) and record.status != "heartbeat" and state.status is None:
            state.status = record.status
        if state.status is not None and has_step:
            break
    return state


def _totals_from(lines: Iterable[bytes]) -> _Totals:
    """The last totals of a run, from its lines in reverse order.

    The search ends at a final status: what follows is a new start. A run that gives totals for the first time is read
    completely, once, since they are in its journal from then on. Only statuses are decoded.
    """
    for line in lines:
        record = _decode(line) if line.startswith(_STATUS_PREFIX) else None
        if not isinstance(record, Status):
            continue
        totals = record.data.get("num_steps"), record.data.get("num_epochs")
        if totals != (None, None):
            return totals
        if record.status in FINAL:
            break
    return None, None


def _decode(line: bytes) -> AnyRecord | None:
    try:
        return decode(line)
    except msgspec.DecodeError:
        return None


def _common_name(what: str, names: Iterable[str | None]) -> str | None:
    """The single name in some messages; those without one belong to the same."""
    given = sorted({name for name in names if name})
    if len(given) > 1:
        raise OptionError(
            f"The messages name {len(given):,} {what}, such as {given[0]!r:.80} and {given[1]!r:.80}: send those of "
            f"each separately, or give ?{what[:-1]}=<name> in the URL."
        )
    return given[0] if given else None
