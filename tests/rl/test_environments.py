"""The environments that come with hookline, how they are built by name, and how batches are scored."""

import functools
import json
import logging
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from waiting import wait_until

from hookline._engine.errors import ConfigError, DuplicateError, OptionError
from hookline.rl.environments import Arithmetic, Copying, Lookup, Reasoning, RewardDataset, Sorting
from hookline.rl.environments.base import ENVIRONMENTS, Faults, evaluation_tasks, make_environment, succeeded
from hookline.rl.environments.text_tasks import answer_of, follows_format, last_number
from hookline.rl.rollouts.scoring import MAX_ABANDONED_THREADS, MAX_CONSECUTIVE_TIMEOUTS, score_batch
from hookline.rl.types import Task

ROWS = [{"prompt": f"{n}+{n}=", "answer": str(2 * n), "topic": "sums"} for n in range(50)]


def rng(seed=0):
    return random.Random(seed)


def correct(prompts, completions, answer, **columns):
    return [float(given == right) for given, right in zip(completions, answer, strict=True)]


def right(environment, task):
    return environment.score(task, task.expected)


# Building by name


@pytest.mark.parametrize(
    "given",
    [
        {"arithmetic": {"difficulty": "hard"}},
        {"use": "arithmetic", "with": {"difficulty": "hard"}},
        {"use": "hookline.rl.environments:Arithmetic", "with": {"difficulty": "hard"}},
    ],
)
def test_make_environment_from_a_mapping_passes_the_settings_to_the_class(given):
    made = make_environment(given)
    assert (type(made), made.difficulty) == (Arithmetic, "hard")


def test_make_environment_from_a_name_takes_the_defaults():
    assert [type(make_environment(given)) for given in ("sorting", {"sorting": None})] == [Sorting, Sorting]


def test_make_environment_from_an_instance_returns_it():
    mine = Sorting()
    assert make_environment(mine) is mine


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("arithmatic", "Did you mean 'arithmetic'"),
        (
            {"arithmetic": {"dificulty": "easy"}},
            "environment.arithmetic.dificulty: unknown argument. Did you mean",
        ),
        ({"arithmetic": {"difficulty": "esay"}}, "esay"),
        ({"sorting": {"length": "4"}}, "'4' was given, int is accepted"),
        ({"sorting": {"length": 0}}, "length=0: give a whole number from 1 to 100"),
        ({"sorting": {}, "copying": {}}, "give {name: {setting: value}}"),
        ({"sorting": [4]}, "give {name: {setting: value}}"),
        ({}, "give {name: {setting: value}}"),
        ("os:system", "cannot be called without arguments"),
        ("os:getpid", "is no environment of a known project"),
        ("hookline.rl.nowhere:X", "cannot be imported"),
        (Sorting, "is not an environment"),
        (7, "7 is not an environment: give a name such as 'sorting'"),
    ],
)
def test_make_environment_from_a_wrong_type_raises_with_accepted_forms(given, text):
    with pytest.raises((ConfigError, OptionError)) as caught:
        make_environment(given)
    assert text in str(caught.value)


def test_register_environment_under_an_existing_name_raises():
    with pytest.raises(DuplicateError, match="'sorting' is taken"):
        ENVIRONMENTS.register("sorting")(Copying)


def test_import_environments_and_curriculum_loads_no_torch():
    modules = "hookline.rl.environments, hookline.rl.rollouts.curriculum, hookline.rl.rollouts.scoring"
    code = f"import sys, {modules}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# Tasks and their held-out part


def test_sorting_task_asks_for_the_digits_in_order():
    task = Sorting().task(3142)
    assert (task.prompt, task.expected) == ("3142>", "1234")
    assert Sorting().task(7).prompt == "0007>"


def test_copying_task_asks_for_the_text_itself():
    assert {(task.prompt, task.expected) for task in Copying(2, alphabet="ab", held_out_share=0).sample(4, rng())} == {
        (f"{text}>", text) for text in ("aa", "ab", "ba", "bb")
    }


@pytest.mark.parametrize(
    ("difficulty", "size", "operators"), [("easy", 100, "+"), ("medium", 20_000, "+-"), ("hard", 3_000_000, "+-*")]
)
def test_arithmetic_difficulty_sets_numbers_and_operators(difficulty, size, operators):
    environment = Arithmetic(difficulty)
    tasks = environment.sample(90, rng())
    assert environment.size == size
    assert {sign for task in tasks for sign in task.prompt if sign in "+-*"} == set(operators)
    assert [task.expected for task in tasks] == [str(eval(task.prompt.removesuffix("="))) for task in tasks]


def test_arithmetic_expert_multiplies_first():
    tasks = Arithmetic("expert").sample(200, rng())
    assert [task.expected for task in tasks] == [str(eval(task.prompt.removesuffix("="))) for task in tasks]
    assert any("+" in task.prompt and "*" in task.prompt for task in tasks)


def test_sample_from_a_small_space_draws_each_task_before_any_repeats():
    environment = Copying(1, alphabet="abc", held_out_share=0)
    ids = [task.id for task in environment.sample(8, rng())]
    assert [len(set(ids[:3])), len(set(ids[3:6])), len(set(ids[6:]))] == [3, 3, 2]


def test_held_out_of_a_small_space_returns_all():
    environment = Arithmetic("easy")
    tasks = environment.held_out(1000, rng())
    assert 1 <= len(tasks) == len({task.id for task in tasks}) < 30
    assert environment.size == len(tasks) + len({task.id for task in environment.sample(500, rng())})


@pytest.mark.parametrize(
    ("environment", "share"), [(Sorting(held_out_share=0.2), 0.2), (Arithmetic(held_out_share=0.5), 0.5)]
)
def test_held_out_share_is_about_the_requested_share(environment, share):
    held_out = len(environment.held_out(environment.size, rng()))
    assert held_out / environment.size == pytest.approx(share, abs=1 / environment.size**0.5)


def test_held_out_tasks_are_the_same_in_another_process():
    code = (
        "import random; from hookline.rl.environments import Sorting;"
        "print(*sorted(task.prompt for task in Sorting(2).held_out(100, random.Random(9))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == sorted(task.prompt for task in Sorting(2).held_out(100, rng()))


def test_task_space_without_a_held_out_task_raises():
    with pytest.raises(OptionError, match="copying: of 2 different tasks, too few are held out"):
        Copying(1, alphabet="ab")


def test_task_space_with_everything_held_out_raises():
    with pytest.raises(OptionError, match="too few are left to train on"):
        Copying(1, alphabet="ab", held_out_share=0.9999)


def test_held_out_of_a_large_space_that_holds_nothing_out_is_an_error_at_once():
    with pytest.raises(OptionError, match="held_out_share=0"):
        Sorting(50, held_out_share=0).held_out(1, rng())


def test_sample_from_a_space_beyond_any_float_works():
    environment = Copying(100, alphabet="".join(map(chr, range(0x4E00, 0x4E00 + 20_000))))
    assert len(environment.sample(4, rng()) + environment.held_out(4, rng())) == 8


@pytest.mark.parametrize("share", [-0.1, 1, 1.5, float("nan"), True])
def test_held_out_share_out_of_range_raises(share):
    with pytest.raises(OptionError, match="held_out_share="):
        Sorting(held_out_share=share)


@pytest.mark.parametrize("alphabet", ["", "aa", "a b", "a>", " a"])
def test_copying_ambiguous_alphabet_raises(alphabet):
    with pytest.raises(OptionError, match="give different characters"):
        Copying(alphabet=alphabet)


def test_evaluation_tasks_are_held_out_tasks_if_there_are_any():
    environment = Sorting(2)
    held_out = {task.id for task in environment.held_out(100, rng())}
    assert {task.id for task in evaluation_tasks(environment, 5, rng())} <= held_out


def test_evaluation_tasks_without_held_out_ones_are_sampled():
    nothing_held_out = Sorting(1, held_out_share=0)
    assert len(evaluation_tasks(nothing_held_out, 4, rng())) == 4
    assert len(evaluation_tasks(Reasoning(nothing_held_out), 4, rng())) == 4
    assert evaluation_tasks(Fixed(), 2, rng()) == Fixed().sample(2, rng())
    assert len(evaluation_tasks(Reasoning(Fixed()), 2, rng())) == 2


# Scores


@pytest.mark.parametrize(
    ("completion", "reward"),
    [("1234", 1.0), (" 1234\n", 1.0), ("1234 5", 0.0), ("1234 1234", 0.0), ("", 0.0), ("1 2 3 4", 0.0)],
)
def test_sorting_score_is_for_the_whole_completion(completion, reward):
    assert Sorting().score(Sorting().task(3142), completion) == {"correct": reward}


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("The answer is 19.", "19"),
        ("12 + 7 = 19", "19"),
        ("20? No, -4", "-4"),
        ("9-4", "4"),
        ("1,019 in all", "1019"),
        ("19.0", "19"),
        ("19.50", "19.50"),
        ("١٩", None),
        ("", None),
    ],
)
def test_last_number_of_a_text_is_found(text, number):
    assert last_number(text) == number


def test_arithmetic_answer_as_last_number_is_found_in_a_sentence():
    task = Task("12+7=", "19")
    text = "12+7 is 18, no, it is 19."
    scores = [Arithmetic(answer=answer).score(task, text) for answer in ("exact", "last_number")]
    assert scores == [{"correct": 0.0}, {"correct": 1.0}]


def test_succeeded_without_a_rule_of_the_environment_needs_a_total_of_one():
    task = Task("a")
    assert [succeeded(Fixed(), task, rewards) for rewards in ({}, {"a": 0.9}, {"a": 0.5, "b": 0.5})] == [
        False,
        False,
        True,
    ]


@pytest.mark.parametrize(
    ("completion", "rewards"),
    [
        ("<reasoning>sort</reasoning><answer>1234</answer>", {"correct": 1.0, "format": 0.5}),
        ("\n<reasoning>a\nb</reasoning>\n<answer>\n1234\n</answer>\n", {"correct": 1.0, "format": 0.5}),
        ("<reasoning>sort</reasoning><answer>4321</answer>", {"correct": 0.0, "format": 0.5}),
        ("so <reasoning>sort</reasoning><answer>1234</answer>", {"correct": 1.0, "format": 0.0}),
        ("<answer>1</answer><answer>1234</answer>", {"correct": 1.0, "format": 0.0}),
        ("<answer>1234</answer><answer>1</answer>", {"correct": 0.0, "format": 0.0}),
        ("<reasoning></reasoning><answer>1234</answer>", {"correct": 1.0, "format": 0.0}),
        ("<answer>1234</answer><reasoning>sort</reasoning>", {"correct": 1.0, "format": 0.0}),
        ("<reasoning>sort<answer>1234</answer></reasoning>", {"correct": 1.0, "format": 0.0}),
        ("1234", {"correct": 0.0, "format": 0.0}),
        ("<answer>1234", {"correct": 0.0, "format": 0.0}),
        ("", {"correct": 0.0, "format": 0.0}),
    ],
)
def test_reasoning_score_is_for_the_last_answer_and_for_the_format(completion, rewards):
    environment = Reasoning("sorting")
    (task,) = [environment._wrapped(Sorting().task(3142))]
    assert environment.score(task, completion) == rewards
    assert environment.succeeded(task, rewards) == (rewards["correct"] == 1.0)


def test_reasoning_format_reward_is_what_a_completion_in_the_format_gets():
    environment = Reasoning("sorting", format_reward=2)
    (task,) = environment.sample(1, rng())
    assert environment.score(task, "<reasoning>a</reasoning><answer>b</answer>")["format"] == 2.0


def test_reasoning_of_many_tags_is_read_in_linear_time():
    many = "<answer>" * 200_000 + "</answer>" * 200_000 + "<reasoning>" * 200_000
    assert (answer_of(many), follows_format(many)) == ("</answer>" * 199_999, False)


def test_reasoning_holds_out_the_same_questions():
    inner, outer = Sorting(2), Reasoning({"sorting": {"length": 2}})
    assert [task.id for task in outer.held_out(5, rng())] == [task.id for task in inner.held_out(5, rng())]
    assert [task.id for task in outer.sample(5, rng())] == [task.id for task in inner.sample(5, rng())]
    (task,) = outer.sample(1, rng())
    assert task.prompt == outer.template.format(prompt=inner.sample(1, rng())[0].prompt)


def test_reasoning_passes_the_answer_and_the_inner_prompt_to_reward_functions():
    seen = []

    def judge(prompts, completions, answer, **columns):
        seen.append((prompts[0], completions[0], columns))
        return [1.0]

    judge.__name__ = "format"
    environment = Reasoning(RewardDataset(ROWS, [judge]))
    (task,) = environment.sample(1, rng())
    rewards = environment.score(task, f"<reasoning>x</reasoning><answer>{task.expected}</answer>")
    assert rewards == {"dataset/format": 1.0, "format": 0.5}
    assert seen == [(f"{int(task.expected) // 2}+{int(task.expected) // 2}=", task.expected, {"topic": ["sums"]})]
    assert environment.succeeded(task, rewards)
    assert environment.faults is environment.environment.faults


@pytest.mark.parametrize(
    "arguments",
    [
        {"environment": Reasoning("sorting")},
        {"environment": "sorting", "template": "no place"},
        {"environment": "sorting", "format_reward": float("nan")},
    ],
)
def test_reasoning_with_invalid_settings_raises(arguments):
    with pytest.raises(OptionError):
        Reasoning(**arguments)


# Reward functions and a data set


def test_dataset_scores_with_each_function_and_all_columns():
    def columns(prompts, completions, **columns):
        assert (prompts, completions) == ([task.prompt], [task.expected])
        assert columns == {"answer": [task.expected], "topic": ["sums"]}
        return [0.25]

    environment = RewardDataset(ROWS, [correct, columns])
    (task,) = environment.sample(1, rng())
    assert right(environment, task) == {"correct": 1.0, "columns": 0.25}
    assert environment.faults == {}


def test_dataset_from_a_file_with_import_paths_equals_one_from_python(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    Path("my_rewards.py").write_text("def never(prompts, completions, **columns):\n    return [0.0] * len(prompts)\n")
    Path("rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)) + "\n\n", encoding="utf-8")
    made = make_environment({"dataset": {"dataset": "rows.jsonl", "rewards": ["my_rewards:never"]}})
    mine = RewardDataset(ROWS, [correct])
    assert made.sample(9, rng()) == mine.sample(9, rng())
    assert right(made, made.sample(1, rng())[0]) == {"never": 0.0}


def test_dataset_row_without_a_column_has_none_there():
    seen = []

    def look(prompts, completions, **columns):
        seen.append(columns)
        return [None] * len(prompts)

    environment = RewardDataset([{"prompt": "a", "answer": 1}, {"prompt": "b", "hint": "x"}], look, held_out_share=0)
    tasks = sorted(environment.sample(2, rng()), key=lambda task: task.prompt)
    assert environment.score_many(tasks, ["", ""]) == [{}, {}]
    assert seen == [{"answer": [1, None], "hint": [None, "x"]}]
    assert ([task.expected for task in tasks], environment.faults) == (["1", None], {})


def raising(prompts, completions, **columns):
    raise LookupError("no such thing")


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError("no text")

    __repr__ = __str__


def raising_without_text(prompts, completions, **columns):
    raise Unspeakable


FAULTY = {
    "raises_without_text": (raising_without_text, "raised Unspeakable."),
    "raises": (raising, "raised LookupError: no such thing"),
    "too_few": (lambda prompts, **_: [1.0], "returned [1.0], where a list of 2 is accepted"),
    "too_many": (lambda prompts, **_: [1.0] * 3, "where a list of 2 is accepted"),
    "nothing": (lambda prompts, **_: None, "raised TypeError"),
    "text": (lambda prompts, **_: "10", "returned '10', where a list of 2 is accepted"),
    "number": (lambda prompts, **_: 1.0, "raised TypeError"),
}


@pytest.mark.parametrize("case", FAULTY)
def test_dataset_function_that_fails_costs_its_rewards_and_is_counted_and_logged_once(case, caplog):
    function, text = FAULTY[case]
    function.__name__ = "judge"
    environment = RewardDataset(ROWS, [correct, function])
    tasks = environment.sample(2, rng())
    for _ in range(3):
        assert environment.score_many(tasks, [tasks[0].expected, ""]) == [{"correct": 1.0}, {"correct": 0.0}]
    assert environment.faults == {"judge": 3}
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "Reward of judge: " in record.getMessage()
    assert text in record.getMessage()


def test_dataset_values_that_are_no_finite_numbers_are_missing(caplog):
    values = [None, float("nan"), float("inf"), "1.0", Unspeakable(), 10**400, True, 2]

    def judge(prompts, completions, **columns):
        return values

    environment = RewardDataset(ROWS, [judge])
    scores = environment.score_many(environment.sample(8, rng()), [""] * 8)
    assert scores == [{}, {}, {}, {}, {}, {}, {"judge": 1.0}, {"judge": 2.0}]
    assert environment.faults == {"judge": 5}
    assert len(caplog.records) == 1


def test_dataset_takes_tensors_and_arrays_from_functions(torch):
    def judge(prompts, completions, **columns):
        return torch.ones(len(prompts))

    environment = RewardDataset(ROWS, [judge])
    assert environment.score_many(environment.sample(2, rng()), ["", ""]) == [{"judge": 1.0}, {"judge": 1.0}]


def test_dataset_function_with_settings_filled_in_keeps_its_name():
    def scaled(prompts, completions, scale, **columns):
        return [scale] * len(prompts)

    environment = RewardDataset(ROWS, [functools.partial(scaled, scale=3.0)], success_total=3.5)
    (task,) = environment.sample(1, rng())
    assert right(environment, task) == {"scaled": 3.0}
    assert not succeeded(environment, task, {"scaled": 3.0})


async def later(prompts, completions, **columns):
    return [0.0]


@pytest.mark.parametrize(
    ("dataset", "rewards", "text"),
    [
        ([], [correct], "has no rows"),
        ({"prompt": ["a"]}, [correct], "give a list of rows"),
        (["a"], [correct], "row 0 is 'a'"),
        ([{"prompt": "a", "answer": "b"}, {"answer": "b"}], [correct], "row 1 is"),
        ([{"prompt": [{"role": "user", "content": "a"}]}, {"prompt": "a"}], [correct], "give one kind"),
        ([{"prompt": [{"content": "a"}]}], [correct], "without a role"),
        ([{"prompt": "a", 1: "b"}], [correct], "row 0 is"),
        ([{"prompt": "a", "completions": "b"}], [correct], "the column 'completions' has the name of another argument"),
        ("nowhere.jsonl", [correct], "nowhere.jsonl: cannot be read: No such file"),
        (ROWS, [], "give at least one"),
        (ROWS, [correct, correct], "two functions are called 'correct'"),
        (ROWS, ["correct"], "give 'package.module:function'"),
        (ROWS, ["nowhere:correct"], "cannot be imported"),
        (ROWS, [7], "7 is not a function"),
        (ROWS, [later], "is not a function that returns rewards"),
        (ROWS, [lambda prompts, completions: []], "got an unexpected keyword argument 'answer'. Take **columns"),
        (ROWS, [lambda prompts, completion_ids, **columns: []], "missing a required argument: 'completion_ids'"),
    ],
)
def test_dataset_invalid_arguments_raise(dataset, rewards, text):
    with pytest.raises(OptionError) as caught:
        RewardDataset(dataset, rewards)
    assert text in str(caught.value)


def test_dataset_file_with_a_broken_line_raises_with_its_number():
    Path("rows.jsonl").write_text('{"prompt": "a"}\n{"prompt": \n')
    with pytest.raises(OptionError, match=r"rows.jsonl:2: is not valid JSON"):
        RewardDataset("rows.jsonl", [correct])


# Batches


class Fixed:
    """The least that an environment is: a name, tasks, and scores by a function."""

    name = "fixed"

    def __init__(self, score=lambda task, completion: {"correct": 1.0}):
        self.score = score

    def sample(self, n, rng):
        return [Task(f"task {index}") for index in range(n)]


@pytest.fixture
def gate():
    """Calls that wait for it hang until the test ends."""
    gate = threading.Event()
    yield gate
    gate.set()
    for thread in scorers():
        thread.join(60)


def scorers():
    return [thread for thread in threading.enumerate() if thread.name == "hookline-scorer"]


def hanging_at(gate, *texts):
    def score(task, completion):
        if completion in texts:
            gate.wait()
        return {"correct": 1.0}

    return Fixed(score)


def batch(environment, completions, **options):
    return score_batch(environment, environment.sample(len(completions), rng()), completions, **options)


@pytest.mark.parametrize("timeout_seconds", [None, 60])
def test_score_batch_returns_the_rewards_in_order(timeout_seconds):
    environment = Fixed(lambda task, completion: {"length": len(completion)})
    scores = batch(environment, ["", "a", "bb"], timeout_seconds=timeout_seconds)
    assert scores == [{"length": 0.0}, {"length": 1.0}, {"length": 2.0}]
    assert batch(environment, [], timeout_seconds=timeout_seconds) == []


@pytest.mark.parametrize("timeout_seconds", [None, 60])
def test_score_batch_with_failing_scores_counts_them_and_continues(timeout_seconds, caplog):
    given = {"raise": None, "list": [1.0], "nan": {"a": float("nan"), "b": 1}, "none": {"a": None}, "good": {"a": 2}}

    def score(task, completion):
        return given[completion] if given[completion] is not None else {}[completion]

    faults = Faults()
    scores = batch(Fixed(score), list(given), timeout_seconds=timeout_seconds, faults=faults)
    assert scores == [{}, {}, {"b": 1.0}, {}, {"a": 2.0}]
    assert faults == {"fixed": 2, "a": 1}
    assert "Reward of fixed: raised KeyError: 'raise'" in caplog.text


def test_score_batch_calls_the_functions_of_a_dataset_once():
    calls = []

    def judge(prompts, completions, **columns):
        calls.append(len(prompts))
        return [1.0] * len(prompts)

    environment = RewardDataset(ROWS, [judge])
    assert batch(environment, ["a"] * 5, timeout_seconds=60) == [{"judge": 1.0}] * 5
    assert calls == [5]


def test_score_batch_abandons_a_call_that_hangs_and_scores_the_rest(gate, caplog):
    faults = Faults()
    environment = hanging_at(gate, "hang")
    scores = batch(environment, ["a", "hang", "b", "hang", "c"], timeout_seconds=1.0, faults=faults)
    assert scores == [{"correct": 1.0}, {}, {"correct": 1.0}, {}, {"correct": 1.0}]
    assert faults == {"fixed": 2}
    assert "Reward of fixed: took longer than 1 s" in caplog.text


def test_score_batch_skips_the_rest_after_several_timeouts_in_a_row(gate):
    asked = []

    def score(task, completion):
        asked.append(completion)
        gate.wait()

    faults = Faults()
    assert batch(Fixed(score), list("abcdefgh"), timeout_seconds=0.2, faults=faults) == [{}] * 8
    assert (asked, faults) == (list("abcdefgh")[:MAX_CONSECUTIVE_TIMEOUTS], {"fixed": 8})


def test_score_batch_leaves_a_bounded_number_of_threads_behind_and_recovers(gate):
    environment = hanging_at(gate, "hang")
    while batch(environment, ["a"], timeout_seconds=60) != [{}]:
        batch(environment, ["hang"], timeout_seconds=0.005)
    wait_until(lambda: len(scorers()) == MAX_ABANDONED_THREADS)  # one that is not stuck may still be ending
    gate.set()
    for thread in scorers():
        thread.join(60)
    assert batch(environment, ["a"], timeout_seconds=60) == [{"correct": 1.0}]


def test_score_batch_of_a_hanging_function_of_a_dataset_is_counted_for_the_environment(gate):
    def judge(prompts, completions, **columns):
        gate.wait()

    environment = RewardDataset(ROWS, [judge])
    assert batch(environment, ["a", "b"], timeout_seconds=0.02) == [{}, {}]
    assert environment.faults == {"dataset": 1}


def test_score_batch_with_a_scorer_that_exits_continues():
    faults = Faults()
    assert batch(Fixed(lambda task, completion: sys.exit(3)), ["a"], timeout_seconds=60, faults=faults) == [{}]
    assert faults == {"fixed": 1}


def test_score_batch_that_hangs_does_not_keep_the_program_from_exiting():
    code = (
        "import threading; from hookline.rl.rollouts.scoring import score_batch\n"
        "from hookline.rl.environments import Sorting\n"
        "class Stuck(Sorting):\n    def score(self, task, completion): threading.Event().wait()\n"
        "print(score_batch(Stuck(), [Sorting().task(1)], [''], timeout_seconds=0.05))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[{}]"


@pytest.mark.parametrize("timeout_seconds", [0, -1, float("nan"), float("inf")])
def test_score_batch_invalid_time_limit_raises(timeout_seconds):
    with pytest.raises(OptionError, match="timeout_seconds="):
        batch(Fixed(), ["a"], timeout_seconds=timeout_seconds)


def test_score_batch_with_another_number_of_tasks_raises():
    with pytest.raises(OptionError, match="1 tasks and 2 completions"):
        score_batch(Fixed(), [Task("a")], ["a", "b"])


def test_lookup_of_two_hops_expects_the_value_of_the_value():
    environment = Lookup(3, hops=2, held_out_share=0.5)
    for task in (*environment.sample(5, rng()), *environment.held_out(5, rng())):
        key = task.prompt.removesuffix("??")
        assert (len(key), task.expected) == (3, environment.value(environment.value(key)))
