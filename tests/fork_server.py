"""`ForkServer`: starts programs in forks of a process that has imported their libraries.

Importing torch and what it loads later takes three seconds of CPU, and a test of two processes that are killed and
resumed would pay for it four times. A fork has it at once. The server has no threads and opens nothing, so a program
is like one of a new interpreter: with its own environment, arguments, directory, pipes, random state and exit.
"""

import contextlib
import gc
import importlib
import json
import os
import random
import select
import signal
import socket
import struct
import subprocess
import sys
import time
import types
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

GLOO = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
"""Variables of processes that are connected by gloo on loopback."""
_HEADER = struct.Struct("!Q")


class Program:
    """A program that a `ForkServer` has started, with the methods of `subprocess.Popen` that the tests use."""

    def __init__(self, pid: int, status: int, stdin: int, stdout: int, stderr: int | None) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stdin = os.fdopen(stdin, "w")
        self.stdout = os.fdopen(stdout)
        self.stderr = None if stderr is None else os.fdopen(stderr)
        self._status = status

    def wait(self, timeout: float = 60.0) -> int:
        """Wait until it has ended, and return its exit status: below 0 the signal."""
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            self.returncode = json.loads(os.read(self._status, 64))
            os.close(self._status)
        return self.returncode

    def poll(self) -> int | None:
        """Return its exit status if it has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def communicate(self, timeout: float = 60.0) -> tuple[str, str]:
        """Close its input, read its output to the end and wait; returns standard output and standard error."""
        deadline = time.monotonic() + timeout
        with contextlib.suppress(BrokenPipeError):
            self.stdin.close()
        streams = [stream for stream in (self.stdout, self.stderr) if stream is not None]
        pieces: dict[Any, list[bytes]] = {stream: [] for stream in streams}
        while streams:
            ready = select.select(streams, [], [], max(0.0, deadline - time.monotonic()))[0]
            if not ready:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            for stream in ready:
                pieces[stream].append(os.read(stream.fileno(), 1 << 16))
                if not pieces[stream][-1]:
                    streams.remove(stream)
        out, err = (b"".join(pieces.get(stream, [])).decode() for stream in (self.stdout, self.stderr))
        self.wait(max(0.0, deadline - time.monotonic()))
        self.close()
        return out, err

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Kill it if it has not ended, and close its pipes."""
        self.kill()
        self.wait()
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


class ForkServer:
    """Starts programs with some packages imported. The server itself starts with the first of them.

    Args:
        packages: The packages to import.
    """

    def __init__(self, *packages: str) -> None:
        self._packages = packages
        self._server: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._server is not None and self._control is not None:
            self._control.close()
            self._server.wait(30)

    def start(
        self,
        *arguments: str | Path,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        merge: bool = True,
    ) -> Program:
        """Start a program.

        Args:
            arguments: What a command has behind ``python -W ignore``: a script or ``-c`` and code, and its arguments.
            env: Variables to add to the environment.
            cwd: The directory; by default the current one.
            merge: Whether standard error goes to standard output.
        """
        if self._control is None:
            self._open()
        assert self._control is not None
        request = {
            "arguments": [str(each) for each in arguments],
            "environment": {**os.environ, **(env or {})},
            "directory": str(cwd or Path.cwd()),
        }
        ends, far = [], []
        for is_input in (True, False, *(() if merge else (False,)), False):
            read, write = os.pipe()
            near, other = (write, read) if is_input else (read, write)
            ends.append(near)
            far.append(other)
        stdin, *outputs, status = far
        content = json.dumps(request).encode()
        given = [stdin, outputs[0], outputs[-1], status]
        socket.send_fds(self._control, [_HEADER.pack(len(content))], given)
        self._control.sendall(content)
        for descriptor in far:
            os.close(descriptor)
        pid = json.loads(self._control.recv(64))
        return Program(pid, ends[-1], ends[0], ends[1], None if merge else ends[2])

    def run_ranks(
        self,
        count: int,
        *arguments: str | Path,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        timeout: float = 150.0,
    ) -> None:
        """Run a program as several processes that are connected over loopback; all must succeed.

        ``{rank}`` in an argument or a variable is the number of the process.
        """
        started = []
        try:
            for rank in range(count):
                own = {name: value.replace("{rank}", str(rank)) for name, value in (GLOO | dict(env or {})).items()}
                given = [str(each).replace("{rank}", str(rank)) for each in arguments]
                started.append(self.start(*given, env=own, cwd=cwd))
            outputs = [program.communicate(timeout)[0] for program in started]
        finally:
            for program in started:
                program.close()
        assert [program.returncode for program in started] == [0] * count, "\n".join(outputs)

    def _open(self) -> None:
        self._control, other = socket.socketpair()
        with other:
            command = [sys.executable, "-W", "ignore", __file__, str(other.fileno()), *self._packages]
            self._server = subprocess.Popen(command, pass_fds=[other.fileno()], stdin=subprocess.DEVNULL)
        assert self._control.recv(64) == b"ready"


# In the server


def _serve(control: socket.socket) -> dict[str, Any] | None:
    """Fork for each request: returns it in the child, and None in the server when the last sender is gone."""
    statuses: dict[int, int] = {}
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for pytest and for the programs
    control.sendall(b"ready")
    while True:
        inputs: list[Any] = [control, woken]
        ready = select.select(inputs, [], [])[0]
        if woken in ready:
            os.read(woken, 4096)
            _report_ended(statuses)
        if control in ready:
            request, descriptors = _receive(control)
            if request is None:
                return None
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                signal.signal(signal.SIGINT, signal.default_int_handler)
                for number in (0, 1, 2):
                    os.dup2(descriptors[number], number)
                control.close()
                for descriptor in (*descriptors, *statuses.values(), woken, wake):
                    os.close(descriptor)
                return request
            statuses[pid] = descriptors.pop()
            for descriptor in descriptors:
                os.close(descriptor)
            control.sendall(json.dumps(pid).encode())


def _receive(control: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    header, descriptors, _, _ = socket.recv_fds(control, _HEADER.size, 4)
    if not header:
        return None, []
    with control.makefile("rb", buffering=0) as stream:
        left, content = _HEADER.unpack(header)[0], b""
        while len(content) < left:
            content += stream.read(left - len(content))
    return json.loads(content), descriptors


def _report_ended(statuses: dict[int, int]) -> None:
    for pid in list(statuses):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended == pid:
            descriptor = statuses.pop(pid)
            with contextlib.suppress(BrokenPipeError):  # nobody waits for it any more
                os.write(descriptor, str(os.waitstatus_to_exitcode(status)).encode())
            os.close(descriptor)


def _run(request: dict[str, Any]) -> None:
    """Be the program: it ends as any interpreter does, with its threads and exit functions."""
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    random.seed()  # a copy of the server's state would give all programs the same numbers
    first, *arguments = request["arguments"]
    main = types.ModuleType("__main__")
    if first == "-c":
        code, name, folder = arguments.pop(0), "<string>", ""
        sys.argv = ["-c", *arguments]
    else:
        code, name, folder = Path(first).read_text(encoding="utf-8"), first, str(Path(first).parent)
        sys.argv = [first, *arguments]
        main.__file__ = first
    sys.path[:1] = [folder, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    sys.modules["__main__"] = main
    exec(compile(code, name, "exec"), main.__dict__)


def main() -> None:
    """Import the packages, and serve."""
    control = socket.socket(fileno=int(sys.argv[1]))
    warnings.simplefilter("ignore")
    for package in sys.argv[2:]:
        importlib.import_module(package)
    gc.collect()
    gc.freeze()  # the collector would copy the pages that the programs share
    request = _serve(control)
    if request is not None:
        _run(request)


if __name__ == "__main__":
    main()
