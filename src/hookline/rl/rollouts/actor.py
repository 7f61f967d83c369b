"""`RolloutActor`: a rollout worker in a process of its own, which makes a step whenever it is asked for one.

It records its rollouts in a journal of its own, ``rollout0`` and so on, in the directory of the learner's run.
Evaluations and what hooks return go to the learner, which records them under their usual names. There is one
curriculum, the learner's: it names the lesson of each step, and its state comes with that.

What a worker knows besides its weights (the number of its step, the states of its hooks) goes to the learner with every
step, so that its successor can continue from there when its process dies. Steps that it recorded without handing them
over are marked as done again.
"""

import os
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from hookline._engine.hooks import Hook
from hookline._engine.metrics import plain
from hookline._record.recorder import Recorder
from hookline.loops.loop import EVALUATIONS
from hookline.loops.recording import HookRecord, record_failure
from hookline.rl.policies.hf import HFPolicy
from hookline.rl.rollouts.config import Lesson, RolloutWorkerConfig
from hookline.rl.rollouts.worker import RolloutWorker
from hookline.rl.types import Rollout


def worker_name(index: int) -> str:
    """What a rollout worker is called in the record and in alarms."""
    return f"rollout{index}"


@dataclass(slots=True)
class RolloutOrder:
    """What all rollout actors of a training are made from.

    Attributes:
        hooks: Those of worker 0, the only one that has hooks; None are the default ones.
        device: Where the policy is put; without one it stays where it is.
    """

    config: RolloutWorkerConfig
    model: Any
    tokenizer: Any
    hooks: list[Hook] | None
    device: str | None = None


@dataclass(frozen=True, slots=True)
class LessonOrder:
    """The lesson of a step, and the state of the curriculum that drew it."""

    lesson_id: str
    curriculum: dict[str, Any]


@dataclass(frozen=True, slots=True)
class HookRow:
    """Metrics for the learner to record: an evaluation of a name, or what hooks returned where there is none."""

    evaluation: str | None
    metrics: dict[str, Any]


@dataclass(frozen=True, slots=True)
class StepResult:
    """What came of a rollout step, and where the worker stands after it."""

    rollouts: list[Rollout]
    state: dict[str, Any]
    rows: list[HookRow]


class JournallingWorker(RolloutWorker):
    """A rollout worker that adds a journal to a run that is another's."""

    order: LessonOrder | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._hook_rows: SimpleQueue[HookRow] = SimpleQueue()  # a hook on another thread may add to it

    def take_rows(self) -> list[HookRow]:
        """What the learner is to record since the last call."""
        rows = []
        while not self._hook_rows.empty():
            rows.append(self._hook_rows.get_nowait())
        return rows

    def record_evaluation(self, name: str, metrics: dict[str, Any], *, step: int | None = None, **options: Any) -> None:
        """Leave an evaluation to the learner."""
        self._told.note(self.step if step is None else step, metrics, EVALUATIONS)
        self.metrics.update(metrics)
        self._hook_rows.put(HookRow(name, plain(metrics)))

    def _record_row(self, step: int, values: dict[str, Any]) -> None:
        self.metrics.update(values)
        self._hook_rows.put(HookRow(None, plain(values)))

    def _next_lesson(self) -> Lesson:
        if self.order is None:
            return super()._next_lesson()
        self.curriculum.load_state_dict(self.order.curriculum)
        return self.curriculum.lesson(self.order.lesson_id)

    def _count_results(self, lesson: Lesson, rollouts: list[Rollout]) -> None:
        if self.order is None:  # otherwise the learner counts them, for all workers
            super()._count_results(lesson, rollouts)

    def record_in(self, run_dir: Path, name: str) -> None:
        """Begin to record; what an earlier worker of the name recorded past this step is done again."""
        self.recorder, self.output_dir = Recorder(run_dir, name=name, durability=self.durability), run_dir
        if self.recorder.journal.session > 0:
            self.recorder.resume(self.step)
        self.callbacks.health.on_failure = partial(record_failure, self.recorder)
        self.hook_record = HookRecord(self.recorder, lambda: self.step)
        self._open_hooks()
        self.hook_record.open()

    def roll_out(self) -> list[Rollout]:
        """Make one rollout step, on whichever thread."""
        self._thread, self.state, self._train_started = threading.get_ident(), "running", True
        return super().roll_out()

    def leave(self) -> None:
        """Let the hooks finish, and finish the journal."""
        self.close_hooks()
        if self.recorder is not None and self.hook_record is not None:
            self.hook_record.close()
            self.recorder.close()


class RolloutActor:
    """Runs as an actor of Ray; the learner calls its methods.

    Args:
        run_dir: The directory of the run; None records nothing.
        state: Where to go on, where another was before it.
    """

    def __init__(
        self,
        order: RolloutOrder,
        index: int,
        *,
        run_dir: Path | None = None,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        self._order, self._index, self._run_dir, self._state = order, index, run_dir, state
        self._version: int | None = None
        self._ended = threading.Event()

    def greet(self) -> dict[str, Any]:
        """Set up the worker, which Ray tells errors of better than of a constructor's, and say where it is."""
        order = self._order
        self._worker = JournallingWorker(
            order.config,
            policy=HFPolicy(order.model, order.tokenizer, device=order.device),
            hooks=order.hooks if self._index == 0 else [],
            index=self._index,
        )
        if self._state is not None:
            self._worker.load_state_dict(self._state)
        if self._run_dir is not None:
            self._worker.record_in(self._run_dir, worker_name(self._index))
        return {"pid": os.getpid(), "host": socket.gethostname(), "rollout_step": self._worker.step}

    def lifeline(self) -> None:
        """Return when the worker has left; whoever waits for it notices at once when the process dies before."""
        self._ended.wait()

    def roll_out(self, version: int, weights: Mapping[str, Any], order: LessonOrder | None = None) -> StepResult:
        """Make one rollout step with these weights, of this lesson."""
        if version != self._version:
            self._worker.update_weights(version, weights)
            self._version = version
        self._worker.order = order
        rollouts = self._worker.roll_out()
        self._worker.secure_record()  # the next checkpoint of the learner covers this step
        return StepResult(rollouts, self._worker.state_dict(), self._worker.take_rows())

    def leave(self) -> list[HookRow]:
        """End in an orderly way; what hooks still gave."""
        self._worker.leave()
        self._ended.set()
        return self._worker.take_rows()
