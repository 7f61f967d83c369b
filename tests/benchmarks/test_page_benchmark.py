"""The benchmark of the page works, and marks bars and who is ahead."""

import importlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "page.py"


@pytest.fixture
def module(monkeypatch):
    """Imports a module of the benchmarks; only here does it find what lies beside it."""
    monkeypatch.syspath_prepend(SCRIPT.parent)
    return importlib.import_module


@pytest.mark.benchmark
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_page_benchmark_with_json_opens_charts_runs_and_samples():
    pytest.importorskip("playwright.sync_api", reason="needs playwright")
    command = [sys.executable, str(SCRIPT), "--quick", "--json", "--system", "hookline"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    rows = json.loads(done.stdout)["rows"]
    charts = ["server started", "first picture, cold", "first picture, warm"]
    charts += [f"{action}, frame time p95" for action in ("hover", "zoom", "smoothing")] + ["JavaScript heap"]
    others = ["server started", "first picture, cold", "first picture, warm", "JavaScript heap"]
    assert [row["label"].split(": ")[1] for row in rows] == charts + others + others
    assert all(row["values"]["hookline"] > 0 and row["ahead"] is None for row in rows)
    assert all(row["met"] is (None if row["bar"] is None else row["values"]["hookline"] <= row["bar"]) for row in rows)


def test_page_benchmark_table_marks_bars_and_who_is_ahead(module, capsys):
    page = module("page")
    values = [
        ("hover", "ms", 33.0, {"hookline": 17.0, "TensorBoard": 20.0, "trackio": None}),
        ("heap", "MB", 100.0, {"hookline": 120.0, "TensorBoard": 90.0, "trackio": 300.0}),
        ("samples", "s", None, {"hookline": 1.0, "TensorBoard": None, "trackio": None}),
    ]
    rows = [page.Row(*each) for each in values]
    report = {
        "load": {"before": 1.0, "after": 2.0},
        "rows": [page.asdict(row) | {"met": row.is_met, "ahead": row.is_ahead} for row in rows],
    }
    page.Console(width=170).print(page.table(report))
    shown = [line.replace("│", " ").split() for line in capsys.readouterr().out.splitlines() if "│" in line]
    assert shown == [
        ["hover", "17.00", "ms", "33", "ms", "met", "20.00", "ms", "-", "ahead"],
        ["heap", "120.00", "MB", "100", "MB", "NOT", "MET", "90.00", "MB", "300.00", "MB", "BEHIND"],
        ["samples", "1.00", "s", "-", "-"],
    ]
