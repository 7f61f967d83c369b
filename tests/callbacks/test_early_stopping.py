"""EarlyStoppingCallback."""

import logging
import math

import pytest

import hookline as hl
from hookline._engine.metrics import Deferred
from hookline.callbacks import EarlyStoppingCallback
from hookline.testing import FakeLoop


def steps_until_stop(values, **arguments):
    loop = FakeLoop(callbacks=[EarlyStoppingCallback("val_loss", **arguments)])
    loop.run_steps(len(values), lambda step_idx: {} if values[step_idx] is None else {"val/loss": values[step_idx]})
    return loop.step, loop.stop_reason


@pytest.mark.parametrize(
    ("values", "arguments", "stopped_after"),
    [
        ([3, 2, 1, 1, 1, 1], {"patience": 2}, 5),
        ([3, 2, 1, 0.9995, 0.999, 0.998], {"patience": 2, "min_delta": 0.01}, 5),
        ([1, 2, 3, 3, 3], {"patience": 2, "mode": "max"}, 5),
        ([3, None, 3, None, 3, None], {"patience": 2}, 5),
        ([3, 2, 0.4, 0.3], {"stopping_threshold": 0.4}, 3),
        ([3, math.nan, 2], {"patience": 9}, 2),
        ([math.nan, math.nan, math.nan], {"patience": 2, "check_finite": False}, 2),
        ([math.nan, 3, 2, 2, 2], {"patience": 2, "check_finite": False}, 5),
        ([math.nan, 3], {}, 1),
        ([3, math.inf, 2], {}, 2),
        ([3, 2, math.nan, 2, 1], {"patience": 2, "check_finite": False}, 4),
        ([-math.inf, 3, 2, 2, 2], {"patience": 2, "check_finite": False}, 5),
        ([0.2, 0.9, 0.95], {"stopping_threshold": 0.9, "mode": "max"}, 2),
        ([3, 2.9, 2.8, 2.7], {"patience": 1, "min_delta": 0.2}, 2),
        ([3, 2, 2, 1, 1, 1], {"patience": 2}, 6),
    ],
)
def test_early_stopping_stops_after(values, arguments, stopped_after):
    step, reason = steps_until_stop(values, **arguments)
    assert step == stopped_after
    assert reason.startswith("early stopping: val_loss")


def test_early_stopping_continues_while_the_metric_improves():
    assert steps_until_stop([5, 4, 3, 2, 1], patience=1) == (5, None)


@pytest.mark.parametrize(
    ("values", "arguments", "reason"),
    [
        ([1, 2], {"patience": 1}, "has not improved on 1 for 1 check"),
        ([math.nan], {}, "is nan"),
        ([math.nan], {"patience": 1, "check_finite": False}, "has not improved on nothing finite for 1 check"),
        ([0.25], {"stopping_threshold": 0.5}, "reached 0.25"),
    ],
)
def test_early_stopping_says_why(values, arguments, reason):
    assert steps_until_stop(values, **arguments) == (len(values), f"early stopping: val_loss {reason}")


def test_early_stopping_metric_that_is_no_number_is_an_error():
    with pytest.raises(hl.OptionError, match="monitor='val_loss' is 'low'"):
        steps_until_stop(["low"])


class Late:
    """A number that arrives when the test says so, or when it is waited for."""

    arrives = True

    def __init__(self, value):
        self.value, self.here, self.waited_for = value, False, False

    def ready(self):
        return self.here

    def number(self, index):
        self.waited_for = not self.here
        return self.value


def late_losses(callback, *, every):
    """A loop whose loss is 1, 2, 3, logged every so many steps, and the losses."""
    late = [Late(1.0), Late(2.0), Late(3.0)]
    loop = FakeLoop(callbacks=[callback], num_steps=None)
    losses = {index * every: {"loss": Deferred(value)} for index, value in enumerate(late)}
    loop.run_steps(2 * every + 1, lambda step_idx: losses.get(step_idx, {}))
    return loop, late


def test_early_stopping_metric_of_every_step_is_not_waited_for():
    loop, late = late_losses(EarlyStoppingCallback("loss", patience=2), every=1)
    assert ([value.waited_for for value in late], loop.stop_reason) == ([True, False, False], None)
    late[1].here = late[2].here = True
    loop.run_steps(1)
    assert loop.stop_reason == "early stopping: loss has not improved on 1 for 2 checks"


def test_early_stopping_metric_of_some_steps_stops_on_the_spot():
    loop, _ = late_losses(EarlyStoppingCallback("loss", patience=2), every=5)
    assert (loop.step, loop.stop_reason) == (11, "early stopping: loss has not improved on 1 for 2 checks")


def test_early_stopping_state_counts_values_on_a_device():
    callback = EarlyStoppingCallback("loss", patience=2)
    loop, _ = late_losses(callback, every=1)
    assert callback.state_dict() == {"best": 1.0, "waited": 2}
    loop.run_steps(1)
    assert loop.stop_reason == "early stopping: loss has not improved on 1 for 2 checks"


def test_early_stopping_state_continues_after_a_resume():
    first = EarlyStoppingCallback("loss", patience=3)
    FakeLoop(callbacks=[first]).run_steps(3, lambda step_idx: {"loss": 1.0})
    second = EarlyStoppingCallback("loss", patience=3)
    second.load_state_dict(first.state_dict())
    loop = FakeLoop(callbacks=[second])
    loop.run_steps(5, lambda step_idx: {"loss": 1.0})
    assert loop.step == 1


def test_early_stopping_metric_never_seen_is_warned_about_with_the_names_seen(caplog):
    with hl.run(callbacks=[EarlyStoppingCallback("val/acuracy")], summary=False) as run:
        for _ in run.steps(2):
            run.log(loss=1, accuracy=2)
    assert [r.getMessage() for r in caplog.records] == [
        "early_stopping never saw 'val/acuracy'. Metrics seen: accuracy, loss."
    ]


def monitored(callback, *, steps=6, stop_at=None, evaluate_at=()):
    """The steps done when a warning came, and its text, in a run that logs ``loss`` and evaluates after some steps."""
    warned = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: warned.append((run.step, record.getMessage()))
    logging.getLogger("hookline").addHandler(handler)
    try:
        with hl.run(callbacks=[callback], summary=False) as run:
            for i in run.steps(steps):
                run.log(loss=1.0)
                for name in ("first", "second") if i + 1 in evaluate_at else ():
                    with run.validate(name) as val:
                        val.log(accuracy=0.5)
                if i + 1 == stop_at:
                    run.request_stop("SIGTERM")
    finally:
        logging.getLogger("hookline").removeHandler(handler)
    return warned


MONITORS = {
    "stopping": lambda monitor: EarlyStoppingCallback(monitor),
    "checkpoint": lambda monitor: hl.callbacks.CheckpointCallback(monitor),
    "alert": lambda monitor: hl.callbacks.Alert(monitor),
}


@pytest.mark.parametrize("kind", MONITORS)
def test_monitor_missing_at_the_first_evaluation_is_warned_about_while_training(kind):
    [(step, text)] = monitored(MONITORS[kind]("second/acuracy"), evaluate_at=(2, 4))
    assert step <= 3
    assert "never saw 'second/acuracy' up to the first evaluation, at step 2" in text
    assert "Metrics seen: first/accuracy, loss, second/accuracy." in text


@pytest.mark.parametrize("kind", MONITORS)
@pytest.mark.parametrize("monitor", ["second/accuracy", "loss"])
def test_monitor_that_exists_is_not_warned_about(kind, monitor):
    assert monitored(MONITORS[kind](monitor), evaluate_at=(2,)) == []


@pytest.mark.parametrize("kind", MONITORS)
def test_monitor_is_not_warned_about_when_a_stop_comes_before_any_evaluation(kind):
    assert monitored(MONITORS[kind]("second/accuracy"), stop_at=2) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"monitor": ""}, "monitor=''"),
        ({"mode": "up"}, "mode='up'"),
        ({"patience": 0}, "patience=0"),
        ({"patience": 1.5}, "patience=1.5"),
        ({"min_delta": -1}, "min_delta=-1"),
        ({"min_delta": math.nan}, "min_delta=nan"),
        ({"min_delta": "0.1"}, "min_delta='0.1'"),
        ({"stopping_threshold": math.nan}, "stopping_threshold=nan"),
        ({"stopping_threshold": "low"}, "stopping_threshold='low'"),
    ],
)
def test_early_stopping_bad_arguments_are_errors(arguments, message):
    with pytest.raises(hl.OptionError, match=message):
        EarlyStoppingCallback(**arguments)


@pytest.mark.parametrize(
    ("calls", "state", "reason"),
    [
        ([3], "completed", None),
        ([4], "stopped", "early stopping: loss has not improved on 1 for 2 checks"),
        ([3, 2], "stopped", "early stopping: loss has not improved on 1 for 2 checks"),
        ([3, iter(range(2))], "stopped", "early stopping: loss has not improved on 1 for 2 checks"),
    ],
    ids=["last step", "before", "another call", "another call without a length"],
)
def test_early_stopping_at_the_last_step_leaves_a_completed_run(calls, state, reason):
    ends = []
    watching = hl.on("train_end", lambda loop, artifacts: ends.append(artifacts.stop_reason))
    with hl.run(callbacks=[EarlyStoppingCallback("loss", patience=2), watching], summary=False) as run:
        for data in calls:
            for _ in run.steps(data):
                run.log(loss=1.0)
    assert (run.step, run.state, run.stop_reason, ends) == (3, state, reason, [reason])
