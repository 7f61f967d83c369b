"""Reinforcement learning: environments, curricula, policies, rollout workers and their hooks, a GRPO learner."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hookline.rl import environments
    from hookline.rl.curriculum import Curriculum, CurriculumEvent
    from hookline.rl.curriculum_config import CurriculumConfig
    from hookline.rl.environment import Environment, make_environment, register_environment
    from hookline.rl.grpo_config import GRPOConfig
    from hookline.rl.hf_policy import HFPolicy
    from hookline.rl.hooks import EvaluationHook, create_default_evaluation_hooks
    from hookline.rl.learner import GRPOLearner
    from hookline.rl.lesson import Lesson
    from hookline.rl.policy import Policy, PolicyError
    from hookline.rl.rl_config import RLConfig
    from hookline.rl.rollout_config import RolloutConfig, RolloutWorkerConfig
    from hookline.rl.rollout_worker import RolloutWorker
    from hookline.rl.server_policy import ServerPolicy
    from hookline.rl.training import train
    from hookline.rl.types import Completion, Rollout, Sampling, Task

__all__ = [
    "Completion",
    "Curriculum",
    "CurriculumConfig",
    "CurriculumEvent",
    "Environment",
    "EvaluationHook",
    "GRPOConfig",
    "GRPOLearner",
    "HFPolicy",
    "Lesson",
    "Policy",
    "PolicyError",
    "RLConfig",
    "Rollout",
    "RolloutConfig",
    "RolloutWorker",
    "RolloutWorkerConfig",
    "Sampling",
    "ServerPolicy",
    "Task",
    "create_default_evaluation_hooks",
    "environments",
    "make_environment",
    "register_environment",
    "train",
]

_HOMES = {
    "Completion": "types",
    "Curriculum": "curriculum",
    "CurriculumConfig": "curriculum_config",
    "CurriculumEvent": "curriculum",
    "Environment": "environment",
    "EvaluationHook": "hooks",
    "GRPOConfig": "grpo_config",
    "GRPOLearner": "learner",
    "HFPolicy": "hf_policy",
    "Lesson": "lesson",
    "Policy": "policy",
    "PolicyError": "policy",
    "RLConfig": "rl_config",
    "Rollout": "types",
    "RolloutConfig": "rollout_config",
    "RolloutWorker": "rollout_worker",
    "RolloutWorkerConfig": "rollout_config",
    "Sampling": "types",
    "ServerPolicy": "server_policy",
    "Task": "types",
    "create_default_evaluation_hooks": "hooks",
    "make_environment": "environment",
    "register_environment": "environment",
    "train": "training",
}
"""The module of each name; they are imported when first used, so that what needs no torch loads none."""

_EXTRAS = {"RLConfig": "hf"}
"""The extra that a name needs, where it is another one than ``torch``."""


def __getattr__(name: str) -> Any:
    from hookline.core.lazy_names import load

    if name in _HOMES:
        place = f"hookline.rl.{_HOMES[name]}:{name}"
    elif name == "environments":
        place = "hookline.rl.environments"
    else:
        raise AttributeError(f"module 'hookline.rl' has no attribute {name!r}")
    value = load(f"hookline.rl.{name}", place, extra=_EXTRAS.get(name, "torch"))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
