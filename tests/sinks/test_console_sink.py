"""The sink `console`: lines for people, on a terminal, in a file, above a live progress bar."""

import io
import math
import os
import re
import sys
import threading

import pytest

import hookline as hl
from hookline._record.delivery import Delivery
from hookline._record.recorder import Recorder
from hookline.sinks import ConsoleSink


@pytest.fixture
def recorder(tmp_path):
    recorder = Recorder(tmp_path, clock=iter(float(n) for n in range(100_000)).__next__)  # a second per record
    yield recorder
    recorder.close()


def printed(tmp_path, capsys, sink):
    """What a delivery of everything prints, without the times."""
    delivery = Delivery(tmp_path, "console", sink)
    delivery.close(0)
    delivery.run()
    captured = capsys.readouterr()
    return [re.sub(r"^\d\d:\d\d:\d\d  ", "", line) for line in (captured.out + captured.err).splitlines()]


def test_console_row_is_one_line_with_four_digits(recorder, tmp_path, capsys):
    recorder.log({"loss": 0.123456, "lr": 3e-4, "tokens": 1234567, "hooks/csv/share": 0.5}, step=7)
    assert printed(tmp_path, capsys, ConsoleSink()) == ["step 7  loss 0.1235  lr 0.0003  tokens 1234567"]


def test_console_nan_is_loud(recorder, tmp_path, capsys):
    recorder.log({"loss": math.nan, "norm": math.inf}, step=1)
    assert printed(tmp_path, capsys, ConsoleSink()) == ["step 1  loss NaN!  norm inf!"]


def test_console_rows_in_between_are_left_out_but_the_last_is_shown(recorder, tmp_path, capsys):
    for step in range(1, 26):
        recorder.log(loss=float(step), step=step)
    steps = [int(line.split()[1]) for line in printed(tmp_path, capsys, ConsoleSink(every_seconds=10))]
    assert steps == [1, 11, 21, 25]


def test_console_waiting_row_is_shown_when_its_time_has_come(recorder, tmp_path, capsys):
    recorder.log(loss=1.0, step=1)
    recorder.log(loss=2.0, step=2)
    sink = ConsoleSink(every_seconds=60)
    Delivery(tmp_path, "console", sink).round()  # its beat comes long after the records' time
    assert [line.split()[2] for line in capsys.readouterr().err.splitlines()] == ["1", "2"]


def test_console_everything_else_is_a_line_each(recorder, tmp_path, capsys):
    recorder.status("running", step=0)
    recorder.log({"val/loss": 0.5}, step=3, axis="eval")
    recorder.event("checkpoint", step=3, path="a b")
    recorder.line("WARNING", "torch", "two\nlines")
    recorder.rewards("right", [1.0], step=3)
    recorder.status("failed", "OutOfMemory", step=3)
    assert printed(tmp_path, capsys, ConsoleSink()) == [
        "step 0  running",
        "step 3  eval  val/loss 0.5",
        "step 3  checkpoint  path=a b",
        "WARNING torch: two\\nlines",
        "step 3  failed: OutOfMemory",
    ]


def test_console_status_comes_after_the_last_row(recorder, tmp_path, capsys):
    for step in (1, 2, 3):
        recorder.log(loss=0.5, step=step)
    recorder.status("finished", step=3)
    lines = printed(tmp_path, capsys, ConsoleSink(every_seconds=60))
    assert lines == ["step 1  loss 0.5", "step 3  loss 0.5", "step 3  finished"]


def test_console_samples_are_excerpts_now_and_then(recorder, tmp_path, capsys):
    recorder.samples([{"prompt": "p", "completion": "y" * 500, "total": 1.0} for _ in range(40)], step=2)
    first, second = printed(tmp_path, capsys, ConsoleSink(sample_seconds=30))
    assert first == second == "step 2  sample p -> " + "y" * 59 + "…  reward 1"


def test_console_without_samples_shows_none(recorder, tmp_path, capsys):
    recorder.samples([{"prompt": "p", "completion": "c"}], step=2)
    assert printed(tmp_path, capsys, ConsoleSink(sample_seconds=None)) == []


def test_console_shows_the_metrics_that_are_asked_for(recorder, tmp_path, capsys):
    recorder.log({"loss": 1.0, "val/loss": 2.0, "val/acc": 3.0, "hooks/a": 4.0}, step=1)
    recorder.log({"other": 1.0}, step=2)
    sink = ConsoleSink(metrics=["val/", "hooks/"], every_seconds=0)
    assert printed(tmp_path, capsys, sink) == ["step 1  val/loss 2  val/acc 3  hooks/a 4"]


def test_console_other_ranks_rows_stay_out_of_sight_but_not_their_failures(recorder, tmp_path, capsys):
    other = Recorder(tmp_path, name="rank1")
    other.log(loss=1.0, step=1)
    other.event("hook_error", step=1, error="boom")
    other.close()
    assert printed(tmp_path, capsys, ConsoleSink()) == ["rank1  step 1  hook_error  error=boom"]


def test_console_texts_cannot_command_the_terminal(recorder, tmp_path, capsys):
    recorder.samples([{"prompt": "\x1b[2J", "completion": "\x07\r"}], step=1)
    assert printed(tmp_path, capsys, ConsoleSink()) == ["step 1  sample \\x1b[2J -> \\x07\\r"]


def test_console_stream_that_knows_no_emoji_gets_question_marks(recorder, tmp_path, monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    recorder.log({"🐟": 1.0}, step=1)
    delivery = Delivery(tmp_path, "console", ConsoleSink("stdout"))
    delivery.round()
    assert raw.getvalue().endswith(b"step 1  ? 1\n")
    assert delivery.progress.status == "ok"


def test_console_broken_pipe_is_given_up_and_nothing_waits(recorder, tmp_path, monkeypatch, caplog):
    read_end, write_end = os.pipe()
    os.close(read_end)
    stream = os.fdopen(write_end, "w")
    monkeypatch.setattr(sys, "stdout", stream)
    recorder.log(loss=1.0, step=1)
    delivery = Delivery(tmp_path, "console", ConsoleSink("stdout"))
    delivery.round()
    recorder.log(loss=1.0, step=2)
    delivery.round()
    assert (delivery.progress.status, delivery.is_done()) == ("ok", True)
    assert [record.getMessage() for record in caplog.records] == [
        "Cannot write to stdout, nothing more is shown: [Errno 32] Broken pipe"
    ]
    with pytest.raises(BrokenPipeError):
        stream.close()


def test_console_closed_stream_is_given_up_and_nothing_waits(recorder, tmp_path, monkeypatch, caplog):
    stream = io.StringIO()
    stream.close()
    monkeypatch.setattr(sys, "stdout", stream)
    recorder.log(loss=1.0, step=1)
    delivery = Delivery(tmp_path, "console", ConsoleSink("stdout"))
    delivery.round()
    assert (delivery.progress.status, delivery.is_done()) == ("ok", True)
    (message,) = caplog.messages
    assert message.startswith("Cannot write to stdout, nothing more is shown: I/O operation on closed file")


def test_console_without_a_stream_shows_nothing(recorder, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    recorder.log(loss=1.0, step=1)
    delivery = Delivery(tmp_path, "console", ConsoleSink())
    delivery.round()
    assert delivery.is_done()


def test_console_full_disk_is_a_fault_and_no_row_is_left_out_afterwards(recorder, tmp_path, monkeypatch):
    class FullOnce(io.StringIO):
        full = True

        def write(self, text):
            if self.full:
                self.full = False
                raise OSError(28, "No space left on device")
            return super().write(text)

    monkeypatch.setattr(sys, "stderr", FullOnce())
    recorder.log(loss=1.0, step=1)
    delivery = Delivery(tmp_path, "console", ConsoleSink())
    delivery.round()
    delivery.round()
    assert sys.stderr.getvalue().endswith("step 1  loss 1\n")


@pytest.mark.parametrize("wrong", [{"stream": "printer"}, {"every_seconds": -1}, {"sample_seconds": math.nan}])
def test_console_wrong_setting_is_refused(wrong):
    with pytest.raises(hl.OptionError, match=next(iter(wrong))):
        ConsoleSink(**wrong)


class Screen:
    """A terminal that knows as much as a progress bar needs: a pseudo terminal, and what would stand on it."""

    def __init__(self):
        self.master, slave = os.openpty()
        self.stream = os.fdopen(slave, "w")
        self._data = b""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        try:
            while data := os.read(self.master, 65536):
                self._data += data
        except OSError:
            pass  # the other end was closed

    def lines(self):
        """The lines that stand on the screen in the end."""
        self.stream.close()
        self._reader.join()
        os.close(self.master)
        rows, at = [""], 0
        for piece in re.findall(r"\x1b\[[?0-9;]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", self._data.decode()):
            if piece == "\n":
                at += 1
                rows += [""] * (at - len(rows) + 1)
            elif piece == "\x1b[1A":
                at -= 1
            elif piece == "\x1b[2K":
                rows[at] = ""
            elif piece != "\r" and not piece.startswith("\x1b"):
                rows[at] += piece
        return rows


def test_console_lines_stand_above_a_live_progress_bar(tmp_path, monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("NO_COLOR", raising=False)
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen.stream)
    sinks = [ConsoleSink(every_seconds=0)]
    with hl.run("bars", callbacks=[hl.callbacks.ProgressBar(refresh_rate=1)], sinks=sinks, summary=False) as run:
        for step in run.steps(30):
            run.log(loss=step / 7)
            threading.Event().wait(0.05)  # so that lines come while the bar is drawn
    shown = [line for line in screen.lines() if line]
    assert [line.split("  ", 1)[1] for line in shown if re.match(r"\d\d:\d\d:\d\d  step \d+  loss", line)] == [
        f"step {step + 1}  loss {step / 7:.4g}" for step in range(30)
    ]
    assert [line for line in shown if "100%" in line]
    assert len(shown) == 30 + 4  # and the bar, its metrics, and two statuses


def test_console_on_a_terminal_is_coloured(recorder, tmp_path, monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen.stream)
    recorder.log(loss=math.nan, step=1)
    Delivery(tmp_path, "console", ConsoleSink()).round()
    assert screen.lines()[0].endswith("step 1  loss NaN!")
    assert b"\x1b[1;37;41mNaN!" in screen._data
