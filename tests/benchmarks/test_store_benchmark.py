import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "store.py"


def run_benchmark(*options):
    command = [sys.executable, str(SCRIPT), "--small", *options]
    environment = os.environ | {"COLUMNS": "140"}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)


def test_store_benchmark_with_json_measures_everything_and_finds_what_it_wrote():
    done = run_benchmark("--json")
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    sizes, taken = report["sizes"], report["seconds"]
    assert taken["rows read"] == sizes["runs"] * (sizes["points"] + 2)
    assert taken["matches"][1] == sizes["samples"] // 1000
    assert taken["points drawn"] <= 1000 * sizes["chart_runs"]
    assert list(taken["catching up"]) == [str(count) for count in sizes["news"]]
    assert set(report["bars"]) == {
        "first listing",
        "first page over HTTP",
        "samples by reward and lesson",
        "samples by text",
        "chart",
        "catching up in proportion",
    }
    assert taken["page again over HTTP"] > 0 < taken["first event of the stream"]
    assert taken["bytes of the page"] > 300 * sizes["runs"]
    assert [name for name, other in report["others"].items() if other is not None] == ["TensorBoard", "trackio"]
    assert all(other["chart"] > 0 < other["first listing"] for other in report["others"].values() if other)


def test_store_benchmark_prints_a_table_with_its_bars():
    done = run_benchmark()
    assert done.stderr == ""
    assert "first listing" in done.stdout
    assert all(name in done.stdout for name in ("TensorBoard", "trackio", "first page over HTTP"))
