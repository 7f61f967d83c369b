"""What something is, in plain values that can be written down and compared later.

Settings are described by their values, without those that a data class keeps out of its `repr`, such as tokens;
functions and classes by their names; other objects, whose memory means nothing to another process, by their kind.
"""

import dataclasses
import functools
import hashlib
import sys
from collections.abc import Mapping
from datetime import date
from enum import Enum
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

from hookline.core.values import plain


def describe(value: Any) -> Any:
    """A value as JSON can hold it, the same in every process.

    >>> describe({"lr": 0.1, "make": dict, "sizes": (1, 2)})
    {'lr': 0.1, 'make': 'builtins:dict', 'sizes': [1, 2]}
    """
    if value is None or (isinstance(value, bool | int | float | str) and not isinstance(value, Enum)):
        return value
    if isinstance(value, Path | date | Fraction):
        return str(value)
    if isinstance(value, Enum):
        return f"{_named(type(value))}.{value.name}"
    if isinstance(value, functools.partial):
        return {"partial": describe(value.func), "args": describe(value.args), "keywords": describe(value.keywords)}
    if isinstance(value, bytes):
        return f"bytes:{_digest(value)}"
    if isinstance(value, Mapping):
        return {str(key): describe(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [describe(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((describe(item) for item in value), key=str)
    if fields := shown_fields(value):
        return describe(fields)
    return _named(value)


def fields_of(config: Any) -> dict[str, Any]:
    """The settings of a struct or of a data class, by their names; of anything else none."""
    if isinstance(config, msgspec.Struct):
        return {name: getattr(config, name) for name in config.__struct_fields__}
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return {field.name: getattr(config, field.name) for field in dataclasses.fields(config) if field.init}
    return {}


def shown_fields(config: Any) -> dict[str, Any]:
    """The settings of an object that consists of settings, without those that its class hides with ``repr=False``.

    That is a struct, a data class, a namespace, or an instance of a class of attrs or pydantic. The latter two are
    recognised by attributes of their classes, so that neither package is imported here.
    """
    if isinstance(config, type):
        return {}
    kind = type(config)
    if is_namespace(config):
        return dict(vars(config))
    if hasattr(kind, "__attrs_attrs__"):
        hidden = {field.name for field in kind.__attrs_attrs__ if not field.repr}
        given = {field.name: getattr(config, field.name) for field in kind.__attrs_attrs__}
    elif isinstance(fields := getattr(kind, "model_fields", None), Mapping):
        hidden = {name for name, field in fields.items() if not getattr(field, "repr", True)}
        given = {name: getattr(config, name) for name in fields} | (getattr(config, "model_extra", None) or {})
    else:
        own = dataclasses.fields(config) if dataclasses.is_dataclass(config) else ()
        hidden = {field.name for field in own if not field.repr}
        given = fields_of(config)
    return {name: value for name, value in given.items() if name not in hidden}


def is_namespace(value: Any) -> bool:
    """Whether something is a `SimpleNamespace`, or a namespace of argparse."""
    argparse = sys.modules.get("argparse")  # a Namespace can only exist where it was imported
    return isinstance(value, SimpleNamespace) or (argparse is not None and isinstance(value, argparse.Namespace))


def _named(value: Any) -> Any:
    name = getattr(value, "__qualname__", None)
    if name is not None:
        return f"{_module(value)}:{name}"
    number = plain(value)
    if isinstance(number, bool | int | float | str) and hasattr(value, "item"):
        return number
    if type(value).__module__ == "numpy" and hasattr(value, "tobytes"):
        return f"array{value.shape}:{_digest(value.tobytes())}"
    return f"{type(value).__module__}:{type(value).__qualname__}"


def _module(value: Any) -> str:
    """The module that something is from; a script is the same one when it is imported, here or in another process."""
    name = getattr(value, "__module__", "") or ""
    if name not in ("__main__", "__mp_main__"):
        return name
    file = getattr(sys.modules.get(name), "__file__", None)
    return name if file is None else Path(file).stem


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()
