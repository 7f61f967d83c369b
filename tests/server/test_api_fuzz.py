"""Requests made up from the interface's own OpenAPI document: nothing fails, and what is answered fits the document."""

import json
import urllib.error
import urllib.parse
import urllib.request

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from page_runs import event, finished_run, line, repeats, row, sample

from hookline.server import WebServer
from hookline.server.application import ENDPOINTS

IDS = ["p/r0", "sweep/low-r0", "sweep/low-r1", "", "../p/r0", "p/r0/../r0", "*", "nobody"]
WORDS = ["loss", "step", "time", "low", "quiz", "p", "sweep", "*", "'", "%", "\\", "\u0000", "é\u202e", "hooks/a/calls"]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("fuzzed")
    repeats(root, arms=("low",), number=2, steps=5)
    more = [sample(1, "x", 1.0, rewards={"a": float("nan")}), line("y"), event("stop"), row(1, **{"hooks/a/calls": 1})]
    finished_run(root, losses=[float("nan"), float("inf"), -1e308, 1e308], more=more)
    with WebServer(root) as started:
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


requests = st.sampled_from(ENDPOINTS).flatmap(lambda endpoint: st.tuples(st.just(endpoint), parameters(endpoint)))


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example((ENDPOINTS[1], {"id": ["p/r0\ud7ff"]}))
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
