"""`RemoteRollouts`: rollouts from a fleet of actors, for a learner that does not depend on where they are made.

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
"""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hookline._engine.errors import OptionError
from hookline._engine.torch_models import plain_state
from hookline.loops.session import Session
from hookline.rl.ray_cluster import import_ray
from hookline.rl.rollouts.actor import HookMetrics, LessonAssignment, StepResult
from hookline.rl.rollouts.curriculum import Curriculum
from hookline.rl.rollouts.fleet import ActorFactory, PendingStep, RolloutFleet, WorkerHandle
from hookline.rl.types import Rollout

State = dict[str, Any]


class RemoteRollouts:
    """A `RolloutSource` of actors, which generate with an `HFPolicy`.

    Args:
        actor_factory: Given the directory of the run, returns the function that makes actors.
        workers: The number of workers.
        curriculum: Chooses the lessons; without one each worker chooses its own.
        updates: How many versions of the weights the learner makes with each step.
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
        alert: Callable[[str], object],
    ) -> None:
        self._ray = import_ray()
        self._actor_factory, self._workers, self._curriculum = actor_factory, workers, curriculum
        self.max_staleness, self._updates = max_staleness, updates
        self._heartbeat_seconds, self._alert = heartbeat_seconds, alert
        self._states: list[State | None] = [None] * workers
        self._fleet: RolloutFleet | None = None
        self._loop: Session | None = None
        self._weights: Any = None
        self._remaining_updates = 0
        self._delivered_at: float | None = None
        self._throughput: dict[str, float] = {}
        self.step = self.latest_version = self.discarded = 0

    def attach_to(self, loop: Session) -> None:
        """Start the workers, which record in the directory of the learner's run."""
        self._loop = loop
        self._publish(loop.step, plain_state(loop.model))
        self._fleet = RolloutFleet(
            self._actor_factory(loop.output_dir),
            self._states,
            report=self._report,
            heartbeat_seconds=self._heartbeat_seconds,
        )

    def roll_out(self) -> list[Rollout]:
        """Return the rollouts of the next completed step that is not too old."""
        self._remaining_updates = 0
        while True:
            self._submit()
            completed = self._running_fleet().next_result()
            if completed is None:
                continue
            result, is_stale = completed[2], self._discard_if_stale(*completed)
            if not is_stale:
                self._remaining_updates = self._updates
                self._deliver(result.rollouts)
            self._record(result.hook_metrics)
            if not is_stale:
                return result.rollouts

    def update_weights(self, version: int, weights: Mapping[str, Any]) -> None:
        """Make the next steps with new weights."""
        loop = self._loop
        if loop is None or version == self.latest_version:
            return
        self._publish(version, weights)
        self._remaining_updates = max(0, self._remaining_updates - 1)
        loop.callbacks.on_weights_update(loop, version)
        if loop.in_step:
            loop.log({"rollouts/discarded": self.discarded, **self._throughput})
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
        return {**_first(states), **shared, "workers": states, "taken": self.step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state; additional workers start from the state of the first."""
        saved = list(state.get("workers", [dict(state)]))
        first = _first(saved)
        added = first | {"hooks": {}} if first else None
        self.step = state.get("taken", state.get("step", 0))
        if self._curriculum is not None and "curriculum" in state:
            self._curriculum.load_state_dict(state["curriculum"])
        self._states = [saved[index] if index < len(saved) else added for index in range(self._workers)]

    def _running_fleet(self) -> RolloutFleet:
        if self._fleet is None:
            raise OptionError("roll_out(): the workers are closed, or attach_to(learner) was not called yet.")
        return self._fleet

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
            fleet.submit(worker, self.latest_version, self._weights, assignment)

    def _discard_if_stale(self, worker: WorkerHandle, step: PendingStep, result: StepResult) -> bool:
        staleness = self.latest_version - step.version
        if staleness <= self.max_staleness or not result.rollouts:
            return False
        self.discarded += len(result.rollouts)
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


def _first(states: Sequence[State | None]) -> State:
    return next((state for state in states if state is not None), {})
