"""The configuration of a run in plain values, for ``run.json``: its settings can be shown and compared one by one.

Objects that consist of settings (structs, data classes, namespaces of argparse, instances of classes of attrs and
pydantic, configurations of OmegaConf) become mappings, sinks what they write down of themselves, so that secrets which
these hide stay hidden. Paths become texts, enumeration members their text or name, functions and classes their
names, and other objects short texts without addresses in memory. Of large arrays, and of long
lists that are a setting, such as the rows of a data set, only the size is written. Mappings and texts stay as they
were given.
"""

import functools
import math
import re
import sys
from collections.abc import Mapping
from datetime import date
from enum import Enum
from fractions import Fraction
from pathlib import Path
from typing import Any

from hookline.core.callback import Callback
from hookline.core.errors import HooklineError
from hookline.record.description import describe, is_namespace, shown_fields
from hookline.record.sink import Sink, make_sink

_DEEPEST = 50
_MOST_ITEMS = 100
_MOST_CHARACTERS = 100
_ADDRESS = re.compile(r"\b0x[0-9a-f]+", re.IGNORECASE)
_DESCRIBED = (Path, date, Fraction, Enum, functools.partial, bytes, Callback)
"""What has no `repr` that says it better."""


def plain_settings(config: Any, room: int = _DEEPEST) -> Any:
    """A configuration, or a value in it, in plain values.

    >>> plain_settings({"lr": 0.1, "make": dict, "stop": {"b", "a"}})
    {'lr': 0.1, 'make': 'builtins:dict', 'stop': ['a', 'b']}

    Args:
        room: How many levels there may be; what lies below them is replaced by a text that says so.
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
    """Whether a configuration is nothing but named settings: a mapping or a namespace, no object of a class of its own.

    >>> is_open({"lr": 0.1}), is_open(None), is_open(Path("configs"))
    (True, True, False)
    """
    return config is None or _is_mapping(_resolved(config)) or is_namespace(config)


def settings(config: Any) -> dict[str, Any]:
    """The settings of a configuration by their names, as they are; one that has no names is called ``config``.

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
    """A part of a configuration; of OmegaConf's the part itself, whose attributes people use, not a plain dict."""
    try:
        return config[key] if isinstance(resolved, dict) else resolved
    except Exception:  # of a value that is missing or cannot be resolved
        return resolved


def _is_mapping(value: Any) -> bool:
    """Whether something is a mapping to `dict`: those of ml_collections, for one, are no `Mapping`."""
    return isinstance(value, Mapping) or (
        not isinstance(value, type) and hasattr(value, "keys") and hasattr(value, "__getitem__")
    )


def _resolved(config: Any) -> Any:
    """A configuration of OmegaConf as dicts and lists, unresolved where its interpolations fail; others unchanged."""
    if not type(config).__module__.startswith("omegaconf."):
        return config
    convert = sys.modules["omegaconf"].OmegaConf.to_container
    try:
        return convert(config, resolve=True)
    except Exception:
        return convert(config, resolve=False)


def _setting(name: str, value: Any, room: int) -> Any:
    """One setting of a struct or a data class."""
    if isinstance(value, list | tuple | set | frozenset) and len(value) > _MOST_ITEMS:
        return f"{len(value)} items"
    if name == "sinks" and isinstance(value, list | tuple):
        return [plain_settings(_sink(each), room - 1) for each in value]
    return plain_settings(value, room)


def _sink(given: Any) -> Any:
    """The sink that a mapping means, which knows what of it must not be written down; anything else as it is."""
    try:
        return make_sink(given) if isinstance(given, Mapping) else given
    except HooklineError:  # somebody else's sinks
        return given


def _array(value: Any) -> Any:
    """An array or a tensor as it is; a large one as its shape."""
    shape = tuple(getattr(value, "shape", ()))
    return value if math.prod(shape) <= _MOST_ITEMS else f"{type(value).__name__} of shape {shape}"


def _text(value: Any) -> Any:
    """What an object says of itself, where that is short and the same in every process; otherwise what it is."""
    if not isinstance(value, _DESCRIBED) and not hasattr(value, "__qualname__"):
        said = repr(value)
        if len(said) <= _MOST_CHARACTERS and said.isprintable() and not _ADDRESS.search(said):
            return said
    return describe(value)
