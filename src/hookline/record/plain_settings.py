"""The configuration of a run in plain values, for ``run.json``: its settings can be shown and compared one by one.

Structs and data classes become mappings of their settings, sinks what they write down of themselves, so that secrets
which these hide stay hidden. Objects become short texts without addresses in memory. Of large arrays, and of long
lists that are a setting, such as the rows of a data set, only the size is written. Mappings and texts stay as they
were given.
"""

import functools
import math
import re
from collections.abc import Mapping
from datetime import date
from enum import Enum
from fractions import Fraction
from pathlib import Path
from typing import Any

from hookline.core.callback import Callback
from hookline.core.errors import HooklineError
from hookline.record.description import describe, shown_fields
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
    if config is None or isinstance(config, bool | int | float | str):
        return config
    if room <= 0:
        return "(nested too deeply)"
    if isinstance(config, Sink):
        return plain_settings(config.spec(), room)
    if isinstance(config, Mapping):
        return {str(key): plain_settings(item, room - 1) for key, item in config.items()}
    if isinstance(config, set | frozenset):
        return sorted((plain_settings(item, room - 1) for item in config), key=str)
    if isinstance(config, list | tuple):
        return [plain_settings(item, room - 1) for item in config]
    if callable(getattr(config, "tolist", None)):
        return _array(config)
    if not isinstance(config, Callback) and (fields := shown_fields(config)):
        return {name: _setting(name, value, room - 1) for name, value in fields.items()}
    return _text(config)


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
