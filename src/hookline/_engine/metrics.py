"""Metrics: flat dicts of plain values from the arguments of `log()`, and values that are still on a device.

`collect` flattens what `log()` accepts. Values on a device are not waited for: if the caller can fetch them later, the
dict holds `Deferred` values, and a `MetricsRow` converts each to a number when it is read. `plain` and `find_metric`
convert and look up single values.

Values of NumPy, torch and JAX are recognized by their exact type once the program has imported the library; this
module imports none. Subclasses and everything else take the general path, which asks each value what it is.
"""

import contextlib
import functools
import logging
import numbers
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, Self

from hookline._engine.errors import OptionError, closest

logger = logging.getLogger("hookline")

PLAIN = frozenset({type(None), bool, int, float, str})
"""The exact types of plain values: NumPy's float64 is a subclass of float that encoders reject."""


EVAL_WORDS = ("eval", "evaluation", "val", "valid", "validation", "test")
"""Prefixes of metric names and directories that belong to evaluations."""
SPLIT_WORDS = frozenset({*EVAL_WORDS, "train", "training", "rollout"})
"""Names of directories that hold a part of a run."""
_EVAL = re.compile(rf"({'|'.join(EVAL_WORDS)})([_/.-]|$)", re.IGNORECASE)


class MediaValue:
    """A value of `log()` that is recorded beside the row of numbers: an image, a table, ..."""

    def capture(self, name: str) -> Any:
        """Copy mutable content, and return the values to record under a name. Never raises."""
        raise NotImplementedError


class CapturedMedia(MediaValue):
    """Media that were captured earlier than they are logged: those that a hook returned."""

    def __init__(self, captured: Any) -> None:
        self.captured = captured

    def capture(self, name: str) -> Any:
        """Return the captured values."""
        return self.captured


class Source(Protocol):
    """Provides numbers that are being copied from a device."""

    @property
    def arrives(self) -> bool:
        """Whether they become ready by themselves, or only when a reader waits for them."""

    def ready(self) -> bool:
        """Return whether `number` returns without waiting."""

    def number(self, index: int) -> Any:
        """Return one of the numbers, waiting for it if necessary."""


class Deferred:
    """A number that is being copied from a device."""

    __slots__ = ("index", "source")

    def __init__(self, source: Source, index: int = 0) -> None:
        self.source = source
        self.index = index

    def get(self) -> Any:
        """Return the number, waiting for it if necessary. If it cannot be fetched, warn and return None."""
        # The reader of a metric did not cause the fault of its device: a logger must not fail for it.
        try:
            return self.source.number(self.index)
        except Exception as error:
            logger.warning("A metric could not be fetched from its device and reads as None: %s", error)
            return None


def whole(value: Any) -> int | None:
    """Return ``value`` as an ``int`` if it is a whole number of any library, otherwise None.

    >>> whole(3), whole(True), whole(3.0)
    (3, None, None)
    """
    return int(value) if isinstance(value, numbers.Integral) and not isinstance(value, bool) else None


_TENSORS: set[type] = set()
"""Torch's own tensor types, whose values are on the CPU or on a device."""
_CONVERTERS: dict[type, Callable[[Any], Any]] = {}
"""Functions that convert NumPy values to plain ones, by exact type, with the result of ``item()``."""
_NO_CONTAINERS: set[type] = {Deferred}
"""Exact types that are neither mappings nor lists nor media: to check that takes longer than to read a tensor."""


def _add_numpy_types(numpy: Any) -> None:
    # float() and int() take a tenth of the time of item(). "efd" are the floats that a Python float holds exactly.
    _CONVERTERS.update((numpy.dtype(code).type, int) for code in numpy.typecodes["AllInteger"])
    _CONVERTERS.update((numpy.dtype(code).type, float) for code in "efd")
    _CONVERTERS.update({numpy.bool_: bool, numpy.ndarray: numpy.ndarray.item})
    _NO_CONTAINERS.update(_CONVERTERS)


def _add_torch_types(torch: Any) -> None:
    _TENSORS.update((torch.Tensor, torch.nn.Parameter))
    _NO_CONTAINERS.update(_TENSORS)


def _add_jax_types(_: Any) -> None:
    # `jax.Array` is abstract, and there is no public name for the type that its instances have.
    _NO_CONTAINERS.add(sys.modules["jax._src.array"].ArrayImpl)


_LIBRARIES = {"numpy": _add_numpy_types, "torch": _add_torch_types, "jax": _add_jax_types}
"""Libraries whose types are not known yet. None is imported here: that takes seconds."""


def _add_types() -> bool:
    """Add the types of libraries that were imported since the last call; returns whether there were any."""
    added = False
    for name in tuple(_LIBRARIES):  # a copy: another thread may do the same, which changes nothing
        if (library := sys.modules.get(name)) is not None:
            with contextlib.suppress(AttributeError, KeyError):  # still being imported: a later call adds them
                _LIBRARIES[name](library)
                del _LIBRARIES[name]
                added = True
    return added


def is_on_device(value: Any) -> bool:
    """Return whether reading a value waits for a device: a tensor not on the CPU, or a JAX array."""
    kind = type(value)
    if kind in _TENSORS:
        return not value.is_cpu
    # CPU is the default: an object that does not know devices is in host memory.
    return kind not in _CONVERTERS and (not getattr(value, "is_cpu", True) or hasattr(value, "copy_to_host_async"))


def axis_of(name: str) -> str:
    """Return the axis that a metric of another tracker belongs to, by its name.

    >>> [axis_of(name) for name in ("loss", "eval_loss", "val/acc", "valence")]
    ['train', 'eval', 'eval', 'train']
    """
    return "eval" if is_evaluation(name) else "train"


@functools.lru_cache(maxsize=1 << 16)
def is_evaluation(name: str) -> bool:
    """Return whether a name begins with one of the words for evaluations."""
    return _EVAL.match(name) is not None


def find_metric(metrics: Mapping[str, Any], name: str) -> Any:
    """Return the metric called ``name``, or with the other spelling of its first separator, or None.

    >>> find_metric({"val/loss": 0.5}, "val_loss")
    0.5
    """
    for spelling in (name, name.replace("_", "/", 1), name.replace("/", "_", 1)):
        if spelling in metrics:
            return metrics[spelling]
    return None


def plain(value: Any) -> Any:
    """Convert 0-d arrays and tensors, also inside mappings and sequences, to Python numbers."""
    # By exact type and first: nearly all values end here.
    if type(value) in PLAIN:
        return value
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Deferred):
        return value.get()
    if callable(getattr(value, "item", None)) and getattr(value, "ndim", 0) == 0:
        return value.item()
    return value


Defer = Callable[[dict[str, Any]], None]
"""Replaces the values of a dict that are on a device by `Deferred` ones."""
DeferAlike = Callable[[dict[str, Any]], dict[str, Any] | None]
"""Returns a row with `Deferred` values if all device values are scalars of one kind, otherwise None."""


_PLAIN_TYPES = PLAIN.issuperset
_NUMBER_TYPES = frozenset({bool, int, float}).issuperset
_NAME_TYPES = frozenset({str}).issuperset
_MOST_NAMES = 10_000
_names: set[str] = set()
_ARE_NAMES = _names.issuperset
"""Whether all names were checked before: a loop logs the same ones at each step, and this is faster than a check."""


class MetricsRow(dict[str, Any]):
    """Metrics whose values may still be on a device: only reading a value waits for it.

    It may grow during an iteration: otherwise a subscriber that iterates over the metrics of a step and logs something
    for each would raise.

    Attributes:
        media: Captured media by name, which are recorded with the row. They are not items of the dict: subscribers
            iterate over metrics and expect numbers.
    """

    media: dict[str, Any] | None = None

    def __getitem__(self, key: str) -> Any:
        value = super().__getitem__(key)
        # Kept after the first read: it is waited for once, and the device's copy can be released.
        if type(value) is Deferred:
            value = value.get()
            super().__setitem__(key, value)
        return value

    def __missing__(self, key: str) -> Any:
        raise KeyError(f"{key}: there is no such metric. {closest(str(key), map(str, dict.keys(self)))}")

    def __iter__(self) -> Iterator[str]:
        # A copy, so that the row may grow meanwhile. Overriding this also makes dict(row) read through __getitem__:
        # CPython copies a subclass directly, Deferred values included, only while it has dict's own iterator.
        return iter(list(super().__iter__()))

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a name, or the default."""
        return self[key] if key in self else default  # noqa: SIM401 - this defines get

    def keys(self) -> Any:
        """Return a snapshot of the names."""
        return dict.fromkeys(super().keys()).keys()

    def values(self) -> Any:
        """Return a snapshot of the values."""
        return [self[key] for key in self]

    def items(self) -> Any:
        """Return a snapshot of the names and values."""
        return {key: self[key] for key in self}.items()

    def pop(self, key: str, *default: Any) -> Any:
        """Remove a name and return its value."""
        return plain(super().pop(key, *default))

    def popitem(self) -> tuple[str, Any]:
        """Remove the last name and return it with its value."""
        key, value = super().popitem()
        return key, plain(value)

    def setdefault(self, key: str, default: Any = None) -> Any:
        """Return the value of a name; set it to the default if there is none."""
        super().setdefault(key, default)
        return self[key]

    def update(self, *others: Any, **values: Any) -> None:
        """Add names and values without waiting for any."""
        if not values and len(others) == 1 and type(others[0]) is dict:
            super().update(others[0])  # the usual case
            return
        for other in others:
            # Not its own items(), which waits for each value.
            super().update(dict.items(other) if isinstance(other, MetricsRow) else other)
            if isinstance(other, MetricsRow) and other.media:
                self.media = (self.media or {}) | other.media
        super().update(values)

    def take_media(self) -> dict[str, Any]:
        """Return the captured media, and forget them: they are recorded once."""
        media, self.media = self.media, None
        return media or {}

    def copy(self) -> "MetricsRow":
        """Copy names and values without waiting for any."""
        row = MetricsRow()
        row.update(self)
        return row

    def is_waiting(self) -> bool:
        """Return whether a value is still on a device."""
        return any(type(value) is Deferred for value in super().values())

    def __or__(self, other: Any) -> Any:
        # dict's own operator would hand out Deferred values in a plain dict, where nothing converts them.
        return dict(self) | dict(other)

    def __ror__(self, other: Any) -> Any:
        return dict(other) | dict(self)

    def __ior__(self, other: Any) -> Self:  # type: ignore[override]
        self.update(other)
        return self

    def __eq__(self, other: object) -> bool:
        return dict(self) == (dict(other) if isinstance(other, MetricsRow) else other)

    def __ne__(self, other: object) -> bool:
        return not self == other  # dict defines its own

    __hash__ = None

    def __repr__(self) -> str:
        return repr(dict(self))


class LatestMetrics(MetricsRow):
    """The latest value of each metric. It keeps no media, which would be held in memory."""

    @property
    def media(self) -> None:
        """Nothing."""

    @media.setter
    def media(self, media: Any) -> None:
        pass


_DICTS = (dict, MetricsRow)


def copied(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Copy metrics without waiting for any."""
    return metrics.copy() if isinstance(metrics, MetricsRow) else dict(metrics)


def readable(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics that can be read without waiting for a device."""
    if not isinstance(metrics, MetricsRow):
        return dict(metrics)
    # Through dict: the row's own items() would wait.
    there = [key for key, value in dict.items(metrics) if type(value) is not Deferred or value.source.ready()]
    return {key: metrics[key] for key in there}


def is_collected(values: dict[str, Any]) -> bool:
    """Return whether `collect` would return these values unchanged: plain ones under valid names."""
    return _PLAIN_TYPES(map(type, dict.values(values))) and (_ARE_NAMES(values) or _check_names(values))


def is_numbers(values: dict[str, Any]) -> bool:
    """Return whether these are plain numbers under valid names: no text, no None, nothing to convert."""
    return _NUMBER_TYPES(map(type, values.values())) and (_ARE_NAMES(values) or _check_names(values))


def collect(  # noqa: C901 - this runs at each log(), where a call costs more than a branch
    args: tuple[Any, ...],
    values: dict[str, Any],
    defer: Defer | None = None,
    defer_alike: DeferAlike | None = None,
    *,
    as_dict: bool = False,
) -> dict[str, Any]:
    """Collect the metrics of ``log(name, value)``, ``log({...})`` or ``log(name=value)`` in a flat dict.

    It may return the given dict itself: copy it to keep it.

    Args:
        defer: Fetches values from devices later; without it this function waits for them.
        defer_alike: Tried before ``defer``.
        as_dict: Return `Deferred` values in a plain dict, for callers that merge them into a `MetricsRow`.

    >>> collect(({"loss": 0.5, "grad": {"norm": 1.0}},), {})
    {'loss': 0.5, 'grad/norm': 1.0}
    """
    if not args:
        given = values
    elif len(args) == 1 and not values and type(args[0]) in _DICTS:
        given = args[0]
    elif len(args) == 2 and not values and type(args[0]) is str:
        given = {args[0]: args[1]}
    else:
        given = copied(_positional(args))
        given.update(values)
    # Two set operations in C instead of a loop over values: this runs at each log(). dict.values does not wait.
    if _PLAIN_TYPES(map(type, dict.values(given))) and (_ARE_NAMES(given) or _check_names(given)):
        return given  # the usual case
    if type(given) is dict and (_ARE_NAMES(given) or _check_names(given)):
        if defer_alike is not None:
            row = defer_alike(given)
            if row is not None:  # the usual case on a device
                return row if as_dict else MetricsRow(row)
        row = _converted(given)
        if row is not None:  # the usual case with tensors on the CPU and NumPy's numbers
            return row
    flat: dict[str, Any] = {}
    on_device: dict[str, Any] = {}
    media: dict[str, Any] = dict(given.media or {}) if isinstance(given, MetricsRow) else {}
    # All values on a device are gathered, then deferred together: one transfer instead of one for each.
    _flatten(flat, "", given, None if defer is None else on_device, media)
    if defer is not None and on_device:
        defer(on_device)
        flat.update(on_device)
    elif not media:
        return flat
    row = MetricsRow(flat)
    if media:
        row.media = media
    return row


def recordable(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that `collect` accepts, also inside mappings.

    >>> recordable({"a": 1, "b": [1, 2], "c": {"d": 2.0, "e": b"no"}})
    {'a': 1, 'c': {'d': 2.0}}
    """
    kept: dict[str, Any] = {}
    for key, value in dict.items(values) if isinstance(values, MetricsRow) else values.items():
        part = recordable(value) if isinstance(value, Mapping) else value
        try:
            collect(({key: part},), {}, lambda on_device: None)  # without waiting for a device
        except OptionError:
            continue
        if part is value or part:
            kept[key] = part
    return kept


def _positional(args: tuple[Any, ...]) -> Mapping[str, Any]:
    match args:
        case ():
            return {}
        case (Mapping() as values,):
            return values
        case (str() as name, value):
            return {name: value}
    raise OptionError(f"log{args!r}: give log(name, value), log({{name: value}}) or log(name=value).")


def _check_names(given: Mapping[Any, Any]) -> bool:
    """Whether all names are valid and need no conversion."""
    if not _NAME_TYPES(map(type, given)) or "" in given:
        return False
    if len(_names) > _MOST_NAMES:  # a program that generates names
        _names.clear()
    # The set is changed in place, never rebound: `_ARE_NAMES` is a method of this very set.
    _names.update(given)
    return True


def _converted(given: dict[str, Any]) -> dict[str, Any] | None:
    """Return a row with plain values, if all of them are of known types and in host memory; otherwise None."""
    row: dict[str, Any] = {}
    try:
        for name, value in given.items():
            kind = type(value)
            if kind in PLAIN:
                row[name] = value
            elif kind in _TENSORS:
                if not value.is_cpu:
                    return None
                row[name] = value.item()
            elif (convert := _CONVERTERS.get(kind)) is not None:
                row[name] = convert(value)
            else:  # a mapping, media, a subclass, or the first value of a library
                return _converted(given) if kind is not dict and _LIBRARIES and _add_types() else None
    except Exception:  # several elements: the general path names the value in its error
        return None
    # An array of complex numbers or of objects has items that cannot be recorded.
    return row if _PLAIN_TYPES(map(type, row.values())) else None


def _flatten(
    flat: dict[str, Any],
    prefix: str,
    values: Mapping[str, Any],
    on_device: dict[str, Any] | None,
    media: dict[str, Any],
) -> None:
    """Add values under their joined names: those not to wait for also to ``on_device``, unless it is None."""
    for key, value in dict.items(values) if isinstance(values, MetricsRow) else values.items():
        if not isinstance(key, str) or not key:
            raise OptionError(f"log(): the name {key!r} is not a non-empty string.")
        name = prefix + key
        kind = type(value)
        if kind in PLAIN:
            flat[name] = value
        elif kind not in _NO_CONTAINERS and isinstance(value, Mapping):
            _flatten(flat, f"{name}/", value, on_device, media)
            continue
        elif kind not in _NO_CONTAINERS and (captured := _captured(name, value)) is not None:
            media[name] = captured
            continue
        elif on_device is not None and (kind is Deferred or (is_on_device(value) and size_of(value) == 1)):
            flat[name] = on_device[name] = value  # keeps its position among the others
            continue
        else:
            flat[name] = _scalar(name, value)
        if on_device:
            on_device.pop(name, None)  # a value on a device had the same name


def _captured(name: str, value: Any) -> list[Any] | None:
    """Return what is recorded of media, or of a list of them; None for anything else."""
    if isinstance(value, MediaValue):
        return [value.capture(name)]
    if isinstance(value, list | tuple) and value and all(isinstance(each, MediaValue) for each in value):
        return [each.capture(name) for each in value]
    return None


def size_of(value: Any) -> Any:
    """Return the number of elements of an array or a tensor of any library."""
    count = getattr(value, "numel", None)
    return count() if callable(count) else getattr(value, "size", None)


def _scalar(name: str, value: Any) -> Any:
    if size_of(value) == 1 and callable(getattr(value, "item", None)):
        scalar = value.item()
    else:  # not plain() for a list: it would wait for the tensors inside, only to refuse the list
        scalar = value if isinstance(value, list | tuple) else plain(value)
    if scalar is None or isinstance(scalar, bool | int | float | str):
        return scalar
    kind = type(value).__name__
    article = "an" if kind[0] in "aeiouAEIOU" else "a"
    raise OptionError(
        f"log(): {name!r} is {article} {kind}; give a number, a string, a bool, "
        "an array or tensor with one element, a dict of these, or media such as hl.Image(...)."
    )
