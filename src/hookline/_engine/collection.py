"""`CallbackCollection`: an ordered set of subscribers that is itself a callback.

Call a moment on it and every subscriber gets it. A collection inside another is a group; a loop
only ever holds one. Order, isolation, cadence and cost are the engine's (`Roster`); this class adds
what people give it: callbacks, hooks, names, functions, dicts, other collections.

Do not keep a moment's bound attribute (``fire = callbacks.on_step_end``): a change to the collection
replaces it.

`Fired`: the moments as a collection is called, with all arguments.

Only type checkers read this. To them a moment of `Callback` is something that may take fewer arguments, so that users
may leave off trailing ones; a collection takes all of them. A test holds that both say the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, overload

from hookline._engine.errors import MomentError
from hookline._engine.functions import HOOK_FUNCTIONS, LoggerFunction, hook_functions
from hookline._engine.hooks import Hook, hook_target
from hookline._engine.moments import MOMENTS, Callback
from hookline._engine.policy import Failure, Policy
from hookline._engine.registry import REGISTRY
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
from hookline._engine.subscriber import Subscriber, configured
from hookline._engine.subscriber_list import Member, Newcomer, SubscriberList
from hookline.config.sources import Entries

if TYPE_CHECKING:
    from hookline.config.sources import Source
else:

    class Fired:
        """Nothing more than what `Callback` has: type checkers are told that moments are called with all arguments."""


_WRAPPED = ("transformers", "lightning", "pytorch_lightning", "keras")
"""Frameworks whose callbacks `hl.wrap` makes subscribers of."""


class CallbackCollection(SubscriberList, Fired, Callback):
    """An ordered set of subscribers; see the module.

    Args:
        subscribers: Callbacks, hooks, registered names, ``hl.on(...)`` functions, logger functions
            ``fn(report_data, step)``, dicts of hook functions, entries of a configuration,
            other collections; or one collection, whose members are taken over.
        name: What it is called as a group in another collection.
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
            MomentError: It overrides something that is no moment, or cannot be called as one.
            OrderError: Its ``before`` or ``after`` names nobody, or makes a cycle.
            DuplicateError: The name, or this very instance, is there already.
        """
        self.enter(self._newcomers(subscriber, options))

    def extend(self, subscribers: Iterable[Any]) -> None:
        """Add several at once, all or none; they may name one another in ``before`` and ``after``."""
        if isinstance(subscribers, str | Mapping) or callable(subscribers) or not isinstance(subscribers, Iterable):
            raise MomentError(f"{subscribers!r} is one subscriber: give a list of them.")
        if isinstance(subscribers, CallbackCollection):  # with the options that they were added with
            members = subscribers.members()
            self.enter([(member.subscriber, self._target(member.subscriber), member.given) for member in members])
            self._lend([member.subscriber for member in members if member.borrowed])
            return
        entries = subscribers if isinstance(subscribers, Entries) else Entries(subscribers)
        self.enter(
            [
                newcomer
                for index, entry in enumerate(entries)
                for newcomer in self._newcomers(entry, {}, entries.source, f"{entries.path}[{index}]")
            ]
        )

    def borrow(self, subscribers: CallbackCollection) -> None:
        """Let the members of another collection hear what this one hears; that other one closes them."""
        self.extend(subscribers)
        self._lend(list(subscribers))

    def _lend(self, subscribers: Iterable[Any]) -> None:
        for subscriber in subscribers:
            for entry in self.find(subscriber):
                entry.borrowed = True

    def insert(self, index: int, subscriber: Any, **options: Any) -> None:
        """Add one subscriber at a place of its own, whatever its priority."""
        newcomers = self._newcomers(subscriber, options)
        if len(newcomers) != 1:
            raise MomentError("A dict of several hook functions has no single place: add it instead.")
        self.enter_at(index, *newcomers[0])

    def remove(self, reference: Any) -> None:
        """Take out an instance (this very one), all of a class, or the one with a name."""
        self.leave(reference)

    def move_to_front(self, reference: Any) -> None:
        """Make a subscriber run first."""
        self.place(reference, 0)

    def move_to_back(self, reference: Any) -> None:
        """Make a subscriber run last."""
        self.place(reference, -1)

    def move_to_position(self, reference: Any, index: int) -> None:
        """Make a subscriber run at this place, counted as in a list."""
        self.place(reference, index)

    def names(self) -> list[str]:
        """The subscribers' names, in the order in which they run."""
        return [entry.name for entry in self.entries]

    @property
    def failures(self) -> list[Failure]:
        """The latest exceptions of subscribers, oldest first."""
        return list(self.health.failures)

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Any]:
        return iter([entry.subscriber for entry in self.entries])

    def __contains__(self, reference: object) -> bool:
        return bool(self.find(reference))

    @overload
    def __getitem__(self, key: int | str) -> Any: ...
    @overload
    def __getitem__(self, key: slice) -> list[Any]: ...
    def __getitem__(self, key: int | str | slice) -> Any:
        if isinstance(key, str):
            return self._meant(key)[0].subscriber
        return list(self)[key]

    def __bool__(self) -> bool:
        return True  # a loop's collection is there even while it is empty

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return f"CallbackCollection([{', '.join(self.names())}])"

    def __reduce__(self) -> tuple[Callable[..., CallbackCollection], tuple[Any, ...]]:
        """Copies and pickles hold the subscribers and their options, not the compiled moments."""
        return _rebuild, (replace(self.policy, strict=self.strict), self.members(), configured(self))

    def _newcomers(
        self, given: Any, options: Mapping[str, Any], source: Source | None = None, path: str = "callbacks"
    ) -> list[Newcomer]:
        """What somebody gave, as subscribers; errors about an entry of a configuration name the path in the source."""
        if isinstance(given, str) and source is None and ":" not in given:
            return self._newcomers(REGISTRY.find(given)(), options)
        if isinstance(given, str) or (isinstance(given, Mapping) and not _is_hook_functions(given)):
            from hookline.config.factories import read_subscriber  # only who configures pays for it

            subscriber, own = read_subscriber(given, source, path)
            return self._newcomers(subscriber, {**own, **options})
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
    return all(key in HOOK_FUNCTIONS or _is_functions(value) for key, value in given.items())


def _is_functions(value: Any) -> bool:
    return callable(value) or (isinstance(value, list | tuple) and bool(value) and all(map(callable, value)))


def load_callbacks(source: Any, *, strict: bool = False, policy: Policy | None = None) -> CallbackCollection:
    """The collection that a YAML or JSON file, a dict or a list describes."""
    from hookline.config.factories import pointing_to, read_subscribers

    members = read_subscribers(source)
    collection = CallbackCollection(strict=strict, policy=policy)
    with pointing_to(source):
        collection.enter([n for subscriber, options in members for n in collection._newcomers(subscriber, options)])
    return collection


def _rebuild(policy: Policy, members: list[Member], options: Mapping[str, Any]) -> CallbackCollection:
    collection = CallbackCollection(policy=policy)
    collection.restore((member, collection._target(member.subscriber)) for member in members)
    return collection.configure(**options)


def _firing(name: str) -> Callable[..., None]:
    def fire(self: CallbackCollection, *args: Any, **kwargs: Any) -> None:
        """Fire the moment for the first time after a change; from then on the compiled function stands here."""
        self.fire(name)(*args, **kwargs)

    return fire


for _name in MOMENTS:
    setattr(CallbackCollection, _name, _firing(_name))


class Fired:
    """What a loop calls on a collection; `Callback` says when."""

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
