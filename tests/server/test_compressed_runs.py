"""Servers and compressed runs: repeated and continued uploads, and compression in the background."""

import hashlib
import signal
import subprocess
import sysconfig
from pathlib import Path

import pytest
from sending import FILE, TOKENS, claim, put, rows_of, status_of
from waiting import wait_until

import hookline as hl
from hookline._engine.errors import OptionError
from hookline._record.compression import compress_directory
from hookline._record.delivery import Delivery
from hookline.server import WebServer

SCRIPT = Path(sysconfig.get_path("scripts")) / "hookline"
LINES = rows_of(400) + status_of("finished", time=2000.0)


@pytest.fixture
def server(tmp_path):
    with WebServer(tmp_path, tokens=TOKENS) as server:
        yield server


@pytest.fixture
def journal(server, tmp_path):
    """The directory of a received run that is compressed."""
    claim(server)
    assert put(server, LINES).json == {"offset": len(LINES)}
    directory = tmp_path / "p" / "r0" / "journal"
    assert compress_directory(directory).files == 1
    return directory


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def test_claim_of_a_compressed_run_names_the_sizes_of_the_content(server, journal):
    assert claim(server).json["files"] == {FILE: len(LINES)}
    assert names(journal) == [f"{FILE}.zst"]


@pytest.mark.parametrize("first", [0, 1, 200])
def test_lines_sent_again_to_a_compressed_run_are_compared_and_not_stored(server, journal, first):
    offset = sum(len(line) + 1 for line in LINES.split(b"\n")[:first])
    assert put(server, LINES[offset:], offset).facts == (200, {"offset": len(LINES)})
    assert put(server, LINES[offset:].replace(b"loss", b"lies"), offset).facts == (409, {"conflict": True})
    assert names(journal) == [f"{FILE}.zst"]


def test_lines_that_continue_a_compressed_run_unpack_it(server, journal):
    more, last = rows_of(5, first=401), status_of("finished", time=2000.0)
    assert put(server, more, len(LINES) + 1).facts == (409, {"offset": len(LINES)})
    assert names(journal) == [f"{FILE}.zst"]
    answer = put(server, last + more, len(LINES) - len(last))
    assert (answer.facts, names(journal)) == ((200, {"offset": len(LINES + more)}), [FILE])
    assert (journal / FILE).read_bytes() == LINES + more


def test_compressed_run_that_is_sent_ends_up_as_its_original(tmp_path, monkeypatch):
    monkeypatch.setenv("HOOKLINE_TOKEN", TOKENS.write)
    with hl.run("sent", root=tmp_path / "runs", summary=False) as run:
        for step in run.steps(3000):
            run.log(loss=step / 7)
    journal = run.dir / "journal"
    originals = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in journal.glob("*.jsonl")}
    hl.runs(tmp_path / "runs").compress()
    (tmp_path / "received").mkdir()
    with WebServer(tmp_path / "received", tokens=TOKENS) as server:
        sink = hl.sinks.HooklineSink(server.url, token=TOKENS.write)
        delivery = Delivery(run.dir, "hookline", sink)
        delivery.round()
        delivery.close(10)
        delivery.run()
        assert delivery.progress.error == ""
    received = next((tmp_path / "received").glob("*/*/journal"))
    assert {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in received.glob("*.jsonl")} == originals


def record(root, name):
    with hl.run(name, root=root, summary=False) as run:
        for step in run.steps(3000):
            run.log(loss=step / 7)
    return run.dir / "journal"


def test_server_compresses_ended_runs_in_the_background(tmp_path):
    done = record(tmp_path, "done")
    with hl.run("live", root=tmp_path, summary=False) as live:
        for step in live.steps(3000):
            live.log(loss=step / 7)
        with WebServer(tmp_path, compress_after_days=0) as server:
            wait_until(lambda: not list(done.glob("*.jsonl")))
            assert [run.status for run in server.runs.refresh()] == ["running", "finished"]
        assert not list((live.dir / "journal").glob("*.zst"))


@pytest.mark.parametrize("days", [None, 1.0])
def test_server_leaves_young_runs_alone_and_all_of_them_by_default(tmp_path, days):
    done = record(tmp_path, "done")
    with WebServer(tmp_path, compress_after_days=days) as server:
        assert len(server.runs.metrics("loss").rows()) == 3000
    assert not list(done.glob("*.zst"))


def test_server_with_a_negative_time_is_refused(tmp_path):
    with pytest.raises(OptionError, match="compress_after_days=-1"):
        WebServer(tmp_path, compress_after_days=-1)


@pytest.mark.parametrize("command", ["ui", "serve"])
def test_command_compresses_ended_runs_where_asked(tmp_path, command):
    done = record(tmp_path / "runs", "done")
    options = ["--root", "runs", "--no-open"] if command == "ui" else ["runs"]
    arguments = [SCRIPT, command, *options, "--port", "0", "--compress-after", "0"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(arguments, cwd=tmp_path, **pipes) as process:
        assert process.stdout.readline()  # only then is it ready for Ctrl-C
        wait_until(lambda: not list(done.glob("*.jsonl")))
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=100)
    assert (errors, process.returncode) == ("", 0)
