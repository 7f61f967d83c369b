"""The audit log: its entries, counts of failed attempts, and that it stays small and private."""

import json
import threading

import pytest
from sending import OTHER, READ, TOKENS, WRITE, ask, claim, home
from waiting import wait_until

from hookline.server import WebServer
from hookline.server.audit import COUNT_SECONDS, COUNTED_KEYS, KEPT_FILES, AuditLog
from hookline.server.received_blobs import BlobLimits
from hookline.server.tokens import Principal, ProjectScope, TokenStore, default_tokens_file

SOMEBODY = Principal("id", "name")


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def log(root, clock):
    made = AuditLog(root, clock=clock)
    yield made
    made.close()


def lines(log):
    """The content of the log's file."""
    return [json.loads(line) for line in log.path.read_text().splitlines()] if log.path.exists() else []


def test_entry_has_time_token_address_action_target_and_result(log):
    log.record("run.claimed", SOMEBODY, address="10.0.0.1", project="p", target="r0")
    assert lines(log) == [
        {
            "time": 1000.0,
            "action": "run.claimed",
            "token": "id",
            "name": "name",
            "address": "10.0.0.1",
            "project": "p",
            "target": "r0",
            "result": "ok",
        }
    ]
    assert log.path.stat().st_mode & 0o777 == 0o600


def test_first_of_many_equal_events_is_written_and_the_others_are_counted(log, clock):
    for _ in range(1000):
        log.count("token.rejected", address="10.0.0.1", result="wrong")
    log.count("token.rejected", address="10.0.0.2", result="wrong")
    found = [(event.address, event.count) for event in log.read(100)]
    assert found == [("10.0.0.2", 1), ("10.0.0.1", 1)]
    clock.now += COUNT_SECONDS
    log.count("token.rejected", address="10.0.0.1", result="wrong")
    assert [(event.address, event.count) for event in log.read(100)][:2] == [("10.0.0.1", 1), ("10.0.0.1", 999)]
    log.close()
    assert sum(entry.get("count", 1) for entry in lines(log)) == 1002


def test_events_of_very_many_addresses_share_an_entry(log):
    for number in range(5 * COUNTED_KEYS):
        log.count("token.rejected", address=f"10.0.{number // 256}.{number % 256}")
    log.close()
    assert len(lines(log)) == COUNTED_KEYS + 2
    assert sum(entry.get("count", 1) for entry in lines(log)) == 5 * COUNTED_KEYS


def test_what_is_counted_is_written_when_the_log_is_closed(log):
    for _ in range(3):
        log.count("token.rejected")
    log.close()
    assert [entry.get("count", 1) for entry in lines(log)] == [1, 2]


def test_log_that_is_too_long_is_rotated_and_few_files_are_kept(root):
    log = AuditLog(root, max_bytes=1000)
    for number in range(200):
        log.record("run.claimed", SOMEBODY, target=str(number))
    files = sorted(path.name for path in log.path.parent.iterdir())
    assert files == ["audit.jsonl", *(f"audit.jsonl.{number}" for number in range(1, KEPT_FILES + 1))]
    assert all(path.stat().st_size <= 1000 for path in log.path.parent.iterdir())
    assert [event.target for event in log.read(20)] == [str(number) for number in range(199, 179, -1)]
    log.close()


def test_several_writers_lose_no_entry_while_the_log_is_rotated(root):
    logs = [AuditLog(root, max_bytes=20_000) for _ in range(4)]

    def write(log):
        for number in range(100):
            log.record("run.claimed", SOMEBODY, target=str(number))
        log.close()

    threads = [threading.Thread(target=write, args=(log,)) for log in logs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(logs[0].read(1000)) == 400


def test_line_that_was_cut_off_is_skipped(log):
    log.record("run.claimed", SOMEBODY, target="first")
    with log.path.open("ab") as file:
        file.write(b'{"time": 1, "act\n\xff\n[]\n')
    log.record("run.claimed", SOMEBODY, target="second")
    assert [event.target for event in log.read(10)] == ["second", "first"]


def test_entry_has_no_token_and_no_long_text(log, root):
    token = TokenStore(default_tokens_file(root)).create("t", roles=["read"]).token
    log.record("run.claimed", Principal(name=token), project=f"x{token}", target="y" * 10_000)
    assert token not in log.path.read_text()
    assert len(log.path.read_text()) < 1000


def test_link_in_place_of_the_log_is_not_followed(log, tmp_path, caplog):
    outside = tmp_path / "outside"
    outside.write_text("")
    log.path.parent.mkdir()
    log.path.symlink_to(outside)
    for _ in range(10):
        log.record("run.claimed", SOMEBODY)
    assert (outside.read_text(), len([text for text in caplog.messages if "cannot be written" in text])) == ("", 1)


def test_log_of_some_projects_has_nothing_of_others(log):
    for project in ("a", "b", ""):
        log.record("run.claimed", SOMEBODY, project=project)
    assert [event.project for event in log.read(10, scope=ProjectScope(("a*",)))] == ["a"]
    assert [event.project for event in log.read(10)] == ["", "b", "a"]


def entries(server, action, token):
    found = ask(server, "GET", "/api/audit", token=token).json["entries"]
    return [
        (entry.get("token"), entry.get("project"), entry.get("target"), entry["result"])
        for entry in found[::-1]
        if entry["action"] == action
    ]


@pytest.fixture
def admin(root):
    return TokenStore(default_tokens_file(root)).create("boss", roles=["admin"])


def test_claims_are_noted_once_and_so_is_one_that_is_refused(root, serve, admin):
    server = serve(root, tokens=TOKENS)
    for _ in range(3):
        claim(server)
    claim(server, origin=OTHER)
    ask(server, "POST", "/api/status", body='{"status": "running"}', run="night")
    noted = entries(server, "run.claimed", admin.token)
    taken = "p/r0 is a run of another sender: use another name or another project."
    assert noted == [
        *(("write", "p", "r0", "ok"), ("write", "p", "r0", taken), ("write", "status", "night", "ok")),
    ]


def test_wrong_tokens_are_noted_without_their_text(root, serve, admin):
    server = serve(root, tokens=TOKENS)
    wrong = "a-wrong-token-that-nobody-has"
    for _ in range(50):
        assert ask(server, "GET", "/api/runs", token=wrong).status == 401
    assert claim(server, token=READ).status == 403
    body = json.dumps({"token": wrong})
    assert ask(server, "POST", "/api/login", body=body, token=None, headers={"Content-Type": "application/json"})
    assert ask(server, "GET", "/api/runs", token=None).status == 401  # nobody tried anything
    noted = entries(server, "token.rejected", admin.token)
    assert [(token, target) for token, _, target, _ in noted] == [(None, "read"), ("read", "write"), (None, "login")]
    server.stop()
    text = (root / ".hookline" / "audit.jsonl").read_text()
    assert [secret for secret in (wrong, READ, WRITE, admin.token) if secret in text] == []
    assert sum(json.loads(line).get("count", 1) for line in text.splitlines()) == 52


def test_known_token_without_the_role_is_named(root, serve, admin):
    server = serve(root, tokens=TOKENS)
    assert claim(server, token=admin.token).status == 403
    [(token, _, target, result)] = entries(server, "token.rejected", admin.token)
    assert (token, target, "role write" in result) == (admin.stored.id, "write", True)


def test_blobs_beyond_a_limit_are_noted(root, serve, admin):
    server = serve(root, tokens=TOKENS, blobs=BlobLimits(blob_bytes=10))
    claim(server)
    for _ in range(3):
        body = json.dumps({"blobs": {"0" * 64: 100}})
        assert ask(server, "POST", f"{home()}/blobs", body=body, origin="0" * 31 + "1").status == 200
    assert entries(server, "blobs.refused", admin.token) == [("write", "p", "r0", "413")]


def test_tokens_are_listed_for_admins_without_their_hashes(root, serve, admin):
    server = serve(root, tokens=TOKENS)
    answer = ask(server, "GET", "/api/tokens", token=admin.token)
    [listed] = answer.json["tokens"]
    assert (listed["id"], listed["name"], listed["roles"]) == (admin.stored.id, "boss", ["admin"])
    assert [secret.hash for secret in admin.stored.secrets if secret.hash in answer.body.decode()] == []


def test_server_that_cannot_write_its_log_still_receives(root, serve, admin, caplog):
    (root / ".hookline" / "audit.jsonl").mkdir()
    server = serve(root, tokens=TOKENS)
    assert claim(server).status == 200
    wait_until(lambda: any("The audit log" in text for text in caplog.messages))


def test_server_that_is_only_for_viewing_has_no_log_and_no_admin_paths(root):
    with WebServer(root) as server:
        assert ask(server, "GET", "/api/audit", token=None).status == 404
    assert not (root / ".hookline" / "audit.jsonl").exists()
