"""`GRPOConfig`, the settings of the loss, and `RLConfig`, the settings of a whole reinforcement learning."""

from typing import Literal

import msgspec

from hookline._engine.checks import require_integer
from hookline._engine.errors import OptionError
from hookline.config.structs import CheckedStruct
from hookline.loops.trainer_config import TrainerConfig
from hookline.loops.worker_config import ModelOptions
from hookline.rl.rollouts.config import CurriculumConfig, RolloutConfig, RolloutWorkerConfig


class GRPOConfig(CheckedStruct, kw_only=True):
    """The settings of GRPO.

    Args:
        clip: The probability ratio is clipped to this distance from 1.
        kl: The weight of the divergence from the initial model; 0 leaves it out.
        updates: How many optimizer steps are made with each rollout step; with `TrainerConfig.accumulation`, with each
            group of that many rollout steps.
    """

    clip: float = 0.2
    kl: float = 0.0
    updates: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.clip > 0 or not self.kl >= 0 or self.updates < 1:
            raise OptionError(f"{self}: give a clip above 0, a kl of at least 0, and updates of at least 1.")


class RLConfig(CheckedStruct, kw_only=True):
    """The settings of a reinforcement learning.

    Args:
        model: The initial model, unless `train` gets one.
        curriculum: The lessons, and when they are evaluated.
        rollout: The settings of rollouts.
        grpo: The settings of the loss.
        train: The settings of training: its length, optimizer and record.
        executor: "local" makes rollouts and learns in turns in this process; "ray" uses Ray actors.
        rollout_workers: With Ray, how many actors make rollouts.
        max_staleness: With Ray, how many versions old the weights of a rollout may be when it is learnt from; older
            rollouts are discarded.
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
        require_integer("rollout_workers", self.rollout_workers)
        require_integer("max_staleness", self.max_staleness, minimum=0)
        if self.rollout.group_size == 1 or self.rollout.temperature == 0:
            raise OptionError(
                f"RLConfig(rollout): group_size={self.rollout.group_size} and temperature={self.rollout.temperature} "
                "make all completions of a group equal, so there is nothing to learn from: give a group_size of at "
                "least 2 and a temperature above 0."
            )
        if self.executor == "local" and self.rollout_workers > 1:
            raise OptionError("RLConfig(rollout_workers=...) requires executor='ray': one process has one worker.")


def worker_config(config: RLConfig) -> RolloutWorkerConfig:
    """Return the settings of the rollout workers."""
    return RolloutWorkerConfig(
        curriculum_config=config.curriculum,
        rollout=config.rollout,
        seed=config.train.seed or 0,
        output_dir=None,
        strict=config.train.strict,
        durability=config.train.durability,
    )
