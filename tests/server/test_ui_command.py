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
        _, errors = process.communicate(timeout=30)
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


def test_ui_with_fewer_seconds_shows_a_run_as_stalled_sooner(tmp_path):
    with hl.run("waits", summary=False) as run:
        for _ in run.steps(1):
            run.log(loss=1.0)
        with started(tmp_path, "--no-open", "--stall-seconds", "0.1") as (_, said):
            wait_until(lambda: statuses(said.split()[-1]) == ["stalled"])


@pytest.mark.parametrize(
    ("arguments", "words"), [(["--root", "nowhere"], "does not exist"), (["--host", "0.0.0.0"], "no password")]
)
def test_ui_that_cannot_start_gives_the_reason(tmp_path, arguments, words):
    (tmp_path / "runs").mkdir()
    done = CliRunner().invoke(app, ["ui", "--no-open", *arguments])
    assert (done.exit_code, words in done.output) == (2, True)
