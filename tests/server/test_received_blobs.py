"""Blobs that a server receives: in pieces, verified, within limits, whatever a client sends."""

import errno
import hashlib
import json
import os
import random
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
from sending import ORIGIN, OTHER, READ, TOKENS, ask, claim, home, put, rows_of, tree
from waiting import wait_until

from hookline.server.received_blobs import PIECE_SECONDS, BlobLimits, ReceivedBlobs
from hookline.server.received_runs import ReceivedRuns

CONTENT = random.Random(0).randbytes(300_000)
UNKNOWN = "0" * 64


def digest_of(content):
    return hashlib.sha256(content).hexdigest()


DIGEST = digest_of(CONTENT)


def ask_blobs(server, sizes, *, run="r0", origin=ORIGIN, **more):
    body = json.dumps({"blobs": sizes})
    return ask(server, "POST", f"{home(run)}/blobs", body=body, origin=origin, **more)


def part(content=CONTENT, start=0, end=None, *, digest=None, size=None):
    """A part of a blob and its bytes."""
    piece = content[start:end]
    size = len(content) if size is None else size
    return {"digest": digest or digest_of(content), "size": size, "offset": start, "length": len(piece)}, piece


def put_parts(server, *parts, run="r0", origin=ORIGIN, **more):
    head = json.dumps({"parts": [described for described, _ in parts]}).encode()
    body = head + b"\n" + b"".join(piece for _, piece in parts)
    return ask(server, "PUT", f"{home(run)}/blobs", body=body, origin=origin, **more)


@pytest.fixture
def server(root, serve):
    server = serve(root, tokens=TOKENS)
    claim(server)
    return server


def stored(root):
    """The contents of the blobs below a root by digest; partial files and the lock are none."""
    return {path.name: path.read_bytes() for path in root.glob(".blobs/??/*")}


def incoming(root):
    return [path.stat().st_size for path in root.glob(".blobs/incoming/*")]


def test_blob_in_pieces_is_stored_when_it_is_whole(root, server):
    assert ask_blobs(server, {DIGEST: len(CONTENT)}).facts == (200, {"missing": {DIGEST: 0}, "refused": {}})
    assert put_parts(server, part(end=1000)).facts == (200, {"stored": {DIGEST: 1000}})
    assert ask_blobs(server, {DIGEST: len(CONTENT)}).json["missing"] == {DIGEST: 1000}
    assert (stored(root), incoming(root)) == ({}, [1000])
    assert put_parts(server, part(start=1000)).json["stored"] == {DIGEST: len(CONTENT)}
    assert ask_blobs(server, {DIGEST: len(CONTENT)}).json["missing"] == {}
    assert (stored(root), incoming(root)) == ({DIGEST: CONTENT}, [])


def test_small_blobs_share_a_request_with_a_piece_of_a_large_one(root, server):
    small = [bytes([number]) * number for number in range(20)]
    answer = put_parts(server, *map(part, small), part(end=500))
    assert answer.json["stored"] == {digest_of(each): len(each) for each in small} | {DIGEST: 500}
    assert stored(root) == {digest_of(each): each for each in small}


def test_repeated_overlapping_and_early_pieces_are_harmless(root, server):
    for start, end, there in [(0, 100, 100), (0, 100, 100), (50, 150, 150), (400, 500, 150), (0, 50, 150)]:
        assert put_parts(server, part(start=start, end=end)).json["stored"] == {DIGEST: there}
    for _ in range(2):
        assert put_parts(server, part(start=150)).json["stored"] == {DIGEST: len(CONTENT)}
    assert put_parts(server, part(end=10)).json["stored"] == {DIGEST: len(CONTENT)}
    assert (stored(root), incoming(root)) == ({DIGEST: CONTENT}, [])


def test_many_senders_of_one_blob_store_it_once(root, server):
    for number in range(8):
        claim(server, f"r{number}")

    def send(number):
        starts = [*range(0, len(CONTENT), 50_000)]
        return [put_parts(server, part(start=at, end=at + 50_000), run=f"r{number}").status for at in starts]

    with ThreadPoolExecutor(8) as threads:
        assert {status for answers in threads.map(send, range(8)) for status in answers} == {200}
    assert (stored(root), incoming(root)) == ({DIGEST: CONTENT}, [])


@pytest.mark.parametrize("pieces", [[(0, None)], [(0, 1000), (1000, None)]])
def test_content_of_another_digest_is_refused_and_removed(root, server, pieces):
    for start, end in pieces:
        answer = put_parts(server, part(b"good"), part(start=start, end=end, digest=UNKNOWN))
    assert (answer.status, answer.json["refused"][UNKNOWN]["status"]) == (422, 422)
    assert answer.json["stored"] == {digest_of(b"good"): 4}  # the others are kept
    assert (stored(root), incoming(root)) == ({digest_of(b"good"): b"good"}, [])


def test_stored_blob_is_not_changed_by_a_claim_of_another_size(root, server):
    put_parts(server, part())
    for size in (len(CONTENT) + 100, 100):
        answer = put_parts(server, part(b"x" * 50, digest=DIGEST, size=size))
        assert answer.json["stored"] == {DIGEST: size}
    assert (stored(root), incoming(root)) == ({DIGEST: CONTENT}, [])


def test_pieces_that_are_more_than_the_blob_start_again(root, server):
    put_parts(server, part(b"x" * 200, digest=DIGEST, size=500))
    assert ask_blobs(server, {DIGEST: 100}).json["missing"] == {DIGEST: 0}
    assert put_parts(server, part(b"y" * 50, digest=DIGEST, size=100)).json["stored"] == {DIGEST: 50}


@pytest.mark.parametrize(
    ("run", "origin", "status"), [("r0", OTHER, 409), ("unclaimed", ORIGIN, 409), ("..", ORIGIN, 400), ("r0", "x", 400)]
)
def test_only_the_owner_of_a_run_asks_and_sends(root, server, run, origin, status):
    put_parts(server, part())
    before = tree(root)
    answers = [
        ask_blobs(server, {DIGEST: 1}, run=run, origin=origin),
        put_parts(server, part(b"x"), run=run, origin=origin),
    ]
    assert [answer.status for answer in answers] == [status] * 2
    assert tree(root) == before


@pytest.mark.parametrize("token", [None, READ])
def test_nobody_without_the_write_token_learns_which_blobs_are_there(server, token):
    assert put_parts(server, part()).status == 200
    answers = [ask_blobs(server, {digest: 1}, token=token) for digest in (DIGEST, UNKNOWN)]
    assert answers[0].status == answers[1].status == (403 if token else 401)
    assert answers[0].body == answers[1].body


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{}", b"[]", b"\xff", b"[" * 90_000, b'{"blobs": {"../../etc/passwd": 1}}', b'{"blobs": {"%s": -1}}'),
        *(b'{"blobs": {"%s": 1.5}}', b'{"blobs": {"%s": 2000000000000000}}', b'{"blobs": {}, "more": 1}'),
        json.dumps({"blobs": {f"{number:064x}": 1 for number in range(1001)}}).encode(),
    ],
)
def test_questions_that_are_none_are_refused(root, server, body):
    before = tree(root)
    body = body.replace(b"%s", DIGEST.encode())
    assert ask(server, "POST", f"{home()}/blobs", body=body, origin=ORIGIN).status == 400
    assert tree(root) == before


@pytest.mark.parametrize(
    "changed",
    [
        *({"digest": "../" * 20}, {"digest": DIGEST.upper()}, {"size": 5}, {"length": 99}, {"length": 101}),
        *({"offset": -1}, {"offset": 1 << 60}, {"size": -1}, {"more": 1}),
    ],
)
def test_parts_that_do_not_fit_are_refused(root, server, changed):
    described, piece = part(end=100)
    before = tree(root)
    assert put_parts(server, (described | changed, piece)).status == 400
    assert tree(root) == before


@pytest.mark.parametrize(
    "body", [b"", b"\n", b'{"parts": []}', b"{}\n", b"x" * 600_000 + b"\n", b"\xff\n", b"[" * 9000]
)
def test_bodies_without_a_first_line_are_refused(server, body):
    assert ask(server, "PUT", f"{home()}/blobs", body=body, origin=ORIGIN).status == 400


@pytest.mark.parametrize(
    ("limits", "status", "option"),
    [
        (BlobLimits(blob_bytes=99_999), 413, "--max-blob"),
        (BlobLimits(run_bytes=99_999), 507, "--max-run-blobs"),
        (BlobLimits(total_bytes=99_999), 507, "--max-blobs"),
        (BlobLimits(free_bytes=1 << 60), 507, "--keep-free"),
    ],
)
def test_blob_beyond_a_limit_is_refused_and_journals_are_received(root, serve, limits, status, option):
    server = serve(root, tokens=TOKENS, blobs=limits)
    claim(server)
    answer = ask_blobs(server, {DIGEST: 100_000})
    assert (answer.status, answer.json["missing"]) == (200, {})
    for refused in (answer, put_parts(server, part(end=100_000)), put_parts(server, part(CONTENT[:100_000]))):
        (refusal,) = refused.json["refused"].values()
        assert (refusal["status"], f"({option})" in refusal["error"]) == (status, True)
        assert refused.status in (200, status)
    assert (stored(root), incoming(root)) == ({}, [])
    assert put(server, rows_of(3)).status == 200


def test_limits_count_what_is_stored_and_what_is_incomplete(root, serve):
    server = serve(root, tokens=TOKENS, blobs=BlobLimits(run_bytes=250, total_bytes=400))
    for run in ("a", "b"):
        claim(server, run)
    assert put_parts(server, part(b"a" * 150), run="a").status == 200
    assert put_parts(server, part(b"b" * 100, end=40), run="a").json["stored"] == {digest_of(b"b" * 100): 40}
    assert put_parts(server, part(b"c" * 100), run="a").status == 507  # of this run
    assert put_parts(server, part(b"a" * 150), run="b").status == 200  # has it already: costs nothing
    assert put_parts(server, part(b"c" * 200), run="b").status == 200
    assert put_parts(server, part(b"d" * 20), run="b").status == 507  # of all


def test_full_disk_is_answered_with_507_and_the_sender_continues_later(root, server, monkeypatch):
    put_parts(server, part(end=1000))
    write = os.pwrite

    def half(descriptor, data, offset):
        if len(data) < 500:
            raise OSError(errno.ENOSPC, "full")
        return write(descriptor, bytes(data)[: len(data) // 2], offset)

    with monkeypatch.context() as full:
        full.setattr(os, "pwrite", half)
        answer = put_parts(server, part(start=1000, end=3000))
        assert (answer.status, "refused" in answer.json) == (507, False)
    assert ask_blobs(server, {DIGEST: len(CONTENT)}).json["missing"] == {DIGEST: 1000}
    put_parts(server, part(start=1000))
    assert stored(root) == {DIGEST: CONTENT}


@pytest.mark.parametrize("name", [".blobs", ".blobs/incoming"])
def test_link_in_place_of_a_folder_is_not_followed(root, server, tmp_path, name):
    outside = tmp_path / "outside"
    outside.mkdir()
    (root / name).parent.mkdir(exist_ok=True)
    (root / name).symlink_to(outside)
    assert put_parts(server, part(end=1000)).status == 409
    assert ask_blobs(server, {DIGEST: len(CONTENT)}).status == 409
    assert list(outside.iterdir()) == []


def test_link_in_place_of_pieces_is_not_followed(root, server, tmp_path):
    put_parts(server, part(end=1000))
    (path,) = root.glob(".blobs/incoming/*")
    path.unlink()
    (tmp_path / "outside").write_bytes(b"x")
    path.symlink_to(tmp_path / "outside")
    assert put_parts(server, part(end=1000)).status >= 400
    assert (tmp_path / "outside").read_bytes() == b"x"


@pytest.mark.parametrize(("age", "left"), [(-10, [1000]), (10, [])])
def test_pieces_that_nobody_continues_are_removed_after_a_day(root, server, age, left):
    put_parts(server, part(end=1000))
    (path,) = root.glob(".blobs/incoming/*")
    now = path.stat().st_mtime + PIECE_SECONDS + age
    ReceivedBlobs(ReceivedRuns(root), clock=lambda: now).missing("p", "r0", origin=ORIGIN, sizes={})
    assert incoming(root) == left


def test_server_killed_in_the_middle_of_a_blob_continues_there(tmp_path, start_process):
    first = start_process()
    claim(first.url)
    put_parts(first.url, part(end=200_000))
    first.send_signal(signal.SIGKILL)
    first.wait()
    second = start_process()
    assert ask_blobs(second.url, {DIGEST: len(CONTENT)}).json["missing"] == {DIGEST: 200_000}
    put_parts(second.url, part(start=200_000))
    assert stored(tmp_path / "runs") == {DIGEST: CONTENT}


def test_blob_that_waits_for_its_record_is_kept_by_a_collection(root, server):
    put_parts(server, part())
    store = ReceivedBlobs(ReceivedRuns(root)).store
    assert store.collect_garbage(set, min_age_seconds=3600).blobs == 0
    wait_until(lambda: store.collect_garbage(set).blobs == 1)
