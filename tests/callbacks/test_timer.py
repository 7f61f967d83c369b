"""Timer: budgets, margins, and what a resume counts."""

from datetime import timedelta

import pytest

import hookline as hl
from hookline._engine.state import LoopArtifacts
from hookline.callbacks import Timer
from hookline.testing import FakeLoop


class Clock:
    """A clock that somebody else moves."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def trained(timer, clock, *, steps=10, step_seconds=10.0):
    with hl.run(root=None, callbacks=[timer], strict=True, summary=False) as run:
        for _ in run.steps(steps):
            clock.now += step_seconds
    return run


@pytest.mark.parametrize(
    ("arguments", "steps", "reason"),
    [
        ({"seconds": 35}, 4, "timer: the budget of 35 s is used up"),
        ({"seconds": 30}, 3, "timer: the budget of 30 s is used up"),
        ({"duration": "1m", "margin": 35}, 3, "timer: the budget of 60 s less a margin of 35 s is used up"),
        ({"hours": 0.01}, 4, "timer: the budget of 36 s is used up"),
        ({"hours": 1}, 10, None),
        ({}, 10, None),
    ],
)
def test_timer_stops_when_the_budget_less_the_margin_is_used_up(arguments, steps, reason):
    clock = Clock()
    run = trained(Timer(**arguments, clock=clock), clock)
    assert (run.step, run.stop_reason) == (steps, reason)


@pytest.mark.parametrize(
    ("duration", "seconds"),
    [
        ("8h", 28800),
        ("1h30m", 5400),
        ("90 min", 5400),
        ("1d 2h", 93600),
        ("1.5h", 5400),
        ("45s", 45),
        (60, 60),
        ("00:08:00", 480),
        ("1:00:00:01", 86401),
        (timedelta(minutes=2), 120),
    ],
)
def test_timer_duration_is_understood(duration, seconds):
    assert Timer(duration).budget_seconds == seconds


@pytest.mark.parametrize(("includes", "steps"), [(True, 2), (False, 5)])
def test_timer_after_a_resume_counts_earlier_sessions_where_asked(includes, steps):
    clock = Clock()
    first = Timer(seconds=50, clock=clock)
    trained(first, clock, steps=3)
    second = Timer(seconds=50, includes_earlier_sessions=includes, clock=clock)
    second.load_state_dict(first.state_dict())
    assert trained(second, clock).step == steps
    assert second.state_dict() == {"total_seconds": 30.0 + steps * 10.0}


@pytest.mark.parametrize(("includes", "remaining"), [(True, 395.0), (False, 385.0)])
def test_timer_state_loaded_while_training_counts_no_time_twice_and_gives_none_back(includes, remaining):
    clock = Clock()
    timer = Timer(seconds=500, includes_earlier_sessions=includes, clock=clock)
    loop = FakeLoop(callbacks=[timer])
    loop.callbacks.on_train_start(loop)
    clock.now += 100
    saved = timer.state_dict()
    clock.now += 10
    timer.load_state_dict(saved)
    clock.now += 5
    assert (timer.total_seconds, timer.elapsed_seconds, timer.remaining_seconds) == (105.0, 115.0, remaining)


def test_timer_with_nothing_left_stops_before_the_first_step():
    clock = Clock()
    timer = Timer(seconds=50, includes_earlier_sessions=True, clock=clock)
    timer.load_state_dict({"total_seconds": 50.0})
    assert trained(timer, clock).step == 0


def test_timer_used_up_in_a_validation_stops_before_the_next_step():
    clock = Clock()
    with hl.run(root=None, callbacks=[Timer(seconds=50, clock=clock)], strict=True, summary=False) as run:
        for _ in run.epochs(3):
            for _ in run.steps(1):
                clock.now += 1
            with run.validate():
                clock.now += 60
    assert run.step == 1


def test_timer_keeps_the_reason_of_an_earlier_stop():
    clock = Clock()
    loop = FakeLoop(callbacks=[Timer(seconds=5, clock=clock)])
    loop.callbacks.on_train_start(loop)
    loop.request_stop("somebody else")
    clock.now += 10
    loop.callbacks.on_train_end(loop, LoopArtifacts(step=0))
    assert loop.stop_reason == "somebody else"


def test_timer_tells_what_is_left():
    clock = Clock()
    timer = Timer(seconds=50, margin=10, clock=clock)
    loop = FakeLoop(callbacks=[timer])
    loop.callbacks.on_train_start(loop)
    clock.now += 15
    assert (timer.elapsed_seconds, timer.remaining_seconds) == (15.0, 25.0)
    assert Timer().remaining_seconds is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seconds": 0}, "seconds=0: give more than 0"),
        ({"seconds": -1}, "seconds=-1: give a number of seconds"),
        ({"duration": "8 parsecs"}, "duration='8 parsecs'"),
        ({"duration": ""}, "duration=''"),
        ({"duration": "1h", "hours": 2}, "duration='1h', hours=2: give one of them"),
        ({"seconds": 5, "margin": 5}, "margin=5: give less than the budget"),
        ({"seconds": True}, "seconds=True"),
    ],
)
def test_timer_bad_arguments_are_errors(arguments, message):
    with pytest.raises(hl.OptionError, match=message):
        Timer(**arguments)
