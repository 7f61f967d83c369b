"""Sorts the arguments of `log` into plain values for the row, values on a device, and media.

A nested dict is flattened with dots: ``{"a": {"b": 1}}`` is ``a.b``, as W&B shows it.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from hookline._engine.metrics import PLAIN, MediaValue, is_on_device, size_of
from hookline.compat.wandb import data_types
from hookline.compat.wandb.plot import CustomChart
from hookline.compat.wandb.table import Table
from hookline.compat.wandb.terminal import termwarn
from hookline.compat.wandb.values import MOST_LISTED, WBValue, as_array, json_value

HISTOGRAM_BINS = 32
"""The bins of an array that is logged."""


class LoggedValues(NamedTuple):
    """The values of one call of `log`, by kind and by flat name.

    Attributes:
        plain: Values for the row.
        on_device: Those among them that are fetched later.
        media: Media, or lists of media.
    """

    plain: dict[str, Any]
    on_device: dict[str, Any]
    media: dict[str, Any]


class CapturedValue(NamedTuple):
    """A captured media value, and its entry in the summary."""

    media: list[Any]
    shown: Any


def logged_values(data: Mapping[str, Any]) -> LoggedValues:
    """Sort the values of a call.

    Raises:
        TypeError: A value can neither be recorded as JSON nor as media.
        ValueError: A data frame was logged without a table.
    """
    found = LoggedValues({}, {}, {})
    _sort("", data, found)
    return found


def _sort(prefix: str, data: Mapping[str, Any], found: LoggedValues) -> None:
    for key, value in data.items():
        name = f"{prefix}{key}"
        if type(value) in PLAIN:
            found.plain[name] = value
        elif isinstance(value, CustomChart):
            # wandb logs the chart's table; the chart is another view of it.
            found.media[name] = value
            found.media[value.table_name(name)] = value.table
        elif isinstance(value, WBValue | MediaValue):
            found.media[name] = value
        elif isinstance(value, Mapping):
            _sort(f"{name}.", value, found)
        elif isinstance(value, list | tuple) and any(isinstance(each, WBValue | MediaValue) for each in value):
            found.media[name] = list(value)
        elif is_on_device(value) and size_of(value) == 1:
            found.plain[name] = found.on_device[name] = value
        else:
            logged = _logged(name, value)
            (found.media if isinstance(logged, WBValue) else found.plain)[name] = logged


def _logged(name: str, value: Any) -> Any:
    if type(value).__module__.partition(".")[0] in ("pandas", "polars") and hasattr(value, "columns"):
        raise ValueError(
            "We do not support DataFrames in the Summary or History. "
            f"Try run.log({{'{name}': wandb.Table(dataframe=df)}})"
        )
    if data_types.is_figure(value):
        return data_types.Plotly.make_plot_media(value)
    array = as_array(value)
    if array is None:
        return json_value(value)
    if array.size > MOST_LISTED and array.dtype.kind in "biuf":
        return data_types.Histogram(array, num_bins=HISTOGRAM_BINS)
    return array.reshape(-1)[0].item() if array.size == 1 else array.tolist()


def capture(name: str, value: Any) -> CapturedValue:
    """Capture a media value, or a list of them, and return it with its entry in the summary.

    Raises:
        TypeError: A list mixes media and other values.
    """
    listed = value if isinstance(value, list) else [value]
    if not all(isinstance(each, WBValue | MediaValue) for each in listed):
        media = next(each for each in listed if isinstance(each, WBValue | MediaValue))
        raise TypeError(f"Object of type {type(media).__name__} is not JSON serializable")
    found: list[Any] = []
    for each in listed:
        native = each if isinstance(each, MediaValue) else _native(name, each)
        if native is not None:
            captured = native.capture(name)
            found += captured if isinstance(captured, list) else [captured]
    return CapturedValue(found, _shown(value))


def _native(name: str, value: WBValue) -> Any:
    """Return a value as hookline records it; None if nothing is recorded."""
    if isinstance(value, Table):
        return value.native(name)
    native = getattr(value, "native", None)
    if native is None:
        termwarn(f"Of a wandb.{type(value).__name__} nothing is recorded.", repeat=False)
        return None
    return native()


def _shown(value: Any) -> Any:
    """Return the summary's entry for media; None for a chart, whose table has one."""
    if isinstance(value, CustomChart):
        return None
    if isinstance(value, list):
        first = value[0]
        to_json = getattr(type(first), "seq_to_json", None)
        if to_json is not None and all(type(each) is type(first) for each in value):
            return to_json(value)
        kind = first._log_type.removesuffix("-file") if isinstance(first, WBValue) else first.type
        return {"_type": kind, "count": len(value)}
    return value.to_json() if isinstance(value, WBValue) else {"_type": getattr(value, "type", "media")}
