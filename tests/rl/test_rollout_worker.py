"""The rollout worker: its moments, its hooks, its record, resuming it, and everything that can fail in it."""

import asyncio
import functools
import logging
import math
import random
import threading

import pytest
from completion_server import CompletionServer
from scripted_policy import ScriptedPolicy, Unreachable, curriculum, sort_digits, worker

import hookline as hl
from hookline import rl
from hookline._record.blobs import read_blob
from hookline._record.reader import read
from hookline._record.records import Event, Media, Metrics, Sample
from hookline._record.tokens import read_tokens
from hookline.hooks import CheckpointHook, CompositeHook, Hook, LoggingHook, MetricsHook, PeriodicHook
from hookline.rl.environments import Copying, RewardDataset, Sorting
from hookline.testing import RecordingCallback


class Asked(Hook):
    """Keeps the contexts it is asked with, and two numbers drawn from each."""

    def __init__(self):
        self.contexts, self.drawn = [], []

    def should_run(self, context):
        return True

    def run(self, context):
        self.contexts.append(context)
        self.drawn.append(context.split_rng()[0].random())


class NoTasks:
    """An environment that has nothing to ask at some steps."""

    name = "nothing"

    def __init__(self, empty=lambda call: True):
        self.calls, self.empty = 0, empty

    def sample(self, n, rng):
        self.calls += 1
        return [] if self.empty(self.calls) else Sorting(2).sample(n, rng)

    def score(self, task, completion):
        return {"correct": float(completion == task.expected)}


def events_of(made, *names):
    return [record for record in read(made.dir) if isinstance(record, Event) and record.name in names]


def rows_of(made, axis):
    """The rows of an axis, but for what the hooks cost."""
    found = [record for record in read(made.dir) if isinstance(record, Metrics) and record.axis == axis]
    return [(record.step, record.values) for record in found if not any("hooks/" in name for name in record.values)]


def samples_of(made, axis="rollout"):
    return [record for record in read(made.dir) if isinstance(record, Sample) and record.axis == axis]


def written(made, axis="rollout"):
    """What was asked, written and rewarded, at which step."""
    return [(each.step, each.prompt, each.completion, each.rewards, each.advantage) for each in samples_of(made, axis)]


# Moments


def test_worker_moments_of_a_run_come_in_order_with_their_arguments():
    seen = RecordingCallback()
    made = worker(callbacks=[seen], hooks=[])
    made.run(2)
    rollouts = [event.arguments for event in seen.events if event.moment == "on_rollout_end"]
    starts = [event.arguments for event in seen.events if event.moment == "on_rollout_start"]
    step = ["on_rollout_start", "on_rollout_end", "on_log"]
    assert seen.names() == ["on_train_start", *step, *step, "on_train_end"]
    assert starts == [(0, "sort"), (1, "sort")]
    assert [(step_idx, len(made), {type(each) for each in made}) for step_idx, made in rollouts] == [
        (0, 12, {rl.Rollout}),
        (1, 12, {rl.Rollout}),
    ]


def test_worker_on_rollout_end_step_is_counted_and_logs_land_there():
    class Logs(hl.Callback):
        def on_rollout_start(self, loop, step_idx, lesson_id):
            steps.append(("start", step_idx, loop.step))

        def on_rollout_end(self, loop, step_idx, rollouts):
            steps.append(("end", step_idx, loop.step))
            loop.log(longest=max(len(each.completion.text) for each in rollouts))

    steps = []
    made = worker(callbacks=[Logs()], hooks=[], strict=True)
    made.run(2)
    assert steps == [("start", 0, 0), ("end", 0, 1), ("start", 1, 1), ("end", 1, 2)]
    assert [row.step for row in made.history if "longest" in row.metrics] == [1, 2]


def test_worker_rollouts_have_advantages_that_are_zero_on_average_in_each_group():
    class Keeps(hl.Callback):
        def on_rollout_end(self, loop, step_idx, rollouts):
            kept.extend(rollouts)

    kept = []
    worker(callbacks=[Keeps()], hooks=[], strict=True).run(1)
    groups = {each.task.id for each in kept}
    sums = [sum(each.advantage for each in kept if each.task.id == group) for group in groups]
    assert len(groups) == 3
    assert sums == pytest.approx([0.0] * 3)
    assert any(each.advantage for each in kept)


def test_worker_new_weights_fire_their_version_and_mark_the_rollouts():
    seen, policy = RecordingCallback(), ScriptedPolicy()
    made = worker(policy, callbacks=[seen], hooks=[])

    class Updates(Hook):
        def should_run(self, context):
            return context.step == 1

        def run(self, context):
            context.worker.update_weights(7, {})

    made.register_hook(Updates())
    made.run(2)
    events = [event for event in seen.events if event.moment in ("on_weights_update", "on_rollout_end")]
    assert [event.moment for event in events] == ["on_rollout_end", "on_weights_update", "on_rollout_end"]
    assert events[1].arguments == (7,)
    versions = [{each.version for each in event.arguments[1]} for event in (events[0], events[2])]
    assert versions == [{0}, {7}]
    assert [row.metrics["policy/version"] for row in made.history if "policy/version" in row.metrics] == [0, 7]


def test_worker_policy_behind_the_newest_version_is_stale():
    asked = Asked()
    made = worker(hooks=[asked])
    made.latest_version = 3
    made.run(1)
    assert asked.contexts[0].metadata["policy/staleness"] == 3


# Empty rollouts


def test_worker_environment_without_tasks_still_advances_the_step_and_asks_the_hooks():
    asked, seen = Asked(), RecordingCallback()
    made = worker(environment=NoTasks(lambda call: call != 2), hooks=[asked], callbacks=[seen])
    assert made.run(3).step == 3
    assert [event.arguments[1] == [] for event in seen.events if event.moment == "on_rollout_end"] == [
        True,
        False,
        True,
    ]
    assert [context.metadata["rollouts"] for context in asked.contexts] == [0, 12, 0]
    assert asked.contexts[0].metadata["reward"] == 0.0
    assert "reward/mean" not in made.history[0].metrics


def test_worker_policy_failure_advances_the_step_and_is_retried(tmp_path, caplog):
    asked = Asked()
    made = worker(Unreachable(lambda call: call in (1, 2)), hooks=[asked], output_dir=str(tmp_path))
    assert made.run(4).step == 4
    assert [context.metadata["rollouts"] for context in asked.contexts] == [0, 0, 12, 12]
    assert [values.get("faults/policy") for _, values in rows_of(made, "rollout")] == [1, 2, 2, 2]
    assert [(event.step, event.data["error"]) for event in events_of(made, "rollout_failed")] == [
        (1, "no answer to request 1"),
        (2, "no answer to request 2"),
    ]
    assert [record.message.count("no answer to request") for record in caplog.records] == [1]


def test_worker_policy_that_fails_too_often_raises_its_error():
    seen = RecordingCallback()
    made = worker(Unreachable(lambda call: call > 2), callbacks=[seen], hooks=[], rollout={"failures": 3})
    with pytest.raises(rl.PolicyError, match="no answer to request 5"):
        made.run(10)
    assert (made.step, made.state) == (4, "failed")
    assert seen.names()[-1] == "on_exception"


def test_worker_failures_that_are_not_in_a_row_do_not_add_up():
    made = worker(Unreachable(lambda call: call % 2 == 1), hooks=[], rollout={"failures": 2})
    assert made.run(8).metrics["faults/policy"] == 4


# Hooks


def test_hooks_run_once_a_step_with_the_worker_the_step_and_the_lesson():
    asked = Asked()
    made = worker(hooks=[asked])
    made.run(3)
    assert [(each.worker, each.step, each.lesson_id) for each in asked.contexts] == [
        (made, n, "sort") for n in (1, 2, 3)
    ]


def test_hooks_metadata_summarizes_the_rollouts():
    asked = Asked()
    made = worker(
        ScriptedPolicy(lambda prompt, rng: sort_digits(prompt, rng) * 5), hooks=[asked], rollout={"max_tokens": 5}
    )
    made.run(1)
    metadata, row = asked.contexts[0].metadata, made.history[0].metrics
    assert {
        "reward", "reward_mean", "reward_std", "reward/mean", "reward/std", "rewards/correct/mean", "performance",
        "success_rate", "completions/length_mean", "completions/length_max", "completions/truncated", "lesson",
        "tokens", "policy/version", "policy/staleness", "seconds/generate", "seconds/score", "groups/zero_variance",
        "rollouts",
    } <= set(metadata)  # fmt: skip
    assert {name: metadata[name] for name in row} == row
    assert metadata["reward"] == metadata["reward_mean"] == row["reward/mean"]
    assert metadata["performance"] == row["success_rate"]
    assert (metadata["completions/length_max"], metadata["completions/truncated"]) == (5, pytest.approx(0.5, abs=0.4))
    assert metadata["seconds/generate"] > 0


def test_hooks_metadata_reward_and_its_spread_are_those_of_all_completions():
    asked = Asked()
    worker(ScriptedPolicy(functools.partial(sort_digits, chance=1.0)), hooks=[asked]).run(1)
    metadata = asked.contexts[0].metadata
    assert (metadata["reward"], metadata["reward_std"], metadata["performance"]) == (1.0, 0.0, 1.0)
    assert metadata["groups/zero_variance"] == 1.0


def drawn(seed):
    hooks = [Asked(), Asked()]
    worker(hooks=hooks, seed=seed).run(3)
    return [hook.drawn for hook in hooks]


def test_hooks_randomness_differs_by_hook_and_step_and_repeats_with_the_seed():
    once = drawn(seed=1)
    assert len({value for hook in once for value in hook}) == 6
    assert drawn(seed=1) == once
    assert drawn(seed=2) != once


def test_hooks_registered_and_removed_while_running_take_effect_in_the_next_step():
    class Recruits(Hook):
        def should_run(self, context):
            return context.step in (1, 3)

        def run(self, context):
            if context.step == 1:
                context.worker.register_hook(late)
            else:
                assert context.worker.unregister_hook(late)
                assert not context.worker.unregister_hook(late)

    late, recruits = Asked(), Recruits()
    made = worker(hooks=[recruits], strict=True)
    made.run(5)
    assert [context.step for context in late.contexts] == [2, 3]
    assert made.get_hooks() == [recruits]


def test_hooks_cleared_from_inside_one_are_gone():
    class Clears(Hook):
        def should_run(self, context):
            return context.step == 2

        def run(self, context):
            context.worker.clear_hooks()

    asked = Asked()
    made = worker(hooks=[Clears(), asked], strict=True)
    made.run(4)
    assert [context.step for context in asked.contexts] == [1, 2]
    assert made.get_hooks() == []


def test_hooks_that_raise_are_isolated_recorded_and_disabled_after_three_times(tmp_path, caplog):
    def fail(context):
        raise RuntimeError("no such metric")

    asked = Asked()
    made = worker(hooks=[MetricsHook(1, fail), asked], output_dir=str(tmp_path))
    made.run(5)
    assert [context.step for context in asked.contexts] == [1, 2, 3, 4, 5]
    failures = [
        (event.step, event.data["subscriber"], event.data["disabled"]) for event in events_of(made, "hook_error")
    ]
    assert failures == [(1, "metrics_hook", False), (2, "metrics_hook", False), (3, "metrics_hook", True)]
    assert "metrics_hook is DISABLED" in caplog.text


def test_hooks_that_raise_in_a_strict_worker_end_it():
    def fail(context):
        raise RuntimeError("no such metric")

    with pytest.raises(RuntimeError, match="no such metric"):
        worker(hooks=[MetricsHook(1, fail)], strict=True).run(2)


def test_hooks_results_are_recorded_once_at_the_step_of_the_rollout():
    made = worker(hooks=[MetricsHook(2, lambda context: {"twice": 2 * context.step})])
    made.run(4)
    assert [(row.step, row.metrics) for row in made.history if "twice" in row.metrics] == [
        (2, {"twice": 4}),
        (4, {"twice": 8}),
    ]


class Tracks(PeriodicHook):
    """Logs to the tracker, and returns the same."""

    def run(self, context):
        metrics = {"tracked": context.step / 3, "lesson_now": context.lesson_id}
        context.worker.tracker.log(metrics, step=context.step)
        return metrics


def test_hooks_that_log_what_they_return_are_recorded_once():
    seen = RecordingCallback()
    made = worker(hooks=[Tracks(2)], callbacks=[seen])
    made.run(2)
    expected = (2, {"tracked": 2 / 3, "lesson_now": "sort"})
    assert [(row.step, row.metrics) for row in made.history if "tracked" in row.metrics] == [expected]
    assert [
        event.arguments for event in seen.events if event.moment == "on_log" and "tracked" in event.arguments[1]
    ] == [expected]


def test_hooks_that_return_another_value_than_another_logged_are_both_recorded():
    made = worker(hooks=[Tracks(1), MetricsHook(1, lambda context: {"tracked": 5.0})])
    made.run(1)
    rows = [row.metrics for row in made.history if any("tracked" in name for name in row.metrics)]
    assert rows == [{"tracked": 1 / 3, "lesson_now": "sort"}, {"metrics_hook/tracked": 5.0}]


def test_tracker_log_at_another_step_is_recorded_there(tmp_path):
    class Backdates(PeriodicHook):
        def run(self, context):
            context.worker.tracker.log({"earlier": 1.0}, step=1)

    made = worker(hooks=[Backdates(3)], output_dir=str(tmp_path))
    made.run(3)
    assert [row for row in rows_of(made, "rollout") if "earlier" in row[1]] == [(1, {"earlier": 1.0})]


def test_hooks_on_another_thread_give_their_results_before_the_run_ends():
    class Slow(PeriodicHook):
        background = True

        def run(self, context):
            assert gate.wait(60)
            return {"slow": context.step}

        def close(self):
            closed.append(True)

    gate, closed = threading.Event(), []
    opens = MetricsHook(4, lambda context: {"opened": gate.set()})  # type: ignore[func-returns-value]
    made = worker(hooks=[Slow(4), opens], strict=True)
    made.run(4)
    assert [(row.step, row.metrics["slow"]) for row in made.history if "slow" in row.metrics] == [(4, 4)]
    assert closed == [True]


class Late(PeriodicHook):
    """Waits for a gate on another thread before it returns the step that it was asked at."""

    background = True

    def __init__(self, gate):
        super().__init__(1)
        self.gate = gate

    def run(self, context):
        assert self.gate.wait(60)
        return {"late": context.step}


class LateAsync(Late):
    """The same on the event loop."""

    background = False

    async def run(self, context):
        assert await asyncio.to_thread(self.gate.wait, 60)
        return {"late": context.step}


@pytest.mark.parametrize("kind", [Late, LateAsync])
@pytest.mark.parametrize("opened_at", [3, 6])
def test_hooks_on_another_thread_each_result_is_recorded_at_its_own_step(tmp_path, kind, opened_at):
    gate = threading.Event()
    opens = MetricsHook(opened_at, lambda context: {"opened": gate.set()})  # type: ignore[func-returns-value]
    made = worker(hooks=[kind(gate), opens], strict=True, output_dir=str(tmp_path))
    made.run(6)
    rows = sorted((step, values["late"]) for step, values in rows_of(made, "rollout") if "late" in values)
    assert rows == [(step, step) for step in range(1, 7)]


def test_hooks_on_another_thread_with_the_same_key_are_distinguished_at_each_step():
    gate = threading.Event()
    opens = MetricsHook(2, lambda context: {"opened": gate.set()})  # type: ignore[func-returns-value]
    same = MetricsHook(1, lambda context: {"late": 0.5}).configure(name="same")
    made = worker(hooks=[Late(gate), same, opens], strict=True)
    made.run(2)
    rows = [(row.step, name, row.metrics[name]) for row in made.history for name in row.metrics if "late" in name]
    found = sorted(row for row in rows if not row[1].startswith("hooks/"))
    assert found == [(1, "late", 0.5), (1, "late/late", 1), (2, "late", 0.5), (2, "late/late", 2)]


def test_hooks_on_another_thread_that_log_what_they_return_are_recorded_once():
    class TracksLater(Tracks):
        background = True

        def run(self, context):
            metrics = super().run(context)
            assert gate.wait(60)
            return metrics

    gate = threading.Event()
    opens = MetricsHook(3, lambda context: {"opened": gate.set()})  # type: ignore[func-returns-value]
    made = worker(hooks=[TracksLater(1), opens], strict=True)
    made.run(3)
    rows = [(row.step, row.metrics["tracked"]) for row in made.history if "tracked" in row.metrics]
    assert sorted(rows) == [(1, 1 / 3), (2, 2 / 3), (3, 1.0)]


def test_hooks_on_another_thread_of_a_run_that_fails_have_their_results_recorded():
    gate = threading.Event()
    opens = MetricsHook(2, lambda context: {"opened": gate.set()})  # type: ignore[func-returns-value]
    made = worker(Unreachable(lambda call: call == 3), hooks=[Late(gate), opens], rollout={"failures": 1})
    with pytest.raises(rl.PolicyError):
        made.run(5)
    assert sorted((row.step, row.metrics["late"]) for row in made.history if "late" in row.metrics) == [(1, 1), (2, 2)]


def test_media_of_hooks_and_callbacks_are_recorded_at_their_steps(tmp_path):
    image = hl.Image([[0, 255]])
    look = hl.on("rollout_end", lambda loop, step_idx: {"seen": image} if step_idx == 1 else {}, name="look")
    made = worker(hooks=[MetricsHook(2, lambda context: {"map": image})], callbacks=[look], output_dir=str(tmp_path))
    made.run(4)
    found = [record for record in read(made.dir) if isinstance(record, Media)]
    assert sorted((record.name, record.step, record.axis) for record in found) == [
        *(("look/seen", 2, "rollout"), ("map", 2, "rollout"), ("map", 4, "rollout")),
    ]


UNRECORDABLE = [
    {"x": [1, 2]}, {"x": object()}, {"x": b"b"}, {"x": 1 + 2j}, {"a": {3: 1}}, {"": 1}, {3: 4}, {None: 1}, {("a",): 1}
]  # fmt: skip


@pytest.mark.parametrize("values", UNRECORDABLE)
def test_hooks_that_return_what_cannot_be_recorded_are_isolated_named_and_disabled(tmp_path, caplog, values):
    made = worker(hooks=[MetricsHook(1, lambda context: values), asked := Asked()], output_dir=str(tmp_path))
    made.run(4)
    assert [context.step for context in asked.contexts] == [1, 2, 3, 4]
    failures = [(event.step, event.data["subscriber"]) for event in events_of(made, "hook_error")]
    assert failures == [(1, "metrics_hook"), (2, "metrics_hook"), (3, "metrics_hook")]
    cost = made.hooks.costs().by_name()["metrics_hook"]
    assert (cost.calls, cost.errors, cost.disabled) == (3, 3, True)
    assert "metrics_hook is DISABLED" in caplog.text


@pytest.mark.parametrize("values", UNRECORDABLE)
def test_hooks_that_return_one_value_that_cannot_be_recorded_keep_the_others(tmp_path, caplog, values):
    given = {"good": 1.5, "nested": {"good": 2, "bad": [1]}, **values}
    made = worker(hooks=[MetricsHook(1, lambda context: given)], output_dir=str(tmp_path))
    made.run(4)
    rows = [row for row in rows_of(made, "rollout") if "good" in row[1]]
    assert rows == [(step, {"good": 1.5, "nested/good": 2}) for step in (1, 2, 3, 4)]
    assert [message.partition(":")[0] for message in caplog.messages] == [
        "metrics_hook returned a value that cannot be recorded; the others are recorded"
    ]


@pytest.mark.parametrize("options", [{"background": True}, {}])
def test_hooks_that_return_what_cannot_be_recorded_and_are_critical_end_the_run(options):
    made = worker(hooks=[MetricsHook(1, lambda context: {"lengths": [1, 2]}).configure(critical=True, **options)])
    with pytest.raises(hl.OptionError, match="'lengths' is a list") as caught:
        made.run(4)
    assert any("raised by metrics_hook" in note for note in caught.value.__notes__)
    assert made.state == "failed"


def test_hooks_of_a_run_that_fails_are_closed():
    class Closes(Asked):
        def close(self):
            closed.append(True)

    closed = []
    with pytest.raises(rl.PolicyError):
        worker(Unreachable(lambda call: True), hooks=[Closes()], rollout={"failures": 1}).run(2)
    assert closed == [True]


# Evaluations


def test_default_hooks_are_a_micro_evaluation_and_a_full_one_as_the_curriculum_says():
    lessons = curriculum(micro_eval_frequency=5, micro_eval_n_examples=3, eval_frequency=50, eval_n_examples=7)
    hooks = worker(lessons=lessons).get_hooks()
    assert [(each.frequency, each.n_examples, each.eval_type, each.evaluate_all_lessons) for each in hooks] == [  # type: ignore[attr-defined]
        (5, 3, "micro_eval", False),
        (50, 7, "eval", True),
    ]


@pytest.mark.parametrize(
    ("frequencies", "kinds"),
    [((10, 0), ["micro_eval"]), ((0, 10), ["eval"]), ((0, 0), []), ((10, 100), ["micro_eval", "eval"])],
)
def test_default_hooks_a_frequency_of_zero_leaves_one_out(frequencies, kinds):
    lessons = curriculum(micro_eval_frequency=frequencies[0], eval_frequency=frequencies[1])
    assert [hook.eval_type for hook in rl.create_default_evaluation_hooks(lessons)] == kinds  # type: ignore[attr-defined]
    assert [hook.eval_type for hook in worker(lessons=lessons).get_hooks()] == kinds  # type: ignore[attr-defined]


def test_hooks_empty_list_means_no_hooks():
    assert worker(lessons=curriculum(micro_eval_frequency=1), hooks=[]).get_hooks() == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"frequency": 0}, "frequency=0"),
        ({"n_examples": 0}, "n_examples=0: give a whole number of at least 1"),
        ({"eval_type": ""}, "eval_type=''"),
        ({"evaluate_all_lessons": "no"}, "evaluate_all_lessons='no': give True or False"),
    ],
)
def test_evaluation_hook_with_an_invalid_option_raises(options, message):
    with pytest.raises(hl.OptionError, match=message):
        rl.EvaluationHook(**options)


def test_evaluation_hooks_of_a_run_are_recorded_once_each_on_the_axis_of_evaluations(tmp_path):
    lessons = curriculum(
        rl.Lesson("two", Sorting(2)),
        rl.Lesson("copy", Copying(2), depends_on=("two",)),
        micro_eval_frequency=2,
        micro_eval_n_examples=4,
        eval_frequency=4,
        eval_n_examples=5,
    )
    made = worker(lessons=lessons, output_dir=str(tmp_path))
    made.run(4)
    names = ("reward/mean", "success_rate", "completions/length_mean", "examples")
    micro, full = ({f"{kind}/{name}" for name in names} for kind in ("micro_eval/two", "eval/two"))
    copy = {f"eval/copy/{name}" for name in names}
    assert [(step, set(values)) for step, values in rows_of(made, "eval")] == [
        (2, micro), (4, micro), (4, full), (4, copy), (4, {"eval/success_rate"})
    ]  # fmt: skip
    beyond = [values for _, values in rows_of(made, "rollout") if any("eval" in name for name in values)]
    rates = [
        values[f"eval/{lesson}/success_rate"]
        for lesson in ("two", "copy")
        for _, values in rows_of(made, "eval")
        if f"eval/{lesson}/success_rate" in values
    ]
    assert beyond == []
    assert rows_of(made, "eval")[-1] == (4, {"eval/success_rate": sum(rates) / 2})


def test_evaluation_hooks_of_one_kind_at_one_step_are_not_recorded_on_the_rollouts_as_well(tmp_path):
    hooks = [rl.EvaluationHook(5, 4, evaluate_all_lessons=False), rl.EvaluationHook(10, 6, evaluate_all_lessons=False)]
    made = worker(hooks=[CompositeHook(hooks)], output_dir=str(tmp_path))
    made.run(10)
    assert [(step, values["eval/sort/examples"]) for step, values in rows_of(made, "eval")] == [
        (5, 4),
        (10, 4),
        (10, 6),
    ]
    assert not [values for _, values in rows_of(made, "rollout") if any("eval" in name for name in values)]


def test_evaluate_lesson_asks_held_out_tasks_greedily_and_tells(tmp_path):
    class Evaluates(Hook):
        def should_run(self, context):
            return context.step == 2

        def run(self, context):
            found.update(context.worker.evaluate_lesson("sort", 6, "probe"))

    policy, seen, found = ScriptedPolicy(functools.partial(sort_digits, chance=1.0)), RecordingCallback(), {}
    made = worker(policy, hooks=[Evaluates()], callbacks=[seen], output_dir=str(tmp_path))
    made.run(2)
    prompts, n, sampling = policy.requests[-1]
    held_out = {task.prompt for task in Sorting(2).held_out(100, random.Random(0))}
    assert (len(prompts), n, sampling.temperature) == (6, 1, 0.0)
    assert set(prompts) <= held_out
    assert not held_out & {prompt for asked, _, _ in policy.requests[:-1] for prompt in asked}
    assert found["probe/sort/success_rate"] == 1.0
    assert rows_of(made, "eval") == [(2, found)]
    assert [event.arguments for event in seen.events if event.moment == "on_eval"] == [(1, "probe/sort", found)]
    assert [(each.step, each.prompt) for each in samples_of(made, "eval")] == [(2, prompt) for prompt in prompts]


def test_evaluation_of_rollouts_is_an_evaluation_like_any_other():
    lessons = curriculum(rl.Lesson("two", Sorting(2)), rl.Lesson("three", Sorting(3)))
    seen, stopping = RecordingCallback(), hl.callbacks.EarlyStoppingCallback(monitor="eval/success_rate", patience=2)
    hook = rl.EvaluationHook(1, 2)
    policy = ScriptedPolicy(functools.partial(sort_digits, chance=1.0))
    artifacts = worker(policy, lessons=lessons, hooks=[hook], callbacks=[seen, stopping]).run(20)
    assert (artifacts.step, "eval/success_rate" in artifacts.stop_reason) == (3, True)
    events = [event for event in seen.events if event.moment in ("on_log", "on_eval")]
    evaluated = [event.arguments[1] for event in events if event.moment == "on_eval"]
    assert evaluated == ["eval/two", "eval/three", "eval"] * 3
    overall = {"eval/success_rate": 1.0}
    assert [event.moment for event in events if event.arguments[-1] == overall] == ["on_log", "on_eval"] * 3


def test_evaluation_on_another_thread_fires_on_the_loops_thread():
    threads = []
    look = hl.on("eval", lambda loop, i, name: threads.append((name, threading.get_ident())))
    hook = rl.EvaluationHook(1, 2, evaluate_all_lessons=False).configure(background=True)
    worker(hooks=[hook], callbacks=[look]).run(2)
    assert threads == [("eval/sort", threading.get_ident())] * 2


def test_evaluate_curriculum_by_hand_before_and_after_a_run_evaluates_locked_lessons_too(caplog):
    lessons = curriculum(rl.Lesson("two", Sorting(2)), rl.Lesson("three", Sorting(3), depends_on=("two",)))
    made = worker(ScriptedPolicy(functools.partial(sort_digits, chance=1.0)), lessons=lessons)
    before = made.evaluate_curriculum(4)
    assert before == made.evaluate_curriculum(4)
    assert (before["eval/three/success_rate"], before["eval/success_rate"]) == (1.0, 1.0)
    made.run(1)
    assert made.evaluate_curriculum(4)["eval/success_rate"] == 1.0
    assert "has ended: the evaluation eval/two is not recorded" in caplog.text


def test_evaluate_lesson_after_a_recorded_run_still_answers(tmp_path, caplog):
    made = worker(output_dir=str(tmp_path), hooks=[])
    made.run(1)
    assert made.evaluate_lesson("sort", 4)["eval/sort/examples"] == 4
    assert rows_of(made, "eval") == []


def test_evaluate_lesson_of_an_unknown_lesson_names_the_closest():
    with pytest.raises(hl.UnknownNameError, match="no lesson 'sorts'.*'sort'"):
        worker().evaluate_lesson("sorts")


def test_evaluations_whose_policy_fails_cost_the_evaluation_only(caplog):
    lessons = curriculum(micro_eval_frequency=2)
    made = worker(Unreachable(lambda call: call == 3), lessons=lessons)
    assert made.run(4).step == 4
    assert "micro_eval at step 2 is skipped, because the policy failed: no answer to request 3" in caplog.text
    assert made.get_metric("micro_eval/sort/examples") is not None


# The record


def test_record_has_a_row_for_each_step_on_the_axis_of_rollouts(tmp_path):
    made = worker(output_dir=str(tmp_path), hooks=[])
    artifacts = made.run(3)
    rows = rows_of(made, "rollout")
    assert [step for step, _ in rows] == [1, 2, 3]
    assert all(values["lesson"] == "sort" and values["rollouts"] == 12 for _, values in rows)
    assert artifacts.metrics == rows[-1][1]


@pytest.mark.parametrize(("samples", "kept"), [(5, 5), (None, 12), (0, 0), (100, 12)])
def test_record_samples_of_a_step_are_limited_to_the_setting(tmp_path, samples, kept):
    made = worker(output_dir=str(tmp_path), hooks=[], rollout={"samples": samples})
    made.run(2)
    assert [sum(each.step == step for each in samples_of(made)) for step in (1, 2)] == [kept, kept]


def test_record_sample_has_prompt_completion_and_rewards(tmp_path):
    made = worker(ScriptedPolicy(functools.partial(sort_digits, chance=1.0)), output_dir=str(tmp_path), hooks=[])
    made.run(1)
    first = samples_of(made)[0]
    assert (first.step, first.lesson, first.rewards, first.total, first.advantage) == (
        1,
        "sort",
        {"correct": 1.0},
        1.0,
        0.0,
    )
    assert first.completion == first.expected == "".join(sorted(first.prompt[:-1]))
    assert [each.group for each in samples_of(made)] == [each.group for each in samples_of(made)[::4] for _ in range(4)]


def test_record_without_a_directory_keeps_rows_and_samples_in_memory():
    made = worker(hooks=[], rollout={"samples": 2})
    made.run(2)
    assert [row.step for row in made.history] == [1, 2]
    assert [sample["step"] for sample in made.samples] == [1, 1, 2, 2]


def test_record_ends_with_what_each_hook_has_cost(tmp_path):
    made = worker(hooks=[MetricsHook(2, lambda context: {"step": context.step})], output_dir=str(tmp_path))
    made.run(4)
    costs = [row for row in made.history if any(name.startswith("hooks/") for name in row.metrics)]
    assert [(row.step, row.metrics["hooks/metrics_hook/calls"]) for row in costs] == [(4, 2)]


def test_record_lessons_that_are_learnt_and_unlocked_are_events(tmp_path):
    lessons = curriculum(
        rl.Lesson("two", Sorting(2)), rl.Lesson("three", Sorting(3), depends_on=("two",)), min_results=12
    )
    made = worker(
        ScriptedPolicy(functools.partial(sort_digits, chance=1.0)), lessons=lessons, output_dir=str(tmp_path), hooks=[]
    )
    made.run(1)
    events = [(event.name, event.step, event.data) for event in events_of(made, "lesson_graduated", "lesson_unlocked")]
    assert events == [
        ("lesson_graduated", 1, {"lesson": "two", "success_rate": 1.0}),
        ("lesson_unlocked", 1, {"lesson": "three", "success_rate": None}),
    ]


def test_reward_weights_make_the_total(tmp_path):
    def right(prompts, completions, **columns):
        return [1.0] * len(prompts)

    def short(prompts, completions, **columns):
        return [0.5] * len(prompts)

    made = worker(
        environment=dataset(right, short),
        hooks=[],
        output_dir=str(tmp_path),
        rollout={"reward_weights": {"short": 4.0}},
    )
    made.run(1)
    assert {(each.total, *each.rewards.values()) for each in samples_of(made)} == {(3.0, 1.0, 0.5)}
    row = rows_of(made, "rollout")[0][1]
    assert (row["reward/mean"], row["rewards/right/mean"], row["rewards/short/mean"]) == (3.0, 1.0, 0.5)


# The same again


def two_lessons(**options):
    return curriculum(rl.Lesson("two", Sorting(2)), rl.Lesson("three", Sorting(3)), **options)


def trajectory(tmp_path, name, **options):
    made = worker(
        output_dir=str(tmp_path), name=name, rollout={"samples": None}, **({"lessons": two_lessons()} | options)
    )
    made.run(6)
    return written(made)


def test_trajectory_of_the_same_seed_is_the_same_and_of_another_another(tmp_path):
    once = trajectory(tmp_path, "once", seed=3)
    assert trajectory(tmp_path, "again", seed=3) == once
    assert trajectory(tmp_path, "other", seed=4) != once
    assert len(once) == 72


def test_trajectory_with_evaluation_hooks_is_the_one_without(tmp_path):
    evaluated = two_lessons(micro_eval_frequency=1, eval_frequency=2)
    once = trajectory(tmp_path, "without", hooks=[])
    assert trajectory(tmp_path, "with", lessons=evaluated) == once
    assert trajectory(tmp_path, "drawing", hooks=[Asked(), LoggingHook(1)]) == once


def test_trajectory_with_a_model_is_the_same_with_and_without_evaluations(tmp_path, torch):
    from hookline.testing import character_tokenizer, tiny_causal_lm

    def policy():
        tokenizer = character_tokenizer("0123456789>")
        return rl.HFPolicy(tiny_causal_lm(tokenizer, hidden_size=16, layers=1, heads=2), tokenizer)

    once = trajectory(tmp_path, "without", policy=policy(), hooks=[])
    torch.manual_seed(99)
    evaluated = two_lessons(micro_eval_frequency=1, eval_frequency=2)
    assert trajectory(tmp_path, "with", policy=policy(), lessons=evaluated) == once


def test_trajectory_of_workers_with_another_index_differs(tmp_path):
    prompts = [[each[1] for each in trajectory(tmp_path, f"worker{index}", index=index)] for index in (0, 1, 2)]
    assert prompts[0] != prompts[1] != prompts[2] != prompts[0]


class Counts(PeriodicHook):
    """Has a state to keep."""

    def __init__(self, frequency=1):
        super().__init__(frequency)
        self.runs = 0

    def run(self, context):
        self.runs += 1
        return {"runs": self.runs}

    def state_dict(self):
        return {"runs": self.runs}

    def load_state_dict(self, state):
        self.runs = state["runs"]


def test_resume_of_a_worker_makes_the_rollouts_of_one_that_was_not_interrupted(tmp_path):
    class Stops(Hook):
        def should_run(self, context):
            return context.step == 5

        def run(self, context):
            context.worker.request_stop("enough")

    def made(name, *more, **options):
        learnable = curriculum(
            rl.Lesson("two", Sorting(2), threshold=0.4), rl.Lesson("three", Sorting(3), depends_on=("two",)),
            window=24, min_results=24,
        )  # fmt: skip
        hooks = [Counts(), CheckpointHook(3), *more]
        options |= {"output_dir": str(tmp_path), "lessons": learnable, "rollout": {"samples": None}}
        return worker(name=name, hooks=hooks, **options)

    whole, first = made("whole"), made("broken", Stops())
    whole.run(9)
    first.run(9)
    second = made("broken", resume="last")
    second.run(9)
    assert (first.step, first.state, [row.step for row in first.checkpoints]) == (5, "stopped", [3])
    assert (second.dir, second.step) == (first.dir, 9)
    assert written(second) == written(whole)
    assert second.curriculum.state_dict() == whole.curriculum.state_dict()
    steady = [(step, values) for step, values in rows_of(whole, "rollout") if "runs" in values]
    assert [(step, values) for step, values in rows_of(second, "rollout") if "runs" in values] == steady
    assert steady[-1] == (9, {"runs": 9})
    assert {each.lesson for each in samples_of(whole)} == {"two", "three"}


def test_checkpoint_with_a_hook_whose_state_cannot_be_saved_leaves_that_out(tmp_path, caplog):
    class Unsaveable(Counts):
        def state_dict(self):
            return {"lock": threading.Lock()}

    made = worker(hooks=[Unsaveable(), CheckpointHook(2)], output_dir=str(tmp_path))
    made.run(3)
    assert [row.step for row in made.checkpoints] == [2]
    assert "The state of 'unsaveable' cannot be saved: 'lock' is <unlocked" in caplog.text


def test_stop_request_of_a_callback_ends_the_run_after_the_step():
    class Stops(hl.Callback):
        def on_rollout_end(self, loop, step_idx, rollouts):
            if step_idx == 1:
                loop.request_stop("seen enough")

    made = worker(hooks=[], callbacks=[Stops()])
    assert (made.run().stop_reason, made.step, made.state) == ("seen enough", 2, "stopped")


def test_worker_run_twice_raises():
    made = worker(hooks=[])
    made.run(1)
    with pytest.raises(hl.OptionError, match="This worker is completed: make another RolloutWorker"):
        made.run(1)


def test_worker_without_a_policy_or_with_another_config_raises():
    config = rl.RolloutWorkerConfig(curriculum_config=curriculum(), output_dir=None)
    with pytest.raises(hl.OptionError, match=r"policy=None: give an object with generate\(\)"):
        rl.RolloutWorker(config)
    with pytest.raises(hl.OptionError, match="give a RolloutWorkerConfig"):
        rl.RolloutWorker({"curriculum_config": curriculum()}, policy=ScriptedPolicy())


@pytest.mark.parametrize(
    "options", [{"prompts": 0}, {"group_size": 0}, {"samples": -1}, {"failures": 0}, {"top_p": 0.0}]
)
def test_rollout_config_number_out_of_range_raises(options):
    ((name, value),) = options.items()
    with pytest.raises(hl.OptionError, match=f"{name}={value}"):
        rl.RolloutConfig(**options)


# Faults


def dataset(*rewards):
    rows = [{"prompt": f"{number}>", "answer": str(number)} for number in range(40)]
    return RewardDataset(rows, list(rewards))


def fine(prompts, completions, **columns):
    return [float(len(completion) % 2) for completion in completions]


def raises(prompts, completions, **columns):
    raise ValueError("no answer in the text")


def wrong_length(prompts, completions, **columns):
    return [1.0]


def nothing_at_all(prompts, completions, **columns):
    return None


def not_a_number(prompts, completions, **columns):
    return [math.nan] * len(prompts)


def infinite(prompts, completions, **columns):
    return [math.inf] * len(prompts)


@pytest.mark.parametrize(
    ("function", "count", "problem"),
    [
        (raises, 3, "raised ValueError: no answer in the text"),
        (wrong_length, 3, r"returned [1.0], where a list of 12 is accepted"),
        (nothing_at_all, 3, "nothing_at_all"),
        (not_a_number, 36, "gave nan, where a finite number is accepted"),
        (infinite, 36, "gave inf, where a finite number is accepted"),
    ],
)
def test_fault_of_a_reward_function_is_counted_and_the_others_continue(tmp_path, caplog, function, count, problem):
    made = worker(environment=dataset(fine, function), hooks=[], output_dir=str(tmp_path))
    made.run(3)
    name, rows = function.__name__, rows_of(made, "rollout")
    assert rows[-1][1][f"faults/{name}"] == count
    assert [values["rollouts"] for _, values in rows] == [12, 12, 12]
    assert {tuple(each.rewards) for each in samples_of(made)} == {("fine",)}
    (message,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert message.startswith(f"Reward of {name}:")
    assert problem in message


def test_fault_of_the_only_reward_function_leaves_the_step_empty_and_the_run_alive():
    made = worker(environment=dataset(raises), hooks=[])
    made.run(2)
    assert [(row.metrics["rollouts"], row.metrics["faults/raises"]) for row in made.history] == [(0, 1), (0, 2)]


def test_reward_none_is_a_missing_reward_and_no_fault():
    def sometimes(prompts, completions, **columns):
        return [None if index % 2 else 1.0 for index in range(len(prompts))]

    made = worker(environment=dataset(sometimes), hooks=[])
    made.run(1)
    assert made.history[0].metrics["rollouts"] == 6
    assert not [name for name in made.history[0].metrics if name.startswith("faults/")]


def test_fault_of_scoring_that_hangs_is_counted_after_the_time_limit(caplog):
    class Hangs(NoTasks):
        name = "slow_judge"

        def sample(self, n, rng):
            return Sorting(2).sample(n, rng)

        def score(self, task, completion):
            if not back:
                gate.wait(60)
            return super().score(task, completion)

    gate, back = threading.Event(), []

    class Opens(hl.Callback):
        def on_rollout_end(self, loop, step_idx, rollouts):
            back.append(True)

    made = worker(environment=Hangs(), hooks=[], callbacks=[Opens()], rollout={"scoring_seconds": 0.5})
    made.run(2)
    gate.set()
    assert [row.metrics["rollouts"] for row in made.history] == [0, 12]
    assert made.get_metric("faults/slow_judge") == 12
    assert "Reward of slow_judge: took longer than 0.5 s" in caplog.text


def test_fault_of_an_environment_that_raises_while_it_judges_success_is_counted(caplog):
    class Judges(Sorting):
        def succeeded(self, task, rewards):
            raise KeyError("score")

    made = worker(environment=Judges(2), hooks=[])
    made.run(2)
    assert made.get_metric("faults/sorting.succeeded") == 24
    assert [row.metrics["success_rate"] for row in made.history] == [0.0, 0.0]


def test_completions_that_are_empty_or_too_long_are_scored_and_counted(tmp_path):
    def write(prompt, rng):
        return rng.choice(["", "x" * 100])

    made = worker(ScriptedPolicy(write), hooks=[], output_dir=str(tmp_path), rollout={"max_tokens": 6})
    made.run(3)
    texts = [each.completion for each in samples_of(made)]
    assert set(texts) == {"", "xxxxxx"}
    row = rows_of(made, "rollout")[-1][1]
    assert row["completions/length_max"] == 6
    assert row["completions/truncated"] == row["completions/length_mean"] / 6


@pytest.fixture
def server():
    pytest.importorskip("httpx")
    server = CompletionServer()
    yield server
    server.stop()


class Outages(hl.Callback):
    """Takes the server down before one step, and puts it up again before another."""

    def __init__(self, server, down, up=None):
        self.server, self.down, self.up = server, down, up

    def on_rollout_start(self, loop, step_idx, lesson_id):
        if step_idx == self.down:
            self.server.stop()
        if step_idx == self.up:
            self.server.listen()


def served(server, outages, **rollout):
    policy = rl.CompletionsPolicy(server.url, "tiny", patience_seconds=0)
    return worker(policy, hooks=[], callbacks=[outages], rollout=rollout), policy


def test_policy_server_that_is_down_for_a_while_leaves_steps_empty_until_it_is_back(server, caplog):
    made, policy = served(server, Outages(server, down=1, up=3))
    with policy:
        made.run(5)
    assert [row.metrics["rollouts"] for row in made.history] == [12, 0, 0, 12, 12]
    assert made.get_metric("faults/policy") == 2
    assert f"No answer: {server.url}" in caplog.text


def test_policy_server_that_is_down_for_too_long_ends_the_run_with_the_reason(server):
    made, policy = served(server, Outages(server, down=2), failures=3)
    with policy, pytest.raises(rl.PolicyError, match=f"No answer for .*{server.url}.*Start the server"):
        made.run(10)
    assert (made.step, made.state) == (4, "failed")


# What is given wrongly


def test_worker_with_one_hook_instead_of_a_list_raises():
    with pytest.raises(hl.MomentError, match="give a list of hooks"):
        worker(hooks=Asked())


def test_default_hooks_of_another_configuration_raise():
    config = rl.RolloutWorkerConfig(curriculum_config=curriculum())
    with pytest.raises(hl.OptionError, match="give a CurriculumConfig. A RolloutWorkerConfig has one as"):
        rl.create_default_evaluation_hooks(config)


@pytest.mark.parametrize(
    ("tasks", "shown"), [(["1>", "2>"], "'1>'"), ("1>", "'1>'"), (None, "None"), ([rl.Task("1>"), 3], "3")]
)
def test_worker_environment_that_returns_other_things_than_tasks_raises(tasks, shown):
    environment = NoTasks()
    environment.sample = lambda n, rng: tasks
    with pytest.raises(hl.OptionError, match=rf"nothing.sample\(\) gave {shown}: give a list of rl.Task"):
        worker(environment=environment, hooks=[]).run(2)


def test_worker_reward_weight_that_no_reward_goes_by_is_named_once(caplog):
    made = worker(hooks=[], rollout={"reward_weights": {"corect": 2.0, "correct": 1.0}})
    made.run(3)
    warnings = [record.getMessage() for record in caplog.records]
    assert warnings == ["reward_weights: no rollout so far has a reward called 'corect'. Did you mean 'correct'?"]


def test_worker_reward_weight_of_an_unused_lesson_is_named_at_the_end(caplog):
    locked = rl.Lesson("copy", Copying(2), depends_on=("sort",))
    lessons = curriculum(rl.Lesson("sort", Sorting(2), threshold=1.0), locked)
    made = worker(
        ScriptedPolicy(lambda prompt, rng: "x"), lessons=lessons, hooks=[], rollout={"reward_weights": {"exact": 2.0}}
    )
    warnings = []
    made.callbacks.add(hl.on("on_rollout_end", lambda loop: warnings.append(len(caplog.records))))
    made.run(2)
    assert warnings == [0, 0]
    assert ["'exact'" in record.getMessage() for record in caplog.records] == [True]


class Naming(ScriptedPolicy):
    """Knows the texts of its tokens, but for those of some calls."""

    def __init__(self, fails=False):
        super().__init__()
        self.fails, self.named = fails, 0

    def token_texts(self, ids):
        self.named += 1
        if self.fails:
            raise ValueError("no such token")
        return [chr(each) for each in ids]


@pytest.mark.parametrize(("share", "count"), [(0.0, 0), (0.25, 6), (1.0, 24)])
def test_worker_records_tokens_of_a_share_of_its_samples(tmp_path, share, count):
    policy = Naming()
    made = worker(policy, output_dir=str(tmp_path), rollout={"tokens": share, "samples": None})
    made.run(2)
    samples = [record for record in read(made.dir) if isinstance(record, Sample)]
    with_tokens = [each for each in samples if each.tokens]
    assert (len(samples), len(with_tokens), policy.named) == (24, count, count)
    assert {each.finish for each in samples} == {"stop"}
    for each in with_tokens:
        table = read_tokens(read_blob(made.dir, (each.tokens or {})["blob"]))
        assert "".join(table.texts) == each.completion
        assert (table.columns["logprobs"], each.length) == ([-0.5] * each.length, table.count)


def test_worker_tokens_without_texts_are_recorded_by_their_ids(tmp_path, caplog):
    made = worker(Naming(fails=True), output_dir=str(tmp_path), rollout={"tokens": 1.0, "samples": 1})
    made.run(1)
    [sample] = [record for record in read(made.dir) if isinstance(record, Sample)]
    table = read_tokens(read_blob(made.dir, (sample.tokens or {})["blob"]))
    assert (table.texts, "".join(map(chr, table.ids))) == (None, sample.completion)
    assert "no such token" in caplog.text


def test_sample_of_a_rollout_has_the_messages_of_its_task():
    chat = [{"role": "user", "content": "2+2?"}]
    row = rl.Rollout(rl.Task("2+2?", messages=chat), rl.Completion("4", (1,)), version=7).as_sample()
    assert (row["prompt_messages"], row["version"], row["length"], row["finish"]) == (chat, 7, 1, "stop")


@pytest.mark.parametrize("share", [-0.1, 1.5])
def test_share_of_samples_with_tokens_has_limits(share):
    with pytest.raises(hl.OptionError, match="a share from 0 to 1"):
        rl.RolloutConfig(tokens=share)


class Steering(hl.Callback):
    """Sends commands to a worker."""

    def on_rollout_end(self, loop, step_idx):
        control = hl.control(loop)
        if step_idx == 1:
            control.disable("metrics_hook")
        if step_idx == 2:
            with pytest.raises(hl.RefusedError, match="its hooks evaluate lessons"):
                control.validate()
            control.stop("enough")


@pytest.mark.parametrize("resume_commands", ["apply", "drop"])
def test_worker_is_steered_by_commands_at_its_step_boundaries(tmp_path, resume_commands):
    ran = []

    def collect(context):
        ran.append(context.step)
        return {}

    hook = MetricsHook(1, collect)
    options = {"output_dir": str(tmp_path), "max_steps": 9, "resume_commands": resume_commands}
    steered = worker(hooks=[hook], callbacks=[Steering()], **options)
    steered.run()
    assert (steered.step, ran, steered.state) == (3, [1, 2], "stopped")
    assert [(each.step, each.command.name, each.state) for each in hl.control(steered).history()] == [
        (2, "hooks.disable", "applied"),
        (3, "stop", "applied"),
    ]
