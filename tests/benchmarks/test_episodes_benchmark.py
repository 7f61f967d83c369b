"""The benchmark of failing environments runs, loses nothing, and says what it measured."""

import importlib
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

pytest.importorskip("torch")
pytest.importorskip("transformers")

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "episodes.py"
SHORT = {"episodes": 40, "open": 20, "turns": 2, "spread": 1, "tokens": 3, "rounds": 1, "share": 0.1}


@pytest.fixture(scope="module")
def found():
    """What a short run prints as JSON."""
    command = [sys.executable, str(SCRIPT), "--json", *(f"--{name}={value}" for name, value in SHORT.items())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def episodes(monkeypatch):
    """The benchmark's module; only here does it find what lies beside it."""
    monkeypatch.syspath_prepend(SCRIPT.parent)
    return importlib.import_module("episodes")


@pytest.mark.benchmark
def test_episodes_benchmark_counts_every_conversation_as_a_rollout_or_a_fault(found):
    assert [(each["rollouts"], each["faults"]) for each in found["whole"]] == [(40, 0)]
    assert [(each["rollouts"], each["faults"]) for each in found["failing"]] == [(36, 4)]
    assert found["bars"] == {"throughput": found["ratio"] >= 0.9}
    assert found["ratios"] == [found["ratio"]]


@pytest.mark.benchmark
def test_episodes_benchmark_prints_a_table_with_the_bar(found, episodes):
    steps = {name: [episodes.Step(**each) for each in found[name]] for name in ("whole", "failing")}
    fields = {name: value for name, value in found.items() if name not in ("ratio", "bars")}
    written = io.StringIO()
    episodes.show(episodes.Report(**(fields | steps)), Console(file=written, width=120))
    shown = written.getvalue()
    assert "40 conversations of 1 to 3 turns, 20 open at a time" in shown
    assert "10% fail" in shown
    assert f"{found['ratio']:.3f} of that without (bar: >= 0.90 " in shown
    assert "every conversation became a rollout or a counted fault" in shown


@pytest.mark.parametrize("option", ["share=0", "share=0.6", "share=x", "spread=-1", "spread=4"])
def test_episodes_benchmark_refuses_what_it_cannot_make(option, episodes, capsys):
    with pytest.raises(SystemExit):
        episodes.parse([f"--{option}"])
    assert option.partition("=")[0] in capsys.readouterr().err
