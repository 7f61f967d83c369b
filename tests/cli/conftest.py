"""The program as users start it, and the same in this process, which is faster."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hookline.cli import app

SCRIPT = Path(sysconfig.get_path("scripts")) / "hookline"


@pytest.fixture
def program(tmp_path):
    """Run the installed program in an empty directory, with a wide terminal and further places to import from."""

    def run(*arguments, imports=(), columns=200):
        environment = {**os.environ, "COLUMNS": str(columns), "PYTHONPATH": os.pathsep.join(map(str, imports))}
        return subprocess.run(
            [SCRIPT, *map(str, arguments)], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
        )

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
