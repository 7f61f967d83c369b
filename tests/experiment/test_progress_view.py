"""ProgressView on a terminal and in a log file, over experiments of any size."""

import io
import os
import pty
import re
import subprocess
import sys
from dataclasses import replace

import pytest
from rich.console import Console

from hookline._engine.state import EvalResult, RunResult
from hookline.experiment import Arm, Experiment, ProgressView
from hookline.experiment.job import BenchmarkScored, Progress

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Clock:
    """A clock that somebody else moves."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def train(ctx, run):
    for _ in run.steps(2):
        run.log(loss=0.5)
    if run.config["fails"]:
        raise ValueError("as the test wants it")


class Scene:
    """A view of an experiment that nobody runs, on a console of its own."""

    def __init__(self, directory, *, arms=3, terminal=False, width=100, height=20):
        made = [Arm(f"arm{number}", {"fails": False}, train=train) for number in range(arms)]
        self.experiment = Experiment("many", made, output_dir=directory / "many")
        self.runs = self.experiment.plan()
        self.file, self.clock = io.StringIO(), Clock()
        how = {"width": width, "height": height, "color_system": None, "_environ": {"TERM": "xterm"}}
        self.console = Console(file=io.StringIO(), **how)
        console = Console(file=self.file, force_terminal=terminal, **how)
        self.view = ProgressView(self.experiment, console=console, clock=self.clock)

    def start(self, *numbers):
        for number in numbers:
            self.view("started", self.runs[number])

    def progress(self, number, step, num_steps=10, doing="training", **metrics):
        self.view("message", Progress(self.runs[number].key, step, num_steps, metrics, doing))

    def end(self, number, status="completed"):
        self.view("ended", RunResult(self.runs[number].key, status=status, seconds=2.0))

    def drawn(self):
        """What would be drawn now, bars as one character."""
        self.console.file = io.StringIO()
        self.console.print(self.view)
        lines = self.console.file.getvalue().splitlines()
        return [re.sub(r"\s*[━╸╺]+\s*|\s{6,}", " | ", line.rstrip()) for line in lines]


def test_view_on_a_terminal_has_a_line_for_each_run_under_way(tmp_path):
    scene = Scene(tmp_path, arms=4, terminal=True)
    with scene.view:
        scene.start(0, 1, 2)
        scene.progress(0, 5, loss=0.25)
        scene.progress(1, 10, doing="arithmetic")
        scene.clock.now += 30
        assert scene.drawn() == [
            "many | 0/4 runs 3 running  1 waiting  eta 0:50",
            "  arm0-r0 | step 5/10  loss 0.25",
            "  arm1-r0 | scoring arithmetic",
            "  arm2-r0 | starting",
        ]


def test_view_collapses_what_has_ended_into_counts(tmp_path):
    scene = Scene(tmp_path, arms=5, terminal=True)
    with scene.view:
        scene.start(0, 1, 2)
        for number, status in enumerate(("completed", "failed", "retried")):
            scene.end(number, status)
        scene.clock.now += 10
        assert scene.drawn() == ["many | 2/5 runs 1 completed  1 failed  3 waiting  eta 0:15"]
        scene.end(3, "skipped")
        assert scene.drawn() == ["many | 3/5 runs 1 completed  1 failed  1 skipped  2 waiting  eta 0:07"]


def test_view_shows_what_a_benchmark_gave(tmp_path):
    scene = Scene(tmp_path, terminal=True)
    with scene.view:
        scene.start(0)
        scene.view("message", BenchmarkScored("arm0-r0", EvalResult("sums", {"accuracy": 0.75}), [], 5))
        assert scene.drawn()[1] == "  arm0-r0 | starting  sums/accuracy 0.75"


def test_view_of_a_thousand_runs_fits_the_terminal(tmp_path):
    scene = Scene(tmp_path, arms=1000, terminal=True, height=12)
    with scene.view:
        scene.start(*range(500))
        drawn = scene.drawn()
    assert len(drawn) == 11
    assert (drawn[0], drawn[-1]) == ("many | 0/1,000 runs 500 running  500 waiting", "and 491 more running")


def test_view_leaves_its_last_state_and_shows_the_cursor(tmp_path):
    scene = Scene(tmp_path, arms=1, terminal=True)
    with scene.view:
        scene.start(0)
        scene.end(0)
        scene.clock.now += 65
    written = scene.file.getvalue()
    assert "1/1 runs 1 completed  took 1:05" in CONTROL.sub("", written).splitlines()[-1]
    assert (written.count("\x1b[?25l"), written.count("\x1b[?25h")) == (1, 1)


def test_view_of_a_run_that_nobody_started_is_no_error(tmp_path):
    scene = Scene(tmp_path, terminal=True)
    with scene.view:
        scene.progress(0, 5)
        assert scene.drawn() == ["many | 0/3 runs 3 waiting"]


def test_view_in_a_log_file_prints_a_line_for_each_start_and_end(tmp_path):
    scene = Scene(tmp_path, arms=2)
    with scene.view:
        for number in range(2):
            scene.start(number)
            scene.progress(number, 5)
            scene.clock.now += 60
            scene.end(number, ("completed", "failed")[number])
    assert scene.file.getvalue().splitlines() == [
        "many: 2 runs",
        "started arm0-r0",
        "completed arm0-r0 (1/2  2.0 s  eta 1:00)",
        "started arm1-r0",
        "failed arm1-r0 (2/2  2.0 s)",
        "many: 1 completed, 1 failed  took 2:00",
    ]


def test_view_of_an_experiment_that_continues_counts_what_is_complete(tmp_path):
    arms = [Arm("good", {"fails": False}, train=train), Arm("bad", {"fails": True}, train=train)]
    experiment = Experiment("real", arms, output_dir=tmp_path / "real")
    experiment.run(report=False)
    file = io.StringIO()
    with ProgressView(experiment, console=Console(file=file, width=100)) as view:
        experiment.run(watch=view, report=False)
    lines = [re.sub(r"\d+\.\d s|took .*", "T", line) for line in file.getvalue().splitlines()]
    assert lines == [
        "real: 2 runs, 1 complete already",
        "started bad-r0",
        "failed bad-r0 (2/2  T)",
        "real: 1 completed, 1 failed  T",
    ]


def test_view_does_not_swallow_what_goes_wrong(tmp_path):
    scene = Scene(tmp_path, terminal=True)
    with pytest.raises(KeyboardInterrupt), scene.view:
        raise KeyboardInterrupt
    assert scene.file.getvalue().endswith("\x1b[?25h")


SCRIPT = """
import subprocess, sys
from hookline.callbacks import ProgressBar
from hookline.experiment import Arm, Experiment, ProgressView


def train(ctx, run):
    for step in run.steps(3):
        run.log(loss=0.5)
    print("from the run")
    subprocess.run([sys.executable, "-c", "print('from a process')"], check=True)


experiment = Experiment("seen", [Arm("only", train)], callbacks=[ProgressBar], output_dir=sys.argv[1])
with ProgressView(experiment) as view:
    experiment.run(watch=view, report=False)
print("afterwards", sys.stdout.isatty())
"""


def on_a_terminal(*command):
    """What a program wrote to its terminal, and how it ended."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "20"}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        written = b""
        while data := _read(ours):
            written += data
        os.close(ours)
    return written.decode(), process.returncode


def _read(number):
    try:
        return os.read(number, 65536)
    except OSError:  # nobody has the other end any more
        return b""


def test_view_on_a_real_terminal_has_what_is_printed_above_it_line_by_line(tmp_path):
    written, code = on_a_terminal(sys.executable, "-c", SCRIPT, str(tmp_path / "seen"))
    lines = [line.rstrip() for line in CONTROL.sub("", written).replace("\r", "\n").split("\n")]
    said = [line for line in lines if line and "━" not in line and not line.startswith("  only-r0")]
    assert code == 0, written
    assert [re.sub(r"  \d.*|\d+ s$", "", line).rstrip() for line in said] == [
        "step 0/3",
        "from the run",
        "from a process",
        "step 3/3  loss 0.5",
        "afterwards True",
    ]
    last = next(line for line in reversed(lines) if "━" in line)
    assert re.sub(r"[━╸╺]+|took .*", "|", last) == "seen | 1/1 runs 1 completed  |"


def test_view_takes_note_of_a_result_whatever_else_it_says(tmp_path):
    scene = Scene(tmp_path, arms=1)
    with scene.view:
        scene.start(0)
        scene.view("ended", replace(RunResult("arm0-r0", status="stopped"), error="Its process was killed."))
    assert scene.file.getvalue().splitlines()[-1] == "many: 1 stopped  took 0:00"
