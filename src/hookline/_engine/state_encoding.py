"""Encodes states as JSON values and decodes them, preserving types; used by checkpoints and hosts.

JSON has dicts with string keys, lists, strings, numbers, booleans and null. Everything else becomes a dict with one
key, a tag: ``{"$tuple": [1, 2]}``. A type without a tag is refused with its path in the state, never changed silently.
Nothing is pickled, and decoding runs no code that the file names: an enum's class must have been imported already.
States saved before there were tags hold plain JSON, which decodes as itself.
"""

import base64
import io
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, time, timedelta, timezone
from enum import Enum
from typing import Any

from hookline._engine.errors import CheckpointError
from hookline._engine.metrics import PLAIN, Deferred, MetricsRow, plain

TENSOR = "$tensor"

_Path = tuple[Any, ...] | None  # (the path of the container, the text of the last part)
_FACTORIES: dict[str, Any] = {
    "bool": bool,
    "dict": dict,
    "float": float,
    "int": int,
    "list": list,
    "set": set,
    "str": str,
}
_SEQUENCES: dict[type, str] = {tuple: "$tuple", set: "$set", frozenset: "$frozenset"}
_MAPPINGS: dict[type, str] = {OrderedDict: "$OrderedDict", Counter: "$Counter"}


def encode(state: Any, tensor: Callable[[Any], Any] = lambda tensor: tensor) -> Any:
    """Encode a state as JSON values.

    Args:
        state: Plain values, containers of any depth, NumPy arrays and scalars, JAX arrays, torch tensors, paths, dates
            and times, bytes, complex numbers, enums.
        tensor: Returns the value that stands for a torch tensor; by default the tensor itself.

    Raises:
        CheckpointError: It holds another type; the message names the path.
    """
    try:
        return _Encoder(tensor).encode(state, None)
    # Instead of remembering every container on the way: ordinary states pay nothing for the rare one that is cyclic.
    except RecursionError:
        raise CheckpointError("it contains itself, or is nested too deeply") from None


def decode(value: Any, tensor: Callable[[Any], Any] = lambda tensor: tensor) -> Any:
    """Decode JSON values from `encode`.

    Args:
        tensor: Returns the torch tensor for the value that stands for it.
    """
    if isinstance(value, list):
        return [decode(item, tensor) for item in value]
    if not isinstance(value, dict):
        return value
    # Only a dict with one key can be a tag; the encoder wraps a user's dict that looks like one.
    if len(value) == 1:
        (tag, content), *_ = value.items()
        # Not decoded first: the content is the caller's own stand-in.
        if tag == TENSOR:
            return tensor(content)
        if tag in _DECODERS:
            return _DECODERS[tag](decode(content, tensor))
    return {key: decode(item, tensor) for key, item in value.items()}


class _Encoder:
    def __init__(self, tensor: Callable[[Any], Any]) -> None:
        self._tensor = tensor
        # Not imported: if nobody has imported torch, no value can be a tensor.
        self._torch, self._numpy = sys.modules.get("torch"), sys.modules.get("numpy")

    def encode(self, value: Any, path: _Path) -> Any:
        # Exact types nearly everywhere: a subclass would come back as its base, which is a silent change.
        kind = type(value)
        if kind in PLAIN:
            return value
        if kind is MetricsRow or kind is Deferred:  # hookline's stand-ins for a dict and a number
            return plain(value)
        if kind is list or kind is deque or kind in _SEQUENCES:
            return self._sequence(value, path)
        if isinstance(value, dict):
            return self._mapping(value, path)
        if self._torch is not None and isinstance(value, self._torch.Tensor):
            return self._tensor(value.detach())
        encoded = self._array(value)
        if encoded is None:
            encoded = self._other(value, path)
        if encoded is None:
            raise _refused(value, path)
        return encoded

    def _sequence(self, value: Any, path: _Path) -> Any:
        # The order of a set differs between processes, and equal states must encode to equal text.
        items: Iterable[Any] = sorted(value, key=repr) if isinstance(value, set | frozenset) else value
        encoded = [self.encode(item, (path, f"[{index}]")) for index, item in enumerate(items)]
        if type(value) is list:
            return encoded
        if type(value) is deque:
            return {"$deque": [encoded, value.maxlen]}
        return {_SEQUENCES[type(value)]: encoded}

    def _mapping(self, value: dict[Any, Any], path: _Path) -> Any:
        kind = type(value)
        pairs = [(key, self.encode(item, (path, f".{key}"))) for key, item in value.items()]
        if kind is dict and all(type(key) is str for key in value) and not _looks_like_a_tag(value):
            return dict(pairs)
        encoded = [[self.encode(key, (path, f".{key}")), item] for key, item in pairs]
        if kind is dict:
            return {"$dict": encoded}
        if kind in _MAPPINGS:
            return {_MAPPINGS[kind]: encoded}
        if isinstance(value, defaultdict) and kind is defaultdict:
            factory = value.default_factory
            name = None if factory is None else getattr(factory, "__name__", "")
            # By identity: a function of the user's that happens to be called `list` is refused.
            if name is None or _FACTORIES.get(name) is factory:
                return {"$defaultdict": [name, encoded]}
        raise _refused(value, path)

    def _array(self, value: Any) -> Any:
        numpy = self._numpy
        if numpy is None:
            return None
        if type(value) is numpy.ndarray:
            return _tagged("$ndarray", _npy(numpy, value))
        if isinstance(value, numpy.generic):
            number = value.item()
            # Some types, such as long double, have no Python number that holds them; they go through the array format.
            if type(number) in (bool, int, float) and value.dtype.kind in "biuf":
                return {"$scalar": [value.dtype.str, number]}
            return _tagged("$scalar_array", _npy(numpy, numpy.asarray(value)))
        if "jax" in sys.modules and isinstance(value, sys.modules["jax"].Array):
            return _tagged("$jax", _npy(numpy, numpy.asarray(value)))
        return None

    def _other(self, value: Any, path: _Path) -> Any:
        kind = type(value)
        if kind is bytes:
            return {"$bytes": base64.b64encode(value).decode()}
        if kind is complex:
            return {"$complex": [value.real, value.imag]}
        if kind is datetime or kind is time:
            zone = _zone(value.tzinfo)
            # A zone that has neither an offset nor a name cannot be rebuilt; dropping it would shift the time.
            if zone is None and value.tzinfo is not None:
                return None
            # isoformat() leaves out `fold`, which distinguishes the two equal hours of a clock change.
            return {f"${kind.__name__}": [value.replace(tzinfo=None).isoformat(), zone, value.fold]}
        if kind is date:
            return {"$date": value.isoformat()}
        if kind is timedelta:
            return {"$timedelta": [value.days, value.seconds, value.microseconds]}
        if kind.__module__.partition(".")[0] == "pathlib":  # by name: importing pathlib costs time
            # A pure path may be of another system; decoded as a Path of this one it would be changed.
            return {"$path": str(value)} if hasattr(value, "exists") else None
        if isinstance(value, Enum):
            return {"$enum": [kind.__module__, kind.__qualname__, self.encode(value.value, (path, ".value"))]}
        if self._torch is not None and kind is self._torch.Size:
            return {"$torch.Size": list(value)}
        return None


def _looks_like_a_tag(value: dict[Any, Any]) -> bool:
    return len(value) == 1 and next(iter(value)).startswith("$")


def _tagged(tag: str, content: Any) -> Any:
    return None if content is None else {tag: content}


def _npy(numpy: Any, array: Any) -> str | None:
    """Encode an array in NumPy's own format as text; None if the format cannot preserve its type."""
    # Objects would be pickled. Types of other packages, such as bfloat16, are stored as bytes without their name.
    if array.dtype.hasobject or (array.dtype.kind == "V" and array.dtype.names is None):
        return None
    file = io.BytesIO()
    numpy.save(file, array, allow_pickle=False)
    return base64.b64encode(file.getvalue()).decode()


def _from_npy(text: str) -> Any:
    import numpy

    return numpy.load(io.BytesIO(base64.b64decode(text)), allow_pickle=False)


def _scalar(content: list[Any]) -> Any:
    import numpy

    return numpy.dtype(content[0]).type(content[1])


def _jax_array(text: str) -> Any:
    import jax.numpy

    return jax.numpy.asarray(_from_npy(text))


def _zone(zone: Any) -> Any:
    """Return the offset or the name of a time zone; None for another kind of zone."""
    if type(zone) is timezone:
        return zone.utcoffset(None).total_seconds()
    return getattr(zone, "key", None)


def _with_zone(kind: Any) -> Callable[[list[Any]], Any]:
    def restore(content: list[Any]) -> Any:
        text, zone, fold = content
        if isinstance(zone, str):
            import zoneinfo

            zone = zoneinfo.ZoneInfo(zone)
        elif zone is not None:
            zone = UTC if zone == 0 else timezone(timedelta(seconds=zone))
        return kind.fromisoformat(text).replace(tzinfo=zone, fold=fold)

    return restore


def _path(text: str) -> Any:
    from pathlib import Path

    return Path(text)


def _torch_size(content: list[int]) -> Any:
    import torch

    return torch.Size(content)


def _enum(content: list[Any]) -> Any:
    """Return a member of an enum. Its module is not imported: a file must not choose what code runs."""
    module, name, value = content
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        # Through __dict__, because getattr may run code: a module's __getattr__, a descriptor.
        found = found.__dict__.get(part) if hasattr(found, "__dict__") else None
    if not (isinstance(found, type) and issubclass(found, Enum)):
        raise CheckpointError(f"The state holds a member of the enum {module}.{name}: import it before resuming.")
    return found(value)


def _refused(value: Any, path: _Path) -> CheckpointError:
    parts: list[str] = []
    while path is not None:
        path, part = path
        parts.append(part)
    place = "".join(reversed(parts)).removeprefix(".")
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    shown = repr(value)
    shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
    return CheckpointError(
        f"{repr(place) if place else 'it'} is {shown} ({kind}), which a checkpoint cannot hold with its type. "
        "Save its parts instead: numbers, text, containers, arrays or tensors."
    )


_DECODERS: dict[str, Callable[[Any], Any]] = {
    "$tuple": tuple,
    "$set": set,
    "$frozenset": frozenset,
    "$deque": lambda content: deque(content[0], content[1]),
    "$dict": dict,
    "$OrderedDict": OrderedDict,
    "$Counter": lambda content: Counter(dict(content)),
    "$defaultdict": lambda content: defaultdict(content[0] and _FACTORIES[content[0]], content[1]),
    "$ndarray": _from_npy,
    "$scalar": _scalar,
    "$scalar_array": lambda content: _from_npy(content)[()],
    "$jax": _jax_array,
    "$bytes": base64.b64decode,
    "$complex": lambda content: complex(*content),
    "$datetime": _with_zone(datetime),
    "$time": _with_zone(time),
    "$date": date.fromisoformat,
    "$timedelta": lambda content: timedelta(*content),
    "$path": _path,
    "$enum": _enum,
    "$torch.Size": _torch_size,
}
