"""Artifacts that a server receives: checked in every part, whatever a client sends."""

import hashlib
import json

import pytest
from sending import ORIGIN, OTHER, READ, TOKENS, ask, claim, home, tree

from hookline._record.artifact_versions import ArtifactFile, ArtifactFolder, content_digest, make_manifest
from hookline._record.artifacts import artifact
from hookline._record.blobs import remove_unused_blobs
from hookline.server.received_blobs import BlobLimits
from hookline.server.tokens import TokenStore, default_tokens_file

CONTENT = b"0.25"
BLOB = hashlib.sha256(CONTENT).hexdigest()
FILE = {"path": "weights", "size": len(CONTENT), "blob": BLOB}


@pytest.fixture
def server(root, serve):
    server = serve(root, tokens=TOKENS)
    claim(server)
    put_blob(server)
    return server


def put_blob(server, content=CONTENT):
    part = {"digest": hashlib.sha256(content).hexdigest(), "size": len(content), "offset": 0, "length": len(content)}
    body = json.dumps({"parts": [part]}).encode() + b"\n" + content
    assert ask(server, "PUT", f"{home()}/blobs", body=body, origin=ORIGIN).status == 200


def sent(files=(FILE,), *, kind="model", metadata=None, role="saved", time=1000.0, manifest=None, **more):
    """A request with a digest that fits, unless another is given."""
    metadata = metadata or {}
    try:
        digest = content_digest(kind, metadata, [ArtifactFile(**file) for file in files])
    except TypeError:
        digest = "0" * 64
    manifest = {"kind": kind, "metadata": metadata, "files": list(files)} | (manifest or {})
    about = {"role": role, "name": "model", "digest": digest, "time": time}
    return about | ({"manifest": manifest} if role == "saved" else {}) | more


def put_artifact(server, document, *, origin=ORIGIN, run="r0", **more):
    body = json.dumps(document) if isinstance(document, dict) else document
    return ask(server, "PUT", f"{home(run)}/artifacts", body=body, origin=origin, **more)


def folder(root, name="model"):
    return ArtifactFolder(root, "p", name)


def test_version_is_stored_and_read_as_a_local_one(root, server):
    answer = put_artifact(server, sent(aliases=["best"], manifest={"step": 3}))
    assert answer.facts == (200, {"version": "v0"})
    found = artifact("p/model:best", root=root)
    assert (found.run, found.step, found.is_received, found.verify()) == ("p/r0", 3, True, [])
    assert remove_unused_blobs(root).blobs == 0


@pytest.mark.parametrize(
    "document",
    [
        sent(name="../model"),
        sent(name=".model"),
        sent(name="a/b"),
        sent(name="x" * 129),
        sent(aliases=["../x"]),
        sent(aliases=["v3"]),
        sent(aliases=["x"] * 101),
        sent(digest="0" * 64),
        sent(digest="../../x"),
        sent([FILE | {"path": "../weights"}]),
        sent([FILE | {"path": "/etc/passwd"}]),
        sent([FILE | {"path": "a//b"}]),
        sent([FILE | {"path": "x" * 1025}]),
        sent([FILE | {"path": "a/" * 200 + "b/\0"}]),
        sent([FILE, FILE]),
        sent([FILE, FILE | {"path": "weights/more"}]),
        sent([FILE | {"size": 5}]),
        sent([FILE | {"size": -1}]),
        sent([FILE | {"size": None}]),
        sent([FILE | {"blob": "zz"}]),
        sent([FILE | {"uri": "s3://b/k"}]),
        sent([{"path": "x", "uri": "simplecache::file:///etc/passwd"}]),
        sent([{"path": "x", "uri": "local:///etc/passwd"}]),
        sent([{"path": "x", "uri": "javascript:alert(1)"}]),
        sent([{"path": "x", "uri": "s3://b/k\n"}]),
        sent([FILE | {"mode": 7}]),
        sent([]),
        sent(kind=""),
        sent(kind="a\nb"),
        sent(kind="x" * 65),
        sent(metadata=json.loads('{"a":' * 200 + "1" + "}" * 200)),
        sent(metadata={"long": "x" * 1_000_000}),
        json.dumps(sent()).replace('"files": [', '"files": [' + '{"path":"a"},' * 100_001).encode(),
        json.dumps(sent()).replace('"metadata": {}', '"metadata": []').encode(),
        sent(role="stolen"),
        sent(time=-1.0),
        sent(manifest={"number": -1}),
        sent(manifest={"step": 1 << 70}),
        sent() | {"manifest": None},
        b"[]",
        b"\xff",
        b"[" * 100_000,
    ],
    ids=lambda document: None,
)
def test_request_that_is_not_accepted_stores_nothing(root, server, document):
    before = tree(root)
    assert put_artifact(server, document).status == 400
    assert tree(root) == before


def test_version_whose_files_are_not_there_is_stored_when_they_are(root, server):
    other = hashlib.sha256(b"other").hexdigest()
    document = sent([FILE, {"path": "other", "size": 5, "blob": other}])
    assert put_artifact(server, document).facts == (409, {"missing": [other]})
    assert folder(root).versions() == []
    put_blob(server, b"other")
    assert put_artifact(server, document).json == {"version": "v0"}


def test_request_of_another_sender_or_for_an_unclaimed_run_or_with_a_read_token_is_refused(root, server):
    assert put_artifact(server, sent(), origin=OTHER).facts == (409, {"taken": True})
    assert put_artifact(server, sent(), run="r1").status in (404, 409)
    assert put_artifact(server, sent(), token=READ).status in (401, 403)
    assert not (root / ".artifacts").exists()


def test_project_of_a_saved_version_is_that_of_its_run(root, server):
    put_artifact(server, sent(project="other"))
    assert (folder(root).versions(), (root / ".artifacts" / "other").exists()) == ([0], False)


def test_numbers_are_kept_where_they_are_free_and_not_used_up(root, server):
    for number, wanted in enumerate((3, 3, 1, 10**9)):
        put_artifact(server, sent(metadata={"n": number}, time=number, manifest={"number": wanted}))
    assert folder(root).versions() == [3, 4, 5, 6]


def test_repeated_request_makes_no_older_version_the_latest_and_moves_no_alias_back(root, server):
    first, second = (
        sent(metadata={"n": 1}, aliases=["best"], time=1.0),
        sent(metadata={"n": 2}, aliases=["best"], time=2.0),
    )
    for document in (first, second, first, second, first):
        assert put_artifact(server, document).status == 200
    assert folder(root).aliases() == {"best": 1, "latest": 1}
    put_artifact(server, first | {"time": 3.0})  # saved again, later
    assert folder(root).aliases() == {"best": 0, "latest": 0}


def test_alias_from_the_future_does_not_stay_for_ever(root, server):
    put_artifact(server, sent(metadata={"n": 1}, aliases=["best"], time=1e12))
    put_artifact(server, sent(metadata={"n": 2}))
    folder(root).set_alias("best", 1)
    assert folder(root).aliases()["best"] == 1


def test_deleted_version_is_not_brought_back_by_a_repeated_request(root, server):
    put_artifact(server, sent(time=1.0))
    folder(root).delete(0)
    assert put_artifact(server, sent(time=1.0)).json == {"version": ""}
    assert put_artifact(server, sent(time=1e12)).json == {"version": "v1"}  # saved again, later


@pytest.mark.parametrize("role", ["used", "tagged"])
def test_use_or_alias_of_an_unknown_version_stores_nothing(root, server, role):
    before = tree(root)
    assert put_artifact(server, sent(role=role, aliases=["best"])).json == {"version": ""}
    assert tree(root) == before


def test_use_of_another_projects_version_is_noted_and_sets_no_alias(root, server):
    put_artifact(server, sent())
    claim(server, "r1", "q")
    document = sent(role="used", project="p", aliases=["mine"], time=5.0)
    path = f"{home('r1', 'q')}/artifacts"
    assert ask(server, "PUT", path, body=json.dumps(document), origin=ORIGIN).json == {"version": "v0"}
    assert [(each.run, each.role) for each in folder(root).runs(0)] == [("q/r1", "used"), ("p/r0", "saved")]
    assert folder(root).aliases() == {"latest": 0}


def test_manifest_without_room_is_refused(root, serve):
    server = serve(root, tokens=TOKENS, blobs=BlobLimits(run_bytes=300))
    claim(server)
    put_blob(server)
    answer = put_artifact(server, sent(metadata={"long": "x" * 300}))
    assert (answer.status, next(iter(answer.json["refused"].values()))["status"]) == (507, 507)
    assert folder(root).versions() == []


def test_server_shows_a_received_version(root, server):
    put_artifact(server, sent(aliases=["best"]))
    (row,) = ask(server, "GET", "/api/artifacts", token=READ).json["artifacts"]
    assert (row["id"], row["aliases"], row["latest"]["run"]) == ("p/model", {"best": "v0", "latest": "v0"}, "p/r0")
    answer = ask(server, "GET", "/api/artifact/file", token=READ, name="p/model:best", file="weights")
    assert (answer.status, answer.body) == (200, CONTENT)


@pytest.fixture
def token(root):
    """A token for the project q; made before the server, which would notice it only after a while."""
    return TokenStore(default_tokens_file(root)).create("q", roles=["write"], projects=["q"]).token


@pytest.fixture
def scoped(token, server):
    """The token, after it has claimed a run."""
    claim(server, "r0", "q", origin=OTHER, token=token)
    return token


def put_scoped(server, token, document):
    return ask(server, "PUT", f"{home('r0', 'q')}/artifacts", body=json.dumps(document), origin=OTHER, token=token)


def test_version_of_a_token_for_a_project_has_only_files_that_its_run_sent(root, scoped, server):
    refused = put_scoped(server, scoped, sent())
    assert (refused.status, refused.json["missing"]) == (409, [BLOB])
    part = {"digest": BLOB, "size": len(CONTENT), "offset": 0, "length": len(CONTENT)}
    body = json.dumps({"parts": [part]}).encode() + b"\n" + CONTENT
    assert ask(server, "PUT", f"{home('r0', 'q')}/blobs", body=body, origin=OTHER, token=scoped).status == 200
    assert put_scoped(server, scoped, sent()).facts == (200, {"version": "v0"})


def test_use_of_a_version_out_of_scope_is_answered_as_if_it_were_not_there(root, scoped, server):
    put_artifact(server, sent())
    used = sent(role="used", project="p")
    assert put_scoped(server, scoped, used).facts == (200, {"version": ""})
    assert [(each.run, each.role) for each in folder(root).runs(0)] == [("p/r0", "saved")]


def test_download_follows_no_link_whatever_its_manifest_says(root, server, tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(b"private")
    digest = hashlib.sha256(b"other").hexdigest()
    place = root / ".blobs" / digest[:2] / digest
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(secret)
    for size in (len(b"private"), 300_000_000):
        manifest = make_manifest("model", {}, [ArtifactFile("weights", size, digest)], run="p/r0")
        number, _ = folder(root, f"m{size}").publish(manifest)
        name = f"p/m{size}:v{number}"
        answer = ask(server, "GET", "/api/artifact/file", token=READ, name=name, file="weights")
        assert (answer.status, b"private" in answer.body) == (404, False)
