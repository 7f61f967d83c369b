"""Captures what the process prints, for the runs that record it; and restores everything exactly.

There is one capture per process, however many runs are open: it starts with the first and ends with the last.

**File-descriptor level** (standard output or error is a file, a pipe, a socket): descriptors 1 and 2 are replaced by
pipes to the pump (see `console_pump`), so C code and children are included. Printing costs a write to a pipe. Where
both descriptors are the same file, they share one pipe: the order of their lines is more important than which of the
two a line came from, and all of it counts as ``stdout``.

**Python level** (a terminal, a notebook, or on request): the ``write`` of `sys.stdout` and `sys.stderr` notes a copy
after it has written. The program keeps its terminal: `isatty`, colours, width, progress bars, debuggers and line
editing are untouched. Two descriptors in place of one terminal would also tear apart what is drawn on it, such as
``tqdm.write``, which clears its bar on one and prints on the other. C code and children are not included.
``console="fd"`` uses a pseudo-terminal in this case.

In both cases `logging` records and warnings are recorded as well, and a thread does all the rest: it builds lines,
redacts and writes them. Nothing waits for it. If it cannot keep up, or the disk is full, printing continues and lines
that are not recorded are counted.

Under pytest, whose capture is in place, nothing is captured unless it was asked for by name.
"""

import functools
import itertools
import logging
import os
import subprocess
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TextIO

from hookline._engine.errors import OptionError
from hookline._record.console import ConsoleWriter
from hookline._record.console_descriptors import STREAMS, Channel, Descriptors, Frame, flush_streams, forget_pumps
from hookline._record.console_pump import FLUSHED
from hookline._record.console_text import draws
from hookline._record.crash import FaultFile

logger = logging.getLogger("hookline")

ConsoleMode = bool | Literal["auto", "fd", "python"]
MODES = (True, False, "auto", "fd", "python")
POLL_SECONDS = 0.1
"""How often the thread looks for what was printed at Python level: waking it would cost the thread that prints."""
FLUSH_SECONDS = 5.0
IDLE_SECONDS = 2.0
"""After this long without being redrawn, the rows of a display are recorded."""
PARTIAL_SECONDS = 10.0
"""How often the state of a line without an end, such as a progress bar, is recorded."""
MAX_WAITING = 200_000
"""How many texts may wait for the thread at Python level."""
_SHARED = -1
"""In place of a thread's number: what several threads draw together."""


def checked_mode(console: Any) -> ConsoleMode:
    """Return the option ``console``.

    Raises:
        OptionError: There is no such mode.
    """
    if not any(console is mode or (isinstance(console, str) and console == mode) for mode in MODES):
        raise OptionError(f"console={console!r}: give True, False, 'auto', 'fd' or 'python'.")
    return console  # type: ignore[no-any-return]


def attach(writer: ConsoleWriter, mode: ConsoleMode) -> "Attachment | None":
    """Start recording the process's output, and the report of a crash in C code. Never fails.

    Args:
        mode: False for nothing, ``"fd"`` or ``"python"`` for that level, True or ``"auto"`` for the one that fits.
    """
    global _capture
    if mode is False:
        return None
    faults, capture = FaultFile(writer.directory, writer.name), None
    faults.open()
    if not (mode in (True, "auto") and _is_under_pytest()):
        try:
            with _lock:
                if _capture is None:
                    _reset_in_children()
                    _capture = Capture(mode, writer)
                _capture.add(writer)
                capture = _capture
        except Exception as error:  # no more threads, for example: the training starts without it
            logger.warning("Console output of this run is not recorded: %s", error)
    return Attachment(capture, writer, faults)


@dataclass(frozen=True, slots=True)
class Attachment:
    """A run's part in the capture of its process."""

    capture: "Capture | None"
    writer: ConsoleWriter
    faults: FaultFile

    def last_lines(self) -> list[str]:
        """Return the last lines, after waiting for those that are on their way, but not for ever."""
        if self.capture is not None:
            self.capture.flush()
        return self.writer.tail()

    def close(self) -> None:
        """Stop recording; with the last run, everything is restored."""
        global _capture
        if self.capture is not None:
            with _lock:
                if self.capture.writers == (self.writer,):
                    _capture = None
                    self.capture.close()
                else:
                    self.capture.flush()
                self.capture.remove(self.writer)
        self.writer.close()
        self.faults.close()


_lock = threading.RLock()
_capture: "Capture | None" = None
_said: set[str] = set()


def _is_under_pytest() -> bool:
    # Both: the variable is inherited by children, and the module may be imported by a program that is no test.
    return "_pytest.capture" in sys.modules and "PYTEST_CURRENT_TEST" in os.environ


class Capture:
    """The capture of this process.

    Args:
        mode: As in `attach`.
        writer: Of the first run: what the pump saves after a crash goes to its directory.
    """

    def __init__(self, mode: ConsoleMode, writer: ConsoleWriter) -> None:
        self.writers: tuple[ConsoleWriter, ...] = ()
        self.lost = 0
        self._waiting: deque[tuple[str, float, Any]] = deque()
        self._assemblers: dict[tuple[str, int], Channel] = {}
        self._drawing: set[tuple[str, int]] = set()
        self._closed = threading.Event()
        self._flushes: dict[int, threading.Event] = {}
        self._flush_numbers = itertools.count()
        self._restore: list[Callable[[], None]] = []
        self._descriptors: Descriptors | None = None
        self._notes: list[str] = []
        self._work = threading.Lock()
        levels = {stream: _level(stream, mode) for stream in STREAMS}
        by_fd = [stream for stream, level in levels.items() if level == "fd"]
        if by_fd:
            try:
                self._descriptors = Descriptors(by_fd, writer)
            except (OSError, subprocess.SubprocessError, ValueError) as error:
                levels |= dict.fromkeys(by_fd, "python")
                self._say(f"Console output is recorded at Python level, without C code and children: {error}")
        for stream, level in levels.items():
            if level == "python":
                self._patch(stream)
        if "python" in levels.values() and mode != "python" and self._descriptors is None and not self._notes:
            self._say(
                "Console output is recorded at Python level, because it is shown on a terminal or in a notebook: "
                "output of C code and of child processes is not included."
            )
        self._add_logging()
        self._thread = threading.Thread(target=self._run, name="hookline-console", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # no more threads: nothing may stay replaced that nobody reads
            for restore in reversed(self._restore):
                restore()
            if self._descriptors is not None:
                self._descriptors.restore()
                self._descriptors.leave()
                self._descriptors.close()
            raise

    def add(self, writer: ConsoleWriter) -> None:
        """Add a run's writer."""
        self.writers = (*self.writers, writer)
        for note in self._notes:
            self._waiting.append(("note", time.time(), (note + "\n", 0, None)))

    def remove(self, writer: ConsoleWriter) -> None:
        """Remove a run's writer."""
        with self._work:  # the thread may be writing
            self.writers = tuple(each for each in self.writers if each is not writer)

    def flush(self) -> None:
        """Wait until what was printed so far is recorded."""
        flush_streams()
        if self._descriptors is not None and threading.current_thread() is not self._thread:
            done = threading.Event()
            number = next(self._flush_numbers)
            self._flushes[number] = done
            if self._descriptors.send(b"f", 0, number):
                done.wait(FLUSH_SECONDS)
        with self._work:
            if self._descriptors is not None and not self._descriptors.is_pumping:
                while frames := self._descriptors.read_here(0):
                    self._take_frames(frames)
            self._take_waiting()

    def close(self) -> None:
        """Restore everything, record what is on its way, and end the thread."""
        # Before the flush: what is printed from here on comes after what the pump still has.
        for restore in reversed(self._restore):
            restore()
        if self._descriptors is not None:
            self._descriptors.restore()
        self.flush()
        self._end_lines()
        self._closed.set()
        if self._descriptors is not None:
            self._descriptors.leave()
        if threading.current_thread() is not self._thread:
            self._thread.join(FLUSH_SECONDS)
        if self._descriptors is not None:
            self._descriptors.close()
            self._descriptors.wait()

    def abandon(self) -> None:
        """Forget everything in a forked child: the thread is the parent's, and so are the lines."""
        # Descriptors 1 and 2 stay what they are: the parent's pump takes what this child prints.
        self._closed.set()
        self.writers = ()
        for restore in reversed(self._restore):
            restore()
        if self._descriptors is not None:
            self._descriptors.close()

    # The thread.

    def _run(self) -> None:
        while not self._closed.is_set():
            frames = self._descriptors.frames(POLL_SECONDS) if self._descriptors is not None else None
            if frames is None:  # nothing that could be waited for
                self._closed.wait(POLL_SECONDS)
            with self._work:
                self._take_frames(frames or [])
                self._take_waiting()
                self._show_pending(time.time())
        with self._work:
            self._take_waiting()

    def _take_frames(self, frames: list[Frame]) -> None:
        for index, now, offset, text in frames:
            if index == FLUSHED:
                self._flushes.pop(offset, threading.Event()).set()
            else:
                self._receive(index, now, offset, text)

    def _receive(self, index: int, now: float, offset: int, text: bytes) -> None:
        assert self._descriptors is not None
        channel = self._descriptors.channels[index]
        if offset > channel.received:
            self._note_loss(f"{offset - channel.received:,} bytes", now)
        begin = 0
        while begin < len(text):
            # By line, which names the offset after it: if this process dies before it confirms the line, the pump
            # saves it as well, and readers have to know that they have it (see `console_rest`).
            end = text.find(b"\n", begin) + 1 or len(text)
            self._add_text(channel, channel.decode.decode(text[begin:end]), now, end=offset + end)
            begin = end
        channel.received = offset + len(text)
        # Confirmed up to the last whole line: if this process dies, the pump saves what comes after it.
        pending = len(channel.lines.pending.encode("utf-8", "replace"))
        channel.recorded = max(channel.recorded, channel.received - pending)
        self._descriptors.send(b"a", index, channel.recorded)

    def _take_waiting(self) -> None:
        for _ in range(len(self._waiting)):
            stream, now, value = self._waiting.popleft()
            if stream == "log":
                level, name, message, step = value
                for writer in self.writers:
                    writer.log(level, name, message, now, step=step)
            else:
                text, thread, step = value
                self._add_text(self._assembler(stream, thread, text, now), text, now, step)
        lost, self.lost = self.lost, 0
        if lost:
            self._note_loss(f"{lost:,} pieces", time.time())

    def _assembler(self, stream: str, thread: int, text: str, now: float) -> Channel:
        """Return the line assembler for a thread's text at Python level.

        Each thread has its own: `print` writes a text and its newline in two calls, between which another thread may
        print. Threads that draw share one: a display is drawn by the program and by a thread that refreshes it, and
        each of them moves the cursor over what the other has drawn.
        """
        own = self._assemblers.setdefault((stream, thread), Channel(stream))
        is_drawing = (stream, thread) in self._drawing
        if not is_drawing and not draws(text):
            return own
        shared = self._assemblers.setdefault((stream, _SHARED), Channel(stream))
        if not is_drawing:
            self._drawing.add((stream, thread))
            for line in own.lines.finish():  # the beginning of what is drawn now
                self._add_text(shared, line, now)
        return shared

    def _add_text(self, channel: Channel, text: str, now: float, step: int | None = None, *, end: int = 0) -> None:
        channel.active = now
        for line in channel.lines.feed(text):
            self._write(line, channel.stream, now, step, end=end)

    def _show_pending(self, now: float) -> None:
        """Record displays that are no longer redrawn, and the state of lines without an end."""
        for channel in self._channels():
            if channel.lines.is_live and now - channel.active > IDLE_SECONDS:
                for line in channel.lines.finish():
                    self._write(line, channel.stream, now)
                self._drawing = {(stream, thread) for stream, thread in self._drawing if stream != channel.stream}
            pending = channel.lines.pending
            if pending.strip() and pending != channel.shown and now - channel.shown_at > PARTIAL_SECONDS:
                channel.shown, channel.shown_at = pending, now
                self._write(pending, channel.stream, now, partial=True)
        if len(self._assemblers) > len(STREAMS) * 100:  # of threads that have ended
            self._assemblers = {key: each for key, each in self._assemblers.items() if each.lines.pending}

    def _end_lines(self) -> None:
        """Record what has no end: the program may continue the line, but not in this record."""
        with self._work:
            for channel in self._channels():
                for line in channel.lines.finish():
                    self._write(line, channel.stream, time.time())

    def _channels(self) -> list[Channel]:
        return [*(self._descriptors.channels if self._descriptors else ()), *self._assemblers.values()]

    def _write(
        self, line: str, stream: str, now: float, step: int | None = None, *, partial: bool = False, end: int = 0
    ) -> None:
        for writer in self.writers:
            writer.line(line, stream, now, step=step, partial=partial, end=end)

    def _step(self) -> int | None:
        """Return the step of what is printed now; None where several runs record it, which know their own."""
        writers = self.writers
        return writers[0].step() if len(writers) == 1 else None

    def _note_loss(self, what: str, now: float) -> None:
        self._write(f"({what} of output were not recorded: they were printed too fast)", "note", now)

    def _say(self, text: str) -> None:
        self._notes.append(text)
        if text not in _said:
            _said.add(text)
            logger.info("%s", text)

    # Python level.

    def _patch(self, name: str) -> None:
        stream = getattr(sys, name)
        if stream is None:
            return
        write, waiting, closed = stream.write, self._waiting, self._closed

        @functools.wraps(write)
        def write_and_note(text: Any, /) -> Any:
            written = write(text)
            if not closed.is_set():
                if len(waiting) < MAX_WAITING:
                    waiting.append((name, time.time(), (text, threading.get_ident(), self._step())))
                else:
                    self.lost += 1
            return written

        try:
            # On the object, not another object in its place: handlers and displays that hold it are included, and
            # code that replaces `sys.stdout` later finds what was there before.
            stream.write = write_and_note
        except (AttributeError, TypeError):
            self._say(f"sys.{name} is a {type(stream).__name__}, whose output cannot be recorded.")
            return
        self._restore.append(functools.partial(_unpatch, stream, write_and_note))

    def _add_logging(self) -> None:
        waiting, closed, call = self._waiting, self._closed, logging.Logger.callHandlers

        def call_and_note(logger: logging.Logger, record: logging.LogRecord) -> None:
            call(logger, record)
            if not closed.is_set() and len(waiting) < MAX_WAITING:
                try:
                    # Here and not in the thread: the arguments may change.
                    note = (record.levelname, record.name, record.getMessage())
                except Exception:  # logging reports a wrong format itself
                    note = (record.levelname, record.name, str(record.msg))
                waiting.append(("log", record.created, (*note, self._step())))

        # Not a handler of the root logger: with one, `logging` would neither configure itself at the first message nor
        # print warnings where nothing is configured.
        self._replace(logging.Logger, "callHandlers", call_and_note)
        show = warnings.showwarning

        def show_and_note(message: Any, category: Any, filename: str, lineno: int, *rest: Any, **named: Any) -> None:
            show(message, category, filename, lineno, *rest, **named)
            if not closed.is_set() and len(waiting) < MAX_WAITING:
                text = f"{filename}:{lineno}: {category.__name__}: {message}"
                waiting.append(("log", time.time(), ("WARNING", "py.warnings", text, self._step())))

        # Not `logging.captureWarnings`: that would take the warnings away from where the user sees them.
        self._replace(warnings, "showwarning", show_and_note)

    def _replace(self, owner: Any, name: str, replacement: Any) -> None:
        before = getattr(owner, name)
        setattr(owner, name, replacement)

        def restore() -> None:
            # What another program has put on top since is left alone; then this one passes everything on.
            if getattr(owner, name) is replacement:
                setattr(owner, name, before)

        self._restore.append(restore)


def _unpatch(stream: TextIO, patched: Any) -> None:
    # Only if it is still ours: a wrapper that came later keeps working, and calls one that passes everything on.
    if vars(stream).get("write") is patched:
        del stream.write


def _level(name: str, mode: ConsoleMode) -> Literal["fd", "python", "none"]:
    """Return how a stream is captured."""
    stream = getattr(sys, name, None)
    number = STREAMS.index(name) + 1
    if mode == "python":
        return "python"
    try:
        os.fstat(number)
    except OSError:  # closed
        return "python" if stream is not None else "none"
    if mode == "fd":
        return "fd"
    try:
        is_own = stream is not None and stream.fileno() == number
    except (OSError, ValueError, AttributeError):  # a notebook's stream, or one that the program has replaced
        is_own = False
    # A stream of a notebook has the descriptor of the kernel's process and does not write to it.
    is_notebook = type(stream).__module__.partition(".")[0] in ("ipykernel", "xeus", "google")
    return "python" if not is_own or is_notebook or os.isatty(number) else "fd"


@functools.cache
def _reset_in_children() -> None:
    os.register_at_fork(after_in_child=_forget)


def _forget() -> None:
    global _capture, _lock
    _lock = threading.RLock()
    forget_pumps()
    capture, _capture = _capture, None
    if capture is not None:
        capture.abandon()
