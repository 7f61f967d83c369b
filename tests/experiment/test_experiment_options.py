"""Options of experiments and benchmarks that the other tests leave at the default."""

import json

import pytest

import hookline as hl
from hookline.experiment import evaluate
from hookline.experiment.benchmarks import EnvironmentBenchmark, QuestionsBenchmark
from hookline.rl.types import Completion


class Asked:
    """A policy that answers with the prompt's length, and keeps how it was asked."""

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


def test_environment_benchmark_stop_reaches_the_policy():
    policy = Asked()
    evaluate(EnvironmentBenchmark({"sorting": {"length": 2}}, 3, stop=[">"]), policy)
    assert {sampling.stop for sampling in policy.samplings} == {(">",)}


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
