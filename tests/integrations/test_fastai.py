"""fastai's own `Learner`, beyond what the contract suite compares."""

import gc
import pickle
import signal
import warnings

import pytest

pytest.importorskip("torch")
pytest.importorskip("fastai")

import torch
from hosts.fastai_learner import learner, load  # its imports use what others deprecate

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from fastai.callback.core import Callback, CancelBatchException
    from fastai.callback.schedule import Learner
    from fastai.callback.training import GradientAccumulation, GradientClip
    from fastai.learner import Recorder
    from fastai.metrics import mse
    from fastai.optimizer import OptimWrapper

from host_runs import At, end_of, values

import hookline as hl
from hookline.integrations.fastai import HooklineCallback
from hookline.testing import RecordingCallback


def test_training_is_the_same_with_and_without_hookline(options):
    alone = learner()
    alone.fit(2, 0.05)
    with HooklineCallback(["ema", "gradient_monitor"], **options) as hooks:
        observed = learner(hooks)
        observed.fit(2, 0.05)
    assert torch.equal(observed.model.weight, alone.model.weight)
    assert observed.recorder.values[-1][1] != 0
    assert (hooks.loop.model, hooks.loop.native) == (observed.model, observed)


def test_validation_has_fastais_names_and_hooklines(options):
    with HooklineCallback(**options) as hooks:
        learn = learner(hooks, metrics=[mse])
        learn.fit(2, 0.05)
    shown = [[row[1], row[2]] for row in learn.recorder.values]
    assert [[value for _, value in values(hooks.loop, name)] for name in ("val/loss", "valid_loss")] == 2 * [
        [row[0] for row in shown]
    ]
    assert [value for _, value in values(hooks.loop, "val/mse")] == [row[1] for row in shown]
    assert [step for step, _ in values(hooks.loop, "mse")] == [4, 8]


def test_metrics_of_the_training_are_recorded_at_the_end_of_the_epoch(options):
    with HooklineCallback(**options) as hooks:
        learn = learner(hooks, metrics=[mse])
        learn.remove_cb(Recorder)
        learn.add_cb(Recorder(train_metrics=True))
        learn.fit(1, 0.05)
    assert [step for step, _ in values(hooks.loop, "train_mse")] == [4]


def test_accumulated_batches_make_a_step_with_the_mean_of_their_losses(options):
    seen = RecordingCallback()
    with HooklineCallback([seen], **options) as hooks:
        learner(hooks, GradientAccumulation(4)).fit(1, 0.05)
    assert [step for step, _ in values(hooks.loop, "loss")] == [1, 2]
    assert (seen.names().count("on_train_batch_end"), seen.names().count("on_before_optimizer_step")) == (4, 2)


def test_clipped_gradients_have_norms_of_that_name(options):
    with HooklineCallback([hl.callbacks.GradientMonitor(every=1)], **options) as hooks:
        learner(hooks, GradientClip(0.01)).fit(1, 0.05)
    assert [value for _, value in values(hooks.loop, "clipped_grad_norm")] == pytest.approx(4 * [0.01], rel=1e-3)


def test_fine_tune_is_one_run_and_another_callback_another(options):
    with HooklineCallback(**options) as hooks:
        learn = learner(hooks, splitter=lambda model: [[model.bias], [model.weight]])
        learn.fine_tune(1)
        loop, first = hooks.loop, hooks.loop.dir
    assert [step for step, _ in values(loop, "loss")] == [*range(1, 9)]
    assert (loop.epoch, loop.num_epochs, loop.dir) == (1, 2, first)
    with HooklineCallback(**options) as again:
        learn.remove_cb(hooks)
        learn.fit(1, cbs=again)
    assert (again.loop.dir != first, again.loop.step) == (True, 4)


def test_validate_after_the_fit_belongs_to_its_run_and_predictions_do_not(options):
    seen = RecordingCallback()
    with HooklineCallback([seen], **options) as hooks:
        learn = learner(hooks)
        learn.fit(1, 0.05)
        first = hooks.loop.dir
        before = len(seen.events)
        learn.get_preds(dl=learn.dls.valid)
        assert len(seen.events) == before
        learn.validate(ds_idx=0)  # on the training data, so that it has another value
    assert hooks.loop.dir == first
    assert values(hooks.loop, "val/loss") == [(4, pytest.approx(learn.final_record[0]))]
    assert seen.names().count("on_eval") == 2


def test_lr_find_is_not_recorded(options):
    seen = RecordingCallback()
    with HooklineCallback([seen], **options) as hooks:
        learn = learner(hooks)
        learn.path = options["root"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it uses what NumPy deprecates, and leaves a directory to be collected
            Learner.lr_find(learn, num_it=4, show_plot=False, suggest_funcs=None)
            gc.collect()
        assert (seen.events, hooks.loop.dir) == ([], None)
        learn.fit(1, 0.05)
    assert hooks.loop.step == 4


def test_learning_rates_are_monitored_and_set(options):
    def lower(loop):
        for group in loop.optimizer.param_groups:
            group["lr"] /= 2

    with HooklineCallback([At(2, lower), "learning_rate_monitor"], **options) as hooks:
        learn = learner(hooks, splitter=lambda model: [[model.bias], [model.weight]])
        learn.fit(1, slice(0.01, 0.1))
    assert [value for _, value in values(hooks.loop, "lr/0")] == pytest.approx([0.01, 0.01, 0.005, 0.005])
    assert [value for _, value in values(hooks.loop, "lr/1")] == pytest.approx([0.1, 0.1, 0.05, 0.05])


def test_rate_of_an_optimizer_of_torch_is_monitored(options):
    with HooklineCallback(["gradient_monitor", "learning_rate_monitor"], **options) as hooks:
        opt_func = lambda params, **given: OptimWrapper(params, torch.optim.SGD, **given)  # noqa: E731
        learner(hooks, opt_func=opt_func).fit(1, 0.05)
    assert [value for _, value in values(hooks.loop, "lr")] == 4 * [0.05]


def test_resume_continues_the_run_with_the_model(options):
    leave = At(4, lambda loop: (loop.save_checkpoint(), loop.request_stop("for now")))
    whole = learner()
    whole.fit(2, 0.05)
    with HooklineCallback([leave], **options) as first:
        learner(first).fit(2, 0.05)
    (row,) = first.loop.checkpoints
    with HooklineCallback(resume=row.path, **options) as again:
        learn = learner(again)
        load(learn, row.path / "model")
        learn.fit(2, 0.05, start_epoch=1)
    assert (again.loop.dir, again.loop.step, again.loop.num_steps) == (first.loop.dir, 8, 8)
    assert torch.equal(learn.model.weight, whole.model.weight)


def test_signal_stops_after_the_step(options):
    with HooklineCallback([At(2, lambda loop: signal.raise_signal(signal.SIGINT))], **options) as hooks:
        learner(hooks).fit(2, 0.05)
    assert (hooks.loop.step, end_of(hooks.loop)) == (2, ["stopped", "SIGINT"])


class Breaks(Callback):
    """Another callback, which raises."""

    def __init__(self, event):
        self.event = event

    def after_loss(self):
        if self.event == "error":
            raise ValueError("the loss is odd")
        if self.event == "cancel" and self.learn.iter == 1:
            raise CancelBatchException


def test_error_of_another_callback_ends_the_run_as_failed(options):
    with pytest.raises(ValueError, match="odd"), HooklineCallback(**options) as hooks:
        learner(hooks, Breaks("error")).fit(1, 0.05)
    assert end_of(hooks.loop)[0] == "failed"


def test_batch_that_another_callback_cancels_makes_no_step(options):
    with HooklineCallback(**options) as hooks:
        learner(hooks, Breaks("cancel")).fit(1, 0.05)
    assert [step for step, _ in values(hooks.loop, "loss")] == [1, 2, 3]


def test_error_of_a_critical_callback_keeps_its_type_and_message(options):
    class Silent(hl.Callback):
        def on_step_end(self, loop, step_idx):
            raise ZeroDivisionError  # without arguments

    with pytest.raises(ZeroDivisionError), HooklineCallback([Silent()], **options) as hooks:
        learner(hooks).fit(1, 0.05)
    assert end_of(hooks.loop)[0] == "failed"


def test_pickled_callback_records_nothing(options):
    with HooklineCallback(**options) as hooks:
        learner(hooks).fit(1, 0.05)
    copy = pickle.loads(pickle.dumps(hooks))  # as a part of a learner, in learn.export()
    assert (type(copy), copy.loop.root) == (HooklineCallback, None)
