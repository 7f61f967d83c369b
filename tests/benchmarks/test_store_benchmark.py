"""The benchmark of the store works, and measures what it wrote."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import hookline as hl

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "store.py"
COLD = ["first chart", "first listing", "reading everything", "first page over HTTP", "small runs"]
WARM = ["chart", "whole", "a tenth", "a thousandth", "random windows", "live chart"]
LISTS = ["listing again", "long listing again", "first page", "memory"]
REST = ["catching up in proportion", "samples by reward", "samples by text"]


def run_benchmark(*options):
    command = [sys.executable, str(SCRIPT), "--small", *options]
    environment = os.environ | {"COLUMNS": "170"}
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=environment)


@pytest.fixture
def module(monkeypatch):
    """Imports a module of the benchmarks; only here does it find what lies beside it."""
    monkeypatch.syspath_prepend(SCRIPT.parent)
    return importlib.import_module


@pytest.mark.benchmark
def test_store_benchmark_with_json_measures_everything_and_finds_what_it_wrote():
    done = run_benchmark("--json", "--scale")
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    sizes, figures, counts = report["sizes"], report["figures"], report["counts"]
    with_bars = [name for name, figure in figures.items() if figure["bar"] is not None]
    scale = ["200 metric names in one run", "2,000 rows in one run", "60 runs"]
    scaled = [f"{what}: {each}" for what in scale for each in ("list", "chart", "names", "filter")]
    assert sorted(with_bars) == sorted([*COLD, *WARM, *LISTS, *REST, *scaled])
    assert all(figure["met"] is (figure["value"] <= figure["bar"]) for figure in map(figures.get, with_bars))
    assert counts["rows read"] == sizes["runs"][0] * (sizes["runs"][1] + 2)
    assert counts["runs over HTTP"] == sizes["runs"][0]
    assert counts["rows of small runs"] == sizes["small"][0] * (sizes["small"][1] + 2)
    assert counts["cold"] == {"lines": 3, "points drawn": 3 * 200}
    assert counts["charts"]["lines"] == 2
    assert 0 < counts["charts"]["points drawn"] <= 2 * 1000
    assert counts["live"] == {"last steps": [2_000 + sizes["live_rounds"]], "statuses": ["running"]}
    assert counts["matches"][1] == 2
    assert counts["long list"] == {"runs": 20, "page": 20}
    assert [counts[what] for what in scale] == [
        {"runs": 1, "metric names": 200},
        {"runs": 1, "metric names": 1},
        {"runs": 60, "metric names": 1},
    ]


def test_store_benchmark_table_marks_bars_beside_the_other_trackers(module, capsys):
    store = module("store")
    some = {"label": "a chart", "value": 0.04, "cpu": 0.03, "bar": 0.05, "unit": "s", "met": True}
    others = {"TensorBoard": 75.25, "trackio": None, "MLflow": 132.0}
    report = {
        "sizes": {"tensorboard": [2, 100_000], "trackio": [50, 2_000], "mlflow": [50, 1_000]},
        "load": {"before": 1.0, "after": 2.0},
        "figures": {
            "chart": some | {"others": others},
            "memory": some
            | {"label": "memory", "value": 12.0, "cpu": None, "bar": 10.0, "unit": "kB", "met": False}
            | {"others": dict.fromkeys(others)},
        },
    }
    store.Console(width=170).print(store.table(report))
    shown = [line.replace("│", " ").split() for line in capsys.readouterr().out.splitlines() if "│" in line]
    assert shown == [
        ["a", "chart", "0.040", "0.030", "0.05", "met", "75.25", "132.00"],
        ["memory", "12.000", "kB", "10", "kB", "NOT", "MET"],
    ]


def test_store_benchmark_trackers_answer_for_charts_and_lists(module, tmp_path):
    store, trackers = module("store"), module("store_trackers")
    given = trackers.Given(2, 30)
    tensorboard = trackers.measure_tensorboard(tmp_path / "tensorboard", store.SMALL, given)
    trackio = trackers.measure_trackio(tmp_path / "trackio", store.SMALL, given)
    assert set(tensorboard) == {"first chart", "first listing", "reading everything", "small runs", *WARM}
    assert set(trackio) == {"first chart", "first listing", "first page", "listing again", "long listing again", *WARM}
    assert all(seconds > 0 for seconds in [*tensorboard.values(), *trackio.values()])


def test_benchmark_journals_are_read_as_recorded_ones_without_problems(module, tmp_path):
    journals = module("journals")
    journals.write_run(tmp_path, "many", 0, journals.metric_journal(50, names=("loss", "reward")))
    live = journals.LiveRun(tmp_path, "live", 1, journals.metric_journal(10, is_finished=False), 10)
    live.append(5)
    found = hl.runs(tmp_path)
    found.ingest()
    steps = {line.run: line.x for line in found.series("loss")}
    live.close()
    assert steps == {"many/run-00000": list(range(1, 51)), "live/run-00001": list(range(1, 16))}
    assert [found.read(info.id).problems for info in found] == [(), ()]
    assert [len(list(hl.read(info.directory))) for info in found] == [16, 52]
