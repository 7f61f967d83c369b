"""A stand-in for the command of verl 0.9.1, ``verl.trainer.main_ppo``: its task runner, without Ray's processes."""

from typing import Any

import ray

from hosts.stand_ins.verl import PPOTrainer


@ray.remote
class TaskRunnerV1:
    """Makes the trainer and trains, in verl in a process of its own."""

    def __init__(self) -> None:
        self.trainer: Any = None
        self.agent_loop_manager: Any = None

    def init_agent_loop_manager(self) -> None:
        self.agent_loop_manager = object()

    def run(self, config: Any) -> None:
        self.trainer = PPOTrainer(config)
        self.trainer.init()
        self.init_agent_loop_manager()
        self.trainer.fit(self.agent_loop_manager)


def run_ppo(config: Any, task_runner_class: Any) -> None:
    """Train with a task runner, in this process."""
    task_runner_class.__ray_actor_class__().run(config)
