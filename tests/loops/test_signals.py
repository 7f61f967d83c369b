"""Signals sent to a real process."""

import signal
import subprocess
import sys
import textwrap

import pytest

LOOP = """
    import itertools, sys
    import hookline as hl

    class Tell(hl.Callback):
        def on_train_end(self, loop): print("train end", loop.stop_reason, flush=True)
        def on_exception(self, loop, error): print("exception", type(error).__name__, flush=True)
        def close(self): print("closed", flush=True)

    with hl.run(callbacks=[Tell()], summary=False) as run:
        for i in run.steps(itertools.count(), total=10**12):
            if i == 0:
                print("ready", flush=True)
            BODY
    print("after", run.state, flush=True)
"""
SHORT_STEP, ENDLESS_STEP = "pass", "while True: pass"


def start(body):
    """A process that trains; busy rather than waiting, because a signal may come just before a wait and not end it."""
    code = textwrap.dedent(LOOP).replace("BODY", body)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", code], **pipes)
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_first_signal_stops_at_the_step_boundary_with_the_reason(number):
    process = start(SHORT_STEP)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert out.splitlines() == [f"train end {number.name}", "closed", "after stopped"]
    assert process.returncode == 0
    assert "stopping after this step" in err


@pytest.mark.parametrize(
    ("number", "error", "code"),
    [(signal.SIGINT, "KeyboardInterrupt", -signal.SIGINT), (signal.SIGTERM, "SystemExit", 128 + signal.SIGTERM)],
)
def test_second_signal_is_immediate_and_orderly(number, error, code):
    process = start(ENDLESS_STEP)
    process.send_signal(number)
    assert "stopping after this step" in process.stderr.readline()
    process.send_signal(number)
    out, _ = process.communicate(timeout=60)
    assert out.splitlines() == [f"exception {error}", "closed"]
    assert process.returncode == code


def test_signal_handlers_are_given_back_after_the_run():
    import hookline as hl

    before = signal.getsignal(signal.SIGTERM)
    with hl.run(summary=False):
        during = signal.getsignal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before
    assert during is not before


def test_run_in_another_thread_leaves_signals_alone():
    import threading

    import hookline as hl

    statuses = []

    def train():
        with hl.run(summary=False) as run:
            for i in run.steps(3):
                run.log(i=i)
        statuses.append((run.state, run.step, len(run.history)))

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert statuses == [("completed", 3, 3)]
