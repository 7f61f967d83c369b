"""The subscribers of an experiment: which callbacks are shared, and which each run gets for itself.

A callback given as an instance is used as follows, so that nothing leaks from one run into another:

- If it has no moments of training, the instance itself receives everything: the experiment, its groups and all runs.
- If it has no moments of runs (`on_run_start`, `on_benchmark_eval`, `on_run_end`), each run trains with a copy.
- If it has both, each run also gets a copy, which receives the run from `on_run_start` to `on_run_end`, the training
  included, in the process of the run: what it opens at the start is there at every step. The instance receives only
  the experiment and its groups. It is copied when a run starts, so copies have what the instance set in
  `on_experiment_start` and `on_group_start`, unless that cannot be copied.

A callback given as a class, a factory function, a name or a configuration entry is made for each run and lives like a
copy of the last kind; one more is made for the moments of the experiment and its groups.
"""

import contextlib
import copy
import inspect
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from hookline._engine.binding import bind
from hookline._engine.collection import CallbackCollection
from hookline._engine.errors import HooklineError, OptionError
from hookline._engine.functions import HOOK_FUNCTIONS
from hookline._engine.moments import MOMENTS, Callback
from hookline._engine.state import LogContext
from hookline._engine.subscriber import Subscriber, configured
from hookline.config.loading import load_callbacks

logger = logging.getLogger("hookline")

RUN_MOMENTS = frozenset({"on_run_start", "on_benchmark_eval", "on_run_end"})
TRAINING_MOMENTS = frozenset(name for name, moment in MOMENTS.items() if moment.subject != "ctx")


@dataclass(frozen=True)
class RunSubscribers:
    """The instances to copy and factories to call for one run; sent to the process of the run."""

    instances: list[Any] = field(default_factory=list)
    factories: list[Callable[[], Any]] = field(default_factory=list)

    def copies(self) -> list[Any]:
        """A copy of each instance."""
        return copy.deepcopy(self.instances)

    def make(self) -> CallbackCollection:
        """Call the factories and collect their results."""
        return collected(map(_call, self.factories))

    def parts(self) -> list[Any]:
        """All instances and factories, with collections opened up."""
        given = [*self.instances, *self.factories]
        opened = [part.original if isinstance(part, _Copy) else part for part in given]
        return [each for part in opened for each in (part if isinstance(part, CallbackCollection) else [part])]


class Subscribers:
    """The subscribers of an experiment.

    Args:
        given: The experiment's ``callbacks``.
        strict: Let their exceptions propagate.

    Raises:
        OptionError: One of them is no subscriber, or cannot be copied.
    """

    def __init__(self, given: Any, *, strict: bool = False) -> None:
        entries = subscriber_entries(given)
        self._factories = [_factory(entry) for entry in entries if _is_factory(entry)]
        instances = [entry for entry in entries if not _is_factory(entry)]
        for instance in instances:
            try:
                copy.deepcopy(instance)
            except HooklineError:
                raise
            except Exception as error:
                raise OptionError(
                    f"callbacks: {instance!r:.120} cannot be copied for each run ({type(error).__name__}: {error}). "
                    f"Give its class, or a function that makes one: callbacks=[lambda: {type(instance).__name__}(...)]."
                ) from error
        self._shared = collected(instances, strict=strict)
        self._owners = _split_run_owners(self._shared, strict=strict)
        self._trained_with, self._first_owners = copy.deepcopy((self._shared, self._owners))
        self._made = collected(map(_call, self._factories), strict=strict)
        self._has_warned = False

    def for_run(self) -> RunSubscribers:
        """The subscribers of a run that starts now."""
        owners = [_Copy(self._copied_owners())] if len(self._owners) else []
        return RunSubscribers([self._trained_with], [*owners, *self._factories])

    def _copied_owners(self) -> CallbackCollection:
        """Copy the run owners in their current state or, if that fails, in that of the experiment's start."""
        self._owners.drain()  # a handler on another thread may still be setting attributes
        try:
            return copy.deepcopy(self._owners)
        except Exception as error:
            if not self._has_warned:
                self._has_warned = True
                logger.warning(
                    "%s cannot be copied after on_experiment_start (%s: %s): runs get copies of how it was before. "
                    "To pass something to the runs, put it into ctx.ids or ctx.extras.",
                    *(", ".join(self._owners.names()), type(error).__name__, error),
                )
            return self._first_owners

    def notify_experiment(self, moment: str, ctx: LogContext, *arguments: Any) -> None:
        """Fire a moment of the experiment or of a group."""
        for part in (self._shared, self._owners, self._made):
            getattr(part, moment)(ctx, *arguments)

    def notify_run(self, moment: str, ctx: LogContext, *arguments: Any, **named: Any) -> None:
        """Fire a moment of a run for shared subscribers; the run's own are notified in its process."""
        getattr(self._shared, moment)(ctx, *arguments, **named)

    def notify_run_died(self, ctx: LogContext, *arguments: Any) -> None:
        """Fire `on_run_end` on fresh copies, for a run whose own subscribers died with its process.

        The copies can complete external records by ``ctx.ids``. They lack the resources that the dead ones had opened,
        so exceptions are only logged, whatever the policy.
        """
        stand_ins = copy.deepcopy(self._copied_owners())
        stand_ins.strict = False
        try:
            with contextlib.closing(stand_ins):
                stand_ins.on_run_end(ctx, *arguments)
        except Exception:
            logger.exception("on_run_end of %s failed. The process of the run had died.", ctx.run_key)

    def close(self) -> None:
        """Wait for subscribers on other threads, and close all."""
        for part in (self._shared, self._owners, self._made):
            part.close()


def collected(subscribers: Iterable[Any], *, strict: bool = False) -> CallbackCollection:
    """Put subscribers into one collection; members of collections among them keep their options."""
    collection = CallbackCollection(strict=strict)
    for subscriber in subscribers:
        if isinstance(subscriber, CallbackCollection) and "name" not in configured(subscriber):
            collection.extend(subscriber)
        else:
            collection.add(subscriber)
    return collection


def _split_run_owners(shared: CallbackCollection, *, strict: bool) -> CallbackCollection:
    """Move the subscribers with moments of both runs and training into a separate collection."""
    names = {
        flat.chain[0].name
        for flat in shared.flatten()
        if not flat.registration.bindings.keys().isdisjoint(RUN_MOMENTS)
        and not flat.registration.bindings.keys().isdisjoint(TRAINING_MOMENTS)
    }
    owners = CallbackCollection(strict=strict)
    if names:
        owners.extend(shared)
        for name in shared.names():
            (shared if name in names else owners).remove(name)
        for collection in (shared, owners):
            collection.forget_removed()  # the other one closes them
    return owners


@dataclass(frozen=True)
class _Copy:
    """A factory that copies a collection; unlike a lambda, it can be pickled."""

    original: CallbackCollection

    def __call__(self) -> CallbackCollection:
        return copy.deepcopy(self.original)


@dataclass(frozen=True)
class _Source:
    """A factory for all subscribers of a configuration or a configuration file."""

    given: Any

    def __call__(self) -> CallbackCollection:
        return load_callbacks(self.given)


def subscriber_entries(given: Any) -> list[Any]:
    """The entries of an experiment's ``callbacks``.

    Raises:
        OptionError: It is no list of callbacks.
    """
    if given is None:
        return []
    if isinstance(given, str | Path):
        return [_Source(Path(given).resolve())]
    if isinstance(given, Mapping) and not _is_hook_functions(given):
        return [_Source(given)]
    if isinstance(given, CallbackCollection):
        return [given]
    if callable(given) or isinstance(given, Mapping) or not isinstance(given, Iterable):
        raise OptionError(f"callbacks={given!r:.120}: give a list of callbacks.")
    return list(given)


def checked_entries(given: Any) -> list[Any]:
    """The entries of an experiment's ``callbacks``, checked as far as possible without calling factories.

    A factory may open what only a run needs, so classes are inspected and functions are not called.

    Raises:
        HooklineError: One of them is no subscriber, overrides an unknown moment, or cannot be called as one.
    """
    entries = subscriber_entries(given)
    collected(entry for entry in entries if not _is_factory(entry))
    for entry in entries:
        if isinstance(entry, type):
            if issubclass(entry, Callback) and not inspect.isabstract(entry):
                with contextlib.suppress(AttributeError):  # a property that needs __init__: checked when it is made
                    bind(object.__new__(entry), MOMENTS)
        elif isinstance(entry, str | Mapping | _Source) and _is_factory(entry):
            collected([_call(_factory(entry))]).close()
    return entries


def _factory(entry: Any) -> Callable[[], Any]:
    return partial(CallbackCollection, [entry]) if isinstance(entry, str | Mapping) else entry


def _is_factory(entry: Any) -> bool:
    if isinstance(entry, str | type):
        return True
    if isinstance(entry, Mapping):
        return not _is_hook_functions(entry)
    if isinstance(entry, Subscriber) or not callable(entry):
        return False
    try:
        inspect.signature(entry).bind()
    except (TypeError, ValueError):
        return False  # a logger function (report_data, step)
    return True


def _is_hook_functions(entry: Mapping[Any, Any]) -> bool:
    return bool(entry) and all(key in HOOK_FUNCTIONS for key in entry)


def _call(factory: Callable[[], Any]) -> Any:
    try:
        return factory()
    except TypeError as error:
        name = getattr(factory, "__name__", repr(factory))
        raise OptionError(f"callbacks: {name} cannot be made without arguments ({error}).") from error
