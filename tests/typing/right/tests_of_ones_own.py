"""What authors of callbacks write in their tests."""

import hookline as hl
from hookline.testing import Event, FakeLoop, RecordingCallback, check_callback, fire_everything


def test_of_a_callback() -> None:
    recording = RecordingCallback()
    loop = FakeLoop(num_steps=3, callbacks=[recording], strict=True)
    loop.run_steps(3, lambda step_idx: {"loss": 1.0 / (step_idx + 1)})
    first: Event = recording.events[0]
    assert first.moment == "on_step_start"
    fire_everything(RecordingCallback())
    check_callback(lambda: hl.callbacks.Timer("1h"))
    assert loop.history[0].metrics["loss"] == 1.0
