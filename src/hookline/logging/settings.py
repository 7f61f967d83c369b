"""`MetricSettings`: what the section ``metrics:`` of a logging configuration governs.

| setting | governs |
|---|---|
| ``logging_frequency`` | `log_training_progress`, `log_reward_metrics`; `log_memory_usage` where it is given a step |
| ``validation_frequency`` | `validation_due`; what `log_validation_metrics` is given is always recorded |
| ``sampling_ratio`` | `log_generation_metrics`: the share of steps for which they are computed |
| ``trend_window`` | how many recorded points the trend of a reward looks back on |
| ``enable.reward_metrics`` | `log_reward_metrics` and `log_reward` |
| ``enable.generation_metrics`` | `log_generation_metrics` |
| ``enable.validation_metrics`` | `log_validation_metrics` and `validation_due` |
| ``enable.resource_metrics`` | `log_memory_usage` |

Model outputs are not metrics: `log_model_output` records every one.
"""

from dataclasses import dataclass, field

from hookline.core.errors import OptionError

_GOLDEN = 11400714819323198485  # 2**64 divided by the golden ratio
_WORD = 1 << 64


@dataclass(frozen=True, slots=True)
class Categories:
    """Which categories of metrics are recorded.

    Args:
        reward_metrics: What `log_reward_metrics` and `log_reward` are given.
        generation_metrics: What `log_generation_metrics` is given.
        validation_metrics: What `log_validation_metrics` is given.
        resource_metrics: What `log_memory_usage` measures.
    """

    reward_metrics: bool = True
    generation_metrics: bool = True
    validation_metrics: bool = True
    resource_metrics: bool = True


@dataclass(frozen=True, slots=True)
class MetricSettings:
    """How often metrics are recorded, and which.

    Args:
        logging_frequency: In steps: rows of steps that are no multiple of it are left out. Of
            `log_training_progress`, those that bring a metric that was not there before are recorded all the same,
            and so is the last value of each metric, at `shutdown` at the latest.
        validation_frequency: In steps; None where validation is never due.
        sampling_ratio: The share of steps, between 0 and 1, for which expensive metrics are computed.
        trend_window: In recorded points.
        enable: The categories.
    """

    logging_frequency: int = 1
    validation_frequency: int | None = None
    sampling_ratio: float = 1.0
    trend_window: int = 50
    enable: Categories = field(default_factory=Categories)

    def __post_init__(self) -> None:
        for name, least in (("logging_frequency", 1), ("validation_frequency", 1), ("trend_window", 2)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise OptionError(f"{name}={value!r}: give a whole number of at least {least}.")
        if not 0.0 <= self.sampling_ratio <= 1.0:
            raise OptionError(f"sampling_ratio={self.sampling_ratio!r}: give a share between 0 and 1.")

    def is_due(self, step: int) -> bool:
        """Whether the metrics of a step are recorded."""
        return step % self.logging_frequency == 0

    def validation_due(self, step: int) -> bool:
        """Whether validation is to run after so many completed steps."""
        if self.validation_frequency is None or not self.enable.validation_metrics:
            return False
        return step > 0 and step % self.validation_frequency == 0

    def is_sampled(self, step: int) -> bool:
        """Whether a step is among those for which expensive metrics are computed.

        The multiples of the golden ratio spread evenly, over all steps and over every n-th of them
        alike, so the share is right however often it is asked. It depends on the step alone: all
        ranks and a resumed run decide alike, and nobody's random numbers are touched.
        """
        return (step * _GOLDEN % _WORD) < self.sampling_ratio * _WORD
