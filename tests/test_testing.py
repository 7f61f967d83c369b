"""hookline.testing: what authors of callbacks use, and that its checks can fail."""

import pytest

import hookline as hl
from hookline.testing import FakeLoop, RecordingCallback, check_callback, fire_everything


def test_fire_everything_fires_every_moment_of_the_catalogue():
    recording = RecordingCallback()
    fire_everything(recording)
    assert set(recording.names()) == set(hl.MOMENTS)


def test_fire_everything_lets_exceptions_through():
    def fail(loop):
        raise ValueError("bad")

    with pytest.raises(ValueError, match="bad"):
        fire_everything(hl.on("checkpoint", fail))


def test_fire_everything_asks_hooks_after_each_step():
    loop = fire_everything(hl.hooks.MetricsHook(2, lambda context: {"step": context.step}))
    assert [row.metrics["metrics_hook/step"] for row in loop.history if "metrics_hook/step" in row.metrics] == [2, 4]


@pytest.mark.parametrize("metrics", [None, {}, {"loss": float("nan"), "reward": None, "note": "text"}])
def test_fire_everything_ends_with_a_result_that_can_be_asked_what_a_real_one_can(metrics):
    results = []

    class Reporter(hl.Callback):
        def on_run_end(self, ctx, run_result, arm_result):
            results.append((run_result.metrics["benchmark/score"], list(arm_result.runs) == [run_result]))

        def on_experiment_end(self, ctx, result):
            results.append((result.main_metric, result.table()[0].mean, "arm" in result.to_markdown()))

    fire_everything(Reporter(), metrics=metrics)
    assert results == [(1.0, True), ("benchmark/score", 1.0, True)]


def test_recording_callback_keeps_arguments_as_they_were():
    recording = RecordingCallback()
    loop = FakeLoop(callbacks=[recording])
    loop.run_steps(1, lambda step_idx: {"loss": 0.5})
    loop.save_checkpoint("here")
    assert [event for event in recording.events if event.moment in ("on_step_end", "on_log")] == [
        ("on_step_end", (0, None, {"loss": 0.5})),
        ("on_log", (1, {"loss": 0.5})),
    ]
    assert recording.names()[-1] == "on_checkpoint"


def test_fake_loop_stops_when_asked_and_takes_facts():
    loop = FakeLoop(callbacks=[hl.on("step_end", lambda loop: loop.request_stop("two"), every=2)], rank=3, model="m")
    loop.run_steps(10)
    assert (loop.step, loop.stop_reason, loop.rank, loop.model) == (2, "two", 3, "m")
    assert isinstance(loop, hl.LoopState)


def test_fake_loop_propagates_exceptions_unless_configured_otherwise():
    def fail(loop):
        raise ValueError("bad")

    loop = FakeLoop(callbacks=[hl.on("step_end", fail)], strict=False)
    loop.run_steps(2)
    assert loop.step == 2
    with pytest.raises(ValueError, match="bad"):
        FakeLoop(callbacks=[hl.on("step_end", fail)]).run_steps(2)


def test_fake_loop_keeps_samples_to_look_at():
    loop = FakeLoop(step=4, callbacks=[hl.on("eval", lambda loop: loop.log_samples([{"completion": "4"}]))])
    loop.callbacks.on_eval(loop, 3, "val", {})
    assert loop.samples == [{"step": 4, "completion": "4"}]


class Fine(hl.Callback):
    def __init__(self):
        self.seen = 0

    def on_step_end(self, loop):
        self.seen += 1

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state):
        self.seen = state["seen"]


class FailsOnNaN(Fine):
    def on_log(self, loop, step, metrics):
        assert metrics.get("loss", 0) == metrics.get("loss", 0)


class ForgetsState(Fine):
    def load_state_dict(self, state):
        pass


class KeepsALock(Fine):
    def __init__(self):
        import threading

        super().__init__()
        self.lock = threading.Lock()


class HasOddState(Fine):
    def state_dict(self):
        return {"thing": object()}


class ClosesOnce(Fine):
    def close(self):
        del self.seen


class SharesAList(hl.Callback):
    seen: list[int] = []  # noqa: RUF012

    def on_step_end(self, loop):
        self.seen.append(loop.step)

    def state_dict(self):
        return {"seen": list(self.seen)}

    def load_state_dict(self, state):
        self.seen[:] = state["seen"]


def test_contract_holds_for_a_good_callback():
    check_callback(Fine)


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (FailsOnNaN, "every moment can fire"),
        (ForgetsState, "after load_state_dict"),
        (KeepsALock, "a copy can be made"),
        (HasOddState, r"A checkpoint cannot hold state_dict\(\): 'thing' is <object"),
        (ClosesOnce, "closing twice"),
        (SharesAList, "two of one class share state"),
    ],
)
def test_contract_names_what_does_not_hold(factory, message):
    with pytest.raises(AssertionError, match=message):
        check_callback(factory)


def test_contract_refuses_a_factory_that_makes_one_instance_only():
    one = Fine()
    with pytest.raises((AssertionError, hl.DuplicateError)):
        check_callback(lambda: one)


class CopiesToItself(Fine):
    def __deepcopy__(self, memo):
        return self


class SharesWithItsCopy(hl.Callback):
    def __init__(self):
        self.seen = []

    def __deepcopy__(self, memo):
        copied = SharesWithItsCopy()
        copied.seen = self.seen
        return copied

    def on_step_end(self, loop):
        self.seen.append(loop.step)

    def state_dict(self):
        return {"seen": list(self.seen)}

    def load_state_dict(self, state):
        self.seen[:] = state["seen"]


@pytest.mark.parametrize(
    ("factory", "message"), [(CopiesToItself, "returns the original"), (SharesWithItsCopy, "a copy shares state")]
)
def test_contract_refuses_a_copy_that_shares_something(factory, message):
    with pytest.raises(AssertionError, match=message):
        check_callback(factory)


def _rows_of(make_steps):
    """The rows of two steps in which every moment logs, the state it was in as well."""
    moments = ["step_start", "train_batch_start", "train_batch_end", "step_end"]

    def logs(loop, name):
        loop.log({name: loop.step, f"{name}/within": int(loop.in_step)})

    members = [hl.on(name, lambda loop, name=name: logs(loop, name)) for name in moments]
    return [(row.step, dict(row.metrics)) for row in make_steps(members).history]


def test_fake_loop_moments_within_a_step_log_into_its_row_as_in_a_real_run():
    def fake(members):
        loop = FakeLoop(callbacks=members)
        loop.run_steps(2)
        return loop

    def real(members):
        with hl.run(callbacks=members, root=None, summary=False) as run:
            list(run.steps(2))
        return run

    assert [step for step, _ in _rows_of(fake)] == [1, 2]
    assert _rows_of(fake) == _rows_of(real)


def test_fake_loop_is_out_of_a_step_that_failed():
    def fail(loop, step_idx):
        if step_idx == 0 and not loop.metrics:
            raise ValueError("bad")

    loop = FakeLoop(callbacks=[hl.on("step_start", fail)])
    with pytest.raises(ValueError, match="bad"):
        loop.run_steps(1)
    loop.log(seen=1)
    loop.run_steps(1)
    assert [(row.step, row.metrics) for row in loop.history] == [(0, {"seen": 1}), (1, {})]


def test_fire_everything_evaluates_as_a_real_loop_does():
    recording = RecordingCallback()
    fire_everything(recording)
    reported = [event for event in recording.events if event.moment in ("on_log", "on_validation_end", "on_eval")]
    assert [(event.moment, *event.arguments) for event in reported[-5:]] == [
        ("on_log", 4, {"val/loss": 1.0}),
        ("on_validation_end",),
        ("on_eval", 3, "val", {"val/loss": 1.0}),
        ("on_log", 4, {"benchmark/score": 1.0}),
        ("on_eval", 3, "benchmark", {"benchmark/score": 1.0}),
    ]
