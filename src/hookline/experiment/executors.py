"""Executors: where the runs of an experiment execute. Ray's is in `ray_executor`.

- `InlineExecutor` executes one run after another in this process.
- `ProcessExecutor` executes each run in a separate process, several at a time. A process that dies takes only its
  run with it. When this process dies, its children notice at once and exit too, so a restarted experiment never finds
  an old run still writing. Runs are sent as pickles; with ``cloudpickle`` installed, functions may be defined anywhere.
"""

import importlib
import multiprocessing
import os
import pickle
import signal
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any

from hookline._engine.checks import require_integer
from hookline._engine.errors import OptionError
from hookline.experiment.job import Assignment, Message, Outcome, StopRequests, execute, lost_outcome
from hookline.loops.signals import StopSignals

OnMessage = Callable[[Message], None]


class Executor(ABC):
    """Executes runs, as many at a time as it has room for."""

    @property
    @abstractmethod
    def has_room(self) -> bool:
        """Whether another run can be started now."""

    @abstractmethod
    def start(self, assignment: Assignment) -> None:
        """Start a run."""

    @abstractmethod
    def wait(self, on_message: OnMessage) -> list[Outcome]:
        """Receive messages until a run ends or a short time has passed; return the runs that ended.

        Args:
            on_message: Called in this process with each message of a run. Its exceptions propagate to the caller of
                `wait`: they are no failure of the run.
        """

    def stop(self, reason: str) -> None:  # noqa: B027 - optional
        """Ask all runs to stop at their next step and save.

        Args:
            reason: The signal that asked for it.
        """

    def open(self) -> None:  # noqa: B027 - optional
        """Prepare to execute runs."""

    def close(self) -> None:  # noqa: B027 - optional
        """End the runs that are still going, and clean up."""

    def check(self, assignments: list[Assignment]) -> None:  # noqa: B027 - optional
        """Check before anything runs that all assignments can be executed.

        Raises:
            OptionError: One of them cannot.
        """


class InlineExecutor(Executor):
    """Executes a run inside `wait`. While it trains, the run handles signals itself."""

    def __init__(self) -> None:
        self._next: Assignment | None = None
        self._requests = StopRequests()

    @property
    def has_room(self) -> bool:
        """Whether no run is waiting."""
        return self._next is None

    def start(self, assignment: Assignment) -> None:
        """Keep the run for the next `wait`."""
        self._next = assignment

    def wait(self, on_message: OnMessage) -> list[Outcome]:
        """Execute the run."""
        assignment, self._next = self._next, None
        if assignment is None:
            return []
        self._requests = StopRequests()
        errors: list[Exception] = []

        def send(message: Message) -> None:
            # The run would report this as its own failure: keep the error, and raise it once the run has ended.
            try:
                on_message(message)
            except Exception as error:
                errors.append(error)
                raise

        outcome = execute(self._requests.attached_to(assignment), send)
        if errors:
            raise errors[0]
        return [outcome]

    def stop(self, reason: str) -> None:
        """Stop a run whose training has not begun: after that it handles signals itself."""
        self._requests.request_stop(reason)


POLL_SECONDS = 0.2
"""The longest wait for a message, so that stop requests are noticed."""
EXIT_SECONDS = 10.0
"""How long a process may take to exit after its outcome before it is killed."""
UNREADABLE = b"unreadable\n"
"""Precedes the traceback of a process that cannot unpickle its run; no pickle begins with it."""


@dataclass(slots=True)
class _ChildRun:
    assignment: Assignment
    process: Any
    pipe: Connection


class ProcessExecutor(Executor):
    """Executes each run in a separate process.

    Args:
        processes: How many at a time.
    """

    def __init__(self, processes: int) -> None:
        self._processes = require_integer("processes", processes)
        self._context = multiprocessing.get_context("spawn")
        self._running: list[_ChildRun] = []
        self._exiting: list[tuple[float, Any]] = []
        self._is_stopping = False

    @property
    def has_room(self) -> bool:
        """Whether fewer than ``processes`` runs are going."""
        return len(self._running) < self._processes

    def check(self, assignments: list[Assignment]) -> None:
        """Check that every run can be pickled."""
        for assignment in assignments:
            pickled(assignment)

    def open(self) -> None:
        """Forget the stop request of an earlier experiment."""
        self._is_stopping = False

    def start(self, assignment: Assignment) -> None:
        """Start a process and send it the run."""
        data = pickled(assignment)
        here, there = self._context.Pipe()
        process = self._context.Process(target=_child_main, args=(there,), name=assignment.key)
        with _interrupts_blocked():
            process.start()
        there.close()
        self._running.append(_ChildRun(assignment, process, here))
        # On a thread: a child that dies before it reads would block the sender once the pipe is full.
        threading.Thread(target=_send_bytes, args=(here, data), daemon=True).start()
        if self._is_stopping:  # a signal came while the process started
            process.terminate()

    def wait(self, on_message: OnMessage) -> list[Outcome]:
        """Receive the messages of all processes, and notice those that died."""
        self._reap()
        wait([handle for run in self._running for handle in (run.pipe, run.process.sentinel)], POLL_SECONDS)
        outcomes: list[Outcome] = []
        for run in list(self._running):
            while (message := self._receive(run)) is not None:
                if isinstance(message, Outcome):
                    # The process may exit later: a thread of the user's can hold it up.
                    self._running.remove(run)
                    self._exiting.append((time.monotonic() + EXIT_SECONDS, run.process))
                    outcomes.append(message)
                    break
                on_message(message)
        return outcomes

    def stop(self, reason: str) -> None:
        """Send SIGTERM to every process: they do not receive Ctrl-C."""
        self._is_stopping = True
        for run in self._running:
            if run.process.is_alive():
                os.kill(run.process.pid, signal.SIGTERM)

    def close(self) -> None:
        """End the processes that are left, all within one time limit."""
        deadline = time.monotonic() + EXIT_SECONDS
        for run in self._running:
            run.process.terminate()
            self._exiting.append((deadline, run.process))
        while self._exiting:
            process = self._exiting[0][1]
            process.join(max(self._exiting[0][0] - time.monotonic(), 0))
            self._reap()
        for run in self._running:
            run.pipe.close()
        self._running.clear()

    def _receive(self, run: _ChildRun) -> Message | Outcome | None:
        """The next message of a run, if there is one; an outcome for a process that died without one."""
        is_alive = run.process.is_alive()  # before the pipe, so everything it sent before its death is readable
        try:
            if run.pipe.poll():
                data = run.pipe.recv_bytes()
                if data.startswith(UNREADABLE):
                    return lost_outcome(run.assignment, data.removeprefix(UNREADABLE).decode())
                message: Message | Outcome = pickle.loads(data)  # noqa: S301 - from our own child
                return message
            if is_alive:
                return None
        except (EOFError, OSError):
            run.process.join(EXIT_SECONDS)
        except Exception as error:
            run.process.kill()
            return lost_outcome(run.assignment, f"A message from its process cannot be read: {error!r}")
        # A process that dies after a stop request had not installed its signal handlers yet.
        status = "stopped" if self._is_stopping else "failed"
        return lost_outcome(run.assignment, _death(run.process.exitcode), status=status)

    def _reap(self) -> None:
        """Join the processes that have exited, and kill those past their deadline."""
        for deadline, process in list(self._exiting):
            if process.is_alive() and time.monotonic() >= deadline:
                process.kill()
                process.join()
            if not process.is_alive():
                self._exiting.remove((deadline, process))
                process.join()


def pickled(assignment: Assignment) -> bytes:
    """Pickle a run for another process.

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


def sendable(outcome: Outcome) -> Outcome:
    """The outcome, reduced to plain metrics where it cannot be pickled: a function may return anything."""
    try:
        pickle.dumps(outcome)
    except Exception:
        plain = {name: value for name, value in outcome.result.metrics.items() if isinstance(value, int | float | str)}
        return replace(outcome, result=replace(outcome.result, metrics=plain, artifacts=None), ids={})
    return outcome


def _death(exit_code: int | None) -> str:
    if exit_code is None or exit_code >= 0:
        return f"Its process ended with exit code {exit_code} and without a result."
    try:
        return f"Its process was killed by {signal.Signals(-exit_code).name}."
    except ValueError:  # a real-time signal
        return f"Its process was killed by signal {-exit_code}."


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Block SIGINT in a process started inside, even while it imports: the executor forwards stop requests."""
    resource_tracker.ensure_running()  # starting it later would unblock the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _send_bytes(pipe: Connection, data: bytes) -> None:
    with suppress(OSError):  # the process died
        pipe.send_bytes(data)


def _child_main(pipe: Connection) -> None:
    """Execute one run; the main function of a child process."""
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    StopSignals.are_announced = False  # the experiment's process announces them
    sending = threading.Lock()

    def send(message: Message | Outcome) -> None:
        with sending:
            pipe.send_bytes(pickle.dumps(message))

    data = pipe.recv_bytes()
    try:
        assignment: Assignment = pickle.loads(data)  # noqa: S301 - from our parent
    except Exception:
        pipe.send_bytes(UNREADABLE + traceback.format_exc().encode())
        return
    send(sendable(execute(assignment, send)))


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
    os._exit(1)
