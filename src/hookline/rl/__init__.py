"""Reinforcement learning: environments, curricula, policies, rollout workers and their hooks, a GRPO learner."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hookline.rl import environments
    from hookline.rl.chat_format import ChatFormat
    from hookline.rl.environments.base import Environment, make_environment, register_environment
    from hookline.rl.environments.episodes import Step
    from hookline.rl.environments.tools import Tool, tool
    from hookline.rl.foreign.wrap import wrap_environment
    from hookline.rl.hooks import EvaluationHook, create_default_evaluation_hooks
    from hookline.rl.learner.config import GRPOConfig, RLConfig
    from hookline.rl.learner.learner import GRPOLearner
    from hookline.rl.learner.training import train
    from hookline.rl.policies.base import AsyncPolicy, Policy, PolicyError, SampleRequest
    from hookline.rl.policies.completions import CompletionsPolicy
    from hookline.rl.policies.hf import HFPolicy
    from hookline.rl.policies.server import ServerPolicy, ServerPolicyConfig
    from hookline.rl.ray_cluster import RayCluster
    from hookline.rl.rollouts.config import CurriculumConfig, Lesson, RolloutConfig, RolloutWorkerConfig
    from hookline.rl.rollouts.curriculum import Curriculum, CurriculumEvent
    from hookline.rl.rollouts.episode import EpisodeEnd, EpisodePolicy, Reply
    from hookline.rl.rollouts.worker import RolloutWorker
    from hookline.rl.types import Completion, Rollout, Sampling, Task

__all__ = [
    "AsyncPolicy",
    "ChatFormat",
    "Completion",
    "CompletionsPolicy",
    "Curriculum",
    "CurriculumConfig",
    "CurriculumEvent",
    "Environment",
    "EpisodeEnd",
    "EpisodePolicy",
    "EvaluationHook",
    "GRPOConfig",
    "GRPOLearner",
    "HFPolicy",
    "Lesson",
    "Policy",
    "PolicyError",
    "RLConfig",
    "RayCluster",
    "Reply",
    "Rollout",
    "RolloutConfig",
    "RolloutWorker",
    "RolloutWorkerConfig",
    "SampleRequest",
    "Sampling",
    "ServerPolicy",
    "ServerPolicyConfig",
    "Step",
    "Task",
    "Tool",
    "create_default_evaluation_hooks",
    "environments",
    "make_environment",
    "register_environment",
    "tool",
    "train",
    "wrap_environment",
]

_NAMES = {
    "chat_format": ("ChatFormat",),
    "environments.base": ("Environment", "make_environment", "register_environment"),
    "environments.episodes": ("Step",),
    "environments.tools": ("Tool", "tool"),
    "foreign.wrap": ("wrap_environment",),
    "hooks": ("EvaluationHook", "create_default_evaluation_hooks"),
    "learner.config": ("GRPOConfig", "RLConfig"),
    "learner.learner": ("GRPOLearner",),
    "learner.training": ("train",),
    "policies.base": ("AsyncPolicy", "Policy", "PolicyError", "SampleRequest"),
    "policies.completions": ("CompletionsPolicy",),
    "policies.hf": ("HFPolicy",),
    "policies.server": ("ServerPolicy", "ServerPolicyConfig"),
    "ray_cluster": ("RayCluster",),
    "rollouts.config": ("CurriculumConfig", "Lesson", "RolloutConfig", "RolloutWorkerConfig"),
    "rollouts.curriculum": ("Curriculum", "CurriculumEvent"),
    "rollouts.episode": ("EpisodeEnd", "EpisodePolicy", "Reply"),
    "rollouts.worker": ("RolloutWorker",),
    "types": ("Completion", "Rollout", "Sampling", "Task"),
}
"""The names of each module. They are imported on first use, so that those without torch do not load it."""

_HOMES = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    from hookline._engine.optional import load_lazy

    if name in _HOMES:
        path = f"hookline.rl.{_HOMES[name]}:{name}"
    elif name == "environments":
        path = "hookline.rl.environments"
    else:
        raise AttributeError(f"module 'hookline.rl' has no attribute {name!r}")
    value = load_lazy(f"hookline.rl.{name}", path)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
