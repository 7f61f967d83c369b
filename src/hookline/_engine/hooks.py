"""Hooks: objects that decide (`should_run`) and act (`run`) on a context.

A hook can be registered with a `HookManager`, which a worker asks once per step, or added to any
`CallbackCollection`, where it is asked after each step. Both are the same engine: order, isolation,
cadence, background and cost hold for hooks as for callbacks. The logger ``hookline.hooks``, or
``hookline.rl.hooks``, shows at DEBUG each hook's run, its time and its result.

Whether a hook can work, settled when it is added: a mistake in its definition is no surprise at a later step.

What hooks gave, until somebody takes it: each value with its hook, its step and its name.

A hook on another thread gives its results when it has them, which may be steps later. None of them is lost and none
takes another's place. The names of one step are settled when they are taken: a key that two hooks give is the first
one's, and ``<hook's name>/<key>`` for the other, also where one of the two comes later from another thread.
"""

import inspect
import logging
import random
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from hookline._engine.background import LoopSnapshot
from hookline._engine.binding import is_async
from hookline._engine.costs import Costs, duration
from hookline._engine.dispatch import Compiled
from hookline._engine.errors import MomentError, OptionError
from hookline._engine.metrics import copied, plain
from hookline._engine.moments import MOMENTS, Moment
from hookline._engine.order import unresolved
from hookline._engine.policy import Failure, Policy
from hookline._engine.registration import FlatRegistration
from hookline._engine.registry import register
from hookline._engine.rng import split
from hookline._engine.schedules import Every, Schedule
from hookline._engine.subscriber import Subscriber
from hookline._engine.subscriber_list import Member, SubscriberList


def require_workable(hook: Any) -> None:
    """Refuse a hook whose methods cannot be called, or whose base class was never set up."""
    who = type(hook).__name__
    for method in ("should_run", "run"):
        require_context(getattr(hook, method), f"{who}.{method}")
        _require_set_up(hook, method)
    if is_async(hook.should_run):
        raise MomentError(f"{who}.should_run is async, so it would always hold: write def should_run. Only run may be.")


def require_context(function: Callable[..., Any], name: str) -> None:
    """Refuse a function that cannot be called with a context and nothing else."""
    if not callable(function):
        raise MomentError(f"{name} is {function!r}; give a function that takes a context.")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some built-ins have none
        return
    try:
        signature.bind(None)
    except TypeError:
        raise MomentError(
            f"{name} cannot be called with a context.\n"
            f"    it is defined as    {name}{signature}\n"
            f"    it is called as     {name}(context)"
        ) from None


def _require_set_up(hook: Any, method: str) -> None:
    """Refuse a hook that lacks what the class needs whose method it uses; each such class names it in ``_needs``."""
    owner = next((kind for kind in type(hook).__mro__ if method in vars(kind)), type(hook))
    for name in vars(owner).get("_needs", ()):
        if not hasattr(hook, name):
            who, base = type(hook).__name__, owner.__name__
            raise MomentError(f"{who} has no {name}: its __init__ must call that of {base}, super().__init__(...).")


class HookResult(NamedTuple):
    """What one hook gave at one step; ``is_late`` says that it came from another thread."""

    hook: str
    step: int
    values: dict[str, Any]
    is_late: bool


class HookValue(NamedTuple):
    """One value of a result, and the name it has among those of its step."""

    hook: str
    step: int
    key: str
    name: str
    value: Any


class HookResults:
    """The results of a manager's hooks; they may be added on any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[HookResult] = []
        self._owners: dict[str, HookResult] = {}

    def add(self, result: HookResult) -> None:
        """Keep a result until it is taken."""
        with self._lock:
            self._waiting.append(result)

    def take(self) -> list[HookValue]:
        """The values since the last time, each with its step: first those of the asking thread, then the others."""
        with self._lock:
            results, self._waiting = self._waiting, []
        taken: set[tuple[int, str]] = set()
        values = []
        for result in sorted(results, key=lambda result: result.is_late):
            for key, value in dict.items(result.values):  # without waiting for those on a device
                is_anothers = (result.step, key) in taken or self._is_anothers(key, result)
                name = f"{result.hook}/{key}" if is_anothers else key
                taken.add((result.step, name))
                values.append(HookValue(result.hook, result.step, key, name, value))
        return values

    def _is_anothers(self, key: str, result: HookResult) -> bool:
        """Whether the key is that of another hook whose value of this step may have come before, or may come yet."""
        owner = self._owners.setdefault(key, result._replace(values={}))
        return owner.hook != result.hook and (owner.is_late or result.is_late)


def merged(values: Iterable[HookValue]) -> dict[str, Any]:
    """All values in one dict: the newest of each hook by its name, earlier ones as ``<hook's name>/<key>@<step>``."""
    found: dict[str, Any] = {}
    newest: set[tuple[str, str]] = set()
    for each in sorted(values, key=lambda each: each.step, reverse=True):
        name = each.name if (each.hook, each.key) not in newest else f"{each.hook}/{each.key}@{each.step}"
        newest.add((each.hook, each.key))
        found[_free(name, f"{each.hook}/{each.key}", found)] = each.value
    return found


def _free(name: str, other: str, taken: Mapping[str, Any]) -> str:
    """The name, or where it is taken the other one, with a number if need be."""
    if name not in taken:
        return name
    number, free = 1, other
    while free in taken:
        number += 1
        free = f"{other}_{number}"
    return free


logger = logging.getLogger("hookline.hooks")
rl_logger = logging.getLogger("hookline.rl.hooks")
"""The same logger by the name that rollout workers' users know: DEBUG on either shows each run of a hook."""


@dataclass
class HookContext:
    """What a hook is told: the worker, the step, a source of randomness, the lesson, and what happened."""

    worker: Any
    step: int
    rng: Any = None
    lesson_id: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def rank(self) -> int:
        """The worker's rank."""
        return int(getattr(self.worker, "rank", 0))

    def split_rng(self) -> tuple[Any, Any]:
        """Two fresh generators, different from each other and from all that were given out before."""
        self.rng, first, second = split(self.rng)
        return first, second

    def snapshot(self) -> "HookContext":
        """This context as it is now, for a hook that runs later on another thread."""
        rng = None if self.rng is None else self.split_rng()[0]
        return replace(self, rng=rng, metadata=copied(self.metadata))


class Hook(Subscriber, ABC):
    """Decides whether to run at a step, and runs. ``run`` may be ``async`` and may return a dict of metrics."""

    @abstractmethod
    def should_run(self, context: HookContext) -> bool:
        """Whether to run at this step."""

    @abstractmethod
    def run(self, context: HookContext) -> Any:
        """Act; a returned dict is recorded."""


class PeriodicHook(Hook):
    """Runs every ``frequency`` steps, after the first ``start_step`` of them.

    Args:
        frequency: In steps.
        start_step: How many steps to leave out at the beginning.
    """

    _needs = ("frequency", "start_step")

    def __init__(self, frequency: int, start_step: int = 0) -> None:
        try:
            every = Every(frequency, start_step)
        except OptionError:
            raise OptionError(
                f"{type(self).__name__}(frequency={frequency!r}, start_step={start_step!r}): "
                "frequency is a whole number of at least 1, start_step one of at least 0. "
                "To leave a hook out, do not register it."
            ) from None
        self.frequency, self.start_step = every.n, every.start

    def should_run(self, context: HookContext) -> bool:
        return self.due(context.step)

    def due(self, step: int) -> bool:
        """Whether the hook's turn comes at this step."""
        return step > self.start_step and step % self.frequency == 0


@register("composite_hook")
class CompositeHook(Hook):
    """Several hooks as one; each keeps its own cadence, its own errors and its own line in the costs.

    Args:
        hooks: The hooks; in a configuration file, entries as in its list of hooks.
    """

    _needs = ("manager",)

    def __init__(self, hooks: Iterable[Hook | Mapping[str, Any] | str]) -> None:
        given = hooks_in(hooks)
        is_described = any(isinstance(hook, str | Mapping) for hook in given)
        self.manager = load_hooks({"hooks": given}) if is_described else HookManager(given)

    @property
    def hooks(self) -> list[Hook]:
        """The hooks inside, in the order in which they run."""
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


@register("logging_hook")
class LoggingHook(PeriodicHook):
    """Logs where the worker is: the step, the lesson, and the numbers in the context's metadata.

    The lines go to the logger ``hookline.hooks``; at INFO Python does not show them unless the program says so, e.g. by
    ``logging.basicConfig(level=logging.INFO)``.

    Args:
        level: Of the lines, as the standard library counts them.
    """

    def __init__(self, frequency: int = 100, start_step: int = 0, *, level: int = logging.INFO) -> None:
        super().__init__(frequency, start_step)
        self.level = level

    def run(self, context: HookContext) -> None:
        facts = [f"step {context.step}"]
        if context.lesson_id is not None:
            facts.append(f"lesson {context.lesson_id}")
        facts += [f"{key}={_shown(value)}" for key, value in context.metadata.items()]
        logger.log(self.level, "%s", ", ".join(facts))


@register("metrics_hook")
class MetricsHook(PeriodicHook):
    """Collects custom metrics: ``metrics_fn(context)`` returns a dict, which is recorded.

    Args:
        metrics_fn: The function, or where it is defined: ``"package.module:function"``, as in a configuration file.
    """

    def __init__(
        self, frequency: int, metrics_fn: Callable[[HookContext], Mapping[str, Any]] | str, start_step: int = 0
    ) -> None:
        super().__init__(frequency, start_step)
        if isinstance(metrics_fn, str):
            from hookline.config.factories import import_function  # only who names it by text pays for it

            metrics_fn = import_function(metrics_fn)
        if not callable(metrics_fn):
            raise OptionError(f"metrics_fn={metrics_fn!r}: give a function that takes the context and returns a dict.")
        require_context(metrics_fn, "metrics_fn")
        self.metrics_fn = metrics_fn

    def run(self, context: HookContext) -> dict[str, Any]:
        return dict(self.metrics_fn(context))


@register("checkpoint_hook")
class CheckpointHook(PeriodicHook):
    """Asks the worker for a checkpoint at the next step boundary."""

    def __init__(self, frequency: int = 1000, start_step: int = 0) -> None:
        super().__init__(frequency, start_step)

    def run(self, context: HookContext) -> None:
        context.worker.request_checkpoint()


class HookManager:
    """Registers hooks and runs those that are due. Hooks may be registered or taken out at any time.

    Args:
        hooks: Hooks to begin with.
        strict: Let every exception of a hook propagate instead of isolating it.
        policy: Further settings of the engine.
    """

    def __init__(self, hooks: Iterable[Hook] = (), *, strict: bool = False, policy: Policy | None = None) -> None:
        policy, hooks = policy or Policy(), hooks_in(hooks)
        self.roster = _HookList(replace(policy, strict=strict or policy.strict))
        self.roster.enter([(hook, hook_target(hook), {}) for hook in hooks])

    def register_hook(self, hook: Hook, **options: Any) -> None:
        """Add a hook; options are those of any subscriber: ``name``, ``priority``, ``after``, ``every``, ...

        A hook named in ``after`` or ``before`` may be registered later; the order holds from then on.
        """
        self.roster.enter([(hook, hook_target(hook), options)], complete=False)

    def unregister_hook(self, hook: Hook) -> bool:
        """Take out this very hook; whether it was there."""
        if isinstance(hook, str | type) or not self.roster.find(hook):
            return False
        self.roster.leave(hook)
        return True

    def clear_hooks(self) -> None:
        """Take out all hooks."""
        for hook in self.get_hooks():
            self.roster.leave(hook)

    def get_hooks(self) -> list[Hook]:
        """The hooks in the order in which they run; changing the list changes nothing."""
        return [entry.subscriber for entry in self.roster.entries]

    def run_hooks(self, context: HookContext) -> dict[str, Any]:
        """Run the hooks that are due and merge what they return.

        A key that is there already is kept under ``<hook's name>/<key>``. What hooks on other threads
        have returned since the last call is part of the result: the newest of each hook, and those of
        earlier steps under ``<hook's name>/<key>@<step>``.
        """
        self.roster.fire(ASKED)(context)
        return merged(self.roster.results.take())

    def costs(self) -> Costs:
        """What each hook has cost so far."""
        return self.roster.costs()

    def state_dict(self) -> dict[str, Any]:
        """The state of every hook, by name."""
        return self.roster.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of every hook, by name."""
        self.roster.load_state_dict(state)

    def close(self) -> dict[str, Any]:
        """Finish background hooks, close all, and return what they gave since the last `run_hooks`."""
        self.roster.close()
        return merged(self.roster.results.take())

    def __reduce__(self) -> tuple[Callable[..., "HookManager"], tuple[Any, ...]]:
        """Copies and pickles hold the hooks and their options, not what was compiled."""
        return _rebuild, (replace(self.roster.policy, strict=self.roster.strict), self.roster.members())

    def __len__(self) -> int:
        return len(self.roster.entries)

    def __repr__(self) -> str:
        return f"HookManager([{', '.join(entry.name for entry in self.roster.entries)}])"


def load_hooks(source: Any, *, strict: bool = False, policy: Policy | None = None) -> HookManager:
    """The manager with the hooks that a YAML or JSON file, a dict or a list describes, under the key ``hooks``."""
    from hookline.config.factories import pointing_to, read_subscribers  # only who configures by file pays for it

    members = read_subscribers(source)
    manager = HookManager(strict=strict, policy=policy)
    with pointing_to(source):
        manager.roster.enter([(hook, hook_target(hook), options) for hook, options in members])
    return manager


def _rebuild(policy: Policy, members: list[Member]) -> HookManager:
    manager = HookManager(policy=policy)
    manager.roster.restore((member, hook_target(member.subscriber)) for member in members)
    return manager


ASKED = "asked"
"""The moment of a `HookManager`: it asks its hooks whether they are due."""
_ASKED = Moment(ASKED, ("context",), axis="hook", count="context.step")


class _HookList(SubscriberList):
    """A roster whose moment is "asked"; it gathers what the hooks return instead of logging it.

    It also knows the end of a step, so that a `CompositeHook` can be part of a collection.
    """

    def __init__(self, policy: Policy) -> None:
        moments = {_ASKED.name: _ASKED, "on_step_end": MOMENTS["on_step_end"]}
        super().__init__(moments, paced_by=_ASKED.name, policy=policy)
        self.results = HookResults()
        self._reported: set[str] = set()
        self.health.log_failure = _log_failure
        self.accept: Callable[[Mapping[str, Any]], dict[str, Any]] = dict
        """Takes what a hook returned; what it raises is a failure of the hook."""

    def receive(self, leaf: FlatRegistration, moment: Moment, subject: Any, value: Any) -> None:
        if not isinstance(value, Mapping):
            super().receive(leaf, moment, subject, value)
            return
        is_late = bool(leaf.entry.lanes)
        values = self._recordable(leaf, value, self.accept)
        self.results.add(HookResult(leaf.path, subject.step, values, is_late))

    def _compile(self, moment: Moment) -> Compiled:
        for problem in unresolved(self.entries, self.entries):
            if problem not in self._reported:  # once each: hooks come and go, and every change compiles again
                self._reported.add(problem)
                logger.warning("%s It may still be registered; until then the order is free.", problem)
        return super()._compile(moment)


def hooks_in(hooks: Any) -> list[Hook]:
    """The hooks of a list, or whatever else can be gone through; one hook alone is an error."""
    if isinstance(hooks, str | Mapping | type | Hook) or not isinstance(hooks, Iterable):
        raise MomentError(f"hooks={hooks!r}: give a list of hooks, e.g. [LoggingHook(100)].")
    return list(hooks)


def hook_target(hook: Hook, *, in_loop: bool = False) -> "HookTarget | SubscriberList":
    """What the engine calls for a hook: a wrapper, or a composite's own roster, which is compiled flat.

    Args:
        in_loop: Whether it is part of a loop's collection, which also fires when training starts.

    Raises:
        MomentError: It is no hook, or one that cannot work.
    """
    if not isinstance(hook, Hook):
        raise MomentError(f"{hook!r} is not a hook: give an instance of a subclass of hookline.hooks.Hook.")
    require_workable(hook)
    if isinstance(hook, CompositeHook) and all(
        getattr(type(hook), name) is getattr(CompositeHook, name) for name in _COMPOSITE_METHODS
    ):
        return hook.manager.roster
    return HookTarget(hook, in_loop=in_loop)


_COMPOSITE_METHODS = ("should_run", "run", "state_dict", "load_state_dict", "close")


class HookTarget(Subscriber):
    """A hook as the engine calls it, by a manager (`asked`) or by a collection (after each step)."""

    def __init__(self, hook: Hook, *, in_loop: bool = False) -> None:
        self.hook = hook
        self.schedule = _Asks(hook)
        waits = is_async(hook.run)
        self.asked = self._asked_async if waits else self._asked
        self.on_step_end = self._after_step_async if waits else self._after_step
        if in_loop and hasattr(type(hook), "unsupported"):  # a hook for some loops only, which says why not for others
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

    def _asked(self, context: HookContext) -> Any:
        start = time.perf_counter()
        result = self.hook.run(context)
        self._debug(context, result, start)
        return result

    async def _asked_async(self, context: HookContext) -> Any:
        start = time.perf_counter()
        result = await self.hook.run(context)
        self._debug(context, result, start)
        return result

    def _after_step(self, loop: Any, step_idx: int) -> Any:
        return None if self._is_idle else self._asked(step_context(loop, step_idx + 1, self.name))

    async def _after_step_async(self, loop: Any, step_idx: int) -> Any:
        return None if self._is_idle else await self._asked_async(step_context(loop, step_idx + 1, self.name))

    def _debug(self, context: HookContext, result: Any, start: float) -> None:
        shown = logger if logger.isEnabledFor(logging.DEBUG) else rl_logger
        if shown.isEnabledFor(logging.DEBUG):
            took = duration(time.perf_counter() - start)
            message, values = "%s ran at step %d in %s -> %r", (self.name, context.step, took, result)
            if shown.hasHandlers():
                shown.debug(message, *values)
            else:  # Python shows nothing below WARNING by itself, and somebody has switched this on to see it
                sys.stderr.write(message % values + "\n")


class _Asks(Schedule):
    """Due when the hook itself says so; one that is merely periodic needs no context to know."""

    def __init__(self, hook: Hook) -> None:
        self.hook = hook

    def due(self, count: int, subject: Any = None) -> bool:
        hook = self.hook
        if isinstance(hook, PeriodicHook) and getattr(hook.should_run, "__func__", None) is PeriodicHook.should_run:
            return hook.due(count)
        context = subject if isinstance(subject, HookContext) else step_context(subject, count)
        return bool(hook.should_run(context))

    def __repr__(self) -> str:
        if isinstance(self.hook, PeriodicHook):
            return repr(Every(self.hook.frequency, self.hook.start_step))
        return f"{type(self.hook).__name__}.should_run"


class _StepContext(HookContext):
    """A context whose generator is made when it is first used: seeding one costs more than most hooks."""

    _rng: Any = None
    seed = ""

    @property
    def rng(self) -> Any:
        """A generator made from the step: the same after a resume, and nothing taken from the loop's own."""
        if self._rng is None:
            self._rng = random.Random(self.seed)
        return self._rng

    @rng.setter
    def rng(self, value: Any) -> None:
        self._rng = value


def step_context(loop: Any, step: int, name: str = "") -> HookContext:
    """The one context that all hooks of a loop share at a step; on another thread, one for the hook called ``name``."""
    alone = isinstance(loop, LoopSnapshot)
    context = None if alone else getattr(loop, "_hook_context", None)
    if context is None or context.step != step:
        metadata = copied(getattr(loop, "metrics", {}))
        context = _StepContext(loop, step, None, getattr(loop, "lesson_id", None), metadata)
        context.seed = f"hookline/{step}/{name}" if alone else f"hookline/{step}"
        if not alone:
            loop._hook_context = context
    return context


def _log_failure(failure: Failure) -> None:
    """Log a failure with the logger of `hookline.rl.hooks`, looked up there so that tests can replace it."""
    used = getattr(sys.modules.get("hookline.rl.hooks"), "logger", logger)
    used.error("Error running hook: %s (training goes on)", failure, exc_info=failure.error)


def _shown(value: Any) -> str:
    value = plain(value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)
