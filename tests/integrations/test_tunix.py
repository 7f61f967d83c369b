"""Tunix's own `PeftTrainer`, beyond what the contract suite compares."""

import pytest

pytest.importorskip("jax")
pytest.importorskip("tunix")

import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from host_runs import At, end_of, values
from hosts.regression import TRAIN
from hosts.tunix_trainer import line, rows, train, trainer_of  # its imports use what others deprecate
from tunix.sft.hooks import DataHooks, TrainingHooks

import hookline as hl
from hookline._engine.errors import OptionError
from hookline.callbacks import EMA
from hookline.integrations.tunix import attach
from hookline.testing import RecordingCallback


def test_training_is_the_same_with_and_without_hookline(options):
    alone, observed = trainer_of(None), trainer_of(None)
    train(alone)
    loop = attach(observed, ["ema", "nan_guard"], **options).loop
    train(observed)
    assert bool((alone.model.kernel[...] == observed.model.kernel[...]).all())
    losses = alone.metrics_logger.get_metric_history("", "loss", "train")
    assert [value for _, value in values(loop, "loss")] == pytest.approx([float(loss) for loss in losses])
    assert [step for step, _ in values(loop, "grad_norm")] == [*range(1, 9)]
    assert [step for step, _ in values(loop, "val/perplexity")] == [*range(9)]
    assert (loop.num_steps, loop.native, loop.model) == (8, observed, observed.model)


def test_accumulated_batches_make_a_step_with_the_mean_of_their_losses(options):
    seen = RecordingCallback()
    trainer = trainer_of(None, gradient_accumulation_steps=2, max_steps=4)
    loop = attach(trainer, [seen], **options).loop
    train(trainer, evaluates=False)
    outputs = [event.arguments[0]["loss"] for event in seen.events if event.moment == "on_train_batch_end"]
    means = [float((one + two) / 2) for one, two in zip(outputs[::2], outputs[1::2], strict=True)]
    assert [value for _, value in values(loop, "loss")] == pytest.approx(means)
    assert loop.step == trainer.train_steps == 4


def test_loss_of_a_version_that_keeps_it_elsewhere_is_recorded_one_step_late(options, monkeypatch):
    monkeypatch.setattr("hookline.integrations.tunix.BUFFERS", ("elsewhere", "elsewhere"))
    seen, trainer = RecordingCallback(), trainer_of(None)
    loop = attach(trainer, [seen], **options).loop
    train(trainer, evaluates=False)
    assert [step for step, _ in values(loop, "loss")] == [*range(1, 9)]
    rows_of_steps = [event.arguments[2] for event in seen.events if event.moment == "on_step_end"]
    assert [dict(row) for row in rows_of_steps] == 8 * [{}]


def test_evaluations_use_the_averages(options):
    ema = EMA(0.5)
    alone, observed = trainer_of(None), trainer_of(None)
    train(alone)
    loop = attach(observed, [ema], **options).loop
    train(observed)
    plain = alone.metrics_logger.get_metric_history("", "loss", "eval")
    seen = [value for _, value in values(loop, "val/loss")]
    assert seen[:2] == pytest.approx([float(loss) for loss in plain[:2]])  # of the start, and of the first copy
    assert all(abs(one - float(other)) > 1e-6 for one, other in zip(seen[2:], plain[2:], strict=True))
    assert bool((observed.model.kernel[...] == alone.model.kernel[...]).all())


def test_averages_of_a_model_with_lora_are_those_of_its_adapters(options):
    model = nnx.LoRALinear(2, 1, lora_rank=1, rngs=nnx.Rngs(0))
    trainer, ema = trainer_of(None, model=model), EMA(0.5)
    attach(trainer, [ema], **options)
    train(trainer)
    assert sorted(ema.averages) == ["lora.lora_a", "lora.lora_b"]


def test_learning_rate_is_monitored_and_set(options):
    lower = At(3, lambda loop: loop.optimizer.param_groups[0].__setitem__("lr", 0.0))
    trainer, kernels = trainer_of(None), []
    keep = hl.on("step_end", lambda loop, step_idx: kernels.append(np.asarray(trainer.model.kernel[...])))
    loop = attach(trainer, ["learning_rate_monitor", lower, keep], **options).loop
    train(trainer, evaluates=False)
    assert [value for _, value in values(loop, "lr")] == pytest.approx(3 * [0.05] + 5 * [0.0])
    assert (kernels[2] == kernels[-1]).all()
    assert not (kernels[1] == kernels[2]).all()


def test_optimizer_without_injected_rate_offers_none(options):
    trainer = trainer_of(None, optimizer=optax.sgd(0.05))
    assert attach(trainer, **options).loop.optimizer is None
    train(trainer, evaluates=False)


class Notes(TrainingHooks):
    """The trainer's own hooks, which MaxText's data hooks look things up in."""

    def __init__(self):
        self.seen, self.eval_metadata = [], {"eval_step_count": 0}

    def on_train_start(self, train_ctx):
        self.seen.append("start")

    def on_train_end(self, train_ctx):
        self.seen.append("end")

    def on_train_step_start(self, train_ctx):
        self.seen.append("step")

    def on_train_step_end(self, train_ctx, train_step, train_loss):
        self.seen.append(train_step)

    def on_eval_step_start(self, train_ctx):
        self.eval_metadata["eval_step_count"] += 1

    def on_eval_step_end(self, train_ctx, eval_loss):
        self.seen.append("eval")


class Feeds(DataHooks):
    """Data hooks, from which the trainer takes its batches."""

    def __init__(self):
        self.train, self.evaluation = iter(rows(TRAIN)), []

    def load_next_train_batch(self, train_ctx):
        return next(self.train, None)

    def load_next_eval_batch(self, train_ctx):
        assert train_ctx.training_hooks.eval_metadata["eval_step_count"] >= 0
        self.evaluation = self.evaluation[1:] if self.evaluation else rows(TRAIN)[:3]
        return self.evaluation[0] if len(self.evaluation) > 1 else None


def test_hooks_that_the_trainer_has_still_run_and_feed_it(options):
    notes, seen = Notes(), RecordingCallback()
    trainer = trainer_of(None)
    trainer.with_training_hooks(notes)
    trainer.with_data_hooks(Feeds())
    stop = At(3, lambda loop: loop.request_stop("enough"))
    attached = attach(trainer, [seen, stop], **options)
    train(trainer)
    assert (attached.loop.step, end_of(attached.loop)) == (3, ["stopped", "enough"])
    assert notes.seen[:2] == ["eval", "start"]
    assert notes.seen.count("step") == 3
    batches = [event.arguments[0] for event in seen.events if event.moment == "on_train_batch_start"]
    assert [float(batch["targets"][0, 0]) for batch in batches] == pytest.approx(TRAIN[1][:3, 0].tolist())
    attached.detach()
    assert trainer.training_hooks is notes
    assert "train" not in vars(trainer)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Flax, which Tunix uses
def test_trainer_that_is_managed_externally_has_one_run_until_it_is_closed(options):
    trainer, seen = trainer_of(None), RecordingCallback()
    trainer.is_managed_externally = True
    loop = attach(trainer, [seen], **options).loop
    for batch in rows(TRAIN)[:3]:
        train(trainer, batches=[batch], evaluates=False)
    assert (loop.is_running, trainer.train_steps) == (True, 3)
    trainer.close()
    assert (loop.state, [step for step, _ in values(loop, "loss")]) == ("completed", [1, 2, 3])
    assert seen.names().count("on_train_epoch_start") == 1


def test_checkpoints_of_tunix_hold_the_states_and_another_trainer_continues_the_run(options, tmp_path):
    root, whole, ema = tmp_path / "out", trainer_of(None), EMA(0.5)
    train(whole)
    stop = At(3, lambda loop: loop.request_stop("for now"))
    stopped = trainer_of(root)
    first = attach(stopped, [ema, stop], **options)
    train(stopped)
    assert [(row.step, row.path) for row in first.loop.checkpoints] == [(3, root / "3")]
    resumed, trainer = EMA(0.5), trainer_of(root)
    second = attach(trainer, [resumed], **options)
    train(trainer)
    assert (second.loop.dir, second.loop.step, resumed.updates) == (first.loop.dir, 8, 8)
    assert bool((trainer.model.kernel[...] == whole.model.kernel[...]).all())
    assert sorted(each.name for each in (root / "hookline").iterdir()) == ["3", "8"]


def test_checkpoint_without_a_directory_is_refused(options, caplog):
    trainer = trainer_of(None)
    attach(trainer, [At(2, lambda loop: loop.request_checkpoint())], **options)
    train(trainer, evaluates=False)
    assert "The trainer's config has no checkpoint_root_directory." in caplog.text


def test_error_of_the_training_ends_the_run_as_failed(options):
    trainer = trainer_of(None)
    attached = attach(trainer, **options)
    trainer.with_loss_fn(lambda model, inputs, targets: jnp.zeros(3) @ jnp.zeros(4))
    with pytest.raises(TypeError):
        train(trainer, evaluates=False)
    assert end_of(attached.loop)[0] == "failed"


def test_something_else_than_a_trainer_is_refused():
    with pytest.raises(OptionError, match="give a trainer of Tunix"):
        attach(line())
