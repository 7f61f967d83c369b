"""Programs that record a run and print, each in a separate process."""

import contextlib
import os
import pty
import select
import subprocess
import sys
import textwrap
from pathlib import Path

from hookline._record.console_reader import ConsoleRow, read_console

PRELUDE = """
import ctypes, logging, os, signal, subprocess, sys, threading, time, warnings
import hookline as hl
libc = ctypes.CDLL(None)
def begin(**options):
    return hl.run("printing", root=sys.argv[1], summary=False, **options)
"""


def script(tmp_path: Path, body: str) -> list[str]:
    """The command for a program; ``begin()`` in it starts a run below ``tmp_path``."""
    path = tmp_path / "program.py"
    path.write_text(PRELUDE + textwrap.dedent(body))
    return [sys.executable, str(path), str(tmp_path / "runs")]


def run_script(tmp_path: Path, body: str, **options) -> subprocess.CompletedProcess[str]:
    """Run a program with pipes for its output."""
    given = {"capture_output": True, "timeout": 120, "text": True, "cwd": tmp_path} | options
    return subprocess.run(script(tmp_path, body), check=False, **given)


def run_in_terminal(tmp_path: Path, body: str, typed: bytes = b"", until: bytes = b"") -> str:
    """Run a program in a pseudo-terminal, type something once it shows a text, and return what it showed."""
    command = script(tmp_path, body)
    child, terminal = pty.fork()
    if child == 0:
        os.environ["TERM"] = "xterm"
        os.environ.pop("PYTHONBREAKPOINT", None)  # Ray sets it, if another test started it in this process
        os.execv(command[0], command)
    shown, has_typed = b"", not typed
    with contextlib.suppress(OSError):  # the terminal is closed when the program has ended
        while select.select([terminal], [], [], 120)[0] and (data := os.read(terminal, 1 << 16)):
            shown += data
            if not has_typed and until in shown:
                os.write(terminal, typed)
                has_typed = True
    os.waitpid(child, 0)
    os.close(terminal)
    return shown.decode()


def run_directory(tmp_path: Path) -> Path:
    """The directory of the only run."""
    [metadata] = (tmp_path / "runs").glob("*/*/run.json")
    return metadata.parent


def recorded(tmp_path: Path, **which) -> list[ConsoleRow]:
    """The console lines of the only run."""
    return list(read_console(run_directory(tmp_path), **which))


def texts(tmp_path: Path, *streams: str) -> list[str]:
    """The text of the lines of some streams, standard output by default."""
    return [row.text for row in recorded(tmp_path, streams=streams or ("stdout",))]
