import importlib
import io
import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

import hookline as hl

pytest.importorskip("torch")
pytest.importorskip("transformers")

from hookline import rl

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "grpo.py"
SHORT = {"seeds": 3, "compared": 4, "sft-steps": 5, "steps": 2, "compare-steps": 2, "tool-sft-steps": 2}
SHORT |= {"tool-steps": 1, "held-out": 8, "rounds": 2, "cost-steps": 3, "check-steps": 2}


def run_benchmark(*options: str) -> subprocess.CompletedProcess[str]:
    short = [f"--{name}={value}" for name, value in SHORT.items()]
    command = [sys.executable, str(SCRIPT), *short, *options]
    environment = os.environ | {"COLUMNS": "100"}
    return subprocess.run(command, capture_output=True, text=True, timeout=280, check=False, env=environment)


@pytest.fixture
def grpo(monkeypatch):
    """The benchmark's module; only here does it find what lies beside it."""
    monkeypatch.syspath_prepend(SCRIPT.parent)
    return importlib.import_module("grpo")


@pytest.fixture
def pairs(grpo):
    """What makes two trainings in turns."""
    return importlib.import_module("grpo_pair")


@pytest.fixture
def start(grpo):
    """A model that knows nothing."""
    return grpo.show_examples(0, 1)[0]


def rollout(**changes):
    written = rl.Completion("12", (5, 6, 2), (-0.5, -0.25, -0.125), prompt_ids=(1, 6, 5))
    return replace(rl.Rollout(rl.Task("21>", "12"), written, {"correct": 1.0}, 1.0, advantage=0.5), **changes)


@pytest.mark.benchmark
def test_grpo_with_json_measures_learning_and_cost_and_all_checks_pass():
    done = run_benchmark("--json")

    assert (done.returncode, done.stderr) == (0, "seeds: 3\ncompared: 4\n")
    report = json.loads(done.stdout)
    (learnt,) = report["learnt"]
    assert (learnt["seed"], learnt["sft_steps"], learnt["grpo_steps"]) == (3, 5, 2)
    assert all(0 <= share <= 1 for when in ("before", "after") for share in learnt[when].values())
    assert list(learnt["before"]) == list(learnt["after"]) == ["sampled", "greedy"]
    assert min(learnt["sft_seconds"], learnt["grpo_seconds"]) > 0
    (tool,) = report["tools"]
    assert 0 <= tool["after"]["right"] <= 1
    check_comparison(report)
    check_cost(report["cost"], report["share"])
    assert (report["held_out"], report["rounds"], report["cost_steps"], report["evaluations"]) == (8, 2, 3, 2)
    kinds = [(name, type(is_met)) for name, is_met in report["bars"].items()]
    names = ("sampled", "greedy", "seconds", "tool", "minutes", "reward", "held_out", "time", "share")
    assert kinds == [(name, bool) for name in names]
    assert list(report["versions"]) == ["Python", "torch", "hookline", "transformers", "trl"]


def check_comparison(report):
    (compared,) = report["compared"]
    assert (compared["seed"], report["compare_steps"]) == (4, 2)
    for name in ("own", "trl"):
        assert 0 <= compared[name]["reward"] <= 1
        assert min(compared[name]["cpu_milliseconds"], compared[name]["wall_milliseconds"]) > 0
        assert set(compared[name]["parts"]) >= {"generate", "score", "learn"}
    assert 0 <= report["weights"] < 1e-5
    for each in report["differences"].values():
        assert (each["low"], each["high"]) == (-1, 1)  # one pair shows nothing


def check_cost(cost, share):
    assert cost["plain_milliseconds"] > 0
    assert 0 < cost["metrics"] < 1
    for added in (cost["added"], cost["added_on_the_wall"]):
        assert -1 < added["low"] <= added["high"]
        assert added["share"] > -1
    assert share == cost["added"]["share"] + cost["metrics"]


def learnt_by(grpo, seed, seconds, sampled, greedy):
    before, after = grpo.Accuracy(0.3, 0.75), grpo.Accuracy(sampled, greedy)
    return grpo.Learnt(seed, 35, 3.0, before, 300, seconds, 27.5, after)


def compared(grpo, seed, reward, trl_reward, milliseconds=80.0):
    parts = {"generate": 30.0, "score": 1.0, "learn": 50.0}
    own, trl = (
        grpo.Side(given, given / 2, time, 110.0, parts) for given, time in ((reward, milliseconds), (trl_reward, 100.0))
    )
    return grpo.Compared(seed, own, trl, *(grpo.Accuracy(given, 0.95) for given in (reward, trl_reward)))


def test_grpo_shows_every_seed_the_cost_and_the_bars(grpo):
    good, slow = learnt_by(grpo, 0, 25.0, 0.95, 0.96), learnt_by(grpo, 1, 57.5, 0.91, 0.929)
    skills = [grpo.tool_recipe.Skill(*each) for each in ((0.0, 0.16), (0.94, 0.98), (1.0, 1.0))]
    tools = [grpo.ToolUse(0, 80.0, 79.0, *skills), grpo.ToolUse(1, 301.0, 79.0, *skills)]
    pairs = [compared(grpo, 2, 0.9, 0.91), compared(grpo, 3, 0.8, 0.88, 120.0)]
    taken = grpo.Cost(90.0, grpo.Added(0.012, -0.001, 0.02), grpo.Added(0.05, -0.1, 0.1), 0.006)
    report = grpo.Report(2, {"Python": "3.11"}, 512, [good, slow], tools, 200, 2e-7, pairs, 6, 50, taken, 10)
    console = Console(file=io.StringIO(), width=160)

    grpo.show(report, console)

    shown = console.file.getvalue()  # type: ignore[attr-defined]
    own = {"sampled": True, "greedy": False, "seconds": False, "tool": True, "minutes": False}
    assert report.bars == own | {"reward": False, "held_out": False, "time": False, "share": True}
    assert good.bars == {"sampled": True, "greedy": True, "seconds": True}
    for text in ("0.300 -> 0.950", "0.750 -> 0.929", "35 + 300", "3.0 + 25.0", "27.5", "512 held-out tasks"):
        assert text in shown
    for text in ("0.800 / 0.880", "120.0 / 100.0 (1.20)", "30.0 / 30.0", "equal NOT MET", "< 1 NOT MET", "-0.0450"):
        assert text in shown
    for text in (">= 0.90 met", ">= 0.93 NOT MET", "< 60 NOT MET", "< 3% met", "+1.80%", "+1.20% (-0.10% .. +2.00%)"):
        assert text in shown
    for text in ("0.000 -> 0.940", "0.16 -> 0.98", "< 300 NOT MET", "but for 2.0e-07"):
        assert text in shown


@pytest.mark.parametrize(
    ("pairs", "is_equal"),
    [
        ([0.01, -0.01, 0.005, -0.004, 0.0], True),
        ([-0.004, -0.005, -0.006, -0.005], False),  # little, but more than chance
        ([0.05, -0.06, 0.04, -0.05], False),  # a loss could hide in these
        ([0.03, 0.04, 0.05], True),
        ([0.1], False),
    ],
    ids=["equal", "a small loss", "noise", "better", "one pair"],
)
def test_grpo_reward_is_equal_only_where_pairs_show_it(grpo, pairs, is_equal):
    found = grpo.difference([0.9 + each for each in pairs], [0.9] * len(pairs))

    assert found.is_equal_or_better(grpo.TOLERATED) == is_equal
    assert found.low <= found.mean <= found.high


def test_grpo_interval_of_a_difference_is_that_of_students_t(grpo):
    found = grpo.difference([0.5, 0.6, 0.7], [0.4, 0.6, 0.8])

    expected = 0.0, -0.2484, 0.2484  # t of two degrees of freedom is 4.303
    assert (found.mean, found.low, found.high) == pytest.approx(expected, abs=1e-4)


def test_grpo_with_another_schedule_than_trl_is_an_error(grpo, start, monkeypatch):
    trl = importlib.import_module("grpo_trl")
    made = trl.make_scheduler

    def later(given, optimizer, config, steps):
        return made(given, optimizer, msgspec.structs.replace(config, warmup_steps=20), steps)

    monkeypatch.setattr(trl, "make_scheduler", later)

    with grpo.quiet(), pytest.raises(trl.CheckError, match="learning_rate of step 1 is"):
        trl.check_equal(start, 0, 2)


def test_grpo_compares_the_least_times_of_each_step(grpo):
    rounds = [[(100, 900), (300, 300)], [(150, 110), (200, 400)]]

    plain = grpo.least(rounds)

    assert plain == [(100, 110), (200, 300)]
    assert grpo.added([100, 200], [110, 205]) == grpo.Added(
        pytest.approx(0.05), pytest.approx(0.04375), pytest.approx(0.08125)
    )


def test_grpo_of_trainings_that_differ_is_an_error_with_the_step(pairs):
    same = pairs.Stopwatch(), pairs.Stopwatch()
    for each, changes in zip(same, ({}, {"advantage": 0.25}), strict=True):
        each.rollouts = [rollout()]
        each.on_step_end(None, 0, None, {"loss": 0.5})
        each.rollouts = [rollout(**changes)]
        each.on_step_end(None, 1, None, {"loss": 0.5})

    with pytest.raises(pairs.CheckError, match="With a mirror step 2 is another"):
        pairs.check_same(same[0].steps, same[1].steps, "a mirror")
    with pytest.raises(pairs.CheckError, match="there are 1 steps, and 2 in the plain training"):
        pairs.check_same(same[0].steps, same[0].steps[:1], "a mirror")
    pairs.check_same(same[0].steps, list(same[0].steps), "a mirror")


@pytest.mark.parametrize(
    ("samples", "missing", "message"),
    [
        (255, (), "255 samples, where 256 were made"),
        (256, ("loss",), "lacks rows of learning"),
        (256, ("reward/mean",), "lacks rows of rollouts"),
        (256, ("reward_per_token",), "lacks what a hook gave"),
    ],
)
def test_grpo_of_a_record_that_lacks_something_is_an_error(pairs, tmp_path, samples, missing, message):
    recorder = hl.Recorder(tmp_path)
    for name, axis in (("loss", "train"), ("reward/mean", "rollout"), ("reward_per_token", "rollout")):
        if name not in missing:
            recorder.log({name: 1.0}, step=1, axis=axis)
    recorder.samples([{"prompt": "1>", "completion": "1"}] * samples, 1, "rollout")
    recorder.close()

    with pytest.raises(pairs.CheckError, match=message):
        pairs.check_record(tmp_path, 1)


def test_grpo_pair_whose_observer_changes_the_rollouts_is_an_error(pairs, start, tmp_path, monkeypatch):
    def meddle(context):
        context.worker.config.seed += 1
        return {"reward_per_token": 0.0}

    monkeypatch.setattr(pairs, "derived", meddle)

    with pytest.raises(pairs.CheckError, match="With hooks and a record step 2 is another"):
        pairs.Pair(start, 0, 3, tmp_path).run()


def test_grpo_pair_of_which_one_fails_ends_with_its_error(pairs, start, tmp_path, monkeypatch):
    def fail(context):
        raise ArithmeticError("a hook that cannot count")

    monkeypatch.setattr(pairs, "derived", fail)

    with pytest.raises(ArithmeticError, match="cannot count"):
        pairs.Pair(start, 0, 3, tmp_path, plain_goes_first=False).run()


def test_grpo_turns_go_back_and_forth_until_one_leaves(pairs):
    turns, said = pairs.Turns(), []

    def speak(own, words):
        turns.wait(own)
        for word in words:
            said.append(word)
            turns.pass_on(own)
        turns.leave(own)

    threads = [threading.Thread(target=speak, args=each) for each in ((1, "xyz"), (0, "ab"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)

    assert "".join(said) == "axbyz"


class Terminated(hl.Callback):
    """The program is sent SIGTERM after the first step."""

    def on_step_end(self, loop, step_idx, batch, metrics):
        if step_idx == 0:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("stage", ["sft", "grpo"])
def test_grpo_cut_short_by_a_signal_ends_with_its_status_instead_of_bars(grpo, tmp_path, monkeypatch, capsys, stage):
    recipe = importlib.import_module("grpo_recipe")
    made = recipe._train_config if stage == "sft" else grpo.grpo_config

    def configured(*args, **settings):
        config = made(*args, **settings)
        (config if stage == "sft" else config.train).callbacks = [Terminated()]
        return config

    monkeypatch.setattr(recipe if stage == "sft" else grpo, made.__name__, configured)
    options = grpo.parse(["--sft-steps=3", "--steps=50", "--held-out=8"])
    with pytest.raises(SystemExit) as ended:
        grpo.learn(0, options, tmp_path)
    assert ended.value.code == 128 + signal.SIGTERM
    assert "stopped by SIGTERM at step 1: nothing is measured" in capsys.readouterr().err


def test_grpo_with_no_steps_is_refused(grpo, capsys):
    with pytest.raises(SystemExit):
        grpo.parse(["--steps", "0"])

    assert "at least 1" in capsys.readouterr().err
