"""What `log()` accepts, made into one flat dict of plain values."""

from collections.abc import Iterator, Mapping
from typing import Any

from hookline.core.errors import OptionError
from hookline.core.values import PLAIN, plain


class MetricsRow(dict[str, Any]):
    """The metrics of a step in progress: a dict that may grow while somebody iterates over it.

    A subscriber that goes through the metrics and logs something for each would otherwise change
    the dict under its own feet.
    """

    def __iter__(self) -> Iterator[str]:
        return iter(list(super().__iter__()))

    def keys(self) -> Any:
        """The names as they are now."""
        return dict.fromkeys(super().keys()).keys()

    def values(self) -> Any:
        """The values as they are now."""
        return list(super().values())

    def items(self) -> Any:
        """The names and values as they are now."""
        return dict(super().items()).items()


def collect(args: tuple[Any, ...], values: Mapping[str, Any]) -> dict[str, Any]:
    """The metrics in ``log(name, value)``, ``log({...})`` or ``log(name=value)``.

    >>> collect(({"loss": 0.5, "grad": {"norm": 1.0}},), {})
    {'loss': 0.5, 'grad/norm': 1.0}
    """
    given = {**_positional(args), **values} if args else dict(values)
    for key, value in given.items():
        if type(value) not in PLAIN or type(key) is not str or not key:
            break
    else:
        return given  # the usual case, without a second look at anything
    flat: dict[str, Any] = {}
    _flatten(flat, "", given)
    return flat


def _positional(args: tuple[Any, ...]) -> Mapping[str, Any]:
    match args:
        case ():
            return {}
        case (Mapping() as values,):
            return values
        case (str() as name, value):
            return {name: value}
    raise OptionError(f"log{args!r}: give log(name, value), log({{name: value}}) or log(name=value).")


def _flatten(flat: dict[str, Any], prefix: str, values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        if not isinstance(key, str) or not key:
            raise OptionError(f"log(): the name {key!r} is not a non-empty string.")
        name = prefix + key
        if isinstance(value, Mapping):
            _flatten(flat, f"{name}/", value)
        else:
            flat[name] = _scalar(name, value)


def _scalar(name: str, value: Any) -> Any:
    scalar = plain(value)
    if scalar is None or isinstance(scalar, bool | int | float | str):
        return scalar
    raise OptionError(
        f"log(): {name!r} is a {type(value).__name__}; give a number, a string, a bool, "
        "an array or tensor with one element, or a dict of these."
    )
