"""Options of experiments and benchmarks that the other tests leave at the default."""

import json
import random
from functools import partial

import pytest

import hookline as hl
from hookline.experiment import evaluate
from hookline.experiment.builtin_benchmarks import (
    ArithmeticBenchmark,
    EnvironmentBenchmark,
    FormatBenchmark,
    QuestionsBenchmark,
    SortingBenchmark,
)
from hookline.rl.environments import Arithmetic, Sorting
from hookline.rl.types import Completion


class Asked:
    """A policy that answers "Paris", and keeps how it was asked."""

    version = 0

    def __init__(self):
        self.batches, self.samplings = [], []

    def generate(self, prompts, n, sampling):
        self.batches.append(len(prompts))
        self.samplings.append(sampling)
        return [[Completion("Paris", [1], [-0.5], "stop", [1])] * n for _ in prompts]

    def load_weights(self, version, weights):
        raise AssertionError("a benchmark loads no weights")


@pytest.fixture
def questions(tmp_path):
    file = tmp_path / "capitals.jsonl"
    rows = [{"question": f"What is the capital of country {number}?", "answer": "Paris"} for number in range(5)]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return file


def test_questions_benchmark_batch_size_is_how_many_are_asked_at_once(questions):
    policy = Asked()
    evaluate(QuestionsBenchmark(questions, batch_size=2), policy)
    assert policy.batches == [2, 2, 1]


def test_questions_benchmark_max_tokens_and_stop_reach_the_policy(questions):
    policy = Asked()
    evaluate(QuestionsBenchmark(questions, max_tokens=7, stop=["\n"]), policy)
    assert {(sampling.max_tokens, sampling.stop) for sampling in policy.samplings} == {(7, ("\n",))}


ON_ENVIRONMENTS = {
    "arithmetic": ArithmeticBenchmark,
    "copying": partial(EnvironmentBenchmark, "copying"),
    "format": FormatBenchmark,
    "sorting": SortingBenchmark,
}
"""The shipped benchmarks whose tasks an environment gives, by their own names."""


@pytest.mark.parametrize("make", ON_ENVIRONMENTS.values(), ids=ON_ENVIRONMENTS)
def test_benchmark_on_an_environment_asks_a_policy_as_its_options_say(make):
    policy = Asked()
    result, rows = evaluate(make(n=5, name="mine", batch_size=2, max_tokens=7, stop=[">"]), policy)
    assert (result.name, len(rows), policy.batches) == ("mine", 5, [2, 2, 1])
    assert {(sampling.max_tokens, sampling.stop) for sampling in policy.samplings} == {(7, (">",))}


@pytest.mark.parametrize("make", ON_ENVIRONMENTS.values(), ids=ON_ENVIRONMENTS)
def test_benchmark_on_an_environment_with_another_seed_has_other_tasks(make):
    assert make(n=5, seed=1).tasks() != make(n=5, seed=2).tasks()


@pytest.mark.parametrize(
    ("make", "environment"), [(ArithmeticBenchmark, Arithmetic), (partial(SortingBenchmark, 2), partial(Sorting, 2))]
)
@pytest.mark.parametrize("share", [0.05, 0.5])
def test_benchmark_held_out_share_is_that_of_its_environment(make, environment, share):
    held_out = environment(held_out_share=share).held_out(1000, random.Random(0))
    assert {task.id for task in make(held_out_share=share).tasks()} == {task.id for task in held_out}


class Scored(hl.Callback):
    """Keeps after which steps each benchmark was scored; None is after the training."""

    def __init__(self):
        self.steps = {}

    def on_benchmark_eval(self, ctx, eval_result, predictions, *, step=None):
        self.steps.setdefault(eval_result.name, []).append(step)


def test_benchmark_on_an_environment_every_is_when_it_is_scored_within_a_training():
    def four_steps(ctx, run):
        run.answers = lambda prompts: ["" for _ in prompts]
        for _ in run.steps(4):
            pass

    scored = Scored()
    benchmarks = [make(n=2, every=3) for make in ON_ENVIRONMENTS.values()]
    arms = [hl.Arm("one", {})]
    hl.Experiment("scored", arms, train=four_steps, benchmarks=benchmarks, callbacks=[scored]).run(report=False)
    assert scored.steps == {name: [3, None] for name in ON_ENVIRONMENTS}


def train(ctx, run):
    return {"speed": ctx.run_config["speed"], "cost": -ctx.run_config["speed"]}


def compared(**options):
    arms = [hl.Arm("slow", {"speed": 1.0}), hl.Arm("fast", {"speed": 2.0})]
    return hl.Experiment("tuning", arms, train=train, **options).run(report=False)


@pytest.mark.parametrize(("metric", "means"), [("speed", [1.0, 2.0]), ("cost", [-1.0, -2.0])])
def test_experiment_metric_is_what_the_tables_are_about(metric, means):
    result = compared(metric=metric)
    assert (result.main_metric, [row.mean for row in result.table()]) == (metric, means)


@pytest.mark.parametrize(("mode", "best"), [("max", "fast"), ("min", "slow")])
def test_experiment_mode_says_which_arm_is_best(mode, best):
    result = compared(metric="speed", mode=mode)
    assert result.best_arms(1) == [best]
