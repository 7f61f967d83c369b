"""The benchmark of failing sinks runs, and says what it measured."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

FAULTS = Path(__file__).parents[2] / "benchmarks" / "faults.py"


@pytest.mark.parametrize("case", ["no sink", "refused", "hanging"])
def test_faults_of_one_case_gives_the_times_of_its_calls(case):
    command = [sys.executable, FAULTS, "--case", case, "--steps", "50"]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=200).stdout)
    assert 0 < found["median"] <= found["p99"] <= found["max"]
