"""Options of a loop of one's own, which only the drivers that come with hookline give otherwise."""

import pytest

import hookline as hl
from hookline.loops import Loop
from hookline.testing import RecordingCallback


class Broken(hl.Callback):
    def on_train_start(self, loop):
        raise ValueError("broken")


class OwnLoop(Loop):
    """The least that a loop is: it tells its start."""

    def save_checkpoint(self, path=None):
        raise NotImplementedError

    def go(self):
        self.callbacks.on_train_start(self)


def test_loop_callbacks_hear_its_moments():
    recording = RecordingCallback()
    OwnLoop(callbacks=[recording]).go()
    assert recording.names() == ["on_train_start"]


def test_loop_strict_lets_exceptions_propagate():
    OwnLoop(callbacks=[Broken()]).go()
    with pytest.raises(ValueError, match="broken"):
        OwnLoop(callbacks=[Broken()], strict=True).go()


def test_loop_ctx_is_the_context_that_subscribers_see():
    ctx = hl.LogContext(group_name="arm-a")
    assert OwnLoop(ctx=ctx).ctx is ctx
