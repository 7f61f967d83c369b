"""`Roster`: an ordered set of subscribers to a catalogue of moments.

`CallbackCollection` and `HookManager` are two faces of this class. It guarantees that a change that
is refused changes nothing; that a change made while a moment fires takes effect at the next firing
(a firing runs on the function that was compiled before, so nobody is skipped or called twice); and
that nested rosters are compiled flat, so that a group costs no more than its members.
"""

import logging
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from hookline._engine.background import AsyncQueue, EventLoop, ThreadQueue, WorkerQueue
from hookline._engine.binding import Binding, bind
from hookline._engine.checkpoint_state import CheckpointState
from hookline._engine.costs import Costs, Meter
from hookline._engine.dispatch import Call, Compiled, Fire, Slot, compile_moment
from hookline._engine.errors import DuplicateError, OptionError, UnknownNameError, closest
from hookline._engine.health import Budgets, Health, make_all
from hookline._engine.metrics import recordable
from hookline._engine.moments import Moment
from hookline._engine.order import arrange, matches, require_known, require_order
from hookline._engine.policy import Policy
from hookline._engine.registration import DeferredCall, FlatRegistration, Group, Identity, Registration, unique_name
from hookline._engine.schedules import Schedule
from hookline._engine.subscriber import Options, Subscriber

logger = logging.getLogger("hookline")

Target: TypeAlias = "Subscriber | SubscriberList"
Newcomer: TypeAlias = tuple[Subscriber, Target, Mapping[str, Any]]


class Member(NamedTuple):
    """A subscriber in a roster, as a copy of the roster needs it."""

    subscriber: Any
    given: Mapping[str, Any]
    name: str
    moved: bool
    borrowed: bool


class SubscriberList(Group):
    """An ordered set of subscribers; see the module's guarantees.

    Args:
        moments: The catalogue.
        paced_by: The moment whose timed passes look after budgets and the report of costs.
        policy: How errors, queues and time limits are handled.
    """

    def __init__(self, moments: Mapping[str, Moment], *, paced_by: str, policy: Policy) -> None:
        super().__init__()
        self.health = Health(policy)
        self._moments = moments
        self._paced_by = paced_by
        self.policy = policy
        self._ledger = Budgets(policy)
        self._event_loop = EventLoop(policy)
        self._lock = threading.RLock()
        self._preferred: list[Registration] = []
        self._compiled: dict[str, Compiled] = {}
        self._parents: weakref.WeakSet[SubscriberList] = weakref.WeakSet()
        self.on_change: Callable[[], None] | None = None
        """Called after who runs, or in which order, changed here or in a group."""

    @property
    def strict(self) -> bool:
        """Whether every exception propagates; may be set at any time."""
        return self.health.strict

    @strict.setter
    def strict(self, value: bool) -> None:
        self.health.strict = value
        self._invalidate()

    def find(self, reference: Any) -> list[Registration]:
        """The entries that an instance (by identity), a class or a name means; none if nothing fits."""
        if isinstance(reference, str | type):
            return [entry for entry in self._entries if matches(entry, reference)]
        return [entry for entry in self._entries if entry.is_for(reference)]

    def enter(self, newcomers: Iterable[Newcomer], *, complete: bool = True) -> None:
        """Add (subscriber as given, subscriber as called, options); all of them or, with an error, none.

        Args:
            complete: Refuse a ``before`` or ``after`` that nobody answers to yet.
        """
        with self._lock:
            preferred = list(self._preferred)
            fresh = []
            for subscriber, target, given in newcomers:
                entry = self._entry(subscriber, target, given, preferred)
                preferred.insert(_place(preferred, entry.options.priority), entry)
                fresh.append(entry)
            if complete:
                require_known(fresh, preferred)
            self._commit(preferred, arrange(preferred))
            self._adopt(fresh)

    def enter_at(self, position: int, subscriber: Subscriber, target: Target, given: Mapping[str, Any]) -> None:
        """Add one subscriber at a position, counted as by `list.insert`."""
        with self._lock:
            if isinstance(position, bool) or not isinstance(position, int):
                raise OptionError(f"index={position!r}: give a whole number.")
            entry = self._entry(subscriber, target, given, self._entries)
            entry.moved = True
            entries = list(self._entries)
            entries.insert(position, entry)
            require_known([entry], entries)
            arrange(entries)
            require_order(entries)
            self._commit(entries, list(entries))
            self._adopt([entry])

    def members(self) -> list["Member"]:
        """What `restore` makes the same roster of: subscribers, options, names and places."""
        return [Member(e.subscriber, dict(e.given), e.name, e.moved, e.borrowed) for e in self._preferred]

    def restore(self, members: Iterable[tuple["Member", Target]]) -> None:
        """Add members as they were in another roster, with their names and places."""
        with self._lock:
            preferred = list(self._preferred)
            for member, target in members:
                entry = self._entry(member.subscriber, target, member.given, preferred, name=member.name)
                entry.moved, entry.borrowed = member.moved, member.borrowed
                preferred.append(entry)
            self._commit(preferred, arrange(preferred))
            self._adopt(preferred)

    def leave(self, reference: Any) -> list[Any]:
        """Take out everything that an instance, a class or a name means, and return it."""
        with self._lock:
            leaving = self._meant(reference)
            preferred = [entry for entry in self._preferred if entry not in leaving]
            self._commit(preferred, arrange(preferred))
            for entry in leaving:
                if isinstance(entry.target, SubscriberList):
                    entry.target._parents.discard(self)
            return [entry.subscriber for entry in leaving]

    def place(self, reference: Any, position: int) -> None:
        """Move one subscriber to a position, counted as in a list."""
        with self._lock:
            moving = self._meant(reference)
            if len(moving) > 1:
                names = ", ".join(entry.name for entry in moving)
                raise OptionError(f"{reference!r} means several subscribers ({names}); give one of these names.")
            size = len(self._entries)
            if isinstance(position, bool) or not isinstance(position, int) or not -size <= position < size:
                raise OptionError(f"position={position!r}: give a whole number from {-size} to {size - 1}.")
            entries = [entry for entry in self._entries if entry is not moving[0]]
            entries.insert(position % size, moving[0])
            require_order(entries)
            moving[0].moved = True
            self._commit(entries, list(entries))

    def fire(self, name: str) -> Fire:
        """The function that fires a moment, compiled at its first use after a change and kept as an attribute."""
        with self._lock:
            if name not in self._compiled:
                self._compiled[name] = self._compile(self._moments[name])
                # Not through vars(): an instance whose dict was asked for has slower attributes.
                setattr(self, name, self._compiled[name].fire)
            return self._compiled[name].fire

    def receive(self, leaf: FlatRegistration, moment: Moment, subject: Any, value: Any) -> None:
        """Take what a subscriber returned: a dict is recorded under its name, by the loop."""
        if not isinstance(value, Mapping):
            if not leaf.entry.warned:
                leaf.entry.warned = True
                logger.warning(
                    "%s returned %r%s, which is ignored: return a dict of metrics, or nothing.",
                    leaf.path,
                    value,
                    f" from {moment.name}" if moment.name.startswith("on_") else "",
                )
        elif value and hasattr(subject, "log"):
            self._recordable(leaf, {f"{leaf.path}/{key}": item for key, item in value.items()}, subject.log)

    def _recordable(
        self, leaf: FlatRegistration, values: Mapping[str, Any], record: Callable[[Mapping[str, Any]], Any]
    ) -> Any:
        """What ``record`` makes of the values; without those that it refuses, where others are left and that may be.

        Raises:
            OptionError: None can be recorded, or the subscriber's errors propagate.
        """
        try:
            return record(values)
        except OptionError as error:
            kept = recordable(values)
            if not kept or self.health.propagates(leaf):
                raise
            made = record(kept)
            if not leaf.entry.warned:
                leaf.entry.warned = True
                logger.warning("%s returned a value that is left out, the others are recorded: %s", leaf.path, error)
            return made

    def costs(self) -> Costs:
        """What each subscriber has cost so far, dearest first."""
        with self._lock:
            self._credit()
            return Costs(leaf.cost() for leaf in self.leaves())

    def plan(self) -> dict[str, list[str]]:
        """For each moment that somebody listens to, who runs, in order."""
        leaves = [leaf for leaf in self.leaves() if not leaf.entry.disabled]
        listening = {name: [leaf.path for leaf in leaves if name in leaf.entry.bindings] for name in self._moments}
        return {name: paths for name, paths in listening.items() if paths}

    def state_dict(self) -> dict[str, Any]:
        """The state of every subscriber, by name, and what they are matched by when they are loaded.

        An observer whose state cannot be had, or cannot be held by a checkpoint, is logged and has none; that of a
        critical subscriber, or any under a strict policy, raises.
        """
        return CheckpointState(self.health, SubscriberList).save(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore every subscriber; warn about those that are on one side only.

        A state goes to the subscriber with the same given name or ``state_key``, else of the same class with the same
        identifying arguments (``monitor``, ``mode``, a path), else to the only one of its class.

        Raises:
            CheckpointError: A state fits several subscribers, or several states fit one; nothing is changed.
        """
        CheckpointState(self.health, SubscriberList).load(self, state)

    def check_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raise what `load_state_dict` would where states cannot be matched, and change nothing."""
        CheckpointState(self.health, SubscriberList).check(self, state)

    def drain(self) -> None:
        """Wait, within the time limit, for the background work of all members and of those that left."""
        limit = self.policy.drain_seconds
        for lane in self._lanes():
            if lane.is_current():  # one of its own calls asks: it would wait for itself
                continue
            lane.drain(limit)
            if lane.undone():
                logger.error("%s did not finish within %g s; calls left undone: %d.", lane.name, limit, lane.undone())

    def close(self) -> None:
        """Finish background work, then close every subscriber, also those that left. May be called again.

        All are closed, then the first exception that propagates is raised.
        """
        self.drain()
        self._event_loop.stop()
        closing: dict[int, FlatRegistration] = {}
        for leaf in self.everyone():
            if not leaf.borrowed:
                closing.setdefault(id(leaf.entry.subscriber), leaf)
        closes = [partial(self.health.guarded, leaf, "close", leaf.entry.target.close) for leaf in closing.values()]
        try:
            make_all([*closes, *(lane.raise_waiting for lane in self._lanes())])
        finally:
            self._leave_event_loop()
            self.forget_left()

    def _leave_event_loop(self) -> None:
        """Another collection that shares a group brings an event loop of its own: this one would start again."""
        for leaf in self.everyone():
            if leaf.entry.leave_event_loop():
                self._owner(leaf)._invalidate()

    def _lanes(self) -> list[WorkerQueue]:
        return list(dict.fromkeys(lane for leaf in self.everyone() for lane in leaf.entry.all_lanes))

    def _owner(self, leaf: FlatRegistration) -> "SubscriberList":
        """The roster that the leaf's entry is in: this one, or a group."""
        owner: SubscriberList = leaf.groups[-1].target if leaf.groups else self
        return owner

    def _meant(self, reference: Any) -> list[Registration]:
        found = self.find(reference)
        if not found:
            given = reference if isinstance(reference, str) else getattr(reference, "__name__", repr(reference))
            raise UnknownNameError(f"{given} is not here. {closest(str(given), (e.name for e in self._entries))}")
        return found

    def _entry(
        self,
        subscriber: Subscriber,
        target: Target,
        given: Mapping[str, Any],
        present: Sequence[Registration],
        *,
        name: str | None = None,
    ) -> Registration:
        for entry in present:
            if entry.is_for(subscriber):
                raise DuplicateError(f"{entry.name!r} is already here: this very instance was added before.")
        options = Options.settle(subscriber, given)
        if isinstance(target, SubscriberList):
            self._refuse_nesting(target)
            if options.budget is not None:
                raise OptionError(
                    f"{options.name}: budget={options.budget!r}; a budget is for one subscriber, not a group."
                )
        own = getattr(target, "schedule", None)  # a hook's should_run
        if own is not None:
            options = replace(options, schedule=Schedule.together([s for s in (options.schedule, own) if s]))
        identity = Identity.of(subscriber, options)
        for entry in present:
            if identity.state_key is not None and entry.identity.state_key == identity.state_key:
                raise DuplicateError(f"The state_key {identity.state_key!r} is taken, by {entry.name!r}. Give another.")
        name = name or unique_name(options, (entry.name for entry in present))
        if target is not subscriber and not isinstance(target, SubscriberList):
            target.name = name  # a wrapper goes by the unique name
        return Registration(
            subscriber=subscriber,
            target=target,
            options=options,
            given=given,
            name=name,
            bindings={} if isinstance(target, SubscriberList) else bind(target, self._moments),
            identity=identity,
        )

    def _refuse_nesting(self, target: "SubscriberList") -> None:
        inner = [target]
        while inner:
            roster = inner.pop()
            if roster is self:
                raise DuplicateError("A collection cannot hold itself, directly or through a group.")
            inner += [entry.target for entry in roster._entries if isinstance(entry.target, SubscriberList)]

    def _adopt(self, entries: Iterable[Registration]) -> None:
        for entry in entries:
            if isinstance(entry.target, SubscriberList):
                entry.target._parents.add(self)

    def _commit(self, preferred: list[Registration], arranged: list[Registration]) -> None:
        self._see_off(preferred)
        self._preferred, self._entries = preferred, arranged
        self._refresh()

    def _refresh(self) -> None:
        """Take note, here and in all parents, that who runs has changed; a group's lock is taken before a parent's."""
        with self._lock:
            self._invalidate()
            self._tell_change()

    def _see_off(self, staying: Iterable[Registration]) -> None:
        """Keep those that leave until the end; what one that came again left undone is its new entry's."""
        here = {id(entry.subscriber): entry for entry in staying}
        left = []
        for entry in [*self._left, *self._preferred]:
            now = here.get(id(entry.subscriber))
            if now is None:
                left.append(entry)
            elif now is not entry:
                now.take_over(entry)
        self._left = left

    def _invalidate(self) -> None:
        """Forget the compiled moments, here and wherever this roster is nested; firings under way run on."""
        with self._lock:
            self._credit()
            for name in self._compiled:
                delattr(self, name)
            self._compiled = {}
        for parent in list(self._parents):
            parent._invalidate()

    def _tell_change(self) -> None:
        if self.on_change is not None:
            self.on_change()
        for parent in list(self._parents):
            parent._tell_change()

    def _credit(self) -> None:
        for compiled in self._compiled.values():
            compiled.credit()

    def _compile(self, moment: Moment) -> Compiled:
        calls = [
            self._call(leaf, moment, leaf.entry.bindings[moment.name])
            for leaf in self.leaves()
            if moment.name in leaf.entry.bindings and not leaf.entry.disabled
        ]
        paces = moment.name == self._paced_by
        # A cadence or a queue times each call anyway; the others are timed or sampled as their meter decides.
        meters = [
            (call.meter, call.slot.metered)
            for call in calls
            if not call.slot.gated and not isinstance(call.invoke, DeferredCall)
        ]
        budgets = any(leaf.entry.options.budget is not None for leaf in self.leaves())
        return compile_moment(
            moment,
            calls,
            clock=self.policy.clock,
            sampled=partial(self._sampled, meters, paces, budgets),
            reviewed=paces,
            first=self._forget_answers if moment.restarts else None,
        )

    def _forget_answers(self) -> None:
        for leaf in self.leaves():
            leaf.forget_answers()

    def _call(self, leaf: FlatRegistration, moment: Moment, binding: Binding) -> Call:
        meter = leaf.entry.meters.setdefault(moment.name, Meter())
        gate = leaf.gate(moment)
        propagates = self.health.propagates(leaf)
        deferred = leaf.background or binding.is_async
        metered = deferred or gate is not None or meter.slow
        fail = partial(self._failed, leaf, moment, metered)
        give = partial(self._given, leaf, moment, metered)
        slot = Slot(
            arguments=moment.everything if deferred else binding.arguments,
            guarded=not propagates,
            metered=metered,
            gated=gate is not None,
            rank_zero=leaf.rank_zero,
            silent=deferred or binding.is_silent,
        )
        if not deferred:
            return Call(binding.function, slot, fail, give, meter, gate)
        lane = self._lane(leaf, is_async=binding.is_async)
        hand_over = DeferredCall(lane, binding, moment, meter, self.policy.clock, propagates, leaf.entry, fail, give)
        return Call(hand_over, slot, partial(self._hand_over_failed, leaf, moment), give, Meter(), gate)

    def _lane(self, leaf: FlatRegistration, *, is_async: bool) -> WorkerQueue:
        lanes, kind = leaf.entry.lanes, "async" if is_async else "thread"
        if kind not in lanes:
            former = leaf.entry.former_lanes
            lanes[kind] = former.pop(kind) if kind in former else self._new_lane(leaf.path, is_async=is_async)
        return lanes[kind]

    def _new_lane(self, name: str, *, is_async: bool) -> WorkerQueue:
        return AsyncQueue(name, self.policy, self._event_loop) if is_async else ThreadQueue(name, self.policy)

    def _failed(
        self, leaf: FlatRegistration, moment: Moment, metered: bool, subject: Any, error: BaseException, ns: int | None
    ) -> None:
        meter = leaf.entry.meters[moment.name]
        with self._lock:
            self._credit()
            if metered:
                meter.count(ns or 0)
            elif ns is not None:
                meter.sample(ns)
            disabled = self.health.failed(leaf, moment, subject, error)
        if disabled:
            self._owner(leaf)._refresh()  # so that all that share its group see it

    def _given(self, leaf: FlatRegistration, moment: Moment, metered: bool, subject: Any, value: Any) -> None:
        try:
            self.receive(leaf, moment, subject, value)
        except Exception:
            if metered:  # the call was counted when it returned, and will be as one that failed
                leaf.entry.meters[moment.name].metered -= 1
            raise

    def _hand_over_failed(
        self, leaf: FlatRegistration, moment: Moment, subject: Any, error: BaseException, ns: int | None
    ) -> None:
        """The error of an earlier call has been noted already; one of the hand-over itself has not."""
        if not any(failure.error is error for failure in self.health.failures):
            self._failed(leaf, moment, True, subject, error, ns)

    def _sampled(self, meters: Sequence[tuple[Meter, bool]], paces: bool, budgets: bool, subject: Any) -> None:
        """After a timed pass: time slow subscribers at every call, sample fast ones, review budgets and the report."""
        for meter, metered in meters:
            if meter.review() is not metered:
                self._invalidate()
                break
        if paces and (budgets or self._ledger.is_due()):
            with self._lock:
                self._credit()
                self._ledger.review(self.leaves(), subject)


def _place(entries: Sequence[Registration], priority: float) -> int:
    """Behind everything of the same or a higher priority; what was moved by hand does not count."""
    for index, entry in enumerate(entries):
        if not entry.moved and entry.options.priority < priority:
            return index
    return len(entries)
