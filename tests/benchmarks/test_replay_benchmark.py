"""The benchmark of replays works, and replays what it wrote."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "replay.py"


def test_replay_benchmark_measures_none_and_three_callbacks():
    command = [sys.executable, str(SCRIPT), "--small", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)

    report = json.loads(done.stdout)

    assert report["steps"] == 2000
    assert [(each["callbacks"], each["bar"]) for each in report["speeds"]] == [(0, None), (3, 100_000)]
