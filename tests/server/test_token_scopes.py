"""Tokens for one project: whatever is asked, the answers are those of a server that has no other project."""

import hashlib
import http.client
import itertools
import json
import shutil
import urllib.parse
import zlib

import msgspec
import pytest
from page_runs import NOW, append, begun, ended, event, line, make_run, row, sample
from sending import ORIGIN, OTHER, TOKENS, ask, claim, home, put, rows_of, tree

from hookline._record.artifact_versions import ArtifactFile, ArtifactFolder, make_manifest
from hookline._record.blobs import BlobStore, blob_directory
from hookline._record.commands import Mailbox
from hookline._record.console import ConsoleWriter
from hookline._record.records import HOOKS_PLAN, Media, TableRows, encode
from hookline.server import WebServer
from hookline.server.mlflow.experiments import experiment_id_of
from hookline.server.tokens import TokenStore, default_tokens_file
from hookline.store.alert_book import AlertBook, RaisedAlert
from hookline.store.annotations import annotate

OURS, THEIRS = "alpha", "zebra"
"""The project of the token, and the other one; the second word is in everything that was recorded there."""


def record(root, project):
    """A failed run of an experiment with records of every kind, a blob, printed lines and an artifact."""
    belongs = {"name": "sweep", "id": project, "group": project, "arm": project, "repeat": 0, "stage": None}
    directory = make_run(root, f"{project}-r0", project, experiment=belongs, config={"of": project})
    with BlobStore(blob_directory(directory)).writing() as batch:
        picture, diff = batch.add(f"picture of {project}".encode()), batch.add(f"diff of {project}".encode())
        content = {"count": 1, "texts": [f"token of {project}"], "columns": {}}
        tokens = batch.add(zlib.compress(msgspec.msgpack.encode(content)))
        batch.commit()
    now = NOW + 0.003  # as late as the last row: times out of order would be a problem of the run
    described = {"type": "text", "blob": picture.digest, "size": picture.size, "format": "txt"}
    append(
        directory,
        begun(3),
        *(row(step, loss=1.0 / step, note=f"text of {project}", **{f"hooks/{project}/calls": 3}) for step in (1, 2, 3)),
        sample(
            1,
            f"answer of {project}",
            0.5,
            prompt="q",
            lesson=project,
            rewards={project: 1.0},
            tokens={"blob": tokens.digest},
        ),
        line(f"line of {project}"),
        event(project, data=project),
        event(HOOKS_PLAN, moments={"on_step_end": [project]}),
        Media(time=now, step=1, name="page", caption=project, **described),
        Media(
            time=now,
            step=1,
            name="spread",
            type="histogram",
            data={"counts": [len(project)], "low": 0, "high": 1},
        ),
        TableRows(time=now, step=1, name="table", table="t", columns=["of"], rows=[[project]]),
        ended(3, "failed", f"message of {project}"),
    )
    writer = ConsoleWriter(directory, rank=0, step=lambda: 1)
    writer.line(f"printed by {project}", "stdout", 10.0)
    writer.close()
    (directory / "console" / "console-0.faults").write_text(f"fault of {project}\n")
    session = {"git": {"commit": project, "diff": {"blob": diff.digest}}, "hostname": project}
    (directory / "environment.json").write_text(json.dumps({"sessions": [session]}))
    (directory / "sinks").mkdir()
    state = {"status": "ok", "delivered": 1, "error": project, "state": {}, "sink": {"csv": {}}, "cursor": {}}
    (directory / "sinks" / f"{project}.json").write_text(json.dumps(state))
    annotate(directory, {project: ("good", f"note of {project}")})
    (directory / "control").mkdir()
    Mailbox(directory).write_offer({"listens": True, "commands": {project: {}}})
    folder = ArtifactFolder(root, project, "model")
    files = [ArtifactFile("weights.txt", picture.size, picture.digest)]
    folder.publish(make_manifest("model", {"of": project}, files, run=f"{project}/{project}-r0"))
    return picture.digest


class Pair:
    """A server with both projects, one with ours alone, and a token for ours that both accept."""

    def __init__(self, directory):
        roots = [directory / "both" / "runs", directory / "ours" / "runs"]
        roots[0].mkdir(parents=True)
        self.digests = [record(roots[0], OURS)]
        # A version of ours that a run of theirs has saved.
        manifest = make_manifest("model", {}, [], run=f"{THEIRS}/{THEIRS}-r0")
        ArtifactFolder(roots[0], OURS, "model").publish(manifest, ["shared"])
        store = TokenStore(default_tokens_file(roots[0]))
        self.token = store.create("ours", roles=["read", "write", "admin", "control"], projects=[OURS]).token
        AlertBook(roots[0]).add([RaisedAlert("b" * 16, RUNS[0], OURS, OURS, 1.0)], [])
        shutil.copytree(roots[0], roots[1])
        self.digests.append(record(roots[0], THEIRS))
        AlertBook(roots[0]).add([RaisedAlert("c" * 16, RUNS[1], THEIRS, THEIRS, 2.0)], [THEIRS])
        AlertBook(roots[0]).mute(run=RUNS[1])
        ArtifactFolder(roots[0], OURS, "model").note_run(0, f"{THEIRS}/{THEIRS}-r0", "used")
        self.servers = [WebServer(root, tokens=TOKENS) for root in roots]

    def answers(self, method, path, token, query=None, **options):
        """What both servers answer, without their directories."""
        text = urllib.parse.urlencode(query or {}, doseq=True)
        found = []
        for server in self.servers:
            answer = ask(server, method, f"{path}?{text}", token=token, **options)
            root = str(server.runs.root).encode()
            headers = {name: value for name, value in answer.headers.items() if name not in ("date", "content-length")}
            found.append((answer.status, headers, answer.body.replace(root, b"")))
        return found


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    made = Pair(tmp_path_factory.mktemp("pair"))
    with made.servers[0], made.servers[1]:
        yield made


RUNS = [f"{OURS}/{OURS}-r0", f"{THEIRS}/{THEIRS}-r0", f"{THEIRS}-r0", "nobody"]
VALUES = {
    "id": RUNS,
    **dict.fromkeys(("before", "after", "base"), RUNS),
    "field": ["of"],
    "run": [*RUNS, RUNS[:2]],
    "project": [OURS, THEIRS, f"{THEIRS}@{THEIRS}", f"{OURS}@{THEIRS}"],
    "prompt": ["q"],
    "type": ["text"],
    "file": ["weights.txt"],
    "rollout": ["0-0-0-0"],
}
NAMES = {"/api/media": ["page"], "/api/media/histograms": ["spread"], "/api/tables": ["table"], "/api/table": ["table"]}
ARTIFACTS = [
    f"{project}/{name}" for project in (OURS, THEIRS) for name in ("model", "model:v0", "model:shared", "other")
]


def queries(pair, path, parameters):
    """Requests for everything that there is, of both projects."""
    values = VALUES | {"digest": [*pair.digests, "0" * 64]}
    found = (ask(pair.servers[0], "GET", "/api/samples", token=TOKENS.read, run=run) for run in RUNS[:2])
    values["sample"] = [row["id"] for answer in found for row in answer.json["samples"]]
    values["name"] = ARTIFACTS if path.startswith("/api/artifact") else NAMES.get(path, ["loss"])
    needed = [each["name"] for each in parameters if each["required"] or each["name"] == "project"]
    if path in ("/api/sweep", "/api/importance"):
        yield {"run": RUNS}
    for combination in itertools.product(*(values[name] for name in needed)):
        yield dict(zip(needed, combination, strict=True))


READING = [
    *("/api/runs", "/api/run", "/api/environment", "/api/metrics", "/api/texts", "/api/sinks", "/api/series"),
    *("/api/bands", "/api/samples", "/api/samples/choices", "/api/samples/histogram", "/api/samples/prompt"),
    *("/api/media/names", "/api/media/steps", "/api/media", "/api/media/histograms", "/api/tables", "/api/table"),
    *("/api/events", "/api/logs", "/api/hooks", "/api/order", "/api/console", "/api/failures", "/api/experiments"),
    *("/api/experiment", "/api/artifacts", "/api/artifact", "/api/blob", "/api/artifact/file"),
    *("/api/run_table", "/api/matching_runs", "/api/run_fields", "/api/run_groups", "/api/field_values"),
    *("/api/sweep", "/api/importance", "/api/compare", "/api/compare/code", "/api/run_commands"),
    *("/api/samples/sample", "/api/samples/tokens", "/api/samples/annotations", "/api/samples/export"),
    "/api/samples/uses",
    *("/api/samples/latest", "/api/alerts"),
    *("/api/run/values", "/api/run/artifacts", "/api/run/checkpoints"),
]
OTHERWISE = [
    *("/api/stream", "/api/audit", "/api/tokens", "/api/permissions", "/api/filter_check"),
    "/api/addable_callbacks",
]
"""These have separate tests, or answer without runs."""
FILE_PARAMETERS = [{"name": "name", "required": True}, {"name": "file", "required": True}]


def test_every_path_of_the_document_is_tested_here(pair):
    document = ask(pair.servers[0], "GET", "/api/openapi.json", token=pair.token).json["paths"]
    known = {path for path, each in document.items() if "get" in each}
    assert known == {*READING, *OTHERWISE} - {"/api/artifact/file"}


@pytest.mark.parametrize("path", READING)
def test_token_of_a_project_gets_the_answers_of_a_server_without_the_other(pair, path):
    document = ask(pair.servers[0], "GET", "/api/openapi.json", token=pair.token).json["paths"]
    parameters = document[path]["get"].get("parameters", []) if path in document else FILE_PARAMETERS
    shows_both, statuses = False, set()
    for query in queries(pair, path, parameters):
        both, ours = pair.answers("GET", path, pair.token, query)
        assert both == ours, query
        statuses.add(both[0])
        if THEIRS not in str(query):
            assert THEIRS.encode() not in both[2] + str(both[1]).encode(), query
        # The token of all projects tells the servers apart: the comparison means something.
        whole = pair.answers("GET", path, TOKENS.read, query)
        shows_both = shows_both or whole[0] != whole[1]
    assert shows_both
    assert 200 in statuses or path == "/api/compare"  # which takes two runs


@pytest.mark.parametrize("run", RUNS[1:3])
def test_run_of_another_project_is_answered_like_one_that_does_not_exist(pair, run):
    server = pair.servers[0]
    answer, other = (ask(server, "GET", "/api/run", token=pair.token, id=name) for name in (run, "x" * len(run)))
    assert answer.status == other.status == 404
    assert answer.body.replace(run.encode(), b"") == other.body.replace(b"x" * len(run), b"")


def first_event(server, token):
    """The first event with runs of a live stream."""
    address = urllib.parse.urlsplit(server.url)
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=30)
    connection.request("GET", "/api/stream", headers={"Authorization": f"Bearer {token}"})
    answer = connection.getresponse()
    try:
        while not answer.readline().startswith(b"event: runs"):
            pass
        return json.loads(answer.readline().removeprefix(b"data: "))
    finally:
        answer.close()
        connection.close()


@pytest.mark.parametrize(("token", "projects"), [(None, [OURS]), (TOKENS.read, [OURS, THEIRS])])
def test_live_stream_shows_the_runs_of_the_token(pair, token, projects):
    shown = first_event(pair.servers[0], token or pair.token)
    assert sorted(run["project"] for run in shown["changed"]) == projects


WRITING = {
    ("PUT", ""): (b'{"name": "r"}', {}),
    ("POST", "/beat"): (b'{"every_seconds": 5}', {}),
    ("POST", "/control"): (b'{"offset": 0}', {}),
    ("POST", "/blobs"): (b'{"blobs": {}}', {}),
    ("PUT", "/blobs"): (b'{"parts": []}\n', {}),
    ("PUT", "/artifacts"): (json.dumps({"role": "used", "name": "m", "digest": "0" * 64, "time": 1}).encode(), {}),
    ("PUT", "/main-0000-1-abc-000000.jsonl"): (rows_of(1), {"offset": 0}),
}


@pytest.mark.parametrize(("method", "end"), WRITING)
def test_sending_to_another_project_is_refused_whether_or_not_it_exists(pair, method, end):
    body, more = WRITING[method, end]
    query = more | {"origin": OTHER}
    claim(pair.servers[0], "sent", THEIRS, origin=OTHER, token=TOKENS.write)
    for run in ("sent", f"{THEIRS}-r0", "new"):
        both, ours = pair.answers(method, home(run, THEIRS) + end, pair.token, query, body=body)
        assert both == ours
        assert both[0] == 403
    assert not (pair.servers[1].runs.root / THEIRS).exists()


def test_every_write_of_the_document_is_tested_here(pair):
    document = ask(pair.servers[0], "GET", "/api/openapi.json", token=pair.token).json["paths"]
    known = {(method.upper(), path) for path, each in document.items() for method in each if method != "get"}
    named = {(method, f"/api/journals/{{project}}/{{run}}{end}") for method, end in WRITING}
    named = {(method, path.replace("main-0000-1-abc-000000.jsonl", "{file}")) for method, path in named}
    named |= {("POST", path) for path in ACTIONS}
    named |= {("POST", "/api/actions/acknowledge_alerts")}  # in test_alerts_page: it names no run
    named |= {("POST", f"/api/actions/{name}_alert_rule") for name in ("add", "remove")}  # in test_alert_rules
    named |= {("POST", TRAINJOB.format(project="{project}", run="{run}"))}
    assert known == named | {("POST", "/api/status"), ("POST", "/api/login")}


TRAINJOB = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/{project}/trainjobs/{run}/status"


def test_status_of_a_trainjob_of_another_project_is_refused_whether_or_not_it_exists(pair):
    for run in (f"{THEIRS}-r0", "new"):
        path, body = TRAINJOB.format(project=THEIRS, run=run), b'{"trainerStatus": {"progressPercentage": 1}}'
        both, ours = pair.answers("POST", path, pair.token, body=body)
        assert both == ours
        assert both[0] == 403


EXPERIMENT = experiment_id_of(THEIRS)
MLFLOW = {
    ("GET", f"experiments/get?experiment_id={EXPERIMENT}"): {},
    ("GET", f"experiments/get-by-name?experiment_name={THEIRS}"): {},
    ("POST", "experiments/create"): {"name": THEIRS},
    ("POST", "experiments/delete"): {"experiment_id": EXPERIMENT},
    ("POST", "experiments/set-experiment-tag"): {"experiment_id": EXPERIMENT, "key": "a", "value": "b"},
    ("POST", "experiments/search"): {},
    ("POST", "runs/create"): {"experiment_id": EXPERIMENT},
    ("POST", "runs/search"): {"experiment_ids": [EXPERIMENT]},
    ("GET", "runs/get?run_id=RUN"): {},
    ("POST", "runs/log-batch"): {"run_id": "RUN"},
    ("POST", "runs/update"): {"run_id": "RUN", "status": "FINISHED"},
    ("GET", "metrics/get-history?run_id=RUN&metric_key=loss"): {},
    ("GET", "artifacts/list?run_id=RUN"): {},
    ("POST", "logged-models"): {"experiment_id": EXPERIMENT, "name": "m"},
    ("POST", "logged-models/search"): {"experiment_ids": [EXPERIMENT]},
    ("GET", f"../mlflow-artifacts/artifacts?path={EXPERIMENT}/RUN/artifacts"): {},
    ("PUT", f"../mlflow-artifacts/artifacts/{EXPERIMENT}/RUN/artifacts/a"): {},
    ("GET", f"../mlflow-artifacts/artifacts/{EXPERIMENT}/RUN/artifacts/a.txt"): {},
}


@pytest.mark.parametrize(("method", "path"), MLFLOW)
def test_client_of_mlflow_learns_nothing_of_another_project(pair, method, path):
    first = pair.servers[0]
    made = ask(first, "POST", "/api/2.0/mlflow/runs/create", body=json.dumps({"experiment_id": EXPERIMENT}).encode())
    run = made.json["run"]["info"]["run_id"]
    place = f"/api/2.0/mlflow-artifacts/artifacts/{EXPERIMENT}/{run}/artifacts/a.txt"
    assert ask(first, "PUT", place, body=b"secret").status == 200
    before = tree(first.runs.root / THEIRS)
    url = f"/api/2.0/mlflow/{path.replace('RUN', run)}".replace("/mlflow/../", "/")
    body = json.dumps(MLFLOW[method, path]).replace("RUN", run).encode() if method != "GET" else None
    url, _, query = url.partition("?")
    both, ours = pair.answers(method, url, pair.token, dict(urllib.parse.parse_qsl(query)), body=body)
    assert both == ours
    assert both[0] in (200, 403, 404)
    assert tree(first.runs.root / THEIRS) == before


ACTIONS = {
    "/api/actions/edit_runs": lambda run: {"runs": [run], "archived": True},
    "/api/actions/delete_runs": lambda run: {"runs": [run]},
    "/api/actions/annotate_samples": lambda run: {"run": run, "samples": [{"sample": "a", "note": "mine"}]},
    "/api/actions/mute_alerts": lambda run: {"run": run},
    "/api/control/send": lambda run: {"run": run, "name": "stop"},
}


@pytest.mark.parametrize("path", ACTIONS)
def test_action_on_another_project_is_refused_whether_or_not_the_run_exists(pair, path):
    headers = {"Content-Type": "application/json", "X-Hookline-Action": "1"}
    before = tree(pair.servers[0].runs.root / THEIRS)
    for run in (f"{THEIRS}/{THEIRS}-r0", f"{THEIRS}/nobody", f"{OURS}/../{THEIRS}/{THEIRS}-r0"):
        body = json.dumps(ACTIONS[path](run)).encode()
        both, ours = pair.answers("POST", path, pair.token, body=body, headers=headers)
        assert both == ours
        assert both[0] == (404 if run.startswith(OURS) else 403)
    assert tree(pair.servers[0].runs.root / THEIRS) == before


@pytest.mark.parametrize(
    ("query", "body", "status"),
    [
        ({"project": THEIRS, "run": "r"}, {"status": "running"}, 403),
        ({"run": "r"}, {"status": "running", "project": THEIRS}, 403),
        ({"run": "r"}, {"status": "running"}, 403),
        ({"run": "r"}, {"status": "running", "project": OURS}, 200),
    ],
)
def test_status_message_is_recorded_in_the_projects_of_the_token(tmp_path, serve, query, body, status):
    (tmp_path / "runs").mkdir()
    token = TokenStore(default_tokens_file(tmp_path / "runs")).create("t", roles=["write"], projects=[OURS]).token
    server = serve(tokens=TOKENS)
    assert ask(server, "POST", "/api/status", body=json.dumps(body), token=token, **query).status == status
    assert (tmp_path / "runs" / OURS / "r").exists() == (status == 200)


def test_admin_of_a_project_sees_its_entries_and_tokens_only(pair):
    for server in pair.servers:
        claim(server, "noted", OURS, origin=ORIGIN, token=pair.token)
        claim(server, "noted", THEIRS, origin=ORIGIN, token=TOKENS.write)
        assert put(server, rows_of(1), run="noted", project=OURS, origin=ORIGIN, token=pair.token).status == 200
    answer = ask(pair.servers[0], "GET", "/api/audit", token=pair.token)
    assert {(entry["project"], entry["target"]) for entry in answer.json["entries"]} == {(OURS, "noted")}
    assert THEIRS.encode() not in answer.body
    [listed] = ask(pair.servers[0], "GET", "/api/tokens", token=pair.token).json["tokens"]
    assert (listed["name"], listed["projects"]) == ("ours", [OURS])


def test_piece_of_another_size_makes_no_blob_of_another_project_ones_own(pair):
    server = pair.servers[0]
    claim(server, "reader", OURS, origin=ORIGIN, token=pair.token)
    digest = record_digest(server)
    parts = [
        {"digest": digest, "size": 100, "offset": 0, "length": 5},
        {"digest": digest, "size": 5, "offset": 0, "length": 5},
    ]
    body = json.dumps({"parts": parts}).encode() + b"\n" + b"x" * 10
    path = home("reader", OURS)
    answer = ask(server, "PUT", f"{path}/blobs", body=body, origin=ORIGIN, token=pair.token)
    assert (answer.status, "different sizes" in answer.json["error"]) == (400, True)
    put(
        server,
        encode(Media(step=1, name="x", type="text", blob=digest, size=9, format="txt")) + b"\n",
        run="reader",
        project=OURS,
        origin=ORIGIN,
        token=pair.token,
    )
    assert ask(server, "GET", "/api/blob", token=pair.token, run=f"{OURS}/reader", digest=digest).status == 404


def record_digest(server):
    """The digest of a blob of the other project."""
    content = f"picture of {THEIRS}".encode()
    assert (server.runs.root / ".blobs").exists()
    return hashlib.sha256(content).hexdigest()
