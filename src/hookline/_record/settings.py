"""Converts the configuration of a run to plain values for ``run.json``, so that settings can be shown and compared.

`plain_settings` is for people. Objects that consist of settings (structs, dataclasses, namespaces of argparse,
instances of attrs and pydantic classes, OmegaConf configurations) become mappings; sinks become their specs, so their
secrets stay hidden. Paths become strings, enumeration members their text or name, functions and classes their names,
and other objects short texts without memory addresses. Large arrays and long lists (rows of a data set) become their
size.

`describe` is for comparing: every value has one description that is the same in every process, without settings that a
dataclass hides from its `repr`, such as tokens.
"""

import dataclasses
import functools
import hashlib
import math
import re
import sys
from collections.abc import Mapping
from datetime import date
from enum import Enum
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

from hookline._engine.errors import HooklineError
from hookline._engine.metrics import plain
from hookline._engine.moments import Callback
from hookline._record.sink import Sink, make_sink


def describe(value: Any) -> Any:
    """Convert a value to JSON, with the same result in every process.

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
    """Return the settings of a struct or a dataclass by name; of any other object none."""
    if isinstance(config, msgspec.Struct):
        return {name: getattr(config, name) for name in config.__struct_fields__}
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return {field.name: getattr(config, field.name) for field in dataclasses.fields(config) if field.init}
    return {}


def shown_fields(config: Any) -> dict[str, Any]:
    """Return the settings of an object that consists of settings, without those hidden with ``repr=False``.

    Such objects are structs, dataclasses, namespaces, and instances of attrs or pydantic classes. The latter two are
    recognized by attributes of their classes, so neither package is imported here.
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
    """Return whether a value is a `SimpleNamespace` or a namespace of argparse."""
    argparse = sys.modules.get("argparse")  # a Namespace can only exist if it was imported
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
    """Return the module of a function or class; a script has the same name when another process imports it."""
    name = getattr(value, "__module__", "") or ""
    if name not in ("__main__", "__mp_main__"):
        return name
    file = getattr(sys.modules.get(name), "__file__", None)
    return name if file is None else Path(file).stem


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()


_MAX_DEPTH = 50
_MAX_ITEMS = 100
_MAX_CHARACTERS = 100
_ADDRESS = re.compile(r"\b0x[0-9a-f]+", re.IGNORECASE)
_DESCRIBED = (Path, date, Fraction, Enum, functools.partial, bytes, Callback)
"""Types for which `describe` is better than `repr`."""


def plain_settings(config: Any, room: int = _MAX_DEPTH) -> Any:
    """Convert a configuration, or a value in it, to plain values.

    >>> plain_settings({"lr": 0.1, "make": dict, "stop": {"b", "a"}})
    {'lr': 0.1, 'make': 'builtins:dict', 'stop': ['a', 'b']}

    Args:
        room: How many levels of nesting are kept; deeper values are replaced by a note.
    """
    if isinstance(config, Enum):
        return config.value if isinstance(config.value, str) or isinstance(config, int | float) else config.name
    if config is None or isinstance(config, bool | int | float | str):
        return config
    if room <= 0:
        return "(nested too deeply)"
    if isinstance(config, Sink):
        return plain_settings(config.spec(), room)
    config = _resolved(config)
    if _is_mapping(config):
        return {str(key): plain_settings(config[key], room - 1) for key in config.keys()}  # noqa: SIM118
    if isinstance(config, list | tuple | set | frozenset):
        items = [plain_settings(item, room - 1) for item in config]
        return items if isinstance(config, list | tuple) else sorted(items, key=str)
    if callable(getattr(config, "tolist", None)):
        return _array(config)
    if not isinstance(config, Callback) and (fields := shown_fields(config)):
        return {name: _setting(name, value, room - 1) for name, value in fields.items()}
    return _text(config)


def is_open(config: Any) -> bool:
    """Return whether a configuration is only named settings: a mapping or a namespace, not an object of its own class.

    >>> is_open({"lr": 0.1}), is_open(None), is_open(Path("configs"))
    (True, True, False)
    """
    return config is None or _is_mapping(_resolved(config)) or is_namespace(config)


def settings(config: Any) -> dict[str, Any]:
    """Return the settings of a configuration by name, unconverted; one without names is called ``config``.

    >>> from types import SimpleNamespace
    >>> settings(SimpleNamespace(lr=0.1))
    {'lr': 0.1}
    """
    if config is None:
        return {}
    resolved = _resolved(config)
    if _is_mapping(resolved):
        return {key: _part(config, key, resolved[key]) for key in resolved.keys()}  # noqa: SIM118
    return shown_fields(config) or ({} if is_namespace(config) else {"config": config})


def _part(config: Any, key: Any, resolved: Any) -> Any:
    """Return a part of a configuration; of OmegaConf the part itself, which has attributes, not a plain dict."""
    try:
        return config[key] if isinstance(resolved, dict) else resolved
    except Exception:  # a value that is missing or cannot be resolved
        return resolved


def _is_mapping(value: Any) -> bool:
    """Return whether `dict` accepts a value as a mapping: not all are a `Mapping`, e.g. those of ml_collections."""
    return isinstance(value, Mapping) or (
        not isinstance(value, type) and hasattr(value, "keys") and hasattr(value, "__getitem__")
    )


def _resolved(config: Any) -> Any:
    """Convert an OmegaConf configuration to dicts and lists, unresolved if interpolations fail; others unchanged."""
    if not type(config).__module__.startswith("omegaconf."):
        return config
    convert = sys.modules["omegaconf"].OmegaConf.to_container
    try:
        return convert(config, resolve=True)
    except Exception:
        return convert(config, resolve=False)


def _setting(name: str, value: Any, room: int) -> Any:
    if isinstance(value, list | tuple | set | frozenset) and len(value) > _MAX_ITEMS:
        return f"{len(value)} items"
    if name == "sinks" and isinstance(value, list | tuple):
        return [plain_settings(_sink(each), room - 1) for each in value]
    return plain_settings(value, room)


def _sink(given: Any) -> Any:
    """Build the sink that a mapping describes, because it knows its secrets; any other value unchanged."""
    try:
        return make_sink(given) if isinstance(given, Mapping) else given
    except HooklineError:  # the sinks of another library
        return given


def _array(value: Any) -> Any:
    """Return an array or a tensor unchanged, a large one as its shape."""
    shape = tuple(getattr(value, "shape", ()))
    return value if math.prod(shape) <= _MAX_ITEMS else f"{type(value).__name__} of shape {shape}"


def _text(value: Any) -> Any:
    """Return an object's `repr` if it is short and the same in every process; otherwise its description."""
    if not isinstance(value, _DESCRIBED) and not hasattr(value, "__qualname__"):
        text = repr(value)
        if len(text) <= _MAX_CHARACTERS and text.isprintable() and not _ADDRESS.search(text):
            return text
    return describe(value)
