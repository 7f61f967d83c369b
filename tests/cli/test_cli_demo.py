"""``hookline demo``: it learns, it stops early, and what is broken in it hurts nobody."""

import re

SUBSCRIBERS = ["broken_pager", "early_stopping", "overfitting", "progress_bar", "weight_norm"]


def test_demo_stops_early_disables_the_broken_observer_and_accounts_for_all(program):
    result = program("demo")
    assert result.returncode == 0
    assert "demo stopped (early stopping: val/loss has not improved" in result.stderr
    assert "broken_pager is DISABLED from here on: it failed 3 times in a row." in result.stderr
    assert "broken_pager (3 errors, DISABLED) hurt nobody" in result.stdout
    assert "Traceback" not in result.stderr
    assert {"overfitting/gap", "weight_norm/l2", "val/loss"} <= set(result.stderr.split())
    costs = re.findall(r"^ *(\w+) +[\d,]+ +[\d.]+ (?:s|ms|µs|ns) ", result.stderr, flags=re.MULTILINE)
    assert sorted(costs) == SUBSCRIBERS


def test_demo_few_epochs_ends_with_all_steps_done(cli):
    result = cli("demo", "--epochs", "15")
    assert result.exit_code == 0
    assert "The run completed at step 120 of 120: all steps are done." in result.stdout
