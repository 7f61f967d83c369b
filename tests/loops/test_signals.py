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


# Forked children

FORKING = """
    import os, signal
    import hookline as hl

    def exit_status(number):
        ready, gate = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                CHAIN
                os.write(gate, b"x")
                while True:
                    pass
            except BaseException as error:
                print(type(error).__name__, flush=True)
                os._exit(7)
        os.read(ready, 1)
        os.kill(child, number)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    with hl.run("outer", summary=False) as outer, hl.run("inner", summary=False) as run:
        of_the_run = signal.getsignal(signal.NUMBER)
        for _ in run.steps(2):
            print(exit_status(signal.NUMBER), flush=True)
    print(outer.state, run.state, run.step)
"""
OWN_HANDLER_OVER_IT = "signal.signal(signal.NUMBER, lambda *what: of_the_run(*what))"


def printed(code):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.run([sys.executable, "-c", textwrap.dedent(code)], timeout=60, check=True, **pipes)


@pytest.mark.parametrize("chain", ["pass", OWN_HANDLER_OVER_IT])
@pytest.mark.parametrize(("number", "ends"), [("SIGTERM", ["-15"]), ("SIGINT", ["KeyboardInterrupt", "7"])])
def test_forked_child_of_a_run_ends_by_a_signal_as_it_would_without_one(number, ends, chain):
    result = printed(FORKING.replace("CHAIN", chain).replace("NUMBER", number))
    assert result.stdout.splitlines() == [*ends, *ends, "completed completed 2"]
    assert "stopping after this step" not in result.stderr


POOLS = """
    import multiprocessing
    import hookline as hl

    def work_for_ever():
        while True:
            pass

    fork = multiprocessing.get_context("fork")
    with hl.run("t", summary=False) as run:
        for _ in run.steps(20):
            child = fork.Process(target=work_for_ever, daemon=True)
            child.start()
            child.terminate()  # perhaps before it has begun
            child.join()
            run.log(code=child.exitcode)
        pool = fork.Pool(1)
        pool.terminate()
        pool.join()
        fork.Process(target=work_for_ever, daemon=True).start()
    print({row.metrics["code"] for row in run.history})
"""


def test_forked_children_that_are_terminated_at_once_or_at_the_exit_end():
    assert printed(POOLS).stdout == "{-15}\n"


# Runs in runs

NESTED = """
    import itertools
    import hookline as hl

    with hl.run("outer", summary=False) as outer:
        for _ in outer.steps(itertools.count()):
            with hl.run("inner", summary=False) as inner:
                for i in inner.steps(itertools.count()):
                    if i == 0:
                        print("ready", flush=True)
                    BODY
            print("inner", inner.stop_reason, flush=True)
    print("outer", outer.stop_reason, outer.step, outer.state, flush=True)
"""


def started_nested(body):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(NESTED).replace("BODY", body)], **pipes)
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_in_a_run_inside_another_asks_both_to_stop_and_says_so_once(number):
    process = started_nested(SHORT_STEP)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert out.splitlines() == [f"inner {number.name}", f"outer {number.name} 1 stopped"]
    assert err.count("stopping after this step") == 1


def test_second_signal_in_a_run_inside_another_is_immediate():
    process = started_nested(ENDLESS_STEP)
    process.send_signal(signal.SIGTERM)
    assert "stopping after this step" in process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    assert (out, process.returncode) == ("", 128 + signal.SIGTERM)


def test_signal_to_the_outer_run_is_the_first_of_two_for_a_run_that_begins_later():
    import hookline as hl

    with pytest.raises(SystemExit), hl.run("outer", summary=False) as outer:
        signal.raise_signal(signal.SIGTERM)
        with hl.run("inner", summary=False):
            signal.raise_signal(signal.SIGTERM)
    assert (outer.signal, outer.ending) == ("SIGTERM", "stopped")


def test_runs_that_are_left_in_the_order_they_were_entered_give_the_signals_back_at_the_last():
    import hookline as hl

    before = signal.getsignal(signal.SIGTERM)
    outer, inner = hl.run("outer", summary=False), hl.run("inner", summary=False)
    outer.__enter__()
    inner.__enter__()
    outer.__exit__(None, None, None)
    signal.raise_signal(signal.SIGTERM)
    inner.__exit__(None, None, None)
    assert (outer.signal, inner.signal) == (None, "SIGTERM")
    assert signal.getsignal(signal.SIGTERM) is before


def test_signal_that_one_around_a_run_hands_back_is_still_the_first_for_the_run(caplog):
    import hookline as hl
    from hookline.loops.signals import StopSignals

    def hand_on(name):
        around.restore()
        signal.raise_signal(signal.Signals[name])

    around = StopSignals(hand_on)
    around.install()
    with hl.run("inner", summary=False) as run:
        signal.raise_signal(signal.SIGTERM)
    assert (run.signal, run.state, len(caplog.records)) == ("SIGTERM", "stopped", 1)
