"""PrintProgress: the lines on standard output."""

import itertools
import sys

import pytest

import hookline as hl
from hookline._engine.metrics import Deferred, MetricsRow
from hookline.callbacks import PrintProgress
from hookline.testing import FakeLoop


def printed(capsys, *, steps=5, epochs=1, stop_at=None, **arguments):
    ticks = itertools.count(100.0, 2.0)  # two seconds from line to line
    callback = PrintProgress(clock=lambda: next(ticks), **arguments)
    with hl.run(root=None, callbacks=[callback], strict=True, summary=False) as run:
        for i in run.steps(steps, epochs=epochs):
            run.log(loss=1 / (i + 1), accuracy=i, note="text")
            if run.step + 1 == stop_at:
                run.request_stop("enough")
    return capsys.readouterr().out.splitlines()


def test_print_progress_prints_at_its_cadence_and_the_last_step(capsys):
    assert printed(capsys, every=2) == [
        "step 2/5  loss 0.5  accuracy 1  1 steps/s",
        "step 4/5  loss 0.25  accuracy 3  1 steps/s",
        "step 5/5  loss 0.2  accuracy 4  0.5 steps/s",
    ]


def test_print_progress_shows_epochs_and_the_metrics_asked_for(capsys):
    assert printed(capsys, every=5, epochs=2, metrics=["accuracy", "val_loss"]) == [
        "step 5/10  epoch 1/2  accuracy 4  2.5 steps/s",
        "step 10/10  epoch 2/2  accuracy 4  2.5 steps/s",
    ]


def test_print_progress_says_why_a_run_was_stopped(capsys):
    assert printed(capsys, every=2, stop_at=2, metrics=[]) == ["step 2/5  1 steps/s", "stopped after step 2: enough"]


def test_print_progress_takes_a_schedule(capsys):
    assert printed(capsys, every=hl.At(1, 5), metrics=[]) == ["step 1/5  0.5 steps/s", "step 5/5  2 steps/s"]


def test_print_progress_does_not_wait_for_a_device(capsys):
    class Never:
        arrives = True

        def ready(self):
            return False

        def number(self, index):
            raise AssertionError("somebody waited")

    loop = FakeLoop(num_steps=None, callbacks=[PrintProgress(every=1, clock=lambda: 0.0)])
    loop.metrics = MetricsRow(loss=Deferred(Never()), accuracy=0.5)
    loop.run_steps(1)
    assert capsys.readouterr().out == "step 1  accuracy 0.5\n"


def test_print_progress_continues_when_nobody_reads(monkeypatch):
    class Closed:
        def write(self, text):
            raise BrokenPipeError

    loop = FakeLoop(callbacks=[PrintProgress(every=1)])
    monkeypatch.setattr(sys, "stdout", Closed())
    loop.run_steps(2)
    assert loop.step == 2


@pytest.mark.parametrize(("arguments", "message"), [({"every": 0}, "every=0"), ({"metrics": "loss"}, "metrics='loss'")])
def test_print_progress_bad_arguments_are_errors(arguments, message):
    with pytest.raises(hl.OptionError, match=message):
        PrintProgress(**arguments)
