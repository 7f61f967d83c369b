"""A training on Ray that changes while it runs: a learner that is killed, workers that are added and removed."""

import importlib.util
import os
import signal
import sys
from collections import Counter

import pytest

import hookline as hl
from hookline._record.reader import last_status, read
from hookline._record.records import Event, Metrics, Sample, SampleUse

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
if importlib.util.find_spec("ray") is None:  # not imported here: that is done with its settings
    pytest.skip("ray is not installed", allow_module_level=True)

from hookline import rl  # noqa: E402
from hookline.rl.ray_cluster import RayCluster  # noqa: E402
from hookline.testing import character_tokenizer, tiny_causal_lm  # noqa: E402

torch.set_num_threads(1)
SHARES = ("generate", "score", "weights", "other", "idle")


@pytest.fixture(scope="module")
def ray():
    with RayCluster(5) as cluster:
        cluster.ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # actors cannot import tests
        yield cluster.ray
        cluster.ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


class Sevens:
    """Rewards sevens."""

    name = "sevens"

    def sample(self, n, rng):
        return [rl.Task(f"{rng.randrange(10)}>") for _ in range(n)]

    def score(self, task, completion):
        return {"sevens": completion.count("7") / 4}


def train(path, *, callbacks=(), curriculum=None, **options):
    lessons = [rl.Lesson("sevens", Sevens())]
    tokenizer = character_tokenizer("0123456789>")
    train_options = {"max_steps": 12, "output_dir": str(path), "seed": 0, "summary": False} | options.pop("train", {})
    config = rl.RLConfig(
        curriculum=rl.CurriculumConfig(
            **{"lessons": lessons, "micro_eval_frequency": 0, "eval_frequency": 0} | (curriculum or {})
        ),
        rollout=rl.RolloutConfig(prompts=2, group_size=4, max_tokens=4, samples=None),
        train=hl.TrainerConfig(**train_options),
        executor="ray",
        **options,
    )
    model = tiny_causal_lm(tokenizer, hidden_size=16, layers=1, heads=2)
    return rl.train(config, model=model, tokenizer=tokenizer, callbacks=list(callbacks))


def records(run_dir, kind, **options):
    return [record for record in read(run_dir, **options) if isinstance(record, kind)]


def events(run_dir, name):
    return [record for record in records(run_dir, Event) if record.name == name]


def learnt_rows(run_dir):
    return [row for row in records(run_dir, Metrics, writer="main") if row.axis == "train" and "loss" in row.values]


class KillsTheLearner(hl.Callback):
    """Kills the process of the learner at a step, once; a file remembers it."""

    def __init__(self, step, mark):
        self.step, self.mark = step, mark

    def on_step_end(self, loop, step_idx, batch, metrics):
        if loop.step == self.step and not self.mark.exists():
            self.mark.write_text("killed")
            os.kill(os.getpid(), signal.SIGKILL)


def test_learner_killed_resumes_from_its_last_checkpoint_without_loss_or_repetition(ray, tmp_path):
    made = train(
        tmp_path,
        callbacks=[KillsTheLearner(7, tmp_path / "mark")],
        rollout_workers=2,
        max_staleness=2,
        learner_restarts=1,
        train={"checkpoint": {"every_n_steps": 5}},
    )

    run_dir = made.output_dir
    assert (made.step, last_status(run_dir).status) == (12, "finished")
    assert [row.step for row in learnt_rows(run_dir)] == list(range(1, 13))
    (restarted,) = events(run_dir, "learner_restarted")
    (alert,) = [each for each in events(run_dir, "alert") if "learner" in each.data["message"]]
    assert (alert.data["severity"], restarted.step) == ("error", 5)
    assert "continues from step 5" in alert.data["message"]
    samples = Counter(sample.rollout for sample in records(run_dir, Sample))
    assert set(samples.values()) == {1}
    uses = Counter(name for use in records(run_dir, SampleUse) for name in use.rollouts)
    assert set(uses.values()) == {1}
    assert set(uses) <= set(samples)
    for worker in ("rollout0", "rollout1"):
        rows = [row.step for row in records(run_dir, Metrics, writer=worker) if "rollouts" in row.values]
        assert rows == list(range(1, len(rows) + 1))
    assert max(row.values["policy/staleness"] for row in learnt_rows(run_dir)) <= 2


class Resizes(hl.Callback):
    """Adds two workers, removes them when all have made rollouts, adds one again, and stops."""

    def __init__(self):
        self.stage = 0

    def on_step_end(self, loop, step_idx, batch, metrics):
        workers = (
            {each.rollout.split("-")[0] for each in records(loop.output_dir, Sample)} if loop.step % 5 == 0 else ()
        )
        if self.stage == 0 and loop.step == 2:
            hl.control(loop).set("rollout_workers", 3)
            self.stage = 1
        elif self.stage == 1 and len(workers) == 3:
            loop.rollout_worker.resize(1)
            self.stage = 2
        elif self.stage == 2 and loop.step % 5 == 0 and len(events(loop.output_dir, "worker_removed")) == 2:
            loop.rollout_worker.resize(2)
            self.stage = 3
        elif self.stage == 3 and loop.step % 5 == 0:
            rows = [row for row in records(loop.output_dir, Metrics, writer="rollout1") if "rollouts" in row.values]
            started = [each.data for each in events(loop.output_dir, "worker_started")]
            if started[-1]["worker"] == "rollout1" and rows[-1].step > started[-1]["rollout_step"] > 0:
                loop.request_stop("it is back")


def test_fleet_grows_and_shrinks_and_a_worker_continues_where_it_left(ray, tmp_path):
    made = train(
        tmp_path, callbacks=[Resizes()], rollout_workers=1, max_staleness=4, train={"max_steps": 5000, "control": True}
    )

    run_dir = made.output_dir
    assert made.stop_reason == "it is back"
    sizes = [(each.data["before"], each.data["workers"]) for each in events(run_dir, "workers_resized")]
    assert sizes == [(1, 3), (3, 1), (1, 2)]
    assert {each.data["worker"] for each in events(run_dir, "worker_removed")} == {"rollout1", "rollout2"}
    assert not events(run_dir, "worker_died")
    for worker in ("rollout0", "rollout1", "rollout2"):
        rows = [row.step for row in records(run_dir, Metrics, writer=worker) if "rollouts" in row.values]
        assert rows == list(range(1, len(rows) + 1))
    assert set(Counter(sample.rollout for sample in records(run_dir, Sample)).values()) == {1}
    learnt = learnt_rows(run_dir)
    assert max(row.values["policy/staleness"] for row in learnt) <= 4
    assert {row.values["workers/count"] for row in learnt if "workers/count" in row.values} == {1, 2, 3}


class Evaluated(Sevens):
    """Notes which process scored which held-out task."""

    def __init__(self, path):
        self.path = path

    def held_out(self, n, rng):
        return [rl.Task(f"{number % 10}>", metadata={"number": number}) for number in range(n)]

    def score(self, task, completion):
        if "number" in task.metadata:
            with open(self.path, "a") as file:  # noqa: PTH123 - one write, from several processes
                file.write(f"{os.getpid()} {task.metadata['number']}\n")
        return super().score(task, completion)


class StopsWhenShared(hl.Callback):
    """Stops when an evaluation that two processes scored has reached the learner."""

    def __init__(self, path):
        self.path = path

    def on_eval(self, loop, step_idx, eval_name, metrics):
        scored = self.path.read_text().splitlines()
        if eval_name == "eval" and len({line.split()[0] for line in scored}) == 2:
            loop.request_stop("shared")


@pytest.fixture(scope="module")
def evaluated(ray, tmp_path_factory):
    """A training with two workers and two lessons, which are evaluated."""
    path = tmp_path_factory.mktemp("evaluated")
    lessons = [rl.Lesson(name, Evaluated(path / "scored")) for name in ("first", "second")]
    made = train(
        path,
        callbacks=[StopsWhenShared(path / "scored")],
        rollout_workers=2,
        max_staleness=3,
        curriculum={"lessons": lessons, "eval_frequency": 4, "eval_n_examples": 8},
        train={"max_steps": 5000},
    )
    assert made.stop_reason == "shared"
    return made.output_dir, [line.split() for line in (path / "scored").read_text().splitlines()]


def test_evaluations_are_spread_over_the_workers_under_their_usual_names(evaluated):
    run_dir, scored = evaluated
    rows = [row.values for row in records(run_dir, Metrics, writer="main") if row.axis == "eval"]
    for lesson in ("first", "second"):
        name = f"eval/{lesson}/examples"
        assert {values[name] for values in rows if name in values} == {8}
    assert any("eval/success_rate" in values for values in rows)
    started = {str(each.data["pid"]) for each in events(run_dir, "worker_started")}
    assert {pid for pid, _ in scored} == started
    assert {number for _, number in scored} == {str(number) for number in range(8)}
    samples = [sample for sample in records(run_dir, Sample) if sample.axis == "eval"]
    assert set(Counter(sample.rollout for sample in samples).values()) == {1}


def test_time_of_workers_and_learner_is_accounted_in_every_step(evaluated):
    run_dir, _ = evaluated
    rows = [row.values for row in learnt_rows(run_dir)]
    assert rows
    for values in rows:
        assert {"seconds/generate", "seconds/score", "seconds/learn", "seconds/weights", "grad_norm"} <= set(values)
        assert sum(values[f"workers/{name}"] for name in SHARES) == pytest.approx(1)
        assert values["learner/waiting"] + values["learner/learning"] == pytest.approx(1)


def test_lessons_have_curves_of_all_workers_and_the_curriculum_its_weights(evaluated):
    run_dir, _ = evaluated
    rows = [row for row in records(run_dir, Metrics, writer="main") if "curriculum/first/probability" in row.values]
    assert [(row.axis, row.step) for row in rows] == [("rollout", step) for step in range(1, len(rows) + 1)]
    for row in rows:
        probabilities = [row.values[f"curriculum/{name}/probability"] for name in ("first", "second")]
        assert sum(probabilities) == pytest.approx(1)
    drawn = [name for row in rows for name in ("first", "second") if f"lessons/{name}/reward/mean" in row.values]
    assert len(drawn) == len(rows)
    assert set(drawn) <= {"first", "second"}
