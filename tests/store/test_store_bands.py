"""Bands of charts over other things than steps, and the finer points of a part of x."""

import math

import numpy as np
import pytest
from recorded_runs import append, ended, finished_run, make_run, row

from hookline._engine.errors import OptionError
from hookline.store import runs


def timed_run(root, run_id, points, arm="a", started=1000.0, **more):
    """A run that recorded a loss at times, by seconds since its start."""
    belongs = {"name": "sweep", "id": "x", "group": arm, "arm": arm, "repeat": 0}
    directory = make_run(root, run_id, "sweep", experiment=belongs, started=started)
    rows = [
        row(step, loss=loss, time=started + seconds, **{name: values[step] for name, values in more.items()})
        for step, (seconds, loss) in enumerate(points)
    ]
    append(directory, *rows, ended(len(points), time=started + 100.0))


def test_bands_over_elapsed_time_compare_runs_between_their_points(tmp_path):
    timed_run(tmp_path, "one", [(0.0, 0.0), (10.0, 10.0)])
    timed_run(tmp_path, "two", [(0.0, 4.0), (5.0, 4.0), (20.0, 4.0)], started=5000.0)
    [band] = runs(tmp_path).bands("loss", "arm", x="elapsed").bands
    assert (band.key, band.x, band.n) == (("a",), [0.0, 5.0, 10.0, 20.0], [2, 2, 2, 1])
    assert band.mean == [2.0, 4.5, 7.0, 4.0]
    assert band.std[:3] == pytest.approx([np.std(pair, ddof=1) for pair in ((0, 4), (5, 4), (10, 4))])
    assert (math.isnan(band.std[3]), band.min, band.max) == (True, [0.0, 4.0, 4.0, 4.0], [4.0, 5.0, 10.0, 4.0])


def test_bands_over_time_of_day_need_runs_at_the_same_time(tmp_path):
    timed_run(tmp_path, "one", [(0.0, 1.0), (10.0, 1.0)])
    timed_run(tmp_path, "two", [(0.0, 1.0), (10.0, 1.0)], started=1005.0)
    timed_run(tmp_path, "alone", [(0.0, 1.0), (10.0, 1.0)], arm="b", started=9000.0)
    both = runs(tmp_path).bands("loss", x="time")
    assert ([(band.key, max(band.n)) for band in both.bands], both.problem) == ([(("a",), 2), (("b",), 1)], "")
    timed_run(tmp_path, "later", [(0.0, 1.0), (10.0, 1.0)], arm="b", started=9500.0)
    none = runs(tmp_path).bands("loss", x="time")
    assert none.bands == []
    assert none.problem == "the runs of b did not run at the same time: choose the time since start"


def test_bands_over_a_metric_need_one_that_only_grows(tmp_path):
    points = [(0.0, 3.0), (1.0, 2.0), (2.0, 1.0)]
    timed_run(tmp_path, "one", points, tokens=[0.0, 10.0, 20.0], kl=[0.1, 0.3, 0.2])
    timed_run(tmp_path, "two", points, tokens=[5.0, 15.0, 25.0], kl=[0.1, 0.2, 0.3])
    found = runs(tmp_path)
    [band] = found.bands("loss", x="tokens").bands
    assert (band.x, band.n) == ([0.0, 5.0, 10.0, 15.0, 20.0, 25.0], [1, 2, 2, 2, 2, 1])
    assert found.bands("loss", x="kl").problem == (
        "kl does not only grow in sweep/one, so runs cannot be compared over it"
    )


def test_bands_over_steps_are_those_of_aggregate(tmp_path):
    timed_run(tmp_path, "one", [(0.0, 1.0), (1.0, 2.0)])
    timed_run(tmp_path, "two", [(0.0, 3.0), (1.0, math.nan), (2.0, math.nan)])
    timed_run(tmp_path, "other", [(0.0, 7.0)], arm="b")
    found = runs(tmp_path)
    first, second = found.bands("loss", ["experiment", "arm"]).bands
    rows = found.aggregate("loss", ["experiment", "arm"]).rows()
    assert [(band.key, band.x, band.n) for band in (first, second)] == [
        (("sweep", "a"), [0.0, 1.0, 2.0], [2, 1, 0]),
        (("sweep", "b"), [0.0], [1]),
    ]
    assert (first.mean[0], first.std[0]) == (rows[0]["mean"], rows[0]["std"])
    assert (first.mean[1], math.isnan(first.mean[2]), first.not_finite) == (2.0, True, 2)


def test_band_of_many_points_is_thinned_and_keeps_the_peak_of_one_run(tmp_path):
    losses = [(float(second), 1.0) for second in range(3000)]
    timed_run(tmp_path, "one", losses)
    timed_run(tmp_path, "two", [(second + 0.5, 99.0 if second == 1234 else 1.0) for second, _ in losses])
    [band] = runs(tmp_path).bands("loss", x="elapsed", max_points=100).bands
    assert (len(band.x) <= 100, max(band.mean), max(band.max)) == (True, 50.0, 99.0)
    [part] = runs(tmp_path).bands("loss", x="elapsed", max_points=100, between=(1230.0, 1240.0)).bands
    assert (part.points, part.x[0], part.x[-1], max(part.max)) == (23, 1229.5, 1240.5, 99.0)


@pytest.mark.parametrize("x", ["step", "time", "elapsed", "tokens"])
def test_bands_of_what_nobody_recorded_are_none(tmp_path, x):
    timed_run(tmp_path, "one", [(0.0, 1.0)])
    assert runs(tmp_path).bands("loss" if x == "tokens" else "accuracy", x=x).bands == []
    assert runs(tmp_path).filter(arm="none").bands("loss", x=x).bands == []


def test_bands_by_what_runs_do_not_have_are_refused(tmp_path):
    timed_run(tmp_path, "one", [(0.0, 1.0)])
    with pytest.raises(OptionError, match=r"by='arms': runs cannot be grouped by that"):
        runs(tmp_path).bands("loss", "arms", x="time")


def test_series_of_a_part_has_all_points_there_and_one_at_each_side(tmp_path):
    losses = [1.0] * 5000
    losses[2500], losses[2502] = 9.0, math.nan
    finished_run(tmp_path, losses=losses)
    [line] = runs(tmp_path).series("loss", max_points=50, between=(2495, 2505.5))
    assert (line.x, line.points, line.not_finite) == ([*range(2494, 2503), *range(2504, 2507)], 12, 1)
    assert line.y[line.x.index(2501)] == 9.0
    [none] = runs(tmp_path).series("loss", between=(9000.0, 9001.0))
    assert none.x == [5000.0]


def test_series_over_elapsed_time_begins_at_the_start_of_the_run(tmp_path):
    timed_run(tmp_path, "one", [(2.0, 1.0), (3.5, 1.0)])
    [line] = runs(tmp_path).series("loss", x="elapsed")
    assert line.x == [2.0, 3.5]


def test_bands_of_a_name_with_a_star_do_not_mix_metrics(tmp_path):
    timed_run(tmp_path, "one", [(0.0, 1.0)], loss_aux=[9.0], **{"odd*": [5.0]})
    found = runs(tmp_path)
    for x in ("step", "elapsed"):
        none = found.bands("loss*", x=x)
        assert (none.bands, none.problem) == ([], "no run recorded 'loss*'")
        assert [band.mean for band in found.bands("odd*", x=x).bands] == [[5.0]]


@pytest.mark.parametrize("x", ["step", "time", "elapsed", "tokens"])
def test_bands_without_values_of_the_metric_say_why(tmp_path, x):
    more = {"word": ["warm"], "tokens": [1.0]}
    timed_run(tmp_path, "one", [(0.0, 1.0)], **more)
    found = runs(tmp_path)
    assert found.bands("accuracy", x=x).problem == "no run recorded 'accuracy'"
    assert found.bands("loss", x=x, axis="eval").problem == "no run recorded 'loss' on the axis 'eval'"
    assert found.bands("word", x=x).problem == "'word' has no numbers"
    assert found.filter(arm="none").bands("loss", x=x).problem == "there are no runs"


def test_bands_over_what_has_no_place_for_the_metric_say_why(tmp_path):
    timed_run(tmp_path, "one", [(0.0, 1.0)], word=["warm"], broken=[math.nan], lost=[math.inf])
    append(tmp_path / "sweep" / "one", row(7, late=1.0), row(0, axis="eval", score=1.0))
    found = runs(tmp_path)
    problems = {x: found.bands("loss", x=x).problem for x in ("nope", "word", "broken", "late", "score")}
    assert problems == {
        "nope": "no run recorded 'nope'",
        "word": "'word' has no numbers",
        "broken": "no value of 'broken' is finite",
        "late": "there is no step of an axis at which 'loss' and 'late' both have a finite value",
        "score": "there is no step of an axis at which 'loss' and 'score' both have a finite value",
    }
    assert found.bands("lost", x="elapsed").problem == "no value of 'lost' is finite"


def test_bands_by_a_setting_or_tags_have_a_band_for_each_value_in_order(tmp_path):
    for number, lr in enumerate([10.0, 2.0, 2.0, None]):
        config = {"optim": {"lr": lr, "betas": [0.9, number % 2]}} if lr else {}
        finished_run(tmp_path, f"r{number}", [float(number)] * 3, config=config, tags=["a", "b"][: number % 3])
    found = runs(tmp_path)
    by_lr = found.bands("loss", "config.optim.lr").bands
    assert [(band.key, band.mean[0], band.n[0]) for band in by_lr] == [
        (("2.0",), 1.5, 2),
        (("10.0",), 0.0, 1),
        ((None,), 3.0, 1),
    ]
    both = found.bands("loss", ["tag", "config.optim.betas"]).bands
    assert [band.key for band in both] == [
        ("a", "[0.9, 1]"),
        ("a, b", "[0.9, 0]"),
        (None, "[0.9, 0]"),
        (None, None),
    ]
    assert found.groups("config.optim.lr") == {
        "p/r2": ("2.0",),
        "p/r1": ("2.0",),
        "p/r0": ("10.0",),
        "p/r3": (None,),
    }


@pytest.mark.parametrize("by", ["config", "config.", "lr", []])
def test_bands_by_nothing_that_runs_have_are_refused(tmp_path, by):
    with pytest.raises(OptionError, match="by="):
        runs(tmp_path).bands("loss", by)
