"""`StatusRuns`: records status messages of other programs as ordinary runs.

A message with an ``Idempotency-Key`` is recorded once, as long as the server runs. Such programs promise no heartbeat:
a run counts as stalled when it is silent for long, and as killed after ten times that. Each message is a contact, and
one with a new step shows progress, with or without metrics; without them, a row without values is recorded.

The state of a run comes from its journal. The journal is read again if this server did not write its end: after a
restart, or after a message to another server on the same root. The number of steps or epochs may lie far back, and is
searched only when a message gives one: the journal of a program that never does is not searched.
"""

import contextlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import msgspec

from hookline._engine.errors import OptionError
from hookline._record.reader import FINAL
from hookline._record.records import AnyRecord, Event, Metrics, Status, clean, decode, encode
from hookline.server.limits import check_name
from hookline.server.received_runs import ConflictError, ReceivedRuns
from hookline.server.status_messages import StatusMessage, parse_messages

DEFAULT_PROJECT = "status"
ORIGIN = "status"
"""Senders have ids of 32 digits: none can claim such a run, and messages cannot write to senders' runs."""
FILE = "main-0000-0-status-000000.jsonl"
_MAX_REMEMBERED = 10_000
_STATUS_PREFIX = b'{"kind":"status"'

_Totals: TypeAlias = tuple[int | None, int | None]
"""The total number of steps and epochs."""


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

    def record(self, body: bytes, *, project: str | None, run: str | None, key: str | None) -> StatusReply:
        """Record the messages of a body.

        Raises:
            OptionError: A message is not valid, or does not name its run.
            ConflictError: The run belongs to another sender.
        """
        messages = parse_messages(body)
        project = project or _common_name("projects", [each.project for each in messages]) or DEFAULT_PROJECT
        check_name("project", project)
        run = run or _common_name("runs", [each.run for each in messages])
        if not run:
            raise OptionError(
                "The run is missing. Give ?run=<name> in the URL, or 'run', 'run_id', 'job_id' or 'experiment_name' in "
                "the message."
            )
        check_name("run", run)
        with self._lock:
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
