"""Hooks that evaluate a rollout worker's lessons, beside the hooks that any loop may have."""

import logging
import random
import reprlib
from inspect import get_annotations
from typing import Any, Protocol

from hookline._engine.errors import OptionError
from hookline._engine.hook_manager import CompositeHook, HookManager
from hookline._engine.hooks import CheckpointHook, Hook, HookContext, LoggingHook, MetricsHook, PeriodicHook
from hookline._engine.metrics import whole
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
    """Evaluates the current lesson, or all of them, every so many rollout steps.

    It draws from a generator of its own: with or without it, the rollouts are the same. An evaluation for which the
    policy gives nothing (its server is down) is left out, and recorded as ``<eval_type>/failed``.

    Args:
        frequency: After every so many steps.
        n_examples: On how many tasks of each lesson.
        eval_type: What its metrics begin with.
        evaluate_all_lessons: All lessons of the curriculum, or the one of this step.
        start_step: Not before so many steps are done.
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
        examples = whole(n_examples)
        if examples is None or examples < 1:
            raise OptionError(f"n_examples={n_examples!r}: give a whole number of at least 1.")
        if not isinstance(eval_type, str) or not eval_type:
            raise OptionError(f"eval_type={eval_type!r}: give a name, e.g. 'eval'.")
        if not isinstance(evaluate_all_lessons, bool):
            raise OptionError(f"evaluate_all_lessons={evaluate_all_lessons!r}: give True or False.")
        self.n_examples = examples
        self.eval_type = eval_type
        self.evaluate_all_lessons = evaluate_all_lessons

    def unsupported(self, worker: Any) -> str:
        """Why lessons cannot be evaluated with this worker or loop; nothing where they can."""
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
        except PolicyError as error:  # which passes: failing for that, a hook would be taken out for good
            logger.warning("%s at step %d is left out, the policy failed: %s", self.eval_type, context.step, error)
            metrics = {f"{self.eval_type}/failed": 1}
        return metrics


class EvaluationSettings(Protocol):
    """When a curriculum is evaluated, and on how many tasks: the part of a `CurriculumConfig` that hooks need."""

    micro_eval_frequency: int
    micro_eval_n_examples: int
    eval_frequency: int
    eval_n_examples: int


def create_default_evaluation_hooks(curriculum_config: EvaluationSettings) -> list[Hook]:
    """A short evaluation of the current lesson and a full one of all lessons; a frequency of 0 leaves one out.

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
    """A generator as environments take it, from a fresh one of any library."""
    if isinstance(rng, random.Random):
        return rng
    if hasattr(rng, "integers"):  # NumPy
        return random.Random(int(rng.integers(2**63)))  # noqa: S311 - no secret
    if hasattr(rng, "initial_seed"):  # torch
        return random.Random(rng.initial_seed())  # noqa: S311
    return random.Random(str(rng))  # noqa: S311 - a key of JAX is an array, whose text is its numbers
