"""The benchmark of drop-ins works: it measures each part beside the original, and a kill loses nothing."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the benchmark reads /proc and pins servers to a core")

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "compat.py"


def measured(part):
    command = [sys.executable, str(SCRIPT), "--small", "--json", "--only", part]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["parts"][part]


@pytest.mark.benchmark
def test_compat_of_wandb_measures_the_call_of_every_system_and_hookline_loses_nothing():
    *calls, lost, lost_by_wandb, lost_by_trackio = measured("wandb")
    assert [(row["unit"], row["other"]) for row in calls] == 2 * [("µs a call", "wandb"), ("µs a call", "trackio")]
    for row in calls:
        assert min(row["own"], row["own_cpu"], row["others"], row["others_cpu"]) > 0
        assert row["ratio"] == row["others_cpu"] / row["own_cpu"]
    assert (lost["own"], lost["bar"], lost["met"]) == (0, 0, True)
    assert [(row["other"], row["own"]) for row in (lost_by_wandb, lost_by_trackio)] == [("wandb", 0), ("trackio", 0)]
    assert lost_by_trackio["others"] > 0  # in its memory: losses are found where there are any


@pytest.mark.benchmark
def test_compat_of_tensorboard_measures_both_writers_and_hookline_loses_nothing():
    number, tensor, lost, lost_by_torch = measured("tensorboard")
    for row in (number, tensor):
        assert min(row["own"], row["own_cpu"], row["others"], row["others_cpu"]) > 0
    assert (number["bar"], tensor["bar"]) == (4.0, None)
    assert (lost["own"], lost["bar"], lost["met"]) == (0, 0, True)
    assert lost_by_torch["others"] > 0  # in its queue: losses are found where there are any


@pytest.mark.benchmark
def test_compat_of_mlflow_measures_the_server_which_loses_nothing_acknowledged():
    received, lost = measured("mlflow")
    assert min(received["own"], received["own_cpu"]) > 0
    assert (received["unit"], received["bar"], received["is_high_good"]) == ("metrics/s", 10_000.0, True)
    assert (lost["own"], lost["bar"], lost["met"]) == (0, 0, True)


@pytest.mark.parametrize(
    ("own", "own_cpu", "bar", "is_high_good", "is_met"),
    [
        (9.0, 5.0, 6.0, False, True),
        (5.0, 9.0, 6.0, False, False),
        (1.0, None, 0.0, False, False),
        (9.0, 5.0, 6.0, True, False),
        (1.0, 9.0, None, False, None),
    ],
)
def test_row_holds_cpu_time_or_a_count_against_its_bar(monkeypatch, own, own_cpu, bar, is_high_good, is_met):
    monkeypatch.syspath_prepend(SCRIPT.parent)
    # Not under its own name: `compat` is a package of tests.
    spec = importlib.util.spec_from_file_location("compat_benchmark", SCRIPT)
    compat = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, compat)
    spec.loader.exec_module(compat)
    assert compat.Row("call", "µs", own, own_cpu, bar=bar, is_high_good=is_high_good).is_met is is_met
