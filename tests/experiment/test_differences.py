"""Differences between arms: Welch's interval against SciPy's, how many repeats would do, and the sentences."""

import math

import numpy as np
import pytest

from hookline._engine.errors import UnknownNameError
from hookline._engine.state import ArmResult, RunResult
from hookline.experiment.results.result import ExperimentResult
from hookline.experiment.results.statistics import Difference
from hookline.experiment.results.tables import difference_text

stats = pytest.importorskip("scipy.stats")


def result_of(metric="accuracy", **values):
    """An experiment whose arms have these values, one for each repeat."""
    arms = [
        ArmResult(name, None, [RunResult(f"{name}-r{i}", metrics={metric: v}, repeat=i) for i, v in enumerate(given)])
        for name, given in values.items()
    ]
    return ExperimentResult("test", arms)


def difference_of(a, b, **options):
    (row,) = result_of(a=a, b=b).differences(**options)
    return row


@pytest.mark.parametrize("seed", range(5))
def test_difference_interval_agrees_with_welch_of_scipy(seed):
    rng = np.random.default_rng(seed)
    a, b = rng.normal(0, 1, 3 + seed), rng.normal(2 * seed, 2, 5)

    row = difference_of(a.tolist(), b.tolist())

    expected = stats.ttest_ind(b, a, equal_var=False).confidence_interval(0.95)
    assert row.difference == pytest.approx(b.mean() - a.mean())
    assert row.interval == pytest.approx((expected.low, expected.high))
    assert row.separated is bool(expected.low > 0 or expected.high < 0)
    assert (row.n_a, row.n_b) == (len(a), 5)


def test_difference_repeats_to_separate_is_the_smallest_number_that_does():
    a, b = [0.1, 0.3, 0.2], [0.25, 0.5, 0.3]
    row = difference_of(a, b)

    def separates(n):
        interval = stats.ttest_ind_from_stats(
            np.mean(b), np.std(b, ddof=1), n, np.mean(a), np.std(a, ddof=1), n, equal_var=False
        )
        return interval.pvalue < 0.05

    assert not row.separated
    assert row.repeats_to_separate == next(n for n in range(2, 1000) if separates(n))


def test_difference_of_single_repeats_has_no_interval():
    row = difference_of([0.5], [0.7])

    assert (row.interval, row.separated, row.repeats_to_separate) == (None, False, None)
    assert row.difference == pytest.approx(0.2)


def test_difference_of_one_single_repeat_and_several_has_no_interval():
    assert difference_of([0.5], [0.7, 0.8]).interval is None


def test_difference_of_arms_without_spread_is_distinguished_unless_they_are_equal():
    apart, alike = difference_of([0.1] * 3, [0.2] * 3), difference_of([0.1] * 3, [0.1] * 2)

    assert (apart.interval, apart.separated, apart.repeats_to_separate) == ((0.1, 0.1), True, 2)
    assert (alike.interval, alike.separated, alike.repeats_to_separate) == ((0.0, 0.0), False, None)


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf, 1e308])
def test_difference_of_values_that_are_no_ordinary_numbers_says_that_it_cannot_be_said(odd):
    row = difference_of([odd, 1.0], [0.5, 0.7])

    assert not row.separated
    assert row.repeats_to_separate is None
    assert difference_text(row, "max")


def test_difference_that_no_number_of_repeats_would_show_is_not_promised():
    assert difference_of([0.0, 1.0], [1e-9, 1.0]).repeats_to_separate is None


def test_differences_of_several_arms_are_of_every_two_in_the_order_given():
    rows = result_of(low=[1, 2], mid=[2, 3], high=[3, 4]).differences()

    assert [(row.a, row.b) for row in rows] == [("low", "mid"), ("low", "high"), ("mid", "high")]


def test_differences_leave_out_arms_without_a_result():
    result = result_of(low=[1, 2], high=[3, 4])
    broken = ArmResult("broken", None, [RunResult("broken-r0", "failed")])

    rows = ExperimentResult("test", [*result.arms, broken]).differences()

    assert [(row.a, row.b) for row in rows] == [("low", "high")]


def test_differences_of_many_arms_are_among_the_best_ten_unless_asked_otherwise():
    result = result_of("loss", **{f"arm{i}": [100 - i, 100.5 - i] for i in range(30)})

    names = {name for row in result.differences() for name in (row.a, row.b)}

    assert names == {f"arm{i}" for i in range(20, 30)}
    assert len(result.differences(limit=None)) == 30 * 29 // 2
    assert [(row.a, row.b) for row in result.differences(arms=["arm3", "arm1"])] == [("arm3", "arm1")]


def test_differences_of_an_unknown_arm_suggest_the_nearest():
    with pytest.raises(UnknownNameError, match="Did you mean 'high'"):
        result_of(low=[1], high=[2]).differences(arms=["low", "hihg"])


def row(difference, interval, *, n=3, repeats=None, separated=False):
    return Difference("low", "high", "m", difference, interval, n, n, separated, repeats)


@pytest.mark.parametrize(
    ("given", "mode", "said"),
    [
        (row(0.12, (0.03, 0.21), separated=True), "max", "high beats low by 0.12 (95% interval 0.03 to 0.21)."),
        (row(0.12, (0.03, 0.21), separated=True), "min", "low beats high by 0.12 (95% interval 0.03 to 0.21)."),
        (row(-0.12, (-0.21, -0.03), separated=True), "max", "low beats high by 0.12 (95% interval 0.03 to 0.21)."),
        (row(-0.12, (-0.21, -0.03), separated=True), "min", "high beats low by 0.12 (95% interval 0.03 to 0.21)."),
        (
            row(0.05, (-0.1, 0.2), n=2, repeats=7),
            "max",
            (
                "low and high cannot be distinguished with 2 repeats: the difference is 0.05, its 95% interval "
                "-0.1 to 0.2; about 7 of each would do, if difference and spread stay the same."
            ),
        ),
        (
            row(0.05, None, n=1),
            "max",
            (
                "high came out 0.05 better than low, with 1 repeat: at least 2 of each are needed to tell whether "
                "that is more than chance."
            ),
        ),
        (row(0.1, (0.1, 0.1), separated=True), "max", "high beats low by 0.1 (all repeats of each arm are equal)."),
        (row(math.nan, None), "max", "low and high cannot be compared: not all of their results are numbers."),
    ],
)
def test_difference_in_a_sentence_says_what_a_person_wants_to_know(given, mode, said):
    assert difference_text(given, mode) == said
