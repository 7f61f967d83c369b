"""A run's sinks: accepted values of `hl.run(sinks=...)`, their state, and the report at the end."""

import csv
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

import hookline as hl
from hookline._record.delivery_manager import DeliveryManager
from hookline._record.records import Status
from hookline.sinks import CsvSink, Sink


@dataclass(eq=False)
class Recording(Sink):
    """Keeps its arguments; refuses, fails or hangs if the test wants it."""

    refuses: bool = False
    fails: bool = False

    def __post_init__(self):
        self.records, self.gate = [], None

    def open(self, run_dir, state):
        if self.refuses:
            raise hl.RefusedError("the key is wrong: set KEY")
        return state

    def write(self, entries):
        if self.gate is not None:
            self.gate.wait(60)
        if self.fails:
            raise ConnectionError("nobody there")
        self.records += [entry.record for entry in entries]


def train(run, steps=5):
    for step in run.steps(steps):
        run.log(loss=1.0 / (step + 1))


def test_run_with_sinks_of_all_forms_delivers_to_each(tmp_path):
    calls, own = [], Recording()

    def logger(report_data, step):
        calls.append((report_data["loss"], step))

    sinks = ["csv", {"jsonl": {"path": tmp_path / "all.jsonl"}}, CsvSink(tmp_path / "b.csv"), logger, own]
    with hl.run("x", sinks=sinks, summary=False) as run:
        train(run)
    assert [(state.name, state.status) for state in run.sinks()] == [
        (name, "ok") for name in sorted(["csv", "csv_2", "jsonl", "function", "Recording"])
    ]
    with (run.dir / "metrics.csv").open() as file:
        assert [row["step"] for row in csv.DictReader(file)] == ["1", "2", "3", "4", "5"]
    assert calls == [(1.0 / step, step) for step in range(1, 6)]
    assert len(own.records) == len((tmp_path / "all.jsonl").read_text().splitlines()) == 7


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["cvs"], "Did you mean 'csv'?"),
        ([{"csv": {"pth": "x"}}], "Did you mean 'path'?"),
        ([{"csv": {"kind": "metric"}}], "Did you mean 'metrics'?"),
        ([{"os:system": {"command": "true"}}], "is not a subclass of Sink"),
        ([3], "3 is not a sink"),
        ("csv", "give a list of sinks"),
        ([{"csv": {}, "jsonl": {}}], "is not a sink: give {name: {setting: value}}"),
        ([{"csv": {"path": "a"}}, {"csv": {"path": "a", "kind": "sample"}}], "would write to one file"),
    ],
)
def test_run_with_something_that_is_no_sink_is_an_error_at_once(given, said):
    with pytest.raises(hl.HooklineError) as error:
        hl.run("x", sinks=given)
    assert said in str(error.value)


def test_run_with_sinks_but_no_record_is_an_error():
    with pytest.raises(hl.OptionError, match="sinks are fed from the record"):
        hl.run("x", root=None, sinks=["csv"])


@pytest.mark.parametrize("option", [{"delivery": "pigeon"}, {"drain_seconds": -1}, {"drain_seconds": "10"}])
def test_run_with_a_bad_option_of_delivery_is_an_error(option):
    with pytest.raises(hl.OptionError, match=next(iter(option))):
        hl.run("x", **option)


def test_run_with_a_sink_that_refuses_is_an_error_at_the_start_and_recorded():
    run = hl.run("x", sinks=[Recording(refuses=True)], summary=False)
    with pytest.raises(hl.RefusedError, match="Recording: the key is wrong: set KEY"), run:
        pytest.fail("the body must not run")
    statuses = [record.status for record in hl.read(run.dir) if isinstance(record, Status)]
    assert (statuses, run.sinks()[0].status) == (["failed"], "refused")


def test_run_with_a_sink_that_fails_ends_in_time_and_says_what_waits(capsys):
    with hl.run("x", sinks=[Recording(fails=True)], drain_seconds=0.05) as run:
        train(run)
    said = capsys.readouterr().err
    assert (run.state, run.sinks()[0].status, run.sinks()[0].error) == (
        "completed",
        "lagging",
        "ConnectionError: nobody there",
    )
    assert "lagging Recording: 0 records delivered" in said
    assert f"hookline runs sync {run.dir}" in said


def test_run_with_a_sink_that_hangs_ends_in_time(capsys):
    sink = Recording()
    sink.gate = threading.Event()
    with hl.run("x", sinks=[sink, "csv"], drain_seconds=1.0, summary=False) as run:
        train(run)
    assert {state.name: state.behind_bytes > 0 for state in run.sinks()} == {"Recording": True, "csv": False}
    sink.gate.set()


def test_run_gives_its_sinks_the_configured_time_to_deliver(monkeypatch):
    given, close = [], DeliveryManager.close

    def noted(manager, seconds):
        given.append(seconds)
        close(manager, seconds)

    monkeypatch.setattr(DeliveryManager, "close", noted)
    with hl.run("x", sinks=[Recording()], drain_seconds=7, summary=False) as run:
        train(run)
    assert given == [7]


def test_status_of_a_run_is_recorded_and_reaches_the_sinks():
    sink = Recording()
    with hl.run("x", sinks=[sink], summary=False) as run:
        run.status("tokenizing", "twelve shards", shards=12)
        train(run, 1)
    words = [(record.status, record.message, record.data) for record in sink.records if isinstance(record, Status)]
    assert words[0] == ("tokenizing", "twelve shards", {"shards": 12})
    assert words[-1][0] == "finished"


def test_resumed_run_continues_in_the_same_csv_without_the_rows_done_again():
    def start():
        return hl.run("x", sinks=["csv"], resume="auto", summary=False)

    with pytest.raises(RuntimeError, match="power cut"), start() as run:
        for step in run.steps(10):
            run.log(loss=float(step))
            if step == 3:
                run.save_checkpoint()
            if step == 7:
                raise RuntimeError("power cut")
    with start() as again:
        for step in again.steps(10):
            again.log(loss=float(step) + 100)
    with (again.dir / "metrics.csv").open() as file:
        rows = [(int(row["step"]), float(row["loss"])) for row in csv.DictReader(file)]
    assert again.dir == run.dir
    assert rows == [(step, step - 1.0) for step in range(1, 5)] + [(step, step + 99.0) for step in range(5, 11)]


def test_second_run_on_the_same_file_is_refused_at_its_start(tmp_path):
    sinks = [{"csv": {"path": tmp_path / "same.csv"}}]
    with hl.run("first", sinks=sinks, summary=False) as first:
        train(first, 2)
        with pytest.raises(hl.RefusedError, match="is being written to by another sink or run"):
            hl.run("second", sinks=sinks, summary=False).__enter__()
        train(first, 2)
    with (tmp_path / "same.csv").open() as file:
        assert [row["step"] for row in csv.DictReader(file)] == ["1", "2", "3", "4"]


def test_row_of_the_step_that_failed_is_recorded():
    with pytest.raises(ValueError, match="diverged"), hl.run("x", sinks=["csv"], summary=False) as run:
        for step in run.steps(3):
            run.log(loss=float(step))
            if step == 1:
                raise ValueError("diverged")
    assert [(row.step, row.metrics) for row in run.history] == [(1, {"loss": 0.0}), (2, {"loss": 1.0})]


def test_sink_whose_package_is_missing_leaves_no_directory(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name, package=None: None)
    with pytest.raises(hl.MissingExtraError, match="pip install 'hookline"):
        hl.run("x", sinks=["wandb"], summary=False)
    assert not (tmp_path / "runs").exists()


NEVER_LEFT = """
import hookline as hl
run = hl.run("interactive", sinks=["csv"]).__enter__()
for step in run.steps(3):
    run.log(loss=1.0)
print(run.dir)
"""


def test_run_that_is_never_left_ends_with_the_program(tmp_path):
    result = subprocess.run([sys.executable, "-c", NEVER_LEFT], capture_output=True, text=True, check=True, timeout=60)
    run_dir = Path(result.stdout.strip())
    with (run_dir / "metrics.csv").open() as file:
        assert [row["step"] for row in csv.DictReader(file)] == ["1", "2", "3"]
    assert [record.status for record in hl.read(run_dir) if isinstance(record, Status)] == ["running", "stopped"]


UNREAD = """
import os, sys
import hookline as hl
with hl.run("x", callbacks=[hl.callbacks.ProgressBar(1)]) as run:
    for step in run.steps(200):
        run.log(loss=1.0)
        if step == 3:
            sys.stdin.readline()
open("done", "w").write(str(run.step))
"""


def test_standard_error_that_nobody_reads_any_more_ends_nothing(tmp_path):
    pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", UNREAD], **pipes) as process:
        process.stderr.close()
        process.stdin.write(b"go\n")
        process.stdin.close()
        assert process.wait(60) in (0, 120)  # 120: the interpreter could not flush the stream at its end
    assert (tmp_path / "done").read_text() == "200"


FORKING = """
import os, sys
import hookline as hl
with hl.run("parent", summary=False) as run:
    for step in run.steps(2):
        if step == 0 and os.fork() == 0:
            sys.exit(0)
        run.log(loss=1.0)
print(run.dir)
"""


def test_forked_child_that_leaves_does_not_end_its_parents_run():
    result = subprocess.run([sys.executable, "-c", FORKING], capture_output=True, text=True, check=True, timeout=60)
    run_dir = Path(result.stdout.strip())
    statuses = [record.status for record in hl.read(run_dir) if isinstance(record, Status)]
    assert (statuses, len(list(hl.read(run_dir)))) == (["running", "finished"], 4)
