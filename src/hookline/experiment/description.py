"""What something is, in plain values that can be written down and compared later.

Settings are described by their values; functions and classes by their names; other objects, whose memory means
nothing to another process, by their kind.
"""

import functools
import hashlib
import sys
from collections.abc import Mapping
from datetime import date
from enum import Enum
from fractions import Fraction
from pathlib import Path
from typing import Any

from hookline.core.values import plain
from hookline.experiment.changes import fields_of


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
    if fields := fields_of(value):
        return describe(fields)
    return _named(value)


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


def differences(then: Any, now: Any, path: str = "") -> list[str]:
    """Where two descriptions differ, with both values.

    >>> differences({"lr": 0.1, "n": 1}, {"lr": 0.2, "n": 1})
    ['lr was 0.1, now it is 0.2']
    """
    if isinstance(then, dict) and isinstance(now, dict):
        inner = (
            (then.get(key), now.get(key), f"{path}.{key}" if path else key) for key in dict.fromkeys([*then, *now])
        )
        return [difference for old, new, where in inner for difference in differences(old, new, where)]
    return [] if then == now else [f"{path or 'it'} was {then!r:.80}, now it is {now!r:.80}"]
