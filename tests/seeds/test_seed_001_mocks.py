"""Seed 001 as its users test their own code: hooks, workers and settings that are mocks."""

from unittest.mock import MagicMock, patch

import pytest

from hookline.rl.hooks import EvaluationHook, Hook, HookContext, HookManager, create_default_evaluation_hooks


def mock_hook(result, *, due=True):
    hook = MagicMock(spec=Hook)
    hook.should_run.return_value = due
    hook.run.return_value = result
    return hook


def mock_config(**settings):
    config = MagicMock()
    config.configure_mock(**settings)
    return config


def test_mock_hooks_registered_are_asked_once_and_the_results_of_those_due_merged():
    first, idle, last = mock_hook({"metric1": 1.0}), mock_hook({"metric2": 2.0}, due=False), mock_hook({"metric3": 3.0})
    manager = HookManager()
    for hook in (first, idle, last):
        manager.register_hook(hook)
    context = HookContext(worker=MagicMock(), step=10)
    assert manager.run_hooks(context) == {"metric1": 1.0, "metric3": 3.0}
    for hook in (first, idle, last):
        hook.should_run.assert_called_once_with(context)
    first.run.assert_called_once_with(context)
    last.run.assert_called_once_with(context)
    idle.run.assert_not_called()


def test_mock_hook_options_are_defaults_but_for_those_set_on_it():
    urgent = mock_hook({})
    urgent.name, urgent.priority = "urgent", 5
    manager = HookManager([mock_hook({}), mock_hook({}), urgent])
    assert repr(manager) == "HookManager([urgent, magic_mock, magic_mock_2])"
    assert manager.state_dict() == {"urgent": {}, "magic_mock": {}, "magic_mock_2": {}}


def test_mock_hook_that_raises_is_reported_by_the_logger_and_the_others_run():
    bad, good = mock_hook(None), mock_hook({"good": "result"})
    bad.run.side_effect = RuntimeError("Test error")
    manager = HookManager([bad, good])
    with patch("hookline.rl.hooks.logger") as logger:
        assert manager.run_hooks(HookContext(worker=MagicMock(), step=10)) == {"good": "result"}
    assert "Error running hook" in logger.error.call_args[0][0]


@pytest.mark.parametrize(
    ("frequencies", "made"),
    [
        ((10, 100), [("micro_eval", 10, 4, False), ("eval", 100, 64, True)]),
        ((10, 0), [("micro_eval", 10, 4, False)]),
        ((0, 0), []),
    ],
)
def test_default_hooks_of_a_mock_config_are_those_of_its_four_settings(frequencies, made):
    micro, full = frequencies
    config = mock_config(micro_eval_frequency=micro, micro_eval_n_examples=4, eval_frequency=full, eval_n_examples=64)
    hooks = create_default_evaluation_hooks(config)
    assert [(hook.eval_type, hook.frequency, hook.n_examples, hook.evaluate_all_lessons) for hook in hooks] == made  # type: ignore[attr-defined]


def test_evaluation_hook_with_a_mock_worker_evaluates_the_lesson_once():
    worker = MagicMock()
    worker._evaluate_lesson.return_value = {"metric": 1.0}
    hook = EvaluationHook(frequency=10, n_examples=4, eval_type="micro_eval", evaluate_all_lessons=False)
    assert hook.run(HookContext(worker=worker, step=10, lesson_id="test_lesson")) == {"metric": 1.0}
    worker._evaluate_lesson.assert_called_once_with("test_lesson", 4, eval_type="micro_eval", rng=None)


def test_evaluation_hook_of_all_lessons_with_a_mock_worker_evaluates_the_curriculum_once():
    worker = MagicMock()
    worker._evaluate_curriculum.return_value = {"metric": 2.0}
    hook = EvaluationHook(frequency=100, n_examples=64)
    assert hook.run(HookContext(worker=worker, step=100)) == {"metric": 2.0}
    worker._evaluate_curriculum.assert_called_once_with(64, eval_type="eval", rng=None)
