"""The bridge of ultralytics with a stand-in of its trainer, beyond what the contract suite compares."""

import pytest

pytest.importorskip("torch")

import torch
from host_runs import At, end_of, values
from hosts.stand_ins.ultralytics import YOLO

import hookline as hl
from hookline._engine.errors import OptionError
from hookline.integrations.ultralytics import attach
from hookline.testing import RecordingCallback


@pytest.fixture
def settings(tmp_path):
    return {"epochs": 2, "save_dir": str(tmp_path / "out")}


def test_rows_and_evaluations_have_hooklines_names_and_those_of_ultralytics(options, settings):
    model = YOLO()
    loop = attach(model, **options).loop
    model.train(**settings)
    assert values(loop, "train/mse_loss") == values(loop, "loss")
    assert len(values(loop, "loss")) == 8
    assert [step for step, _ in values(loop, "val/loss")] == [4, 8]
    assert values(loop, "val/loss") == values(loop, "val/mse_loss")
    assert values(loop, "val/fit(B)") == values(loop, "metrics/fit(B)")
    assert [step for step, _ in values(loop, "best/fit(B)")] == [8]
    assert (loop.native, loop.epoch, loop.num_epochs) == (model.trainer, 1, 2)


def test_accumulated_batches_make_a_step_with_their_mean_loss(options, settings):
    seen, model = RecordingCallback(), YOLO()
    loop = attach(model, [seen], **options).loop
    model.train(accumulate=2, **settings)
    assert [step for step, _ in values(loop, "loss")] == [1, 2, 3, 4]
    assert (seen.names().count("on_train_batch_end"), loop.num_steps) == (8, None)
    assert seen.names().count("on_before_optimizer_step") == 4


def test_checkpoints_of_ultralytics_hold_the_states_and_a_resume_continues_the_run(options, settings):
    first, again, ema = YOLO(), None, hl.callbacks.EMA(0.5)
    loop = attach(first, [ema, At(4, lambda loop: loop.request_stop("for now"))], **options).loop
    first.train(**settings)
    last = first.trainer.last
    assert [(row.step, row.path) for row in loop.checkpoints] == [(4, last)]
    again, resumed = YOLO(last), hl.callbacks.EMA(0.5)
    second = attach(again, [resumed], **options).loop
    again.train(resume=True)
    assert (second.dir, second.step, resumed.updates) == (loop.dir, 8, 8)
    assert [step for step, _ in values(second, "loss")] == [*range(1, 9)]


def test_resume_from_a_file_without_states_starts_the_callbacks_from_scratch(options, settings, caplog):
    alone = YOLO()
    alone.train(**settings | {"epochs": 1})
    saved = torch.load(alone.trainer.last)
    torch.save(saved | {"train_args": saved["train_args"] | {"epochs": 2}}, alone.trainer.last)
    model = YOLO(alone.trainer.last)
    loop = attach(model, **options).loop
    model.train(resume=True)
    assert "holds no state of callbacks" in caplog.text
    assert (loop.step, loop.epoch) == (4, 1)


def test_requested_validation_is_made_at_once_and_not_compared_with_the_best(options, settings):
    plain, model = YOLO(), YOLO()
    plain.train(**settings)
    loop = attach(model, [At(2, lambda loop: loop.request_validation())], **options).loop
    model.train(**settings)
    assert [step for step, _ in values(loop, "val/loss")] == [2, 4, 8]
    assert model.trainer.best_fitness == plain.trainer.best_fitness
    assert torch.equal(model.trainer.model.weight, plain.trainer.model.weight)


def test_error_of_the_training_ends_the_run_as_failed(options, settings):
    seen, model = RecordingCallback(), YOLO()
    loop = attach(model, [seen], **options).loop
    with pytest.raises(RuntimeError, match="images"):
        model.train(breaks_at=5, **settings)
    assert end_of(loop) == ["failed", "RuntimeError: the images are missing"]
    assert seen.names()[-1] == "on_exception"


def test_validation_without_a_training_is_a_run_of_its_own(options):
    seen, model = RecordingCallback(), YOLO()
    loop = attach(model, [seen], **options).loop
    model.val()
    assert [step for step, _ in values(loop, "val/fit(B)")] == [0]
    assert ("on_train_start" in seen.names(), end_of(loop)[0]) == (False, "finished")


def test_detached_model_fires_nothing(options, settings):
    seen, model = RecordingCallback(), YOLO()
    attach(model, [seen], **options).detach()
    model.train(**settings)
    assert (seen.events, any(model.callbacks.values())) == ([], False)


def test_something_else_than_a_model_is_refused():
    with pytest.raises(OptionError, match="give a model of ultralytics"):
        attach(torch.nn.Linear(1, 1))
