"""``hookline runs sync``: finishing the delivery of runs that are over."""

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest
from destinations.journal_server import TOKEN, JournalServer
from finished_runs import record

import hookline as hl
from hookline._record.reader import last_status

KILLED = """
import os, signal
import hookline as hl

with hl.run("killed", sinks=["csv", "jsonl"]) as run:
    run.recording.sinks.close()
    for step in run.steps(500):
        run.log(loss=1.0 / (step + 1))
    print(run.dir.name, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def killed_run(tmp_path, program=KILLED):
    """The directory of a run that was killed before anything was delivered."""
    result = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert result.returncode == -signal.SIGKILL, result.stderr
    return tmp_path / "runs" / "default" / result.stdout.strip()


def test_sync_of_a_killed_run_by_id_delivers_everything_once(tmp_path, cli):
    run_dir = killed_run(tmp_path)
    part = run_dir.name.split("-", 3)[-1]  # an id without its date: brave-otter-3
    first, second = cli("runs", "sync", part), cli("runs", "sync", run_dir)
    with (run_dir / "metrics.csv").open(newline="") as file:
        steps = [int(row["step"]) for row in csv.DictReader(file)]
    assert (first.exit_code, second.exit_code, steps) == (0, 0, list(range(1, 501)))
    kinds = [json.loads(line)["kind"] for line in (run_dir / "records.jsonl").read_text().splitlines()]
    assert (kinds.count("metrics"), kinds.count("status")) == (500, 2)
    assert f"default/{run_dir.name}\n" in first.stdout
    assert "csv" in first.stdout
    assert "ok" in first.stdout


def test_sync_of_a_killed_run_records_that_it_failed_and_where(tmp_path, cli):
    run_dir = killed_run(tmp_path)
    cli("runs", "sync", run_dir)
    said = last_status(run_dir, "courier")
    assert (said.status, said.step, said.message) == (
        "failed",
        500,
        "The training process died without saying why.",
    )


def test_sync_as_json_is_one_document(tmp_path, cli):
    with hl.run("done", root=tmp_path / "runs", sinks=["csv"], summary=False) as run:
        for _ in run.steps(3):
            run.log(loss=1.0)
    result = cli("runs", "sync", "latest", "--json")
    document = json.loads(result.stdout)
    assert (result.exit_code, document["run"], len(document["sinks"])) == (0, f"default/{run.dir.name}", 1)
    assert {key: document["sinks"][0][key] for key in ("name", "status", "delivered", "behind_bytes")} == {
        "name": "csv",
        "status": "ok",
        "delivered": 5,
        "behind_bytes": 0,
    }


def test_sync_where_something_still_waits_says_so_and_exits_with_one(tmp_path, cli):
    place = tmp_path / "place"
    with hl.run("done", sinks=[{"csv": {"path": place / "m.csv"}}], summary=False) as run:
        run.recording.sinks.close()
        for _ in run.steps(3):
            run.log(loss=1.0)
    shutil.rmtree(place)
    place.write_text("in the way")
    result = cli("runs", "sync", run.dir, "--seconds", "0.2")
    assert (result.exit_code, "lagging" in result.stdout, "NotADirectoryError" in result.stdout) == (1, True, True)


def test_sync_of_a_run_with_a_function_that_is_gone_names_it_and_delivers_the_rest(tmp_path, cli):
    with hl.run("done", sinks=["csv", lambda report_data, step: None], summary=False) as run:
        run.recording.sinks.close()
        for _ in run.steps(3):
            run.log(loss=1.0)
    result = cli("runs", "sync", run.dir)
    assert (result.exit_code, "refused" in result.stdout) == (1, True)
    assert len((run.dir / "metrics.csv").read_text().splitlines()) == 4


def test_sync_where_nothing_waits_rebuilds_nothing(tmp_path, cli):
    with hl.run("done", sinks=[lambda report_data, step: None], summary=False) as run:
        for _ in run.steps(3):
            run.log(loss=1.0)
    result = cli("runs", "sync", run.dir)
    assert (result.exit_code, "ok" in result.stdout) == (0, True)


def test_sync_of_a_run_that_is_alive_is_an_error(tmp_path, cli):
    with hl.run("alive", sinks=["csv"], summary=False) as run:
        result = cli("runs", "sync", run.dir)
    assert (result.exit_code, "still running" in result.stderr) == (2, True)


def test_sync_without_sinks_says_that_there_is_nothing_to_deliver(tmp_path, cli):
    with hl.run("done", summary=False) as run:
        pass
    result = cli("runs", "sync", run.dir.name)
    assert (result.exit_code, "has no sinks" in result.stdout) == (0, True)


def test_sync_of_a_killed_run_without_sinks_changes_nothing(tmp_path, cli):
    run_dir = killed_run(tmp_path, KILLED.replace(', sinks=["csv", "jsonl"]', ""))
    before = contents(run_dir)
    result = cli("runs", "sync", run_dir)
    assert (result.exit_code, "has no sinks" in result.stdout) == (0, True)
    assert contents(run_dir) == before
    assert json.loads(cli("runs", "show", run_dir, "--json").stdout)["status"] == "killed"


def contents(run_dir):
    """The files of a run, with what is in them and when it was written."""
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in sorted(run_dir.rglob("*")) if path.is_file()}


def test_sync_of_an_unknown_run_names_the_closest(tmp_path, cli):
    with hl.run("done", summary=False) as run:
        pass
    result = cli("runs", "sync", f"{run.dir.name}0")
    assert (result.exit_code, f"Did you mean '{run.dir.name}'?" in result.stderr) == (2, True)


def left_behind(name, **options):
    """The directory of a run that is over and delivered nothing."""
    with hl.run(name, sinks=["csv"], summary=False, **options) as run:
        run.recording.sinks.close()
        for _ in run.steps(3):
            run.log(loss=1.0)
    return run.dir


def test_sync_without_a_run_delivers_what_any_left_behind_and_says_which(cli):
    waiting = [left_behind("one"), left_behind("two", project="other")]
    with hl.run("done", sinks=["csv"], summary=False) as done:
        pass
    with hl.run("alive", sinks=["csv"], summary=False) as alive:
        alive.recording.sinks.close()
        alive.log(loss=1.0, step=1)
        first = cli("runs", "sync")
    assert (first.exit_code, [len((run / "metrics.csv").read_text().splitlines()) for run in waiting]) == (0, [4, 4])
    assert [f"{run.parent.name}/{run.name}\n" in first.stdout for run in (*waiting, done.dir, alive.dir)] == [
        True,
        True,
        False,
        False,
    ]


def test_sync_without_a_run_where_nothing_waits_says_so_and_exits_with_zero(tmp_path, cli):
    with hl.run("done", sinks=["csv"], summary=False):
        pass
    reported, document = cli("runs", "sync"), cli("runs", "sync", "--json")
    assert (reported.exit_code, reported.stdout) == (0, f"Nothing is undelivered in {tmp_path / 'runs'}.\n")
    assert json.loads(document.stdout) == {"root": str(tmp_path / "runs"), "runs": [], "logging": []}


LOGGED = """
import os, signal, sys
import hookline.logging as log

handlers = {
    "csv": {"class": "hookline.logging.CSVHandler", "filename": "logs/outputs.csv", "columns": ["step", "question"]},
    "tensorboard": {"class": "hookline.logging.TensorBoardHandler", "log_dir": "logs/tensorboard"},
}
for handler in handlers.values():
    handler |= {"flush_interval": 3600.0} if "filename" in handler else {"flush_secs": 3600.0}
topic = {"level": "INFO", "handlers": list(handlers), "propagate": False}
log.initialize({"handlers": handlers, "loggers": {"hookline.model": topic}})
for step in range(1, 101):
    log.log_model_output(f"{step}+1=", str(step + 1), "?", step=step)
print("logged", flush=True)
sys.stdin.readline()
os.kill(os.getpid(), signal.SIGKILL)
"""


def logged_steps(path):
    with path.open(newline="") as file:
        return [(int(row["step"]), row["question"]) for row in csv.DictReader(file)]


@pytest.mark.parametrize("named", [(), ("logs",), ("logs/outputs.csv",)])
def test_sync_delivers_what_logging_left_behind_after_a_kill(tmp_path, cli, named):
    result = subprocess.run([sys.executable, "-c", LOGGED], cwd=tmp_path, input="\n", text=True, timeout=200)
    first, second = cli("runs", "sync", *named), cli("runs", "sync", "logs")
    assert (result.returncode, first.exit_code, second.exit_code) == (-signal.SIGKILL, 0, 0), first.output
    assert logged_steps(tmp_path / "logs" / "outputs.csv") == [(step, f"{step}+1=") for step in range(1, 101)]
    assert "logs/outputs.csv" in first.stdout
    assert ["Nothing is undelivered" in second.stdout, (tmp_path / "logs" / ".tensorboard.journal").exists()] == [
        named != ("logs/outputs.csv",),
        False,
    ]


def test_sync_of_a_journal_of_logging_from_elsewhere_adds_no_rows_without_trust(tmp_path, cli):
    subprocess.run([sys.executable, "-c", LOGGED], cwd=tmp_path, input="\n", text=True, timeout=200)
    mine = tmp_path / "logs" / "mine.csv"
    mine.write_text("step,question,extra\n0,mine,\n")
    (tmp_path / "logs" / ".outputs.csv.journal").rename(tmp_path / "logs" / ".mine.csv.journal")
    refused = cli("runs", "sync", mine, "--json")
    assert (refused.exit_code, f"asks for: path {mine}" in refused.stdout) == (1, True)
    assert logged_steps(mine) == [(0, "mine")]
    assert cli("runs", "sync", mine, "--trust").exit_code == 0
    assert logged_steps(mine) == [(0, "mine"), *((step, f"{step}+1=") for step in range(1, 101))]


def test_sync_leaves_what_a_living_program_logs_to_it(tmp_path, cli):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", LOGGED], cwd=tmp_path, **pipes) as program:
        assert program.stdout.readline() == "logged\n"
        result = cli("runs", "sync", "logs")
        program.communicate("\n")
    assert (result.exit_code, result.stdout) == (0, f"Nothing is undelivered in {tmp_path / 'logs'}.\n")


def test_sync_of_logging_that_cannot_be_delivered_says_why_and_exits_with_one(tmp_path, cli):
    subprocess.run([sys.executable, "-c", LOGGED], cwd=tmp_path, input="\n", text=True, timeout=200)
    (tmp_path / "logs" / "outputs.csv").unlink()
    (tmp_path / "logs" / "outputs.csv").mkdir()
    result = cli("runs", "sync", "--json")
    (csv_sinks, tensorboard) = (each["sinks"] for each in json.loads(result.stdout)["logging"])
    assert (result.exit_code, csv_sinks[0]["status"], tensorboard[0]["status"]) == (1, "refused", "ok")
    assert "give the name of a file" in csv_sinks[0]["error"]
    assert (tmp_path / "logs" / ".outputs.csv.journal").is_dir()


def test_runs_by_the_name_that_one_was_given_are_found_and_of_several_none_is_taken(tmp_path, cli):
    only, *same = (left_behind(name) for name in ("w", "twice", "twice"))
    found = hl.runs()
    assert found["w"].directory == only
    with pytest.raises(hl.UnknownNameError, match="Several runs are called 'twice'") as error:
        found["twice"]
    assert all(f"default/{run.name}" in str(error.value) for run in same)
    with pytest.raises(hl.UnknownNameError, match=r"Did you mean 'twice'\?"):
        found["twise"]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("list", '"name": "second"'),
        ("show latest", '"name": "second"'),
        ("compare first second", '"name": "second"'),
        ("tail latest", '"loss":1.0'),
        ("verify", '"ok": true'),
        ("sync latest", '"status": "ok"'),
        ("delete latest --yes", "default/"),
    ],
)
def test_runs_below_another_root_are_found_there(tmp_path, cli, command, said):
    for name in ("first", "second"):
        record(name, root="elsewhere", sinks=["csv"])
    result = cli("runs", *command.split(), "--root", "elsewhere", "--json")
    assert (result.exit_code, said in result.stdout) == (0, True), result.output


def test_pipe_in_place_of_a_journal_does_not_hold_up_the_list_and_is_named_by_verify(tmp_path, cli):
    run_dir = record()
    pipe = run_dir / "journal" / "main-0001-1-ab-000000.jsonl"
    os.mkfifo(pipe)
    end = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)  # so that opening it fails instead of waiting for ever
    listed, verified = cli("runs", "list", "--json"), cli("runs", "verify", run_dir, "--json")
    os.close(end)
    assert [run["status"] for run in json.loads(listed.stdout)["runs"]] == ["finished"]
    assert [finding["what"] for finding in json.loads(verified.stdout)[0]["findings"]] == [
        f"journal/{pipe.name} cannot be read: Not a regular file"
    ]


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setenv("HOOKLINE_TOKEN", TOKEN)
    server = JournalServer(tmp_path / "received")
    yield server
    server.end()


def delivered_run(server):
    """The directory of a run that is over and arrived, and the one that the server has of it."""
    with hl.run("done", sinks=["csv", {"hookline": {"url": server.url}}], summary=False) as run:
        for _ in run.steps(3):
            run.log(loss=1.0)
    return run.dir, server.root / "default" / run.dir.name


def test_sync_of_a_run_that_the_server_lost_sends_it_again_and_says_so(server, cli):
    run_dir, there = delivered_run(server)
    shutil.rmtree(there)
    swept, named, again = cli("runs", "sync"), cli("runs", "sync", run_dir), cli("runs", "sync", run_dir, "--json")
    assert ("Nothing is undelivered" in swept.stdout, named.exit_code) == (True, 0)
    assert re.search(r"hookline had lost .* B: they were sent again\.", named.stdout)
    assert [sink["sent_again_bytes"] for sink in json.loads(again.stdout)["sinks"]] == [0, 0]
    assert list(hl.read(there)) == list(hl.read(run_dir))


def test_sync_of_a_delivered_run_whose_server_cannot_be_asked_says_so_and_exits_with_one(server, cli):
    run_dir, _ = delivered_run(server)
    server.fail("unreachable")
    result = cli("runs", "sync", run_dir, "--seconds", "0.2")
    server.heal()
    assert (result.exit_code, "lagging" in result.stdout) == (1, True)
    assert cli("runs", "sync", run_dir).exit_code == 0
