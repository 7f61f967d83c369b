import importlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the benchmark reads /proc")

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "recording.py"
OWN = ("hookline", "hookline-run")


def run_benchmark(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), "--quick", *options]
    environment = os.environ | {"COLUMNS": "140"}
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, env=environment)


@pytest.mark.benchmark
@pytest.mark.parametrize("systems", [(*OWN, "csv", "jsonl"), ("hookline", "jsonl")])
def test_recording_with_json_measures_every_system_and_hookline_loses_nothing(systems):
    done = run_benchmark("--json", "--only", *systems)

    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    assert report["not_installed"] == []
    assert {"Python", "CPUs", "hookline", "torch"} <= set(report["environment"])
    assert report["step_milliseconds"] > 0
    assert list(report["numbers"]) == [*systems, "nothing"]
    for system in systems:
        check_figures(report["numbers"][system])
    check_losses({system: report["numbers"][system]["killed"] for system in systems})
    assert {bar["claim"]: bar["is_met"] for bar in report["bars"]}["rows lost by kill -9, at most"] is True
    assert len(report["bars"]) == 4


def check_figures(figures):
    calls = figures["call_microseconds"]
    assert list(calls) == ["one", "ten", "hundred", "tensors", "numpy", "samples"]
    assert all(0 < spread["median"] <= spread["p99"] <= spread["max"] for spread in calls.values())
    assert min(figures["scalars_per_second"], figures["scalars_per_cpu_second"]) > 0
    assert figures["bytes_per_scalar"] > 8
    assert figures["missing_after_close"] == 0
    assert all(spread["cpu"] > 0 for spread in calls.values())
    in_steps = ("step_slowdown", "step_cpu_slowdown", "in_step_microseconds", "in_step_cpu_microseconds")
    assert [list(figures[key]) for key in in_steps] == [["ten", "samples"]] * 4
    assert isinstance(figures["megabytes"], float)


def check_losses(killed):
    for kills in killed.values():
        assert list(kills) == ["paced", "full_speed"]
        assert all(0 <= kill["lost"] <= kill["acknowledged"] > 0 for kill in kills.values())
    assert {kill["lost"] for name in OWN if name in killed for kill in killed[name].values()} == {0}
    assert killed["jsonl"]["paced"]["lost"] > 0  # in its buffer: losses are found where there are any


def test_recording_shows_what_was_measured_a_dash_for_the_rest_and_the_bars(monkeypatch):
    monkeypatch.syspath_prepend(SCRIPT.parent)
    recording = importlib.import_module("recording")
    calls = {kind: recording.Spread(2.0, 3.0, 40.0, 1.9) for kind in recording.KINDS}
    killed = {"paced": recording.Kill(700, 0), "full_speed": recording.Kill(10_000, 1)}
    figures = recording.Figures(call_microseconds=calls, missing_after_close=2, megabytes=13.0, killed=killed)
    console = Console(file=io.StringIO(), width=140)

    recording.show(recording.Report({"Python": "3.11"}, ["wandb"], {"hookline": figures}), console)

    shown = console.file.getvalue()  # type: ignore[attr-defined]
    for text in (
        "2.0 │ 3.0 │  40 │        1.9",
        "20 CPU tensors",
        "20 NumPy numbers",
        " - ",
        "+13.0",
        "0 of 700",
        "1 of 10,000",
        "2 rows are missing",
        "not installed: wandb",
    ):
        assert text in shown
    verdicts = [line.split("│")[2].strip() for line in shown.splitlines() if ", at most" in line or "less than" in line]
    assert verdicts == ["NOT MET", "met"]


def test_recording_of_an_unknown_system_is_refused():
    done = run_benchmark("--only", "abacus")

    assert done.returncode == 2
    assert "abacus" in done.stderr
