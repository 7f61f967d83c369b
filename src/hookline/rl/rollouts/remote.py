"""`RemoteRollouts`: the rollouts of a fleet of actors, for a learner that need not know where they are made.

The weights of each version are put into the object store once; a worker gets the newest when it is asked for a step.
It is asked only if what it makes can be learnt from in time: the steps that are being made or wait to be learnt from,
together with what the learner still does with the last, are never more than `max_staleness` versions of weights, and
no worker is more than one step ahead. So with ``max_staleness=0`` one worker at a time rolls out, and for N workers to
do so ``max_staleness`` has to be about N, times the number of updates that are made with each step.

Steps are learnt from in the order in which they are complete. One that took so long that its weights are more than
`max_staleness` versions old is thrown away, counted (``rollouts/discarded``) and recorded (``rollouts_discarded``).

The moments of rollouts fire in the learner, when it is handed a step. The curriculum is kept here, one for all workers:
it draws the lesson of each step that is asked for, and counts the results of those that are learnt from. Evaluations
and what hooks return are recorded here too, at the number of the step that the learner is handed with them.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hookline._engine.errors import OptionError
from hookline._engine.torch_models import plain_state
from hookline.loops.session import Session
from hookline.rl.rollouts.actor import HookRow, LessonOrder, StepResult
from hookline.rl.rollouts.curriculum import Curriculum
from hookline.rl.rollouts.fleet import Hire, RolloutFleet, Seat, Step, import_ray
from hookline.rl.types import Rollout

State = dict[str, Any]


class RemoteRollouts:
    """Rollouts from actors, which write with an `HFPolicy`.

    Args:
        hire: Given the directory of the run, returns what makes the actors.
        workers: How many.
        curriculum: What draws the lessons; without one each worker draws for itself.
        updates: How many versions of the weights the learner makes with each step.
        alarm: Called with what an alarm says, from any thread.
    """

    exact_logprobs = True

    def __init__(
        self,
        hire: Callable[[Path | None], Hire],
        *,
        workers: int,
        max_staleness: int,
        curriculum: Curriculum | None = None,
        updates: int = 1,
        heartbeat_seconds: float = 1.0,
        alarm: Callable[[str], object],
    ) -> None:
        self._ray = import_ray()
        self._hire, self._workers, self._curriculum = hire, workers, curriculum
        self.max_staleness, self._updates = max_staleness, updates
        self._heartbeat_seconds, self._alarm = heartbeat_seconds, alarm
        self._states: list[State | None] = [None] * workers
        self._fleet: RolloutFleet | None = None
        self._loop: Session | None = None
        self._weights: Any = None
        self._to_learn = 0
        self._handed_over_at: float | None = None
        self._throughput: dict[str, float] = {}
        self.step = self.latest_version = self.discarded = 0

    def work_for(self, loop: Session) -> None:
        """Start the workers, which record in the directory of the learner's run."""
        self._loop = loop
        self._publish(loop.step, plain_state(loop.model))
        self._start(loop)

    def roll_out(self) -> list[Rollout]:
        """The rollouts of the next step that is complete and not too old."""
        self._to_learn = 0
        while True:
            self._ask()
            result = self._required.next_result()
            if result is None:
                continue
            is_too_old, rollouts = self._is_too_old(*result), result[2].rollouts
            if not is_too_old:
                self._to_learn = self._updates
                self._hand_over(rollouts)
            self._record(result[2].rows)
            if not is_too_old:
                return rollouts

    def update_weights(self, version: int, weights: Mapping[str, Any]) -> None:
        """Let the next steps be made with new weights."""
        loop = self._loop
        if loop is None or version == self.latest_version:
            return
        self._publish(version, weights)
        self._to_learn = max(0, self._to_learn - 1)
        loop.callbacks.on_weights_update(loop, version)
        if loop.in_step:
            loop.log({"rollouts/discarded": self.discarded, **self._throughput})
        self._ask()

    def close_hooks(self) -> None:
        """Let the workers, and the hooks of worker 0, finish and leave."""
        if self._fleet is not None:
            rows = self._fleet.close()
            self._states, self._fleet = self._fleet.states(), None
            self._record(rows)

    def state_dict(self) -> State:
        """Where each worker stood after its last step; and that of the first as if it were the only one."""
        states = self._states if self._fleet is None else self._fleet.states()
        shared = {} if self._curriculum is None else {"curriculum": self._curriculum.state_dict()}
        return {**_first(states), **shared, "workers": states, "taken": self.step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there; a worker that was not there before begins with what the first knew."""
        known = list(state.get("workers", [dict(state)]))
        first = _first(known)
        new = first | {"hooks": {}} if first else None
        self.step = state.get("taken", state.get("step", 0))
        if self._curriculum is not None and "curriculum" in state:
            self._curriculum.load_state_dict(state["curriculum"])
        self._states = [known[index] if index < len(known) else new for index in range(self._workers)]

    @property
    def _required(self) -> RolloutFleet:
        if self._fleet is None:
            raise OptionError("roll_out(): the workers have left, or work_for(learner) was not called yet.")
        return self._fleet

    def _start(self, loop: Session) -> None:
        self._fleet = RolloutFleet(
            self._hire(loop.output_dir),
            self._states,
            tell=self._tell,
            heartbeat_seconds=self._heartbeat_seconds,
        )

    def _publish(self, version: int, weights: Mapping[str, Any]) -> None:
        self._weights = self._ray.put({name: tensor.detach().cpu() for name, tensor in weights.items()})
        self.latest_version = version

    def _ask(self) -> None:
        """Ask idle workers for steps, as long as those can be learnt from in time."""
        fleet = self._required
        for seat in fleet.idle():
            if self._to_learn + fleet.outstanding * self._updates > self.max_staleness:
                return
            fleet.ask(seat, self.latest_version, self._weights, self._next_lesson())

    def _next_lesson(self) -> LessonOrder | None:
        if self._curriculum is None:
            return None
        return LessonOrder(self._curriculum.sample_lesson().id, self._curriculum.state_dict())

    def _is_too_old(self, seat: Seat, step: Step, result: StepResult) -> bool:
        staleness = self.latest_version - step.version
        if staleness <= self.max_staleness or not result.rollouts:
            return False
        self.discarded += len(result.rollouts)
        self._tell(
            "rollouts_discarded",
            worker=seat.name,
            rollouts=len(result.rollouts),
            version=step.version,
            staleness=staleness,
        )
        return True

    def _hand_over(self, rollouts: list[Rollout]) -> None:
        loop, lesson = self._loop, rollouts[0].lesson if rollouts else None
        if loop is not None:
            loop.callbacks.on_rollout_start(loop, self.step, lesson or "")
            loop.callbacks.on_rollout_end(loop, self.step, rollouts)
        self.step += 1
        if self._curriculum is not None and lesson is not None:
            self._curriculum.record(lesson, [each.success for each in rollouts], self.step)
            for event in self._curriculum.take_events():
                self._tell(f"lesson_{event.kind}", event.step, lesson=event.lesson, success_rate=event.success_rate)
        self._measure(rollouts)

    def _record(self, rows: Sequence[HookRow]) -> None:
        """Record evaluations and what hooks returned, as a worker in this process would."""
        loop = self._loop
        if loop is None:
            return
        for row in rows:
            if row.evaluation is None:
                loop.commit(self.step, row.metrics, axis="rollout")
            else:
                loop.record_evaluation(row.evaluation, row.metrics, step=self.step)

    def _measure(self, rollouts: list[Rollout]) -> None:
        """Count the tokens of all workers by the time between two steps: how long the learner waited says nothing."""
        now, before = time.monotonic(), self._handed_over_at
        if before is not None:
            tokens = sum(len(each.completion.token_ids) for each in rollouts)
            self._throughput = {"tokens_per_second": tokens / max(now - before, 1e-9)}
        self._handed_over_at = now

    def _tell(self, name: str, step: int | None = None, **facts: Any) -> None:
        """Record what happens to the workers, and pass on alarms; from any thread."""
        if self._loop is not None and self._loop.recorder is not None:
            self._loop.recorder.event(name, step=self._loop.step if step is None else step, **facts)
        if name == "alert":
            self._alarm(facts["message"])


def _first(states: Sequence[State | None]) -> State:
    return next((state for state in states if state is not None), {})
