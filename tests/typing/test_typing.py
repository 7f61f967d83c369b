"""Users' own code under ``mypy --strict`` and pyright: what is right passes, and each mistake is reported at its line.

The files below ``right/`` and ``wrong/`` are what users write. A line with a mistake ends in ``# error``, or in
``# error (mypy)`` where only mypy can tell. Both tools are started once, over all files, and both are strict. mypy has
the settings of this project, so that it shares the cache of `make check`; pyright and its Node.js are Python packages.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FILES = sorted([*(HERE / "right").glob("*.py"), *(HERE / "wrong").glob("*.py")])
MARK = re.compile(r"# error(?: \((?P<tool>\w+)\))?$")


def expected(tool: str) -> set[tuple[str, int]]:
    """The lines that a tool must report."""
    wanted = set()
    for file in FILES:
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
            mark = MARK.search(line)
            if mark and mark["tool"] in (None, tool):
                wanted.add((file.name, number))
    return wanted


def reported_by_mypy() -> set[tuple[str, int]]:
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", *FILES]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    found = re.findall(r"^(\S+):(\d+): error: ", done.stdout, re.MULTILINE)
    return {(Path(file).name, int(line)) for file, line in found}


def reported_by_pyright() -> set[tuple[str, int]]:
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "--project", HERE]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    errors = [each for each in json.loads(done.stdout)["generalDiagnostics"] if each["severity"] == "error"]
    return {(Path(each["file"]).name, each["range"]["start"]["line"] + 1) for each in errors}


@pytest.mark.parametrize(("tool", "report"), [("mypy", reported_by_mypy), ("pyright", reported_by_pyright)])
def test_users_code_is_reported_at_its_mistakes_and_nowhere_else(tool, report):
    found, wanted = report(), expected(tool)
    assert sorted(found - wanted) == []
    assert sorted(wanted - found) == []


def test_wrong_files_have_mistakes_and_right_files_have_none():
    marked = {name for name, _ in expected("mypy")}
    assert marked == {file.name for file in (HERE / "wrong").glob("*.py")}
