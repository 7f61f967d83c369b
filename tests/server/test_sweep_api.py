"""The endpoints of the sweep view: which runs, which settings and values, and the importance of settings."""

import math
import urllib.parse

import pytest
from page_runs import HOSTILE, append, begun, ended, finished_run, make_run, row
from sending import ask

import hookline as hl
from hookline.server import WebServer


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("sweep") / "runs"
    for place in range(12):
        config = {"lr": place / 10, "opt": {"name": HOSTILE if place % 2 else "adam"}, "same": 1, "seed": place}
        finished_run(root, f"r{place:02}", (9.0, place + 1.0), "sweep", config=config, started=2000.0 + place)
    finished_run(root, "diverged", (9.0, math.nan), "sweep", config={"lr": 9.0, "layers": [1, 2]}, started=1000.0)
    failed = make_run(root, "failed", "sweep", config={"lr": True}, started=1500.0)
    append(failed, begun(2), row(1, loss=0.1, accuracy=0.5), ended(1, "failed"))
    finished_run(root, "alone", project="later", config={"lr": 1.0}, started=9000.0)
    with WebServer(root) as started:
        yield started


def get(server, path="sweep", **query):
    return ask(server, "GET", f"/api/{path}?{urllib.parse.urlencode(query, doseq=True)}")


def test_sweep_without_a_selection_is_the_latest_project_with_several_configurations(server):
    found = get(server).json
    assert (found["project"], found["runs"], found["metric"], found["mode"]) == ("sweep", 14, "loss", "min")
    assert found["ids"][:2] == ["sweep/r11", "sweep/r10"]
    assert (found["statuses"][-2:], found["started"][0]) == (["failed", "finished"], 2011.0)
    columns = {each["field"]: each for each in found["columns"]}
    assert list(columns) == ["lr", "opt.name", "same", "config.seed", "layers", "loss"]
    assert columns["lr"]["values"][-3:] == [0.0, True, 9.0]
    assert columns["opt.name"]["values"][:2] == [HOSTILE, "adam"]
    assert (columns["layers"]["values"][-1], columns["layers"]["is_exact"]) == ("[1, 2]", False)
    assert columns["loss"]["values"][-2:] == [0.1, "NaN"]


@pytest.mark.parametrize(
    ("query", "runs", "metric"),
    [
        ({"where": "lr < 0.25"}, 3, "loss"),
        ({"where": 'project = "later"'}, 1, "loss"),
        ({"run": ["sweep/r00", "sweep/r01", "no/such"]}, 2, "loss"),
        ({"metric": "min(loss)", "where": "lr < 0.25"}, 3, "min(loss)"),
        ({"metric": "nothing"}, 14, "nothing"),
    ],
)
def test_sweep_is_about_the_selected_runs_and_any_metric(server, query, runs, metric):
    found = get(server, **query).json
    assert (found["runs"], found["metric"], len(found["ids"])) == (runs, metric, runs)
    assert {len(each["values"]) for each in found["columns"]} == {runs}


def test_sweep_has_other_fields_that_are_asked_for(server):
    found = get(server, column=["accuracy", "max(loss)"], where="status = failed").json
    assert [(each["field"], each["values"]) for each in found["columns"]] == [
        ("loss", [0.1]),
        ("accuracy", [0.5]),
        ("max(loss)", [0.1]),
    ]


def test_importance_rates_the_settings_and_is_refused_for_few_runs(server):
    found = get(server, "importance").json
    assert (found["metric"], found["runs"], found["diverged"], found["left_out"]) == ("loss", 13, 1, 1)
    assert (found["settings"][0]["setting"], found["settings"][0]["correlation"] is not None) == ("lr", True)
    few = get(server, "importance", where="lr < 0.25").json
    assert (few["settings"], few["problem"].partition(";")[0]) == ([], "3 completed runs have a value of loss")


@pytest.mark.parametrize(
    "query", [{"mode": "up"}, {"metric": "min("}, {"where": "lr >"}, {"column": ""}, {"nothing": "1"}]
)
@pytest.mark.parametrize("path", ["sweep", "importance"])
def test_sweep_refuses_parameters_that_it_cannot_read(server, path, query):
    assert get(server, path, **query).status == 400


def test_empty_root_has_an_empty_sweep(tmp_path):
    (tmp_path / "runs").mkdir()
    with WebServer(tmp_path / "runs") as empty:
        assert (get(empty).json["ids"], get(empty).json["metric"]) == ([], "")
        assert get(empty, "importance").json["problem"].startswith("0 completed runs")


def test_trials_of_a_search_are_a_sweep_and_an_experiment(tmp_path):
    def train(ctx, run):
        return {"score": run.config["x"]}

    search = hl.Optuna({"x": {"low": 0.0, "high": 1.0}}, metric="score", trials=3, pruner="none")
    arm = hl.Arm("a", {"x": 0.0, "same": 1}, train=train)
    result = hl.Experiment("found", [arm], search=search, output_dir=tmp_path / "found").run(report=False)
    assert result.search is not None
    with WebServer(tmp_path) as started:
        sweep = get(started, metric="score").json
        shown = ask(started, "GET", "/api/experiment?project=found").json
    chosen = [trial.parameters["x"] for trial in result.search.trials]
    columns = {each["field"]: each["values"] for each in sweep["columns"]}
    assert columns == {"config.x": chosen[::-1], "score": chosen[::-1]}
    assert [(row["arm"], row["mean"]) for row in shown["table"]] == [
        (trial.arm, trial.values[0]) for trial in result.search.trials
    ]
