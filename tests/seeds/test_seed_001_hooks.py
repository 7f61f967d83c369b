"""Seed 001: hooks that decide (`should_run`) and act (`run`), for a rollout worker and for any loop."""

import dataclasses
import inspect
import json
import logging
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, Optional

import numpy as np
import pytest

import hookline as hl
from hookline.hooks import (
    CheckpointHook,
    CompositeHook,
    Hook,
    HookContext,
    HookManager,
    LoggingHook,
    MetricsHook,
    PeriodicHook,
    load_hooks,
)
from hookline.rl.hooks import EvaluationHook as EvaluatesForReal
from hookline.testing import FakeLoop, check_callback


class Tracker:
    """What a worker logs to."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, Any]]] = []

    def log(self, metrics: dict[str, Any], step: int) -> None:
        self.rows.append((step, dict(metrics)))


class Worker:
    """Stands in for a RolloutWorker: runs its hooks once a step."""

    def __init__(self, *hooks: Hook, lesson_id: str | None = None, strict: bool = True) -> None:
        self.hooks = HookManager(hooks, strict=strict)
        self.tracker = Tracker()
        self.lesson_id = lesson_id
        self.step = 0
        self.register_hook = self.hooks.register_hook
        self.unregister_hook = self.hooks.unregister_hook
        self.clear_hooks = self.hooks.clear_hooks
        self.get_hooks = self.hooks.get_hooks

    def run(self, steps: int, **metadata: Any) -> list[tuple[int, dict[str, Any]]]:
        """Make steps, and return the results of those at which a hook gave one."""
        results = []
        for _ in range(steps):
            self.step += 1
            context = HookContext(self, self.step, random.Random(self.step), self.lesson_id, dict(metadata))
            results.append((self.step, self.hooks.run_hooks(context)))
        return [(step, result) for step, result in results if result]


class CustomMonitoringHook(PeriodicHook):
    """Monitor rollout generation health."""

    def __init__(self):
        super().__init__(frequency=25)
        self.metrics = []

    def run(self, context: HookContext) -> Optional[dict[str, Any]]:  # noqa: UP045 - as the seed writes it
        metrics = {
            "monitoring.step": context.step,
            "monitoring.lesson": context.lesson_id,
            "monitoring.timestamp": time.time(),
        }
        self.metrics.append(metrics)
        context.worker.tracker.log(metrics, step=context.step)
        return metrics


class ConfigurableHook(PeriodicHook):
    def __init__(self, frequency=100, threshold=0.9, enabled=True):
        super().__init__(frequency)
        self.threshold = threshold
        self.enabled = enabled

    def should_run(self, context):
        return self.enabled and super().should_run(context)

    def run(self, context):
        return {"above": context.metadata["reward"] > self.threshold}


class ConditionalHook(Hook):
    def should_run(self, context):
        # Run only when specific conditions are met
        return (
            context.step > 1000 and context.lesson_id == "advanced_lesson" and context.metadata.get("performance") > 0.8
        )

    def run(self, context):
        return {"ran_at": context.step}


class StatefulHook(PeriodicHook):
    def __init__(self):
        super().__init__(frequency=50)
        self.state = {"runs": 0, "total_reward": 0}

    def run(self, context):
        self.state["runs"] += 1
        reward = context.metadata.get("reward", 0)
        self.state["total_reward"] += reward
        return {"avg_reward": self.state["total_reward"] / self.state["runs"]}


class EvaluationHook(PeriodicHook):
    """Stands in for the evaluation of a curriculum."""

    def __init__(self, frequency, n_examples=64, eval_type="eval", evaluate_all_lessons=False):
        super().__init__(frequency)
        self.n_examples, self.eval_type, self.evaluate_all_lessons = n_examples, eval_type, evaluate_all_lessons

    def run(self, context):
        return {f"{self.eval_type}.n_examples": self.n_examples}


class Calls(PeriodicHook):
    """Writes its label into a list that it shares with others."""

    def __init__(self, label: str, seen: list[Any], frequency: int = 1, **options: Any) -> None:
        super().__init__(frequency)
        self.label, self.seen = label, seen
        self.configure(**options)

    def run(self, context):
        self.seen.append(self.label)


# The base class, the context and the manager


def test_hook_without_should_run_or_run_cannot_be_made():
    class OnlyDecides(Hook):
        def should_run(self, context):
            return True

    assert Hook.__abstractmethods__ == {"should_run", "run"}
    with pytest.raises(TypeError, match="abstract method '?run'?"):
        OnlyDecides()  # type: ignore[abstract]


def test_hook_context_fields_and_defaults_are_those_of_the_seed():
    context = HookContext(worker="worker", step=100, rng="rng")
    assert dataclasses.asdict(context) == {
        "worker": "worker",
        "step": 100,
        "rng": "rng",
        "lesson_id": None,
        "metadata": {},
    }


def test_hook_context_metadata_of_two_contexts_is_not_shared():
    one, other = HookContext("worker", 1), HookContext("worker", 2)
    one.metadata["reward"] = 1.0
    assert other.metadata == {}


def test_hook_manager_signatures_take_the_hook_or_the_context():
    parameters = {
        name: list(inspect.signature(getattr(HookManager, name)).parameters)[1:2]
        for name in ("register_hook", "unregister_hook", "clear_hooks", "run_hooks")
    }
    assert parameters == {
        "register_hook": ["hook"],
        "unregister_hook": ["hook"],
        "clear_hooks": [],
        "run_hooks": ["context"],
    }


def test_hook_manager_run_hooks_merges_the_results_of_those_that_are_due():
    metrics = [MetricsHook(n, lambda context, n=n: {f"every_{n}": context.step}) for n in (2, 3)]
    assert Worker(*metrics).run(6) == [
        (2, {"every_2": 2}),
        (3, {"every_3": 3}),
        (4, {"every_2": 4}),
        (6, {"every_2": 6, "every_3": 6}),
    ]


def test_hook_manager_two_hooks_with_one_key_both_are_kept():
    class MicroEvaluationHook(EvaluationHook):
        pass

    worker = Worker(EvaluationHook(5, n_examples=64), MicroEvaluationHook(5, n_examples=8))
    assert worker.run(5) == [(5, {"eval.n_examples": 64, "micro_evaluation_hook/eval.n_examples": 8})]


def test_hook_manager_hook_that_returns_nothing_adds_nothing():
    seen = []
    worker = Worker(Calls("quiet", seen))
    assert worker.run(2) == []
    assert seen == ["quiet", "quiet"]


def test_hook_manager_failing_hook_is_isolated_and_the_others_results_are_kept(caplog):
    def fail(context):
        raise RuntimeError("no reward server")

    worker = Worker(MetricsHook(1, fail), MetricsHook(1, lambda context: {"step": context.step}), strict=False)
    assert worker.run(5) == [(step, {"step": step}) for step in range(1, 6)]
    assert "metrics_hook failed at run_hook, step 1: RuntimeError: no reward server" in caplog.text
    assert "metrics_hook is DISABLED" in caplog.text


def test_hook_manager_something_that_is_no_hook_is_refused():
    manager = HookManager()
    with pytest.raises(hl.MomentError, match="is not a hook"):
        manager.register_hook(lambda context: {})
    assert len(manager) == 0


# Randomness


def numpy_rng() -> tuple[Any, Callable[[Any], Any]]:
    return np.random.default_rng(42), lambda rng: rng.random()


def torch_rng() -> tuple[Any, Callable[[Any], Any]]:
    import torch

    return torch.Generator().manual_seed(42), lambda rng: torch.rand((), generator=rng).item()


def random_rng() -> tuple[Any, Callable[[Any], Any]]:
    return random.Random(42), lambda rng: rng.random()


def jax_key() -> tuple[Any, Callable[[Any], Any]]:
    import jax.random as jrandom

    return jrandom.PRNGKey(42), lambda rng: float(jrandom.uniform(rng))


def jax_typed_key() -> tuple[Any, Callable[[Any], Any]]:
    import jax.random as jrandom

    return jrandom.key(42), lambda rng: float(jrandom.uniform(rng))


LIBRARIES = [numpy_rng, torch_rng, random_rng, jax_key, jax_typed_key]


class DrawingHook(Hook):
    """Splits the context's generator and draws from both halves."""

    def __init__(self, draw):
        self.draw = draw
        self.drawn = []

    def should_run(self, context):
        return True

    def run(self, context):
        self.drawn += [self.draw(rng) for rng in context.split_rng()]


@pytest.mark.parametrize("library", LIBRARIES)
def test_split_rng_every_time_gives_two_fresh_generators_of_its_kind(library):
    rng, draw = library()
    context = HookContext("worker", 1, rng)
    generators = [generator for _ in range(3) for generator in context.split_rng()]
    assert all(type(generator) is type(rng) for generator in generators)
    assert len({draw(generator) for generator in generators}) == 6


@pytest.mark.parametrize("library", LIBRARIES)
def test_split_rng_in_two_hooks_of_a_manager_gives_them_different_randomness(library):
    rng, draw = library()
    first, second, nested = DrawingHook(draw), DrawingHook(draw), DrawingHook(draw)
    HookManager([first, second, CompositeHook([nested])], strict=True).run_hooks(HookContext("worker", 1, rng))
    assert [len(hook.drawn) for hook in (first, second, nested)] == [2, 2, 2]
    assert len({*first.drawn, *second.drawn, *nested.drawn}) == 6


@pytest.mark.parametrize("library", LIBRARIES)
def test_split_rng_from_the_same_seed_is_the_same_again(library):
    (rng, draw), (twin, _) = library(), library()
    once = [draw(generator) for generator in HookContext("worker", 1, rng).split_rng()]
    again = [draw(generator) for generator in HookContext("worker", 1, twin).split_rng()]
    assert once == again


def test_split_rng_in_two_hooks_of_a_run_gives_them_different_randomness():
    hooks = [DrawingHook(lambda rng: rng.random()) for _ in range(2)]
    with hl.run(callbacks=hooks, strict=True, summary=False) as run:
        for _ in run.steps(3):
            pass
    assert len({value for hook in hooks for value in hook.drawn}) == 12


def test_split_rng_of_something_else_says_what_is_accepted():
    with pytest.raises(hl.OptionError, match=r"rng=None cannot be split; give a numpy\.random\.Generator"):
        HookContext("worker", 1).split_rng()


# Periodic and built-in hooks


@pytest.mark.parametrize(
    ("arguments", "steps"),
    [
        ({"frequency": 10}, [10, 20, 30, 40]),
        ({"frequency": 10, "start_step": 20}, [30, 40]),
        ({"frequency": 15, "start_step": 5}, [15, 30]),
        ({"frequency": 1, "start_step": 37}, [38, 39, 40]),
    ],
)
def test_periodic_hook_frequency_and_start_step_decide_alone_in_a_worker_and_in_a_run(arguments, steps):
    class Probe(PeriodicHook):
        def run(self, context):
            return {"step": context.step}

    with hl.run(callbacks=[Probe(**arguments)], strict=True, summary=False) as run:
        for _ in run.steps(40):
            pass
    assert [step for step in range(41) if Probe(**arguments).should_run(HookContext(None, step))] == steps
    assert [step for step, _ in Worker(Probe(**arguments)).run(40)] == steps
    assert [row.metrics["probe/step"] for row in run.history if row.metrics] == steps


def test_periodic_hook_keeps_frequency_and_start_step():
    class Probe(PeriodicHook):
        def run(self, context):
            return None

    assert vars(Probe(10)) == {"frequency": 10, "start_step": 0}
    assert list(inspect.signature(PeriodicHook).parameters) == ["frequency", "start_step"]


@pytest.mark.parametrize("frequency", [0, -1, 2.5, True])
def test_periodic_hook_impossible_frequency_is_an_error_when_made(frequency):
    with pytest.raises(hl.OptionError, match=rf"LoggingHook\(frequency={frequency}.*at least 1"):
        LoggingHook(frequency=frequency)


def test_periodic_hook_frequency_changed_while_running_holds_from_then_on():
    seen = []
    hook = Calls("ran", seen, frequency=100)
    worker = Worker(hook)
    worker.run(5)
    hook.frequency = 10
    worker.run(25)
    assert len(seen) == 3


def test_logging_hook_every_so_often_logs_the_workers_state(caplog):
    caplog.set_level(logging.INFO, logger="hookline.hooks")
    Worker(LoggingHook(frequency=100), lesson_id="basic").run(250, reward=0.5)
    assert caplog.messages == ["step 100, lesson basic, reward=0.5", "step 200, lesson basic, reward=0.5"]


def test_metrics_hook_collects_custom_metrics_from_the_context():
    hook = MetricsHook(frequency=25, metrics_fn=lambda context: {"twice": 2 * context.metadata["reward"]})
    assert Worker(hook).run(50, reward=0.5) == [(25, {"twice": 1.0}), (50, {"twice": 1.0})]


def test_checkpoint_hook_in_a_run_saves_checkpoints_at_intervals(tmp_path):
    with hl.run(callbacks=[CheckpointHook(frequency=2)], root=tmp_path, strict=True, summary=False) as run:
        for _ in run.steps(5):
            pass
    assert [row.step for row in run.checkpoints] == [2, 4]
    assert [row.path.name for row in run.checkpoints] == [path.name for path in sorted(run.dir.glob("checkpoints/*"))]


def test_checkpoint_hook_asks_the_worker_for_a_checkpoint():
    loop = FakeLoop(step=9, callbacks=[CheckpointHook(frequency=10)])
    loop.run_steps(1)
    assert loop.checkpoint_requested


@pytest.mark.parametrize(
    "factory",
    [
        StatefulHook,
        lambda: LoggingHook(frequency=2),
        lambda: MetricsHook(frequency=2, metrics_fn=lambda context: dict(context.metadata)),
        lambda: CheckpointHook(frequency=2),
        lambda: CompositeHook([LoggingHook(frequency=2), StatefulHook()]),
    ],
    ids=["stateful", "logging", "metrics", "checkpoint", "composite"],
)
def test_built_in_and_stateful_hooks_behave_as_any_subscriber_must(factory):
    check_callback(factory)


# The examples


def test_basic_usage_registers_evaluation_and_logging(caplog):
    caplog.set_level(logging.INFO, logger="hookline.hooks")
    worker = Worker()
    custom_eval = EvaluationHook(frequency=50, n_examples=32, eval_type="custom_eval")
    worker.register_hook(custom_eval)
    logging_hook = LoggingHook(frequency=100)
    worker.register_hook(logging_hook)
    assert worker.run(100) == [(50, {"custom_eval.n_examples": 32}), (100, {"custom_eval.n_examples": 32})]
    assert caplog.messages == ["step 100"]
    assert worker.get_hooks() == [custom_eval, logging_hook]


def test_custom_monitoring_hook_logs_to_the_workers_tracker_and_returns_the_metrics():
    worker, hook = Worker(lesson_id="basic"), CustomMonitoringHook()
    worker.register_hook(hook)
    results = worker.run(60)
    assert worker.tracker.rows == results == list(zip([25, 50], hook.metrics, strict=True))
    assert [{**row, "monitoring.timestamp": None} for _, row in results] == [
        {"monitoring.step": step, "monitoring.lesson": "basic", "monitoring.timestamp": None} for step in (25, 50)
    ]


def test_custom_monitoring_hook_in_a_run_is_recorded_under_its_name():
    hook = CustomMonitoringHook()
    with hl.run(callbacks=[hook], strict=True, summary=False) as run:
        run.tracker, run.lesson_id = Tracker(), "basic"  # type: ignore[attr-defined]
        for _ in run.steps(50):
            pass
    recorded = [(row.step, row.metrics) for row in run.history if row.metrics]
    assert recorded == [
        (step, {f"custom_monitoring_hook/{key}": value for key, value in metrics.items()})
        for step, metrics in run.tracker.rows  # type: ignore[attr-defined]
    ]
    assert [step for step, _ in recorded] == [25, 50]


def test_test_evaluation_hook_instead_of_monkey_patching_sees_every_fifth_step():
    class TestEvaluationHook(Hook):
        def __init__(self):
            self.evaluations = []

        def should_run(self, context):
            return context.step % 5 == 0

        def run(self, context):
            result = {"test_eval": context.step}
            self.evaluations.append(result)
            return result

    worker = Worker()
    test_hook = TestEvaluationHook()
    worker.register_hook(test_hook)
    worker.run(12)
    assert worker.unregister_hook(test_hook)
    worker.run(12)
    assert test_hook.evaluations == [{"test_eval": 5}, {"test_eval": 10}]


def test_custom_hook_unit_test_with_a_jax_key_and_a_mock_worker():
    import jax.random as jrandom

    hook = StatefulHook()
    context = HookContext(worker=FakeLoop(), step=100, rng=jrandom.PRNGKey(42))
    assert hook.should_run(context)
    result = hook.run(context)
    assert "avg_reward" in result


def test_dynamic_hook_management_adds_removes_clears_and_gets():
    class HealthMonitoringHook(Calls):
        pass

    seen = []
    worker = Worker(Calls("default", seen))
    health_monitor = HealthMonitoringHook("health", seen)
    worker.run(1)
    worker.register_hook(health_monitor)
    worker.run(1)
    current_hooks = worker.get_hooks()
    assert worker.unregister_hook(health_monitor)
    worker.run(1)
    worker.clear_hooks()
    worker.run(1)
    assert seen == ["default", "default", "health", "default"]
    assert [type(hook) for hook in current_hooks] == [Calls, HealthMonitoringHook]
    assert worker.get_hooks() == []


def test_unregister_hook_that_is_not_there_returns_false():
    worker = Worker(StatefulHook())
    assert worker.unregister_hook(StatefulHook()) is False
    assert len(worker.get_hooks()) == 1


def test_get_hooks_changing_the_list_changes_nothing():
    worker = Worker(StatefulHook())
    worker.get_hooks().clear()
    assert len(worker.get_hooks()) == 1


def test_unregister_hook_with_an_equal_twin_takes_out_this_very_one():
    @dataclasses.dataclass
    class EqualHook(Hook):
        n: int = 0

        def should_run(self, context):
            return True

        def run(self, context):
            return None

    twins = [EqualHook(), EqualHook(), EqualHook()]
    worker = Worker(*twins)
    assert twins[0] == twins[1]
    assert worker.unregister_hook(twins[1])
    assert [hook is twin for hook, twin in zip(worker.get_hooks(), [twins[0], twins[2]], strict=True)] == [True, True]


def test_hook_that_removes_itself_while_running_does_not_skip_the_next():
    seen = []

    class OneShot(Calls):
        def run(self, context):
            super().run(context)
            context.worker.unregister_hook(self)

    worker = Worker(OneShot("once", seen), Calls("next", seen), Calls("last", seen))
    worker.run(2)
    assert seen == ["once", "next", "last", "next", "last"]


def test_hook_that_registers_another_while_running_has_it_from_the_next_step_on():
    seen = []

    class Recruiter(Calls):
        def run(self, context):
            super().run(context)
            if context.step == 1:
                context.worker.register_hook(Calls("recruit", seen))

    Worker(Recruiter("recruiter", seen)).run(2)
    assert seen == ["recruiter", "recruiter", "recruit"]


def test_unnamed_hooks_of_one_class_run_and_keep_their_results():
    class Unnamed(Hook):
        def should_run(self, context):
            return True

        def run(self, context):
            return {"ran": context.step}

    assert Worker(Unnamed(), Unnamed()).run(1) == [(1, {"ran": 1, "unnamed_2/ran": 1})]


def test_configurable_hook_disabled_does_not_run_until_it_is_enabled():
    hook = ConfigurableHook(frequency=10, threshold=0.5, enabled=False)
    worker = Worker(hook)
    assert worker.run(15, reward=0.7) == []
    hook.enabled = True
    assert worker.run(15, reward=0.7) == [(20, {"above": True}), (30, {"above": True})]


def test_configurable_hook_defaults_are_those_of_the_seed():
    hook = ConfigurableHook()
    assert (hook.frequency, hook.threshold, hook.enabled) == (100, 0.9, True)


@pytest.mark.parametrize(
    ("step", "lesson_id", "performance", "runs"),
    [
        (1001, "advanced_lesson", 0.9, True),
        (1000, "advanced_lesson", 0.9, False),
        (1001, "basic_lesson", 0.9, False),
        (1001, "advanced_lesson", 0.8, False),
    ],
)
def test_conditional_hook_runs_only_when_all_conditions_are_met(step, lesson_id, performance, runs):
    context = HookContext("worker", step, None, lesson_id, {"performance": performance})
    assert HookManager([ConditionalHook()], strict=True).run_hooks(context) == ({"ran_at": step} if runs else {})


def test_conditional_hook_asked_twice_at_one_step_decides_for_each_context():
    manager = HookManager([ConditionalHook()], strict=True)
    lessons = ["basic_lesson", "advanced_lesson", "basic_lesson"]
    contexts = [HookContext("worker", 1001, None, lesson, {"performance": 0.9}) for lesson in lessons]
    assert [manager.run_hooks(context) for context in contexts] == [{}, {"ran_at": 1001}, {}]


def test_conditional_hook_in_a_run_receives_the_lesson_and_the_metrics():
    with hl.run(callbacks=[ConditionalHook()], strict=True, summary=False) as run:
        run.lesson_id = "advanced_lesson"  # type: ignore[attr-defined]
        for step_idx in run.steps(1004):
            run.log(performance=0.9 if step_idx % 2 else 0.5)
    ran = [row.step for row in run.history if "conditional_hook/ran_at" in row.metrics]
    assert ran == [1002, 1004]


def test_stateful_hook_averages_over_its_runs():
    hook = StatefulHook()
    worker = Worker(hook)
    assert worker.run(50, reward=1.0) == [(50, {"avg_reward": 1.0})]
    assert worker.run(100) == [(100, {"avg_reward": 0.5}), (150, {"avg_reward": 1 / 3})]
    assert hook.state == {"runs": 3, "total_reward": 1.0}


def test_composite_hook_each_child_keeps_its_own_cadence(caplog):
    caplog.set_level(logging.INFO, logger="hookline.hooks")
    composite = CompositeHook(
        [
            EvaluationHook(frequency=100, n_examples=8),
            LoggingHook(frequency=50),
            MetricsHook(frequency=25, metrics_fn=lambda context: {"metric": context.step}),
        ]
    )
    worker = Worker()
    worker.register_hook(composite)
    assert worker.run(100) == [
        (25, {"metric": 25}),
        (50, {"metric": 50}),
        (75, {"metric": 75}),
        (100, {"eval.n_examples": 8, "metric": 100}),
    ]
    assert caplog.messages == ["step 50", "step 100"]


def test_composite_hook_in_a_run_each_child_keeps_its_own_cadence():
    seen = []
    composite = CompositeHook([Calls("two", seen, frequency=2), Calls("three", seen, frequency=3)])
    with hl.run(callbacks=[composite], strict=True, summary=False) as run:
        for _ in run.steps(6):
            pass
    assert seen == ["two", "three", "two", "two", "three"]


def test_composite_hook_asked_by_hand_decides_and_runs_as_one():
    seen = []
    composite = CompositeHook([Calls("two", seen, frequency=2), Calls("three", seen, frequency=3)])
    contexts = [HookContext("worker", step) for step in range(1, 7)]
    assert [context.step for context in contexts if composite.should_run(context)] == [2, 3, 4, 6]
    composite.run(contexts[2])
    assert seen == ["three"]


def test_composite_hook_children_share_what_a_sibling_put_into_the_context():
    class Writes(PeriodicHook):
        def run(self, context):
            context.metadata["written"] = context.step

    class Reads(PeriodicHook):
        def run(self, context):
            return {"read": context.metadata.get("written")}

    composite = CompositeHook([Writes(1), Reads(1)])
    with hl.run(callbacks=[composite], strict=True, summary=False) as run:
        for _ in run.steps(1):
            pass
    assert run.metrics == {"composite_hook/reads/read": 1}
    assert Worker(CompositeHook([Writes(1), Reads(1)])).run(1) == [(1, {"read": 1})]


def test_composite_hook_unregistered_takes_all_its_children_along():
    seen = []
    composite = CompositeHook([Calls("a", seen), Calls("b", seen)])
    worker = Worker(composite, Calls("c", seen))
    worker.run(1)
    assert worker.unregister_hook(composite)
    worker.run(1)
    assert seen == ["a", "b", "c", "c"]


def test_debug_logging_shows_each_run_with_name_time_and_result(caplog):
    caplog.set_level(logging.DEBUG, logger="hookline.hooks")
    Worker(StatefulHook()).run(100, reward=2)
    pattern = r"stateful_hook ran at step (50|100) in [\d.]+ (ns|µs|ms|s) -> \{'avg_reward': 2\.0\}"
    assert [bool(re.fullmatch(pattern, message)) for message in caplog.messages] == [True, True]


def test_debug_logging_by_the_documents_logger_shows_each_run(caplog):
    caplog.set_level(logging.DEBUG, logger="hookline.rl.hooks")
    Worker(StatefulHook()).run(50, reward=2)
    (record,) = caplog.records
    assert record.name == "hookline.rl.hooks"
    assert record.getMessage().startswith("stateful_hook ran at step 50 in ")


def test_debug_logging_where_nothing_else_is_set_up_is_shown_on_stderr():
    script = (
        "import logging\n"
        "logging.getLogger('hookline.rl.hooks').setLevel(logging.DEBUG)\n"
        "from hookline.hooks import HookContext, HookManager, MetricsHook\n"
        "HookManager([MetricsHook(1, lambda context: {'x': 1})]).run_hooks(HookContext('worker', 3))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert re.fullmatch(r"metrics_hook ran at step 3 in [\d.]+ (ns|µs|ms|s) -> \{'x': 1\}\n", done.stderr)


def test_debug_logging_off_says_nothing(caplog):
    Worker(StatefulHook()).run(100)
    assert caplog.messages == []


# What the seed lists as future enhancements


def test_priority_higher_runs_first_and_equal_ones_in_order_of_registering():
    class HighPriorityHook(Calls):
        priority = 100

    seen = []
    worker = Worker(Calls("first", seen), Calls("second", seen), HighPriorityHook("high", seen))
    worker.register_hook(Calls("given", seen), priority=50)
    worker.run(1)
    assert seen == ["high", "given", "first", "second"]


def test_async_hook_runs_off_the_training_thread_and_its_result_arrives():
    import threading

    class AsyncHook(PeriodicHook):
        async def run(self, context):
            self.thread = threading.get_ident()
            return {"async": context.step}

    hook = AsyncHook(frequency=2)
    manager = HookManager([hook], strict=True)
    results = [manager.run_hooks(HookContext("worker", step)) for step in (1, 2)]
    assert {**results[0], **results[1], **manager.close()} == {"async": 2}
    assert hook.thread != threading.get_ident()


def test_async_hook_in_a_run_is_recorded_at_its_own_steps():
    class AsyncHook(PeriodicHook):
        async def run(self, context):
            return {"step": context.step}

    with hl.run(callbacks=[AsyncHook(frequency=2)], strict=True, summary=False) as run:
        for _ in run.steps(5):
            pass
    rows = [(row.step, row.metrics["async_hook/step"]) for row in run.history if row.metrics]
    assert rows == [(2, 2), (4, 4)]


def test_dependencies_after_and_before_win_over_order_and_priority():
    class Evaluates(Calls):
        pass

    class Publishes(Calls):
        priority = 100
        after = Evaluates

    seen = []
    worker = Worker(Evaluates("evaluate", seen))
    worker.register_hook(Publishes("publish", seen))
    worker.register_hook(Calls("prepare", seen), before=Evaluates)
    worker.run(1)
    assert seen == ["prepare", "evaluate", "publish"]


def test_dependencies_on_a_hook_registered_later_hold_once_it_is_there():
    seen = []
    manager = HookManager()
    manager.register_hook(Calls("b", seen, name="b", after="a"))
    manager.register_hook(Calls("first", seen), before="b")
    manager.run_hooks(HookContext("worker", 1))
    manager.register_hook(Calls("a", seen), name="a")
    manager.run_hooks(HookContext("worker", 2))
    assert seen == ["first", "b", "first", "a", "b"]


def test_dependencies_on_nobody_are_named_once_when_hooks_run(caplog):
    manager = HookManager([Calls("a", [], name="a")])
    manager.register_hook(Calls("b", [], name="b"), after="aa")
    for step in (1, 2):
        manager.run_hooks(HookContext("worker", step))
        manager.register_hook(Calls("more", []))
    assert caplog.messages == [
        (
            "'b' is to run after 'aa', but there is no such subscriber here. Did you mean 'a'? "
            "It may still be registered; until then the order is free."
        )
    ]


def test_dependencies_in_a_circle_are_errors_that_change_nothing():
    manager = HookManager([Calls("a", [], name="a")])
    with pytest.raises(hl.OrderError, match="depend on one another: 'a' after 'c' after 'a'"):
        manager.register_hook(Calls("c", []), name="c", after="a", before="a")
    assert [hook.label for hook in manager.get_hooks()] == ["a"]  # type: ignore[attr-defined]


def step_and_lesson(context):
    """What the metrics hook of a file calls."""
    return {"seen": context.step}


def test_configuration_file_has_metrics_and_composite_hooks(tmp_path):
    path = tmp_path / "hooks.yaml"
    path.write_text(
        "hooks:\n"
        "  - composite_hook:\n"
        "      hooks:\n"
        f"        - metrics_hook: {{frequency: 2, metrics_fn: '{__name__}:step_and_lesson'}}\n"
        "          name: inner\n"
        "        - logging_hook: {frequency: 50}\n"
        f"  - metrics_hook: {{frequency: 3, metrics_fn: '{__name__}:step_and_lesson'}}\n"
    )
    manager = load_hooks(path)
    assert [type(hook) for hook in manager.get_hooks()[0].hooks] == [MetricsHook, LoggingHook]  # type: ignore[attr-defined]
    results = [manager.run_hooks(HookContext("worker", step)) for step in (1, 2, 3, 6)]
    assert results == [{}, {"seen": 2}, {"seen": 3}, {"seen": 6, "metrics_hook/seen": 6}]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("metrics_hook: {frequency: 2, metrics_fn: 'os:system'}", r"hooks\[0\].*give a function"),
        ("metrics_hook: {frequency: 2, metrics_fn: 'no_such_module:f'}", r"hooks\[0\].*cannot be imported"),
        ("composite_hook: {hooks: [{loging_hook: {}}]}", r"hooks\[0\].*Did you mean 'logging_hook'"),
    ],
)
def test_configuration_file_hook_of_what_is_no_function_or_hook_is_an_error(tmp_path, entry, message):
    path = tmp_path / "hooks.yaml"
    path.write_text(f"hooks:\n  - {entry}\n")
    with pytest.raises(hl.ConfigError, match=f"hooks.yaml:2: {message}"):
        load_hooks(path)


def test_hooks_take_numpy_integers_as_whole_numbers():
    hook = EvaluatesForReal(np.int64(10), np.int32(4), start_step=np.uint8(20))
    kept = (hook.frequency, hook.n_examples, hook.start_step)
    assert kept == (10, 4, 20)
    assert {type(value) for value in kept} == {int}
    seen = []
    manager = HookManager()
    manager.register_hook(Calls("every two", seen, every=np.int64(2), start=np.int64(2)))
    for step in range(1, 7):
        manager.run_hooks(HookContext("worker", np.int64(step)))
    assert len(seen) == 2


def test_sharing_registered_hook_is_found_by_its_name():
    @hl.register("seed_001_alarm")
    class Alarm(PeriodicHook):
        def __init__(self, frequency: int = 2) -> None:
            super().__init__(frequency)

        def run(self, context):
            return {"rang": True}

    with hl.run(callbacks=["seed_001_alarm"], strict=True, summary=False) as run:
        for _ in run.steps(3):
            pass
    assert [(row.step, row.metrics) for row in run.history if row.metrics] == [(2, {"seed_001_alarm/rang": True})]


def test_sharing_hook_of_an_installed_package_is_found_through_its_entry_point(tmp_path, monkeypatch):
    code = """
    from hookline.hooks import PeriodicHook
    class Shared(PeriodicHook):
        def __init__(self, frequency: int):
            super().__init__(frequency)
        def run(self, context):
            return {"step": context.step}
    """
    (tmp_path / "seed_001_package.py").write_text(inspect.cleandoc(code))
    info = tmp_path / "seed_001_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: seed-001-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[hookline.callbacks]\nseed_001_shared = seed_001_package:Shared\n")
    monkeypatch.syspath_prepend(tmp_path)
    loop = FakeLoop(callbacks=[{"seed_001_shared": {"frequency": 2}}])
    loop.run_steps(4)
    assert [row.metrics for row in loop.history] == [{}, {"seed_001_shared/step": 2}, {}, {"seed_001_shared/step": 4}]


CONFIGURATION = {
    "callbacks": [
        {"use": f"{__name__}:StatefulHook", "name": "rewards"},
        {"use": f"{__name__}:ConfigurableHook", "with": {"frequency": 20, "threshold": 0.5}, "priority": 10},
        {"use": f"{__name__}:EvaluationHook", "with": {"frequency": 1}, "every": 30, "after": ["rewards"]},
    ]
}


def _as_yaml(data: Any) -> str:
    import yaml

    return yaml.safe_dump(data)


@pytest.mark.parametrize(("file", "dump"), [("hooks.yaml", _as_yaml), ("hooks.json", json.dumps)])
def test_configuration_file_loads_hooks_with_arguments_and_options(tmp_path, file, dump):
    (tmp_path / file).write_text(dump(CONFIGURATION))
    callbacks = hl.load_callbacks(tmp_path / file, strict=True)
    with hl.run(callbacks=callbacks, summary=False) as run:
        for _ in run.steps(60):
            run.log(reward=0.75)
    assert callbacks.names() == ["configurable_hook", "rewards", "evaluation_hook"]
    assert {
        row.step: [key for key in row.metrics if key != "reward"] for row in run.history if len(row.metrics) > 1
    } == {
        20: ["configurable_hook/above"],
        30: ["evaluation_hook/eval.n_examples"],
        40: ["configurable_hook/above"],
        50: ["rewards/avg_reward"],
        60: ["configurable_hook/above", "evaluation_hook/eval.n_examples"],
    }


def test_configuration_file_for_a_worker_gives_its_manager_the_same_hooks(tmp_path):
    (tmp_path / "hooks.json").write_text(json.dumps(CONFIGURATION))
    worker = Worker()
    worker.hooks = load_hooks(tmp_path / "hooks.json", strict=True)
    assert [(step, list(result)) for step, result in worker.run(60, reward=0.75)] == [
        (20, ["above"]),
        (30, ["eval.n_examples"]),
        (40, ["above"]),
        (50, ["avg_reward"]),
        (60, ["above", "eval.n_examples"]),
    ]


def test_configuration_file_with_a_wrong_argument_says_where_and_what(tmp_path):
    path = tmp_path / "hooks.yaml"
    path.write_text("callbacks:\n  - use: hookline.hooks:LoggingHook\n    with:\n      frequenzy: 10\n")
    with pytest.raises(hl.ConfigError) as caught:
        hl.load_callbacks(path)
    assert str(caught.value).startswith(f"{path}:4: callbacks[0].with.frequenzy: unknown argument.")
    assert "Did you mean 'frequency'?" in str(caught.value)


def test_hook_metrics_costs_know_calls_times_and_errors_of_each(caplog):
    def fail(context):
        raise RuntimeError

    hooks = CompositeHook([StatefulHook(), LoggingHook(frequency=10)])
    worker = Worker(hooks, MetricsHook(50, fail), strict=False)
    worker.run(100)
    costs = worker.hooks.costs()
    assert {cost.name: (cost.calls, cost.errors) for cost in costs} == {
        "composite_hook/stateful_hook": (2, 0),
        "composite_hook/logging_hook": (10, 0),
        "metrics_hook": (2, 2),
    }
    assert all(cost.total_seconds > 0 for cost in costs if not cost.errors)


def test_hook_metrics_in_a_run_are_recorded_as_metrics():
    callbacks = hl.CallbackCollection([StatefulHook()], policy=hl.Policy(strict=True, report_seconds=0.0))
    with hl.run(callbacks=callbacks, summary=False) as run:
        for _ in run.steps(200):
            pass
    assert {name for name in run.metrics if name.startswith("hooks/")} == {
        f"hooks/stateful_hook/{key}"
        for key in ("calls", "errors", "total_seconds", "mean_seconds", "p95_seconds", "max_seconds")
    }
    assert callbacks.costs().by_name()["stateful_hook"].calls == 4
