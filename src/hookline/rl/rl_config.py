"""`RLConfig`: what a configuration file for reinforcement learning holds."""

from typing import Literal

import msgspec

from hookline.core.errors import OptionError
from hookline.loops.checked_struct import CheckedStruct
from hookline.loops.trainer_config import TrainerConfig
from hookline.loops.worker_config import ModelOptions
from hookline.rl.curriculum_config import CurriculumConfig
from hookline.rl.grpo_config import GRPOConfig
from hookline.rl.rollout_config import RolloutConfig


class RLConfig(CheckedStruct, kw_only=True):
    """The settings of a reinforcement learning.

    Args:
        model: The model to begin with, where none is given to `train`.
        curriculum: What is learnt, and when it is evaluated.
        rollout: How rollouts are made.
        grpo: How is learnt from them.
        train: How long, with which optimizer, where it is recorded.
        executor: In this process, in turns ("local"), or with actors of Ray ("ray").
        rollout_workers: How many actors make rollouts, with Ray.
        max_staleness: By how many versions the weights that wrote a rollout may be behind when it is learnt from,
            with Ray; older ones are thrown away.
    """

    model: ModelOptions | None = None
    curriculum: CurriculumConfig
    rollout: RolloutConfig = msgspec.field(default_factory=RolloutConfig)
    grpo: GRPOConfig = msgspec.field(default_factory=GRPOConfig)
    train: TrainerConfig
    executor: Literal["local", "ray"] = "local"
    rollout_workers: int = 1
    max_staleness: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rollout_workers < 1:
            raise OptionError(f"RLConfig(rollout_workers={self.rollout_workers}): give a whole number of at least 1.")
        if self.max_staleness < 0:
            raise OptionError(f"RLConfig(max_staleness={self.max_staleness}): give a whole number of at least 0.")
        if self.rollout.group_size == 1 or self.rollout.temperature == 0:
            raise OptionError(
                f"RLConfig(rollout): group_size={self.rollout.group_size} and temperature={self.rollout.temperature} "
                "give groups whose completions are all alike, from which nothing is learnt: give a group_size of at "
                "least 2 and a temperature above 0."
            )
        if self.executor == "local" and self.rollout_workers > 1:
            raise OptionError("RLConfig(rollout_workers=...) is for executor='ray': in one process there is one.")
