"""The Lightning integration with Lightning's own trainer, with a model of three parameters."""

import functools
import importlib
import json
import os
import signal
import sys
import warnings
from pathlib import Path

import numpy
import pytest
from host_runs import At

import hookline as hl
from hookline._engine.errors import DuplicateError, MissingExtraError
from hookline._engine.registry import REGISTRY
from hookline._record.records import Event, Metrics, Status
from hookline.testing import RecordingCallback

torch = pytest.importorskip("torch")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its imports use what others deprecate
    lightning = pytest.importorskip("lightning.pytorch")
    from hookline.integrations.lightning import HooklineCallback, HooklineLogger, logger

pytestmark = [
    pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:The 'val_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:The 'test_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before the epoch ended"),
    pytest.mark.filterwarnings("ignore:The number of training batches"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory"),
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated"),
    pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`"),
]


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def regression_of(framework):
    class Regression(framework.LightningModule):  # type: ignore[name-defined]
        """Logs its loss with every batch and epoch; can fail at a batch."""

        def __init__(self, fails_at=None, learning_rate=0.1):
            super().__init__()
            self.save_hyperparameters()
            torch.manual_seed(0)
            self.layer = torch.nn.Linear(2, 1)
            self.losses = []

        def _loss(self, batch):
            return self.layer(batch[0]).square().mean()

        def training_step(self, batch, batch_idx):
            if batch_idx == self.hparams.fails_at:
                raise ValueError("no more")
            loss = self._loss(batch)
            self.losses.append(loss.item())
            self.log("train_loss", loss)
            return {"loss": loss, "size": len(batch[0])}

        def validation_step(self, batch, batch_idx):
            self.log("val_loss", self._loss(batch))

        def test_step(self, batch, batch_idx):
            self.log("test_loss", self._loss(batch))

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=self.hparams.learning_rate)

    return Regression


Regression = regression_of(lightning)


def loader(batches):
    data = torch.randn(2 * batches, 2, generator=torch.Generator().manual_seed(0))
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(data), batch_size=2)


def trainer_with(*callbacks, framework=lightning, **options):
    quiet = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
    }
    given = {"max_epochs": 1, "accelerator": "cpu", "num_sanity_val_steps": 0, **quiet, **options}
    return framework.Trainer(callbacks=list(callbacks), **given)


def hooks_with(*callbacks, **options):
    return HooklineCallback(callbacks, **{"strict": True, "summary": False, **options})


def rows(loop, axis="train"):
    return [(r.step, r.values) for r in hl.read(loop.dir) if isinstance(r, Metrics) and r.axis == axis]


def statuses(loop):
    return [(r.status, r.message) for r in hl.read(loop.dir) if isinstance(r, Status)]


def events(loop, name):
    return [r for r in hl.read(loop.dir) if isinstance(r, Event) and r.name == name]


class Counter(hl.Callback):
    def __init__(self):
        self.steps = 0
        self.weights = None

    def on_step_end(self, loop, step_idx, batch, metrics):
        self.steps += 1
        self.weights = loop.model.layer.weight.detach().clone()
        return {"double": 2 * metrics["loss"]}

    def state_dict(self):
        return {"steps": self.steps, "weights": self.weights}

    def load_state_dict(self, state):
        self.steps, self.weights = state["steps"], state["weights"]


def test_lightning_fires_every_moment_in_order(tmp_path):
    seen = RecordingCallback()
    saves = lightning.callbacks.ModelCheckpoint(tmp_path, every_n_epochs=2)
    options = {"max_epochs": 2, "accumulate_grad_batches": 2, "num_sanity_val_steps": 1, "enable_checkpointing": True}
    hooks = hooks_with(seen)
    trainer_with(saves, hooks, **options).fit(Regression(), loader(4), loader(1))
    step = [
        "on_step_start",
        "on_train_batch_start",
        "on_train_batch_end",
        "on_train_batch_start",
        "on_before_optimizer_step",
        "on_train_batch_end",
        "on_step_end",
        "on_log",
    ]
    validation = [
        "on_validation_start",
        "on_validation_epoch_start",
        "on_validation_batch_start",
        "on_validation_batch_end",
        "on_log",
        "on_validation_epoch_end",
        "on_validation_end",
        "on_eval",
    ]
    epoch = ["on_train_epoch_start", *step, *step, *validation, "on_train_epoch_end"]
    assert seen.names() == ["on_train_start", *epoch, *epoch, "on_checkpoint", "on_train_end"]
    indices = [event.arguments[0] for event in seen.events if event.moment in ("on_step_start", "on_step_end")]
    assert indices == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [e.arguments[-1] for e in seen.events if e.moment == "on_train_batch_start"] == [0, 1, 2, 3] * 2
    assert (hooks.loop.num_steps, hooks.loop.num_epochs, hooks.loop.state) == (4, 2, "completed")


def test_lightning_metrics_have_the_frameworks_names_and_values():
    module, hooks = Regression(), hooks_with()
    trainer = trainer_with(hooks, max_epochs=2)
    trainer.fit(module, loader(2), loader(2))
    assert rows(hooks.loop) == [(n + 1, {"loss": x, "train_loss": x}) for n, x in enumerate(module.losses)]
    assert [step for step, _ in rows(hooks.loop, "eval")] == [2, 4]
    loss = trainer.callback_metrics["val_loss"].item()
    assert rows(hooks.loop, "eval")[-1][1] == {"val_loss": loss, "val/loss": loss}
    assert hooks.loop.get_metric("val/loss") == trainer.callback_metrics["val_loss"].item()


def test_lightning_evaluation_has_hookline_names_and_whole_outputs():
    class Unprefixed(Regression):  # type: ignore[valid-type]
        def validation_step(self, batch, batch_idx, dataloader_idx=0):
            self.log("accuracy", 0.5)
            return {"predictions": self.layer(batch[0])}

    seen, module = RecordingCallback(), Unprefixed()
    trainer_with(hooks_with(seen)).validate(module, [loader(1), loader(1)], verbose=False)
    (evaluation,) = [event.arguments[1:] for event in seen.events if event.moment == "on_eval"]
    theirs = {f"accuracy/dataloader_idx_{index}": 0.5 for index in (0, 1)}
    ours = {f"val/dataloader_idx_{index}/accuracy": 0.5 for index in (0, 1)}
    assert evaluation == ("val", ours | theirs)
    outputs = [event.arguments[0] for event in seen.events if event.moment == "on_validation_batch_end"]
    assert [list(each) for each in outputs] == [["predictions"]] * 2


def test_lightning_loss_of_a_step_is_the_mean_of_its_batches():
    module, hooks = Regression(), hooks_with()
    trainer_with(hooks, accumulate_grad_batches=2).fit(module, loader(3))
    first, second, third = module.losses
    assert [values["loss"] for _, values in rows(hooks.loop)] == pytest.approx([(first + second) / 2, third])


def test_lightning_metric_of_steps_and_epochs_is_recorded_separately():
    class Both(Regression):  # type: ignore[valid-type]
        def training_step(self, batch, batch_idx):
            loss = self._loss(batch)
            self.losses.append(loss.item())
            self.log("mse", loss, on_step=True, on_epoch=True)
            return loss

    module, hooks = Both(), hooks_with()
    trainer_with(hooks).fit(module, loader(2))
    mean = sum(module.losses) / 2
    assert rows(hooks.loop) == [
        (1, {"loss": module.losses[0], "mse_step": module.losses[0]}),
        (2, {"loss": module.losses[1], "mse_step": module.losses[1]}),
        (2, {"mse": pytest.approx(mean), "mse_epoch": pytest.approx(mean)}),
    ]


def test_lightning_metrics_logged_in_other_hooks_are_at_their_step():
    class Late(Regression):  # type: ignore[valid-type]
        def on_train_batch_end(self, outputs, batch, batch_idx):
            self.log("late", float(batch_idx))

        def on_train_epoch_end(self):
            self.log("epochs", float(self.current_epoch + 1))

    hooks = hooks_with()
    trainer_with(hooks, max_epochs=2).fit(Late(), loader(2))
    found = [
        (step, name, values[name]) for step, values in rows(hooks.loop) for name in ("late", "epochs") if name in values
    ]
    assert found == [
        (1, "late", 0.0),
        (2, "late", 1.0),
        (2, "epochs", 1.0),
        (3, "late", 0.0),
        (4, "late", 1.0),
        (4, "epochs", 2.0),
    ]


def test_lightning_loop_knows_the_trainer_and_its_parts():
    found = {}

    class Look(hl.Callback):
        def on_train_start(self, loop):
            found.update(native=loop.native, model=loop.model, optimizer=loop.optimizer, rank=loop.rank)

    module = Regression()
    trainer = trainer_with(hooks_with(Look()))
    trainer.fit(module, loader(1))
    assert found == {"native": trainer, "model": module, "optimizer": trainer.optimizers[0], "rank": 0}


def test_lightning_stop_request_ends_the_fit_at_that_step():
    hooks = hooks_with(At(3, lambda loop: loop.request_stop("enough")))
    trainer = trainer_with(hooks, max_epochs=5)
    trainer.fit(Regression(), loader(4))
    assert (trainer.global_step, hooks.loop.step, hooks.loop.state) == (3, 3, "stopped")
    assert statuses(hooks.loop)[-1] == ("stopped", "enough")


def test_lightning_stops_after_a_signal():
    hooks = hooks_with(At(2, lambda loop: os.kill(os.getpid(), signal.SIGTERM)))
    before = signal.getsignal(signal.SIGTERM)
    trainer = trainer_with(hooks, max_epochs=5)
    trainer.fit(Regression(), loader(4))
    assert (trainer.global_step, hooks.loop.stop_reason) == (2, "SIGTERM")
    assert signal.getsignal(signal.SIGTERM) == before


def test_lightning_early_stopping_callback_stops_the_fit():
    stopping = hl.callbacks.EarlyStoppingCallback("val/loss", patience=2, min_delta=10.0)
    hooks = hooks_with(stopping)
    trainer_with(hooks, max_epochs=9).fit(Regression(), loader(2), loader(1))
    assert (hooks.loop.step, hooks.loop.state) == (6, "stopped")
    assert "early stopping: val/loss" in hooks.loop.stop_reason


@pytest.mark.parametrize("ask", ["request_checkpoint", "save_checkpoint"])
def test_lightning_saves_a_requested_checkpoint(ask):
    seen = RecordingCallback()
    hooks = hooks_with(seen, At(2, lambda loop: getattr(loop, ask)()))
    trainer_with(hooks).fit(Regression(), loader(3))
    (row,) = (event.arguments[0] for event in seen.events if event.moment == "on_checkpoint")
    assert (row.step, row.path) == (2, hooks.loop.dir / "checkpoints" / "step-00000002.ckpt")
    assert torch.load(row.path, weights_only=True)["global_step"] == 2
    assert row.bytes == row.path.stat().st_size


def test_lightning_checkpoint_requested_within_a_step_is_saved_at_its_end(tmp_path):
    promised = []

    class Ask(hl.Callback):
        def on_before_optimizer_step(self, loop, optimizer):
            if loop.step == 1:
                promised.extend(loop.save_checkpoint(tmp_path / name) for name in ("a.ckpt", "b.ckpt"))

    seen = RecordingCallback()
    trainer_with(hooks_with(seen, Ask()), accumulate_grad_batches=2).fit(Regression(), loader(4))
    saved = [
        (event.arguments[0].step, event.arguments[0].path) for event in seen.events if event.moment == "on_checkpoint"
    ]
    assert saved == [(row.step, row.path) for row in promised] == [(2, tmp_path / "a.ckpt"), (2, tmp_path / "b.ckpt")]
    assert torch.load(tmp_path / "b.ckpt", weights_only=True)["global_step"] == 2


def test_lightning_checkpoint_callback_of_hookline_keeps_the_best_and_the_latest():
    keeps = hl.callbacks.CheckpointCallback("val/loss", every_n_epochs=1)
    hooks = hooks_with(keeps)
    trainer_with(hooks, max_epochs=4).fit(Regression(learning_rate=10.0), loader(2), loader(1))
    kept = sorted(path.name for path in (hooks.loop.dir / "checkpoints").iterdir())
    assert kept == ["step-00000002.ckpt", "step-00000008.ckpt"]
    again = hooks_with(hl.callbacks.CheckpointCallback("val/loss", every_n_epochs=1))
    trainer_with(again, max_epochs=5).fit(Regression(), loader(2), loader(1), ckpt_path=keeps.last_path)
    assert (again.loop.dir, again.loop.step) == (hooks.loop.dir, 10)


def test_lightning_validates_on_request_and_as_planned():
    seen = RecordingCallback()
    hooks = hooks_with(seen, At(2, lambda loop: loop.request_validation()))
    trainer = trainer_with(hooks, max_epochs=2, check_val_every_n_epoch=2)
    trainer.fit(Regression(), loader(4), loader(1))
    assert [event.arguments[0] + 1 for event in seen.events if event.moment == "on_eval"] == [2, 8]
    assert (trainer.val_check_batch, trainer.check_val_every_n_epoch) == (4, 2)


def test_lightning_validation_requested_between_steps_follows_the_next():
    class Ask(hl.Callback):
        def on_train_epoch_end(self, loop):
            loop.request_validation()

    seen = RecordingCallback()
    trainer_with(hooks_with(seen, Ask()), max_epochs=3, check_val_every_n_epoch=9).fit(
        Regression(), loader(2), loader(1)
    )
    assert [event.arguments[0] + 1 for event in seen.events if event.moment == "on_eval"] == [3, 5]


def test_lightning_validation_between_the_batches_of_a_step_has_its_own_metrics():
    module, hooks = Regression(), hooks_with(SaveAtEval())
    trainer_with(hooks, accumulate_grad_batches=2, val_check_interval=1).fit(module, loader(2), loader(1))
    _, second = module.losses
    assert rows(hooks.loop) == [(1, {"loss": pytest.approx(sum(module.losses) / 2), "train_loss": second})]
    assert [(step, sorted(values)) for step, values in rows(hooks.loop, "eval")] == [
        (0, ["val/loss", "val_loss"]),
        (1, ["val/loss", "val_loss"]),
    ]
    assert [row.step for row in hooks.loop.checkpoints] == [1, 1]


class SaveAtEval(hl.Callback):
    def on_eval(self, loop, step_idx, eval_name, metrics):
        loop.request_checkpoint()


def test_lightning_validation_request_with_validation_by_time_warns(caplog):
    hooks = hooks_with(At(1, lambda loop: loop.request_validation()))
    trainer_with(hooks, val_check_interval="01:00:00:00").fit(Regression(), loader(1), loader(1))
    assert "the trainer validates by time" in caplog.text


def test_lightning_validation_request_without_data_warns(caplog):
    trainer_with(hooks_with(At(1, lambda loop: loop.request_validation()))).fit(Regression(), loader(1))
    assert "the trainer has no validation data" in caplog.text


def test_lightning_failure_is_reported_and_recorded():
    seen = RecordingCallback()
    hooks = hooks_with(seen)
    with pytest.raises(ValueError, match="no more"):
        trainer_with(hooks).fit(Regression(fails_at=2), loader(4))
    assert seen.names()[-1] == "on_exception"
    assert statuses(hooks.loop)[-1] == ("failed", "ValueError: no more")
    assert [step for step, _ in rows(hooks.loop)] == [1, 2]


def test_lightning_failure_in_the_sanity_check_is_recorded():
    class Broken(Regression):  # type: ignore[valid-type]
        def validation_step(self, batch, batch_idx):
            raise ValueError("no validation")

    hooks = hooks_with()
    with pytest.raises(ValueError, match="no validation"):
        trainer_with(hooks, num_sanity_val_steps=1).fit(Broken(), loader(1), loader(1))
    assert statuses(hooks.loop)[-1] == ("failed", "ValueError: no validation")


def test_lightning_failing_observer_is_isolated():
    def fail(loop):
        raise RuntimeError("broken")

    hooks = hooks_with(At(1, fail), strict=False)
    trainer_with(hooks).fit(Regression(), loader(2))
    assert [failure.moment for failure in hooks.loop.callbacks.failures] == ["on_step_end"]
    assert (hooks.loop.step, hooks.loop.state) == (2, "completed")


def test_lightning_critical_subscriber_ends_the_fit():
    def fail(loop):
        raise RuntimeError("broken")

    hooks = hooks_with(At(1, fail).configure(critical=True), strict=False)
    with pytest.raises(RuntimeError, match="broken"):
        trainer_with(hooks).fit(Regression(), loader(2))
    assert hooks.loop.state == "failed"


def save_at(tmp_path, step):
    """Run a fit that fails after it saved; returns its callback and the checkpoint."""
    saved = tmp_path / "saved.ckpt"
    hooks = hooks_with(Counter(), At(step, lambda loop: loop.save_checkpoint(saved)))
    with pytest.raises(ValueError, match="no more"):
        trainer_with(hooks, max_epochs=2).fit(Regression(fails_at=3), loader(4))
    return hooks, saved


def test_lightning_resume_continues_the_run_with_callback_states(tmp_path):
    first, saved = save_at(tmp_path, 2)
    counter, seen = Counter(), RecordingCallback()
    again = hooks_with(counter, seen)
    trainer_with(again, max_epochs=2).fit(Regression(), loader(4), ckpt_path=saved)
    assert again.loop.dir == first.loop.dir
    assert [step for step, _ in rows(again.loop)] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert counter.steps == 8
    assert seen.names()[:4] == ["on_train_start", "on_checkpoint_load", "on_train_epoch_start", "on_step_start"]
    (row,) = (event.arguments[0] for event in seen.events if event.moment == "on_checkpoint_load")
    assert (row.step, row.path) == (2, saved)
    assert seen.names().count("on_train_epoch_start") == seen.names().count("on_train_epoch_end") == 2


def test_lightning_checkpoint_keeps_the_types_of_states(tmp_path):
    class Keeping(Counter):
        def state_dict(self):
            return {**super().state_dict(), "seen": {1: (2, {3})}, "mean": numpy.arange(2.0), "at": Path("x")}

        def load_state_dict(self, state):
            super().load_state_dict(state)
            self.loaded = state

    trainer = trainer_with(hooks_with(Keeping()))
    trainer.fit(Regression(), loader(2))
    trainer.save_checkpoint(tmp_path / "typed.ckpt")
    again = Keeping()
    trainer_with(hooks_with(again), max_epochs=2).fit(Regression(), loader(2), ckpt_path=tmp_path / "typed.ckpt")
    assert (again.loaded["seen"], again.loaded["at"]) == ({1: (2, {3})}, Path("x"))
    assert again.loaded["mean"].tolist() == [0.0, 1.0]
    torch.load(tmp_path / "typed.ckpt", weights_only=True)  # holds nothing that runs code


def test_lightning_resume_from_a_model_checkpoint_continues(tmp_path):
    def fit(hooks, epochs, **options):
        saves = lightning.callbacks.ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1)
        trainer = trainer_with(hooks, saves, max_epochs=epochs, enable_checkpointing=True)
        trainer.fit(Regression(), loader(2), loader(1), **options)

    first, counter = hooks_with(Counter()), Counter()
    again = hooks_with(counter)
    fit(first, 1)
    fit(again, 2, ckpt_path=tmp_path / "epoch=0.ckpt")
    assert (again.loop.dir, counter.steps, again.loop.step) == (first.loop.dir, 4, 4)
    assert [step for step, _ in rows(again.loop)] == [1, 2, 3, 4]


def test_lightning_resume_from_a_checkpoint_without_state_warns(tmp_path, caplog):
    plain = trainer_with()
    plain.fit(Regression(), loader(2))
    plain.save_checkpoint(tmp_path / "plain.ckpt")
    hooks = hooks_with()
    trainer_with(hooks, max_epochs=2).fit(Regression(), loader(2), ckpt_path=tmp_path / "plain.ckpt")
    assert [step for step, _ in rows(hooks.loop)] == [3, 4]
    assert "holds no state of callbacks" in caplog.text


def test_lightning_checkpoint_between_the_batches_of_a_step_counts_completed_steps(tmp_path):
    class SaveEach(lightning.Callback):  # type: ignore[name-defined]
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            trainer.save_checkpoint(tmp_path / f"{batch_idx}.ckpt", weights_only=False)

    trainer_with(hooks_with(), SaveEach(), accumulate_grad_batches=2).fit(Regression(), loader(4))
    saved = [torch.load(tmp_path / f"{n}.ckpt", weights_only=True) for n in range(4)]
    assert [each["callbacks"]["HooklineCallback"]["step"] for each in saved] == [0, 1, 1, 2]


def test_lightning_checkpoint_saved_on_an_exception_has_the_states(tmp_path):
    saves = lightning.callbacks.ModelCheckpoint(tmp_path, filename="last", save_on_exception=True)
    with pytest.raises(ValueError, match="no more"):
        trainer_with(hooks_with(Counter()), saves, enable_checkpointing=True).fit(Regression(fails_at=2), loader(4))
    (file,) = tmp_path.glob("*.ckpt")
    state = torch.load(file, weights_only=True)["callbacks"]["HooklineCallback"]
    assert (state["step"], state["callbacks"]["counter"]["steps"]) == (2, 2)


def test_lightning_second_fit_of_a_trainer_continues_the_run():
    module, hooks = Regression(), hooks_with(Counter())
    trainer = trainer_with(hooks)
    trainer.fit(module, loader(2))
    first = hooks.loop.dir
    trainer.fit_loop.max_epochs = 2
    trainer.fit(module, loader(2))
    assert (hooks.loop.dir, hooks.loop.step) == (first, 4)
    assert [step for step, _ in rows(hooks.loop)] == [1, 2, 3, 4]


def test_lightning_evaluations_alone_are_runs_without_a_training():
    seen = RecordingCallback()
    hooks = hooks_with(seen)
    trainer = trainer_with(hooks)
    (result,) = trainer.test(Regression(), loader(2), verbose=False)
    assert rows(hooks.loop, "eval") == [(0, {**result, "test/loss": result["test_loss"]})]
    assert [event.arguments[1] for event in seen.events if event.moment == "on_eval"] == ["test"]
    assert [name for name in seen.names() if "train" in name] == []
    assert hooks.loop.state == "completed"


def test_lightning_evaluation_after_a_fit_is_in_its_run_at_the_step_of_the_weights(tmp_path):
    module, hooks = Regression(), hooks_with(At(1, lambda loop: loop.save_checkpoint(tmp_path / "one.ckpt")))
    trainer = trainer_with(hooks)
    trainer.fit(module, loader(3))
    trained = hooks.loop.dir
    trainer.validate(module, loader(1), verbose=False)
    trainer.validate(module, loader(1), verbose=False, ckpt_path=tmp_path / "one.ckpt")
    assert hooks.loop.dir == trained
    assert [step for step, _ in rows(hooks.loop)] == [1, 2, 3]
    assert sorted(step for step, _ in rows(hooks.loop, "eval")) == [1, 3]


def test_lightning_evaluation_ends_after_a_signal():
    class Interrupt(hl.Callback):
        def on_validation_batch_end(self, loop, outputs, batch, batch_idx):
            os.kill(os.getpid(), signal.SIGINT)

    before, seen = signal.getsignal(signal.SIGINT), RecordingCallback()
    hooks = hooks_with(Interrupt(), seen)
    with pytest.raises(SystemExit):  # as Lightning ends after an interrupt
        trainer_with(hooks).validate(Regression(), loader(3), verbose=False)
    assert (seen.names().count("on_validation_batch_end"), statuses(hooks.loop)[-1][0]) == (1, "stopped")
    assert signal.getsignal(signal.SIGINT) == before


def test_lightning_epoch_that_a_module_skips_leaves_no_step_behind():
    class Skips(Regression):  # type: ignore[valid-type]
        def on_train_batch_start(self, batch, batch_idx):
            return -1 if batch_idx == 1 else None

    class Tell(hl.Callback):
        def on_train_batch_start(self, loop, batch, batch_idx):
            loop.log(begun=batch_idx)

        def on_train_end(self, loop, artifacts):
            loop.log(at_the_end=1)

    hooks = hooks_with(Tell())
    trainer_with(hooks).fit(Skips(), loader(3))
    assert [(step, list(values)) for step, values in rows(hooks.loop)] == [
        (1, ["begun", "loss", "train_loss"]),
        (2, ["begun"]),
        (1, ["at_the_end"]),
    ]


def test_lightning_predictions_are_not_recorded():
    hooks = hooks_with()
    trainer_with(hooks).predict(Predicting(), loader(1))
    assert (hooks.loop.state, hooks.loop.dir) == ("created", None)


class Predicting(Regression):  # type: ignore[valid-type]
    def predict_step(self, batch, batch_idx):
        return self.layer(batch[0])


def test_lightning_manual_optimization_counts_batches_that_stepped():
    class Manual(Regression):  # type: ignore[valid-type]
        automatic_optimization = False

        def training_step(self, batch, batch_idx):
            one, two = self.optimizers()
            loss = self._loss(batch)
            self.losses.append(loss.item())
            one.zero_grad()
            two.zero_grad()
            self.manual_backward(loss)
            one.step()
            two.step()
            return {"loss": loss}

        def configure_optimizers(self):
            return [torch.optim.SGD([p], lr=0.1) for p in self.layer.parameters()]

    module, seen = Manual(), RecordingCallback()
    hooks = hooks_with(seen)
    trainer_with(hooks).fit(module, loader(2))
    assert rows(hooks.loop) == [(n + 1, {"loss": loss}) for n, loss in enumerate(module.losses)]
    assert seen.names().count("on_before_optimizer_step") == 4


def test_lightning_restores_the_trainer():
    trainer = trainer_with(hooks_with())
    trainer.fit(Regression(), loader(1))
    assert "save_checkpoint" not in vars(trainer)


def test_lightning_callback_works_with_pytorch_lightning():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        other = pytest.importorskip("pytorch_lightning")
    seen, logger = RecordingCallback(), HooklineLogger(summary=False)
    hooks, trains = hooks_with(seen), {"framework": other, "logger": logger, "log_every_n_steps": 1}
    trainer_with(hooks, **trains).fit(regression_of(other)(), loader(2), loader(1))
    assert (hooks.loop.step, seen.names()[-1]) == (2, "on_train_end")
    assert [step for step, _ in rows(hooks.loop)] == [1, 2]


def test_lightning_logger_alone_records_what_loggers_receive():
    module, logger = Regression(learning_rate=0.05), HooklineLogger("alone", summary=False)
    trainer = trainer_with(logger=logger, log_every_n_steps=1)
    trainer.fit(module, loader(2), loader(1))
    run = logger.experiment
    assert [(step, values["train_loss"]) for step, values in rows(run) if "train_loss" in values] == list(
        enumerate(module.losses)
    )
    assert [values["val_loss"] for _, values in rows(run) if "val_loss" in values] == [
        trainer.callback_metrics["val_loss"].item()
    ]
    assert json.loads((run.dir / "run.json").read_text())["config"]["learning_rate"] == 0.05
    assert (logger.name, logger.version, statuses(run)[-1][0]) == ("alone", run.dir.name, "finished")


def test_lightning_logger_alone_records_the_failure_and_handles_no_signals():
    found = []

    class Look(Regression):  # type: ignore[valid-type]
        def on_train_batch_end(self, outputs, batch, batch_idx):
            found.append(signal.getsignal(signal.SIGINT))

    logger = HooklineLogger(summary=False)
    with pytest.raises(ValueError, match="no more"):
        trainer_with(logger=logger, log_every_n_steps=1).fit(Look(fails_at=2), loader(4))
    assert statuses(logger.experiment)[-1] == ("failed", "ValueError: no more")
    assert set(found) == {signal.getsignal(signal.SIGINT)}


def test_lightning_logger_alone_has_one_run(tmp_path):
    logger, saves = HooklineLogger(summary=False), lightning.callbacks.ModelCheckpoint(tmp_path / "saved")
    trainer = trainer_with(saves, logger=logger, log_every_n_steps=1, enable_checkpointing=True)
    trainer.fit(Regression(), loader(2))
    first = logger.log_dir
    trainer.test(Regression(), loader(1), verbose=False)
    assert logger.log_dir == first
    assert {name for _, values in rows(logger.experiment) for name in values} == {"train_loss", "test_loss", "epoch"}
    (saved,) = events(logger.experiment, "checkpoint")
    assert Path(saved.data["path"]).parent == tmp_path / "saved"


def test_lightning_logger_beside_the_callback_adds_to_its_run_and_repeats_nothing():
    class Direct(Regression):  # type: ignore[valid-type]
        def on_fit_start(self):
            self.logger.log_metrics({"early": 1.0}, step=0)

        def on_train_batch_end(self, outputs, batch, batch_idx):
            self.logger.log_metrics({"direct": float(batch_idx)}, step=batch_idx + 1)

        def on_fit_end(self):
            self.logger.log_metrics({"late": 1.0}, step=2)

    module, hooks, logger = Direct(), hooks_with(name="both"), HooklineLogger("both", summary=False)
    trainer_with(hooks, logger=logger, log_every_n_steps=1).fit(module, loader(2), loader(1))
    one, two = module.losses
    assert rows(hooks.loop) == [
        (1, {"loss": one, "train_loss": one}),
        (0, {"early": 1.0}),
        (1, {"direct": 0.0}),
        (2, {"loss": two, "train_loss": two}),
        (2, {"direct": 1.0}),
        (2, {"late": 1.0}),
    ]
    assert len(rows(hooks.loop, "eval")) == 1
    assert len(list(Path("runs/default").iterdir())) == 1
    assert json.loads((hooks.loop.dir / "run.json").read_text())["config"]["learning_rate"] == 0.1


def test_lightning_logger_accepts_hyperparameters_at_any_time():
    class Odd(Regression):  # type: ignore[valid-type]
        def on_train_epoch_end(self):
            self.logger.log_hyperparams({"found": 2})

    module, logger = Odd(), HooklineLogger(config={"mine": 1}, summary=False)
    module.save_hyperparameters({"device": torch.device("cpu"), "shape": (2, 3)})
    trainer_with(hooks_with(), logger=logger).fit(module, loader(1))
    run = next(Path("runs/default").iterdir())
    config = json.loads((run / "run.json").read_text())["config"]
    assert (config["mine"], config["shape"], config["learning_rate"]) == (1, [2, 3], 0.1)
    assert [r.data for r in hl.read(run) if isinstance(r, Event) and r.name == "hyperparameters"] == [
        {"values": {"found": 2}}
    ]


def test_lightning_logger_gives_model_checkpoints_a_directory(tmp_path):
    saves = lightning.callbacks.ModelCheckpoint()
    logger = HooklineLogger("named", summary=False)
    trainer_with(saves, logger=logger, enable_checkpointing=True, log_every_n_steps=1).fit(Regression(), loader(1))
    assert Path(saves.best_model_path).parent == tmp_path / "named" / "checkpoints"


def test_lightning_logger_with_another_name_than_the_callback_warns(caplog):
    trainer_with(hooks_with(name="one"), logger=HooklineLogger("two", summary=False)).fit(Regression(), loader(1))
    assert "records in the run of HooklineCallback" in caplog.text


def test_lightning_not_installed_names_the_extra(monkeypatch):
    for name in ("lightning", "lightning.pytorch", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match=r"pip install 'hookline\[lightning\]'"):
        importlib.reload(logger)


def built_in():
    return sorted(name for name in REGISTRY.names() if REGISTRY.find(name).__module__.startswith("hookline."))


class EverySecond(Regression):  # type: ignore[valid-type]
    """Uses manual optimization: every second batch updates the weights."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        loss = self._loss(batch)
        self.losses.append(loss.item())
        self.manual_backward(loss)
        if len(self.losses) % 2 == 0:
            self.optimizers().step()
            self.optimizers().zero_grad()
        return {"loss": loss}

    def on_train_epoch_end(self):
        self.log("epochs", float(self.current_epoch + 1))


def test_lightning_leftover_batches_of_an_epoch_belong_to_the_next_step(tmp_path):
    seen, module = RecordingCallback(), EverySecond()
    hooks = hooks_with(seen)
    saves = lightning.callbacks.ModelCheckpoint(tmp_path, save_top_k=-1, filename="{epoch}")
    trainer_with(hooks, saves, max_epochs=2, enable_checkpointing=True).fit(module, loader(5), loader(1))
    fired = {name: [e.arguments for e in seen.events if e.moment == name] for name in seen.names()}
    assert (
        [index for (index,) in fired["on_step_start"]] == [index for index, *_ in fired["on_step_end"]] == [*range(5)]
    )
    assert [row.step for (row,) in fired["on_checkpoint"]] == [2, 5]
    assert [index for index, *_ in fired["on_eval"]] == [1, 4]
    assert [step for step, values in rows(hooks.loop) if "epochs" in values] == [2, 5]
    state = torch.load(tmp_path / "epoch=0.ckpt", weights_only=True)["callbacks"]["HooklineCallback"]
    assert (state["step"], hooks.loop.num_steps) == (2, None)


def test_lightning_checkpoint_saved_by_an_earlier_callback_counts_the_current_step(tmp_path):
    class Saves(lightning.Callback):  # type: ignore[name-defined]
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            trainer.save_checkpoint(tmp_path / f"{trainer.global_step}.ckpt")

    hooks = hooks_with()
    trainer_with(Saves(), hooks).fit(Regression(), loader(2))
    assert [(row.step, row.path.name) for row in hooks.loop.checkpoints] == [(1, "1.ckpt"), (2, "2.ckpt")]
    state = torch.load(tmp_path / "2.ckpt", weights_only=True)["callbacks"]["HooklineCallback"]
    assert state["step"] == 2


def test_lightning_restores_a_save_method_set_before():
    saved, trainer = [], trainer_with(hooks_with(At(1, lambda loop: loop.save_checkpoint("mine"))))
    trainer.save_checkpoint = mine = lambda path, **options: saved.append(path.name)
    trainer.fit(Regression(), loader(1))
    assert (trainer.save_checkpoint, saved) == (mine, ["mine"])


def test_lightning_keeps_a_save_method_wrapped_since():
    class Wraps(lightning.Callback):  # type: ignore[name-defined]
        def on_train_start(self, trainer, pl_module):
            trainer.save_checkpoint = self.mine = functools.partial(trainer.save_checkpoint)

    wraps, hooks = Wraps(), hooks_with()
    trainer = trainer_with(wraps, hooks)
    trainer.fit(Regression(), loader(1))
    assert trainer.save_checkpoint is wraps.mine


def test_lightning_restores_the_trainer_after_an_error():
    trainer = trainer_with(hooks_with())
    with pytest.raises(ValueError, match="no more"):
        trainer.fit(Regression(fails_at=0), loader(1))
    assert "save_checkpoint" not in vars(trainer)


def test_lightning_trainer_with_two_callbacks_is_refused():
    trainer = trainer_with(hooks_with())
    trainer.callbacks.append(hooks_with())
    with pytest.raises(DuplicateError, match="two HooklineCallbacks: give all callbacks to one"):
        trainer.fit(Regression(), loader(1))


def test_lightning_wrapped_hugging_face_early_stopping_stops_the_fit():
    transformers = pytest.importorskip("transformers")
    hooks = hooks_with(hl.wrap(transformers.EarlyStoppingCallback(1)))
    trainer_with(hooks, max_epochs=5).fit(Regression(learning_rate=0.0), loader(2), loader(1))
    assert (hooks.loop.step, hooks.loop.state) == (4, "stopped")
