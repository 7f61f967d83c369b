"""Who listens to an experiment: what is shared by all of it, and what each run has of its own.

A callback that is given as an instance hears the moments of the experiment, of its groups and of its runs itself; the
training of each run is heard by a copy, made of it as it was before anything began, so nothing leaks from one run into
another. One that is given as a class, a function that makes it, a name or an entry of a configuration is made anew for
each run, and that one hears its run from `on_run_start` to `on_run_end`, in the process that it runs in; another one
hears the moments of the experiment and its groups.
"""

import contextlib
import copy
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hookline.core.binding import bind
from hookline.core.callback import MOMENTS, Callback
from hookline.core.collection import CallbackCollection, load_callbacks
from hookline.core.errors import HooklineError, OptionError
from hookline.core.functions import HOOK_FUNCTIONS
from hookline.core.state import LogContext
from hookline.core.subscriber import Subscriber, configured


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
        factories = [_factory(entry) for entry in entries if _is_factory(entry)]
        instances = [entry for entry in entries if not _is_factory(entry)]
        self._shared = collected(instances, strict=strict)
        self.of_runs = RunSubscribers(_copies(instances), factories)
        self._made = collected(map(_product, factories), strict=strict)

    def experiment(self, moment: str, ctx: LogContext, *arguments: Any) -> None:
        """Tell a moment of the experiment or of a group."""
        for part in (self._shared, self._made):
            getattr(part, moment)(ctx, *arguments)

    def run(self, moment: str, ctx: LogContext, *arguments: Any, **named: Any) -> None:
        """Tell a moment of a run; those that are made for each run are told where it runs."""
        getattr(self._shared, moment)(ctx, *arguments, **named)

    def close(self) -> None:
        """Wait for those on other threads."""
        for part in (self._shared, self._made):
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


def _copies(instances: list[Any]) -> list[Any]:
    """Copies that share what the instances share."""
    for instance in instances:
        _require_copy(instance)
    return copy.deepcopy(instances)


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
