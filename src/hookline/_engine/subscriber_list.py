"""`SubscriberList`: an ordered set of subscribers to a catalogue of moments.

`CallbackCollection` and `HookManager` are built on this class. It guarantees that

- a change that is refused changes nothing;
- a change made while a moment fires takes effect at the next firing: the current one continues on the function that was
  compiled before, so no subscriber is skipped or called twice;
- nested lists are compiled flat, so a group costs no more than its members.
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
from hookline._engine.checks import require_integer
from hookline._engine.costs import Costs, Meter
from hookline._engine.dispatch import Call, CompiledMoment, Fire, Slot, compile_moment
from hookline._engine.errors import DuplicateError, OptionError, UnknownNameError, closest
from hookline._engine.failures import Budgets, Health, Policy, call_all
from hookline._engine.metrics import recordable
from hookline._engine.moments import Moment
from hookline._engine.order import arrange, matches, require_known, require_order
from hookline._engine.registration import (
    DeferredCall,
    FlatRegistration,
    Identity,
    Registration,
    RegistrationTree,
    unique_name,
)
from hookline._engine.schedules import Schedule
from hookline._engine.subscriber import Options, Subscriber

logger = logging.getLogger("hookline")

Target: TypeAlias = "Subscriber | SubscriberList"
Addition: TypeAlias = tuple[Subscriber, Target, Mapping[str, Any]]
"""A subscriber as given, the object to call for it, and its options."""


class Member(NamedTuple):
    """The part of a registration that a copy of the list needs."""

    subscriber: Any
    given: Mapping[str, Any]
    name: str
    moved: bool
    borrowed: bool


class SubscriberList(RegistrationTree):
    """An ordered set of subscribers; see the module's guarantees.

    Args:
        moments: The catalogue.
        paced_by: The moment whose timed passes review budgets and report costs.
        policy: Settings for errors, queues and time limits.
    """

    def __init__(self, moments: Mapping[str, Moment], *, paced_by: str, policy: Policy) -> None:
        super().__init__()
        self.health = Health(policy)
        self.policy = policy
        self.on_change: Callable[[], None] | None = None
        """Called after the subscribers or their order changed, here or in a group."""
        self._moments = moments
        self._paced_by = paced_by
        self._budgets = Budgets(policy)
        self._event_loop = EventLoop(policy.start_thread)
        # Taken before a parent's lock, never after it. Reentrant: a subscriber may change the list that calls it.
        self._lock = threading.RLock()
        self._preferred: list[Registration] = []  # by priority and order of adding, before constraints are applied
        self._compiled: dict[str, CompiledMoment] = {}
        # Weak: a group that is used in many runs must not keep their collections alive.
        self._parents: weakref.WeakSet[SubscriberList] = weakref.WeakSet()

    @property
    def strict(self) -> bool:
        """Whether every exception propagates; may be set at any time."""
        return self.health.strict

    @strict.setter
    def strict(self, value: bool) -> None:
        self.health.strict = value
        # Whether a call re-raises is part of the generated code.
        self._invalidate()

    def find(self, reference: Any) -> list[Registration]:
        """Find the registrations of an instance (by identity), a class or a name."""
        if isinstance(reference, str | type):
            return [each for each in self._registrations if matches(each, reference)]
        return [each for each in self._registrations if each.is_for(reference)]

    def register(self, additions: Iterable[Addition], *, complete: bool = True) -> None:
        """Add subscribers: all of them or, with an error, none.

        Args:
            complete: Refuse a ``before`` or ``after`` that names no subscriber yet.
        """
        with self._lock:
            # All work is done on a copy and committed at the end, so an error in the middle leaves the list as it was.
            preferred = list(self._preferred)
            added = []
            for subscriber, target, given in additions:
                registration = self._make_registration(subscriber, target, given, preferred)
                preferred.insert(_position(preferred, registration.options.priority), registration)
                added.append(registration)
            if complete:
                require_known(added, preferred)
            self._commit(preferred, arrange(preferred))
            # Last: a change that was refused must not leave a link to this list.
            self._become_parent(added)

    def register_at(self, position: int, subscriber: Subscriber, target: Target, given: Mapping[str, Any]) -> None:
        """Add one subscriber at a position, counted as by `list.insert`."""
        if isinstance(position, bool) or not isinstance(position, int):
            raise OptionError(f"index={position!r}: give a whole number.")
        with self._lock:
            # The position refers to the order that the user sees, so the arranged order is the one that is changed and
            # kept.
            registration = self._make_registration(subscriber, target, given, self._registrations)
            registration.moved = True
            registrations = list(self._registrations)
            registrations.insert(position, registration)
            # In this order: `require_order` alone would report a cycle as a wrong position.
            require_known([registration], registrations)
            arrange(registrations)  # refuses a cycle
            require_order(registrations)
            self._commit(registrations, list(registrations))
            self._become_parent([registration])

    def members(self) -> list[Member]:
        """Return the arguments for `restore` to make the same list: subscribers, options, names and order."""
        return [Member(r.subscriber, dict(r.given), r.name, r.moved, r.borrowed) for r in self._preferred]

    def restore(self, members: Iterable[tuple[Member, Target]]) -> None:
        """Add the members of another list with their names and order."""
        with self._lock:
            # Members come in preferred order, moves included, so they are appended without regard to priority. Unknown
            # references are accepted: the original may have lost a dependency too, and must still be copyable.
            preferred = list(self._preferred)
            for member, target in members:
                registration = self._make_registration(
                    member.subscriber, target, member.given, preferred, name=member.name
                )
                registration.moved, registration.borrowed = member.moved, member.borrowed
                preferred.append(registration)
            self._commit(preferred, arrange(preferred))
            self._become_parent(preferred)

    def unregister(self, reference: Any) -> list[Any]:
        """Remove and return the subscribers that an instance, a class or a name refers to."""
        with self._lock:
            removed = self._find_required(reference)
            # Sorted again, not just filtered: a constraint may be gone with the removed subscriber, and then the one
            # that stated it returns to its preferred position.
            preferred = [each for each in self._preferred if each not in removed]
            self._commit(preferred, arrange(preferred))
            for registration in removed:
                if isinstance(registration.target, SubscriberList):
                    registration.target._parents.discard(self)
            return [each.subscriber for each in removed]

    def move(self, reference: Any, position: int) -> None:
        """Move one subscriber to a position, counted as in a list."""
        with self._lock:
            moving = self._find_required(reference)
            if len(moving) > 1:
                names = ", ".join(each.name for each in moving)
                raise OptionError(f"{reference!r} refers to several subscribers ({names}); give one of these names.")
            size = len(self._registrations)
            position = require_integer("position", position, minimum=-size, maximum=size - 1)
            registrations = [each for each in self._registrations if each is not moving[0]]
            registrations.insert(position % size, moving[0])
            # Before `moved` is set: a refused move must not change how later additions are placed.
            require_order(registrations)
            moving[0].moved = True
            self._commit(registrations, list(registrations))

    def switch(self, reference: Any, *, enabled: bool) -> None:
        """Enable or disable an instance, all of a class, or the one with a name or a path such as ``group/name``."""
        for flat in self._find_flat(reference):
            flat.registration.disabled = not enabled
            if enabled:  # its failures from before must not disable it at the next one
                flat.registration.failed_calls.clear()
            self._owner(flat)._refresh()

    def reschedule(self, reference: Any, every: "int | Schedule | None", *, start: int = 0) -> None:
        """Give subscribers another cadence; a hook's ``should_run`` and a given ``when`` still apply.

        Args:
            every: Run every N steps, or by a schedule; None for every step.
            start: Skip this many steps at first.
        """
        changed = []
        for flat in self._find_flat(reference):
            registration = flat.registration
            given = {**registration.given, "every": every, "start": start}
            # All are settled, and their values checked, before the first is changed.
            changed.append(
                (flat, given, _with_own_schedule(Options.settle(registration.subscriber, given), registration.target))
            )
        for flat, given, options in changed:
            flat.registration.given, flat.registration.options = given, options
            flat.registration.gates.clear()
            self._owner(flat)._refresh()

    def _find_flat(self, reference: Any) -> list[FlatRegistration]:
        """Return the single subscribers that a reference means, those of a group included."""
        if isinstance(reference, str):
            found = [flat for flat in self.flatten() if flat.path == reference]
            if found:
                return found
        if not isinstance(reference, str) or "/" not in reference:
            wanted = self._find_required(reference)
            return [flat for flat in self.flatten() if flat.chain[0] in wanted]
        raise UnknownNameError(f"{reference} is not here. {closest(reference, [flat.path for flat in self.flatten()])}")

    def fire(self, name: str) -> Fire:
        """Return the function that fires a moment. It is compiled once after a change and kept as an attribute."""
        # Two threads may fire first at once. Compiling twice would leave a function whose countdown nobody collects.
        with self._lock:
            if name not in self._compiled:
                self._compiled[name] = self._compile(self._moments[name])
                # Not through vars(): attribute access gets slower once an instance's __dict__ was materialized.
                setattr(self, name, self._compiled[name].fire)
            return self._compiled[name].fire

    def handle_result(self, flat: FlatRegistration, moment: Moment, subject: Any, value: Any) -> None:
        """Handle a returned value: the loop records a dict under the subscriber's name."""
        if not isinstance(value, Mapping):
            # Once per subscriber: it would otherwise be a line in the log at every step.
            if not flat.registration.warned:
                flat.registration.warned = True
                logger.warning(
                    "%s returned %r%s, which is ignored: return a dict of metrics, or nothing.",
                    flat.path,
                    value,
                    f" from {moment.name}" if moment.name.startswith("on_") else "",
                )
        elif value and hasattr(subject, "log"):
            self._record(flat, {f"{flat.path}/{key}": item for key, item in value.items()}, subject.log)

    def _record(
        self, flat: FlatRegistration, values: Mapping[str, Any], record: Callable[[Mapping[str, Any]], Any]
    ) -> Any:
        """Pass values to ``record``; if it refuses some, warn and pass the others.

        Raises:
            OptionError: None can be recorded, or the subscriber's errors propagate.
        """
        # All at once first: checking each value ahead would charge every call for a rare mistake.
        try:
            return record(values)
        except OptionError as error:
            kept = recordable(values)
            # Where errors propagate, the user asked to see mistakes, so nothing is left out quietly.
            if not kept or self.health.propagates(flat):
                raise
            recorded = record(kept)
            if not flat.registration.warned:
                flat.registration.warned = True
                logger.warning(
                    "%s returned a value that cannot be recorded; the others are recorded: %s", flat.path, error
                )
            return recorded

    def costs(self) -> Costs:
        """Return the cost of each subscriber so far, most expensive first."""
        with self._lock:
            # Under the lock: two threads that take from one tally would credit the same firings twice.
            self._collect_counts()
            return Costs(flat.cost() for flat in self.flatten())

    def plan(self) -> dict[str, list[str]]:
        """Return, for each moment with subscribers, their names in the order of running."""
        active = [flat for flat in self.flatten() if not flat.registration.disabled]
        paths = {name: [flat.path for flat in active if name in flat.registration.bindings] for name in self._moments}
        return {name: listed for name, listed in paths.items() if listed}

    def state_dict(self) -> dict[str, Any]:
        """Return the state of every subscriber by name, with the identities that loading matches by.

        An observer whose state cannot be read, or cannot be held by a checkpoint, is logged and omitted; that of a
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
        """Raise as `load_state_dict` does when states cannot be matched, and change nothing."""
        CheckpointState(self.health, SubscriberList).check(self, state)

    def drain(self) -> None:
        """Wait, within the time limit, for the background work of all members, removed ones included."""
        limit = self.policy.drain_seconds
        # The limit holds for each queue: several that hang are waited for one after another.
        for queue in self._queues():
            if queue.is_current():  # called from one of its own calls, which would wait for itself
                continue
            queue.drain(limit)
            if queue.unfinished():
                logger.error(
                    "%s did not finish within %g s; unfinished calls: %d.", queue.name, limit, queue.unfinished()
                )

    def close(self) -> None:
        """Finish background work, then close every subscriber, removed ones included. May be called again.

        All are closed, then the first exception that propagates is raised.
        """
        # No subscriber may be closed while one of its calls runs, so queues are emptied first. Stopping the event loop
        # cancels what did not finish in time.
        self.drain()
        self._event_loop.stop()
        closing: dict[int, FlatRegistration] = {}
        # By identity: one that was removed and added again, or is reached through two groups, is closed once.
        for flat in self.flatten_with_removed():
            if not flat.borrowed:
                closing.setdefault(id(flat.registration.subscriber), flat)
        closes = [
            partial(self.health.guarded, flat, "close", flat.registration.target.close) for flat in closing.values()
        ]
        try:
            # Pending errors come last: a critical failure on a thread must not leave files open.
            call_all([*closes, *(queue.raise_pending for queue in self._queues())])
        finally:
            # A queue on the ended event loop would start it again. Another collection that shares a group has its own.
            for flat in self.flatten_with_removed():
                if flat.registration.release_event_loop():
                    self._owner(flat)._invalidate()
            self.forget_removed()

    def _queues(self) -> list[WorkerQueue]:
        # A group that moved is reached by two paths, here and among the removed; each queue is drained once.
        return list(
            dict.fromkeys(queue for flat in self.flatten_with_removed() for queue in flat.registration.all_queues)
        )

    def _owner(self, flat: FlatRegistration) -> "SubscriberList":
        """Return the list that holds the registration: this one, or a group."""
        owner: SubscriberList = flat.groups[-1].target if flat.groups else self
        return owner

    def _find_required(self, reference: Any) -> list[Registration]:
        found = self.find(reference)
        if not found:
            given = reference if isinstance(reference, str) else getattr(reference, "__name__", repr(reference))
            known = (each.name for each in self._registrations)
            raise UnknownNameError(f"{given} is not here. {closest(str(given), known)}")
        return found

    def _make_registration(
        self,
        subscriber: Subscriber,
        target: Target,
        given: Mapping[str, Any],
        present: Sequence[Registration],
        *,
        name: str | None = None,
    ) -> Registration:
        for other in present:
            if other.is_for(subscriber):
                raise DuplicateError(f"{other.name!r} is this instance; it was added before and cannot be added twice.")
        options = Options.settle(subscriber, given)
        if isinstance(target, SubscriberList):
            self._refuse_nesting(target)
            if options.budget is not None:
                raise OptionError(
                    f"{options.name}: budget={options.budget!r}; a budget is for one subscriber, not a group."
                )
        options = _with_own_schedule(options, target)
        identity = Identity.of(subscriber, options)
        for other in present:
            if identity.state_key is not None and other.identity.state_key == identity.state_key:
                raise DuplicateError(f"The state_key {identity.state_key!r} is taken, by {other.name!r}. Give another.")
        name = name or unique_name(options, (other.name for other in present))
        if target is not subscriber and not isinstance(target, SubscriberList):
            # The wrapper was made for this registration, so there is nothing to undo if the change is refused later.
            target.name = name  # a wrapper logs under the unique name
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
        # A cycle would make `flatten` recurse without end.
        pending = [target]
        while pending:
            inner = pending.pop()
            if inner is self:
                raise DuplicateError("A collection cannot contain itself, directly or through a group.")
            pending += [each.target for each in inner._registrations if isinstance(each.target, SubscriberList)]

    def _become_parent(self, registrations: Iterable[Registration]) -> None:
        for registration in registrations:
            if isinstance(registration.target, SubscriberList):
                registration.target._parents.add(self)

    def _commit(self, preferred: list[Registration], arranged: list[Registration]) -> None:
        # Removed subscribers are kept until the end. One that was added again continues its unfinished calls.
        present = {id(each.subscriber): each for each in preferred}
        removed = []
        for former in [*self._removed, *self._preferred]:
            current = present.get(id(former.subscriber))
            if current is None:
                removed.append(former)
            elif current is not former:
                current.continue_queues_of(former)
        self._removed = removed
        # Replaced, never mutated: a parent's `flatten`, and readers without the lock, finish on the list they began
        # with.
        self._preferred, self._registrations = preferred, arranged
        self._refresh()

    def _refresh(self) -> None:
        """Recompile at the next firing and notify about the change, here and in all parents."""
        with self._lock:
            # First, so that whatever the listener does sees the new order.
            self._invalidate()
            self._notify_change()

    def _invalidate(self) -> None:
        """Drop the compiled moments, here and in all parents; firings in progress continue on the old functions."""
        with self._lock:
            # The countdown lives in the compiled function and is lost with it.
            self._collect_counts()
            for name in self._compiled:
                delattr(self, name)
            self._compiled = {}
        # A copy: another thread may add this group to a collection meanwhile.
        for parent in list(self._parents):
            parent._invalidate()

    def _notify_change(self) -> None:
        if self.on_change is not None:
            self.on_change()
        for parent in list(self._parents):
            parent._notify_change()

    def _collect_counts(self) -> None:
        for compiled in self._compiled.values():
            compiled.collect_counts()

    def _compile(self, moment: Moment) -> CompiledMoment:
        # Disabled subscribers are not compiled in, so they cost nothing from then on.
        calls = [
            self._make_call(flat, moment, flat.registration.bindings[moment.name])
            for flat in self.flatten()
            if moment.name in flat.registration.bindings and not flat.registration.disabled
        ]
        paces = moment.name == self._paced_by
        # Gated and deferred calls are always timed; for the others the meter decides between timing and sampling.
        meters = [
            (call.meter, call.slot.metered)
            for call in calls
            if not call.slot.gated and not isinstance(call.invoke, DeferredCall)
        ]
        budgets = any(flat.registration.options.budget is not None for flat in self.flatten())
        return compile_moment(
            moment,
            calls,
            clock=self.policy.clock,
            sampled=partial(self._after_timed_pass, meters, paces, budgets),
            reviewed=paces,
            first=self._reset_gates if moment.restarts else None,
        )

    def _reset_gates(self) -> None:
        for flat in self.flatten():
            flat.reset_gates()

    def _make_call(self, flat: FlatRegistration, moment: Moment, binding: Binding) -> Call:
        # Meters belong to the registration: counts survive a recompilation, and a group in two lists adds up.
        meter = flat.registration.meters.setdefault(moment.name, Meter())
        gate = flat.gate(moment)
        propagates = self.health.propagates(flat)
        deferred = flat.background or binding.is_async
        metered = deferred or gate is not None or meter.slow
        on_error = partial(self._on_error, flat, moment, metered)
        on_result = partial(self._on_result, flat, moment, metered)
        slot = Slot(
            # A deferred call chooses its own arguments, after it has made snapshots of all by name.
            arguments=moment.everything if deferred else binding.arguments,
            guarded=not propagates,
            metered=metered,
            gated=gate is not None,
            rank_zero=flat.rank_zero,
            silent=deferred or binding.is_silent,
        )
        if not deferred:
            return Call(binding.function, slot, on_error, on_result, meter, gate)
        queue = self._queue(flat, is_async=binding.is_async)
        invoke = DeferredCall(
            queue, binding, moment, meter, self.policy.clock, propagates, flat.registration, on_error, on_result
        )
        # A meter to throw away: the dispatcher times only the queueing. The call is timed where it runs.
        return Call(invoke, slot, partial(self._on_queueing_error, flat, moment), on_result, Meter(), gate)

    def _queue(self, flat: FlatRegistration, *, is_async: bool) -> WorkerQueue:
        queues, former = flat.registration.queues, flat.registration.former_queues
        kind = "async" if is_async else "thread"
        if kind not in queues:
            # Calls from before a removal still wait there; on a new queue they could be overtaken.
            if kind in former:
                queues[kind] = former.pop(kind)
            elif is_async:
                queues[kind] = AsyncQueue(flat.path, self.policy.queue_size, self._event_loop)
            else:
                queues[kind] = ThreadQueue(flat.path, self.policy.queue_size, self.policy.start_thread)
        return queues[kind]

    def _on_error(
        self, flat: FlatRegistration, moment: Moment, metered: bool, subject: Any, error: BaseException, ns: int | None
    ) -> None:
        meter = flat.registration.meters[moment.name]
        # Calls on other threads fail here too. The number of the failed call must be exact, because "in a row" is
        # decided by it; hence the counts are collected first.
        with self._lock:
            self._collect_counts()
            if metered:
                meter.count(ns or 0)
            elif ns is not None:
                meter.sample(ns)
            disabled = self.health.failed(flat, moment, subject, error)
        if disabled:
            # Outside of the lock: a group's lock comes before its parent's. All lists that share the group see it.
            self._owner(flat)._refresh()

    def _on_result(self, flat: FlatRegistration, moment: Moment, metered: bool, subject: Any, value: Any) -> None:
        try:
            self.handle_result(flat, moment, subject, value)
        except Exception:
            if metered:  # counted when it returned, and about to be counted again as a failed call
                flat.registration.meters[moment.name].metered -= 1
            raise

    def _on_queueing_error(
        self, flat: FlatRegistration, moment: Moment, subject: Any, error: BaseException, ns: int | None
    ) -> None:
        # The pending error of an earlier call is counted already; one raised by queueing itself is not.
        if not any(failure.error is error for failure in self.health.failures):
            self._on_error(flat, moment, True, subject, error, ns)

    def _after_timed_pass(self, meters: Sequence[tuple[Meter, bool]], paces: bool, budgets: bool, subject: Any) -> None:
        """Switch subscribers between timing and sampling, and review budgets and the cost report."""
        for meter, metered in meters:
            if meter.review() is not metered:
                # One is enough for this pass: the others are reviewed after the next one.
                self._invalidate()
                break
        # Without a budget, walking all subscribers is worth it only for a report.
        if paces and (budgets or self._budgets.is_due()):
            with self._lock:
                self._collect_counts()
                self._budgets.review(self.flatten(), subject)


def _with_own_schedule(options: Options, target: Any) -> Options:
    """Return the options with the schedule of a hook's ``should_run`` added."""
    own = getattr(target, "schedule", None)
    if own is None:
        return options
    # Both must agree: a cadence given to add() thins out a hook, it does not override should_run.
    return replace(options, schedule=Schedule.together([s for s in (options.schedule, own) if s]))


def _position(registrations: Sequence[Registration], priority: float) -> int:
    """The index after everything of the same or a higher priority; explicitly moved ones do not count."""
    for index, registration in enumerate(registrations):
        # If moved ones counted, a subscriber moved to the front would be displaced by the next addition of a higher
        # priority.
        if not registration.moved and registration.options.priority < priority:
            return index
    return len(registrations)
