"""Values of metrics: finding one by either spelling, and plain Python numbers from arrays and tensors."""

from collections.abc import Mapping
from typing import Any

PLAIN = frozenset({type(None), bool, int, float, str})
"""The types of plain values, exactly: NumPy's float64 is a float too, and no encoder's friend."""


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
    if callable(getattr(value, "item", None)) and getattr(value, "ndim", 0) == 0:
        return value.item()
    return value
