"""PPO or GRPO with verl; the lines for hookline are marked with "hookline".

The arguments are those of verl's own command: ``verl_ppo.py data.train_files=... trainer.nnodes=1 ...``.
"""

from typing import Any

import hydra
import ray
from one_callback import GoodEnough  # hookline
from verl.trainer.main_ppo import TaskRunnerV1, run_ppo

from hookline.integrations.verl import attach  # hookline


@ray.remote
class TaskRunner(TaskRunnerV1.__ray_actor_class__):  # type: ignore[misc]
    """verl's task runner, in whose process the trainer is."""

    def init_agent_loop_manager(self) -> None:
        """Prepare generation, the last thing before the training."""
        super().init_agent_loop_manager()
        attach(self.trainer, [GoodEnough(loss=0.3)], name="grpo")  # hookline


@hydra.main("pkg://verl.trainer.config", "ppo_trainer", version_base=None)  # type: ignore[untyped-decorator]
def main(config: Any) -> None:
    """Train until it is good enough."""
    run_ppo(config, task_runner_class=TaskRunner)


if __name__ == "__main__":
    main()
