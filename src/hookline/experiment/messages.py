"""What a run tells whoever started it, from wherever it runs; all of it can be pickled."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from hookline.core.state import EvalResult, RunResult


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is.

    Attributes:
        doing: ``training``, or the name of the benchmark that is being scored.
    """

    key: str
    step: int
    num_steps: int | None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    doing: str = "training"


@dataclass(frozen=True, slots=True)
class Scored:
    """A benchmark was scored: within the training at a step, or after it."""

    key: str
    eval_result: EvalResult
    predictions: list[dict[str, Any]]
    step: int | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """A run ended, one way or another.

    Attributes:
        ids: Those of the run's context, with what was added to them.
        signal: The signal that it was asked to stop by, however it ended.
        died: It began, and its process died or could not say how it ended, so its own subscribers do not know.
    """

    key: str
    result: RunResult
    ids: Mapping[str, Any] = field(default_factory=dict)
    signal: str | None = None
    died: bool = False


Message: TypeAlias = Progress | Scored
