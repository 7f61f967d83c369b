"""Experiments in one process: what is fired, what is written, what is refused."""

import copy
import json
import random
import threading

import pytest

import hookline as hl
from hookline._record.reader import read
from hookline._record.records import Metrics, Sample
from hookline.rl.types import Task


class Scope(hl.Callback):
    """Remembers the experiment's moments; what its copies hear goes to a list of their own."""

    def __init__(self):
        self.received = []

    def on_experiment_start(self, ctx):
        self.received.append("experiment")
        ctx.ids["experiment_id"] = "E"

    def on_group_start(self, ctx, group_name):
        self.received.append(f"group {group_name} in {ctx.ids['experiment_id']}")
        ctx.ids[f"group:{group_name}"] = f"G-{group_name}"

    def on_run_start(self, ctx):
        parents = (ctx.ids["experiment_id"], ctx.ids[f"group:{ctx.group_name}"])
        self.received.append(f"run {ctx.run_key} of {parents} {ctx.status}")
        ctx.ids["run_id"] = f"R-{ctx.run_key}"

    def on_benchmark_eval(self, ctx, eval_result, predictions, *, step=None):
        self.received.append(f"{eval_result.name} {ctx.run_key} {step} {len(predictions)}")

    def on_run_end(self, ctx, run_result, arm):
        self.received.append(
            f"end {ctx.run_key} {ctx.status} {ctx.error} {arm.name} {len(arm.runs)} {ctx.ids['run_id']}"
        )

    def on_group_end(self, ctx, group_name):
        self.received.append(f"group end {group_name}")

    def on_experiment_end(self, ctx, result):
        self.received.append(f"experiment end {result.name} {ctx.status}")


class Echo(hl.Benchmark):
    def __init__(self, name="echo", every=None):
        self.name, self.every = name, every

    def tasks(self):
        return [Task(text, expected=text, metadata={"tags": {"length": len(text)}}) for text in ("a", "b", "cc")]

    def score(self, task, output):
        return float(task.expected == output)


def train(ctx, run):
    run.answers = lambda prompts: [prompt if prompt != "b" else "?" for prompt in prompts]
    for _ in run.steps(4):
        run.log(loss=run.config["lr"] * random.random())
    return {"result": run.config["lr"] + run.config["seed"]}


def experiment(path, arms=None, **options):
    options = {"train": train, "output_dir": path} | options
    return hl.Experiment("letters", hl.grid(lr=[0.1, 0.2]) if arms is None else arms, **options)


def results(outcome):
    return {run.run_key: (run.status, dict(run.metrics)) for arm in outcome.arms for run in arm.runs}


def test_experiment_of_two_arms_fires_its_scope_on_an_instance_without_moments_of_training(tmp_path):
    scope = Scope()
    experiment(tmp_path, callbacks=[scope], benchmarks=[Echo(every=2), Echo("again")], repeats=2).run()

    def run(key, arm, number):
        return [
            f"run {key} of ('E', 'G-{arm}') running",
            f"echo {key} 2 3",
            f"echo {key} 4 3",
            f"echo {key} None 3",
            f"again {key} None 3",
            f"end {key} completed None {arm} {number} R-{key}",
        ]

    def group(arm):
        runs = [*run(f"{arm}-r0", arm, 1), *run(f"{arm}-r1", arm, 2)]
        return [f"group {arm} in E", *runs, f"group end {arm}"]

    assert scope.received == [
        "experiment", *group("lr=0.1"), *group("lr=0.2"), "experiment end letters completed",
    ]  # fmt: skip


class Owner(Scope):
    """A logger with both scopes: what it has at the end of a run is that run's, from its start."""

    def on_run_start(self, ctx):
        super().on_run_start(ctx)
        self.sink = (ctx.output_dir / "sink.txt").open("w")

    def on_step_end(self, loop, step_idx):
        self.received.append(f"step {step_idx} of {loop.ctx.ids['run_id']}")
        print(loop.ctx.run_key, step_idx, file=self.sink)

    def on_run_end(self, ctx, run_result, arm):
        super().on_run_end(ctx, run_result, arm)
        self.sink.close()
        (ctx.output_dir / "received.json").write_text(json.dumps(self.received))


def test_experiment_instance_with_both_scopes_hears_each_run_in_a_copy_from_its_start_to_its_end(tmp_path):
    owner = Owner()
    outcome = experiment(tmp_path, callbacks=[owner], benchmarks=[Echo(every=4)], repeats=2).run()
    key = "lr=0.2-r1"
    assert outcome.status == "completed"
    assert (tmp_path / key / "sink.txt").read_text().split() == [key, "0", key, "1", key, "2", key, "3"]
    assert json.loads((tmp_path / key / "received.json").read_text())[-8:] == [
        f"run {key} of ('E', 'G-lr=0.2') running",
        *[f"step {step} of R-{key}" for step in range(4)],
        f"echo {key} 4 3",
        f"echo {key} None 3",
        f"end {key} completed None lr=0.2 2 R-{key}",
    ]
    groups = [f"{what} lr=0.{n}{where}" for n in (1, 2) for what, where in (("group", " in E"), ("group end", ""))]
    assert owner.received == ["experiment", *groups, "experiment end letters completed"]


def test_experiment_copy_for_a_run_has_what_the_instance_set_when_the_experiment_started(tmp_path, caplog):
    class Prefixed(hl.Callback):
        def on_experiment_start(self, ctx):
            self.prefix = "E-"

        def on_run_start(self, ctx):
            self.label = getattr(self, "prefix", "none ") + ctx.run_key

        def on_step_end(self, loop):
            return {"is_right": float(self.label == f"E-{loop.ctx.run_key}")}

    class Locked(Prefixed):
        def on_experiment_start(self, ctx):
            self.prefix, self.lock = "E-", threading.Lock()

    found = experiment(tmp_path / "a", callbacks=[Prefixed()]).run()
    assert {run.metrics["prefixed/is_right"] for run in found.runs} == {1.0}
    found = experiment(tmp_path / "b", callbacks=[Locked()]).run()
    assert {run.metrics["locked/is_right"] for run in found.runs} == {0.0}
    assert caplog.text.count("locked cannot be copied after on_experiment_start") == 1


def test_experiment_ids_set_in_on_run_start_survive_and_resumed_is_each_runs_own(tmp_path):
    seen = []

    class Logger(hl.Callback):
        def on_run_start(self, ctx):
            seen.append(("Logger", ctx.run_key, ctx.extras["resumed"], ctx.ids.get("own"), ctx.ids["run_id"]))
            ctx.ids |= {"own": f"own-{ctx.run_key}", "run_id": f"R-{ctx.run_key}"}

    class Both(Logger):
        def on_run_start(self, ctx):
            seen.append(("Both", ctx.run_key, ctx.extras["resumed"], ctx.ids.get("both")))
            ctx.ids["both"] = f"both-{ctx.run_key}"

        def on_step_end(self, loop): ...

    def dies(ctx, run):
        raise KeyboardInterrupt  # which ends the experiment at once

    dies.__module__, dies.__qualname__ = train.__module__, train.__qualname__
    with pytest.raises(KeyboardInterrupt):
        experiment(tmp_path, callbacks=[Logger(), Both()], train=dies, strict=True).run()
    outcome = experiment(tmp_path, callbacks=[Logger(), Both()]).run()
    first, second = "lr=0.1-r0", "lr=0.2-r0"
    assert seen == [
        ("Logger", first, False, None, first), ("Both", first, False, None),
        ("Logger", first, True, f"own-{first}", f"R-{first}"), ("Both", first, True, f"both-{first}"),
        ("Logger", second, False, None, second), ("Both", second, False, None),
    ]  # fmt: skip
    assert outcome.status == "completed"


def test_experiment_callback_given_as_a_class_owns_its_run(tmp_path):
    lives = []

    class Owner(hl.Callback):
        def __init__(self):
            self.life = []
            lives.append(self.life)

        def on_experiment_start(self, ctx):
            self.life.append("experiment")

        def on_run_start(self, ctx):
            self.life.append(ctx.run_key)

        def on_step_end(self, loop, step_idx):
            self.life.append(step_idx)

        def on_run_end(self, ctx, run_result, arm):
            self.life.append(ctx.status)

    experiment(tmp_path, callbacks=[Owner]).run()
    assert lives == [["experiment"], ["lr=0.1-r0", 0, 1, 2, 3, "completed"], ["lr=0.2-r0", 0, 1, 2, 3, "completed"]]


def test_experiment_state_of_callbacks_never_leaks_between_runs(tmp_path):
    class Counter(hl.Callback):
        def __init__(self):
            self.steps = 0

        def on_step_end(self, loop):
            self.steps += 1
            return {"steps": self.steps}

        def on_run_end(self, ctx, run_result, arm):
            self.steps = 1000

    counter = Counter()
    outcome = experiment(tmp_path, callbacks=[counter], repeats=2).run()
    assert {run.metrics["counter/steps"] for arm in outcome.arms for run in arm.runs} == {4}
    assert counter.steps == 0


def test_experiment_context_says_where_a_run_stands(tmp_path):
    seen = []

    class Looks(hl.Callback):
        def on_run_start(self, ctx):
            seen.append(copy.copy(ctx))

    made = experiment(tmp_path, callbacks=[Looks()], repeats=2)
    made.run()
    ctx = seen[1]
    assert (ctx.run_key, ctx.group_name, ctx.output_dir) == ("lr=0.1-r1", "lr=0.1", tmp_path / "lr=0.1-r1")
    assert ctx.run_config == {"lr": 0.1}
    assert ctx.config["arms"]["lr=0.2"]["config"] == {"lr": 0.2}
    assert ctx.store is made.store
    about = {"arm": "lr=0.1", "repeat": 1, "stage": None, "seed": 1, "attempt": 1, "resumed": False}
    assert ctx.extras == about
    assert set(ctx.ids) == {"experiment_id", "group:lr=0.1", "run_id"}


def test_experiment_run_is_recorded_like_any_other_with_its_place(tmp_path):
    experiment(tmp_path, benchmarks=[Echo(every=2)]).run()
    directory = tmp_path / "lr=0.2-r0"
    facts = json.loads((directory / "run.json").read_text())
    place = facts["experiment"]
    assert (place["name"], place["arm"], place["repeat"], place["seed"]) == ("letters", "lr=0.2", 0, 0)
    assert facts["parents"]["experiment_id"] == place["id"]
    rows = [record for record in read(directory) if isinstance(record, Metrics)]
    scored = [(row.axis, row.step, row.values["echo/accuracy"]) for row in rows if "echo/accuracy" in row.values]
    assert scored == [("eval", 2, 2 / 3), ("eval", 4, 2 / 3), ("final", 4, 2 / 3)]
    samples = [record for record in read(directory) if isinstance(record, Sample) and record.axis == "final"]
    reported = [(s.prompt, s.completion, s.expected, s.total, s.lesson, s.extra["task_id"]) for s in samples]
    ids = [task.id for task in Echo().tasks()]
    assert reported == [
        ("a", "a", "a", 1.0, "echo", ids[0]),
        ("b", "?", "b", 0.0, "echo", ids[1]),
        ("cc", "cc", "cc", 1.0, "echo", ids[2]),
    ]


class Skill(hl.Benchmark):
    """Scores what the run knows: the share of ten tasks."""

    name, every = "b", 1

    def tasks(self):
        return [Task(str(index), expected=index) for index in range(10)]

    def score(self, task, output):
        return float(task.expected < output)


def rising_and_falling(ctx, run):
    skill = [1, 4, 8, 6, 5, 5, 5, 4, 3, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]
    run.answers = lambda prompts: [skill[run.step - 1]] * len(prompts)
    run.checkpoint_with(save=lambda directory: None, load=lambda directory: None)
    for _ in run.steps(len(skill)):
        run.log(loss=1.0)


def test_experiment_benchmark_within_a_training_stops_it_early(tmp_path):
    stopping = hl.callbacks.EarlyStoppingCallback(monitor="b/accuracy", patience=3)
    made = experiment(
        tmp_path, [hl.Arm("a", {})], train=rising_and_falling, benchmarks=[Skill()], callbacks=[stopping]
    ).run()
    artifacts = made.arms[0].runs[0].artifacts
    assert (artifacts.step, artifacts.stop_reason) == (
        6,
        "early stopping: b/accuracy has not improved on 0.8 for 3 checks",
    )


def test_experiment_benchmark_within_a_training_decides_which_checkpoints_are_kept(tmp_path):
    best = hl.callbacks.CheckpointCallback(monitor="b/accuracy", save_top_k=2, save_last=False)
    made = experiment(
        tmp_path, [hl.Arm("a", {})], train=rising_and_falling, benchmarks=[Skill()], callbacks=[best]
    ).run()
    assert made.arms[0].runs[0].status == "completed"
    kept = sorted(path.name for path in (tmp_path / "a-r0" / "checkpoints").glob("step-*"))
    assert kept == ["step-00000003", "step-00000004", "step-00000020"]  # the last is the experiment's own


def test_experiment_benchmark_within_a_training_is_an_evaluation_like_any_other(tmp_path):
    received = []

    class Listens(hl.Callback):
        def on_step_end(self, loop, step_idx, batch, metrics):
            received.append(("step_end", step_idx + 1))

        def on_log(self, loop, step, metrics):
            received.append(("log", step, *metrics))

        def on_eval(self, loop, step_idx, eval_name, metrics):
            received.append(("eval", step_idx + 1, eval_name, *metrics))
            loop.log(of_eval=1)

    experiment(tmp_path, [hl.Arm("a", {"lr": 1.0})], benchmarks=[Echo(every=4)], callbacks=[Listens]).run()
    at_four = [each for each in received if each[1] == 4]
    assert at_four[:5] == [
        ("step_end", 4),
        ("log", 4, "loss"),
        ("log", 4, "echo/accuracy"),
        ("eval", 4, "echo", "echo/accuracy"),
        ("log", 4, "of_eval"),
    ]


def test_experiment_repeats_have_seeds_of_their_own_that_all_arms_share(tmp_path):
    arms = [hl.Arm("a", {"lr": 1.0}), hl.Arm("b", {"lr": 1.0})]
    found = results(experiment(tmp_path, arms, repeats=2).run())
    assert found["a-r0"] == found["b-r0"]
    assert found["a-r1"] == found["b-r1"]
    assert found["a-r0"][1]["loss"] != found["a-r1"][1]["loss"]


def test_experiment_started_again_skips_what_is_complete(tmp_path):
    first = experiment(tmp_path).run()
    scope = Scope()

    def never(ctx, run):
        raise AssertionError("it is complete")

    never.__module__, never.__qualname__ = train.__module__, train.__qualname__
    second = experiment(tmp_path, callbacks=[scope], train=never).run()
    assert results(second) == results(first)
    assert second.to_markdown() == first.to_markdown()
    assert scope.received == ["experiment", "experiment end letters completed"]


def test_experiment_with_more_repeats_and_arms_makes_only_those(tmp_path):
    experiment(tmp_path).run()
    scope = Scope()
    outcome = experiment(tmp_path, hl.grid(lr=[0.1, 0.2, 0.3]), repeats=2, callbacks=[scope]).run()
    made = [line.split()[1] for line in scope.received if line.startswith("run ")]
    assert made == ["lr=0.1-r1", "lr=0.2-r1", "lr=0.3-r0", "lr=0.3-r1"]
    assert len(results(outcome)) == 6


def breaks(ctx, run):
    for step in run.steps(4):
        run.log(loss=1.0)
        if step == 2:
            raise ValueError("out of luck")


def test_experiment_failing_arm_leaves_the_others_as_they_are(tmp_path):
    arms = hl.grid(lr=[0.1, 0.2])
    undisturbed = results(experiment(tmp_path / "a", arms, repeats=2).run())
    scope = Scope()
    disturbed = experiment(tmp_path / "b", [arms[0], hl.Arm("bad", breaks), arms[1]], repeats=2, callbacks=[scope])
    found = results(disturbed.run())
    for key in ("bad-r0", "bad-r1"):
        status, metrics = found.pop(key)
        assert (status, metrics["loss"]) == ("failed", 1.0)
    assert found == undisturbed
    assert "end bad-r1 failed ValueError: out of luck bad 2 R-bad-r1" in scope.received
    kept = json.loads((tmp_path / "b" / "bad-r0" / "result.json").read_text())
    assert kept["error"].endswith("ValueError: out of luck\n")
    assert "in breaks" in kept["error"]


def test_experiment_failing_run_is_retried_as_often_as_it_was_said(tmp_path):
    tries = []

    def third_time(ctx, run):
        tries.append(ctx.extras["attempt"])
        if len(tries) < 3:
            raise OSError("not yet")
        return {"tries": len(tries)}

    outcome = experiment(tmp_path, [hl.Arm("a", third_time)], retries=2).run()
    assert tries == [1, 2, 3]
    assert results(outcome) == {"a-r0": ("completed", {"tries": 3})}
    assert outcome.arms[0].runs[0].attempts == 3


def test_experiment_failed_run_is_tried_when_it_is_started_again(tmp_path):
    broken = [True]

    def once(ctx, run):
        if broken:
            raise OSError("broken")
        return {"x": 1}

    assert results(experiment(tmp_path, [hl.Arm("a", once)]).run())["a-r0"][0] == "failed"
    broken.clear()
    assert results(experiment(tmp_path, [hl.Arm("a", once)]).run())["a-r0"] == ("completed", {"x": 1})


class Broken(Echo):
    def score(self, task, output):
        raise RuntimeError("no score")


def test_experiment_failing_benchmark_touches_nothing_else(tmp_path):
    undisturbed = results(experiment(tmp_path / "a", benchmarks=[Echo()]).run())
    outcome = experiment(tmp_path / "b", benchmarks=[Broken("broken", every=1), Echo()]).run()
    assert results(outcome) == {key: ("incomplete", metrics) for key, (_, metrics) in undisturbed.items()}
    failed = outcome.arms[0].runs[0].failed_evals
    assert list(failed) == ["broken"]
    assert "no score" in failed["broken"]
    assert (outcome.status, [run.run_key for run in outcome.failed]) == ("failed", list(undisturbed))
    assert outcome.table()[0].mean is not None  # what was trained counts


def test_experiment_with_a_failed_benchmark_scores_it_when_it_is_started_again(tmp_path):
    class Flaky(Echo):
        def score(self, task, output):
            if (tmp_path / "down").exists():
                raise ConnectionError("the judge is down")
            return super().score(task, output)

    trained = []

    def saves(ctx, run):
        run.checkpoint_with(save=lambda directory: None, load=lambda directory: None)
        trained.extend(run.steps(2))
        run.answers = lambda prompts: prompts

    stages = [hl.Stage("one"), hl.Stage("two")]
    (tmp_path / "down").touch()
    first = experiment(tmp_path, [hl.Arm("a", saves)], benchmarks=[Flaky()], stages=stages).run()
    (tmp_path / "down").unlink()
    second = experiment(tmp_path, [hl.Arm("a", saves)], benchmarks=[Flaky()], stages=stages).run()
    assert ([run.status for run in first.runs], first.status) == (["incomplete", "incomplete"], "failed")
    assert ([run.status for run in second.runs], second.status) == (["completed", "completed"], "completed")
    assert trained == [0, 1, 0, 1]  # both stages, once


def test_experiment_failing_logger_touches_nothing(tmp_path):
    class Fails(hl.Callback):
        def on_experiment_start(self, ctx):
            raise ValueError("a")

        def on_run_start(self, ctx):
            raise ValueError("b")

        def on_step_end(self, loop):
            raise ValueError("c")

        def on_run_end(self, ctx, run_result, arm):
            raise ValueError("d")

    undisturbed = results(experiment(tmp_path / "a").run())
    assert results(experiment(tmp_path / "b", callbacks=[Fails(), Fails]).run()) == undisturbed
    with pytest.raises(ValueError, match="a"):
        experiment(tmp_path / "c", callbacks=[Fails()], strict=True).run()


def test_experiment_without_answers_says_who_is_missing(tmp_path):
    arms = [hl.Arm("mute", lambda ctx, run: {"x": 1})]
    run = experiment(tmp_path, arms, benchmarks=[Echo()]).run().arms[0].runs[0]
    assert run.status == "incomplete"
    assert "set run.answers in the function that trains" in run.failed_evals["echo"]


def test_experiment_function_that_returns_no_numbers_fails_with_what_it_returned(tmp_path):
    run = experiment(tmp_path, [hl.Arm("a", lambda ctx, run: {"note": "fine"})]).run().arms[0].runs[0]
    assert run.status == "failed"
    assert "returned 'note': 'fine': return names with a number each." in run.error


def config(**settings):
    return hl.TrainerConfig(**{"max_steps": 2, "summary": False} | settings)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda d: experiment(d, [hl.Arm("a", train), hl.Arm("a", train)]), "two are called 'a'"),
        (lambda d: experiment(d, [hl.Arm("a", {"lr": 1})], train=None), "Arm 'a' has nothing that trains"),
        (lambda d: experiment(d, [hl.Arm("a", config())], train=None), "Arm 'a': .*model= is missing"),
        (lambda d: experiment(d, [hl.Arm("a", config(), modell=1)]), "takes no 'modell'. Did you mean 'model'"),
        (lambda d: experiment(d, []), "at least one arm"),
        (lambda d: experiment(d, "lr"), "give a list of arms"),
        (lambda d: experiment(d, [train]), "is not an arm"),
        (lambda d: experiment(d, repeats=0), "repeats=0: give a whole number of at least 1"),
        (lambda d: experiment(d, retries=-1), "retries=-1"),
        (lambda d: experiment(d, stages=["a", "a"]), "two are called 'a'"),
        (
            lambda d: experiment(d, stages=["first", hl.Stage("second", start_from="frist")]),
            "neither a stage before it nor the directory of a checkpoint. Did you mean 'first'",
        ),
        (lambda d: experiment(d, executor="lokal"), "there is no such executor. Did you mean 'local'"),
        (lambda d: experiment(d, executor={"local": {"threads": 2}}), "it has no 'threads'"),
        (lambda d: experiment(d, executor={"local": {"processes": 0}}), "processes=0"),
        (lambda d: experiment(d, benchmarks=["arithmetik"]), "Did you mean 'arithmetic'"),
        (lambda d: experiment(d, callbacks=Scope()).run(), "give a list of callbacks"),
        (lambda d: hl.Arm("a/b", train), "without slashes"),
        (lambda d: hl.Arm("a", lambda: None), "cannot be called as function"),
        (lambda d: hl.Experiment("a/b", [hl.Arm("a", train)]), "without '/'"),
        (lambda d: hl.grid(config(), learning_rat=[1]), "TrainerConfig has no 'learning_rat'. Did you mean"),
        (lambda d: hl.grid(config(), learning_rate=[]), "at least one value"),
        (lambda d: hl.grid(config(), learning_rate=0.1), "give a list of values"),
        (lambda d: hl.grid(config(), learning_rate=[-1.0]), "above 0"),
    ],
)
def test_experiment_bad_input_is_an_error_before_anything_runs(tmp_path, make, message):
    with pytest.raises(hl.HooklineError, match=message):
        make(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_experiment_directory_of_another_is_refused(tmp_path):
    experiment(tmp_path).run()
    with pytest.raises(hl.ConfigError, match="belongs to the experiment 'letters', not to 'digits'"):
        hl.Experiment("digits", [hl.Arm("a", train)], output_dir=tmp_path).run()
    changed = [hl.Arm("lr=0.1", {"lr": 0.5})]
    with pytest.raises(hl.ConfigError, match=r"arm 'lr=0.1':.config.lr was 0.1, now it is 0.5"):
        experiment(tmp_path, changed).run()


def test_experiment_callback_that_cannot_be_copied_is_refused_with_what_to_do(tmp_path):
    class Holds(hl.Callback):
        def __init__(self):
            self.file = (tmp_path / "log").open("w")

    holds = Holds()
    with pytest.raises(hl.OptionError, match=r"cannot be copied for each run .*lambda: Holds"):
        experiment(tmp_path / "out", callbacks=[holds]).run()
    holds.file.close()
    assert not (tmp_path / "out").exists()


def test_grid_makes_an_arm_for_each_combination_of_a_configuration():
    arms = hl.grid(config(), learning_rate=[1e-2, 1e-3], batch_size=[4, 8])
    assert [arm.name for arm in arms][1] == "learning_rate=0.01,batch_size=8"
    assert [(arm.config.learning_rate, arm.config.batch_size) for arm in arms] == [
        (1e-2, 4), (1e-2, 8), (1e-3, 4), (1e-3, 8),
    ]  # fmt: skip
