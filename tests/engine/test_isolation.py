"""What happens when subscribers raise."""

import pytest

import hookline as hl
from hookline.testing import FakeLoop, RecordingCallback


class Failing(hl.Callback):
    """Raises at the given steps."""

    def __init__(self, *steps):
        self.steps, self.called = steps, 0

    def on_step_end(self, loop, step_idx):
        self.called += 1
        if step_idx in self.steps:
            raise ValueError(f"bad step {step_idx}")


def run(callbacks, steps):
    loop = FakeLoop(callbacks=callbacks, num_steps=steps)
    loop.run_steps(steps)
    return loop


def test_failing_observer_is_logged_and_kept_from_the_others(caplog):
    recording = RecordingCallback()
    run(hl.CallbackCollection([Failing(1), recording]), 3)
    assert recording.names().count("on_step_end") == 3
    assert [r.getMessage() for r in caplog.records] == [
        "failing failed at on_step_end, step 2: ValueError: bad step 1 (training continues)"
    ]
    assert caplog.records[0].exc_info is not None


def test_failing_three_times_in_a_row_disables_loudly(caplog):
    failing = Failing(2, 3, 4, 5, 6)
    callbacks = hl.CallbackCollection([failing])
    run(callbacks, 10)
    assert failing.called == 5
    assert caplog.records[-1].getMessage() == "failing is DISABLED from here on: it failed 3 times in a row."
    cost = callbacks.costs().by_name()["failing"]
    assert (cost.calls, cost.errors, cost.disabled) == (5, 3, True)
    assert [failure.disabled for failure in callbacks.failures] == [False, False, True]
    assert callbacks.plan() == {}


@pytest.mark.parametrize(
    ("options", "fails", "called", "said"),
    [
        ({}, lambda step: step % 2, 20, "10 times in its last 19 calls"),
        ({}, lambda step: step % 3 != 2, 14, "10 times in its last 14 calls"),
        ({}, lambda step: step % 3 == 0, 28, "10 times in its last 28 calls"),
        ({}, lambda step: step >= 150 and step % 2, 170, "10 times in its last 19 calls"),
        ({"every": 2}, lambda step: step % 4 == 3, 20, "10 times in its last 19 calls"),
    ],
    ids=["every second", "two of three", "every third", "later", "cadence"],
)
def test_failing_in_a_share_of_the_recent_calls_disables_loudly(caplog, options, fails, called, said):
    failing = Failing(*(step for step in range(200) if fails(step)))
    callbacks = hl.CallbackCollection()
    callbacks.add(failing, **options)
    run(callbacks, 200)
    assert caplog.records[-1].getMessage() == f"failing is DISABLED from here on: it failed {said}."
    assert (failing.called, callbacks.costs()[0].errors, callbacks.costs()[0].disabled) == (called, 10, True)


def test_failures_that_are_rare_do_not_disable():
    failing = Failing(*range(0, 200, 4))
    callbacks = hl.CallbackCollection([failing])
    run(callbacks, 200)
    assert (failing.called, callbacks.costs()[0].errors, callbacks.costs()[0].disabled) == (200, 50, False)


def test_failures_in_a_row_are_counted_at_the_calls_of_a_cadence():
    failing = Failing(*range(100))
    callbacks = hl.CallbackCollection()
    callbacks.add(failing, every=10)
    run(callbacks, 100)
    assert failing.called == 3


def test_failing_at_one_moment_is_not_excused_by_another():
    class Half(Failing):
        def on_step_start(self, loop):
            pass

    half = Half(*range(100))
    run(hl.CallbackCollection([half]), 10)
    assert half.called == 3


def test_critical_subscriber_propagates_with_a_note_of_where():
    failing = Failing(0)
    failing.critical = True
    with pytest.raises(ValueError, match="bad step 0") as caught:
        run(hl.CallbackCollection([failing]), 1)
    assert caught.value.__notes__ == ["hookline: raised by failing at on_step_end, step 1"]


def test_strict_collection_propagates_everything():
    with pytest.raises(ValueError, match="bad step 0"):
        run(hl.CallbackCollection([Failing(0)], strict=True), 1)


def test_base_exception_always_propagates():
    def interrupt(loop):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(hl.CallbackCollection([hl.on("step_end", interrupt)]), 1)


def test_failure_listener_hears_each_failure():
    received = []
    callbacks = hl.CallbackCollection([Failing(0)])
    callbacks.health.on_failure = received.append
    run(callbacks, 1)
    assert [(f.subscriber, f.moment, f.step, str(f.error)) for f in received] == [
        ("failing", "on_step_end", 1, "bad step 0")
    ]


def test_failing_predicate_is_isolated_like_the_subscriber():
    recording = RecordingCallback()
    callbacks = hl.CallbackCollection()
    callbacks.add(recording, when=lambda loop: 1 / 0)
    run(callbacks, 5)
    assert (recording.names().count("on_step_end"), callbacks.costs()[0].disabled) == (0, True)


def test_failing_state_and_close_are_isolated(caplog):
    class Broken(hl.Callback):
        def state_dict(self):
            raise RuntimeError("no state")

        def close(self):
            raise RuntimeError("no close")

    callbacks = hl.CallbackCollection([Broken()])
    assert callbacks.state_dict() == {}
    callbacks.close()
    assert [f.moment for f in callbacks.failures] == ["state_dict", "close"]


def test_disabled_subscriber_is_still_closed():
    closed = []

    class Closing(Failing):
        def close(self):
            closed.append(True)

    callbacks = hl.CallbackCollection([Closing(0, 1, 2)])
    run(callbacks, 5)
    callbacks.close()
    assert closed == [True]


def test_rank_zero_subscriber_is_called_on_rank_zero_only():
    ranks = []
    callbacks = hl.CallbackCollection(
        [hl.on("step_end", lambda loop: ranks.append(loop.rank), ranks="zero")], strict=True
    )
    for rank in (0, 1, 0, 3):
        callbacks.on_step_end(FakeLoop(rank=rank), 0, None, {})
    assert ranks == [0, 0]


def test_error_of_a_state_is_counted_in_the_costs():
    class Broken(hl.Callback):
        def state_dict(self):
            raise RuntimeError("no state")

    callbacks = hl.CallbackCollection([Broken()])
    callbacks.state_dict()
    (cost,) = callbacks.costs()
    assert (cost.name, cost.calls, cost.errors, cost.note) == ("broken", 0, 1, "1 error")


class Stateless(hl.Callback):
    """Can neither save nor restore a state."""

    def state_dict(self):
        raise RuntimeError("no state")

    def load_state_dict(self, state):
        raise RuntimeError("no load")


@pytest.mark.parametrize(("strict", "critical"), [(True, False), (False, True)])
def test_failing_state_in_a_group_propagates_as_it_would_beside_it(strict, critical):
    group = hl.CallbackCollection([Stateless()], name="group")
    callbacks = hl.CallbackCollection(strict=strict)
    callbacks.add(group, critical=critical)
    with pytest.raises(RuntimeError, match="no state"):
        callbacks.state_dict()
    with pytest.raises(RuntimeError, match="no load"):
        callbacks.load_state_dict({"group": {"stateless": {}}})
    assert [(f.subscriber, f.moment) for f in callbacks.failures] == [
        ("group/stateless", "state_dict"),
        ("group/stateless", "load_state_dict"),
    ]


def test_failing_state_in_a_group_is_isolated_and_in_the_failures_of_the_parent():
    group = hl.CallbackCollection([Stateless()], name="group")
    callbacks = hl.CallbackCollection([group])
    assert callbacks.state_dict() == {"group": {}}
    callbacks.load_state_dict({"group": {"stateless": {}}})
    callbacks.load_state_dict({"group": 3})
    assert [(f.subscriber, f.moment) for f in callbacks.failures] == [
        ("group/stateless", "state_dict"),
        ("group/stateless", "load_state_dict"),
        ("group", "load_state_dict"),
    ]


def test_state_of_a_group_with_methods_of_its_own_is_theirs():
    class Versioned(hl.CallbackCollection):
        def state_dict(self):
            return {"version": 2, "members": super().state_dict()}

        def load_state_dict(self, state):
            self.loaded = state

    group = Versioned([RecordingCallback()], name="group")
    callbacks = hl.CallbackCollection([group], strict=True)
    saved = callbacks.state_dict()
    callbacks.load_state_dict(saved)
    assert saved["group"] == {"version": 2, "members": {"recording_callback": {}}}
    assert group.loaded == saved["group"]


def test_disabled_member_of_a_shared_group_is_disabled_in_every_parent():
    failing = Failing(*range(100))
    group = hl.CallbackCollection([failing], name="group")
    first, second = hl.CallbackCollection([group]), hl.CallbackCollection([group])
    changes = []
    second.on_change = lambda: changes.append(second.plan())
    second.on_step_end(FakeLoop(), 200, None, {})
    run(first, 5)
    run(second, 5)
    assert failing.called == 4
    assert changes == [{}]
