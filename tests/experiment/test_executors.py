"""One contract for every executor: the same moments, the same results to the last bit, and no arm touches another."""

import functools
import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import hookline as hl
from hookline._record.reader import read
from hookline._record.records import Metrics
from hookline.experiment import job
from hookline.experiment.executors import ProcessExecutor
from hookline.rl.types import Task

torch = pytest.importorskip("torch")
cloudpickle = pytest.importorskip("cloudpickle")
if importlib.util.find_spec("ray") is None:  # not imported here: that is done with its settings
    pytest.skip("ray is not installed", allow_module_level=True)

from hookline.rl.ray_cluster import RayCluster  # noqa: E402

torch.set_num_threads(1)
STEPS = 4
INLINE, PROCESSES, RAY = "local", {"local": {"processes": 2}}, "ray"
in_all = pytest.mark.parametrize("executor", [INLINE, PROCESSES, RAY], ids=["inline", "processes", "ray"])
in_others = pytest.mark.parametrize("executor", [PROCESSES, RAY], ids=["processes", "ray"])


@pytest.fixture(scope="module", autouse=True)
def _ray():
    """One for all tests here; other processes cannot import them, so they are sent by value."""
    here = sys.modules[__name__]
    with RayCluster(2) as cluster:
        for pickler in (cloudpickle, cluster.ray.cloudpickle):
            pickler.register_pickle_by_value(here)
        yield
        for pickler in (cloudpickle, cluster.ray.cloudpickle):
            pickler.unregister_pickle_by_value(here)


class Diary(hl.Callback):
    """Writes a line for each moment, from whichever process."""

    def __init__(self, path, who):
        self.path, self.who = str(path), who

    def note(self, key, moment, *telling, values=None):
        line = json.dumps([self.who, key, moment, *telling, {"values": values, "pid": os.getpid()}]) + "\n"
        file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(file, line.encode())
        os.close(file)

    def on_experiment_start(self, ctx):
        self.note("", "on_experiment_start", ctx.extras["resumed"])

    def on_group_start(self, ctx, group_name):
        self.note("", "on_group_start", group_name)

    def on_run_start(self, ctx):
        facts = [ctx.output_dir.name, sorted(ctx.ids), ctx.status]
        self.note(ctx.run_key, "on_run_start", ctx.group_name, ctx.extras["seed"], ctx.extras["attempt"], values=facts)

    def on_train_start(self, loop):
        self.note(loop.ctx.run_key, "on_train_start", loop.num_steps, values=[loop.output_dir.name, loop.ctx.run_key])

    def on_step_start(self, loop, step_idx):
        self.note(loop.ctx.run_key, "on_step_start", step_idx)

    def on_step_end(self, loop, step_idx, batch, metrics):
        self.note(loop.ctx.run_key, "on_step_end", step_idx, values=float(metrics["loss"]))

    def on_eval(self, loop, step_idx, eval_name, metrics):
        self.note(loop.ctx.run_key, "on_eval", step_idx, eval_name, values=metrics)

    def on_train_end(self, loop, artifacts):
        self.note(loop.ctx.run_key, "on_train_end", artifacts.step)

    def on_exception(self, loop, error):
        self.note(loop.ctx.run_key, "on_exception", str(error))

    def on_benchmark_eval(self, ctx, eval_result, predictions, *, step=None):
        values = [eval_result.metrics, predictions]
        self.note(ctx.run_key, "on_benchmark_eval", eval_result.name, step, values=values)

    def on_run_end(self, ctx, run_result, arm):
        values = [run_result.metrics, [each.name for each in run_result.evals], ctx.status, ctx.error]
        self.note(ctx.run_key, "on_run_end", arm.name, run_result.status, values=values)

    def on_group_end(self, ctx, group_name):
        self.note("", "on_group_end", group_name)

    def on_experiment_end(self, ctx, result):
        self.note("", "on_experiment_end", result.status, *[arm.name for arm in result.arms])


class Distance(hl.Benchmark):
    """How far an output is from what is expected."""

    def tasks(self):
        return [Task("half", 0.5), Task("one", 1.0)]

    def score(self, task, output):
        return {"distance": (float(output) - task.expected) ** 2, "drawn": random.random()}


def train(ctx, run):
    """Adds up random numbers."""
    total = 0.0
    run.answers = lambda prompts: [str(total)] * len(prompts)
    for index in run.steps(STEPS):
        if ctx.run_key.startswith("broken") and index == 2:
            raise LookupError("broken in its third step")
        total += run.config["rate"] * random.random()
        run.log(loss=1 / total)
    return {"total": total}


def train_or_die(ctx, run):
    """Kills its process in the middle of a step; once only, where there are markers."""
    total = 0.0
    marker = Path(run.config["markers"]) / ctx.run_key
    run.answers = lambda prompts: [str(total)] * len(prompts)
    for index in run.steps(STEPS):
        total += random.random()
        run.log(loss=1 / total)
        if index == 2 and not marker.exists():
            if marker.parent.exists():
                marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
    return {"total": total}


def network():
    return torch.nn.Linear(2, 1)


def numbers():
    return [(torch.rand(2), torch.rand(1)) for _ in range(8)]


def loss(model, batch):
    inputs, wanted = batch
    return torch.nn.functional.mse_loss(model(inputs), wanted)


def answering(trainer):
    return lambda prompts: [trainer.model(torch.ones(2)).item()] * len(prompts)


def plain_arm():
    return hl.Arm("plain", {"rate": 0.5, "seed": 3}, train=train)


def network_arm():
    config = hl.TrainerConfig(max_steps=STEPS, batch_size=4, learning_rate=0.1, seed=7)
    return hl.Arm("network", config, model=network, train_data=numbers, training_step=loss, answers=answering)


def experiment(path, executor, arms, **options):
    options = {"repeats": 2, "benchmarks": [Distance(name="within", every=2), Distance(name="final")]} | options
    return hl.Experiment("contract", arms, output_dir=path / "experiment", executor=executor, **options)


def results(result):
    """All that a run's result has, but for times and places."""
    return {
        run.run_key: (run.status, dict(run.metrics), run.evals, run.failed_evals, run.seed, run.stage)
        for arm in result.arms
        for run in arm.runs
    }


class Lines:
    """What was written into a diary."""

    def __init__(self, path):
        self.all = [json.loads(line) for line in path.read_text().splitlines()]

    def order(self):
        """Every moment with what tells it from others, in order."""
        return [" ".join(str(part) for part in line[:-1] if part != "") for line in self.all]

    def pids(self, moment):
        return {line[-1]["pid"] for line in self.all if line[2] == moment}

    def by_run(self):
        """For each run and each part of its subscribers, who live in one process, the moments with all values."""
        parts = {}
        for who, key, moment, *telling, more in self.all:
            is_of_training = who == "made" or moment not in {"on_run_start", "on_benchmark_eval", "on_run_end"}
            if key:
                parts.setdefault((key, who, is_of_training), []).append([moment, *telling, more["values"]])
        return parts


def diaries(path):
    """One that is copied for each run, and one that is made for each."""
    return [Diary(path / "diary", "copied"), functools.partial(Diary, path / "diary", "made")]


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """An experiment in this process that nothing disturbs: its results, and its diary."""
    path = tmp_path_factory.mktemp("reference")
    made = experiment(path, INLINE, [plain_arm(), network_arm()], callbacks=diaries(path)).run(report=False)
    return results(made), Lines(path / "diary")


def both(line):
    return [f"copied {line}", f"made {line}"]


def of_run(key, arm, seed):
    """The order in a run: that of the callbacks, whether they are copied or made for it."""
    order = [*both(f"{key} on_run_start {arm} {seed} 1"), *both(f"{key} on_train_start 4")]
    for step in range(STEPS):
        order += [*both(f"{key} on_step_start {step}"), *both(f"{key} on_step_end {step}")]
        if step in (1, 3):
            order += both(f"{key} on_eval {step} within")
            order += both(f"{key} on_benchmark_eval within {step + 1}")
    order += both(f"{key} on_train_end 4")
    order += both(f"{key} on_benchmark_eval within None")
    order += both(f"{key} on_benchmark_eval final None")
    return [*order, *both(f"{key} on_run_end {arm} completed")]


def test_experiment_in_this_process_fires_its_moments_in_this_order(reference):
    _, lines = reference
    assert lines.order() == [
        *both("on_experiment_start False"),
        *both("on_group_start plain"),
        *of_run("plain-r0", "plain", 3),
        *of_run("plain-r1", "plain", 4),
        *both("on_group_end plain"),
        *both("on_group_start network"),
        *of_run("network-r0", "network", 7),
        *of_run("network-r1", "network", 8),
        *both("on_group_end network"),
        *both("on_experiment_end completed plain network"),
    ]
    assert lines.pids("on_step_end") == {os.getpid()}


@in_others
def test_experiment_elsewhere_has_the_same_moments_and_results(executor, reference, tmp_path):
    arms, callbacks = [plain_arm(), network_arm()], diaries(tmp_path)
    made = experiment(tmp_path, executor, arms, repeats=1, callbacks=callbacks).run(report=False)
    lines = Lines(tmp_path / "diary")
    expected = {key: run for key, run in reference[0].items() if key.endswith("-r0")}
    moments = {part: moments for part, moments in reference[1].by_run().items() if part[0] in expected}
    order = [line for line in reference[1].order() if "-r1 " not in line]

    assert results(made) == expected
    assert lines.by_run() == moments
    assert sorted(lines.order()) == sorted(order)
    assert lines.order()[:4] == order[:4]
    assert lines.order()[-2:] == order[-2:]
    assert os.getpid() not in lines.pids("on_step_end")
    assert lines.pids("on_group_start") == {os.getpid()}
    for run in (run for arm in made.arms for run in arm.runs):
        rows = [record for record in read(run.output_dir) if isinstance(record, Metrics) and record.axis == "train"]
        assert [row.step for row in rows if "loss" in row.values] == [1, 2, 3, 4]


@in_all
def test_arm_that_fails_leaves_the_others_as_they_are(executor, reference, tmp_path):
    broken = hl.Arm("broken", {"rate": 0.5}, train=train)
    made = experiment(tmp_path, executor, [broken, plain_arm()], callbacks=diaries(tmp_path)).run(report=False)
    found, lines = results(made), Lines(tmp_path / "diary").by_run()

    for key in ("plain-r0", "plain-r1"):
        assert found[key] == reference[0][key]
        parts = {part: moments for part, moments in lines.items() if part[0] == key}
        assert parts == {part: moments for part, moments in reference[1].by_run().items() if part[0] == key}
    for run in made.arms[0].runs:
        assert (run.status, run.attempts, run.evals) == ("failed", 1, ())
        assert run.error.splitlines()[-1] == "LookupError: broken in its third step"
        assert "in train" in run.error
        last = lines[run.run_key, "made", True][-2:]
        assert [line[:2] for line in last] == [["on_exception", "broken in its third step"], ["on_run_end", "broken"]]


@in_all
@pytest.mark.parametrize("error", [RuntimeError, BrokenPipeError])
def test_watch_that_raises_is_called_no_more_and_the_runs_are_unaffected(executor, error, reference, tmp_path, caplog):
    def watch(what, about):
        reported.append(what)
        if what == "message":
            raise error("nobody sees it")

    reported = []
    made = experiment(tmp_path, executor, [plain_arm()], repeats=1).run(watch=watch, report=False)

    assert results(made) == {"plain-r0": reference[0]["plain-r0"]}
    assert reported == ["started", "message"]
    assert caplog.text.count("The experiment's watch callback failed and is dropped. The experiment continues.") == 1


class RefusesScores(hl.Callback):
    def on_benchmark_eval(self, ctx, eval_result, predictions, *, step=None):
        raise ValueError(f"{ctx.run_key} is not to be scored")


@in_all
def test_strict_callback_that_raises_at_a_benchmark_ends_the_experiment_with_that(executor, tmp_path):
    made = experiment(tmp_path, executor, [plain_arm()], repeats=1, callbacks=[RefusesScores()], strict=True)
    with pytest.raises(ValueError, match="plain-r0 is not to be scored"):
        made.run(report=False)
    assert not (tmp_path / "experiment" / "plain-r0" / "result.json").exists()


def arm_that_dies(markers):
    return hl.Arm("dies", {"markers": str(markers)}, train=train_or_die)


@in_others
def test_run_that_is_killed_has_failed_and_the_others_are_as_they_are(executor, reference, tmp_path):
    arms = [arm_that_dies(tmp_path / "none"), plain_arm()]
    made = experiment(tmp_path, executor, arms, callbacks=diaries(tmp_path)).run(report=False)
    found, order = results(made), Lines(tmp_path / "diary").order()

    for key in ("plain-r0", "plain-r1"):
        assert found[key] == reference[0][key]
    for run in made.arms[0].runs:
        assert (run.status, run.attempts, run.seed) == ("failed", 1, run.repeat)
        assert ("killed by SIGKILL" if executor == PROCESSES else "It died, process") in run.error
        assert f"copied {run.run_key} on_run_end dies failed" in order
    assert order[-2:] == both("on_experiment_end failed dies plain")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The results of the arm that dies, where it does not."""
    path = tmp_path_factory.mktemp("undisturbed")
    for repeat in range(2):
        (path / f"dies-r{repeat}").touch()
    return results(experiment(path, INLINE, [arm_that_dies(path)]).run(report=False))


@in_others
def test_run_that_is_killed_completes_when_it_is_tried_again(executor, undisturbed, tmp_path):
    made = experiment(tmp_path, executor, [arm_that_dies(tmp_path)], retries=1).run(report=False)

    assert results(made) == undisturbed
    for run in made.arms[0].runs:
        assert run.attempts == 2
        rows = [record for record in read(run.output_dir) if isinstance(record, Metrics) and record.axis == "train"]
        assert [row.step for row in rows if "loss" in row.values] == [1, 2, 3, 4]


class StopsTheDriver(hl.Callback):
    """Asks for a stop, once, when the first run is about to begin."""

    def __init__(self, marker):
        self.marker = str(marker)

    def on_run_start(self, ctx):
        if not Path(self.marker).exists():
            Path(self.marker).touch()
            os.kill(os.getpid(), signal.SIGTERM)


class StopsAProcess(ProcessExecutor):
    """Has somebody ask for a stop, once, when the process of a run was just made."""

    def __init__(self):
        super().__init__(1)
        self.has_asked = False

    def wait(self, on_message):
        if not self.has_asked:
            self.has_asked = True
            os.kill(os.getpid(), signal.SIGTERM)
        return super().wait(on_message)


def check_stopped_and_resumed(made, expected):
    stopped = made.run(report=False)
    assert stopped.status == "stopped"
    assert [(run.run_key, run.status) for run in stopped.arms[0].runs] == [
        ("plain-r0", "stopped"),
        ("plain-r1", "waiting"),
    ]
    assert results(made.run(report=False)) == {key: run for key, run in expected.items() if key.startswith("plain")}


@in_all
def test_stop_before_a_run_begins_leaves_it_resumable(executor, reference, tmp_path):
    made = experiment(tmp_path, executor, [plain_arm()], callbacks=[StopsTheDriver(tmp_path / "marker")])
    check_stopped_and_resumed(made, reference[0])


def test_stop_before_a_process_handles_signals_leaves_its_run_resumable(reference, tmp_path):
    check_stopped_and_resumed(experiment(tmp_path, StopsAProcess(), [plain_arm()]), reference[0])


HOLDS_THE_RUN = """
import sys
from pathlib import Path
from hookline._record import run_directory

Path(sys.argv[1]).mkdir(parents=True)
run_directory.acquire(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def other_process(tmp_path):
    """An older process that is still at work in the directory of the first run."""
    command = [sys.executable, "-c", HOLDS_THE_RUN, tmp_path / "experiment" / "plain-r0"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_run_whose_older_process_is_about_to_die_waits_for_that(other_process, reference, tmp_path):
    timer = threading.Timer(0.3, other_process.kill)
    timer.start()
    made = experiment(tmp_path, INLINE, [plain_arm()]).run(report=False)
    timer.join()
    assert results(made) == {key: result for key, result in reference[0].items() if key.startswith("plain")}


def test_run_whose_older_process_does_not_end_fails_with_that_reason(other_process, tmp_path, monkeypatch):
    monkeypatch.setattr(job, "OLD_PROCESS_SECONDS", 0.1)
    made = experiment(tmp_path, INLINE, [plain_arm()]).run(report=False)
    first, second = made.arms[0].runs
    assert (first.status, second.status) == ("failed", "completed")
    assert "that run is still running, in another process" in first.error
