"""A subscriber in a collection: its options, bindings, queues, costs and identity.

- `Registration`: one subscriber in one list. `FlatRegistration` adds the groups around it, which pass their options on.
- `RegistrationTree`: registrations in the order in which they run; one that holds another tree is a group.
- `Identity`: distinguishes the saved state of a subscriber from that of another one of its class.
- `DeferredCall`: stands in for a background or async subscriber at one moment and queues its call.
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
"""Arguments that name the measured quantity: a state saved with other ones holds values of something else."""

_IDENTIFYING = frozenset({*QUANTITY, "source"})
_PATH_NAME = re.compile(r"(^|_)(path|file|filename|filepath|dir|dirpath|directory)$")


@dataclass(frozen=True, slots=True)
class Identity:
    """Matches a subscriber with its saved state.

    A given name or a ``state_key`` decides. Otherwise it is the class together with the arguments that say what the
    subscriber is about: ``monitor``, ``metric``, ``mode``, ``source``, and paths. Arguments that tune it, such as
    ``patience``, are not part of it, so they can be changed for a resume.

    Attributes:
        kind: The class, by its default name, so that a class that moves to another module keeps its states.
        arguments: The identifying arguments, as text.
        named: Whether the user named the subscriber.
        state_key: The subscriber's own key for its state, if any.
    """

    kind: str
    arguments: Mapping[str, str] = field(default_factory=dict)
    named: bool = False
    state_key: str | None = None

    @classmethod
    def of(cls, subscriber: Subscriber, options: Options) -> "Identity":
        """Read the identity when the subscriber is added; a run may change its attributes later."""
        own = snake_case(type(subscriber).__name__)
        # A MagicMock(spec=Hook) has no name on its class.
        default: Any = vars(subscriber).get("_default_name") or getattr(type(subscriber), "name", own)
        is_computed = not isinstance(default, str)  # a property that names each instance
        state_key = getattr(subscriber, "state_key", None)
        if state_key is not None and (not isinstance(state_key, str) or not state_key):
            raise OptionError(f"{type(subscriber).__name__}: state_key={state_key!r}; give a non-empty string.")
        # A wrapper has no arguments of its own; the object it wraps distinguishes it from other wrappers.
        attributes: Mapping[str, Any] = getattr(getattr(subscriber, "foreign", subscriber), "__dict__", {})
        arguments = {
            name: str(value)
            for name, value in sorted(attributes.items())
            if not name.startswith("_")
            and (
                (isinstance(value, str) and (name in _IDENTIFYING or _PATH_NAME.search(name)))
                or type(value).__module__.partition(".")[0] == "pathlib"  # by name: importing pathlib costs time
            )
        }
        return cls(own if is_computed else default, arguments, options.named or is_computed, state_key)

    @classmethod
    def read(cls, name: str, record: Mapping[str, Any] | None) -> "Identity":
        """Read a saved identity. Without a record the state was the only one of its class, or is of an old version."""
        if record is None:
            return cls(name)
        named = bool(record.get("named"))
        return cls(record["class"], dict(record.get("arguments", {})), named, record.get("state_key"))

    def record(self, name: str) -> dict[str, Any] | None:
        """Return the record for `read`, or None if the name is enough."""
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
        """Whether the user gave a name or a key."""
        return self.named or self.state_key is not None

    def measures_another(self, other: "Identity") -> bool:
        """Whether the two are about different metrics, or different directions of one."""
        # Only what both sides know: a state of an older version may have no arguments.
        both = self.arguments.keys() & other.arguments.keys() & set(QUANTITY)
        return any(self.arguments[name] != other.arguments[name] for name in both)

    def __str__(self) -> str:
        return f"{self.kind}({', '.join(f'{name}={value!r}' for name, value in self.arguments.items())})"


# eq=False: registrations are keys and are searched for by identity; two with equal fields are still two.
@dataclass(eq=False, slots=True)
class Registration:
    """A subscriber in a list, with its settled options, its unique name and its health.

    Attributes:
        subscriber: The object that the user gave.
        target: The object that the engine calls: the subscriber itself, the wrapper around a hook, or the list inside a
            composite hook.
        given: The options that were passed to `add()`.
        moved: Whether it was put at a position explicitly; its priority no longer decides.
        borrowed: Whether another collection closes it.
        former_queues: Queues of the same subscriber from before it was removed and added again.
        was_async, dropped: What the queues of an event loop that has ended leave for the costs.
        gates: By axis, groups around it, and whether it is the gate of `on_log`.
        failed_calls: The numbers of the latest failed calls, by moment.
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
    queues: dict[str, WorkerQueue] = field(default_factory=dict)
    former_queues: dict[str, WorkerQueue] = field(default_factory=dict)
    was_async: bool = False
    dropped: int = 0
    gates: "dict[tuple[str, tuple[Registration, ...], bool], Gate]" = field(default_factory=dict)
    failed_calls: dict[str, deque[int]] = field(default_factory=dict)

    def is_for(self, thing: object) -> bool:
        """Whether this registers exactly ``thing``; equality would also match an equal twin."""
        # Users remove a function by the function they added, not by the object made from it.
        function = getattr(self.subscriber, "function", self.subscriber)
        return thing is self.subscriber or thing is self.target or thing is function

    @property
    def all_queues(self) -> list[WorkerQueue]:
        """The queues in which calls may still wait or run."""
        return [*self.former_queues.values(), *self.queues.values()]

    def continue_queues_of(self, former: "Registration") -> None:
        """Reuse the queues of the same subscriber's former registration: the calls waiting there come first."""
        # Kept apart from the new queues: the old ones must be drained even if it no longer runs in the background.
        self.former_queues = {**former.former_queues, **former.queues}

    def release_event_loop(self) -> bool:
        """Drop async queues, whose event loop has ended; return whether there were any."""
        ended = [queues.pop("async") for queues in (self.queues, self.former_queues) if "async" in queues]
        self.was_async = self.was_async or bool(ended)
        # The queue goes, its count stays: costs() may be called after close().
        self.dropped += sum(queue.dropped for queue in ended)
        return bool(ended)

    @property
    def total_ns(self) -> float:
        """The time of all its calls."""
        return sum(meter.total_ns for meter in self.meters.values())


@dataclass(frozen=True, slots=True)
class FlatRegistration:
    """A registration with the groups around it, outermost first."""

    registration: Registration
    groups: tuple[Registration, ...] = ()

    @property
    def chain(self) -> tuple[Registration, ...]:
        """The groups, then the registration itself."""
        return (*self.groups, self.registration)

    @property
    def path(self) -> str:
        """The name after those of the groups, e.g. ``monitoring/loss_monitor``."""
        return "/".join(each.name for each in self.chain)

    @property
    def critical(self) -> bool:
        """Whether its exceptions propagate."""
        return any(each.options.critical for each in self.chain)

    @property
    def borrowed(self) -> bool:
        """Whether another collection closes it."""
        return any(each.borrowed for each in self.chain)

    @property
    def background(self) -> bool:
        """Whether it runs on a thread of its own."""
        return any(each.options.background for each in self.chain)

    @property
    def rank_zero(self) -> bool:
        """Whether it runs on rank zero only."""
        return any(each.options.ranks == "zero" for each in self.chain)

    def gate(self, moment: Moment) -> Gate | None:
        """Return the gate that all moments of an axis share, or None if nothing schedules the subscriber."""
        schedules = [each.options.schedule for each in self.chain if each.options.schedule is not None]
        if moment.axis is None or not schedules:
            return None
        # Kept on the registration: a change in the middle of a step compiles again, and the step must keep its
        # decision. By groups: a group shared by two collections has another schedule in each.
        gates = self.registration.gates
        key, row_key = (moment.axis, self.groups, False), (moment.axis, self.groups, True)
        if key not in gates:
            # A copy: two subscribers given the same Once() or Seconds() must not share its memory.
            gates[key] = Gate(Schedule.together(schedules).copy(), moment.axis)
            gates[row_key] = RowGate(gates[key])
        return gates[row_key if moment.of_row else key]

    def reset_gates(self) -> None:
        """Let every gate decide again at a count that it has decided already."""
        # A copy: a thread that compiles a moment may add a gate.
        for (_, groups, _), gate in list(self.registration.gates.items()):
            if groups == self.groups:
                gate.reset()

    def cost(self) -> Cost:
        """Return its cost so far."""
        queues = self.registration.queues.values()
        return Cost.of(
            self.path,
            self.registration.meters.values(),
            disabled=self.registration.disabled,
            background=bool(queues) or self.registration.was_async,
            dropped=self.registration.dropped + sum(queue.dropped for queue in queues),
        )


def unique_name(options: Options, taken: Iterable[str]) -> str:
    """Return the subscriber's name, numbered if another one has it; refuse a given name that is taken."""
    names = set(taken)
    if options.name not in names:
        return options.name
    # A given name is what `before`, `after` and saved states refer to. Numbering it would break them unnoticed.
    if options.named:
        raise DuplicateError(f"The name {options.name!r} is taken. Give another name, or omit it to get a unique one.")
    number = 2
    while f"{options.name}_{number}" in names:
        number += 1
    return f"{options.name}_{number}"


class RegistrationTree:
    """Registrations in the order in which they run, and removed ones, which are still drained and closed at the end."""

    def __init__(self) -> None:
        self._registrations: list[Registration] = []
        self._removed: list[Registration] = []

    @property
    def registrations(self) -> Sequence[Registration]:
        """The registrations in the order in which they run."""
        return self._registrations

    def flatten(self, groups: tuple[Registration, ...] = ()) -> Iterator[FlatRegistration]:
        """Iterate over single subscribers in the order of running, the members of a group in its place."""
        for registration in self._registrations:
            if isinstance(registration.target, RegistrationTree):
                yield from registration.target.flatten((*groups, registration))
            else:
                yield FlatRegistration(registration, groups)

    def flatten_with_removed(self, groups: tuple[Registration, ...] = ()) -> Iterator[FlatRegistration]:
        """Iterate over single subscribers, removed ones included, here and in groups."""
        for registration in [*self._registrations, *self._removed]:
            if not isinstance(registration.target, RegistrationTree):
                yield FlatRegistration(registration, groups)
            # A group that was removed from here may contain this one now.
            elif all(registration.target is not around.target for around in groups):
                yield from registration.target.flatten_with_removed((*groups, registration))

    def forget_removed(self) -> None:
        """Release the removed ones, here and in the groups that are not borrowed."""
        # Emptied before the recursion, which could otherwise come back here: a removed group may contain this list by
        # now.
        removed, self._removed = self._removed, []
        for registration in [*self._registrations, *removed]:
            if isinstance(registration.target, RegistrationTree) and not registration.borrowed:
                registration.target.forget_removed()


@dataclass(slots=True)
class DeferredCall:
    """The callable that stands in for a background or async subscriber at one moment.

    The call is counted and timed where it runs. The exception of a subscriber whose errors propagate waits in the queue
    and is raised by the next call that is queued, or at the end.
    """

    queue: WorkerQueue
    binding: Binding
    moment: Moment
    meter: Meter
    clock: Callable[[], int]
    propagates: bool
    registration: Registration
    on_error: Callable[[Any, BaseException, int | None], None]
    on_result: Callable[[Any, Any], None]

    def __call__(self, *arguments: Any, **keywords: Any) -> None:
        self.queue.raise_pending()
        # The snapshot is taken now: by the time of the call, the loop is steps ahead.
        subject = snapshot_subject(arguments[0])
        # Arguments are matched by name, because the subscriber may take fewer, or some by keyword.
        named = dict(zip(self.moment.arguments, [subject, *map(snapshot, arguments[1:])], strict=True)) | keywords
        positional = [named[name] for name in self.binding.arguments if "=" not in name]
        by_keyword = {name: value for name, value in named.items() if f"{name}={name}" in self.binding.arguments}

        def work() -> None:
            if self.registration.disabled:  # since this call was queued
                return
            start = self.clock()
            try:
                self._finish(subject, self.binding.function(*positional, **by_keyword), start)
            # Nothing above would catch it: the queue's thread would end, and its jobs would stay unfinished for ever.
            except BaseException as error:
                self._fail(subject, error, start)

        async def work_async() -> None:
            if self.registration.disabled:
                return
            start = self.clock()
            try:
                self._finish(subject, await self.binding.function(*positional, **by_keyword), start)
            except BaseException as error:
                if self.queue.stopping:  # cancelled at the end of the run
                    raise
                self._fail(subject, error, start)

        self.queue.submit(work_async if self.binding.is_async else work, droppable=self.moment.repeating)

    def _finish(self, subject: Any, value: Any, start: int) -> None:
        # Counted before the result is handled. If that fails, `_on_result` takes the count back and the failure counts.
        self.meter.count(self.clock() - start)
        if value is not None:
            self.on_result(subject, value)

    def _fail(self, subject: Any, error: BaseException, start: int) -> None:
        try:
            self.on_error(subject, error, self.clock() - start)
        finally:
            # An exit or an interrupt reaches the training thread whatever the policy is.
            if self.propagates or isinstance(error, SystemExit | KeyboardInterrupt):
                self.queue.error = error
