"""`StatusRuns`: runs of programs that only post where they are; what they say becomes records of an ordinary run.

A message with an ``Idempotency-Key`` that was taken before is not taken again, as long as the server runs. How long a
program may say nothing is not known: it counts as stalled when it is silent for long, and as killed after ten times
that. Each message is a sign of life, and one whose step is another says that the run moves, with metrics or without:
then a row without values is recorded.

What a run has said before is in its journal. It is read again where this server did not write the end of it: after a
restart, or where another server on the same root took a message. How many steps or epochs there will be may stand far
back, and is looked for only when a message says it: the journal of a program that never does is not read through.
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
from hookline.server.status_messages import Told, told

PROJECT = "status"
ORIGIN = "status"
"""No sender's: theirs have 32 digits. So nobody can claim such a run, and its program cannot write to theirs."""
FILE = "main-0000-0-status-000000.jsonl"
_REMEMBERED = 10_000
_STATUS = b'{"kind":"status"'

_Counts: TypeAlias = tuple[int | None, int | None]
"""How many steps and epochs there will be."""


class Kept(msgspec.Struct):
    """In which run a status was kept, and how many records it made."""

    project: str
    run: str
    records: int


@dataclass(slots=True)
class _Known:
    """What a run has said, as far as it must not be said again."""

    status: str | None = None
    counts: _Counts | None = None
    """None as long as nobody looked for them."""
    step: int = 0
    latest: tuple[int, dict[str, Any]] | None = None
    held: int = 0
    """How much of the journal this is from."""


@dataclass(slots=True)
class StatusRuns:
    """Keeps status messages."""

    received: ReceivedRuns
    clock: Callable[[], float] = time.time
    _known: "OrderedDict[tuple[str, str], _Known]" = field(default_factory=OrderedDict)
    _keys: "OrderedDict[tuple[str, str, str], int]" = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, body: bytes, *, project: str | None, run: str | None, key: str | None) -> Kept:
        """Keep what a body says.

        Raises:
            OptionError: It cannot be understood, or does not say which run it is about.
            ConflictError: The run is somebody else's.
        """
        messages = told(body)
        project = check_name("project", project or _only("projects", [each.project for each in messages]) or PROJECT)
        run = _run(run or _only("runs", [each.run for each in messages]))
        with self._lock:
            once = (project, run, key) if key else None
            if once is not None and once in self._keys:
                return Kept(project, run, self._keys[once])
            known = self._recalled(project, run, with_counts=any(_gives_counts(each) for each in messages))
            records = [record for message in messages for record in self._records(message, known)]
            known.held = self._write(project, run, b"".join(encode(record) + b"\n" for record in records))
            self._remember(project, run, known)  # only now: before, it has not been said
            self._remember_key(once, len(records))
        return Kept(project, run, len(records))

    def _recalled(self, project: str, run: str, *, with_counts: bool) -> _Known:
        """What a run has said so far, to go on from."""
        place = {"origin": ORIGIN, "file": FILE}
        try:
            held = self.received.held(project, run, **place)
            known = self._known.get((project, run))
            if known is None or known.held != held:
                with contextlib.closing(self.received.lines_back(project, run, **place)) as lines:
                    known = _known_from(lines)
            if with_counts and known.counts is None:
                with contextlib.closing(self.received.lines_back(project, run, **place)) as lines:
                    known = replace(known, counts=_counts_from(lines))
            return replace(known)
        except ConflictError:  # there is no such run yet; or it is somebody else's, which writing to it will say
            return _Known(counts=(None, None))

    def _write(self, project: str, run: str, lines: bytes) -> int:
        facts = {"id": run, "name": run, "project": project, "started": self.clock(), "source": "status messages"}
        document = msgspec.json.encode(facts) + b"\n"
        return self.received.tell(project, run, origin=ORIGIN, file=FILE, facts=document, lines=lines)

    def _remember(self, project: str, run: str, known: _Known) -> None:
        self._known[project, run] = known
        self._known.move_to_end((project, run))
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)

    def _remember_key(self, once: tuple[str, str, str] | None, count: int) -> None:
        if once is not None:
            self._keys[once] = count
        while len(self._keys) > _REMEMBERED:
            self._keys.popitem(last=False)

    def _records(self, message: Told, known: _Known) -> Iterator[AnyRecord]:
        at = message.time or self.clock()
        has_moved = message.step not in (None, known.step)
        known.step = known.step if message.step is None else message.step
        said: list[AnyRecord] = [*_statuses(message, known, at)]
        if message.event is not None:
            said.append(Event(time=at, name=message.event, step=message.step, data=message.data))
        latest = known.step, message.values
        if message.values and not (message.is_heartbeat and known.latest == latest):
            known.latest = latest
            said.append(Metrics(time=at, step=known.step, values=message.values, axis=message.axis))
        if has_moved and not any(map(_says_how_far, said)):  # a heartbeat would say it, but not that the run moves
            said.append(Metrics(time=at, step=known.step, values={}))
        return iter(said or [Status(time=at, status="heartbeat", step=message.step)])


def _says_how_far(record: AnyRecord) -> bool:
    """Whether those who list the run take its step from a record."""
    if isinstance(record, Status):
        return record.step is not None and (record.status in FINAL or "num_steps" in record.data)
    return isinstance(record, Metrics)


def _statuses(message: Told, known: _Known, at: float) -> Iterator[Status]:
    counts = _counts(message, known) if _gives_counts(message) else known.counts
    begins = counts != known.counts
    known.counts = counts
    data = {name: value for name, value in message.data.items() if name not in ("report", "num_steps", "num_epochs")}
    if begins and counts is not None:
        data |= {"num_steps": counts[0], "num_epochs": counts[1]}
    word = message.status or known.status or "running"
    changes = message.status is not None and (message.status != known.status or message.status in FINAL)
    says = bool(message.message) and not message.values
    if message.event is None and (begins or changes or (says and not message.is_heartbeat)):
        known.status = word
        step = known.step if begins else message.step  # where it begins, without one it would begin at 0
        yield Status(time=at, status=word, message=message.message, step=step, data=data)
    if message.is_heartbeat:
        yield Status(time=at, status="heartbeat", step=message.step)


def _gives_counts(message: Told) -> bool:
    """Whether it says how much there will be, in a status: an event makes none, and so leaves it to the next."""
    return message.event is None and (message.num_steps, message.num_epochs) != (None, None)


def _counts(message: Told, known: _Known) -> _Counts:
    """The counts that a message gives; what it leaves out was said before."""
    num_steps, num_epochs = known.counts or (None, None)
    given = message.num_steps, message.num_epochs
    return num_steps if given[0] is None else given[0], num_epochs if given[1] is None else given[1]


def _known_from(lines: Iterable[bytes]) -> _Known:
    """What a run has said, from the lines of its journal, the last one first; no more are read than need be.

    The counts are left to `_counts_from`.
    """
    known, has_step = _Known(), False
    for line in lines:
        record = _decoded(line) if not has_step or line.startswith(_STATUS) else None
        if record is None:
            continue
        step = getattr(record, "step", None)
        if step is not None and not has_step:
            known.step, has_step = step, True
        if isinstance(record, Metrics) and record.values and known.latest is None:
            known.latest = record.step, clean(record.values)
        if isinstance(record, Status) and record.status != "heartbeat" and known.status is None:
            known.status = record.status
        if known.status is not None and has_step:
            break
    return known


def _counts_from(lines: Iterable[bytes]) -> _Counts:
    """The counts that a run said last, from the lines of its journal, the last one first.

    The search ends where the run had ended: what goes on after that begins again. It is bounded by who asks for it: a
    message that says counts. A run that never says them is not searched. One that says them for the first time is read
    as a whole, once: they are in its journal from then on. Of the lines only those of statuses are decoded.
    """
    for line in lines:
        record = _decoded(line) if line.startswith(_STATUS) else None
        if not isinstance(record, Status):
            continue
        counts = record.data.get("num_steps"), record.data.get("num_epochs")
        if counts != (None, None):
            return counts
        if record.status in FINAL:
            break
    return None, None


def _decoded(line: bytes) -> AnyRecord | None:
    try:
        return decode(line)
    except msgspec.DecodeError:
        return None


def _only(what: str, names: Iterable[str | None]) -> str | None:
    """The one name that messages give; those that give none are about the same."""
    given = sorted({name for name in names if name})
    if len(given) > 1:
        raise OptionError(
            f"The messages are about {len(given):,} {what}, such as {given[0]!r:.80} and {given[1]!r:.80}: send those "
            f"of each by themselves, or give ?{what[:-1]}=<name> in the address."
        )
    return given[0] if given else None


def _run(name: str | None) -> str:
    if not name:
        raise OptionError(
            "Which run is this about? Give ?run=<name> in the address, or 'run', 'run_id', 'job_id' or "
            "'experiment_name' in the message."
        )
    return check_name("run", name)
