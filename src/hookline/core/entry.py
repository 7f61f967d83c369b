"""One subscriber in a roster, and the same subscriber as the outermost roster sees it."""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hookline.core.background import Lane
from hookline.core.binding import Binding
from hookline.core.errors import DuplicateError
from hookline.core.identity import Identity
from hookline.core.moment import Moment
from hookline.core.schedule import Gate, RowGate, Schedule
from hookline.core.subscriber import Options
from hookline.core.timing import Cost, Meter


@dataclass(eq=False, slots=True)
class Entry:
    """A subscriber with its settled options, its unique name and its health.

    ``subscriber`` is what the user gave; ``target`` is what the engine calls: the same object, the
    wrapper around a hook, or the roster inside a composite hook. One that is ``borrowed`` is closed by somebody else.
    ``former_lanes`` are those of the same subscriber before it left and came again; ``was_async`` and ``dropped``
    remember the lanes that were let go of.
    """

    subscriber: Any
    target: Any
    options: Options
    given: Mapping[str, Any]
    name: str
    bindings: Mapping[str, Binding]
    identity: Identity
    moved: bool = False
    borrowed: bool = False
    disabled: bool = False
    over_budget: bool = False
    warned: bool = False
    meters: dict[str, Meter] = field(default_factory=dict)
    lanes: dict[str, Lane] = field(default_factory=dict)
    former_lanes: dict[str, Lane] = field(default_factory=dict)
    was_async: bool = False
    dropped: int = 0
    gates: "dict[tuple[str, tuple[Entry, ...], bool], Gate]" = field(default_factory=dict)
    failed_calls: dict[str, deque[int]] = field(default_factory=dict)

    def is_for(self, thing: object) -> bool:
        """Whether ``thing`` is this very subscriber; equality would also find its twin."""
        function = getattr(self.subscriber, "function", self.subscriber)
        return thing is self.subscriber or thing is self.target or thing is function

    @property
    def all_lanes(self) -> list[Lane]:
        """Where calls may still wait or run."""
        return [*self.former_lanes.values(), *self.lanes.values()]

    def take_over(self, former: "Entry") -> None:
        """Go on in the lanes of the same subscriber as it was before it left: what waits there comes first."""
        self.former_lanes = {**former.former_lanes, **former.lanes}

    def leave_event_loop(self) -> bool:
        """Let go of async lanes, whose event loop has ended; return whether there were any."""
        ended = [lanes.pop("async") for lanes in (self.lanes, self.former_lanes) if "async" in lanes]
        self.was_async = self.was_async or bool(ended)
        self.dropped += sum(lane.dropped for lane in ended)
        return bool(ended)

    @property
    def total_ns(self) -> float:
        """What all its calls took."""
        return sum(meter.total_ns for meter in self.meters.values())


@dataclass(frozen=True, slots=True)
class Leaf:
    """An entry together with the groups around it, outermost first; they hand their options down."""

    entry: Entry
    groups: tuple[Entry, ...] = ()

    @property
    def chain(self) -> tuple[Entry, ...]:
        """The groups and the entry itself."""
        return (*self.groups, self.entry)

    @property
    def path(self) -> str:
        """The entry's name behind those of its groups, e.g. ``monitoring/loss_monitor``."""
        return "/".join(entry.name for entry in self.chain)

    @property
    def critical(self) -> bool:
        """Whether its exceptions propagate."""
        return any(entry.options.critical for entry in self.chain)

    @property
    def borrowed(self) -> bool:
        """Whether somebody else closes it."""
        return any(entry.borrowed for entry in self.chain)

    @property
    def background(self) -> bool:
        """Whether it runs on a thread of its own."""
        return any(entry.options.background for entry in self.chain)

    @property
    def rank_zero(self) -> bool:
        """Whether it runs on rank zero only."""
        return any(entry.options.ranks == "zero" for entry in self.chain)

    def gate(self, moment: Moment) -> Gate | None:
        """The gate that all moments of an axis share, or None where nothing schedules this leaf."""
        schedules = [entry.options.schedule for entry in self.chain if entry.options.schedule is not None]
        if moment.axis is None or not schedules:
            return None
        gates, key, row_key = self.entry.gates, (moment.axis, self.groups, False), (moment.axis, self.groups, True)
        if key not in gates:
            # A copy, so that two subscribers given the same Once() or Seconds() do not share its memory.
            gates[key] = Gate(Schedule.together(schedules).copy(), moment.axis)
            gates[row_key] = RowGate(gates[key])
        return gates[row_key if moment.of_row else key]

    def forget_answers(self) -> None:
        """Let every gate ask again at a count that it has an answer for."""
        for (_, groups, _), gate in list(self.entry.gates.items()):
            if groups == self.groups:
                gate.forget()

    def cost(self) -> Cost:
        """What it has cost so far."""
        lanes = self.entry.lanes.values()
        return Cost.of(
            self.path,
            self.entry.meters.values(),
            disabled=self.entry.disabled,
            background=bool(lanes) or self.entry.was_async,
            dropped=self.entry.dropped + sum(lane.dropped for lane in lanes),
        )


def unique_name(options: Options, taken: Iterable[str]) -> str:
    """The subscriber's name; a second one of a class gets a number, a second one of a given name is refused."""
    names = set(taken)
    if options.name not in names:
        return options.name
    if options.named:
        raise DuplicateError(f"The name {options.name!r} is taken. Give another one, or none: then it is made unique.")
    number = 2
    while f"{options.name}_{number}" in names:
        number += 1
    return f"{options.name}_{number}"
