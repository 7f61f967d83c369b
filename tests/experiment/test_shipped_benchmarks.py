"""The benchmarks that come with hookline: held-out tasks, tags, and what counts as right."""

import json
import random

import pytest

from hookline._engine.errors import OptionError
from hookline.experiment.benchmark import make_benchmarks
from hookline.experiment.builtin_benchmarks import (
    ArithmeticBenchmark,
    EnvironmentBenchmark,
    FormatBenchmark,
    QuestionsBenchmark,
    SortingBenchmark,
)
from hookline.experiment.evaluation import evaluate
from hookline.rl.environments import Arithmetic, Copying, Sorting
from hookline.rl.types import Task


def calculated(prompts):
    return [str(eval(prompt.removesuffix("="))) for prompt in prompts]


def sorted_digits(prompts):
    return ["".join(sorted(prompt.removesuffix(">"))) for prompt in prompts]


def lines(*rows):
    return "".join(f"{json.dumps(row) if isinstance(row, dict) else row}\n" for row in rows)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "capitals.jsonl"


# Those on environments


@pytest.mark.parametrize(
    ("benchmark", "environment"),
    [
        (ArithmeticBenchmark("medium", 200), Arithmetic("medium")),
        (SortingBenchmark(3, 50), Sorting(3)),
        (FormatBenchmark({"sorting": {"length": 3}}, 50), Sorting(3)),
        (EnvironmentBenchmark({"copying": {"length": 2}}, 30), Copying(2)),
    ],
)
def test_tasks_are_the_same_each_time_and_never_trained_on(benchmark, environment):
    tasks = benchmark.tasks()
    trained = {task.id for task in environment.sample(2000, random.Random(1))}
    assert len(tasks) == benchmark.n
    assert tasks == benchmark.tasks()
    assert not trained & {task.id for task in tasks}


def test_tasks_with_another_seed_are_others():
    assert SortingBenchmark(seed=1).tasks() != SortingBenchmark(seed=2).tasks()


def test_tasks_of_a_small_environment_are_all_that_are_held_out():
    tasks = ArithmeticBenchmark("easy", 100).tasks()
    assert 5 <= len(tasks) == len(Arithmetic("easy").held_out(1000, random.Random(0))) < 20


def test_tasks_of_an_environment_that_holds_nothing_out_are_each_there_once():
    tasks = EnvironmentBenchmark(Copying(1, alphabet="abc", held_out_share=0), 10).tasks()
    assert sorted(task.expected for task in tasks) == ["a", "b", "c"]  # type: ignore[type-var]


def test_arithmetic_is_broken_down_by_operator_and_digits():
    benchmark = ArithmeticBenchmark("hard", 300)
    adds, _ = evaluate(benchmark, lambda prompts: [calculated([each])[0] if "+" in each else "x" for each in prompts])
    signs = [next(sign for sign in "+-*" if sign in task.prompt) for task in benchmark.tasks()]
    assert adds.breakdowns["operator=+"] == {"accuracy": 1.0, "n": signs.count("+")}
    assert adds.breakdowns["operator=*"] == {"accuracy": 0.0, "n": signs.count("*")}
    assert adds.metrics["accuracy"] == pytest.approx(signs.count("+") / 300)
    assert set(adds.tags) <= {f"operator={sign}" for sign in "+-*"} | {f"digits={n}" for n in (1, 2, 3)}
    assert evaluate(benchmark, calculated)[0].metrics == {"accuracy": 1.0}


def test_arithmetic_of_three_numbers_has_both_operators_in_its_tag():
    tags = {task.metadata["tags"]["operator"] for task in ArithmeticBenchmark("expert", 300).tasks()}
    assert tags == {first + second for first in "+-*" for second in "+-*"}


def test_arithmetic_with_the_last_number_takes_sentences():
    benchmark = ArithmeticBenchmark("medium", 20, answer="last_number")
    result, _ = evaluate(benchmark, lambda prompts: [f"It is {text}." for text in calculated(prompts)])
    assert result.metrics == {"accuracy": 1.0}
    assert (benchmark.max_tokens, ArithmeticBenchmark().max_tokens) == (256, 16)


def test_sorting_is_broken_down_by_length_and_repeats():
    benchmark = SortingBenchmark(3, 100)
    without = evaluate(benchmark, lambda prompts: ["".join(sorted(set(p.removesuffix(">")))) for p in prompts])[0]
    once = sum(len(set(task.expected)) == 3 for task in benchmark.tasks())
    assert without.breakdowns == {
        "length=3": {"accuracy": pytest.approx(once / 100), "n": 100},
        "repeats=no": {"accuracy": 1.0, "n": once},
        "repeats=yes": {"accuracy": 0.0, "n": 100 - once},
    }
    assert evaluate(benchmark, sorted_digits)[0].metrics == {"accuracy": 1.0}


def test_sorting_leaves_a_policy_room_for_the_whole_answer():
    assert SortingBenchmark(30).max_tokens > 30


@pytest.mark.parametrize(
    ("write", "correct", "in_format"),
    [
        ("<reasoning>count</reasoning><answer>{}</answer>", 1.0, 1.0),
        ("<answer>{}</answer>", 1.0, 0.0),
        ("<reasoning>count</reasoning><answer>{}0</answer>", 0.0, 1.0),
        ("{}", 0.0, 0.0),
    ],
)
def test_format_scores_the_answer_and_the_format_apart(write, correct, in_format):
    benchmark = FormatBenchmark({"arithmetic": {"difficulty": "medium"}}, 20)
    result, rows = evaluate(
        benchmark, lambda prompts: [write.format(calculated([prompt.split("\n")[0]])[0]) for prompt in prompts]
    )
    assert list(result.metrics.items()) == [("correct", correct), ("format", in_format)]
    assert rows[0]["reward"] == correct
    assert {"operator=+", "operator=-"} < set(result.tags)


def test_format_asks_with_its_template():
    prompt = FormatBenchmark("sorting", template="Sort {prompt}").tasks()[0].prompt
    assert prompt.startswith("Sort ")
    assert prompt.endswith(">")


def test_environment_benchmark_takes_what_the_environment_counts_as_solved():
    class Halves:
        name = "halves"

        def sample(self, n, rng):
            return [Task(str(each)) for each in range(n)]

        def score(self, task, completion):
            return {"first": 0.5, "second": 0.5 * (int(task.prompt) < 3)}

    result, _ = evaluate(EnvironmentBenchmark(Halves(), 4), lambda prompts: prompts)
    assert (result.name, dict(result.metrics), result.tags) == ("halves", {"accuracy": 0.75}, [])


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ArithmeticBenchmark("esay"), "Did you mean 'easy'"),
        (lambda: ArithmeticBenchmark(answer="last"), "give 'exact' or 'last_number'"),
        (lambda: SortingBenchmark(n=0), "n=0: give a whole number"),
        (lambda: FormatBenchmark(template="Sort"), "give a text with {prompt} in it"),
        (lambda: EnvironmentBenchmark(7), "7 is not an environment"),
    ],
)
def test_benchmark_with_wrong_settings_says_what_is_accepted(make, said):
    with pytest.raises(OptionError) as caught:
        make()
    assert said in str(caught.value)


# Questions from a file


def test_questions_are_asked_in_order_with_their_metadata_and_tags(file):
    file.write_text(
        lines(
            {"question": "Capital of France?", "answer": "Paris", "tags": {"continent": "Europe"}, "source": "atlas"},
            "",
            {"id": 12, "question": "Capital of Peru?", "answer": "Lima", "tags": {"continent": "America"}},
        )
    )
    benchmark = QuestionsBenchmark(file)
    result, rows = evaluate(benchmark, lambda prompts: [" Paris\n" for _ in prompts])
    assert benchmark.name == "capitals"
    assert dict(result.breakdowns) == {
        "continent=America": {"accuracy": 0.0, "n": 1},
        "continent=Europe": {"accuracy": 1.0, "n": 1},
    }
    assert [(row["instruction"], row["expected"]) for row in rows] == [
        ("Capital of France?", "Paris"),
        ("Capital of Peru?", "Lima"),
    ]
    assert rows[0]["metadata"] == {"tags": {"continent": "Europe"}, "source": "atlas"}
    assert rows[1]["task_id"] == "12"


@pytest.mark.parametrize(
    ("match", "answer", "right", "wrong"),
    [
        ("exact", "Paris", ["Paris", " Paris\n"], ["paris", "It is Paris", ""]),
        ("contains", "Paris", ["It is Paris.", "Paris"], ["Parisian", "paris", ""]),
        ("contains", "7", ["It's 7!"], ["17", "71"]),
        ("contains", "C++", ["In C++, of course"], ["In C"]),
        ("last_number", "1,007", ["so 3 and 1007", "1,007.0"], ["1008", "1007 or 3", "none"]),
        ("last_number", 7, ["7"], ["8"]),
    ],
)
def test_questions_match_says_what_is_right(file, match, answer, right, wrong):
    file.write_text(lines({"question": "?", "answer": answer}))
    benchmark = QuestionsBenchmark(file, match=match)
    (task,) = benchmark.tasks()
    assert [benchmark.score(task, output) for output in [*right, *wrong]] == [True] * len(right) + [False] * len(wrong)


def test_questions_from_a_configuration_take_other_columns(file):
    file.write_text(lines({"frage": "1+1?", "antwort": 2}))
    settings = {"path": str(file), "question": "frage", "answer": "antwort", "every": 5, "name": "sums"}
    (benchmark,) = make_benchmarks([{"questions": settings}])
    assert (benchmark.name, benchmark.every, benchmark.tasks()) == ("sums", 5, [Task("1+1?", "2")])


GOOD = {"question": "1+1?", "answer": 2}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (lines(GOOD, '{"question": '), "capitals.jsonl:2: is not valid JSON: "),
        (lines(GOOD, "", "[1]"), "capitals.jsonl:3: [1] is not a JSON object. Write {"),
        (lines({"qestion": "?", "answer": "x"}), "capitals.jsonl:1: has no 'question'. Did you mean 'qestion'?"),
        (lines(GOOD, {"question": "?"}), "capitals.jsonl:2: has no 'answer'"),
        (lines({"question": 3, "answer": "x"}), "capitals.jsonl:1: question=3: give a non-empty string"),
        (lines({"question": "?", "answer": None}), "capitals.jsonl:1: answer=None: give a non-empty string"),
        (lines({"question": "?", "answer": " "}), "capitals.jsonl:1: answer=' '"),
        (lines(GOOD | {"tags": "hard"}), "capitals.jsonl:1: tags='hard': give a mapping"),
        (lines(GOOD | {"id": [1]}), "capitals.jsonl:1: id=[1]: give a string or a whole number"),
        (lines(GOOD, "", GOOD), "capitals.jsonl:3: repeats the question of line 1"),
        ("\n\n", "capitals.jsonl: has no questions. Write one JSON object per line"),
        (b"\xff\xfe", "capitals.jsonl: is not UTF-8 text (byte 0)"),
        (None, "capitals.jsonl: cannot be read: No such file"),
    ],
)
def test_questions_from_a_broken_file_say_the_line(file, text, said):
    if text is not None:
        file.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(OptionError) as caught:
        QuestionsBenchmark(file)
    assert said in str(caught.value)


def test_questions_with_the_last_number_need_answers_with_one(file):
    file.write_text(lines(GOOD, {"question": "?", "answer": "Paris"}))
    with pytest.raises(OptionError, match="capitals.jsonl:2: answer='Paris': has no number"):
        QuestionsBenchmark(file, match="last_number")


def test_questions_with_an_unknown_match_suggest_one(file):
    with pytest.raises(OptionError, match="Did you mean 'contains'"):
        QuestionsBenchmark(file, match="contain")
