"""Names of callbacks, hooks and sinks: built in, registered, or installed by other packages.

A package offers its own through the entry point groups ``hookline.callbacks`` and ``hookline.sinks``. Built-in modules
are imported when the first name is looked up, entry points are read for names that are not registered.
"""

import functools
import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from hookline._engine.errors import DuplicateError, OptionError, UnknownNameError, closest
from hookline._engine.subscriber import Subscriber

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


ENTRY_POINTS = "hookline.callbacks"

T = TypeVar("T", bound=Callable[..., Any])


class Registry:
    """Maps names to factories: classes of subscribers or sinks, or functions that return one.

    Args:
        builtin_modules: Modules that register names when imported.
        group: The entry point group of other packages.
    """

    def __init__(self, builtin_modules: tuple[str, ...] = (), group: str = ENTRY_POINTS) -> None:
        self._builtin_modules = builtin_modules
        self._group = group
        self._registered: dict[str, Callable[..., Any]] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Register a class of callbacks or hooks under a name: ``@register("gradient_alarm")``."""
        if not isinstance(name, str) or not name or "/" in name:
            raise OptionError(f"register({name!r}): give a non-empty string without '/'.")

        def add(factory: T) -> T:
            if not callable(factory):
                raise OptionError(f"register({name!r}): {factory!r} is not a class of callbacks or hooks.")
            known = self._registered.get(name)
            if known is not None and _import_path(known) != _import_path(factory):
                raise DuplicateError(
                    f"{name!r} is taken by {_import_path(known)}. Register {_import_path(factory)} under another."
                )
            if isinstance(factory, type) and issubclass(factory, Subscriber) and "name" not in vars(factory):
                factory._default_name = name
            self._registered[name] = factory
            return factory

        return add

    def find(self, name: str) -> Callable[..., Any]:
        """Return the factory registered under a name."""
        self._load_builtin()
        if name in self._registered:
            return self._registered[name]
        point = _entry_points(self._group).get(name)
        if point is not None:
            return self.register(name)(_load(point))
        module, _, attribute = name.rpartition(".")
        form = f" A class of your own is given as module:Class, here {f'{module}:{attribute}'!r}." if module else ""
        raise UnknownNameError(f"Nothing is registered as {name!r}.{form} {closest(name, self.names())}")

    def names(self) -> list[str]:
        """Return all names, sorted."""
        self._load_builtin()
        return sorted({*self._registered, *self.installed()})

    def installed(self) -> dict[str, str]:
        """Return the names that other packages offer, with the package of each."""
        return {name: _package(point) for name, point in _entry_points(self._group).items()}

    @functools.cache  # noqa: B019 - registries live as long as the process
    def _load_builtin(self) -> None:
        for module in self._builtin_modules:
            importlib.import_module(module)


def _entry_points(group: str) -> "dict[str, EntryPoint]":
    """Return the entry points by name; of two with one name, that of the alphabetically first package."""
    import importlib.metadata  # takes 20 ms, which only a look-up pays

    points = sorted(importlib.metadata.entry_points(group=group), key=_package, reverse=True)
    return {point.name: point for point in points}


def _package(point: "EntryPoint") -> str:
    return point.dist.name if point.dist else point.value


def _load(point: "EntryPoint") -> Callable[..., Any]:
    try:
        factory: Callable[..., Any] = point.load()
    except Exception as error:
        raise UnknownNameError(
            f"{point.name!r} is registered by {_package(point)} ({point.value}) and cannot be imported: "
            f"{type(error).__name__}: {error}"
        ) from error
    return factory


def _import_path(factory: Callable[..., Any]) -> str:
    return f"{factory.__module__}:{factory.__qualname__}" if hasattr(factory, "__qualname__") else repr(factory)


REGISTRY = Registry(builtin_modules=("hookline.callbacks",))
register = REGISTRY.register
