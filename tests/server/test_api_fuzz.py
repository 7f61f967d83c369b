"""Requests made up from the interface's own OpenAPI document: nothing fails, and what is answered fits the document.

What is made up is the same each time. A server that receives runs writes nothing for those without its token, and
nothing outside its root for anybody.
"""

import json
import shutil
import urllib.error
import urllib.parse
import urllib.request

import msgspec
import psutil
import pytest
import requests as http
import schemathesis
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from page_runs import event, finished_run, line, repeats, row, sample
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from sending import FILE, ORIGIN, READ, TOKENS, WRITE, ask, claim, tree

from hookline._record.records import Media, TableRows
from hookline.server import WebServer
from hookline.server.application import READ_ENDPOINTS

IDS = ["p/r0", "sweep/low-r0", "sweep/low-r1", "", "../p/r0", "p/r0/../r0", "*", "nobody"]
WORDS = ["loss", "step", "time", "low", "quiz", "p", "sweep", "*", "'", "%", "\\", "\u0000", "é\u202e", "hooks/a/calls"]


UNHURRIED = [HealthCheck.filter_too_much, HealthCheck.too_slow]
QUICK = settings(
    deadline=None, derandomize=True, database=None, phases=[Phase.generate], suppress_health_check=UNHURRIED
)
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
NAMES = [
    "p",
    "r0",
    "..",
    ".",
    "",
    "a/../b",
    "%2e%2e",
    "..%2f",
    "\0",
    "%00",
    "é",
    "e\u0301",
    "\u202e",
    "\ufffd",
    ".hookline",
]
NAMES += [
    "run.json",
    "received.json",
    "journal",
    FILE,
    "main-0-1-a-0.jsonl",
    "/etc",
    "~",
    "\\",
    "C:",
    "x" * 300,
    " ",
    "\n",
]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    root = tmp_path_factory.mktemp("fuzzed") / "runs"
    root.mkdir()
    repeats(root, arms=("low",), number=2, steps=5)
    more = [sample(1, "x", 1.0, rewards={"a": float("nan")}), line("y"), event("stop"), row(1, **{"hooks/a/calls": 1})]
    more += [Media(step=1, name="journal", type="journal", data={"counts": [1], "low": 0, "high": 1})]
    more += [TableRows(step=1, name="journal", table="journal", columns=["journal", "~"], rows=[[1, {"a": [None]}]])]
    finished_run(root, losses=[float("nan"), float("inf"), -1e308, 1e308], more=more)
    return root


@pytest.fixture(scope="module")
def server(recorded):
    with WebServer(recorded) as started:
        yield started


@pytest.fixture(scope="module")
def receiver(recorded, tmp_path_factory):
    """A server that takes runs, over a copy of the others: it changes them."""
    root = shutil.copytree(recorded, tmp_path_factory.mktemp("received") / "runs")
    with WebServer(root, tokens=TOKENS) as started:
        assert claim(started, "sent").status == 200
        yield started


def values(schema):
    """Values for a parameter: many that fit its schema, some that do not."""
    if "enum" in schema:
        return st.sampled_from([*schema["enum"], "other"])
    if schema["type"] == "integer":
        return st.one_of(st.integers(0, 50), st.integers(), st.just("1.5"))
    if schema["type"] == "number":
        return st.one_of(st.floats(), st.integers(), st.just("one"))
    return st.one_of(st.sampled_from(IDS + WORDS), st.text(max_size=20))


def parameters(endpoint):
    """A query for an endpoint, in which a parameter may be missing or given again."""
    names = {parameter.name: parameter.document() for parameter in endpoint.parameters}
    per_name = {}
    for name, document in names.items():
        schema = document["schema"].get("items", document["schema"])
        wanted = st.sampled_from(IDS[:3]) if name == "run" else values(schema)
        per_name[name] = st.lists(wanted, min_size=int(document["required"]), max_size=2)
    return st.fixed_dictionaries(per_name)


requests = st.sampled_from(READ_ENDPOINTS).flatmap(lambda endpoint: st.tuples(st.just(endpoint), parameters(endpoint)))


@settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@example((READ_ENDPOINTS[1], {"id": ["p/r0\ud7ff"]}))
@given(requests)
def test_no_request_makes_the_server_fail(server, request_):
    endpoint, query = request_
    address = f"{server.url.rstrip('/')}{endpoint.path}?{urllib.parse.urlencode(query, doseq=True, errors='replace')}"
    status, body = get(address)
    assert status in (200, 400, 404), body
    if status == 200:
        msgspec.json.decode(body, type=endpoint.reply)
    else:
        assert json.loads(body)["error"]


def get(address):
    try:
        with urllib.request.urlopen(address, timeout=30) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def short(value):
    """A document that asks for short texts and lists: longer addresses are refused before the interface sees them."""
    if isinstance(value, dict):
        limits = {name: min(value[name], 20) for name in ("maxLength", "maxItems") if isinstance(value.get(name), int)}
        return {name: short(each) for name, each in value.items()} | limits
    return [short(each) for each in value] if isinstance(value, list) else value


def check_against_document(server, examples, token_of):
    """Make requests for every operation, some as the document wants them and some not, and check the answers.

    Returns:
        The requests, which can be sent again.
    """
    document = ask(server, "GET", "/api/openapi.json", token=READ).json
    schema = schemathesis.openapi.from_dict(short(document))
    requests = []
    with http.Session() as session:
        for found in schema.exclude(path="/api/stream").get_all_operations():
            operation = found.ok()
            cases = [operation.as_strategy(generation_mode=mode) for mode in GenerationMode]

            @settings(QUICK, max_examples=examples(operation.method))
            @given(st.one_of(cases))
            def check(case):
                case.headers = {**(case.headers or {}), "Authorization": f"Bearer {token_of(case.method)}"}
                answer = case.call(server.url.rstrip("/"), session, timeout=30)
                case.validate_response(answer, checks=CHECKS)
                requests.append(answer.request)

            check()
    return requests


def test_interface_for_reading_fits_its_document(server):
    check_against_document(server, lambda method: 4, lambda method: READ)


def test_interface_for_receiving_fits_its_document(receiver):
    examples = {"get": 2, "put": 8, "post": 8}
    outside = receiver.runs.root.parent
    before = set(outside.iterdir())
    check_against_document(receiver, lambda method: examples[method.lower()], lambda m: READ if m == "GET" else WRITE)
    assert set(outside.iterdir()) == before


def test_without_a_token_every_operation_is_refused_as_its_document_says(receiver):
    before = tree(receiver.runs.root)
    check_against_document(receiver, lambda method: 2, lambda method: "x" * 20)
    assert tree(receiver.runs.root) == before


def test_made_up_requests_leave_the_memory_of_the_server_flat(served):
    process = psutil.Process(served.pid)
    requests = check_against_document(served, lambda method: 2, lambda method: WRITE)
    before = process.memory_info().rss >> 20  # with filled caches
    with http.Session() as session:
        for request in requests * 5:
            session.send(request, timeout=30)
    assert (process.memory_info().rss >> 20) - before < 16


written = st.lists(st.one_of(st.sampled_from(NAMES), st.text(max_size=8)), min_size=1, max_size=4)


@settings(
    max_examples=100, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(written, st.booleans(), st.sampled_from(["PUT", "POST"]), st.sampled_from([WRITE, READ, None]))
def test_no_path_leads_out_of_the_root_and_nothing_is_written_without_the_token(receiver, parts, quoted, method, token):
    root = receiver.runs.root
    outside, before = tree(root.parent), tree(root)
    names = [urllib.parse.quote(part, safe="" if quoted else "/%\\.~", errors="replace") for part in parts]
    path = "/api/journals/" + "/".join(names)
    answer = ask(receiver, method, path, body=b"{}\n", token=token, origin=ORIGIN)
    assert answer.status in ((200, 307, 400, 404, 405, 409, 415) if token == WRITE else (401, 403))
    after = tree(root)
    if token != WRITE:
        assert after == before
    assert {name: what for name, what in tree(root.parent).items() if not name.startswith("runs/")} == {
        name: what for name, what in outside.items() if not name.startswith("runs/")
    }
    assert {name: after[name] for name in before if "received.json" not in name and "p/sent" not in name} == {
        name: what for name, what in before.items() if "received.json" not in name and "p/sent" not in name
    }
