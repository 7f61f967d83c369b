"""MLflow's routes over an object store: several servers, a lost local copy, artifacts and experiments."""

import json
import shutil
import urllib.parse

import pytest

pytest.importorskip("obstore", reason="object stores need the extra 'storage'")

from sending import WRITE, ask
from waiting import wait_until

import hookline as hl
from hookline.server import WebServer
from hookline.server.root_tokens import Tokens
from hookline.server.storage.service import StorageOptions

PREFIX, FILES = "/api/2.0/mlflow/", "/api/2.0/mlflow-artifacts/artifacts"


@pytest.fixture
def start(bucket, tmp_path):
    """Start a server with its own local copy."""
    started = []

    def start(name):
        (tmp_path / name).mkdir(exist_ok=True)
        options = StorageOptions(bucket, report_seconds=0.1, copy_seconds=0.1, scan_seconds=0.5)
        server = WebServer(tmp_path / name, tokens=Tokens(WRITE), storage=options)
        started.append(server.__enter__())
        return server

    yield start
    for server in started:
        server.stop()


def post(server, path, document):
    return ask(server, "POST", PREFIX + path, body=json.dumps(document))


def get_run(server, run_id):
    return ask(server, "GET", f"{PREFIX}runs/get?run_id={run_id}")


def new_run(server, name):
    experiment_id = post(server, "experiments/create", {"name": name, "tags": [{"key": "a", "value": "b"}]}).json
    return post(server, "runs/create", experiment_id | {"run_name": "night"}).json["run"]["info"]["run_id"]


def log(server, run_id, step, **texts):
    metrics = [{"key": "loss", "value": step, "step": step, "timestamp": 1_700_000_000_000 + step}]
    params = [{"key": key, "value": value} for key, value in texts.items()]
    return post(server, "runs/log-batch", {"run_id": run_id, "metrics": metrics, "params": params}).status


def test_runs_are_kept_in_the_store_and_any_server_continues_them(start, tmp_path):
    first, second = start("first"), start("second")
    run_id = new_run(first, "/team/exp")
    for step, server in enumerate((first, second, first)):
        assert log(server, run_id, step, **{f"p{step}": "x"}) == 200
    (described,) = (tmp_path / "first").rglob("run.json")
    assert json.loads(described.read_bytes())["config"] == {"p0": "x", "p1": "x", "p2": "x"}
    place = get_run(second, run_id).json["run"]["info"]["artifact_uri"].removeprefix("mlflow-artifacts:/")
    assert ask(second, "PUT", f"{FILES}/{place}/big.bin", body=bytes(range(256)) * 40_000).status == 200
    assert post(second, "runs/update", {"run_id": run_id, "status": "FINISHED"}).status == 200
    for server in (first, second):
        server.stop()
    shutil.rmtree(tmp_path / "first")
    again = start("first")
    wait_until(lambda: get_run(again, run_id).status == 200)
    run = get_run(again, run_id).json["run"]
    assert (run["info"]["status"], run["info"]["run_name"]) == ("FINISHED", "night")
    assert {each["key"] for each in run["data"]["params"]} == {"p0", "p1", "p2"}
    found = ask(again, "GET", f"{PREFIX}metrics/get-history?run_id={run_id}&metric_key=loss").json["metrics"]
    assert [each["value"] for each in found] == [0.0, 1.0, 2.0]
    assert ask(again, "GET", f"{FILES}/{place}/big.bin").body == bytes(range(256)) * 40_000
    name = urllib.parse.quote("/team/exp")
    experiment = ask(again, "GET", f"{PREFIX}experiments/get-by-name?experiment_name={name}").json["experiment"]
    assert experiment["tags"] == [{"key": "a", "value": "b"}]
    wait_until(lambda: [run.status for run in hl.runs(tmp_path / "first")] == ["finished"])
    found = post(again, "runs/search", {"experiment_ids": [experiment["experiment_id"]]}).json["runs"]
    assert [each["info"]["run_id"] for each in found] == [run_id]


def test_logged_model_is_an_artifact_of_the_store(start):
    server = start("only")
    run_id = new_run(server, "exp")
    experiment_id = get_run(server, run_id).json["run"]["info"]["experiment_id"]
    created = post(server, "logged-models", {"experiment_id": experiment_id, "name": "net", "source_run_id": run_id})
    model_id = created.json["model"]["info"]["model_id"]
    place = created.json["model"]["info"]["artifact_uri"].removeprefix("mlflow-artifacts:/")
    assert ask(server, "PUT", f"{FILES}/{place}/MLmodel", body=b"flavors: {}").status == 200
    ready = ask(server, "PATCH", f"{PREFIX}logged-models/{model_id}", body=b'{"status": "LOGGED_MODEL_READY"}')
    assert ready.json["model"]["info"]["status"] == "LOGGED_MODEL_READY"
    wait_until(lambda: hl.artifact("exp/net", root=server.runs.root).files[0].path == "MLmodel")


def test_deleting_a_run_hides_it_from_searches_but_not_from_hookline(start):
    server = start("only")
    run_id = new_run(server, "exp")
    experiment_id = get_run(server, run_id).json["run"]["info"]["experiment_id"]
    assert post(server, "runs/delete", {"run_id": run_id}).status == 200
    search = {"experiment_ids": [experiment_id]}
    assert post(server, "runs/search", search).json["runs"] == []
    assert len(post(server, "runs/search", search | {"run_view_type": "DELETED_ONLY"}).json["runs"]) == 1
    assert [run.archived for run in hl.runs(server.runs.root)] == [False]
