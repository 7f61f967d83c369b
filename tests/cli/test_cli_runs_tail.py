"""``hookline runs tail``: what is shown of a run that goes on, and how following it ends."""

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest
from conftest import SCRIPT  # type: ignore[attr-defined]
from finished_runs import record

import hookline as hl
from hookline.cli.runs.tail import following
from hookline.store.run_info import RunLocation

TRAINING = """
import sys
import hookline as hl

with hl.run("live", summary=False) as run:
    print(run.dir, flush=True)
    for step, line in zip(run.steps(1000), sys.stdin):
        if line == "fail\\n":
            raise RuntimeError("out of luck")
        if line == "end\\n":
            run.request_stop("that is enough")
        run.log(loss=float(line) if line[0].isdigit() else 0.0, other=1.0)
"""


@contextmanager
def training(tmp_path):
    """A training that does a step for each line that it is given."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with subprocess.Popen([sys.executable, "-c", TRAINING], cwd=tmp_path, **pipes) as process:
        try:
            process.directory = process.stdout.readline().strip()
            yield process
        finally:
            process.kill()


@contextmanager
def tail(tmp_path, *arguments):
    environment = {**os.environ, "COLUMNS": "200"}
    command = [SCRIPT, "runs", "tail", *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def go(process, line):
    process.stdin.write(f"{line}\n")
    process.stdin.flush()


def test_tail_of_a_live_run_shows_each_row_as_it_comes_and_ends_with_it(tmp_path):
    with training(tmp_path) as run, tail(tmp_path, "latest", "--json", "--metrics", "loss") as follower:
        assert json.loads(follower.stdout.readline())["status"] == "running"
        for step in (1, 2):
            go(run, step)
            row = json.loads(follower.stdout.readline())
            assert (row["step"], row["values"]["loss"]) == (step, step)
        go(run, "end")
        rest = [json.loads(line) for line in follower.stdout]
        assert (follower.wait(), rest[-1]["status"], rest[-1]["message"]) == (0, "stopped", "that is enough")


def test_tail_of_a_run_that_fails_ends_with_one(tmp_path):
    with training(tmp_path) as run, tail(tmp_path, run.directory) as follower:
        assert "running" in follower.stdout.readline()
        go(run, "fail")
        last = follower.stdout.read().splitlines()[-1]
        assert (follower.wait(), "failed: RuntimeError: out of luck" in last) == (1, True)


def test_tail_of_a_run_that_is_killed_says_so_and_ends_with_one(tmp_path):
    with training(tmp_path) as run, tail(tmp_path, run.directory) as follower:
        assert "running" in follower.stdout.readline()
        go(run, 7)
        assert "loss 7" in follower.stdout.readline()
        run.kill()
        assert (follower.stdout.read(), follower.wait()) == ("killed: the run died without a final status\n", 1)


def test_tail_interrupted_ends_itself_and_not_the_run(tmp_path):
    with training(tmp_path) as run:
        with tail(tmp_path, run.directory, "--json") as follower:
            follower.stdout.readline()
            follower.send_signal(signal.SIGINT)
            assert (follower.wait(), "is no longer followed" in follower.stderr.read()) == (130, True)
        go(run, 1)
        assert run.poll() is None


def test_tail_of_a_finished_run_shows_its_last_lines(cli):
    directory = record(losses=[float(step) for step in range(30)])
    result = cli("runs", "tail", directory, "--lines", "4")
    assert (result.exit_code, [line.split()[2] for line in result.stdout.splitlines()]) == (0, ["28", "29", "30", "30"])
    assert result.stdout.splitlines()[-1].endswith("finished")


def test_tail_with_samples_and_events_shows_them_and_obeys_no_terminal_codes(cli):
    with hl.run("talk", summary=False) as run:
        for _ in run.steps(1):
            run.log(loss=1.0)
            run.log_samples([{"prompt": "say\nit", "completion": "red\x1b[31m", "total": 0.5}])
        run.recorder.event("checkpoint", step=1, path="x")
        run.recorder.event("alert", step=1, message="loss is high")
    quiet, loud = cli("runs", "tail"), cli("runs", "tail", "--samples", "--events")
    assert ("sample" in quiet.stdout, "checkpoint" in quiet.stdout, "alert" in quiet.stdout) == (False, False, True)
    assert "sample say\\nit -> red\\x1b[31m  reward 0.5" in loud.stdout
    assert "checkpoint  path=x" in loud.stdout


def test_tail_of_chosen_metrics_leaves_out_rows_without_them(cli):
    with hl.run("two", summary=False) as run:
        for step in run.steps(2):
            run.log({"val/loss": 1.0} if step else {"loss": 2.0})
    lines = cli("runs", "tail", "--metrics", "val/*,acc").stdout.splitlines()
    assert [line.split("step ")[1] for line in lines] == ["0  running", "2  val/loss 1", "2  finished"]


def test_following_a_run_that_was_resumed_does_not_end_where_it_ended_before(cli):
    directory = record(losses=[1.0, 2.0])
    news = following(RunLocation("default", directory), sleep=lambda seconds: None)
    with hl.run("warm", resume=directory, summary=False) as run:
        before = next(word for word in news if isinstance(word, str))
        for _ in run.steps(3):
            run.log(loss=9.0)
    after = list(news)
    rows = [entry.record.values for entry in after if not isinstance(entry, str) and entry.kind == "metrics"]
    assert (before, after[-1], rows) == ("running", "finished", [{"loss": 9.0}] * 3)


@pytest.mark.parametrize("reference", ["nothing", "latest"])
def test_tail_of_a_run_that_is_not_there_exits_with_two(reference, tmp_path, cli):
    (tmp_path / "runs").mkdir()
    result = cli("runs", "tail", reference)
    assert (result.exit_code, result.stdout) == (2, "")
