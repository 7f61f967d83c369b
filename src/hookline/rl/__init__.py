"""Reinforcement learning: environments, curricula, policies, rollout workers and their hooks, a GRPO learner."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hookline.rl import environments
    from hookline.rl.environments.base import Environment, make_environment, register_environment
    from hookline.rl.hooks import EvaluationHook, create_default_evaluation_hooks
    from hookline.rl.learner.config import GRPOConfig, RLConfig
    from hookline.rl.learner.learner import GRPOLearner
    from hookline.rl.learner.training import train
    from hookline.rl.policies.base import Policy, PolicyError
    from hookline.rl.policies.hf import HFPolicy
    from hookline.rl.policies.server import ServerPolicy
    from hookline.rl.ray_cluster import RayCluster
    from hookline.rl.rollouts.config import CurriculumConfig, Lesson, RolloutConfig, RolloutWorkerConfig
    from hookline.rl.rollouts.curriculum import Curriculum, CurriculumEvent
    from hookline.rl.rollouts.worker import RolloutWorker
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
    "RayCluster",
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
    "Curriculum": "rollouts.curriculum",
    "CurriculumConfig": "rollouts.config",
    "CurriculumEvent": "rollouts.curriculum",
    "Environment": "environments.base",
    "EvaluationHook": "hooks",
    "GRPOConfig": "learner.config",
    "GRPOLearner": "learner.learner",
    "HFPolicy": "policies.hf",
    "Lesson": "rollouts.config",
    "Policy": "policies.base",
    "PolicyError": "policies.base",
    "RLConfig": "learner.config",
    "RayCluster": "ray_cluster",
    "Rollout": "types",
    "RolloutConfig": "rollouts.config",
    "RolloutWorker": "rollouts.worker",
    "RolloutWorkerConfig": "rollouts.config",
    "Sampling": "types",
    "ServerPolicy": "policies.server",
    "Task": "types",
    "create_default_evaluation_hooks": "hooks",
    "make_environment": "environments.base",
    "register_environment": "environments.base",
    "train": "learner.training",
}
"""The module of each name. Names are imported on first use, so that those without torch do not load it."""

_EXTRAS = {"RLConfig": "hf"}
"""The extra that a name needs, if it is not ``torch``."""


def __getattr__(name: str) -> Any:
    from hookline._engine.optional import load_lazy

    if name in _HOMES:
        path = f"hookline.rl.{_HOMES[name]}:{name}"
    elif name == "environments":
        path = "hookline.rl.environments"
    else:
        raise AttributeError(f"module 'hookline.rl' has no attribute {name!r}")
    value = load_lazy(f"hookline.rl.{name}", path, extra=_EXTRAS.get(name, "torch"))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
