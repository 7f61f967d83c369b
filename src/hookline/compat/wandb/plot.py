"""``wandb.plot``: charts of tables, recorded as figures. The table is recorded under ``<name>_table``, as by wandb.

Confusion matrices and curves are computed here with NumPy; wandb needs scikit-learn and pandas for curves.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hookline._engine.metrics import MediaValue
from hookline._record import media
from hookline._record.media_encoding import numpy
from hookline.compat.wandb.errors import Error
from hookline.compat.wandb.table import Table
from hookline.compat.wandb.terminal import termwarn
from hookline.compat.wandb.values import WBValue, as_array

__all__ = [
    "CustomChart",
    "Visualize",
    "bar",
    "confusion_matrix",
    "histogram",
    "line",
    "line_series",
    "plot_table",
    "pr_curve",
    "roc_curve",
    "scatter",
    "visualize",
]


@dataclass
class CustomChartSpec:
    """The chart's type and fields, under wandb's names."""

    spec_name: str
    fields: dict[str, Any] = field(default_factory=dict)
    string_fields: dict[str, Any] = field(default_factory=dict)
    key: str = ""
    split_table: bool = False


@dataclass(eq=False)
class CustomChart(WBValue):
    """A chart of a table.

    Attributes:
        table: The table.
        spec: How it is drawn.
    """

    table: Table
    spec: CustomChartSpec

    def set_key(self, key: str) -> None:
        """Set the name under which it is logged."""
        self.spec.key = key

    def table_name(self, key: str) -> str:
        """Return the name of its table."""
        self.spec.key = key
        return f"Custom Chart Tables/{key}_table" if self.spec.split_table else f"{key}_table"

    def native(self) -> MediaValue | None:
        """Return the chart as a figure; None where only the table is recorded."""
        draw = _FIGURES.get(self.spec.spec_name)
        if draw is None:
            termwarn(f"The chart {self.spec.spec_name!r} is not drawn: its table is recorded.", repeat=False)
            return None
        cells = {name: self.table.get_column(name) for name in self.table.columns}
        texts = self.spec.string_fields
        axes = {"xaxis": texts.get("x-axis-title") or texts.get("xname"), "yaxis": texts.get("y-axis-title")}
        layout: dict[str, Any] = {"title": {"text": str(texts.get("title") or "")}}
        layout |= {axis: {"title": {"text": str(title)}} for axis, title in axes.items() if title}
        return media.Figure({"data": draw(cells, self.spec.fields), "layout": layout})


Visualize = CustomChart
"""The older name of a chart."""


def plot_table(
    vega_spec_name: str,
    data_table: Table,
    fields: Mapping[str, Any],
    string_fields: Mapping[str, Any] | None = None,
    split_table: bool = False,
) -> CustomChart:
    """Return a chart of a table.

    Args:
        vega_spec_name: The chart: ``wandb/line/v0``, ... Of a chart of your own, the table is recorded.
        data_table: The table.
        fields: Its columns, by the names that the chart gives them.
        string_fields: Texts, such as ``title``.
        split_table: Record the table in a section of its own.

    Raises:
        Error: ``data_table`` is not a table.
    """
    if not isinstance(data_table, Table):
        raise Error(f"Expected `data_table` to be `wandb.Table` type, instead got {type(data_table).__name__}")
    spec = CustomChartSpec(vega_spec_name, dict(fields), dict(string_fields or {}), split_table=split_table)
    return CustomChart(data_table, spec)


def visualize(id: str, value: Table) -> CustomChart:  # noqa: A002 - wandb's name
    """Return a chart of a table by the name of the chart; an older form of `plot_table`."""
    if not isinstance(value, Table):
        raise Error(f"Expected `value` to be `wandb.Table` type, instead got {type(value).__name__}")
    return plot_table(id, value, {})


def line(
    table: Table, x: str, y: str, stroke: str | None = None, title: str = "", split_table: bool = False
) -> CustomChart:
    """Return a line chart.

    Args:
        table: The table.
        x: The column of the x-axis.
        y: The column of the y-axis.
        stroke: The column that tells lines apart.
        title: The title.
        split_table: As of `plot_table`.
    """
    fields = {"x": x, "y": y, "stroke": stroke}
    return plot_table("wandb/line/v0", table, fields, {"title": title}, split_table=split_table)


def scatter(table: Table, x: str, y: str, title: str = "", split_table: bool = False) -> CustomChart:
    """Return a chart of points; the arguments are those of `line`."""
    return plot_table("wandb/scatter/v0", table, {"x": x, "y": y}, {"title": title}, split_table=split_table)


def bar(table: Table, label: str, value: str, title: str = "", split_table: bool = False) -> CustomChart:
    """Return a chart of bars.

    Args:
        table: The table.
        label: The column with their labels.
        value: The column with their heights.
        title: The title.
        split_table: As of `plot_table`.
    """
    return plot_table(
        "wandb/bar/v0", table, {"label": label, "value": value}, {"title": title}, split_table=split_table
    )


def histogram(table: Table, value: str, title: str = "", split_table: bool = False) -> CustomChart:
    """Return a histogram of a column.

    Args:
        table: The table.
        value: The column.
        title: The title.
        split_table: As of `plot_table`.
    """
    return plot_table("wandb/histogram/v0", table, {"value": value}, {"title": title}, split_table=split_table)


def line_series(
    xs: Any,
    ys: Any,
    keys: Iterable[str] | None = None,
    title: str = "",
    xname: str = "x",
    split_table: bool = False,
) -> CustomChart:
    """Return a chart of several lines.

    Args:
        xs: The positions of all lines, or a list of those of each.
        ys: The values of each line.
        keys: Their names.
        title: The title.
        xname: The title of the x-axis.
        split_table: As of `plot_table`.
    """
    if not isinstance(xs[0], Iterable) or isinstance(xs[0], str | bytes):
        xs = [xs] * len(ys)
    names = [f"line_{number}" for number in range(len(ys))] if keys is None else list(keys)
    if len(xs) != len(ys):
        raise ValueError(f"Number of x-series ({len(xs)}) must match y-series ({len(ys)}).")
    if len(names) != len(ys):
        raise ValueError(f"Number of keys ({len(names)}) must match y-series ({len(ys)}).")
    lines = zip(xs, names, ys, strict=True)
    data = [[x, name, y] for own_xs, name, own_ys in lines for x, y in zip(own_xs, own_ys, strict=False)]
    table = Table(data=data, columns=["step", "lineKey", "lineVal"])
    fields = {"step": "step", "lineKey": "lineKey", "lineVal": "lineVal"}
    return plot_table("wandb/lineseries/v0", table, fields, {"title": title, "xname": xname}, split_table=split_table)


def confusion_matrix(
    probs: Any = None,
    y_true: Any = None,
    preds: Any = None,
    class_names: Sequence[str] | None = None,
    title: str = "Confusion Matrix Curve",
    split_table: bool = False,
) -> CustomChart:
    """Return how often each class was predicted for each true class.

    Args:
        probs: Probabilities of each class, for each example.
        y_true: The true classes.
        preds: The predicted classes, in place of ``probs``.
        class_names: The names of the classes.
        title: The title.
        split_table: As of `plot_table`.
    """
    if probs is not None and preds is not None:
        raise ValueError("Only one of `probs` or `preds` should be provided, not both.")
    np = numpy()
    predicted = np.argmax(_array(probs), axis=1).tolist() if probs is not None else _listed(preds)
    true = _listed(y_true)
    if len(predicted) != len(true):
        raise ValueError("The number of predictions and true labels must be equal.")
    if class_names is None:
        known = sorted({*predicted, *true})
        names = [f"Class_{number + 1}" for number in range(len(known))]
    else:
        names, known = list(class_names), list(range(len(class_names)))
        for what, values in (("predicted classes", predicted), ("true labels", true)):
            if len(set(values)) > len(names):
                raise ValueError(f"The number of unique {what} exceeds the number of class names.")
    places = {each: index for index, each in enumerate(known)}
    counts = np.zeros((len(names), len(names)))
    for actual, guess in zip(true, predicted, strict=True):
        counts[places[actual], places[guess]] += 1
    data = [[a, p, float(counts[i, j])] for i, a in enumerate(names) for j, p in enumerate(names)]
    columns = ["Actual", "Predicted", "nPredictions"]
    table = Table(columns=columns, data=data)
    fields = {name: name for name in columns}
    return plot_table("wandb/confusion_matrix/v1", table, fields, {"title": title}, split_table=split_table)


def roc_curve(
    y_true: Any,
    y_probas: Any = None,
    labels: Sequence[str] | None = None,
    classes_to_plot: Sequence[Any] | None = None,
    title: str = "ROC Curve",
    split_table: bool = False,
) -> CustomChart | None:
    """Return the true against the false positive rate of each class.

    Args:
        y_true: The true classes.
        y_probas: The scores of each class, for each example.
        labels: The names of the classes.
        classes_to_plot: The classes to draw; all by default.
        title: The title.
        split_table: As of `plot_table`.
    """
    rows: list[list[Any]] = []
    for label, is_true, scores in _classes(y_true, y_probas, labels, classes_to_plot):
        hits, misses = _corners_only(*_counts_by_threshold(is_true, scores))
        shares = (counts / counts[-1] if counts[-1] else counts * float("nan") for counts in (misses, hits))
        rows += _rounded(label, *shares)
    texts = {"title": title, "x-axis-title": "False positive rate", "y-axis-title": "True positive rate"}
    return _curves(["class", "fpr", "tpr"], rows, texts, split_table=split_table)


def pr_curve(
    y_true: Any = None,
    y_probas: Any = None,
    labels: Sequence[str] | None = None,
    classes_to_plot: Sequence[Any] | None = None,
    interp_size: int = 21,
    title: str = "Precision-Recall Curve",
    split_table: bool = False,
) -> CustomChart | None:
    """Return the precision of each class at evenly spaced recalls; the best that is reached at a recall or above.

    Args:
        y_true, y_probas, labels, classes_to_plot, title, split_table: As of `roc_curve`.
        interp_size: The number of recalls.
    """
    np = numpy()
    at = np.linspace(0, 1, interp_size)[::-1]
    rows: list[list[Any]] = []
    for label, is_true, scores in _classes(y_true, y_probas, labels, classes_to_plot):
        hits, misses = _counts_by_threshold(is_true, scores)
        recall = np.concatenate([[0.0], hits / max(1, hits[-1])])
        precision = np.concatenate([[1.0], hits / (hits + misses)])
        best = np.maximum.accumulate(precision[::-1])[::-1]
        rows += _rounded(label, best[np.searchsorted(recall, at, side="left")], at)
    texts = {"title": title, "x-axis-title": "Recall", "y-axis-title": "Precision"}
    return _curves(["class", "precision", "recall"], rows, texts, split_table=split_table)


def _array(value: Any) -> Any:
    array = as_array(value)
    return numpy().asarray(value if array is None else array)


def _listed(value: Any) -> list[Any]:
    array = as_array(value)
    return list(value) if array is None else list(array.tolist())


def _classes(
    y_true: Any, y_probas: Any, labels: Sequence[str] | None, wanted: Sequence[Any] | None
) -> list[tuple[Any, Any, Any]]:
    """Return the label, the truth and the scores of each class."""
    np = numpy()
    true, scores = _array(y_true), _array(y_probas)
    classes = np.unique(true)
    shown = np.nonzero(np.isin(classes, classes if wanted is None else wanted))[0]
    found = []
    for index in shown:
        known = classes[index]
        is_number = np.issubdtype(classes.dtype, np.integer)
        label = labels[int(known)] if labels is not None and is_number else known.item()
        found.append((label, true == known, scores[..., index]))
    return found


def _counts_by_threshold(is_true: Any, scores: Any) -> tuple[Any, Any]:
    """Return how many true and false examples have at least each distinct score, from the highest."""
    np = numpy()
    order = np.argsort(-scores, kind="stable")
    ranked, sorted_scores = is_true[order], scores[order]
    last = np.nonzero(np.append(np.diff(sorted_scores) != 0, True))[0]
    hits = np.cumsum(ranked)[last].astype(float)
    return hits, last + 1 - hits


def _corners_only(hits: Any, misses: Any) -> tuple[Any, Any]:
    """Leave out points in the middle of a straight part of the curve, and begin at zero."""
    np = numpy()
    if len(hits) > 2:
        turns = np.logical_or(np.diff(hits, 2), np.diff(misses, 2))
        kept = np.nonzero(np.concatenate([[True], turns, [True]]))[0]
        hits, misses = hits[kept], misses[kept]
    return np.concatenate([[0.0], hits]), np.concatenate([[0.0], misses])


def _rounded(label: Any, first: Any, second: Any) -> list[list[Any]]:
    return [[label, round(float(x), 3), round(float(y), 3)] for x, y in zip(first, second, strict=True)]


def _curves(columns: list[str], rows: list[list[Any]], texts: dict[str, str], *, split_table: bool) -> CustomChart:
    x, y = ("fpr", "tpr") if "fpr" in columns else ("recall", "precision")
    table = Table(columns=columns, data=rows)
    fields = {"x": x, "y": y, "class": "class"}
    return plot_table("wandb/area-under-curve/v0", table, fields, texts, split_table=split_table)


Cells = Mapping[str, list[Any]]


def _lines(cells: Cells, x: str, y: str, by: str | None, mode: str = "lines") -> list[dict[str, Any]]:
    """Return a trace of Plotly for each line."""
    names = [None] * len(cells[x]) if by is None else cells[by]
    found: dict[Any, dict[str, Any]] = {}
    for position, value, name in zip(cells[x], cells[y], names, strict=True):
        trace = found.setdefault(name, {"type": "scatter", "mode": mode, "x": [], "y": []})
        trace["x"].append(position)
        trace["y"].append(value)
    return [trace | ({} if name is None else {"name": str(name)}) for name, trace in found.items()]


def _heat_map(cells: Cells, fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    names = list(dict.fromkeys(cells[fields["Actual"]]))
    counts = cells[fields["nPredictions"]]
    rows = [counts[start : start + len(names)] for start in range(0, len(counts), len(names))]
    return [{"type": "heatmap", "x": names, "y": names, "z": rows}]


_FIGURES: dict[str, Callable[[Cells, Mapping[str, Any]], list[dict[str, Any]]]] = {
    "wandb/line/v0": lambda cells, f: _lines(cells, f["x"], f["y"], f.get("stroke")),
    "wandb/scatter/v0": lambda cells, f: _lines(cells, f["x"], f["y"], None, "markers"),
    "wandb/bar/v0": lambda cells, f: [{"type": "bar", "x": cells[f["label"]], "y": cells[f["value"]]}],
    "wandb/histogram/v0": lambda cells, f: [{"type": "histogram", "x": cells[f["value"]]}],
    "wandb/lineseries/v0": lambda cells, f: _lines(cells, f["step"], f["lineVal"], f["lineKey"]),
    "wandb/area-under-curve/v0": lambda cells, f: _lines(cells, f["x"], f["y"], f["class"]),
    "wandb/confusion_matrix/v1": _heat_map,
}
"""The traces of Plotly that draw wandb's charts."""
