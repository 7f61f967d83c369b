"""`CallbackCollection`: an ordered set of subscribers that is itself a callback.

Calling a moment on it calls every subscriber. A collection inside another is a group; a loop holds exactly one. Order,
isolation, cadence and costs come from `SubscriberList`; this class converts what users add: callbacks, hooks, names,
functions, dicts, other collections.

Do not keep a moment's bound attribute (``fire = callbacks.on_step_end``): a change to the collection replaces it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, overload

from hookline._engine.errors import MomentError
from hookline._engine.factories import Entries, Source, build_subscriber
from hookline._engine.failures import Failure, Policy
from hookline._engine.functions import HOOK_FUNCTIONS, LoggerFunction, hook_functions
from hookline._engine.hook_manager import hook_target
from hookline._engine.hooks import Hook
from hookline._engine.moments import MOMENTS, Callback
from hookline._engine.registry import REGISTRY
from hookline._engine.subscriber import Subscriber, configured
from hookline._engine.subscriber_list import Addition, Member, SubscriberList

if TYPE_CHECKING:
    from hookline._engine.state import (
        ArmResult,
        EvalResult,
        ExperimentResult,
        LogContext,
        LoopArtifacts,
        LoopState,
        ManifestRow,
        RunResult,
    )
    from hookline._record.commands import Command


class Fired:
    """The moments as a loop calls them on a collection, with all arguments; only type checkers read this.

    To them a method of `Callback` may take fewer arguments, because an override may leave off trailing ones. A test
    compares both.
    """

    def on_experiment_start(self, ctx: LogContext, /) -> None: ...
    def on_group_start(self, ctx: LogContext, group_name: str, /) -> None: ...
    def on_run_start(self, ctx: LogContext, /) -> None: ...
    def on_train_start(self, loop: LoopState, /) -> None: ...
    def on_checkpoint_load(self, loop: LoopState, row: ManifestRow, /) -> None: ...
    def on_train_epoch_start(self, loop: LoopState, /) -> None: ...
    def on_rollout_start(self, loop: LoopState, step_idx: int, lesson_id: str | None, /) -> None: ...
    def on_rollout_end(self, loop: LoopState, step_idx: int, rollouts: Any, /) -> None: ...
    def on_weights_update(self, loop: LoopState, version: int, /) -> None: ...
    def on_step_start(self, loop: LoopState, step_idx: int, /) -> None: ...
    def on_train_batch_start(self, loop: LoopState, batch: Any, batch_idx: int, /) -> None: ...
    def on_train_batch_end(self, loop: LoopState, outputs: Any, batch: Any, batch_idx: int, /) -> None: ...
    def on_before_optimizer_step(self, loop: LoopState, optimizer: Any, /) -> None: ...
    def on_step_end(self, loop: LoopState, step_idx: int, batch: Any, metrics: dict[str, Any], /) -> None: ...
    def on_log(self, loop: LoopState, step: int, metrics: dict[str, Any], /) -> None: ...
    def on_validation_start(self, loop: LoopState, /) -> None: ...
    def on_validation_epoch_start(self, loop: LoopState, /) -> None: ...
    def on_validation_batch_start(self, loop: LoopState, batch: Any, batch_idx: int, /) -> None: ...
    def on_validation_batch_end(self, loop: LoopState, outputs: Any, batch: Any, batch_idx: int, /) -> None: ...
    def on_validation_epoch_end(self, loop: LoopState, /) -> None: ...
    def on_validation_end(self, loop: LoopState, /) -> None: ...
    def on_eval(self, loop: LoopState, step_idx: int, eval_name: str, metrics: dict[str, Any], /) -> None: ...
    def on_checkpoint(self, loop: LoopState, row: ManifestRow, /) -> None: ...
    def on_command(self, loop: LoopState, command: Command, /) -> None: ...
    def on_train_epoch_end(self, loop: LoopState, /) -> None: ...
    def on_train_end(self, loop: LoopState, artifacts: LoopArtifacts, /) -> None: ...
    def on_exception(self, loop: LoopState, error: BaseException, /) -> None: ...
    def on_benchmark_eval(
        self,
        ctx: LogContext,
        eval_result: EvalResult,
        predictions: list[dict[str, Any]],
        /,
        *,
        step: int | None = None,
    ) -> None: ...
    def on_run_end(self, ctx: LogContext, run_result: RunResult, arm: ArmResult, /) -> None: ...
    def on_group_end(self, ctx: LogContext, group_name: str, /) -> None: ...
    def on_experiment_end(self, ctx: LogContext, result: ExperimentResult, /) -> None: ...


if TYPE_CHECKING:
    _FiredBase = Fired
else:

    class _FiredBase:
        """Nothing at run time: the moments of a collection are compiled functions."""


_WRAPPED = ("transformers", "lightning", "pytorch_lightning", "keras")
"""Frameworks whose callbacks `hl.wrap` adapts."""


class CallbackCollection(SubscriberList, _FiredBase, Callback):
    """An ordered set of subscribers; see the module.

    Args:
        subscribers: Callbacks, hooks, registered names, ``hl.on(...)`` functions, logger functions
            ``fn(report_data, step)``, dicts of hook functions, entries of a configuration,
            other collections; or one collection, whose members are copied.
        name: Its name as a group in another collection.
        strict: Let every exception propagate instead of isolating observers.
        policy: Further settings of the engine.
    """

    def __init__(
        self,
        subscribers: Iterable[Any] = (),
        *,
        name: str | None = None,
        strict: bool = False,
        policy: Policy | None = None,
    ) -> None:
        policy = policy or Policy()
        super().__init__(MOMENTS, paced_by="on_step_end", policy=replace(policy, strict=strict or policy.strict))
        if name is not None:
            self.configure(name=name)
        if isinstance(subscribers, CallbackCollection):
            self.restore((member, self._target(member.subscriber)) for member in subscribers.members())
        else:
            self.extend(subscribers)

    def add(self, subscriber: Any, **options: Any) -> None:
        """Add one subscriber; see `Subscriber` for the options.

        Raises:
            MomentError: It overrides something that is not a moment, or cannot be called as one.
            OrderError: Its ``before`` or ``after`` names no subscriber, or makes a cycle.
            DuplicateError: The name, or this very instance, is there already.
        """
        self.register(self._additions(subscriber, options))

    def extend(self, subscribers: Iterable[Any]) -> None:
        """Add several at once, all or none; they may name one another in ``before`` and ``after``."""
        if isinstance(subscribers, str | Mapping) or callable(subscribers) or not isinstance(subscribers, Iterable):
            raise MomentError(f"{subscribers!r} is one subscriber: give a list of them.")
        if isinstance(subscribers, CallbackCollection):  # with the options that they were added with
            members = subscribers.members()
            self.register([(member.subscriber, self._target(member.subscriber), member.given) for member in members])
            self._mark_borrowed([member.subscriber for member in members if member.borrowed])
            return
        entries = subscribers if isinstance(subscribers, Entries) else Entries(subscribers)
        self.register(
            [
                addition
                for index, entry in enumerate(entries)
                for addition in self._additions(entry, {}, entries.source, f"{entries.path}[{index}]")
            ]
        )

    def add_all(self, subscribers: Iterable[tuple[Any, Mapping[str, Any]]]) -> None:
        """Add several at once with their options, all or none."""
        self.register([each for subscriber, options in subscribers for each in self._additions(subscriber, options)])

    def borrow(self, subscribers: CallbackCollection) -> None:
        """Add the members of another collection, which still closes them."""
        self.extend(subscribers)
        self._mark_borrowed(list(subscribers))

    def _mark_borrowed(self, subscribers: Iterable[Any]) -> None:
        for subscriber in subscribers:
            for registration in self.find(subscriber):
                registration.borrowed = True

    def insert(self, index: int, subscriber: Any, **options: Any) -> None:
        """Add one subscriber at a position, whatever its priority."""
        additions = self._additions(subscriber, options)
        if len(additions) != 1:
            raise MomentError("A dict of several hook functions has no single position: add it instead.")
        self.register_at(index, *additions[0])

    def remove(self, reference: Any) -> None:
        """Remove an instance (by identity), all of a class, or the one with a name."""
        self.unregister(reference)

    def move_to_front(self, reference: Any) -> None:
        """Make a subscriber run first."""
        self.move(reference, 0)

    def move_to_back(self, reference: Any) -> None:
        """Make a subscriber run last."""
        self.move(reference, -1)

    def move_to_position(self, reference: Any, index: int) -> None:
        """Make a subscriber run at a position, counted as in a list."""
        self.move(reference, index)

    def enable(self, reference: Any) -> None:
        """Switch subscribers on again that were disabled, by `disable` or because they failed too often."""
        self.switch(reference, enabled=True)

    def disable(self, reference: Any) -> None:
        """Switch subscribers off until `enable`; they keep their state and their place."""
        self.switch(reference, enabled=False)

    def names(self) -> list[str]:
        """Return the subscribers' names in the order in which they run."""
        return [each.name for each in self.registrations]

    @property
    def failures(self) -> list[Failure]:
        """The latest exceptions of subscribers, oldest first."""
        return list(self.health.failures)

    def __len__(self) -> int:
        return len(self.registrations)

    def __iter__(self) -> Iterator[Any]:
        return iter([each.subscriber for each in self.registrations])

    def __contains__(self, reference: object) -> bool:
        return bool(self.find(reference))

    @overload
    def __getitem__(self, key: int | str) -> Any: ...
    @overload
    def __getitem__(self, key: slice) -> list[Any]: ...
    def __getitem__(self, key: int | str | slice) -> Any:
        if isinstance(key, str):
            return self._find_required(key)[0].subscriber
        return list(self)[key]

    def __bool__(self) -> bool:
        return True  # `if callbacks` asks whether there is a collection, not whether it has members

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return f"CallbackCollection([{', '.join(self.names())}])"

    def __reduce__(self) -> tuple[Callable[..., CallbackCollection], tuple[Any, ...]]:
        """Copies and pickles hold the subscribers and their options, not the compiled moments."""
        return _rebuild, (replace(self.policy, strict=self.strict), self.members(), configured(self))

    def _additions(
        self, given: Any, options: Mapping[str, Any], source: Source | None = None, path: str = "callbacks"
    ) -> list[Addition]:
        """Convert what a user added; errors about an entry of a configuration name its path in the source."""
        if isinstance(given, str) and source is None and ":" not in given:
            return self._additions(REGISTRY.find(given)(), options)
        if isinstance(given, str) or (isinstance(given, Mapping) and not _is_hook_functions(given)):
            subscriber, own = build_subscriber(given, source, path)
            return self._additions(subscriber, {**own, **options})
        if isinstance(given, Mapping):
            return [(function, function, options) for function in hook_functions(given)]
        if isinstance(given, Callback | Hook):
            return [(given, self._target(given), options)]
        if isinstance(given, type) and issubclass(given, Subscriber):
            raise MomentError(f"{given.__name__} is a class: give an instance, {given.__name__}(...).")
        if callable(given):
            logger_function = LoggerFunction(given)
            return [(logger_function, logger_function, options)]
        home = next(
            (home for kind in type(given).__mro__ if (home := kind.__module__.partition(".")[0]) in _WRAPPED), None
        )
        if home is not None:
            raise MomentError(
                f"{type(given).__name__} is a callback of {home}: give hl.wrap({type(given).__name__}(...))."
            )
        raise MomentError(
            f"{given!r} is not a subscriber: give a Callback, a Hook, a registered name, hl.on(moment, fn), "
            "a logger function fn(report_data, step), a dict of hook functions, or a CallbackCollection."
        )

    @staticmethod
    def _target(subscriber: Any) -> Any:
        return hook_target(subscriber, in_loop=True) if isinstance(subscriber, Hook) else subscriber


def _is_hook_functions(given: Mapping[Any, Any]) -> bool:
    """Whether a dict holds hook functions; any other is an entry of a configuration."""
    return all(
        key in HOOK_FUNCTIONS
        or callable(value)
        or (isinstance(value, list | tuple) and bool(value) and all(map(callable, value)))
        for key, value in given.items()
    )


def _rebuild(policy: Policy, members: list[Member], options: Mapping[str, Any]) -> CallbackCollection:
    collection = CallbackCollection(policy=policy)
    collection.restore((member, collection._target(member.subscriber)) for member in members)
    return collection.configure(**options)


def _firing(name: str) -> Callable[..., None]:
    def fire(self: CallbackCollection, *args: Any, **kwargs: Any) -> None:
        """Fire the moment for the first time after a change; from then on the compiled function replaces this one."""
        self.fire(name)(*args, **kwargs)

    return fire


for _name in MOMENTS:
    setattr(CallbackCollection, _name, _firing(_name))
