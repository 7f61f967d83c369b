"""`GRPOConfig`: the settings of the loss."""

from hookline.core.errors import OptionError
from hookline.loops.checked_struct import CheckedStruct


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
