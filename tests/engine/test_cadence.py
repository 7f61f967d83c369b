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
    seen = []
    loop = FakeLoop(callbacks=[hl.on("step_end", lambda loop: seen.append(loop.step), every=1000)])
    loop.run_steps(999)
    assert seen == []
    loop.run_steps(1)
    assert seen == [1000]


def test_cadence_group_and_member_combine_as_schedules_do():
    seen = []
    member = hl.on("step_end", lambda loop: seen.append(loop.step), every=hl.Every(1) & ~hl.Once())
    callbacks = hl.CallbackCollection(strict=True)
    callbacks.add(hl.CallbackCollection([member], name="group"), when=lambda loop: True)
    FakeLoop(callbacks=callbacks).run_steps(5)
    assert seen == [2, 3, 4, 5]


def test_cadence_row_of_another_step_keeps_the_answer_of_the_current_step():
    recording = RecordingCallback()
    callbacks = hl.CallbackCollection(strict=True)
    callbacks.add(recording, every=hl.Once())
    with hl.run(callbacks=callbacks, root=None, summary=False) as run:
        for _ in run.steps(2):
            for step in (0, 7, 0):
                run.log(x=1, step=step)
    of_step = ["on_step_start", "on_train_batch_start", "on_train_batch_end", "on_step_end", "on_log"]
    assert [event for event in recording.names() if event in of_step] == of_step
    assert [event.arguments[0] for event in recording.events if event.moment == "on_log"] == [1]


def test_cadence_row_of_another_step_is_due_by_its_own_step():
    recording = RecordingCallback()
    callbacks = hl.CallbackCollection(strict=True)
    callbacks.add(recording, every=2)
    with hl.run(callbacks=callbacks, root=None, summary=False) as run:
        for _ in run.steps(1):
            for step in (6, 7, 8):
                run.log(x=1, step=step)
    assert [event.arguments[0] for event in recording.events if event.moment == "on_log"] == [6, 8]


def test_cadence_row_of_the_current_step_decides_for_the_step():
    seen = []

    class Late(hl.Callback):
        def on_step_end(self, loop, step_idx):
            seen.append(("end", step_idx + 1))

        def on_log(self, loop, step):
            seen.append(("log", step))

    callbacks = hl.CallbackCollection(strict=True)
    callbacks.add(Late(), every=hl.Once())
    with hl.run(callbacks=callbacks, root=None, summary=False) as run:
        for _ in run.steps(2):
            run.log(x=1, step=run.step + 1)
    assert seen == [("log", 1), ("end", 1), ("log", 1)]


def test_cadence_is_asked_again_in_a_second_training():
    asked, seen = [], []
    look = hl.on("step_end", lambda loop: seen.append(loop.step), when=lambda loop: asked.append(1) or len(asked) == 2)  # type: ignore[func-returns-value]
    callbacks = hl.CallbackCollection([look], strict=True)
    for _ in range(2):
        with hl.run(callbacks=callbacks, root=None, summary=False) as run:
            list(run.steps(1))
    assert (len(asked), seen) == (2, [1])


def test_cadence_is_asked_again_when_a_step_is_done_again_after_a_checkpoint_was_loaded(tmp_path):
    asked = []
    look = hl.on("step_end", lambda loop: None, when=lambda loop: asked.append(loop.step))
    group = hl.CallbackCollection([look], name="group")
    with hl.run(callbacks=[group], root=tmp_path, summary=False) as run:
        row = run.save_checkpoint()
        list(run.steps(1))
        run.load_checkpoint(row.path)
        list(run.steps(1))
    assert asked == [1, 1]
