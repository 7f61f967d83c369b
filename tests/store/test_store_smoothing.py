"""Smoothing of lines and bands: over all points, the same for every width and every part of x."""

import itertools
import math

import numpy as np
import pytest
from recorded_runs import append, ended, finished_run, make_run, row

from hookline._engine.errors import OptionError
from hookline.store import runs
from hookline.store.series import smoothed, time_weighted


def tensorboard(values, weight):
    """TensorBoard's smoothing, one value at a time."""
    found, last, count = [], 0.0, 0
    for value in values:
        if not math.isfinite(value):
            found.append(value)
            continue
        last, count = last * weight + (1 - weight) * value, count + 1
        found.append(last / (1 - weight**count))
    return found


def noisy(count, level=1.2, spike_every=50):
    """Small noise around a level with a large spike now and then."""
    noise = np.random.default_rng(7).normal(0.0, 0.01, count)
    noise[::spike_every] += 40.0
    return (level + noise).tolist()


@pytest.mark.parametrize("weight", [0.05, 0.6, 0.999])
@pytest.mark.parametrize("count", [1, 2, 255, 256, 257, 5000])
def test_smoothing_of_any_number_of_points_is_tensorboards(weight, count):
    values = noisy(count)
    assert smoothed(np.array(values), weight).tolist() == pytest.approx(tensorboard(values, weight), rel=1e-9)


def test_smoothed_constant_is_the_constant_from_the_first_point_on():
    assert smoothed(np.full(1000, 3.5), 0.99).tolist() == pytest.approx([3.5] * 1000, rel=1e-12)


@pytest.mark.parametrize("max_points", [50, 400, 20_000])
def test_smoothed_line_is_that_of_all_points_at_every_width_and_zoom(tmp_path, max_points):
    values = noisy(20_000)
    finished_run(tmp_path, losses=values)
    expected = dict(zip(range(1, 20_001), tensorboard(values, 0.9), strict=True))
    for between in ((None, None), (15_000, 15_100), (19_990, None)):
        [line] = runs(tmp_path).series("loss", smoothing=0.9, max_points=max_points, between=between)
        assert len(line.smoothed_x) == len(line.smoothed_y) <= max_points
        assert line.smoothed_y == pytest.approx([expected[x] for x in line.smoothed_x], rel=1e-9)  # type: ignore[index]


def test_smoothed_line_keeps_its_own_highest_point(tmp_path):
    values = [0.0] * 5000 + [9.0] + [5.0] * 20 + [0.0] * 5000  # the smoothed line is highest where the plain one is not
    finished_run(tmp_path, losses=values)
    [line] = runs(tmp_path).series("loss", smoothing=0.9, max_points=20)
    assert (max(line.y), max(line.smoothed_y)) == (9.0, pytest.approx(max(tensorboard(values, 0.9))))  # type: ignore[comparison-overlap]


def test_smoothing_passes_over_values_that_are_not_finite(tmp_path):
    values = [1.0, math.nan, 2.0, math.inf, 4.0]
    finished_run(tmp_path, losses=values)
    [line] = runs(tmp_path).series("loss", smoothing=0.5)
    assert (line.smoothed_x, line.not_finite) == ([1.0, 3.0, 5.0], 2)
    assert line.smoothed_y == pytest.approx([each for each in tensorboard(values, 0.5) if math.isfinite(each)])


def test_series_without_smoothing_has_no_smoothed_points(tmp_path):
    finished_run(tmp_path, losses=[1.0, 2.0])
    [line] = runs(tmp_path).series("loss")
    assert (line.smoothed_x, line.smoothed_y) == ([], [])


@pytest.mark.parametrize("x", ["step", "elapsed"])
def test_smoothed_band_is_mean_and_spread_of_the_smoothed_runs_at_every_zoom(tmp_path, x):
    lines = [noisy(3000, level) for level in (1.0, 3.0)]
    for name, values in zip(("one", "two"), lines, strict=True):
        belongs = {"name": "sweep", "id": "x", "group": "a", "arm": "a", "repeat": 0}
        directory = make_run(tmp_path, name, "sweep", experiment=belongs, started=1000.0)
        rows = [row(step, loss=value, time=1000.0 + step) for step, value in enumerate(values)]
        append(directory, *rows, ended(3000, time=9000.0))
    each = [tensorboard(values, 0.9) for values in lines]
    for max_points, between in itertools.product((40, 900), ((None, None), (2000, 2030))):
        how = {"x": x, "smoothing": 0.9, "max_points": max_points, "between": between}
        [band] = runs(tmp_path).bands("loss", **how).bands
        places = [round(place) for place in band.x]
        assert band.mean == pytest.approx([np.mean([line[at] for line in each]) for at in places], rel=1e-9)
        assert band.std == pytest.approx([np.std([line[at] for line in each], ddof=1) for at in places], rel=1e-9)
        assert set(band.n) == {2}


@pytest.mark.parametrize("smoothing", [-0.1, 1.0, math.nan])
def test_smoothing_outside_its_range_is_refused(tmp_path, smoothing):
    finished_run(tmp_path)
    with pytest.raises(OptionError, match="smoothing=.*from 0 and below 1"):
        runs(tmp_path).series("loss", smoothing=smoothing)


def weights_and_biases(xs, ys, weight):
    """W&B's smoothing, one value at a time."""
    share, total, count, found = min(weight**0.5, 0.999), 0.0, 0.0, []
    for place, (x, y) in enumerate(zip(xs, ys, strict=True)):
        before = xs[place - 1] if place else x
        decay = share ** ((x - before) / (xs[-1] - xs[0]) * 1000)
        total, count = total * decay + y, count * decay + 1
        found.append(total / count)
    return found


@pytest.mark.parametrize("weight", [0.3, 0.9, 0.9999])
@pytest.mark.parametrize("count", [2, 3, 64, 1000, 5001])
def test_smoothing_by_time_is_that_of_wandb_for_steps_of_any_distance(weight, count):
    xs = np.cumsum(np.random.default_rng(count).exponential(1.0, count))
    ys = noisy(count)
    found = time_weighted(xs, np.array(ys), weight)
    assert found.tolist() == pytest.approx(weights_and_biases(xs.tolist(), ys, weight), rel=1e-9)


@pytest.mark.parametrize("xs", [[], [3.0], [3.0, 3.0]])
def test_smoothing_by_time_without_a_range_of_x_changes_nothing(xs):
    ys = np.arange(len(xs), dtype=float)
    assert time_weighted(np.array(xs), ys, 0.9).tolist() == ys.tolist()


def test_smoother_is_chosen_for_lines_and_bands_and_the_raw_line_can_have_fewer_points(tmp_path):
    finished_run(tmp_path, losses=noisy(2000))
    found = runs(tmp_path)
    [line] = found.series("loss", smoothing=0.9, smoother="time_weighted", max_points=400, raw_points=20)
    expected = weights_and_biases(list(range(2000)), noisy(2000), 0.9)
    assert line.smoothed_y == pytest.approx([expected[int(x) - 1] for x in line.smoothed_x], rel=1e-9)
    assert (len(line.x) <= 20 < len(line.smoothed_x), max(line.y)) == (True, max(noisy(2000)))
    [band] = found.bands("loss", "name", smoothing=0.9, smoother="time_weighted", max_points=2000).bands
    assert band.mean == pytest.approx(expected, rel=1e-9)
    with pytest.raises(OptionError, match="smoother='tw' is not known"):
        found.series("loss", smoother="tw")
