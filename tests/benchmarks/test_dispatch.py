import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "dispatch.py"
SITUATIONS = ["nobody", "one", "ten", "ten_one_overrides", "ten_not_due"]
UNITS = {"direct": "nanoseconds", "add": "microseconds", "rebuild": "microseconds", "import": "milliseconds"}


PEERS = ("torchtnt", "transformers", "lightning", "keras", "ignite")


def run_benchmark(*options: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), "--rounds", "2", "--calls", "50", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)


@pytest.mark.parametrize("hidden", [pytest.param((), id="with peers", marks=pytest.mark.benchmark), PEERS])
def test_dispatch_with_json_prints_one_object_with_every_situation_and_accounts_for_every_peer(hidden, without):
    done = run_benchmark("--json", environment=without(*hidden))

    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    check_situations(report)
    check_peers(report)


def check_situations(report):
    assert (report["rounds"], report["calls"]) == (2, 50)
    figures = [report[key] for key in ("ratios", "nanoseconds", "cpu_ratios", "cpu_nanoseconds")]
    assert all(list(by_system) == list(report["ratios"]) for by_system in figures)
    for system in report["ratios"]:
        for measured in (by_system[system] for by_system in figures):
            assert list(measured) == SITUATIONS
            assert all(value > 0 for value in measured.values())


def check_peers(report):
    missing = [reason.partition(" (")[0] for reason in report["not_installed"]]
    peers = {"torchtnt", "Hugging Face", "Lightning", "Keras", "Ignite", "pluggy"}
    assert {"hookline", "pluggy"} <= set(report["ratios"])
    assert sorted([*report["ratios"], *missing]) == sorted([*peers, "hookline"])
    assert set(report["versions"]) == {"Python", *report["ratios"]}
    clocks = ("", "cpu_")
    measured = [f"{what}_{clock}{unit}" for what, unit in UNITS.items() for clock in clocks]
    assert min(report[key] for key in ("cpus", *measured)) > 0


def test_dispatch_without_json_prints_the_table_the_bars_and_who_is_not_there(without):
    done = run_benchmark(environment=without(*PEERS))

    assert (done.returncode, done.stderr) == (0, "")
    table, _, beneath = done.stdout.partition("add to a collection of ten")
    for text in ("nobody", "one of ten", "ten not due", "hookline", "bar", "1.6", "18.0", "3.5", "pluggy"):
        assert text in table
    assert "import hookline, over a bare interpreter" in beneath
    assert "2 rounds of 50 calls" in beneath
    assert "in CPU time of the thread" in table
    assert done.stdout.count("MET") + done.stdout.count("met") >= 10
    assert all(f"No module named '{peer}." in beneath for peer in PEERS)


def test_dispatch_with_no_rounds_is_refused(without):
    done = run_benchmark("--rounds", "0", environment=without())

    assert done.returncode == 2
    assert "at least 1" in done.stderr
