"""`HookManager`: registers hooks, runs those that are due at a step, and collects their results.

A hook on another thread returns its results later, maybe steps later. No result is lost or overwritten: if two hooks
return the same key, the first keeps it and the other's value is stored under ``<hook's name>/<key>``, also when one of
them comes later from another thread.

At DEBUG the logger ``hookline.hooks``, or ``hookline.rl.hooks``, shows each run of a hook with its time and result.
"""

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from hookline._engine.binding import is_async
from hookline._engine.costs import Costs, duration
from hookline._engine.dispatch import CompiledMoment
from hookline._engine.factories import build_subscriber
from hookline._engine.failures import Failure, Policy
from hookline._engine.hooks import (
    Hook,
    HookContext,
    PeriodicHook,
    as_hook_list,
    logger,
    require_valid_hook,
    step_context,
)
from hookline._engine.moments import MOMENTS, Moment
from hookline._engine.order import unresolved
from hookline._engine.registration import FlatRegistration
from hookline._engine.registry import register
from hookline._engine.schedules import Every, Schedule
from hookline._engine.subscriber import Subscriber
from hookline._engine.subscriber_list import Member, SubscriberList

rl_logger = logging.getLogger("hookline.rl.hooks")
"""The same logger by the name that users of rollout workers know."""

RUN_HOOK = "run_hook"
"""The moment of a `HookManager`."""
_RUN_HOOK = Moment(RUN_HOOK, ("context",), axis="hook", count="context.step")


class HookResult(NamedTuple):
    """The dict that a hook returned at a step; ``is_late`` if it came from another thread."""

    hook: str
    step: int
    values: dict[str, Any]
    is_late: bool


class HookValue(NamedTuple):
    """One value of a result, with its unique name among the values of its step."""

    hook: str
    step: int
    key: str
    name: str
    value: Any


class HookResults:
    """The results of a manager's hooks until they are taken. They may be added on any thread."""

    def __init__(self) -> None:
        # Held for list operations only: no user code runs under it.
        self._lock = threading.Lock()
        self._waiting: list[HookResult] = []
        self._owners: dict[str, HookResult] = {}  # by key, the first result with it; without its values

    def add(self, result: HookResult) -> None:
        """Keep a result until `take`."""
        with self._lock:
            self._waiting.append(result)

    def take(self) -> list[HookValue]:
        """Return and forget the values since the last call: those of the calling thread first, then late ones."""
        with self._lock:
            # Swapped: what other threads add from here on belongs to the next call.
            results, self._waiting = self._waiting, []
        taken: set[tuple[int, str]] = set()
        values = []
        # Late results come last, so that names of the others do not depend on the timing of threads. The sort is
        # stable.
        for result in sorted(results, key=lambda result: result.is_late):
            for key, value in dict.items(result.values):  # not .items(), which waits for values on a device
                owner = self._owners.setdefault(key, result._replace(values={}))
                # A late result of another hook may have used the key at this step, or may still do so.
                contested = owner.hook != result.hook and (owner.is_late or result.is_late)
                name = f"{result.hook}/{key}" if contested or (result.step, key) in taken else key
                taken.add((result.step, name))
                values.append(HookValue(result.hook, result.step, key, name, value))
        return values

    def take_merged(self) -> dict[str, Any]:
        """Return all values in one dict: the newest by name, earlier ones as ``<hook's name>/<key>@<step>``."""
        merged: dict[str, Any] = {}
        newest: set[tuple[str, str]] = set()
        # Newest first: it gets the plain name, which is what a reader of the merged dict expects to be current.
        for each in sorted(self.take(), key=lambda each: each.step, reverse=True):
            name = each.name if (each.hook, each.key) not in newest else f"{each.hook}/{each.key}@{each.step}"
            newest.add((each.hook, each.key))
            number, base = 1, f"{each.hook}/{each.key}"
            # A hook may itself return a key that looks like a qualified name; no value may overwrite another.
            while name in merged:
                name = base if number == 1 else f"{base}_{number}"
                number += 1
            merged[name] = each.value
        return merged


class HookManager:
    """Registers hooks and runs those that are due. Hooks may be registered or removed at any time.

    Args:
        hooks: The first hooks.
        strict: Let every exception of a hook propagate instead of isolating it.
        policy: Further settings of the engine.
    """

    def __init__(self, hooks: Iterable[Hook] = (), *, strict: bool = False, policy: Policy | None = None) -> None:
        policy, hooks = policy or Policy(), as_hook_list(hooks)
        self.subscribers = _HookList(replace(policy, strict=strict or policy.strict))
        self.register_hooks((hook, {}) for hook in hooks)

    def register_hook(self, hook: Hook, **options: Any) -> None:
        """Add a hook; the options are those of any subscriber: ``name``, ``priority``, ``after``, ``every``, ...

        A hook named in ``after`` or ``before`` may be registered later; the order holds from then on.
        """
        self.subscribers.register([(hook, hook_target(hook), options)], complete=False)

    def register_hooks(self, hooks: Iterable[tuple[Hook, Mapping[str, Any]]]) -> None:
        """Add hooks with their options, all or none; they may name one another in ``before`` and ``after``."""
        self.subscribers.register([(hook, hook_target(hook), options) for hook, options in hooks])

    def unregister_hook(self, hook: Hook) -> bool:
        """Remove exactly this hook; return whether it was registered."""
        # A name or a class would find, and remove, hooks that the caller did not give.
        if isinstance(hook, str | type) or not self.subscribers.find(hook):
            return False
        self.subscribers.unregister(hook)
        return True

    def clear_hooks(self) -> None:
        """Remove all hooks."""
        for hook in self.get_hooks():
            self.subscribers.unregister(hook)

    def get_hooks(self) -> list[Hook]:
        """Return a new list of the hooks in the order in which they run."""
        return [each.subscriber for each in self.subscribers.registrations]

    def run_hooks(self, context: HookContext) -> dict[str, Any]:
        """Run the hooks that are due and merge their results.

        A key that another hook returned is stored under ``<hook's name>/<key>``. The results of hooks on other threads
        since the last call are included: the newest of each hook, and earlier ones under
        ``<hook's name>/<key>@<step>``.
        """
        self.subscribers.fire(RUN_HOOK)(context)
        return self.subscribers.results.take_merged()

    def costs(self) -> Costs:
        """Return the cost of each hook so far."""
        return self.subscribers.costs()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of every hook, by name."""
        return self.subscribers.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of every hook."""
        self.subscribers.load_state_dict(state)

    def close(self) -> dict[str, Any]:
        """Finish background hooks, close all, and return the results since the last `run_hooks`."""
        # Before taking: hooks that finish during the drain still deliver.
        self.subscribers.close()
        return self.subscribers.results.take_merged()

    def __reduce__(self) -> tuple[Callable[..., "HookManager"], tuple[Any, ...]]:
        """Copies and pickles hold the hooks and their options, not the compiled functions."""
        # `strict` may have been changed since the policy was made.
        return _rebuild, (replace(self.subscribers.policy, strict=self.subscribers.strict), self.subscribers.members())

    def __len__(self) -> int:
        return len(self.subscribers.registrations)

    def __repr__(self) -> str:
        return f"HookManager([{', '.join(each.name for each in self.subscribers.registrations)}])"


def _rebuild(policy: Policy, members: list[Member]) -> HookManager:
    manager = HookManager(policy=policy)
    manager.subscribers.restore((member, hook_target(member.subscriber)) for member in members)
    return manager


@register("composite_hook")
class CompositeHook(Hook):
    """Several hooks as one; each keeps its own cadence, its own errors and its own line in the costs.

    Args:
        hooks: The hooks; in a configuration file, entries as in its list of hooks.
    """

    _required_attributes = ("manager",)

    def __init__(self, hooks: Iterable[Hook | Mapping[str, Any] | str]) -> None:
        given: list[Any] = as_hook_list(hooks)
        members: list[tuple[Any, Mapping[str, Any]]] = [
            build_subscriber(hook, None, f"hooks[{index}]") if isinstance(hook, str | Mapping) else (hook, {})
            for index, hook in enumerate(given)
        ]
        self.manager = HookManager()
        self.manager.register_hooks(members)

    @property
    def hooks(self) -> list[Hook]:
        """The hooks in the order in which they run."""
        return self.manager.get_hooks()

    def should_run(self, context: HookContext) -> bool:
        return any(hook.should_run(context) for hook in self.hooks)

    def run(self, context: HookContext) -> dict[str, Any]:
        return self.manager.run_hooks(context)

    def state_dict(self) -> dict[str, Any]:
        return self.manager.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.manager.load_state_dict(state)

    def close(self) -> None:
        self.manager.close()


_COMPOSITE_METHODS = ("should_run", "run", "state_dict", "load_state_dict", "close")


def hook_target(hook: Hook, *, in_loop: bool = False) -> "HookTarget | SubscriberList":
    """Return the object that the engine calls for a hook: a wrapper, or a composite's own list, compiled flat.

    Args:
        in_loop: Whether it is part of a loop's collection, which also fires when training starts.

    Raises:
        MomentError: It is not a hook, or not a valid one.
    """
    require_valid_hook(hook)
    # Compiled flat only if nothing is overridden: the members are then called directly, and an own `run` would be
    # bypassed.
    if isinstance(hook, CompositeHook) and all(
        getattr(type(hook), name) is getattr(CompositeHook, name) for name in _COMPOSITE_METHODS
    ):
        return hook.manager.subscribers
    return HookTarget(hook, in_loop=in_loop)


class _HookList(SubscriberList):
    """Subscribers to `RUN_HOOK` whose results are collected instead of logged.

    They also subscribe to the end of a step, so that a `CompositeHook` can be part of a collection.
    """

    def __init__(self, policy: Policy) -> None:
        moments = {RUN_HOOK: _RUN_HOOK, "on_step_end": MOMENTS["on_step_end"]}
        super().__init__(moments, paced_by=RUN_HOOK, policy=policy)
        self.results = HookResults()
        self._reported: set[str] = set()
        self.health.log_failure = _log_failure
        self.accept: Callable[[Mapping[str, Any]], dict[str, Any]] = dict
        """Converts a returned mapping; an exception it raises is a failure of the hook."""

    def handle_result(self, flat: FlatRegistration, moment: Moment, subject: Any, value: Any) -> None:
        if not isinstance(value, Mapping):
            super().handle_result(flat, moment, subject, value)
            return
        values = self._record(flat, value, self.accept)
        # Decided by the queue it has, not by its options: a group can put it in the background as well.
        self.results.add(HookResult(flat.path, subject.step, values, is_late=bool(flat.registration.queues)))

    def _compile(self, moment: Moment) -> CompiledMoment:
        # Here and not at registration: a hook that is named may still come until hooks run.
        for problem in unresolved(self.registrations, self.registrations):
            if problem not in self._reported:  # once each: every change of the hooks compiles again
                self._reported.add(problem)
                logger.warning("%s It may still be registered; until then the order is free.", problem)
        return super()._compile(moment)


class HookTarget(Subscriber):
    """Adapts a hook to moments: `RUN_HOOK` of a manager, and the end of a step of a collection."""

    def __init__(self, hook: Hook, *, in_loop: bool = False) -> None:
        self.hook = hook
        self.schedule = _HookSchedule(hook)
        # Chosen once: the dispatcher looks at the function it is given to decide whether to await it.
        waits = is_async(hook.run)
        self.run_hook = self._run_async if waits else self._run
        self.on_step_end = self._after_step_async if waits else self._after_step
        if in_loop and hasattr(type(hook), "unsupported"):  # a hook for some loops only, which gives the reason
            self.on_train_start = self._check_loop
        self._is_idle = False

    def state_dict(self) -> dict[str, Any]:
        state = self.hook.state_dict()
        stands_in = not issubclass(type(self.hook), Hook)  # a MagicMock(spec=Hook) returns another mock
        return {} if stands_in and not isinstance(state, Mapping) else state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.hook.load_state_dict(state)

    def close(self) -> None:
        self.hook.close()

    def _check_loop(self, loop: Any) -> None:
        reason: str = self.hook.unsupported(loop)  # type: ignore[attr-defined]  # only hooks that have it get here
        self._is_idle = bool(reason)
        if reason:
            logger.warning("%s does nothing: %s", self.name, reason)

    def _run(self, context: HookContext) -> Any:
        start = time.perf_counter()
        result = self.hook.run(context)
        self._debug(context, result, start)
        return result

    async def _run_async(self, context: HookContext) -> Any:
        start = time.perf_counter()
        result = await self.hook.run(context)
        self._debug(context, result, start)
        return result

    def _after_step(self, loop: Any, step_idx: int) -> Any:
        return None if self._is_idle else self._run(step_context(loop, step_idx + 1, self.name))

    async def _after_step_async(self, loop: Any, step_idx: int) -> Any:
        return None if self._is_idle else await self._run_async(step_context(loop, step_idx + 1, self.name))

    def _debug(self, context: HookContext, result: Any, start: float) -> None:
        shown = logger if logger.isEnabledFor(logging.DEBUG) else rl_logger
        if shown.isEnabledFor(logging.DEBUG):
            took = duration(time.perf_counter() - start)
            message, values = "%s ran at step %d in %s -> %r", (self.name, context.step, took, result)
            if shown.hasHandlers():
                shown.debug(message, *values)
            else:  # Python's last-resort handler hides DEBUG, and the user has enabled it to see this
                sys.stderr.write(message % values + "\n")


class _HookSchedule(Schedule):
    """Due when `should_run` returns true; a hook that is merely periodic is decided without a context."""

    def __init__(self, hook: Hook) -> None:
        self.hook = hook

    def due(self, count: int, subject: Any = None) -> bool:
        hook = self.hook
        # Without a context: making one at each step would cost more than the decision. A subclass with its own
        # should_run is asked.
        if isinstance(hook, PeriodicHook) and getattr(hook.should_run, "__func__", None) is PeriodicHook.should_run:
            return hook.due(count)
        context = subject if isinstance(subject, HookContext) else step_context(subject, count)
        return bool(hook.should_run(context))

    def __repr__(self) -> str:
        if isinstance(self.hook, PeriodicHook):
            return repr(Every(self.hook.frequency, self.hook.start_step))
        return f"{type(self.hook).__name__}.should_run"


def _log_failure(failure: Failure) -> None:
    # Users patch `hookline.rl.hooks.logger` in tests, so it is looked up there.
    used = getattr(sys.modules.get("hookline.rl.hooks"), "logger", logger)
    used.error("Error running hook: %s (training continues)", failure, exc_info=failure.error)
