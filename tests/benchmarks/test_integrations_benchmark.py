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

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "integrations.py"
CASES = ["hookline", "logging", "tensorboard", "wandb", "again"]


PACKAGES = ("lightning", "wandb")


def run_benchmark(*options: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), "--rounds", "1", "--steps", "1", "--models", "tiny", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, check=False, env=environment)


@pytest.fixture
def benchmark(monkeypatch):
    """The benchmark's module; only here does it find what lies beside it."""
    monkeypatch.syspath_prepend(SCRIPT.parent)
    return importlib.import_module("integrations")


@pytest.fixture
def hosts(benchmark):
    """The module with the trainings."""
    return importlib.import_module("integration_hosts")


def step_through(task):
    """A host that only goes through its data."""
    for batch in task.data:
        loss = importlib.import_module("integration_hosts").loss_of(task.model, batch)
        loss.backward()
        task.optimizer.step()
        task.optimizer.zero_grad()
    return []


@pytest.mark.benchmark
@pytest.mark.parametrize("hidden", [(), PACKAGES], ids=["with peers", "alone"])
def test_integrations_with_json_measures_every_host_in_every_case_and_all_make_the_same_steps(hidden, without):
    done = run_benchmark("--json", environment=without(*hidden))

    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    missing = [reason.partition(" (")[0] for reason in report["not_installed"]]
    expected = [host for host in ("Hugging Face", "Lightning") if host not in missing]
    assert [(each["host"], each["model"], each["steps"]) for each in report["figures"]] == [
        (host, "tiny", 10) for host in expected
    ]
    for each in report["figures"]:
        check_figures(each, [case for case in CASES if case not in missing])
    assert (report["rounds"], report["bars"]) == (1, {})


def check_figures(figures, cases):
    assert list(figures["added"]) == cases
    for added in figures["added"].values():
        assert list(added) == ["share", "microseconds", "cpu_microseconds"]
        assert all(spread["low"] <= spread["median"] <= spread["high"] for spread in added.values())
    assert figures["base_milliseconds"] > 0
    assert 0 <= figures["weights_off"] <= 1e-5


def added(benchmark, share, microseconds):
    same = [benchmark.Spread(value, value, value) for value in (share, microseconds, microseconds - 1)]
    return benchmark.Added(*same)


def test_integrations_shows_what_each_adds_and_the_bars_of_the_ordinary_model(benchmark):
    costs = {
        "hookline": added(benchmark, 0.025, 110.0),
        "tensorboard": added(benchmark, 0.05, 1500.0),
        "wandb": added(benchmark, 0.04, 1200.0),
    }
    figures = [benchmark.Figures("Lightning", model, 30, 31.25, 2e-9, costs) for model in ("ordinary", "tiny")]
    report = benchmark.Report(2, 11, {"Python": "3.11"}, ["Hugging Face (none)"], figures)
    console = Console(file=io.StringIO(), width=120)

    benchmark.show(report, console)

    shown = console.file.getvalue()  # type: ignore[attr-defined]
    (bars,) = (line for line in shown.splitlines() if " bar " in line)
    assert [cell.strip() for cell in bars.split("│")[1:4]] == ["bar", "+2% NOT MET", "< +1,200 met"]
    assert report.bars == {"Lightning": {"share": False, "tensorboard": True, "wandb": True}}
    for text in ("a step of 31.25 ms", "+2.50% (+2.50% .. +2.50%)", "+109", "2e-09 off", "not installed: Hugging Face"):
        assert text in shown


def test_integrations_with_nothing_beside_hookline_has_only_the_bar_of_its_share(benchmark):
    figures = benchmark.Figures("Lightning", "ordinary", 30, 31.0, 0.0, {"hookline": added(benchmark, 0.01, 300.0)})
    console = Console(file=io.StringIO(), width=120)

    benchmark.show(benchmark.Report(2, 11, {}, ["tensorboard", "wandb"], [figures]), console)

    assert figures.bars == {"share": True}
    assert "+2% met" in console.file.getvalue()  # type: ignore[attr-defined]


def test_integrations_with_a_host_that_is_not_installed_names_it(benchmark, monkeypatch):
    def training():
        importlib.import_module("abacus")

    monkeypatch.setattr(benchmark, "HOSTS", (benchmark.Host("Abacus", "abacus", training),))

    report = benchmark.measure(rounds=1, steps=1)

    assert report.not_installed[0] == "Abacus (No module named 'abacus')"
    assert report.figures == []


@pytest.mark.benchmark
def test_integrations_make_the_base_first_and_second_by_turns(benchmark, tmp_path):
    order = []

    def train(task):
        order.append(task.case)
        return step_through(task)

    bench = benchmark.Bench("fake", train, "tiny", 2, tmp_path)
    bench.loop("again")(3)

    assert order == ["base", "again", "again", "base", "base", "again"]
    assert len(bench.taken["again"]) == 3


@pytest.mark.benchmark
def test_integrations_of_a_host_that_makes_a_step_less_is_an_error(benchmark, tmp_path):
    def train(task):
        return step_through(task if task.case == "base" else replace(task, data=list(task.data)[:-1]))

    loop = benchmark.Bench("lazy", train, "tiny", 2, tmp_path).loop("again")

    with pytest.raises(benchmark.WorkError, match="lazy, again: its weights are .* off from the base's"):
        loop(1)


@pytest.mark.benchmark
def test_integrations_of_a_host_that_forgets_its_callbacks_is_an_error(benchmark, tmp_path):
    loop = benchmark.Bench("deaf", step_through, "tiny", 2, tmp_path).loop("hookline")

    with pytest.raises(benchmark.WorkError, match=r"deaf, hookline: 10 callbacks were called \[\] times in 23 steps"):
        loop(1)


@pytest.mark.parametrize("changed", [{"step": 5}, {"train/metric_03": 0.0}, {"loss": None}])
def test_integrations_of_a_record_that_lacks_something_is_an_error(hosts, tmp_path, changed):
    recorder = hl.Recorder(tmp_path)
    for step in (1, 2, 3):
        values = {"loss": 1.0, **hosts.scalars(step), "step": step} | (changed if step == 3 else {})
        at = values.pop("step")
        recorder.log({name: value for name, value in values.items() if value is not None}, step=at)
    recorder.close()

    with pytest.raises(hosts.WorkError, match="hookline recorded [23] whole rows in 3 steps"):
        hosts.check_record("hookline", tmp_path, 3)


def test_integrations_of_a_tracker_that_recorded_nothing_is_an_error(hosts, tmp_path):
    with pytest.raises(hosts.WorkError, match="wandb recorded 0 whole rows in 3 steps"):
        hosts.check_record("wandb", tmp_path, 3)


def test_integrations_callbacks_record_ten_scalars_a_step_between_them(hosts, tmp_path):
    callbacks = hosts.recording_callbacks()
    with hl.run("bare", root=tmp_path, callbacks=callbacks, summary=False) as run:
        for _ in run.steps(range(3)):
            run.log("loss", 1.0)

    hosts.check_record("hookline", tmp_path, 3)
    assert [callback.count for callback in callbacks] == [3] * 10
    assert len({type(callback) for callback in callbacks}) == 10


def test_integrations_batches_read_the_clocks_around_the_timed_steps_only(hosts, monkeypatch):
    clock = iter([hosts.Time(1_000, 10), hosts.Time(9_000, 50)])
    monkeypatch.setattr(hosts, "now", lambda: next(clock))
    batches = hosts.Batches([{"x": 0}, {"x": 1}], 3, 4)

    served = [batch["x"] for batch in batches]

    assert served == [0, 1, 0, 1, 0, 1, 0, 1]
    assert (len(batches), batches.step_time) == (8, hosts.Time(2_000, 10))


def test_integrations_batches_that_were_not_gone_through_have_no_time(hosts):
    batches = hosts.Batches([{"x": 0}], 3, 4)
    for _ in zip(range(5), batches, strict=False):
        pass

    with pytest.raises(hosts.WorkError, match="gone through once"):
        _ = batches.step_time


@pytest.mark.benchmark
def test_integrations_with_no_rounds_is_refused(without):
    done = run_benchmark("--rounds", "0", environment=without())

    assert done.returncode == 2
    assert "at least 1" in done.stderr
