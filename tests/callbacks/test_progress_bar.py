"""ProgressBar in a terminal and in a log file."""

import io
import re

import pytest
from rich.console import Console

import hookline as hl
from hookline.callbacks import ProgressBar


def trained(*, terminal, steps=30, epochs=1, **arguments):
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=120)
    with hl.run(callbacks=[ProgressBar(console=console, **arguments)], strict=True, summary=False) as run:
        for i in run.steps(steps, epochs=epochs):
            run.log(loss=1 / (i + 1))
    return file.getvalue()


def test_progress_bar_in_a_terminal_draws_a_bar_with_the_last_step():
    drawn = trained(terminal=True, epochs=2)
    assert "epoch 2/2  step 60/60  loss 0.03333" in drawn
    assert "100%" in drawn


def test_progress_bar_in_a_log_file_prints_first_and_last_line():
    lines = trained(terminal=False).splitlines()
    assert [line.rsplit("  ", 1)[0] for line in lines] == ["step 0/30", "step 30/30  loss 0.03333"]


def test_progress_bar_shows_what_it_is_told_to():
    lines = trained(terminal=False, epochs=2, show_epoch=False, show_metrics=False).splitlines()
    assert lines[-1].startswith("step 60/60  0 s")
    assert trained(terminal=False, show_step=False, show_metrics=False).splitlines()[-1].strip() == "0 s"


def test_progress_bar_refreshes_at_its_rate_only():
    shown = []

    class Display:
        def show(self, loop, text, last=False):
            shown.append(loop.step)

        def close(self):
            shown.append("closed")

    bar = ProgressBar(refresh_rate=10, console=Console(file=io.StringIO()))
    with hl.run(callbacks=[bar], strict=True, summary=False) as run:
        for i in run.steps(25):
            if i == 0:
                bar._display = Display()
    assert shown == [10, 20, 25, "closed"]


def test_progress_bar_is_closed_when_training_fails():
    file = io.StringIO()
    bar = ProgressBar(console=Console(file=file, force_terminal=True))
    with pytest.raises(RuntimeError), hl.run(callbacks=[bar], summary=False) as run:
        for _ in run.steps(3):
            raise RuntimeError
    assert bar._display is None


def test_progress_bar_refuses_a_rate_of_zero():
    with pytest.raises(hl.OptionError, match="refresh_rate=0"):
        ProgressBar(refresh_rate=0)


def test_progress_bar_keeps_its_bar_in_a_narrow_terminal_and_takes_any_name():
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=80, color_system=None)
    with hl.run(callbacks=[ProgressBar(console=console, refresh_rate=1)], strict=True, summary=False) as run:
        for i in run.steps(3):
            run.log({f"a_long_name_of_a_metric_{n}[/x]": i for n in range(6)})
    finished = [frame for frame in re.split(r"\x1b\[2K", file.getvalue()) if "100%" in frame]
    assert "step 3/3" in finished[-1]
