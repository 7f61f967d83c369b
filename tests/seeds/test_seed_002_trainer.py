"""Seed 002's document, section by section: each of its code blocks is executed, and trains with a real `Trainer`.

The blocks stand as in the document, but for the import root.
"""

import functools
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

import hookline as hl
from hookline.callbacks import Callback, CallbackCollection, GradientMonitor, ProgressBar
from hookline.testing import FakeLoop

torch.set_num_threads(1)


class Scripted(hl.Trainer):
    """Trains a linear model; the loss of each validation can be given."""

    val_losses: list[float] | None = None

    def validation_step(self, model: Any, batch: Any) -> Any:
        if self.val_losses is None:
            return super().validation_step(model, batch)
        return {"loss": torch.tensor(self.val_losses[self.epoch])}


def trainer_of(
    *callbacks: Any, samples: int = 8, val_losses: list[float] | None = None, scale: float = 1.0, **settings: Any
) -> Scripted:
    """Two samples a batch, four batches an epoch; one validation batch after each epoch."""
    torch.manual_seed(0)
    inputs = torch.randn(samples, 10)
    targets = scale * inputs.sum(1, keepdim=True)
    data, val_data = TensorDataset(inputs, targets), TensorDataset(inputs[:2], targets[:2])
    given = {"epochs": 1, "batch_size": 2, "device": "cpu", "summary": False, "strict": True} | settings
    config = hl.TrainerConfig(**given)
    loss, model = torch.nn.functional.mse_loss, torch.nn.Linear(10, 1)
    trainer = Scripted(model, data, val_data, config=config, loss=loss, callbacks=callbacks or None)
    trainer.val_losses = val_losses
    return trainer


def train(*callbacks: Any, **settings: Any) -> Scripted:
    trainer = trainer_of(*callbacks, **settings)
    trainer.fit()
    return trainer


def execute(block: str, **names: Any) -> dict[str, Any]:
    """The global names after a block of the document, which takes some of the blocks before it as known."""
    names = {"Callback": Callback, "CallbackCollection": CallbackCollection, **names}
    exec(compile(block, "callbacks.md", "exec"), names)
    return names


def spied(kind: type[Callback], calls: list[Any]) -> Callback:
    """One of a class whose hooks note that they were called, and with what, and still do what they did."""

    def noting(name: str, hook: Any) -> Any:
        @functools.wraps(hook)
        def noted(self: Any, trainer: Any, *arguments: Any) -> Any:
            calls.append((name, *arguments))
            return hook(self, trainer, *arguments)

        return noted

    hooks = {name: noting(name, hook) for name, hook in vars(kind).items() if name.startswith("on_")}
    return type(kind.__name__, (kind,), hooks)()


def lines_of(caplog: Any) -> list[str]:
    """What the logger's lines begin with."""
    messages = [record.getMessage() for record in caplog.records if record.name == "hookline.training"]
    return [" ".join(message.split()[:2]) for message in messages]


def rows_of(trainer: hl.Trainer, name: str) -> list[tuple[int, Any]]:
    return [(row.step, row.metrics[name]) for row in trainer.history if name in row.metrics]


# Basic Usage

ADDING = """
from hookline import DreamTrainerConfig
from hookline.callbacks import (
    LoggerCallback,
    ProgressBar,
    CallbackCollection
)

config = DreamTrainerConfig(
    # ... other settings ...
    callbacks=CallbackCollection([
        LoggerCallback(),  # Logs metrics to console/WandB
        ProgressBar(),    # Shows training progress
    ])
)
"""


def test_basic_usage_config_with_a_collection_logs_metrics_and_shows_progress(caplog, capsys):
    caplog.set_level(logging.INFO, "hookline.training")
    settings = "epochs=1, device='cpu', batch_size=1, summary=False,"
    config = execute(ADDING.replace("# ... other settings ...", settings))["config"]
    data = [(torch.ones(10), torch.ones(1)) for _ in range(3)]
    hl.Trainer(torch.nn.Linear(10, 1), data, config=config, loss=torch.nn.functional.mse_loss).fit()
    assert lines_of(caplog) == ["step 1/3", "step 2/3", "step 3/3", "epoch 1/1"]
    assert "step 3/3" in capsys.readouterr().err


def test_basic_usage_config_as_it_stands_says_what_is_missing():
    config = execute(ADDING)["config"]
    with pytest.raises(hl.OptionError, match=r"The training has no end: give TrainerConfig"):
        hl.Trainer(torch.nn.Linear(10, 1), [1], config=config)


def test_dream_trainer_is_another_name_of_the_trainer():
    from hookline import DreamTrainer, DreamTrainerConfig

    assert (DreamTrainer, DreamTrainerConfig) == (hl.Trainer, hl.TrainerConfig)
    assert "DreamTrainer" in hl.__all__


ORDER = """
callbacks = CallbackCollection([
    LoggerCallback(),     # First: log metrics
    ProgressBar(),       # Second: show progress
    CheckpointCallback() # Third: save checkpoints
])
"""


def test_callback_order_is_the_order_of_adding_in_a_training():
    calls = []
    kinds = {name: getattr(hl.callbacks, name) for name in ("LoggerCallback", "ProgressBar", "CheckpointCallback")}
    noting = {name: noting_steps(kind, calls) for name, kind in kinds.items()}
    train(execute(ORDER, **noting)["callbacks"], epochs=5)
    assert calls[-3:] == [(name, 20) for name in kinds]
    assert [step for name, step in calls if name == "ProgressBar"] == [10, 20]


def noting_steps(kind: type[Callback], calls: list[tuple[str, int]]) -> type[Callback]:
    """The class, noting its name at the end of each step that it is called for."""

    class Noting(kind):  # type: ignore[valid-type]
        def on_step_end(self, loop, step_idx, batch, metrics):
            calls.append((kind.__name__, step_idx + 1))
            return super().on_step_end(loop, step_idx, batch, metrics)

    return Noting


# Built-in Callbacks


LOGGER = """
from hookline.callbacks import LoggerCallback

logger = LoggerCallback(
    log_every_n_steps=100,  # Log every 100 steps
    log_every_n_epochs=1,   # Log every epoch
    log_metrics=True,       # Log metrics
    log_gradients=False,    # Don't log gradients
    log_parameters=False    # Don't log parameters
)
"""


def test_logger_callback_logs_every_hundred_steps_and_every_epoch(caplog):
    caplog.set_level(logging.INFO, "hookline.training")
    trainer = train(execute(LOGGER)["logger"], samples=2, epochs=250, validate_every_epochs=1000, validate_at_end=False)
    lines = lines_of(caplog)
    assert [line for line in lines if line.startswith("step")] == ["step 100/250", "step 200/250", "step 250/250"]
    assert len([line for line in lines if line.startswith("epoch")]) == 250
    assert not [name for name in trainer.metrics if name.startswith(("gradients", "parameters"))]


PROGRESS = """
from hookline.callbacks import ProgressBar

progress = ProgressBar(
    refresh_rate=10,        # Update every 10 steps
    show_epoch=True,        # Show epoch number
    show_step=True,         # Show step number
    show_metrics=True       # Show metrics
)
"""


def test_progress_bar_shows_epoch_step_and_metrics(capsys):
    train(execute(PROGRESS)["progress"], epochs=5)
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("epoch 5/5  step 20/20  loss ")
    assert "val/loss" in last


CHECKPOINT = """
from hookline.callbacks import CheckpointCallback

checkpoint = CheckpointCallback(
    monitor="val_loss",     # Metric to monitor
    mode="min",            # Minimize metric
    save_top_k=3,          # Keep best 3 checkpoints
    save_last=True,        # Always save latest
    every_n_epochs=1       # Save every epoch
)
"""


def test_checkpoint_callback_keeps_the_best_three_and_the_latest():
    checkpoint = execute(CHECKPOINT)["checkpoint"]
    trainer = train(checkpoint, epochs=6, val_losses=[5.0, 1.0, 4.0, 2.0, 3.0, 6.0])
    kept = sorted(path.name for path in (trainer.output_dir / "checkpoints").iterdir())
    assert kept == [f"step-{step:08d}" for step in (8, 16, 20, 24)]
    assert (checkpoint.best_value, checkpoint.best_path.name) == (1.0, "step-00000008")
    assert checkpoint.last_path.name == "step-00000024"


EARLY_STOPPING = """
from hookline.callbacks import EarlyStoppingCallback

early_stopping = EarlyStoppingCallback(
    monitor="val_loss",     # Metric to monitor
    mode="min",            # Minimize metric
    patience=5,            # Wait 5 epochs
    min_delta=0.001        # Minimum change
)
"""


def test_early_stopping_callback_waits_five_epochs_and_stops():
    early_stopping = execute(EARLY_STOPPING)["early_stopping"]
    trainer = train(early_stopping, epochs=20, val_losses=[1.0, 0.5, *[0.4995] * 18])
    assert (trainer.epoch + 1, trainer.state) == (7, "stopped")
    assert trainer.stop_reason == "early stopping: val_loss has not improved on 0.5 by more than 0.001 for 5 checks"


LEARNING_RATE = """
from hookline.callbacks import LearningRateMonitor

lr_monitor = LearningRateMonitor(
    logging_interval="step",  # Log every step
    log_momentum=True        # Log momentum too
)
"""


def test_learning_rate_monitor_logs_rate_and_momentum_of_every_step():
    monitor = execute(LEARNING_RATE)["lr_monitor"]
    trainer = train(monitor, learning_rate=0.5, schedule="linear", optimizer="adam")
    assert rows_of(trainer, "lr") == [(1, 0.5), (2, 0.375), (3, 0.25), (4, 0.125)]
    assert rows_of(trainer, "momentum") == [(step, 0.9) for step in (1, 2, 3, 4)]


# Creating Callbacks


BASIC = '''
from hookline.callbacks import Callback

class MyCallback(Callback):
    def on_train_batch_end(self, trainer, outputs, batch, batch_idx):
        """Called after each training batch"""
        # Access trainer state
        current_epoch = trainer.current_epoch
        current_step = trainer.current_step
        
        # Access outputs
        loss = outputs["loss"]
        
        # Do something
        if loss > 10.0:
            print(f"High loss detected: {loss}")
'''  # noqa: W293 - as it stands


def test_basic_callback_sees_the_loss_of_each_batch(capsys):
    trainer = train(execute(BASIC)["MyCallback"](), scale=100.0)
    losses = [loss for _, loss in rows_of(trainer, "loss")]
    assert capsys.readouterr().out.splitlines() == [f"High loss detected: {loss}" for loss in losses]
    assert min(losses) > 10


TRAINING_HOOKS = '''
class MyCallback(Callback):
    def on_train_start(self, trainer):
        """Called when training starts"""
        pass
        
    def on_train_epoch_start(self, trainer):
        """Called at the start of each training epoch"""
        pass
        
    def on_train_batch_start(self, trainer, batch, batch_idx):
        """Called before each training batch"""
        pass
        
    def on_train_batch_end(self, trainer, outputs, batch, batch_idx):
        """Called after each training batch"""
        pass
        
    def on_train_epoch_end(self, trainer):
        """Called at the end of each training epoch"""
        pass
        
    def on_train_end(self, trainer):
        """Called when training ends"""
        pass
'''  # noqa: W293 - as it stands

VALIDATION_HOOKS = '''
class MyCallback(Callback):
    def on_validation_start(self, trainer):
        """Called when validation starts"""
        pass
        
    def on_validation_epoch_start(self, trainer):
        """Called at the start of each validation epoch"""
        pass
        
    def on_validation_batch_start(self, trainer, batch, batch_idx):
        """Called before each validation batch"""
        pass
        
    def on_validation_batch_end(self, trainer, outputs, batch, batch_idx):
        """Called after each validation batch"""
        pass
        
    def on_validation_epoch_end(self, trainer):
        """Called at the end of each validation epoch"""
        pass
        
    def on_validation_end(self, trainer):
        """Called when validation ends"""
        pass
'''  # noqa: W293 - as it stands


def test_training_hooks_fire_in_the_documented_order():
    calls = []
    train(spied(execute(TRAINING_HOOKS)["MyCallback"], calls), samples=4, epochs=2)
    epoch = [
        ("on_train_epoch_start",),
        ("on_train_batch_start", 0),
        ("on_train_batch_end", 0),
        ("on_train_batch_start", 1),
        ("on_train_batch_end", 1),
        ("on_train_epoch_end",),
    ]
    names_and_indices = [(call[0], *call[-1:]) if "batch" in call[0] else call for call in calls]
    assert names_and_indices == [("on_train_start",), *epoch, *epoch, ("on_train_end",)]


def test_validation_hooks_fire_in_the_documented_order():
    calls = []
    train(spied(execute(VALIDATION_HOOKS)["MyCallback"], calls))
    assert [call[0] for call in calls] == [
        "on_validation_start",
        "on_validation_epoch_start",
        "on_validation_batch_start",
        "on_validation_batch_end",
        "on_validation_epoch_end",
        "on_validation_end",
    ]


def test_batch_hooks_get_the_outputs_and_the_batch():
    calls = []
    trainer = train(spied(execute(TRAINING_HOOKS)["MyCallback"], calls), samples=2)
    (started,) = [call for call in calls if call[0] == "on_train_batch_start"]
    (ended,) = [call for call in calls if call[0] == "on_train_batch_end"]
    _, outputs, batch, batch_idx = ended
    inputs, targets = batch
    assert (inputs.shape, targets.shape, batch_idx) == ((2, 10), (2, 1), 0)
    assert started[1] is batch
    assert rows_of(trainer, "loss") == [(1, outputs["loss"].item())]
    assert not outputs["loss"].requires_grad


STATEFUL = """
class StatefulCallback(Callback):
    def __init__(self):
        super().__init__()
        self.best_metric = float('inf')
        self.patience_counter = 0
        
    def on_validation_epoch_end(self, trainer):
        # Get current metric
        current_metric = trainer.get_metric("val_loss")
        
        # Update state
        if current_metric < self.best_metric:
            self.best_metric = current_metric
            self.patience_counter = 0
        else:
            self.patience_counter += 1
            
        # Check patience
        if self.patience_counter >= 5:
            trainer.should_stop = True
"""  # noqa: W293 - as it stands


def test_stateful_callback_stops_the_training():
    callback = execute(STATEFUL)["StatefulCallback"]()
    trainer = train(callback, epochs=20, val_losses=[3.0, 1.0, *[2.0] * 18])
    assert (trainer.epoch + 1, trainer.step, trainer.state) == (7, 28, "stopped")
    assert (callback.best_metric, callback.patience_counter) == (1.0, 5)


TRAINER_AWARE = """
class TrainerAwareCallback(Callback):
    def on_train_batch_end(self, trainer, outputs, batch, batch_idx):
        # Access trainer attributes
        model = trainer.model
        optimizer = trainer.optimizer
        current_epoch = trainer.current_epoch
        
        # Access trainer methods
        trainer.log("custom_metric", 42)
        trainer.save_checkpoint("path/to/checkpoint.pt")
"""  # noqa: W293 - as it stands


def test_trainer_aware_callback_logs_and_saves_a_checkpoint_that_training_continues_from():
    trainer = train(execute(TRAINER_AWARE)["TrainerAwareCallback"]())
    assert rows_of(trainer, "custom_metric") == [(step, 42) for step in (1, 2, 3, 4)]
    assert [row.step for row in trainer.checkpoints if row.path == Path("path/to/checkpoint.pt")] == [1, 2, 3, 4]
    again = trainer_of(epochs=2)
    again.resume("path/to/checkpoint.pt")
    assert [step for step, _ in rows_of(again, "loss")][-4:] == [5, 6, 7, 8]


def test_checkpoint_saved_in_the_middle_of_a_step_is_that_of_the_whole_step():
    uninterrupted = train()
    first = train(execute(TRAINER_AWARE)["TrainerAwareCallback"](), max_steps=2)
    assert first.step == 2
    resumed = trainer_of()
    resumed.resume("path/to/checkpoint.pt")
    assert rows_of(resumed, "loss") == rows_of(uninterrupted, "loss")[2:]
    assert torch.equal(resumed.model.weight, uninterrupted.model.weight)


# Callback Collection


COLLECTION = """
from hookline.callbacks import CallbackCollection

callbacks = CallbackCollection([
    LoggerCallback(),
    ProgressBar(),
    MyCustomCallback()
])
"""

REMOVING = """
# Remove by type
callbacks.remove(LoggerCallback)

# Remove by instance
callbacks.remove(my_callback)
"""


class Noting(Callback):
    """Notes its name when a batch ends."""

    def __init__(self, calls: list[str], label: str = "") -> None:
        super().__init__()
        self.calls, self.label = calls, label or type(self).__name__

    def on_train_batch_end(self, trainer, outputs, batch, batch_idx):
        self.calls.append(self.label)


class MyCustomCallback(Noting):
    pass


def test_collection_of_the_document_takes_out_by_type_and_by_instance():
    calls = []
    my_callback = MyCustomCallback(calls)
    names = {"LoggerCallback": hl.callbacks.LoggerCallback, "ProgressBar": ProgressBar}
    callbacks = execute(COLLECTION, MyCustomCallback=lambda: my_callback, **names)["callbacks"]
    # The seed runs them as they were added; here what writes comes after what may log (design, section 4).
    assert callbacks.names() == ["my_custom_callback", "logger", "progress_bar"]
    execute(REMOVING, callbacks=callbacks, my_callback=my_callback, **names)
    train(callbacks, max_steps=2)
    assert callbacks.names() == ["progress_bar"]
    assert calls == []


@pytest.mark.parametrize(
    ("block", "order"),
    [
        ("# Move to front\ncallbacks.move_to_front(my_callback)", ["mine", "a", "b", "c"]),
        ("# Move to back\ncallbacks.move_to_back(my_callback)", ["a", "b", "c", "mine"]),
        ("# Move to specific position\ncallbacks.move_to_position(my_callback, 2)", ["a", "b", "mine", "c"]),
    ],
    ids=["front", "back", "position"],
)
def test_reordered_callbacks_run_in_the_new_order_in_a_training(block, order):
    calls = []
    my_callback = Noting(calls, "mine")
    callbacks = CallbackCollection([Noting(calls, "a"), my_callback, Noting(calls, "b"), Noting(calls, "c")])
    execute(block, callbacks=callbacks, my_callback=my_callback)
    train(callbacks, max_steps=1)
    assert calls == order


# Best Practices


FOCUSED = """
# Good: Single responsibility
class LossMonitor(Callback):
    def on_train_batch_end(self, trainer, outputs, batch, batch_idx):
        if outputs["loss"] > 10.0:
            print("High loss detected")

# Bad: Multiple responsibilities
class BadCallback(Callback):
    def on_train_batch_end(self, trainer, outputs, batch, batch_idx):
        # Monitoring
        if outputs["loss"] > 10.0:
            print("High loss detected")
        # Logging
        trainer.log("custom_metric", 42)
        # Checkpointing
        trainer.save_checkpoint("checkpoint.pt")
"""


def test_loss_monitor_speaks_of_each_high_loss(capsys):
    train(execute(FOCUSED)["LossMonitor"](), scale=100.0)
    assert capsys.readouterr().out == "High loss detected\n" * 4


def test_bad_callback_with_many_responsibilities_does_them_all(capsys):
    trainer = train(execute(FOCUSED)["BadCallback"](), scale=100.0, max_steps=2)
    assert capsys.readouterr().out == "High loss detected\n" * 2
    assert rows_of(trainer, "custom_metric") == [(1, 42), (2, 42)]
    assert Path("checkpoint.pt").exists()


TYPED = """
from typing import Dict, Any
import torch

class TypedCallback(Callback):
    def on_train_batch_end(
        self,
        trainer: "DreamTrainer",
        outputs: Dict[str, torch.Tensor],
        batch: torch.Tensor,
        batch_idx: int
    ) -> None:
        pass
"""


def test_typed_callback_is_called_with_every_batch():
    calls = []
    train(spied(execute(TYPED)["TypedCallback"], calls))
    assert [call[-1] for call in calls] == [0, 1, 2, 3]


DOCUMENTED = '''
class DocumentedCallback(Callback):
    """Monitors training metrics and logs warnings.
    
    This callback watches for:
    - High loss values
    - NaN gradients
    - Learning rate spikes
    
    Args:
        loss_threshold: Threshold for high loss warning
        lr_threshold: Threshold for learning rate warning
    """
    
    def __init__(self, loss_threshold: float = 10.0, lr_threshold: float = 1e-2):
        super().__init__()
        self.loss_threshold = loss_threshold
        self.lr_threshold = lr_threshold
'''  # noqa: W293 - as it stands


def test_documented_callback_without_hooks_takes_part_in_a_training():
    callback = execute(DOCUMENTED)["DocumentedCallback"](loss_threshold=5.0)
    trainer = train(callback)
    assert list(trainer.callbacks) == [callback]
    assert (callback.loss_threshold, callback.lr_threshold) == (5.0, 1e-2)


ERROR_HANDLING = """
class ErrorHandlingCallback(Callback):
    def on_train_batch_end(self, trainer, outputs, batch, batch_idx):
        try:
            # Risky operation
            self.process_outputs(outputs)
        except Exception as e:
            # Log error but don't crash
            trainer.log("callback_error", str(e))
"""


def test_error_handling_callback_logs_the_error_as_text_and_training_continues():
    trainer = train(execute(ERROR_HANDLING)["ErrorHandlingCallback"](), max_steps=2)
    message = "'ErrorHandlingCallback' object has no attribute 'process_outputs'"
    assert rows_of(trainer, "callback_error") == [(1, message), (2, message)]
    assert trainer.state == "completed"


TESTING = """
def test_my_callback():
    # Create mock trainer
    trainer = MockTrainer()
    
    # Create callback
    callback = MyCallback()
    
    # Test hook
    callback.on_train_batch_end(
        trainer,
        outputs={"loss": torch.tensor(5.0)},
        batch=torch.randn(32, 10),
        batch_idx=0
    )
    
    # Assert expected behavior
    assert trainer.logged_metrics["custom_metric"] == 42
"""  # noqa: W293 - as it stands


def test_unit_test_of_the_document_passes_with_a_fake_loop_as_mock_trainer():
    logs = BASIC + '        trainer.log("custom_metric", 42)\n'
    names = execute(logs + TESTING, MockTrainer=FakeLoop, torch=torch)
    names["test_my_callback"]()
    with pytest.raises(KeyError, match="custom_metric"):
        execute(BASIC + TESTING, MockTrainer=FakeLoop, torch=torch)["test_my_callback"]()


PRIORITY = """
class HighPriorityCallback(Callback):
    priority = 100  # Higher number = earlier execution
    
class LowPriorityCallback(Callback):
    priority = 0    # Lower number = later execution
"""  # noqa: W293 - as it stands


def test_callback_priority_higher_runs_earlier_in_a_training():
    calls = []
    names = execute(PRIORITY, Callback=Noting)
    train(names["LowPriorityCallback"](calls), names["HighPriorityCallback"](calls), max_steps=1)
    assert calls == ["HighPriorityCallback", "LowPriorityCallback"]


CLEAN = """
class CleanCallback(Callback):
    def on_train_batch_end(self, trainer, outputs, batch, batch_idx):
        # Good: Only logging
        trainer.log("metric", outputs["loss"])
        
        # Bad: Modifying trainer state
        trainer.model.requires_grad_(False)  # Don't do this
"""  # noqa: W293 - as it stands


def test_clean_callback_that_only_logs_has_the_loss_of_each_step():
    trainer = train(execute(CLEAN.partition("        # Bad")[0])["CleanCallback"]())
    assert rows_of(trainer, "metric") == rows_of(trainer, "loss")
    assert len(trainer.history) == 4 + 1


def test_clean_callback_that_freezes_the_model_ends_the_training_with_the_reason():
    with pytest.raises(hl.OptionError, match="does not depend on a trainable parameter: .* the whole model is frozen"):
        train(execute(CLEAN)["CleanCallback"]())


GROUP = '''
class MonitoringGroup(Callback):
    """Group of monitoring callbacks"""
    
    def __init__(self):
        super().__init__()
        self.callbacks = [
            LossMonitor(),
            GradientMonitor(),
            LearningRateMonitor()
        ]
        
    def on_train_batch_end(self, trainer, outputs, batch, batch_idx):
        for callback in self.callbacks:
            callback.on_train_batch_end(trainer, outputs, batch, batch_idx)
'''  # noqa: W293 - as it stands


def members() -> dict[str, Any]:
    monitor = hl.callbacks.LearningRateMonitor
    return {**execute(FOCUSED), "GradientMonitor": GradientMonitor, "LearningRateMonitor": monitor}


def test_monitoring_group_of_the_document_passes_batches_on_to_its_members(capsys):
    train(execute(GROUP, **members())["MonitoringGroup"](), scale=100.0)
    assert capsys.readouterr().out == "High loss detected\n" * 4


def test_monitoring_group_as_a_collection_passes_every_moment_on(capsys):
    kinds = members()
    group = CallbackCollection(
        [kinds["LossMonitor"](), kinds["GradientMonitor"](), kinds["LearningRateMonitor"]()], name="monitoring"
    )
    trainer = train(group, scale=100.0)
    assert capsys.readouterr().out == "High loss detected\n" * 4
    assert [step for step, _ in rows_of(trainer, "lr")] == [1, 2, 3, 4]
