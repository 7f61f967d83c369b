"""`Descriptors`: descriptors 1 and 2 of this process, replaced by pipes to a pump, and given back exactly.

The process keeps the reading ends of the pipes open as well. If something kills the pump, no print fails: what is in
the pipes is written from here, the descriptors get back what they were, and the pipes of children are emptied here.
Only text that the pump had read and not yet written, at most `console_pump.CHUNK` bytes per stream, is lost with it.
"""

import codecs
import contextlib
import ctypes
import json
import logging
import os
import select
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hookline._record import console_pump
from hookline._record.console import REST, ConsoleWriter
from hookline._record.console_pump import COMMAND, FRAME
from hookline._record.console_text import LineAssembler

logger = logging.getLogger("hookline")

STREAMS = ("stdout", "stderr")
PUMP_SECONDS = 0.5
"""How long the end of a capture waits for the pump's process, which a child that outlives the run keeps alive."""
Frame = tuple[int, float, int, bytes]
"""A piece of text from a pipe: its channel, its time, its offset in the channel, and the text."""
_pumps: list[subprocess.Popen[bytes]] = []
"""Pumps that still serve a child which outlives its run: kept, so that nothing warns about them."""


@dataclass(slots=True)
class Channel:
    """The data of one stream."""

    stream: str
    decode: Any = field(default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace"))
    lines: LineAssembler = field(default_factory=LineAssembler)
    received: int = 0
    recorded: int = 0
    active: float = 0.0
    shown: str = ""
    shown_at: float = 0.0


class Descriptors:
    """Descriptors 1 and 2, replaced by pipes to a pump.

    Args:
        streams: Which of them.
        writer: Names the file for what the pump saves after a crash.
    """

    def __init__(self, streams: list[str], writer: ConsoleWriter) -> None:
        self.channels: list[Channel] = []
        self._replaced: list[tuple[int, int, int]] = []  # the number, what it was, and what it is instead
        self._reads: list[int] = []
        self._outs: list[int] = []
        self._buffer = b""
        self._send_lock, self._read_lock = threading.Lock(), threading.Lock()
        self._has_left = False
        self.is_pumping = True
        if not sys.executable:
            raise OSError("the Python program is unknown, so no process can be started")
        numbers = {stream: STREAMS.index(stream) + 1 for stream in streams}
        flush_streams()
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(self.close)
            writes: list[tuple[int, int]] = []
            shared = len(streams) > 1 and _is_same_file(1, 2)
            for stream, number in numbers.items():
                if not (shared and writes):
                    read, write, out = _make_pipe(number)
                    on_failure.callback(_close_quietly, write)
                    self._reads.append(read)
                    self._outs.append(out)
                    self.channels.append(Channel(stream))
                writes.append((number, write))
            self._start_pump(writer)
            for number, write in writes:
                # Their own copies, besides those of the pump: the pump may die.
                self._replaced.append((number, os.dup(number), write))
                os.dup2(write, number)
            on_failure.pop_all()
        self._open_reads = list(self._reads)
        self._identities = {number: _identity(number) for number, _, _ in self._replaced}
        for write in {write for _, write in writes}:
            os.close(write)

    def _start_pump(self, writer: ConsoleWriter) -> None:
        self._socket, theirs = socket.socketpair()
        try:
            name = f"{writer.name}-{os.getpid()}-{writer.token}{REST}"
            channels = [
                {"read": read, "out": out, "is_terminal": os.isatty(read), "stream": channel.stream}
                for read, out, channel in zip(self._reads, self._outs, self.channels, strict=True)
            ]
            given = {"socket": theirs.fileno(), "rest": str(writer.directory / name), "channels": channels}
            # Isolated and without site-packages: it starts in milliseconds, and nothing of the program's applies.
            command = [sys.executable, "-I", "-S", str(Path(console_pump.__file__)), json.dumps(given)]
            _pumps[:] = [pump for pump in _pumps if pump.poll() is None]
            self._pump = subprocess.Popen(  # noqa: S603 - this interpreter, and a file of this package
                command,
                pass_fds=[theirs.fileno(), *self._reads, *self._outs],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                # A session of its own: Ctrl-C and a hang-up end the program, and the pump outlives its last words.
                start_new_session=True,
            )
            _pumps.append(self._pump)
        finally:
            theirs.close()

    def frames(self, timeout: float) -> list[Frame] | None:
        """Wait for the pump's frames and return them; None if the pump is gone."""
        if not self.is_pumping:
            return self.read_here(timeout)
        try:
            self._socket.settimeout(timeout)
            data = self._socket.recv(1 << 20)
        except TimeoutError:
            return []
        except OSError:
            data = b""
        if not data:
            return self._lose_pump()
        found, self._buffer = [], self._buffer + data
        while len(self._buffer) >= FRAME.size:
            index, now, offset, size = FRAME.unpack_from(self._buffer)
            if len(self._buffer) < FRAME.size + size:
                break
            found.append((index, now, offset, self._buffer[FRAME.size : FRAME.size + size]))
            self._buffer = self._buffer[FRAME.size + size :]
        return found

    def send(self, kind: bytes, channel: int, number: int) -> bool:
        """Send a command to the pump; returns whether it was there."""
        with self._send_lock, contextlib.suppress(OSError, ValueError):
            if self.is_pumping:
                self._socket.sendall(COMMAND.pack(kind, channel, number))
                return True
        return False

    def _lose_pump(self) -> list[Frame] | None:
        """Do without the pump, which was killed; returns what was in the pipes."""
        self.is_pumping = False
        if self._has_left:
            return None
        for read in self._reads:
            os.set_blocking(read, False)
        found: list[Frame] = []
        while frames := self.read_here(0):  # before the descriptors are restored: what was printed first comes first
            found += frames
        # No print failed meanwhile: this process has the reading ends open as well. Children keep the pipes, which
        # are emptied here from now on. Nothing is flushed: this is not the thread that prints, and half a line of it
        # would go to the pipe and the rest, written directly, would overtake it.
        self.restore(flush=False)
        logger.warning(
            "The process that copies console output (%d) died: only output of children is still recorded.",
            self._pump.pid,
        )
        return found

    def read_here(self, timeout: float) -> list[Frame] | None:
        """Do the pump's work in this thread; None if there is nothing to read from."""
        poll = select.poll()
        for read in self._open_reads:
            poll.register(read, select.POLLIN)
        if not self._open_reads or self._has_left:
            return None
        found = []
        for read, _ in poll.poll(timeout * 1000):
            index = self._reads.index(read)
            with self._read_lock:  # two threads may come here: that of the capture, and one that flushes
                try:
                    text = os.read(read, console_pump.CHUNK)
                except BlockingIOError:
                    continue
                except OSError:
                    text = b""
                if text:
                    console_pump.write_all(self._outs[index], text)
                    found.append((index, time.time(), self.channels[index].received, text))
                elif read in self._open_reads:
                    self._open_reads.remove(read)
        return found

    def restore(self, *, flush: bool = True) -> None:
        """Give the descriptors back what they were.

        Args:
            flush: Write first what Python and the C library have in their buffers.
        """
        if flush:
            flush_streams()
        replaced, self._replaced = self._replaced, []
        for number, before, _ in replaced:
            # Not if the program has redirected it itself since.
            if _identity(number) == self._identities[number]:
                os.dup2(before, number)
            os.close(before)

    def leave(self) -> None:
        """Tell the pump that this process records nothing more."""
        self._has_left = True
        self.send(b"q", 0, 0)

    def close(self) -> None:
        """Close the remaining descriptors."""
        for _, before, _ in self._replaced:
            _close_quietly(before)
        self._replaced = []
        for descriptor in (*self._reads, *self._outs):
            _close_quietly(descriptor)
        self._reads, self._outs = [], []
        if hasattr(self, "_socket"):
            self._socket.close()

    def wait(self) -> None:
        """Wait for the end of the pump, but not for children that still print."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._pump.wait(PUMP_SECONDS)
            _pumps.remove(self._pump)


def _make_pipe(number: int) -> tuple[int, int, int]:
    """Return the ends of a pipe in place of a descriptor, and a copy of what it was: read, write, out."""
    out = os.dup(number)
    try:
        if not os.isatty(number):
            return (*os.pipe(), out)
        import termios

        master, slave = os.openpty()
        settings = termios.tcgetattr(slave)
        settings[1] &= ~termios.OPOST  # the terminal itself turns line feeds into what it needs
        termios.tcsetattr(slave, termios.TCSANOW, settings)
        console_pump.copy_size(number, slave)
    except OSError:
        os.close(out)
        raise
    return master, slave, out


def _identity(number: int) -> tuple[int, int, int]:
    try:
        status = os.fstat(number)
    except OSError:
        return (0, 0, 0)
    return status.st_dev, status.st_ino, status.st_rdev


def _is_same_file(one: int, other: int) -> bool:
    return _identity(one) == _identity(other) != (0, 0, 0)


def _close_quietly(descriptor: int) -> None:
    with contextlib.suppress(OSError):
        os.close(descriptor)


def flush_streams() -> None:
    """Flush the buffers of Python and of the C library."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # closed, or an object that is no file
            stream.flush()
    with contextlib.suppress(Exception):
        ctypes.CDLL(None).fflush(None)


def forget_pumps() -> None:
    """Forget the pumps in a forked child: they are the parent's children."""
    for pump in _pumps:
        pump.returncode = 0  # the parent's child: this process cannot wait for it, and nothing is to warn about that
    _pumps.clear()
