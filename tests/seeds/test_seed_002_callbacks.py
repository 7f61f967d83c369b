"""Seed 002: callbacks, and collections that order, remove and move them."""

import dataclasses
import io
from typing import Any, Dict  # noqa: UP035 - the seed's typed callback is written with it

import pytest
import torch
from rich.console import Console

import hookline as hl
from hookline.callbacks import Callback, CallbackCollection, EarlyStoppingCallback, ProgressBar
from hookline.testing import Event, FakeLoop, RecordingCallback


class Named(Callback):
    """Writes its class's name, or a label, into a list when a batch ends."""

    def __init__(self, seen: list[str] | None = None, label: str | None = None) -> None:
        super().__init__()
        self.seen = [] if seen is None else seen
        self.label = label or type(self).__name__

    def on_train_batch_end(self, trainer, outputs, batch, batch_idx):
        self.seen.append(self.label)


class LoggerCallback(Named):
    pass


class CheckpointCallback(Named):
    pass


class MyCustomCallback(Named):
    pass


def run_of(*callbacks: Any, **options: Any) -> hl.Run:
    return hl.run(callbacks=callbacks, strict=True, summary=False, **options)


def train(*callbacks: Any, losses: Any = (1.0,)) -> hl.Run:
    """One step for each loss."""
    with run_of(*callbacks) as run:
        for loss in run.steps(list(losses)):
            run.log(loss=loss)
    return run


def validate_each_epoch(*callbacks: Any, losses: list[float]) -> hl.Run:
    """One step and one validation for each loss, an epoch each, until somebody stops it."""
    with run_of(*callbacks) as run:
        for epoch in run.epochs(len(losses)):
            for _ in run.steps(1):
                pass
            with run.validate() as val:
                val.log(loss=losses[epoch])
    return run


def fire(callbacks: CallbackCollection) -> None:
    callbacks.on_train_batch_end(FakeLoop(), {"loss": 1.0}, None, 0)


# Order


def test_collection_of_three_runs_them_in_the_order_they_are_added():
    seen = []
    callbacks = CallbackCollection([LoggerCallback(seen), MyCustomCallback(seen), CheckpointCallback(seen)])
    fire(callbacks)
    assert seen == ["LoggerCallback", "MyCustomCallback", "CheckpointCallback"]


def test_collection_given_to_a_run_runs_in_order_every_batch():
    seen = []
    train(LoggerCallback(seen), CheckpointCallback(seen), losses=[1.0, 2.0])
    assert seen == ["LoggerCallback", "CheckpointCallback"] * 2


def test_progress_bar_shows_what_the_others_did_unless_it_is_moved():
    # The seed runs it in the order of adding; here what writes runs last (design, section 4).
    progress = ProgressBar()
    callbacks = CallbackCollection([LoggerCallback(), progress, CheckpointCallback()])
    assert callbacks.names() == ["logger_callback", "checkpoint_callback", "progress_bar"]
    callbacks.move_to_position(progress, 1)
    assert callbacks.names() == ["logger_callback", "progress_bar", "checkpoint_callback"]


def test_priority_higher_number_executes_earlier():
    class HighPriorityCallback(Named):
        priority = 100  # Higher number = earlier execution

    class LowPriorityCallback(Named):
        priority = 0  # Lower number = later execution

    class Between(Named):
        priority = 50

    seen = []
    fire(CallbackCollection([LowPriorityCallback(seen), Between(seen), HighPriorityCallback(seen)]))
    assert seen == ["HighPriorityCallback", "Between", "LowPriorityCallback"]


def test_priority_given_when_added_wins_over_the_class():
    seen = []
    callbacks = CallbackCollection([LoggerCallback(seen)])
    callbacks.add(MyCustomCallback(seen), priority=1)
    fire(callbacks)
    assert seen == ["MyCustomCallback", "LoggerCallback"]


def test_two_callbacks_of_one_class_do_not_replace_each_other():
    seen = []
    fire(CallbackCollection([MyCustomCallback(seen, "one"), MyCustomCallback(seen, "two")]))
    assert seen == ["one", "two"]


# Adding, removing, reordering


def test_collection_holds_what_was_added_in_order():
    members = [LoggerCallback(), CheckpointCallback(), MyCustomCallback()]
    callbacks = CallbackCollection(members)
    assert list(callbacks) == members
    assert (len(callbacks), callbacks[2], callbacks[-1]) == (3, members[2], members[2])
    assert members[0] in callbacks


def test_collection_is_itself_a_callback():
    assert isinstance(CallbackCollection(), Callback)


def test_remove_by_type_takes_out_all_of_that_type():
    mine = MyCustomCallback()
    callbacks = CallbackCollection([LoggerCallback(), mine, LoggerCallback()])
    callbacks.remove(LoggerCallback)
    assert list(callbacks) == [mine]


def test_remove_by_instance_takes_out_this_very_one():
    @dataclasses.dataclass
    class Equal(Callback):
        n: int = 0

    twins = [Equal(), Equal(), Equal()]
    callbacks = CallbackCollection(twins)
    callbacks.remove(twins[1])
    assert [callback is twin for callback, twin in zip(callbacks, [twins[0], twins[2]], strict=True)] == [True, True]


def test_remove_what_is_not_there_is_an_error_that_changes_nothing():
    callbacks = CallbackCollection([LoggerCallback()])
    with pytest.raises(hl.UnknownNameError, match="CheckpointCallback is not here"):
        callbacks.remove(CheckpointCallback)
    assert callbacks.names() == ["logger_callback"]


def test_removed_callback_no_longer_runs():
    seen = []
    mine = MyCustomCallback(seen)
    callbacks = CallbackCollection([LoggerCallback(seen), mine])
    fire(callbacks)
    callbacks.remove(mine)
    fire(callbacks)
    assert seen == ["LoggerCallback", "MyCustomCallback", "LoggerCallback"]


def test_callback_that_removes_itself_does_not_skip_the_next():
    seen = []

    class OneShot(Named):
        def on_train_batch_end(self, trainer, outputs, batch, batch_idx):
            super().on_train_batch_end(trainer, outputs, batch, batch_idx)
            trainer.callbacks.remove(self)

    train(OneShot(seen), MyCustomCallback(seen), losses=[1.0, 1.0])
    assert seen == ["OneShot", "MyCustomCallback", "MyCustomCallback"]


@pytest.mark.parametrize(
    ("move", "order"),
    [
        (lambda callbacks, mine: callbacks.move_to_front(mine), ["mine", "a", "b", "c"]),
        (lambda callbacks, mine: callbacks.move_to_back(mine), ["a", "b", "c", "mine"]),
        (lambda callbacks, mine: callbacks.move_to_position(mine, 2), ["a", "b", "mine", "c"]),
        (lambda callbacks, mine: callbacks.move_to_position(mine, 0), ["mine", "a", "b", "c"]),
    ],
    ids=["front", "back", "position_2", "position_0"],
)
def test_moving_a_callback_changes_the_order_of_execution(move, order):
    seen = []
    my_callback = MyCustomCallback(seen, "mine")
    callbacks = CallbackCollection([Named(seen, "a"), my_callback, Named(seen, "b"), Named(seen, "c")])
    move(callbacks, my_callback)
    fire(callbacks)
    assert seen == order


def test_moving_a_callback_wins_over_its_priority():
    class HighPriorityCallback(Named):
        priority = 100

    seen = []
    high = HighPriorityCallback(seen)
    callbacks = CallbackCollection([high, LoggerCallback(seen)])
    callbacks.move_to_back(high)
    fire(callbacks)
    assert seen == ["LoggerCallback", "HighPriorityCallback"]


def test_moving_to_a_position_that_is_not_there_is_an_error():
    mine = MyCustomCallback()
    with pytest.raises(hl.OptionError, match="position=2: give a whole number from -1 to 0"):
        CallbackCollection([mine]).move_to_position(mine, 2)


# Built-in callbacks


def test_progress_bar_arguments_are_those_of_the_seed():
    progress = ProgressBar(refresh_rate=10, show_epoch=True, show_step=True, show_metrics=True)
    facts = (progress.refresh_rate, progress.show_epoch, progress.show_step, progress.show_metrics)
    assert facts == (10, True, True, True)


def test_progress_bar_refresh_rate_updates_every_ten_steps():
    run = train(ProgressBar(refresh_rate=10, console=Console(file=io.StringIO())), losses=[1.0] * 35)
    assert run.callbacks.costs().by_name()["progress_bar"].calls == 1 + 3 + 1  # start, steps 10, 20, 30, end


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        ({}, "epoch 2/2  step 4/4  loss 0.5"),
        ({"show_epoch": False}, "step 4/4  loss 0.5"),
        ({"show_step": False}, "epoch 2/2  loss 0.5"),
        ({"show_metrics": False}, "epoch 2/2  step 4/4"),
    ],
)
def test_progress_bar_last_line_shows_what_was_asked_for(shown, text):
    console = Console(file=io.StringIO(), width=200)
    with run_of(ProgressBar(console=console, **shown)) as run:
        for _ in run.steps(2, epochs=2):
            run.log(loss=0.5)
    assert console.file.getvalue().splitlines()[-1].rsplit("  ", 1)[0] == text  # type: ignore[attr-defined]


def test_early_stopping_waits_five_epochs_for_an_improvement_of_min_delta():
    early_stopping = EarlyStoppingCallback(monitor="val_loss", mode="min", patience=5, min_delta=0.001)
    run = validate_each_epoch(early_stopping, losses=[1.0, 0.5, *[0.4995] * 10])
    assert (run.step, run.state) == (7, "stopped")
    assert run.stop_reason == "early stopping: val_loss has not improved on 0.5 by more than 0.001 for 5 checks"


def test_early_stopping_while_the_metric_improves_does_not_stop():
    run = validate_each_epoch(EarlyStoppingCallback(monitor="val_loss", patience=2), losses=[5.0, 4.0, 4.5, 3.0, 3.5])
    assert (run.step, run.state) == (5, "completed")


def test_early_stopping_mode_max_stops_when_the_metric_no_longer_grows():
    run = validate_each_epoch(EarlyStoppingCallback("val_loss", mode="max", patience=2), losses=[1.0, 2.0, 2.0, 1.0, 9])
    assert (run.step, run.state) == (4, "stopped")


# Creating callbacks


class MyCallback(Callback):
    def on_train_batch_end(self, trainer, outputs, batch, batch_idx):
        """Called after each training batch"""
        # Access trainer state
        current_epoch = trainer.current_epoch
        current_step = trainer.current_step

        # Access outputs
        loss = outputs["loss"]

        # Do something
        trainer.log("custom_metric", 42)
        if loss > 10.0:
            print(f"High loss detected: {loss}", current_epoch, current_step)


def test_basic_callback_reads_trainer_state_and_outputs(capsys):
    with run_of(MyCallback()) as run:
        for loss in run.steps([9.0, 11.0], epochs=2):
            run.log(loss=loss)
    assert capsys.readouterr().out == "High loss detected: 11.0 0 1\nHigh loss detected: 11.0 1 3\n"


TRAINING = [
    "on_train_start",
    "on_train_epoch_start",
    "on_train_batch_start",
    "on_train_batch_end",
    "on_train_epoch_end",
    "on_train_end",
]
VALIDATION = [
    "on_validation_start",
    "on_validation_epoch_start",
    "on_validation_batch_start",
    "on_validation_batch_end",
    "on_validation_epoch_end",
    "on_validation_end",
]


class TrainingHooks(Callback):
    """Every training hook, with the seed's own signatures."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def on_train_start(self, trainer):
        self.calls.append("on_train_start")

    def on_train_epoch_start(self, trainer):
        self.calls.append("on_train_epoch_start")

    def on_train_batch_start(self, trainer, batch, batch_idx):
        self.calls.append(("on_train_batch_start", batch, batch_idx))

    def on_train_batch_end(self, trainer, outputs, batch, batch_idx):
        self.calls.append(("on_train_batch_end", dict(outputs), batch, batch_idx))

    def on_train_epoch_end(self, trainer):
        self.calls.append("on_train_epoch_end")

    def on_train_end(self, trainer):
        self.calls.append("on_train_end")


class ValidationHooks(Callback):
    """Every validation hook, with the seed's own signatures."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def on_validation_start(self, trainer):
        self.calls.append("on_validation_start")

    def on_validation_epoch_start(self, trainer):
        self.calls.append("on_validation_epoch_start")

    def on_validation_batch_start(self, trainer, batch, batch_idx):
        self.calls.append(("on_validation_batch_start", batch, batch_idx))

    def on_validation_batch_end(self, trainer, outputs, batch, batch_idx):
        self.calls.append(("on_validation_batch_end", dict(outputs), batch, batch_idx))

    def on_validation_epoch_end(self, trainer):
        self.calls.append(("on_validation_epoch_end", trainer.get_metric("val_loss")))

    def on_validation_end(self, trainer):
        self.calls.append("on_validation_end")


def test_training_hooks_in_a_run_of_two_epochs_fire_in_the_documented_order():
    hooks = TrainingHooks()
    with run_of(hooks) as run:
        for batch in run.steps(["a", "b"], epochs=2):
            run.log(loss=ord(batch))
    epoch = [
        "on_train_epoch_start",
        ("on_train_batch_start", "a", 0),
        ("on_train_batch_end", {"loss": 97}, "a", 0),
        ("on_train_batch_start", "b", 1),
        ("on_train_batch_end", {"loss": 98}, "b", 1),
        "on_train_epoch_end",
    ]
    assert hooks.calls == ["on_train_start", *epoch, *epoch, "on_train_end"]


def test_validation_hooks_in_a_run_fire_in_the_documented_order():
    hooks = ValidationHooks()
    with run_of(hooks) as run, run.validate() as val:
        for batch in val.batches(["a", "b"]):
            val.log(loss=ord(batch))
    assert hooks.calls == [
        "on_validation_start",
        "on_validation_epoch_start",
        ("on_validation_batch_start", "a", 0),
        ("on_validation_batch_end", {"loss": 97}, "a", 0),
        ("on_validation_batch_start", "b", 1),
        ("on_validation_batch_end", {"loss": 98}, "b", 1),
        ("on_validation_epoch_end", 97.5),
        "on_validation_end",
    ]


def test_training_and_validation_hooks_in_one_epoch_are_nested_as_documented():
    recording = RecordingCallback()
    validate_each_epoch(recording, losses=[1.0])
    names = [name for name in recording.names() if name in TRAINING + VALIDATION]
    without_batches = [name for name in VALIDATION if "batch" not in name]
    assert names == [*TRAINING[:4], *without_batches, *TRAINING[4:]]


def test_callback_with_a_misspelt_hook_is_an_error_with_the_closest():
    class Misspelt(Callback):
        def on_train_batch_ends(self, trainer, outputs, batch, batch_idx):
            pass

    with pytest.raises(hl.MomentError, match=r"on_train_batch_ends is not a moment. Did you mean 'on_train_batch_end'"):
        CallbackCollection([Misspelt()])


class StatefulCallback(Callback):
    def __init__(self):
        super().__init__()
        self.best_metric = float("inf")
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


def test_stateful_callback_stops_training_through_should_stop():
    callback = StatefulCallback()
    run = validate_each_epoch(callback, losses=[3.0, 1.0, *[2.0] * 10])
    assert (run.step, run.state, run.should_stop) == (7, "stopped", True)
    assert (callback.best_metric, callback.patience_counter) == (1.0, 5)


def test_stateful_callback_with_validation_inside_the_steps_stops_after_that_step():
    with run_of(StatefulCallback()) as run:
        for _ in run.steps(20):
            with run.validate() as val:
                val.log(loss=1.0)
    assert (run.step, run.state) == (6, "stopped")


class TrainerAwareCallback(Callback):
    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_end(self, trainer, outputs, batch, batch_idx):
        # Access trainer attributes
        model = trainer.model
        optimizer = trainer.optimizer
        current_epoch = trainer.current_epoch
        self.seen.append((model, optimizer, current_epoch))

        # Access trainer methods
        trainer.log("custom_metric", 42)
        trainer.save_checkpoint("path/to/checkpoint.pt")


def test_trainer_aware_callback_logs_and_saves_a_checkpoint(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    callback, model = TrainerAwareCallback(), torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with run_of(callback) as run:
        run.model, run.optimizer = model, optimizer
        for _ in run.steps(2):
            run.log(loss=1.0)
    assert callback.seen == [(model, optimizer, 0)] * 2
    assert [row.metrics for row in run.history] == [{"loss": 1.0, "custom_metric": 42}] * 2
    assert (tmp_path / "path/to/checkpoint.pt").exists()


def test_trainer_aware_callback_checkpoint_brings_model_and_metrics_back(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model, loaded = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    with run_of(TrainerAwareCallback(), save=lambda path: torch.save(model.state_dict(), path / "model.pt")) as run:
        for _ in run.steps(1):
            run.log(loss=1.0)
    resumed = run_of(load=lambda path: loaded.load_state_dict(torch.load(path / "model.pt")))
    row = resumed.load_checkpoint("path/to/checkpoint.pt")
    assert row.metrics == {"loss": 1.0, "custom_metric": 42}
    assert torch.equal(loaded.weight, model.weight)


# Best practices


class LossMonitor(Callback):
    def on_train_batch_end(self, trainer, outputs, batch, batch_idx):
        if outputs["loss"] > 10.0:
            print("High loss detected")


class GradientMonitor(Named):
    pass


class LearningRateMonitor(Callback):
    """Overrides nothing, as a group may have it."""


class MonitoringGroup(Callback):
    """Group of monitoring callbacks"""

    def __init__(self, seen):
        super().__init__()
        self.callbacks = [LossMonitor(), GradientMonitor(seen), LearningRateMonitor()]

    def on_train_batch_end(self, trainer, outputs, batch, batch_idx):
        for callback in self.callbacks:
            callback.on_train_batch_end(trainer, outputs, batch, batch_idx)  # type: ignore[call-arg]


def test_loss_monitor_with_a_single_responsibility_prints_at_a_high_loss(capsys):
    train(LossMonitor(), losses=[1.0, 11.0, 10.0])
    assert capsys.readouterr().out == "High loss detected\n"


def test_bad_callback_with_many_responsibilities_works_all_the_same(tmp_path, monkeypatch, capsys):
    class BadCallback(LossMonitor):
        def on_train_batch_end(self, trainer, outputs, batch, batch_idx):
            super().on_train_batch_end(trainer, outputs, batch, batch_idx)
            trainer.log("custom_metric", 42)
            trainer.save_checkpoint("checkpoint.pt")

    monkeypatch.chdir(tmp_path)
    run = train(BadCallback(), losses=[11.0])
    assert run.metrics == {"loss": 11.0, "custom_metric": 42}
    assert [row.path.name for row in run.checkpoints] == ["checkpoint.pt"]
    assert capsys.readouterr().out == "High loss detected\n"


def test_typed_callback_runs_with_its_annotations():
    class TypedCallback(Callback):
        def on_train_batch_end(
            self,
            trainer: "DreamTrainer",  # type: ignore[name-defined]  # noqa: F821 - a name that this module does not know, as in the seed
            outputs: Dict[str, torch.Tensor],  # noqa: UP006
            batch: torch.Tensor,
            batch_idx: int,
        ) -> None:
            trainer.log("rows", batch.shape[0] + batch_idx)

    with run_of(TypedCallback()) as run:
        for _ in run.steps([torch.zeros(32, 10), torch.zeros(8, 10)]):
            run.log(loss=torch.tensor(1.0))
    assert [row.metrics for row in run.history] == [{"loss": 1.0, "rows": 32}, {"loss": 1.0, "rows": 9}]


def test_documented_callback_keeps_its_arguments_and_its_docstring():
    class DocumentedCallback(Callback):
        """Monitors training metrics and logs warnings."""

        def __init__(self, loss_threshold: float = 10.0, lr_threshold: float = 1e-2):
            super().__init__()
            self.loss_threshold = loss_threshold
            self.lr_threshold = lr_threshold

    callback = CallbackCollection([DocumentedCallback(loss_threshold=5.0)])["documented_callback"]
    assert (callback.loss_threshold, callback.lr_threshold) == (5.0, 1e-2)
    assert callback.__doc__ == "Monitors training metrics and logs warnings."


def test_error_handling_callback_logs_the_error_and_training_continues():
    class ErrorHandlingCallback(Callback):
        def process_outputs(self, outputs):
            raise ValueError(f"loss is {outputs['loss']}")

        def on_train_batch_end(self, trainer, outputs, batch, batch_idx):
            try:
                # Risky operation
                self.process_outputs(outputs)
            except Exception as e:
                # Log error but don't crash
                trainer.log("callback_error", str(e))

    run = train(ErrorHandlingCallback(), losses=[1.0, 2.0])
    assert [row.metrics["callback_error"] for row in run.history] == ["loss is 1.0", "loss is 2.0"]
    assert run.state == "completed"


def test_callback_without_error_handling_does_not_crash_the_training_either(caplog):
    class Careless(Callback):
        def on_train_batch_end(self, trainer, outputs, batch, batch_idx):
            raise ValueError("careless")

    with hl.run(callbacks=[Careless()], summary=False) as run:
        for _ in run.steps(2):
            pass
    assert (run.state, run.step) == ("completed", 2)
    assert "careless failed at on_train_batch_end, step 1: ValueError: careless" in caplog.text


def test_collection_given_to_a_strict_run_lets_its_errors_through():
    class Careless(Callback):
        def on_train_batch_end(self, trainer, outputs, batch, batch_idx):
            raise ValueError("careless")

    callbacks = CallbackCollection([Careless()])
    with pytest.raises(ValueError, match="careless"), hl.run(callbacks=callbacks, strict=True, summary=False) as run:
        for _ in run.steps(2):
            pass


def test_my_callback():
    # Create mock trainer
    trainer = FakeLoop()

    # Create callback
    callback = MyCallback()

    # Test hook
    callback.on_train_batch_end(trainer, outputs={"loss": torch.tensor(5.0)}, batch=torch.randn(32, 10), batch_idx=0)

    # Assert expected behavior
    assert trainer.logged_metrics["custom_metric"] == 42


def test_mock_trainer_firing_through_a_collection_takes_keywords_too():
    recording = RecordingCallback()
    trainer = FakeLoop(callbacks=[recording])
    batch = torch.randn(32, 10)
    trainer.callbacks.on_train_batch_end(trainer, outputs={"loss": 5.0}, batch=batch, batch_idx=0)  # type: ignore[call-arg]
    assert recording.events == [Event("on_train_batch_end", ({"loss": 5.0}, batch, 0))]


def test_clean_callback_logs_the_loss_of_each_batch():
    class CleanCallback(Callback):
        def on_train_batch_end(self, trainer, outputs, batch, batch_idx):
            # Good: Only logging
            trainer.log("metric", outputs["loss"])

    run = train(CleanCallback(), losses=[1.0, 2.0])
    assert [row.metrics for row in run.history] == [{"loss": 1.0, "metric": 1.0}, {"loss": 2.0, "metric": 2.0}]


def test_callback_that_logs_while_it_goes_through_the_outputs_works():
    class Prefixed(Callback):
        def on_train_batch_end(self, trainer, outputs, batch, batch_idx):
            for name, value in outputs.items():
                trainer.log(f"train/{name}", value)

    run = train(Prefixed(), losses=[1.0])
    assert run.history[0].metrics == {"loss": 1.0, "train/loss": 1.0}


def test_monitoring_group_written_by_hand_calls_all_its_members(capsys):
    seen = []
    train(MonitoringGroup(seen), losses=[1.0, 11.0])
    assert seen == ["GradientMonitor", "GradientMonitor"]
    assert capsys.readouterr().out == "High loss detected\n"


def test_monitoring_group_as_a_nested_collection_does_the_same(capsys):
    seen = []
    group = CallbackCollection([LossMonitor(), GradientMonitor(seen), LearningRateMonitor()], name="monitoring")
    run = train(MyCustomCallback(seen, "before"), group, MyCustomCallback(seen, "after"), losses=[11.0])
    assert seen == ["before", "GradientMonitor", "after"]
    assert capsys.readouterr().out == "High loss detected\n"
    assert run.callbacks.plan()["on_train_batch_end"] == [
        "my_custom_callback",
        "monitoring/loss_monitor",
        "monitoring/gradient_monitor",
        "my_custom_callback_2",
    ]
