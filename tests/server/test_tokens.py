"""Tokens with roles: their rights, changes without a restart, and that their text is never shown."""

import errno
import hashlib
import http.client
import json
import os
import threading
import urllib.parse

import pytest
from sending import FILE, ORIGIN, OTHER, READ, TOKENS, WRITE, ask, claim, home, put, rows_of, status_of
from waiting import wait_until

import hookline as hl
from hookline._engine.errors import ConfigError, OptionError, UnknownNameError
from hookline._record.records import Media, encode
from hookline.server import Tokens, WebServer
from hookline.server.received_blobs import BlobLimits
from hookline.server.tokens import (
    CHECK_SECONDS,
    ROLES,
    LiveTokens,
    Principal,
    ProjectScope,
    TokenStore,
    default_tokens_file,
)

SECRET = slice(len("hlt_000000000000_"), None)
"""The part of a token after its id."""


@pytest.fixture
def store(root):
    return TokenStore(default_tokens_file(root))


@pytest.fixture
def server(root, serve):
    return serve(root, tokens=TOKENS)


def seen(server, token, **headers):
    """The status of a request for the runs."""
    return ask(server, "GET", "/api/runs", token=token, headers=headers).status


def wait_for_runs(server, *ids):
    """Wait until runs are listed, which is done now and then."""
    wait_until(lambda: {run["id"] for run in ask(server, "GET", "/api/runs", token=READ).json["runs"]} >= {*ids})


OWN = {"Content-Type": "application/json", "X-Hookline-Action": "1"}
ALLOWED = {
    "write": (403, 200, 403, 403),
    "read": (200, 403, 403, 403),
    "control": (403, 403, 404, 403),
    "admin": (200, 403, 403, 200),
}
"""What a role gets for reading, sending, commands (which no route takes yet) and the audit log."""


@pytest.mark.parametrize("role", ROLES)
def test_role_allows_its_own_requests_and_no_others(store, server, role):
    token = store.create("t", roles=[role]).token
    wait_until(lambda: seen(server, token) != 401)
    statuses = (
        seen(server, token),
        claim(server, token=token).status,
        ask(server, "POST", "/api/control/p/r0", body="{}", token=token, headers=OWN).status,
        ask(server, "GET", "/api/audit", token=token).status,
    )
    assert statuses == ALLOWED[role]


@pytest.mark.parametrize("token", [WRITE, READ])
@pytest.mark.parametrize("path", ["/api/audit", "/api/tokens", "/api/control/p/r0"])
def test_tokens_of_the_command_line_are_for_all_projects_and_no_admin(server, token, path):
    assert (claim(server, token=WRITE).status, seen(server, READ)) == (200, 200)
    assert ask(server, "GET", path, token=token).status == 403


def test_roles_of_a_token_add_up(store, server):
    token = store.create("t", roles=["read", "write"]).token
    wait_until(lambda: seen(server, token) == 200)
    assert claim(server, token=token).status == 200


def test_control_is_checked_for_a_project():
    controller = Principal(roles=frozenset({"control"}), scope=ProjectScope(("a*",)))
    assert [controller.may("control", project) for project in (None, "abc", "b")] == [True, True, False]
    assert [controller.may(role) for role in ("read", "write", "admin")] == [False] * 3


@pytest.mark.parametrize(
    ("patterns", "project", "is_allowed"),
    [
        (("*",), "any", True),
        (("a", "b*"), "a", True),
        (("a", "b*"), "ab", False),
        (("a", "b*"), "bc", True),
        (("*-x",), "a-x", True),
        (("a?",), "ab", False),
        (("[ab]",), "a", False),
        (("A",), "a", False),
        ((), "a", False),
    ],
)
def test_scope_matches_projects_by_patterns(patterns, project, is_allowed):
    assert ProjectScope(patterns).allows(project) == is_allowed


def test_tokens_file_has_no_token_and_is_for_its_owner_only(root, store):
    tokens = [store.create("t", roles=["read"]).token]
    tokens.append(store.rotate(store.read()[0].id, grace_seconds=60).token)
    text = store.path.read_text()
    assert [token for token in tokens if token in text or token[SECRET] in text] == []
    assert store.path.stat().st_mode & 0o777 == 0o600
    assert len({secret.salt for secret in store.read()[0].secrets}) == 2


@pytest.mark.parametrize("damage", ["readable", "link", "text", "version", "folder"])
def test_tokens_file_that_cannot_be_trusted_stops_the_start(root, store, tmp_path, damage):
    store.create("t", roles=["read"])
    if damage == "readable":
        store.path.chmod(0o640)
    elif damage == "link":
        store.path.rename(tmp_path / "elsewhere")
        store.path.symlink_to(tmp_path / "elsewhere")
    elif damage == "folder":
        store.path.parent.rename(tmp_path / "elsewhere")
        store.path.parent.symlink_to(tmp_path / "elsewhere")
    else:
        store.path.write_text("{" if damage == "text" else '{"version": 2, "tokens": []}')
    with pytest.raises(ConfigError, match=str(store.path.parent)):
        WebServer(root, tokens=TOKENS)


def test_tokens_file_that_others_can_read_later_allows_nothing(store, server, caplog):
    token = store.create("t", roles=["read"]).token
    wait_until(lambda: seen(server, token) == 200)
    store.path.chmod(0o644)
    wait_until(lambda: seen(server, token) == 401)
    assert [record for record in caplog.messages if "Other users can read" in record]
    store.path.chmod(0o600)
    wait_until(lambda: seen(server, token) == 200)


def test_tokens_file_elsewhere_is_used(root, tmp_path, serve):
    store = TokenStore(tmp_path / "secrets" / "tokens.json")
    token = store.create("t", roles=["read"]).token
    assert seen(serve(root, tokens=TOKENS, tokens_file=store.path), token) == 200


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": ""}, "give 1 to 100"),
        ({"name": "a\nb"}, "give 1 to 100"),
        ({"roles": []}, "allows nothing"),
        ({"roles": ["reed"]}, "Did you mean 'read'"),
        ({"projects": []}, "give 1 to 100"),
        ({"projects": ["a/b"]}, "name of a project"),
    ],
)
def test_token_that_makes_no_sense_is_not_created(store, options, message):
    with pytest.raises(OptionError, match=message):
        store.create(**{"name": "t", "roles": ["read"]} | options)
    assert not store.path.exists()


@pytest.mark.parametrize("change", ["revoke", "rotate"])
def test_token_that_is_not_there_cannot_be_changed(store, change):
    token = store.create("t", roles=["read"]).token
    with pytest.raises(UnknownNameError) as raised:
        getattr(store, change)(token)  # instead of its id
    assert token not in str(raised.value)


def test_many_processes_that_create_tokens_lose_none(store):
    threads = [threading.Thread(target=store.create, args=(str(n),), kwargs={"roles": ["read"]}) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(token.name for token in store.read()) == sorted(map(str, range(8)))


class Clock:
    """A wall clock and a monotonic one that the test advances."""

    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_expired_token_is_not_accepted(root, clock):
    store = TokenStore(default_tokens_file(root), clock=clock)
    new = store.create("t", roles=["read"], expires_seconds=60)
    live = LiveTokens(store, clock=clock, timer=clock)
    assert (live.find(new.token).problem, live.is_current(live.find(new.token).principal)) == ("", True)
    principal = live.find(new.token).principal
    clock.now += 60
    assert (live.find(new.token).problem, live.is_current(principal)) == ("it has expired", False)


def test_rotated_token_keeps_its_old_value_for_the_grace(root, clock):
    store = TokenStore(default_tokens_file(root), clock=clock)
    old = store.create("t", roles=["read"])
    live = LiveTokens(store, clock=clock, timer=clock)
    viewer = live.find(old.token).principal
    new = store.rotate(old.stored.id, grace_seconds=30)
    clock.now += CHECK_SECONDS
    assert [live.find(each.token).problem for each in (old, new)] == ["", ""]
    assert (live.is_current(viewer), new.stored.id) == (True, old.stored.id)
    clock.now += 30
    assert [live.find(each.token).problem for each in (old, new)] == ["it has expired", ""]
    assert not live.is_current(viewer)


def test_token_rotated_without_grace_is_refused_at_once(root, clock):
    store = TokenStore(default_tokens_file(root), clock=clock)
    old = store.create("t", roles=["read"])
    live = LiveTokens(store, clock=clock, timer=clock)
    assert live.find(old.token) is not None
    store.rotate(old.stored.id)
    clock.now += CHECK_SECONDS
    assert live.find(old.token) is None


def test_file_is_looked_at_once_a_second_at_most(root, clock):
    store = TokenStore(default_tokens_file(root), clock=clock)
    live = LiveTokens(store, clock=clock, timer=clock)
    assert live.all() == {}
    new = store.create("t", roles=["read"])
    clock.now += CHECK_SECONDS / 2
    assert live.find(new.token) is None
    clock.now += CHECK_SECONDS / 2
    assert live.find(new.token) is not None


@pytest.mark.parametrize(
    "wrong", ["", "hlt_", "hlt_{id}_", "hlt_{id}_{other}", "{token}x", "{token}\udc80", "x{token}"]
)
def test_token_that_was_changed_is_not_accepted(root, wrong):
    store = TokenStore(default_tokens_file(root))
    new = store.create("t", roles=["read"])
    other = store.create("u", roles=["read"]).token[SECRET]
    assert LiveTokens(store).find(wrong.format(id=new.stored.id, token=new.token, other=other)) is None


def test_revoked_token_is_refused_and_its_live_stream_ends(store, server):
    new = store.create("t", roles=["read"])
    wait_until(lambda: seen(server, new.token) == 200)
    address = urllib.parse.urlsplit(server.url)
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=60)
    connection.request("GET", "/api/stream", headers={"Authorization": f"Bearer {new.token}"})
    stream = connection.getresponse()
    assert stream.readline() == b"event: beat\n"
    assert b"event: runs\n" in iter(stream.readline, b"")
    store.revoke(new.stored.id)
    stream.read()  # until its end, which the server makes
    assert seen(server, new.token) == 401
    connection.close()


def log_in(server, token, cookie=""):
    headers = {"Content-Type": "application/json", "Cookie": cookie}
    return ask(server, "POST", "/api/login", body=json.dumps({"token": token}), token=None, headers=headers)


def cookie_of(answer):
    return answer.headers["Set-Cookie"].partition(";")[0]


def test_cookie_of_a_token_reads_its_projects_until_it_is_revoked(store, server):
    new = store.create("t", roles=["read"], projects=["p"])
    for project in ("p", "q"):
        claim(server, project=project)
    wait_for_runs(server, "p/r0", "q/r0")
    wait_until(lambda: seen(server, new.token) == 200)
    answer = log_in(server, new.token)
    cookie = cookie_of(answer)
    assert (answer.status, new.token in str(answer.headers), "HttpOnly" in answer.headers["Set-Cookie"]) == (
        *(200, False, True),
    )
    shown = ask(server, "GET", "/api/runs", token=None, headers={"Cookie": cookie}).json["runs"]
    assert [run["id"] for run in shown] == ["p/r0"]
    assert claim(server, token=None, headers={"Cookie": cookie}).status == 401
    store.revoke(new.stored.id)
    wait_until(lambda: seen(server, None, Cookie=cookie) == 401)


def test_cookie_cannot_be_changed_or_used_for_another_token(store, server):
    first, second = (store.create(name, roles=["read"]) for name in "ab")
    wait_until(lambda: seen(server, second.token) == 200)
    name, _, value = cookie_of(log_in(server, first.token)).partition("=")
    until, text, signature = value.split(".")
    forged = [
        f"{name}={int(until) + 1}.{text}.{signature}",
        f"{name}={until}.{'0' * 64}.{signature}",
        f"{name}={until}.{text}.{'0' * 64}",
        f"{name}={until}.{text}",
        f"{name}=",
        f"hookline-t-{second.stored.id}={value}",
        f"hookline-t-={value}",
    ]
    assert [seen(server, None, Cookie=cookie) for cookie in (f"{name}={value}", *forged)] == [200] + [401] * len(forged)


def test_login_replaces_an_earlier_one(store, server):
    new = store.create("t", roles=["read"], projects=["p"])
    wait_until(lambda: seen(server, new.token) == 200)
    before = cookie_of(log_in(server, READ))
    answer = log_in(server, new.token, before)
    names = [value.partition("=")[0] for value in answer.headers.get_all("Set-Cookie")]
    assert names == [f"hookline-t-{new.stored.id}", before.partition("=")[0]]
    assert "Max-Age=0" in answer.headers.get_all("Set-Cookie")[1]


@pytest.mark.parametrize("role", ["write", "control"])
def test_token_that_may_not_read_cannot_log_in(store, server, role):
    token = store.create("t", roles=[role]).token
    wait_until(lambda: seen(server, token) == 403)
    answer = log_in(server, token)
    assert (answer.status, answer.headers["Set-Cookie"]) == (401, None)
    assert token not in answer.body.decode()


def test_reading_needs_a_token_as_soon_as_one_for_reading_exists(root, store, serve):
    server = serve(root, tokens=Tokens(WRITE))
    store.create("w", roles=["write"])
    assert seen(server, None) == 200
    new = store.create("r", roles=["read"])
    wait_until(lambda: seen(server, None) == 401)
    assert seen(server, new.token) == 200
    store.path.unlink()
    wait_until(lambda: seen(server, new.token) == 401)
    assert seen(server, None) == 401  # a deleted file opens nothing


def test_token_is_in_no_error(store, server):
    token = store.create("t", roles=["read", "write"]).token
    wait_until(lambda: seen(server, token) == 200)
    answers = [
        ask(server, "GET", f"/api/{token}", token=token),
        ask(server, "GET", "/api/run", token=token, id=token),
        ask(server, "PUT", home(token), body="x", token=token, origin=ORIGIN),
        ask(server, "GET", "/api/runs", token=f"{token}x"),
    ]
    assert [answer.status for answer in answers] == [404, 404, 400, 401]
    assert [answer.body for answer in answers if token.encode() in answer.body] == []


CONTENT = b"the content of a blob " * 50
DIGEST = hashlib.sha256(CONTENT).hexdigest()
UNKNOWN = hashlib.sha256(b"another").hexdigest()


def ask_blobs(server, project, token, **sizes):
    body = json.dumps({"blobs": sizes or {DIGEST: len(CONTENT)}})
    return ask(server, "POST", f"{home(project=project)}/blobs", body=body, origin=ORIGIN, token=token).json


def send(server, project, token, *, content=CONTENT, digest=DIGEST, start=0, end=None):
    piece = content[start:end]
    head = {"digest": digest, "size": len(content), "offset": start, "length": len(piece)}
    body = json.dumps({"parts": [head]}).encode() + b"\n" + piece
    return ask(server, "PUT", f"{home(project=project)}/blobs", body=body, origin=ORIGIN, token=token)


@pytest.fixture
def scoped(store, server):
    """A token for the project ``a``, on a server where a run of ``b`` has sent a blob; both projects have a run."""
    token = store.create("a", roles=["read", "write"], projects=["a"]).token
    wait_until(lambda: seen(server, token) == 200)
    assert (claim(server, project="b").status, send(server, "b", WRITE).status) == (200, 200)
    assert claim(server, project="a", token=token).status == 200
    return token


def test_writer_of_a_project_does_not_learn_which_blobs_others_have(server, scoped):
    assert ask_blobs(server, "b", WRITE)["missing"] == {}
    assert ask_blobs(server, "a", scoped, **{DIGEST: 1, UNKNOWN: 1})["missing"] == {DIGEST: 0, UNKNOWN: 0}
    for digest in (DIGEST, UNKNOWN):  # content that is not the blob's, whole and in pieces
        answers = [send(server, "a", scoped, content=b"wrong", digest=digest, end=end) for end in (None, 2)]
        assert [answer.status for answer in answers] == [422, 200]
        assert answers[1].json["stored"] == {digest: 2}


@pytest.mark.parametrize("pieces", [[(0, None)], [(0, 100), (100, None)]])
def test_writer_of_a_project_sends_what_others_have_and_it_is_stored_once(root, server, scoped, pieces):
    for start, end in pieces:
        assert send(server, "a", scoped, start=start, end=end).status == 200
    assert ask_blobs(server, "a", scoped)["missing"] == {}
    assert [path.read_bytes() for path in root.glob(".blobs/??/*")] == [CONTENT]
    assert list(root.glob(".blobs/incoming/*")) == []
    assert int((root / "a" / "r0" / ".blob-bytes").read_text()) == len(CONTENT)


def refer(server, token, project="a"):
    """Send a record that refers to the blob, and ask for its content."""
    medium = Media(step=1, name="m", type="text", blob=DIGEST, size=len(CONTENT), format="txt")
    lines = encode(medium) + b"\n" + status_of("finished")
    assert put(server, lines, project=project, token=token).status == 200
    wait_for_runs(server, f"{project}/r0")
    answer = ask(server, "GET", "/api/blob", token=READ, run=f"{project}/r0", digest=DIGEST)
    return answer.status, answer.body == CONTENT


def test_run_of_a_writer_of_a_project_cannot_refer_to_a_blob_of_another(server, scoped):
    assert refer(server, scoped) == (404, False)
    send(server, "a", scoped)
    assert ask(server, "GET", "/api/blob", token=scoped, run="a/r0", digest=DIGEST).body == CONTENT


def test_diff_of_another_project_cannot_be_read_through_the_environment(server, scoped):
    environment = {"sessions": [{"git": {"commit": "c", "diff": {"blob": DIGEST}}}]}
    put(server, json.dumps(environment).encode(), project="a", file="environment.json", token=scoped)
    wait_for_runs(server, "a/r0")
    assert ask(server, "GET", "/api/environment", token=scoped, id="a/r0").json["diff"] == ""
    send(server, "a", scoped)
    assert ask(server, "GET", "/api/environment", token=scoped, id="a/r0").json["diff"] == CONTENT.decode()


def test_run_that_changes_to_the_token_of_all_projects_may_refer_to_all_blobs(server, scoped):
    assert ask_blobs(server, "a", WRITE)["missing"] == {}
    assert refer(server, WRITE) == (200, True)


def test_run_that_changes_to_the_token_of_a_project_keeps_its_blobs(server, store):
    assert (claim(server, project="a").status, send(server, "a", WRITE).status) == (200, 200)
    token = store.create("a", roles=["write"], projects=["a"]).token
    wait_until(lambda: claim(server, project="a", token=token).status == 200)
    assert send(server, "a", token, content=b"new", digest=hashlib.sha256(b"new").hexdigest()).status == 200
    assert refer(server, token) == (200, True)


def test_sink_with_the_token_of_a_project_sends_pictures_that_others_have(tmp_path, root, server, scoped):
    for project, token in (("b", WRITE), ("a", scoped)):
        sink = {"hookline": {"url": server.url, "token": token}}
        with hl.run("pictures", root=tmp_path / "here", project=project, sinks=[sink], summary=False) as run:
            run.log(page=hl.Html("<b>hello</b>"))
    digest = hashlib.sha256(b"<b>hello</b>").hexdigest()
    wait_for_runs(server, f"a/{run.dir.name}")
    shown = ask(server, "GET", "/api/blob", token=scoped, run=f"a/{run.dir.name}", digest=digest)
    assert (shown.status, shown.body) == (200, b"<b>hello</b>")


def test_local_run_is_not_claimed_with_the_token_of_a_project(root, store, server):
    (root / "a" / "r0").mkdir(parents=True)
    (root / "a" / "r0" / "run.json").write_text("{}")
    token = store.create("a", roles=["write"], projects=["a"]).token
    wait_until(lambda: claim(server, project="a", token=token).status == 409)
    assert [path.name for path in (root / "a" / "r0").iterdir()] == ["run.json"]


def test_blob_of_a_writer_of_a_project_counts_for_its_limit_even_if_it_is_stored(root, store, serve):
    server = serve(root, tokens=TOKENS, blobs=BlobLimits(run_bytes=len(CONTENT) - 1))
    token = store.create("a", roles=["write"], projects=["a"]).token
    other = serve(root, tokens=TOKENS)
    assert (claim(other, project="b").status, send(other, "b", WRITE).status) == (200, 200)
    wait_until(lambda: claim(server, project="a", token=token).status == 200)
    assert send(server, "a", token).status == 507
    assert put(server, rows_of(1), project="a", token=token, file=FILE).status == 200
    assert claim(server, project="a", origin=OTHER, token=token).facts == (409, {"taken": True})


def test_tokens_are_read_again_after_a_fault_of_the_system(root, clock, monkeypatch):
    store = TokenStore(default_tokens_file(root), clock=clock)
    token = store.create("t", roles=["read"]).token
    live = LiveTokens(store, clock=clock, timer=clock)

    def fail(*args, **options):
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as without:
        without.setattr(os, "open", fail)
        clock.now += CHECK_SECONDS
        assert live.find(token) is None
    clock.now += CHECK_SECONDS
    assert live.find(token).problem == ""
