"""The endpoints of the comparison and of a run's page: responses and refusals."""

import json
import math

import pytest
from page_runs import HOSTILE, append, event, finished_run, make_run, row
from sending import ask

import hookline as hl
from hookline.server import WebServer


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Runs with checkpoints and artifacts; the journal of one names missing files."""
    root = tmp_path_factory.mktemp("compare") / "runs"
    rule = {"checkpoint": {"monitor": "val/loss", "every_n_steps": 2}}
    with hl.run("trained", root=root, project="p", callbacks=[rule], config={"lr": 0.1}, summary=False) as run:
        for step in run.steps(6):
            run.log({"val/loss": 6.0 - step, "loss": math.nan if step == 5 else 1.0})
        (root.parent / "weights.txt").write_text("1")
        run.save_artifact("model", root.parent / "weights.txt", kind="model")
    with hl.run("user", root=root, project="p", summary=False) as user:
        user.use_artifact("model:v0")
    values = {"loss": "NaN", "x": HOSTILE}
    saved = [
        event("checkpoint", 1, path="/elsewhere/step-1", bytes=-5, kind=[HOSTILE], values=values),
        event("checkpoint", 2, path=5),
        event("artifact_saved", 2, artifact=HOSTILE, version=HOSTILE, kind=5),
    ]
    finished_run(root, "odd", more=saved, config={"lr": "x" * 5000, HOSTILE: HOSTILE})
    make_run(root, "nothing")
    directory = make_run(root, "changed")
    append(directory, row(1, loss=1.0))
    (directory / "git.diff").write_text("0123456789")
    facts = {"sessions": [{"git": {"commit": "c0ffee", "changed": True}}]}
    (directory / "environment.json").write_text(json.dumps(facts))
    return root


@pytest.fixture(scope="module")
def server(root):
    with WebServer(root) as started:
        yield started


@pytest.fixture(scope="module")
def ids(server):
    return {run["name"]: run["id"] for run in ask(server, "GET", "/api/runs").json["runs"]}


def get(server, path, **query):
    return ask(server, "GET", f"/api/{path}", **query)


def test_checkpoints_say_which_are_kept_and_which_deleted(server, ids):
    found = get(server, "run/checkpoints", run=ids["trained"]).json["checkpoints"]
    assert [(each["step"], each["state"], each["values"]) for each in found] == [
        (2, "deleted", {"val/loss": 5.0}),
        (4, "deleted", {"val/loss": 3.0}),
        (6, "kept", {"val/loss": 1.0}),
    ]
    assert found[2]["path"] == "checkpoints/step-00000006"
    [odd] = get(server, "run/checkpoints", run=ids["odd"]).json["checkpoints"]
    assert (odd["state"], odd["bytes"], odd["values"]) == ("elsewhere", 0, {"loss": "NaN"})


def test_artifacts_of_a_run_have_the_runs_before_and_after_them(server, ids):
    [saved] = get(server, "run/artifacts", run=ids["trained"]).json["artifacts"]
    assert (saved["artifact"], saved["version"], saved["role"], saved["exists"]) == ("p/model", "v0", "saved", True)
    assert saved["others"] == [{"run": ids["user"], "role": "used", "exists": True}]
    [used] = get(server, "run/artifacts", run=ids["user"]).json["artifacts"]
    assert (used["role"], used["others"]) == ("used", [{"run": ids["trained"], "role": "saved", "exists": True}])
    [odd] = get(server, "run/artifacts", run=ids["odd"]).json["artifacts"]
    assert (odd["artifact"], odd["exists"]) == (HOSTILE, False)


def test_values_of_a_run_have_extremes_and_count_what_is_not_finite(server, ids):
    found = {each["name"]: each for each in get(server, "run/values", run=ids["trained"]).json["metrics"]}
    val, loss = found["val/loss"], found["loss"]
    assert (val["last"], val["best"], val["max"], val["step"], len(val["y"])) == (1.0, 1.0, 6.0, 6, 6)
    assert (loss["last"], loss["min"], loss["not_finite"]) == ("NaN", 1.0, 1)
    assert get(server, "run/values", run=ids["nothing"]).json == {"total": 0, "metrics": []}


def test_comparison_cuts_long_values_and_has_texts_for_numbers_that_json_lacks(server, ids):
    reply = ask(server, "GET", f"/api/compare?run={ids['trained']}&run={ids['odd']}&base={ids['odd']}").json
    lr = next(each for each in reply["config"] if each["name"] == "lr")
    assert (reply["baseline"], lr["values"][0], len(lr["values"][1])) == (1, 0.1, 1000)
    loss = next(each for each in reply["metrics"] if each["name"] == "loss")
    assert (loss["last"], loss["best_difference"]) == (["NaN", 1.0], [0.0, 0.0])


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("run=p/odd", "give two or more runs"),
        ("run=p/odd&run=p/nothing&base=p/other", "There is no run"),
        ("run=p/odd&" * 51, "at most 50 runs are compared"),
        ("run=p/odd&run=p/no", "There is no run"),
    ],
)
def test_comparison_that_is_not_possible_is_refused_with_the_reason(server, query, problem):
    reply = ask(server, "GET", f"/api/compare?{query.rstrip('&')}")
    assert (reply.status in (400, 404), problem in reply.json["error"]) == (True, True)


def test_diff_is_sent_as_long_as_requested(server):
    for count, sent in ((0, ""), (4, "0123"), (99, "0123456789")):
        found = get(server, "environment", id="p/changed", diff_characters=count).json
        assert (found["diff"], found["diff_characters"]) == (sent, 10)
