import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "experiment.py"


def run_benchmark(*options):
    command = [sys.executable, str(SCRIPT), "--rounds", "1", "--sizes", "1", "3", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_experiment_benchmark_with_json_prints_one_object():
    done = run_benchmark("--json")
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    assert list(report["milliseconds_per_run"]) == ["1", "3"]
    assert all(value > 0 for value in report["milliseconds_per_run"].values())
    assert report["growth"] == report["milliseconds_per_run"]["3"] / report["milliseconds_per_run"]["1"]
    assert set(report["bars"]) == {"milliseconds", "growth"}


def test_experiment_benchmark_prints_a_table_with_its_bars():
    done = run_benchmark()
    assert "ms a run" in done.stdout
    assert "at most 50 ms a run:" in done.stdout.replace("\n", " ")
