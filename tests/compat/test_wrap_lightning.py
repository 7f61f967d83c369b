"""Lightning's callbacks in hookline's loops, beside Lightning's own Trainer where the order matters."""

import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest

import hookline as hl
from hookline._engine.errors import NotOfferedError
from hookline.compat import wrap
from hookline.compat.lightning import LightningAdapter
from hookline.loops.trainer_config import CheckpointRules
from hookline.testing import FakeLoop

torch = pytest.importorskip("torch")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its imports use what others deprecate
    lightning = pytest.importorskip("lightning.pytorch")
    import pytorch_lightning

from lightning.pytorch import callbacks as theirs  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:The number of training batches"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory"),
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated"),
]
CONFIG = {"device": "cpu", "batch_size": 2, "summary": False, "strict": True, "epochs": 2, "save_at_end": False}
INSIDE = {"on_before_backward", "on_after_backward", "on_before_zero_grad"}
"""What happens inside a step of Lightning's, and is not a moment of hookline's loops."""
OTHER = ("sanity", "test", "predict", "checkpoint", "exception")
EVENTS = [name for name in vars(theirs.Callback) if name.startswith("on_") and not any(part in name for part in OTHER)]
EVENTS = ["setup", "teardown", *(name for name in EVENTS if name not in INSIDE)]


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def recording(seen, notes=lambda event, trainer, module, args: event):
    def noting(event):
        return lambda trainer, module, *args, **stage: seen.append(notes(event, trainer, module, args))

    return theirs.LambdaCallback(**{event: noting(event) for event in EVENTS})


def samples(count=8, seed=1):
    inputs = torch.randn(count, 3, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(inputs, inputs.sum(1, keepdim=True))


def make(*callbacks, **settings):
    torch.manual_seed(7)
    config = hl.TrainerConfig(**{**CONFIG, **settings})
    wrapped = [one if isinstance(one, hl.Callback) else wrap(one) for one in callbacks]
    parts = {"config": config, "loss": functional.mse_loss, "callbacks": wrapped}
    return hl.Trainer(torch.nn.Linear(3, 1), samples(), samples(4, 2), **parts)


class Regression(lightning.LightningModule):  # type: ignore[name-defined]
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)

    def training_step(self, batch, batch_idx):
        return functional.mse_loss(self.layer(batch[0]), batch[1])

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.training_step(batch, batch_idx))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def under_lightning(callback):
    trainer = lightning.Trainer(
        max_epochs=2, accumulate_grad_batches=2, num_sanity_val_steps=0, callbacks=[callback], accelerator="cpu",
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Regression(), DataLoader(samples(), 2), DataLoader(samples(4, 2), 2))


def notes_with_steps(event, trainer, module, args):
    index = args[-1] if "batch" in event else None
    return (event, trainer.global_step, module.current_epoch, index)


def test_events_have_lightnings_order():
    here, there = [], []
    make(recording(here, notes_with_steps), accumulation=2).fit()
    under_lightning(recording(there, notes_with_steps))
    assert here == there
    batch = ["on_train_batch_start", "on_train_batch_end"]
    step = [*batch, "on_train_batch_start", "on_before_optimizer_step", "on_train_batch_end"]
    validation_batches = ["on_validation_batch_start", "on_validation_batch_end"] * 2
    validation = ["on_validation_start", "on_validation_epoch_start", *validation_batches]
    validation += ["on_validation_epoch_end", "on_validation_end"]
    epoch = ["on_train_epoch_start", *step, *step, *validation, "on_train_epoch_end"]
    ends = ["on_train_end", "on_fit_end", "teardown"]
    assert [note[0] for note in here] == ["setup", "on_fit_start", "on_train_start", *epoch, *epoch, *ends]


def test_trainer_reflects_the_loop():
    found = []
    callback = theirs.LambdaCallback(on_train_epoch_end=lambda trainer, module: found.append((trainer, module)))
    loop = make(callback, epochs=1, accumulation=2, warmup_steps=1)
    loop.fit()
    ((trainer, module),) = found
    assert (trainer.current_epoch, trainer.global_step, trainer.max_epochs, trainer.max_steps) == (0, 2, 1, 2)
    assert (trainer.num_training_batches, trainer.num_val_batches, trainer.accumulate_grad_batches) == (4, [2], 2)
    assert (trainer.is_global_zero, trainer.global_rank, trainer.world_size) == (True, 0, 1)
    assert trainer.callback_metrics["val_loss"].item() == pytest.approx(loop.get_metric("val/loss"))
    assert (trainer.optimizers, trainer.ckpt_path, trainer.sanity_checking) == ([loop.optimizer], None, False)
    assert [config.interval for config in trainer.lr_scheduler_configs] == ["step"]
    assert trainer.default_root_dir == str(loop.output_dir)
    assert (trainer.lightning_module, module.trainer, module.device) == (module, trainer, torch.device("cpu"))


def test_module_is_the_model_with_lightnings_additions():
    def on_train_batch_end(trainer, module, outputs, batch, batch_idx):
        assert module.torch_module is trainer.lightning_module.torch_module
        assert module(batch[0]).shape == (2, 1)
        module.note = batch_idx
        module.log("bias", module.bias, prog_bar=True)
        module.log_dict({"weights": sum(p.numel() for p in module.parameters())})

    loop = make(theirs.LambdaCallback(on_train_batch_end=on_train_batch_end), epochs=1)
    loop.fit()
    rows = [row.metrics for row in loop.history if "loss" in row.metrics]
    assert [row["weights"] for row in rows] == [4] * 4  # in the row of the step
    assert rows[-1]["bias"] == pytest.approx(loop.model.bias.item())
    assert loop.model.note == 3


def test_module_log_on_epoch_is_refused():
    def on_train_batch_end(trainer, module, outputs, batch, batch_idx):
        module.log("loss", outputs["loss"], on_epoch=True)

    with pytest.raises(NotOfferedError, match=r"asks for log\(on_epoch=True\), a mean over the epoch"):
        make(theirs.LambdaCallback(on_train_batch_end=on_train_batch_end)).fit()


class Worsening(hl.Callback):
    """The weights jump after the second epoch, so that the loss gets worse."""

    priority = 10

    def on_train_epoch_start(self, loop):
        if loop.epoch > 1:
            with torch.no_grad():
                loop.model.weight.add_(loop.epoch)


@pytest.mark.parametrize("framework", [lightning, pytorch_lightning])
def test_early_stopping_stops_when_the_validation_gets_worse(framework):
    stopping = framework.callbacks.EarlyStopping("val_loss", patience=2)
    trainer = make(Worsening(), stopping, epochs=9)
    trainer.fit()
    assert (trainer.step, trainer.stop_reason) == (16, "early_stopping set trainer.should_stop")
    assert (stopping.stopped_epoch, stopping.wait_count) == (3, 2)


def test_early_stopping_checks_after_each_validation_by_steps():
    stopping = theirs.EarlyStopping("val_loss", patience=1, divergence_threshold=-1.0)
    trainer = make(stopping, validate_every_steps=3)
    trainer.fit()
    assert trainer.step == 3


def test_early_stopping_works_in_a_bare_loop():
    with hl.run("bare", callbacks=[wrap(theirs.EarlyStopping("val_loss", patience=1))], strict=True) as run:
        for step in run.steps(9):
            with run.validate() as val:
                val.log(loss=[3.0, 2.0, 2.5][step])
    assert run.step == 3


def test_state_survives_a_resume():
    rules = CheckpointRules(every_n_epochs=1, save_top_k=-1)
    settings = {"epochs": 9, "checkpoint": rules}
    whole = make(Worsening(), theirs.EarlyStopping("val_loss", patience=3), theirs.Timer(), **settings)
    whole.fit()
    again = make(Worsening(), theirs.EarlyStopping("val_loss", patience=3), theirs.Timer(), **settings)
    at = whole.checkpoints[2]
    again.resume(at.path)
    one, other = (trainer.callbacks["early_stopping"].foreign for trainer in (whole, again))
    assert (whole.step, at.step, again.step) == (20, 12, 20)
    assert one.state_dict() == other.state_dict()
    assert again.callbacks["timer"].foreign._offset > 0


def test_checkpoint_holds_the_callbacks_additions():
    seen = []

    class Keeping(theirs.Callback):
        def setup(self, trainer, pl_module, stage):
            seen.append(f"setup {stage}")

        def on_save_checkpoint(self, trainer, pl_module, checkpoint):
            checkpoint["mine"] = {"step": checkpoint["global_step"], "weight": pl_module.weight.detach().clone()}

        def on_load_checkpoint(self, trainer, pl_module, checkpoint):
            seen.append((checkpoint["mine"]["step"], checkpoint["mine"]["weight"].shape))
            return checkpoint["state_dict"]

    whole = make(Keeping(), save_at_end=True)
    whole.fit()
    again = make(Keeping(), epochs=3)
    with pytest.raises(NotOfferedError, match=r"on_load_checkpoint\(\) asks for checkpoint\['state_dict'\]"):
        again.resume(whole.checkpoints[-1].path)
    assert seen == ["setup fit", "setup fit", (8, (1, 3))]


def test_timer_stops_when_its_time_is_up():
    trainer = make(theirs.Timer({"seconds": 0}))
    trainer.fit()
    assert (trainer.step, trainer.stop_reason) == (0, "timer set trainer.should_stop")


def test_learning_rate_monitor_records_through_the_loop():
    trainer = make(theirs.LearningRateMonitor("step"), epochs=1, learning_rate=0.4, warmup_steps=1)
    trainer.fit()
    assert [row.metrics["lr-AdamW"] for row in trainer.history if "loss" in row.metrics] == [0.2, 0.4, 0.4, 0.4]


def test_model_checkpoint_saves_resumable_checkpoints():
    keeping = theirs.ModelCheckpoint(monitor="val_loss", save_top_k=1, save_last=True)
    trainer = make(Worsening(), keeping, epochs=4)
    trainer.fit()
    folder = trainer.output_dir / "checkpoints"
    assert sorted(path.name for path in folder.iterdir()) == ["epoch=1-step=8.ckpt", "last.ckpt"]
    validated = [row.metrics["val/loss"] for row in trainer.history if "val/loss" in row.metrics]
    assert keeping.best_model_score.item() == pytest.approx(validated[1]) == pytest.approx(min(validated))
    again = make(Worsening(), theirs.ModelCheckpoint(monitor="val_loss"), epochs=4)
    again.resume(keeping.best_model_path)
    assert again.step == 16
    assert again.callbacks["model_checkpoint"].foreign.best_model_score == keeping.best_model_score


def test_model_checkpoint_saves_after_steps():
    trainer = make(theirs.ModelCheckpoint(every_n_train_steps=3, save_top_k=-1))
    trainer.fit()
    assert [row.step for row in trainer.checkpoints] == [3, 6]
    assert [Path(row.path).name for row in trainer.checkpoints] == ["epoch=0-step=3.ckpt", "epoch=1-step=6.ckpt"]


def test_model_checkpoint_of_weights_only_is_refused():
    with pytest.raises(
        NotOfferedError, match="asks for a checkpoint of the weights only: .* everything needed to resume"
    ):
        make(theirs.ModelCheckpoint(save_weights_only=True)).fit()


class Unfreezing(theirs.BaseFinetuning):
    """As people write it, by overriding."""


@pytest.mark.parametrize(
    ("callback", "reason"),
    [
        (
            theirs.BackboneFinetuning(1),
            "it would set the learning rate of the whole model. Give the Trainer an optimizer",
        ),
        (Unfreezing(), "it adds parameters to the optimizer during training"),
        (theirs.EMAWeightAveraging(), "it averages a LightningModule.* hl.callbacks.EMA keeps an average"),
        (theirs.StochasticWeightAveraging(0.1), "replaces the optimizer's schedule .* hl.callbacks.EMA"),
        (theirs.GradientAccumulationScheduler({0: 2}), r"cannot change during training. TrainerConfig\(accumulation="),
        (theirs.BatchSizeFinder(), "it runs trial trainings"),
        (theirs.LearningRateFinder(), "it runs trial trainings"),
        (theirs.RichModelSummary(), "it needs a LightningModule"),
        (theirs.ThroughputMonitor(len), "hl.callbacks.ThroughputMonitor"),
        (pytorch_lightning.callbacks.BackboneFinetuning(1), "the learning rate of the whole model"),
    ],
)
def test_unsupported_callback_is_refused_when_wrapped(callback, reason):
    with pytest.raises(NotOfferedError, match=f"Lightning's {type(callback).__name__} cannot be wrapped: .*{reason}"):
        wrap(callback)


def test_every_lightning_callback_is_refused_or_trains_without_failures(tmp_path):
    arguments = {
        "ModelPruning": ("l1_unstructured",),
        "OnExceptionCheckpoint": (tmp_path,),
        "EarlyStopping": ("val_loss",),
    }
    kinds = [getattr(theirs, name) for name in theirs.__all__ if name not in ("Callback", "Checkpoint", "ProgressBar")]
    kinds = [kind for kind in kinds if kind.__name__ not in ("BasePredictionWriter", "SpikeDetection")]
    for kind in [each for each in kinds if not set(LightningAdapter.refused) & {one.__name__ for one in each.__mro__}]:
        trainer = make(kind(*arguments.get(kind.__name__, ())))
        trainer.fit()
        assert (kind, trainer.state, trainer.step, trainer.callbacks.failures) == (kind, "completed", 8, [])


def test_rich_progress_bar_shows_epochs_batches_and_the_loss(capsys):
    trainer = make(theirs.RichProgressBar(leave=True))
    trainer.fit()
    shown = " ".join(capsys.readouterr().out.split())
    assert "Epoch 0/1" in shown
    assert "Epoch 1/1" in shown
    assert "4/4" in shown
    assert "loss: " in shown


def test_device_stats_monitor_records_lightnings_statistics_through_the_loop():
    pytest.importorskip("psutil")
    trainer = make(theirs.DeviceStatsMonitor(cpu_stats=True), epochs=1)
    trainer.fit()
    names = {name for row in trainer.history for name in row.metrics}
    assert {f"DeviceStatsMonitor.on_train_batch_{when}/cpu_percent" for when in ("start", "end")} <= names


@pytest.mark.parametrize("event", ["setup", "on_fit_start", "on_train_start"])
def test_callback_that_fails_in_setup_gets_no_event_until_the_next_training(event):
    seen = []

    class Failing(theirs.LambdaCallback):
        broken = True

    def fail(*args, **stage):
        seen.append(event)
        if Failing.broken:
            raise ValueError("not ready")

    note = {name: lambda *args, name=name, **stage: seen.append(name) for name in EVENTS if name != event}
    wrapped = wrap(Failing(**note, **{event: fail}))
    trainer = make(wrapped, strict=False)
    trainer.fit()
    assert seen == EVENTS[0:1] * (event != "setup") + ["on_fit_start"] * (event == "on_train_start") + [event]
    assert [str(failure.error) for failure in trainer.callbacks.failures] == [
        f"Lightning's Failing failed in its {event}(): not ready"
    ]
    Failing.broken = False
    make(wrapped).fit()
    assert seen[-1] == "teardown"


def test_exception_is_the_last_event():
    seen = []

    def fail(trainer, module, *args):
        raise ValueError("no more")

    note = {name: lambda *args, name=name: seen.append(name) for name in ("on_exception", "on_train_end", "teardown")}
    with pytest.raises(ValueError, match="no more"):
        make(theirs.LambdaCallback(**note, on_train_batch_start=fail)).fit()
    assert seen == ["on_exception"]


def test_strategy_communicates_with_other_processes():
    found = []
    loop = FakeLoop(callbacks=[wrap(theirs.LambdaCallback(on_train_start=lambda trainer, _: found.append(trainer)))])
    loop.world_size, loop.rank = 2, 1
    loop.processes = SimpleNamespace(share=lambda mine: "of rank zero", gather=lambda mine: [False, mine])  # type: ignore[attr-defined]
    loop.callbacks.on_train_start(loop)
    strategy = found[0].strategy
    assert strategy.broadcast("mine") == "of rank zero"
    assert [strategy.reduce_boolean_decision(True, all=every) for every in (True, False)] == [False, True]
    assert not found[0].is_global_zero
