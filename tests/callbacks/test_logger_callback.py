"""LoggerCallback."""

import io
import logging
import sys

import pytest

import hookline as hl
from hookline._engine.metrics import Deferred
from hookline.callbacks import LoggerCallback
from hookline.testing import FakeLoop


@pytest.fixture
def lines(caplog):
    """The lines logged to ``hookline.training`` so far."""
    caplog.set_level(logging.INFO, "hookline.training")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "hookline.training"]


def train(callback, *, steps, epochs=1, metrics=lambda step: {"loss": float(step)}):
    with hl.run(callbacks=[callback], summary=False) as run:
        for _ in run.steps(steps, epochs=epochs):
            run.log(metrics(run.step + 1))
    return run


def test_logger_line_has_the_mean_of_all_values_since_the_last_line(lines):
    train(LoggerCallback(log_every_n_steps=2, log_every_n_epochs=None), steps=5)
    assert lines() == ["step 2/5  loss 1.5", "step 4/5  loss 3.5", "step 5/5  loss 5"]


def test_logger_line_of_epochs_covers_all_of_their_steps(lines):
    train(LoggerCallback(log_every_n_steps=None, log_every_n_epochs=2), steps=2, epochs=4)
    assert lines() == ["epoch 2/4  step 4  loss 2.5", "epoch 4/4  step 8  loss 6.5"]


def test_logger_metrics_that_are_logged_now_and_then_are_in_the_line_of_their_interval(lines):
    values = {1: {"a": 1}, 2: {"b": 2.0, "note": "x"}, 3: {"a": 3, "b": None}, 4: {"a": 6, "flag": True, "note": "y"}}
    train(LoggerCallback(2, None), steps=4, metrics=values.get)
    assert lines() == ["step 2/4  a 1  b 2  note x", "step 4/4  a 4.5  flag True  note y"]


def test_logger_validation_outside_of_a_step_is_in_a_line(lines):
    with hl.run(callbacks=[LoggerCallback(2, 1)], summary=False) as run:
        for _ in run.epochs(1):
            for i in run.steps(2):
                run.log(loss=i)
            with run.validate() as val:
                val.log(loss=7.0)
    assert lines() == ["step 2/2  loss 0.5", "epoch 1/1  step 2  loss 0.5  val/loss 7", "step 2/2  val/loss 7"]


def test_logger_line_has_the_latest_of_several_validations(lines):
    with hl.run(callbacks=[LoggerCallback(4, 1)], summary=False) as run:
        for i in run.steps(8):
            run.log(loss=float(i))
            if i % 2:
                with run.validate() as val:
                    val.log(loss=10.0 - i)
    assert lines() == [
        "step 4/8  loss 1.5  val/loss 7",
        "step 8/8  loss 5.5  val/loss 3",
        "epoch 1/1  step 8  loss 3.5  val/loss 3",
    ]


def test_logger_training_that_fails_logs_what_came_since_the_last_line(lines):
    with pytest.raises(RuntimeError, match="broken"):
        train(LoggerCallback(10), steps=5, metrics=lambda step: {"loss": step} if step < 4 else broken())
    assert lines() == ["step 3/5  loss 2"]


def broken():
    raise RuntimeError("broken")


def test_logger_metrics_switched_off_logs_nothing(lines):
    train(LoggerCallback(log_metrics=False), steps=2)
    assert lines() == []


def test_logger_without_metrics_logs_no_empty_lines(lines):
    train(LoggerCallback(), steps=2, metrics=lambda step: {})
    assert lines() == []


def test_logger_level_that_is_switched_off_is_warned_about_with_what_to_do(caplog):
    train(LoggerCallback(), steps=1)
    (warning,) = caplog.messages
    assert "'hookline.training' is disabled for level INFO" in warning
    assert "hookline.logging.initialize()" in warning


def without_logging(monkeypatch):
    """The logger ``hookline.training`` as in a program that has not set up logging."""
    training = logging.getLogger("hookline.training")
    monkeypatch.setattr(training, "propagate", False)
    return training


class Broken(io.StringIO):
    """A stream that nobody reads any more."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def write(self, text):
        raise self.error


@pytest.mark.parametrize("error", [BrokenPipeError(32, "Broken pipe"), ValueError("I/O operation on closed file")])
def test_logger_console_that_is_broken_does_no_harm_to_others_who_log_there(monkeypatch, error):
    training = without_logging(monkeypatch)
    with hl.run(callbacks=[LoggerCallback()], strict=True, summary=False) as run:
        for step in run.steps(2):
            monkeypatch.setattr(sys, "stderr", Broken(error))
            training.info("of the user")
            run.log(loss=step)
    assert run.state == "completed"


def test_logger_line_of_a_user_that_cannot_be_formatted_is_reported_and_does_no_harm(monkeypatch, capsys):
    training = without_logging(monkeypatch)
    with hl.run(callbacks=[LoggerCallback()], strict=True, summary=False) as run:
        for _ in run.steps(1):
            training.info("%d", "no number")
    assert "Logging error" in capsys.readouterr().err


def test_logger_removed_while_training_leaves_logging_as_it_was_when_the_run_ends(monkeypatch):
    training = without_logging(monkeypatch)
    before, callback = (training.level, list(training.handlers)), LoggerCallback()
    with hl.run(callbacks=[callback], strict=True, summary=False) as run:
        for step in run.steps(2):
            if step == 0:
                run.callbacks.remove(callback)
    assert (training.level, training.handlers) == before


class Late:
    """A number that arrives when the test says so; reading it before is a fault."""

    arrives = True

    def __init__(self, value):
        self.value, self.here = value, False

    def ready(self):
        return self.here

    def number(self, index):
        assert self.here, "waited for a device"
        return self.value


def test_logger_values_on_a_device_are_not_waited_for_and_keep_their_step(lines):
    late = [Late(float(step)) for step in range(1, 5)]
    loop = FakeLoop(callbacks=[LoggerCallback(2, None)], num_steps=4)
    loop.run_steps(3, lambda step_idx: {"loss": Deferred(late[step_idx])})
    assert lines() == []
    late[0].here = late[1].here = True
    loop.run_steps(1, lambda step_idx: {"loss": Deferred(late[step_idx])})
    assert lines() == ["step 2/4  loss 1.5"]
    late[2].here = late[3].here = True
    loop.callbacks.on_train_end(loop, None)
    assert lines() == ["step 2/4  loss 1.5", "step 4/4  loss 3.5"]


def trained_model(torch, callback, *, fires):
    """Two steps of a model whose only gradient is (3, 4), its parameters (0, 0) at first, with a rate of 1."""
    model = torch.nn.Linear(2, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with hl.run(callbacks=[callback], strict=True, summary=False) as run:
        run.model = model
        for _ in run.steps(2):
            optimizer.zero_grad()
            model(torch.tensor([3.0, 4.0])).sum().backward()
            if fires:
                run.callbacks.on_before_optimizer_step(run, optimizer)
            optimizer.step()
            if fires:
                optimizer.zero_grad()
    return [(row.step, row.metrics) for row in run.history]


@pytest.mark.parametrize("fires", [True, False])
def test_logger_records_norms_of_gradients(torch, fires):
    rows = trained_model(torch, LoggerCallback(2, log_metrics=False, log_gradients=True), fires=fires)
    assert rows == [(2, {"gradients/norm": 5.0, "gradients/weight": 5.0})]


def test_logger_records_norms_of_parameters_after_the_step(torch):
    rows = trained_model(torch, LoggerCallback(log_metrics=False, log_parameters=True), fires=True)
    assert rows == [
        (1, {"parameters/norm": 5.0, "parameters/weight": 5.0}),
        (2, {"parameters/norm": 10.0, "parameters/weight": 10.0}),
    ]


def test_logger_norms_without_a_model_are_warned_about(caplog):
    train(LoggerCallback(log_metrics=False, log_gradients=True, log_parameters=True), steps=1)
    model, gradients = caplog.messages
    assert "run.model = model" in model
    assert "saw no gradients" in gradients


@pytest.mark.parametrize("name", ["log_every_n_steps", "log_every_n_epochs"])
@pytest.mark.parametrize("value", [0, -1, True, 1.5])
def test_logger_bad_arguments_are_errors(name, value):
    with pytest.raises(hl.OptionError, match=f"{name}={value}"):
        LoggerCallback(**{name: value})
