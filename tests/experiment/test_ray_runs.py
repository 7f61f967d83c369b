"""Runs as tasks of Ray: what they ask for, what they report, and how they stop, die and are resumed."""

import importlib.util
import json
import logging
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

import hookline as hl
from hookline._engine.errors import OptionError
from hookline._record.reader import read
from hookline._record.records import Metrics
from hookline.experiment.job import BenchmarkScored, Progress
from hookline.experiment.scheduler import make_executor
from hookline.rl.types import Task

if importlib.util.find_spec("ray") is None:  # not imported here: that is done with its settings
    pytest.skip("ray is not installed", allow_module_level=True)

from hookline.experiment.ray_executor import RayExecutor
from hookline.rl.ray_cluster import RayCluster

STEPS = 6
PATIENCE_SECONDS = 120.0


@pytest.fixture(scope="module")
def ray():
    with RayCluster(2) as cluster:
        cluster.ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # tasks cannot import tests
        yield cluster.ray
        cluster.ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def draw(ctx, run):
    """Adds up numbers; waits at its gate."""
    total = 0.0
    run.answers = lambda prompts: [total] * len(prompts)
    for index in run.steps(STEPS):
        total += random.random()
        run.log(loss=total)
        wait_at_gate(run, index)
    return {"total": total, "pid": os.getpid()}


def wait_at_gate(run, index):
    """Wait in a step until the gate is open, or somebody asks for a stop."""
    gate, paused = run.config.get("gate"), threading.Event()
    if gate is None or index != 2:
        return
    for _ in range(int(PATIENCE_SECONDS / 0.01)):
        if run.stop_requested or Path(gate).exists():
            return
        paused.wait(0.01)
    raise TimeoutError("the gate stayed closed")


class Total(hl.Benchmark):
    name = "total"
    every = 2

    def tasks(self):
        return [Task("?", 0)]

    def score(self, task, output):
        return output


class Watch:
    """What happens to runs, and how many were under way at once."""

    def __init__(self, then=lambda what, about: None):
        self.received, self.under_way, self.most, self.then = [], set(), 0, then

    def __call__(self, what, about):
        key = getattr(about, "run_key", None) or about.key
        self.received.append((what, key, about))
        (self.under_way.discard if what == "ended" else self.under_way.add)(key)
        self.most = max(self.most, len(self.under_way))
        self.then(what, about)

    def of(self, key):
        return [(what, about) for what, of, about in self.received if of == key]


def experiment(path, executor="ray", *, arms=2, config=None, **options):
    made = [hl.Arm(f"arm{index}", dict(config or {}), train=draw) for index in range(arms)]
    return hl.Experiment("on ray", made, output_dir=path / "experiment", executor=executor, **options)


def statuses(result):
    return {run.run_key: run.status for arm in result.arms for run in arm.runs}


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"num_cpu": 2}, "it has no 'num_cpu'. Did you mean 'num_cpus'"),
        ({"num_cpus": -1}, "num_cpus=-1: give a finite number of at least 0"),
        ({"num_cpus": "2"}, "num_cpus='2': give a finite number"),
        ({"num_gpus": True}, "num_gpus=True: give a finite number"),
        ({"num_gpus": 1.5}, "num_gpus=1.5: give a fraction of one, or a whole number"),
        ({"resources": ["tpu"]}, r"resources=\['tpu'\]: give names with a number each"),
        ({"resources": {"GPU": 1}}, "'GPU' is not the name of a custom resource. Give CPUs and GPUs as num_cpus"),
        ({"resources": {"tpu": float("nan")}}, r"resources\['tpu'\]=nan: give a finite number"),
        ({"max_runs": 0}, "max_runs=0: give a whole number of at least 1"),
        ({"max_runs": 1.0}, "max_runs=1.0: give a whole number"),
    ],
)
def test_ray_executor_option_that_is_wrong_is_refused(options, problem):
    with pytest.raises(OptionError, match=problem):
        make_executor({"ray": options})


def test_ray_executor_is_built_from_its_name_or_a_mapping():
    assert isinstance(make_executor("ray"), RayExecutor)
    options = {"num_cpus": 0.5, "num_gpus": 2, "resources": {"tpu": 1}, "max_runs": 3}
    assert isinstance(make_executor({"ray": options}), RayExecutor)


def distance(ctx, run):
    for _ in run.steps(3):
        with run.validate() as val:
            val.log(loss=abs(run.config["x"] - 0.3))


def test_search_on_ray_prunes_trials_and_is_not_repeated(ray, tmp_path):
    def search(trials):
        options = hl.Optuna({"x": {"low": 0.0, "high": 1.0}}, metric="val/loss", trials=trials, sampler="random")
        arm = hl.Arm("a", {"x": 0.0}, train=distance)
        where = {"output_dir": tmp_path / "e", "executor": {"ray": {"max_runs": 2}}}
        return hl.Experiment("e", [arm], search=options, **where).run(report=False)

    first, again = search(10), search(11)
    assert {trial.state for trial in first.search.trials} == {"complete", "pruned"}
    assert again.search.trials[:10] == first.search.trials
    assert len(again.search.trials) == 11


class HoldsALock(hl.Callback):
    def __init__(self):
        self.lock = threading.Lock()

    def __deepcopy__(self, memo):
        return self


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"callbacks": ["timer", HoldsALock()]}, "the callback <.*HoldsALock"),
        ({"config": {"file": threading.Lock()}}, r"config=\{'file': <unlocked"),
    ],
)
def test_run_that_cannot_be_pickled_is_refused_before_anything_runs(ray, tmp_path, options, named):
    with pytest.raises(OptionError, match=f"arm0-r0 cannot be sent to another process: {named}.*cannot pickle '_thr"):
        experiment(tmp_path, **options).run()
    assert not (tmp_path / "experiment").exists()


def test_messages_arrive_in_order_while_the_run_continues(ray, tmp_path):
    gate = tmp_path / "gate"

    def open_gate(what, about):
        if isinstance(about, BenchmarkScored) and about.step == 2:
            gate.touch()

    watch = Watch(open_gate)
    made = experiment(tmp_path, config={"gate": str(gate)}, arms=1, benchmarks=[Total()]).run(watch=watch, report=False)

    assert statuses(made) == {"arm0-r0": "completed"}
    received = watch.of("arm0-r0")
    assert [what for what, _ in received] == ["started", *["message"] * (len(received) - 2), "ended"]
    assert [about.step for _, about in received if isinstance(about, BenchmarkScored)] == [2, 4, 6, None]
    steps = [about.step for _, about in received if isinstance(about, Progress)]
    assert steps == sorted(steps)
    assert (steps[0], steps[-1]) == (0, STEPS)
    assert made.arms[0].runs[0].metrics["pid"] != os.getpid()


@pytest.mark.parametrize("limit", ["resources", "max_runs", None])
def test_many_runs_no_more_are_begun_than_have_a_place(ray, tmp_path, limit):
    cpus = int(ray.cluster_resources()["CPU"])
    options = {"resources": {"num_cpus": cpus}, "max_runs": {"max_runs": 1}, None: {}}[limit]
    places, repeats = (cpus, 3 * cpus) if limit is None else (1, 2)
    gate = tmp_path / "gate"

    def open_gate(what, about):
        if watch.most == places:
            gate.touch()

    watch = Watch(open_gate)
    config = {"gate": str(gate)}
    made = experiment(tmp_path, {"ray": options}, repeats=repeats, config=config).run(watch=watch, report=False)

    assert list(statuses(made).values()) == ["completed"] * 2 * repeats
    assert watch.most == places
    totals = [[run.metrics["total"] for run in arm.runs] for arm in made.arms]
    assert totals[0] == totals[1]  # the arms have the same seeds
    assert len(set(totals[0])) == repeats
    assert ray.is_initialized()


def test_resources_that_no_machine_of_a_cluster_has_are_waited_for_with_a_warning(ray, caplog):
    executor = make_executor({"ray": {"num_gpus": 1000}})
    with caplog.at_level(logging.WARNING, "hookline"):
        executor.open()
    assert executor.has_room  # one run asks for a machine that may come
    executor.close()
    assert "A run asks Ray for 1 CPU, 1000 GPU, and no node of the cluster has that" in caplog.text


class Holder:
    """Takes CPUs away from others."""

    def is_there(self):
        return True


class StopsWhenItWaits(RayExecutor):
    """Has somebody ask for a stop once a run is handed to Ray."""

    def wait(self, hear):
        if not self.has_room:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().wait(hear)


def test_run_without_a_place_waits_alone_and_never_begins_when_it_is_stopped(ray, tmp_path):
    cpus = int(ray.cluster_resources()["CPU"])
    holder = ray.remote(num_cpus=cpus)(Holder).remote()
    assert ray.get(holder.is_there.remote())

    watch, handler = Watch(), signal.getsignal(signal.SIGTERM)
    try:
        made = experiment(tmp_path, StopsWhenItWaits(), repeats=2 * cpus).run(watch=watch, report=False)
    finally:
        ray.kill(holder)

    assert made.status == "stopped"
    assert [(what, key) for what, key, _ in watch.received] == [("started", "arm0-r0"), ("ended", "arm0-r0")]
    begun = {key: status for key, status in statuses(made).items() if status != "waiting"}
    assert begun == {"arm0-r0": "stopped"}
    assert made.arms[0].runs[0].error == "It was stopped before it had begun."
    assert not (tmp_path / "experiment" / "arm0-r0" / "run.json").exists()
    assert signal.getsignal(signal.SIGTERM) is handler
    assert statuses(experiment(tmp_path).run(report=False)) == {"arm0-r0": "completed", "arm1-r0": "completed"}


def is_mailbox(process):
    try:
        return process.name().startswith("ray::Mailbox")
    except psutil.NoSuchProcess:  # workers that Ray does not need come and go
        return False


def test_mailbox_that_is_killed_is_replaced_and_the_run_continues(ray, tmp_path):
    gate, killed = tmp_path / "gate", []

    def kill(what, about):
        if (
            isinstance(about, BenchmarkScored) and about.step == 2
        ):  # now it waits at its gate, and has nothing else to tell
            killed.extend(filter(is_mailbox, psutil.Process().children(recursive=True)))
            for each in killed:
                each.kill()
                each.wait(PATIENCE_SECONDS)
            gate.touch()

    watch = Watch(kill)
    config = {"gate": str(gate)}
    made = experiment(tmp_path, arms=1, config=config, benchmarks=[Total()]).run(watch=watch, report=False)

    assert killed
    assert statuses(made) == {"arm0-r0": "completed"}
    reported = [about.step for _, about in watch.of("arm0-r0") if isinstance(about, BenchmarkScored)]
    assert reported == [2, 4, 6, None]


DRIVER = """
import json, random, sys, threading
from pathlib import Path
import hookline as hl
import hookline.rl.ray_cluster

home, executor = Path(sys.argv[1]), sys.argv[2]

def train(ctx, run):
    saved = {"total": 0.0, "first": 0}
    run.checkpoint_with(lambda place: (place / "saved.json").write_text(json.dumps(saved)),
                        lambda place: saved.update(json.loads((place / "saved.json").read_text())))
    for index in run.steps(6):
        saved["total"] += random.Random(f"{run.config['seed']} {index}").random()
        run.log(loss=saved["total"])
        run.request_checkpoint()
        gate = home / f"{ctx.run_key}-{index}"
        if index in (2, 4) and not gate.exists():
            gate.touch()
            while not run.stop_requested:
                threading.Event().wait(0.01)
    return {"total": saved["total"]}

arms = [hl.Arm(name, {"seed": 1}, train=train) for name in ("one", "two")]
made = hl.Experiment("taken up", arms, output_dir=home / executor, executor=executor).run(report=False)
runs = [run for arm in made.arms for run in arm.runs]
ray = sys.modules.get("ray")
saved = [[row.step for row in run.artifacts.checkpoints] for run in runs]
print("made", json.dumps([made.status, [dict(run.metrics) for run in runs], saved, ray and ray.is_initialized()]))
"""


class Driver:
    """An experiment in a process that may be killed, with a Ray of its own or the one at an address."""

    def __init__(self, home, executor="ray", address=None):
        script = home / f"driver_on_{executor}.py"
        script.write_text(DRIVER)
        command = [sys.executable, script, home, executor]
        own = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
        env = own if address is None else own | {"RAY_ADDRESS": address}
        self.process = subprocess.Popen(command, cwd=home, env=env, stdout=subprocess.PIPE, text=True)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.process.kill()
        self.process.communicate()

    def end(self):
        """What the experiment came to."""
        *_, last = (line for line in self.process.stdout if line.startswith("made "))
        assert self.process.wait(PATIENCE_SECONDS) == 0
        return json.loads(last.removeprefix("made "))


def wait_for(*paths):
    """What another process writes is looked for until it is there."""
    for _ in range(int(PATIENCE_SECONDS / 0.01)):
        if all(path.exists() for path in paths):
            return
        threading.Event().wait(0.01)
    raise TimeoutError(f"{paths} did not come")


def test_experiment_with_its_own_ray_is_stopped_then_killed_on_another_and_resumed(ray, tmp_path):
    with Driver(tmp_path) as driver:
        wait_for(tmp_path / "one-r0-2", tmp_path / "two-r0-2")
        driver.process.send_signal(signal.SIGTERM)
        status, _, saved, is_ray_left = driver.end()
    assert (status, saved, is_ray_left) == ("stopped", [[1, 2, 3], [1, 2, 3]], False)

    address = ray.get_runtime_context().gcs_address
    with Driver(tmp_path, address=address):  # is killed at the end of this
        wait_for(tmp_path / "one-r0-4", tmp_path / "two-r0-4")

    with Driver(tmp_path, address=address) as driver, Driver(tmp_path, "local") as undisturbed:
        status, metrics, saved, _ = driver.end()
        assert [status, metrics] == undisturbed.end()[:2]
    assert status == "completed"
    assert all(steps in ([5, 6], [6]) for steps in saved)  # Ray may let those that die complete their step
    for key in ("one-r0", "two-r0"):
        rows = [record for record in read(tmp_path / "ray" / key) if isinstance(record, Metrics)]
        assert [row.step for row in rows if "loss" in row.values] == [1, 2, 3, 4, 5, 6]
