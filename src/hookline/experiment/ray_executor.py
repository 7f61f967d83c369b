"""`RayExecutor`: each run of an experiment is a Ray task with the resources it asks for.

- A run is only submitted when there is room for it: no more tasks than the nodes can hold at once, and where others
  use the cluster too, at most as many waiting tasks as Ray has free slots.
- Messages of a run arrive in order, while it runs, and before its outcome. A thread of the task delivers them, so
  training never waits. (A `Mailbox` actor that is lost is replaced; messages it held for `POLL_SECONDS` are lost.)
- A run whose process dies has failed. Ray does not retry it: the experiment does, if it has retries.
- Asked to stop, every run stops at its next step and saves; a task that still waits for resources never begins.
- A process may execute several runs, one after the other, unless they use GPUs.

Experiments on several nodes need an ``output_dir`` that all of them share.
"""

import contextlib
import logging
import math
import os
import pickle
import queue
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hookline._engine.checks import require_integer, require_number
from hookline._engine.errors import OptionError
from hookline.experiment.executors import Executor, OnMessage, sendable
from hookline.experiment.job import NOT_STARTED, Assignment, Message, Outcome, StopRequests, execute, lost_outcome
from hookline.rl.ray_cluster import SIGNALS, RayCluster, import_ray

logger = logging.getLogger("hookline")

POLL_SECONDS = 0.2
"""How often the mailbox is emptied and stop requests are noticed."""
CALL_SECONDS = 0.5
"""How often a run without messages asks whether to stop."""
EXIT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class _Task:
    """A submitted run. The number is unique, also among attempts of one run."""

    number: int
    assignment: Assignment


class RayExecutor(Executor):
    """Executes runs on Ray: the connected cluster, the one that ``RAY_ADDRESS`` names, or a local one.

    Args:
        num_cpus: CPUs of each run.
        num_gpus: GPUs of each run; a fraction shares one with other runs.
        resources: Custom resources of each run.
        max_runs: The most runs at a time; by default as many as there is room for.
    """

    def __init__(
        self,
        *,
        num_cpus: float = 1,
        num_gpus: float = 0,
        resources: Mapping[str, float] | None = None,
        max_runs: int | None = None,
    ) -> None:
        max_runs = require_integer("max_runs", max_runs, optional=True)
        self._needs = _needs(num_cpus, num_gpus, resources)
        self._ray = import_ray()
        needs = {"num_cpus": num_cpus, "num_gpus": num_gpus, "resources": dict(resources or {})}
        self._task = self._ray.remote(max_retries=0, **needs)(_task_main)
        self._max_runs = math.inf if max_runs is None else max_runs
        self._cluster: RayCluster | None = None
        self._mailbox: Any = None
        self._running: dict[Any, _Task] = {}
        self._begun: dict[int, str] = {}
        self._number = 0
        self._stop_reason: str | None = None

    @property
    def has_room(self) -> bool:
        """Whether another run can be submitted."""
        if len(self._running) >= min(self._max_runs, max(1, self._capacity())):
            return False
        waiting = sum(task.number not in self._begun for task in self._running.values())
        return waiting == 0 or waiting < _capacity(self._ray.available_resources(), self._needs)

    def check(self, assignments: list[Assignment]) -> None:
        """Check that every run can be pickled."""
        for assignment in assignments:
            self._pickled(assignment)

    def open(self) -> None:
        """Connect to Ray, or start it on this machine.

        Raises:
            OptionError: This machine will never have the resources of a run.
        """
        self._begun, self._stop_reason = {}, None
        is_existing = self._ray.is_initialized() or "RAY_ADDRESS" in os.environ
        with _signal_handlers_kept():
            self._cluster = RayCluster(math.ceil(self._needs.get("CPU", 1))).__enter__()
        self._require_capacity(is_existing)
        # The mailbox needs no CPU; a lost one is replaced, and calls that failed are sent to its replacement.
        options = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1}
        self._mailbox = self._ray.remote(**options)(Mailbox).remote()

    def start(self, assignment: Assignment) -> None:
        """Submit a run."""
        self._number += 1
        given = _TaskInput(self._number, self._pickled(assignment), str(Path.cwd()), list(sys.argv), list(sys.path))
        task = self._task.options(name=assignment.key).remote(given, self._mailbox)
        self._running[task] = _Task(self._number, assignment)

    def wait(self, on_message: OnMessage) -> list[Outcome]:
        """Empty the mailbox, and collect the runs that ended."""
        if not self._running:
            return []
        stopped = [] if self._stop_reason is None else self._forward_stop(self._stop_reason)
        if stopped:
            return stopped
        self._ray.wait(list(self._running), num_returns=1, timeout=POLL_SECONDS)
        ended, _ = self._ray.wait(list(self._running), num_returns=len(self._running), timeout=0)
        # Empty the mailbox after `ended` is known: those runs have delivered all their messages.
        begun, messages = self._ray.get(self._mailbox.take.remote())
        self._begun |= begun
        numbers = {task.number for task in self._running.values()}
        for number, message in messages:
            if number in numbers:  # a message of a process that died may come late
                on_message(message)
        return [self._outcome(task) for task in ended]

    def stop(self, reason: str) -> None:
        """Note the request; `wait` forwards it, because this may be a signal handler inside a call to Ray."""
        self._stop_reason = reason

    def close(self) -> None:
        """Cancel the runs that are left, and stop Ray if it was started here."""
        if self._cluster is None:
            return
        try:
            with contextlib.suppress(self._ray.exceptions.RayError):
                for task in self._running:
                    self._ray.cancel(task, force=True)
                if self._running:
                    self._ray.wait(list(self._running), num_returns=len(self._running), timeout=EXIT_SECONDS)
                if self._mailbox is not None:
                    self._ray.kill(self._mailbox)
        finally:
            self._running.clear()
            self._cluster.__exit__(None, None, None)
            self._cluster = self._mailbox = None

    def _capacity(self) -> int:
        """How many runs the nodes can hold; a run does not span two nodes."""
        return sum(_capacity(node["Resources"], self._needs) for node in self._ray.nodes() if node["Alive"])

    def _require_capacity(self, is_existing: bool) -> None:
        if self._capacity():
            return
        resources = sorted(self._ray.cluster_resources().items())
        there = [f"{count:g} {name}" for name, count in resources if ":" not in name and "memory" not in name]
        available = ", ".join(there) or "nothing"
        needs = ", ".join(f"{need:g} {name}" for name, need in self._needs.items())
        if not is_existing:
            raise OptionError(
                f"A run asks Ray for {needs}, and this machine has {available}. Ask for less, or name a cluster that "
                "has it in RAY_ADDRESS."
            )
        logger.warning(
            "A run asks Ray for %s, and no node of the cluster has that (all of them have %s): it waits for one.",
            needs,
            available,
        )

    def _pickled(self, assignment: Assignment) -> bytes:
        dumps: Callable[[Any], bytes] = self._ray.cloudpickle.dumps
        try:
            return dumps(assignment)
        except Exception as error:
            part = _unpicklable_part(assignment, dumps)
            raise OptionError(
                f"{assignment.key} cannot be sent to another process: {part} ({type(error).__name__}: {error}). Open "
                "locks, files and threads when training starts, or use executor='local'."
            ) from error

    def _forward_stop(self, reason: str) -> list[Outcome]:
        """Ask all runs to stop, and cancel those that still wait for resources.

        Called on every `wait`, because a replaced mailbox does not know of the request.
        """
        self._begun |= self._ray.get(self._mailbox.stop.remote(reason))
        waiting = [task for task, about in self._running.items() if about.number not in self._begun]
        for task in waiting:
            self._ray.cancel(task)
        cancelled = [self._running.pop(task).assignment for task in waiting]
        return [lost_outcome(assignment, NOT_STARTED, status="stopped", began=False) for assignment in cancelled]

    def _outcome(self, task: Any) -> Outcome:
        about = self._running.pop(task)
        where = self._begun.pop(about.number, "on Ray")
        try:
            outcome: Outcome = self._ray.get(task)
        except self._ray.exceptions.RayTaskError as error:
            return lost_outcome(about.assignment, f"It ended without a result, {where}.\n{error}")
        except self._ray.exceptions.RayError as error:
            why = f"It died, {where}: {str(error) or type(error).__name__}"
            return lost_outcome(about.assignment, why, status="failed" if self._stop_reason is None else "stopped")
        return outcome


class Mailbox:
    """A Ray actor that holds the messages of runs until the executor takes them."""

    def __init__(self) -> None:
        self._begun: dict[int, str] = {}
        self._messages: list[tuple[int, Message]] = []
        self._stop_reason: str | None = None

    def put(self, number: int, where: str, messages: list[Message]) -> str | None:
        """Add messages of a run; return the reason to stop, if there is one."""
        self._begun[number] = where
        self._messages += [(number, message) for message in messages]
        return self._stop_reason

    def take(self) -> tuple[dict[int, str], list[tuple[int, Message]]]:
        """Remove and return the runs seen since the last call, with their processes, and their messages."""
        taken, self._begun, self._messages = (self._begun, self._messages), {}, []
        return taken

    def stop(self, reason: str) -> dict[int, str]:
        """Ask all runs to stop; return those seen since the last `take`. Any other is never to begin."""
        self._stop_reason = reason
        return self._begun


class MessageSender:
    """A thread that delivers a run's messages in order and receives stop requests.

    Only this thread waits for Ray: a task that blocks in a Ray call gives its CPU to other tasks.

    Args:
        deliver: Called with messages; returns the reason to stop, if there is one.
    """

    def __init__(self, deliver: Callable[[list[Message]], str | None], requests: StopRequests) -> None:
        self._deliver, self._requests = deliver, requests
        self._messages: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._is_answered = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hookline-messages", daemon=True)

    def open(self) -> None:
        """Report that the run has begun, and wait for an earlier stop request."""
        self._thread.start()
        self._is_answered.wait()

    def send(self, message: Message) -> None:
        """Queue a message."""
        self._messages.put(message)

    def close(self) -> None:
        """Wait until all messages are delivered."""
        self._messages.put(None)
        self._thread.join()

    def _run(self) -> None:
        batch: list[Message | None] = []
        try:
            while True:
                reason = self._deliver([message for message in batch if message is not None])
                if reason is not None and self._requests.reason is None:
                    self._requests.request_stop(reason)
                self._is_answered.set()
                if None in batch:
                    return
                batch = self._next_batch()
        except Exception:  # the executor is gone: the run is about to be ended
            logger.exception("The messages of the run cannot be delivered.")
        finally:
            self._is_answered.set()

    def _next_batch(self) -> list[Message | None]:
        """The queued messages; empty after `CALL_SECONDS` without one."""
        batch: list[Message | None] = []
        with contextlib.suppress(queue.Empty):
            batch.append(self._messages.get(timeout=CALL_SECONDS))
            while batch[-1] is not None:
                batch.append(self._messages.get_nowait())
        return batch


@dataclass(frozen=True, slots=True)
class _TaskInput:
    """The input of a task.

    Attributes:
        directory: The driver's working directory.
        command: The driver's command line, for the record.
        path: The driver's import path, such as the directory of its configuration file.
    """

    number: int
    data: bytes = field(repr=False)
    directory: str
    command: list[str]
    path: list[str]


def _task_main(given: _TaskInput, mailbox: Any) -> Outcome:
    """Execute one run; the function of a task."""
    sys.argv[:] = given.command
    sys.path += [entry for entry in given.path if entry not in sys.path]
    with contextlib.suppress(OSError):  # another node may not have it
        os.chdir(given.directory)
    ray, requests = import_ray(), StopRequests()
    where = f"process {os.getpid()} on {socket.gethostname()}"
    sender = MessageSender(lambda messages: ray.get(mailbox.put.remote(given.number, where, messages)), requests)
    sender.open()
    try:
        assignment: Assignment = pickle.loads(given.data)  # noqa: S301 - from the experiment
        if requests.reason is not None:
            return lost_outcome(assignment, NOT_STARTED, status="stopped", began=False)
        return sendable(execute(requests.attached_to(assignment), sender.send))
    finally:
        sender.close()


def _needs(num_cpus: Any, num_gpus: Any, resources: Any) -> dict[str, float]:
    """The resources of a run that are not 0, by Ray's names."""
    if resources is not None and not isinstance(resources, Mapping):
        raise OptionError(f"resources={resources!r}: give names with a number each, e.g. {{'tpu': 1}}.")
    needs = {"CPU": ("num_cpus", num_cpus), "GPU": ("num_gpus", num_gpus)}
    for name, need in (resources or {}).items():
        if not isinstance(name, str) or name in needs:
            raise OptionError(
                f"resources={resources!r}: {name!r} is not the name of a custom resource. Give CPUs and GPUs as "
                "num_cpus and num_gpus."
            )
        needs[name] = (f"resources[{name!r}]", need)
    for option, need in needs.values():
        require_number(option, need, minimum=0)
        if option != "num_cpus" and need > 1 and need != int(need):
            raise OptionError(f"{option}={need!r}: give a fraction of one, or a whole number.")
    return {name: need for name, (_, need) in needs.items() if need}


def _capacity(there: Mapping[str, float], needs: Mapping[str, float]) -> int:
    """How many runs fit into resources; runs that need nothing count as one CPU each."""
    return min(math.floor(there.get(name, 0) / need + 1e-6) for name, need in (needs or {"CPU": 1}).items())


def _unpicklable_part(assignment: Assignment, dumps: Callable[[Any], bytes]) -> str:
    def fails(part: Any) -> bool:
        try:
            dumps(part)
        except Exception:  # pickling runs code of the object
            return True
        return False

    kinds = {"callback": assignment.subscribers.parts(), "benchmark": assignment.benchmarks, "sink": assignment.sinks}
    for kind, parts in kinds.items():
        for part in parts:
            if fails(part):
                return f"the {kind} {part!r:.200}"
    recipe = assignment.planned.recipe
    for name, part in {"config": recipe.config, "answers": recipe.answers, **recipe.parts, **vars(recipe)}.items():
        if fails(part):
            return f"{name}={part!r:.200}"
    return "something in its context"


@contextlib.contextmanager
def _signal_handlers_kept() -> Iterator[None]:
    """Keep the experiment's signal handlers: Ray installs its own for SIGTERM when it connects."""
    is_main = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in SIGNALS} if is_main else {}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
