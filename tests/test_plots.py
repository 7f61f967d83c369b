"""Ready-made plots."""

import math

import numpy as np
import pytest
import torch

import hookline as hl
from hookline._record.records import Event, Media


def recorded(tmp_path, **values):
    with hl.run("plots", root=tmp_path, project="p", summary=False) as run:
        for _ in run.steps(range(1)):
            run.log(**values)
    assert run.output_dir is not None
    return [r for r in hl.read(run.output_dir) if isinstance(r, Media) or (isinstance(r, Event) and "media" in r.name)]


@pytest.mark.parametrize("kind", [np.asarray, torch.tensor, list])
def test_confusion_matrix_counts_true_against_predicted(tmp_path, kind):
    plot = hl.plots.confusion_matrix(kind([0, 0, 1, 2, 2]), kind([0, 1, 1, 2, 0]), labels=["a", "b", "c"])
    [media] = recorded(tmp_path, confusion=plot)
    assert (media.type, media.data["plot"], media.data["labels"]) == ("plot", "confusion_matrix", ["a", "b", "c"])
    assert media.data["counts"] == [[1, 1, 0], [0, 1, 0], [1, 0, 1]]


def test_roc_and_pr_curve_agree_with_scikit_learn(tmp_path):
    metrics = pytest.importorskip("sklearn.metrics")
    generator = np.random.default_rng(7)
    targets = generator.integers(0, 2, 300)
    scores = (targets * 0.5 + generator.normal(size=300)).round(1)
    roc, curve = recorded(tmp_path, roc=hl.plots.roc(targets, scores), pr=hl.plots.pr_curve(targets, scores))
    assert roc.data["series"][0]["area"] == pytest.approx(metrics.roc_auc_score(targets, scores))
    expected = metrics.average_precision_score(targets, scores)
    assert curve.data["series"][0]["average_precision"] == pytest.approx(expected)
    false, true, _ = metrics.roc_curve(targets, scores, drop_intermediate=False)
    assert roc.data["series"][0]["x"] == pytest.approx(false.tolist())
    assert roc.data["series"][0]["y"] == pytest.approx(true.tolist())


def test_roc_of_several_classes_has_a_curve_for_each(tmp_path):
    scores = np.eye(3)[[0, 1, 2, 2]]
    [media] = recorded(tmp_path, roc=hl.plots.roc([0, 1, 2, 2], scores, labels=["x", "y", "z"]))
    assert [(one["label"], one["area"]) for one in media.data["series"]] == [("x", 1.0), ("y", 1.0), ("z", 1.0)]


def test_curve_of_many_points_is_thinned_with_both_ends(tmp_path):
    scores = np.random.default_rng(1).normal(size=5000)
    [media] = recorded(tmp_path, roc=hl.plots.roc(scores > 0, scores))
    x, y = media.data["series"][0]["x"], media.data["series"][0]["y"]
    assert len(x) <= 201
    assert (x[0], y[0], x[-1], y[-1]) == (0.0, 0.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("plot", "words"),
    [
        (hl.plots.roc([0, 1], [0.5]), "2 targets and 1 predictions"),
        (hl.plots.roc([0, 2], [0.5, 0.1]), "0 and 1"),
        (hl.plots.roc([0, 1], [0.5, math.nan]), "NaN"),
        (hl.plots.roc([[0, 1]], [[0.5, 0.1]]), "one class for each example"),
        (hl.plots.roc([0.5, 1], [0.5, 0.1]), "whole numbers"),
        (hl.plots.confusion_matrix([0, -1], [0, 0]), "from 0"),
        (hl.plots.confusion_matrix([0, 3], [0, 0], labels=["a"]), "1 are given for 4"),
    ],
)
def test_plot_of_wrong_input_is_reported_and_left_out(tmp_path, plot, words):
    [event] = recorded(tmp_path, bad=plot)
    assert words in event.data["reason"]


def test_histogram_over_steps_draws_what_was_recorded(tmp_path):
    pytest.importorskip("matplotlib")
    with hl.run("plots", root=tmp_path, project="p", summary=False) as run:
        for index in run.steps(range(4)):
            run.log(weights=hl.Histogram(np.random.default_rng(index).normal(index, 1, 500)))
    figure = hl.plots.histogram_over_steps(run, "weights").value
    [mesh] = figure.axes[0].collections
    shares = np.asarray(mesh.get_array()).reshape(128, 4)
    assert shares.sum(axis=0) == pytest.approx([1.0] * 4)
    with pytest.raises(hl.OptionError, match="'other'"):
        hl.plots.histogram_over_steps(run.output_dir, "other")
