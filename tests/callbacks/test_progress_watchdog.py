"""ProgressWatchdog: what counts as progress, and what a hang does."""

import logging
import subprocess
import sys
import threading

import pytest

import hookline as hl
from hookline._record.reader import read
from hookline._record.records import Event
from hookline.callbacks import ProgressWatchdog
from hookline.testing import FakeLoop

THREAD = "hookline-progress_watchdog"


class Clock:
    """A clock that somebody else moves."""

    now = 1000.0

    def __call__(self):
        return self.now


def watched(**arguments):
    clock = Clock()
    dog = ProgressWatchdog(seconds=60, clock=clock, **arguments)
    loop = FakeLoop(callbacks=[dog])
    loop.callbacks.on_train_start(loop)
    return dog, loop, clock


@pytest.fixture(autouse=True)
def quiet(caplog):
    caplog.set_level(logging.CRITICAL, logger="hookline")


def test_progress_watchdog_tells_once_for_each_hang(capsys):
    dog, loop, clock = watched()
    reported = []
    for seconds, steps in [(59, 0), (1, 0), (60, 0), (0, 1), (59, 0), (1, 0)]:
        clock.now += seconds
        loop.run_steps(steps)
        dog.check()
        reported.append(dog.hangs)
    dog.close()
    assert reported == [0, 1, 1, 1, 1, 2]
    assert [line for line in capsys.readouterr().err.splitlines() if "no progress" in line] == [
        "progress_watchdog: no progress for 60 s after step 0 on rank 0",
        "progress_watchdog: no progress for 60 s after step 1 on rank 0",
    ]


@pytest.mark.parametrize(
    ("moment", "arguments"),
    [
        ("on_train_batch_end", ({}, None, 0)),
        ("on_validation_batch_end", ({}, None, 0)),
        ("on_rollout_end", (0, [])),
        ("on_eval", (0, "val", {})),
    ],
)
def test_progress_watchdog_takes_all_progress_as_such(moment, arguments):
    dog, loop, clock = watched()
    clock.now += 59
    getattr(loop.callbacks, moment)(loop, *arguments)
    clock.now += 59
    dog.check()
    dog.close()
    assert dog.hangs == 0


def test_progress_watchdog_keeps_stacks_and_records_an_event(tmp_path, capsys):
    clock = Clock()
    dog = ProgressWatchdog(seconds=60, clock=clock)
    with hl.run(root=tmp_path, callbacks=[dog], strict=True, summary=False) as run:
        for i in run.steps(2):
            clock.now += 61 * i
            dog.check()
    text = (run.dir / "stacks-rank0.txt").read_text()
    assert text in capsys.readouterr().err
    assert "test_progress_watchdog_keeps_stacks_and_records_an_event" in text
    assert [(r.step, r.data) for r in read(run.dir) if isinstance(r, Event) and r.name == "hang"] == [
        (1, {"seconds": 61.0, "exit_code": None, "stacks": str(run.dir / "stacks-rank0.txt")})
    ]


def test_progress_watchdog_with_an_exit_code_exits_even_if_telling_fails(capsys):
    class Full:
        def event(self, name, **data):
            raise OSError("no space left")

    codes = []
    dog, loop, clock = watched(exit_code=124, exit_process=codes.append)
    loop.recorder = Full()
    clock.now += 60
    with pytest.raises(OSError, match="no space left"):
        dog.check()
    loop.recorder = None
    dog.close()
    assert codes == [124]


@pytest.mark.parametrize("fails", [False, True])
def test_progress_watchdog_thread_ends_with_the_run(fails):
    seen = []
    try:
        with hl.run(root=None, callbacks=[ProgressWatchdog()], strict=True, summary=False) as run:
            for _ in run.steps(1):
                seen.append(THREAD in {thread.name for thread in threading.enumerate()})
                if fails:
                    raise RuntimeError("as it goes")
    except RuntimeError:
        pass
    seen.append(THREAD in {thread.name for thread in threading.enumerate()})
    assert seen == [True, False]


HANGING = """
import threading
import hookline as hl
from hookline.callbacks import ProgressWatchdog

with hl.run(root="runs", callbacks=[ProgressWatchdog(3.0, exit_code=124)]) as run:
    for i in run.steps(2):
        if i == 1:
            threading.Event().wait(200)
"""


def test_progress_watchdog_ends_a_program_that_hangs(tmp_path):
    result = subprocess.run([sys.executable, "-c", HANGING], cwd=tmp_path, capture_output=True, text=True, check=False)
    (path,) = tmp_path.glob("runs/default/*/stacks-rank0.txt")
    events = [r for r in read(path.parent) if isinstance(r, Event) and r.name == "hang"]
    assert (result.returncode, "in wait" in result.stderr, len(events)) == (124, True, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"seconds": 0}, "seconds=0"), ({"exit_code": 256}, "exit_code=256"), ({"exit_code": True}, "exit_code=True")],
)
def test_progress_watchdog_bad_arguments_are_errors(arguments, message):
    with pytest.raises(hl.OptionError, match=message):
        ProgressWatchdog(**arguments)
