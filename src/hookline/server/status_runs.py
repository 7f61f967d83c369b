"""`StatusRuns`: runs of programs that only post where they are; what they say becomes records of an ordinary run.

A message with an ``Idempotency-Key`` that was taken before is not taken again, as long as the server runs. How long a
program may say nothing is not known: it counts as stalled when it is silent for long, and as killed after ten times
that.

What a run has said before is in its journal. It is read again where this server did not write the end of it: after a
restart, or where another server on the same root took a message. How many steps there will be may stand far back, and
is looked for only when a message says it: the journal of a program that never does is not read through for it.
"""

import contextlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import msgspec

from hookline.core.errors import OptionError
from hookline.record.reader import FINAL
from hookline.record.records import AnyRecord, Event, Metrics, Status, clean, decode, encode
from hookline.server.received_names import check_name
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
        known.step = known.step if message.step is None else message.step
        yield from _statuses(message, known, at)
        if message.event is not None:
            yield Event(time=at, name=message.event, step=message.step, data=message.data)
        latest = known.step, message.values
        if message.values and not (message.is_heartbeat and known.latest == latest):
            known.latest = latest
            yield Metrics(time=at, step=known.step, values=message.values, axis=message.axis)


def _statuses(message: Told, known: _Known, at: float) -> Iterator[Status]:
    counts = message.num_steps, message.num_epochs
    begins = _gives_counts(message) and counts != known.counts
    if begins:
        known.counts = counts
    data = {name: value for name, value in message.data.items() if name not in ("report", "num_steps", "num_epochs")}
    data |= {"num_steps": counts[0], "num_epochs": counts[1]} if begins else {}
    word = message.status or known.status or "running"
    changes = message.status is not None and (message.status != known.status or message.status in FINAL)
    says = bool(message.message) and not message.values
    if message.event is None and (begins or changes or (says and not message.is_heartbeat)):
        known.status = word
        yield Status(time=at, status=word, message=message.message, step=message.step, data=data)
    if message.is_heartbeat:
        yield Status(time=at, status="heartbeat", step=message.step)


def _gives_counts(message: Told) -> bool:
    """Whether it says how many steps there will be, in a status: an event makes none, and so leaves it to the next."""
    return message.num_steps is not None and message.event is None


def _known_from(lines: Iterable[bytes]) -> _Known:
    """What a run has said, from the lines of its journal, the last one first; no more are read than need be.

    The counts are left to `_counts_from`.
    """
    known, has_step = _Known(), False
    for line in lines:
        if known.status is not None and has_step:
            break
        record = _decoded(line) if not has_step or line.startswith(_STATUS) else None
        if record is None:
            continue
        step = getattr(record, "step", None)
        if step is not None and not has_step:
            known.step, has_step = step, True
        if isinstance(record, Metrics) and known.latest is None:
            known.latest = record.step, clean(record.values)
        if isinstance(record, Status) and record.status != "heartbeat" and known.status is None:
            known.status = record.status
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
        if record.data.get("num_steps") is not None:
            return record.data["num_steps"], record.data.get("num_epochs")
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
