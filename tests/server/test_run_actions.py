"""Actions on runs: who may edit and delete them, what other sites are refused, and that nothing is half changed."""

import json
import os
import socket
from pathlib import Path

import pytest
from page_runs import finished_run, live_run
from sending import READ, TOKENS, WRITE, ask, beat, claim, put, rows_of, status_of, tree
from starlette.datastructures import Headers

from hookline.server import WebServer, actions
from hookline.server.audit import AuditLog
from hookline.server.root_tokens import Tokens
from hookline.server.tokens import TokenStore, default_tokens_file
from hookline.store import runs
from hookline.store.edits import EDITS_FILE

OWN = {"Content-Type": "application/json", "X-Hookline-Action": "1"}


def act(server, action, *, token=None, headers=None, **body):
    given = OWN | (headers or {})
    given = {key: value for key, value in given.items() if value is not None}
    return ask(server, "POST", f"/api/actions/{action}", body=json.dumps(body), token=token, headers=given)


def facts(root):
    return {info.name: (info.tags, info.notes, info.archived) for info in runs(root)}


def audited(root):
    return [(event.action, event.project, event.target, event.result) for event in AuditLog(root).read(10)]


def test_edits_change_all_given_runs_and_the_table_hides_archived_ones(root, serve):
    for name in ("r0", "r1", "r2"):
        finished_run(root, name, tags=["old"])
    server = serve(root)
    reply = act(server, "edit_runs", runs=["p/r0", "p/r1"], add_tags=["new"], remove_tags=["old"], notes="why")
    assert (reply.status, reply.json) == (200, {"runs": ["p/r0", "p/r1"]})
    assert act(server, "edit_runs", runs=["p/r2"], name="renamed", archived=True).status == 200
    assert facts(root) == {
        "r0": (("new",), "why", False),
        "r1": (("new",), "why", False),
        "renamed": (("old",), "", True),
    }
    server.runs.refresh()
    listed = lambda query: {row["id"] for row in ask(server, "GET", f"/api/run_table?{query}").json["rows"]}  # noqa: E731
    with WebServer(root) as again:  # a listing of its own, which is not a moment old
        server = again
        assert (listed(""), listed("where=archived+%3D+true")) == ({"p/r0", "p/r1"}, {"p/r2"})


def test_deleted_runs_are_gone_and_files_that_others_use_stay(root, serve):
    import numpy as np

    import hookline as hl

    pictures = {"own": np.zeros((4, 4, 3), np.uint8), "shared": np.full((4, 4, 3), 9, np.uint8)}
    ids = {}
    for name, shown in (("first", ("own", "shared")), ("second", ("shared",))):
        with hl.run(name, project="p", root=root, summary=False) as run:
            for each in shown:
                run.log(**{each: hl.Image(pictures[each])})
        ids[name] = f"p/{run.dir.name}"
    reply = act(serve(root), "delete_runs", runs=[ids["first"]])
    assert (reply.status, reply.json["runs"], reply.json["freed_bytes"] > 0) == (200, [ids["first"]], True)
    left = runs(root)
    assert [info.name for info in left] == ["second"]
    assert left[0].media("shared")[0].read()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"X-Hookline-Action": None}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"X-Forwarded-For": "10.0.0.1"}, 403),
        ({"Host": "evil.example"}, 421),
    ],
)
def test_request_of_another_site_or_through_a_proxy_changes_nothing(root, serve, headers, status):
    finished_run(root)
    server, before = serve(root), tree(root)
    for name in ("delete_runs", "edit_runs"):
        more = {"archived": True} if name == "edit_runs" else {}
        reply = act(server, name, runs=["p/r0"], headers=headers, **more)
        assert (reply.status, bool(reply.json["error"])) == (status, True)
    assert tree(root) == before
    assert ask(server, "OPTIONS", "/api/actions/delete_runs", token=None).status == 405


def test_page_of_the_same_server_is_accepted(root, serve):
    finished_run(root)
    server = serve(root)
    own = {"Origin": server.url.rstrip("/"), "Sec-Fetch-Site": "same-origin"}
    assert act(server, "delete_runs", runs=["p/r0"], headers=own).status == 200


def test_another_user_of_this_machine_is_refused(root, serve, monkeypatch):
    finished_run(root)
    server = serve(root)
    monkeypatch.setattr(actions.os, "geteuid", lambda: os.getuid() + 1)
    monkeypatch.setattr(actions, "ROOT_USER", -1)
    reply = act(server, "delete_runs", runs=["p/r0"])
    assert (reply.status, "Another user" in reply.json["error"]) == (403, True)


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="only Linux tells whose connection it is")
def test_user_of_a_connection_is_known_from_each_kind_of_socket_until_it_is_closed(monkeypatch):
    headers = Headers({"content-type": "application/json", "x-hookline-action": "1"})

    def refusal(client, server):
        scope = {"client": client, "server": server}
        found = actions.check_action(scope, headers, has_tokens=False)
        return found and found.error.partition(" ")[0]

    with socket.create_server(("127.0.0.1", 0)) as listening:
        for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::ffff:127.0.0.1")):
            sender = socket.socket(family)
            sender.connect((host, listening.getsockname()[1]))
            accepted, client = listening.accept()
            with accepted:
                addresses = client[:2], accepted.getsockname()[:2]
                found = [refusal(*addresses)]
                with monkeypatch.context() as other:
                    other.setattr(actions.os, "geteuid", lambda: os.getuid() + 1)
                    other.setattr(actions, "ROOT_USER", -1)
                    found.append(refusal(*addresses))
                sender.close()
                found.append(refusal(*addresses))
            assert found == [None, "Another", "Which"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"runs": []}, 400),
        ({}, 400),
        ({"runs": "p/r0"}, 400),
        ({"runs": ["p/r0"], "extra": 1}, 400),
        ({"runs": ["p/r0", "p/nope"], "archived": True}, 404),
        ({"runs": ["../p/r0"], "archived": True}, 404),
        ({"runs": ["p/.."], "archived": True}, 404),
        ({"runs": ["p/r0"]}, 400),
        ({"runs": ["p/r0"], "add_tags": [" "]}, 400),
        ({"runs": ["p/r0"], "notes": "x" * 20_001}, 400),
        ({"runs": ["p/r0", "p/r1"], "name": "twin"}, 400),
        ({"runs": ["p/r0", "p/broken"], "add_tags": ["x"]}, 400),
    ],
)
def test_edit_that_is_not_accepted_for_one_run_changes_none(root, serve, body, status):
    for name in ("r0", "r1", "broken"):
        finished_run(root, name)
    (root / "p" / "broken" / EDITS_FILE).write_text("no json")
    server, before = serve(root), tree(root)
    reply = act(server, "edit_runs", **body)
    assert (reply.status, bool(reply.json["error"])) == (status, True)
    assert tree(root) == before


def test_running_run_is_edited_but_neither_it_nor_those_given_with_it_are_deleted(root, serve):
    finished_run(root, "over")
    live_run(root, "live")
    server = serve(root)
    reply = act(server, "delete_runs", runs=["p/over", "p/live"])
    assert reply.status == 400
    assert "p/live" in reply.json["error"]
    assert {info.name for info in runs(root)} == {"over", "live"}
    assert act(server, "edit_runs", runs=["p/live"], add_tags=["x"]).status == 200


def test_refusal_to_delete_names_five_running_runs_and_counts_the_others(root, serve):
    names = [f"live{number}" for number in range(7)]
    for name in names:
        live_run(root, name)
    reply = act(serve(root), "delete_runs", runs=[f"p/{name}" for name in names])
    expected = "7 runs still running: p/live0, p/live1, p/live2, p/live3, p/live4 and 2 more."
    assert (reply.status, expected in reply.json["error"]) == (400, True)


def test_disk_that_fails_leaves_all_runs_as_they_were(root, serve, monkeypatch):
    for name in ("r0", "r1"):
        finished_run(root, name)
    server = serve(root)
    act(server, "edit_runs", runs=["p/r0"], notes="before")
    before = tree(root)
    replace, rename = os.replace, os.rename

    def failing(call):
        def wrapped(source, target, *more, **options):
            if "r1" in str(source) and ".deleted" in str(target):
                raise OSError(28, "No space left on device")
            return call(source, target, *more, **options)

        return wrapped

    monkeypatch.setattr(os, "rename", failing(rename))
    monkeypatch.setattr(os, "replace", failing(replace))
    reply = act(server, "delete_runs", runs=["p/r0", "p/r1"])
    assert (reply.status, "Nothing was changed" in reply.json["error"], tree(root) == before) == (403, True, True)


def test_write_token_edits_within_its_projects_and_a_read_token_or_cookie_does_not(root, serve):
    for project in ("ours", "theirs"):
        finished_run(root, "r0", project=project)
    scoped = TokenStore(default_tokens_file(root)).create("alice", roles=["write"], projects=["ours"]).token
    server = serve(root, tokens=TOKENS)
    login = ask(server, "POST", "/api/login", body=json.dumps({"token": READ}), headers=OWN, token=None)
    cookie = login.headers["Set-Cookie"].partition(";")[0]
    archive = {"archived": True, "runs": ["ours/r0"]}
    assert act(server, "edit_runs", **archive).status == 401
    assert act(server, "edit_runs", headers={"Cookie": cookie}, **archive).status == 401
    assert act(server, "edit_runs", token=READ, **archive).status == 403
    assert act(server, "edit_runs", token=scoped, headers={"X-Hookline-Action": None}, **archive).status == 403
    both = act(server, "edit_runs", token=scoped, runs=["ours/r0", "theirs/r0"], archived=True)
    assert (both.status, facts(root)["r0"][2]) == (403, False)
    assert act(server, "edit_runs", token=scoped, **archive).status == 200
    assert act(server, "delete_runs", token=scoped, runs=["theirs/nope"]).status == 403
    assert act(server, "delete_runs", token=WRITE, runs=["theirs/r0"]).status == 200
    found = [event for event in audited(root) if event[0].startswith("run.")]
    assert found == [("run.deleted", "theirs", "r0", "ok"), ("run.edited", "ours", "r0", "ok")]


def test_received_run_is_deleted_only_when_its_sender_is_done(root, serve):
    server = serve(root, tokens=Tokens(WRITE))
    claim(server)
    held = status_of("running") + rows_of(2)
    put(server, held)
    beat(server)
    assert act(server, "delete_runs", token=WRITE, runs=["p/r0"]).status == 400
    put(server, status_of("finished", time=2000.0), len(held))
    assert act(server, "delete_runs", token=WRITE, runs=["p/r0"]).status == 200
    assert not (root / "p").exists()


@pytest.mark.parametrize("options", [{"read_only": True}, {}])
def test_read_only_server_says_so_and_changes_nothing(root, serve, monkeypatch, options):
    finished_run(root)
    server = serve(root, **options)
    if not options:
        monkeypatch.setattr(os, "access", lambda path, mode: False)  # as on a file system mounted read-only
    found = ask(server, "GET", "/api/permissions").json
    assert (found["edits"], "read-only" in found["reason"]) == (False, True)
    reply = act(server, "delete_runs", runs=["p/r0"])
    assert (reply.status, "read-only" in reply.json["error"], (root / "p" / "r0").exists()) == (403, True, True)


def test_server_with_an_object_store_refuses_by_name(tmp_path, serve):
    (tmp_path / "bucket").mkdir()
    (tmp_path / "runs").mkdir()
    server = serve(tmp_path / "runs", tokens=Tokens(WRITE), storage=(tmp_path / "bucket").as_uri())
    found = ask(server, "GET", "/api/permissions").json
    assert (found["edits"], "object store" in found["reason"]) == (False, True)
    reply = act(server, "delete_runs", token=WRITE, runs=["p/r0"])
    assert (reply.status, "object store" in reply.json["error"]) == (403, True)


def test_server_with_a_process_for_queries_edits_as_well(root, serve):
    finished_run(root)
    server = serve(root, tokens=Tokens(WRITE), separate_queries=True)
    assert ask(server, "GET", "/api/permissions").json == {"edits": True, "needs_token": True, "reason": ""}
    assert act(server, "edit_runs", token=WRITE, runs=["p/r0"], name="renamed").status == 200
    assert "renamed" in facts(root)
