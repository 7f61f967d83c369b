import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the benchmark reads /proc")

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "recording.py"
SYSTEMS = ["hookline", "csv", "jsonl"]


def run_benchmark(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), "--quick", *options]
    environment = os.environ | {"COLUMNS": "140"}
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, env=environment)


def test_recording_with_json_measures_every_system_and_hookline_loses_nothing():
    done = run_benchmark("--json", "--only", *SYSTEMS)

    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    assert report["not_installed"] == []
    assert {"Python", "CPUs", "hookline", "torch"} <= set(report["environment"])
    assert report["step_milliseconds"] > 0
    assert list(report["numbers"]) == [*SYSTEMS, "nothing"]
    for system in SYSTEMS:
        check_figures(report["numbers"][system])
    check_losses(report["numbers"])
    assert {bar["claim"]: bar["is_met"] for bar in report["bars"]}["rows lost by kill -9, at most"] is True
    assert len(report["bars"]) == 4


def check_figures(figures):
    calls = figures["call_microseconds"]
    assert list(calls) == ["one", "ten", "hundred", "samples"]
    assert all(0 < spread["median"] <= spread["p99"] <= spread["max"] for spread in calls.values())
    assert figures["scalars_per_second"] > 0
    assert figures["bytes_per_scalar"] > 8
    assert figures["missing_after_close"] == 0
    assert list(figures["step_slowdown"]) == list(figures["in_step_microseconds"]) == ["ten", "samples"]
    assert isinstance(figures["megabytes"], float)


def check_losses(numbers):
    for kills in (numbers[system]["killed"] for system in SYSTEMS):
        assert list(kills) == ["paced", "full_speed"]
        assert all(0 <= kill["lost"] <= kill["acknowledged"] > 0 for kill in kills.values())
    assert [kill["lost"] for kill in numbers["hookline"]["killed"].values()] == [0, 0]
    assert numbers["jsonl"]["killed"]["paced"]["lost"] > 0  # in its buffer: losses are found where there are any


def test_recording_without_json_prints_the_tables_and_the_bars():
    done = run_benchmark("--only", "hookline")

    assert (done.returncode, done.stderr) == (0, "")
    for text in ("Microseconds a call", "8 samples of 2 kB", "scalars/s", "hookline", "nothing", "rows lost", "0 of"):
        assert text in done.stdout
    assert done.stdout.count("MET") + done.stdout.count("met") == 4


def test_recording_of_an_unknown_system_is_refused():
    done = run_benchmark("--only", "abacus")

    assert done.returncode == 2
    assert "abacus" in done.stderr
