"""`RolloutFleet`: the rollout actors of a training, each asked for one step at a time, and replaced when it dies.

A thread holds a lifeline to each actor, a call that only returns when the actor is gone. A death is known the moment
its process ends, a heartbeat later at the most: it is recorded as ``worker_died`` and as an ``alert`` that names the
worker, and another actor takes its place, which begins where the last completed step left off (``worker_restarted``).
The step that the dead one was making is lost and made again.

Training ends when a worker cannot even start, or dies `MOST_DEATHS` times without completing a step.

`RayCluster`: the Ray that actors run on, and what of it they get.

A Ray that is connected already is used and left alone; the one that ``RAY_ADDRESS`` names is connected to, and left
at the end. Otherwise one is started on this machine for as long as it is needed: without a dashboard and without usage
statistics, on loopback only (which takes that nobody imported Ray before; else a warning says so), and the signal
handlers that Ray puts in place are taken away with it.
"""

import contextlib
import importlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from hookline._engine.errors import HooklineError, MissingExtraError
from hookline.rl.rollouts.actor import HookRow, LessonOrder, StepResult, worker_name

logger = logging.getLogger("hookline")

CLUSTER_VARIABLE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Set to 0 when Ray is imported, it listens on loopback only, whatever the operating system."""
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def import_ray() -> Any:
    """The package; imported here first, it keeps to loopback, unless there is a cluster to connect to."""
    if "ray" not in sys.modules and "RAY_ADDRESS" not in os.environ:
        os.environ.setdefault(CLUSTER_VARIABLE, "0")
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise MissingExtraError('executor="ray"', "ray") from error


class RayCluster:
    """Ray between ``with`` and its end.

    Args:
        actors: How many actors are to run, each on a CPU of its own.
        on_gpus: Give them GPUs, where there are some.
    """

    def __init__(self, actors: int, *, on_gpus: bool = True) -> None:
        self.ray = import_ray()
        self._actors, self._on_gpus = actors, on_gpus
        self._is_mine = False
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if not self.ray.is_initialized():
            self._is_mine = True
            if threading.current_thread() is threading.main_thread():
                self._handlers = {number: signal.getsignal(number) for number in SIGNALS}
            self._connect()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_mine:
            self.ray.shutdown()
            for number, handler in self._handlers.items():
                signal.signal(number, handler)

    def resources(self) -> dict[str, float]:
        """What each actor asks Ray for: a CPU, and an equal part of the GPUs."""
        there = self.ray.cluster_resources()
        if there.get("CPU", 0) < self._actors:
            logger.warning(
                "Ray has %g CPUs and training takes %d, one for each rollout worker and one for the learner: it waits "
                "until there are so many.", there.get("CPU", 0), self._actors,
            )  # fmt: skip
        gpus = int(there.get("GPU", 0)) if self._on_gpus else 0
        sharing = -(-self._actors // gpus) if gpus else 0  # how many actors share a GPU, rounded up
        return {"num_cpus": 1, "num_gpus": int(10_000 / sharing) / 10_000 if sharing else 0}

    def _connect(self) -> None:
        if "RAY_ADDRESS" in os.environ:
            self.ray.init(logging_level="warning")
            return
        if os.environ.get(CLUSTER_VARIABLE) != "0":
            logger.warning(
                "Ray listens on all interfaces of this machine, because it was imported before hookline could say "
                "otherwise. Set %s=0 before `import ray` to keep it to loopback.",
                CLUSTER_VARIABLE,
            )
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        self.ray.init(
            address="local",
            num_cpus=max(os.cpu_count() or 1, self._actors),
            include_dashboard=False,
            logging_level="warning",
        )


MOST_DEATHS = 5
LEAVE_SECONDS = 10.0
WATCH = "watch"
"""The concurrency group of an actor's lifeline: it goes on while a step is made."""

Hire = Callable[[int, Mapping[str, Any] | None], Any]
"""Makes the actor of an index that goes on from a state."""


class WorkerLostError(HooklineError, RuntimeError):
    """A rollout worker that does not start, or dies again and again."""


@dataclass(slots=True)
class Step:
    """A rollout step that an actor was asked for."""

    actor: Any
    result: Any
    version: int


@dataclass(slots=True)
class Seat:
    """The place of a rollout worker, whichever actor has it."""

    index: int
    actor: Any
    lifeline: Any
    greeting: Any
    state: dict[str, Any] | None = None
    step: Step | None = None
    asked: int = 0
    pid: int | None = None
    has_started: bool = False
    deaths: int = 0

    @property
    def name(self) -> str:
        """What the worker in this place is called in the record."""
        return worker_name(self.index)

    @property
    def is_idle(self) -> bool:
        """Whether the worker is up and has nothing to do."""
        return self.pid is not None and self.step is None


class RolloutFleet:
    """Actors that make rollouts.

    Args:
        hire: Makes an actor.
        states: Where each worker goes on; None where it begins.
        tell: Called with the name and the facts of what happens to the workers, from any thread.
        heartbeat_seconds: How often it is looked whether something happened to them, at the least.
    """

    def __init__(
        self,
        hire: Hire,
        states: Sequence[dict[str, Any] | None],
        *,
        tell: Callable[..., None],
        heartbeat_seconds: float,
    ) -> None:
        self._ray = import_ray()
        self._hire, self._tell, self._heartbeat_seconds = hire, tell, heartbeat_seconds
        self._changed = threading.Condition(threading.RLock())
        self._failure: BaseException | None = None
        self._is_closed = False
        self._seats = [self._take(Seat(index, None, None, None, state)) for index, state in enumerate(states)]
        self._thread = threading.Thread(target=self._watch, name="hookline-fleet", daemon=True)
        self._thread.start()

    @property
    def outstanding(self) -> int:
        """How many steps are being made, or wait to be taken."""
        return sum(seat.step is not None for seat in self._seats)

    def states(self) -> list[dict[str, Any] | None]:
        """Where each worker stood after its last completed step."""
        return [seat.state for seat in self._seats]

    def idle(self) -> list[Seat]:
        """The workers that can be asked for a step, those asked least first."""
        with self._changed:
            return sorted((seat for seat in self._seats if seat.is_idle), key=lambda seat: seat.asked)

    def ask(self, seat: Seat, version: int, weights: Any, order: LessonOrder | None = None) -> None:
        """Have a worker make a step; ``weights`` lie in the object store."""
        with self._changed:
            result = seat.actor.roll_out.remote(version, weights, order)
            seat.step, seat.asked = Step(seat.actor, result, version), seat.asked + 1

    def next_result(self) -> tuple[Seat, Step, StepResult] | None:
        """The oldest step that is complete; None where there is none within a heartbeat.

        Raises:
            WorkerLostError: A worker is lost for good.
            Exception: What a step raised; its worker lives, but whatever it was would have ended a worker in this
                process, too.
        """
        self._require_workers()
        with self._changed:
            waiting = {seat.step.result: seat for seat in self._seats if seat.step is not None}
            if not waiting:
                self._changed.wait(self._heartbeat_seconds)
                return None
        by_age = sorted(waiting, key=lambda result: waiting[result].step.version)  # type: ignore[union-attr]
        ready, _ = self._ray.wait(by_age, num_returns=1, timeout=self._heartbeat_seconds)
        return self._taken(waiting[ready[0]]) if ready else None

    def close(self) -> list[HookRow]:
        """Let every worker complete its step and leave, within a time limit, and end those that have not.

        Returns what their hooks still gave.
        """
        with self._changed:
            if self._is_closed:
                return []
            self._is_closed = True
            self._changed.notify_all()
        leaving = [seat.actor.leave.remote() for seat in self._seats if seat.pid is not None]
        rows: list[HookRow] = []
        if leaving:
            left, _ = self._ray.wait(leaving, num_returns=len(leaving), timeout=LEAVE_SECONDS)
            for each in left:
                with contextlib.suppress(self._ray.exceptions.RayError):  # one that died on its way out
                    rows += self._ray.get(each)
        for seat in self._seats:
            self._ray.kill(seat.actor)
        self._thread.join(LEAVE_SECONDS)
        return rows

    def _take(self, seat: Seat) -> Seat:
        """Fill a seat with a new actor."""
        seat.actor, seat.pid = self._hire(seat.index, seat.state), None
        seat.lifeline = seat.actor.lifeline.options(concurrency_group=WATCH).remote()
        seat.greeting = seat.actor.greet.remote()
        return seat

    def _taken(self, seat: Seat) -> tuple[Seat, Step, StepResult] | None:
        step, seat.step = seat.step, None
        if step is None:
            return None
        try:
            result: StepResult = self._ray.get(step.result)
        except self._ray.exceptions.RayActorError as error:
            self._replace(seat, step.actor, error)
            return None
        except self._ray.exceptions.RayTaskError as error:
            cause: BaseException = error.cause if isinstance(error.cause, BaseException) else error
            cause.add_note(f"hookline: raised in {seat.name}.")
            raise cause from error
        with self._changed:
            seat.state, seat.deaths = result.state, 0
        return seat, step, result

    def _require_workers(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _watch(self) -> None:
        """Notice who comes and who dies, until the fleet is closed."""
        try:
            while not self._is_closed and self._failure is None:
                self._look()
        except Exception as error:  # Ray itself has gone: whoever waits for rollouts is told
            self._fail(error)

    def _look(self) -> None:
        with self._changed:
            signs = {seat.lifeline: (seat, seat.actor) for seat in self._seats}
            signs |= {seat.greeting: (seat, seat.actor) for seat in self._seats if seat.pid is None}
        ready, _ = self._ray.wait(list(signs), num_returns=1, timeout=self._heartbeat_seconds)
        for sign in ready:
            seat, actor = signs[sign]
            try:
                greeting = self._ray.get(sign)
            except self._ray.exceptions.RayError as error:
                self._replace(seat, actor, error)
            else:
                if greeting is not None:  # a lifeline gives nothing
                    self._welcome(seat, greeting)

    def _welcome(self, seat: Seat, greeting: Mapping[str, Any]) -> None:
        with self._changed:
            is_back, seat.has_started, seat.pid = seat.has_started, True, greeting["pid"]
            if not self._is_closed:
                self._tell("worker_restarted" if is_back else "worker_started", worker=seat.name, **greeting)
            self._changed.notify_all()

    def _replace(self, seat: Seat, actor: Any, error: BaseException) -> None:
        """Put another actor in the place of a dead one; both threads may have noticed, and one does it."""
        with self._changed:
            if self._is_closed or self._failure is not None or seat.actor is not actor:
                return
            self._ray.kill(actor)  # it lives where it could not be set up
            seat.deaths += 1
            gives_up = not seat.has_started or seat.deaths >= MOST_DEATHS
            message = _said(seat, error, gives_up=gives_up)
            self._tell("worker_died", worker=seat.name, pid=seat.pid, deaths=seat.deaths, error=str(error)[:2000])
            self._tell("alert", worker=seat.name, severity="error", message=message)
            if gives_up:
                self._fail(WorkerLostError(message))
                seat.pid = None
            else:
                self._take(seat)

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()


def _said(seat: Seat, error: BaseException, *, gives_up: bool) -> str:
    """What an alarm says about a death."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    if not seat.has_started:
        return f"{seat.name} cannot start, so training ends: {lines[-1][:500]}"
    died = f"{seat.name} (process {seat.pid}) died"
    if gives_up:
        return f"{died}, {seat.deaths} times in a row without a rollout step, so training ends: {lines[-1][:500]}"
    return f"{died} and is being restarted; training goes on without it meanwhile."
