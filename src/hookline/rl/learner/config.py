"""`GRPOConfig`: the settings of the loss.

`RLConfig`: what a configuration file for reinforcement learning holds.
"""

from typing import Literal

import msgspec

from hookline._engine.errors import OptionError
from hookline.config.structs import CheckedStruct
from hookline.loops.trainer_config import TrainerConfig
from hookline.loops.worker_config import ModelOptions
from hookline.rl.rollouts.config import CurriculumConfig, RolloutConfig, RolloutWorkerConfig


class GRPOConfig(CheckedStruct, kw_only=True):
    """The settings of GRPO.

    Args:
        clip: How far the ratio of probabilities counts, to either side of 1.
        kl: How much the divergence from the model as it was at the start weighs; 0 leaves it out.
        updates: How many optimizer steps learn from each rollout step; with `TrainerConfig.accumulation`, from as many
            rollout steps together.
    """

    clip: float = 0.2
    kl: float = 0.0
    updates: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.clip > 0 or not self.kl >= 0 or self.updates < 1:
            raise OptionError(f"{self}: clip is above 0, kl at least 0, updates at least 1.")


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


def worker_config(config: RLConfig) -> RolloutWorkerConfig:
    """The part of the settings that is a rollout worker's."""
    return RolloutWorkerConfig(
        curriculum_config=config.curriculum,
        rollout=config.rollout,
        seed=config.train.seed or 0,
        output_dir=None,
        strict=config.train.strict,
        durability=config.train.durability,
    )
