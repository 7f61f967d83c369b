"""`EvaluationHook`, which evaluates the lessons of a rollout worker, and the hooks of any loop."""

import logging
import random
import reprlib
from inspect import get_annotations
from typing import Any, Protocol

from hookline._engine.checks import require_integer
from hookline._engine.errors import OptionError
from hookline._engine.hook_manager import CompositeHook, HookManager
from hookline._engine.hooks import CheckpointHook, Hook, HookContext, LoggingHook, MetricsHook, PeriodicHook
from hookline._engine.registry import register
from hookline.rl.policies.base import PolicyError

__all__ = [
    "CheckpointHook",
    "CompositeHook",
    "EvaluationHook",
    "Hook",
    "HookContext",
    "HookManager",
    "LoggingHook",
    "MetricsHook",
    "PeriodicHook",
    "create_default_evaluation_hooks",
]

logger = logging.getLogger("hookline.rl.hooks")


@register("evaluation_hook")
class EvaluationHook(PeriodicHook):
    """Evaluates the current lesson, or all lessons, at a fixed frequency.

    It has its own generator, so the rollouts are the same without it. If the policy fails, for example because its
    server is down, the evaluation is skipped and recorded as ``<eval_type>/failed``.

    Args:
        frequency: Evaluate every this many rollout steps.
        n_examples: The number of tasks of each lesson.
        eval_type: The prefix of its metrics.
        evaluate_all_lessons: Evaluate all lessons of the curriculum, or only the lesson of this step.
        start_step: The number of completed steps before the first evaluation.
    """

    def __init__(
        self,
        frequency: int = 100,
        n_examples: int = 64,
        eval_type: str = "eval",
        evaluate_all_lessons: bool = True,
        start_step: int = 0,
    ) -> None:
        super().__init__(frequency, start_step)
        if not isinstance(eval_type, str) or not eval_type:
            raise OptionError(f"eval_type={eval_type!r}: give a name, e.g. 'eval'.")
        if not isinstance(evaluate_all_lessons, bool):
            raise OptionError(f"evaluate_all_lessons={evaluate_all_lessons!r}: give True or False.")
        self.n_examples = require_integer("n_examples", n_examples)
        self.eval_type = eval_type
        self.evaluate_all_lessons = evaluate_all_lessons

    def unsupported(self, worker: Any) -> str:
        """Return why this worker or loop cannot evaluate lessons; empty if it can."""
        needed = "_evaluate_curriculum" if self.evaluate_all_lessons else "_evaluate_lesson"
        if callable(getattr(worker, needed, None)):
            return ""
        return (
            f"it evaluates the lessons of a rollout worker, and {type(worker).__name__} has none. Give it to "
            "rl.train(hooks=[...]) or RolloutWorker(hooks=[...])."
        )

    def run(self, context: HookContext) -> dict[str, Any]:
        if reason := self.unsupported(context.worker):
            raise OptionError(f"{self.name}: {reason}")
        worker, rng = context.worker, None if context.rng is None else _python_random(context.split_rng()[0])
        metrics: dict[str, Any] = {}
        try:
            if self.evaluate_all_lessons:
                metrics = worker._evaluate_curriculum(self.n_examples, eval_type=self.eval_type, rng=rng)
            elif context.lesson_id is not None:
                metrics = worker._evaluate_lesson(context.lesson_id, self.n_examples, eval_type=self.eval_type, rng=rng)
        except PolicyError as error:  # it may pass: a hook that keeps raising is disabled for good
            logger.warning(
                "%s at step %d is skipped, because the policy failed: %s", self.eval_type, context.step, error
            )
            metrics = {f"{self.eval_type}/failed": 1}
        return metrics


class EvaluationSettings(Protocol):
    """The part of a `CurriculumConfig` that hooks need: when to evaluate, and on how many tasks."""

    micro_eval_frequency: int
    micro_eval_n_examples: int
    eval_frequency: int
    eval_n_examples: int


def create_default_evaluation_hooks(curriculum_config: EvaluationSettings) -> list[Hook]:
    """Return a hook for short evaluations of the current lesson, and one for full evaluations of all lessons.

    A frequency of 0 omits a hook.

    Args:
        curriculum_config: A `CurriculumConfig`, or any object with its four settings for evaluations.
    """
    missing = [name for name in get_annotations(EvaluationSettings) if not hasattr(curriculum_config, name)]
    if missing:
        raise OptionError(
            f"curriculum_config={reprlib.repr(curriculum_config)} has no {', '.join(missing)}: give a "
            "CurriculumConfig. A RolloutWorkerConfig has one as curriculum_config, an RLConfig as curriculum."
        )
    hooks: list[Hook] = []
    if curriculum_config.micro_eval_frequency:
        micro = EvaluationHook(
            curriculum_config.micro_eval_frequency,
            curriculum_config.micro_eval_n_examples,
            "micro_eval",
            evaluate_all_lessons=False,
        )
        hooks.append(micro.configure(name="micro_eval"))
    if curriculum_config.eval_frequency:
        full = EvaluationHook(curriculum_config.eval_frequency, curriculum_config.eval_n_examples, "eval")
        hooks.append(full.configure(name="eval"))
    return hooks


def _python_random(rng: Any) -> random.Random:
    """Convert a fresh generator of any library to the kind that environments use."""
    if isinstance(rng, random.Random):
        return rng
    if hasattr(rng, "integers"):  # NumPy
        return random.Random(int(rng.integers(2**63)))  # noqa: S311 - no secret
    if hasattr(rng, "initial_seed"):  # torch
        return random.Random(rng.initial_seed())  # noqa: S311
    return random.Random(str(rng))  # noqa: S311 - a JAX key is an array, and its text has its numbers
