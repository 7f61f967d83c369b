"""The hookline sink sends the blobs that a run refers to: before the records, once, and whatever happens in between."""

import random
import signal
import subprocess
import sys
import textwrap
from collections import Counter

import numpy as np
import pytest
from destinations.journal_server import TOKEN, JournalServer
from waiting import wait_until

import hookline as hl
from hookline._record.blobs import BlobStore, blob_problem, references_in
from hookline._record.delivery import Pace, sink_states
from hookline._record.delivery_manager import sync
from hookline.server.received_blobs import BlobLimits
from hookline.sinks.hookline_upload import BLOB_REQUEST_BYTES

PACE = Pace(poll_seconds=0.01, retry_seconds=0.01, longest_seconds=0.05)
_AUTHOR = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
LARGE = 5 * BLOB_REQUEST_BYTES + 1000


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


def image(number):
    return hl.Image(np.full((8, 8, 3), number, np.uint8))


def record(server, *values, name="sft", **options):
    """A run that logs media, and delivers to the server."""
    sink = {"hookline": {"url": server.url, "timeout_seconds": 1.0}}
    with hl.run(name, project="p", sinks=[sink], summary=False, **options) as run:
        for step, value in enumerate(values, 1):
            run.log(loss=1.0, media=value, step=step)
    return run


def large_file(tmp_path):
    path = tmp_path / "weights.bin"
    path.write_bytes(random.Random(0).randbytes(LARGE))
    return hl.File(path)


def only_run(root):
    (run_dir,) = root.glob("p/*/")
    return run_dir


def assert_complete(run_dir, server, *, lacks=0):
    """The server has every record of a run, and every blob but some."""
    there = server.root / "p" / run_dir.name
    assert list(hl.read(there)) == list(hl.read(run_dir))
    digests = {digest for path in run_dir.glob("journal/*.jsonl") for digest in references_in(path.read_bytes())}
    assert [blob_problem(there, digest) for digest in digests].count("is missing") == lacks
    assert lacks or server.early == []


def test_blobs_of_every_kind_arrive_before_the_records_that_name_them(server, tmp_path):
    table = hl.Table(columns=["n", "seen"], rows=[[1, image(1)], [2, image(2)]])
    boxes = hl.Image(np.zeros((8, 8), np.uint8), masks={"truth": np.eye(8, dtype=np.uint8)})
    run = record(server, image(3), table, boxes, hl.Html("<b>x</b>"), large_file(tmp_path))
    assert_complete(run.dir, server)
    assert sum(server.blob_bytes) == sum(path.stat().st_size for path in server.root.glob(".blobs/??/*"))


def test_code_of_a_run_arrives_before_the_environment_that_names_it(server, tmp_path, monkeypatch):
    code = tmp_path / "code"
    code.mkdir()
    monkeypatch.chdir(code)
    for command in (["init", "-q"], [*_AUTHOR, "commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run(["git", *command], check=True)
    (code / "train.py").write_text("train()\n")
    run = record(server, name="coded", code="all")
    there = server.root / "p" / run.dir.name
    assert (there / "environment.json").read_bytes() == (run.dir / "environment.json").read_bytes()
    digests = references_in((there / "environment.json").read_bytes())
    assert digests
    assert [blob_problem(there, digest) for digest in digests] == [""] * len(digests)
    assert server.early == []
    # A server that lost them gets them again.
    BlobStore(server.root / ".blobs").path(digests[0]).unlink()
    sync(run.dir, seconds=30, repair=True, pace=PACE)
    assert blob_problem(there, digests[0]) == ""


def test_blob_that_the_server_has_is_not_sent_again(server, tmp_path):
    record(server, large_file(tmp_path), image(1), name="first")
    sent = sum(server.blob_bytes)
    run = record(server, large_file(tmp_path), image(1), image(2), name="second")
    assert_complete(run.dir, server)
    assert 0 < sum(server.blob_bytes) - sent < 1000


@pytest.mark.parametrize("fault", ["half_closed", "truncated", "error", "unreachable"])
def test_upload_that_broke_off_continues_where_it_was(server, tmp_path, fault):
    server.hangs_after = 3
    with hl.run("sft", project="p", sinks=[{"hookline": {"url": server.url}}], summary=False) as run:
        run.log(weights=large_file(tmp_path))
        wait_until(lambda: len(server.blob_bytes) >= 4)
        server.hangs_after = None
        server.fail(fault)
        server.gate.set()
        wait_until(lambda: run.sinks()[0].status == "lagging")
        server.heal()
    assert_complete(run.dir, server)
    assert LARGE <= sum(server.blob_bytes) <= LARGE + 3 * BLOB_REQUEST_BYTES


def test_server_restarted_in_the_middle_of_a_blob_gets_the_rest(server, tmp_path):
    server.hangs_after = 3
    with hl.run("sft", project="p", sinks=[{"hookline": {"url": server.url}}], summary=False) as run:
        run.log(weights=large_file(tmp_path))
        wait_until(lambda: len(server.blob_bytes) >= 4)
        server.hangs_after = None
        server.restart()
        server.heal()
    assert_complete(run.dir, server)
    assert LARGE <= sum(server.blob_bytes) <= LARGE + 2 * BLOB_REQUEST_BYTES


TRAINING = """
    import sys
    import hookline as hl

    with hl.run("job", project="p", sinks=[{"hookline": {"url": sys.argv[1]}}]) as run:
        run.log(weights=hl.File(sys.argv[2]), loss=1.0)
        sys.stdin.read()
"""


def test_sender_killed_in_the_middle_of_a_blob_is_continued_by_sync(server, tmp_path):
    server.hangs_after = 3
    large_file(tmp_path)
    command = [sys.executable, "-c", textwrap.dedent(TRAINING), server.url, str(tmp_path / "weights.bin")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as training:
        wait_until(lambda: len(server.blob_bytes) == 4)
        training.send_signal(signal.SIGKILL)
    server.hangs_after = None
    server.heal()
    run_dir = only_run(tmp_path / "runs")
    (state,) = sync(run_dir, seconds=30, pace=PACE)
    assert (state.status, state.behind_bytes) == ("ok", 0)
    assert_complete(run_dir, server)
    assert LARGE <= sum(server.blob_bytes) <= LARGE + 2 * BLOB_REQUEST_BYTES


@pytest.mark.parametrize("harm", ["missing", "damaged", "shorter"])
def test_blob_that_is_gone_or_damaged_here_is_left_out_and_the_records_arrive(server, harm, caplog):
    server.fail("unreachable")
    run = record(server, image(1), image(2), image(3), drain_seconds=0.0)
    for path in list((run.dir.parent.parent / ".blobs").glob("??/*"))[:2]:
        content = path.read_bytes()
        path.unlink()
        if harm != "missing":
            path.write_bytes(content[:-1] if harm == "shorter" else bytes(len(content)))
    server.heal()
    caplog.clear()
    (state,) = sync(run.dir, seconds=30, pace=PACE)
    assert (state.status, state.behind_bytes, state.blobs_left_out) == ("ok", 0, 2)
    assert_complete(run.dir, server, lacks=2)
    # The run's own thread may deliver once more before `sync` may, and says it as well.
    deliveries = Counter(line.thread for line in caplog.records if "is left out" in line.getMessage())
    assert set(deliveries.values()) == {1}


@pytest.mark.parametrize(
    "limits", [{"blob_bytes": 10}, {"run_bytes": 10}, {"total_bytes": 10}, {"free_bytes": 1 << 60}]
)
def test_blobs_beyond_the_limits_are_left_out_until_there_is_room(make_server, limits, caplog):
    server = make_server(blobs=BlobLimits(**limits))
    run = record(server, image(1), image(2), image(3))
    assert [(state.status, state.blobs_left_out) for state in sink_states(run.dir)] == [("ok", 3)]
    assert_complete(run.dir, server, lacks=3)
    assert sum("is left out" in line.getMessage() for line in caplog.records) == 1
    server.options, server.early = {}, []
    server.restart()
    (state,) = sync(run.dir, seconds=30, repair=True, pace=PACE)
    assert (state.status, state.blobs_left_out, state.sent_again_bytes > 0) == ("ok", 0, True)
    assert_complete(run.dir, server)


def test_sync_sends_blobs_that_the_server_lost_again(server):
    run = record(server, image(1), image(2))
    (lost, _) = server.root.glob(".blobs/??/*")
    size = lost.stat().st_size
    lost.unlink()
    (state,) = sync(run.dir, seconds=30, repair=True, pace=PACE)
    assert (state.status, state.sent_again_bytes) == ("ok", size)
    assert_complete(run.dir, server)


def test_record_of_an_imported_or_copied_run_finds_the_blobs_beside_it(server, tmp_path):
    """A run may carry its blobs in its own directory."""
    run = record(server, image(1))
    shared = run.dir.parent.parent / ".blobs"
    BlobStore(run.dir / ".blobs").directory.mkdir()
    for folder in shared.glob("??"):
        folder.rename(run.dir / ".blobs" / folder.name)
    for path in server.root.glob(".blobs/??/*"):
        path.unlink()
    (state,) = sync(run.dir, seconds=30, repair=True, pace=PACE)
    assert state.blobs_left_out == 0
    assert_complete(run.dir, server)


def test_server_without_blobs_gets_the_records(server, monkeypatch, caplog):
    from hookline.server import application, receive_api

    old = [each for each in receive_api.RECEIVE_ENDPOINTS if not each.path.endswith("/blobs")]
    monkeypatch.setattr(application, "WRITE_ENDPOINTS", old)
    server.restart()
    run = record(server, image(1), image(2))
    assert [(state.status, state.blobs_left_out) for state in sink_states(run.dir)] == [("ok", 2)]
    assert_complete(run.dir, server, lacks=2)
