"""Seed 002's `LoggerCallback`: to the console as it stands, to W&B, and what each of its arguments turns on."""

import logging

import pytest
import torch
from destinations.wandb import end_wandb, read_rows
from torch.utils.data import TensorDataset

import hookline as hl
from hookline.callbacks import CallbackCollection, LoggerCallback
from hookline.sinks import WandbSink

torch.set_num_threads(1)
TRAINING = logging.getLogger("hookline.training")


def train(*callbacks, **settings):
    """Two epochs of two steps."""
    torch.manual_seed(0)
    inputs = torch.randn(4, 3)
    config = hl.TrainerConfig(
        **{"epochs": 2, "batch_size": 2, "device": "cpu", "summary": False, "strict": True}
        | {"callbacks": CallbackCollection(callbacks), **settings}
    )
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    trainer = hl.Trainer(torch.nn.Linear(3, 1), data, config=config, loss=torch.nn.functional.mse_loss)
    trainer.fit()
    return trainer


def without_set_up(monkeypatch):
    """As in a script where nobody has set up logging; called in a test, as pytest adds handlers before it starts."""
    monkeypatch.setattr(TRAINING, "propagate", False)
    monkeypatch.setattr(TRAINING, "handlers", [])


def test_logger_as_it_stands_logs_metrics_to_the_console(capsys, monkeypatch):
    without_set_up(monkeypatch)
    train(LoggerCallback())
    beginnings = [line.partition("  loss")[0] for line in capsys.readouterr().err.splitlines()]
    assert beginnings == ["step 1/4", "step 2/4", "epoch 1/2  step 2", "step 3/4", "step 4/4", "epoch 2/2  step 4"]


@pytest.mark.parametrize("fails", [False, True])
def test_logger_leaves_logging_as_it_was_after_a_training(monkeypatch, fails):
    without_set_up(monkeypatch)

    class Fails(hl.Callback):
        def on_step_end(self, trainer, step_idx, batch, metrics):
            assert not fails

    before = TRAINING.level
    if fails:
        with pytest.raises(AssertionError):
            train(LoggerCallback(), Fails())
    else:
        train(LoggerCallback(), Fails())
    assert (TRAINING.level, TRAINING.handlers) == (before, [])


def test_logger_beside_another_one_shows_each_line_of_both_once(capsys, monkeypatch):
    without_set_up(monkeypatch)
    train(LoggerCallback(log_every_n_steps=4, log_every_n_epochs=None), LoggerCallback(None, log_every_n_epochs=2))
    beginnings = [line.partition("  loss")[0] for line in capsys.readouterr().err.splitlines()]
    assert beginnings == ["step 4/4", "epoch 2/2  step 4"]


def test_logger_where_logging_is_set_up_writes_there_and_not_to_the_console_as_well(caplog, capsys):
    caplog.set_level(logging.INFO, "hookline.training")
    train(LoggerCallback(log_every_n_steps=None))
    assert [message.partition("  loss")[0] for message in caplog.messages] == ["epoch 1/2  step 2", "epoch 2/2  step 4"]
    assert capsys.readouterr().err == ""


def test_logger_with_a_sink_for_wandb_has_its_metrics_there(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    try:
        trainer = train(
            LoggerCallback(log_gradients=True), sinks=[WandbSink(mode="offline", directory=tmp_path / "board")]
        )
        rows = [row for row in read_rows(tmp_path / "board") if "loss" in row]
    finally:
        end_wandb()
    assert [(row["train/step"], row["loss"]) for row in rows] == [
        (row.step, pytest.approx(row.metrics["loss"])) for row in trainer.history if "loss" in row.metrics
    ]
    assert all("gradients/norm" in row for row in rows)


@pytest.mark.parametrize(
    ("arguments", "recorded", "has_lines"),
    [
        ({"log_gradients": False, "log_parameters": False}, set(), True),
        ({"log_gradients": True}, {"gradients/norm", "gradients/weight", "gradients/bias"}, True),
        ({"log_parameters": True}, {"parameters/norm", "parameters/weight", "parameters/bias"}, True),
        ({"log_metrics": False}, set(), False),
    ],
)
def test_logger_arguments_turn_on_what_they_name(caplog, arguments, recorded, has_lines):
    caplog.set_level(logging.INFO, "hookline.training")
    trainer = train(LoggerCallback(**arguments))
    found = {name for row in trainer.history for name in row.metrics if name.startswith(("gradients", "parameters"))}
    assert found == recorded
    assert bool([each for each in caplog.records if each.name == "hookline.training"]) == has_lines
