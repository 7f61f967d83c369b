"""EarlyStoppingCallback."""

import math

import pytest

import hookline as hl
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
    ],
)
def test_early_stopping_stops_after(values, arguments, stopped_after):
    step, reason = steps_until_stop(values, **arguments)
    assert step == stopped_after
    assert reason.startswith("early stopping: val_loss")


def test_early_stopping_goes_on_while_the_metric_improves():
    assert steps_until_stop([5, 4, 3, 2, 1], patience=1) == (5, None)


def test_early_stopping_state_goes_on_after_a_resume():
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"mode": "up"}, "mode='up'"), ({"patience": 0}, "patience=0"), ({"min_delta": -1}, "min_delta=-1")],
)
def test_early_stopping_bad_arguments_are_errors(arguments, message):
    with pytest.raises(hl.OptionError, match=message):
        EarlyStoppingCallback(**arguments)
