"""Argument checks: accepted values and error messages."""

import math

import numpy as np
import pytest

from hookline._engine.checks import require_integer, require_number
from hookline._engine.errors import OptionError


@pytest.mark.parametrize(
    ("value", "options", "expected"), [(3, {}, 3), (np.int64(2), {}, 2), (None, {"optional": True}, None)]
)
def test_require_integer_accepted_value_is_returned(value, options, expected):
    assert require_integer("every", value, **options) == expected


@pytest.mark.parametrize("value", [0, True, 1.0, "1", None])
def test_require_integer_other_value_is_refused_with_its_name(value):
    with pytest.raises(OptionError, match=r"every=.*: give a whole number of at least 1\."):
        require_integer("every", value)


def test_require_integer_limits_stand_in_the_error():
    with pytest.raises(OptionError, match=r"code=256: give a whole number from 0 to 255, or None\."):
        require_integer("code", 256, minimum=0, maximum=255, optional=True)


@pytest.mark.parametrize(("value", "options"), [(1, {}), (0.5, {"above": 0}), (np.float32(0.25), {"minimum": 0.25})])
def test_require_number_accepted_value_is_returned_as_a_float(value, options):
    assert require_number("seconds", value, **options) == float(value)


@pytest.mark.parametrize("value", [math.nan, math.inf, 0, -1, True, "1", None])
def test_require_number_other_value_is_refused_with_its_name(value):
    with pytest.raises(OptionError, match=r"seconds=.*: give a finite number greater than 0\."):
        require_number("seconds", value, above=0)


def test_require_number_limits_stand_in_the_error():
    with pytest.raises(OptionError, match=r"share=2: give a finite number of at least 0 and of at most 1, or None\."):
        require_number("share", 2, minimum=0, maximum=1, optional=True)
