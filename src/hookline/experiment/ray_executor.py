"""`RayRuns`: each run of an experiment a task of Ray, with the resources that it asks for.

What holds:

- A run is only begun when there is a place for it: no more are handed to Ray than the machines can hold at once, and
  where others use them as well, one waits for a place, or as many as Ray says there are places.
- What a run tells arrives while it goes on, in its order, and before its outcome. It travels on a thread of its own:
  training waits for nothing. (A `Mailbox` that is lost is replaced; what lay in it for `LOOK_SECONDS` is not.)
- A run whose process dies has failed, and says so. Ray does not try again: the experiment does, where it has retries.
- Asked to stop, every run stops at its next step and saves; one that waits for its place does not begin.
- A process may make several runs, one after the other, unless they have GPUs.

Experiments on several machines need an ``output_dir`` that all of them share.
"""

import contextlib
import functools
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

from hookline._engine.errors import OptionError
from hookline.experiment.executors import Executor, Hear
from hookline.experiment.job import NEVER_BEGUN, Assignment, Message, Outcome, StopRequests, carry_out, lost_outcome
from hookline.experiment.process_executor import sendable
from hookline.rl.ray_cluster import SIGNALS, RayCluster, import_ray

logger = logging.getLogger("hookline")

LOOK_SECONDS = 0.2
"""How often it is looked what runs have told, and whether somebody asked for a stop."""
CALL_SECONDS = 0.5
"""How often a run that has nothing to tell asks whether it is to stop."""
LEAVE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class _Task:
    """A run that was handed to Ray; its number is its own, whichever attempt of a run it is."""

    number: int
    assignment: Assignment


class RayRuns(Executor):
    """Makes runs on Ray: the one that is connected, the one that ``RAY_ADDRESS`` names, or one on this machine.

    Args:
        num_cpus: What each run takes of them.
        num_gpus: What each run takes of them; a part of one is shared with others.
        resources: What each run takes of resources with names of their own.
        max_runs: The most runs at a time; as many as there is room for by default.
    """

    def __init__(
        self,
        *,
        num_cpus: float = 1,
        num_gpus: float = 0,
        resources: Mapping[str, float] | None = None,
        max_runs: int | None = None,
    ) -> None:
        if max_runs is not None and (isinstance(max_runs, bool) or not isinstance(max_runs, int) or max_runs < 1):
            raise OptionError(f"max_runs={max_runs!r}: give a whole number of at least 1.")
        self._needs = _needs(num_cpus, num_gpus, resources)
        self._ray = import_ray()
        asked = {"num_cpus": num_cpus, "num_gpus": num_gpus, "resources": dict(resources or {})}
        self._work = self._ray.remote(max_retries=0, **asked)(_work)
        self._max_runs = math.inf if max_runs is None else max_runs
        self._cluster: RayCluster | None = None
        self._mailbox: Any = None
        self._running: dict[Any, _Task] = {}
        self._begun: dict[int, str] = {}
        self._number = 0
        self._stop_reason: str | None = None

    @property
    def has_room(self) -> bool:
        """Whether there is a place for another run."""
        if len(self._running) >= min(self._max_runs, max(1, self._places())):
            return False
        waiting = sum(task.number not in self._begun for task in self._running.values())
        return waiting == 0 or waiting < _places(self._ray.available_resources(), self._needs)

    def check(self, assignments: list[Assignment]) -> None:
        """Every run has to fit into a pickle."""
        for assignment in assignments:
            self._packed(assignment)

    def open(self) -> None:
        """Connect to Ray, or start one.

        Raises:
            OptionError: The Ray of this machine will never have what a run asks for.
        """
        self._begun, self._stop_reason = {}, None
        is_there = self._ray.is_initialized() or "RAY_ADDRESS" in os.environ
        with _same_signal_handlers():
            self._cluster = RayCluster(math.ceil(self._needs.get("CPU", 1))).__enter__()
        self._require_places(is_there)
        # it takes no CPU, and what it is told is sent again to the one that takes its place
        options = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1}
        self._mailbox = self._ray.remote(**options)(Mailbox).remote()

    def start(self, assignment: Assignment) -> None:
        """Hand a run to Ray."""
        self._number += 1
        order = _Order(self._number, self._packed(assignment), str(Path.cwd()), list(sys.argv), list(sys.path))
        task = self._work.options(name=assignment.key).remote(order, self._mailbox)
        self._running[task] = _Task(self._number, assignment)

    def wait(self, hear: Hear) -> list[Outcome]:
        """Hear what was told, and take what has ended."""
        if not self._running:
            return []
        stopped = [] if self._stop_reason is None else self._pass_on_stop(self._stop_reason)
        if stopped:
            return stopped
        self._ray.wait(list(self._running), num_returns=1, timeout=LOOK_SECONDS)
        ended, _ = self._ray.wait(list(self._running), num_returns=len(self._running), timeout=0)
        self._hear(hear)  # after it is known who has ended: they have told everything
        return [self._outcome(task) for task in ended]

    def stop(self, reason: str) -> None:
        """Have runs asked to stop; not from here, which may be a signal handler in the middle of a call to Ray."""
        self._stop_reason = reason

    def close(self) -> None:
        """End the runs that are left, and Ray, where it was started for them."""
        if self._cluster is None:
            return
        try:
            with contextlib.suppress(self._ray.exceptions.RayError):
                for task in self._running:
                    self._ray.cancel(task, force=True)
                if self._running:
                    self._ray.wait(list(self._running), num_returns=len(self._running), timeout=LEAVE_SECONDS)
                if self._mailbox is not None:
                    self._ray.kill(self._mailbox)
        finally:
            self._running.clear()
            self._cluster.__exit__(None, None, None)
            self._cluster = self._mailbox = None

    def _places(self) -> int:
        """How many runs the machines can hold; one run does not spread over two."""
        return sum(_places(node["Resources"], self._needs) for node in self._ray.nodes() if node["Alive"])

    def _require_places(self, is_there: bool) -> None:
        if self._places():
            return
        there = {name: count for name, count in self._ray.cluster_resources().items() if ":" not in name}
        asked = ", ".join(f"{need:g} {name}" for name, need in self._needs.items())
        if not is_there:
            raise OptionError(
                f"A run asks Ray for {asked}, and this machine has {_listed(there)}. Ask for less, or name a cluster "
                "that has it in RAY_ADDRESS."
            )
        logger.warning(
            "A run asks Ray for %s, and no machine of the cluster has that (all of them have %s): it waits for one.",
            asked,
            _listed(there),
        )

    def _packed(self, assignment: Assignment) -> bytes:
        """A run as bytes that another process can make it of."""
        dumps: Callable[[Any], bytes] = self._ray.cloudpickle.dumps
        try:
            return dumps(assignment)
        except Exception as error:
            what = _unsendable(assignment, dumps)
            raise OptionError(
                f"{assignment.key} cannot be sent to another process: {what} ({type(error).__name__}: {error}). Let it "
                "open what it holds (locks, files, threads) when training starts, or use executor='local'."
            ) from error

    def _hear(self, hear: Hear) -> None:
        begun, told = self._ray.get(self._mailbox.take.remote())
        self._begun |= begun
        numbers = {task.number for task in self._running.values()}
        for number, message in told:
            if number in numbers:  # what a process that died had just sent may come late
                hear(message)

    def _pass_on_stop(self, reason: str) -> list[Outcome]:
        """Ask everybody to stop; those that only wait for their place never begin.

        It is asked again and again, because a mailbox that takes the place of another does not know.
        """
        self._begun |= self._ray.get(self._mailbox.stop.remote(reason))
        waiting = [task for task, about in self._running.items() if about.number not in self._begun]
        for task in waiting:
            self._ray.cancel(task)
        never_begun = [self._running.pop(task).assignment for task in waiting]
        return [lost_outcome(assignment, NEVER_BEGUN, status="stopped", began=False) for assignment in never_begun]

    def _outcome(self, task: Any) -> Outcome:
        about = self._running.pop(task)
        place = self._begun.pop(about.number, "on Ray")
        try:
            outcome: Outcome = self._ray.get(task)
        except self._ray.exceptions.RayTaskError as error:
            return lost_outcome(about.assignment, f"It ended without a result, {place}.\n{error}")
        except self._ray.exceptions.RayError as error:
            why = f"It died, {place}: {str(error) or type(error).__name__}"
            return lost_outcome(about.assignment, why, status="failed" if self._stop_reason is None else "stopped")
        return outcome


class Mailbox:
    """What runs tell, until it is taken; an actor of Ray."""

    def __init__(self) -> None:
        self._begun: dict[int, str] = {}
        self._told: list[tuple[int, Message]] = []
        self._stop_reason: str | None = None

    def tell(self, number: int, place: str, messages: list[Message]) -> str | None:
        """Leave messages of a run; whether, and why, it is to stop."""
        self._begun[number] = place
        self._told += [(number, message) for message in messages]
        return self._stop_reason

    def take(self) -> tuple[dict[int, str], list[tuple[int, Message]]]:
        """Which runs were heard since the last time, where they are, and what they told."""
        taken, self._begun, self._told = (self._begun, self._told), {}, []
        return taken

    def stop(self, reason: str) -> dict[int, str]:
        """Tell everybody to stop; which runs were heard since they were last taken: whoever begins later will not."""
        self._stop_reason = reason
        return self._begun


class Line:
    """A run's connection to the mailbox: a thread that delivers in order, and hears whether the run is to stop.

    Only that thread waits for Ray: a task that waits itself gives its CPU to others meanwhile.

    Args:
        deliver: Called with messages; gives why the run is to stop, if it is.
    """

    def __init__(self, deliver: Callable[[list[Message]], str | None], requests: StopRequests) -> None:
        self._deliver, self._requests = deliver, requests
        self._messages: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._is_answered = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hookline-line", daemon=True)

    def open(self) -> None:
        """Say that the run has begun, and hear whether it is to stop at once."""
        self._thread.start()
        self._is_answered.wait()

    def tell(self, message: Message) -> None:
        """Have a message delivered."""
        self._messages.put(message)

    def close(self) -> None:
        """Wait until everything is delivered."""
        self._messages.put(None)
        self._thread.join()

    def _run(self) -> None:
        messages: list[Message | None] = []
        try:
            while None not in messages:
                self._exchange([message for message in messages if message is not None])
                messages = self._next()
            self._exchange([message for message in messages if message is not None])
        except Exception:  # nobody is there any more: the run is about to be ended
            logger.exception("What the run tells does not arrive.")
        finally:
            self._is_answered.set()

    def _exchange(self, messages: list[Message]) -> None:
        reason = self._deliver(messages)
        if reason is not None and self._requests.reason is None:
            self._requests.ask(reason)
        self._is_answered.set()

    def _next(self) -> list[Message | None]:
        """What there is to deliver; nothing, after a while."""
        messages: list[Message | None] = []
        with contextlib.suppress(queue.Empty):
            messages.append(self._messages.get(timeout=CALL_SECONDS))
            while messages[-1] is not None:
                messages.append(self._messages.get_nowait())
        return messages


@dataclass(frozen=True, slots=True)
class _Order:
    """What a task is given.

    Attributes:
        directory: That of the driver.
        command: Of the driver, which the record names.
        path: Where the driver imports from, such as the directory of its configuration file.
    """

    number: int
    data: bytes = field(repr=False)
    directory: str
    command: list[str]
    path: list[str]


def _work(order: _Order, mailbox: Any) -> Outcome:
    """What a task does: one run."""
    sys.argv[:] = order.command
    sys.path += [place for place in order.path if place not in sys.path]
    with contextlib.suppress(OSError):  # on another machine it need not be there
        os.chdir(order.directory)
    ray, requests = import_ray(), StopRequests()
    place = f"process {os.getpid()} on {socket.gethostname()}"
    line = Line(lambda messages: ray.get(mailbox.tell.remote(order.number, place, messages)), requests)
    line.open()
    try:
        assignment: Assignment = pickle.loads(order.data)  # noqa: S301 - from the experiment
        if requests.reason is not None:
            return lost_outcome(assignment, NEVER_BEGUN, status="stopped", began=False)
        return sendable(carry_out(requests.added_to(assignment), line.tell))
    finally:
        line.close()


def _needs(num_cpus: Any, num_gpus: Any, resources: Any) -> dict[str, float]:
    """What a run takes of what, where it takes anything."""
    if resources is not None and not isinstance(resources, Mapping):
        raise OptionError(f"resources={resources!r}: give names with a number each, e.g. {{'tpu': 1}}.")
    needs = {"CPU": ("num_cpus", num_cpus), "GPU": ("num_gpus", num_gpus)}
    for name, need in (resources or {}).items():
        if not isinstance(name, str) or name in needs:
            raise OptionError(
                f"resources={resources!r}: {name!r} is no name of a resource of your own. Give CPUs and GPUs as "
                "num_cpus and num_gpus."
            )
        needs[name] = (f"resources[{name!r}]", need)
    for option, need in needs.values():
        _check_need(option, need)
    return {name: need for name, (_, need) in needs.items() if need}


def _check_need(option: str, need: Any) -> None:
    is_number = isinstance(need, int | float) and not isinstance(need, bool) and math.isfinite(need)
    if not is_number or need < 0:
        raise OptionError(f"{option}={need!r}: give a number of at least 0.")
    if option != "num_cpus" and need > 1 and need != int(need):
        raise OptionError(f"{option}={need!r}: give a part of one, or a whole number.")


def _places(there: Mapping[str, float], needs: Mapping[str, float]) -> int:
    """How many runs find a place; those that take nothing get a CPU each."""
    return min(math.floor(there.get(name, 0) / need + 1e-6) for name, need in (needs or {"CPU": 1}).items())


def _listed(there: Mapping[str, float]) -> str:
    return ", ".join(f"{count:g} {name}" for name, count in sorted(there.items()) if "memory" not in name) or "nothing"


def _unsendable(assignment: Assignment, dumps: Callable[[Any], bytes]) -> str:
    """What of a run it is that cannot be sent."""
    kinds = {"callback": assignment.subscribers.parts(), "benchmark": assignment.benchmarks, "sink": assignment.sinks}
    for kind, parts in kinds.items():
        for part in parts:
            if not _can(functools.partial(dumps, part)):
                return f"the {kind} {part!r:.200}"
    recipe = assignment.planned.recipe
    for name, part in {"config": recipe.config, "answers": recipe.answers, **recipe.parts, **vars(recipe)}.items():
        if not _can(functools.partial(dumps, part)):
            return f"{name}={part!r:.200}"
    return "something in its context"


def _can(do: Callable[[], Any]) -> bool:
    try:
        do()
    except Exception:  # pickling runs code of the object
        return False
    return True


@contextlib.contextmanager
def _same_signal_handlers() -> Iterator[None]:
    """Ray takes SIGTERM over when it is connected to; the experiment has it already."""
    is_main = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in SIGNALS} if is_main else {}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
