"""`hookline serve --storage`: servers that keep received runs in an object store."""

import hashlib
import json
import logging
import os
import shutil
import signal
import subprocess
import sys

import pytest

pytest.importorskip("obstore", reason="object stores need the extra 'storage'")

import itertools

from sending import FILE, ORIGIN, OTHER, READ, TOKENS, WRITE, ask, beat, claim, home, put, rows_of, status_of
from typer.testing import CliRunner
from waiting import wait_until

import hookline as hl
from hookline._engine.errors import ConfigError, MissingExtraError
from hookline._record.records import Media, Metrics, encode
from hookline.cli import app
from hookline.server import WebServer
from hookline.server.storage import blob_copies, protocol
from hookline.server.storage.compaction import CompactionPolicy
from hookline.server.storage.eviction import EVICTED
from hookline.server.storage.mirror import MARKER, SyncQueue
from hookline.server.storage.objects import ObstoreObjects, StorageError, check_url, open_objects
from hookline.server.storage.service import Storage, StorageOptions
from hookline.server.tokens import TokenStore

RUN = protocol.RunObjects.of("p", "r0")


@pytest.fixture(params=["file", "s3"])
def url(request, tmp_path):
    """A store of each kind that several servers can share."""
    return request.getfixturevalue("bucket") if request.param == "s3" else f"file://{tmp_path}/a store"


@pytest.fixture
def start(tmp_path):
    """Start servers, each with its own local copy."""
    started = []

    def start_server(url, name="a", **options):
        root = tmp_path / name
        root.mkdir(exist_ok=True)
        fast = {"report_seconds": 0.1, "copy_seconds": 0.1, "scan_seconds": 0.5, "compact_seconds": 0.1, "threads": 2}
        given = {name: options.pop(name) for name in ("tokens_file",) if name in options}
        server = WebServer(root, tokens=TOKENS, storage=StorageOptions(url, **(fast | options)), **given)
        started.append(server.__enter__())
        return server

    yield start_server
    for server in started:
        server.stop()


def listed(server):
    """Name, status and step of the runs that the page shows."""
    runs = ask(server, "GET", "/api/runs", token=READ).json["runs"]
    return sorted((run["id"], run["status"], run["step"]) for run in runs)


def steps(root):
    """The steps of the rows in the local copy, which are read as those of any run."""
    return [row["step"] for row in hl.runs(root).sql("SELECT step FROM metrics ORDER BY step").rows()]


def names(url, prefix=RUN.prefix):
    """The objects of a run, without the run's name."""
    return sorted(entry.name.removeprefix(f"{prefix}/") for entry in open_objects(url).list(prefix))


def content(url):
    """The journal file, as a server with nothing but the store reads it."""
    objects = open_objects(url)
    view = protocol.list_run(objects, RUN)
    return b"".join(data for _, data in protocol.read_file(objects, view, FILE, 0))


def test_run_sent_to_one_server_is_shown_by_another(start, url, tmp_path):
    first, second = start(url), start(url, "b")
    sink = {"hookline": {"url": first.url, "token": WRITE}}
    with hl.run("one", project="lab ü", root=tmp_path / "own", sinks=[sink], summary=False) as run:
        for step in run.steps(20):
            run.log(loss=1.0 / (step + 1))
        run.log(page=hl.Html("<b>hello</b>"))
    name = f"lab ü/{run.dir.name}"
    expected = [(name, "finished", 20)]
    wait_until(lambda: listed(first) == expected and listed(second) == expected)
    digest = hashlib.sha256(b"<b>hello</b>").hexdigest()
    for server in (first, second):
        assert ask(server, "GET", "/api/blob", token=READ, run=name, digest=digest).body == b"<b>hello</b>"
    assert list(hl.read(tmp_path / "b" / name)) == list(hl.read(tmp_path / "own" / name))


def test_batches_may_come_through_any_server_repeated_and_cut_elsewhere(start, url):
    first, second = start(url), start(url, "b")
    whole = rows_of(40)
    cut = [0, *(len(rows_of(count)) for count in (10, 20, 40))]
    assert claim(first).facts == claim(second).facts == (200, {"files": {}})
    assert put(first, whole[: cut[1]]).facts == (200, {"offset": cut[1]})
    assert put(second, whole[: cut[2]]).facts == (200, {"offset": cut[2]})
    assert put(first, whole[: cut[1]]).status == 200
    assert put(first, whole[cut[3] :] + rows_of(1), cut[3]).facts == (409, {"offset": cut[2]})
    assert put(first, rows_of(10, first=2)).facts == (409, {"conflict": True})
    assert put(second, whole[cut[1] :], cut[1]).facts == (200, {"offset": cut[3]})
    assert claim(first).facts == (200, {"files": {FILE: cut[3]}})
    assert content(url) == whole


def test_run_of_another_sender_is_taken_on_every_server(start, url):
    first, second = start(url), start(url, "b")
    answers = [claim(first).facts, claim(second, origin=OTHER).facts, put(second, rows_of(1), origin=OTHER).facts]
    answers += [put(second, rows_of(1), run="r1").facts, beat(second, origin=OTHER).facts]
    taken = (409, {"taken": True})
    assert answers == [(200, {"files": {}}), taken, taken, (409, {"unclaimed": True}), taken]


def test_server_with_a_new_local_copy_shows_everything_again(start, url, tmp_path):
    server = start(url)
    claim(server)
    put(server, rows_of(10) + status_of("finished"))
    put(server, b"{}", run="r0", file="environment.json")
    wait_until(lambda: [run[:2] for run in listed(server)] == [("p/r0", "finished")])  # its rows are copied
    [shown] = listed(server)
    server.stop()
    shutil.rmtree(tmp_path / "a")
    again = start(url)
    wait_until(lambda: listed(again) == [shown])
    environment = tmp_path / "a" / "p" / "r0" / "environment.json"
    wait_until(lambda: environment.exists() and environment.read_bytes() == b"{}")
    assert steps(tmp_path / "a") == list(range(1, 11))


def test_local_copy_with_other_data_than_the_store_is_replaced(start, url, tmp_path):
    server = start(url)
    claim(server)
    put(server, rows_of(5))
    journal = tmp_path / "a" / "p" / "r0" / "journal" / FILE
    journal.write_bytes(rows_of(9, first=7))
    put(server, rows_of(3, first=6), len(rows_of(5)))
    wait_until(lambda: journal.exists() and journal.read_bytes() == rows_of(8))


def test_local_copy_after_a_power_failure_is_made_again(start, url, tmp_path):
    server = start(url)
    claim(server)
    put(server, rows_of(5))
    server.stop()
    journal = tmp_path / "a" / "p" / "r0" / "journal" / FILE
    journal.write_bytes(bytes(100) + journal.read_bytes()[100:])  # a page that did not reach the disk
    marker = tmp_path / "a" / MARKER
    marker.write_text(json.dumps(json.loads(marker.read_text()) | {"boot": "another"}))
    start(url)
    wait_until(lambda: journal.exists() and journal.read_bytes() == rows_of(5))


def test_batches_are_joined_and_deleted_and_everything_is_still_there(start, url, tmp_path):
    policy = CompactionPolicy(min_batches=4, grace_seconds=0.0)
    server = start(url, policy=policy)
    claim(server)
    whole = rows_of(23)
    ends = [len(rows_of(count)) for count in range(24)]
    for begin, end in itertools.pairwise(ends):
        assert put(server, whole[begin:end], begin).status == 200
    wait_until(lambda: sum(name.startswith("journal/") for name in names(url)) < 4)
    assert content(url) == whole
    assert any(name.startswith("segments/") for name in names(url))
    # Where to continue, and what is repeated, is known from the segments.
    fresh = start(url, "b", policy=policy)
    assert claim(fresh).facts == (200, {"files": {FILE: len(whole)}})
    assert put(fresh, whole[ends[3] :] + rows_of(1, first=24), ends[3]).status == 200
    wait_until(lambda: steps(tmp_path / "b") == list(range(1, 25)))


def long_rows(count):
    return b"".join(
        encode(Metrics(time=1000.0 + step, step=step, values={f"metric-{n}": float(step) for n in range(40)})) + b"\n"
        for step in range(1, count + 1)
    )


def test_local_copy_that_is_too_large_gives_space_back_and_answers_as_before(start, url, tmp_path):
    data = b"blob " * 100_000
    digest = hashlib.sha256(data).hexdigest()
    image = (
        b'{"kind":"media","time":7000,"name":"x","step":1,"type":"file","format":"bin","blob":"%s"}\n' % digest.encode()
    )
    whole = long_rows(5000) + image + status_of("finished", time=9000.0)
    server = start(url, cache_bytes=1, trim_seconds=0.1)
    claim(server)
    assert send_pieces(server, digest, data, (0, len(data))).status == 200
    assert put(server, whole).status == 200
    journal = tmp_path / "a" / "p" / "r0" / "journal" / FILE
    query = "SELECT count(*) AS rows, sum(value) AS total FROM metrics"
    expected = hl.runs(tmp_path / "a").sql(query).rows()
    wait_until((journal.parent.parent / EVICTED).exists)
    wait_until(lambda: journal.stat().st_blocks * 512 < 0.6 * len(whole))  # the mark is set before the space is freed
    assert journal.stat().st_size == len(whole)
    assert hl.runs(tmp_path / "a").sql(query).rows() == expected != [{"rows": 0, "total": None}]
    wait_until(lambda: [run[:2] for run in listed(server)] == [("p/r0", "finished")])
    # The index is lost: the journal is needed again, and is fetched.
    server.runs.close()
    (tmp_path / "a" / ".hookline").rename(tmp_path / "lost")  # at once: the server is about to write to it
    assert hl.runs(tmp_path / "a").sql(query).rows() == expected
    assert hl.runs(tmp_path / "a")[0].problems == ()


def test_run_that_somebody_looks_at_is_copied_at_once_and_others_wait(start, url, tmp_path):
    first, second = start(url), start(url, "b", copy_seconds=3600.0, scan_seconds=3600.0)
    for run in ("r0", "r1"):
        claim(first, run)
        put(first, rows_of(1), run=run)
    wait_until(lambda: [run[0] for run in listed(second)] == ["p/r0", "p/r1"])
    looked_at = tmp_path / "b" / "p" / "r0" / "journal" / FILE
    waiting = tmp_path / "b" / "p" / "r1" / "journal" / FILE
    wait_until(lambda: (looked_at.exists(), waiting.exists()) == (True, True))
    ask(second, "GET", "/api/metrics", token=READ, run="p/r0")
    for run in ("r1", "r0"):
        assert put(first, rows_of(1, first=2), len(rows_of(1)), run=run).status == 200
    wait_until(lambda: looked_at.read_bytes() == rows_of(2))
    assert waiting.read_bytes() == rows_of(1)


def test_heartbeat_is_known_to_all_servers(start, url):
    first, second = start(url), start(url, "b")
    claim(first)
    put(first, rows_of(1))
    assert beat(first, 4.0).status == 200
    contact = second.runs.root / "p" / "r0" / "received.json"
    wait_until(lambda: contact.exists() and json.loads(contact.read_bytes()).get("every_seconds") == 4.0)
    before = contact.stat().st_mtime
    assert beat(first, 4.0).status == 200
    wait_until(lambda: contact.stat().st_mtime > before)


def test_status_messages_go_to_the_store(start, url, tmp_path):
    first, second = start(url), start(url, "b")

    def say(server, step):
        message = {"run": "night", "status": "running", "step": step, "max_step": 9, "metrics": {"loss": 1.0}}
        return ask(server, "POST", "/api/status", body=json.dumps(message)).json

    assert [say(first, 1)["records"], say(first, 2)["records"]] == [2, 1]
    wait_until(lambda: listed(second) == [("status/night", "running", 2)])
    assert say(second, 3)["records"] == 1  # the other server's messages are known: the run does not start again
    wait_until(lambda: listed(first) == [("status/night", "running", 3)])
    assert steps(tmp_path / "a") == [1, 2, 3]


def test_metric_names_beyond_the_limit_are_refused_by_every_server(start, bucket, monkeypatch):
    monkeypatch.setattr("hookline.server.limits.RUN_NAMES", 3)
    first, second = start(bucket), start(bucket, "b")
    rows = [f'{{"kind":"metrics","step":1,"values":{{"{name}":1}}}}\n'.encode() for name in "abcd"]
    claim(first)
    assert put(first, rows[0] + rows[1]).status == 200
    assert put(second, rows[2], len(rows[0] * 2)).status == 200
    refused = put(first, rows[3], len(rows[0] * 3))
    assert (refused.status, refused.json["names"]) == (422, ["a", "b", "c"])
    assert put(first, rows[0], len(rows[0] * 3)).status == 200


def send_pieces(server, digest, data, *pieces):
    parts = [{"digest": digest, "size": len(data), "offset": first, "length": last - first} for first, last in pieces]
    body = json.dumps({"parts": parts}).encode() + b"\n" + b"".join(data[first:last] for first, last in pieces)
    return ask(server, "PUT", f"{home()}/blobs", body=body, origin=ORIGIN)


def test_pieces_of_a_blob_may_come_through_any_server(start, url):
    first, second = start(url), start(url, "b")
    data = bytes(range(256)) * 100
    digest = hashlib.sha256(data).hexdigest()
    question = json.dumps({"blobs": {digest: len(data)}})
    claim(first)

    def missing(server):
        return ask(server, "POST", f"{home()}/blobs", body=question, origin=ORIGIN).json["missing"]

    assert missing(second) == {digest: 0}
    assert send_pieces(first, digest, data, (0, 10_000)).json == {"stored": {digest: 10_000}}
    assert missing(second) == {digest: 10_000}
    assert send_pieces(second, digest, data, (8_000, 20_000)).json == {"stored": {digest: 20_000}}
    assert send_pieces(first, digest, data, (20_000, 25_600)).json == {"stored": {digest: 25_600}}
    assert (missing(first), missing(second)) == ({}, {})
    objects = open_objects(url)
    copy = blob_copies.find_copy(objects, digest)
    assert objects.get(copy) == data
    assert names(url, "incoming") == []


def test_pieces_with_another_digest_are_refused_and_removed(start, bucket):
    server = start(bucket)
    claim(server)
    digest = hashlib.sha256(b"other").hexdigest()
    answers = [send_pieces(server, digest, b"x" * 10, (0, 5)), send_pieces(server, digest, b"x" * 10, (5, 10))]
    assert [answer.status for answer in answers] == [200, 422]
    assert names(bucket, "incoming") == []
    assert blob_copies.find_copy(open_objects(bucket), digest) is None


def media_of(*digests):
    """Lines that refer to blobs."""
    return b"".join(
        encode(Media(time=7000.0, step=1, name="x", type="file", format="bin", blob=each, size=4)) + b"\n"
        for each in digests
    )


def digest_of(data):
    return hashlib.sha256(data).hexdigest()


def send_blob(server, data, run="r0", *, origin=ORIGIN, project="p", token=WRITE):
    """Ask whether a blob is there, send it if not, and return whether it was asked for."""
    digest = digest_of(data)
    question = json.dumps({"blobs": {digest: len(data)}})
    path = f"{home(run, project)}/blobs"
    missing = ask(server, "POST", path, body=question, origin=origin, token=token).json["missing"]
    if missing:
        parts = [{"digest": digest, "size": len(data), "offset": 0, "length": len(data)}]
        body = json.dumps({"parts": parts}).encode() + b"\n" + data
        assert ask(server, "PUT", path, body=body, origin=origin, token=token).status == 200
    return bool(missing)


def test_run_deleted_by_command_goes_from_all_servers_and_its_name_is_not_given_again(start, url, tmp_path):
    first, second = start(url), start(url, "b")
    for run in ("r0", "r1"):
        claim(first, run)
        put(first, status_of("running", 1.0) + rows_of(3) + status_of("finished", 9.0), run=run)
    wait_until(lambda: len(listed(second)) == 2)
    command = ["runs", "delete", "p/r0", "--root", str(tmp_path / "a"), "--yes"]
    refused = CliRunner().invoke(app, command)
    assert (refused.exit_code, "copy of an object store" in " ".join(refused.output.split())) == (2, True)
    assert CliRunner().invoke(app, [*command, "--storage", url]).exit_code == 0
    wait_until(lambda: listed(first) == listed(second) == [("p/r1", "finished", 0)])
    # The first server still knows the run, and stores what nobody reads.
    late = put(first, rows_of(1, 4), offset=len(status_of("running", 1.0) + rows_of(3) + status_of("finished", 9.0)))
    assert late.status in (200, 409)
    wait_until(lambda: names(url) == ["deleted"])
    assert [claim(server).facts for server in (first, second)] == [(409, {"taken": True})] * 2
    wait_until(lambda: names(url) == ["deleted"])


def test_blobs_are_deleted_when_no_run_uses_them_and_stay_for_those_that_do(start, url):
    server, other = start(url, collect_seconds=0.3), start(url, "b", collect_seconds=0.3)
    claim(server), claim(server, "r1")
    assert [send_blob(server, b"ours"), send_blob(server, b"both"), send_blob(other, b"both", "r1")] == [
        True,
        True,
        False,
    ]
    put(server, media_of(digest_of(b"ours"), digest_of(b"both")))
    put(server, media_of(digest_of(b"both")), run="r1")
    objects = open_objects(url)
    protocol.delete_run(objects, RUN, protocol.Deletion("p", "r0"))
    wait_until(lambda: blob_copies.find_copy(objects, digest_of(b"ours")) is None)
    assert objects.get(blob_copies.find_copy(objects, digest_of(b"both"))) == b"both"
    claim(other, "r2")
    assert [send_blob(other, b"ours", "r2"), send_blob(other, b"ours", "r2")] == [True, False]
    assert objects.get(blob_copies.find_copy(objects, digest_of(b"ours"))) == b"ours"


def test_token_for_some_projects_sends_blobs_and_reads_none_of_others(start, url, tmp_path):
    store = TokenStore(tmp_path / "tokens.json")
    token = store.create("ours", roles=["write", "read"], projects=["p"]).token
    first, second = (start(url, name, tokens_file=tmp_path / "tokens.json") for name in ("a", "b"))
    claim(first, project="other")
    assert send_blob(first, b"theirs", project="other")
    for server in (first, second):  # as a sender does that is sent to another server
        claim(server, token=token)
    # What another run has sent counts as missing, until this one has sent it, too.
    asked = [send_blob(server, data, token=token) for data in (b"ours", b"theirs") for server in (first, second)]
    assert asked == [True, False, True, False]
    put(first, media_of(digest_of(b"ours"), digest_of(b"theirs")) + status_of("finished", 9.0), token=token)
    assert send_blob(first, b"secret", project="other")
    claim(first, "thief", token=token)
    put(first, media_of(digest_of(b"secret")) + status_of("finished", 9.0), run="thief", token=token)
    # Their last rows: a run is listed before its rows are copied.
    wait_until(lambda: [status for _, status, _ in listed(second)].count("finished") == 2)

    def read(run, data):
        return ask(second, "GET", "/api/blob", token=token, run=f"p/{run}", digest=digest_of(data)).status

    assert (read("r0", b"ours"), read("r0", b"theirs"), read("thief", b"secret")) == (200, 200, 404)


def test_store_that_cannot_be_reached_is_answered_with_503_until_it_is_back(start, bucket, s3, monkeypatch, caplog):
    from moto.server import ThreadedMotoServer

    own = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)  # has the objects of the other one
    own.start()
    port = own.get_host_and_port()[1]
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    server = start(bucket, scan_seconds=60.0)
    claim(server)
    own.stop()
    with caplog.at_level(logging.WARNING, "hookline"):
        answer = put(server, rows_of(1))
    assert (answer.status, answer.headers["Retry-After"]) == (503, "2")
    own = ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
    own.start()
    try:
        wait_until(lambda: put(server, rows_of(1)).status == 200)
    finally:
        server.stop()
        own.stop()
    said = answer.body.decode() + caplog.text
    assert [secret for secret in ("secret-of-a-test", "key-of-a-test") if secret in said] == []


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("ftp://x/y", "give s3://bucket/prefix"),
        ("runs", "give s3://bucket/prefix"),
        ("s3://", "has no bucket"),
        ("s3://key:secret@bucket/x", "come from the environment"),
        ("az://c/x?sig=secret", "come from the environment"),
        ("file://relative/x", "an absolute directory"),
        ("file:///", "an absolute directory"),
    ],
)
def test_url_that_is_not_accepted_is_refused_without_its_secrets(url, error):
    with pytest.raises(ConfigError, match=error) as refused:
        check_url(url)
    assert "secret" not in str(refused.value)


def test_local_copy_belongs_to_one_store_and_one_server(start, tmp_path):
    first = start(f"file://{tmp_path}/one")
    with pytest.raises(ConfigError, match="is used by another server"):
        start(f"file://{tmp_path}/one")
    first.stop()
    with pytest.raises(ConfigError, match="is a copy of another storage"):
        start(f"file://{tmp_path}/two")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "mine.txt").write_text("x")
    with pytest.raises(ConfigError, match="holds other files, such as 'mine.txt'"):
        start(f"file://{tmp_path}/one", "c")


def test_store_of_another_version_is_refused(tmp_path):
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "store.json").write_text('{"id": "x", "version": 9}')
    with pytest.raises(ConfigError, match="has format 9; this version of hookline uses 2"):
        Storage(StorageOptions(f"file://{tmp_path}/store"), tmp_path)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["runs", "--storage", "memory://"], "Both a directory and --storage are given"),
        (["--storage", "memory://", "--max-blobs", "1GB"], "set a quota for the bucket"),
        (["--cache", "here"], "only --storage has a local copy"),
        (["--storage", "http://x"], "give s3://bucket/prefix"),
    ],
)
def test_options_that_do_not_fit_are_refused(arguments, error, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["serve", "--port", "0", *arguments])
    assert result.exit_code != 0
    assert error in " ".join((result.output + str(result.exception)).split())
    assert list(tmp_path.iterdir()) == []


def test_server_started_as_a_command_keeps_its_runs_in_the_store(url, tmp_path):
    command = [sys.executable, "-m", "hookline", "serve", "--storage", url, "--cache", "copy", "--cache-bytes", "1GB"]
    process = subprocess.Popen(
        [*command, "--port", "0", "--json"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"HOOKLINE_WRITE_TOKEN": WRITE},
    )
    facts = json.loads(process.stdout.readline())
    claim(facts["url"])
    assert put(facts["url"], rows_of(3)).status == 200
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=100)[1] == ""
    assert (process.returncode, facts["root"], content(url)) == (0, str(tmp_path / "copy"), rows_of(3))


class Overwriting(ObstoreObjects):
    """A store that does not know conditional writes, and ignores the condition."""

    def create(self, name, data):
        self.put(name, data)
        return True


def test_store_without_conditional_writes_is_refused(tmp_path):
    objects = Overwriting(open_objects("memory://")._store, "memory")
    with pytest.raises(ConfigError, match="does not refuse to create an object that exists"):
        Storage(StorageOptions("memory://"), tmp_path, objects=objects)


def test_claim_in_the_store_that_names_another_directory_is_not_copied(start, url, tmp_path, caplog):
    objects = open_objects(url)
    for prefix in ("runs/p/..", "runs/p/%2E%2E%2Fx", "runs/p/r9"):
        run = protocol.RunObjects(prefix.replace("/..", "/x"))
        protocol.claim_run(objects, run, protocol.Claim(ORIGIN, "..", "../outside"))
        objects.put(run.facts, b"{}")
    server = start(url)
    claim(server)
    wait_until(lambda: caplog.text.count("cannot be copied from the storage") >= 3)
    assert [run[0] for run in listed(server)] in ([], ["p/r0"])
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "a store") == ["a"]


def test_storage_without_its_package_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(MissingExtraError, match=r"hookline\[storage\]"):
        open_objects("memory://")


def test_memory_store_has_what_was_created():
    objects = open_objects("memory://")
    assert [objects.create("a/b", b"1"), objects.create("a/b", b"2"), objects.get("a/b")] == [True, False, b"1"]
    objects.delete(["a/b", "a/c"])
    assert list(objects.list("a")) == []


def test_store_with_too_many_requests_refuses_more(monkeypatch):
    monkeypatch.setattr("hookline.server.storage.objects.WAIT_SECONDS", 0.01)
    objects = open_objects("memory://", max_requests=1)
    with objects._request("wait"), pytest.raises(StorageError, match="too many requests at once"):
        objects.get("x")


def test_queue_gives_the_most_urgent_run_first_and_each_once():
    queue, runs = SyncQueue(), [protocol.RunObjects.of("p", name) for name in "abc"]
    for run, due in zip(runs, (5.0, 3.0, 9.0), strict=True):
        queue.add(run, due)
    queue.add(runs[2], 1.0)  # somebody looks at it now
    queue.add(runs[1], 7.0)
    taken = [queue.take(lambda: 10.0) for _ in runs]
    assert taken == [runs[2], runs[1], runs[0]]
    queue.close()
    assert queue.take(lambda: 10.0) is None


def test_bucket_that_does_not_exist_is_reported(bucket, tmp_path):
    with pytest.raises(StorageError, match="there is no such bucket or directory"):
        Storage(StorageOptions("s3://bucket-that-nobody-made/x"), tmp_path)
