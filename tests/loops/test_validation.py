"""run.validate(): a validation as a context."""

import pytest

import hookline as hl
from hookline._engine.errors import OptionError
from hookline._record.records import Metrics
from hookline.testing import RecordingCallback


def test_validation_fires_its_moments_in_order_and_averages():
    recording = RecordingCallback()
    with hl.run(callbacks=[recording], strict=True, summary=False) as run:
        for _ in run.steps(2):
            pass
        recording.clear()
        with run.validate() as val:
            for x in val.batches([1.0, 2.0, 6.0]):
                val.log(loss=x)
    names = ["on_validation_start", "on_validation_epoch_start"]
    names += ["on_validation_batch_start", "on_validation_batch_end"] * 3
    names += ["on_log", "on_validation_epoch_end", "on_validation_end", "on_eval"]
    assert recording.names()[: len(names)] == names
    assert val.metrics == {"val/loss": 3.0}
    assert recording.events[len(names) - 1].arguments == (1, "val", {"val/loss": 3.0})
    assert run.history[-1].step == 2


def test_validation_metrics_are_known_when_its_epoch_ends():
    seen = []
    with hl.run(
        callbacks=[hl.on("validation_epoch_end", lambda t: seen.append(t.get_metric("val_loss")))], strict=True
    ) as run:
        for i in run.steps(2):
            with run.validate() as val:
                val.log(loss=i)
    assert seen == [0, 1]


def test_validation_inside_a_step_is_a_row_of_its_own_at_that_step():
    evaluated = []
    with hl.run(callbacks=[hl.on("eval", lambda loop, i: evaluated.append(i))], strict=True, summary=False) as run:
        for i in run.steps(2):
            run.log(loss=i)
            if i == 1:
                with run.validate("test") as val:
                    val.log(accuracy=0.5)
    assert evaluated == [1]
    assert [(row.step, row.metrics) for row in run.history] == [
        (1, {"loss": 0}),
        (2, {"test/accuracy": 0.5}),
        (2, {"loss": 1}),
    ]
    assert [record.axis for record in hl.read(run.dir) if isinstance(record, Metrics)] == ["train", "eval", "train"]


def test_validation_batch_end_has_what_the_batch_logged():
    outputs = []
    look = hl.on("validation_batch_end", lambda loop, out, batch, i: outputs.append((dict(out), batch, i)))
    with hl.run(callbacks=[look], strict=True, summary=False) as run, run.validate() as val:
        for batch in val.batches("ab"):
            val.log(loss=ord(batch), note=batch)
    assert outputs == [({"loss": 97, "note": "a"}, "a", 0), ({"loss": 98, "note": "b"}, "b", 1)]
    assert val.metrics == {"val/loss": 97.5, "val/note": "b"}


def test_validation_answers_a_request():
    with hl.run(callbacks=[hl.on("step_end", lambda loop: loop.request_validation(), every=2)], summary=False) as run:
        answered = []
        for i in run.steps(5):
            if run.validation_requested:
                answered.append(i)
                with run.validate() as val:
                    val.log(loss=0)
    assert answered == [2, 4]


def test_validation_that_raises_fires_no_end():
    recording = RecordingCallback()
    try:
        with hl.run(callbacks=[recording], strict=True, summary=False) as run, run.validate():
            raise RuntimeError("validation data missing")
    except RuntimeError:
        pass
    assert recording.names() == ["on_train_start", "on_validation_start", "on_validation_epoch_start", "on_exception"]


def test_validation_hands_predictions_over_as_they_are():
    seen, prediction = [], object()
    look = hl.on("validation_batch_end", lambda loop, outputs: seen.append(outputs))
    with hl.run(callbacks=[look], strict=True, summary=False) as run, run.validate() as val:
        for batch in val.batches([1.0, 3.0]):
            val.log(loss=batch)
            val.outputs(predictions=[prediction])
    assert seen == [{"loss": 1.0, "predictions": [prediction]}, {"loss": 3.0, "predictions": [prediction]}]
    assert seen[0]["predictions"][0] is prediction
    assert val.metrics == {"val/loss": 2.0}


def test_validation_outputs_are_the_samples_of_a_sample_logger():
    logger = hl.callbacks.SampleLogger(n=3, source="validation")
    with hl.run(callbacks=[logger], root=None, strict=True, summary=False) as run, run.validate() as val:
        for prompts in val.batches([["1+1", "2+2"], ["3+3", "4+4"]]):
            val.outputs({"prompt": prompts, "completion": [str(eval(prompt)) for prompt in prompts]})
    assert [(row["prompt"], row["completion"]) for row in run.samples] == [("1+1", "2"), ("2+2", "4"), ("3+3", "6")]


def test_validation_outputs_outside_of_a_batch_are_an_error():
    with hl.run(strict=True, summary=False, root=None) as run, run.validate() as val:
        with pytest.raises(OptionError, match="in the body of `for batch in val.batches"):
            val.outputs(predictions=[1])
        for _ in val.batches([1]):
            with pytest.raises(OptionError, match=r"give names, as in val.outputs\(predictions=...\), or a dict"):
                val.outputs([1])


def test_evaluation_of_a_callback_takes_the_path_of_every_evaluation():
    class Quiz(hl.Callback):
        def on_step_end(self, loop, step_idx):
            if loop.step == 2:
                loop.record_evaluation("quiz", {"quiz/accuracy": 0.5})

    seen = RecordingCallback()
    with hl.run(callbacks=[Quiz(), seen], strict=True, summary=False) as run:
        for _ in run.steps(3):
            run.log(loss=1.0)
    reported = [event for event in seen.events if event.arguments and event.arguments[-1] == {"quiz/accuracy": 0.5}]
    assert [(event.moment, *event.arguments[:-1]) for event in reported] == [("on_log", 2), ("on_eval", 1, "quiz")]
    rows = [record for record in hl.read(run.dir) if isinstance(record, Metrics) and record.axis == "eval"]
    assert [(row.step, row.values) for row in rows] == [(2, {"quiz/accuracy": 0.5})]
