"""Artifacts that `hookline serve --storage` receives: kept in the object store, and shown by all of its servers."""

import hashlib
import json
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("obstore", reason="object stores need the extra 'storage'")

from sending import ORIGIN, OTHER, READ, TOKENS, WRITE, ask, claim, home
from typer.testing import CliRunner
from waiting import wait_until

import hookline as hl
from hookline._record.artifact_versions import ArtifactFile, ArtifactFolder, content_digest
from hookline._record.blobs import BLOBS
from hookline.cli import app
from hookline.server import WebServer
from hookline.server.storage import protocol
from hookline.server.storage.artifacts import ArtifactObjects
from hookline.server.storage.objects import open_objects
from hookline.server.storage.service import StorageOptions
from hookline.server.tokens import TokenStore

CONTENT = b"0.25"
BLOB = hashlib.sha256(CONTENT).hexdigest()
FILE = {"path": "weights", "size": len(CONTENT), "blob": BLOB}
MODEL = ArtifactObjects.of("p", "model")


@pytest.fixture
def url(tmp_path):
    return f"file://{tmp_path}/store"


@pytest.fixture
def start(tmp_path):
    """Start servers, each with its own local copy."""
    started = []

    def start_server(url, name="a", **options):
        root = tmp_path / name
        root.mkdir(exist_ok=True)
        given = {"tokens_file": options.pop("tokens_file")} if "tokens_file" in options else {}
        fast = {"report_seconds": 0.1, "copy_seconds": 0.1, "scan_seconds": 0.5, "threads": 2}
        server = WebServer(root, tokens=TOKENS, storage=StorageOptions(url, **(fast | options)), **given)
        started.append(server.__enter__())
        return server

    yield start_server
    for server in started:
        server.stop()


def put_blob(server, content=CONTENT, path=None, **more):
    part = {"digest": hashlib.sha256(content).hexdigest(), "size": len(content), "offset": 0, "length": len(content)}
    body = json.dumps({"parts": [part]}).encode() + b"\n" + content
    assert ask(server, "PUT", f"{path or home()}/blobs", body=body, origin=ORIGIN, **more).status == 200


def sent(n=0, files=(FILE,), *, role="saved", time=1000.0, number=0, **more):
    """A request for a different version for each n."""
    digest = content_digest("model", {"n": n}, [ArtifactFile(**file) for file in files])
    manifest = {"kind": "model", "metadata": {"n": n}, "files": list(files), "number": number}
    about = {"role": role, "name": "model", "digest": digest, "time": time}
    return about | ({"manifest": manifest} if role == "saved" else {}) | more


def put_artifact(server, document, run="r0", *, project="p", origin=ORIGIN, **more):
    return ask(server, "PUT", f"{home(run, project)}/artifacts", body=json.dumps(document), origin=origin, **more)


def begin(server, run="r0"):
    assert claim(server, run).status == 200
    put_blob(server, path=home(run))


def shown(server, name="p/model", token=READ):
    """An artifact as the page shows it: versions, aliases, and the runs of the named version."""
    answer = ask(server, "GET", "/api/artifact", token=token, name=name)
    if answer.status != 200:
        return answer.status
    details = answer.json
    versions = {row["version"]: row["aliases"] for row in details["versions"]}
    return versions, sorted((each["run"], each["role"]) for each in details["runs"])


def wait_for(server, *expected):
    wait_until(lambda: shown(server) == expected)


def download(server, name="p/model", file="weights", token=READ):
    answer = ask(server, "GET", "/api/artifact/file", token=token, name=name, file=file)
    return answer.body if answer.status == 200 else answer.status


def stored(url, prefix="artifacts"):
    return sorted(entry.name for entry in open_objects(url).list(prefix))


def end_collections(server):
    """Collect twice, after which unused blobs are gone."""
    for _ in range(2):
        server._storage.collect()


@pytest.mark.parametrize("kind", ["file", "s3"])
def test_artifact_of_the_sink_is_shown_and_downloaded_by_every_server(kind, request, start, tmp_path, monkeypatch):
    url = request.getfixturevalue("bucket") if kind == "s3" else request.getfixturevalue("url")
    first, second = start(url), start(url, "b")
    monkeypatch.setenv("HOOKLINE_TOKEN", WRITE)
    folder = tmp_path / "files"
    folder.mkdir()
    large = bytes(range(256)) * 12_000  # sent in two pieces
    (folder / "weights").write_bytes(large)
    (folder / "config").write_bytes(b"{}")

    def run_at(server, name):
        options = {"root": tmp_path / "own", "project": "p", "sinks": [{"hookline": {"url": server.url}}]}
        return hl.run(name, summary=False, **options)

    with run_at(first, "train") as run:
        run.save_artifact("model", folder, kind="model", aliases=["best"]).wait()
    with run_at(second, "use") as user:
        user.use_artifact("model:best")
    roles = sorted([(f"p/{run.dir.name}", "saved"), (f"p/{user.dir.name}", "used")])
    expected = ({"v0": ["latest", "best"]}, roles)
    for server in (first, second):
        wait_for(server, *expected)
        assert (download(server), download(server, "p/model:best", "config")) == (large, b"{}")
    for name in "ab":
        copy = hl.artifact("p/model", root=tmp_path / name)
        own = hl.artifact("p/model", root=tmp_path / "own")
        assert (copy.digest, copy.files, copy.is_received, copy.verify()) == (own.digest, own.files, True, [])


def test_versions_get_the_same_numbers_and_aliases_on_all_servers(start, url):
    first, second = start(url, scan_seconds=60.0), start(url, "b", scan_seconds=60.0)
    begin(first)
    claim(second)
    answers = [
        put_artifact(server, sent(n, time=float(n), number=number, aliases=["best"])).json["version"]
        for server, n, number in ((first, 0, 3), (second, 1, 3), (first, 2, 1), (second, 3, 10**9))
    ]
    answers.append(put_artifact(first, sent(1, role="tagged", time=9.0, aliases=["best"])).json["version"])
    answers.append(put_artifact(second, sent(3, role="tagged", time=8.0, aliases=["best"])).json["version"])
    assert answers == ["v3", "v4", "v5", "v6", "v4", "v6"]
    expected = {"v6": ["latest"], "v5": [], "v4": ["best"], "v3": []}
    for server in (first, second):
        wait_for(server, expected, [("p/r0", "saved")])
    # Content that another run saves again is the version that there is, and becomes the latest.
    begin(second, "r1")
    assert put_artifact(second, sent(2, time=10.0), "r1").json == {"version": "v5"}
    for server in (first, second):
        wait_for(server, expected | {"v6": [], "v5": ["latest"]}, [("p/r0", "saved"), ("p/r1", "saved")])


def test_versions_sent_through_two_servers_at_once_get_one_number_each(start, url):
    servers = start(url), start(url, "b")
    begin(servers[0])
    claim(servers[1])
    requests = [(server, sent(n, time=float(n))) for n in range(5) for server in servers]
    with ThreadPoolExecutor(len(requests)) as pool:
        answers = list(pool.map(lambda request: put_artifact(*request).json["version"], requests))
    assert answers[::2] == answers[1::2]
    assert sorted(answers[::2]) == [f"v{number}" for number in range(5)]


def test_repeated_requests_add_nothing_on_any_server(start, url):
    first, second = start(url), start(url, "b")
    begin(first)
    documents = [
        sent(0, aliases=["best"], time=1.0),
        sent(1, aliases=["best"], time=2.0),
        sent(0, role="used", time=3.0),
    ]
    answers = [put_artifact(first, document).facts for document in documents]
    before = stored(url)
    for server in (second, first, second):
        assert [put_artifact(server, document).facts for document in documents] == answers
    assert stored(url) == before
    for server in (first, second):
        wait_for(server, {"v1": ["latest", "best"], "v0": []}, [("p/r0", "saved")])


@pytest.mark.parametrize("end", ["manifests", "log"])
def test_server_killed_before_the_end_leaves_no_version_and_the_repeated_request_makes_it(start, url, end, monkeypatch):
    first, second = start(url), start(url, "b")
    begin(first)
    objects = first._storage.objects
    create = objects.create

    def create_until_killed(name, data):
        if name.startswith(f"{MODEL.prefix}/{end}/"):
            raise ConnectionAbortedError("killed")
        return create(name, data)

    monkeypatch.setattr(objects, "create", create_until_killed)
    assert put_artifact(first, sent(aliases=["best"])).status >= 500
    assert [name for name in stored(url) if "/log/" in name] == []
    assert shown(first) == shown(second) == 404
    end_collections(second)
    assert put_artifact(second, sent(aliases=["best"])).facts == (200, {"version": "v0"})
    monkeypatch.undo()
    for server in (first, second):
        wait_for(server, {"v0": ["latest", "best"]}, [("p/r0", "saved")])
        assert download(server) == CONTENT


def test_collection_keeps_the_files_of_a_version_whose_runs_are_deleted(start, url):
    server = start(url)
    begin(server)
    put_blob(server, b"of no version")
    put_artifact(server, sent())
    objects = server._storage.objects
    protocol.delete_run(objects, protocol.RunObjects.of("p", "r0"), protocol.Deletion("p", "r0"))
    end_collections(server)
    copies = [name.split("/")[2] for name in stored(url, "blobs") if "/copies/" in name]
    assert copies == [BLOB]
    fresh = start(url, "b")
    wait_for(fresh, {"v0": ["latest"]}, [("p/r0", "saved")])
    assert download(fresh) == CONTENT


def test_version_whose_files_are_not_there_or_have_another_size_is_refused_and_keeps_none(start, url):
    server = start(url)
    begin(server)
    other = hashlib.sha256(b"other").hexdigest()
    document = sent(0, [FILE, {"path": "other", "size": 5, "blob": other}])
    assert put_artifact(server, document).facts == (409, {"missing": [other]})
    assert put_artifact(server, sent(0, [FILE, FILE | {"path": "b", "size": 5}])).status == 400
    assert stored(url) == []
    assert [name for name in stored(url, "blobs") if "/uses/artifacts/" in name] == []
    put_blob(server, b"other")
    assert put_artifact(server, document).json == {"version": "v0"}


def test_request_of_another_sender_and_use_of_an_unknown_version_store_nothing(start, url):
    server = start(url)
    begin(server)
    assert put_artifact(server, sent(), origin=OTHER).facts == (409, {"taken": True})
    assert put_artifact(server, sent(role="used")).json == {"version": ""}
    assert put_artifact(server, sent(role="tagged", aliases=["best"])).json == {"version": ""}
    assert stored(url) == []


def test_token_for_another_project_sees_and_uses_nothing(start, url, tmp_path):
    tokens = TokenStore(tmp_path / "tokens.json")
    scoped = tokens.create("team", roles=["read", "write"], projects=["q"]).token
    server, other = start(url, tokens_file=tokens.path), start(url, "b", tokens_file=tokens.path)
    begin(server)
    put_artifact(server, sent())
    wait_for(other, {"v0": ["latest"]}, [("p/r0", "saved")])
    for each in (server, other):
        assert ask(each, "GET", "/api/artifacts", token=scoped).json == {"artifacts": []}
        assert (shown(each, token=scoped), download(each, token=scoped)) == (404, 404)
        assert put_artifact(each, sent(), token=scoped).status == 403
    # Its own run names the blob of the other project, and uses the version: as if neither were there.
    assert claim(other, project="q", token=scoped).status == 200
    assert put_artifact(other, sent(), project="q", token=scoped).facts == (409, {"missing": [BLOB]})
    used = sent(role="used", project="p")
    assert put_artifact(other, used, project="q", token=scoped).json == {"version": ""}
    put_blob(other, path=home(project="q"), token=scoped)
    assert put_artifact(server, sent(), project="q", token=scoped).json == {"version": "v0"}
    wait_until(lambda: download(other, "q/model", token=scoped) == CONTENT)
    assert shown(server)[1] == [("p/r0", "saved")]


@pytest.mark.parametrize("damage", ["deleted", "damaged", "other"])
def test_local_copy_is_made_again_from_the_store(start, url, tmp_path, damage):
    server = start(url)
    begin(server)
    for n in range(3):
        put_artifact(server, sent(n, time=float(n), aliases=["best"]))
    expected = shown(server)
    server.stop()
    folder = tmp_path / "a" / ".artifacts"
    if damage == "deleted":
        shutil.rmtree(folder)
        shutil.rmtree(tmp_path / "a" / BLOBS, ignore_errors=True)
    else:
        (folder / "p/model/.applied").write_text("1")
        (folder / "p/model/v1.json").write_bytes(b"{}" if damage == "damaged" else b"")
        (folder / "p/model/v2.json").rename(folder / "p/model/v7.json")
    again = start(url)
    wait_for(again, *expected)
    assert download(again, "p/model:v1") == CONTENT


def test_what_the_store_holds_is_checked(start, url, tmp_path):
    server = start(url)
    begin(server)
    put_artifact(server, sent())
    server.stop()
    objects = open_objects(url)
    first = json.loads(objects.get(MODEL.change(1)))
    bad = [
        b"\xff",
        first | {"name": "../model"},
        first | {"project": ".."},
        first | {"number": 7},
        first | {"run": "../x"},
        first | {"aliases": ["../x"]},
        first | {"role": "tagged", "digest": "0" * 64},
        first | {"digest": "1" * 64, "number": 1},  # without a manifest
        first | {"digest": "2" * 64, "number": 2},  # whose manifest is that of other content
    ]
    for position, each in enumerate(bad, 2):
        objects.create(MODEL.change(position), each if isinstance(each, bytes) else json.dumps(each).encode())
    objects.create(MODEL.manifest("2" * 64), objects.get(MODEL.manifest(first["digest"])))
    objects.create(MODEL.change(len(bad) + 2), json.dumps(first | {"role": "tagged", "aliases": ["best"]}).encode())
    fresh = start(url, "b")
    wait_for(fresh, {"v0": ["latest", "best"]}, [("p/r0", "saved")])
    assert ArtifactFolder(tmp_path / "b", "p", "model").versions() == [0]
    assert put_artifact(fresh, sent(5, time=2000.0)).json == {"version": "v3"}


@pytest.mark.parametrize("command", [["tag", "p/model", "good"], ["delete", "p/model", "--yes"]])
def test_command_does_not_change_the_copy_of_a_store(start, url, tmp_path, command):
    server = start(url)
    begin(server)
    put_artifact(server, sent())
    before = shown(server)
    done = CliRunner().invoke(app, ["artifacts", *command, "--root", str(tmp_path / "a")])
    assert (done.exit_code, "local copy of an object store" in " ".join(done.output.split())) == (2, True)
    assert shown(server) == before
