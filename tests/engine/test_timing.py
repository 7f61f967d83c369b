"""What subscribers cost, on a clock that the test holds."""

import logging
import random
from itertools import count

import pytest

import hookline as hl
from hookline._engine.costs import Cost, Costs, Meter, duration
from hookline.testing import FakeLoop


class Clock:
    """Nanoseconds that only the test advances; counts how often it is read."""

    def __init__(self):
        self.now = self.reads = 0

    def __call__(self):
        self.reads += 1
        return self.now


def takes(clock, ns):
    def work(loop):
        clock.now += ns

    return work


def takes_in_turn(clock, nanoseconds):
    """Take as long as ``nanoseconds(n)`` says for the n-th call."""
    calls = count()

    def work(loop):
        clock.now += nanoseconds(next(calls))

    return work


def reads_over_steps(callbacks, clock, *, warm_up, steps):
    """How often the clock is read over ``steps`` steps, after ``warm_up`` others."""
    loop = FakeLoop(callbacks=callbacks)
    loop.run_steps(warm_up)
    before = clock.reads
    loop.run_steps(steps)
    return clock.reads - before


def collection(clock, *members, **policy):
    callbacks = hl.CallbackCollection(policy=hl.Policy(clock=clock, strict=True, **policy))
    for name, ns, options in members:
        callbacks.add(hl.on("step_end", takes(clock, ns), name=name), **options)
    return callbacks


def test_costs_count_every_call_and_estimate_the_rest():
    callbacks = collection(clock := Clock(), ("fast", 1_000, {}))
    FakeLoop(callbacks=callbacks).run_steps(10_000)
    cost = callbacks.costs()[0]
    assert (cost.name, cost.calls, cost.errors) == ("fast", 10_000, 0)
    assert (cost.total_seconds, cost.mean_seconds, cost.p95_seconds, cost.max_seconds) == (0.01, 1e-6, 1e-6, 1e-6)
    assert clock.now == 10_000_000


def test_costs_of_a_slow_subscriber_are_exact():
    clock, calls = Clock(), []

    def uneven(loop):
        calls.append(len(calls))
        clock.now += 50_000 + 1_000 * len(calls)

    callbacks = hl.CallbackCollection([hl.on("step_end", uneven)], policy=hl.Policy(clock=clock, strict=True))
    loop = FakeLoop(callbacks=callbacks)
    loop.run_steps(100)
    settled = callbacks.costs()[0].total_seconds
    loop.num_steps = 200
    loop.run_steps(100)
    exact = sum(50_000 + 1_000 * n for n in range(101, 201)) / 1e9
    assert round(callbacks.costs()[0].total_seconds - settled, 9) == round(exact, 9)


@pytest.mark.parametrize("subscribers", [1, 10])
def test_costs_after_one_delayed_call_are_sampled(subscribers):
    clock = Clock()
    delayed_once = [takes_in_turn(clock, lambda n: 50_000 if n == 1 else 1_000) for _ in range(subscribers)]
    callbacks = hl.CallbackCollection(
        [hl.on("step_end", work) for work in delayed_once], policy=hl.Policy(clock=clock, strict=True)
    )
    assert reads_over_steps(callbacks, clock, warm_up=10, steps=1_000) < 1_000


def test_costs_with_a_delay_now_and_then_are_sampled():
    clock, noise = Clock(), random.Random(5)
    delayed = takes_in_turn(clock, lambda n: 50_000 if noise.random() < 0.05 else 1_000)
    callbacks = hl.CallbackCollection([hl.on("step_end", delayed)], policy=hl.Policy(clock=clock, strict=True))
    assert reads_over_steps(callbacks, clock, warm_up=1_000, steps=10_000) < 2_000


@pytest.mark.parametrize("moment", ["step_end", "step_start"])
@pytest.mark.parametrize("cadenced", [False, True])
def test_costs_of_a_slow_subscriber_that_becomes_fast_are_sampled_again(moment, cadenced):
    clock = Clock()
    warming_up = takes_in_turn(clock, lambda n: 50_000 if n < 500 else 1_000)
    members = [hl.on(moment, warming_up)]
    if cadenced:
        members.append(hl.on(moment, takes(clock, 1_000), every=10_000))
    callbacks = hl.CallbackCollection(members, policy=hl.Policy(clock=clock, strict=True))
    slow = reads_over_steps(callbacks, clock, warm_up=100, steps=400)
    fast = reads_over_steps(callbacks, clock, warm_up=500, steps=1_000)
    assert slow >= 800
    assert fast < 500


def test_costs_of_a_subscriber_slow_every_other_call_are_exact():
    clock = Clock()
    callbacks = hl.CallbackCollection(
        [hl.on("step_end", takes_in_turn(clock, lambda n: 1_000 if n % 2 else 50_000))],
        policy=hl.Policy(clock=clock, strict=True),
    )
    loop = FakeLoop(callbacks=callbacks)
    loop.run_steps(1_000)
    settled, began = callbacks.costs()[0].total_seconds, clock.now
    loop.run_steps(1_000)
    assert round(callbacks.costs()[0].total_seconds - settled, 9) == (clock.now - began) / 1e9


def test_costs_of_a_cadence_are_counted_at_its_own_calls():
    callbacks = collection(Clock(), ("rare", 7_000, {"every": 10}), ("often", 1_000, {}))
    FakeLoop(callbacks=callbacks).run_steps(95)
    costs = callbacks.costs().by_name()
    assert (costs["rare"].calls, costs["often"].calls) == (9, 95)
    assert round(costs["rare"].total_seconds * 1e9) == 63_000


class SlowToLog(FakeLoop):
    """A loop that takes a second to log what a subscriber returned."""

    def __init__(self, clock, callbacks):
        super().__init__(callbacks=callbacks)
        self.clock = clock

    def log(self, *arguments, **values):
        self.clock.now += 1_000_000_000
        return super().log(*arguments, **values)


def test_costs_of_recording_a_result_are_charged_to_no_subscriber():
    callbacks = collection(clock := Clock())
    callbacks.add(hl.on("step_end", lambda loop: {"value": 1}, name="returns"))
    callbacks.add(hl.on("step_end", takes(clock, 1_000), name="next"))
    SlowToLog(clock, callbacks).run_steps(100)
    costs = {cost.name: (cost.calls, round(cost.total_seconds * 1e9)) for cost in callbacks.costs()}
    assert costs == {"returns": (100, 0), "next": (100, 100_000)}
    assert clock.now >= 100 * 1_000_001_000


def test_costs_of_asking_when_are_charged_to_no_subscriber():
    callbacks = collection(clock := Clock())
    callbacks.add(hl.on("step_end", takes(clock, 5_000), name="asked"), when=takes(clock, 1_000_000))
    callbacks.add(hl.on("step_end", takes(clock, 1_000), name="next"))
    FakeLoop(callbacks=callbacks).run_steps(100)
    costs = callbacks.costs().by_name()
    assert (costs["next"].calls, round(costs["next"].total_seconds * 1e9)) == (100, 100_000)


def test_costs_survive_changes_of_the_collection():
    callbacks = collection(Clock(), ("kept", 1_000, {}))
    loop = FakeLoop(callbacks=callbacks)
    for _ in range(5):
        loop.run_steps(10)
        callbacks.add(hl.on("step_end", lambda loop: None))
    assert callbacks.costs().by_name()["kept"].calls == 50


def test_costs_print_as_a_table_dearest_first():
    callbacks = collection(Clock(), ("cheap", 1_000, {}), ("dear", 9_000, {}))
    FakeLoop(callbacks=callbacks).run_steps(3)
    assert str(callbacks.costs()).splitlines() == [
        "subscriber  calls    total    mean     p95     max",
        "dear            3  27.0 µs  9.0 µs  9.0 µs  9.0 µs",
        "cheap           3   3.0 µs  1.0 µs  1.0 µs  1.0 µs",
    ]


def test_costs_are_logged_as_metrics_at_a_low_rate():
    callbacks = collection(Clock(), ("work", 1_000_000_000, {}), report_seconds=60)
    loop = FakeLoop(callbacks=callbacks)
    loop.run_steps(500)
    rows = [row for row in loop.history if "hooks/work/calls" in row.metrics]
    assert 2 <= len(rows) <= 9
    assert loop.metrics["hooks/work/mean_seconds"] == 1.0


def test_budget_exceeded_is_warned_about_once_by_name(caplog):
    clock = Clock()
    callbacks = collection(clock, ("modest", 10_000, {"budget": 0.5}), ("greedy", 90_000, {"budget": 0.05}))
    FakeLoop(callbacks=callbacks).run_steps(300)
    warned = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [message.split(";")[0] for message in warned] == ["greedy takes 90.0% of the step time"]


def test_budget_of_the_first_slow_call_does_not_count(caplog):
    clock = Clock()
    first = iter([10**9])

    def warming_up(loop):
        clock.now += next(first, 10)

    def training(loop):
        clock.now += 100_000

    members = [hl.on("step_end", warming_up, budget=0.1), hl.on("step_start", training)]
    FakeLoop(callbacks=hl.CallbackCollection(members, policy=hl.Policy(clock=clock, strict=True))).run_steps(300)
    assert [record.getMessage() for record in caplog.records] == []


def test_costs_of_calls_that_fail_are_counted_with_their_time():
    clock = Clock()

    def time_out(loop):
        clock.now += 5_000_000_000
        raise OSError("no answer")

    members = [hl.on("step_end", time_out, name="often"), hl.on("step_end", time_out, name="rare", every=1)]
    callbacks = hl.CallbackCollection(members, policy=hl.Policy(clock=clock))
    FakeLoop(callbacks=callbacks).run_steps(10)
    costs = callbacks.costs().by_name()
    assert [(costs[name].calls, costs[name].total_seconds) for name in ("often", "rare")] == [(3, 15.0), (3, 15.0)]


def test_meter_usual_price_leaves_out_the_first_call():
    meter = Meter()
    for ns in (1_000_000, 10, 20, 30):
        meter.sample(ns)
    meter.counted = 7
    assert (meter.usual_ns, meter.total_ns, meter.slow) == (20.0, 1_000_120, False)


def test_duration_picks_the_unit():
    shown = [duration(seconds) for seconds in (5e-9, 1.5e-6, 0.0025, 3.0, 120.0)]
    assert shown == ["5 ns", "1.5 µs", "2.5 ms", "3.0 s", "120.0 s"]


def test_costs_without_subscribers_are_empty():
    assert (len(Costs([])), Costs([]).as_metrics()) == (0, {})


@pytest.mark.parametrize(("calls", "p95"), [(1, 1), (2, 2), (8, 8), (20, 19), (100, 95)])
def test_cost_p95_is_the_least_time_that_95_of_100_calls_keep_to(calls, p95):
    meter = Meter()
    for microseconds in range(1, calls + 1):
        meter.count(1000 * microseconds)
    assert Cost.of("a", [meter]).p95_seconds == pytest.approx(p95 * 1e-6)
