"""`RemoteRollouts`: rollouts from actors, for a learner that does not depend on where they are made.

The weights of each version are put into the object store once; a worker gets the newest with each step. A step is only
submitted if it can be learnt from in time: the steps in progress or waiting, together with the updates that remain for
the last one, never exceed ``max_staleness`` versions of the weights, and no worker is more than one step ahead. With
``max_staleness=0`` one worker works at a time; to keep N workers busy, ``max_staleness`` has to be about N times the
number of updates per step.

Steps are used in the order of their completion. A step whose weights are more than ``max_staleness`` versions old is
discarded, counted (``rollouts/discarded``) and recorded (``rollouts_discarded``).

The moments of rollouts fire in the learner when it receives a step. The only curriculum is kept here: it chooses the
lesson of each submitted step, and counts the results of the steps that are used. Evaluations and results of hooks are
recorded here too, at the number of the step that they arrive with.

`RolloutFleet` has the actors, each of which makes one step at a time and is replaced if it dies. A supervisor thread
waits on a call to each actor that only returns when the actor is closed, so a death is noticed when the process ends,
within a heartbeat at most. It is recorded as ``worker_died`` and as an ``alert`` that names the worker, and a new actor
continues after the last completed step (``worker_restarted``). The step in progress is lost and made again.
Training ends if a worker cannot start, or dies `MAX_DEATHS` times without completing a step.

The fleet grows and shrinks while it works (`RemoteRollouts.resize`, or the tunable ``rollout_workers``). A worker that
leaves completes its step first, and continues from there if it is added again. One that is added and cannot start is
left out.
"""

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hookline._engine.checks import require_integer
from hookline._engine.errors import HooklineError, OptionError
from hookline._engine.torch_models import trained_state
from hookline.loops.control import Tunable
from hookline.loops.session import Session
from hookline.rl.ray_cluster import import_ray
from hookline.rl.rollouts.actor import HookMetrics, LessonAssignment, Peers, StepResult, worker_name
from hookline.rl.rollouts.curriculum import Curriculum
from hookline.rl.rollouts.scoring import lesson_metrics
from hookline.rl.types import Rollout

MAX_DEATHS = 5
CLOSE_SECONDS = 10.0
SUPERVISION_GROUP = "supervision"
"""The concurrency group of `RolloutActor.wait_closed`, which runs while a step is being made."""

State = dict[str, Any]
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


@dataclass(slots=True, eq=False)
class WorkerHandle:
    """A rollout worker, whichever actor runs it at present.

    Attributes:
        closed_ref: The pending call of `RolloutActor.wait_closed`.
        start_ref: The pending call of `RolloutActor.start`.
        state: The worker's state after its last completed step.
        submitted: The number of steps submitted so far.
        pid: The process of the actor; None until it has started.
        deaths: Deaths since the last completed step.
        is_added: Whether it was added to a fleet that works without it.
        is_leaving: Whether it gets no more steps.
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
    is_added: bool = False
    is_leaving: bool = False

    @property
    def name(self) -> str:
        """The worker's name in the record."""
        return worker_name(self.index)


class RolloutFleet:
    """Actors that make rollouts.

    Args:
        make_actor: Makes an actor.
        states: The state that each worker continues from; None for a new worker. Those beyond the number of workers are
            for workers that are added later.
        workers: The number of workers; as many as there are states by default.
        report: Called with the name and the data of events, from any thread.
        heartbeat_seconds: The longest wait before the workers are checked again.
    """

    def __init__(
        self,
        make_actor: ActorFactory,
        states: Sequence[dict[str, Any] | None],
        *,
        workers: int | None = None,
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
        self._saved = dict(enumerate(states))
        self._leaving: list[WorkerHandle] = []
        self._count = workers or len(states)
        self._workers = [WorkerHandle(index, state=self._saved.get(index)) for index in range(self._count)]
        for worker in self._workers:
            self._start_actor(worker)
        self._supervisor = threading.Thread(target=self._supervise, name="hookline-fleet", daemon=True)
        self._supervisor.start()

    @property
    def outstanding(self) -> int:
        """The number of steps in progress or waiting to be collected."""
        return sum(worker.step is not None for worker in self._workers)

    @property
    def size(self) -> int:
        """The number of workers that get steps."""
        return sum(not worker.is_leaving for worker in self._workers)

    @property
    def actors(self) -> dict[int, Any]:
        """The actors that have started, by the index of the worker."""
        with self._changed:
            return {worker.index: worker.actor for worker in self._workers if worker.pid and not worker.is_leaving}

    def states(self) -> list[dict[str, Any] | None]:
        """Return the state of each worker after its last completed step, of those that left as well."""
        with self._changed:
            states = self._saved | {worker.index: worker.state for worker in self._workers}
            return [states.get(index) for index in range(max(states) + 1)]

    def resize(self, count: int) -> None:
        """Add workers, or let those with the highest indices leave when they have completed their step."""
        with self._changed:
            self._count = count
            for worker in self._workers:
                worker.is_leaving = worker.index >= count
            self._add_missing()
            self._let_leave()

    def idle(self) -> list[WorkerHandle]:
        """Return the workers that can take a step, those with the fewest steps so far first."""
        with self._changed:
            ready = [worker for worker in self._workers if worker.pid is not None and not worker.is_leaving]
            idle = [worker for worker in ready if worker.step is None]
            return sorted(idle, key=lambda worker: worker.submitted)

    def submit(
        self,
        worker: WorkerHandle,
        version: int,
        weights: Any,
        assignment: LessonAssignment | None = None,
        peers: Peers | None = None,
    ) -> None:
        """Have a worker make a step; ``weights`` is a reference into the object store."""
        with self._changed:
            result = worker.actor.roll_out.remote(version, weights, assignment, peers)
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
        # Without the lock, so that the supervisor can replace an actor meanwhile. Of several completed steps the one
        # with the oldest weights comes first: it is the next to become too old.
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
            with self._changed:
                self._let_leave()
            return None
        except self._ray.exceptions.RayTaskError as error:
            cause: BaseException = error.cause if isinstance(error.cause, BaseException) else error
            cause.add_note(f"hookline: raised in {worker.name}.")
            raise cause from error
        with self._changed:
            worker.state, worker.deaths = result.state, 0
            self._let_leave()
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
        for worker in (*self._workers, *self._leaving):
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
                    present = (*self._workers, *self._leaving)
                    refs = {worker.closed_ref: (worker, worker.actor) for worker in present}
                    refs |= {worker.start_ref: (worker, worker.actor) for worker in self._workers if worker.pid is None}
                ready, _ = self._ray.wait(list(refs), num_returns=1, timeout=self._heartbeat_seconds)
                for ref in ready:
                    worker, actor = refs[ref]
                    try:
                        started = self._ray.get(ref)
                    except self._ray.exceptions.RayError as error:
                        self._replace_actor(worker, actor, error)
                    else:
                        if started is not None:
                            self._mark_started(worker, started)
                        elif worker in self._leaving:  # wait_closed() returns None
                            self._mark_left(worker)
        except Exception as error:  # Ray itself has gone: next_result() raises it
            self._fail(error)

    def _mark_started(self, worker: WorkerHandle, started: Mapping[str, Any]) -> None:
        with self._changed:
            is_restart, worker.has_started, worker.pid = worker.has_started, True, started["pid"]
            if not self._is_closed:
                self._report("worker_restarted" if is_restart else "worker_started", worker=worker.name, **started)
            self._changed.notify_all()

    def _add_missing(self) -> None:
        """Start the workers that there should be; called with the lock."""
        # One that still closes its journal is waited for: two actors must not write the same one.
        present = {worker.index for worker in (*self._workers, *self._leaving)}
        for index in range(self._count):
            if index not in present:
                worker = WorkerHandle(index, state=self._saved.get(index), is_added=True)
                self._workers.append(worker)
                self._start_actor(worker)

    def _let_leave(self) -> None:
        """Close the leaving workers that have no step; called with the lock."""
        for worker in [each for each in self._workers if each.is_leaving and each.step is None]:
            self._workers.remove(worker)
            self._saved[worker.index] = worker.state
            if worker.pid is None:  # not started yet
                self._ray.kill(worker.actor)
                self._report("worker_removed", worker=worker.name)
            else:
                self._leaving.append(worker)
                worker.actor.close.remote()

    def _mark_left(self, worker: WorkerHandle) -> None:
        with self._changed:
            self._leaving.remove(worker)
            self._ray.kill(worker.actor)
            if not self._is_closed:
                self._report("worker_removed", worker=worker.name, pid=worker.pid)
                self._add_missing()

    def _replace_actor(self, worker: WorkerHandle, actor: Any, error: BaseException) -> None:
        """Replace a dead actor, once: both threads may have noticed its death."""
        with self._changed:
            if self._is_closed or self._failure is not None or worker.actor is not actor:
                return
            if worker in self._leaving:  # it ended while it closed
                self._mark_left(worker)
                return
            if worker not in self._workers:
                return
            self._ray.kill(actor)  # it is still alive if it failed in start()
            worker.deaths += 1
            gives_up = not worker.has_started or worker.deaths >= MAX_DEATHS
            is_dispensable = gives_up and worker.is_added and not worker.has_started
            message = _death_message(worker, error, gives_up=gives_up)
            self._report(
                "worker_died", worker=worker.name, pid=worker.pid, deaths=worker.deaths, error=str(error)[:2000]
            )
            self._report("alert", worker=worker.name, severity="error", message=message)
            if is_dispensable or (worker.is_leaving and worker.step is None):
                self._workers.remove(worker)
                self._saved[worker.index] = worker.state
            elif gives_up:
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
    if not worker.has_started and worker.is_added:
        return f"{worker.name} cannot start; training continues without it: {lines[-1][:500]}"
    if not worker.has_started:
        return f"{worker.name} cannot start, so training ends: {lines[-1][:500]}"
    died = f"{worker.name} (process {worker.pid}) died"
    if gives_up:
        return f"{died}, {worker.deaths} times in a row without a rollout step, so training ends: {lines[-1][:500]}"
    return f"{died} and is being restarted; training continues without it in the meantime."


class RemoteRollouts:
    """A `RolloutSource` of actors, which generate with an `HFPolicy`.

    Args:
        actor_factory: Given the directory of the run, returns the function that makes actors.
        workers: The number of workers.
        curriculum: Chooses the lessons; without one each worker chooses its own.
        updates: How many versions of the weights the learner makes with each step.
        restarted: Why the learner was started again; empty if it was not.
        alert: Called with the text of each alert, from any thread.
    """

    exact_logprobs = True

    def __init__(
        self,
        actor_factory: Callable[[Path | None], ActorFactory],
        *,
        workers: int,
        max_staleness: int,
        curriculum: Curriculum | None = None,
        updates: int = 1,
        heartbeat_seconds: float = 1.0,
        restarted: str = "",
        alert: Callable[[str], object],
    ) -> None:
        self._ray = import_ray()
        self._actor_factory, self._workers, self._curriculum = actor_factory, workers, curriculum
        self.max_staleness, self._updates = max_staleness, updates
        self._heartbeat_seconds, self._alert, self._restarted = heartbeat_seconds, alert, restarted
        self._states: list[State | None] = [None] * workers
        self._fleet: RolloutFleet | None = None
        self._loop: Session | None = None
        self._weights: Any = None
        self._remaining_updates = 0
        self._count: Tunable | None = None
        self._resized: int | None = None
        self.step_seconds: dict[str, float] = {}
        """The seconds of the latest step that was learnt from, by its worker's activity."""
        self._time = _TimeShares()
        self._delivered_at: float | None = None
        self._throughput: dict[str, float] = {}
        self.step = self.latest_version = self.discarded = 0

    def attach_to(self, loop: Session) -> None:
        """Start the workers, which record in the directory of the learner's run."""
        self._loop = loop
        if self._restarted:
            self._report("learner_restarted", error=self._restarted)
            message = f"The learner died and continues from step {loop.step}: {self._restarted}"
            self._report("alert", severity="error", message=message)
        # Of a checkpoint, the value that a command set is restored here.
        self._count = loop.tunable("rollout_workers", self._resized or self._workers, min=1)
        self._workers = self._count.value
        self._publish(loop.step, trained_state(loop.model))
        self._fleet = RolloutFleet(
            self._actor_factory(loop.output_dir),
            self._states,
            workers=self._workers,
            report=self._report,
            heartbeat_seconds=self._heartbeat_seconds,
        )

    def roll_out(self) -> list[Rollout]:
        """Return the rollouts of the next completed step that is not too old."""
        self._remaining_updates = 0
        while True:
            self._apply_size()
            self._submit()
            with self._time.waiting():
                completed = self._running_fleet().next_result()
            if completed is None:
                continue
            self._time.add(completed[2].seconds)
            result, is_stale = completed[2], self._discard_if_stale(*completed)
            if not is_stale:
                self._remaining_updates = self._updates
                own = result.seconds
                self.step_seconds = {name: own[name] for name in ("generate", "score") if name in own}
                self._deliver(result.rollouts)
            self._record(result.hook_metrics)
            if not is_stale:
                return result.rollouts

    def resize(self, workers: int) -> None:
        """Change the number of workers.

        Workers that are added begin as soon as Ray has room for them; those that leave complete their step first. It
        does the same as the command ``set rollout_workers``.
        """
        require_integer("workers", workers)
        self._resized = workers
        if self._count is not None:
            self._count.value = workers

    def share_results(self, gather: Callable[[Any], list[Any]]) -> None:
        """Do nothing: one process learns."""

    def update_weights(self, version: int, weights: Mapping[str, Any]) -> None:
        """Make the next steps with new weights."""
        loop = self._loop
        if loop is None or version == self.latest_version:
            return
        self._publish(version, weights)
        self._remaining_updates = max(0, self._remaining_updates - 1)
        loop.callbacks.on_weights_update(loop, version)
        if loop.in_step:
            shares = self._time.take()
            own = {"rollouts/discarded": self.discarded, "workers/count": self._running_fleet().size}
            loop.log(own | self._throughput | shares)
        self._apply_size()
        self._submit()

    def close_hooks(self) -> None:
        """Close the workers, and the hooks of worker 0."""
        if self._fleet is not None:
            hook_metrics = self._fleet.close()
            self._states, self._fleet = self._fleet.states(), None
            self._record(hook_metrics)

    def state_dict(self) -> State:
        """Return the state of each worker after its last step, in a form that a single worker can load too."""
        states = self._states if self._fleet is None else self._fleet.states()
        shared = {} if self._curriculum is None else {"curriculum": self._curriculum.state_dict()}
        return {**_first(states), **shared, "workers": states, "taken": self.step, "resized": self._resized}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state; additional workers start from the state of the first."""
        saved = list(state.get("workers", [dict(state)]))
        first = _first(saved)
        added = first | {"hooks": {}} if first else None
        self.step = state.get("taken", state.get("step", 0))
        if self._curriculum is not None and "curriculum" in state:
            self._curriculum.load_state_dict(state["curriculum"])
        self._resized = state.get("resized")
        count = max(self._workers, len(saved))
        self._states = [saved[index] if index < len(saved) else added for index in range(count)]

    def _running_fleet(self) -> RolloutFleet:
        if self._fleet is None:
            raise OptionError("roll_out(): the workers are closed, or attach_to(learner) was not called yet.")
        return self._fleet

    def _apply_size(self) -> None:
        """Grow or shrink the fleet, if that was asked for."""
        if self._count is None or self._count.value == self._workers:
            return
        before, self._workers = self._workers, self._count.value
        self._report("workers_resized", before=before, workers=self._workers)
        cpus = self._ray.cluster_resources().get("CPU", 0)
        if before < self._workers and cpus < self._workers + 1:
            message = (
                f"Ray has {cpus:g} CPUs, and {self._workers} rollout workers and the learner need one each: those "
                "without one begin when it is available."
            )
            self._report("alert", severity="warning", message=message)
        self._running_fleet().resize(self._workers)

    def _publish(self, version: int, weights: Mapping[str, Any]) -> None:
        self._weights = self._ray.put({name: tensor.detach().cpu() for name, tensor in weights.items()})
        self.latest_version = version

    def _submit(self) -> None:
        """Submit steps to idle workers, as long as they can be learnt from in time."""
        fleet = self._running_fleet()
        for worker in fleet.idle():
            if self._remaining_updates + fleet.outstanding * self._updates > self.max_staleness:
                return
            assignment = None
            if self._curriculum is not None:
                assignment = LessonAssignment(self._curriculum.sample_lesson().id, self._curriculum.state_dict())
            peers = None
            if worker.index == 0:  # the one with hooks, which evaluate
                others = [actor for index, actor in fleet.actors.items() if index]
                peers = Peers(others, self.latest_version, [self._weights]) if others else None
            fleet.submit(worker, self.latest_version, self._weights, assignment, peers)

    def _discard_if_stale(self, worker: WorkerHandle, step: PendingStep, result: StepResult) -> bool:
        staleness = self.latest_version - step.version
        if staleness <= self.max_staleness or not result.rollouts:
            return False
        self.discarded += len(result.rollouts)
        samples = [each.id for each in result.rollouts if each.recorded]
        if samples and self._loop is not None and self._loop.recorder is not None:
            self._loop.recorder.sample_use(samples, self._loop.step + 1, "stale")
        self._report(
            "rollouts_discarded",
            worker=worker.name,
            rollouts=len(result.rollouts),
            version=step.version,
            staleness=staleness,
        )
        return True

    def _deliver(self, rollouts: list[Rollout]) -> None:
        """Count a step and fire its moments."""
        loop, lesson = self._loop, rollouts[0].lesson if rollouts else None
        if loop is not None:
            loop.callbacks.on_rollout_start(loop, self.step, lesson or "")
            loop.callbacks.on_rollout_end(loop, self.step, rollouts)
        self.step += 1
        if self._curriculum is not None and lesson is not None:
            self._curriculum.record(lesson, [each.success for each in rollouts], self.step)
            for event in self._curriculum.take_events():
                self._report(f"lesson_{event.kind}", event.step, lesson=event.lesson, success_rate=event.success_rate)
            if loop is not None:
                loop.commit(self.step, lesson_metrics(lesson, rollouts) | self._curriculum.metrics(), axis="rollout")
        # Throughput of all workers: the tokens of a step over the time between two steps. The time that the learner
        # waited for a step would not measure the workers.
        now, before = time.monotonic(), self._delivered_at
        if before is not None:
            tokens = sum(len(each.completion.token_ids) for each in rollouts)
            self._throughput = {"tokens_per_second": tokens / max(now - before, 1e-9)}
        self._delivered_at = now

    def _record(self, hook_metrics: Sequence[HookMetrics]) -> None:
        """Record evaluations and results of hooks as a worker in this process would."""
        loop = self._loop
        if loop is None:
            return
        for each in hook_metrics:
            if each.evaluation is None:
                loop.commit(self.step, each.metrics, axis="rollout")
            else:
                loop.record_evaluation(each.evaluation, each.metrics, step=self.step)

    def _report(self, event: str, step: int | None = None, **data: Any) -> None:
        """Record an event, and pass on the text of alerts; called from any thread."""
        if self._loop is not None and self._loop.recorder is not None:
            self._loop.recorder.event(event, step=self._loop.step if step is None else step, **data)
        if event == "alert":
            self._alert(data["message"])


class _TimeShares:
    """How the workers and the learner spent their time since the learner's last step, as shares that add up to 1.

    Each measures with its own clock, and a worker reports its time with its step.
    """

    def __init__(self) -> None:
        self._workers: Counter[str] = Counter()
        self._waited = 0.0
        self._began: float | None = None

    def add(self, seconds: Mapping[str, float]) -> None:
        """Add the time of a worker."""
        self._workers.update(seconds)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time of the block as the learner waiting for rollouts."""
        began = time.monotonic()
        if self._began is None:
            self._began = began
        try:
            yield
        finally:
            self._waited += time.monotonic() - began

    def take(self) -> dict[str, float]:
        """Return the shares, and begin again."""
        now, total = time.monotonic(), self._workers.total()
        shares = {f"workers/{name}": own / total for name, own in self._workers.items()} if total else {}
        if self._began is not None and now > self._began:
            waiting = min(1.0, self._waited / (now - self._began))
            shares |= {"learner/waiting": waiting, "learner/learning": 1 - waiting}
        self._workers.clear()
        self._waited, self._began = 0.0, now
        return shares


def _first(states: Sequence[State | None]) -> State:
    return next((state for state in states if state is not None), {})
