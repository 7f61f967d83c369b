"""One subscriber in a roster, and the same subscriber as the outermost roster sees it.

`Identity`: what tells a subscriber's state in a checkpoint from that of another of its class.

A name or a ``state_key`` that somebody gave decides. Otherwise it is the class together with the arguments that say
what a subscriber is about: ``monitor``, ``metric``, ``mode``, ``source``, and paths. Arguments that tune it, such as
``patience``, are no part of it, so they can be changed for a resume.

`Group`: entries in the order in which they run, and those that left; an entry may hold a group itself.

Walking it gives single subscribers, each with the groups around it.

Hands a subscriber's call over to its lane instead of making it on the training thread.
"""

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hookline._engine.background import WorkerQueue, snapshot, snapshot_subject
from hookline._engine.binding import Binding
from hookline._engine.costs import Cost, Meter
from hookline._engine.errors import DuplicateError, OptionError
from hookline._engine.moments import Moment
from hookline._engine.schedules import Gate, RowGate, Schedule
from hookline._engine.subscriber import Options, Subscriber, snake_case

QUANTITY = ("monitor", "metric", "mode")
"""Arguments that name what is measured: a state with other ones holds values of something else."""

_WORDS = frozenset({*QUANTITY, "source"})
_PATH_NAME = re.compile(r"(^|_)(path|file|filename|filepath|dir|dirpath|directory)$")


@dataclass(frozen=True, slots=True)
class Identity:
    """What a state is matched by.

    Attributes:
        kind: The class, by its default name, so that a class that moves to another module keeps its states.
        arguments: The identifying arguments, as text.
        named: Whether somebody gave the subscriber its name.
        state_key: The key that the subscriber has for its state, if any.
    """

    kind: str
    arguments: Mapping[str, str] = field(default_factory=dict)
    named: bool = False
    state_key: str | None = None

    @classmethod
    def of(cls, subscriber: Subscriber, options: Options) -> "Identity":
        """That of a subscriber when it is added: later its attributes may be those of a run."""
        own = snake_case(type(subscriber).__name__)
        # A MagicMock(spec=Hook) has no name on its class.
        default: Any = vars(subscriber).get("_default_name") or getattr(type(subscriber), "name", own)
        is_computed = not isinstance(default, str)  # a property, which gives each instance a name of its own
        kind = own if is_computed else default
        attributes = getattr(getattr(subscriber, "foreign", subscriber), "__dict__", {})
        return cls(kind, _identifying(attributes), options.named or is_computed, _state_key(subscriber))

    @classmethod
    def read(cls, name: str, record: Mapping[str, Any] | None) -> "Identity":
        """That of a saved state; one without a record was the only one of its class, or is of an earlier version."""
        if record is None:
            return cls(name)
        named = bool(record.get("named"))
        return cls(record["class"], dict(record.get("arguments", {})), named, record.get("state_key"))

    def record(self, name: str) -> dict[str, Any] | None:
        """What `read` takes; None where the name says it all."""
        found: dict[str, Any] = {"class": self.kind}
        if self.arguments:
            found["arguments"] = dict(self.arguments)
        if self.named:
            found["named"] = True
        if self.state_key is not None:
            found["state_key"] = self.state_key
        return None if found == {"class": name} else found

    @property
    def is_given(self) -> bool:
        """Whether somebody gave a name or a key."""
        return self.named or self.state_key is not None

    def measures_another(self, other: "Identity") -> bool:
        """Whether the two are about different metrics, or different directions of one."""
        both = self.arguments.keys() & other.arguments.keys() & set(QUANTITY)
        return any(self.arguments[name] != other.arguments[name] for name in both)

    def __str__(self) -> str:
        return f"{self.kind}({', '.join(f'{name}={value!r}' for name, value in self.arguments.items())})"


def _identifying(attributes: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: str(value)
        for name, value in sorted(attributes.items())
        if not name.startswith("_")
        and (
            (isinstance(value, str) and (name in _WORDS or _PATH_NAME.search(name)))
            or type(value).__module__.partition(".")[0] == "pathlib"  # not imported for this
        )
    }


def _state_key(subscriber: Subscriber) -> str | None:
    key = getattr(subscriber, "state_key", None)
    if key is not None and (not isinstance(key, str) or not key):
        raise OptionError(f"{type(subscriber).__name__}: state_key={key!r}; give a non-empty string.")
    return key


@dataclass(eq=False, slots=True)
class Registration:
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
    lanes: dict[str, WorkerQueue] = field(default_factory=dict)
    former_lanes: dict[str, WorkerQueue] = field(default_factory=dict)
    was_async: bool = False
    dropped: int = 0
    gates: "dict[tuple[str, tuple[Registration, ...], bool], Gate]" = field(default_factory=dict)
    failed_calls: dict[str, deque[int]] = field(default_factory=dict)

    def is_for(self, thing: object) -> bool:
        """Whether ``thing`` is this very subscriber; equality would also find its twin."""
        function = getattr(self.subscriber, "function", self.subscriber)
        return thing is self.subscriber or thing is self.target or thing is function

    @property
    def all_lanes(self) -> list[WorkerQueue]:
        """Where calls may still wait or run."""
        return [*self.former_lanes.values(), *self.lanes.values()]

    def take_over(self, former: "Registration") -> None:
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
class FlatRegistration:
    """An entry together with the groups around it, outermost first; they hand their options down."""

    entry: Registration
    groups: tuple[Registration, ...] = ()

    @property
    def chain(self) -> tuple[Registration, ...]:
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


class Group:
    """What a roster is made of, as far as walking through it goes."""

    def __init__(self) -> None:
        self._entries: list[Registration] = []
        self._left: list[Registration] = []

    @property
    def entries(self) -> Sequence[Registration]:
        """The subscribers in the order in which they run."""
        return self._entries

    def leaves(self, groups: tuple[Registration, ...] = ()) -> Iterator[FlatRegistration]:
        """Every subscriber in the order of running, those of groups in their group's place."""
        for entry in self._entries:
            if isinstance(entry.target, Group):
                yield from entry.target.leaves((*groups, entry))
            else:
                yield FlatRegistration(entry, groups)

    def everyone(self, groups: tuple[Registration, ...] = ()) -> Iterator[FlatRegistration]:
        """The leaves, and those that left, here or in a group: all that is to be drained and closed at the end."""
        for entry in [*self._entries, *self._left]:
            if not isinstance(entry.target, Group):
                yield FlatRegistration(entry, groups)
            elif all(entry.target is not around.target for around in groups):  # what left may now hold this one
                yield from entry.target.everyone((*groups, entry))

    def forget_left(self) -> None:
        """Let go of those that left, here and in the groups that are not borrowed."""
        left, self._left = self._left, []
        for entry in [*self._entries, *left]:
            if isinstance(entry.target, Group) and not entry.borrowed:
                entry.target.forget_left()


@dataclass(slots=True)
class DeferredCall:
    """The callable that stands in for a background or async subscriber at one moment.

    The work is counted and timed where it is done. The exception of a subscriber whose errors
    propagate waits in the lane and is raised by the next hand-over, or at the end.
    """

    lane: WorkerQueue
    binding: Binding
    moment: Moment
    meter: Meter
    clock: Callable[[], int]
    propagates: bool
    entry: Registration
    fail: Callable[[Any, BaseException, int | None], None]
    give: Callable[[Any, Any], None]

    def __call__(self, *arguments: Any, **keywords: Any) -> None:
        self.lane.raise_waiting()
        subject = snapshot_subject(arguments[0])
        named = dict(zip(self.moment.arguments, [subject, *map(snapshot, arguments[1:])], strict=True)) | keywords
        taken = [named[name] for name in self.binding.arguments if "=" not in name]
        by_keyword = {name: value for name, value in named.items() if f"{name}={name}" in self.binding.arguments}

        def work() -> None:
            if self.entry.disabled:  # since this call was handed over
                return
            start = self.clock()
            try:
                self._finish(subject, self.binding.function(*taken, **by_keyword), start)
            except BaseException as error:
                self._fail(subject, error, start)

        async def work_async() -> None:
            if self.entry.disabled:
                return
            start = self.clock()
            try:
                self._finish(subject, await self.binding.function(*taken, **by_keyword), start)
            except BaseException as error:
                if self.lane.stopping:  # cancelled at the end of the run
                    raise
                self._fail(subject, error, start)

        self.lane.submit(work_async if self.binding.is_async else work, droppable=self.moment.repeating)

    def _finish(self, subject: Any, value: Any, start: int) -> None:
        self.meter.count(self.clock() - start)
        if value is not None:
            self.give(subject, value)

    def _fail(self, subject: Any, error: BaseException, start: int) -> None:
        """Under the policy of errors; an exit or an interrupt always reaches the training thread."""
        try:
            self.fail(subject, error, self.clock() - start)
        finally:
            if self.propagates or isinstance(error, SystemExit | KeyboardInterrupt):
                self.lane.error = error
