"""Metrics: flat dicts of plain values from the arguments of `log()`, and values that are still on a device.

`collect` flattens what `log()` accepts. Values on a device are not waited for: if the caller can fetch them later, the
dict holds `Deferred` values, and a `MetricsRow` converts each to a number when it is read. `plain` and `find_metric`
convert and look up single values.
"""

import logging
import numbers
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, Self

from hookline._engine.errors import OptionError, closest

logger = logging.getLogger("hookline")

PLAIN = frozenset({type(None), bool, int, float, str})
"""The exact types of plain values: NumPy's float64 is a subclass of float that encoders reject."""


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
        # Whoever reads a metric did not cause the fault of its device: a logger must not fail for it.
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


def is_on_device(value: Any) -> bool:
    """Return whether reading a value waits for a device: a tensor not on the CPU, or a JAX array."""
    # CPU is the default: an object that does not know devices is in host memory.
    return not getattr(value, "is_cpu", True) or hasattr(value, "copy_to_host_async")


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
_NAME_TYPES = frozenset({str}).issuperset
_MOST_NAMES = 10_000
_names: set[str] = set()
_ARE_NAMES = _names.issuperset
"""Whether all names were checked before: a loop logs the same ones at each step, and this is faster than a check."""


class MetricsRow(dict[str, Any]):
    """Metrics whose values may still be on a device: only reading a value waits for it.

    It may grow during an iteration: otherwise a subscriber that iterates over the metrics of a step and logs something
    for each would raise.
    """

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
        super().update(values)

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


def collect(
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
    if defer_alike is not None and type(given) is dict and (_ARE_NAMES(given) or _check_names(given)):
        row = defer_alike(given)
        if row is not None:  # the usual case on a device
            return row if as_dict else MetricsRow(row)
    flat: dict[str, Any] = {}
    on_device: dict[str, Any] = {}
    # All values on a device are gathered, then deferred together: one transfer instead of one for each.
    _flatten(flat, "", given, None if defer is None else on_device)
    if defer is None or not on_device:
        return flat
    defer(on_device)
    flat.update(on_device)
    return MetricsRow(flat)


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


def _flatten(flat: dict[str, Any], prefix: str, values: Mapping[str, Any], on_device: dict[str, Any] | None) -> None:
    """Add values under their joined names; also to ``on_device``, unless it is None, those not to wait for."""
    for key, value in dict.items(values) if isinstance(values, MetricsRow) else values.items():
        if not isinstance(key, str) or not key:
            raise OptionError(f"log(): the name {key!r} is not a non-empty string.")
        name = prefix + key
        if type(value) in PLAIN:
            flat[name] = value
            if on_device:
                on_device.pop(name, None)  # a value on a device had the same name
        elif isinstance(value, Mapping):
            _flatten(flat, f"{name}/", value, on_device)
        elif on_device is not None and (type(value) is Deferred or (is_on_device(value) and size_of(value) == 1)):
            flat[name] = on_device[name] = value  # keeps its position among the others
        else:
            flat[name] = _scalar(name, value)


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
    raise OptionError(
        f"log(): {name!r} is a {type(value).__name__}; give a number, a string, a bool, "
        "an array or tensor with one element, or a dict of these."
    )
