"""``hookline demo`` as users start it: interrupted, taken up, served."""

import re
import signal
import sys
import sysconfig
import urllib.request
from pathlib import Path

import pytest

SCRIPT = Path(sysconfig.get_path("scripts")) / "hookline"
TINY = ("--repeats", "1", "--sft-steps", "3", "--grpo-steps", "4")


@pytest.fixture
def start(torch_programs):
    """Starts the program, whose output can be read while it runs."""
    started = []

    def start(*arguments):
        environment = {"COLUMNS": "200", "PYTHONUNBUFFERED": "1"}
        started.append(torch_programs.start(SCRIPT, "demo", *TINY, *arguments, env=environment))
        return started[-1]

    yield start
    for process in started:
        process.close()


def lines_until(process, pattern):
    """What it writes up to the first line that matches, which is the gate to what the test does next."""
    seen = []
    for line in process.stdout:
        seen.append(line)
        if re.search(pattern, line):
            return "".join(seen)
    raise AssertionError(f"{pattern!r} never came:\n{''.join(seen)}")


def interrupted(process):
    """What it still writes after Ctrl-C, and how it ends."""
    process.send_signal(signal.SIGINT)
    return process.stdout.read(), process.wait(timeout=60)


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_demo_interrupted_continues_where_it_was_and_serves_the_page_meanwhile(start):
    process = start("--processes", "2")
    lines_until(process, r"completed \w+-r0-s0")
    rest, status = interrupted(process)
    assert status == 128 + signal.SIGINT
    kept = {path: path.read_bytes() for path in Path("runs/demo-1").glob("*/result.json") if is_complete(path)}
    assert kept
    assert f"Stopped by SIGINT. {len(kept)} of 4 runs are complete and kept. Run the same command again" in rest

    process = start("--processes", "1", "--serve", "--port", "0")
    beginning = lines_until(process, "To watch:")
    url = re.search(r"To watch: (http://127\.0\.0\.1:\d+/)#/experiment\?experiment=demo-1", beginning)[1]  # type: ignore[index]
    assert ":8765/" not in url
    assert f"resumed with {len(kept)} of 4 runs complete" in beginning
    with urllib.request.urlopen(url) as page:
        assert b"<title>" in page.read()
    seen = lines_until(process, "until Ctrl-C")
    with urllib.request.urlopen(f"{url}api/runs") as runs:
        assert b"close-r0-s1" in runs.read()
    _, status = interrupted(process)
    assert status == 0
    assert "demo-1: 2 arms, 4 runs, stage grpo" in seen
    assert {path: path.read_bytes() for path in kept} == kept
    assert [path.name for path in Path("runs").glob("demo-*")] == ["demo-1"]


def is_complete(path):
    return '"status": "completed"' in path.read_text()
