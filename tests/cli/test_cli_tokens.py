"""``hookline tokens``: tokens are created, listed, rotated and revoked, and shown once."""

import json
import re

import pytest
from typer.testing import CliRunner

from hookline.cli import app
from hookline.cli.runs.text import clock_text
from hookline.cli.tokens import parse_duration
from hookline.server.audit import AuditLog
from hookline.server.tokens import LiveTokens, TokenStore, default_tokens_file

TOKEN = re.compile(r"hlt_[0-9a-f]{12}_[A-Za-z0-9_-]{43}")


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Run a command beside an empty directory of runs; returns its exit status and what it printed."""
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments):
        result = CliRunner().invoke(app, ["tokens", *arguments])
        return result.exit_code, result.output

    return run


@pytest.fixture
def created(command):
    """A token for some projects, as JSON."""
    options = ["--role", "read", "--role", "write", "--project", "proj*", "--expires", "30d"]
    status, printed = command("create", "alice", *options, "--json")
    assert status == 0
    return json.loads(printed)


def test_created_token_works_and_is_shown_once(tmp_path, command, created):
    store = TokenStore(default_tokens_file(tmp_path / "runs"))
    principal = LiveTokens(store).find(created["token"]).principal
    assert (principal.id, principal.scope.patterns, sorted(principal.roles)) == (
        *(created["id"], ("proj*",), ["read", "write"]),
    )
    assert created["expires"] - created["created"] == pytest.approx(30 * 86400)
    shown = [command(*each)[1] for each in (("list",), ("list", "--json"), ("audit",), ("audit", "--json"))]
    assert [text for text in shown if TOKEN.search(text)] == []


def test_token_is_printed_on_a_line_of_its_own(command):
    status, printed = command("create", "alice", "--role", "read")
    assert (status, len(TOKEN.findall(printed)), bool(TOKEN.fullmatch(printed.splitlines()[-1]))) == (0, 1, True)


def test_list_shows_names_roles_projects_and_ends(command, created):
    [listed] = json.loads(command("list", "--json")[1])["tokens"]
    assert listed == {name: value for name, value in created.items() if name != "token"}
    row = command("list")[1]
    assert all(text in row for text in (created["id"], "alice", "write, read", "proj*"))


def test_list_without_tokens_says_how_to_create_one(command):
    status, printed = command("list")
    assert (status, "hookline tokens create" in printed) == (0, True)


def test_rotate_gives_a_new_value_and_revoke_ends_the_token(tmp_path, command, created):
    rotated = json.loads(command("rotate", created["id"], "--grace", "1h", "--json")[1])
    live = LiveTokens(TokenStore(default_tokens_file(tmp_path / "runs")))
    assert (rotated["id"], rotated["token"] != created["token"]) == (created["id"], True)
    assert [live.find(each["token"]).problem for each in (created, rotated)] == ["", ""]
    assert command("revoke", created["id"])[0] == 0
    live = LiveTokens(TokenStore(default_tokens_file(tmp_path / "runs")))
    assert [live.find(each["token"]) for each in (created, rotated)] == [None, None]
    entries = json.loads(command("audit", "--json")[1])["entries"]
    assert [entry["action"] for entry in entries] == ["token.created", "token.rotated", "token.revoked"]
    assert {entry["target"] for entry in entries} == {f"{created['id']} (alice)"}


def test_tokens_file_elsewhere_is_changed(tmp_path, command):
    assert command("create", "alice", "--role", "read", "--tokens", "other.json")[0] == 0
    assert [token.name for token in TokenStore(tmp_path / "other.json").read()] == ["alice"]
    assert not default_tokens_file(tmp_path / "runs").exists()


def test_commands_work_on_the_directory_that_is_given(tmp_path, command):
    (tmp_path / "elsewhere").mkdir()
    there = ["--root", "elsewhere", "--json"]
    created = json.loads(command("create", "alice", "--role", "read", *there)[1])
    assert [token["id"] for token in json.loads(command("list", *there)[1])["tokens"]] == [created["id"]]
    assert json.loads(command("rotate", created["id"], *there)[1])["id"] == created["id"]
    assert json.loads(command("revoke", created["id"], *there)[1])["revoked"]["name"] == "alice"
    entries = json.loads(command("audit", "--limit", "2", *there)[1])["entries"]
    assert [entry["action"] for entry in entries] == ["token.rotated", "token.revoked"]
    assert list((tmp_path / "runs").iterdir()) == []


@pytest.mark.parametrize(
    "arguments", [["create", "alice", "--role", "read"], ["revoke", "0" * 12], ["rotate", "0" * 12]]
)
def test_directory_that_does_not_exist_is_refused_and_not_created(tmp_path, command, arguments):
    status, printed = command(*arguments, "--root", "mistyped")
    expected = "There is no directory mistyped. Start `hookline serve mistyped` first, or give --root."
    assert (status, expected in printed) == (2, True)
    assert not (tmp_path / "mistyped").exists()


@pytest.mark.parametrize("action", ["revoke", "rotate"])
def test_name_instead_of_an_id_is_refused_with_the_id(command, created, action):
    status, printed = command(action, "alice")
    hint = f"Give an id, not a name. The token of this name has the id {created['id']}."
    assert (status, hint in printed) == (2, True)
    second = json.loads(command("create", "alice", "--role", "read", "--json")[1])
    assert f"Tokens of this name have the ids {created['id']}, {second['id']}." in command(action, "alice")[1]
    assert command(action, created["id"])[0] == 0


@pytest.mark.parametrize(("grace", "is_shown"), [("1h", True), ("0s", False)])
def test_list_shows_a_running_grace_period(command, created, grace, is_shown):
    assert "old value accepted until" not in command("list")[1]
    rotated = json.loads(command("rotate", created["id"], "--grace", grace, "--json")[1])
    listed = command("list")[1]
    assert ("old value accepted until" in listed) == is_shown
    assert not is_shown or clock_text(rotated["rotating_until"]) in listed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["create", "alice", "--role", "reader"], "is not a role"),
        (["create", "alice", "--role", "read", "--expires", "soon"], "give a number and s, m, h, d or w"),
        (["create", "alice", "--role", "read", "--project", "a/b"], "give the name of a project"),
        (["revoke", "000000000000"], "There is no token"),
        (["rotate", "000000000000"], "There is no token"),
    ],
)
def test_wrong_input_is_explained(command, arguments, message):
    status, printed = command(*arguments)
    assert (status, message in printed) == (2, True)
    answer = command(*arguments, "--json")[1]
    assert message in json.loads(answer[: answer.rindex("}") + 1])["error"]


def test_audit_log_shows_hostile_names_on_one_line(tmp_path, command):
    log = AuditLog(tmp_path / "runs")
    log.record("run.claimed", project="p", target="a\nb\x1b[31m")
    log.close()
    printed = command("audit")[1]
    assert "\x1b[31m" not in printed
    assert len([line for line in printed.splitlines() if "run.claimed" in line]) == 1


@pytest.mark.parametrize(("text", "seconds"), [("30d", 2_592_000), ("1h", 3600), ("1.5m", 90), ("2w", 1_209_600)])
def test_duration_is_a_number_and_a_unit(text, seconds):
    assert parse_duration("--expires", text) == seconds
