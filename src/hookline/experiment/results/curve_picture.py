"""The picture of an experiment's curves: the mean of each arm, with a band of one deviation on both sides.

The colours are those of Okabe and Ito, which people with any kind of colour vision tell apart; where there are more
arms than colours, lines are dashed. A curve with more points than the picture has room for is drawn as the means of
short stretches. No global state of matplotlib's is touched, so this works on any thread and
beside a notebook's own figures.
"""

import io
import math
import warnings
from collections.abc import Sequence
from importlib import import_module
from itertools import pairwise
from typing import Any

from hookline.core.errors import MissingExtraError
from hookline.experiment.results.curves import Curve

MOST_ARMS = 12
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8A7A00")
_NAME_LENGTH = 40
_MOST_POINTS = 500


def draw(curves: Sequence[Curve], *, title: str, metric: str) -> bytes:
    """The curves as a PNG.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    try:
        figure_module = import_module("matplotlib.figure")
        canvas_module = import_module("matplotlib.backends.backend_agg")
    except ImportError as error:
        raise MissingExtraError("A picture of an experiment's curves", "experiment") from error
    figure = figure_module.Figure(
        figsize=(8.0, 4.6 + 0.2 * len(curves) / _columns(curves)), dpi=150, layout="constrained"
    )
    canvas = canvas_module.FigureCanvasAgg(figure)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of letters that the font lacks and of numbers that no axis can hold
        _draw(figure.add_subplot(), curves, title, metric)
        _draw_legend(figure, curves)
        picture = io.BytesIO()
        canvas.print_png(picture, metadata={"Software": None})
    return picture.getvalue()


def _draw(axes: Any, curves: Sequence[Curve], title: str, metric: str) -> None:
    for index, curve in enumerate(curves):
        _draw_curve(axes, curve, _COLOURS[index % len(_COLOURS)], "-" if index < len(_COLOURS) else "--")
    axes.set_title(_literal(title), loc="left", fontsize=11)
    axes.set_xlabel("step")
    axes.set_ylabel(_literal(metric))
    axes.grid(visible=True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_legend(figure: Any, curves: Sequence[Curve]) -> None:
    """The names below the picture, where they hide no curve, in as many columns as they leave room for."""
    if curves:
        figure.legend(loc="outside lower center", frameon=False, fontsize=9, ncols=_columns(curves))


def _columns(curves: Sequence[Curve]) -> int:
    longest = max((len(curve.arm) for curve in curves), default=0)
    return max(1, min(len(curves), 4 if longest <= 14 else 2 if longest <= 32 else 1))


def _draw_curve(axes: Any, curve: Curve, colour: str, dashes: str) -> None:
    steps = _thinned(curve.steps)
    mean = _thinned([_drawable(value) for value in curve.mean])
    std = _thinned([_drawable(value or 0.0) for value in curve.std])
    marker = "o" if len(curve.steps) == 1 else None
    short = _shortened(curve.arm, _NAME_LENGTH)
    name = f"{short} (n={max(curve.n)})" if max(curve.n) > 1 else short
    axes.plot(steps, mean, dashes, color=colour, linewidth=1.6, marker=marker, label=_literal(name))
    low = [value - spread for value, spread in zip(mean, std, strict=True)]
    high = [value + spread for value, spread in zip(mean, std, strict=True)]
    axes.fill_between(steps, low, high, color=colour, alpha=0.18, linewidth=0)


def _thinned(values: Sequence[float]) -> list[float]:
    """The means of so many stretches of the values as a picture can show."""
    if len(values) <= _MOST_POINTS:
        return list(values)
    edges = [round(index * len(values) / _MOST_POINTS) for index in range(_MOST_POINTS + 1)]
    return [_mean_of_numbers(values[begin:end]) for begin, end in pairwise(edges)]


def _mean_of_numbers(values: Sequence[float]) -> float:
    numbers = [value for value in values if not math.isnan(value)]
    return math.fsum(numbers) / len(numbers) if numbers else math.nan


def _drawable(value: float) -> float:
    """The value, or a gap where an axis cannot hold it."""
    return value if abs(value) < 1e150 else math.nan


def _literal(text: str) -> str:
    """The text as it is: neither a formula, nor too long, nor left out of a legend as a private name is."""
    escaped = _shortened(text, 2 * _NAME_LENGTH).replace("$", r"\$")
    return f" {escaped}" if escaped.startswith("_") else escaped


def _shortened(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
