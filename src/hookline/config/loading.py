"""Builds what a file or values describe: typed structs, and collections of callbacks or hooks.

A key that a struct does not have is an error, except under a field typed as a dict or as anything.

Callbacks and hooks come from a file, a dict or a list:

    callbacks:
      - progress_bar
      - early_stopping: {monitor: val/loss, patience: 5}
      - use: my_package.hooks:GradientAlarm
        with: {threshold: 0.9}
        every: 25
        after: [early_stopping]

Every entry is checked before the first one is built. `hookline._engine.factories` describes the forms of an entry.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, get_type_hints

import msgspec

from hookline._engine.collection import CallbackCollection
from hookline._engine.defaults import resolved
from hookline._engine.errors import ConfigError, HooklineError, OptionError, closest
from hookline._engine.factories import Entries, Source, join_path, plan_subscriber
from hookline._engine.failures import Policy
from hookline._engine.hook_manager import HookManager
from hookline._engine.registry import REGISTRY
from hookline._engine.validation import Parts, convert, describe, known_as
from hookline.config.sources import read_config_source, read_source, with_overrides

T = TypeVar("T")

LISTS_OF_ENTRIES = ("callbacks", "sinks")
"""Lists whose entries are built when training is set up, because a module may register names until then."""


def load_config(path: str | Path, kind: type[T], arguments: Sequence[str] = ()) -> T:
    """Load a file, with the overrides of a command line, as a struct.

    Raises:
        ConfigError: The file cannot be read, or something in it does not fit.
    """
    source = with_overrides(read_config_source(path), arguments)
    return to_struct(_with_positions(source.data, (), source), kind, source=source)


def to_struct(values: Mapping[str, Any], kind: type[T], *, source: Source | str | Path) -> T:
    """Convert values to a struct.

    Args:
        source: The origin of the values, or the name of their file, for errors.
    """
    origin = source if isinstance(source, Source) else Source(values, str(source))
    converted: T = convert(values, kind, lambda parts, message: origin.error(join_path(parts), message))
    return converted


def _with_positions(value: Any, parts: Parts, source: Source) -> Any:
    """Replace lists of entries by `Entries`, so that errors about them can still point into the file."""
    if isinstance(value, Mapping):
        return {key: _with_positions(item, (*parts, key), source) for key, item in value.items()}
    if isinstance(value, list) and parts[-1] in LISTS_OF_ENTRIES:
        return Entries(value, source, join_path(parts))
    return value


class _NamesChecked(msgspec.StructMeta):
    """Raises an error that suggests another name for an argument that does not exist."""

    if not TYPE_CHECKING:  # type checkers see the struct's own constructor

        def __call__(self, *args: Any, **settings: Any) -> Any:
            for name in settings.keys() - set(self.__struct_fields__):
                raise OptionError(f"{self.__name__} has no {name!r}. {known_as(name, self, self.__struct_fields__)}")
            return super().__call__(*args, **settings)


class CheckedStruct(msgspec.Struct, forbid_unknown_fields=True, metaclass=_NamesChecked):
    """Settings whose types are checked when they are made in Python too, not only when read from a file."""

    renamed: ClassVar[Mapping[str, str]] = {}
    """What earlier names of settings, and names in other libraries, are called here."""

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for name in self.__struct_fields__:
            value, kind = resolved(getattr(self, name)), hints[name]

            def error(
                parts: Parts, message: str, name: str = name, value: Any = value, kind: Any = kind
            ) -> OptionError:
                problem = f"{join_path(parts)}: {message}" if parts else f"give {describe(kind)}."
                return OptionError(f"{type(self).__name__}({name}={value!r}): {problem}")

            setattr(self, name, convert(value, kind, error))


def load_callbacks(source: Any, *, strict: bool = False, policy: Policy | None = None) -> CallbackCollection:
    """Build the collection that a YAML, TOML or JSON file, a dict or a list describes."""
    collection = CallbackCollection(strict=strict, policy=policy)
    _add_all(source, collection.add_all)
    return collection


def load_hooks(source: Any, *, strict: bool = False, policy: Policy | None = None) -> HookManager:
    """Build the manager of the hooks that a YAML, TOML or JSON file, a dict or a list describes."""
    manager = HookManager(strict=strict, policy=policy)
    _add_all(source, manager.register_hooks)
    return manager


def _add_all(given: Any, add: Callable[[list[tuple[Any, Mapping[str, Any]]]], None]) -> None:
    if isinstance(given, str) and given in REGISTRY.names() and not Path(given).exists():
        raise ConfigError(f"{given!r} is the name of one callback, not a file: give a list of them, [{given!r}].")
    source = read_source(given)
    key, entries = _list_in(source)
    plans = [plan_subscriber(entry, source, f"{key}[{index}]") for index, entry in enumerate(entries)]
    subscribers = [(plan.build(), plan.options) for plan in plans]
    try:
        add(subscribers)
    except HooklineError as error:  # about how they go together, such as a cycle of before and after
        if source.file and not isinstance(error, ConfigError):
            raise ConfigError(f"{source.file}: {error}") from error
        raise


def _list_in(source: Source) -> tuple[str, list[Any]]:
    """Return the list of entries and its key."""
    key, entries = "callbacks", source.data
    if isinstance(source.data, Mapping):
        if one := next((key for key in source.data if key == "use" or key in REGISTRY.names()), None):
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
