"""The bridge of Composer with a stand-in of its trainer, beyond what the contract suite compares."""

import pytest

pytest.importorskip("torch")

import torch
from host_runs import At, end_of, values
from hosts.regression import HELD_OUT, loader
from hosts.stand_ins.composer import Evaluator, Trainer, installed

from hookline.integrations.composer import HooklineCallback
from hookline.testing import RecordingCallback


def evaluators(*labels):
    return [Evaluator(label=label, dataloader=loader(HELD_OUT)) for label in labels]


def test_rows_and_evaluations_have_hooklines_names_and_composers(options):
    both = evaluators("eval", "hard")
    with HooklineCallback(**options) as hooks:
        trainer = Trainer(max_duration="2ep", callbacks=[hooks], eval_dataloader=both)
        trainer.fit()
    loop = hooks.loop
    assert values(loop, "loss") == values(loop, "loss/train/total")
    for name in ("val/loss", "val/MeanSquaredError", "metrics/eval/MeanSquaredError", "hard/loss"):
        assert [step for step, _ in values(loop, name)] == [4, 8]
    assert (loop.num_steps, loop.num_epochs, loop.native) == (8, 2, trainer.state)
    assert [each.eval_interval.__name__ for each in both] == 2 * ["_every_epoch"]


def test_microbatches_are_batches_of_one_step(options):
    seen = RecordingCallback()
    with HooklineCallback([seen], **options) as hooks:
        Trainer(max_duration="4ba", device_train_microbatch_size=1, callbacks=[hooks]).fit()
    assert (seen.names().count("on_train_batch_end"), seen.names().count("on_before_optimizer_step")) == (8, 4)
    assert ([step for step, _ in values(hooks.loop, "loss")], hooks.loop.num_steps) == ([1, 2, 3, 4], 4)


def test_evaluation_after_the_last_batch_belongs_to_the_run(options):
    seen = RecordingCallback()
    with HooklineCallback([seen], **options) as hooks:
        Trainer(max_duration="6ba", callbacks=[hooks]).fit()
    assert [step for step, _ in values(hooks.loop, "val/loss")] == [4, 6]
    assert seen.names()[-3:] == ["on_eval", "on_train_epoch_end", "on_train_end"]
    assert end_of(hooks.loop)[0] == "finished"


def test_fit_without_evaluators_ends_and_refuses_validations(options, caplog):
    request = At(2, lambda loop: loop.request_validation())
    with HooklineCallback([request], **options) as hooks:
        Trainer(max_duration="1ep", callbacks=[hooks], eval_dataloader=[]).fit()
        assert hooks.loop.state == "completed"
    assert "The trainer has no evaluators." in caplog.text


def test_requested_validation_follows_the_step(options):
    request = At(2, lambda loop: loop.request_validation())
    with HooklineCallback([request], **options) as hooks:
        Trainer(max_duration="1ep", callbacks=[hooks], eval_dataloader=evaluators("eval", "hard")).fit()
    assert [step for step, _ in values(hooks.loop, "val/loss")] == [2, 4]
    assert [step for step, _ in values(hooks.loop, "hard/loss")] == [2, 4]


def test_second_fit_continues_the_run(options):
    with HooklineCallback(**options) as hooks:
        trainer = Trainer(max_duration="1ep", callbacks=[hooks])
        trainer.fit()
        first = hooks.loop.dir
        trainer.fit(duration="1ep")
    assert (hooks.loop.dir, hooks.loop.num_epochs) == (first, 2)
    assert [step for step, _ in values(hooks.loop, "loss")] == [*range(1, 9)]


def test_resume_in_the_middle_of_an_epoch_continues_it(options):
    leave = At(2, lambda loop: (loop.save_checkpoint(), loop.request_stop("for now")))
    plain = Trainer(max_duration="2ep", callbacks=[])
    plain.fit()
    with installed(), HooklineCallback([leave], **options) as first:
        Trainer(max_duration="2ep", callbacks=[first]).fit()
    (row,) = first.loop.checkpoints
    seen = RecordingCallback()
    with HooklineCallback([seen], **options) as again:
        trainer = Trainer(max_duration="2ep", callbacks=[again], load_path=str(row.path / "composer.pt"))
        trainer.fit()
    assert (again.loop.dir, again.loop.step) == (first.loop.dir, 8)
    assert seen.names()[:3] == ["on_train_start", "on_checkpoint_load", "on_train_epoch_start"]
    assert torch.equal(trainer.state.model.line.weight, plain.state.model.line.weight)


def test_evaluation_without_a_fit_is_a_run_of_its_own(options):
    seen = RecordingCallback()
    with HooklineCallback([seen], **options) as hooks:
        Trainer(max_duration="1ep", callbacks=[hooks]).eval()
        assert hooks.loop.state == "completed"
    assert [step for step, _ in values(hooks.loop, "val/loss")] == [0]
    assert "on_train_start" not in seen.names()


@pytest.mark.parametrize("how", ["with", "close"])
def test_error_of_the_training_ends_the_run_as_failed(options, how):
    hooks = HooklineCallback(**options)
    trainer = Trainer(max_duration="1ep", callbacks=[hooks], breaks_at=2)
    if how == "with":
        with pytest.raises(RuntimeError), hooks:
            trainer.fit()
    else:
        with pytest.raises(RuntimeError):
            trainer.fit()
        trainer.close()
    expected = "RuntimeError: the batch is broken" if how == "with" else "RuntimeError: Composer did not finish"
    assert end_of(hooks.loop)[0] == "failed"
    assert end_of(hooks.loop)[1].startswith(expected)
