"""Callbacks that are used for a second training, or added to a running one."""

import contextlib
import logging
import math
import subprocess
import sys

import pytest

import hookline as hl
from hookline.callbacks import (
    EMA,
    Alert,
    CheckpointCallback,
    CsvMetrics,
    EarlyStoppingCallback,
    LoggerCallback,
    NaNGuard,
    PrintProgress,
    ProgressBar,
    SampleLogger,
    Timer,
)
from hookline.testing import FakeLoop


def losses(callback, *values):
    with hl.run(callbacks=[callback], summary=False) as run:
        for index in run.steps(len(values)):
            run.log(loss=values[index])
    return run


def test_early_stopping_in_a_second_training_starts_with_full_patience():
    callback = EarlyStoppingCallback("loss", patience=2)
    assert [losses(callback, 1, 1, 1, 1).step for _ in range(2)] == [3, 3]
    assert losses(callback, 3, 2, 1).stop_reason is None


def test_alert_once_fires_once_in_each_training(caplog):
    callback = Alert("loss", above=1, once=True)
    for _ in range(2):
        losses(callback, 2, 2)
    assert [record.getMessage() for record in caplog.records] == ["alert: loss is 2, above 1, at step 1"] * 2


def test_sample_logger_in_a_second_training_records_the_first_validation():
    callback, taken = SampleLogger(source="validation", every=2, make=lambda outputs, batch: [{"prompt": batch}]), []
    for _ in range(2):
        with hl.run(callbacks=[callback], summary=False) as run:
            for _ in run.steps(1):
                with run.validate():
                    run.callbacks.on_validation_batch_end(run, None, "2+2", 0)
        taken.append([record.prompt for record in hl.read(run.dir) if hasattr(record, "prompt")])
    assert taken == [["2+2"], ["2+2"]]


def test_timer_in_a_second_training_ignores_the_state_loaded_for_the_first():
    timer = Timer(includes_earlier_sessions=True, seconds=100, clock=lambda: 0.0)
    timer.load_state_dict({"total_seconds": 60.0})
    losses(timer, 1)
    first = timer.remaining_seconds
    losses(timer, 1)
    assert (first, timer.remaining_seconds) == (40.0, 100.0)


def test_ema_in_a_second_training_averages_the_second_model_alone(torch):
    ema = EMA(0.5)
    for value in (1.0, 3.0):
        model = torch.nn.Linear(1, 1, bias=False)
        model.weight.data.fill_(value)
        with hl.run(callbacks=[ema], summary=False) as run:
            run.model = model
            for _ in run.steps(2):
                pass
        assert (ema.updates, ema.averages["weight"].item()) == (2, value)


def broken():
    raise RuntimeError("broken")


@pytest.mark.parametrize("end", [lambda: None, broken])
@pytest.mark.parametrize(
    ("make", "state", "fresh"),
    [
        (lambda: EarlyStoppingCallback("loss"), {"best": 0.0, "waited": 3}, {"best": 1.0, "waited": 0}),
        (lambda: Alert("loss", above=9), {"fired": 3}, {"fired": 0}),
        (lambda: SampleLogger(source="validation"), {"validations": 3}, {"validations": 0}),
        (lambda: Timer(clock=lambda: 0.0), {"total_seconds": 60.0}, {"total_seconds": 0.0}),
        (lambda: EMA(), {"updates": 3, "averages": {}}, {"updates": 0, "averages": {}}),
        (CheckpointCallback, {"kept": [], "saving": None, "at": 7}, {"kept": [], "saving": None, "at": None}),
    ],
)
def test_state_loaded_while_training_is_reset_for_the_next_training(make, state, fresh, end):
    callback = make()
    with contextlib.suppress(RuntimeError), hl.run(root=None, summary=False, callbacks=[callback]) as run:
        for _ in run.steps(1):
            callback.load_state_dict(state)
        end()
    loop = FakeLoop(callbacks=[callback])
    loop.callbacks.on_train_start(loop)
    loop.callbacks.on_log(loop, 1, {"loss": 1.0})
    assert callback.state_dict() == fresh


def test_nan_guard_in_a_second_training_counts_bad_steps_from_zero(caplog):
    guard = NaNGuard("skip", max_skips=3)
    runs = [losses(guard, math.nan, math.nan) for _ in range(2)]
    assert [run.stop_reason for run in runs] == [None, None]
    assert [record.getMessage().partition(".")[0] for record in caplog.records] == [
        "nan_guard: at step 1 loss is nan"
    ] * 2


def test_logger_in_a_second_training_takes_the_mean_of_its_own_steps(caplog):
    caplog.set_level(logging.INFO, "hookline.training")
    callback = LoggerCallback(log_every_n_steps=None, log_every_n_epochs=2)
    losses(callback, 100)
    with hl.run(callbacks=[callback], summary=False) as run:
        for _ in run.steps(1, epochs=2):
            run.log(loss=1.0)
    assert caplog.messages == ["epoch 2/2  step 2  loss 1"]


def test_logger_in_a_second_training_records_the_gradients_of_its_first_step(torch):
    callback, rows = LoggerCallback(log_metrics=False, log_gradients=True), []
    model = torch.nn.Linear(2, 1, bias=False)
    model.weight.grad = torch.tensor([[3.0, 4.0]])
    for _ in range(2):
        with hl.run(callbacks=[callback], summary=False) as run:
            run.model = model
            for _ in run.steps(1):
                pass
        rows.append([row.metrics["gradients/norm"] for row in run.history])
    assert rows == [[5.0], [5.0]]


def test_print_progress_in_a_second_training_shows_its_own_metrics_alone(capsys):
    callback = PrintProgress(every=1, clock=lambda: 0.0)
    for name in ("first", "second"):
        with hl.run(callbacks=[callback], summary=False) as run:
            for _ in run.steps(1):
                run.log({name: 1.0})
    assert capsys.readouterr().out.splitlines() == ["step 1/1  first 1", "step 1/1  second 1"]


def add_after_the_first_step(callback):
    with hl.run(summary=False) as run:
        for index in run.steps(4):
            run.log(loss=0.5)
            if index == 1:
                run.callbacks.add(callback)
    return run


def test_csv_metrics_added_while_training_writes_later_rows():
    run = add_after_the_first_step(CsvMetrics("late.csv"))
    assert [line.split(",")[0] for line in (run.dir / "late.csv").read_text().split()] == ["step", "2", "3", "4"]


def test_progress_bar_added_while_training_shows_it(capsys):
    add_after_the_first_step(ProgressBar(refresh_rate=1))
    assert "4/4" in capsys.readouterr().err


PROGRAM = """
import hookline as hl
with hl.run(summary=False, root=None) as run:
    for index in run.steps(4):
        run.log(loss=0.5)
        if index == 1:
            run.callbacks.add(hl.callbacks.LoggerCallback(log_every_n_epochs=None))
"""


def test_logger_added_while_training_of_a_program_without_logging_shows_its_lines():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines() == [f"step {step}/4  loss 0.5" for step in (2, 3, 4)]


def test_print_progress_added_while_training_shows_no_rate_at_first(capsys):
    times = iter([10.0, 12.0, 14.0, 16.0])
    add_after_the_first_step(PrintProgress(every=1, clock=lambda: next(times)))
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "step 2/4  loss 0.5",
        "step 3/4  loss 0.5  0.5 steps/s",
        "step 4/4  loss 0.5  0.5 steps/s",
    ]
