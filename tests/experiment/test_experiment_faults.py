"""What goes wrong around the runs of an experiment: it stays where it belongs, and nothing leaks or is lost."""

import asyncio
import dataclasses
import functools
import json
import math
import multiprocessing.connection
import multiprocessing.popen_spawn_posix
import os
import random
import signal
import subprocess
import sys
import threading
from typing import ClassVar

import pytest
from waiting import wait_until

import hookline as hl
from hookline._record import files
from hookline._record.reader import read
from hookline._record.records import Event
from hookline._record.run_directory import EXPERIMENT_LOCK
from hookline.experiment.directory import ExperimentStore
from hookline.rl.types import Task

PROCESSES = {"local": {"processes": 2}}


def quick(ctx, run):
    return {"x": 1.0}


def scaled(ctx, run, by):
    return {"x": by}


def experiment(path, *arms, **options):
    return hl.Experiment(
        "e", [arm if isinstance(arm, hl.Arm) else hl.Arm(*arm) for arm in arms], output_dir=path, **options
    )


def runs(result):
    return {run.run_key: run for arm in result.arms for run in arm.runs}


def statuses(result):
    return {key: run.status for key, run in runs(result).items()}


def test_process_that_dies_before_it_reads_a_large_run_fails_it(tmp_path, monkeypatch):
    spawn = multiprocessing.popen_spawn_posix.util.spawnv_passfds  # type: ignore[attr-defined]

    def spawn_and_kill(path, args, passfds):
        pid = spawn(path, args, passfds)
        if "resource_tracker" not in str(args):
            os.kill(pid, signal.SIGKILL)
        return pid

    monkeypatch.setattr(multiprocessing.popen_spawn_posix.util, "spawnv_passfds", spawn_and_kill)  # type: ignore[attr-defined]
    large = hl.Arm("a", {"text": "x" * 3_000_000}, train=quick)
    assert runs(experiment(tmp_path, large, executor=PROCESSES).run())["a-r0"].error == (
        "Its process was killed by SIGKILL."
    )


def test_run_that_cannot_be_sent_to_a_process_is_refused_before_anything_runs(tmp_path):
    started = []
    arms = [hl.Arm("a", train=quick), hl.Arm("b", {"lock": threading.Lock()}, train=quick)]
    callbacks = [hl.on("experiment_start", started.append)]
    with pytest.raises(hl.OptionError, match="b-r0 cannot be sent to another process.*cannot pickle '_thr"):
        experiment(tmp_path / "e", *arms, executor=PROCESSES, callbacks=callbacks).run()
    assert (started, (tmp_path / "e").exists()) == ([], False)


def test_run_whose_context_cannot_be_sent_fails_without_its_own_subscribers(tmp_path):
    life = []

    class Opens(hl.Callback):
        def on_run_start(self, ctx):
            ctx.ids["handle"] = threading.Lock()

        def on_run_end(self, ctx, run_result, arm):
            life.append(("experiment", run_result.status))

    class Logs(hl.Callback):  # copied for each run, since it has moments of the training
        def on_step_end(self, loop):
            life.append("step")

        def on_run_end(self, ctx, run_result, arm):
            life.append(("run", run_result.status))

    run = runs(experiment(tmp_path, ("a", quick), executor=PROCESSES, callbacks=[Opens(), Logs()]).run())["a-r0"]
    assert (run.status, life) == ("failed", [("experiment", "failed")])
    assert "cannot pickle" in run.error


def test_process_that_ends_while_messages_are_read_has_its_outcome_received(tmp_path, monkeypatch):
    poll, others = multiprocessing.connection.Connection.poll, set(multiprocessing.active_children())

    def poll_and_wait_for_its_end(line, *timeout):
        found = poll(line, *timeout)
        if not found:
            wait_until(lambda: others.issuperset(multiprocessing.active_children()))
        return found

    monkeypatch.setattr(multiprocessing.connection.Connection, "poll", poll_and_wait_for_its_end)
    assert statuses(experiment(tmp_path, ("a", quick), executor=PROCESSES).run()) == {"a-r0": "completed"}


def lingers(ctx, run):
    threading.Thread(target=threading.Event().wait, args=(60,)).start()
    return {"x": 1.0}


def killed_by_a_real_time_signal(ctx, run):
    os.kill(os.getpid(), 40)


class Unreadable:
    def __reduce__(self):
        return _refuse, ()


def _refuse():
    if multiprocessing.parent_process() is not None:
        raise ValueError("not in this process")
    return Unreadable()


def test_processes_that_linger_die_or_cannot_read_hold_nobody_up(tmp_path, monkeypatch):
    monkeypatch.setattr("hookline.experiment.executors.EXIT_SECONDS", 0.5)
    arms = [("lingers", lingers), ("killed", killed_by_a_real_time_signal), ("fine", quick)]
    unreadable = hl.Arm("unreadable", {"it": Unreadable()}, train=quick)
    found = runs(experiment(tmp_path, *arms, unreadable, executor=PROCESSES).run())
    assert {key: run.status for key, run in found.items()} == {
        "lingers-r0": "completed", "killed-r0": "failed", "fine-r0": "completed", "unreadable-r0": "failed",
    }  # fmt: skip
    assert found["killed-r0"].error == "Its process was killed by signal 40."
    assert found["unreadable-r0"].error.endswith("ValueError: not in this process\n")


def loads_numpy(ctx, run):
    import numpy

    return {"drawn": float(numpy.random.rand()), "python": random.random()}


def test_libraries_that_a_run_loads_are_seeded_when_they_load(tmp_path):
    drawn = [
        [
            dict(run.metrics)
            for run in runs(experiment(tmp_path / where, ("a", loads_numpy), repeats=2, **options).run()).values()
        ]
        for where, options in (("one", {"executor": PROCESSES}), ("two", {"executor": PROCESSES}), ("three", {}))
    ]
    assert drawn[0] == drawn[1] == drawn[2]
    assert drawn[0][0] != drawn[0][1]


def test_function_that_never_set_what_to_save_starts_over(tmp_path):
    tries = []

    class Saves(hl.Callback):
        def on_step_end(self, loop, step_idx):
            if step_idx == 3:
                loop.request_checkpoint()

    def train(ctx, run):
        tries.append(run.step)
        weight = 0
        for _ in run.steps(8):
            weight += 1
            run.log(weight=weight)
            if len(tries) == 1 and run.step == 5:
                raise ValueError("once")
        return {"final": weight}

    result = experiment(tmp_path, ("a", train), retries=1, callbacks=[Saves()]).run()
    assert (tries, runs(result)["a-r0"].metrics["final"]) == ([0, 0], 8)


def test_settings_that_are_not_finite_can_be_resumed(tmp_path):
    for _ in range(2):
        result = experiment(tmp_path, hl.Arm("a", {"clip": math.inf, "x": math.nan}, train=quick)).run()
        assert statuses(result) == {"a-r0": "completed"}


@pytest.mark.parametrize(
    ("then", "now", "message"),
    [
        ({"stages": ["a", "b"]}, {"stages": ["b", "a"]}, "stages"),
        ({"train": functools.partial(scaled, by=1)}, {"train": functools.partial(scaled, by=2)}, "keywords.by"),
        ({"config": {"kind": signal.SIGINT}}, {"config": {"kind": signal.SIGTERM}}, "SIGTERM"),
        ({"config": {"data": b"a"}}, {"config": {"data": b"b"}}, "config.data"),
        ({"benchmark": 1.0}, {"benchmark": 2.0}, "benchmarks.fixed"),
    ],
)
def test_settings_that_changed_are_noticed(tmp_path, then, now, message):
    class Fixed:
        name = "fixed"

        def __init__(self, value):
            self.value = value

        def tasks(self):
            return [Task("t")]

        def score(self, task, output):
            return self.value

    def made(config=None, train=quick, stages=None, benchmark=0.0):
        arm = hl.Arm("a", config, train=train, answers=lambda run: lambda prompts: prompts)
        return experiment(tmp_path, arm, stages=stages, benchmarks=[Fixed(benchmark)])

    def quick_saving(ctx, run):
        run.checkpoint_with(lambda directory: None, lambda directory: None)

    options = {"train": quick_saving} if "stages" in then else {}
    made(**then, **options).run()
    with pytest.raises(hl.ConfigError, match=message):
        made(**now, **options).run()


class Counts(hl.Benchmark):
    name = "counts"

    def __init__(self):
        self.calls = 0

    def tasks(self):
        return [Task("t")]

    def score(self, task, output):
        self.calls += 1
        return float(self.calls)


@dataclasses.dataclass
class Settings:
    layers: list
    seed: int = 5


def test_nothing_leaks_from_one_run_into_the_next(tmp_path):
    received = []

    class Sink:
        def __init__(self):
            self.rows = 0

        def __call__(self, report_data, step):
            self.rows += 1
            received.append(self.rows)

    def train(ctx, run):
        run.config.layers.append(1)
        run.answers = lambda prompts: prompts
        run.log(x=1.0)
        return {"layers": len(run.config.layers), "seed": run.config.seed}

    arm = hl.Arm("a", Settings([]), train=train)
    result = experiment(tmp_path, arm, repeats=3, benchmarks=[Counts()], sinks=[Sink()]).run()
    reported = [
        (run.metrics["layers"], run.metrics["seed"], run.metrics["counts/accuracy"]) for run in runs(result).values()
    ]
    assert reported == [(1, 5, 1.0), (1, 6, 1.0), (1, 7, 1.0)]
    assert max(received) * 3 == len(received)


def test_a_run_that_is_cancelled_fails_alone(tmp_path):
    def cancelled(ctx, run):
        raise asyncio.CancelledError

    result = experiment(tmp_path, ("a", cancelled), ("b", quick)).run()
    assert statuses(result) == {"a-r0": "failed", "b-r0": "completed"}


def signalled_after_an_early_stop(ctx, run):
    for _ in run.steps(4):
        run.request_stop("good enough")

    def answers(prompts):
        os.kill(os.getpid(), signal.SIGTERM)
        return prompts

    run.answers = answers


def signalled_and_broken(ctx, run):
    for _ in run.steps(4):
        os.kill(os.getpid(), signal.SIGTERM)
    raise ValueError("while it stopped")


@pytest.mark.parametrize(
    ("train", "status"), [(signalled_after_an_early_stop, "stopped"), (signalled_and_broken, "failed")]
)
def test_a_signal_stops_the_experiment_however_its_run_ends(tmp_path, train, status):
    result = experiment(tmp_path, ("a", train), ("b", quick), benchmarks=[Counts()]).run()
    assert (result.status, statuses(result)) == ("stopped", {"a-r0": status, "b-r0": "waiting"})


def test_a_signal_before_the_training_begins_stops_it_at_its_first_step(tmp_path):
    class Signals(hl.Callback):
        def on_run_start(self, ctx):
            os.kill(os.getpid(), signal.SIGTERM)

    def train(ctx, run):
        return {"steps": sum(1 for _ in run.steps(5))}

    result = experiment(tmp_path, ("a", train), ("b", train), callbacks=[Signals]).run()
    assert (result.status, statuses(result), result.arms[0].runs[0].metrics) == (
        "stopped", {"a-r0": "stopped", "b-r0": "waiting"}, {"steps": 0},
    )  # fmt: skip


@pytest.mark.parametrize("executor", ["local", PROCESSES], ids=["local", "processes"])
@pytest.mark.parametrize("moment", ["on_run_start", "on_benchmark_eval", "on_run_end"])
def test_a_critical_callback_fails_the_run_that_it_observes(tmp_path, moment, executor):
    class Critical(hl.Callback):
        critical = True

    def raises(self, ctx, *arguments, **named):
        if ctx.run_key == "a-r0":
            raise ValueError(f"{moment} is broken")

    setattr(Critical, moment, raises)
    options = {"callbacks": [Critical()], "benchmarks": [Counts()], "executor": executor}
    answered = [hl.Arm(name, quick, answers=_repeats) for name in ("a", "b")]
    found = runs(experiment(tmp_path, *answered, **options).run())
    assert {key: run.status for key, run in found.items()} == {"a-r0": "failed", "b-r0": "completed"}
    assert f"{moment} is broken" in found["a-r0"].error


@pytest.mark.parametrize("strict", [False, True], ids=["critical", "strict"])
def test_a_callback_that_ends_a_run_is_reported_with_its_exception_first(tmp_path, caplog, strict):
    class Full(hl.Callback):
        critical = not strict

        def on_step_end(self, loop):
            error = ValueError("disk of the server is full\nand so is its backup")
            error.add_note("seen on Monday")
            raise error

    class Told(hl.Callback):
        def on_run_end(self, ctx, run_result, arm):
            reported.append(ctx.error)

    reported = []
    train = hl.Arm("a", lambda ctx, run: list(run.steps(2)))
    experiment(tmp_path, train, callbacks=[Full(), Told(), Told], strict=strict).run()
    words = "ValueError: disk of the server is full (hookline: raised by full at on_step_end, step 1)"
    assert reported == [words, words]
    assert f"a-r0 failed: {words}" in caplog.messages


def _repeats(run):
    return lambda prompts: prompts


def test_a_callback_that_is_made_for_a_run_is_closed_after_its_end(tmp_path):
    life = []

    class Owner(hl.Callback):
        def on_run_start(self, ctx):
            life.append("start")

        def on_train_end(self, loop):
            life.append("trained")

        def on_run_end(self, ctx, run_result, arm):
            life.append("end")

        def close(self):
            life.append("closed")

    experiment(tmp_path, ("a", quick), callbacks=[Owner]).run()
    assert life == ["start", "trained", "end", "closed", "closed"]  # the last is the one of the experiment


class EndsBadly(hl.Callback):
    critical = True
    life: ClassVar[list] = []

    def on_run_end(self, ctx, run_result, arm):
        raise ValueError("cannot end")

    def close(self):
        self.life.append("closed")


def test_a_callback_that_is_made_for_a_run_and_raises_at_its_end_is_closed(tmp_path, monkeypatch):
    monkeypatch.setattr(EndsBadly, "life", [])
    experiment(tmp_path, ("a", quick), ("b", quick), callbacks=[EndsBadly]).run()
    assert EndsBadly.life == ["closed"] * 3  # the last is the one of the experiment


@pytest.mark.parametrize("executor", ["local", PROCESSES], ids=["local", "processes"])
def test_a_strict_callback_that_is_made_for_a_run_and_raises_at_its_end_fails_it(tmp_path, executor):
    made = experiment(tmp_path, ("a", quick), callbacks=[EndsBadly], strict=True, executor=executor)
    run = runs(made.run())["a-r0"]
    assert (run.status, run.metrics) == ("failed", {"x": 1.0})
    assert "ValueError: cannot end" in run.error


@pytest.mark.parametrize("second", ["another", "itself"])
def test_an_experiment_that_is_refused_leaves_the_running_one_its_lock(tmp_path, second):
    class Intrudes(hl.Callback):
        def on_run_start(self, ctx):
            intruder = made if second == "itself" else experiment(tmp_path, ("a", quick))
            try:
                intruder.run()
            except hl.ConfigError as error:
                reported.append((str(error), files.is_locked(tmp_path / EXPERIMENT_LOCK)))

    reported = []
    made = experiment(tmp_path, ("a", quick), callbacks=[Intrudes()])
    assert statuses(made.run()) == {"a-r0": "completed"}
    assert reported == [(f"{tmp_path}: this experiment is running already.", True)]
    assert not files.is_locked(tmp_path / EXPERIMENT_LOCK)


def test_a_store_that_is_closed_without_having_been_opened_leaves_the_lock_of_another(tmp_path):
    made = experiment(tmp_path, ("a", quick))
    made.store.open(made.name, made.describe())
    ExperimentStore(tmp_path).close()
    assert files.is_locked(tmp_path / EXPERIMENT_LOCK)
    made.store.close()
    assert not files.is_locked(tmp_path / EXPERIMENT_LOCK)


def test_ids_that_cannot_be_written_are_said_and_written_with_the_next(tmp_path, caplog):
    class InTheWay(hl.Callback):
        def on_experiment_start(self, ctx):
            ctx.ids["tracker"] = "t-1"
            (tmp_path / "ids.jsonl").mkdir()

        def on_group_start(self, ctx, group_name):
            if group_name == "b":
                (tmp_path / "ids.jsonl").rmdir()

    made = experiment(tmp_path, ("a", quick), ("b", quick), callbacks=[InTheWay()])
    assert statuses(made.run()) == {"a-r0": "completed", "b-r0": "completed"}
    assert caplog.text.count("The experiment's ids cannot be written") == 2
    written = json.loads((tmp_path / "ids.jsonl").read_text())
    id_ = made.store.id
    assert written == {"experiment_id": id_, "tracker": "t-1", "group:a": f"{id_}/a", "group:b": f"{id_}/b"}


def test_a_result_that_cannot_be_written_is_reported_and_the_experiment_continues(tmp_path, caplog):
    (tmp_path / "a-r0" / "result.json" / "in the way").mkdir(parents=True)
    made = experiment(tmp_path, ("a", quick), ("b", quick))
    with pytest.raises(hl.ConfigError, match="cannot be read"):
        made.run()
    (tmp_path / "a-r0" / "result.json" / "in the way").rmdir()
    (tmp_path / "a-r0" / "result.json").rmdir()

    class InTheWay(hl.Callback):
        def on_run_start(self, ctx):
            if ctx.run_key == "a-r0":
                (ctx.output_dir / "result.json" / "in the way").mkdir(parents=True)

    result = experiment(tmp_path, ("a", quick), ("b", quick), callbacks=[InTheWay()]).run()
    assert statuses(result) == {"a-r0": "completed", "b-r0": "completed"}
    assert "The result of a-r0 cannot be written" in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sinks": ["cvs"]}, "Did you mean 'csv'"),
        ({"sinks": "csv"}, "give a list of sinks"),
        (
            {"callbacks": [type("Needs", (hl.Callback,), {"__init__": lambda self, path: None})]},
            "cannot be made without",
        ),
    ],
)
def test_sinks_and_callbacks_are_checked_before_anything_runs(tmp_path, options, message):
    with pytest.raises(hl.HooklineError, match=message):
        experiment(tmp_path / "out", ("a", quick), **options).run()
    assert not (tmp_path / "out").exists()


def misspelt(self, loop):
    """Of no moment."""


def impossible(self, loop, step_idx, batch, metrics, more):
    """Of a moment that has fewer arguments."""


@pytest.mark.parametrize("given", ["class", "instance"])
@pytest.mark.parametrize(
    ("moment", "message"),
    [({"on_step_ned": misspelt}, "Did you mean 'on_step_end'"), ({"on_step_end": impossible}, "cannot be called")],
    ids=["misspelt", "impossible"],
)
def test_experiment_callback_with_a_wrong_moment_is_an_error_when_it_is_built(tmp_path, given, moment, message):
    kind = type("Wrong", (hl.Callback,), moment)
    callbacks = [kind if given == "class" else kind()]
    with pytest.raises(hl.MomentError, match=message):
        experiment(tmp_path / "out", ("a", quick), callbacks=callbacks)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([3], "3 is no"),
        (["cvs_metrics"], "Did you mean 'csv_metrics'"),
        ([{"early_stopping": {"patiense": 3}}], "Did you mean 'patience'"),
        ({"callbacks": ["cvs_metrics"]}, "Did you mean 'csv_metrics'"),
    ],
    ids=["number", "name", "setting", "configuration"],
)
def test_experiment_callbacks_that_are_none_are_an_error_when_it_is_built(tmp_path, given, message):
    with pytest.raises(hl.HooklineError, match=message):
        experiment(tmp_path / "out", ("a", quick), callbacks=given)
    assert not (tmp_path / "out").exists()


def test_experiment_makes_nothing_of_classes_and_functions_before_it_runs(tmp_path):
    class Opens(hl.Callback):
        def __init__(self):
            self.path = made.append("class")  # type: ignore[func-returns-value]

        @property
        def on_disk(self):
            return self.path

    made = []
    experiment(tmp_path / "out", ("a", quick), callbacks=[Opens, lambda: made.append("function")])
    assert made == []


@pytest.mark.parametrize("name", ["ü" * 100, "\ud800", ".", ".."])
def test_names_that_no_directory_can_have_are_refused(name):
    with pytest.raises(hl.OptionError, match="which a directory can have"):
        hl.Arm(name, quick)


def test_stage_that_starts_from_an_earlier_one_does_not_wait_for_another(tmp_path):
    def train(ctx, run):
        run.checkpoint_with(lambda directory: None, lambda directory: None)
        if ctx.extras["stage"] == "b":
            raise ValueError("b is broken")

    stages = ["a", "b", hl.Stage("c", start_from="a")]
    result = experiment(tmp_path, ("m", train), stages=stages).run()
    assert list(statuses(result).values()) == ["completed", "failed", "completed"]


def test_experiment_leaves_the_random_state_of_its_caller_alone(tmp_path):
    before = random.getstate()
    experiment(tmp_path, ("a", loads_numpy)).run()
    assert random.getstate() == before


def test_script_without_a_guard_gets_advice(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import hookline as hl\n"
        "def f(ctx, run): return {'x': 1}\n"
        "hl.Experiment('e', [hl.Arm('a', f)], output_dir='out', executor={'local': {'processes': 1}}).run()\n"
    )
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert 'if __name__ == "__main__":' in done.stderr


def test_benchmark_failures_stand_in_the_record(tmp_path):
    class Broken(Counts):
        def score(self, task, output):
            raise RuntimeError("no score")

    arm = hl.Arm("a", quick, answers=_repeats)
    experiment(tmp_path, arm, benchmarks=[Broken()]).run()
    (failed,) = [r for r in read(tmp_path / "a-r0") if isinstance(r, Event) and r.name == "benchmark_failed"]
    assert failed.data["benchmark"] == "counts"
    assert "no score" in failed.data["error"]
