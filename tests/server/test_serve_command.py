"""``hookline serve`` as users start it: its tokens, what can be seen of them, and that it may be killed at any time."""

import itertools
import json
import os
import signal
import subprocess
import sysconfig
import threading
from pathlib import Path

import pytest
import yaml
from sending import FILE, READ, WRITE, ask, beat, claim, put, rows_of
from typer.testing import CliRunner
from waiting import wait_until

import hookline as hl
from hookline._engine.errors import ConfigError, OptionError
from hookline.cli import app
from hookline.cli.serve import parse_bytes, sinks_line, without_tokens
from hookline.server.root_tokens import (
    TOKENS_FILE,
    OptionalTokens,
    Tokens,
    load_tokens,
    resolve_tokens,
    tokens_from_file,
)
from hookline.server.tokens import TokenStore, default_tokens_file
from hookline.server.web_server import allowed_name

SCRIPT = Path(sysconfig.get_path("scripts")) / "hookline"


class Served:
    """A server in a separate process."""

    def __init__(self, directory, *options, **environment):
        command = [SCRIPT, "serve", "runs", "--port", "0", "--json", *options]
        self.process = subprocess.Popen(
            command,
            cwd=directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | environment,
        )
        said = self.process.stdout.readline()
        assert said, self.process.stderr.read()
        self.facts = json.loads(said)
        self.url = self.facts["url"]

    def end(self, with_signal=signal.SIGINT):
        self.process.send_signal(with_signal)
        return self.process.communicate(timeout=100)


def test_token_on_the_command_line_works_and_is_seen_by_nobody(tmp_path):
    served = Served(tmp_path, "--token", WRITE, f"--read-token={READ}")
    proc = Path(f"/proc/{served.process.pid}")
    seen = proc.joinpath("cmdline").read_bytes() + proc.joinpath("environ").read_bytes()
    statuses = claim(served).status, ask(served, "GET", "/api/runs", token=READ).status
    ask(served, "PUT", f"/api/{WRITE}", token=READ)
    out, errors = served.end()
    assert (statuses, served.process.returncode, errors) == ((200, 200), 0, "")
    assert [token for token in (WRITE, READ) if token.encode() in seen or token in json.dumps(served.facts) + out] == []
    assert not (tmp_path / "runs" / TOKENS_FILE).exists()


def test_token_of_a_tokens_file_works_until_it_is_revoked_without_a_restart(tmp_path):
    def tokens(*arguments):
        command = [SCRIPT, "tokens", *arguments, "--tokens", "secrets.json", "--json"]
        return json.loads(subprocess.run(command, cwd=tmp_path, capture_output=True, check=True).stdout)

    created = tokens("create", "cluster", "--role", "write", "--project", "p")
    served = Served(tmp_path, "--tokens", "secrets.json", HOOKLINE_WRITE_TOKEN=WRITE)
    statuses = [claim(served, project=project, token=created["token"]).status for project in ("p", "q")]
    proc = Path(f"/proc/{served.process.pid}")
    seen = proc.joinpath("cmdline").read_bytes() + proc.joinpath("environ").read_bytes()
    tokens("revoke", created["id"])
    wait_until(lambda: claim(served, token=created["token"]).status == 401)
    out, errors = served.end()
    assert (statuses, errors) == ([200, 403], "")
    assert created["token"].encode() not in seen + out.encode()


@pytest.mark.parametrize(("role", "is_needed"), [("read", True), ("write", False)])
def test_serve_says_that_viewing_needs_a_token_if_the_tokens_file_has_one_for_it(tmp_path, role, is_needed):
    TokenStore(default_tokens_file(tmp_path / "runs")).create("somebody", roles=[role])
    served = Served(tmp_path, HOOKLINE_WRITE_TOKEN=WRITE)
    status = ask(served, "GET", "/api/runs", token=None).status
    served.end()
    assert (served.facts["reading_needs_token"], status) == (is_needed, 401 if is_needed else 200)


def test_server_killed_while_it_writes_continues_with_the_same_token_and_loses_nothing(tmp_path):
    first = Served(tmp_path)
    token = first.facts["made"]["write"]
    whole = rows_of(20_000)
    claim(first, token=token)
    cuts = [0, *(whole.index(b"\n", place) + 1 for place in range(9000, len(whole), 9000)), len(whole)]
    taken = threading.Semaphore(0)

    def send():
        for begin, end in itertools.pairwise(cuts[:-1]):  # never all of it
            try:
                assert put(first, whole[begin:end], begin, token=token).status == 200
            except (OSError, EOFError):
                return
            taken.release()

    sender = threading.Thread(target=send)
    sender.start()
    for _ in range(20):
        assert taken.acquire(timeout=30)
    first.process.kill()
    first.process.communicate()
    sender.join()
    with (tmp_path / "runs" / "p" / "r0" / "journal" / FILE).open("ab") as file:
        file.write(b'{"kind":"metrics","torn')  # as when it is killed between two pages
    second = Served(tmp_path)
    held = claim(second, token=token).json["files"][FILE]
    assert put(second, whole[held:], held, token=token).json == {"offset": len(whole)}
    second.end()
    assert (second.facts["made"], 0 < held < len(whole)) == ({}, True)
    assert (tmp_path / "runs" / "p" / "r0" / "journal" / FILE).read_bytes() == whole
    assert [run.id for run in hl.runs(tmp_path / "runs")] == ["p/r0"]


def test_address_that_others_reach_has_two_tokens_and_says_what_a_trainer_needs(tmp_path):
    served = Served(tmp_path, "--host", "0.0.0.0", HOOKLINE_WRITE_TOKEN=WRITE)
    made = served.facts["made"]
    port = served.url.rsplit(":", 1)[1].strip("/")
    loopback = f"http://127.0.0.1:{port}/"
    statuses = [ask(loopback, "GET", "/api/runs", token=token).status for token in (None, made["read"])]
    sent = claim(loopback).status
    served.end()
    assert (list(made), statuses, sent) == (["read"], [401, 200], 200)
    [sink] = yaml.safe_load(served.facts["sinks"])["sinks"]
    assert (sink["hookline"]["token"], sink["hookline"]["url"].endswith(f":{port}")) == ("${HOOKLINE_TOKEN}", True)


def test_names_of_proxies_that_are_allowed_are_answered_and_the_first_is_printed_with_its_port(tmp_path):
    names = ["--allow-host", "Runs.example:8443", "--allow-host", "more.example"]
    served = Served(tmp_path, *names, "--token", WRITE, "--read-token", READ)
    hosts = ("runs.example:8443", "runs.example", "more.example", "other.example")
    statuses = [ask(served, "GET", "/api/runs", token=READ, headers={"Host": host}).status for host in hosts]
    served.end()
    assert (statuses, "https://Runs.example:8443" in served.facts["sinks"]) == ([200, 200, 200, 421], True)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("runs.example.org", "runs.example.org"),
        ("RUNS.example:8443", "runs.example"),
        ("[FE80::1]:443", "fe80::1"),
        ("fe80::1", "fe80::1"),
        ("10.0.0.1:80", "10.0.0.1"),
    ],
)
def test_allowed_name_has_no_port(given, name):
    assert allowed_name(given) == name


@pytest.mark.parametrize(
    "given",
    ["", " ", "https://foo.org:443/", "foo.org/runs", "foo.org:", "foo.org:x", ":80", "*.foo.org", "a b", "[x]"],
)
def test_allowed_name_that_is_not_a_host_is_refused(given):
    with pytest.raises(ConfigError, match="is not a host name"):
        allowed_name(given)


def test_serve_says_which_tokens_are_kept_in_the_directory(tmp_path):
    keep_tokens(tmp_path)
    served = Served(tmp_path, "--host", "0.0.0.0", HOOKLINE_WRITE_TOKEN=WRITE)
    served.end()
    assert (served.facts["made"], served.facts["kept"]) == ({}, ["read"])
    assert served.facts["token_file"] == str(tmp_path / "runs" / TOKENS_FILE)


def keep_tokens(tmp_path):
    """As a server does that others can reach."""
    (tmp_path / "runs").mkdir()
    resolve_tokens(tmp_path / "runs", OptionalTokens(), needs_read=True)


def test_serve_tells_people_which_token_is_the_kept_one(tmp_path):
    keep_tokens(tmp_path)
    command, env = [SCRIPT, "serve", "runs", "--port", "0", "--host", "0.0.0.0"], {"HOOKLINE_WRITE_TOKEN": WRITE}
    with subprocess.Popen(command, cwd=tmp_path, env=os.environ | env, stdout=subprocess.PIPE, text=True) as process:
        lines = [process.stdout.readline().strip() for _ in range(3)]
        process.kill()
    assert lines[2] == f"The read token is the one in {tmp_path / 'runs' / TOKENS_FILE}."


@pytest.mark.parametrize(
    ("given", "needs_read", "made", "in_file"),
    [
        (OptionalTokens(), True, ("write", "read"), ("write", "read")),
        (OptionalTokens(), False, ("write",), ("write",)),
        (OptionalTokens(write=WRITE), True, ("read",), ("read",)),
        (OptionalTokens(read=READ), True, ("write",), ("write",)),
        (OptionalTokens(WRITE, READ), True, (), ()),
    ],
)
def test_tokens_that_are_given_do_not_count_as_kept(tmp_path, given, needs_read, made, in_file):
    first, again = (resolve_tokens(tmp_path, given, needs_read=needs_read) for _ in range(2))
    assert [(each.created, each.saved) for each in (first, again)] == [(made, in_file), ((), in_file)]


@pytest.mark.parametrize("text", ['{"write": ""}', f'{{"write": "{WRITE}", "read": ""}}'])
def test_file_of_tokens_with_an_empty_one_is_refused(tmp_path, text):
    (tmp_path / "tokens").write_text(text)
    with pytest.raises(ConfigError, match="is empty"):
        tokens_from_file(tmp_path / "tokens")


def run_statuses(served):
    return [run["status"] for run in ask(served, "GET", "/api/runs").json["runs"]]


def test_run_without_progress_is_stalled_after_the_given_seconds(tmp_path):
    served = Served(tmp_path, "--stall-seconds", "0.1", "--token", WRITE)
    claim(served)
    put(served, rows_of(3))
    beat(served, every_seconds=600)
    wait_until(lambda: run_statuses(served) not in ([], ["running"]))
    assert run_statuses(served) == ["stalled"]
    served.end()


def test_tokens_that_were_made_are_kept_for_their_owner_alone(tmp_path):
    first = resolve_tokens(tmp_path, OptionalTokens(), needs_read=False)
    assert (first.created, first.tokens.read, first.saved) == (("write",), None, ("write",))
    assert (tmp_path / TOKENS_FILE).stat().st_mode & 0o777 == 0o600
    second = resolve_tokens(tmp_path, OptionalTokens(), needs_read=True)
    assert (second.created, second.tokens.write) == (("read",), first.tokens.write)
    third = resolve_tokens(tmp_path, OptionalTokens(), needs_read=True)
    assert (third.created, third.tokens) == ((), second.tokens)
    assert resolve_tokens(tmp_path, OptionalTokens(), needs_read=False).tokens.read is None
    assert [path.name for path in tmp_path.iterdir()] == [TOKENS_FILE]


def test_given_tokens_come_before_kept_ones(tmp_path):
    resolve_tokens(tmp_path, OptionalTokens(), needs_read=True)
    settled = resolve_tokens(tmp_path, OptionalTokens(write=WRITE), needs_read=True)
    assert (settled.tokens.write, settled.tokens.read) == (WRITE, load_tokens(tmp_path).read)
    assert resolve_tokens(tmp_path, OptionalTokens(WRITE, READ), needs_read=False).tokens == Tokens(WRITE, READ)


def test_two_servers_that_start_at_once_have_the_same_tokens(tmp_path):
    settled = []
    starts = threading.Barrier(8)

    def start():
        starts.wait()
        settled.append(resolve_tokens(tmp_path, OptionalTokens(), needs_read=True).tokens)

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(settled)) == 1


def test_kept_tokens_that_others_can_read_or_that_are_a_link_are_refused(tmp_path):
    resolve_tokens(tmp_path, OptionalTokens(), needs_read=False)
    (tmp_path / TOKENS_FILE).chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        resolve_tokens(tmp_path, OptionalTokens(), needs_read=False)
    (tmp_path / TOKENS_FILE).rename(tmp_path / "aside")
    (tmp_path / TOKENS_FILE).symlink_to("aside")
    with pytest.raises(ConfigError, match="cannot be read"):
        resolve_tokens(tmp_path, OptionalTokens(), needs_read=False)


@pytest.mark.parametrize(
    ("text", "given"),
    [
        (f"{WRITE}\n", OptionalTokens(WRITE)),
        (f'{{"write": "{WRITE}", "read": "{READ}"}}', OptionalTokens(WRITE, READ)),
        (f'{{"read": "{READ}"}}', OptionalTokens(None, READ)),
        ("", OptionalTokens()),
    ],
)
def test_file_of_tokens_holds_one_or_both(tmp_path, text, given):
    (tmp_path / "tokens").write_text(text)
    assert tokens_from_file(tmp_path / "tokens") == given


@pytest.mark.parametrize("text", [f'{{"write": "{WRITE}", "x": 1}}', f'{{"write": ["{WRITE}"]}}', f'{{"{WRITE}'])
def test_invalid_token_file_is_refused_without_repeating_it(tmp_path, text):
    (tmp_path / "tokens").write_text(text)
    with pytest.raises(ConfigError, match="is not valid") as caught:
        tokens_from_file(tmp_path / "tokens")
    assert WRITE not in str(caught.value)


@pytest.mark.parametrize(
    ("write", "read", "words"),
    [
        ("short", None, "16 to 1024"),
        (WRITE, "short", "16 to 1024"),
        ("x" * 15 + " ", None, "space"),
        (WRITE, WRITE, "same"),
        ("é" * 20, None, "letters"),
    ],
)
def test_tokens_that_are_no_secrets_are_refused_without_repeating_them(write, read, words):
    with pytest.raises(OptionError, match=words) as caught:
        Tokens(write, read)
    assert not [token for token in (write, read) if token and token in str(caught.value)]
    assert WRITE not in repr(Tokens(WRITE, READ))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--token", "short"], "16 to 1024"),
        (["--token", WRITE, "--read-token", WRITE], "are the same"),
        (["--token-file", "nowhere"], "cannot be read"),
        (["/proc", "--token", WRITE], "cannot be written"),
        (["--host", "", "--token", WRITE], "is not an address"),
        (["--allow-host", "", "--token", WRITE], "is not a host name"),
        (["--allow-host", "https://runs.example"], "is not a host name"),
        (["--host", "203.0.113.1", "--token", WRITE, "--read-token", READ], "does not have that address"),
    ],
)
def test_serve_that_cannot_be_says_why_and_repeats_no_token(tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["serve", "--port", "0", *arguments])
    assert (done.exit_code, words in done.output, WRITE in done.output) == (2, True, False)


def test_command_line_is_the_same_without_its_tokens():
    given = [
        "python",
        "hookline",
        "serve",
        "--token",
        WRITE,
        "r",
        f"--read-token={READ}",
        "--port",
        "1",
        "--token-file",
        "x",
    ]
    assert list(without_tokens(given)) == ["python", "hookline", "serve", "r", "--port", "1", "--token-file", "x"]


def test_line_for_a_trainer_is_yaml():
    parsed = yaml.safe_load(sinks_line("http://box:8765"))
    assert parsed == {"sinks": [{"hookline": {"url": "http://box:8765", "token": "${HOOKLINE_TOKEN}"}}]}


@pytest.mark.parametrize(
    ("text", "size"),
    [("1000", 1000), ("5GiB", 5 << 30), ("500 MB", 500_000_000), ("1.5k", 1500), ("2tib", 2 << 40), ("7B", 7)],
)
def test_size_of_an_option_is_parsed(text, size):
    assert parse_bytes("--max-blob", text) == size


@pytest.mark.parametrize("option", ["--max-blob", "--max-run-blobs", "--max-blobs", "--keep-free"])
def test_option_that_is_no_size_is_an_error(option, tmp_path):
    ended = CliRunner().invoke(app, ["serve", str(tmp_path / "runs"), option, "many"])
    assert (ended.exit_code, f"{option}='many': give a number of bytes" in ended.output) == (2, True)
