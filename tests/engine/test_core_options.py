"""Options of the engine that the other tests leave at the default: each changes what happens."""

import logging
from functools import partial

import pytest

import hookline as hl
from hookline.hooks import CheckpointHook, HookManager, LoggingHook, MetricsHook, PeriodicHook, load_hooks
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


@pytest.mark.parametrize(
    "hook",
    [
        CheckpointHook(2, start_step=4),
        LoggingHook(2, start_step=4),
        MetricsHook(2, lambda context: {}, start_step=4),
    ],
    ids=lambda hook: hook.name,
)
def test_built_in_hook_start_step_is_how_many_steps_are_left_out(hook):
    assert [step for step in range(10) if hook.should_run(hl.HookContext(None, step))] == [6, 8]


class BrokenHook(PeriodicHook):
    """Fails whenever it runs, and counts how often that is."""

    calls = 0

    def __init__(self) -> None:
        super().__init__(frequency=1)

    def run(self, context):
        self.calls += 1
        raise ValueError("broken")


ENTRIES = [{"use": f"{__name__}:BrokenHook"}]
MADE_OF_A_BROKEN_HOOK = {
    "HookManager": lambda **options: HookManager([BrokenHook()], **options),
    "load_hooks": partial(load_hooks, ENTRIES),
    "load_callbacks": partial(hl.load_callbacks, ENTRIES),
}
broken_hook_in = pytest.mark.parametrize("make", MADE_OF_A_BROKEN_HOOK.values(), ids=MADE_OF_A_BROKEN_HOOK)


def runs_of_the_hook(made):
    """How often the one hook of a manager or a collection runs within five steps."""
    if not isinstance(made, HookManager):
        FakeLoop(callbacks=made).run_steps(5)
        return made[0].calls
    for step in range(1, 6):
        made.run_hooks(hl.HookContext(None, step))
    return made.get_hooks()[0].calls  # type: ignore[attr-defined]


@broken_hook_in
@pytest.mark.parametrize("options", [{"strict": True}, {"policy": hl.Policy(strict=True)}], ids=["strict", "policy"])
def test_strict_lets_the_exception_of_a_hook_propagate(make, options):
    with pytest.raises(ValueError, match="broken"):
        runs_of_the_hook(make(**options))


@broken_hook_in
def test_policy_is_what_a_broken_hook_is_treated_by(make):
    assert runs_of_the_hook(make()) == 3
    assert runs_of_the_hook(make(policy=hl.Policy(failures_allowed=1))) == 1
