"""Seed 001's document, section by section, on a real rollout worker whose policy is a small model.

Code is the document's own; only the import root differs, and what it leaves out (``...``) is filled in.
"""

import logging
import random
import re
import time
from typing import Any, Optional
from unittest.mock import MagicMock

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from hookline import rl
from hookline._record.reader import read
from hookline._record.records import Metrics, Sample
from hookline.hooks import (
    CheckpointHook,
    CompositeHook,
    EvaluationHook,
    Hook,
    HookContext,
    HookManager,
    LoggingHook,
    MetricsHook,
    PeriodicHook,
    create_default_evaluation_hooks,
    load_hooks,
)
from hookline.rl import RolloutWorker
from hookline.rl.environments import RewardDataset, Sorting


@pytest.fixture(scope="module")
def policy():
    import torch

    from hookline.testing import character_tokenizer, tiny_causal_lm

    torch.set_num_threads(1)
    tokenizer = character_tokenizer("0123456789>")
    return rl.HFPolicy(tiny_causal_lm(tokenizer, hidden_size=8, layers=1, heads=2), tokenizer)


def settings(policy, tmp_path, *lessons, **curriculum):
    return rl.RolloutWorkerConfig(
        curriculum_config=rl.CurriculumConfig(
            list(lessons or [rl.Lesson("basic", Sorting(2))]),
            **({"micro_eval_n_examples": 2, "eval_n_examples": 3} | curriculum),
        ),
        policy=policy,
        rollout=rl.RolloutConfig(prompts=1, group_size=2, max_tokens=2),
        output_dir=str(tmp_path),
        summary=False,
        strict=True,
    )


@pytest.fixture
def config(policy, tmp_path):
    return settings(policy, tmp_path)


@pytest.fixture
def worker(config):
    worker = RolloutWorker(config)
    worker.clear_hooks()
    return worker


def recorded(worker, axis="rollout", having=""):
    """The rows of an axis that have a metric of a name that begins so."""
    return [
        (record.step, record.values)
        for record in read(worker.dir)
        if isinstance(record, Metrics)
        and record.axis == axis
        and any(name.startswith(having) for name in record.values)
    ]


def steps_of(rows):
    return [step for step, _ in rows]


# Motivation: what was hard-coded


def test_motivation_micro_evaluations_every_10_steps_and_full_ones_every_100_are_the_default(config):
    hooks = RolloutWorker(config).get_hooks()
    assert [(hook.frequency, hook.evaluate_all_lessons) for hook in hooks] == [(10, False), (100, True)]  # type: ignore[attr-defined]


# Architecture


def test_architecture_a_real_workers_context_has_what_the_document_lists(worker):
    class Looks(Hook):
        def should_run(self, context: HookContext) -> bool:
            """Determine if this hook should run at the current step."""
            return True

        def run(self, context: HookContext) -> Optional[dict[str, Any]]:  # type: ignore[return]  # noqa: UP045 - as the document writes it
            """Execute the hook logic."""
            seen.append(context)

    seen = []
    worker.register_hook(Looks())
    worker.run(1)
    (context,) = seen
    assert (context.worker, context.step, context.lesson_id) == (worker, 1, "basic")
    assert isinstance(context.rng, random.Random)
    assert context.metadata["reward"] == context.metadata["reward/mean"]


def test_architecture_evaluation_hook_takes_the_documents_arguments():
    hook = EvaluationHook(
        frequency=100,  # How often to run
        n_examples=64,  # Number of evaluation examples
        eval_type="eval",  # Type of evaluation
        evaluate_all_lessons=True,  # Evaluate all or just current lesson
    )
    assert (hook.frequency, hook.n_examples, hook.eval_type, hook.evaluate_all_lessons) == (100, 64, "eval", True)
    assert [hook.should_run(HookContext(None, step)) for step in (0, 99, 100, 200)] == [False, False, True, True]


# Usage examples


def test_basic_usage_custom_evaluation_and_logging_run_beside_the_defaults(config, caplog):
    caplog.set_level(logging.INFO, logger="hookline.hooks")

    # Create worker with config
    worker = RolloutWorker(config)

    # Register a custom evaluation hook
    custom_eval = EvaluationHook(frequency=50, n_examples=32, eval_type="custom_eval")
    worker.register_hook(custom_eval)

    # Add logging
    logging_hook = LoggingHook(frequency=100)
    worker.register_hook(logging_hook)

    worker.run(100)
    assert steps_of(recorded(worker, "eval", "micro_eval/")) == list(range(10, 101, 10))
    assert steps_of(recorded(worker, "eval", "eval/basic/")) == [100]
    assert steps_of(recorded(worker, "eval", "eval/success_rate")) == [100]
    assert steps_of(recorded(worker, "eval", "custom_eval/basic/")) == [50, 100]
    assert [message.startswith("step 100, lesson basic, rollouts=2, reward/mean=") for message in caplog.messages] == [
        True
    ]
    assert worker.get_hooks()[2:] == [custom_eval, logging_hook]


class CustomMonitoringHook(PeriodicHook):
    """Monitor rollout generation health."""

    def __init__(self):
        super().__init__(frequency=25)
        self.metrics = []

    def run(self, context: HookContext) -> Optional[dict[str, Any]]:  # noqa: UP045 - as the document writes it
        # Collect custom metrics
        metrics = {
            "monitoring.step": context.step,
            "monitoring.lesson": context.lesson_id,
            "monitoring.timestamp": time.time(),
        }
        self.metrics.append(metrics)

        # Log to worker's tracker
        context.worker.tracker.log(metrics, step=context.step)
        return metrics


def test_custom_hook_logs_to_the_tracker_and_is_recorded_once(worker):
    # Register the custom hook
    worker.register_hook(CustomMonitoringHook())

    (hook,) = worker.get_hooks()
    worker.run(50)
    assert recorded(worker, having="monitoring") == list(zip([25, 50], hook.metrics, strict=True))
    assert [row["monitoring.lesson"] for row in hook.metrics] == ["basic", "basic"]


def test_testing_with_hooks_a_test_hook_sees_the_steps_without_monkey_patching(worker):
    class TestEvaluationHook(Hook):
        def __init__(self):
            self.evaluations = []

        def should_run(self, context):
            return context.step % 5 == 0

        def run(self, context):
            result = {"test_eval": context.step}
            self.evaluations.append(result)
            return result

    test_hook = TestEvaluationHook()
    worker.register_hook(test_hook)

    # Run worker and check test_hook.evaluations
    worker.run(12)
    assert test_hook.evaluations == [{"test_eval": 5}, {"test_eval": 10}]
    assert recorded(worker, having="test_eval") == [(5, {"test_eval": 5}), (10, {"test_eval": 10})]


def test_testing_with_hooks_replacing_the_evaluation_of_a_worker_still_works(worker):
    def mock_evaluate_lesson(*args, **kwargs):
        return {"mocked": True}

    worker.evaluate_lesson = mock_evaluate_lesson
    worker.register_hook(EvaluationHook(frequency=2, evaluate_all_lessons=False))
    worker.run(2)
    assert recorded(worker, having="mocked") == [(2, {"mocked": True})]


def test_testing_with_hooks_the_documents_replaced_evaluation_is_honoured(worker):
    def mock_evaluate_lesson(self, *args, **kwargs):
        return {"mocked": True}

    worker._evaluate_lesson = mock_evaluate_lesson
    worker.register_hook(EvaluationHook(frequency=2, evaluate_all_lessons=False))
    worker.register_hook(EvaluationHook(frequency=3, evaluate_all_lessons=True))
    worker.run(3)
    assert recorded(worker, having="mocked") == [(2, {"mocked": True}), (3, {"mocked": True})]


def test_testing_with_hooks_a_mock_hook_on_a_worker_is_asked_each_step_and_saved(worker):
    hook = MagicMock(spec=Hook)
    hook.should_run.side_effect = lambda context: context.step == 2
    hook.run.return_value = {"from_mock": 1.0}
    worker.register_hook(hook)
    worker.register_hook(CheckpointHook(frequency=3))
    worker.run(3)
    assert hook.should_run.call_count == 3
    hook.run.assert_called_once()
    assert recorded(worker, having="from_mock") == [(2, {"from_mock": 1.0})]
    assert [row.step for row in worker.checkpoints] == [3]


class HealthMonitoringHook(Hook):
    """Remembers the steps at which it was asked."""

    def __init__(self):
        self.steps = []

    def should_run(self, context):
        return True

    def run(self, context):
        self.steps.append(context.step)


def test_dynamic_hook_management_between_rollout_steps_of_a_worker(worker):
    # Add hooks during runtime
    health_monitor = HealthMonitoringHook()

    def manage(context):
        if context.step == 2:
            worker.register_hook(health_monitor)
        elif context.step == 4:
            # Remove hooks when no longer needed
            assert worker.unregister_hook(health_monitor) is True
            assert worker.unregister_hook(health_monitor) is False
        return {}

    worker.register_hook(MetricsHook(1, manage))
    worker.run(6)
    assert health_monitor.steps == [3, 4]
    assert len(worker.get_hooks()) == 1

    # Clear all hooks (useful for testing)
    worker.clear_hooks()

    # Get current hooks
    current_hooks = worker.get_hooks()
    assert current_hooks == []


# Migration guide


def test_migration_default_behaviour_needs_no_changes(config):
    # No changes needed - default hooks are registered automatically
    worker = RolloutWorker(config)
    # Micro-eval and full eval will run as before
    kinds = [(type(hook), vars(hook)) for hook in worker.get_hooks()]
    assert kinds == [(type(hook), vars(hook)) for hook in create_default_evaluation_hooks(config.curriculum_config)]
    worker.run(10)
    assert steps_of(recorded(worker, "eval", "micro_eval/basic/")) == [10]


def test_migration_changing_frequencies_in_the_config_works_as_before(config):
    config.curriculum_config.micro_eval_frequency = 5
    config.curriculum_config.eval_frequency = 50
    assert [hook.frequency for hook in RolloutWorker(config).get_hooks()] == [5, 50]  # type: ignore[attr-defined]
    config.curriculum_config.eval_frequency = 0
    assert [hook.frequency for hook in RolloutWorker(config).get_hooks()] == [5]  # type: ignore[attr-defined]


def test_migration_custom_hooks_instead_of_config_changes_each_record_their_evaluations(worker):
    # After: Add custom hooks without changing config
    worker.register_hook(EvaluationHook(frequency=5, n_examples=2))
    worker.register_hook(EvaluationHook(frequency=50, n_examples=3))
    worker.run(50)
    examples = [(step, row["eval/basic/examples"]) for step, row in recorded(worker, "eval", "eval/basic/")]
    assert examples == [(step, 2) for step in range(5, 51, 5)] + [(50, 3)]
    beyond = [row for row in recorded(worker) if any("eval/basic/" in name for name in row[1])]
    assert beyond == []


def test_migration_tests_use_a_hook_and_take_it_out_again(worker):
    class CustomTestHook(HealthMonitoringHook):
        pass

    # After
    test_hook = CustomTestHook()
    worker.register_hook(test_hook)
    # run test
    worker.run(3)
    worker.unregister_hook(test_hook)
    assert (test_hook.steps, worker.get_hooks()) == ([1, 2, 3], [])


# Best practices


class ConfigurableHook(PeriodicHook):
    def __init__(self, frequency=100, threshold=0.9, enabled=True):
        super().__init__(frequency)
        self.threshold = threshold
        self.enabled = enabled

    def should_run(self, context):
        return self.enabled and super().should_run(context)

    def run(self, context):
        return {"below": context.metadata["performance"] < self.threshold}


def test_hook_configuration_holds_on_a_worker(worker):
    worker.register_hook(ConfigurableHook(frequency=2))
    worker.register_hook(ConfigurableHook(frequency=1, enabled=False))
    worker.run(4)
    assert recorded(worker, having="below") == [(2, {"below": True}), (4, {"below": True})]


def test_testing_hooks_with_a_jax_key(worker):
    jrandom = pytest.importorskip("jax").random

    class CustomHook(PeriodicHook):
        def __init__(self):
            super().__init__(frequency=50)

        def run(self, context):
            first, second = context.split_rng()
            return {"expected_key": float(jrandom.uniform(first)), "other": float(jrandom.uniform(second))}

    mock_worker = worker

    hook = CustomHook()
    context = HookContext(worker=mock_worker, step=100, rng=jrandom.PRNGKey(42))

    # Test should_run logic
    assert hook.should_run(context)

    # Test run logic
    result = hook.run(context)
    assert "expected_key" in result
    assert result["expected_key"] != result["other"]


def test_architecture_a_workers_generator_for_hooks_can_be_a_jax_key(config):
    jrandom = pytest.importorskip("jax").random

    class Draws(PeriodicHook):
        def run(self, context):
            first, _ = context.split_rng()
            return {"own": float(jrandom.normal(context.rng)), "split": float(jrandom.normal(first))}

    def drawn():
        worker = RolloutWorker(config, hooks=[Draws(1)])
        worker.run(2)
        return [row for _, row in recorded(worker, having="own")]

    config.rollout = rl.RolloutConfig(prompts=1, group_size=2, max_tokens=2, hook_rng="jax")
    first = drawn()
    assert first == drawn()
    assert len({value for row in first for value in row.values()}) == 4


@pytest.mark.parametrize(("kind", "module"), [("numpy", "numpy.random._generator"), ("torch", "torch._C")])
def test_architecture_a_workers_generator_for_hooks_can_be_another_librarys(config, kind, module):
    config.rollout.hook_rng = kind
    kinds = []
    RolloutWorker(config, hooks=[MetricsHook(1, lambda context: kinds.append(type(context.rng)) or {})]).run(1)  # type: ignore[func-returns-value]
    assert [each.__module__ for each in kinds] == [module]


def numpy_generator(seed):
    import numpy as np

    return np.random.default_rng(seed)


def torch_generator(seed):
    import torch

    return torch.Generator().manual_seed(seed)


def jax_key(seed):
    return pytest.importorskip("jax").random.PRNGKey(seed)


def jax_typed_key(seed):
    return pytest.importorskip("jax").random.key(seed)


@pytest.mark.parametrize("make", [numpy_generator, torch_generator, jax_key, jax_typed_key, random.Random])
def test_testing_hooks_an_evaluation_with_a_generator_of_any_library_draws_tasks_by_it(config, make):
    def asked(seed):
        worker = RolloutWorker(config, hooks=[])
        worker.rollout.samples = None
        hook = EvaluationHook(frequency=100, n_examples=5)
        hook.run(HookContext(worker=worker, step=100, rng=make(seed)))
        return [sample["prompt"] for sample in worker.samples]

    assert len(asked(42)) == 5
    assert asked(42) == asked(42) != asked(43)


# Advanced usage


class ConditionalHook(Hook):
    def should_run(self, context):
        # Run only when specific conditions are met
        return (
            context.step > 1000 and context.lesson_id == "advanced_lesson" and context.metadata.get("performance") > 0.8
        )

    def run(self, context):
        return {"conditional": context.step}


@pytest.mark.parametrize(
    ("lesson", "reward", "ran"),
    [("advanced_lesson", 1.0, [1001, 1002]), ("advanced_lesson", 0.5, []), ("basic", 1.0, [])],
)
def test_conditional_hook_runs_when_step_lesson_and_performance_say_so(policy, tmp_path, lesson, reward, ran):
    def always(prompts, completions, **columns):
        return [reward] * len(prompts)

    environment = RewardDataset([{"prompt": f"{number}>"} for number in range(30)], [always])
    worker = RolloutWorker(settings(policy, tmp_path, rl.Lesson(lesson, environment)), hooks=[ConditionalHook()])
    worker.step = 998
    worker.run(1002)
    assert steps_of(recorded(worker, having="rollouts")) == [999, 1000, 1001, 1002]
    assert steps_of(recorded(worker, having="conditional")) == ran


class StatefulHook(PeriodicHook):
    def __init__(self):
        super().__init__(frequency=50)
        self.state = {"runs": 0, "total_reward": 0}

    def run(self, context):
        self.state["runs"] += 1
        reward = context.metadata.get("reward", 0)
        self.state["total_reward"] += reward

        return {"avg_reward": self.state["total_reward"] / self.state["runs"]}


def test_stateful_hook_averages_the_rewards_of_the_rollouts_it_saw(policy, tmp_path):
    def length(prompts, completions, **columns):
        return [float(len(completion)) for completion in completions]

    environment = RewardDataset([{"prompt": f"{number}>"} for number in range(30)], [length])
    hook = StatefulHook()
    worker = RolloutWorker(settings(policy, tmp_path, rl.Lesson("lengths", environment)), hooks=[hook])
    worker.run(100)
    rewards = {step: row["reward/mean"] for step, row in recorded(worker, having="reward/mean")}
    averages = [(50, {"avg_reward": rewards[50]}), (100, {"avg_reward": (rewards[50] + rewards[100]) / 2})]
    assert recorded(worker, having="avg_reward") == averages
    assert hook.state == {"runs": 2, "total_reward": rewards[50] + rewards[100]}


def test_hook_composition_each_part_keeps_its_own_cadence(worker, caplog):
    caplog.set_level(logging.INFO, logger="hookline.hooks")

    # Combine multiple hooks into one
    composite = CompositeHook(
        [
            EvaluationHook(frequency=100, n_examples=3),
            LoggingHook(frequency=50),
            MetricsHook(frequency=25, metrics_fn=lambda context: {"metric": context.step}),
        ]
    )
    worker.register_hook(composite)
    worker.run(100)
    assert steps_of(recorded(worker, "eval", "eval/basic/")) == [100]
    assert [message.split(",")[0] for message in caplog.messages] == ["step 50", "step 100"]
    assert [row["metric"] for _, row in recorded(worker, having="metric")] == [25, 50, 75, 100]
    samples = [record for record in read(worker.dir) if isinstance(record, Sample) and record.axis == "eval"]
    assert [each.step for each in samples] == [100] * 3


# Troubleshooting


def test_debugging_the_logger_shows_each_hook_that_runs(worker, caplog):
    logging.getLogger("hookline.hooks").setLevel(logging.DEBUG)
    try:
        worker.register_hook(StatefulHook())
        worker.run(50)
    finally:
        logging.getLogger("hookline.hooks").setLevel(logging.NOTSET)
    (message,) = [record.getMessage() for record in caplog.records if record.name == "hookline.hooks"]
    assert re.fullmatch(r"stateful_hook ran at step 50 in [\d.]+ (ns|µs|ms|s) -> \{'avg_reward': [\d.]+\}", message)


# Future enhancements


def test_future_priorities_dependencies_and_async_hooks_hold_on_a_worker(worker):
    class Writes(Hook):
        def __init__(self, label):
            self.label = label

        def should_run(self, context):
            return True

        def run(self, context):
            order.append(self.label)

    class Async(PeriodicHook):
        async def run(self, context):
            return {"async": context.step}

    order = []
    worker.register_hook(Writes("first"), name="first")
    worker.register_hook(Writes("high"), priority=10)
    worker.register_hook(Writes("early"), before="first")
    worker.register_hook(Async(3))
    worker.run(3)
    assert order == ["high", "early", "first"] * 3
    assert [row["async"] for _, row in recorded(worker, having="async")] == [3]


def test_future_hooks_from_a_file_and_what_each_costs(worker, tmp_path):
    path = tmp_path / "hooks.yaml"
    path.write_text(
        "hooks:\n"
        "  - evaluation_hook: {frequency: 2, n_examples: 2}\n"
        "  - use: checkpoint_hook\n"
        "    with: {frequency: 3}\n"
    )
    for hook in load_hooks(path).get_hooks():
        worker.register_hook(hook)
    assert [type(hook) for hook in worker.get_hooks()] == [EvaluationHook, CheckpointHook]
    worker.run(6)
    assert steps_of(recorded(worker, "eval", "eval/basic")) == [2, 4, 6]
    assert [row.step for row in worker.checkpoints] == [3, 6]
    assert isinstance(worker.hooks, HookManager)
    assert {cost.name: cost.calls for cost in worker.hooks.costs()} == {"evaluation_hook": 3, "checkpoint_hook": 2}
    assert recorded(worker, having="hooks/")[-1][1]["hooks/evaluation_hook/calls"] == 3
