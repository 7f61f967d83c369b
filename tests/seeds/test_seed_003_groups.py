"""Seed 003's groups in a real experiment: the replicates of an arm, and the stages of a continual training."""

import pytest

import hookline as hl
from hookline import Callback


class Life(Callback):
    """The moments of an experiment, in order, each with its parents as a logger finds them."""

    def __init__(self):
        self.reported = []

    def on_experiment_start(self, ctx):
        ctx.ids["experiment_id"] = "experiment"
        self.reported.append("experiment starts")

    def on_group_start(self, ctx, group_name):
        ctx.ids[f"group:{group_name}"] = f"group of {group_name}"
        self.reported.append(f"{group_name} starts under {ctx.ids['experiment_id']}")

    def on_run_start(self, ctx):
        ctx.ids["run_id"] = ctx.run_key
        self.reported.append((ctx.run_key, ctx.ids[f"group:{ctx.group_name}"], dict(ctx.run_config)))

    def on_run_end(self, ctx, run_result, arm):
        self.reported.append((ctx.ids["run_id"], run_result.status, arm.name))

    def on_group_end(self, ctx, group_name):
        self.reported.append(f"{group_name} ends")

    def on_experiment_end(self, ctx, result):
        self.reported.append(f"experiment ends: {result.status}")


def train(ctx, run):
    state = {"weight": 0}
    run.checkpoint_with(
        save=lambda directory: (directory / "weight.txt").write_text(str(state["weight"])),
        load=lambda directory: state.update(weight=int((directory / "weight.txt").read_text())),
    )
    for _ in run.steps(2):
        state["weight"] += run.config["lr"]
        run.log(weight=state["weight"])
    run.save_checkpoint()
    return {"weight": state["weight"]}


def notified(tmp_path, **options):
    life = Life()
    arms = [hl.Arm("slow", {"lr": 1}, train=train), hl.Arm("fast", {"lr": 5}, train=train)]
    result = hl.Experiment("life", arms, callbacks=[life], output_dir=tmp_path, strict=True, **options).run()
    return life.reported, result


@pytest.mark.parametrize("repeats", [1, 2])
def test_group_is_the_replicates_of_an_arm_and_starts_once_before_its_runs(tmp_path, repeats):
    reported, _ = notified(tmp_path, repeats=repeats)

    def group(name, config):
        runs = [f"{name}-r{repeat}" for repeat in range(repeats)]
        lives = [[(run, f"group of {name}", config), (run, "completed", name)] for run in runs]
        return [f"{name} starts under experiment", *[event for life in lives for event in life], f"{name} ends"]

    assert reported == [
        "experiment starts",
        *group("slow", {"lr": 1}),
        *group("fast", {"lr": 5}),
        "experiment ends: completed",
    ]


def test_group_has_the_stages_of_a_continual_training_each_with_its_settings(tmp_path):
    stages = [hl.Stage("easy"), hl.Stage("hard", lr=10)]
    reported, result = notified(tmp_path, stages=stages)
    starts = [event for event in reported if isinstance(event, tuple) and isinstance(event[2], dict)]
    assert starts == [
        ("slow-r0-s0", "group of slow", {"lr": 1}),
        ("slow-r0-s1", "group of slow", {"lr": 10}),
        ("fast-r0-s0", "group of fast", {"lr": 5}),
        ("fast-r0-s1", "group of fast", {"lr": 10}),
    ]
    assert [event for event in reported if "starts under" in event] == [
        "slow starts under experiment",
        "fast starts under experiment",
    ]
    assert [run.metrics["weight"] for run in result.runs] == [2, 22, 10, 30]
