"""``hookline demo``: it learns, it stops early, and what is broken in it hurts nobody."""

import re

SUBSCRIBERS = ["broken_pager", "early_stopping", "overfitting", "progress_bar", "weight_norm"]


def test_demo_stops_early_and_accounts_for_every_subscriber(program):
    result = program("demo")
    assert result.returncode == 0
    assert "demo stopped (early stopping: val/loss has not improved" in result.stderr
    rows = re.findall(r"^ *(\w+) +[\d,]+ .*[mµn]?s", result.stderr, flags=re.MULTILINE)
    assert sorted(rows) == SUBSCRIBERS
    assert "overfitting/gap" in result.stderr
    assert "weight_norm/l2" in result.stderr
    assert "All 5 subscribers together took" in result.stdout


def test_demo_few_epochs_ends_with_all_steps_done(cli):
    result = cli("demo", "--epochs", "15")
    assert result.exit_code == 0
    assert "The run completed at step 120 of 120: all steps are done." in result.stdout
