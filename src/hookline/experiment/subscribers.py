"""Who listens to an experiment: what is shared by all of it, and what each run has of its own.

A callback that is given as an instance is notified as follows, so that nothing leaks from one run into another:

- One without moments of training is notified of everything itself: the experiment, its groups and all runs.
- One without moments of runs (`on_run_start`, `on_benchmark_eval`, `on_run_end`) is copied for each run, and the copy
  is notified of the training.
- One with both is copied as well. The copy is notified of its run from `on_run_start` to `on_run_end`, the training
  included, in the process that the run is in: what it opens at the start is there in every step. The instance is
  notified of the experiment and its groups only. It is copied when a run starts, so copies have what the instance set
  in `on_experiment_start` and `on_group_start`, unless that cannot be copied.

One that is given as a class, a function that makes it, a name or an entry of a configuration is made for each run, and
lives as a copy of the last kind does; another one is notified of the experiment and its groups.
"""

import contextlib
import copy
import inspect
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hookline._engine.binding import bind
from hookline._engine.collection import CallbackCollection, load_callbacks
from hookline._engine.errors import HooklineError, OptionError
from hookline._engine.functions import HOOK_FUNCTIONS
from hookline._engine.moments import MOMENTS, Callback
from hookline._engine.state import LogContext
from hookline._engine.subscriber import Subscriber, configured

logger = logging.getLogger("hookline")

RUN_MOMENTS = frozenset({"on_run_start", "on_benchmark_eval", "on_run_end"})
TRAINING_MOMENTS = frozenset(name for name, moment in MOMENTS.items() if moment.subject != "ctx")


@dataclass(frozen=True)
class RunSubscribers:
    """What the runs' own subscribers are made of; goes to the processes that they run in."""

    instances: list[Any] = field(default_factory=list)
    factories: list[Callable[[], Any]] = field(default_factory=list)

    def copies(self) -> list[Any]:
        """A copy of each instance."""
        return copy.deepcopy(self.instances)

    def made(self) -> CallbackCollection:
        """What the factories make."""
        return collected(map(_product, self.factories))

    def parts(self) -> list[Any]:
        """What all of it consists of, one by one."""
        given = [*self.instances, *self.factories]
        inside = [part.original if isinstance(part, _Copy) else part for part in given]
        return [each for part in inside for each in (part if isinstance(part, CallbackCollection) else [part])]


class Subscribers:
    """Those of an experiment.

    Args:
        given: What was given as ``callbacks``.
        strict: Let their exceptions propagate.

    Raises:
        OptionError: One of them is no subscriber, or cannot be copied.
    """

    def __init__(self, given: Any, *, strict: bool = False) -> None:
        entries = subscriber_entries(given)
        self._factories = [_factory(entry) for entry in entries if _is_factory(entry)]
        instances = [entry for entry in entries if not _is_factory(entry)]
        for instance in instances:
            _require_copy(instance)
        self._shared = collected(instances, strict=strict)
        self._owners = _taken_out(self._shared, strict=strict)
        self._trained_with, self._first_owners = copy.deepcopy((self._shared, self._owners))
        self._made = collected(map(_product, self._factories), strict=strict)
        self._said_why_first = False

    def of_runs(self) -> RunSubscribers:
        """What the subscribers of a run that starts now are made of."""
        owners = [_Copy(self._copied_owners())] if len(self._owners) else []
        return RunSubscribers([self._trained_with], [*owners, *self._factories])

    def _copied_owners(self) -> CallbackCollection:
        """Those that own a run, as they are now or, where that cannot be copied, as they were before anything began."""
        self._owners.drain()  # what sets their attributes may be on another thread
        try:
            return copy.deepcopy(self._owners)
        except Exception as error:
            if not self._said_why_first:
                self._said_why_first = True
                logger.warning(
                    "%s cannot be copied after on_experiment_start (%s: %s): runs get copies of how it was before. "
                    "To pass something to the runs, put it into ctx.ids or ctx.extras.",
                    *(", ".join(self._owners.names()), type(error).__name__, error),
                )
            return self._first_owners

    def experiment(self, moment: str, ctx: LogContext, *arguments: Any) -> None:
        """Tell a moment of the experiment or of a group."""
        for part in (self._shared, self._owners, self._made):
            getattr(part, moment)(ctx, *arguments)

    def run(self, moment: str, ctx: LogContext, *arguments: Any, **named: Any) -> None:
        """Tell a moment of a run; those that are copied or made for each run are told where it runs."""
        getattr(self._shared, moment)(ctx, *arguments, **named)

    def run_died(self, ctx: LogContext, *arguments: Any) -> None:
        """Tell the end of a run whose own subscribers died with its process to other copies of the instances.

        These can complete what they keep elsewhere under ``ctx.ids``. What the others had opened they do not have, so
        an exception is only logged, whatever the policy.
        """
        stand_ins = _Copy(self._copied_owners())()
        stand_ins.strict = False
        try:
            with contextlib.closing(stand_ins):
                stand_ins.on_run_end(ctx, *arguments)
        except Exception:
            logger.exception("on_run_end of %s failed. The process of the run had died.", ctx.run_key)

    def close(self) -> None:
        """Wait for those on other threads."""
        for part in (self._shared, self._owners, self._made):
            part.close()


def collected(subscribers: Iterable[Any], *, strict: bool = False) -> CallbackCollection:
    """Subscribers in one collection; the members of collections among them keep their options."""
    collection = CallbackCollection(strict=strict)
    for subscriber in subscribers:
        if isinstance(subscriber, CallbackCollection) and "name" not in configured(subscriber):
            collection.extend(subscriber)
        else:
            collection.add(subscriber)
    return collection


def _taken_out(shared: CallbackCollection, *, strict: bool) -> CallbackCollection:
    """Those that have moments of runs and moments of the training, in a collection of their own."""
    names = {
        leaf.chain[0].name
        for leaf in shared.leaves()
        if not leaf.entry.bindings.keys().isdisjoint(RUN_MOMENTS)
        and not leaf.entry.bindings.keys().isdisjoint(TRAINING_MOMENTS)
    }
    owners = CallbackCollection(strict=strict)
    if names:
        owners.extend(shared)
        for name in shared.names():
            (shared if name in names else owners).remove(name)
        for collection in (shared, owners):
            collection.forget_left()  # the other one closes them
    return owners


@dataclass(frozen=True)
class _Copy:
    """Makes copies of subscribers."""

    original: CallbackCollection

    def __call__(self) -> CallbackCollection:
        return copy.deepcopy(self.original)


@dataclass(frozen=True)
class _Entry:
    """A name, or an entry of a configuration: makes its subscriber."""

    given: Any

    def __call__(self) -> CallbackCollection:
        return CallbackCollection([self.given])


@dataclass(frozen=True)
class _Source:
    """A configuration, or a file with one: makes all of its subscribers."""

    given: Any

    def __call__(self) -> CallbackCollection:
        return load_callbacks(self.given)


def subscriber_entries(given: Any) -> list[Any]:
    """What was given as callbacks, one by one.

    Raises:
        OptionError: It is no list of them.
    """
    if given is None:
        return []
    if isinstance(given, str | Path):
        return [_Source(Path(given).resolve())]
    if isinstance(given, Mapping) and not _is_functions(given):
        return [_Source(given)]
    if isinstance(given, CallbackCollection):
        return [given]
    if callable(given) or isinstance(given, Mapping) or not isinstance(given, Iterable):
        raise OptionError(f"callbacks={given!r:.120}: give a list of callbacks.")
    return list(given)


def checked_entries(given: Any) -> list[Any]:
    """What was given as callbacks, one by one, once it is known that a collection takes them.

    Classes are only looked at, and functions not even called: what they make may open what a run needs.

    Raises:
        HooklineError: One of them is no subscriber, overrides what is no moment, or cannot be called as one.
    """
    entries = subscriber_entries(given)
    collected(entry for entry in entries if not _is_factory(entry))
    for entry in entries:
        if isinstance(entry, type):
            _check_class(entry)
        elif isinstance(entry, str | Mapping | _Source) and _is_factory(entry):
            collected([_product(_factory(entry))]).close()
    return entries


def _check_class(kind: type) -> None:
    if issubclass(kind, Callback) and not inspect.isabstract(kind):
        with contextlib.suppress(AttributeError):  # a property that needs what is not set yet: seen when it is made
            bind(object.__new__(kind), MOMENTS)


def _factory(entry: Any) -> Callable[[], Any]:
    return _Entry(entry) if isinstance(entry, str | Mapping) else entry


def _is_factory(entry: Any) -> bool:
    if isinstance(entry, str):
        return True
    if isinstance(entry, Mapping):
        return not _is_functions(entry)
    if isinstance(entry, type):
        return True
    if isinstance(entry, Subscriber) or not callable(entry):
        return False
    try:
        inspect.signature(entry).bind()
    except (TypeError, ValueError):
        return False  # a logger function (report_data, step)
    return True


def _is_functions(entry: Mapping[Any, Any]) -> bool:
    return bool(entry) and all(key in HOOK_FUNCTIONS for key in entry)


def _product(factory: Callable[[], Any]) -> Any:
    try:
        return factory()
    except TypeError as error:
        name = getattr(factory, "__name__", repr(factory))
        raise OptionError(f"callbacks: {name} cannot be made without arguments ({error}).") from error


def _require_copy(instance: Any) -> None:
    try:
        copy.deepcopy(instance)
    except HooklineError:
        raise
    except Exception as error:
        name = type(instance).__name__
        raise OptionError(
            f"callbacks: {instance!r:.120} cannot be copied for each run ({type(error).__name__}: {error}). Give its "
            f"class, or a function that makes one: callbacks=[lambda: {name}(...)]."
        ) from error
