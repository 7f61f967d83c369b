"""All built-in callbacks together in every trainer: each works, or warns at the start why it cannot."""

import hosts
import pytest
from hosts import differences, matrix
from hosts.base import BATCHES, STEPS
from hosts.effects import EFFECTS
from hosts.scenarios import builtins
from test_subscribers import built_in


@pytest.mark.parametrize("name", hosts.HOSTS)
def test_host_shows_an_effect_of_every_built_in_callback_that_does_not_warn(name, tmp_path, caplog):
    facts = builtins(hosts.make(name, tmp_path))
    idle, partly = differences.idle(name), differences.partly(name)
    steps = [STEPS, STEPS] if name in differences.PASSIVE else [BATCHES, STEPS]
    assert facts == {"failing": [], "idle": sorted(idle), "partly": sorted(partly), "steps": steps}
    said = [record.getMessage() for record in caplog.records if record.name.startswith("hookline")]
    limits = {each: [text for text in said if text.startswith(f"{each} ")] for each in idle}
    assert [each for each, texts in limits.items() if not texts] == []
    explained = [text for each in (*idle, *partly) for text in said if text.startswith(f"{each} ")]
    assert [text for text in said if "state" in text and text not in explained] == []
    matrix.check(matrix.builtins_found(name), "builtins", name)


def test_every_built_in_callback_has_a_known_effect():
    assert sorted(EFFECTS) == built_in()
