"""`RolloutActor`: a rollout worker in its own process, which makes one step per request.

It records its rollouts in its own journal (``rollout0``, ...) in the directory of the learner's run, and what it prints
under this name. Evaluations and
the results of hooks are sent to the learner, which records them under their usual names. There is one curriculum, the
learner's: each request names the lesson of the step and carries the curriculum's state.

The state of a worker, apart from its weights (its step and the states of its hooks), is sent to the learner with every
step, so a replacement can continue from there if the process dies. Steps that were recorded but never reached the
learner are marked as repeated.
"""

import os
import random
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from hookline._engine.hooks import Hook
from hookline._engine.metrics import collect, copied, plain
from hookline._record.console import ConsoleWriter
from hookline._record.console_capture import Attachment, attach
from hookline._record.device import defer
from hookline._record.recorder import Recorder
from hookline.loops.loop import EVALUATIONS
from hookline.loops.recording import HookRecord, record_failure
from hookline.rl.policies.hf import HFPolicy
from hookline.rl.ray_cluster import import_ray
from hookline.rl.rollouts.config import Lesson, RolloutWorkerConfig
from hookline.rl.rollouts.rollout_maker import Made
from hookline.rl.rollouts.scoring import AdvantageOptions
from hookline.rl.rollouts.worker import DrawnEvaluation, RolloutWorker
from hookline.rl.types import Rollout


def worker_name(index: int) -> str:
    """Return the name of a rollout worker in the record and in alerts."""
    return f"rollout{index}"


@dataclass(slots=True)
class WorkerSpec:
    """The arguments from which all rollout actors of a training are built.

    Attributes:
        hooks: The hooks of worker 0, the only one with hooks; None for the default hooks.
        device: Where the policy is moved; None leaves it where it is.
        advantages: How advantages are computed.
    """

    config: RolloutWorkerConfig
    model: Any
    tokenizer: Any
    hooks: list[Hook] | None
    device: str | None = None
    advantages: AdvantageOptions = field(default_factory=AdvantageOptions)


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
    """The rollouts of a step, and the worker's state after it.

    Attributes:
        seconds: The worker's time since its last step, by activity: ``generate``, ``score``, ``weights``,
            ``other`` (hooks, evaluations, the record) and ``idle``.
    """

    rollouts: list[Rollout]
    state: dict[str, Any]
    hook_metrics: list[HookMetrics]
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Peers:
    """The other workers, which take a part of each evaluation.

    Attributes:
        actors: Their actors.
        weights: A reference to the weights of this version, in a list, since Ray fetches references themselves.
    """

    actors: list[Any]
    version: int
    weights: list[Any]


class JournalingWorker(RolloutWorker):
    """A rollout worker that adds a journal to the run of a learner in another process."""

    assignment: LessonAssignment | None = None
    evaluation_peers: Peers | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._begun: dict[tuple[str, str], _SharedEvaluation] = {}
        self._hook_metrics: SimpleQueue[HookMetrics] = SimpleQueue()  # hooks on other threads add to it
        self._console: Attachment | None = None

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
        row = copied(collect((values,), {}, defer))
        self._record_media(step, row, None)  # in this worker's own journal: the learner gets the numbers
        self.metrics.update(row)
        self._hook_metrics.put(HookMetrics(None, plain(row)))

    def _next_lesson(self) -> Lesson:
        if self.assignment is None:
            return super()._next_lesson()
        self.curriculum.load_state_dict(self.assignment.curriculum)
        return self.curriculum.lesson(self.assignment.lesson_id)

    def _update_curriculum(self, lesson: Lesson, rollouts: list[Rollout]) -> None:
        if self.assignment is None:  # otherwise the learner does, for all workers
            super()._update_curriculum(lesson, rollouts)

    def _curriculum_metrics(self, lesson: Lesson, rollouts: list[Rollout]) -> dict[str, float]:
        return super()._curriculum_metrics(lesson, rollouts) if self.assignment is None else {}

    def evaluate_curriculum(
        self, n_examples: int = 64, eval_type: str = "eval", *, rng: random.Random | None = None
    ) -> dict[str, Any]:
        """Evaluate every lesson; the other workers begin with all lessons at once."""
        # Otherwise a worker would make a rollout step between two lessons, and each lesson would wait for that.
        for lesson in self.curriculum.lessons if self.evaluation_peers is not None else ():
            self._begun[eval_type, lesson.id] = self._begin(
                super()._drawn_evaluation(lesson.id, n_examples, eval_type, rng)
            )
        try:
            return super().evaluate_curriculum(n_examples, eval_type, rng=rng)
        finally:
            self._begun.clear()

    def _drawn_evaluation(
        self, lesson_id: str, n_examples: int, eval_type: str, rng: random.Random | None
    ) -> DrawnEvaluation:
        begun = self._begun.get((eval_type, lesson_id))
        return super()._drawn_evaluation(lesson_id, n_examples, eval_type, rng) if begun is None else begun.drawn

    def _make_evaluation(self, drawn: DrawnEvaluation) -> Made:
        begun = next((each for each in self._begun.values() if each.drawn is drawn), None) or self._begin(drawn)
        made = super()._make_evaluation(begun.own)
        for part, result in begun.others:
            made.add(self._result_of(part, result))
        return made

    def _begin(self, drawn: DrawnEvaluation) -> "_SharedEvaluation":
        """Have the other workers make their parts of an evaluation; they do so after their present step."""
        peers = self.evaluation_peers
        if peers is None or peers.version != self.policy.version:  # on a hook's thread, steps later
            return _SharedEvaluation(drawn, drawn, [])
        count = min(len(peers.actors) + 1, len(drawn.tasks))
        own, *others = (
            replace(
                drawn,
                tasks=drawn.tasks[len(drawn.tasks) * part // count : len(drawn.tasks) * (part + 1) // count],
                name=f"{drawn.name}/{part}" if part else drawn.name,
            )
            for part in range(count)
        )
        started = [
            (part, actor.evaluate.remote(peers.version, peers.weights, part))
            for part, actor in zip(others, peers.actors, strict=False)
        ]
        return _SharedEvaluation(drawn, own, started)

    def _result_of(self, part: DrawnEvaluation, result: Any) -> Made:
        try:
            made: Made = import_ray().get(result)
        except Exception:  # the worker died, or its policy failed: this one makes the part, or fails in the same way
            return super()._make_evaluation(part)
        return made

    def make_part(self, part: DrawnEvaluation) -> Made:
        """Make a part of an evaluation of another worker."""
        return super()._make_evaluation(part)

    def record_in(self, run_dir: Path, name: str) -> None:
        """Begin to record; later steps of an earlier worker with this name are marked as repeated."""
        redactor = self.recording.redactor
        self.recorder = Recorder(run_dir, name=name, durability=self.durability, redact=redactor)
        self.output_dir = run_dir
        if self.recorder.journal.session > 0:
            self.recorder.resume(self.step)
        writer = ConsoleWriter(run_dir, actor=name, step=lambda: self.step, redact=redactor)
        self._console = attach(writer, self.recording.console_mode)
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
        console, self._console = self._console, None
        if console is not None:
            console.close()
        if self.recorder is not None and self.hook_record is not None:
            self.hook_record.close()
            self.recorder.close()


@dataclass(frozen=True, slots=True)
class _SharedEvaluation:
    """An evaluation, this worker's part of it, and those of others with references to their results."""

    drawn: DrawnEvaluation
    own: DrawnEvaluation
    others: list[tuple[DrawnEvaluation, Any]]


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
        self._idle_since = time.monotonic()
        self._other_seconds = 0.0
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
        self._worker.advantages = spec.advantages
        if self._state is not None:
            self._worker.load_state_dict(self._state)
        if self._run_dir is not None:
            self._worker.record_in(self._run_dir, worker_name(self._index))
        self._idle_since = time.monotonic()
        return {"pid": os.getpid(), "host": socket.gethostname(), "rollout_step": self._worker.step}

    def wait_closed(self) -> None:
        """Return once the worker is closed; the call fails as soon as the process dies."""
        self._closed.wait()

    def roll_out(
        self,
        version: int,
        weights: Mapping[str, Any],
        assignment: LessonAssignment | None = None,
        peers: Peers | None = None,
    ) -> StepResult:
        """Make one rollout step of a lesson with these weights."""
        began = time.monotonic()
        seconds = {"idle": max(0.0, began - self._idle_since - self._other_seconds)}
        self._load(version, weights)
        seconds["weights"] = time.monotonic() - began
        self._worker.assignment, self._worker.evaluation_peers = assignment, peers
        rollouts = self._worker.roll_out()
        self._worker.recording.secure()  # the learner's next checkpoint covers this step
        seconds |= self._worker.step_seconds
        result = StepResult(rollouts, self._worker.state_dict(), self._worker.take_hook_metrics(), seconds)
        total = time.monotonic() - self._idle_since
        seconds["other"] = max(0.0, total - sum(seconds.values()))
        self._idle_since, self._other_seconds = time.monotonic(), 0.0
        return result

    def evaluate(self, version: int, weights: Sequence[Any], part: DrawnEvaluation) -> Made:
        """Make a part of an evaluation of another worker, with these weights."""
        began = time.monotonic()
        if version != self._version:
            self._load(version, import_ray().get(weights[0]))
        made = self._worker.make_part(part)
        self._other_seconds += time.monotonic() - began
        return made

    def _load(self, version: int, weights: Mapping[str, Any]) -> None:
        if version != self._version:
            self._worker.update_weights(version, weights)
            self._version = version

    def close(self) -> list[HookMetrics]:
        """Close the worker, and return the last results of its hooks."""
        self._worker.close()
        self._closed.set()
        return self._worker.take_hook_metrics()
