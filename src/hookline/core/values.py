"""Values of metrics: finding one by either spelling, and plain Python numbers from arrays and tensors."""

import logging
import numbers
from collections.abc import Mapping
from typing import Any, Protocol

logger = logging.getLogger("hookline")

PLAIN = frozenset({type(None), bool, int, float, str})
"""The types of plain values, exactly: NumPy's float64 is a float too, and no encoder's friend."""


class Source(Protocol):
    """Where numbers come from that are still on their way."""

    @property
    def arrives(self) -> bool:
        """Whether they get ready by themselves, or only when somebody waits for them."""

    def ready(self) -> bool:
        """Whether `number` would not wait."""

    def number(self, index: int) -> Any:
        """One of them; it is waited for if need be."""


class Deferred:
    """A number that is still on its way from a device: one of those of a source."""

    __slots__ = ("index", "source")

    def __init__(self, source: Source, index: int = 0) -> None:
        self.source = source
        self.index = index

    def get(self) -> Any:
        """The number; it is waited for if need be. One that cannot be had is None, and said: training goes on."""
        try:
            return self.source.number(self.index)
        except Exception as error:
            logger.warning("A metric could not be fetched from its device and reads as None: %s", error)
            return None


def whole(value: Any) -> int | None:
    """``value`` as an ``int`` where it is a whole number of any library, and None where it is anything else.

    >>> whole(3), whole(True), whole(3.0)
    (3, None, None)
    """
    return int(value) if isinstance(value, numbers.Integral) and not isinstance(value, bool) else None


def is_on_device(value: Any) -> bool:
    """Whether reading a value would wait for a device: a tensor that is not the CPU's, or an array of JAX."""
    return not getattr(value, "is_cpu", True) or hasattr(value, "copy_to_host_async")


def find_metric(metrics: Mapping[str, Any], name: str) -> Any:
    """The metric called ``name``, or by the other spelling of its first separator, or None.

    >>> find_metric({"val/loss": 0.5}, "val_loss")
    0.5
    """
    for spelling in (name, name.replace("_", "/", 1), name.replace("/", "_", 1)):
        if spelling in metrics:
            return metrics[spelling]
    return None


def plain(value: Any) -> Any:
    """``value`` with 0-d arrays and tensors, also inside mappings and sequences, as Python numbers."""
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
