"""The endpoints of the table of runs: filters, sorting, groups, pages, and parameters that are refused."""

import math

import pytest
from page_runs import HOSTILE, finished_run
from sending import ask

from hookline.server import WebServer


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("table") / "runs"
    for place, (lr, losses) in enumerate([(0.1, (3.0, 1.0)), (0.2, (2.0, 0.5, 4.0)), (0.1, (9.0, math.nan))]):
        tags = ["ablation", "long"] if place == 1 else []
        config = {"lr": lr, "model": {"name": HOSTILE}}
        finished_run(root, f"r{place}", losses, config=config, tags=tags, started=1000.0 - place)
    with WebServer(root) as started:
        yield started


def table(server, query="", path="run_table"):
    return ask(server, "GET", f"/api/{path}?{query}")


def names(reply):
    return [row["name"] for row in reply.json["rows"]]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("", ["r0", "r1", "r2"]),
        ("sort=min(loss)", ["r1", "r0", "r2"]),
        ("sort=-loss", ["r1", "r0", "r2"]),
        ("sort=loss", ["r0", "r1", "r2"]),
        ("where=lr+%3D+0.1&sort=-name", ["r2", "r0"]),
        ("where=tag+%3D+ablation", ["r1"]),
        ("where=loss+is+nan", ["r2"]),
        ("sort=name&limit=1&offset=1", ["r1"]),
        ("offset=50", []),
    ],
)
def test_rows_are_filtered_sorted_and_paged(server, query, found):
    assert names(table(server, query)) == found


def test_cells_hold_numbers_texts_lists_and_nothing(server):
    query = "sort=name&column=lr&column=loss&column=mean(loss)&column=tag&column=model.name&column=unknown"
    cells = [row["cells"] for row in table(server, query).json["rows"]]
    assert cells == [
        [0.1, 1.0, 2.0, None, HOSTILE, None],
        [0.2, 4.0, pytest.approx(6.5 / 3), ["ablation", "long"], HOSTILE, None],
        [0.1, "NaN", 9.0, None, HOSTILE, None],
    ]


def test_groups_have_counts_aggregates_and_a_filter_that_finds_their_runs(server):
    reply = table(server, "group=lr&column=loss").json
    low = {"mean": 1.0, "min": 1.0, "max": 1.0, "n": 1, "not_finite": 1}
    assert [(each["value"], each["runs"], each["where"]) for each in reply["groups"]] == [
        (0.1, 2, "lr = 0.1"),
        (0.2, 1, "lr = 0.2"),
    ]
    assert (reply["groups"][0]["cells"], reply["matching"], reply["total"]) == ([low], 3, 2)
    for group in ("tag", "model.name", "loss"):
        for each in table(server, f"group={group}").json["groups"]:
            found = server.runs.filter(each["where"])
            assert len(found) == each["runs"]


def test_groups_are_sorted_by_the_mean_of_another_field(server):
    reply = table(server, "group=lr&sort=-loss").json
    assert [each["value"] for each in reply["groups"]] == [0.2, 0.1]


def test_all_matching_runs_and_all_fields_are_listed(server):
    assert table(server, "where=lr+%3D+0.1", "matching_runs").json == {"ids": ["p/r0", "p/r2"]}
    reply = table(server, "", "run_fields").json
    kinds = {each["field"]: (each["kind"], each["varies"]) for each in reply["fields"] if each["kind"] != "attribute"}
    assert kinds == {"lr": ("config", True), "model.name": ("config", False), "loss": ("metric", True)}
    assert reply["columns"] == ["loss", "lr", "step", "duration", "started", "tag"]
    assert {each["field"]: each["better"] for each in reply["fields"] if each["better"]} == {"loss": "min"}


@pytest.mark.parametrize(
    ("query", "parameter", "position"),
    [
        ("where=lr+%3E", "where", 4),
        ("where=lr+%3D+0.1+and+lrr+%3D+1", "where", 13),
        ("sort=-nothing", "sort", 0),
        ("column=lr+lr", "column", 3),
        ("group=min(", "group", 4),
    ],
)
def test_error_names_the_parameter_and_the_position(server, query, parameter, position):
    reply = table(server, query)
    assert (reply.status, reply.json["parameter"], reply.json["position"]) == (400, parameter, position)
    assert reply.json["problem"]


@pytest.mark.parametrize(
    "query",
    [
        "where=",
        "where=" + "(" * 200 + "lr",
        "where=" + "x" * 5000,
        "where=a+~+%22(%22",
        "where=lr%00",
        "where=lr+%3D+1&where=lr+%3D+2",
        "sort=",
        "sort=--lr",
        "limit=0",
        "limit=1001",
        "offset=-1",
        "&".join(["column=lr"] * 61),
        "unknown=1",
    ],
)
def test_odd_parameters_are_refused_with_a_reason(server, query):
    reply = table(server, query)
    assert reply.status == 400
    assert reply.json["error"]
