"""Converts arguments of TensorBoard's API: names, numbers, images, distributions, and settings in texts."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from hookline._engine.errors import OptionError
from hookline._engine.metrics import is_on_device
from hookline._record.media import Facts, Histogram, Image, Media
from hookline._record.media_encoding import numpy

GRID_COLUMNS = 8
"""How many images of a batch are shown in a row, as in TensorBoard."""


def joined_name(folder: str, tag: str) -> str:
    """Return the name of a tag that was written to a folder below the directory of its run.

    ``add_scalars`` writes each of its values to a folder of its own, whose name is made of both names.

    >>> joined_name("", "loss"), joined_name("val", "loss")
    ('loss', 'val/loss')
    >>> joined_name("loss_train", "loss"), joined_name("loss/train", "loss")  # torch's add_scalars, and tensorboardX's
    ('loss/train', 'loss/train')
    """
    above, _, last = folder.rpartition("/")
    joined = f"{tag.replace('/', '_')}_"
    if last.startswith(joined) and last != joined:
        return "/".join(filter(None, (above, tag, last.removeprefix(joined))))
    if f"/{tag}/" in f"/{folder}":
        return folder
    return f"{folder}/{tag}" if folder else tag


def settings_in(tag: str, text: str) -> dict[str, str]:
    r"""Return the settings in a text called ``hyperparameters`` with a table of them, as CleanRL writes it.

    >>> settings_in("hyperparameters", "|param|value|\n|-|-|\n|lr|0.1|")
    {'lr': '0.1'}
    """
    head, _, body = text.partition("\n|-|-|\n")
    if tag != "hyperparameters" or head.strip() != "|param|value|":
        return {}
    rows = (line.strip().strip("|").partition("|") for line in body.splitlines())
    return {name.strip(): value.strip() for name, separator, value in rows if separator and name.strip()}


def number_of(tag: str, value: Any) -> Any:
    """Return a value as a number; a value on a device stays there.

    Raises:
        OptionError: It is not a single number.
    """
    kind = type(value)
    if kind is float or kind is int:
        return value
    if is_on_device(value):
        return value
    try:
        return float(value.item() if callable(getattr(value, "item", None)) else value)
    except (TypeError, ValueError, RuntimeError):
        shape = getattr(value, "shape", None)
        what = repr(value)[:80] if shape is None else f"a {kind.__name__} of shape {tuple(shape)}"
        raise OptionError(f"add_scalar({tag!r:.200}, {what}): give a number, or an array or tensor with one.") from None


def array_of_numbers(values: Any) -> Any:
    """Return an array or tensor as a NumPy array; waits for its device."""
    if callable(getattr(values, "detach", None)):
        values = values.detach().cpu()
        values = values.float() if "float16" in str(values.dtype) else values
    return numpy().asarray(values)


def arranged(value: Any, dimensions: str, wanted: str) -> Any:
    """Return a view of an array or tensor with its dimensions in another order.

    Raises:
        OptionError: They do not name the dimensions of the value.
    """
    given = dimensions.upper()
    shape = getattr(value, "shape", None)
    if shape is None:
        value = numpy().asarray(value)
        shape = value.shape
    if len(given) != len(shape) or sorted(given) != sorted(wanted):
        raise OptionError(
            f"dataformats={dimensions!r} for shape {tuple(shape)}: name each dimension once, such as {wanted!r}."
        )
    order = [given.index(dimension) for dimension in wanted]
    return value.permute(*order) if callable(getattr(value, "permute", None)) else value.transpose(order)


def image_of(value: Any, dataformats: str, *, boxes: Sequence[Mapping[str, Any]] = ()) -> Image:
    """Return an image, or a batch of images as a grid, from an array whose dimensions are named."""
    pixels = arranged(value, dataformats, {2: "HW", 3: "HWC"}.get(len(dataformats), "NHWC"))
    options: dict[str, Any] = {} if len(dataformats) == 2 else {"channels": "last"}
    return Image(pixels, range=range_of(pixels), columns=GRID_COLUMNS, boxes=boxes, **options)


def range_of(value: Any) -> tuple[float, float] | None:
    """Return the values of black and white: as in TensorBoard, 0 and 255 for unsigned bytes, otherwise 0 and 1."""
    kind = str(value.dtype)
    return None if kind.endswith(("uint8", "bool")) else (0.0, 1.0)


def pr_counts(labels: Any, predictions: Any, thresholds: int, weights: Any = None) -> Any:
    """Return the rows of a precision-recall curve, by TensorBoard's formula.

    The rows are true and false positives, true and false negatives, precision and recall, at so many thresholds from
    0 to 1.
    """
    np = numpy()
    is_true, scores = array_of_numbers(labels).reshape(-1), array_of_numbers(predictions).reshape(-1)
    if is_true.shape != scores.shape or not scores.size:
        raise OptionError(f"add_pr_curve(): {is_true.size} labels and {scores.size} predictions: give one for each.")
    weight = np.ones(scores.shape) if weights is None else array_of_numbers(weights) * np.ones(scores.shape)
    buckets = np.floor(scores * (thresholds - 1)).astype(np.int64)
    rows = []
    for of_class in (is_true.astype(np.float64), 1.0 - is_true.astype(np.float64)):
        counts, _ = np.histogram(buckets, bins=thresholds, range=(0, thresholds - 1), weights=of_class * weight)
        rows.append(np.cumsum(counts[::-1])[::-1])
    hits, misses = rows
    passed = hits[0] - hits
    precision, recall = hits / np.maximum(1e-7, hits + misses), hits / np.maximum(1e-7, hits + passed)
    return np.stack((hits, misses, misses[0] - misses, passed, precision, recall))


def pr_curve(rows: Any) -> Media:
    """Return a precision-recall curve from TensorBoard's rows of it; see `pr_counts`."""
    hits, misses, right, passed, precision, recall = (row.tolist() for row in rows)
    last = max(1, len(hits) - 1)
    # Thresholds rise, so the curve begins at the last one. One that no example reaches has no precision.
    kept = [index for index in reversed(range(len(hits))) if hits[index] + misses[index] > 0] or [0]
    x, y = [recall[index] for index in kept], [precision[index] for index in kept]
    area = sum((now - before) * height for before, now, height in zip([0.0, *x], x, y, strict=False))
    series = {
        "label": "1",
        "x": [0.0, *x],
        "y": [y[0], *y],
        "average_precision": area,
        "positives": hits[0] + passed[0],
        "negatives": misses[0] + right[0],
        "thresholds": [index / last for index in kept],
    }
    return Facts("plot", {"plot": "pr_curve", "series": [series]})


def bucket_histogram(low: float, high: float, limits: Any, counts: Any) -> Histogram:
    """Return a histogram from the right edges of its buckets, as TensorBoard converts it.

    Raises:
        ValueError: They do not fit together.
    """
    # The outermost edges are the extreme values.
    return histogram_of([float(low), *(float(limit) for limit in list(limits)[:-1]), float(high)], list(counts))


def histogram_of(edges: list[float], counts: list[float]) -> Histogram:
    """Return a histogram from the edges of its buckets, without the empty ones outside of the values.

    Raises:
        ValueError: They do not fit together.
    """
    low, high = edges[0], edges[-1]
    if not counts or len(edges) != len(counts) + 1 or not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError(f"{len(counts)} counts and {len(edges)} edges from {low} to {high} are no histogram")
    # Writers add empty buckets outside the values, up to the largest float.
    rising = list(itertools.accumulate((min(max(edge, low), high) for edge in edges), max))
    kept = [index for index, count in enumerate(counts) if count or rising[index] < rising[index + 1]] or [0]
    return Histogram(counts=[counts[index] for index in kept], edges=[rising[kept[0]], *(rising[i + 1] for i in kept)])
