"""`RolloutActor`: a rollout worker in its own process, which makes one step per request.

It records its rollouts in its own journal (``rollout0``, ...) in the directory of the learner's run. Evaluations and
the results of hooks are sent to the learner, which records them under their usual names. There is one curriculum, the
learner's: each request names the lesson of the step and carries the curriculum's state.

The state of a worker, apart from its weights (its step and the states of its hooks), is sent to the learner with every
step, so a replacement can continue from there if the process dies. Steps that were recorded but never reached the
learner are marked as repeated.
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
    """Return the name of a rollout worker in the record and in alerts."""
    return f"rollout{index}"


@dataclass(slots=True)
class WorkerSpec:
    """What all rollout actors of a training are built from.

    Attributes:
        hooks: The hooks of worker 0, the only one with hooks; None for the default hooks.
        device: Where the policy is moved; None leaves it where it is.
    """

    config: RolloutWorkerConfig
    model: Any
    tokenizer: Any
    hooks: list[Hook] | None
    device: str | None = None


@dataclass(frozen=True, slots=True)
class LessonAssignment:
    """The lesson of a step, and the state of the curriculum that chose it."""

    lesson_id: str
    curriculum: dict[str, Any]


@dataclass(frozen=True, slots=True)
class HookMetrics:
    """Metrics for the learner to record: those of a named evaluation, or results of hooks if there is no name."""

    evaluation: str | None
    metrics: dict[str, Any]


@dataclass(frozen=True, slots=True)
class StepResult:
    """The rollouts of a step, and the worker's state after it."""

    rollouts: list[Rollout]
    state: dict[str, Any]
    hook_metrics: list[HookMetrics]


class JournalingWorker(RolloutWorker):
    """A rollout worker that adds a journal to the run of a learner in another process."""

    assignment: LessonAssignment | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._hook_metrics: SimpleQueue[HookMetrics] = SimpleQueue()  # hooks on other threads add to it

    def take_hook_metrics(self) -> list[HookMetrics]:
        """Return the metrics for the learner since the last call."""
        taken = []
        while not self._hook_metrics.empty():
            taken.append(self._hook_metrics.get_nowait())
        return taken

    def record_evaluation(self, name: str, metrics: dict[str, Any], *, step: int | None = None, **options: Any) -> None:
        """Leave an evaluation to the learner."""
        self._logged.add(self.step if step is None else step, metrics, EVALUATIONS)
        self.metrics.update(metrics)
        self._hook_metrics.put(HookMetrics(name, plain(metrics)))

    def _record_hook_row(self, step: int, values: dict[str, Any]) -> None:
        self.metrics.update(values)
        self._hook_metrics.put(HookMetrics(None, plain(values)))

    def _next_lesson(self) -> Lesson:
        if self.assignment is None:
            return super()._next_lesson()
        self.curriculum.load_state_dict(self.assignment.curriculum)
        return self.curriculum.lesson(self.assignment.lesson_id)

    def _update_curriculum(self, lesson: Lesson, rollouts: list[Rollout]) -> None:
        if self.assignment is None:  # otherwise the learner does, for all workers
            super()._update_curriculum(lesson, rollouts)

    def record_in(self, run_dir: Path, name: str) -> None:
        """Begin to record; later steps of an earlier worker with this name are marked as repeated."""
        self.recorder, self.output_dir = Recorder(run_dir, name=name, durability=self.durability), run_dir
        if self.recorder.journal.session > 0:
            self.recorder.resume(self.step)
        self.callbacks.health.on_failure = partial(record_failure, self.recorder)
        self.hook_record = HookRecord(self.recorder, lambda: self.step)
        self._open_hooks()
        self.hook_record.open()

    def roll_out(self) -> list[Rollout]:
        """Make one rollout step, on any thread."""
        self._thread, self.state, self.has_started = threading.get_ident(), "running", True
        return super().roll_out()

    def close(self) -> None:
        """Close the hooks and the journal."""
        self.close_hooks()
        if self.recorder is not None and self.hook_record is not None:
            self.hook_record.close()
            self.recorder.close()


class RolloutActor:
    """Runs as a Ray actor; the learner calls its methods.

    Args:
        run_dir: The directory of the run; None records nothing.
        state: The state to continue from, if the actor replaces another.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        index: int,
        *,
        run_dir: Path | None = None,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        self._spec, self._index, self._run_dir, self._state = spec, index, run_dir, state
        self._version: int | None = None
        self._closed = threading.Event()

    def start(self) -> dict[str, Any]:
        """Build the worker, and return where it runs.

        This is not part of the constructor because Ray reports the errors of a method better.
        """
        spec = self._spec
        self._worker = JournalingWorker(
            spec.config,
            policy=HFPolicy(spec.model, spec.tokenizer, device=spec.device),
            hooks=spec.hooks if self._index == 0 else [],
            index=self._index,
        )
        if self._state is not None:
            self._worker.load_state_dict(self._state)
        if self._run_dir is not None:
            self._worker.record_in(self._run_dir, worker_name(self._index))
        return {"pid": os.getpid(), "host": socket.gethostname(), "rollout_step": self._worker.step}

    def wait_closed(self) -> None:
        """Return once the worker is closed; the call fails as soon as the process dies."""
        self._closed.wait()

    def roll_out(
        self, version: int, weights: Mapping[str, Any], assignment: LessonAssignment | None = None
    ) -> StepResult:
        """Make one rollout step of a lesson with these weights."""
        if version != self._version:
            self._worker.update_weights(version, weights)
            self._version = version
        self._worker.assignment = assignment
        rollouts = self._worker.roll_out()
        self._worker.recording.secure()  # the learner's next checkpoint covers this step
        return StepResult(rollouts, self._worker.state_dict(), self._worker.take_hook_metrics())

    def close(self) -> list[HookMetrics]:
        """Close the worker, and return the last results of its hooks."""
        self._worker.close()
        self._closed.set()
        return self._worker.take_hook_metrics()
