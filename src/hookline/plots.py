"""Ready-made plots as values of `log()`: confusion matrix, ROC and precision-recall curves, histograms over steps.

They are recorded as numbers and drawn by the page; sinks pass them on in the form that their destination knows::

    run.log(confusion=hl.plots.confusion_matrix(targets, predictions, labels=["cat", "dog"]))
    run.log(roc=hl.plots.roc(targets, scores))
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hookline._engine.errors import OptionError
from hookline._record.media import Captured, Encoded, Figure, Media
from hookline._record.media_encoding import Staged, has_nonfinite, numpy, stage
from hookline._record.reader import read
from hookline._record.records import Media as MediaRecord

__all__ = ["confusion_matrix", "histogram_over_steps", "pr_curve", "roc"]

CURVE_POINTS = 201
"""How many points of a curve are recorded, at most."""


class Plot(Media):
    """A plot that is computed off the training thread from targets and predictions.

    Args:
        kind: ``confusion_matrix``, ``roc`` or ``pr_curve``.
        targets: The true classes.
        predictions: The predicted classes, or scores.
        labels: The names of the classes.
        caption: Shown below it.
    """

    type = "plot"

    def __init__(
        self, kind: str, targets: Any, predictions: Any, labels: Sequence[str] | None, caption: str = ""
    ) -> None:
        super().__init__(caption=caption)
        self.kind, self.value, self.predictions, self.labels = kind, targets, predictions, labels

    def _capture(self, name: str) -> Captured:
        targets, predictions = stage(self.value), stage(self.predictions)
        if len(targets.shape) != 1 or not targets.shape[0]:
            raise OptionError("targets: give one class for each example")
        if predictions.shape[0] != targets.shape[0]:
            raise OptionError(f"{targets.shape[0]} targets and {predictions.shape[0]} predictions: give one for each")
        if len(predictions.shape) > (1 if self.kind == "confusion_matrix" else 2):
            raise OptionError(f"predictions have shape {predictions.shape}; give one for each example")
        labels = None if self.labels is None else [str(label) for label in self.labels]
        size = targets.nbytes + predictions.nbytes
        encode = partial(_encode_plot, self.kind, targets, predictions, labels)
        return Captured("plot", encode, size, caption=self.caption, shape=targets.shape)


def confusion_matrix(
    targets: Any, predictions: Any, *, labels: Sequence[str] | None = None, caption: str = ""
) -> Media:
    """Count how often each class was predicted for each true class.

    Args:
        targets: The true classes, as whole numbers from 0.
        predictions: The predicted classes.
        labels: The names of the classes.
        caption: Shown below it.
    """
    return Plot("confusion_matrix", targets, predictions, labels, caption)


def roc(targets: Any, scores: Any, *, labels: Sequence[str] | None = None, caption: str = "") -> Media:
    """Draw the true against the false positive rate, with the area under the curve.

    Args:
        targets: The true classes: 0 and 1, or any number of classes for scores of shape (examples, classes).
        scores: The score of class 1 for each example, or of each class.
        labels: The names of the classes, for scores of several.
        caption: Shown below it.
    """
    return Plot("roc", targets, scores, labels, caption)


def pr_curve(targets: Any, scores: Any, *, labels: Sequence[str] | None = None, caption: str = "") -> Media:
    """Draw precision against recall, with the average precision.

    Args:
        targets: The true classes, as for `roc`.
        scores: The scores, as for `roc`.
        labels: The names of the classes, for scores of several.
        caption: Shown below it.
    """
    return Plot("pr_curve", targets, scores, labels, caption)


def histogram_over_steps(run: str | Path | Any, name: str, *, axis: str = "train") -> Figure:
    """Draw the recorded histograms of one name over the steps, as a heat map of matplotlib.

    Args:
        run: A run, or a run's directory.
        name: The name under which `Histogram` values were logged.
        axis: Their axis.

    Raises:
        OptionError: The run has no such histograms.
    """
    import matplotlib.figure

    np = numpy()
    directory = getattr(run, "output_dir", None) or getattr(run, "directory", None) or run
    found = [
        record
        for record in read(directory)
        if isinstance(record, MediaRecord) and (record.type, record.name, record.axis) == ("histogram", name, axis)
    ]
    if not found:
        raise OptionError(f"{directory} has no histograms called {name!r} on the axis {axis!r}.")
    low, high = min(r.data["low"] for r in found), max(r.data["high"] for r in found)
    grid = np.linspace(low, high, 129)
    columns = []
    for record in found:
        edges = record.data.get("edges") or np.linspace(
            record.data["low"], record.data["high"], len(record.data["counts"]) + 1
        )
        # The share of values below each edge, so that histograms with different bins are comparable.
        below = np.concatenate([[0.0], np.cumsum(record.data["counts"])]) / max(1, record.data["count"])
        columns.append(np.diff(np.interp(grid, edges, below)))
    figure = matplotlib.figure.Figure(figsize=(6, 3))
    axes = figure.subplots()
    steps = [record.step for record in found]
    mesh = axes.pcolormesh(steps, (grid[:-1] + grid[1:]) / 2, np.array(columns).T, shading="nearest")
    figure.colorbar(mesh, label="share of values")
    axes.set_xlabel("step")
    axes.set_ylabel(name)
    return Figure(figure)


def _encode_plot(kind: str, targets: Staged, predictions: Staged, labels: list[str] | None) -> Encoded:
    np = numpy()
    true, predicted = targets.fetch(), predictions.fetch()
    if has_nonfinite(predicted) or has_nonfinite(true):
        raise OptionError("it holds NaN or infinite values")
    if true.dtype.kind == "f" and not np.array_equal(true, np.rint(true)):
        raise OptionError("targets: give classes as whole numbers")
    true = true.astype(np.int64)
    if true.min() < 0:
        raise OptionError("targets: classes are counted from 0")
    if kind == "confusion_matrix":
        return Encoded(None, "", {"plot": kind, **_confusion(true, predicted.astype(np.int64), labels)})
    if predicted.ndim == 1:
        if true.max() > 1:
            raise OptionError("scores of shape (examples,) need targets of 0 and 1")
        scores, numbers = predicted[:, None], [1]
    else:
        scores, numbers = predicted, list(range(predicted.shape[1]))
    curve = _roc_curve if kind == "roc" else _pr_curve
    named = labels or []
    series = []
    for column, number in enumerate(numbers):
        label = named[number] if number < len(named) else str(number)
        series.append({"label": label, **curve(true == number, scores[:, column])})
    return Encoded(None, "", {"plot": kind, "series": series})


def _confusion(true: Any, predicted: Any, labels: list[str] | None) -> dict[str, Any]:
    np = numpy()
    if predicted.min() < 0:
        raise OptionError("predictions: classes are counted from 0")
    size = max(int(true.max()), int(predicted.max())) + 1
    if labels is not None and len(labels) < size:
        raise OptionError(f"labels: {len(labels)} are given for {size} classes")
    size = len(labels) if labels is not None else size
    if size > 1000:
        raise OptionError(f"{size} classes: 1000 at most can be shown")
    counts = np.zeros((size, size), np.int64)
    np.add.at(counts, (true, predicted), 1)
    return {"labels": labels or [str(number) for number in range(size)], "counts": counts.tolist()}


def _ranked(is_true: Any, scores: Any) -> tuple[Any, Any, Any]:
    """Return how many true and false examples have at least each distinct score, from the highest, and the scores."""
    np = numpy()
    order = np.argsort(-scores, kind="stable")
    ranked, sorted_scores = is_true[order], scores[order]
    last = np.flatnonzero(np.append(np.diff(sorted_scores) != 0, True))
    hits = np.cumsum(ranked)[last]
    return hits, last + 1 - hits, sorted_scores[last]


def _roc_curve(is_true: Any, scores: Any) -> dict[str, Any]:
    np = numpy()
    hits, misses, _ = _ranked(is_true, scores)
    x, y = (np.append(0, part) / max(1, part[-1]) for part in (misses, hits))
    area = float(np.sum(np.diff(x) * (y[1:] + y[:-1]) / 2)) if is_true.any() and not is_true.all() else 0.0
    return {**_thinned(x, y), "area": area}


def _pr_curve(is_true: Any, scores: Any) -> dict[str, Any]:
    np = numpy()
    hits, misses, thresholds = _ranked(is_true, scores)
    recall, precision = hits / max(1, hits[-1]), hits / (hits + misses)
    average = float(np.sum(np.diff(np.append(0, recall)) * precision))
    x, y = np.append(0, recall), np.append(precision[:1], precision)
    # With these, TensorBoard's curve can be computed; the first point, after all scores, has no threshold.
    known = {"thresholds": [float(number) for number in thresholds[_kept(len(x))[1:] - 1]]}
    counts = {"positives": int(hits[-1]), "negatives": int(misses[-1])}
    return {**_thinned(x, y), "average_precision": average, **counts, **known}


def _thinned(x: Any, y: Any) -> dict[str, Any]:
    kept = _kept(len(x))
    return {"x": x[kept].tolist(), "y": y[kept].tolist()}


def _kept(count: int) -> Any:
    """Return the positions of the points of a curve that are recorded, with the first and the last."""
    np = numpy()
    return np.unique(np.linspace(0, count - 1, min(count, CURVE_POINTS)).round().astype(np.int64))
