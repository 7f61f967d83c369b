"""The program as users start it, and the same in this process, which is faster."""

import contextlib
import os
import pty
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hookline.cli import app

SCRIPT = Path(sysconfig.get_path("scripts")) / "hookline"


def import_path(imports=()):
    """The tests' own path to import from, after others."""
    return os.pathsep.join([*map(str, imports), *filter(None, [os.environ.get("PYTHONPATH")])])


@pytest.fixture
def program(tmp_path):
    """Run the installed program in an empty directory, with a wide terminal and further places to import from."""

    def run(*arguments, imports=(), columns=200):
        environment = {**os.environ, "COLUMNS": str(columns), "PYTHONPATH": import_path(imports)}
        return subprocess.run(
            [SCRIPT, *map(str, arguments)], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
        )

    return run


@pytest.fixture
def terminal(tmp_path):
    """Run the installed program in an empty directory with a terminal as its standard output; returns what it shows."""

    def run(*arguments, columns):
        ours, theirs = pty.openpty()
        environment = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm", "PYTHONPATH": import_path()}
        command = [SCRIPT, *map(str, arguments)]
        with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=theirs, stderr=subprocess.PIPE) as process:
            os.close(theirs)
            shown = bytearray()
            with contextlib.suppress(OSError):  # the end of a terminal whose program is gone
                while part := os.read(ours, 65536):
                    shown += part
            assert (process.stderr.read(), process.wait(120)) == (b"", 0)
        os.close(ours)
        return re.sub(r"\x1b\[[0-9;]*m", "", shown.decode()).replace("\r\n", "\n")

    return run


@pytest.fixture
def cli(tmp_path, monkeypatch):
    """Run the program in this process, in an empty directory; what it changes is put back."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments):
        return CliRunner().invoke(app, [*map(str, arguments)])

    return run
