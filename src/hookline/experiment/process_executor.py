"""`ProcessExecutor`: each run in a process of its own, several at a time.

A process that dies takes only its run with it. When this process dies, the others notice at once and end as well, so
that whoever takes the experiment up never meets an older one at work. Runs are sent as pickles: with ``cloudpickle``,
where it is installed, functions may be defined anywhere.
"""

import importlib
import multiprocessing
import os
import pickle
import signal
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any

from hookline._engine.errors import OptionError
from hookline.experiment.executors import Executor, Hear
from hookline.experiment.job import Assignment, Message, Outcome, carry_out, lost_outcome
from hookline.loops.signals import StopSignals

LOOK_SECONDS = 0.2
"""How long is waited before it is looked again whether somebody asked for a stop."""
LEAVE_SECONDS = 10.0
UNREADABLE = b"unreadable\n"
"""What a process says that cannot read what it was sent, before the reason; no pickle begins like this."""


@dataclass(slots=True)
class _Running:
    """A run in its process."""

    assignment: Assignment
    process: Any
    line: Connection


class ProcessExecutor(Executor):
    """Makes runs in processes.

    Args:
        processes: How many at a time.
    """

    def __init__(self, processes: int) -> None:
        if isinstance(processes, bool) or not isinstance(processes, int) or processes < 1:
            raise OptionError(f"processes={processes!r}: give a whole number of at least 1.")
        self._processes = processes
        self._context = multiprocessing.get_context("spawn")
        self._running: list[_Running] = []
        self._leaving: list[tuple[float, Any]] = []
        self._is_stopping = False

    @property
    def has_room(self) -> bool:
        """Whether fewer run than may."""
        return len(self._running) < self._processes

    def check(self, assignments: list[Assignment]) -> None:
        """Every run has to fit into a pickle."""
        for assignment in assignments:
            packed(assignment)

    def open(self) -> None:
        """Get ready."""
        self._is_stopping = False

    def start(self, assignment: Assignment) -> None:
        """Start a process, and send it the run: from a thread, because one that dies at once reads nothing."""
        data = packed(assignment)
        here, there = self._context.Pipe()
        process = self._context.Process(target=_work, args=(there,), name=assignment.key)
        with _interrupts_kept_off():
            process.start()
        there.close()
        self._running.append(_Running(assignment, process, here))
        threading.Thread(target=_send, args=(here, data), daemon=True).start()
        if self._is_stopping:  # it was asked for in this moment
            process.terminate()

    def wait(self, hear: Hear) -> list[Outcome]:
        """Hear all processes that have something to tell, and see which have died."""
        self._see_off()
        signs = [sign for run in self._running for sign in (run.line, run.process.sentinel)]
        wait(signs, LOOK_SECONDS)
        outcomes = [self._heard(run, hear) for run in list(self._running)]
        return [outcome for outcome in outcomes if outcome is not None]

    def stop(self, reason: str) -> None:
        """Ask every process, which does not hear what Ctrl-C sends."""
        self._is_stopping = True
        for run in self._running:
            if run.process.is_alive():
                os.kill(run.process.pid, signal.SIGTERM)

    def close(self) -> None:
        """End the processes that are left, all within one time limit."""
        deadline = time.monotonic() + LEAVE_SECONDS
        for run in self._running:
            run.process.terminate()
            self._leaving.append((deadline, run.process))
        while self._leaving:
            process = self._leaving[0][1]
            process.join(max(self._leaving[0][0] - time.monotonic(), 0))
            self._see_off()
        for run in self._running:
            run.line.close()
        self._running.clear()

    def _heard(self, run: _Running, hear: Hear) -> Outcome | None:
        """Hear what a run has to tell; its outcome, if it came to its end."""
        while (message := self._received(run)) is not None:
            if isinstance(message, Outcome):
                return self._ended(run, message)
            hear(message)
        return None

    def _received(self, run: _Running) -> Message | Outcome | None:
        """The next that a run has told, if there is anything; the outcome of one that will tell nothing more."""
        is_alive = run.process.is_alive()  # asked first: what it told before its death is there to be read then
        try:
            if run.line.poll():
                return _read(run.line.recv_bytes(), run.assignment)
            if is_alive:
                return None
        except (EOFError, OSError):
            run.process.join(LEAVE_SECONDS)
        except Exception as error:
            run.process.kill()
            return lost_outcome(run.assignment, f"What it told cannot be read here: {error!r}")
        # after a stop, one that dies is a process that had not begun to listen
        status = "stopped" if self._is_stopping else "failed"
        return lost_outcome(run.assignment, _death(run.process.exitcode), status=status)

    def _ended(self, run: _Running, outcome: Outcome) -> Outcome:
        """Let the process leave in its own time: a thread of the user's may hold it up."""
        self._running.remove(run)
        self._leaving.append((time.monotonic() + LEAVE_SECONDS, run.process))
        return outcome

    def _see_off(self) -> None:
        """Take leave of the processes that have left, and end those whose time is up."""
        for deadline, process in list(self._leaving):
            if process.is_alive() and time.monotonic() >= deadline:
                process.kill()
                process.join()
            if not process.is_alive():
                self._leaving.remove((deadline, process))
                process.join()


def packed(assignment: Assignment) -> bytes:
    """A run as bytes that another process can make it of.

    Raises:
        OptionError: Something in it cannot be pickled.
    """
    try:
        pickler = importlib.import_module("cloudpickle")
    except ImportError:
        pickler = pickle
    try:
        data: bytes = pickler.dumps(assignment)
    except Exception as error:
        raise OptionError(
            f"{assignment.key} cannot be sent to another process ({type(error).__name__}: {error}). Define its "
            "functions and classes at the top of a module, or pip install 'hookline[experiment]', which can send more."
        ) from error
    return data


def _read(data: bytes, assignment: Assignment) -> Message | Outcome:
    if data.startswith(UNREADABLE):
        return lost_outcome(assignment, data.removeprefix(UNREADABLE).decode())
    message: Message | Outcome = pickle.loads(data)  # noqa: S301 - from a child of ours
    return message


def _death(exit_code: int | None) -> str:
    if exit_code is None or exit_code >= 0:
        return f"Its process ended with exit code {exit_code} and without a result."
    try:
        return f"Its process was killed by {signal.Signals(-exit_code).name}."
    except ValueError:  # a real-time signal
        return f"Its process was killed by signal {-exit_code}."


@contextmanager
def _interrupts_kept_off() -> Iterator[None]:
    """A process that is started inside never hears Ctrl-C, also while it still imports: it is told by us."""
    resource_tracker.ensure_running()  # which would let them through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _send(line: Connection, data: bytes) -> None:
    with suppress(OSError):  # its process died
        line.send_bytes(data)


def _work(line: Connection) -> None:
    """What a process does: one run."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    StopSignals.are_announced = False  # the experiment has said so
    sending = threading.Lock()

    def tell(message: Message | Outcome) -> None:
        with sending:
            line.send_bytes(pickle.dumps(message))

    data = line.recv_bytes()
    try:
        assignment: Assignment = pickle.loads(data)  # noqa: S301 - from our parent
    except Exception:
        line.send_bytes(UNREADABLE + traceback.format_exc().encode())
        return
    tell(sendable(carry_out(assignment, tell)))


def sendable(outcome: Outcome) -> Outcome:
    """An outcome that can be pickled: results of a function may be anything."""
    try:
        pickle.dumps(outcome)
    except Exception:
        plain = {name: value for name, value in outcome.result.metrics.items() if isinstance(value, int | float | str)}
        return replace(outcome, result=replace(outcome.result, metrics=plain, artifacts=None), ids={})
    return outcome


def _end_with_parent() -> None:
    """Wait for the death of the parent, and end at once."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
    os._exit(1)
