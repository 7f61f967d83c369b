"""The bootstrap interval: against SciPy's binomial, against plain resampling, and by how often it covers."""

import random
import time

import pytest

from hookline._engine.errors import OptionError
from hookline.experiment.evaluation import bootstrap_interval


def shares(right, count):
    return [1.0] * right + [0.0] * (count - right)


@pytest.mark.parametrize(("right", "count"), [(1, 2), (3, 10), (9, 10), (37, 100), (999, 1000), (600, 5000)])
@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.99])
def test_interval_of_right_and_wrong_is_that_of_the_binomial(right, count, confidence):
    binomial = pytest.importorskip("scipy.stats").binom(count, right / count)
    tail = (1 - confidence) / 2
    expected = (binomial.ppf(tail) / count, binomial.ppf(1 - tail) / count)
    assert bootstrap_interval(shares(right, count), confidence=confidence) == pytest.approx(expected, abs=1e-12)


def test_interval_of_any_two_values_is_scaled_from_right_and_wrong():
    lower, upper = bootstrap_interval(shares(30, 100))
    scores = [7.0 if score else 2.0 for score in shares(30, 100)]
    assert bootstrap_interval(scores) == pytest.approx((2 + 5 * lower, 2 + 5 * upper))


def test_interval_of_other_scores_agrees_with_plain_resampling():
    numpy = pytest.importorskip("numpy")
    draw = numpy.random.default_rng(1)
    scores = draw.gamma(2.0, size=200)
    means = draw.choice(scores, size=(20_000, 200)).mean(axis=1)
    expected = tuple(numpy.quantile(means, [0.025, 0.975]))
    width = expected[1] - expected[0]
    assert bootstrap_interval(scores.tolist()) == pytest.approx(expected, abs=0.08 * width)


@pytest.mark.parametrize("kind", ["binary", "other"])
def test_interval_covers_the_true_mean_about_as_often_as_it_says(kind):
    draw = random.Random(3)
    covered = 0
    for _ in range(200):
        raw = [draw.random() for _ in range(100)]
        scores, true = ([float(x < 0.4) for x in raw], 0.4) if kind == "binary" else (raw, 0.5)
        lower, upper = bootstrap_interval(scores, resamples=200)
        covered += lower <= true <= upper
    assert 180 <= covered <= 198


@pytest.mark.parametrize("scores", [[0.25], [1.0] * 50, [0.1] * 7])
def test_interval_of_scores_that_are_all_alike_is_a_point(scores):
    assert bootstrap_interval(scores) == pytest.approx((scores[0], scores[0]), abs=1e-15)


def test_interval_is_the_same_each_time_and_uses_nobody_elses_random_numbers():
    scores = [random.Random(0).random() * each for each in range(50)]
    random.seed(1)
    state = random.getstate()
    first = bootstrap_interval(scores)
    assert random.getstate() == state
    random.seed(2)
    assert bootstrap_interval(scores) == first


@pytest.mark.parametrize("kind", ["binary", "other"])
def test_interval_of_a_thousand_scores_takes_well_under_a_second(kind):
    draw = random.Random(0)
    scores = [draw.random() if kind == "other" else float(draw.random() < 0.5) for _ in range(1000)]
    spent = []
    for _ in range(3):
        start = time.process_time()
        bootstrap_interval(scores)
        spent.append(time.process_time() - start)
    assert min(spent) < 0.5


@pytest.mark.parametrize(
    ("scores", "options", "said"),
    [
        ([], {}, "at least one score"),
        ([1.0], {"confidence": 95}, "confidence=95: give a number between 0 and 1"),
        ([1.0], {"resamples": 0}, "resamples=0"),
    ],
)
def test_interval_of_something_wrong_says_what_is_accepted(scores, options, said):
    with pytest.raises(OptionError, match=said):
        bootstrap_interval(scores, **options)
