"""`CheckedStruct`: settings whose types are checked when they are made in Python, not only when read from a file."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from hookline.core.errors import OptionError, closest, reworded
from hookline.core.values import whole


class _NamesChecked(msgspec.StructMeta):
    """Makes a setting that does not exist an error that suggests another."""

    if not TYPE_CHECKING:  # to whom a call is that of the struct's own constructor

        def __call__(self, *args: Any, **settings: Any) -> Any:
            for name in settings.keys() - set(self.__struct_fields__):
                raise OptionError(f"{self.__name__} has no {name!r}. {closest(name, self.__struct_fields__)}")
            return super().__call__(*args, **settings)


class CheckedStruct(msgspec.Struct, forbid_unknown_fields=True, metaclass=_NamesChecked):
    """The base of the settings; a field of a wrong type is an error that names it."""

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(type(self)).items():
            value = getattr(self, name)
            number = whole(value)  # msgspec does not know those of NumPy
            try:
                setattr(self, name, msgspec.convert(value if number is None else number, kind, strict=True))
            except msgspec.ValidationError as error:
                raise OptionError(f"{type(self).__name__}({name}={value!r}): {_said(value, kind, error)}") from None


def _said(value: Any, kind: Any, error: msgspec.ValidationError) -> str:
    """What is wrong with a value, or with what is inside it; where it is one of a few, which these are."""
    choices = [choice for each in (kind, *get_args(kind)) if get_origin(each) is Literal for choice in get_args(each)]
    if choices:
        return f"give one of {', '.join(map(repr, choices))}."
    from hookline.loops.config_struct import fault_in  # what reads files is only needed for its words

    inside = fault_in(value, kind) if isinstance(value, Mapping | list) else None
    return inside or f"{reworded(str(error))}."
