"""Converts values of `log` and the configuration to plain ones: numbers, texts, lists and dicts of these.

Both follow wandb: an array with one element is a number, one of up to 32 a list, and a larger one that is logged a
histogram. Bytes become text, sets lists, dates their ISO form. Values on a device are not waited for.
"""

import dataclasses
import datetime
import enum
import sys
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any, ClassVar

from hookline._engine.metrics import PLAIN, Deferred
from hookline._record.media_encoding import is_instance

MOST_LISTED = 32
"""An array of more elements is logged as a histogram."""
_MOST_DEEP = 50


class WBValue:
    """The base class of wandb's data types.

    Attributes:
        _log_type: The type's name in rows and summaries: ``image-file``, ``table-file``, ...
    """

    _log_type: ClassVar[str] = ""

    def to_json(self, run_or_artifact: Any = None) -> dict[str, Any]:
        """Return the value's entry in a row and in the summary.

        Args:
            run_or_artifact: Accepted for compatibility.
        """
        return {"_type": self._log_type}


def json_value(value: Any) -> Any:
    """Return a value that is not an array as JSON-compatible data.

    Raises:
        TypeError: It cannot be converted to JSON.
    """
    return _json_value(value, _MOST_DEEP)


def _json_value(value: Any, room: int) -> Any:
    if type(value) in PLAIN:
        return value
    if isinstance(value, bool | int | float | str):
        # A subclass, such as NumPy's float64 and enumerations with texts.
        return next(kind(value) for kind in (bool, int, float, str) if isinstance(value, kind))
    if room <= 0:
        raise ValueError("a logged value is nested too deeply")
    if isinstance(value, Mapping):
        return {str(key): _json_value(each, room - 1) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_json_value(each, room - 1) for each in value]
    array = as_array(value)
    if array is not None:
        return array.tolist()
    plain = _simple(value)
    if plain is None:
        raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")
    return plain


def _simple(value: Any) -> Any:
    """Return a value of a few well-known types as text; None for any other."""
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if isinstance(value, datetime.datetime | datetime.date):
        return value.isoformat()
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, complex):
        return f"{value.real:g}{value.imag:+g}j"
    if isinstance(value, Deferred):
        return value.get()
    return None


def plain_value(value: Any) -> Any:
    """Return a setting as JSON-compatible data; a value of another type becomes text."""
    if type(value) in PLAIN:
        return value
    if isinstance(value, Mapping):
        return {key: plain_value(each) for key, each in value.items()}
    array = as_array(value)
    if array is not None:
        if array.size > MOST_LISTED:
            return str(value)
        return array.reshape(-1)[0].item() if array.size == 1 else array.tolist()
    plain = _simple(value)
    return plain if plain is not None else _plain_object(value)


def _plain_object(value: Any) -> Any:
    if isinstance(value, slice):
        return {"slice_start": value.start, "slice_step": value.step, "slice_stop": value.stop}
    if callable(value):
        name = getattr(value, "__qualname__", None)
        return str(value) if name is None else f"{value.__module__}.{name}"
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, str):
        return [plain_value(each) for each in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plain_value(dataclasses.asdict(value))
    return value if type(value).__module__ == "builtins" else str(value)


def as_array(value: Any) -> Any:
    """Return an array, tensor or number of NumPy, torch, JAX or TensorFlow as a NumPy array; None for other values."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray | numpy.generic):
        return numpy.asarray(value)
    if is_instance(value, "torch", "Tensor"):
        tensor = value.detach().cpu().resolve_conj().resolve_neg()
        try:
            return tensor.numpy()
        except TypeError:  # bfloat16, float8
            return tensor.float().numpy()
    if is_instance(value, "jax", "Array") or is_instance(value, "tensorflow", "Tensor"):
        import numpy as np

        return np.asarray(value)
    return None
