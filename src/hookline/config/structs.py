"""Typed settings: a file, or values, as a struct, and structs that check what they are given in Python.

A key that the struct does not have is an error, except under a field typed as a dict or as anything.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

import msgspec

from hookline._engine.errors import OptionError, closest
from hookline._engine.factories import Entries, Source, join_path
from hookline._engine.validation import Parts, convert, describe
from hookline.config.layers import with_overrides
from hookline.config.sources import read_config_source

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
                raise OptionError(f"{self.__name__} has no {name!r}. {closest(name, self.__struct_fields__)}")
            return super().__call__(*args, **settings)


class CheckedStruct(msgspec.Struct, forbid_unknown_fields=True, metaclass=_NamesChecked):
    """Settings whose types are checked when they are made in Python too, not only when read from a file."""

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(type(self)).items():
            value = getattr(self, name)

            def error(
                parts: Parts, message: str, name: str = name, value: Any = value, kind: Any = kind
            ) -> OptionError:
                problem = f"{join_path(parts)}: {message}" if parts else f"give {describe(kind)}."
                return OptionError(f"{type(self).__name__}({name}={value!r}): {problem}")

            setattr(self, name, convert(value, kind, error))
