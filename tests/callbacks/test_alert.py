"""Alert: rules, severities, cool-down, and what firing does."""

import logging
import math

import pytest

import hookline as hl
from hookline._engine.errors import OptionError
from hookline._engine.metrics import Deferred, MetricsRow
from hookline._engine.state import LoopArtifacts
from hookline._record import run_directory
from hookline._record.reader import read
from hookline._record.recorder import Recorder
from hookline._record.records import Event
from hookline.callbacks import Alert, NoProgress
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
    facts = {
        "rule": "alert",
        "metric": "loss",
        "value": 2.5,
        "severity": "warning",
        "message": message,
        "repeats": True,
    }
    assert events == [(2, {"rule": "alert"} | facts)]


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


@pytest.mark.parametrize(
    ("arguments", "fired"),
    [
        ({"in_a_row": 2}, [3, 4, 7]),
        ({"rearm": "recovered"}, [2, 6]),
        ({"in_a_row": 2, "rearm": "recovered"}, [3, 7]),
        ({"in_a_row": 4}, []),
    ],
)
def test_alert_waits_for_values_in_a_row_and_for_recovery(arguments, fired):
    assert steps_that_fire([1, 9, 9, 9, 1, 9, 9], above=5, **arguments) == fired


@pytest.mark.parametrize(
    ("arguments", "fired"),
    [
        ({"steps": 2}, [4, 9]),
        ({"steps": 3}, [5, 10]),
        ({"steps": 2, "min_delta": 1.5}, [3, 9]),
        ({"steps": 2, "mode": "max"}, [3, 8]),
        ({"steps": 20}, []),
    ],
)
def test_no_progress_fires_once_until_the_metric_improves(arguments, fired):
    values = [5, 4, 4, math.nan, 4, 6, 3, 3, 3, 3]
    found = []
    rule = NoProgress("loss", **arguments, action=lambda loop, alert: found.append(alert["step"]))
    FakeLoop(callbacks=[rule]).run_steps(len(values), lambda step_idx: {"loss": values[step_idx]})
    assert found == fired


def test_no_progress_by_time_counts_from_the_last_improvement():
    now, found = [0.0], []
    rule = NoProgress(
        "loss", seconds=30, clock=lambda: now[0], action=lambda loop, alert: found.append(alert["message"])
    )

    def values(step_idx):
        now[0] += 10
        return {"loss": 1.0 if step_idx else 2.0}

    FakeLoop(callbacks=[rule]).run_steps(8, values)
    assert found == ["loss has not improved on 1 for 30 s at step 5"]


def test_no_progress_state_continues_after_a_resume():
    rule, found = NoProgress("loss", steps=4), []
    FakeLoop(callbacks=[rule]).run_steps(3, lambda step_idx: {"loss": 1.0})
    resumed = NoProgress("loss", steps=4, action=lambda loop, alert: found.append(alert["step"]))
    resumed.load_state_dict(rule.state_dict())
    loop = FakeLoop(callbacks=[resumed])
    loop.step = 3
    loop.callbacks.on_train_start(loop)
    for step in range(4, 8):
        loop.callbacks.on_log(loop, step, {"loss": 1.0})
    assert found == [5]


@pytest.mark.parametrize("options", [{"steps": 0}, {"seconds": -1}, {"severity": "loud"}, {"mode": "up"}])
def test_no_progress_with_wrong_options_is_refused(options):
    with pytest.raises(hl.OptionError):
        NoProgress("loss", **options)


def recorded_group(root):
    for name, offset in (("base-a", -0.25), ("base-b", 0.0), ("base-c", 4.0)):
        directory = run_directory.create(root, "lab", {"name": name}, run_id=name)
        recorder = Recorder(directory)
        for step in (1, 2, 4):
            recorder.log({"loss": step + offset}, step=step)
        recorder.close()
        run_directory.release(directory)
    return str(root / "lab" / "base-*")


def test_alert_fires_where_the_metric_diverges_from_a_group_as_in_a_replay(tmp_path):
    group = recorded_group(tmp_path / "runs")
    rule = {"reference": [group], "differs_by": 0.5}
    with hl.run("new", root=tmp_path / "runs", summary=False, console=False, callbacks=[Alert("loss", **rule)]) as run:
        for loss in run.steps([1.5, 2.75, 2.0, math.nan, 4.1]):
            run.log(loss=loss)
    raised = [record for record in hl.read(run.dir) if getattr(record, "name", "") == "alert"]
    assert [record.step for record in raised] == [2, 4]  # at step 3, the group's values are those of step 2
    assert raised[0].data["message"] == "loss is 2.75, 0.75 from the median 2 of 3 runs, at step 2"
    assert [alert.step for alert in hl.replay(run.dir, [Alert("loss", **rule)]).alerts] == [2, 4]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"reference": ["x"]}, "belong together"),
        ({"differs_by": 1.0}, "belong together"),
        ({"reference": "x", "differs_by": 1.0}, "give a list"),
        ({"reference": ["x"], "differs_by": 0}, "differs_by"),
    ],
)
def test_alert_with_half_a_group_is_refused(arguments, message):
    with pytest.raises(OptionError, match=message):
        Alert("loss", **arguments)


@pytest.mark.parametrize(("metric", "place"), [("loss", "nowhere"), ("reward", "lab/base-a")])
def test_alert_with_a_group_that_is_not_there_says_so_and_training_continues(tmp_path, caplog, metric, place):
    recorded_group(tmp_path)
    rule = Alert(metric, reference=[str(tmp_path / place)], differs_by=1.0)
    with hl.run("new", root=tmp_path, summary=False, console=False, callbacks=[rule]) as run:
        for _ in run.steps(2):
            run.log(**{metric: 1.0})
    assert ("reference=" in caplog.text, run.step) == (True, 2)
