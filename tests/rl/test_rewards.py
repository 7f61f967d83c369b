"""Reward functions that record what they give: called as TRL calls them, read back from a run's directory."""

import asyncio
import copy
import functools
import inspect
import logging
import math
import pickle
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

import hookline as hl
from hookline import rewards
from hookline._record.records import Event, Rewards, Sample


@pytest.fixture(autouse=True)
def _nothing_left():
    """Every test begins without a destination and without statistics, and leaves nothing waiting."""
    rewards.record_to(None)
    rewards.reset_statistics()
    yield
    rewards.flush()
    rewards.record_to(None)


class Trainer:
    """Calls reward functions as TRL's GRPOTrainer does."""

    def __init__(self, *functions):
        self.functions = functions
        self.names = [function.__name__ for function in functions]
        self.state = SimpleNamespace(global_step=0)
        self.model = SimpleNamespace(training=True)
        self.logged_metrics, self.logged_extra = [], []

    def _log_metric(self, name, value):
        self.logged_metrics.append((name, value))

    def _log_completion_extra(self, column, values):
        self.logged_extra.append((column, values))

    def score(self, rows, completions):
        """What each function gives; asynchronous ones run together, after the others."""
        arguments = {
            "prompts": [row["prompt"] for row in rows],
            "completions": completions,
            "completion_ids": [[1, 2, 3] for _ in rows],
            **{key: [row[key] for row in rows] for key in rows[0] if key != "prompt"},
            "trainer_state": self.state,
            "log_extra": self._log_completion_extra,
            "log_metric": self._log_metric,
        }
        results = {}
        late = [f for f in self.functions if inspect.iscoroutinefunction(f)]
        for function in (each for each in self.functions if each not in late):
            results[function.__name__] = function(**arguments)

        async def together():
            return await asyncio.gather(*(function(**arguments) for function in late))

        results |= dict(zip([f.__name__ for f in late], asyncio.run(together()) if late else [], strict=True))
        return [results[name] for name in self.names]

    def step(self, rows, completions):
        given = self.score(rows, completions)
        self.state.global_step += 1
        return given

    def evaluate(self, rows, completions):
        self.model.training = False
        given = self.score(rows, completions)
        self.model.training = True
        return given


ROWS = [{"prompt": "1+1?", "answer": "2"}, {"prompt": "2+2?", "answer": "4"}]
GOOD = ["<reasoning>one and one</reasoning><answer>2</answer>", "<answer>5</answer>"]


def correctness(prompts, completions, answer, **columns):
    """Two for the right answer."""
    return [2.0 if f"<answer>{right}<" in text else 0.0 for text, right in zip(completions, answer, strict=True)]


def brevity(completions, **columns):
    return [1 / len(text) for text in completions]


async def judged(completions, **columns):
    await asyncio.sleep(0)
    return [0.25 for _ in completions]


@rewards.logged("decorated")
def decorated(prompts, completions, **columns):
    return [1.0 for _ in completions]


@rewards.logged("decorated_async")
async def decorated_async(prompts, completions, **columns):
    return [1.0 for _ in completions]


def samples(run):
    return [record for record in hl.read(run.dir) if isinstance(record, Sample)]


def quiet_run():
    return hl.run("grpo", summary=False)


def facts(sample):
    return sample.step, sample.axis, sample.prompt, sample.rewards, sample.total


def test_wrap_called_by_trl_records_one_row_per_completion():
    with quiet_run() as run:
        trainer = Trainer(*rewards.wrap([correctness, judged], recorder=run))
        assert trainer.step(ROWS, GOOD) == [[2.0, 0.0], [0.25, 0.25]]
        assert trainer.names == ["correctness", "judged"]
    first, second = samples(run)
    assert facts(first) == (1, "train", "1+1?", {"correctness": 2.0, "judged": 0.25}, 2.25)
    assert facts(second) == (1, "train", "2+2?", {"correctness": 0.0, "judged": 0.25}, 0.25)
    assert (first.completion, first.expected) == (GOOD[0], "2")
    assert (first.reasoning, first.answer, second.reasoning, second.answer) == ("one and one", "2", None, "5")


def test_wrap_steps_of_training_and_evaluation_are_completed_counts():
    with quiet_run() as run:
        trainer = Trainer(*rewards.wrap([correctness], recorder=run))
        trainer.step(ROWS[:1], GOOD[:1])
        trainer.step(ROWS[:1], GOOD[:1])
        trainer.evaluate(ROWS[:1], GOOD[:1])
        trainer.step(ROWS[:1], GOOD[:1])
    assert [(each.axis, each.step) for each in samples(run)] == [("train", 1), ("train", 2), ("eval", 2), ("train", 3)]


def test_wrap_same_batch_twice_in_a_step_is_recorded_twice():
    with quiet_run() as run:
        trainer = Trainer(*rewards.wrap([correctness, brevity], recorder=run))
        trainer.score(ROWS, GOOD)
        trainer.score(ROWS, GOOD)
    assert [len(each.rewards) for each in samples(run)] == [2, 2, 2, 2]


def test_wrap_chats_are_recorded_as_text():
    def polite(prompts, completions, **columns):
        return [float("please" in chat[0]["content"]) for chat in completions]

    prompt = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}]
    with quiet_run() as run:
        trainer = Trainer(*rewards.wrap([polite], recorder=run))
        trainer.step([{"prompt": prompt}], [[{"role": "assistant", "content": "2, please"}]])
    (sample,) = samples(run)
    assert (sample.prompt, sample.completion) == ("system: Be brief.\nuser: 1+1?", "2, please")
    assert sample.rewards == {"polite": 1.0}


def test_wrap_question_id_is_the_same_for_a_question_and_that_of_its_task():
    from hookline.rl.types import Task

    with quiet_run() as run:
        trainer = Trainer(*rewards.wrap([correctness], recorder=run))
        trainer.step(ROWS, GOOD)
        trainer.step(ROWS, GOOD)
    ids = [each.group for each in samples(run)]
    assert ids == [Task("1+1?", "2").id, Task("2+2?", "4").id] * 2


def test_wrap_question_id_of_the_dataset_is_kept():
    with quiet_run() as run:
        trainer = Trainer(*rewards.wrap([correctness], recorder=run))
        trainer.step([{**row, "id": index + 7} for index, row in enumerate(ROWS)], GOOD)
    assert [each.group for each in samples(run)] == ["7", "8"]


def test_wrap_weights_make_the_total_as_trl_does():
    def odd(completions, **columns):
        return [math.nan, None]

    with quiet_run() as run:
        Trainer(*rewards.wrap([correctness, odd], recorder=run, weights=[0.5, 3.0])).step(ROWS, GOOD)
    first, second = samples(run)
    assert (first.total, second.total) == (1.0, 0.0)
    assert math.isnan(first.rewards["odd"])
    assert "odd" not in second.rewards


def test_wrap_function_that_applies_to_nothing_leaves_no_total():
    with quiet_run() as run:
        rewards.wrap({"nothing": lambda completions, **columns: [None]}, recorder=run)[0](completions=["x"])
    assert facts(samples(run)[0]) == (1, "train", "", {}, None)


def test_wrap_without_a_step_counts_batches():
    with quiet_run() as run:
        one, two = rewards.wrap([correctness, brevity], recorder=run)
        for text in ("a", "b"):
            one(["q"], [text], ["a"])
            two(prompts=["q"], completions=[text], answer=["a"])
    assert [(each.step, sorted(each.rewards)) for each in samples(run)] == [
        (1, ["brevity", "correctness"]),
        (2, ["brevity", "correctness"]),
    ]


@pytest.mark.parametrize(("given", "steps"), [(5, [5, 5]), ([5, 6], [5, 6]), (["a", "b"], [1, 1])])
def test_wrap_with_a_step_argument_records_it(given, steps):
    with quiet_run() as run:
        rewards.wrap([brevity], recorder=run)[0](prompts=["q", "r"], completions=["a", "b"], step=given)
    assert [each.step for each in samples(run)] == steps


def test_wrap_hands_on_reward_models_and_their_names():
    class Model:
        def forward(self): ...
        def named_parameters(self): ...

    model = Model()
    wrapped = rewards.wrap(["some/model", model, correctness])
    assert wrapped[:2] == ["some/model", model]
    assert wrapped[2].__name__ == "correctness"


def test_wrap_two_functions_of_one_name_is_an_error_and_a_dict_helps():
    with pytest.raises(hl.DuplicateError, match="called '<lambda>': give a dict"):
        rewards.wrap([lambda **_: [], lambda **_: []])
    named = rewards.wrap({"a": lambda **_: [], "b": lambda **_: []})
    assert [(each.name, each.__name__) for each in named] == [("a", "<lambda>"), ("b", "<lambda>")]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: rewards.wrap(correctness), "give a list of reward functions"),
        (lambda: rewards.wrap([3]), "3 is not a reward function"),
        (lambda: rewards.wrap([correctness], weights=[1, 2]), "one for each of the 1 functions"),
        (lambda: rewards.wrap([correctness], on_error="ignore"), "on_error='ignore': give 'raise' or 'skip'"),
        (lambda: rewards.wrap([correctness], recorder="runs"), "'runs' cannot record rewards"),
        (lambda: rewards.logged(""), "give a name"),
        (lambda: rewards.record_to(3), "3 cannot record rewards"),
    ],
)
def test_wrap_and_logged_refuse_what_they_cannot_use(make, message):
    with pytest.raises(hl.OptionError, match=message):
        make()


def test_logged_keeps_name_signature_and_documentation():
    wrapped = rewards.logged("right")(correctness)
    assert (wrapped.__name__, wrapped.__doc__, wrapped.name) == ("correctness", "Two for the right answer.", "right")
    assert inspect.signature(wrapped) == inspect.signature(correctness)
    assert wrapped.__wrapped__ is correctness
    assert rewards.logged(correctness).name == "correctness"


def test_logged_asynchronous_function_is_seen_as_one():
    class Judge:
        async def __call__(self, completions, **columns):
            return [1.0 for _ in completions]

    for function in (judged, Judge(), functools.partial(judged, extra=1)):
        wrapped = rewards.logged("judge")(function)
        assert inspect.iscoroutinefunction(wrapped)
        assert asyncio.run(wrapped(completions=["a", "b"])) in ([0.25, 0.25], [1.0, 1.0])
    assert not inspect.iscoroutinefunction(rewards.logged(correctness))


def test_logged_object_partial_and_method_have_names_and_work():
    class Scorer:
        def __call__(self, completions, **columns):
            return [3.0 for _ in completions]

        @rewards.logged("method")
        def method(self, completions, **columns):
            return [len(text) for text in completions]

    with quiet_run() as run, rewards.record_to(run):
        assert rewards.logged(Scorer()).__name__ == "Scorer"
        assert rewards.logged(functools.partial(correctness, answer=["2"])).__name__ == "correctness"
        assert rewards.logged(Scorer())(completions=["a"]) == [3.0]
        assert Scorer().method(["four"]) == [4]
        assert Scorer().method.__name__ == "method"
    assert [each.rewards for each in samples(run)] == [{"Scorer": 3.0}, {"method": 4.0}]


def test_logged_result_is_the_very_object_that_the_function_returned(torch):
    tensor = torch.tensor([1.0, 2.0])
    with quiet_run() as run:
        wrapped = rewards.logged("tensor", recorder=run)(lambda completions: tensor)
        assert wrapped(completions=["a", "b"]) is tensor
        rewards.flush()
        generator = rewards.logged("generator", recorder=run)(lambda completions: (True for _ in completions))
        assert generator(completions=["a"]) == [True]
        rewards.flush()
    assert [each.rewards for each in samples(run)] == [{"tensor": 1.0}, {"tensor": 2.0}, {"generator": 1.0}]


def test_logged_functions_are_picklable_if_the_function_is():
    alone = pickle.loads(pickle.dumps(decorated))
    assert alone is decorated
    assert pickle.loads(pickle.dumps(decorated_async)) is decorated_async
    together = rewards.wrap([correctness, decorated, judged, rewards.library.Integer()])
    copies = pickle.loads(pickle.dumps(together))
    assert [(each.name, each.__name__) for each in copies] == [(each.name, each.__name__) for each in together]
    with quiet_run() as run, rewards.record_to(run):
        Trainer(*copies).step(ROWS, GOOD)
    assert [len(each.rewards) for each in samples(run)] == [4, 4]
    assert copy.deepcopy(together[0]) is together[0]


def test_logged_functions_one_by_one_are_joined_in_one_row():
    with quiet_run() as run:
        one, two = (rewards.logged(name, recorder=run) for name in ("one", "two"))
        trainer = Trainer(one(correctness), two(brevity))
        written = []
        for _ in range(3):
            trainer.step(ROWS, GOOD)
            written.append(len(samples(run)))
    assert written == [0, 4, 6]  # with the first batch it is learnt which functions there are
    assert [(each.step, sorted(each.rewards)) for each in samples(run)] == [
        (step, ["one", "two"]) for step in (1, 1, 2, 2, 3, 3)
    ]


def test_wrap_batch_that_a_function_skipped_is_written_when_the_next_begins():
    with quiet_run() as run:
        one, _ = rewards.wrap([correctness, brevity], recorder=run)
        one(["q"], ["a"], ["a"])
        assert samples(run) == []
        one(["q"], ["b"], ["a"])
        assert [each.completion for each in samples(run)] == ["a"]
        rewards.flush()
        rewards.flush()
    assert [each.completion for each in samples(run)] == ["a", "b"]


def test_wrap_function_called_twice_for_a_batch_loses_neither():
    results = iter([[1.0], [2.0]])
    with quiet_run() as run:
        one, _ = rewards.wrap({"one": lambda completions: next(results), "two": brevity}, recorder=run)
        one(completions=["a"])
        one(completions=["a"])
        rewards.flush()
    assert [each.rewards for each in samples(run)] == [{"one": 1.0}, {"one": 2.0}]


def test_wrap_batch_outlives_its_functions():
    with quiet_run() as run:
        rewards.wrap([correctness, brevity], recorder=run)[0](["q"], ["a"], ["a"])
        rewards.flush()
    assert [each.completion for each in samples(run)] == ["a"]


def test_wrap_functions_on_several_threads_share_a_row():
    together = threading.Barrier(3)

    def slow(name):
        def function(completions, **columns):
            together.wait(60)
            return [1.0 for _ in completions]

        return name, function

    with quiet_run() as run:
        functions = rewards.wrap(dict(map(slow, "abc")), recorder=run)
        threads = [threading.Thread(target=each, kwargs={"completions": ["x", "y"]}) for each in functions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [sorted(each.rewards) for each in samples(run)] == [["a", "b", "c"], ["a", "b", "c"]]


def test_wrap_batches_that_overlap_keep_their_rows_apart():
    async def overlapping(functions):
        calls = [
            function(completions=[text], step=step) for function in functions for step, text in ((1, "x"), (2, "y"))
        ]
        await asyncio.gather(*calls)

    with quiet_run() as run:
        asyncio.run(overlapping(rewards.wrap({"a": judged, "b": judged}, recorder=run)))
    assert sorted((each.step, each.completion, sorted(each.rewards)) for each in samples(run)) == [
        (1, "x", ["a", "b"]),
        (2, "y", ["a", "b"]),
    ]


def boom(completions, **columns):
    raise ValueError("no judge today")


def test_function_that_raises_propagates_and_loses_nothing(caplog):
    with quiet_run() as run:
        trainer = Trainer(*rewards.wrap([correctness, boom, brevity], recorder=run))
        with pytest.raises(ValueError, match="^no judge today$"):
            trainer.step(ROWS, GOOD)
        rows = samples(run)
    assert [each.rewards for each in rows] == [{"correctness": 2.0}, {"correctness": 0.0}]
    assert rows[0].extra == {"reward_errors": {"boom": "ValueError: no judge today"}}
    (event,) = [each for each in hl.read(run.dir) if isinstance(each, Event) and each.name == "reward_error"]
    assert (event.step, event.data["function"], event.data["completions"]) == (1, "boom", 2)
    assert caplog.messages[0].startswith("boom: this reward function failed at step 1")
    assert rewards.statistics()["boom"]["errors"] == 1


def test_function_that_raises_with_skip_leaves_the_others_running():
    async def late(completions, **columns):
        raise RuntimeError("no net")

    with quiet_run() as run:
        trainer = Trainer(*rewards.wrap([boom, late, correctness], recorder=run, on_error="skip"))
        assert trainer.step(ROWS, GOOD) == [[None, None], [None, None], [2.0, 0.0]]
    rows = samples(run)
    assert [each.rewards for each in rows] == [{"correctness": 2.0}, {"correctness": 0.0}]
    assert sorted(rows[0].extra["reward_errors"]) == ["boom", "late"]


def test_logged_on_error_skip_returns_none_instead_of_raising():
    assert rewards.logged("boom", on_error="skip")(boom)(completions=["a", "b"]) == [None, None]


def test_function_that_always_fails_is_logged_now_and_then(caplog):
    (skipped,) = rewards.wrap([boom], on_error="skip")
    for _ in range(100):
        skipped(completions=["a"])
    warnings = [each for each in caplog.messages if each.startswith("boom")]
    assert len(warnings) == 5
    assert "100 failures so far" in warnings[-1]


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ([1.0], "^wrong: the reward function returned 1 values; a list with a number or None for each of the 2 "),
        (1.0, "^wrong: the reward function returned 1.0; a list"),
        (None, "^wrong: the reward function returned None"),
        ("ab", "^wrong: the reward function returned 'ab'"),
        ({"a": 1}, "^wrong: the reward function returned"),
        ([1.0, "good"], "^wrong: value 1 that the reward function returned is 'good'"),
        ([1.0, [2.0]], r"^wrong: value 1 that the reward function returned is \[2.0\]"),
        ([1.0, 10**400], "^wrong: value 1 that the reward function returned is larger than a float"),
    ],
)
def test_function_that_returns_something_wrong_is_named(result, message):
    given = {"wrong": lambda completions: result}
    with pytest.raises(rewards.RewardError, match=message):
        rewards.wrap(given)[0](completions=["a", "b"])
    assert rewards.wrap(given, on_error="skip")[0](completions=["a", "b"]) == [None, None]
    assert rewards.statistics()["wrong"]["errors"] == 2


def test_values_that_are_not_finite_are_recorded_counted_and_handed_on(caplog):
    result = [math.nan, math.inf, None, 1.0]
    with quiet_run() as run:
        (function,) = rewards.wrap({"odd": lambda completions: result}, recorder=run)
        assert function(completions=list("abcd")) is result
        (skipping,) = rewards.wrap({"odd": lambda completions: result}, recorder=run, on_error="skip")
        assert skipping(completions=list("abcd")) == [None, None, None, 1.0]
    rows = samples(run)
    assert math.isnan(rows[0].rewards["odd"])
    assert [each.rewards.get("odd") for each in rows[1:4]] == [math.inf, None, 1.0]
    assert math.isnan(rows[4].rewards["odd"])
    assert rewards.statistics()["odd"]["nonfinite"] == 4
    assert caplog.messages[0].startswith("odd: 2 of 4 rewards are NaN or infinite")


def test_interrupt_passes_and_what_was_scored_is_written():
    def interrupted(completions, **columns):
        raise KeyboardInterrupt

    with quiet_run() as run:
        trainer = Trainer(*rewards.wrap([correctness, interrupted], recorder=run, on_error="skip"))
        with pytest.raises(KeyboardInterrupt):
            trainer.step(ROWS, GOOD)
        assert [each.rewards for each in samples(run)] == [{"correctness": 2.0}, {"correctness": 0.0}]
    assert "interrupted" not in rewards.statistics()


def test_recorder_that_fails_never_stops_training(caplog):
    class Broken:
        def log_samples(self, rows):
            raise OSError("disk full")

    before = rewards.lost_rows()
    trainer = Trainer(*rewards.wrap([correctness], recorder=Broken()))
    assert trainer.step(ROWS, GOOD) == [[2.0, 0.0]]
    assert rewards.lost_rows() - before == 2
    assert "2 samples with their rewards could not be recorded: OSError('disk full')" in caplog.messages[0]


def test_arguments_that_cannot_be_read_never_stop_training(caplog):
    class Text:
        def __str__(self):
            raise RuntimeError("unreadable")

    (function,) = rewards.wrap({"any": lambda completions: [1.0]})
    assert function(completions=[Text()]) == [1.0]
    assert rewards.statistics()["any"]["unrecorded"] == 1
    assert caplog.messages[0].startswith("any: the samples of this reward function cannot be recorded")


def test_record_to_takes_a_recorder_or_anything_with_log_samples(tmp_path):
    class Kept(list):
        def log_samples(self, rows):
            self.extend(rows)

    kept = Kept()
    with rewards.record_to(kept) as given:
        assert given is kept
        decorated(["q"], ["a"])
    recorder = hl.Recorder(tmp_path / "run")
    with rewards.record_to(recorder):
        decorated(["q"], ["b"])
    recorder.close()
    assert [(row["completion"], row["rewards"]) for row in kept] == [("a", {"decorated": 1.0})]
    assert [each.completion for each in hl.read(tmp_path / "run") if isinstance(each, Sample)] == ["b"]


def test_record_to_restores_the_previous_destination_after_its_block():
    class Kept(list):
        def log_samples(self, rows):
            self.extend(row["completion"] for row in rows)

    outer, inner = Kept(), Kept()
    rewards.record_to(outer)
    decorated(["q"], ["a"])
    with rewards.record_to(inner):
        decorated(["q"], ["b"])
    decorated(["q"], ["c"])
    rewards.record_to(None)
    decorated(["q"], ["d"])
    assert (outer, inner) == (["a", "c"], ["b"])


def test_logging_gets_rewards_and_outputs_without_another_destination():
    config = {"version": 1, "handlers": {}, "loggers": {}}
    with quiet_run() as run:
        hl.logging.initialize(config, run=run)
        try:
            Trainer(*rewards.wrap([correctness, brevity])).step(ROWS, GOOD)
        finally:
            hl.logging.shutdown()
    records = list(hl.read(run.dir))
    given = {each.name: (each.step, each.values, each.samples) for each in records if isinstance(each, Rewards)}
    rows = samples(run)
    assert given["correctness"] == (1, [2.0, 0.0], [each.group for each in rows])
    assert [each.rewards["correctness"] for each in rows] == [2.0, 0.0]
    assert (rows[0].step, rows[0].expected, rows[0].answer, rows[0].reasoning) == (1, "2", "2", "one and one")


def test_logging_topics_get_rewards_without_a_run(caplog):
    with caplog.at_level(logging.INFO, "hookline.reward"):
        Trainer(*rewards.wrap([correctness])).step(ROWS, GOOD)
    assert caplog.messages == ["step 1: reward correctness=[2, 0]"]


def test_statistics_are_kept_without_any_destination():
    Trainer(*rewards.wrap({"c": correctness})).step(ROWS, GOOD)
    assert rewards.statistics() == {
        "c": {
            "calls": 1,
            "errors": 0,
            "count": 2,
            "missing": 0,
            "nonfinite": 0,
            "positive": 1,
            "unrecorded": 0,
            "mean": 1.0,
            "std": 1.0,
            "min": 0.0,
            "max": 2.0,
        }
    }


def test_statistics_count_rewards_above_zero_as_positive():
    def sign(prompts, completions, **columns):
        return [1.0, 0.0, -1.0, 2.0]

    Trainer(*rewards.wrap({"sign": sign})).step([*ROWS, *ROWS], [*GOOD, *GOOD])
    assert rewards.statistics()["sign"]["positive"] == 2


def test_accuracy_counts_right_answers_sample_by_sample():
    with quiet_run() as run:
        trainer = Trainer(
            *rewards.wrap({"correctness": rewards.library.Correctness(reward=3.0, wrong=-1.0)}, recorder=run)
        )
        trainer.step(ROWS, GOOD)
        trainer.step([*ROWS, {"prompt": "?", "answer": None}], [*GOOD, "<answer>6</answer>"])
        trainer.evaluate(ROWS[:1], GOOD[:1])
    counted = rewards.accuracy(hl.read(run.dir))
    assert counted == rewards.Accuracy(right=3, wrong=2, unscored=1)
    assert (counted.total, counted.value, counted.unscored) == (5, 0.6, 1)
    assert rewards.accuracy(hl.read(run.dir), axis="eval").value == 1.0


def test_accuracy_of_rewards_rows_and_nothing():
    assert rewards.accuracy([2.0, 0.0, None, math.nan, True]) == rewards.Accuracy(2, 1, 2)
    rows = [{"rewards": {"exact": 0.5}}, {"rewards": {"exact": 0.4}}, {"rewards": {}}]
    assert rewards.accuracy(rows, function="exact", above=0.4) == rewards.Accuracy(1, 1, 1)
    assert rewards.accuracy([]).value is None
    assert rewards.Accuracy(1, 2, 3) + rewards.Accuracy(1, 1, 1) == rewards.Accuracy(2, 3, 4)


def test_import_of_rewards_loads_nothing_heavy():
    code = "import sys, hookline.rewards; print(*{'torch', 'numpy', 'yaml', 'asyncio', 'trl'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == []


def test_rows_of_a_program_that_just_ends_are_written(tmp_path):
    code = """
import hookline as hl
from hookline import rewards

@rewards.logged("length")
def length(completions, **columns):
    return [float(len(text)) for text in completions]

run = hl.run("grpo", summary=False)
run.__enter__()
rewards.record_to(run)
one, two = rewards.wrap([length, rewards.library.Integer()])
one(prompts=["q"], completions=["abc"])  # the other function never comes
print(run.dir.resolve())
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    rows = [each for each in hl.read(result.stdout.strip()) if isinstance(each, Sample)]
    assert [each.rewards for each in rows] == [{"length": 3.0}]
