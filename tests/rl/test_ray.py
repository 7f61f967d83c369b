"""Training on Ray: real actors, real deaths; one record of all of them."""

import importlib.util
import json
import logging
import os
import signal
import sys
import threading
from types import SimpleNamespace

import psutil
import pytest

import hookline as hl
from hookline._engine.collection import CallbackCollection
from hookline._engine.errors import OptionError
from hookline._record.console_reader import read_console
from hookline._record.reader import last_status, read
from hookline._record.records import Event, Metrics
from hookline.loops.control import Tunable
from hookline.rl.types import Completion, Rollout, Task

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
if importlib.util.find_spec("ray") is None:  # not imported here: that is done with its settings
    pytest.skip("ray is not installed", allow_module_level=True)

from hookline import rl  # noqa: E402
from hookline.rl.learner.training import LearnerLostError  # noqa: E402
from hookline.rl.ray_cluster import RayCluster  # noqa: E402
from hookline.rl.rollouts.fleet import (  # noqa: E402
    MAX_DEATHS,
    SUPERVISION_GROUP,
    RemoteRollouts,
    RolloutFleet,
    WorkerLostError,
)
from hookline.testing import character_tokenizer, tiny_causal_lm  # noqa: E402

torch.set_num_threads(1)
GATE = "gate"
WORKERS = ("rollout0", "rollout1")


@pytest.fixture(scope="module")
def ray():
    with RayCluster(5) as cluster:
        cluster.ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # actors cannot import tests
        yield cluster.ray
        cluster.ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


class Sevens:
    """Rewards sevens; is broken for some of its tasks."""

    name = "sevens"

    def sample(self, n, rng):
        return [Task(f"{rng.randrange(10)}>") for _ in range(n)]

    def score(self, task, completion):
        if task.prompt == "0>":
            raise ValueError("no score for 0")
        return {"sevens": completion.count("7") / 4}


def settings(path, **train):
    lesson = rl.Lesson("sevens", Sevens())
    return rl.RLConfig(
        curriculum=rl.CurriculumConfig(lessons=[lesson], micro_eval_frequency=5, eval_frequency=0),
        rollout=rl.RolloutConfig(prompts=8, group_size=8, max_tokens=4, samples=2),
        train=hl.TrainerConfig(
            **{"max_steps": 5000, "learning_rate": 3e-3, "output_dir": str(path), "seed": 0, "summary": False} | train
        ),
        executor="ray",
        rollout_workers=1,
    )


def model_and_tokenizer():
    tokenizer = character_tokenizer("0123456789>")
    return {"model": tiny_causal_lm(tokenizer, hidden_size=32), "tokenizer": tokenizer}


def events(run_dir, *names):
    return [record for record in read(run_dir) if isinstance(record, Event) and record.name in names]


def rows(run_dir, writer, axis):
    found = [r for r in read(run_dir, writer=writer) if isinstance(r, Metrics) and r.axis == axis]
    return [row for row in found if axis != "rollout" or "rollouts" in row.values]  # what hooks cost is another


class KillsAWorker(hl.Callback):
    """Kills a rollout worker that has made rollouts, and stops some steps after it is back and has made more.

    By then the hooks of worker 0 have evaluated, too.
    """

    def __init__(self, worker):
        self.worker = worker
        self.killed = False
        self.stop_at = None

    def on_step_end(self, loop, step_idx, batch, metrics):
        if loop.step % 10 == 0 and self.stop_at is None:
            (self._wait_for_return if self.killed else self._kill)(loop)
        if loop.step == self.stop_at:
            loop.request_stop("it is back")

    def _kill(self, loop):
        pids = [e.data["pid"] for e in events(loop.output_dir, "worker_started") if e.data["worker"] == self.worker]
        # The second step was asked for when the first had arrived here, which is where the next actor continues.
        if pids and len(rows(loop.output_dir, self.worker, "rollout")) > 1:
            self.killed = True
            loop.recorder.event("killed", step=loop.step)
            os.kill(pids[0], signal.SIGKILL)

    def _wait_for_return(self, loop):
        back = events(loop.output_dir, "worker_restarted")
        has_made_more = back and len(rows(loop.output_dir, self.worker, "rollout")) > back[0].data["rollout_step"]
        if has_made_more and rows(loop.output_dir, "main", "eval"):
            self.stop_at = loop.step + 30


def test_train_on_ray_worker_killed_training_continues_and_an_alert_names_it(ray, tmp_path, caplog):
    config = settings(tmp_path)
    config.rollout_workers, config.max_staleness = 2, 3
    given = model_and_tokenizer()
    before = {name: tensor.clone() for name, tensor in given["model"].state_dict().items()}

    with caplog.at_level(logging.ERROR, "hookline"):
        made = rl.train(config, **given, callbacks=[KillsAWorker("rollout1")])

    run_dir = made.output_dir
    assert made.stop_reason == "it is back"
    assert last_status(run_dir).status == "stopped"
    killed, died, alert, back = events(run_dir, "killed", "worker_died", "alert", "worker_restarted")
    assert [each.name for each in (killed, died, alert, back)] == ["killed", "worker_died", "alert", "worker_restarted"]
    assert {each.data["worker"] for each in (died, alert, back)} == {"rollout1"}
    assert alert.data["severity"] == "error"
    assert killed.time < died.time <= alert.time < back.time
    assert died.data["pid"] != back.data["pid"]
    assert [r.getMessage().split()[0] for r in caplog.records if "died" in r.getMessage()] == ["rollout1"]
    learnt = rows(run_dir, "main", "train")
    assert [row.step for row in learnt] == list(range(1, made.step + 1))
    assert max(row.values["policy/staleness"] for row in learnt) <= 3
    for name in ("rollout0", "rollout1"):  # each writes its own journal, without a gap or a duplicate
        steps = [row.step for row in rows(run_dir, name, "rollout")]
        assert steps == list(range(1, len(steps) + 1))
    assert len({path.name.split("-")[1] for path in (run_dir / "journal").glob("rollout1-*")}) == 2
    assert len(rows(run_dir, "rollout1", "rollout")) > back.data["rollout_step"] > 0
    assert not [*rows(run_dir, "rollout0", "eval"), *rows(run_dir, "rollout1", "eval")]
    evaluated = rows(run_dir, "main", "eval")  # by the hooks of worker 0
    assert {name for row in evaluated for name in row.values} >= {"micro_eval/sevens/success_rate"}
    assert [row.step for row in evaluated] == sorted({row.step for row in evaluated})
    assert rows(run_dir, "rollout0", "rollout")[-1].values["faults/sevens"] > 0
    rewards = [row.values["reward/mean"] for row in learnt]
    assert sum(rewards[-10:]) / 10 > sum(rewards[:10]) / 10 + 0.3
    assert any(not torch.equal(before[name], tensor) for name, tensor in given["model"].state_dict().items())


class Judged(Sevens):
    """Counts everything as solved, or nothing."""

    def __init__(self, *, is_solved):
        self.is_solved = is_solved

    def score(self, task, completion):
        os.write(1, b"scored\n")  # as C code prints
        return {"length": len(completion) / 4}

    def succeeded(self, task, rewards):
        return self.is_solved


class WaitsForBoth(hl.Callback):
    """Records the evaluations that it hears of, and stops when both workers have made enough rollouts."""

    def on_eval(self, loop, step_idx, eval_name, metrics):
        loop.recorder.event("received", step=loop.step, evaluation=eval_name)

    def on_step_end(self, loop, step_idx, batch, metrics):
        if loop.step % 5 == 0 and min(len(rows(loop.output_dir, name, "rollout")) for name in WORKERS) > 3:
            loop.request_stop("both have")


def test_train_on_ray_workers_share_one_curriculum_and_evaluations_keep_their_names(ray, tmp_path):
    config = settings(tmp_path)
    config.rollout_workers, config.max_staleness = 2, 3
    config.curriculum = rl.CurriculumConfig(
        lessons=[
            rl.Lesson("first", Judged(is_solved=True)),
            rl.Lesson("second", Judged(is_solved=False), depends_on=("first",)),
        ],
        micro_eval_frequency=0,
        eval_frequency=2,
        eval_n_examples=2,
        min_results=2 * 64,
        review_share=0.0,
    )

    made = rl.train(config, **model_and_tokenizer(), callbacks=[WaitsForBoth()])

    run_dir = made.output_dir
    lessons = [(e.name, e.data["lesson"], e.step) for e in events(run_dir, "lesson_graduated", "lesson_unlocked")]
    assert lessons == [("lesson_graduated", "first", 2), ("lesson_unlocked", "second", 2)]  # of all results together
    assert {rows(run_dir, name, "rollout")[-1].values["lesson"] for name in WORKERS} == {"second"}
    assert {each.data["evaluation"] for each in events(run_dir, "received")} == {"eval", "eval/first", "eval/second"}
    recorded = {
        name: row.axis for row in read(run_dir, writer="main") if isinstance(row, Metrics) for name in row.values
    }
    names = ("eval/first/success_rate", "eval/second/success_rate", "eval/success_rate")
    assert [recorded[name] for name in names] == ["eval", "eval", "eval"]
    assert {row.actor for row in read_console(run_dir) if row.text == "scored"} == set(WORKERS)


class CountsLogprobs(hl.Callback):
    """Notes how many log-probabilities at the temperature came with the rollouts, and how many tokens."""

    def on_rollout_end(self, loop, step_idx, rollouts):
        completions = [each.completion for each in rollouts]
        counts = [sum(len(getattr(each, name)) for each in completions) for name in ("sampled_logprobs", "token_ids")]
        loop.recorder.event("counted", step=loop.step, counts=counts)


def test_train_on_ray_at_a_temperature_stale_rollouts_bring_their_log_probabilities(ray, tmp_path):
    config = settings(tmp_path, max_steps=3)
    config.rollout.temperature, config.max_staleness = 0.7, 2

    made = rl.train(config, **model_and_tokenizer(), callbacks=[CountsLogprobs()])

    counts = [event.data["counts"] for event in events(made.output_dir, "counted")]
    assert made.step == 3
    assert all(sampled == tokens > 0 for sampled, tokens in counts)


class StopsTheDriver(hl.Callback):
    def __init__(self):
        self.driver = os.getpid()

    def on_step_end(self, loop, step_idx, batch, metrics):
        if loop.step == 2:
            os.kill(self.driver, signal.SIGTERM)


class Fails(hl.Callback):
    critical = True

    def on_step_end(self, loop, step_idx, batch, metrics):
        raise LookupError("broken in the learner")


def test_train_on_ray_stopped_by_a_signal_is_saved_and_its_resume_reports_a_failure(ray, tmp_path):
    handler = signal.getsignal(signal.SIGTERM)

    stopped = rl.train(settings(tmp_path), **model_and_tokenizer(), callbacks=[StopsTheDriver()])

    run_dir = stopped.output_dir
    assert stopped.stop_reason == "SIGTERM"
    assert [(row.step, row.kind) for row in stopped.checkpoints] == [(stopped.step, "stop")]
    assert last_status(run_dir).status == "stopped"
    assert signal.getsignal(signal.SIGTERM) is handler
    recorded = json.loads((run_dir / "run.json").read_text())["config"]
    assert (recorded["executor"], recorded["rollout"]["prompts"], recorded["train"]["max_steps"]) == ("ray", 8, 5000)

    with pytest.raises(LookupError, match="broken in the learner"):
        rl.train(settings(tmp_path, resume="last"), **model_and_tokenizer(), callbacks=[Fails()])

    last = last_status(run_dir)
    assert (last.status, last.message, last.step) == ("failed", "LookupError: broken in the learner", stopped.step + 1)
    steps = [row.step for row in rows(run_dir, "rollout0", "rollout")]
    assert steps == list(range(1, len(steps) + 1))
    assert len(steps) > stopped.step
    for event in events(run_dir, "worker_started"):
        require_gone(event.data["pid"])


def require_gone(pid):
    try:
        psutil.Process(pid).wait(timeout=120)
    except psutil.NoSuchProcess:
        return


class KillsTheLearner(hl.Callback):
    def on_step_end(self, loop, step_idx, batch, metrics):
        if loop.step == 1:
            os.kill(os.getpid(), signal.SIGKILL)


def test_train_on_ray_learner_killed_again_and_again_status_is_failed_and_workers_end(ray, tmp_path):
    config = settings(tmp_path)
    config.learner_restarts = 1
    with pytest.raises(LearnerLostError, match="process died"):
        rl.train(config, **model_and_tokenizer(), callbacks=[KillsTheLearner()])

    (run_dir,) = (tmp_path / "default").iterdir()
    assert last_status(run_dir).status == "failed"
    assert len(events(run_dir, "learner_restarted")) == 1
    for started in events(run_dir, "worker_started"):
        require_gone(started.data["pid"])


class HoldsALock(hl.Callback):
    def __init__(self):
        self.lock = threading.Lock()


def test_train_on_ray_callback_that_cannot_be_pickled_is_named(ray, tmp_path):
    with pytest.raises(OptionError, match=r"callbacks\[1\], .*HoldsALock.*cannot pickle '_thread.lock'"):
        rl.train(settings(tmp_path), **model_and_tokenizer(), callbacks=["timer", HoldsALock()])


class SmallActor:
    """A rollout actor without a model, the steps of which can be held up."""

    def __init__(self, index, state, is_open=True, fault=None):
        self.index, self.fault, self.steps = index, fault, (state or {"step": 0})["step"]
        self.asked_with = None  # the first time
        self.gate, self.ended = threading.Event(), threading.Event()
        if is_open:
            self.gate.set()

    def start(self):
        if self.fault == "start":
            raise RuntimeError("no such device")
        return {"pid": os.getpid(), "rollout_step": self.steps}

    def wait_closed(self):
        self.ended.wait()

    def roll_out(self, version, weights, assignment, peers):
        self.asked_with = version if self.asked_with is None else self.asked_with
        self.gate.wait()
        if self.fault == "step":
            os._exit(3)
        self.steps += 1
        rollout = Rollout(Task("1>"), Completion("1", [1], [0.0], prompt_ids=[1]), version=version)
        return SimpleNamespace(rollouts=[rollout], state={"step": self.steps}, hook_metrics=[], seconds={})

    def seen(self):
        return self.asked_with, self.steps

    def open(self):
        self.gate.set()

    def close(self):
        self.ended.set()
        return []


def actor_factory(ray, actors, **options):
    kind = ray.remote(concurrency_groups={SUPERVISION_GROUP: 1, GATE: 1})(SmallActor).options(num_cpus=0)

    def make_actor(index, state):
        actors[index] = kind.remote(index, state, **options.get(f"rollout{index}", {}))
        return actors[index]

    return make_actor


def seen_by(ray, actor):
    return ray.get(actor.seen.options(concurrency_group=GATE).remote())


class Learner:
    """What `RemoteRollouts` needs of a learner."""

    def __init__(self):
        self.step, self.in_step, self.output_dir = 0, False, None
        self.model, self.callbacks, self.recorder = torch.nn.Linear(1, 1), CallbackCollection([]), self
        self.events = []

    def event(self, name, *, step, **facts):
        self.events.append((name, facts))

    def tunable(self, name, value, **bounds):
        return Tunable(name, value, **bounds)


def rollouts_of(ray, actors, max_staleness, **options):
    learner = Learner()
    source = RemoteRollouts(
        lambda run_dir: actor_factory(ray, actors, **options),
        workers=2,
        max_staleness=max_staleness,
        heartbeat_seconds=0.05,
        alert=lambda message: None,
    )
    source.attach_to(learner)
    return source, learner


def learn_from_one(source):
    """Take a step and learn from it; by how much it was behind."""
    (rollout,) = source.roll_out()
    staleness = source.latest_version - rollout.version
    source.update_weights(source.latest_version + 1, {"weight": torch.zeros(1)})
    return staleness


def test_remote_rollouts_step_that_took_too_long_is_thrown_away_and_recorded(ray):
    actors = {}
    source, learner = rollouts_of(ray, actors, 1, rollout1={"is_open": False})
    behind, asked_with = [], None
    while not source.discarded:
        behind.append(learn_from_one(source))
        asked_with, _ = seen_by(ray, actors[1])
        if asked_with is not None and source.latest_version > asked_with + 1:
            actors[1].open.options(concurrency_group=GATE).remote()
    source.close_hooks()

    ((name, facts),) = [each for each in learner.events if each[0] != "worker_started"]
    assert (name, facts["worker"], facts["rollouts"]) == ("rollouts_discarded", "rollout1", 1)
    assert facts["version"] == asked_with
    assert facts["staleness"] > 1
    assert max(behind) <= 1


@pytest.mark.parametrize(("max_staleness", "most_ahead"), [(0, 1), (1, 2), (1000, 2)])
def test_remote_rollouts_workers_do_not_run_ahead(ray, max_staleness, most_ahead):
    actors, made, ahead, behind = {}, [0], [], []
    source, _ = rollouts_of(ray, actors, max_staleness)
    while min(made) < 5:  # until both were asked
        behind.append(learn_from_one(source))
        made = [seen_by(ray, actor)[1] for actor in actors.values()]
        ahead.append(sum(made) - source.step - source.discarded)
    source.close_hooks()

    assert max(ahead) <= most_ahead
    assert max(behind) <= max_staleness
    assert [worker["step"] for worker in source.state_dict()["workers"]] >= [4, 4]


def test_remote_rollouts_state_has_the_curriculum_of_all_workers(ray):
    def source():
        curriculum = rl.Curriculum({"lessons": [rl.Lesson("first", Sevens())], "min_results": 2})
        return curriculum, RemoteRollouts(
            lambda run_dir: actor_factory(ray, {}), workers=2, max_staleness=1, curriculum=curriculum, alert=print
        )

    (before, saved), (after, loaded) = source(), source()
    before.record("first", [True, True], 1)
    loaded.load_state_dict(saved.state_dict())
    assert after.states() == before.states() == {"first": "graduated"}


def test_remote_rollouts_number_of_workers_is_part_of_the_state(ray):
    first, second = {}, {}
    source, _ = rollouts_of(ray, first, 1000)
    learn_from_one(source)
    source.resize(3)
    learn_from_one(source)
    saved = source.state_dict()
    source.close_hooks()
    again = RemoteRollouts(lambda run_dir: actor_factory(ray, second), workers=1, max_staleness=1000, alert=print)
    again.load_state_dict(saved)
    again.attach_to(Learner())
    again.close_hooks()
    assert (set(first), set(second)) == ({0, 1, 2}, {0, 1, 2})


def fleet_of_one(ray, reported, **options):
    """A fleet with a heartbeat of an hour: only the supervision of its worker can notice a death in time."""
    return RolloutFleet(
        actor_factory(ray, {}, rollout0=options),
        [{"step": 7}],
        report=lambda name, **facts: reported.append((name, facts)),
        heartbeat_seconds=3600,
    )


def submit_forever(fleet):
    while True:
        for worker in fleet.idle():
            fleet.submit(worker, 0, {})
        fleet.next_result()


def test_fleet_worker_that_cannot_start_ends_the_training_with_its_error(ray):
    reported = []
    fleet = fleet_of_one(ray, reported, fault="start")
    with pytest.raises(WorkerLostError, match="rollout0 cannot start.*no such device"):
        submit_forever(fleet)
    fleet.close()
    assert [name for name, _ in reported] == ["worker_died", "alert"]


def test_fleet_worker_that_dies_at_every_step_ends_the_training(ray):
    reported = []
    fleet = fleet_of_one(ray, reported, fault="step")
    with pytest.raises(WorkerLostError, match=f"rollout0 .* {MAX_DEATHS} times in a row"):
        submit_forever(fleet)
    fleet.close()
    assert [name for name, _ in reported].count("worker_died") == MAX_DEATHS
    assert [facts["rollout_step"] for name, facts in reported if name == "worker_restarted"] == [7] * (MAX_DEATHS - 1)


@pytest.mark.parametrize(("on_gpus", "share"), [(True, 0.5), (False, 0)])
def test_ray_cluster_actors_share_the_gpus_if_allowed(monkeypatch, on_gpus, share):
    cluster = RayCluster(3, on_gpus=on_gpus)
    monkeypatch.setattr(cluster.ray, "cluster_resources", lambda: {"CPU": 8.0, "GPU": 2.0})
    assert cluster.resources() == {"num_cpus": 1, "num_gpus": share}
