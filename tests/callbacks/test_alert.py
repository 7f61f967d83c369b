"""Alert: rules, severities, cool-down, and what firing does."""

import logging
import math

import pytest

import hookline as hl
from hookline._engine.metrics import Deferred, MetricsRow
from hookline._engine.state import LoopArtifacts
from hookline._record.reader import read
from hookline._record.records import Event
from hookline.callbacks import Alert
from hookline.testing import FakeLoop


def steps_that_fire(values, **arguments):
    fired = []
    alert = Alert("loss", **arguments, action=lambda loop, alert: fired.append(alert["step"]))
    FakeLoop(callbacks=[alert]).run_steps(len(values), lambda step_idx: {"loss": values[step_idx]})
    return fired


@pytest.mark.parametrize(
    ("arguments", "fired"),
    [
        ({"above": 3}, [4, 6]),
        ({"below": 2}, [1]),
        ({"above": 3, "below": 2}, [1, 4, 6]),
        ({"when": lambda value: value == 2}, [2]),
        ({}, [5, 6]),
        ({"above": 3, "once": True}, [4]),
    ],
)
def test_alert_fires_where_its_rule_is_broken(arguments, fired):
    assert steps_that_fire([1, 2, 3, 4, math.nan, math.inf], **arguments) == fired


def test_alert_keeps_silent_while_it_cools_down():
    now = iter(range(0, 1000, 10))  # the clock is read once to ask, and once more to fire
    assert steps_that_fire([9] * 6, above=1, cooldown_seconds=25, clock=lambda: next(now)) == [1, 4]


def test_alert_that_fires_is_logged_with_its_severity(caplog):
    alert = Alert("val_loss", above=2, severity="error")
    with hl.run(root=None, callbacks=[alert], strict=True, summary=False) as run:
        for loss in run.steps([1.0, 2.5]):
            run.log({"val/loss": loss})
    assert [(r.name, r.levelno, r.getMessage()) for r in caplog.records] == [
        ("hookline", logging.ERROR, "alert: val_loss is 2.5, above 2, at step 2")
    ]


def test_alert_that_fires_is_an_event_of_the_record(tmp_path):
    with hl.run(root=tmp_path, callbacks=[Alert("loss", above=2)], strict=True, summary=False) as run:
        for loss in run.steps([1.0, 2.5]):
            run.log(loss=loss)
    events = [(r.step, r.data) for r in read(run.dir) if isinstance(r, Event) and r.name == "alert"]
    message = "loss is 2.5, above 2, at step 2"
    assert events == [(2, {"metric": "loss", "value": 2.5, "severity": "warning", "message": message})]


def test_alert_metric_never_seen_is_warned_about_with_the_names_seen(caplog):
    with hl.run(root=None, callbacks=[Alert("losss", above=3), Alert("loss", above=3)], summary=False) as run:
        for _ in run.steps(2):
            run.log(loss=1.0, accuracy=0.5)
    assert [r.getMessage() for r in caplog.records] == ["alert never saw 'losss'. Metrics seen: accuracy, loss."]


def test_alert_with_stop_ends_the_run():
    with hl.run(root=None, callbacks=[Alert(stop=True)], strict=True, summary=False) as run:
        for loss in run.steps([1.0, math.nan, 1.0]):
            run.log(loss=loss)
    assert (run.step, run.stop_reason) == (2, "alert: loss is nan at step 2")


def test_alert_that_fired_once_stays_silent_after_a_resume():
    first = Alert("loss", above=1, once=True)
    FakeLoop(callbacks=[first]).run_steps(2, lambda step_idx: {"loss": 5})
    second = Alert("loss", above=1, once=True)
    second.load_state_dict(first.state_dict())
    FakeLoop(callbacks=[second]).run_steps(2, lambda step_idx: {"loss": 5})
    assert second.fired == 1


class Device:
    """Numbers that arrive when somebody says so."""

    arrives = True

    def __init__(self, value):
        self.value, self.here = value, False

    def ready(self):
        return self.here

    def number(self, index):
        return self.value


def test_alert_does_not_wait_for_a_device():
    fired = []
    loop = FakeLoop(callbacks=[Alert("loss", above=1, action=lambda loop, alert: fired.append(alert["step"]))])
    first, second, third = Device(5.0), Device(0.5), Device(7.0)
    for step, device in enumerate((first, second, third), start=1):
        first.here = step == 2
        loop.commit(step, MetricsRow(loss=Deferred(device)))
        assert fired == ([] if step == 1 else [1])
    loop.callbacks.on_train_end(loop, LoopArtifacts(step=3))
    assert fired == [1, 3]


def test_alert_ignores_values_that_are_no_numbers():
    assert steps_that_fire(["text", None, 5], above=1) == [3]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"severity": "eror"}, "severity='eror': .*error"),
        ({"cooldown_seconds": -1}, "cooldown_seconds=-1"),
        ({"when": "loss > 1"}, "when='loss > 1': give a function"),
        ({"action": 1}, "action=1"),
        ({"metric": ""}, "metric=''"),
    ],
)
def test_alert_bad_arguments_are_errors(arguments, message):
    with pytest.raises(hl.OptionError, match=message):
        Alert(**arguments)
