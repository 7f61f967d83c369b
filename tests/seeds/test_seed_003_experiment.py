"""Seed 003: a logger that keeps an experiment's records elsewhere, in a real experiment; every moment where it says."""

import json
import random

import pytest

import hookline as hl
from hookline import Callback
from hookline.rl.types import Task


class Database:
    """Where the logger keeps its records: tables of rows, each with an id and its parent's."""

    def __init__(self):
        self.experiments, self.groups, self.runs, self.evals, self.predictions = {}, {}, {}, {}, {}


class DatabaseLogger(Callback):
    """The seed's logger: creates a record at each start, linked to its parent, and completes it at the end."""

    def __init__(self, database):
        self.database = database

    def on_experiment_start(self, ctx):
        ctx.ids["experiment_id"] = "exp-1"
        self.database.experiments["exp-1"] = {"config": ctx.config, "done": False}

    def on_group_start(self, ctx, group_name):
        ctx.ids[f"group:{group_name}"] = f"group-{len(self.database.groups)}"
        self.database.groups[ctx.ids[f"group:{group_name}"]] = {"of": ctx.ids["experiment_id"], "done": False}

    def on_run_start(self, ctx):
        assert ctx.run_config is not None
        ctx.ids["run_id"] = f"run-{len(self.database.runs)}"
        parents = (ctx.ids["experiment_id"], ctx.ids[f"group:{ctx.group_name}"])
        self.database.runs[ctx.ids["run_id"]] = {"of": parents, "key": ctx.run_key, "status": "running"}

    def on_benchmark_eval(self, ctx, eval_result, predictions, *, step=None):
        key = (ctx.ids["run_id"], eval_result.name, step)
        assert key not in self.database.evals  # one row per (eval_result.name, step)
        self.database.evals[key] = (dict(eval_result.metrics), list(eval_result.tags), dict(eval_result.breakdowns))
        self.database.predictions[key] = [(row["instruction"], row["output"], row["reward"]) for row in predictions]

    def on_run_end(self, ctx, run_result, arm):
        assert self.database.runs[ctx.ids["run_id"]]["status"] == "running"
        assert not (ctx.output_dir / "result.json").exists()  # before the run is marked completed
        self.database.runs[ctx.ids["run_id"]] |= {"status": ctx.status, "error": ctx.error, "arm": arm.name}

    def on_group_end(self, ctx, group_name):
        self.database.groups[ctx.ids[f"group:{group_name}"]]["done"] = True

    def on_experiment_end(self, ctx, result):
        self.database.experiments[ctx.ids["experiment_id"]] |= {"done": True, "arms": [arm.name for arm in result.arms]}


class Parity(hl.Benchmark):
    name = "parity"
    every = 2

    def tasks(self):
        return [Task(str(n), expected=str(n % 2), metadata={"tags": {"digits": len(str(n))}}) for n in (3, 10)]

    def score(self, task, output):
        return output == task.expected


def train(ctx, run):
    run.answers = lambda prompts: ["1" for _ in prompts]
    for _ in run.steps(2):
        run.log(loss=random.random())
    if run.config["fails"]:
        raise RuntimeError("diverged")


def test_seed_logger_keeps_the_whole_life_of_an_experiment(tmp_path):
    database = Database()
    arms = [hl.Arm("good", {"fails": False}), hl.Arm("bad", {"fails": True})]
    callbacks = [DatabaseLogger(database)]
    hl.Experiment(
        "seed",
        arms,
        repeats=2,
        train=train,
        benchmarks=[Parity()],
        callbacks=callbacks,
        output_dir=tmp_path,
        strict=True,
    ).run()

    assert database.experiments["exp-1"]["done"]
    assert database.experiments["exp-1"]["arms"] == ["good", "bad"]
    assert database.groups == {name: {"of": "exp-1", "done": True} for name in ("group-0", "group-1")}
    reported = [(run["of"], run["key"], run["status"], run["error"], run["arm"]) for run in database.runs.values()]
    assert reported == [
        (("exp-1", "group-0"), "good-r0", "completed", None, "good"),
        (("exp-1", "group-0"), "good-r1", "completed", None, "good"),
        (("exp-1", "group-1"), "bad-r0", "failed", "RuntimeError: diverged", "bad"),
        (("exp-1", "group-1"), "bad-r1", "failed", "RuntimeError: diverged", "bad"),
    ]
    scored = [(run, step) for run, _, step in database.evals]
    assert scored == [("run-0", 2), ("run-0", None), ("run-1", 2), ("run-1", None), ("run-2", 2), ("run-3", 2)]
    metrics, tags, breakdowns = database.evals["run-0", "parity", None]
    assert (metrics, tags) == ({"accuracy": 0.5}, ["digits=1", "digits=2"])
    assert breakdowns["digits=2"] == {"accuracy": 0.0, "n": 1}
    assert database.predictions["run-0", "parity", None] == [("3", "1", 1.0), ("10", "1", 0.0)]


def test_seed_in_loop_evaluation_also_fires_in_the_loop_with_its_metrics(tmp_path):
    evals = []

    class Evals(Callback):
        def on_eval(self, state, step_idx, eval_name, metrics):
            evals.append((step_idx, eval_name, metrics))

    arms = [hl.Arm("a", {"fails": False})]
    hl.Experiment("seed", arms, train=train, benchmarks=[Parity()], callbacks=[Evals], output_dir=tmp_path).run()
    assert evals == [(1, "parity", {"parity/accuracy": 0.5})]


class TrackerLogger(Callback):
    """The seed's logger with a run-scoped sink: opened when the run starts, used in every step, closed at its end."""

    def on_run_start(self, ctx):
        ctx.ids["run_id"] = f"{ctx.ids['experiment_id']}/{ctx.run_key}"
        self.sink = (ctx.output_dir / "tracker.jsonl").open("a")
        self.write(ctx.ids["run_id"], "init", dict(ctx.run_config))

    def on_train_start(self, state):
        self.write(state.ctx.ids["run_id"], "train", state.step)

    def on_step_end(self, state, step_idx, batch, metrics):
        self.write("step", step_idx, sorted(metrics))

    def on_benchmark_eval(self, ctx, eval_result, predictions, *, step=None):
        self.write(eval_result.name, step, len(predictions))

    def on_run_end(self, ctx, run_result, arm):
        self.write("finish", ctx.status, arm.name)
        self.sink.close()

    def write(self, *values):
        print(json.dumps(values), file=self.sink)


@pytest.mark.parametrize("executor", ["local", {"local": {"processes": 2}}], ids=["here", "processes"])
def test_seed_logger_instance_has_its_sink_from_run_start_to_run_end(tmp_path, executor):
    arms = [hl.Arm("good", {"fails": False}), hl.Arm("bad", {"fails": True})]
    options = {"executor": executor, "benchmarks": [Parity()], "callbacks": [TrackerLogger()]}
    hl.Experiment("seed", arms, train=train, output_dir=tmp_path, strict=True, **options).run(report=False)
    found = {
        arm: [json.loads(line) for line in (tmp_path / f"{arm}-r0" / "tracker.jsonl").read_text().splitlines()]
        for arm in ("good", "bad")
    }
    run_id = found["good"][0][0]
    assert found["good"] == [
        [run_id, "init", {"fails": False}],
        [run_id, "train", 0],
        ["step", 0, ["loss"]],
        ["step", 1, ["loss"]],
        ["parity", 2, 2],
        ["parity", None, 2],
        ["finish", "completed", "good"],
    ]
    assert found["bad"][-2:] == [["parity", 2, 2], ["finish", "failed", "bad"]]
