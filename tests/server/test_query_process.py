"""A server whose queries run in a separate process: the same answers, and it survives that process's death."""

import json
import os
import signal
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from page_runs import append, finished_run, live_run, rows, sample
from sending import WRITE, ask, claim, put, rows_of
from waiting import wait_until

from hookline.server import WebServer, query_process, query_worker
from hookline.server.root_tokens import Tokens
from hookline.server.tokens import TokenStore, default_tokens_file


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """A server with a query process over some runs, and one without over the same."""
    root = tmp_path_factory.mktemp("two")
    finished_run(root, more=[sample(1, "x", 1.0)])
    with WebServer(root, tokens=Tokens(WRITE), separate_queries=True) as split, WebServer(root) as single:
        yield split, single


@pytest.fixture
def split(root):
    """A server with a query process."""
    finished_run(root)
    with WebServer(root, tokens=Tokens(WRITE), separate_queries=True) as server:
        yield server


def pid(server):
    return server._queries.pid


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("runs", {}),
        ("run", {"id": "p/r0"}),
        ("series", {"run": "p/r0", "name": "loss"}),
        ("samples", {"run": "p/r0"}),
        ("console", {"id": "p/r0"}),
        ("series", {"run": "none", "name": "loss"}),
        ("series", {"run": "p/r0"}),
        ("nothing", {}),
        ("blob", {"run": "p/r0", "digest": "0" * 64}),
    ],
)
def test_forwarded_request_is_answered_as_without_a_query_process(two, path, query):
    split, single = (ask(server, "GET", f"/api/{path}", token=None, **query) for server in two)
    if path != "runs":  # the second process has a note about the index
        assert split.body == single.body
    assert (split.status, split.headers["ETag"] is None) == (single.status, single.headers["ETag"] is None)
    assert split.headers["X-Content-Type-Options"] == "nosniff"


def test_client_that_has_the_answer_gets_304_through_the_query_process(two):
    query = {"run": "p/r0", "name": "loss"}
    tag = ask(two[0], "GET", "/api/series", **query).headers["ETag"]
    again = ask(two[0], "GET", "/api/series", headers={"If-None-Match": tag}, **query)
    assert (again.status, again.body) == (304, b"")


def test_token_of_a_project_sees_its_runs_only_through_the_query_process(root, serve):
    for project in ("red", "blue"):
        finished_run(root, project=project)
    token = TokenStore(default_tokens_file(root)).create("viewer", roles=["read"], projects=["red"]).token
    server = serve(root, tokens=Tokens(WRITE), separate_queries=True)
    listed = ask(server, "GET", "/api/runs", token=token).json["runs"]
    found = [ask(server, "GET", "/api/series", token=token, run=f"{name}/r0", name="loss") for name in ("red", "blue")]
    request = urllib.request.Request(f"{server.url}api/stream", headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=60) as stream:
        lines = (line for line in stream if line.startswith(b"data: "))
        whole = next(event for event in map(json.loads, (line[6:] for line in lines)) if event.get("whole"))
    assert ([run["id"] for run in listed], [each.status for each in found]) == (["red/r0"], [200, 404])
    assert [run["id"] for run in whole["changed"]] == ["red/r0"]


def test_error_about_what_a_client_sent_does_not_repeat_a_token(two):
    refused = ask(two[0], "GET", "/api/series", run=WRITE, name="loss")
    assert (refused.status, WRITE in refused.body.decode(), "<token>" in refused.json["error"]) == (404, False, True)


def test_received_records_are_seen_through_the_query_process(split):
    claim(split, "far")
    put(split, rows_of(2), run="far")
    wait_until(lambda: ask(split, "GET", "/api/run", id="p/far").status == 200)
    for count in range(3, 10):
        put(split, rows_of(1, first=count), len(rows_of(count - 1)), run="far")
        [found] = ask(split, "GET", "/api/series", run="p/far", name="loss").json["lines"]
        assert found["y"] == [1 / step for step in range(1, count + 1)]


def test_query_process_killed_while_it_answers_is_replaced_and_the_request_answered(split):
    first = pid(split)
    os.kill(first, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask, split, "GET", "/api/series", run="p/r0", name="loss")
        assert claim(split, "meanwhile").status == 200  # senders do not notice
        os.kill(first, signal.SIGKILL)
        answered = asked.result(60)
    assert (answered.status, answered.json["lines"][0]["y"]) == (200, [3.0, 2.0, 1.0])
    assert pid(split) != first
    assert ask(split, "GET", "/api/runs").status == 200


def test_list_is_given_for_a_moment_longer_while_the_next_one_is_fetched(split, root, monkeypatch):
    monkeypatch.setattr(query_process, "STALE_SECONDS", 3600.0)

    def listed():
        return [run["id"] for run in ask(split, "GET", "/api/runs").json["runs"]]

    before = listed()
    os.kill(pid(split), signal.SIGSTOP)
    try:
        finished_run(root, "r1")
        wait_until(lambda: all(time.monotonic() > each.until for each in split._queries._shared.values()))
        during = listed()  # nobody could make another one
    finally:
        os.kill(pid(split), signal.SIGCONT)
    assert (before, during) == (["p/r0"], ["p/r0"])
    wait_until(lambda: sorted(listed()) == ["p/r0", "p/r1"])


def test_query_process_that_does_not_come_back_in_time_is_reported(root, serve, monkeypatch):
    for name, seconds in {"FIRST_PAUSE_SECONDS": 60.0, "MAX_PAUSE_SECONDS": 60.0, "START_SECONDS": 0.1}.items():
        monkeypatch.setattr(query_process, name, seconds)
    server = serve(root, tokens=Tokens(WRITE), separate_queries=True)
    os.kill(pid(server), signal.SIGKILL)
    wait_until(lambda: not server._queries.is_up)
    refused = ask(server, "GET", "/api/runs")
    assert (refused.status, refused.headers["Retry-After"]) == (503, "2")
    assert "is being started again" in refused.json["error"]
    assert claim(server).status == 200


def test_stream_continues_when_the_query_process_is_replaced(split, root):
    directory = live_run(root)
    with urllib.request.urlopen(f"{split.url}api/stream", timeout=60) as stream:
        lines = (line for line in stream if line.startswith(b"data: "))
        events = (json.loads(line[6:]) for line in lines)
        next(event for event in events if event.get("whole"))
        append(directory, *rows([2.0, 1.0]))
        os.kill(pid(split), signal.SIGKILL)
        again = next(event for event in events if event.get("whole"))
        assert {row["id"]: row["step"] for row in again["changed"]} == {"p/r0": 3, "p/live": 2}
        append(directory, *rows([0.5], first=3))
        changed = next(event for event in events if event.get("changed"))
        assert [row["step"] for row in changed["changed"]] == [3]


def test_viewers_of_a_stream_get_the_same_runs_from_one_stream_of_the_query_process(split):
    def first_whole():
        with urllib.request.urlopen(f"{split.url}api/stream", timeout=60) as stream:
            lines = (line for line in stream if line.startswith(b"data: "))
            return next(event for event in map(json.loads, (line[6:] for line in lines)) if event.get("whole"))

    with ThreadPoolExecutor(5) as pool:
        found = [each.result(60) for each in [pool.submit(first_whole) for _ in range(5)]]
    assert [[row["id"] for row in event["changed"]] for event in found] == [["p/r0"]] * 5


def test_long_answers_and_events_come_in_pieces(root, serve):
    runs = [finished_run(root, f"r{number}", tags=[f"{tag:0>900}" for tag in range(90)]).name for number in range(15)]
    server = serve(root, tokens=Tokens(WRITE), separate_queries=True)
    listed = ask(server, "GET", "/api/runs")
    with urllib.request.urlopen(f"{server.url}api/stream", timeout=60) as stream:
        lines = (line for line in stream if line.startswith(b"data: "))
        whole = next(event for event in map(json.loads, (line[6:] for line in lines)) if event.get("whole"))
    assert len(listed.body) > query_worker.WHOLE_BYTES
    assert whole["changed"] == listed.json["runs"]
    assert sorted(run["name"] for run in listed.json["runs"]) == sorted(runs)


def test_query_process_ends_with_its_server(root):
    with WebServer(root, separate_queries=True) as server:
        folder, ended = server._queries._folder, pid(server)
    assert (Path(f"/proc/{ended}").exists(), folder.exists()) == (False, False)


def is_running(number):
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_serving_process_does_not_load_the_database_and_its_query_process_ends_when_it_is_killed(served):
    assert ask(served, "GET", "/api/runs").status == 200
    [child] = Path(f"/proc/{served.pid}/task/{served.pid}/children").read_text().split()
    loaded = ["duckdb" in Path(f"/proc/{number}/maps").read_text() for number in (served.pid, child)]
    assert loaded == [False, True]
    sockets = [line.split()[-1] for line in Path(f"/proc/{child}/net/unix").read_text().splitlines()]
    folders = {Path(name).parent for name in sockets if name.endswith("/queries") and "hookline-" in name}
    served.kill()
    wait_until(lambda: not is_running(child))
    assert any(not folder.exists() for folder in folders)


def test_server_that_is_behind_with_writing_refuses_early(root, serve, slow_write, monkeypatch):
    monkeypatch.setattr("hookline.server.endpoint.MAX_WAIT_SECONDS", 0.0)
    monkeypatch.setattr("hookline.server.application.WRITE_THREADS", 2)
    server = serve(root, tokens=Tokens(WRITE))
    for number in range(3):
        claim(server, f"r{number}")
    waits, may_continue = slow_write
    senders = [threading.Thread(target=put, args=(server, rows_of(1)), kwargs={"run": f"r{n}"}) for n in range(2)]
    for sender in senders:
        sender.start()
        assert waits.wait(30)
        waits.clear()
    refused = put(server, rows_of(1), run="r2")
    may_continue.set()
    for sender in senders:
        sender.join(30)
    assert (refused.status, refused.headers["Retry-After"]) == (503, "1")
    assert put(server, rows_of(1), run="r2").status == 200


def test_query_process_imports_nothing_from_the_current_directory(root, tmp_path, monkeypatch):
    finished_run(root)
    (tmp_path / "duckdb.py").write_text("raise SystemExit('a file of the current directory was imported')")
    monkeypatch.chdir(tmp_path)
    with WebServer(root, tokens=Tokens(WRITE), separate_queries=True) as server:
        assert ask(server, "GET", "/api/runs").status == 200


def test_query_process_that_cannot_be_started_again_is_tried_until_it_can(split, monkeypatch, caplog):
    with monkeypatch.context() as without:
        without.setattr("sys.executable", "/there/is/no/such/program")
        os.kill(pid(split), signal.SIGKILL)
        wait_until(lambda: "cannot be started" in caplog.text)
    assert ask(split, "GET", "/api/runs").status == 200
