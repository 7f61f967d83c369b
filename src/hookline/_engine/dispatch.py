"""Compiles a moment's subscribers into one call.

This is the hot path, and the one place where the engine is clever. For each moment it generates a
function that calls the subscribers in a straight line, each behind its own guard (a `try` costs
nothing until something is raised), and the collection keeps that function as its attribute: firing
a moment is one attribute look-up and one call, and without subscribers the function is empty.

The text of such a function depends only on its *shape* (the moment, and for each call which
arguments it takes, whether it is guarded, timed, gated, can return something). Compiled templates
are cached by shape and only loaded again after an `add`. What a call needs are globals of the
function's own, because free variables are copied at each call; and each function gets a fresh copy
of the code, because the interpreter caches in it where it found those globals.

A moment with a cadence keeps a window ``low < count < high`` in which no scheduled subscriber is due: one
comparison skips them all. Outside of the window the gate of each decides, in order, right before the call, and the
window moves forward.
"""

import marshal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from hookline._engine.costs import Meter, Tally
from hookline._engine.moments import Moment
from hookline._engine.schedules import NEVER, Gate

Fire = Callable[..., None]


class Slot(NamedTuple):
    """The shape of one call, which the generated text depends on."""

    arguments: tuple[str, ...]
    guarded: bool
    metered: bool
    gated: bool
    rank_zero: bool
    silent: bool = False


@dataclass(slots=True)
class Call:
    """One subscriber at one moment, as the generated code sees it.

    ``on_error(subject, error, ns)`` counts and reports a failure, with its time if the call was timed, otherwise None;
    ``on_result(subject, value)`` handles a returned value.
    """

    invoke: Callable[..., Any]
    slot: Slot
    on_error: Callable[[Any, BaseException, int | None], None]
    on_result: Callable[[Any, Any], None]
    meter: Meter = field(default_factory=Meter)
    gate: Gate | None = None


@dataclass(slots=True)
class CompiledMoment:
    """The function that fires a moment, with the tallies that count its firings."""

    fire: Fire
    calls: Sequence[Call]
    tallies: Sequence[tuple[Tally, Sequence[Call]]]

    def collect_counts(self) -> None:
        """Add the firings since the last time to the meters of the calls that are only counted."""
        # Firings are counted once per moment: a counter for each call would cost each call.
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
    first: Callable[[], None] | None = None,
) -> CompiledMoment:
    """Build the function that fires ``moment`` for ``calls``.

    Args:
        sampled: Called with the moment's subject after a timed pass.
        reviewed: Make timed passes even where every call is timed anyway, for the sake of ``sampled``.
        first: Called before the subscribers at each firing.
    """
    quiet = [call for call in calls if not call.slot.gated]
    gates = [call.gate for call in calls if call.gate is not None]
    # Two countdowns: inside of the window only the quiet calls run, outside of it all do.
    tally, open_tally = Tally(), Tally()
    namespace: dict[str, Any] = {
        "clock": clock,
        "sampled": sampled,
        "horizon": lambda count: min((gate.next(count) for gate in gates), default=NEVER),
        "interval": tally.interval,
        "open_interval": open_tally.interval,
    }
    for i, call in enumerate(calls):
        time = call.meter.count if call.slot.metered else call.meter.sample
        namespace |= {f"invoke{i}": call.invoke, f"on_result{i}": call.on_result, f"on_error{i}": call.on_error}
        namespace |= {f"gate{i}": call.gate, f"time{i}": time}
    # Slow calls are timed every time. Timed passes review whether they are still slow.
    slow = any(call.meter.slow for call in quiet)
    code = _template(moment, tuple(call.slot for call in calls), reviewed and bool(calls), slow)
    # loads() gives the fresh copy of the code that the module speaks of, for a fraction of what compiling costs.
    exec(marshal.loads(code), namespace)  # noqa: S102, S302 - our own text, compiled by ourselves
    fire, tally.left, open_tally.left = namespace["make"]()
    # A wrapper rather than generated code: only the few moments after which counts repeat pay for it.
    if first is not None:
        fire = _preceded(first, fire)
    counted, quiet_counted = ([call for call in group if not call.slot.metered] for group in (calls, quiet))
    return CompiledMoment(fire, calls, [(tally, quiet_counted), (open_tally, counted)])


def _preceded(first: Callable[[], None], fire: Fire) -> Fire:
    def fire_after(*arguments: Any, **keywords: Any) -> None:
        first()
        fire(*arguments, **keywords)

    return fire_after


# Bounded: a program that keeps changing its subscribers keeps making new shapes.
@lru_cache(maxsize=1024)
def _template(moment: Moment, slots: tuple[Slot, ...], reviewed: bool, slow: bool) -> bytes:
    return marshal.dumps(compile(_source(moment, slots, reviewed, slow), f"<hookline {moment.name}>", "exec"))


def _source(moment: Moment, slots: tuple[Slot, ...], reviewed: bool, slow: bool) -> str:
    reviewed = reviewed or slow
    everyone = list(enumerate(slots))
    quiet = [(i, slot) for i, slot in everyone if not slot.gated]
    # Without gates there is no window to compare with.
    if len(quiet) == len(everyone):
        functions = _sampling(moment, "fire", everyone, "left", "interval", reviewed=reviewed)
    else:
        functions = [
            *_sampling(moment, "fire_quiet", quiet, "left", "interval", reviewed=slow, window=True),
            *_sampling(moment, "fire_open", everyone, "open_left", "open_interval", reviewed=reviewed, moves=True),
        ]
    # An empty window: the first firing after a compilation asks every gate.
    counters = ["left = open_left = low = high = 0"]
    result = [f"return {'fire' if len(quiet) == len(everyone) else 'fire_quiet'}, lambda: left, lambda: open_left"]
    return "\n".join(["def make():", *_indent([*counters, *functions, *result])])


def _sampling(
    moment: Moment,
    name: str,
    slots: list[tuple[int, Slot]],
    left: str,
    interval: str,
    *,
    reviewed: bool = False,
    window: bool = False,
    moves: bool = False,
) -> list[str]:
    """Generate a function that makes the calls and, if some are only counted, one that times them now and then.

    Args:
        window: Call ``fire_open`` instead when a scheduled subscriber may be due.
        moves: Move the window forward afterwards.
    """
    count = ["count"] if moves else []
    keywords = ["*", *(f"{name}=None" for name in moment.keywords)] if moment.keywords else []
    header = ", ".join([*count, *moment.arguments, *keywords])
    passed = ", ".join([*count, *moment.everything])
    # After the calls: schedules such as Once remember while they decide, and the next due count depends on that. If a
    # call raises, the window stays, and the gates are asked again. A count that goes back, as in a resume, is outside
    # of it.
    ending = ["low, high = count, horizon(count)"] if moves else []
    usual = [line for i, slot in slots for line in _call(moment, i, slot, timed=slot.metered)]
    timed: list[str] = []
    if reviewed or not all(slot.metered for _, slot in slots):
        calls = [line for i, slot in slots for line in _call(moment, i, slot, timed=True)]
        body = [*calls, f"sampled({moment.subject})"]
        timed = [f"def {name}_timed({header}):", *_indent(body)]
        # The countdown is set before the timed pass. If the pass raises, or fires the same moment again, the count is
        # right.
        usual = [
            f"if {left} > 0:",
            *_indent([f"{left} -= 1", *usual]),
            "else:",
            *_indent([f"{left} = {interval}() - 1", f"{name}_timed({passed})"]),
        ]
    if window:
        opened = f"fire_open(count, {', '.join(moment.everything)})"
        usual = [
            f"count = {moment.count}",
            "if low < count < high:",
            *_indent(usual or ["return"]),
            "else:",
            *_indent([opened]),
        ]
    declared = [f"nonlocal {left}{', low, high' if moves else ''}"]
    return [f"def {name}({header}):", *_indent([*declared, *usual, *ending]), *timed]


def _call(moment: Moment, i: int, slot: Slot, *, timed: bool) -> list[str]:
    """Generate one call.

    A timed call reads the clock right before and right after it. One reading between two calls would do for both, but
    then the next subscriber is charged for what the engine does in between: recording a result, asking a gate, logging
    a traceback.
    """
    subject, call = moment.subject, f"invoke{i}({', '.join(slot.arguments)})"
    start = ["start = clock()"] if timed else []
    body = [call if slot.silent else f"value = {call}"]
    # The clock is read before the result is handled. If handling it fails, only the time of that is left to charge.
    if timed:
        body += ["now = clock()", f"time{i}(now - start)", "start = now"]
    if not slot.silent:
        body += ["if value is not None:", f"    on_result{i}({subject}, value)"]
    # Inside of the try: a gate calls the user's `when` or `should_run`, which may raise like the subscriber itself. Its
    # time is not charged to the call.
    if slot.gated:
        body = [f"if gate{i}(count, {subject}):", *_indent([*start, *body])]
    # Outermost: on other ranks nothing of the subscriber runs, not even its `when`.
    if slot.rank_zero:
        body = [f"if getattr({subject}, 'rank', 0) == 0:", *_indent(body)]
    caught = [f"on_error{i}({subject}, error, {'clock() - start' if timed else 'None'})"]
    caught += [] if slot.guarded else ["raise"]
    # Not BaseException: an interrupt or an exit always leaves the firing at once. The start is read also for gated
    # calls: if the gate raises, the handler needs one.
    return [*start, "try:", *_indent(body), "except Exception as error:", *_indent(caught)]


def _indent(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]
