"""Metrics of rewards, against NumPy, and what is left out of them."""

import math

import numpy as np
import pytest

from hookline._engine.errors import OptionError
from hookline.logging.metrics import Trend, reward_metrics

NAN = math.nan


def test_reward_metrics_agree_with_numpy():
    values = np.random.default_rng(0).normal(1e6, 1e-3, 100)
    metrics = reward_metrics(values)
    assert metrics["mean"] == pytest.approx(np.mean(values), rel=1e-15)
    assert metrics["std"] == pytest.approx(np.std(values), rel=1e-6)
    assert (metrics["min"], metrics["max"], metrics["count"]) == (values.min(), values.max(), 100)


def test_reward_metrics_leave_out_and_count_what_is_no_number():
    assert reward_metrics([1.0, None, 3.0, NAN, math.inf, True]) == {
        "count": 3,
        "missing": 1,
        "nonfinite": 2,
        "mean": pytest.approx(5 / 3),
        "std": pytest.approx(np.std([1, 3, 1])),
        "min": 1.0,
        "max": 3.0,
    }


@pytest.mark.parametrize(
    ("values", "counts"),
    [([], (0, 0, 0)), ([None], (0, 1, 0)), ([NAN, NAN], (0, 0, 2)), (None, (0, 1, 0))],
)
def test_reward_metrics_of_nothing_have_only_counts(values, counts):
    assert reward_metrics(values, group_size=2) == dict(zip(("count", "missing", "nonfinite"), counts, strict=True))


def test_reward_metrics_of_one_value_have_no_deviation():
    metrics = reward_metrics([0.1])
    assert [metrics[name] for name in ("mean", "std", "min", "max")] == [0.1, 0.0, 0.1, 0.1]


def test_reward_metrics_of_equal_values_have_exactly_no_deviation():
    assert reward_metrics([0.1] * 7)["std"] == 0.0


def test_reward_metrics_zero_std_groups_by_group_size():
    assert reward_metrics([1, 1, 0, 1, 0, 0], group_size=2)["zero_std_groups"] == pytest.approx(2 / 3)


def test_reward_metrics_zero_std_groups_by_groups_in_any_order():
    values, groups = [1, 0, 1, 1], ["a", "b", "a", "b"]
    assert reward_metrics(values, groups=groups)["zero_std_groups"] == 0.5


def test_reward_metrics_zero_std_groups_leave_out_groups_with_less_than_two_values():
    assert reward_metrics([1, NAN, 1, 1], group_size=2)["zero_std_groups"] == 1.0
    assert "zero_std_groups" not in reward_metrics([1, NAN, None, 1], group_size=2)


def test_reward_metrics_of_a_tensor_are_those_of_its_numbers(torch):
    assert reward_metrics(torch.tensor([1.0, 2.0])) == reward_metrics([1.0, 2.0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"values": "abc"}, "give a list of numbers"),
        ({"values": {"a": 1}}, "give a list of numbers"),
        ({"values": [1, "x"]}, r"values\[1\]='x'"),
        ({"values": [1], "groups": [1, 2]}, "each of the 1 values"),
        ({"values": [1], "group_size": 0}, "at least 1"),
    ],
)
def test_reward_metrics_of_a_wrong_type_are_an_error(arguments, message):
    with pytest.raises(OptionError, match=message):
        reward_metrics(**arguments)


def test_trend_agrees_with_numpy_over_its_window():
    trend = Trend(window=5)
    steps, values = np.arange(0, 80, 8), np.random.default_rng(1).normal(size=10)
    slopes = [trend.add(int(step), float(value)) for step, value in zip(steps, values, strict=True)]
    assert slopes[0] is None
    assert slopes[1] == pytest.approx((values[1] - values[0]) / 8)
    assert slopes[-1] == pytest.approx(np.polyfit(steps[-5:], values[-5:], 1)[0])


def test_trend_after_a_resume_forgets_what_is_done_again():
    trend = Trend(window=10)
    for step, value in [(1, 1.0), (2, 2.0), (3, 100.0), (4, 200.0)]:
        trend.add(step, value)
    assert trend.add(3, 3.0) == pytest.approx(1.0)
