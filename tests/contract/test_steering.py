"""One callback controls every trainer: stops, checkpoints, metrics, errors and resumes have the same outcome."""

import hosts
import pytest
from hosts import matrix, steering
from hosts.differences import STEERING_DIFFERENCES
from hosts.scenarios import SCENARIOS


@pytest.mark.parametrize("scenario", steering.EXPECTED)
@pytest.mark.parametrize("name", hosts.HOSTS)
def test_host_applies_requests_like_every_other(name, scenario, tmp_path):
    facts = SCENARIOS[scenario](hosts.make(name, tmp_path))
    del facts["told"]
    assert facts == steering.expected(name, scenario)
    matrix.check(steering.notes(name, scenario), "steering", name, scenario)


def test_steering_differences_are_real_differences():
    assert [each for each in STEERING_DIFFERENCES if steering.EXPECTED[each.scenario][each.fact] == each.value] == []
