"""Receiving runs: records are stored as an ordinary run, once and in order, despite faults."""

import errno
import fcntl
import itertools
import json
import logging
import os
import shutil
import threading
import time

import pytest
from page_runs import finished_run
from sending import FILE, ORIGIN, OTHER, READ, TOKENS, WRITE, ask, beat, claim, home, put, rows_of, status_of

import hookline as hl
from hookline.server import endpoint
from hookline.server.application import LOG_SECONDS, DiskFaults
from hookline.server.endpoint import WriteContext
from hookline.server.limits import RecentSenders
from hookline.server.root_tokens import OptionalTokens, Tokens, resolve_tokens
from hookline.store.run_summary import Liveness
from hookline.store.store import open_store

TWO = rows_of(2)


@pytest.fixture
def receiving(root, serve):
    """A server that takes runs, and lets everybody look."""
    return serve(root, tokens=Tokens(WRITE))


def status(root, run="p/r0", *, later=0.0, stall_seconds=300.0):
    """The word for a run, some time after its last sign of life."""
    sign = (root / run / "received.json").stat().st_mtime
    listed = open_store(root).list_runs(Liveness(stall_seconds, clock=lambda: sign + later))
    return {info.id: info.status for info in listed}[run]


def test_received_run_is_listed_and_read_like_one_that_was_recorded_here(root, receiving):
    assert claim(receiving, facts={"name": "far", "config": {"lr": 0.1}}).facts == (200, {"files": {}})
    assert put(receiving, status_of("running", num_steps=5) + TWO).status == 200
    assert [record.step for record in hl.read(root / "p" / "r0")] == [0, 1, 2]
    [run] = hl.runs(root)
    assert (run.name, run.step, run.num_steps, run.config, run.status) == ("far", 2, 5, {"lr": 0.1}, "running")
    assert hl.runs(root).sql("SELECT count(*) AS n FROM metrics").rows() == [{"n": 2}]


def test_server_on_a_file_system_without_locks_receives_runs(root, serve, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", refuse)
    tokens = resolve_tokens(root, OptionalTokens(write=WRITE), needs_read=True).tokens
    receiving = serve(root, tokens=tokens)
    assert (claim(receiving).status, put(receiving, TWO).status, beat(receiving).status) == (200, 200, 200)
    assert [record.step for record in hl.read(root / "p" / "r0")] == [1, 2]


def test_append_continues_where_the_claim_says_and_repeats_are_harmless(root, receiving):
    claim(receiving)
    assert put(receiving, TWO).facts == (200, {"offset": len(TWO)})
    assert put(receiving, TWO).facts == (200, {"offset": len(TWO)})
    more = rows_of(1, first=3)
    assert put(receiving, TWO + more).facts == (200, {"offset": len(TWO + more)})
    assert put(receiving, more, len(TWO)).facts == (200, {"offset": len(TWO + more)})
    assert put(receiving, b"", 0).facts == (200, {"offset": len(TWO + more)})
    assert claim(receiving).json == {"files": {FILE: len(TWO + more)}}
    assert (root / "p" / "r0" / "journal" / FILE).read_bytes() == TWO + more


def test_append_that_does_not_fit_is_refused_and_changes_nothing(root, receiving):
    assert put(receiving, TWO).facts == (409, {"unclaimed": True})
    claim(receiving)
    assert put(receiving, TWO, 7).facts == (409, {"offset": 0})
    put(receiving, TWO)
    assert put(receiving, rows_of(2, first=5)).facts == (409, {"conflict": True})
    assert put(receiving, TWO, 7).facts == (409, {"conflict": True})
    assert (root / "p" / "r0" / "journal" / FILE).read_bytes() == TWO


def test_torn_line_that_a_crash_left_is_not_held_and_cut_off_by_the_next_append(root, receiving):
    claim(receiving)
    put(receiving, TWO)
    path = root / "p" / "r0" / "journal" / FILE
    for torn in (b'{"kind":"metrics","st', b"\0" * 5000, b'{"kind"' + b"\0" * 100):
        with path.open("ab") as file:
            file.write(torn)
        assert claim(receiving).json["files"][FILE] == len(TWO)
    assert put(receiving, rows_of(1, first=3), len(TWO)).status == 200
    assert path.read_bytes() == rows_of(3)


def test_run_belongs_to_the_origin_that_claimed_it_first(root, receiving):
    claim(receiving, facts={"name": "mine"})
    for refused in (
        claim(receiving, origin=OTHER, facts={"name": "yours"}),
        put(receiving, TWO, origin=OTHER),
        beat(receiving, origin=OTHER),
        put(receiving, b"x", file="git.diff", origin=OTHER),
    ):
        assert refused.facts == (409, {"taken": True})
    assert json.loads((root / "p" / "r0" / "run.json").read_text()) == {"name": "mine"}


def test_run_that_was_recorded_here_is_never_touched(root, receiving):
    directory = finished_run(root)
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    assert claim(receiving).facts == (409, {"taken": True})
    assert put(receiving, TWO).facts == (409, {"unclaimed": True})
    assert ask(receiving, "POST", "/api/status", body='{"status": "running"}', project="p", run="r0").status == 409
    assert {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()} == before


def test_files_beside_the_journal_are_replaced_whole(root, receiving):
    claim(receiving)
    for content in (b"a longer difference", b"short"):
        assert put(receiving, content, file="git.diff").facts == (200, {"offset": len(content)})
    assert (root / "p" / "r0" / "git.diff").read_bytes() == b"short"
    assert put(receiving, b"x", 3, file="git.diff").status == 400


def test_names_of_arms_are_accepted_as_they_are(root, receiving):
    assert claim(receiving, "lr=0.1, größe-r0", "my project").status == 200
    assert [run.id for run in hl.runs(root)] == ["my project/lr=0.1, größe-r0"]


def test_beating_run_is_running_and_one_that_stops_is_killed(root, receiving):
    claim(receiving)
    put(receiving, status_of("running", num_steps=5) + TWO)
    assert (status(root, later=60), status(root, later=400), status(root, later=4000)) == (
        *("running", "stalled", "killed"),
    )
    assert beat(receiving, 10.0).status == 200
    assert (status(root, later=29), status(root, later=31)) == ("running", "killed")
    assert beat(receiving, 1.0).status == 200
    assert (status(root, later=14), status(root, later=16)) == ("running", "killed")
    put(receiving, status_of("finished"), len(status_of("running", num_steps=5) + TWO))
    assert status(root, later=1000) == "finished"


def test_beating_runs_that_are_very_many_may_be_silent_for_longer(root, receiving, monkeypatch):
    monkeypatch.setattr(endpoint, "BEATS_PER_SECOND", 0.1)  # as if they were five hundred times as many
    for name in ("r0", "r1"):
        claim(receiving, name)
        put(receiving, status_of("running", num_steps=5) + TWO, run=name)
    answers = [beat(receiving, run=name).json["every_seconds"] for name in ("r0", "r1", "r0")]
    assert answers == [10.0, 20.0, 20.0]
    assert (status(root, later=59), status(root, later=61)) == ("running", "killed")


def test_heartbeats_of_any_number_of_runs_come_at_a_limited_rate():
    context = WriteContext(None, None, None, None, None)  # counts names only
    seconds = {count: context.beat_seconds(f"p/{count}", 5.0) for count in range(1, 2501)}
    changes = [count for count in range(2, 2501) if seconds[count] != seconds[count - 1]]
    assert (changes, sorted(set(seconds.values()))) == ([251, 501, 1001], [5.0, 10.0, 20.0, 40.0])
    assert context.beat_seconds("p/1", 300.0) == 300.0


def test_senders_count_for_some_time_after_a_request():
    senders = RecentSenders(10.0)
    counts = [senders.count(name, now) for now, name in enumerate(["a", "b", "a", "c"])]
    assert (counts, senders.count("a", 12.5), senders.count("a", 100.0)) == ([1, 2, 2, 3], 2, 1)


def test_beating_run_that_makes_no_progress_is_stalled_whatever_its_clock_says(root, receiving):
    claim(receiving)
    put(receiving, TWO + status_of("heartbeat", time=1300.0))
    beat(receiving, 10.0)
    assert (status(root, stall_seconds=200), status(root, stall_seconds=400)) == ("stalled", "running")


def test_beats_and_appends_move_the_last_sign_of_life(root, receiving):
    claim(receiving)
    path = root / "p" / "r0" / "received.json"
    for sign in (lambda: beat(receiving), lambda: put(receiving, TWO), lambda: claim(receiving)):
        os.utime(path, (1000.0, 1000.0))
        assert sign().status == 200
        assert path.stat().st_mtime > 1_000_000.0
    assert json.loads(path.read_text())["every_seconds"] == 5.0


def test_restarted_server_continues_with_the_same_senders(root, serve):
    first = serve(root, tokens=TOKENS)
    claim(first)
    put(first, TWO)
    first.stop()
    second = serve(root, tokens=TOKENS)
    assert put(second, rows_of(1, first=3), len(TWO)).facts == (200, {"offset": len(rows_of(3))})
    assert beat(second).status == 200


def test_server_leaves_the_log_files_of_the_program_alone(root, serve, tmp_path):
    program, handler = logging.getLogger("a program"), logging.FileHandler(tmp_path / "own.log", mode="w")
    program.addHandler(handler)
    program.warning("before")
    serve(root)
    program.warning("after")
    program.removeHandler(handler)
    handler.close()
    assert (tmp_path / "own.log").read_text() == "before\nafter\n"


def test_two_servers_on_one_root_write_each_line_once(root, serve):
    servers = [serve(root, tokens=TOKENS) for _ in range(2)]
    assert [claim(server).status for server in servers] == [200, 200]
    wanted, whole = 40, rows_of(40)
    ends = [0, *(index + 1 for index, byte in enumerate(whole) if byte == 10)]
    refused = []

    def send(server):
        for begin, end in itertools.pairwise(ends):
            answer = put(server, whole[begin:end], begin)
            if answer.status != 200:
                refused.append(answer.body)

    senders = [threading.Thread(target=send, args=(server,)) for server in servers for _ in range(2)]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    assert refused == []
    assert len(list(hl.read(root / "p" / "r0"))) == wanted


def test_two_origins_that_claim_at_once_do_not_both_get_the_run(root, serve):
    servers = [serve(root, tokens=TOKENS) for _ in range(2)]
    got = []
    claims = [
        threading.Thread(target=lambda s=server, o=origin: got.append(claim(s, origin=o).status))
        for server in servers
        for origin in (ORIGIN, OTHER)
    ]
    for each in claims:
        each.start()
    for each in claims:
        each.join()
    assert sorted(got) == [200, 200, 409, 409]


def test_run_that_was_deleted_is_claimed_again_from_the_beginning(root, receiving):
    claim(receiving)
    put(receiving, TWO)
    for path in sorted((root / "p" / "r0").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (root / "p" / "r0").rmdir()
    assert put(receiving, rows_of(1, first=3), len(TWO)).facts == (409, {"unclaimed": True})
    assert claim(receiving).json == {"files": {}}


def test_run_that_changed_hands_while_the_server_knows_it_is_not_given_to_its_first_sender(root, receiving):
    lines = rows_of(1)
    for origin, other in ((ORIGIN, OTHER), (OTHER, ORIGIN)):
        assert claim(receiving, origin=origin).status == 200
        # What is known of a directory is used only if it has not changed lately.
        os.utime(root / "p" / "r0", (1e9, 1e9))
        stored = [put(receiving, rows_of(1, first=step), len(lines) * (step - 1), origin=origin) for step in (1, 2, 3)]
        assert [answer.status for answer in stored] == [200] * 3
        assert put(receiving, lines, 3 * len(lines), origin=other).facts == (409, {"taken": True})
        (root / "p" / "r0" / "received.json").unlink()
        assert put(receiving, lines, 3 * len(lines), origin=origin).facts == (409, {"unclaimed": True})
        shutil.rmtree(root / "p" / "r0")


def test_full_disk_is_reported_and_leaves_no_piece_of_a_line(root, receiving, monkeypatch):
    claim(receiving)
    write = os.pwrite

    def full(descriptor, data, offset):
        if offset:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data[:10], offset)

    monkeypatch.setattr(os, "pwrite", full)
    answer = put(receiving, TWO)
    monkeypatch.undo()
    assert (answer.status, (root / "p" / "r0" / "journal" / FILE).read_bytes()) == (507, b"")
    assert put(receiving, TWO).status == 200


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.EIO, errno.EMFILE, errno.ENFILE])
def test_disk_that_cannot_be_used_is_reported_and_logged_in_one_line(receiving, monkeypatch, caplog, number):
    claim(receiving)

    def broken(descriptor, data, offset):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pwrite", broken)
    answers = [put(receiving, TWO) for _ in range(3)]
    monkeypatch.undo()
    assert {answer.status for answer in answers} == {503}
    assert os.strerror(number) in answers[0].json["error"]
    [logged] = [record for record in caplog.records if record.name == "hookline"]
    assert (logged.exc_info, os.strerror(number) in logged.getMessage()) == (None, True)
    assert put(receiving, TWO).status == 200


def test_trouble_with_the_disk_that_lasts_is_logged_again_after_a_while(caplog):
    now = [5.0]
    faults = DiskFaults(clock=lambda: now[0])
    for now[0] in (5.0, 6.0, 5.0 + LOG_SECONDS):
        faults.refusal(OSError(errno.EROFS, "read-only"), "/api/status")
    faults.refusal(OSError(errno.EIO, "broken"), "/api/status")
    assert [record.args[1].errno for record in caplog.records] == [errno.EROFS, errno.EROFS, errno.EIO]
    assert faults.refusal(ValueError("no"), "/") is None


def test_reading_is_free_on_this_machine_unless_a_read_token_is_given(root, serve):
    finished_run(root)
    assert ask(serve(root, tokens=Tokens(WRITE)), "GET", "/api/runs", token=None).status == 200
    guarded = serve(root, tokens=TOKENS)
    asked = {token: ask(guarded, "GET", "/api/runs", token=token).status for token in (None, READ, WRITE, "other")}
    assert asked == {None: 401, READ: 200, WRITE: 403, "other": 401}
    assert ask(guarded, "PUT", home(), token=READ, body="{}", origin=ORIGIN).status == 403


def test_received_run_gets_time_to_return_to_a_server_that_was_away(root, serve):
    claim(first := serve(root, tokens=Tokens(WRITE)))
    put(first, status_of("running") + rows_of(1))
    beat(first, 1.0)
    first.stop()
    long_ago = time.time() - 300
    os.utime(root / "p" / "r0" / "received.json", (long_ago, long_ago))
    assert [run.status for run in hl.runs(root)] == ["killed"]
    assert [run.status for run in serve(root, tokens=Tokens(WRITE)).runs] == ["running"]
