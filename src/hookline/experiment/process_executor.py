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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from typing import Any

from hookline.core.errors import OptionError
from hookline.experiment.executor import Executor, Hear
from hookline.experiment.job import Assignment, carry_out, lost
from hookline.experiment.messages import Message, Outcome

LOOK_SECONDS = 0.2
"""How long is waited before it is looked again whether somebody asked for a stop."""
LEAVE_SECONDS = 10.0


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
        self._running: dict[Connection, tuple[Assignment, Any]] = {}
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
        """Start a process."""
        here, there = self._context.Pipe()
        process = self._context.Process(target=_work, args=(packed(assignment), there), name=assignment.key)
        with _interrupts_kept_off():
            process.start()
        there.close()
        self._running[here] = (assignment, process)
        if self._is_stopping:  # it was asked for in this moment
            process.terminate()

    def wait(self, hear: Hear) -> list[Outcome]:
        """Hear all processes that have something to tell."""
        return [outcome for line in wait(list(self._running), LOOK_SECONDS) for outcome in self._heard(line, hear)]  # type: ignore[arg-type]

    def stop(self, reason: str) -> None:
        """Ask every process, which does not hear what Ctrl-C sends."""
        self._is_stopping = True
        for _, process in self._running.values():
            if process.is_alive():
                os.kill(process.pid, signal.SIGTERM)

    def close(self) -> None:
        """End the processes that are left."""
        for _, process in self._running.values():
            process.terminate()
        for line, (_, process) in self._running.items():
            process.join(LEAVE_SECONDS)
            line.close()
            if process.is_alive():
                process.kill()
                process.join()
        self._running.clear()

    def _heard(self, line: Connection, hear: Hear) -> list[Outcome]:
        assignment, process = self._running[line]
        try:
            message: Message | Outcome = pickle.loads(line.recv_bytes())  # noqa: S301 - from a child of ours
        except (EOFError, OSError):
            process.join()
            result = lost(assignment, _death(process.exitcode))  # after a stop, a process that had not begun to listen
            message = Outcome(assignment.key, replace(result, status="stopped") if self._is_stopping else result)
        except Exception as error:
            message = Outcome(assignment.key, lost(assignment, f"What it told cannot be read here: {error!r}"))
        if not isinstance(message, Outcome):
            hear(message)
            return []
        del self._running[line]
        line.close()
        process.join()
        return [message]


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


def _death(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        return f"Its process was killed by {signal.Signals(-exit_code).name}."
    return f"Its process ended with exit code {exit_code} and without a result."


@contextmanager
def _interrupts_kept_off() -> Iterator[None]:
    """A process that is started inside never hears Ctrl-C, also while it still imports: it is told by us."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(data: bytes, line: Connection) -> None:
    """What a process does: one run."""
    assignment: Assignment = pickle.loads(data)  # noqa: S301 - from our parent
    sending = threading.Lock()

    def tell(message: Message | Outcome) -> None:
        with sending:
            line.send_bytes(pickle.dumps(message))

    threading.Thread(target=_end_with_parent, daemon=True).start()
    outcome = carry_out(assignment, tell)
    tell(sendable(outcome))


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
