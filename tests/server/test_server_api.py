"""The JSON API: responses, refusals, and that its OpenAPI document matches it."""

import json
import math
import queue
import shutil
import socket
import threading
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

import anyio
import numpy as np
import pytest
from page_runs import append, ended, event, finished_run, line, live_run, make_run, repeats, row, rows, sample
from starlette.requests import Request
from waiting import wait_until

from hookline._engine.errors import ConfigError
from hookline.server import WebServer, application
from hookline.server.application import ACTIONS, READ_ENDPOINTS, SECURITY_HEADERS
from hookline.server.endpoint import Endpoint
from hookline.server.listing import Listing
from hookline.server.tokens import ALL_PROJECTS, VISIBLE
from hookline.store import DamagedIndexError, QueryTimeoutError, runs


def get(server, path, headers=None, method="GET", **parameters):
    """The status, the headers and the JSON of an answer."""
    query = urllib.parse.urlencode(parameters, doseq=True)
    address = f"{server.url}{path.lstrip('/')}{'?' if query else ''}{query}"
    request = urllib.request.Request(address, headers=headers or {}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()


def answer(server, path, **parameters):
    status, _, body = get(server, f"api/{path}", **parameters)
    assert status == 200, body
    return json.loads(body)


def refusal(server, path, **parameters):
    status, _, body = get(server, f"api/{path}", **parameters)
    return status, json.loads(body)["error"]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A server over one finished run, for the requests that it must refuse."""
    finished_run(tmp_path_factory.mktemp("plain"))
    with WebServer(tmp_path_factory.getbasetemp() / "plain0") as server:
        yield server


def test_run_with_very_many_metrics_is_listed_with_the_few_that_tell_most(root, serve):
    server = serve(root)
    finished_run(root, more=[row(4, **{str(number): 1 for number in range(90_000)}, reward=1.0)])
    wait_until(lambda: answer(server, "runs")["runs"])  # each request takes 30 s at most
    [run] = answer(server, "runs")["runs"]
    assert list(run["metrics"]) == ["loss", "reward", "0", "1", "2", "3"]


def test_runs_of_every_kind_are_listed_with_their_status(root, serve):
    finished_run(root, "done", tags=["a"])
    append(make_run(root, "gone"), row(1, loss=math.nan))
    live_run(root)
    said = {run["name"]: run for run in answer(serve(root), "runs")["runs"]}
    statuses = {name: run["status"] for name, run in said.items()}
    assert statuses == {"done": "finished", "gone": "killed", "live": "running"}
    assert (said["gone"]["metrics"], said["done"]["tags"]) == ({"loss": "NaN"}, ["a"])


def test_run_details_hold_the_configuration_and_the_facts(root, serve):
    finished_run(root, config={"lr": 0.1})
    said = answer(serve(root), "run", id="p/r0")
    assert (said["config"], said["metrics"], said["facts"]["project"]) == ({"lr": 0.1}, {"loss": 1.0}, "p")


def test_series_of_many_points_are_thinned_and_keep_their_peak(root, serve):
    losses = [1.0] * 5000
    losses[3210] = 99.0
    finished_run(root, losses=losses)
    [line_] = answer(serve(root), "series", run="p/r0", name="loss", max_points=100)["lines"]
    assert (line_["points"], len(line_["x"]) <= 100, max(line_["y"])) == (5000, True, 99.0)
    assert line_["x"][line_["y"].index(99.0)] == 3211.0


def test_bands_are_the_mean_and_spread_of_repeats(root, serve):
    repeats(root, arms=("low",))
    ids = [f"sweep/low-r{repeat}" for repeat in range(3)]
    [band] = answer(serve(root), "bands", run=ids, name="loss", by=["experiment", "arm"])["bands"]
    first = [1.0, 1.1, 1.2]
    assert (band["key"], band["n"][0]) == (["sweep", "low"], 3)
    assert band["mean"][0] == pytest.approx(np.mean(first))
    assert band["std"][0] == pytest.approx(np.std(first, ddof=1))


def test_samples_are_filtered_paged_and_counted(root, serve):
    shown = [
        sample(step, f"answer {step}", step / 10, prompt="q", lesson="a" if step < 6 else "b") for step in range(1, 11)
    ]
    finished_run(root, more=shown)
    server = serve(root)
    page = answer(server, "samples", run="p/r0", min_reward=0.3, lesson="a", limit=2, order="-reward")
    assert (page["total"], [each["completion"] for each in page["samples"]]) == (3, ["answer 5", "answer 4"])
    assert answer(server, "samples", run="p/r0", text="ANSWER 10")["total"] == 1
    bars = answer(server, "samples/histogram", run="p/r0", bins=3, lesson="b")
    assert (bars["counts"], bars["edges"][0], bars["edges"][-1]) == ([2, 1, 2], 0.6, 1.0)
    choices = answer(server, "samples/choices", run="p/r0")
    assert (choices["lessons"], choices["first_step"], choices["last_step"]) == (["a", "b"], 1, 10)
    over_time = answer(server, "samples/prompt", run="p/r0", prompt="q", limit=3)
    assert (over_time["total"], over_time["samples"][-1]["step"]) == (10, 10)


SOME_SAMPLES = [
    sample(1, "four", 0.1, prompt="2+2", lesson="sums-1", group="g*", rewards={"exact": 1.0}),
    sample(2, "five", 0.2, prompt="2+3", lesson="sums-2", group="g1", rewards={"exact": math.nan}),
    sample(3, "six", 0.3, prompt="a sum*", lesson="sums_2", group="g1", axis="eval", rewards={"exact": 0.0}),
    sample(4, "nine", math.nan, prompt="3*3", lesson="products", group="g2", axis="eval*"),
    sample(5, "none", None, prompt="?"),
]


@pytest.mark.parametrize(
    ("chosen", "count"),
    [
        ({}, 5),
        ({"lesson": "sum*"}, 3),
        ({"lesson": "sums_2"}, 1),
        ({"lesson": "*_*"}, 1),
        ({"lesson": ""}, 0),
        ({"group": "g*"}, 1),
        ({"axis": "eval*"}, 1),
        ({"text": "SUM*"}, 1),
        ({"min_reward": 0.2}, 2),
        ({"max_reward": 0.2}, 2),
        ({"reward": "exact"}, 5),
        ({"reward": "exact", "min_reward": 0}, 2),
        ({"first_step": 2, "last_step": 4, "lesson": "s*"}, 2),
    ],
)
def test_list_and_histogram_of_samples_are_about_the_same_ones(root, serve, chosen, count):
    finished_run(root, more=SOME_SAMPLES)
    server = serve(root)
    bars = answer(server, "samples/histogram", run="p/r0", **chosen)
    listed = answer(server, "samples", run="p/r0", **chosen)
    assert (listed["total"], sum(bars["counts"]) + bars["without"]) == (count, count)


@pytest.mark.parametrize(("name", "offered"), [("lesson", "lessons"), ("axis", "axes")])
def test_what_samples_can_be_chosen_by_is_found_in_list_and_histogram(root, serve, name, offered):
    finished_run(root, more=[sample(step, "x", 1.0, lesson=f"l_{step}", axis=f"a-{step}") for step in range(3)])
    server = serve(root)
    found = []
    for choice in answer(server, "samples/choices", run="p/r0")[offered]:
        listed = answer(server, "samples", run="p/r0", **{name: choice})
        bars = answer(server, "samples/histogram", run="p/r0", **{name: choice})
        found.append((listed["total"], listed["samples"][0][name] == choice, sum(bars["counts"])))
    assert found == [(1, True, 1)] * 3


def test_histogram_counts_rewards_that_are_not_finite_apart(root, serve):
    shown = [sample(1, "x", value) for value in (math.nan, math.inf, None, 0.5, 0.5)]
    finished_run(root, more=shown)
    bars = answer(serve(root), "samples/histogram", run="p/r0")
    assert (bars["counts"], bars["without"]) == ([2], 3)


def test_histogram_of_a_range_of_rewards_leaves_out_nan(root, serve):
    finished_run(root, more=[sample(1, "x", value) for value in (math.nan, 0.5, 2.0)])
    bars = answer(serve(root), "samples/histogram", run="p/r0", min_reward=1.0)
    assert (bars["counts"], bars["without"]) == ([1], 0)


def test_metrics_say_how_many_of_their_points_are_texts(root, serve):
    finished_run(root, losses=(1.0, 2.0), more=[row(1, lesson="sums"), row(2, lesson="sums")])
    found = answer(serve(root), "metrics", run="p/r0")["metrics"]
    assert {each["name"]: (each["points"], each["texts"]) for each in found} == {"lesson": (2, 2), "loss": (2, 0)}


def test_texts_are_the_latest_of_each_metric_and_say_how_many_there_are(root, serve):
    long = "x" * 5000
    finished_run(root, more=[row(1, lesson="sums"), row(2, lesson="more"), row(3, lesson="last"), row(2, note=long)])
    server = serve(root)
    found = answer(server, "texts", run="p/r0", limit=2)["texts"]
    assert [(each["name"], each["step"], each["text"][:4], each["characters"], each["total"]) for each in found] == [
        ("lesson", 3, "last", 4, 3),
        ("lesson", 2, "more", 4, 3),
        ("note", 2, "xxxx", 5000, 1),
    ]
    assert len(found[-1]["text"]) == 2000
    assert [each["text"] for each in answer(server, "texts", run="p/r0", name="lesson", limit=1)["texts"]] == ["last"]


def test_events_logs_and_hooks_are_ordered_by_time(root, serve):
    costs = {"hooks/slow/calls": 3, "hooks/slow/total_seconds": 0.5, "hooks/slow/errors": 1}
    more = [event("checkpoint", 2, path="x"), line("all well"), line("oh no", "ERROR", 2), row(3, **costs)]
    finished_run(root, more=more)
    server = serve(root)
    assert [each["name"] for each in answer(server, "events", run="p/r0")["events"]] == [
        "running",
        "checkpoint",
        "finished",
    ]
    logs = answer(server, "logs", run="p/r0", level="WARNING")
    assert (logs["total"], logs["lines"][0]["message"]) == (1, "oh no")
    [hook] = answer(server, "hooks", run="p/r0")["hooks"]
    assert (hook["name"], hook["calls"], hook["total_ms"], hook["errors"]) == ("slow", 3, 500.0, 1)


def test_experiment_compares_arms_by_the_results_of_complete_runs(root, serve):
    repeats(root)
    for place, arm in enumerate(("low", "high")):
        for repeat in range(3):
            result = {"run_key": f"{arm}-r{repeat}", "metrics": {"loss": 1.0 + place + 0.1 * repeat}, "evals": []}
            (root / "sweep" / f"{arm}-r{repeat}" / "result.json").write_text(json.dumps(result | {"artifacts": None}))
    server = serve(root)
    [listed] = answer(server, "experiments")["experiments"]
    assert (listed["project"], listed["runs"], listed["statuses"]) == ("sweep", 6, {"finished": 6})
    said = answer(server, "experiment", project="sweep", metric="loss")
    assert {each["arm"]: each["mean"] for each in said["table"]} == pytest.approx({"low": 1.1, "high": 2.1})
    assert (said["mode"], said["differences"][0]["separated"]) == ("min", True)


def test_experiment_with_a_broken_result_says_so(root, serve):
    repeats(root, arms=("low",), number=1)
    (root / "sweep" / "low-r0" / "result.json").write_text("{")
    said = answer(serve(root), "experiment", project="sweep")
    assert (said["table"][0]["n"], "cannot be read" in said["problems"][0]) == (0, True)


def test_every_answer_carries_the_security_headers_and_allows_no_other_origin(plain):
    for path in ("", "api/runs", "api/nothing", "static/js/main.js", "static/../application.py"):
        _, headers, _ = get(plain, path, headers={"Origin": "http://elsewhere.example"})
        assert {name: headers[name] for name in SECURITY_HEADERS} == SECURITY_HEADERS
        assert headers["Access-Control-Allow-Origin"] is None


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "localhost@evil"])
def test_requests_under_another_name_are_refused(plain, host):
    status, _, body = get(plain, "api/runs", headers={"Host": host})
    assert (status, b"p/r0" in body) == (421, False)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_but_reading_is_accepted(plain, method):
    assert get(plain, "api/runs", method=method)[0] == 405


@pytest.mark.parametrize(
    "path",
    [
        "static/../application.py",
        "static/%2e%2e/application.py",
        "static/..%2fapplication.py",
        "static//etc/passwd",
        "etc",
    ],
)
def test_nothing_outside_the_static_files_is_served(plain, path):
    status, _, body = get(plain, path)
    assert (status, json.loads(body)["error"] != "") == (404, True)


@pytest.mark.parametrize(
    ("path", "parameters", "status"),
    [
        ("run", {"id": "../../etc/passwd"}, 404),
        ("run", {"id": "p/r0\0"}, 400),
        ("series", {"run": "p/r0"}, 400),
        ("series", {"run": "p/r0", "name": "loss", "max_points": "1e9"}, 400),
        ("series", {"run": "p/r0", "name": "loss", "nme": "x"}, 400),
        ("bands", {"run": "p/r0", "name": "loss", "by": "config"}, 400),
        ("samples", {"run": "p/r0", "min_reward": "nan"}, 400),
        ("samples", {"run": "p/r0", "first_step": 1 << 70}, 400),
        ("samples", {"run": "p/r0", "offset": -1}, 400),
        ("samples", {"run": "p/r0", "text": "x" * 5000}, 400),
        ("samples", {"run": ["p/r0", "p/other"]}, 404),
        ("experiment", {"project": "../p"}, 404),
    ],
)
def test_hostile_parameters_are_refused_with_a_message(plain, path, parameters, status):
    found, message = refusal(plain, path, **parameters)
    assert (found, message != "") == (status, True)


@pytest.mark.parametrize("text", ["'; DROP TABLE runs; --", "(((", "\\", "%", "[a-", "\ud7ff\uffff", "$1", "\n"])
def test_texts_of_any_kind_are_only_looked_for(root, serve, text):
    finished_run(root, more=[sample(1, f"before {text} after", 1.0, prompt=text, lesson=text, group=text)])
    server = serve(root)
    for name in ("text", "lesson", "group"):
        assert answer(server, "samples", run="p/r0", **{name: text})["total"] == 1
    assert answer(server, "samples/prompt", run="p/r0", prompt=text)["total"] == 1
    assert answer(server, "samples", run="p/r0", reward=text, min_reward=0)["total"] == 0
    assert answer(server, "samples/histogram", run="p/r0", reward=text)["without"] == 1
    assert answer(server, "series", run="p/r0", name=text, x=text)["lines"] == []


def test_symbolic_links_to_results_are_not_followed(root, serve, tmp_path):
    repeats(root, arms=("low",), number=1)
    secret = tmp_path / "secret.json"
    secret.write_text(json.dumps({"run_key": "low-r0", "metrics": {"secret": 1.0}, "evals": [], "artifacts": None}))
    (root / "sweep" / "low-r0" / "result.json").symlink_to(secret)
    assert "secret" not in json.dumps(answer(serve(root), "experiment", project="sweep"))


def test_openapi_document_names_every_endpoint_and_answers_fit_it(root, serve):
    finished_run(root, more=[sample(1, "x", 1.0)])
    document = answer(serve(root), "openapi.json")
    assert set(document["paths"]) == {
        *(endpoint.path for endpoint in READ_ENDPOINTS),
        *(action.path for action in ACTIONS),
        *("/api/stream", "/api/blob", "/api/permissions"),
    }
    described = document["paths"]["/api/samples"]["get"]["parameters"]
    assert {"name": "run", "required": True}.items() <= described[0].items()
    rows_ = document["components"]["schemas"]["SampleRow"]["properties"]
    [shown] = answer(serve(root), "samples", run="p/r0")["samples"]
    assert set(rows_) == set(shown)


def test_stream_tells_all_runs_first_and_then_what_changed(root, serve):
    directory = live_run(root)
    server = serve(root)
    with urllib.request.urlopen(f"{server.url}api/stream", timeout=30) as stream:
        events = read_events(stream)
        assert next(events)[0] == "beat"
        name, news = next(events)
        assert (name, news["whole"], [run["step"] for run in news["changed"]]) == ("runs", True, [0])
        append(directory, *rows([2.0, 1.0]))
        name, news = next(events)
        assert (news["whole"], news["changed"][0]["step"], news["changed"][0]["metrics"]) == (
            False,
            2,
            {"loss": 1.0},
        )
        append(directory, ended(2))
        assert next(events)[1]["changed"][0]["status"] == "finished"


def test_stream_tells_of_runs_that_are_removed(root, serve):
    directory = finished_run(root)
    server = serve(root)
    with urllib.request.urlopen(f"{server.url}api/stream", timeout=30) as stream:
        events = read_events(stream)
        next(events), next(events)
        (directory / "run.json").unlink()
        assert next(events)[1]["removed"] == ["p/r0"]


def read_events(stream):
    """The events of a stream, by name and data."""
    name = ""
    for text in (raw.decode().rstrip("\n") for raw in stream):
        if text.startswith("event: "):
            name = text.removeprefix("event: ")
        elif text.startswith("data: "):
            yield name, json.loads(text.removeprefix("data: "))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org"])
def test_server_on_an_address_that_others_reach_is_refused(root, host):
    finished_run(root)
    with pytest.raises(ConfigError, match="no password.*ssh -L"):
        WebServer(root, host=host)


def test_server_on_a_port_that_is_taken_says_so(root, serve):
    finished_run(root)
    server = serve(root)
    with pytest.raises(ConfigError, match="Give another port"):
        WebServer(root, port=int(server.url.rsplit(":", 1)[1].strip("/")))


def test_two_servers_on_one_directory_show_the_same(root, serve):
    finished_run(root)
    first, second = serve(root), serve(root)
    assert answer(first, "runs")["runs"] == answer(second, "runs")["runs"]
    assert len(runs(root)) == 1


def test_facts_of_any_kind_are_answered(root, serve):
    odd = {"big": 10**30, "deep": [[[{"x": None}]]], "text": "\u202e\u0000"}
    directory = finished_run(root, config=odd, tags={"a": 1}, experiment={"name": 7, "arm": ["x"], "repeat": 10**30})
    facts = json.loads((directory / "run.json").read_text())
    (directory / "run.json").write_text(json.dumps(facts | {"host": 5, "command": 3, "started": "soon"}))
    server = serve(root)
    [run] = answer(server, "runs")["runs"]
    assert (run["experiment"], run["repeat"], run["started"]) == ("7", None, None)
    assert answer(server, "run", id="p/r0")["config"]["text"] == odd["text"]
    assert answer(server, "experiment", project="p")["table"][0]["n"] == 0


def test_journal_that_was_cut_and_index_that_was_deleted_show_what_there_is(root, serve):
    directory = finished_run(root)
    server = serve(root)
    assert len(answer(server, "series", run="p/r0", name="loss")["lines"][0]["x"]) == 3
    shutil.rmtree(root / ".hookline")
    assert len(answer(server, "series", run="p/r0", name="loss")["lines"][0]["x"]) == 3
    [journal] = (directory / "journal").glob("*.jsonl")
    journal.write_bytes(journal.read_bytes()[:-150])
    wait_until(lambda: answer(server, "runs")["runs"][0]["problems"] != [])
    assert len(answer(server, "series", run="p/r0", name="loss")["lines"][0]["x"]) < 3


def test_series_of_a_part_has_its_finer_points(root, serve):
    finished_run(root, losses=[float(step % 9) for step in range(5000)])
    parameters = {"run": "p/r0", "name": "loss", "max_points": 100}
    server = serve(root)
    [part] = answer(server, "series", **parameters, first_x=2000, last_x=2020)["lines"]
    assert (part["points"], part["x"]) == (23, [float(step) for step in range(1999, 2022)])
    [band] = answer(server, "bands", **parameters, by="name", first_x=2000, last_x=2020)["bands"]
    assert (band["points"], band["x"], band["std"][0]) == (23, part["x"], None)


def test_bands_over_what_has_no_common_place_say_why(root, serve):
    repeats(root, arms=("low",))
    ids = [f"sweep/low-r{repeat}" for repeat in range(3)]
    server = serve(root)
    over_time = answer(server, "bands", run=ids, name="loss", by="arm", x="elapsed")
    assert (over_time["problem"], over_time["bands"][0]["n"][0] > 0) == ("", True)
    said = answer(server, "bands", run=ids, name="loss", by="arm", x="loss")
    assert (said["bands"], said["problem"].startswith("loss does not only grow in sweep/low-r")) == ([], True)


def test_run_details_say_all_that_is_missing_and_the_list_does_then(root, serve):
    directory = finished_run(root)
    with next((directory / "journal").glob("*.jsonl")).open("ab") as file:
        file.write(b"no record\n")
    server = serve(root)
    problems = ["1 line is not a record; skipped"]
    assert answer(server, "run", id="p/r0")["run"]["problems"] == problems
    wait_until(lambda: answer(server, "runs")["runs"][0]["problems"] == problems)


def test_experiment_of_a_stage_is_about_that_stage(root, serve):
    for place, stage in enumerate(("sft", "grpo")):
        repeats(root, arms=("low",), number=2, stage=stage)
        for repeat in range(2):
            result = {"run_key": f"low-r{repeat}", "metrics": {f"{stage}_loss": 1.0 + place}, "stage": stage}
            text = json.dumps(result | {"artifacts": None, "evals": []})
            (root / "sweep" / f"low-r{repeat}-{stage}" / "result.json").write_text(text)
    server = serve(root)
    last = answer(server, "experiment", project="sweep")
    assert (last["stages"], last["stage"], last["metrics"]) == (["sft", "grpo"], "grpo", ["grpo_loss"])
    first = answer(server, "experiment", project="sweep", stage="sft")
    assert (first["stage"], first["metric"], first["table"][0]["mean"]) == ("sft", "sft_loss", 1.0)
    assert refusal(server, "experiment", project="sweep", stage="stf") == (
        404,
        "There is no stage 'stf' in sweep. Did you mean 'sft'?",
    )


def test_request_about_as_many_runs_as_the_page_asks_for_is_answered(root, serve):
    name = "r" * 70  # 500 of them are what the page puts into an address at most
    finished_run(root, name)
    assert len(answer(serve(root), "metrics", run=[f"p/{name}"] * 500)["metrics"]) == 1


def test_endpoint_whose_index_turns_out_to_be_damaged_answers_from_one_that_is_rebuilt(root):
    asked, whole = [], Listing(runs(root))

    def reply(listing, values):
        asked.append(listing)
        if len(asked) == 1:
            raise DamagedIndexError("The index is damaged.")
        return {"rows": 3}

    responder: Any = Endpoint("/api/rows", "", dict, reply).route(whole).endpoint
    request = {"type": "http", "method": "GET", "query_string": b"", "headers": [], VISIBLE: ALL_PROJECTS}
    answered = anyio.run(responder.respond, Request(request, anyio.sleep_forever))
    assert json.loads(answered.body) == {"rows": 3}
    assert asked == [whole] * 2


@pytest.fixture
def endless(root, serve, monkeypatch):
    """A server with a route that runs an endless query; reports its start and its end."""
    begun, ended_with = threading.Event(), queue.Queue()

    def reply(listing, values):
        endless = listing.now().runs.sql("SELECT count(*) FROM range(1000000000000)", timeout_seconds=None)
        begun.set()
        try:
            return {"rows": endless.rows()}
        except Exception as error:
            ended_with.put(error)
            raise

    monkeypatch.setattr(application, "READ_ENDPOINTS", (Endpoint("/api/endless", "", dict, reply),))
    finished_run(root)
    return serve(root), begun, ended_with


def test_query_beyond_its_time_is_cancelled_and_its_client_notified(endless, monkeypatch):
    monkeypatch.setattr("hookline.server.endpoint.QUERY_SECONDS", 0.2)
    server, _, ended_with = endless
    assert refusal(server, "endless") == (503, "The query took longer than 0.2 s and was cancelled.")
    assert isinstance(ended_with.get(timeout=30), QueryTimeoutError)


def test_query_whose_client_has_gone_is_ended(endless):
    server, begun, ended_with = endless
    address = urllib.parse.urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port)) as connection:
        connection.sendall(b"GET /api/endless HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert begun.wait(30)
    assert str(ended_with.get(timeout=30)) == "The query was cancelled."


def test_query_without_end_does_not_keep_the_server_from_ending(endless):
    server, begun, ended_with = endless
    address = urllib.parse.urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port)) as connection:
        connection.sendall(b"GET /api/endless HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert begun.wait(30)
        server.stop()
    assert isinstance(ended_with.get(timeout=30), QueryTimeoutError)


def test_environment_of_a_run_has_its_sessions_and_the_diff(root, serve):
    directory = finished_run(root)
    session = {"packages": ["msgspec==1.0"], "git": {"commit": "c", "changed": True}, "python": 3}
    (directory / "environment.json").write_text(json.dumps({"sessions": [session]}))
    (directory / "git.diff").write_text("+ a line\n")
    found = answer(serve(root), "environment", id="p/r0")
    assert found["sessions"] == [{"packages": ["msgspec==1.0"], "git": {"commit": "c", "changed": True}}]
    assert (found["diff"], found["diff_characters"], found["ranks"]) == ("+ a line\n", 9, [])
    assert refusal(serve(root), "environment", id="p/none")[0] == 404
