"""Environments: the protocol, the registry, and the environments that come with hookline."""

from hookline.rl.environments.base import (
    ENVIRONMENTS,
    Environment,
    evaluation_tasks,
    make_environment,
    register_environment,
    succeeded,
)
from hookline.rl.environments.dataset import RewardDataset
from hookline.rl.environments.text_tasks import Arithmetic, Copying, Lookup, Reasoning, Sorting

__all__ = [
    "ENVIRONMENTS",
    "Arithmetic",
    "Copying",
    "Environment",
    "Lookup",
    "Reasoning",
    "RewardDataset",
    "Sorting",
    "evaluation_tasks",
    "make_environment",
    "register_environment",
    "succeeded",
]
