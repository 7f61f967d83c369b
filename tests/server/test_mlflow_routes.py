"""The routes of MLflow's clients by themselves: refusals, repeated posts, restarts, several servers, searches."""

import contextlib
import functools
import json
import os
import re
import shutil
import signal
import socket
import threading
import urllib.parse
import weakref
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sending import READ, TOKENS, WRITE, ask, claim, tree

import hookline as hl
from hookline._record.compression import compress_directory
from hookline.server import WebServer
from hookline.server.audit import AuditLog
from hookline.server.mlflow import runs as mlflow_runs
from hookline.server.mlflow import state as mlflow_state
from hookline.server.mlflow.experiments import DirectoryExperiments, Experiments
from hookline.server.mlflow.run_handlers import _thinned
from hookline.server.mlflow.search import Entity, is_like, ordered, parse_filter, parse_order
from hookline.server.received_blobs import BlobLimits
from hookline.server.received_runs import ReceivedRuns
from hookline.server.root_tokens import Tokens
from hookline.store import QueryTimeoutError
from hookline.store.query_limits import QueryLimit

PREFIX = "/api/2.0/mlflow/"
FILES = "/api/2.0/mlflow-artifacts/artifacts"
ATTRIBUTES = ("name", "status", "start_time")


@pytest.fixture
def server(root, serve):
    return serve(root, tokens=Tokens(WRITE))


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A shared server for tests that change only their own run."""
    root = tmp_path_factory.mktemp("shared") / "runs"
    root.mkdir()
    with WebServer(root, tokens=Tokens(WRITE)) as started:
        yield started


@pytest.fixture(scope="module")
def protected(tmp_path_factory):
    """A server that has a read token."""
    root = tmp_path_factory.mktemp("protected") / "runs"
    root.mkdir()
    with WebServer(root, tokens=TOKENS) as started:
        yield started


def post(server, path, document=None, *, method="POST", **more):
    body = document if isinstance(document, bytes) else json.dumps(document or {})
    return ask(server, method, PREFIX + path, body=body, **more)


def get(server, path, /, **query):
    return ask(server, "GET", f"{PREFIX}{path}?{urllib.parse.urlencode(query)}")


def listed(server, place):
    """The response to a listing of a folder."""
    return ask(server, "GET", f"{FILES}?{urllib.parse.urlencode({'path': place})}")


def new_run(server, name="exp", **more):
    """The id of a new run of an experiment."""
    found = get(server, "experiments/get-by-name", experiment_name=name)
    if found.status == 200:
        experiment_id = found.json["experiment"]["experiment_id"]
    else:
        experiment_id = post(server, "experiments/create", {"name": name}).json["experiment_id"]
    return post(server, "runs/create", {"experiment_id": experiment_id, **more}).json["run"]["info"]["run_id"]


def metric(key, value, step=0, timestamp=1_700_000_000_000):
    return {"key": key, "value": value, "step": step, "timestamp": timestamp}


def log(server, run_id, metrics=(), params=(), tags=()):
    texts = {name: [{"key": k, "value": v} for k, v in given] for name, given in (("params", params), ("tags", tags))}
    return post(server, "runs/log-batch", {"run_id": run_id, "metrics": list(metrics), **texts})


def data(server, run_id):
    found = get(server, "runs/get", run_id=run_id).json["run"]["data"]
    return {each["key"]: each["value"] for kind in ("metrics", "params", "tags") for each in found[kind]}


def history(server, run_id, key, **more):
    found = get(server, "metrics/get-history", run_id=run_id, metric_key=key, **more).json
    return [(each["step"], each["value"]) for each in found["metrics"]], found.get("next_page_token")


def put_file(server, place, content, **more):
    return ask(server, "PUT", f"{FILES}/{place}", body=content, **more)


def home_of(server, run_id):
    return get(server, "runs/get", run_id=run_id).json["run"]["info"]["artifact_uri"].removeprefix("mlflow-artifacts:/")


def rows(root, run_id, project="exp"):
    return [record.values for record in hl.read(root / project / run_id) if type(record).__name__ == "Metrics"]


def test_values_of_a_post_that_comes_twice_are_recorded_once(server, root):
    run_id = new_run(server)
    batch = [metric("loss", 1 / (step + 1), step, 1_700_000_000_000 + step) for step in range(500)]
    for _ in range(3):
        assert log(server, run_id, batch).status == 200
    assert log(server, run_id, [*batch[:2], *batch[:2], metric("loss", 9, 500)]).status == 200
    assert history(server, run_id, "loss")[0] == [(m["step"], m["value"]) for m in batch] + [(500, 9.0)]
    assert len(rows(root, run_id)) == 501


def test_equal_values_at_other_times_are_all_recorded(server):
    run_id = new_run(server)
    for at in range(3):
        log(server, run_id, [metric("loss", 1.0, 5, 1_700_000_000_000 + at)])
    log(server, run_id, [metric("loss", 1.0, 5), metric("loss", 2.0, 5)])
    assert history(server, run_id, "loss")[0] == [(5, 1.0), (5, 1.0), (5, 1.0), (5, 2.0)]


def test_repeated_post_is_noticed_after_a_restart(root, serve):
    first = serve(root, tokens=Tokens(WRITE))
    run_id = new_run(first)
    batch = [metric("loss", step, step) for step in range(100)]
    log(first, run_id, batch)
    first.stop()
    second = serve(root, tokens=Tokens(WRITE))
    log(second, run_id, batch)
    assert len(history(second, run_id, "loss")[0]) == 100


@pytest.mark.parametrize("is_ended", [False, True], ids=["running", "ended"])
def test_state_of_a_run_is_the_same_after_a_restart(root, serve, is_ended, monkeypatch):
    monkeypatch.setattr(mlflow_runs, "SNAPSHOT_BYTES", 2000)
    first = serve(root, tokens=Tokens(WRITE))
    run_id = new_run(first, run_name="night", user_id="me", tags=[{"key": "a", "value": "b"}])
    for step in range(50):
        log(
            first, run_id, [metric("loss", "NaN" if step % 2 else 1 / (step + 1), step), metric("acc", step, 50 - step)]
        )
    log(first, run_id, [], [("lr", "0.1")], [("c", "d"), ("mlflow.runName", "day")])
    post(first, "runs/delete-tag", {"run_id": run_id, "key": "a"})
    dataset = {"dataset": {"name": "train", "digest": "1"}, "tags": [{"key": "mlflow.data.context", "value": "x"}]}
    post(first, "runs/log-inputs", {"run_id": run_id, "datasets": [dataset], "models": [{"model_id": "m-1"}]})
    put_file(first, f"{home_of(first, run_id)}/a/b.txt", b"hello")
    if is_ended:
        post(first, "runs/update", {"run_id": run_id, "status": "FINISHED", "end_time": 1_700_000_100_000})
    before = get(first, "runs/get", run_id=run_id).json
    first.stop()
    assert (root / "exp" / run_id / mlflow_state.SNAPSHOT).is_file()
    second = serve(root, tokens=Tokens(WRITE))
    assert get(second, "runs/get", run_id=run_id).json == before
    assert before["run"]["info"]["run_name"] == "day"
    assert before["run"]["inputs"]["dataset_inputs"][0]["dataset"]["name"] == "train"
    (root / "exp" / run_id / mlflow_state.SNAPSHOT).write_text("{}")
    second.stop()
    third = serve(root, tokens=Tokens(WRITE))
    assert get(third, "runs/get", run_id=run_id).json == before
    assert listed(third, f"{home_of(third, run_id)}/a").json == {
        "files": [{"path": "b.txt", "is_dir": False, "file_size": 5}]
    }


def test_two_servers_on_one_directory_see_each_others_changes(root, serve):
    one, other = serve(root, tokens=Tokens(WRITE)), serve(root, tokens=Tokens(WRITE))
    run_id = new_run(one)
    for step in range(4):
        log(one if step % 2 else other, run_id, [metric("loss", step, step)], [(f"p{step}", "x")], [(f"t{step}", "y")])
    assert data(one, run_id) == data(other, run_id)
    assert {f"{kind}{step}" for kind in "pt" for step in range(4)} < data(one, run_id).keys()
    assert [run.config for run in hl.runs(root)] == [{f"p{step}": "x" for step in range(4)}]
    assert len(history(one, run_id, "loss")[0]) == 4


def test_values_of_many_clients_at_once_are_all_recorded(server):
    run_id = new_run(server)

    def send(name):
        for step in range(20):
            assert log(server, run_id, [metric(name, step, step)], [(f"{name}{step}", "1")]).status == 200

    senders = [threading.Thread(target=send, args=(f"m{number}",)) for number in range(6)]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    assert [len(history(server, run_id, f"m{number}")[0]) for number in range(6)] == [20] * 6
    assert len([key for key in data(server, run_id) if key.startswith("m") and key != "mlflow.runName"]) == 6 + 120


def test_killed_server_has_kept_what_it_acknowledged(start_process, tmp_path):
    (tmp_path / "runs").mkdir()
    server = start_process()
    run_id = new_run(server.url)
    for step in range(200):
        assert log(server.url, run_id, [metric("loss", step, step)], [(f"p{step}", "1")]).status == 200
    server.send_signal(signal.SIGKILL)
    server.wait()
    again = start_process()
    assert history(again.url, run_id, "loss")[0] == [(step, float(step)) for step in range(200)]
    assert len([key for key in data(again.url, run_id) if key.startswith("p")]) == 200


def test_history_comes_in_pages(server):
    run_id = new_run(server)
    for start in range(0, 3000, 1000):
        values = [metric("loss", step, step, 1_700_000_000_000 + step) for step in range(start, start + 1000)]
        log(server, run_id, [*values[:500], metric("other", 1.0), *values[500:]][:1000])
    found, token, pages = [], "", 0
    while token is not None:
        some, token = history(server, run_id, "loss", max_results=700, page_token=token)
        found += some
        pages += 1
    assert (len(found), found == sorted(found), pages) == (2997, True, 5)
    thinned = get(
        server, "metrics/get-history-bulk-interval", run_ids=run_id, metric_key="loss", max_results=10, start_step=100
    ).json["metrics"]
    assert (len(thinned), thinned[0]["step"], thinned[-1]["step"]) == (11, 100, 2998)


def test_thinned_history_keeps_its_ends_and_holds_few_values_at_a_time():
    class Point:
        """A value that can be referenced weakly."""

        def __init__(self, step):
            self.step = step

    alive: weakref.WeakSet[Point] = weakref.WeakSet()
    most = 0

    def points():
        nonlocal most
        for step in range(20_000):
            point = Point(step)
            alive.add(point)
            most = max(most, len(alive))
            yield point

    thinned: list[Any] = _thinned(points(), 10)
    kept = [point.step for point in thinned]
    assert (kept[0], kept[-1], len(kept) <= 11, most < 100) == (0, 19_999, True, True)
    assert _thinned(iter([]), 10) == []


def test_history_is_not_read_further_when_the_client_has_left(root, serve):
    server = serve(root, tokens=Tokens(WRITE))
    run_id = new_run(server)
    log(server, run_id, [metric("loss", 1.0)])
    received = ReceivedRuns(root)
    runs = mlflow_runs.MlflowRuns(received, Experiments(root, DirectoryExperiments(root)))
    assert [value for _, value, *_ in runs.values("exp", run_id, "loss")] == [1.0]
    limit = QueryLimit()
    limit.cancel()
    with limit, pytest.raises(QueryTimeoutError, match="cancelled"):
        list(runs.values("exp", run_id, "loss"))


def test_changes_of_one_model_by_many_clients_at_once_are_all_kept(root, serve):
    servers = [serve(root, tokens=Tokens(WRITE)) for _ in range(2)]
    made = post(servers[0], "logged-models", {"experiment_id": "0", "name": "model"}).json
    model_id = made["model"]["info"]["model_id"]

    def send(number):
        for each in range(10):
            tags = {"tags": [{"key": f"t{number}-{each}", "value": "1"}]}
            assert post(servers[number % 2], f"logged-models/{model_id}/tags", tags, method="PATCH").status == 200

    senders = [threading.Thread(target=send, args=(number,)) for number in range(6)]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    shown = get(servers[0], f"logged-models/{model_id}").json["model"]["info"]["tags"]
    assert {tag["key"] for tag in shown} == {f"t{number}-{each}" for number in range(6) for each in range(10)}


def test_tags_of_one_experiment_by_many_clients_of_two_servers_at_once_are_all_kept(root, serve):
    servers = [serve(root, tokens=Tokens(WRITE)) for _ in range(2)]
    new_run(servers[0])
    experiment_id = get(servers[0], "experiments/get-by-name", experiment_name="exp").json["experiment"][
        "experiment_id"
    ]

    def send(number):
        for each in range(10):
            tag = {"experiment_id": experiment_id, "key": f"t{number}-{each}", "value": "1"}
            assert post(servers[number % 2], "experiments/set-experiment-tag", tag).status == 200

    senders = [threading.Thread(target=send, args=(number,)) for number in range(6)]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    found = get(servers[0], "experiments/get", experiment_id=experiment_id).json["experiment"]["tags"]
    assert {tag["key"] for tag in found} == {f"t{number}-{each}" for number in range(6) for each in range(10)}


def test_models_noted_in_a_tag_by_many_clients_at_once_are_all_kept(server):
    run_id = new_run(server)

    def send(number):
        document = {"run_id": run_id, "model_json": json.dumps({"model": number})}
        assert post(server, "runs/log-model", document).status == 200

    senders = [threading.Thread(target=send, args=(number,)) for number in range(12)]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    noted = json.loads(data(server, run_id)["mlflow.log-model.history"])
    assert sorted(each["model"] for each in noted) == list(range(12))


def test_changes_of_runs_and_experiments_are_in_the_audit_log(server, root):
    run_id = new_run(server)
    experiment_id = get(server, "experiments/get-by-name", experiment_name="exp").json["experiment"]["experiment_id"]
    for step in range(5):
        log(server, run_id, [metric("loss", 1.0, step)])
    put_file(server, f"{home_of(server, run_id)}/a.txt", b"x")
    post(server, "runs/update", {"run_id": run_id, "status": "GONE"})
    post(server, "runs/delete", {"run_id": run_id})
    post(server, "experiments/set-experiment-tag", {"experiment_id": experiment_id, "key": "a", "value": "1"})
    server.stop()
    entries = AuditLog(root).read(10)
    assert {(each.action, each.project, each.target) for each in entries} == {
        ("experiment.created", "exp", ""),
        ("experiment.edited", "exp", ""),
        ("run.claimed", "exp", run_id),
        ("run.written", "exp", run_id),
        ("run.deleted", "exp", run_id),
    }
    assert len(entries) == 5


TOO_MANY = [metric(f"m{number}", 1.0) for number in range(1001)]
REFUSED = {
    "no-json": ("runs/log-batch", b"{", "The body is not valid"),
    "a-list": ("runs/log-batch", b"[]", "The body is not valid"),
    "not-utf8": ("runs/log-batch", b'{"run_id": "\xff"}', "The body is not valid"),
    "deep": ("runs/log-batch", b"[" * 100_000, "The body is not valid"),
    "no-run": ("runs/log-batch", {}, "run_id is missing"),
    "odd-run": ("runs/log-batch", {"run_id": "../../x"}, "give letters, digits"),
    "unknown-run": ("runs/log-batch", {"run_id": "a" * 32}, "There is no run"),
    "unknown-experiment": ("runs/create", {"experiment_id": "123"}, "There is no experiment"),
    "no-name": ("runs/log-batch", {"run_id": "RUN", "metrics": [metric("", 1)]}, "give 1 to 250 printable"),
    "long-name": ("runs/log-batch", {"run_id": "RUN", "metrics": [metric("x" * 251, 1)]}, "give 1 to 250 printable"),
    "control": ("runs/log-batch", {"run_id": "RUN", "metrics": [metric("a\n", 1)]}, "give 1 to 250 printable"),
    "text-value": ("runs/log-batch", {"run_id": "RUN", "metrics": [metric("a", "one")]}, "give a number"),
    "large-step": ("runs/log-batch", {"run_id": "RUN", "metrics": [metric("a", 1, 1 << 60)]}, "fits 53 bits"),
    "large-time": ("runs/log-batch", {"run_id": "RUN", "metrics": [metric("a", 1, 0, 1 << 60)]}, "fits 53 bits"),
    "many": ("runs/log-batch", {"run_id": "RUN", "metrics": TOO_MANY}, "Send at most 1,000 metrics"),
    "params-differ": (
        "runs/log-batch",
        {"run_id": "RUN", "params": [{"key": "a", "value": "1"}, {"key": "a", "value": "2"}]},
        "is '2' and cannot be changed to '1'",
    ),
    "no-tag": ("runs/delete-tag", {"run_id": "RUN", "key": "a"}, "has no tag 'a'"),
    "status": ("runs/update", {"run_id": "RUN", "status": "GONE"}, "give RUNNING, SCHEDULED"),
    "dataset": (
        "runs/log-inputs",
        {"run_id": "RUN", "datasets": [{"dataset": {"name": "a", "digest": "b", "schema": "x" * (1 << 20) + "y"}}]},
        "The request is too large|is too large",
    ),
    "dataset-digest": (
        "runs/log-inputs",
        {"run_id": "RUN", "datasets": [{"dataset": {"name": "a", "digest": "\n"}}]},
        "printable characters",
    ),
    "model-json": ("runs/log-model", {"run_id": "RUN", "model_json": "{"}, "model_json is not valid"),
    "experiment-name": ("experiments/create", {"name": "\n"}, "printable characters"),
    "experiment-long": ("experiments/create", {"name": "x" * 501}, "printable characters"),
    "experiment-tag": ("experiments/delete-experiment-tag", {"experiment_id": "0", "key": "a"}, "has no tag 'a'"),
    "filter": ("runs/search", {"experiment_ids": ["0"], "filter": "metrics.a <"}, "it is not complete"),
    "long-order": (
        "runs/search",
        {"experiment_ids": ["0"], "order_by": [{"field_name": "," * 10_001}]},
        "at most 10,000",
    ),
    "long-filter": ("runs/search", {"filter": "x" * 10_001}, "at most 10,000"),
    "page": ("runs/search", {"experiment_ids": ["0"], "page_token": "-1"}, "give the one of the page before"),
    "many-experiments": ("runs/search", {"experiment_ids": ["0"] * 1001}, "at most 1,000 experiments"),
    "model-status": ("logged-models", {"experiment_id": "0", "name": "\n"}, "printable characters"),
    "model-run": ("logged-models", {"experiment_id": "0", "source_run_id": "RUN"}, "belongs to another experiment"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_request_that_is_not_accepted_is_refused_and_changes_nothing(shared, case):
    path, document, problem = REFUSED[case]
    server, root = shared, shared.runs.root
    run_id = new_run(server)
    before = tree(root)
    if isinstance(document, dict):
        document = json.loads(json.dumps(document).replace('"RUN"', f'"{run_id}"'))
    answer = post(server, path, document)
    assert answer.status in (400, 404)
    assert answer.json["error_code"] in ("INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST")
    assert answer.json["message"] == answer.json["error"]
    assert re.search(problem, answer.json["message"])
    after = tree(root)
    changed = {name for name in before | after if before.get(name) != after.get(name)}
    assert {name for name in changed if not name.endswith("received.json")} == set()


HOSTILE = ["..", "../..", "/etc/passwd", "a/../../b", "a//b", "a/./b", "\\x", "a\nb", "x" * 1001, "y" * 251, "\u202e"]


@pytest.mark.parametrize("path", HOSTILE)
@pytest.mark.parametrize("method", ["PUT", "GET", "DELETE"])
def test_path_of_a_file_that_leads_elsewhere_is_refused(shared, path, method):
    server, root = shared, shared.runs.root
    run_id = new_run(server)
    before = tree(root.parent)
    place = f"{home_of(server, run_id)}/" + urllib.parse.quote(path, safe="")
    answer = ask(server, method, f"{FILES}/{place}", body=b"x" if method == "PUT" else None)
    assert answer.status == (404 if "\n" in path else 400)
    assert answer.json["error_code"] in ("INVALID_PARAMETER_VALUE", "ENDPOINT_NOT_FOUND")
    assert listed(server, f"{home_of(server, run_id)}/{path}").status == 400
    after = tree(root.parent)
    assert {name for name in after if after[name] != before.get(name)} <= {f"runs/exp/{run_id}/received.json"}


@pytest.mark.parametrize("place", ["", "0", "0/x", "0/" + "0" * 32 + "/other", "1/" + "0" * 32 + "/artifacts/a"])
def test_place_that_is_of_no_run_has_no_files(shared, place):
    assert put_file(shared, place or "x", b"x").status in (400, 404)
    assert listed(shared, place).status in (400, 404)


def test_file_that_is_too_large_or_has_no_room_is_refused_before_and_while_it_comes(root, serve):
    limits = BlobLimits(blob_bytes=1000, run_bytes=1500, free_bytes=0)
    server = serve(root, tokens=Tokens(WRITE), blobs=limits)
    run_id = new_run(server)
    place = home_of(server, run_id)
    assert put_file(server, f"{place}/a", b"x" * 1001).json["message"].startswith("The blob has 1,001 bytes")
    chunked = put_file(server, f"{place}/a", iter([b"x" * 600, b"x" * 600]))
    assert chunked.json["error_code"] == "INVALID_PARAMETER_VALUE"
    assert put_file(server, f"{place}/a", b"x" * 900).status == 200
    full = put_file(server, f"{place}/b", b"y" * 900)
    assert (full.status, "of the 1,500 bytes" in full.json["message"]) == (507, True)
    assert [each["path"] for each in listed(server, place).json["files"]] == ["a"]
    assert put_file(server, f"{place}/a/b", b"z").json["message"] == "'a' is a file, so nothing can be in it."
    assert put_file(server, f"{place}/c", b"z", headers={"Content-Encoding": "gzip"}).status == 415


def test_client_with_too_many_uploads_is_refused_until_one_ends(server):
    place = home_of(server, new_run(server))
    host, port = server.url.split("//")[1].strip("/").split(":")
    with contextlib.ExitStack() as stack:
        for number in range(12):
            connection = stack.enter_context(socket.create_connection((host, int(port))))
            head = [f"PUT {FILES}/{place}/{number} HTTP/1.1", f"Host: {host}", f"Authorization: Bearer {WRITE}"]
            connection.sendall("\r\n".join([*head, "Content-Length: 5", "Expect: 100-continue", "", ""]).encode())
            assert connection.recv(100).startswith(b"HTTP/1.1 100 ")  # the server reads the file now
        refused = put_file(server, f"{place}/a", b"y")
        assert (refused.status, refused.headers["Retry-After"]) == (503, "2")
        assert refused.json["message"].startswith("You are sending 12 files already.")
        connection.sendall(b"12345")
        assert connection.recv(100).startswith(b"HTTP/1.1 200 ")
        assert put_file(server, f"{place}/a", b"y").status == 200


def test_upload_that_breaks_off_leaves_nothing(server, root):
    run_id = new_run(server)
    place, before = home_of(server, run_id), tree(root)
    host, port = server.url.split("//")[1].strip("/").split(":")
    with socket.create_connection((host, int(port))) as connection:
        head = [f"PUT {FILES}/{place}/a HTTP/1.1", f"Host: {host}", f"Authorization: Bearer {WRITE}"]
        head += ["Content-Length: 5000000", "", ""]
        connection.sendall("\r\n".join(head).encode() + b"x" * 2_000_000)
    assert put_file(server, f"{place}/b", b"y").status == 200
    assert [each["path"] for each in listed(server, place).json["files"]] == ["b"]
    assert {name for name in tree(root).keys() - before.keys() if "blob" not in name} == set()


def test_file_of_many_pieces_comes_back_and_can_be_replaced_and_removed(server):
    run_id = new_run(server)
    place, content = home_of(server, run_id), os.urandom(20_000_000)
    for each in (content, content[:1000], content):
        assert put_file(server, f"{place}/models/a.bin", each).status == 200
    assert ask(server, "GET", f"{FILES}/{place}/models/a.bin").body == content
    head = ask(server, "HEAD", f"{FILES}/{place}/models/a.bin")
    assert (head.status, head.headers["Content-Length"], head.body) == (200, str(len(content)), b"")
    assert head.headers["Content-Type"] == "application/octet-stream"
    assert get(server, "artifacts/list", run_id=run_id, path="models").json["files"] == [
        {"path": "models/a.bin", "is_dir": False, "file_size": len(content)}
    ]
    assert ask(server, "DELETE", f"{FILES}/{place}/models").status == 200
    assert ask(server, "GET", f"{FILES}/{place}/models/a.bin").status == 404
    assert listed(server, place).json == {"files": []}


def test_upload_in_parts_is_refused_as_the_client_expects_it(server):
    run_id = new_run(server)
    answer = ask(server, "POST", f"/api/2.0/mlflow-artifacts/mpu/create/{home_of(server, run_id)}", body=b"{}")
    assert (answer.status, answer.json["error_code"]) == (501, "NOT_IMPLEMENTED")
    assert answer.json["message"].startswith("Multipart upload is not supported for the current artifact repository")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "experiments/get-by-name"),
        ("POST", "runs/search"),
        ("POST", "experiments/search"),
        ("POST", "logged-models/search"),
        ("GET", "runs/get"),
        ("POST", "runs/create"),
        ("PATCH", "logged-models/m-1"),
        ("PUT", "../mlflow-artifacts/artifacts/0/x/artifacts/a"),
        ("POST", "registered-models/create"),
    ],
)
def test_roles_are_those_of_reading_and_writing(protected, method, path):
    url = (
        PREFIX + path
        if not path.startswith("..")
        else FILES.removesuffix("/artifacts") + path.removeprefix("../mlflow-artifacts")
    )
    reads = method == "GET" or path.endswith("/search")
    refused = ask(protected, method, url, body=b"{}", token=WRITE if reads else READ)
    assert (refused.status, refused.json["error_code"]) == (403, "PERMISSION_DENIED")
    assert "hookline tokens create <name> --role read --role write" in refused.json["message"]
    assert ask(protected, method, url, body=b"{}", token=None).json["error_code"] == "UNAUTHENTICATED"
    assert ask(protected, method, url, body=b"{}", token=READ if reads else WRITE).status not in (401, 403)


def test_search_through_a_proxy_needs_a_read_token(server):
    answer = post(server, "runs/search", {}, headers={"X-Forwarded-For": "10.0.0.1"}, token=None)
    assert (answer.status, answer.json["error_code"]) == (403, "PERMISSION_DENIED")
    assert post(server, "runs/search", {}, token=None).json == {"runs": []}


def test_server_that_only_shows_runs_answers_none_of_the_routes(root, serve):
    viewer = serve(root)
    assert post(viewer, "runs/create", {}).status == 405
    assert get(viewer, "experiments/get", experiment_id="0").status == 404


def test_run_of_another_sender_and_a_local_run_are_no_runs_of_mlflow(server, root):
    run_id = new_run(server, "default")
    other = "0" * 18 + "a" * 14
    assert claim(server, other, "default").status == 200
    with hl.run("local", root=root, summary=False, console=False, code=False):
        pass
    for each in (other, "0" * 32, hl.runs(root).latest().id):
        assert get(server, "runs/get", run_id=each).status in (400, 404)
        assert log(server, each, [metric("a", 1)]).status in (400, 404)
    found = post(server, "runs/search", {"experiment_ids": ["0"]}).json["runs"]
    assert [each["info"]["run_id"] for each in found] == [run_id]
    assert claim(server, run_id, "default").status == 409


def test_deleted_directory_of_a_run_is_a_run_that_does_not_exist(server, root):
    run_id = new_run(server)
    shutil.rmtree(root / "exp" / run_id)
    assert log(server, run_id, [metric("a", 1)]).json["error_code"] == "RESOURCE_DOES_NOT_EXIST"
    assert not (root / "exp" / run_id).exists()


def test_damaged_lines_of_a_journal_are_left_out(root, serve):
    first = serve(root, tokens=Tokens(WRITE))
    run_id = new_run(first)
    log(first, run_id, [metric("loss", 1.0)], [("lr", "1")])
    first.stop()
    journal = root / "exp" / run_id / "journal" / mlflow_state.FILE
    lines = b'{"kind":"event","name":"mlflow","data":{"params":3}}\n{"kind":"metrics","step":"x"}\n\xff\n{}\nnull\n'
    journal.write_bytes(journal.read_bytes() + lines)
    second = serve(root, tokens=Tokens(WRITE))
    assert log(second, run_id, [metric("loss", 2.0, 1)]).status == 200
    assert data(second, run_id)["loss"] == 2.0
    assert data(second, run_id)["lr"] == "1"


def test_too_many_names_and_too_large_descriptions_are_refused(server):
    run_id = new_run(server)
    for start in range(0, 20_000, 1000):
        assert log(server, run_id, [metric(f"m{number}", 1.0) for number in range(start, start + 1000)]).status == 200
    assert "metric names" in log(server, run_id, [metric("one more", 1.0)]).json["message"]
    other = new_run(server)
    answers = [
        log(server, other, tags=[(f"t{start}-{number}", "x" * 8000) for number in range(100)]).status
        for start in range(6)
    ]
    assert answers == [200, 200, 200, 200, 200, 400]


def test_run_with_too_many_data_sets_gets_no_others_and_can_be_ended(server, monkeypatch):
    monkeypatch.setattr(mlflow_runs, "MAX_STATE_BYTES", 100_000)
    run_id = new_run(server)

    def send(number):
        dataset = {"name": f"d{number}", "digest": "1", "source_type": "local", "source": "s", "schema": "x" * 40_000}
        return post(server, "runs/log-inputs", {"run_id": run_id, "datasets": [{"dataset": dataset, "tags": []}]})

    assert [send(number).status for number in range(3)] == [200, 200, 400]
    assert "at most 100,000" in send(4).json["message"]
    assert post(server, "runs/update", {"run_id": run_id, "status": "FINISHED"}).status == 200


def test_key_of_an_image_that_leads_elsewhere_is_refused(server):
    place = f"{home_of(server, new_run(server))}/images/..#..#x%step%0%timestamp%0%a.png"
    assert put_file(server, urllib.parse.quote(place), b"x").status == 400


def test_number_of_too_many_digits_is_kept_as_a_text(server):
    run_id = new_run(server)
    assert log(server, run_id, params=[("seed", "9" * 5000)]).status == 200
    assert data(server, run_id)["seed"] == "9" * 5000


def test_history_has_at_least_one_value_on_a_page(server):
    run_id = new_run(server)
    log(server, run_id, [metric("loss", 1.0, step) for step in range(3)])
    for limit in (0, -1):
        assert history(server, run_id, "loss", max_results=limit)[0] == [(0, 1.0)]


def test_texts_that_are_too_long_are_cut_as_in_mlflow(server):
    run_id = new_run(server)
    for _ in range(2):
        assert log(server, run_id, params=[("p", "x" * 7000)], tags=[("t", "y" * 9000)]).status == 200
    assert [len(data(server, run_id)[key]) for key in ("p", "t")] == [6000, 8000]


def test_run_whose_journal_is_compressed_is_read_and_continued(server, root):
    run_id = new_run(server)
    log(server, run_id, [metric("loss", step, step) for step in range(1000)], [("lr", "1")])
    post(server, "runs/update", {"run_id": run_id, "status": "FINISHED"})
    before = data(server, run_id)
    assert compress_directory(root / "exp" / run_id / "journal").files == 1
    assert data(server, run_id) == before
    assert len(history(server, run_id, "loss")[0]) == 1000
    assert log(server, run_id, [metric("loss", 5.0, 1000)]).status == 200
    assert history(server, run_id, "loss")[0][-1] == (1000, 5.0)


@pytest.mark.parametrize("kind", ["metrics", "params"])
def test_odd_names_and_texts_come_back_as_they_were(server, root, kind):
    run_id = new_run(server)
    names = ['a"b', "null", "é/ü", "a.b c:d", "{}", "'", "%", "crc", "#"]
    if kind == "metrics":
        assert log(server, run_id, [metric(name, 1.5) for name in names]).status == 200
        assert all(history(server, run_id, name)[0] == [(0, 1.5)] for name in names)
    else:
        assert log(server, run_id, params=[(name, name * 3) for name in names]).status == 200
    assert {name: data(server, run_id)[name] for name in names} == {
        name: 1.5 if kind == "metrics" else name * 3 for name in names
    }
    assert hl.runs(root).latest().problems == ()


@functools.cache
def shared_run(server):
    """One run for all examples."""
    return new_run(server, "fuzzed")


BODIES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = (
    "run_id",
    "experiment_id",
    "name",
    "metrics",
    "params",
    "tags",
    "key",
    "value",
    "filter",
    "order_by",
    "status",
)
MADE = st.dictionaries(st.sampled_from(FIELDS), BODIES, max_size=5) | BODIES
PATHS = (
    *("experiments/create", "experiments/update", "experiments/delete", "experiments/search", "runs/create"),
    *("runs/update", "runs/search", "runs/log-batch", "runs/log-metric", "runs/set-tag", "runs/log-inputs"),
    *("runs/outputs", "runs/log-model", "logged-models", "logged-models/search", "traces", "x/y"),
)


@settings(
    max_examples=300, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.sampled_from(PATHS), MADE, st.booleans())
def test_no_body_makes_the_server_fail(shared, path, document, has_run):
    server, run_id = shared, shared_run(shared)
    if has_run and isinstance(document, dict):
        document = {**document, "run_id": run_id}
    body = json.dumps(document).encode("utf-8", "replace")
    answer = post(server, path, body)
    assert answer.status in (200, 400, 404, 501), answer.body
    assert isinstance(answer.json, dict)
    if answer.status != 200:
        assert set(answer.json) >= {"error", "error_code", "message"}


@settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.sampled_from(["experiments/get", "runs/get", "metrics/get-history", "artifacts/list", "logged-models/x", "a"]),
    st.dictionaries(
        st.sampled_from(["run_id", "experiment_id", "metric_key", "path", "max_results", "page_token", "x"]),
        st.text(max_size=12) | st.just("RUN"),
        max_size=4,
    ),
)
def test_no_query_makes_the_server_fail(shared, path, query):
    run_id = shared_run(shared)
    given_ = {
        key: run_id if value == "RUN" else value.encode("utf-8", "replace").decode() for key, value in query.items()
    }
    answer = get(shared, path, **given_)
    assert answer.status in (200, 400, 404, 501), answer.body


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", True),
        ("metrics.loss < 1", True),
        ("metrics.loss >= 1", False),
        ("metric.`my loss` = 2e0 AND params.lr = '0.1'", True),
        ("parameters.lr != '0.1'", False),
        ("params.none != 'x'", False),
        ('tags.a.b = "it\'s"', True),
        ("tags.`a.b` LIKE 'it_s'", True),
        ("tags.a.b ILIKE 'IT%' and tags.none IS NULL", True),
        ("tags.a.b IS NOT NULL and attributes.status = 'FINISHED'", True),
        ("status IN ('FAILED', \"FINISHED\")", True),
        ("run.status NOT IN ('FINISHED')", False),
        ("start_time > 5 and created < 20", True),
        ("dataset.name = 'train'", True),
        ("datasets.name LIKE 'x%'", False),
    ],
)
def test_filter_matches_as_in_mlflow(text, expected):
    entity = Entity(
        {"name": "n", "status": "FINISHED", "start_time": 10},
        {"loss": 0.5, "my loss": 2.0},
        {"lr": "0.1"},
        {"a.b": "it's"},
        {"name": ["test", "train"]},
    )
    conditions = parse_filter(text, ATTRIBUTES, ("start_time",))
    assert all(condition.holds(entity) for condition in conditions) is expected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("loss < 1", "'loss' is not a name"),
        ("metrics. < 1", "is not a name"),
        ("attributes.loss = 'x'", "there is no attribute 'loss'; there are name, start_time, status"),
        ("metrics.a < 'x'", "is not a number"),
        ("params.a = 3", "'3' is a text: put it in quotes"),
        ("params.a < '3'", "< compares numbers only"),
        ("params.a = 'x' or params.b = 'y'", "joined by 'and'"),
        ("params.a = 'x' and", "joined by 'and'"),
        ("params.a", "it is not complete"),
        ("params.a IS 3", "is not a comparison"),
        ("params.a IN 'x'", "give a list in parentheses"),
        ("params.a IN ('x' 'y')", "separate the values"),
        ("params.a = 'x", "is not understood"),
    ],
)
def test_filter_that_is_not_one_is_refused_with_what_is_wrong(text, problem):
    with pytest.raises(hl.OptionError.__mro__[1], match=problem):
        parse_filter(text, ATTRIBUTES)


def test_order_has_what_is_missing_last_and_is_stable():
    values = {"a": 2.0, "b": None, "c": float("nan"), "d": 1.0, "e": 2.0}
    found = [(Entity({}, {} if value is None else {"x": value}), name) for name, value in values.items()]
    assert ordered(found, parse_order(["metrics.x"], ())) == ["d", "a", "e", "c", "b"]
    assert ordered(found, parse_order(["metrics.x DESC"], ())) == ["a", "e", "d", "c", "b"]
    assert ordered(found, parse_order([{"field_name": "metrics.x", "ascending": False}], ())) == [
        "a",
        "e",
        "d",
        "c",
        "b",
    ]


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.text("ab_", max_size=8), st.text("ab%_", max_size=6))
def test_pattern_matches_as_the_regular_expression_of_it(text, pattern):
    expression = "".join({"%": ".*", "_": "."}.get(each, each) for each in pattern)
    assert is_like(text, pattern) is (re.fullmatch(expression, text) is not None)
