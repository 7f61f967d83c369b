"""Options of the engine that the other tests leave at the default: each changes what happens."""

import logging

import pytest

import hookline as hl
from hookline.hooks import HookManager, LoggingHook
from hookline.testing import FakeLoop


@pytest.mark.parametrize("level", [logging.DEBUG, logging.WARNING])
def test_logging_hook_level_is_that_of_its_lines(level, caplog):
    caplog.set_level(logging.DEBUG, logger="hookline.hooks")
    manager = HookManager([LoggingHook(1, level=level)])
    manager.run_hooks(hl.HookContext(worker=None, step=1))
    assert [record.levelno for record in caplog.records if record.getMessage() == "step 1"] == [level]


@pytest.mark.parametrize("allowed", [1, 5])
def test_policy_failures_allowed_is_after_how_many_in_a_row_a_subscriber_is_disabled(allowed):
    class Broken(hl.Callback):
        calls = 0

        def on_step_end(self, loop):
            self.calls += 1
            raise ValueError("broken")

    broken = Broken()
    callbacks = hl.CallbackCollection([broken], policy=hl.Policy(failures_allowed=allowed))
    FakeLoop(callbacks=callbacks).run_steps(8)
    assert broken.calls == allowed
    assert [failure.disabled for failure in callbacks.failures] == [False] * (allowed - 1) + [True]
