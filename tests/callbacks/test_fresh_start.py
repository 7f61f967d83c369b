"""Callbacks that are part of a second training, or of one that has begun already."""

import subprocess
import sys

import hookline as hl
from hookline.callbacks import (
    EMA,
    Alert,
    CsvMetrics,
    EarlyStoppingCallback,
    PrintProgress,
    ProgressBar,
    SampleLogger,
    Timer,
)


def losses(callback, *values):
    with hl.run(callbacks=[callback], summary=False) as run:
        for index in run.steps(len(values)):
            run.log(loss=values[index])
    return run


def test_early_stopping_in_a_second_training_is_as_patient_as_in_the_first():
    callback = EarlyStoppingCallback("loss", patience=2)
    assert [losses(callback, 1, 1, 1, 1).step for _ in range(2)] == [3, 3]
    assert losses(callback, 3, 2, 1).stop_reason is None


def test_alert_once_fires_once_in_each_training(caplog):
    callback = Alert("loss", above=1, once=True)
    for _ in range(2):
        losses(callback, 2, 2)
    assert [record.getMessage() for record in caplog.records] == ["alert: loss is 2, above 1, at step 1"] * 2


def test_sample_logger_in_a_second_training_begins_with_the_first_validation():
    callback, taken = SampleLogger(source="validation", every=2, make=lambda outputs, batch: [{"prompt": batch}]), []
    for _ in range(2):
        with hl.run(callbacks=[callback], summary=False) as run:
            for _ in run.steps(1):
                with run.validate():
                    run.callbacks.on_validation_batch_end(run, None, "2+2", 0)
        taken.append([record.prompt for record in hl.read(run.dir) if hasattr(record, "prompt")])
    assert taken == [["2+2"], ["2+2"]]


def test_timer_in_a_second_training_does_not_count_what_was_loaded_for_the_first():
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


def add_after_the_first_step(callback):
    with hl.run(summary=False) as run:
        for index in run.steps(4):
            run.log(loss=0.5)
            if index == 1:
                run.callbacks.add(callback)
    return run


def test_csv_metrics_added_while_training_has_the_rows_from_then_on():
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


def test_print_progress_added_while_training_has_no_rate_before_there_is_one(capsys):
    times = iter([10.0, 12.0, 14.0, 16.0])
    add_after_the_first_step(PrintProgress(every=1, clock=lambda: next(times)))
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "step 2/4  loss 0.5",
        "step 3/4  loss 0.5  0.5 steps/s",
        "step 4/4  loss 0.5  0.5 steps/s",
    ]
