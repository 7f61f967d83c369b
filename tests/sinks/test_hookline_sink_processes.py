"""The hookline sink in trainings that are killed: every record arrives exactly once."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest
from destinations.journal_server import TOKEN, JournalServer
from waiting import wait_until

import hookline as hl
from hookline._record.delivery_manager import sync
from hookline._record.records import Metrics, Status

TRAINING = """
    import os, signal, sys
    import hookline as hl

    url, delivery, last = sys.argv[1], sys.argv[2], int(sys.argv[3])
    sinks = [{"hookline": {"url": url, "token": "${HOOKLINE_TOKEN}"}}]
    with hl.run("job", project="sums", sinks=sinks, delivery=delivery, resume="auto", summary=False) as run:
        for i in run.steps(60):
            run.log(loss=i, pid=os.getpid())
            if i % 5 == 4:
                run.request_checkpoint()
            if i == last:
                os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setenv("HOOKLINE_TOKEN", TOKEN)
    server = JournalServer(tmp_path / "received")
    yield server
    server.end()


def train(server, delivery, last):
    command = [sys.executable, "-c", textwrap.dedent(TRAINING), server.url, delivery, str(last)]
    return subprocess.run(command, check=False, env=os.environ, timeout=120).returncode


def only_run(root):
    (run_dir,) = root.glob("sums/*/")
    return run_dir


def steps(run_dir):
    return sorted(record.step for record in hl.read(run_dir) if isinstance(record, Metrics))


def test_run_killed_and_resumed_arrives_as_one_run_with_each_row_once(server, tmp_path):
    assert [train(server, "thread", last) for last in (12, 31, 99)] == [-signal.SIGKILL] * 2 + [0]
    here, there = only_run(tmp_path / "runs"), only_run(server.root)
    assert there.name == here.name
    assert steps(there) == list(range(1, 61))
    assert list(hl.read(there)) == list(hl.read(here))


def test_run_killed_while_the_server_is_down_is_delivered_by_sync(server, tmp_path):
    server.fail("unreachable")
    assert train(server, "thread", 20) == -signal.SIGKILL
    server.heal()
    (state,) = sync(only_run(tmp_path / "runs"), seconds=60)
    assert (state.status, state.behind_bytes) == ("ok", 0)
    assert list(hl.read(only_run(server.root))) == list(hl.read(only_run(tmp_path / "runs")))


def test_delivery_process_delivers_what_a_dead_run_left_and_reports_the_death(server, tmp_path):
    assert train(server, "process", 40) == -signal.SIGKILL
    wait_until(lambda: any(server.root.glob("sums/*/journal/courier-*")))
    there = only_run(server.root)
    wait_until(lambda: any(isinstance(record, Status) and record.status == "failed" for record in hl.read(there)))
    assert steps(there) == list(range(1, 41))
