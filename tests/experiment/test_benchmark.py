"""Benchmarks and their evaluation: results by hand, the same each time, and clear about what is wrong."""

import json
import math
import random
import subprocess
import sys

import pytest

from hookline._engine.errors import ConfigError, DuplicateError, HooklineError, OptionError
from hookline._engine.state import EvalResult
from hookline.config.sources import read_source
from hookline.experiment.benchmark import (
    BENCHMARKS,
    Benchmark,
    BenchmarkError,
    checked_benchmark,
    make_benchmarks,
    register_benchmark,
)
from hookline.experiment.builtin_benchmarks import ArithmeticBenchmark
from hookline.experiment.evaluation import EvaluationStopped, bootstrap_interval, evaluate
from hookline.rl.types import Completion, Sampling, Task


def sums(count=6):
    """Sums and differences in turn, whose ids are their numbers."""
    made = []
    for n in range(count):
        sign = "+-"[n % 2]
        tags = {"operator": sign, "size": "small" if n < 4 else "large"}
        made.append(Task(f"{n}{sign}1=", str(eval(f"{n}{sign}1")), str(n), {"tags": tags}))
    return made


class Sums(Benchmark):
    name = "sums"

    def tasks(self):
        return sums()

    def score(self, task, output):
        return output == task.expected


class Given(Benchmark):
    """Gives fixed tasks and scores."""

    name = "given"

    def __init__(self, tasks=None, score=lambda task, output: 1.0, **options):
        super().__init__(**options)
        self._tasks = sums() if tasks is None else tasks
        self._score = score

    def tasks(self):
        return self._tasks

    def score(self, task, output):
        return self._score(task, output)


class Duck:
    """A benchmark by its methods only."""

    name = "duck"
    every = 5

    def tasks(self):
        return sums(2)

    def score(self, task, output):
        return {"length": len(output), "right": output == task.expected}


def adds_only(prompts):
    """Right for sums, and for nothing else."""
    return [str(eval(prompt.removesuffix("="))) if "+" in prompt else "?" for prompt in prompts]


class WritingPolicy:
    """A policy that adds only, and remembers what it was asked."""

    version = 0

    def __init__(self):
        self.asked = []

    def generate(self, prompts, n, sampling):
        self.asked.append((list(prompts), n, sampling))
        return [[Completion(text)] for text in adds_only(prompts)]

    def load_weights(self, version, weights):
        raise AssertionError("nobody trains it")


# Results


def test_evaluate_gives_means_breakdowns_tags_and_intervals():
    result, _ = evaluate(Sums(), adds_only)
    assert result == EvalResult(
        name="sums",
        metrics={"accuracy": 0.5},
        breakdowns={
            "operator=+": {"accuracy": 1.0, "n": 3},
            "operator=-": {"accuracy": 0.0, "n": 3},
            "size=large": {"accuracy": 0.5, "n": 2},
            "size=small": {"accuracy": 0.5, "n": 4},
        },
        tags=["operator=+", "operator=-", "size=large", "size=small"],
        intervals={"accuracy": bootstrap_interval([1.0, 0.0] * 3)},
    )


def test_evaluate_gives_a_row_for_each_task_in_order():
    _, rows = evaluate(Sums(), adds_only)
    assert [row["task_id"] for row in rows] == ["0", "1", "2", "3", "4", "5"]
    assert rows[1] == {
        "benchmark": "sums",
        "task_id": "1",
        "instruction": "1-1=",
        "expected": "0",
        "output": "?",
        "reward": 0.0,
        "scores": {"accuracy": 0.0},
        "metadata": {"tags": {"operator": "-", "size": "small"}},
    }


def test_evaluate_with_several_metrics_keeps_their_order_and_takes_the_first_as_reward():
    scores = {"0": {"quality": 0.25, "length": 3}, "1": {"length": 5, "quality": 0.5}}
    benchmark = Given(sums(2), lambda task, output: scores[task.id])
    result, rows = evaluate(benchmark, adds_only)
    assert list(result.metrics.items()) == [("quality", 0.375), ("length", 4.0)]
    assert [(row["reward"], row["scores"]) for row in rows] == [
        (0.25, {"quality": 0.25, "length": 3.0}),
        (0.5, {"quality": 0.5, "length": 5.0}),
    ]
    assert result.breakdowns["operator=-"] == {"quality": 0.5, "length": 5.0, "n": 1}
    assert result.intervals["quality"] == (0.25, 0.5)


def test_evaluate_with_a_list_of_tags_counts_each_task_once_in_each():
    tasks = [Task("a", metadata={"tags": ["short", "short", "x"]}), Task("b", metadata={"tags": ("short",)}), Task("c")]
    result, _ = evaluate(Given(tasks, lambda task, output: output == "a"), lambda prompts: prompts)
    assert result.breakdowns == {"short": {"accuracy": 0.5, "n": 2}, "x": {"accuracy": 1.0, "n": 1}}


def test_evaluate_an_object_with_the_methods_of_a_benchmark_works_too():
    result, _ = evaluate(Duck(), adds_only)
    assert (result.name, dict(result.metrics)) == ("duck", {"length": 1.0, "right": 0.5})


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_evaluate_takes_the_numbers_of_other_libraries(kind):
    library = pytest.importorskip(kind)
    number = library.float32(0.5) if kind == "numpy" else library.tensor(0.5)
    result, rows = evaluate(Given(score=lambda task, output: {"x": number, "y": number > 0}), adds_only)
    assert dict(result.metrics) == {"x": 0.5, "y": 1.0}
    assert json.loads(json.dumps(rows)) == rows


def test_evaluate_outputs_that_json_cannot_hold_are_scored_as_they_are_and_written_down_as_text():
    tasks = [Task("a", metadata={"kind": {1, 2}, "limit": math.inf})]
    result, rows = evaluate(
        Given(tasks, lambda task, output: output is Sums), lambda prompts: (Sums for prompt in prompts)
    )
    assert result.metrics["accuracy"] == 1.0
    assert json.loads(json.dumps(rows, allow_nan=False))[0]["metadata"] == {"kind": [1, 2], "limit": "Infinity"}


# Policies


def test_evaluate_a_policy_asks_it_greedily_with_the_options_of_the_benchmark():
    policy = WritingPolicy()
    result, _ = evaluate(Given(sums(3), batch_size=2, max_tokens=9, stop=["\n"]), policy)
    sampling = Sampling(0.0, max_tokens=9, stop=("\n",), seed=0)
    assert policy.asked == [(["0+1=", "1-1="], 1, sampling), (["2+1="], 1, sampling)]
    assert dict(result.metrics) == {"accuracy": 1.0}


def test_evaluate_a_tiny_model_is_the_same_each_time_and_for_every_batch_size():
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from hookline.rl.policies.hf import HFPolicy
    from hookline.testing import character_tokenizer, tiny_causal_lm

    torch.set_num_threads(1)
    tokenizer = character_tokenizer("0123456789>+-=")
    model = tiny_causal_lm(tokenizer, hidden_size=32, seed=1).train()
    policy = HFPolicy(model, tokenizer)
    torch.manual_seed(5)
    before = torch.get_rng_state()

    def found(batch_size):
        benchmark = ArithmeticBenchmark("medium", 20, batch_size=batch_size, max_tokens=11)
        benchmark.score = lambda task, output: len(set(output) & set(task.expected)) / len(task.expected)
        return evaluate(benchmark, policy)

    first = found(20)
    assert first == found(20) == found(7) == found(1)
    assert len({row["output"] for row in first[1]}) > 1
    assert all(1 <= len(row["output"]) <= 11 for row in first[1])
    assert torch.equal(torch.get_rng_state(), before)
    assert model.training


def test_evaluate_a_model_without_a_tokenizer_says_what_to_give():
    torch = pytest.importorskip("torch")

    class Model(torch.nn.Module):  # type: ignore[name-defined]
        def generate(self, inputs=None, config=None, processor=None, **settings):
            raise AssertionError("it takes no texts")

    with pytest.raises(
        OptionError, match=r"Model is a model, which does not accept text: give HFPolicy\(model, tokenizer\)"
    ):
        evaluate(Sums(), Model())


def test_evaluate_a_policy_that_gives_more_completions_than_asked_for_is_refused():
    policy = WritingPolicy()
    policy.generate = lambda prompts, n, sampling: [[Completion("1"), Completion("2")] for _ in prompts]
    with pytest.raises(BenchmarkError, match="1 completion of a prompt was requested, 2 came"):
        evaluate(Sums(), policy)


# Random numbers and batches


def guesses(prompts):
    return [str(random.randrange(6)) for _ in prompts]


def test_evaluate_a_subject_that_guesses_gives_the_same_each_time_and_leaves_no_trace():
    random.seed(1)
    state = random.getstate()
    first = evaluate(Sums(), guesses)
    assert random.getstate() == state
    random.seed(2)
    assert evaluate(Sums(), guesses) == first
    assert len({row["output"] for row in first[1]}) > 1


@pytest.mark.parametrize("batch_size", [1, 4, 6, 100])
def test_evaluate_with_any_batch_size_gives_the_same(batch_size):
    assert evaluate(Sums(batch_size=batch_size), guesses) == evaluate(Sums(), guesses)


def test_evaluate_that_fails_leaves_the_random_state_as_it_was():
    random.seed(1)
    state = random.getstate()
    with pytest.raises(BenchmarkError):
        evaluate(Given(score=lambda task, output: random.random() * math.nan), guesses)
    assert random.getstate() == state


def test_evaluate_asked_to_stop_requests_no_further_batch():
    answers = iter([False, False, True])
    policy = WritingPolicy()
    with pytest.raises(EvaluationStopped, match="benchmark 'sums': stopped after 4 of 6 tasks"):
        evaluate(Sums(batch_size=2), policy, should_stop=lambda: next(answers))
    assert [len(prompts) for prompts, _, _ in policy.asked] == [2, 2]
    assert issubclass(EvaluationStopped, HooklineError)


# What is wrong with a subject, a score, the tasks, a benchmark


@pytest.mark.parametrize(
    ("subject", "error", "said"),
    [
        (lambda prompts: prompts[1:], BenchmarkError, "got 6 prompts and returned 5 outputs"),
        (lambda prompts: "123456", BenchmarkError, "returned '123456': return a list with an output for each"),
        (lambda prompts: None, BenchmarkError, "returned None: return a list"),
        (7, OptionError, "subject=7 cannot be evaluated: give a policy, or a function"),
        (WritingPolicy, OptionError, "subject=WritingPolicy is a class"),
    ],
)
def test_evaluate_a_subject_that_does_not_answer_says_what_is_accepted(subject, error, said):
    with pytest.raises(error) as caught:
        evaluate(Sums(), subject)
    assert said in str(caught.value)


def raises(task, output):
    raise KeyError("no key")


@pytest.mark.parametrize(
    ("score", "said"),
    [
        (raises, "score() of task '4' raised KeyError: 'no key'"),
        (lambda task, output: math.nan, "score() of task '4' returned accuracy=nan: return a finite number"),
        (lambda task, output: {"x": math.inf}, "score() of task '4' returned x=inf"),
        (lambda task, output: None, "returned accuracy=None"),
        (lambda task, output: "1", "returned accuracy='1'"),
        (lambda task, output: [1.0, 2.0], "returned accuracy=[1.0, 2.0]"),
        (lambda task, output: {}, "score() of task '4' returned no metric"),
        (lambda task, output: {"n": 1}, "returned a metric called 'n'"),
        (lambda task, output: {3: 1}, "returned a metric called 3"),
        (lambda task, output: {"right": 1}, "score() of task '4' returned right; of task '0' it returned accuracy"),
    ],
)
def test_evaluate_a_score_that_is_none_names_the_task(score, said):
    benchmark = Given(score=lambda task, output: score(task, output) if task.id == "4" else 1.0)
    with pytest.raises(BenchmarkError) as caught:
        evaluate(benchmark, adds_only)
    assert str(caught.value).startswith("benchmark 'given': ")
    assert said in str(caught.value)


@pytest.mark.parametrize("check", [checked_benchmark, lambda benchmark: evaluate(benchmark, adds_only)])
@pytest.mark.parametrize(
    ("tasks", "said"),
    [
        ([], "tasks() returned none"),
        (None, "tasks() raised TypeError"),
        ([Task("a"), Task("b"), Task("a")], "tasks()[0] and tasks()[2] both have the id"),
        ([Task("a"), "b"], "tasks()[1] is 'b', not a Task"),
        ([Task("a", id="x", metadata={"tags": "hard"})], "task 'x': tags='hard': give a mapping"),
        ([Task("a", id="x", metadata={"tags": {"kinds": ["a", "b"]}})], "task 'x': tags="),
    ],
)
def test_tasks_that_cannot_be_scored_are_refused(check, tasks, said):
    benchmark = Given()
    benchmark._tasks = tasks
    with pytest.raises(BenchmarkError) as caught:
        check(benchmark)
    assert said in str(caught.value)


class Nameless(Sums):
    name = None  # type: ignore[assignment]


class Slashed(Sums):
    name = "math/sums"


class Scoreless:
    name = "scoreless"

    def tasks(self):
        return sums()

    def score(self, output):
        return 1.0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            object(),
            "is not a benchmark, it has no name, no tasks(), no score(task, output): give an object with a name",
        ),
        (Scoreless(), "it has no score(task, output):"),
        (Nameless(), "it has no name:"),
        (Slashed(), "name='math/sums': give a non-empty string without '/'"),
        (Sums, "Sums is a class: give a benchmark, Sums(...)"),
    ],
)
def test_checked_benchmark_that_misses_something_says_what(given, said):
    with pytest.raises(OptionError) as caught:
        checked_benchmark(given)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"name": " "}, "name=' ': give a non-empty string"),
        ({"every": 0}, "every=0: give a whole number of at least 1"),
        ({"every": True}, "every=True"),
        ({"batch_size": 2.5}, "batch_size=2.5"),
        ({"max_tokens": -1}, "max_tokens=-1"),
        ({"stop": "\n"}, "stop='\\n': give a list of non-empty strings"),
    ],
)
def test_benchmark_with_an_option_out_of_range_is_refused_however_it_is_set(options, said):
    with pytest.raises(OptionError) as caught:
        Sums(**options)
    assert said in str(caught.value)
    late = Sums()
    vars(late).update(options)
    with pytest.raises(OptionError):
        checked_benchmark(late)


def test_checked_benchmark_of_an_object_with_the_methods_has_all_options():
    made = checked_benchmark(Duck())
    assert [made.name, made.every, made.batch_size, made.max_tokens, made.stop] == ["duck", 5, 64, 64, ()]


# From a configuration


class Capitals(Benchmark):
    """As users write them: with a constructor of their own that knows no options."""

    def __init__(self, country: str = "France"):
        self.country = country

    def tasks(self):
        return [Task(f"The capital of {self.country} is")]

    def score(self, task, output):
        return 1.0


@pytest.mark.parametrize(
    "entry",
    [
        {"arithmetic": {"n": 5, "every": 10}},
        {"use": "arithmetic", "with": {"n": 5, "every": 10}},
        {"use": "hookline.experiment.builtin_benchmarks:ArithmeticBenchmark", "with": {"n": 5, "every": 10}},
    ],
)
def test_make_benchmarks_from_a_mapping_gives_the_settings_to_the_class(entry):
    (made,) = make_benchmarks([entry])
    assert (type(made), made.name, made.n, made.every) == (ArithmeticBenchmark, "arithmetic", 5, 10)  # type: ignore[attr-defined]


def test_make_benchmarks_from_names_and_instances_keeps_their_order():
    mine = Sums()
    made = make_benchmarks(["sorting", mine, {"arithmetic": None}, Duck()])
    assert [benchmark.name for benchmark in made] == ["sorting", "sums", "arithmetic", "duck"]
    assert made[1] is mine
    assert make_benchmarks(None) == make_benchmarks(()) == []


def test_make_benchmarks_of_a_registered_class_sets_options_that_its_constructor_does_not_take():
    register_benchmark("capitals")(Capitals)
    (made,) = make_benchmarks([{"capitals": {"country": "Peru", "every": 3, "max_tokens": 4}}])
    assert (made.name, made.country, made.every, made.max_tokens) == ("capitals", "Peru", 3, 4)  # type: ignore[attr-defined]
    assert checked_benchmark(made) is made


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("arithmatic", "benchmarks[1]: Nothing is registered as 'arithmatic'. Did you mean 'arithmetic'?"),
        ({"arithmetic": {"dificulty": 1}}, "benchmarks[1].arithmetic.dificulty: unknown argument. Did you mean 'diff"),
        ({"sorting": {"length": "4"}}, "benchmarks[1].sorting.length: '4' was given, int is accepted"),
        ({"sorting": {"length": 0}}, "benchmarks[1].sorting: cannot be built: OptionError: length=0: give a whole"),
        ({"sorting": {"every": 0}}, "benchmarks[1].sorting: cannot be built: OptionError: every=0"),
        ({"sorting": {}, "format": {}}, "give {name: {setting: value}}"),
        ({"sorting": [4]}, "give {name: {setting: value}}"),
        ({}, "benchmarks[1]: {} is not a benchmark"),
        ("os:system", "which is not a class with tasks() and score()"),
        ("hookline.nowhere:X", "cannot be imported"),
        ("sums", "benchmarks[1]: Nothing is registered as 'sums'"),
        (7, "benchmarks[1]: 7 is not a benchmark, it has no name"),
        (Sums(), "benchmarks[1]: another benchmark is called 'sums' already. Give one of them another name."),
        (Given([], name="empty"), "benchmarks[1]: benchmark 'empty': tasks() returned none"),
    ],
)
def test_make_benchmarks_from_something_wrong_names_the_entry(entry, said):
    with pytest.raises(ConfigError) as caught:
        make_benchmarks([Sums(), entry])
    assert said in str(caught.value)


@pytest.mark.parametrize("entries", ["sorting", {"sorting": {}}, Sums()])
def test_make_benchmarks_from_no_list_is_refused(entries):
    with pytest.raises(OptionError, match="give a list of benchmarks"):
        make_benchmarks(entries)


def test_make_benchmarks_from_a_file_says_its_line(tmp_path):
    file = tmp_path / "experiment.yaml"
    file.write_text("benchmarks:\n  - sorting\n  - arithmetic:\n      m: 5\n")
    source = read_source(file)
    with pytest.raises(ConfigError, match=r"experiment.yaml:4: benchmarks\[1\].arithmetic.m: unknown argument"):
        make_benchmarks(source.data["benchmarks"], source=source)


def test_register_benchmark_under_a_taken_name_is_refused():
    with pytest.raises(DuplicateError, match="'sorting' is taken"):
        BENCHMARKS.register("sorting")(Sums)


def test_import_benchmarks_loads_no_torch():
    modules = "hookline.experiment.builtin_benchmarks, hookline.experiment.evaluation"
    code = f"import sys, {modules}; print({{'torch', 'numpy'}} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
