"""All built-in callbacks together in every trainer: nothing fails, and all of them go on from a checkpoint."""

import hosts
import pytest
from hosts import differences, matrix
from hosts.base import BATCHES, STEPS
from hosts.built_in import make_all
from hosts.scenarios import builtins


@pytest.mark.parametrize("name", hosts.HOSTS)
def test_host_runs_every_built_in_callback_and_takes_it_up_again(name, tmp_path, caplog):
    facts = builtins(hosts.make(name, tmp_path), make_all)
    assert facts == {"failing": differences.failing(name), "steps": [BATCHES, STEPS]}
    said = [record.getMessage() for record in caplog.records if record.name == "hookline"]
    assert [text for text in said if "state" in text] == []
    matrix.check({each: differences.FAILING[name, each] for each in facts["failing"]}, "builtins", name)
