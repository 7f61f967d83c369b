"""``hookline runs importance``: the settings that matter for a metric."""

import json

import pytest
from finished_runs import record


@pytest.fixture
def _runs():
    for place in range(12):
        record(f"r{place}", losses=[9.0, float(place)], config={"lr": place / 10, "opt": "ab"[place % 2]})


@pytest.mark.usefixtures("_runs")
def test_importance_lists_settings_with_share_p_value_and_correlation(cli):
    result = cli("runs", "importance", "loss")
    assert result.exit_code == 0
    rows = [line.split() for line in result.stdout.splitlines()]
    assert [row[0] for row in rows if row[:1] in (["lr"], ["opt"])] == ["lr", "opt"]
    assert next(row for row in rows if row[:1] == ["lr"])[-1] == "+1.00"
    assert "The 3 lowest of 12 runs, compared with all." in result.stderr


@pytest.mark.usefixtures("_runs")
def test_importance_as_json_has_the_same_rows_and_says_if_there_are_too_few_runs(cli):
    document = json.loads(cli("runs", "importance", "loss", "--mode", "max", "--json").stdout)
    assert (document["mode"], document["runs"], document["settings"][0]["setting"]) == ("max", 12, "lr")
    few = cli("runs", "importance", "loss", "--where", "lr < 0.5", "--json")
    assert (few.exit_code, json.loads(few.stdout)["settings"]) == (1, [])
    assert "at least 10 are needed" in json.loads(few.stdout)["problem"]


@pytest.mark.usefixtures("_runs")
def test_importance_counts_the_runs_of_the_given_project_only(cli):
    for place in range(10):
        record(f"other{place}", losses=[float(place)], project="other", config={"lr": place})
    document = json.loads(cli("runs", "importance", "loss", "--project", "other", "--json").stdout)
    assert (document["runs"], [row["setting"] for row in document["settings"]]) == (10, ["lr"])
