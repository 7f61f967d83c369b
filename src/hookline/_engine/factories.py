"""Builds objects from names and mappings: entries of a configuration, or of a list given in Python.

An entry is a registered name, ``package.module:Name``, ``{name: {argument: value}}`` or ``{use: name, with: {argument:
value}}``; an entry of a subscriber may also set its options. Names, options and arguments are checked, the arguments
against the signature and annotations of what is called, before anything is built.

Every mistake is a `ConfigError` with the file and line, where there is a file, and the path inside it (`Source`).
Files are read in `hookline.config`.
"""

import importlib
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, get_type_hints

from hookline._engine.binding import bind
from hookline._engine.errors import ConfigError, HooklineError, OptionError, UnknownNameError, closest
from hookline._engine.moments import MOMENTS
from hookline._engine.registry import REGISTRY
from hookline._engine.subscriber import OPTION_NAMES, Subscriber, checked_option

ENTRY_OPTIONS = OPTION_NAMES - {"when"}
"""The options that an entry may set; ``when`` takes a function and is set in Python."""


@dataclass(frozen=True, slots=True)
class Source:
    """A configuration and its origin, which errors point into.

    Attributes:
        data: The values.
        file: The name of the file; empty for values given in Python.
        lines: The line of each path in the file.
        overridden: The paths that the command line set, or created to set something inside.
    """

    data: Any
    file: str = ""
    lines: Mapping[str, int] = field(default_factory=dict)
    overridden: Sequence[str] = ()

    def error(self, path: str, message: str) -> ConfigError:
        """Make an error about the value at a path such as ``callbacks[1].with.threshold``."""
        parts = split_path(path)
        # The file's line would point to a value that is not the one in use.
        if any(parts[: len(names)] == names for names in map(split_path, self.overridden)):
            return COMMAND_LINE.error(path, message)
        # A list at the top of a file has no key. A path with no line of its own may be the start of a dotted key.
        line = self.lines.get(path) or self.lines.get(path.removeprefix("callbacks"))
        line = line or next((line for place, line in self.lines.items() if place.startswith(f"{path}.")), None)
        where = f"{self.file}:{line}: " if self.file and line else f"{self.file}: " if self.file else ""
        return ConfigError(f"{where}{path}: {message}" if path else f"{where}{message}")


COMMAND_LINE = Source({}, "command line")


def split_path(path: str) -> tuple[str, ...]:
    """Split a path such as ``stages[1].train.callbacks[0]`` into keys and indices."""
    return tuple(part for part in re.split(r"[.\[\]]+", path) if part)


def join_path(parts: Iterable[Any]) -> str:
    """Join keys and indices to a path.

    >>> join_path(["callbacks", 0, "patience"])
    'callbacks[0].patience'
    """
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).removeprefix(".")


class Entries(list[Any]):
    """A list of entries, such as callbacks or sinks, with its position, for errors about an entry.

    Args:
        source: The configuration it was read from; None for a list given in Python.
        path: The path of the list in the source, such as ``train.callbacks``.
    """

    def __init__(self, entries: Iterable[Any], source: Source | None = None, path: str = "callbacks") -> None:
        super().__init__(entries)
        self.source, self.path = source, path


def split_entry(entry: str | Mapping[str, Any], what: str) -> tuple[str, dict[str, Any]]:
    """Split an entry that takes no options into its name and arguments.

    Args:
        what: The kind of object with its article, for the error.

    Raises:
        OptionError: It has another form.
    """
    if isinstance(entry, str):
        return entry, {}
    name, arguments = None, None
    if "use" in entry and not set(entry) - {"use", "with"}:
        name, arguments = entry["use"], entry.get("with")
    elif len(entry) == 1:
        ((name, arguments),) = entry.items()
    arguments = {} if arguments is None else arguments
    if (
        not isinstance(name, str)
        or not isinstance(arguments, Mapping)
        or not all(type(key) is str for key in arguments)
    ):
        raise OptionError(f"{dict(entry)!r:.200} is not {what}: give {{name: {{setting: value}}}}.")
    return name, dict(arguments)


@dataclass(frozen=True, slots=True)
class SubscriberPlan:
    """An entry whose names, options and arguments are checked. Nothing is built yet."""

    name: str
    factory: Callable[..., Any]
    arguments: Mapping[str, Any]
    options: Mapping[str, Any]
    source: Source
    path: str

    def build(self) -> Subscriber:
        """Build the subscriber and check that its moments can be called."""
        try:
            subscriber = self.factory(**self.arguments)
        except Exception as error:  # a constructor may raise anything, and the error needs its position
            message = f"{self.name} cannot be built: {type(error).__name__}: {error}"
            raise self.source.error(self.path, message) from error
        if not isinstance(subscriber, Subscriber):
            message = f"{self.name} returned {subscriber!r}, which is neither a Callback nor a Hook."
            raise self.source.error(self.path, message)
        # Checked while the position in the file is known; add() would raise the same error without it.
        try:
            bind(subscriber, MOMENTS)
        except HooklineError as error:
            raise self.source.error(self.path, str(error)) from error
        return subscriber


def build_subscriber(
    entry: Any, source: Source | None = None, path: str = "callbacks"
) -> tuple[Subscriber, Mapping[str, Any]]:
    """Build the subscriber of an entry and return it with its options."""
    plan = plan_subscriber(entry, source or Source(()), path)
    return plan.build(), plan.options


def plan_subscriber(entry: Any, source: Source, path: str) -> SubscriberPlan:
    """Check an entry of a list of callbacks or hooks.

    Raises:
        ConfigError: A name, an option or an argument is wrong.
    """
    name, arguments, options, name_path, arguments_path = _split_subscriber(entry, source, path)
    try:
        factory = import_subscriber(name) if ":" in name else REGISTRY.find(name)
    except UnknownNameError as error:
        raise source.error(name_path, str(error)) from error
    arguments = checked_arguments(factory, arguments, source, arguments_path)
    for key, value in options.items():
        try:
            checked_option(name, key, value)
        except OptionError as error:
            raise source.error(f"{path}.{key}", str(error)) from error
    return SubscriberPlan(name, factory, arguments, options, source, name_path)


def _split_subscriber(entry: Any, source: Source, path: str) -> tuple[str, dict[str, Any], dict[str, Any], str, str]:
    """Return an entry's name, arguments and options, and the paths of its name and its arguments."""
    if isinstance(entry, str):
        return entry, {}, {}, path, path
    if not isinstance(entry, Mapping):
        raise source.error(path, f"{entry!r} is not a callback: give a name, or a mapping with one.")
    # Options are taken out first; what is left must be the one name, whatever it is called.
    options = {key: value for key, value in entry.items() if key in ENTRY_OPTIONS}
    rest = {key: value for key, value in entry.items() if key not in options}
    if "use" in rest:
        name, arguments = rest.pop("use"), rest.pop("with", None)
        name_path, arguments_path = f"{path}.use", f"{path}.with"
        for key in rest:
            raise source.error(f"{path}.{key}", f"unknown key. {closest(str(key), ['use', 'with', *ENTRY_OPTIONS])}")
    elif len(rest) == 1:
        ((name, arguments),) = rest.items()
        name_path = arguments_path = f"{path}.{name}"
    else:
        given, accepted = ", ".join(map(str, rest)) or "nothing", ", ".join(sorted(ENTRY_OPTIONS))
        raise source.error(path, f"one name is needed, {given} was given. Options are: {accepted}.")
    if not isinstance(name, str):
        raise source.error(name_path, f"{name!r} is not a name: give a registered name or 'package.module:Class'.")
    arguments = {} if arguments is None else arguments
    if not isinstance(arguments, Mapping) or not all(isinstance(key, str) for key in arguments):
        raise source.error(arguments_path, f"{arguments!r} is not a mapping of arguments.")
    return name, dict(arguments), options, name_path, arguments_path


# A configuration file must not be able to call just anything, so each import below accepts one kind of object.


def import_subscriber(name: str) -> Callable[..., Any]:
    """Import ``package.module:Name``: a class of subscribers, or a function annotated to return one."""
    found = import_object(name)
    made = found if isinstance(found, type) else returned_type(found)
    if not isinstance(made, type) or not issubclass(made, Subscriber):
        raise UnknownNameError(
            f"{name!r} is {found!r}, which is neither a Callback nor a Hook: give a subclass of one, "
            "or a function whose return annotation is one."
        )
    factory: Callable[..., Any] = found
    return factory


def import_function(name: str) -> Callable[..., Any]:
    """Import ``package.module:name``, a function defined with ``def``."""
    found = import_object(name)
    if not inspect.isfunction(found):
        raise UnknownNameError(f"{name!r} is {found!r}: give a function that is defined with def.")
    return found


def import_class(name: str, methods: Sequence[str]) -> Any:
    """Import ``package.module:Name``, a class with these methods."""
    found = import_object(name)
    if not isinstance(found, type) or not all(callable(getattr(found, each, None)) for each in methods):
        wanted = " and ".join(f"{each}()" for each in methods)
        raise UnknownNameError(f"{name!r} is {found!r}, which is not a class with {wanted}.")
    return found


def import_object(name: str) -> Any:
    """Import whatever is at ``package.module:Name``."""
    module_name, _, attribute = name.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    # Importing runs the module, which may raise anything.
    except Exception as error:
        raise UnknownNameError(f"{name!r} cannot be imported: {type(error).__name__}: {error}.") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise UnknownNameError(f"{module_name!r} has no {attribute!r}. {closest(part, dir(found))}")
        found = getattr(found, part)
    return found


def returned_type(function: Any) -> Any:
    """Return a function's return annotation, or None."""
    try:
        return get_type_hints(function).get("return")
    except (NameError, TypeError, AttributeError):  # not a function, or an annotation for type checkers only
        return None


def checked_arguments(
    factory: Callable[..., Any], arguments: Mapping[str, Any], source: Source, path: str
) -> dict[str, Any]:
    """Check keyword arguments against a signature and its annotations, and convert them.

    Raises:
        ConfigError: One is unknown, missing or of a wrong type.
    """
    from hookline._engine.validation import convert  # costs imports that only entries with arguments pay

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
        annotation = _annotation(factory, parameters.get(key))
        checked[key] = convert(value, annotation, partial(_error_below, source, f"{path}.{key}"))
    # Last: unknown and wrong arguments have been reported at their own line; what remains is a missing one.
    try:
        signature.bind(**checked)
    except TypeError as error:
        raise source.error(path, f"{error}. It is called as {signature}.") from None
    return checked


def _error_below(source: Source, path: str, parts: tuple[Any, ...], message: str) -> ConfigError:
    return source.error(join_path([path, *parts]), message)


def _annotation(factory: Callable[..., Any], parameter: inspect.Parameter | None) -> Any:
    """Return a parameter's type, or Any for one without, or that only type checkers can resolve."""
    if parameter is None or parameter.annotation is parameter.empty:
        return Any
    if not isinstance(parameter.annotation, str):
        return parameter.annotation
    function: Any = factory.__init__ if isinstance(factory, type) else factory  # type: ignore[misc]
    # One by one, not get_type_hints: an annotation for type checkers only must not cost the others their checks.
    try:
        return eval(parameter.annotation, getattr(function, "__globals__", {}))  # noqa: S307 - the class's own text
    except Exception:
        return Any
