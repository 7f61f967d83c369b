"""Compiles a moment's subscribers into one call.

This is the hot path, and the one place where the engine is clever. For each moment it generates a
function that calls the subscribers in a straight line, each behind its own guard (a `try` costs
nothing until something is raised), and the collection stores that function as its attribute: firing
a moment is one attribute look-up and one call, and with nobody listening the function is empty.

The text of such a function depends only on its *shape* (the moment, and for each call which
arguments it takes, whether it is guarded, timed, gated). Compiled templates are cached by shape, so
that rebuilding a moment after an `add` costs about a microsecond.

A moment with a cadence keeps a window ``low < count < high`` in which nobody scheduled is due: one
comparison, and the scheduled subscribers are not looked at. Outside of the window each is asked by
its gate, in order, right before it would be called, and the window moves on.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from hookline.core.moment import Moment
from hookline.core.schedule import NEVER, Gate
from hookline.core.timing import Meter, Tally

Fire = Callable[..., None]


class Slot(NamedTuple):
    """The shape of one call: what the generated text depends on."""

    arguments: tuple[str, ...]
    guarded: bool
    metered: bool
    gated: bool
    rank_zero: bool


@dataclass(slots=True)
class Call:
    """One subscriber at one moment, as the generated code sees it.

    ``fail(subject, error, ns)`` counts and reports, with the time where the call was timed, otherwise None;
    ``give(subject, value)`` takes a returned value.
    """

    invoke: Callable[..., Any]
    slot: Slot
    fail: Callable[[Any, Exception, int | None], None]
    give: Callable[[Any, Any], None]
    meter: Meter = field(default_factory=Meter)
    gate: Gate | None = None


@dataclass(slots=True)
class Compiled:
    """A moment made callable, with the tally that counts its firings."""

    fire: Fire
    calls: Sequence[Call]
    tallies: Sequence[tuple[Tally, Sequence[Call]]]

    def credit(self) -> None:
        """Hand the firings since the last time to the meters of the calls that are only counted."""
        for tally, calls in self.tallies:
            fired = tally.take()
            for call in calls:
                call.meter.counted += fired


def compile_moment(
    moment: Moment,
    calls: Sequence[Call],
    *,
    clock: Callable[[], int],
    sampled: Callable[[Any], None],
    reviewed: bool = False,
) -> Compiled:
    """Build the function that fires ``moment`` for ``calls``.

    Args:
        sampled: Called with the moment's subject after a timed pass.
        reviewed: Make timed passes even where every call is timed anyway, for the sake of ``sampled``.
    """
    make = _template(moment, tuple(call.slot for call in calls), reviewed and bool(calls))
    quiet = [call for call in calls if not call.slot.gated]
    gates = [call.gate for call in calls if call.gate is not None]
    tallies = [(Tally(), _counted(quiet))]
    if gates:
        tallies.append((Tally(), _counted(calls)))
    fire, lefts = make(calls, clock, sampled, lambda count: _horizon(gates, count), *(t.interval for t, _ in tallies))
    for (tally, _), left in zip(tallies, lefts, strict=True):
        tally.left = left
    return Compiled(fire, calls, tallies)


def _counted(calls: Iterable[Call]) -> list[Call]:
    return [call for call in calls if not call.slot.metered]


def _horizon(gates: Iterable[Gate], count: int) -> int:
    return min((gate.schedule.next(count) for gate in gates), default=NEVER)


@lru_cache(maxsize=1024)
def _template(moment: Moment, slots: tuple[Slot, ...], reviewed: bool) -> Callable[..., Any]:
    namespace: dict[str, Any] = {}
    exec(compile(_source(moment, slots, reviewed), f"<hookline {moment.name}>", "exec"), namespace)  # noqa: S102 - our own text
    make: Callable[..., Any] = namespace["make"]
    return make


def _source(moment: Moment, slots: tuple[Slot, ...], reviewed: bool) -> str:
    everyone = list(enumerate(slots))
    header = ", ".join(
        [*moment.arguments, *(["*"] if moment.keywords else []), *(f"{k}=None" for k in moment.keywords)]
    )
    lines = ["def make(calls, clock, sampled, horizon, interval, open_interval=None):"]
    for i, slot in everyone:
        lines += [f"    invoke{i}, give{i}, fail{i} = calls[{i}].invoke, calls[{i}].give, calls[{i}].fail"]
        lines += [f"    gate{i}, time{i} = calls[{i}].gate, calls[{i}].meter.{'count' if slot.metered else 'sample'}"]
    lines += ["    left = open_left = 1", "    low = high = 0"]
    if not any(slot.gated for slot in slots):
        body = _sampling(moment, everyone, "left", "interval", reviewed=reviewed)
        lines += _indent([f"def fire({header}):", "    nonlocal left", *_indent(body)])
        return "\n".join([*lines, "    return fire, (lambda: left,)"])
    quiet = _sampling(moment, [(i, slot) for i, slot in everyone if not slot.gated], "left", "interval")
    opened = _sampling(moment, everyone, "open_left", "open_interval", reviewed=reviewed)
    lines += _indent(
        [
            f"def fire({header}):",
            "    nonlocal left",
            f"    count = {moment.count}",
            "    if low < count < high:",
            *_indent(quiet or ["return"], 2),
            "    else:",
            f"        fire_open(count, {', '.join(moment.everything)})",
            f"def fire_open(count, {header}):",
            "    nonlocal open_left, low, high",
            *_indent(opened),
            "    low, high = count, horizon(count)",
            "return fire, (lambda: left, lambda: open_left)",
        ]
    )
    return "\n".join(lines)


def _sampling(
    moment: Moment, slots: list[tuple[int, Slot]], left: str, interval: str, *, reviewed: bool = False
) -> list[str]:
    """The calls; where some are only counted, twice: the usual pass, and now and then one that is timed."""
    usual = _calls(moment, slots, timed=False)
    if all(slot.metered for _, slot in slots) and not reviewed:
        return usual
    timed = [f"{left} = {interval}()", *_calls(moment, slots, timed=True), f"sampled({moment.subject})"]
    return [f"{left} -= 1", f"if {left} > 0:", *_indent(usual), "else:", *_indent(timed)]


def _calls(moment: Moment, slots: list[tuple[int, Slot]], *, timed: bool) -> list[str]:
    return [line for i, slot in slots for line in _call(moment, i, slot, timed=timed or slot.metered)]


def _call(moment: Moment, i: int, slot: Slot, *, timed: bool) -> list[str]:
    subject = moment.subject
    call = f"invoke{i}({', '.join(slot.arguments)})"
    body = (
        [f"value = {call}", f"time{i}(clock() - start)", "if value is not None:"]
        if timed
        else [f"if (value := {call}) is not None:"]
    )
    body += [f"    give{i}({subject}, value)"]
    if slot.gated:
        body = [f"if gate{i}(count, {subject}):", *_indent(["start = clock()", *body])]
    if slot.rank_zero:
        body = [f"if getattr({subject}, 'rank', 0) == 0:", *_indent(body)]
    caught = [f"    fail{i}({subject}, error, {'clock() - start' if timed else 'None'})"]
    if not slot.guarded:
        caught += ["    raise"]
    begin = ["start = clock()"] if timed else []
    return [*begin, "try:", *_indent(body), "except Exception as error:", *caught]


def _indent(lines: list[str], levels: int = 1) -> list[str]:
    return ["    " * levels + line for line in lines]
