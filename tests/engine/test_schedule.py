"""Schedules: when each is due, what it promises about the next time, and how they combine."""

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hookline as hl
from hookline._engine.schedules import NEVER, Gate, cadence


class FakeClock:
    """Seconds that pass when a test says so."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Counting(hl.Schedule):
    """Due at even counts; remembers its calls."""

    def __init__(self):
        self.events = []

    def due(self, count, subject=None):
        self.events.append(("due", count, subject))
        return count % 2 == 0

    def fired(self, count):
        self.events.append(("fired", count))


class Failing(hl.Schedule):
    def due(self, count, subject=None):
        raise RuntimeError("no answer")


def due_counts(schedule, counts=range(1, 13), subject=None):
    """The counts at which a gate over the schedule opens."""
    gate = Gate(schedule, "train")
    return [count for count in counts if gate(count, subject)]


SIMPLE = st.one_of(
    st.builds(hl.Every, st.integers(1, 7), st.integers(0, 20)),
    st.lists(st.integers(0, 30), max_size=4).map(lambda counts: hl.At(*counts)),
)
COMBINED = st.recursive(
    SIMPLE,
    lambda inner: st.one_of(
        st.builds(lambda a, b: a & b, inner, inner),
        st.builds(lambda a, b: a | b, inner, inner),
        st.builds(lambda a: ~a, inner),
    ),
    max_leaves=5,
)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(COMBINED, st.integers(0, 40))
def test_schedule_next_is_later_and_skips_nothing_that_is_due(schedule, count):
    following = schedule.next(count)
    assert following > count
    assert [c for c in range(count + 1, min(following, 60)) if schedule.due(c)] == []


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.integers(1, 9), st.integers(0, 30), st.integers(0, 60))
def test_every_next_is_the_very_next_due_count(n, start, count):
    schedule = hl.Every(n, start)
    assert schedule.next(count) == next(c for c in range(count + 1, 200) if schedule.due(c))


def test_every_fires_after_each_n_completed_steps():
    assert due_counts(hl.Every(5), range(25)) == [5, 10, 15, 20]


def test_every_start_leaves_out_the_first_steps():
    assert due_counts(hl.Every(10, start=20), range(50)) == [30, 40]
    assert due_counts(hl.Every(10, start=15), range(50)) == [20, 30, 40]


@pytest.mark.parametrize("n", [0, -1, 1.0, 2.5, True, False, "5", None])
def test_every_bad_n_is_refused(n):
    with pytest.raises(hl.OptionError) as caught:
        hl.Every(n)
    assert str(caught.value) == f"every={n!r}: give a whole number of at least 1."


@pytest.mark.parametrize("start", [-1, 0.0, True, "5", None])
def test_every_bad_start_is_refused(start):
    with pytest.raises(hl.OptionError) as caught:
        hl.Every(1, start)
    assert str(caught.value) == f"start={start!r}: give a whole number of at least 0."


def test_at_fires_at_its_counts_only():
    schedule = hl.At(7, 3, 3)
    assert due_counts(schedule) == [3, 7]
    assert [schedule.next(count) for count in (0, 3, 7)] == [3, 7, NEVER]


def test_at_without_counts_is_never_due():
    assert due_counts(hl.At()) == []
    assert hl.At().next(0) == NEVER


@pytest.mark.parametrize("count", [-1, 1.0, True, "3"])
def test_at_bad_count_is_refused(count):
    with pytest.raises(hl.OptionError, match="give a whole number of at least 0"):
        hl.At(1, count)


def test_once_fires_the_first_time_only():
    schedule = hl.Once()
    assert schedule.next(4) == 5
    assert due_counts(schedule, range(5, 10)) == [5]
    assert schedule.next(5) == NEVER


def test_once_asked_without_firing_stays_due():
    schedule = hl.Once()
    assert [schedule.due(1), schedule.due(2)] == [True, True]


def test_seconds_fires_at_the_first_opportunity_after_each_interval():
    clock, opened = FakeClock(), []
    gate = Gate(hl.Seconds(10, clock=clock), "train")
    for count, passed in enumerate([0, 5, 4, 1, 9, 25, 0], start=1):
        clock.now += passed
        opened += [count] if gate(count, None) else []
    assert opened == [4, 6]


def test_seconds_next_may_be_any_count():
    assert hl.Seconds(10, clock=FakeClock()).next(7) == 8


@pytest.mark.parametrize("interval", [0, -1, True, "5", None, float("nan")])
def test_seconds_bad_interval_is_refused(interval):
    with pytest.raises(hl.OptionError) as caught:
        hl.Seconds(interval)
    assert str(caught.value) == f"interval={interval!r}: give a finite number greater than 0."


def test_when_asks_the_predicate_with_the_loop():
    loop = SimpleNamespace(step=1)
    schedule = hl.When(lambda given: [given] if given is loop else [])
    assert [schedule.due(1, loop), schedule.due(1, None), schedule.next(1)] == [True, False, 2]


@pytest.mark.parametrize("predicate", [True, 5, "loss < 1", None])
def test_when_not_a_function_is_refused(predicate):
    with pytest.raises(hl.OptionError) as caught:
        hl.When(predicate)
    assert str(caught.value) == f"when={predicate!r}: give a function that takes the loop and returns a bool."


def test_schedule_and_or_not_combine():
    assert due_counts(hl.Every(2) & hl.Every(3)) == [6, 12]
    assert due_counts(hl.Every(4) | hl.At(1, 5)) == [1, 4, 5, 8, 12]
    assert due_counts(hl.Every(4) & ~hl.At(8)) == [4, 12]
    assert due_counts(~(hl.Every(2) | hl.Every(3))) == [1, 5, 7, 11]


def test_schedule_and_with_once_fires_at_the_first_count_that_suits_both():
    assert due_counts(hl.Every(5) & hl.Once()) == [5]


def test_schedule_or_with_once_fires_at_once_and_then_as_the_other():
    assert due_counts(hl.Every(5) | hl.Once()) == [1, 5, 10]


def test_schedule_not_once_leaves_out_the_first_time():
    assert due_counts(~hl.Once(), range(1, 5)) == [2, 3, 4]


def test_schedule_or_with_seconds_restarts_the_interval_whenever_it_fires():
    clock, opened = FakeClock(), []
    gate = Gate(hl.Every(4) | hl.Seconds(3, clock=clock), "train")
    for count in range(1, 10):
        clock.now += 1
        opened += [count] if gate(count, None) else []
    assert opened == [4, 7, 8]


@pytest.mark.parametrize("other", [5, "10", None, lambda loop: True])
def test_schedule_combined_with_something_else_is_refused(other):
    with pytest.raises(hl.OptionError, match="cannot be combined with a schedule"):
        hl.Every(2) & other
    with pytest.raises(hl.OptionError, match="cannot be combined with a schedule"):
        hl.Every(2) | other


def test_schedule_repr_shows_how_it_was_made():
    def loss_is_high(loop):
        return True

    schedule = (hl.Every(10, start=5) & ~hl.At(20, 3)) | hl.Once() | (hl.Seconds(60) & hl.When(loss_is_high))
    assert repr(schedule) == "(((Every(10, start=5) & ~At(3, 20)) | Once()) | (Seconds(60) & When(loss_is_high)))"
    assert repr(hl.Every(3)) == "Every(3)"


def test_schedule_copy_has_a_memory_of_its_own():
    schedule = ~((hl.Once() & hl.Every(1)) | hl.At())
    copied = schedule.copy()
    schedule.settle(1)
    assert [schedule.due(2), copied.due(2)] == [True, False]


def test_schedule_given_to_two_subscribers_is_not_shared():
    seen, once = [], hl.Once()
    first = hl.on("step_end", lambda loop, step_idx: seen.append(("first", step_idx)), every=once)
    second = hl.on("step_end", lambda loop, step_idx: seen.append(("second", step_idx)), every=once)
    callbacks = hl.CallbackCollection([first, second], strict=True)
    for step_idx in range(3):
        callbacks.on_step_end(SimpleNamespace(step=step_idx + 1), step_idx, None, {})
    assert seen == [("first", 0), ("second", 0)]
    assert once.done is False


def test_schedule_of_ones_own_needs_only_due():
    schedule = Counting()
    assert schedule.next(3) == 4
    assert due_counts(schedule, range(1, 5)) == [2, 4]
    assert schedule.events[-2:] == [("due", 4, None), ("fired", 4)]


def test_cadence_without_options_is_none():
    assert cadence(None) is None


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"every": 4}, [4, 8, 12]),
        ({"every": 4, "start": 4}, [8, 12]),
        ({"every": None, "start": 9}, [10, 11, 12]),
        ({"every": hl.At(2, 8)}, [2, 8]),
        ({"every": hl.At(2, 8), "start": 5}, [8]),
        ({"every": None, "when": lambda loop: loop == "loop"}, [*range(1, 13)]),
        ({"every": 5, "when": lambda loop: loop == "no"}, []),
    ],
)
def test_cadence_options_hold_together(options, expected):
    assert due_counts(cadence(**options), subject="loop") == expected


@pytest.mark.parametrize("every", [None, 5, hl.Once()])
@pytest.mark.parametrize("start", [-1, 1.5, True, False, "2", None])
def test_cadence_bad_start_is_refused_whatever_every_is(every, start):
    with pytest.raises(hl.OptionError) as caught:
        cadence(every, start)
    assert str(caught.value) == f"start={start!r}: give a whole number of at least 0."


def test_gate_asks_once_per_count_and_repeats_the_answer():
    schedule = Counting()
    gate = Gate(schedule, "train")
    assert [gate(2, "loop"), gate(2, "loop"), gate(3, "loop"), gate(3, "loop")] == [True, True, False, False]
    assert schedule.events == [("due", 2, "loop"), ("fired", 2), ("due", 3, "loop")]


def test_gate_asks_again_when_the_count_goes_back():
    gate = Gate(hl.Every(2), "train")
    assert [gate(4, None), gate(5, None), gate(4, None)] == [True, False, True]


def test_gate_schedule_that_raises_is_not_due_for_the_rest_of_the_count():
    gate = Gate(Failing(), "train")
    with pytest.raises(RuntimeError, match="no answer"):
        gate(1, None)
    assert gate(1, None) is False


def test_gate_on_validation_tells_two_validations_apart_by_the_step():
    schedule = Counting()
    gate = Gate(schedule, "validation")
    answers = [gate(2, SimpleNamespace(step=step)) for step in (10, 10, 20)]
    assert answers == [True, True, True]
    assert [event[0] for event in schedule.events] == ["due", "fired", "due", "fired"]


def test_schedule_base_class_cannot_be_made():
    with pytest.raises(TypeError, match="abstract"):
        hl.Schedule()  # type: ignore[abstract]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (hl.Every(1) & ~hl.Once() & hl.Every(1), [2, 3, 4, 5]),
        (hl.Every(1) & (hl.Every(1) & ~hl.Once()), [2, 3, 4, 5]),
        ((hl.Every(2) & ~hl.Once()) & (hl.Every(1) & hl.Every(2)), [4]),
        (hl.Every(2) & (~hl.Once() | hl.At(3)), [4]),
        (hl.Every(2) & (hl.At(3) | (hl.Every(1) & ~hl.Once())), [4]),
        (hl.Every(1) & (hl.At(1) | (hl.Once() & hl.At(4))), [1, 4]),
        ((hl.Once() | ~hl.Every(1)) & ~hl.At(1), [2]),
        (~(hl.Every(1) & ~hl.Once()), [1]),
    ],
)
def test_schedule_combined_in_depth_remembers_only_what_was_due(schedule, expected):
    assert due_counts(schedule.copy(), range(1, 6)) == expected


def test_cadence_not_once_together_with_when_leaves_out_the_first_time():
    assert due_counts(cadence(hl.Every(1) & ~hl.Once(), when=lambda loop: True), range(1, 6)) == [2, 3, 4, 5]


@pytest.mark.parametrize(
    "combine",
    [
        lambda every, seconds: every & seconds,
        lambda every, seconds: seconds & every,
        lambda every, seconds: every & (hl.At() | seconds),
        lambda every, seconds: every & ~~seconds,
    ],
)
def test_seconds_together_with_every_counts_from_the_first_question(combine):
    clock, opened = FakeClock(), []
    gate = Gate(combine(hl.Every(100), hl.Seconds(60, clock=clock)), "train")
    for count in range(1, 201):
        clock.now += 1
        opened += [count] if gate(count, None) else []
    assert opened == [100, 200]


def test_gate_reset_decides_again_at_the_same_count():
    schedule = Counting()
    gate = Gate(schedule, "train")
    gate(2, "loop")
    gate.reset()
    assert (gate(2, "loop"), schedule.events) == (True, [("due", 2, "loop"), ("fired", 2)] * 2)
