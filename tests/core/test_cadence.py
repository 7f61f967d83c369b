"""Cadences as the engine keeps them."""

import pytest

import hookline as hl
from hookline.testing import FakeLoop, RecordingCallback


def steps_seen(steps=40, **options):
    seen = []
    callbacks = hl.CallbackCollection(strict=True)
    callbacks.add(hl.on("step_end", lambda loop: seen.append(loop.step)), **options)
    FakeLoop(callbacks=callbacks).run_steps(steps)
    return seen


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, list(range(1, 41))),
        ({"every": 10}, [10, 20, 30, 40]),
        ({"every": 10, "start": 20}, [30, 40]),
        ({"start": 37}, [38, 39, 40]),
        ({"every": hl.At(3, 5, 99)}, [3, 5]),
        ({"every": hl.Once()}, [1]),
        ({"every": hl.Every(10) | hl.At(1)}, [1, 10, 20, 30, 40]),
        ({"every": hl.Every(10) & ~hl.At(20)}, [10, 30, 40]),
        ({"every": 10, "when": lambda loop: loop.step != 30}, [10, 20, 40]),
        ({"when": lambda loop: loop.step < 3}, [1, 2]),
    ],
)
def test_cadence_options_give_the_right_steps(options, expected):
    assert steps_seen(**options) == expected


def test_cadence_governs_repeating_moments_and_no_others():
    recording = RecordingCallback()
    loop = FakeLoop(callbacks=hl.CallbackCollection(strict=True))
    loop.callbacks.add(recording, every=2)
    loop.callbacks.on_train_start(loop)
    loop.run_steps(3)
    loop.callbacks.on_exception(loop, RuntimeError())
    assert recording.names() == [
        "on_train_start",
        *["on_step_start", "on_train_batch_start", "on_train_batch_end", "on_step_end", "on_log"],
        "on_exception",
    ]


def test_cadence_decision_is_the_same_for_all_moments_of_a_step():
    times = iter([0.0, *[5.0] * 2, *[9.0] * 100])
    recording = RecordingCallback()
    loop = FakeLoop(callbacks=hl.CallbackCollection(strict=True))
    loop.callbacks.add(recording, every=hl.Seconds(4.0, clock=lambda: next(times)))
    loop.run_steps(4)
    one_step = ["on_step_start", "on_train_batch_start", "on_train_batch_end", "on_step_end", "on_log"]
    assert recording.names() in ([*one_step], [*one_step, *one_step])


def test_cadence_survives_a_step_count_that_goes_back():
    seen = []
    callbacks = hl.CallbackCollection([hl.on("step_end", lambda loop, i: seen.append(i + 1), every=10)], strict=True)
    for step_idx in [*range(25), *range(12), *range(95, 105)]:
        callbacks.on_step_end(FakeLoop(step=step_idx + 1), step_idx, None, {})
    assert seen == [10, 20, 10, 100]


def test_cadence_does_not_disturb_the_order_with_others():
    seen = []
    add = {name: hl.on("step_end", lambda loop, name=name: seen.append(name), name=name) for name in "abc"}
    callbacks = hl.CallbackCollection([add["a"]], strict=True)
    callbacks.add(add["b"], every=2)
    callbacks.add(add["c"])
    FakeLoop(callbacks=callbacks).run_steps(4)
    assert "".join(seen) == "acabcacabc"


def test_cadence_counts_validation_batches_in_each_validation():
    seen = []
    batch = hl.on("validation_batch_end", lambda loop, outputs, batch, i: seen.append((loop.step, i)), every=2)
    callbacks = hl.CallbackCollection([batch], strict=True)
    for step in (10, 20):
        for batch_idx in range(5):
            callbacks.on_validation_batch_end(FakeLoop(step=step), {}, None, batch_idx)
    assert seen == [(10, 1), (10, 3), (20, 1), (20, 3)]


def test_cadence_with_memory_is_not_shared_between_subscribers():
    once, seen = hl.Once(), []
    callbacks = hl.CallbackCollection(strict=True)
    for name in "ab":
        callbacks.add(hl.on("step_end", lambda loop, name=name: seen.append(name)), every=once)
    FakeLoop(callbacks=callbacks).run_steps(3)
    assert seen == ["a", "b"]


def test_cadence_subscriber_not_due_is_not_called_at_all():
    def explode(loop):
        raise AssertionError("called although not due")

    FakeLoop(callbacks=[hl.on("step_end", explode, every=1000)]).run_steps(999)
