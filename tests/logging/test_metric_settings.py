"""What the settings of metrics decide."""

import random

import pytest

from hookline._engine.errors import OptionError
from hookline.logging import Categories, MetricSettings


def test_metric_settings_by_default_have_everything_due():
    settings = MetricSettings()
    assert all(settings.is_due(step) and settings.is_sampled(step) for step in range(100))
    assert not any(settings.validation_due(step) for step in range(100))


def test_metric_settings_logging_frequency_is_in_steps():
    assert [step for step in range(1, 13) if MetricSettings(logging_frequency=5).is_due(step)] == [5, 10]


def test_metric_settings_validation_frequency_counts_completed_steps():
    settings = MetricSettings(validation_frequency=3)
    assert [step for step in range(8) if settings.validation_due(step)] == [3, 6]


def test_metric_settings_validation_switched_off_is_never_due():
    settings = MetricSettings(validation_frequency=3, enable=Categories(validation_metrics=False))
    assert not settings.validation_due(3)


@pytest.mark.parametrize("ratio", [0.0, 0.1, 0.25, 0.5, 1.0])
@pytest.mark.parametrize("stride", [1, 5, 10, 64])
def test_metric_settings_sampling_ratio_is_the_share_however_often_it_is_asked(ratio, stride):
    settings = MetricSettings(sampling_ratio=ratio)
    asked = range(stride, 1000 * stride + 1, stride)
    assert sum(map(settings.is_sampled, asked)) / 1000 == pytest.approx(ratio, abs=0.01)


def test_metric_settings_sampling_leaves_random_numbers_alone():
    random.seed(1)
    before = random.getstate()
    first = [MetricSettings(sampling_ratio=0.5).is_sampled(step) for step in range(50)]
    assert first == [MetricSettings(sampling_ratio=0.5).is_sampled(step) for step in range(50)]
    assert random.getstate() == before


@pytest.mark.parametrize(
    "wrong",
    [
        {"logging_frequency": 0},
        {"validation_frequency": 0},
        {"trend_window": 1},
        {"sampling_ratio": 1.5},
        {"sampling_ratio": float("nan")},
    ],
)
def test_metric_settings_out_of_range_are_an_error(wrong):
    with pytest.raises(OptionError, match=f"{next(iter(wrong))}=.*: give"):
        MetricSettings(**wrong)
