"""`RolloutFleet`: the rollout actors of a training, each making one step at a time and replaced if it dies.

A supervisor thread waits on a call to each actor that only returns when the actor is closed, so a death is noticed
when the process ends, within a heartbeat at most. It is recorded as ``worker_died`` and as an ``alert`` that names the
worker, and a new actor continues after the last completed step (``worker_restarted``). The step in progress is lost
and made again.

Training ends if a worker cannot start, or dies `MAX_DEATHS` times without completing a step.
"""

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hookline._engine.errors import HooklineError
from hookline.rl.ray_cluster import import_ray
from hookline.rl.rollouts.actor import HookMetrics, LessonAssignment, StepResult, worker_name

MAX_DEATHS = 5
CLOSE_SECONDS = 10.0
SUPERVISION_GROUP = "supervision"
"""The concurrency group of `RolloutActor.wait_closed`, which runs while a step is being made."""

ActorFactory = Callable[[int, Mapping[str, Any] | None], Any]
"""Makes the actor with an index, continuing from a state."""


class WorkerLostError(HooklineError, RuntimeError):
    """A rollout worker cannot start, or dies repeatedly."""


@dataclass(slots=True)
class PendingStep:
    """A rollout step that an actor is making, or that is ready to be collected."""

    actor: Any
    result: Any
    version: int


@dataclass(slots=True)
class WorkerHandle:
    """A rollout worker, whichever actor runs it at present.

    Attributes:
        closed_ref: The pending call of `RolloutActor.wait_closed`.
        start_ref: The pending call of `RolloutActor.start`.
        state: The worker's state after its last completed step.
        submitted: The number of steps submitted so far.
        pid: The process of the actor; None until it has started.
        deaths: Deaths since the last completed step.
    """

    index: int
    actor: Any = None
    closed_ref: Any = None
    start_ref: Any = None
    state: dict[str, Any] | None = None
    step: PendingStep | None = None
    submitted: int = 0
    pid: int | None = None
    has_started: bool = False
    deaths: int = 0

    @property
    def name(self) -> str:
        """The worker's name in the record."""
        return worker_name(self.index)


class RolloutFleet:
    """Actors that make rollouts.

    Args:
        make_actor: Makes an actor.
        states: The state that each worker continues from; None for a new worker.
        report: Called with the name and the data of events, from any thread.
        heartbeat_seconds: The longest wait before the workers are checked again.
    """

    def __init__(
        self,
        make_actor: ActorFactory,
        states: Sequence[dict[str, Any] | None],
        *,
        report: Callable[..., None],
        heartbeat_seconds: float,
    ) -> None:
        self._ray = import_ray()
        self._make_actor, self._report, self._heartbeat_seconds = make_actor, report, heartbeat_seconds
        # Guards the handles, which the supervisor and the learner's thread both change. Reentrant: replacing a worker
        # may end in _fail().
        self._changed = threading.Condition(threading.RLock())
        self._failure: BaseException | None = None
        self._is_closed = False
        self._workers = [WorkerHandle(index, state=state) for index, state in enumerate(states)]
        for worker in self._workers:
            self._start_actor(worker)
        self._supervisor = threading.Thread(target=self._supervise, name="hookline-fleet", daemon=True)
        self._supervisor.start()

    @property
    def outstanding(self) -> int:
        """The number of steps in progress or waiting to be collected."""
        return sum(worker.step is not None for worker in self._workers)

    def states(self) -> list[dict[str, Any] | None]:
        """Return the state of each worker after its last completed step."""
        return [worker.state for worker in self._workers]

    def idle(self) -> list[WorkerHandle]:
        """Return the workers that can take a step, those with the fewest steps so far first."""
        with self._changed:
            idle = [worker for worker in self._workers if worker.pid is not None and worker.step is None]
            return sorted(idle, key=lambda worker: worker.submitted)

    def submit(
        self, worker: WorkerHandle, version: int, weights: Any, assignment: LessonAssignment | None = None
    ) -> None:
        """Have a worker make a step; ``weights`` is a reference into the object store."""
        with self._changed:
            result = worker.actor.roll_out.remote(version, weights, assignment)
            worker.step = PendingStep(worker.actor, result, version)
            worker.submitted += 1

    def next_result(self) -> tuple[WorkerHandle, PendingStep, StepResult] | None:
        """Return the oldest completed step; None if there is none within a heartbeat.

        Raises:
            WorkerLostError: A worker is lost for good.
            Exception: A step raised it. The worker is alive, but the error would end a worker in this process too.
        """
        if self._failure is not None:
            raise self._failure
        with self._changed:
            pending = {worker.step.result: (worker, worker.step) for worker in self._workers if worker.step is not None}
            if not pending:
                self._changed.wait(self._heartbeat_seconds)
                return None
        by_age = sorted(pending, key=lambda result: pending[result][1].version)
        ready, _ = self._ray.wait(by_age, num_returns=1, timeout=self._heartbeat_seconds)
        if not ready:
            return None
        worker, step = pending[ready[0]]
        worker.step = None
        try:
            result: StepResult = self._ray.get(step.result)
        except self._ray.exceptions.RayActorError as error:
            self._replace_actor(worker, step.actor, error)
            return None
        except self._ray.exceptions.RayTaskError as error:
            cause: BaseException = error.cause if isinstance(error.cause, BaseException) else error
            cause.add_note(f"hookline: raised in {worker.name}.")
            raise cause from error
        with self._changed:
            worker.state, worker.deaths = result.state, 0
        return worker, step, result

    def close(self) -> list[HookMetrics]:
        """Let every worker complete its step and close, within a time limit, and kill the rest.

        Returns the last results of their hooks.
        """
        with self._changed:
            if self._is_closed:
                return []
            self._is_closed = True
            self._changed.notify_all()
        closing = [worker.actor.close.remote() for worker in self._workers if worker.pid is not None]
        metrics: list[HookMetrics] = []
        if closing:
            closed, _ = self._ray.wait(closing, num_returns=len(closing), timeout=CLOSE_SECONDS)
            for each in closed:
                with contextlib.suppress(self._ray.exceptions.RayError):  # it died while it closed
                    metrics += self._ray.get(each)
        for worker in self._workers:
            self._ray.kill(worker.actor)
        self._supervisor.join(CLOSE_SECONDS)
        return metrics

    def _start_actor(self, worker: WorkerHandle) -> None:
        worker.actor, worker.pid = self._make_actor(worker.index, worker.state), None
        worker.closed_ref = worker.actor.wait_closed.options(concurrency_group=SUPERVISION_GROUP).remote()
        worker.start_ref = worker.actor.start.remote()

    def _supervise(self) -> None:
        """Notice started and dead actors until the fleet is closed."""
        try:
            while not self._is_closed and self._failure is None:
                with self._changed:
                    refs = {worker.closed_ref: (worker, worker.actor) for worker in self._workers}
                    refs |= {worker.start_ref: (worker, worker.actor) for worker in self._workers if worker.pid is None}
                ready, _ = self._ray.wait(list(refs), num_returns=1, timeout=self._heartbeat_seconds)
                for ref in ready:
                    worker, actor = refs[ref]
                    try:
                        started = self._ray.get(ref)
                    except self._ray.exceptions.RayError as error:
                        self._replace_actor(worker, actor, error)
                    else:
                        if started is not None:  # wait_closed() returns None
                            self._mark_started(worker, started)
        except Exception as error:  # Ray itself has gone: next_result() raises it
            self._fail(error)

    def _mark_started(self, worker: WorkerHandle, started: Mapping[str, Any]) -> None:
        with self._changed:
            is_restart, worker.has_started, worker.pid = worker.has_started, True, started["pid"]
            if not self._is_closed:
                self._report("worker_restarted" if is_restart else "worker_started", worker=worker.name, **started)
            self._changed.notify_all()

    def _replace_actor(self, worker: WorkerHandle, actor: Any, error: BaseException) -> None:
        """Replace a dead actor, once: both threads may have noticed its death."""
        with self._changed:
            if self._is_closed or self._failure is not None or worker.actor is not actor:
                return
            self._ray.kill(actor)  # it is still alive if it failed in start()
            worker.deaths += 1
            gives_up = not worker.has_started or worker.deaths >= MAX_DEATHS
            message = _death_message(worker, error, gives_up=gives_up)
            self._report(
                "worker_died", worker=worker.name, pid=worker.pid, deaths=worker.deaths, error=str(error)[:2000]
            )
            self._report("alert", worker=worker.name, severity="error", message=message)
            if gives_up:
                self._fail(WorkerLostError(message))
                worker.pid = None
            else:
                self._start_actor(worker)

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()


def _death_message(worker: WorkerHandle, error: BaseException, *, gives_up: bool) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    if not worker.has_started:
        return f"{worker.name} cannot start, so training ends: {lines[-1][:500]}"
    died = f"{worker.name} (process {worker.pid}) died"
    if gives_up:
        return f"{died}, {worker.deaths} times in a row without a rollout step, so training ends: {lines[-1][:500]}"
    return f"{died} and is being restarted; training continues without it meanwhile."
