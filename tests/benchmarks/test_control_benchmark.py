"""The benchmark of control works: it steers, and measures each way that commands come."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "control.py"


@pytest.mark.benchmark
def test_control_benchmark_measures_steps_and_latencies():
    command = [sys.executable, str(SCRIPT), "--steps", "200", "--rounds", "1", "--commands", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    lines = done.stdout.splitlines()
    assert [line.split()[:2] for line in lines[:3]] == [["control", mode] for mode in ("off", "unused", "used")]
    assert [line.count("us/step") for line in lines[:5]] == [1] * 5
    assert [line.partition(": ")[0] for line in lines[5:]] == [
        "latency, local",
        "latency, through a server",
        "latency, through a server, nothing recorded",
    ]
    assert all("2 commands" in line for line in lines[5:])
