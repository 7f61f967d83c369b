"""Curves, read from journals of real runs: alignment on steps against NumPy, the metric drawn, and the picture."""

import math
import struct
import sys
import threading

import numpy as np
import pytest

import hookline as hl
from hookline._engine.errors import MissingExtraError, OptionError, UnknownNameError
from hookline._engine.state import ArmResult, RunResult
from hookline._record.recorder import Recorder
from hookline.experiment.results.result import ExperimentResult


def recorded(rows, name="run", status="completed", repeat=0, stage=None, metrics=None):
    """A run that recorded these rows: the step of each, and its metrics."""
    with hl.run(name, summary=False) as run:
        for step, values in rows.items():
            run.log(values, step=step)
    return RunResult(f"{name}-r{repeat}", status, metrics or {}, output_dir=run.dir, repeat=repeat, stage=stage)


def rows(values, metric="loss", first=1):
    return {first + index: {metric: float(value)} for index, value in enumerate(values)}


def experiment(*arms, **options):
    return ExperimentResult("test", [ArmResult(name, {}, runs) for name, runs in arms], **options)


def picture_size(png):
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", png[16:24])


def test_curves_of_equal_repeats_agree_with_numpy():
    values = np.random.default_rng(0).normal(size=(3, 20))
    result = experiment(("a", [recorded(rows(v), repeat=i) for i, v in enumerate(values)]))

    (curve,) = result.curves("loss")

    assert curve.steps == tuple(range(1, 21))
    np.testing.assert_allclose(curve.mean, values.mean(axis=0))
    np.testing.assert_allclose(curve.std, values.std(axis=0, ddof=1))
    assert curve.n == (3,) * 20


def test_curves_of_unequal_lengths_continue_with_those_that_are_left():
    (curve,) = experiment(("a", [recorded(rows([1, 2, 3, 4])), recorded(rows([3, 4]))])).curves("loss")

    assert (curve.steps, curve.mean, curve.n) == ((1, 2, 3, 4), (2.0, 3.0, 3.0, 4.0), (2, 2, 1, 1))
    assert curve.std == (pytest.approx(math.sqrt(2)), pytest.approx(math.sqrt(2)), None, None)


def test_curves_of_different_steps_are_aligned_on_the_step():
    one = recorded({10: {"loss": 1.0}, 20: {"loss": 2.0}})
    other = recorded({15: {"loss": 5.0}, 20: {"loss": 4.0}})

    (curve,) = experiment(("a", [one, other])).curves("loss")

    assert (curve.steps, curve.mean, curve.n) == ((10, 15, 20), (1.0, 5.0, 3.0), (1, 1, 2))


def test_curves_leave_out_what_did_not_complete_and_what_is_gone(tmp_path):
    runs = [
        recorded(rows([1, 2])),
        recorded(rows([9, 9]), status="failed", repeat=1),
        RunResult("a-r2", output_dir=tmp_path / "gone", repeat=2),
        RunResult("a-r3", repeat=3),
    ]

    (curve,) = experiment(("a", runs), ("b", [])).curves("loss")

    assert (curve.arm, curve.mean) == ("a", (1.0, 2.0))


def test_curves_with_stages_are_of_the_last_one_unless_asked():
    runs = [recorded(rows([1, 2]), stage="sft"), recorded(rows([3, 4]), stage="grpo")]
    result = experiment(("a", runs))

    assert [curve.mean for curve in result.curves("loss")] == [(3.0, 4.0)]
    assert [curve.mean for curve in result.curves("loss", stage="sft")] == [(1.0, 2.0)]


def test_curves_of_a_metric_of_two_clocks_follow_the_one_with_more_points(tmp_path):
    recorder = Recorder(tmp_path / "run")
    for step in (1, 2, 3):
        recorder.log(reward=step, step=10 * step, axis="rollout")
    for step in (1, 2):
        recorder.log(reward=-step, step=step, axis="train")
    recorder.close()

    (curve,) = experiment(("a", [RunResult("a-r0", output_dir=tmp_path / "run")])).curves("reward")

    assert (curve.steps, curve.mean) == ((10, 20, 30), (1.0, 2.0, 3.0))


def test_curves_with_values_that_are_no_numbers_keep_the_gap():
    (curve,) = experiment(("a", [recorded(rows([1, math.nan, 3])), recorded(rows([1, 2, 3]))])).curves("loss")

    assert np.isnan(curve.mean).tolist() == [False, True, False]


def test_curves_are_drawn_of_the_main_metric_where_it_was_recorded_over_time():
    given = {step: {"reward": step, "val/accuracy": step / 2} for step in (1, 2)}

    result = experiment(("a", [recorded(given, metrics={"reward": 2, "val/accuracy": 1})]))

    assert result.curve_metric() == "val/accuracy"
    assert [curve.metric for curve in result.curves()] == ["val/accuracy"]


def test_curves_are_drawn_of_another_metric_where_the_main_one_has_a_single_value():
    given = {1: {"loss": 2.0, "lr": 1.0}, 2: {"loss": 1.0, "lr": 1.0}, 3: {"sorting/accuracy": 0.5}}

    result = experiment(("a", [recorded(given, metrics={"sorting/accuracy": 0.5})]))

    assert (result.main_metric, result.curve_metric()) == ("sorting/accuracy", "loss")


def test_picture_is_the_same_each_time_and_on_any_thread():
    pytest.importorskip("matplotlib")
    result = experiment(
        ("a", [recorded(rows([1, 2])), recorded(rows([2, 4]))]), ("_b $x$ 你", [recorded(rows([3, 1]))])
    )
    elsewhere = []

    thread = threading.Thread(target=lambda: elsewhere.append(result.picture("loss")))
    thread.start()
    thread.join()

    assert picture_size(elsewhere[0]) == (1200, 720)
    assert elsewhere == [result.picture()]
    assert "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf, 1e308, 1e-320])
def test_picture_of_values_that_no_axis_can_hold_is_drawn_all_the_same(odd):
    pytest.importorskip("matplotlib")
    result = experiment(("a", [recorded(rows([1, odd, 2])), recorded(rows([odd, odd, -2]))]))

    assert picture_size(result.picture("loss"))


def test_picture_of_a_long_curve_is_drawn_as_means_of_stretches():
    pytest.importorskip("matplotlib")
    level, noisy = [0.5] * 2000, [0.0, 1.0] * 1000

    pictures = {experiment(("a", [recorded(rows(values))])).picture() for values in (level, noisy)}

    assert len(pictures) == 1


def test_picture_of_many_arms_shows_the_best_twelve_and_says_so(monkeypatch):
    pytest.importorskip("matplotlib")
    arms = [(f"arm{i}", [recorded(rows([9, i]), metrics={"loss": i})]) for i in range(15)]
    drawn = {}
    monkeypatch.setattr(
        "hookline.experiment.results.result.draw_curves",
        lambda curves, **texts: drawn.update(texts, arms=[curve.arm for curve in curves]) or b"",
    )

    experiment(*arms).picture()

    assert drawn["arms"] == [f"arm{i}" for i in range(12)]
    assert drawn["title"] == "test, the best 12 of 15 arms"


def test_plot_writes_the_picture_to_the_given_path(tmp_path):
    pytest.importorskip("matplotlib")
    result = experiment(("a", [recorded(rows([1, 2]))]), output_dir=tmp_path / "home")

    assert result.plot() == tmp_path / "home" / "curves.png"
    assert result.plot("loss", tmp_path / "new" / "mine.png").read_bytes() == result.picture("loss")
    assert sorted(path.name for path in (tmp_path / "home").iterdir()) == ["curves.png"]


def test_plot_without_a_place_asks_for_one():
    with pytest.raises(OptionError, match="Give the path"):
        experiment(("a", [])).plot()


@pytest.mark.parametrize("metric", [None, "reward"])
def test_picture_of_what_nobody_recorded_is_refused(metric):
    with pytest.raises(UnknownNameError, match="completed run of 'test' recorded"):
        experiment(("a", [RunResult("a-r0", metrics={"loss": 1.0})])).picture(metric)


def test_picture_without_matplotlib_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)

    with pytest.raises(MissingExtraError, match=r"pip install 'hookline\[experiment\]'"):
        experiment(("a", [recorded(rows([1, 2]))])).picture()


def test_result_in_a_notebook_has_a_row_and_a_chart_per_arm_and_escapes_names():
    runs = [recorded(rows(range(500)), metrics={"loss": 2.0})]
    result = experiment(("<b>low", runs), ("high", [RunResult("run-r1", "failed", {})]))
    html = result._repr_html_()
    assert html.count("<tr>") == 3
    assert html.count("<polyline") == 1
    assert ("&lt;b&gt;low" in html, "<b>" in html) == (True, False)
    assert "1 run failed." in html
    assert len(html) < 6_000
