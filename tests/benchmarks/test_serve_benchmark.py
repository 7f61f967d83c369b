"""The benchmark of the server that takes runs works, and would see a record that is missing."""

import importlib
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "serve.py"


def run_benchmark(*options):
    command = [sys.executable, str(SCRIPT), "--small", *options]
    environment = os.environ | {"COLUMNS": "140"}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)


@pytest.fixture
def serve(monkeypatch):
    """The benchmark's module; only here does it find what lies beside it."""
    monkeypatch.syspath_prepend(SCRIPT.parent)
    return importlib.import_module("serve")


def test_serve_benchmark_counts_every_record_in_three_places():
    done = run_benchmark("--json", "--seconds", "1")
    assert done.returncode == 0, done.stderr  # a fault that passed is said there, too
    report = json.loads(done.stdout)
    assert (report["size"]["writers"], report["size"]["viewers"], report["lost"]) == (6, 3, [])
    assert len(set(report["records"].values())) == len(set(report["bytes"].values())) == 1
    assert report["records"]["recorded"] >= 6 * 3
    for name in ("write_seconds", "age_seconds"):
        assert 0 < report[name]["p50"] <= report[name]["p99"] <= report[name]["max"]


def test_serve_benchmark_names_the_writer_of_which_a_record_is_missing(serve):
    reports = [{"run": "a", "records": 3}, {"run": "b", "records": 3}, {"run": "c", "records": 3}]
    lost = serve.losses(reports, Counter(a=3, b=2, c=3), Counter(a=3, b=3, c=4))
    assert lost == ["b: 3 recorded, 2 held, 3 in SQL", "c: 3 recorded, 3 held, 4 in SQL"]


def test_serve_benchmark_quantiles_are_those_of_the_values(serve):
    assert serve.quantiles([float(n) for n in range(100, 0, -1)]) == {"count": 100, "p50": 51, "p99": 99, "max": 100}


def test_serve_benchmark_table_has_what_was_measured(serve, capsys):
    some = {"count": 7, "p50": 0.001, "p99": 0.5, "max": 12.0}
    names = ("write_seconds", "age_seconds", "runs_seconds", "chart_seconds")
    report = dict.fromkeys(names, some) | {
        "size": {"writers": 200, "viewers": 50, "seconds": 60.0, "rate": 10.0},
        "records": {"recorded": 1000, "held": 1000, "in_sql": 1000},
        "bytes": {"held": 5_000_000},
        "faults": 0,
        "viewer_errors": [],
        "server_megabytes": 99.0,
        "server_cpu_seconds": 9.0,
        "load": 1.0,
    }
    serve.Console(width=140).print(serve.table(report))
    shown = capsys.readouterr().out
    assert "200 writers of 10 rows a second, 50 viewers, 60 s" in shown
    assert all(text in shown for text in ("12,000", "a viewer: a chart", "1,000 in SQL", "5.0 MB"))
