import importlib
import io
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

import hookline as hl

pytest.importorskip("torch")

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "trainer.py"
PEERS = ["Ignite", "torchtnt", "Lightning", "Hugging Face"]
PACKAGES = ("ignite", "torchtnt", "lightning", "transformers")


def run_benchmark(*options: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), "--rounds", "2", "--steps", "5", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, check=False, env=environment)


@pytest.fixture
def trainer(monkeypatch):
    """The benchmark's module; only here does it find what lies beside it."""
    monkeypatch.syspath_prepend(SCRIPT.parent)
    return importlib.import_module("trainer")


@pytest.mark.benchmark
@pytest.mark.parametrize("hidden", [(), PACKAGES], ids=["with peers", "alone"])
def test_trainer_with_json_measures_every_system_and_all_make_the_same_steps(hidden, without):
    done = run_benchmark("--json", environment=without(*hidden))

    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    assert (report["rounds"], report["steps"]) == (2, 5)
    missing = [reason.partition(" (")[0] for reason in report["not_installed"]]
    systems = ["hookline", *(peer for peer in PEERS if peer not in missing)]
    assert list(report["added_microseconds"]) == list(report["weights_off"]) == systems
    assert list(report["versions"]) == ["Python", "torch", *systems]
    for system in systems:
        check_figures(report["added_microseconds"][system], report["weights_off"][system])
        check_figures(report["added_cpu_microseconds"][system], report["weights_off"][system])
    assert report["plain_microseconds"] > 0
    assert [(name, type(is_met)) for name, is_met in report["bars"].items()] == [("none", bool), ("ten", bool)]


def check_figures(added, weights_off):
    assert list(added) == list(weights_off) == ["none", "ten"]
    assert all(spread["low"] <= spread["median"] <= spread["high"] for spread in added.values())
    assert all(0 <= off <= 1e-5 for off in weights_off.values())


def test_trainer_with_a_peer_that_is_not_installed_names_it_and_measures_the_rest(trainer, monkeypatch):
    def training():
        importlib.import_module("abacus")

    monkeypatch.setattr(trainer, "PEERS", [trainer.Peer("Abacus", "abacus", "abacus", training)])

    report = trainer.measure(rounds=1, steps=2)

    assert (report.not_installed, list(report.added_microseconds)) == (["Abacus"], ["hookline"])


def test_trainer_shows_the_medians_the_bars_and_who_is_not_installed(trainer):
    own = {"none": trainer.Added(20.0, 19.0, 21.5), "ten": trainer.Added(80.0, 79.0, 81.0)}
    off = {"hookline": {"none": 0.0, "ten": 2e-9}}
    report = trainer.Report(
        2, 15, 500, {"Python": "3.11"}, ["Ignite"], 290.0, {"hookline": own}, {"hookline": own}, off
    )
    console = Console(file=io.StringIO(), width=120)

    trainer.show(report, console)

    shown = console.file.getvalue()  # type: ignore[attr-defined]
    (bars,) = (line for line in shown.splitlines() if "bar " in line)
    assert [cell.strip() for cell in bars.split("│")[1:4]] == ["bar", "+30 met", "+40 NOT MET"]
    for text in ("290.0 µs", "+20.0 (+19.0 .. +21.5)", "record nothing", "2e-09 off", "not installed: Ignite"):
        assert text in shown


def test_trainer_of_a_system_that_makes_a_step_less_is_an_error(trainer, tmp_path):
    def train_less(task):
        return trainer.train_plain(replace(task, data=list(task.data)[:-1]))

    loop = trainer.Bench(5, tmp_path).loop(trainer.Case("lazy", "none"), train_less)

    with pytest.raises(trainer.WorkError, match="lazy: its weights are .* off from the plain loop's"):
        loop(1)


def test_trainer_of_a_system_that_forgets_its_callbacks_is_an_error(trainer, tmp_path):
    loop = trainer.Bench(5, tmp_path).loop(trainer.Case("deaf", "ten"), trainer.train_plain)

    with pytest.raises(trainer.WorkError, match=r"deaf: 10 callbacks were called \[\] times in 206 steps"):
        loop(1)


def test_trainer_of_a_record_that_lacks_a_row_is_an_error(trainer, tmp_path):
    values = {"loss": 1.0, **trainer.METRICS}
    recorder = hl.Recorder(tmp_path)
    for step in (1, 3):
        recorder.log(values, step=step)
    recorder.close()

    with pytest.raises(trainer.WorkError, match="2 whole rows in 3 steps"):
        trainer.check_record(tmp_path, 3)


def test_trainer_batches_read_the_clock_around_the_timed_steps_only(trainer, monkeypatch):
    clock, cpu_clock = iter([1_000, 9_000]), iter([1_000, 5_000])
    monkeypatch.setattr(trainer.time, "perf_counter_ns", lambda: next(clock))
    monkeypatch.setattr(trainer.time, "thread_time_ns", lambda: next(cpu_clock))
    batches = trainer.Batches([{"x": 0}, {"x": 1}], steps=4)

    served = [batch["x"] for batch in batches]

    assert served == [number % 2 for number in range(trainer.WARM_UP + 4 + 1)]
    assert (len(batches), batches.nanoseconds, batches.cpu_nanoseconds) == (len(served), 2_000, 1_000)


def test_trainer_batches_that_were_not_gone_through_have_no_time(trainer):
    batches = trainer.Batches([{"x": 0}], steps=4)
    for _ in zip(range(trainer.WARM_UP + 2), batches, strict=False):
        pass

    with pytest.raises(trainer.WorkError, match="gone through once"):
        _ = batches.nanoseconds


@pytest.mark.benchmark
def test_trainer_with_no_rounds_is_refused(without):
    done = run_benchmark("--rounds", "0", environment=without())

    assert done.returncode == 2
    assert "at least 1" in done.stderr
