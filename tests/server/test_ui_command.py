"""``hookline ui`` as users start it."""

import contextlib
import json
import os
import signal
import subprocess
import sysconfig
import urllib.request
from pathlib import Path

import pytest
from typer.testing import CliRunner
from waiting import wait_until

import hookline as hl
from hookline.cli import app
from hookline.store.alert_book import AlertBook

SCRIPT = Path(sysconfig.get_path("scripts")) / "hookline"


@contextlib.contextmanager
def started(directory, *options, **environment):
    """The program, and the first line that it prints; Ctrl-C ends it."""
    command, env = [SCRIPT, "ui", "--port", "0", *options], os.environ | environment
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=directory, env=env, **pipes) as process:
        said = process.stdout.readline()
        yield process, said
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=100)
    assert (errors, process.returncode) == ("", 0)


def fetched(address):
    with urllib.request.urlopen(address, timeout=30) as answer:
        return answer.read()


def statuses(address):
    return [run["status"] for run in json.loads(fetched(f"{address}api/runs"))["runs"]]


@pytest.mark.parametrize(("option", "opens"), [("--open", True), ("--no-open", False)])
def test_ui_prints_its_address_serves_the_page_opens_it_where_asked_and_ends_on_ctrl_c(tmp_path, option, opens):
    browser, opened = tmp_path / "browser", tmp_path / "opened"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > {opened}\n')
    browser.chmod(0o755)
    with hl.run("shown", summary=False) as run:
        run.log(loss=1.0)
    with started(tmp_path, option, BROWSER=str(browser)) as (_, said):
        page = fetched(said.split()[-1])
    assert (said.startswith("1 run in"), b"<title>hookline</title>" in page) == (True, True)
    assert (opened.read_text() if opened.exists() else "") == (said.split()[-1] if opens else "")


@pytest.mark.parametrize(
    ("options", "environment"),
    [(["elsewhere"], {}), (["--root", "elsewhere"], {}), ([], {"HOOKLINE_ROOT": "elsewhere"})],
)
def test_ui_shows_the_runs_of_the_given_directory(tmp_path, options, environment):
    with hl.run("shown", root="elsewhere", summary=False) as run:
        run.log(loss=1.0)
    with started(tmp_path, "--no-open", *options, **environment) as (_, said):
        assert said.startswith(f"1 run in {tmp_path / 'elsewhere'}")


@pytest.mark.parametrize("options", [(), ("--read-only",)])
def test_ui_that_is_read_only_offers_no_changes(tmp_path, options):
    with hl.run("shown", summary=False) as run:
        run.log(loss=1.0)
    with started(tmp_path, "--no-open", *options) as (_, said):
        may = json.loads(fetched(f"{said.split()[-1]}api/permissions"))
    assert (may["edits"], bool(may["reason"])) == (not options, bool(options))


def test_ui_with_fewer_seconds_shows_a_run_as_stalled_sooner(tmp_path):
    with hl.run("waits", summary=False) as run:
        for _ in run.steps(1):
            run.log(loss=1.0)
        with started(tmp_path, "--no-open", "--stall-seconds", "0.1") as (_, said):
            wait_until(lambda: statuses(said.split()[-1]) != ["running"])
            assert statuses(said.split()[-1]) == ["stalled"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--root", "nowhere"], "does not exist"),
        (["nowhere"], "does not exist"),
        (["nowhere", "--root", "runs"], "once"),
        (["--host", "0.0.0.0"], "no password"),
    ],
)
def test_ui_that_cannot_start_gives_the_reason(tmp_path, arguments, words):
    (tmp_path / "runs").mkdir()
    done = CliRunner().invoke(app, ["ui", "--no-open", *arguments])
    assert (done.exit_code, words in done.output) == (2, True)


@pytest.mark.parametrize("command", ["ui", "serve"])
def test_command_with_alerts_evaluates_the_rules_of_the_file_while_it_runs(tmp_path, command):
    rules, root = tmp_path / "alerts.yaml", tmp_path / "runs"
    rules.write_text("callbacks: [{alert: {metric: loss, above: 3}, name: too high}]")
    root.mkdir()
    book = AlertBook(root)
    book.start()  # a rule looks at what is recorded from now on
    with hl.run("watched", root=root, summary=False, console=False) as run:
        run.log(loss=9.0)
    options = {"ui": ["--no-open", "--root", root], "serve": ["--token", "a-token-of-a-test-of-alerts", root]}
    given = [SCRIPT, command, "--port", "0", "--alerts", rules, *options[command]]
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(given, cwd=tmp_path, **pipes) as process:
        try:
            wait_until(lambda: book.read().alerts or process.poll() is not None)
        finally:
            process.send_signal(signal.SIGINT)
    assert [(each.rule, each.value) for each in book.read().alerts.values()] == [("too high", 9.0)]
    rules.write_text("callbacks: [{alert: {metrik: loss}}]")
    refused = subprocess.run(given, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert (refused.returncode, "metrik" in refused.stderr) == (2, True)
