"""The hookline sink sends what runs do with artifacts: versions with their files, aliases, and who used them."""

import json
import logging
import random

import pytest
from destinations.journal_server import TOKEN, JournalServer
from typer.testing import CliRunner
from waiting import wait_until

import hookline as hl
from hookline._record.artifact_versions import ArtifactFolder
from hookline._record.delivery import Pace, sink_states
from hookline._record.delivery_manager import sync
from hookline.callbacks import CheckpointCallback
from hookline.cli import app
from hookline.server.received_blobs import BlobLimits
from hookline.sinks.hookline_upload import BLOB_REQUEST_BYTES

PACE = Pace(poll_seconds=0.01, retry_seconds=0.01, longest_seconds=0.05)


@pytest.fixture
def make_server(tmp_path, monkeypatch):
    monkeypatch.setenv("HOOKLINE_TOKEN", TOKEN)
    made = []

    def make(**options):
        made.append(JournalServer(tmp_path / "received", **options))
        return made[-1]

    yield make
    for each in made:
        each.end()


@pytest.fixture
def server(make_server):
    return make_server()


def run_in(tmp_path, server, name="train", **options):
    sink = {"hookline": {"url": server.url, "timeout_seconds": 10.0}}
    return hl.run(name, root=tmp_path / "runs", project="p", sinks=[sink], summary=False, **options)


def files_in(tmp_path, **contents):
    folder = tmp_path / "files"
    folder.mkdir(exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return folder


def received(server, reference="p/model"):
    return hl.artifact(reference, root=server.root)


def test_artifact_arrives_with_files_aliases_and_lineage(tmp_path, server):
    folder = files_in(tmp_path, weights=b"0.25", config=b"{}")
    with run_in(tmp_path, server) as run:
        run.save_artifact("model", {"a/b": folder, "far": "s3://bucket/x"}, kind="model", aliases=["best"]).wait()
    with run_in(tmp_path, server, "use") as user:
        user.use_artifact("model:best")
    ours, theirs = hl.artifact("p/model", root=tmp_path / "runs"), received(server, "p/model:best")
    for name in ("version", "kind", "metadata", "files", "digest", "run", "step"):
        assert getattr(theirs, name) == getattr(ours, name), name
    assert sorted(theirs.aliases) == ["best", "latest"]
    assert [(each.run, each.role) for each in theirs.runs] == [
        (f"p/{run.dir.name}", "saved"),
        (f"p/{user.dir.name}", "used"),
    ]
    out = tmp_path / "out"
    done = CliRunner().invoke(app, ["artifacts", "get", "p/model:best", str(out), "--root", str(server.root)])
    assert (done.exit_code, (out / "a/b/weights").read_bytes()) == (0, b"0.25")


def test_alias_that_is_set_later_follows(tmp_path, server):
    rule = CheckpointCallback(monitor="loss", mode="min", every_n_steps=1, save_top_k=-1, artifact="checkpoint")
    with run_in(tmp_path, server, callbacks=[rule]) as run:
        for loss in run.steps([3.0, 1.0, 2.0]):
            run.log(loss=loss)
    ours = ArtifactFolder(tmp_path / "runs", "p", "checkpoint")
    theirs = ArtifactFolder(server.root, "p", "checkpoint")
    assert theirs.aliases() == ours.aliases()
    assert ours.aliases()["best"] != ours.aliases()["latest"]


def test_artifact_delivered_again_changes_nothing(tmp_path, server):
    folder = files_in(tmp_path, weights=b"1")
    with run_in(tmp_path, server) as run:
        run.save_artifact("model", folder, aliases=["best"]).wait()
        (folder / "weights").write_bytes(b"2")
        run.save_artifact("model", folder).wait()
    theirs = ArtifactFolder(server.root, "p", "model")
    theirs.set_alias("best", 1)  # by somebody at the server, afterwards
    (state,) = (run.dir / "sinks").glob("*.json")
    saved = json.loads(state.read_text())
    for _ in range(2):
        state.write_text(json.dumps(saved | {"state": saved["state"] | {"places": {}}, "cursor": {}}))
        sync(run.dir, seconds=30, repair=True, pace=PACE)
    assert (theirs.versions(), theirs.aliases()) == ([0, 1], {"best": 1, "latest": 1})
    theirs.delete(0)
    sync(run.dir, seconds=30, repair=True, pace=PACE)
    assert theirs.versions() == [1]


def test_artifact_that_the_server_lost_is_sent_again(tmp_path, server):
    with run_in(tmp_path, server) as run:
        run.save_artifact("model", files_in(tmp_path, weights=b"1"), aliases=["best"]).wait()
    for path in [*server.root.glob(".artifacts/p/model/*.json"), *server.root.glob(".blobs/??/*")]:
        path.unlink()
    sync(run.dir, seconds=30, repair=True, pace=PACE)
    assert (received(server, "p/model:best").verify(), received(server).version) == ([], "v0")


def test_same_content_of_two_runs_is_one_version_and_other_content_gets_another(tmp_path, server):
    digests = {}
    for root, content in (("one", b"1"), ("two", b"2"), ("three", b"1")):
        with run_in(tmp_path / root, server, root) as run:
            (tmp_path / root / "weights").write_bytes(content)
            digests[root] = run.save_artifact("model", tmp_path / root / "weights").wait().digest
    theirs = ArtifactFolder(server.root, "p", "model")
    assert [theirs.manifest(number).digest for number in theirs.versions()] == [digests["one"], digests["two"]]
    assert theirs.aliases() == {"latest": 0}  # saved last


@pytest.mark.parametrize("fault", ["half_closed", "truncated", "error", "unreachable"])
def test_upload_of_an_artifact_that_broke_off_continues_and_rows_arrive_meanwhile(tmp_path, server, fault):
    content = random.Random(0).randbytes(6 * BLOB_REQUEST_BYTES)
    server.hangs_after = 3
    with run_in(tmp_path, server) as run:
        run.save_artifact("model", files_in(tmp_path, weights=content)).wait()
        wait_until(lambda: len(server.blob_bytes) >= 4)
        server.hangs_after = None
        server.fail(fault)
        run.log(loss=1.0)
        server.heal()
    assert sync(run.dir, seconds=60, pace=PACE)[0].status == "ok"
    assert received(server).verify() == []
    assert sum(server.blob_bytes) <= len(content) + 3 * BLOB_REQUEST_BYTES
    assert list(hl.read(server.root / "p" / run.dir.name)) == list(hl.read(run.dir))


def test_artifact_that_the_server_refuses_is_counted_and_metrics_arrive(tmp_path, make_server, caplog):
    server = make_server(blobs=BlobLimits(blob_bytes=10))
    with caplog.at_level(logging.WARNING), run_in(tmp_path, server) as run:
        run.save_artifact("model", files_in(tmp_path, weights=b"x" * 11)).wait()
        run.log(loss=1.0)
    (state,) = sink_states(run.dir)
    assert (state.status, state.blobs_left_out) == ("ok", 2)
    assert not server.root.joinpath(".artifacts").exists()
    assert [line for line in caplog.messages if "does not get the artifact 'p/model:v0'" in line]
    assert list(hl.read(server.root / "p" / run.dir.name)) == list(hl.read(run.dir))


def test_reference_to_a_local_file_is_not_followed_at_the_server(tmp_path, server):
    folder = files_in(tmp_path, rows=b"1,2")
    with run_in(tmp_path, server) as run:
        run.save_artifact("data", folder, reference=True).wait()
    theirs = received(server, "p/data")
    assert (theirs.files[0].uri, theirs.verify()) == ((folder / "rows").as_uri(), [])
    with pytest.raises(hl.ArtifactError, match="stayed on the machine that saved it"):
        theirs.path("rows")
    with pytest.raises(hl.ArtifactError, match="stayed on the machine that saved it"):
        theirs.get(tmp_path / "out", references=True)
