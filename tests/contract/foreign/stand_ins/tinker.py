"""What environments of tinker-cookbook are made of, as in tinker-cookbook 0.6."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


class ModelInput:
    """A prompt as tokens."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = list(tokens)

    @classmethod
    def from_ints(cls, tokens: Sequence[int]) -> "ModelInput":
        return cls(tokens)

    def to_ints(self) -> list[int]:
        return self._tokens


@dataclass
class StepResult:
    reward: float
    episode_done: bool
    next_observation: ModelInput
    next_stop_condition: list[str] | list[int]
    metrics: dict[str, float] = field(default_factory=dict)
    logs: dict[str, Any] = field(default_factory=dict)


class Env:
    """One episode."""


class EnvGroupBuilder:
    """Makes the environments of a group."""

    async def compute_group_rewards(
        self, trajectory_group: Any, env_group: Any
    ) -> list[tuple[float, dict[str, float]]]:
        return [(0.0, {}) for _ in trajectory_group]

    async def cleanup(self) -> None:
        pass
