"""Callbacks from YAML, JSON or a dict.

Every entry is checked before anything is built: names, options, and arguments against the
constructor's signature and types. An error says the file and line, the path inside it, what was
given and what is accepted.

    callbacks:
      - progress_bar
      - early_stopping: {monitor: val/loss, patience: 5}
      - use: my_package.hooks:GradientAlarm
        with: {threshold: 0.9}
        every: 25
        after: [early_stopping]
"""

import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from hookline._engine.binding import bind
from hookline._engine.errors import ConfigError, HooklineError, OptionError, UnknownNameError, closest, reworded
from hookline._engine.moments import MOMENTS
from hookline._engine.registry import REGISTRY
from hookline._engine.subscriber import OPTION_NAMES, Subscriber, checked_option
from hookline.config.sources import Source, read_source

SETTABLE = OPTION_NAMES - {"when"}
"""The options that a configuration may set; ``when`` takes a function and is given in Python."""


def read_subscribers(source: Any) -> list[tuple[Any, Mapping[str, Any]]]:
    """The subscribers that a path, a dict or a list describes, each with its options.

    A dict has them under ``callbacks`` or ``hooks``.
    """
    if isinstance(source, str) and _names_one(source) and not Path(source).exists():
        raise ConfigError(f"{source!r} is the name of one callback, not a file: give a list of them, [{source!r}].")
    read = read_source(source)
    key, entries = _entries(read)
    plans = [checked_plan(entry, read, f"{key}[{index}]") for index, entry in enumerate(entries)]
    return [(plan.build(read), plan.options) for plan in plans]


def read_subscriber(entry: Any, source: Source | None, path: str) -> tuple[Any, Mapping[str, Any]]:
    """The subscriber that one entry at a path describes, with its options."""
    source = source or Source(())
    plan = checked_plan(entry, source, path)
    return plan.build(source), plan.options


@contextmanager
def pointing_to(source: Any) -> Iterator[None]:
    """Put the file's name before an error about how its subscribers go together."""
    try:
        yield
    except HooklineError as error:
        if isinstance(source, str | Path) and not isinstance(error, ConfigError):
            raise ConfigError(f"{source}: {error}") from error
        raise


@dataclass(frozen=True, slots=True)
class Plan:
    """One entry of a configuration, checked and ready to be built."""

    name: str
    factory: Callable[..., Any]
    arguments: Mapping[str, Any]
    options: Mapping[str, Any]
    path: str

    def build(self, source: Source) -> Subscriber:
        """Make the subscriber."""
        try:
            subscriber = self.factory(**self.arguments)
        except Exception as error:  # whatever a constructor raises, the reader of the file needs its place
            message = f"{self.name} cannot be built: {type(error).__name__}: {error}"
            raise source.error(self.path, message) from error
        if not isinstance(subscriber, Subscriber):
            raise source.error(self.path, f"{self.name} gives {subscriber!r}, which is neither a Callback nor a Hook.")
        try:
            bind(subscriber, MOMENTS)
        except HooklineError as error:
            raise source.error(self.path, str(error)) from error
        return subscriber


def checked_plan(entry: Any, source: Source, path: str) -> Plan:
    """An entry with its names, options and arguments checked; nothing is built yet."""
    name, arguments, options, at = _parts(entry, source, path)
    factory = _factory(name, source, at)
    inside = f"{path}.with" if isinstance(entry, Mapping) and "use" in entry else at
    checked = checked_arguments(factory, arguments, source, inside)
    for key, value in options.items():
        try:
            checked_option(name, key, value)
        except OptionError as error:
            raise source.error(f"{path}.{key}", str(error)) from error
    return Plan(name, factory, checked, options, at)


def _entries(source: Source) -> tuple[str, list[Any]]:
    """The list of entries and the key that it stands under."""
    key, entries = "callbacks", source.data
    if isinstance(source.data, Mapping):
        if one := next((key for key in source.data if key == "use" or _names_one(key)), None):
            raise source.error(str(one), "this is one callback: give a list of them, also of one.")
        if len(source.data) != 1:
            given = ", ".join(map(str, source.data)) or "nothing"
            raise source.error("", f"one key is needed, callbacks or hooks; {given} was given.")
        ((key, entries),) = source.data.items()
        if key not in ("callbacks", "hooks"):
            raise source.error(str(key), f"unknown key. {closest(str(key), ['callbacks', 'hooks'])}")
    if not isinstance(entries, list | tuple | None):
        raise source.error(key, f"{entries!r} is not a list of callbacks or hooks.")
    return key, list(entries or ())


def _names_one(name: Any) -> bool:
    """Whether a name goes by that of a registered callback or hook."""
    return name in REGISTRY.names()


def _parts(entry: Any, source: Source, path: str) -> tuple[str, dict[str, Any], dict[str, Any], str]:
    """An entry's name, constructor arguments, options, and the path of what names it."""
    if isinstance(entry, str):
        return entry, {}, {}, path
    if not isinstance(entry, Mapping):
        raise source.error(path, f"{entry!r} is not a callback: give a name, or a mapping with one.")
    options = {key: value for key, value in entry.items() if key in SETTABLE}
    rest = {key: value for key, value in entry.items() if key not in options}
    if "use" in rest:
        name, arguments, at, inside = rest.pop("use"), rest.pop("with", {}), f"{path}.use", f"{path}.with"
        for key in rest:
            accepted = ["use", "with", *SETTABLE]
            raise source.error(f"{path}.{key}", f"unknown key. {closest(str(key), accepted)}")
    elif len(rest) == 1:
        ((name, arguments),) = rest.items()
        at = inside = f"{path}.{name}"
    else:
        given = ", ".join(map(str, rest)) or "nothing"
        raise source.error(path, f"one name is needed, {given} was given. Options are: {', '.join(sorted(SETTABLE))}.")
    if not isinstance(name, str):
        raise source.error(at, f"{name!r} is not a name: give a registered name or 'package.module:Class'.")
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, Mapping) or not all(isinstance(key, str) for key in arguments):
        raise source.error(inside, f"{arguments!r} is not a mapping of arguments.")
    return name, dict(arguments), options, at


def _factory(name: str, source: Source, path: str) -> Callable[..., Any]:
    try:
        return import_name(name) if ":" in name else REGISTRY.find(name)
    except UnknownNameError as error:
        raise source.error(path, str(error)) from error


def import_name(name: str) -> Callable[..., Any]:
    """The class of subscribers at ``package.module:Name``, or a function that says it returns one.

    Nothing else is taken: a configuration file must not be able to call just anything.
    """
    found = import_object(name)
    made = found if isinstance(found, type) else returned_type(found)
    if not isinstance(made, type) or not issubclass(made, Subscriber):
        raise UnknownNameError(
            f"{name!r} is {found!r}, which is neither a Callback nor a Hook: give a subclass of one, "
            "or a function whose return annotation is one."
        )
    factory: Callable[..., Any] = found
    return factory


def import_object(name: str) -> Any:
    """What lies at ``package.module:Name``."""
    module_name, _, attribute = name.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:
        raise UnknownNameError(f"{name!r} cannot be imported: {type(error).__name__}: {error}.") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise UnknownNameError(f"{module_name!r} has no {attribute!r}. {closest(part, dir(found))}")
        found = getattr(found, part)
    return found


def import_function(name: str) -> Callable[..., Any]:
    """The function defined at ``package.module:name``; nothing else that can be called is taken."""
    found = import_object(name)
    if not inspect.isfunction(found):
        raise UnknownNameError(f"{name!r} is {found!r}: give a function that is defined with def.")
    return found


def import_class(name: str, methods: Sequence[str]) -> Any:
    """The class at ``package.module:Name`` that has methods; a configuration must not be able to call just anything."""
    found = import_object(name)
    if not isinstance(found, type) or not all(callable(getattr(found, each, None)) for each in methods):
        wanted = " and ".join(f"{each}()" for each in methods)
        raise UnknownNameError(f"{name!r} is {found!r}, which is no class with {wanted}.")
    return found


def returned_type(function: Any) -> Any:
    """What a function's annotation says it returns, or None."""
    try:
        return get_type_hints(function).get("return")
    except (NameError, TypeError, AttributeError):  # not a function, or an annotation that means nothing here
        return None


def checked_arguments(
    factory: Callable[..., Any], arguments: Mapping[str, Any], source: Source, path: str
) -> dict[str, Any]:
    """The arguments, converted where a type allows it; unknown, missing and wrong ones are refused."""
    try:
        signature = inspect.signature(factory)
    except ValueError:
        raise source.error(path, "its arguments cannot be known: give a class of callbacks or hooks.") from None
    parameters = signature.parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    checked: dict[str, Any] = {}
    for key, value in arguments.items():
        if key not in parameters and not takes_any:
            message = f"unknown argument. {closest(key, parameters)} It is called as {signature}."
            raise source.error(f"{path}.{key}", message)
        checked[key] = _checked(value, _hint(factory, parameters.get(key)), source, f"{path}.{key}")
    try:
        signature.bind(**checked)
    except TypeError as error:
        raise source.error(path, f"{error}. It is called as {signature}.") from None
    return checked


def _hint(factory: Callable[..., Any], parameter: inspect.Parameter | None) -> Any:
    """A parameter's type, or None where it has none or names something that only type checkers import."""
    if parameter is None or parameter.annotation is parameter.empty:
        return None
    if not isinstance(parameter.annotation, str):
        return parameter.annotation
    function: Any = factory.__init__ if isinstance(factory, type) else factory  # type: ignore[misc]
    try:
        return eval(parameter.annotation, getattr(function, "__globals__", {}))  # noqa: S307 - the class's own text
    except Exception:
        return None


def _checked(value: Any, hint: Any, source: Source, path: str) -> Any:
    """The value as the type wants it; what is not a type of configuration values, e.g. a callable, is not checked."""
    if hint is None:
        return value
    if isinstance(value, str) and Path in (hint, *get_args(hint)) and str not in get_args(hint):
        return Path(value)
    import msgspec

    try:
        return msgspec.convert(value, hint, strict=True)
    except msgspec.ValidationError as error:
        raise source.error(path, f"{value!r} was given{_accepted(hint, error)}.") from None
    except TypeError:
        return value


def _accepted(hint: Any, error: Exception) -> str:
    """The words for what would fit: the values, where it is one of a few, and otherwise the type."""
    parts = get_args(hint) if isinstance(hint, UnionType) or get_origin(hint) is Union else (hint,)
    if hint is not NoneType and all(part is NoneType or get_origin(part) is Literal for part in parts):
        *others, last = (repr(value) for part in parts for value in get_args(part) or (None,))
        return f": give {', '.join(others)} or {last}" if others else f": give {last}"
    wanted = hint.__name__ if isinstance(hint, type) else str(hint)
    return f", {wanted} is accepted ({reworded(str(error))})"
