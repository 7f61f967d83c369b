"""ProgressBar in a terminal, a notebook and a log file."""

import contextlib
import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import types

import pytest
from rich.console import Console

import hookline as hl
from hookline._engine.metrics import Deferred, MetricsRow
from hookline._engine.state import LoopArtifacts, ManifestRow
from hookline.callbacks import ProgressBar
from hookline.testing import FakeLoop


class Clock:
    """A clock that somebody else moves."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


PIECE = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])|\r|\n|[^\x1b\r\n]+")


def screen(written):
    """What a terminal shows after this was written to it: what is printed, moved over and erased."""
    rows, row, column = [""], 0, 0
    for piece in PIECE.finditer(written):
        text, (argument, code) = piece[0], piece.groups()
        if text == "\r":
            column = 0
        elif text == "\n":
            row, column = row + 1, 0
            rows += [""] * (row + 1 - len(rows))
        elif code == "A":
            row -= int(argument)
        elif code == "K":
            rows[row] = ""
        elif code is None:
            rows[row] = rows[row].ljust(column)[:column] + text + rows[row][column + len(text) :]
            column += len(text)
    return [line.rstrip() for line in rows]


class Scene:
    """A bar on a console of its own, a loop that it follows, and a clock that stands still."""

    def __init__(self, *, terminal=False, width=120, console=None, callbacks=(), loop=None, environ=None, **arguments):
        self.file = io.StringIO()
        self.console = console or Console(
            file=self.file,
            force_terminal=terminal,
            width=width,
            height=25,
            color_system=None,
            _environ=environ or {"TERM": "xterm"},
        )
        self.clock = Clock()
        self.bar = ProgressBar(console=self.console, clock=self.clock, **arguments)
        self.loop = FakeLoop(callbacks=[self.bar, *callbacks], **(loop or {}))

    def __enter__(self):
        self.loop.callbacks.on_train_start(self.loop)
        return self

    def __exit__(self, kind, error, trace):
        self.loop.callbacks.close()

    def train(self, steps, seconds=0.0, **metrics):
        for _ in range(steps):
            self.clock.now += seconds
            self.loop.run_steps(1, lambda step_idx: metrics)

    def end(self):
        self.loop.callbacks.on_train_end(self.loop, LoopArtifacts(step=self.loop.step))

    def lines(self):
        return self.file.getvalue().splitlines()

    def shown(self):
        """What the bars show now, each bar as one character (one of nothing is blank without colours)."""
        self.console.print("now")  # which draws them again below itself
        lines = screen(self.file.getvalue())
        below = lines[len(lines) - lines[::-1].index("now") :]
        return [re.sub(r"\s*[━╸╺]+\s*|\s{6,}", " | ", line) for line in below]


def trained(*, terminal, steps=30, epochs=1, **arguments):
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=120, _environ={"TERM": "xterm"})
    bar = ProgressBar(console=console, clock=Clock(), **arguments)
    with hl.run(root=None, callbacks=[bar], strict=True, summary=False) as run:
        for i in run.steps(steps, epochs=epochs):
            run.log(loss=1 / (i + 1))
    return file.getvalue()


def test_progress_bar_in_a_terminal_leaves_its_last_bars_and_shows_the_cursor():
    written = trained(terminal=True, epochs=2)
    assert [re.sub("━+", "|", line) for line in screen(written)] == [
        "epoch 2/2  | 100% took 0:00  60/60 steps",
        "step 30/30 | 100%",
        "loss 0.03333",
        "",
    ]
    assert (written.count("\x1b[?25l"), written.count("\x1b[?25h")) == (1, 1)


def test_progress_bar_in_a_log_file_prints_first_and_last_line():
    lines = trained(terminal=False).splitlines()
    assert lines == ["step 0/30  0 s", "step 30/30  loss 0.03333  0 s"]


def test_progress_bar_options_choose_what_is_shown():
    lines = trained(terminal=False, epochs=2, show_epoch=False, show_metrics=False).splitlines()
    assert lines[-1] == "step 60/60  0 s"
    assert trained(terminal=False, show_step=False, show_metrics=False).splitlines()[-1] == "0 s"


@pytest.mark.parametrize(
    ("arguments", "bars"),
    [
        ({}, ["epoch 1/2 | 50% eta 0:10  10/20 steps", "step 10/10 | 100% 1 steps/s", "loss 0.5"]),
        ({"show_epoch": False}, ["step 10/20 | 50% eta 0:10  1 steps/s", "loss 0.5"]),
        ({"show_step": False}, ["epoch 1/2 | 50% eta 0:10  1 steps/s", "loss 0.5"]),
        ({"show_metrics": False}, ["epoch 1/2 | 50% eta 0:10  10/20 steps", "step 10/10 | 100% 1 steps/s"]),
        ({"show_epoch": False, "show_step": False, "show_metrics": False}, [" | 50% eta 0:10  1 steps/s"]),
    ],
)
def test_progress_bar_in_a_terminal_options_choose_what_is_shown(arguments, bars):
    with Scene(terminal=True, loop={"num_steps": 20, "num_epochs": 2}, **arguments) as scene:
        scene.train(10, seconds=1.0, loss=0.5)
        assert scene.shown() == bars


def test_progress_bar_refreshes_at_its_rate_only():
    with Scene(terminal=True, refresh_rate=10, loop={"num_steps": 30}) as scene:
        shown = []
        for steps in (9, 1, 9, 1):
            scene.train(steps)
            shown += scene.shown()
        scene.train(5)
        scene.end()
    assert shown == ["step 0/30 | 0%", "step 10/30 | 33%", "step 10/30 | 33%", "step 20/30 | 66%"]
    assert screen(scene.file.getvalue())[-2].startswith("step 25/30")


def test_progress_bar_in_a_log_file_has_rate_and_time_left_every_ten_seconds():
    with Scene(refresh_rate=1, loop={"num_steps": 100}) as scene:
        scene.train(12, seconds=4.0, loss=0.25)
    assert scene.lines() == [
        "step 0/100  0 s",
        "step 3/100  loss 0.25  4 s/step, eta 6:28, 12 s",
        "step 6/100  loss 0.25  4 s/step, eta 6:16, 24 s",
        "step 9/100  loss 0.25  4 s/step, eta 6:04, 36 s",
        "step 12/100  loss 0.25  4 s/step, eta 5:52, 48 s",
    ]


def test_progress_bar_after_a_resume_counts_the_steps_of_this_session_only():
    with Scene(terminal=True, loop={"step": 1000, "num_steps": 2000}) as scene:
        scene.loop.callbacks.on_checkpoint_load(scene.loop, ManifestRow(step=1000, path=None))
        assert scene.shown() == ["step 1000/2000 | 50%"]
        scene.train(20, seconds=0.5)
        assert scene.shown() == ["step 1020/2000 | 51% eta 8:10  2 steps/s"]


def test_progress_bar_after_a_checkpoint_load_counts_from_its_step():
    with Scene(terminal=True, refresh_rate=1, loop={"num_steps": 2000}) as scene:
        scene.train(5, seconds=1.0)
        scene.loop.step = 1000
        scene.loop.callbacks.on_checkpoint_load(scene.loop, ManifestRow(step=1000, path=None))
        scene.train(5, seconds=1.0)
        assert scene.shown() == ["step 1005/2000 | 50% eta 16:35  1 steps/s"]
        scene.loop.step = 10
        scene.train(1, seconds=1.0)
        assert scene.shown() == ["step 11/2000 | 0%"]


def test_progress_bar_rate_skips_the_first_interval_and_follows_recent_steps():
    with Scene(terminal=True, refresh_rate=1, loop={"num_steps": 1000}) as scene:
        rates = []
        for steps, seconds in ((1, 60.0), (1, 2.0), (1, 2.0), (25, 4.0)):
            scene.train(steps, seconds)
            rates.append(scene.shown()[0].rsplit("  ", 1)[1])
    assert rates == ["60 s/step", "2 s/step", "2 s/step", "4 s/step"]


def test_progress_bar_time_left_has_the_share_of_validations_and_the_rate_does_not():
    with Scene(terminal=True, refresh_rate=10, loop={"num_steps": 100}) as scene:
        callbacks = scene.loop.callbacks
        callbacks.on_validation_start(scene.loop)
        scene.clock.now += 500.0  # one before the first step says nothing of those to come
        callbacks.on_validation_end(scene.loop)
        scene.train(10, seconds=1.0)
        assert scene.shown() == ["step 10/100 | 10% eta 1:30  1 steps/s"]
        callbacks.on_validation_start(scene.loop)
        scene.clock.now += 20.0
        callbacks.on_validation_end(scene.loop)
        scene.train(10, seconds=1.0)
        assert scene.shown() == ["step 20/100 | 20% eta 2:40  1 steps/s"]


def test_progress_bar_time_left_is_counted_down_between_updates():
    with Scene(terminal=True, loop={"num_steps": 100}) as scene:
        scene.train(10, seconds=1.0)
        scene.clock.now += 30.0
        assert scene.shown() == ["step 10/100 | 10% eta 1:00  1 steps/s"]


def test_progress_bar_during_a_validation_shows_its_batches():
    with Scene(terminal=True, refresh_rate=2, loop={"num_steps": 10}) as scene:
        callbacks, loop = scene.loop.callbacks, scene.loop
        callbacks.on_validation_start(loop)
        scene.clock.now += 5.0
        shown = [scene.shown()[-1]]
        for batch_idx in range(5):
            scene.clock.now += 20.0
            callbacks.on_validation_batch_end(loop, {}, None, batch_idx)
        shown.append(scene.shown()[-1])
        callbacks.on_validation_end(loop)
        assert [*shown, *scene.shown()] == [
            "validating | 0:05",
            "validating | batch 4  1:45",
            "step 0/10 | 0%",
        ]


def test_progress_bar_after_an_interrupted_validation_no_longer_shows_it():
    with Scene(terminal=True, refresh_rate=1, loop={"num_steps": 10}) as scene:
        scene.loop.callbacks.on_validation_start(scene.loop)
        scene.clock.now += 50.0
        scene.train(2, seconds=1.0)
        assert scene.shown() == ["step 2/10 | 20% eta 0:08  1 steps/s"]


def test_progress_bar_in_a_log_file_prints_a_line_in_a_long_validation():
    with Scene(refresh_rate=1) as scene:
        scene.loop.callbacks.on_validation_start(scene.loop)
        for batch_idx in range(5):
            scene.clock.now += 6.0
            scene.loop.callbacks.on_validation_batch_end(scene.loop, {}, None, batch_idx)
    assert scene.lines() == [
        "step 0/10  0 s",
        "step 0/10  validating, batch 2  12 s",
        "step 0/10  validating, batch 4  24 s",
    ]


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        ({"tokens_per_second": 65_400.0, "samples_per_second": 32.0}, "65.4k tokens/s"),
        ({"samples_per_second": 999.7}, "1k samples/s"),
        ({"tokens_per_second": 1_234_567.0, "mfu": 0.412}, "1.23M tokens/s  mfu 41%"),
        ({"steps_per_second": 7.0, "tokens_per_second": float("inf")}, ""),
    ],
)
def test_progress_bar_shows_throughput_beside_the_rate(metrics, words):
    with Scene(terminal=True, loop={"num_steps": 100}) as scene:
        scene.train(10, seconds=1.0, **{f"throughput/{name}": value for name, value in metrics.items()})
        assert scene.shown() == [f"step 10/100 | 10% eta 1:30  1 steps/s  {words}".rstrip()]


def test_progress_bar_whose_epochs_have_no_known_length_counts_all_steps():
    with Scene(terminal=True, refresh_rate=1, loop={"num_steps": None, "num_epochs": 2}) as scene:
        shown = []
        for scene.loop.epoch in (0, 1):
            scene.train(4, seconds=1.0)
            shown += scene.shown()
        scene.end()
    assert shown == [
        "epoch 1/2 | 0%",
        "step 4 | 1 steps/s",
        "epoch 2/2 | 50%",
        "step 8 | 1 steps/s",
    ]
    assert "100% took 0:08" in screen(scene.file.getvalue())[-3]


@pytest.mark.parametrize("error", [None, RuntimeError()])
def test_progress_bar_of_an_interrupted_run_does_not_show_100_percent(error):
    with Scene(terminal=True, loop={"num_steps": None, "num_epochs": 4, "epoch": 1}) as scene:
        if error is None:
            scene.loop.request_stop("enough")
            scene.end()
        else:
            scene.loop.callbacks.on_exception(scene.loop, error)
    assert " 25% took 0:00" in screen(scene.file.getvalue())[-3]


def test_progress_bar_with_unequal_epochs_counts_all_steps():
    loop = {"num_steps": 6, "num_epochs": 3}  # of epochs of 4 steps, as steps(total=6) cuts them off
    with Scene(terminal=True, refresh_rate=1, loop=loop) as scene:
        shown = []
        for scene.loop.epoch, steps in ((0, 2), (0, 2), (1, 1)):
            scene.train(steps)
            shown.append(scene.shown()[1])
    assert shown == ["step 2/2 | 100%", "step 4/6 | 66%", "step 5/6 | 83%"]


def test_progress_bar_resumed_in_the_middle_of_an_epoch_shows_its_place_in_it():
    with Scene(terminal=True, refresh_rate=1, loop={"step": 14, "num_steps": 30, "num_epochs": 3, "epoch": 1}) as scene:
        scene.train(1)
        assert scene.shown() == ["epoch 2/3 | 50% 15/30 steps", "step 5/10 | 50%"]


def test_progress_bar_without_a_known_end_shows_steps():
    with Scene(terminal=True, loop={"num_steps": None, "num_epochs": None}) as scene:
        scene.train(10, seconds=2.0)
        assert scene.shown() == ["step 10 | 2 s/step"]
        scene.end()
    assert "took 0:20  2 s/step" in screen(scene.file.getvalue())[-2]


def test_progress_bar_does_not_wait_for_a_metric_on_a_device():
    class Device:
        arrives, here = True, False

        def ready(self):
            return self.here

        def number(self, index):
            assert self.here, "waited for a device"
            return 0.125

    device = Device()
    with Scene(terminal=True, refresh_rate=1) as scene:
        scene.loop.metrics = MetricsRow(loss=0.5)
        scene.train(1)
        scene.loop.metrics = MetricsRow(loss=Deferred(device))
        scene.train(1)
        before = scene.shown()[1]
        device.here = True
        scene.train(1)
        assert [before, scene.shown()[1]] == ["loss 0.5", "loss 0.125"]


@pytest.mark.parametrize("terminal", [True, False], ids=["bars", "lines"])
def test_progress_bar_shows_the_loss_among_many_metrics(terminal):
    many = {f"grad_norm/layer{n}": 1.0 for n in range(40)}
    with Scene(terminal=terminal, refresh_rate=1, width=80) as scene:
        scene.loop.metrics = MetricsRow({**many, "val/loss": 0.25, "loss": 0.5, "accuracy": 0.75})
        scene.train(1)
        scene.end()
    assert re.search(r"loss 0\.5  val/loss 0\.25  ", scene.file.getvalue())


def test_progress_bar_shows_a_loss_of_a_device_that_lags_behind():
    steps = []

    class Device:
        """Computes a value of a step when the next step has begun."""

        arrives = True

        def __init__(self, step):
            self.step = step

        def ready(self):
            return len(steps) > self.step

        def number(self, index):
            return float(self.step)

    shown = []
    with Scene(terminal=True, refresh_rate=1) as scene:
        for step in range(1, 4):
            steps.append(step)
            scene.loop.metrics = MetricsRow(loss=Deferred(Device(step)))
            scene.train(1)
            shown.append(scene.shown()[1:])
        scene.end()
    assert shown == [[], ["loss 1"], ["loss 2"]]
    assert screen(scene.file.getvalue())[-2] == "loss 3"


def test_progress_bar_is_closed_when_training_fails():
    file = io.StringIO()
    bar = ProgressBar(console=Console(file=file, force_terminal=True, _environ={"TERM": "xterm"}))
    with pytest.raises(RuntimeError), hl.run(root=None, callbacks=[bar], summary=False) as run:
        for _ in run.steps(3):
            raise RuntimeError
    assert bar._display is None
    assert file.getvalue().endswith("\n\x1b[?25h")


def test_progress_bar_that_is_closed_alone_leaves_the_terminal_clean():
    with Scene(terminal=True) as scene:
        scene.bar.close()
        scene.bar.close()
    assert scene.file.getvalue().count("\x1b[?25h") == 1


def test_progress_bar_refuses_a_rate_of_zero():
    with pytest.raises(hl.OptionError, match="refresh_rate=0"):
        ProgressBar(refresh_rate=0)


def test_progress_bar_keeps_its_bar_in_a_narrow_terminal_and_takes_any_name():
    with Scene(terminal=True, width=60, refresh_rate=1, loop={"num_steps": 100_000, "num_epochs": 4}) as scene:
        names = [f"a_long_name_of_a_metric_{n}[/x]" for n in range(6)]
        scene.train(3, seconds=0.01, **dict.fromkeys(names, 1.0), **{"throughput/tokens_per_second": 1e6})
        assert scene.shown() == [
            "epoch 1/4 | 0% eta 16:40  3/100000 steps",
            "step 3/25000 | 0% 100 steps/s  1M tokens/s",
            "a_long_name_of_a_metric_0[/x] 1",
            "a_long_name_of_a_metric_1[/x] 1",
        ]
    assert max(map(len, screen(scene.file.getvalue()))) <= 60


@pytest.mark.parametrize("width", [1, 8, 20, 40])
def test_progress_bar_in_a_tiny_terminal_stays_within_it(width):
    with Scene(terminal=True, width=width, refresh_rate=1, loop={"num_epochs": 2}) as scene:
        scene.loop.callbacks.on_validation_start(scene.loop)
        scene.train(3, seconds=1.0, loss=0.5)
        scene.end()
    assert max(map(len, screen(scene.file.getvalue()))) <= width


def test_progress_bar_in_a_dumb_terminal_prints_lines():
    with Scene(terminal=True, environ={"TERM": "dumb"}) as scene:
        scene.train(10)
        scene.end()
    assert scene.lines() == ["step 0/10  0 s", "step 10/10  0 s"]


def test_progress_bar_on_a_file_prints_lines_whatever_force_color_says(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    loop = FakeLoop(callbacks=[ProgressBar(clock=Clock())])
    loop.callbacks.on_train_start(loop)
    loop.callbacks.close()
    assert capsys.readouterr().err == "step 0/10  0 s\n"


class Notebook:
    """A front end that keeps what its one output shows, and all that was displayed beside it."""

    def __init__(self, monkeypatch):
        self.output, self.beside, self.inside = [], [], False
        display = types.ModuleType("IPython.display")
        display.display = self.display  # type: ignore[attr-defined]
        widgets = types.ModuleType("ipywidgets")
        widgets.__spec__ = types.SimpleNamespace(name="ipywidgets")  # type: ignore[assignment]
        widgets.Output = lambda: self  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
        monkeypatch.setitem(sys.modules, "IPython.display", display)
        monkeypatch.setitem(sys.modules, "ipywidgets", widgets)

    def display(self, *shown):
        for item in shown:
            if item is not self and item.text:  # controls are no text
                (self.output if self.inside else self.beside).append(item.text)

    def clear_output(self, wait=False):
        self.output.clear()

    def __enter__(self):
        self.inside = True

    def __exit__(self, *error):
        self.inside = False


def test_progress_bar_in_a_notebook_redraws_one_output(monkeypatch):
    notebook = Notebook(monkeypatch)
    console = Console(force_jupyter=True, width=80, color_system=None)
    with Scene(console=console, refresh_rate=1) as scene:
        scene.train(5, seconds=1.0, loss=0.5)
        print("from the cell")
        scene.train(5, seconds=0.0, loss=0.25)
        scene.end()
    lines = "".join(notebook.output).splitlines()
    assert [re.sub("━+", "|", line).rstrip() for line in lines] == [
        "step 10/10 | 100% took 0:05  2.25 steps/s",
        "loss 0.25",
    ]
    assert [text.strip() for text in notebook.beside] == ["from the cell"]


def test_progress_bar_in_a_notebook_without_widgets_prints_lines(monkeypatch):
    notebook = Notebook(monkeypatch)
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    with Scene(console=Console(force_jupyter=True, width=80)) as scene:
        scene.end()
    assert [text.strip() for text in notebook.beside] == ["step 0/10  0 s", "step 0/10  0 s"]


SCRIPT = """
import logging, os, sys, time
import hookline as hl
logging.basicConfig(level="INFO", format="%(message)s")  # holds on to sys.stderr as it is now
held = sys.stdout, sys.stderr
with hl.run(root=None, callbacks=[hl.callbacks.ProgressBar(refresh_rate=1)], summary=False, strict=True) as run:
    for i in run.steps(4, epochs=2):
        print("printed", run.step)
        print("half [/a line]", end="", flush=True)
        logging.info("logged %d :smile:", run.step)
        run.log(loss=1.0)
        if run.step == 2 and (child := os.fork()) == 0:
            os._exit((sys.stdout, sys.stderr, logging.root.handlers[0].stream) != (*held, held[1]))
        if run.step == 2 and os.waitpid(child, 0)[1]:
            raise SystemExit("the child has other streams")
        if run.step == 5 and "fail" in sys.argv:
            raise RuntimeError("it fails")
print("after", (sys.stdout, sys.stderr, logging.root.handlers[0].stream) == (*held, held[1]))
"""


def run_in_terminal(*arguments, columns, stdout=None):
    """What a script wrote to a terminal of so many columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "FORCE_COLOR", "LINES")}
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", SCRIPT, *arguments],  # newer Pythons warn of a fork beside threads
        stdin=theirs,
        stdout=stdout or theirs,
        stderr=theirs,
        env=environment | {"TERM": "xterm", "NO_COLOR": "1"},
    )
    os.close(theirs)
    written = b""
    with contextlib.suppress(OSError):  # how a terminal says that nobody has it open any more
        while piece := os.read(ours, 65536):
            written += piece
    os.close(ours)
    process.wait()
    return written.decode()


def printed(steps):
    return [line for i in range(steps) for line in (f"printed {i}", "half [/a line]", f"logged {i} :smile:")]


@pytest.mark.parametrize("columns", [120, 60])
def test_progress_bar_in_a_real_terminal_lets_the_script_print_above_it(columns):
    written = run_in_terminal(columns=columns)
    *above, epoch, step, metrics, after, end = screen(written)
    assert above == printed(8)
    assert re.match(r"epoch 2/2 ━+ 100% took \d:\d\d  8/8 steps$", epoch)
    assert re.match(r"step 4/4  ━+ 100% ", step)
    assert [metrics, after, end] == ["loss 1", "after True", ""]
    assert written.count("\x1b[?25l") == written.count("\x1b[?25h") == 1


def test_progress_bar_in_a_real_terminal_leaves_the_traceback_readable():
    written = run_in_terminal("fail", columns=120)
    lines = screen(written)
    assert lines[:18] == printed(6)
    assert [line.split(" ")[0] for line in lines[18:22]] == ["epoch", "step", "loss", "Traceback"]
    assert lines[-2:] == ["RuntimeError: it fails", ""]
    assert written.rindex("\x1b[?25h") < written.index("Traceback")


def test_progress_bar_leaves_a_redirected_standard_output_alone(tmp_path):
    with (tmp_path / "out.txt").open("w") as file:
        written = run_in_terminal(columns=80, stdout=file)
    lines = (tmp_path / "out.txt").read_text()
    assert lines == "".join(f"printed {i}\nhalf [/a line]" for i in range(8)) + "after True\n"
    assert [line for line in screen(written) if "logged" in line] == [f"logged {i} :smile:" for i in range(8)]
