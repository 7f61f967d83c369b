"""`RolloutWorker` under the import path that Marin's scripts use."""

from hookline.rl.rollouts.worker import RolloutWorker

__all__ = ["RolloutWorker"]
