"""Sweeps of the drop-in: what configurations may hold, how agents choose settings, and how runs are ended early."""

import math
import sys

import pytest
from compat.wandb_support import drop_in

import hookline as hl
import hookline.compat.wandb as wandb

__all__ = ["drop_in"]

pytest.importorskip("optuna")


class Draws:
    """Stands in for a trial of Optuna where only the conversion of its draws matters; each draw is a given share."""

    def __init__(self, share):
        self.share = share

    def suggest_float(self, name, low, high, log=False):
        return (
            math.exp(math.log(low) + self.share * (math.log(high) - math.log(low)))
            if log
            else low + self.share * (high - low)
        )

    def suggest_int(self, name, low, high):
        return round(self.suggest_float(name, low, high))

    def suggest_categorical(self, name, choices):
        return choices[min(len(choices) - 1, int(self.share * len(choices)))]


@pytest.mark.parametrize(
    ("parameter", "half"),
    [
        ({"value": "adam"}, "adam"),
        ({"values": [[1, 2], "b", None]}, "b"),
        ({"values": ["a", "b"], "probabilities": [0.9, 0.1]}, "a"),
        ({"min": 0, "max": 10}, 5),
        ({"min": 0.0, "max": 1.0}, 0.5),
        ({"distribution": "q_uniform", "min": 0, "max": 1, "q": 0.3}, pytest.approx(0.6)),
        ({"distribution": "log_uniform", "min": 0, "max": 2}, pytest.approx(math.e)),
        ({"distribution": "inv_log_uniform", "min": 0, "max": 2}, pytest.approx(1 / math.e)),
        ({"distribution": "log_uniform_values", "min": 1e-4, "max": 1e-2}, pytest.approx(1e-3)),
        ({"distribution": "q_log_uniform_values", "min": 1, "max": 100, "q": 3}, 9),
        ({"mu": 3, "sigma": 2}, pytest.approx(3)),
        ({"distribution": "q_normal", "mu": 3.2, "sigma": 2, "q": 1}, 3),
        ({"distribution": "log_normal", "mu": 1, "sigma": 1}, pytest.approx(math.e)),
    ],
)
def test_parameter_draws_from_its_distribution(parameter, half):
    from hookline.compat.wandb.sweeps import suggested

    assert suggested(Draws(0.5), "x", parameter) == half


def test_parameter_of_a_beta_distribution_is_between_zero_and_one():
    from hookline.compat.wandb.sweeps import suggested

    drawn = [suggested(Draws(share / 20), "x", {"distribution": "beta", "a": 2, "b": 5}) for share in range(1, 20)]
    assert (all(0 < value < 1 for value in drawn), len(set(drawn))) == (True, 19)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": "hyper"}, "method='hyper': give one of"),
        ({"parameters": {}}, "give parameters"),
        ({"parameters": {"x": 3}}, "the parameter 'x' is 3"),
        ({"parameters": {"x": {}}}, "'x' needs value, values, or min and max"),
        ({"parameters": {"x": {"distribution": "unifrom", "min": 0, "max": 1}}}, "Did you mean 'uniform'"),
        ({"parameters": {"x": {"min": 2, "max": 1}}}, "in this order"),
        ({"parameters": {"x": {"values": []}}}, "'x' needs a list of values"),
        ({"parameters": {"x": {"distribution": "log_uniform_values", "min": 0, "max": 1}}}, "needs min above 0"),
        ({"method": "grid", "parameters": {"x": {"min": 0.0, "max": 1.0}}}, "a grid needs values for 'x'"),
        ({"method": "bayes", "metric": None}, "this needs a metric"),
        ({"metric": {"goal": "minimize"}}, "metric is a dict with 'name'"),
        ({"metric": {"name": "loss", "goal": "down"}}, "goal='down'"),
        ({"early_terminate": {"type": "median"}}, "early_terminate is"),
        ({"early_terminate": {"type": "hyperband"}}, "needs min_iter"),
    ],
)
def test_sweep_configuration_that_is_wrong_is_refused(drop_in, change, message):
    config = {"method": "random", "metric": {"name": "loss"}, "parameters": {"x": {"value": 1}}}
    with pytest.raises(wandb.UsageError, match=message):
        drop_in.sweep({**config, **change})
    with pytest.raises(wandb.UsageError, match="is not a dict"):
        drop_in.sweep(3)


def test_random_sweep_runs_a_function_with_locked_nested_settings(drop_in, capfd):
    seen = []

    def train():
        run = drop_in.init(project="elsewhere", config={"lr": 9, "epochs": 2})
        run.config.lr = 7
        seen.append((0 < run.config.lr < 1, run.config.model["dim"] in (1, 2), run.config.epochs, run.sweep_id))
        run.log({"loss": run.config.lr})

    parameters = {"lr": {"min": 0.0, "max": 1.0}, "model": {"parameters": {"dim": {"values": [1, 2]}}}}
    sweep_id = drop_in.sweep(
        lambda: {"method": "random", "metric": {"name": "loss"}, "parameters": parameters},
        entity="team",
        prior_runs=["x"],
    )
    drop_in.agent(f"team/p/{sweep_id}", train, count=3, forward_signals=False)
    assert seen == [(True, True, 2, sweep_id)] * 3
    said = capfd.readouterr().err
    assert ("Ignoring project 'elsewhere' when running a sweep" in said, "was locked by 'sweep'" in said) == (
        True,
        True,
    )
    infos = hl.runs("runs").filter(project="p")
    assert ({info.group for info in infos}, len(infos), {info.status for info in infos}) == (
        {sweep_id},
        3,
        {"finished"},
    )


def test_bayes_sweep_finds_better_settings_and_the_api_its_best_run(drop_in):
    def train():
        with drop_in.init() as run:
            run.log({"score": -((run.config.x - 0.3) ** 2)})

    config = {
        "method": "bayes",
        "metric": {"name": "score", "goal": "maximize"},
        "parameters": {"x": {"min": 0.0, "max": 1.0}},
    }
    sweep_id = drop_in.sweep({**config, "name": "tuned", "project": "q"})
    drop_in.agent(sweep_id, train, project="q", count=12)
    sweep = drop_in.Api().sweep(f"team/q/sweeps/{sweep_id}")
    best = sweep.best_run()
    assert (best.summary["score"], len(sweep.runs)) == (max(run.summary["score"] for run in sweep.runs), 12)
    assert (sweep.name, sweep.id, sweep.order, sweep.state, sweep.config["method"]) == (
        "tuned",
        sweep_id,
        "-summary_metrics.score",
        "RUNNING",
        "bayes",
    )
    assert (best.sweep.id, sweep.best_run(order="+summary_metrics.score").summary["score"] < best.summary["score"]) == (
        sweep_id,
        True,
    )
    assert ([each.id for each in drop_in.Api().project("q").sweeps()], sweep.path, repr(sweep)) == (
        [sweep_id],
        ["team", "q", sweep_id],
        f"<Sweep team/q/{sweep_id} (RUNNING)>",
    )


def test_grid_sweep_is_shared_by_agents_and_goes_on_after_a_failure(drop_in):
    seen = []

    def train():
        with drop_in.init() as run:
            seen.append((run.config.a, run.config.b))
            if len(seen) == 2:
                raise ValueError("one run fails")

    parameters = {
        "a": {"min": 1, "max": 2},
        "b": {"distribution": "q_uniform", "min": 0, "max": 1, "q": 0.5},
        "c": {"value": 1},
    }
    sweep_id = drop_in.sweep({"method": "grid", "parameters": parameters})
    drop_in.agent(sweep_id, train, count=4)
    drop_in.agent(sweep_id, train)
    drop_in.agent(sweep_id, train)
    assert sorted(seen) == [(a, b) for a in (1, 2) for b in (0, 0.5, 1)]
    assert sorted(run.state for run in drop_in.Api().runs("p")) == ["failed"] + ["finished"] * 5
    assert drop_in.Api().sweep(f"p/{sweep_id}").expected_run_count == 6


def test_hyperband_ends_runs_that_are_worse_than_others(drop_in):
    steps = []

    def train():
        with drop_in.init() as run:
            for step in range(1, 10):
                run.log({"loss": run.config.quality})
                steps[run.config.quality - 1 :] = [step]

    stops = {"type": "hyperband", "min_iter": 3, "eta": 2}
    config = {"method": "grid", "metric": {"name": "loss", "goal": "minimize"}, "early_terminate": stops}
    sweep_id = drop_in.sweep({**config, "parameters": {"quality": {"values": [1, 2, 3, 4]}}})
    drop_in.agent(sweep_id, train)
    lengths = [run.lastHistoryStep + 1 for run in drop_in.Api().runs("p")]
    assert (lengths[0], max(lengths[2:]) < 9) == (9, True)
    stopped = [info for info in hl.runs("runs") if info.status == "stopped"]
    assert len(stopped) == sum(length < 9 for length in lengths)
    assert {info.message for info in stopped} == {f"the sweep {sweep_id} ended it early"}


def test_sweep_ends_at_its_target_at_its_cap_or_when_it_is_stopped(drop_in):
    def train():
        with drop_in.init() as run:
            run.log({"loss": {"deep": 0.5}})

    parameters = {"x": {"values": [1, 2, 3]}}
    target = drop_in.sweep(
        {"method": "random", "metric": {"name": "loss.deep", "target": 0.5}, "parameters": parameters}
    )
    drop_in.agent(target, train, count=5)
    assert (len(drop_in.Api().runs("p")), drop_in.Api().sweep(f"p/{target}").state) == (1, "FINISHED")
    capped = drop_in.sweep({"method": "random", "run_cap": 2, "parameters": parameters})
    drop_in.agent(capped, train, count=5)
    assert len(drop_in.Api().sweep(f"p/{capped}").runs) == 2
    stopped = drop_in.sweep({"method": "random", "parameters": parameters})
    drop_in.Api().sweep(f"p/{stopped}").stop()
    drop_in.agent(stopped, train)
    assert len(drop_in.Api().sweep(f"p/{stopped}").runs) == 0


def test_agent_gives_up_when_its_first_runs_fail(drop_in, capfd):
    calls = []

    def train():
        calls.append(1)
        raise ValueError("broken")

    sweep_id = drop_in.sweep({"method": "random", "parameters": {"x": {"value": 1}}})
    drop_in.agent(sweep_id, train, count=10)
    assert (len(calls), "The first 3 runs" in capfd.readouterr().err) == (3, True)


def test_agent_without_a_function_program_or_sweep_is_refused(drop_in):
    sweep_id = drop_in.sweep({"method": "random", "parameters": {"x": {"value": 1}}})
    with pytest.raises(wandb.UsageError, match="give a function, or a sweep with a program"):
        drop_in.agent(sweep_id)
    with pytest.raises(wandb.CommError, match="Could not find sweep 'nothing'"):
        drop_in.agent("nothing", print)


def test_agent_ends_on_an_interrupt_and_leaves_the_environment_as_it_was(drop_in, monkeypatch):
    import os

    def train():
        raise KeyboardInterrupt

    sweep_id = drop_in.sweep({"method": "random", "parameters": {"x": {"value": 1}}})
    before = {name: value for name, value in os.environ.items() if name.startswith("WANDB_")}
    with pytest.raises(KeyboardInterrupt):
        drop_in.agent(sweep_id, train)
    assert {name: value for name, value in os.environ.items() if name.startswith("WANDB_")} == before
    assert drop_in.init().sweep_id is None


PROGRAM = """
import sys
import hookline.compat.wandb as wandb
run = wandb.init(config={"lr": 0.0, "extra": 1})
run.log({"loss": run.config.lr, "args": " ".join(sys.argv[1:])})
"""


def test_agent_starts_the_program_with_its_settings(drop_in, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")
    (tmp_path / "train.py").write_text(PROGRAM)
    config = {
        "method": "grid",
        "program": "train.py",
        "metric": {"name": "loss"},
        "parameters": {"lr": {"values": [0.5]}},
    }
    sweep_id = drop_in.sweep(config)
    drop_in.agent(sweep_id)
    [run] = drop_in.Api().sweep(f"p/{sweep_id}").runs
    assert (run.summary["args"], run.config, run.state) == ("--lr=0.5", {"lr": 0.5, "extra": 1}, "finished")


def test_command_of_a_program_has_its_macros_replaced(tmp_path, monkeypatch):
    from hookline.compat.wandb.agents import command_of

    monkeypatch.setenv("CARD", "0")
    words = [
        "${env}",
        "X=${envvar:CARD}",
        "${interpreter}",
        "${program}",
        "${args_no_hyphens}",
        "${args_no_boolean_flags}",
        "${args_json}",
        "${args_json_file}",
    ]
    found = command_of({"program": "t.py", "command": words}, {"a": 1, "b": True, "c": False}, tmp_path)
    assert found == [
        *("/usr/bin/env", "X=0", sys.executable, "t.py", "a=1", "b=True", "c=False", "--a=1", "--b"),
        *('{"a": 1, "b": true, "c": false}', str(tmp_path / "settings.json")),
    ]


def test_controller_puts_a_sweep_together(drop_in):
    tuner = drop_in.controller(project="p", entity="team")
    tuner.configure_search("grid")
    tuner.configure_metric("loss", goal="minimize")
    tuner.configure_parameter("x", values=[1, 2])
    tuner.configure_stopping("hyperband", min_iter=1)
    tuner.configure_program("t.py")
    tuner.configure_controller(type="local")
    with pytest.raises(wandb.UsageError, match="Call create"):
        tuner.done()
    sweep_id = tuner.create()
    tuner.step()
    tuner.print_status()
    assert (tuner.sweep_id, tuner.sweep_config["program"], tuner.done()) == (sweep_id, "t.py", False)
    drop_in.agent(sweep_id, lambda: drop_in.init().finish())
    tuner.run(verbose=True, poll_seconds=0.01)
    with pytest.raises(wandb.UsageError, match="can no longer be configured"):
        tuner.configure({})
    with pytest.raises(wandb.UsageError, match="choose their settings themselves"):
        tuner.search()
    assert drop_in.controller(sweep_id_or_config=sweep_id).sweep_id == sweep_id
    assert drop_in.controller({"method": "random", "parameters": {"x": {"value": 1}}}).sweep_id is not None


def test_sweep_without_optuna_says_what_to_install(drop_in, monkeypatch):
    sweep_id = drop_in.sweep({"method": "random", "parameters": {"x": {"value": 1}}})
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(hl.MissingExtraError, match=r"pip install 'hookline\[search\]'"):
        drop_in.agent(sweep_id, print)
