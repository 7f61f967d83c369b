"""The pump: a small process that copies what a program prints to where it went before, and to the program's recorder.

It is a process of its own and not a thread because

- code that holds the interpreter lock may print more than a pipe holds: a thread could not empty it, for ever;
- output in a pipe has to reach the terminal also when the program is killed;
- children of the program may print after its end, and must not fail.

Text goes to its destination first. The recorder gets it afterwards through a socket, and confirms what is recorded. If
the program dies, the pump writes the rest to a file in the run's directory (``.rest``), so the last words of a crash in
C code are kept. That file is not redacted; others do that (see `console_rest`), which the pump's lock on it keeps away
for as long as it writes. The pump ends when nobody can print any more.

This file runs as a script with the standard library only. Messages to the recorder are frames: channel, time, offset
and length, followed by the text. Messages to the pump are ``COMMAND``: "a" confirms a channel up to an offset, "f" asks
for an answer when everything printed so far was sent, "q" says goodbye.
"""

import collections
import contextlib
import errno
import fcntl
import json
import os
import select
import signal
import socket
import struct
import sys
import termios
import threading
import time
from typing import Any

FRAME = struct.Struct("!BdQI")
COMMAND = struct.Struct("!cBQ")
FLUSHED = 255
"""The channel of the answer to a flush."""
CHUNK = 64 << 10
MAX_KEPT_BYTES = 32 << 20
"""How much may wait for the recorder. It is never waited for: beyond this, the oldest text is not recorded."""
MAX_REST_BYTES = 4 << 20
RESIZE_SECONDS = 0.5


class Pump:
    """Copies the channels until all of them are closed.

    Args:
        recorder: The socket to the program.
        rest: The file for what the program can no longer record.
    """

    def __init__(self, recorder: socket.socket, rest: str) -> None:
        self._recorder, self._rest_path = recorder, rest
        self._ready = threading.Condition()
        # Both hold (channel, time, offset, text), in the order of arrival.
        self._unsent: collections.deque[tuple[int, float, int, bytes]] = collections.deque()
        self._unconfirmed: collections.deque[tuple[int, float, int, bytes]] = collections.deque()
        self._bytes = 0
        self._confirmed: dict[int, int] = {}
        self._state = "recording"  # then "rest" or "left"
        self._rest: int | None = None
        self._rest_bytes = 0
        self._locks: dict[int, threading.Lock] = {}
        self._reads: dict[int, int] = {}
        self._delays: dict[int, float] = {}
        self._streams: dict[int, str] = {}

    def run(self, channels: list[dict[str, Any]]) -> None:
        """Copy until every channel is at its end and the program has left."""
        threads = []
        for index, channel in enumerate(channels):
            self._locks[index], self._reads[index] = threading.Lock(), channel["read"]
            self._streams[index] = channel["stream"]
            # What is written to a pseudo-terminal arrives a moment later.
            self._delays[index] = 20.0 if channel["is_terminal"] else 0.0
            arguments = (index, channel["read"], channel["out"], channel["is_terminal"])
            threads.append(threading.Thread(target=self._copy, args=arguments))
        sender = threading.Thread(target=self._send, daemon=True)
        for thread in (*threads, sender):
            thread.start()
        self._obey()
        for thread in threads:
            thread.join()

    def _copy(self, index: int, read: int, out: int, is_terminal: bool) -> None:
        poll, offset = select.poll(), 0
        poll.register(read, select.POLLIN)
        while True:
            is_due = poll.poll(RESIZE_SECONDS * 1000 if is_terminal else None)
            if is_terminal:
                copy_size(out, read)
            if not is_due:
                continue
            # Held from reading to queueing: a flush waits until neither the pipe nor this thread has something.
            with self._locks[index]:
                try:
                    text = os.read(read, CHUNK)
                except OSError:  # a pseudo-terminal that nobody has open any more
                    return
                if not text:
                    return
                write_all(out, text)
                self._keep(index, time.time(), offset, text)
                offset += len(text)

    def _keep(self, index: int, now: float, offset: int, text: bytes) -> None:
        with self._ready:
            if self._state == "rest":
                self._write_rest(index, now, offset, text)
            elif self._state == "recording":
                self._unsent.append((index, now, offset, text))
                self._bytes += len(text)
                while self._bytes > MAX_KEPT_BYTES and self._unsent:
                    self._bytes -= len(self._unsent.popleft()[3])  # the recorder sees the gap in the offsets
                self._ready.notify()

    def _send(self) -> None:
        while True:
            with self._ready:
                while not self._unsent:
                    self._ready.wait()
                index, now, offset, text = self._unsent.popleft()
                if index != FLUSHED:
                    self._unconfirmed.append((index, now, offset, text))
            try:
                self._recorder.sendall(FRAME.pack(index, now, offset, len(text)) + text)
            except OSError:  # the thread that reads commands notices it as well
                return

    def _obey(self) -> None:
        stream = self._recorder.makefile("rb")
        while True:
            try:
                command = stream.read(COMMAND.size)
            except OSError:
                command = b""
            if len(command) < COMMAND.size:
                self._save_rest()
                return
            kind, channel, number = COMMAND.unpack(command)
            if kind == b"a":
                self._confirm(channel, number)
            elif kind == b"f":
                threading.Thread(target=self._flush, args=(number,), daemon=True).start()
            else:
                with self._ready:
                    self._state = "left"
                    self._unsent.clear()
                    self._unconfirmed.clear()
                return

    def _confirm(self, channel: int, offset: int) -> None:
        with self._ready:
            self._confirmed[channel] = max(offset, self._confirmed.get(channel, 0))
            while self._unconfirmed:
                index, _, begin, text = self._unconfirmed[0]
                if begin + len(text) > self._confirmed.get(index, 0):
                    break
                self._bytes -= len(text)
                self._unconfirmed.popleft()

    def _flush(self, number: int) -> None:
        for index, lock in self._locks.items():
            while True:
                with lock:
                    poll = select.poll()
                    poll.register(self._reads[index], select.POLLIN)
                    events = poll.poll(self._delays[index])
                if not events or not events[0][1] & select.POLLIN:
                    break
                time.sleep(0.0005)
        with self._ready:
            self._unsent.append((FLUSHED, 0.0, number, b""))
            self._ready.notify()

    def _save_rest(self) -> None:
        """Write unrecorded output, after the program died without closing its connection."""
        with self._ready:
            self._state = "rest"
            for index, now, begin, text in (*self._unconfirmed, *self._unsent):
                if index != FLUSHED:
                    confirmed = max(0, self._confirmed.get(index, 0) - begin)
                    self._write_rest(index, now, begin + confirmed, text[confirmed:])
            self._unsent.clear()
            self._unconfirmed.clear()

    def _write_rest(self, index: int, now: float, offset: int, text: bytes) -> None:
        if not text or self._rest_bytes > MAX_REST_BYTES:
            return
        piece = {"channel": index, "stream": self._streams[index], "time": now, "offset": offset}
        line = json.dumps(piece | {"text": text.decode("utf-8", "surrogateescape")}) + "\n"
        with contextlib.suppress(OSError):
            if self._rest is None:
                os.makedirs(os.path.dirname(self._rest_path), exist_ok=True)  # noqa: PTH103, PTH120 - starts faster
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
                self._rest = os.open(self._rest_path, flags, 0o644)
                with contextlib.suppress(OSError):  # where files cannot be locked, nobody rewrites this one
                    fcntl.flock(self._rest, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._rest_bytes += os.write(self._rest, line.encode())


def write_all(out: int, text: bytes) -> None:
    """Write everything; a destination that is gone is left out."""
    view = memoryview(text)
    while view:
        try:
            view = view[os.write(out, view) :]
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EINTR):
                return
            poll = select.poll()  # another program made it non-blocking
            poll.register(out, select.POLLOUT)
            poll.poll(1000)


def copy_size(source: int, terminal: int) -> None:
    """Give a terminal the width and height of another."""
    with contextlib.suppress(OSError):
        size = fcntl.ioctl(source, termios.TIOCGWINSZ, bytes(8))
        if size != fcntl.ioctl(terminal, termios.TIOCGWINSZ, bytes(8)):
            fcntl.ioctl(terminal, termios.TIOCSWINSZ, size)


def main() -> None:
    """Run the pump with the descriptors that the first argument describes."""
    given = json.loads(sys.argv[1])
    for name in ("SIGINT", "SIGQUIT", "SIGTERM", "SIGHUP", "SIGPIPE", "SIGTTOU"):
        # It ends when its channels do: what the program prints while it is stopped has to arrive.
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    Pump(socket.socket(fileno=given["socket"]), given["rest"]).run(given["channels"])


if __name__ == "__main__":
    main()
