"""Quantiles of Student's t, against SciPy's."""

import numpy as np
import pytest

from hookline._engine.errors import OptionError
from hookline.experiment.results.statistics import quantile

stats = pytest.importorskip("scipy.stats")

PROBABILITIES = [1e-9, 0.001, 0.025, 0.2, 0.4999, 0.5001, 0.75, 0.9, 0.975, 0.995, 0.9999]


@pytest.mark.parametrize("probability", PROBABILITIES)
def test_quantile_of_whole_degrees_of_freedom_agrees_with_scipy(probability):
    degrees = np.arange(1, 1001)

    ours = [quantile(probability, int(freedom)) for freedom in degrees]

    np.testing.assert_allclose(ours, stats.t.ppf(probability, degrees), rtol=1e-6)


@pytest.mark.parametrize("probability", PROBABILITIES)
def test_quantile_of_fractional_degrees_of_freedom_agrees_with_scipy(probability):
    degrees = np.concatenate([[0.3, 0.75, 1.001, 1.5], np.geomspace(1.1, 1e7, 200)])

    ours = [quantile(probability, float(freedom)) for freedom in degrees]

    np.testing.assert_allclose(ours, stats.t.ppf(probability, degrees), rtol=1e-6)


def test_quantile_of_one_half_is_zero():
    assert quantile(0.5, 3.3) == 0.0


def test_quantile_is_symmetric():
    assert quantile(0.025, 5.5) == pytest.approx(-quantile(0.975, 5.5), rel=1e-12)


@pytest.mark.parametrize(
    ("probability", "freedom"), [(0.0, 3), (1.0, 3), (float("nan"), 3), (0.9, 0), (0.9, float("nan"))]
)
def test_quantile_of_what_is_none_is_refused(probability, freedom):
    with pytest.raises(OptionError, match="give a number"):
        quantile(probability, freedom)
