"""The interface of a host for the contract suites: trains one small model with hookline's callbacks."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

EPOCHS, BATCHES = 2, 4
STEPS = EPOCHS * BATCHES
"""Every host trains this long, validates at the end of each epoch, and saves nothing by itself."""


class Host(ABC):
    """One trainer, made afresh below a directory for each training.

    Args:
        directory: Where it records and saves; a host that is to go on from a checkpoint is given the same one.
    """

    name: ClassVar[str]
    monitor: ClassVar[str] = "val/loss"
    """The metrics of its evaluations, with all built-in callbacks."""

    loop: Any = None
    """The loop that callbacks receive, once it trains."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @property
    def options(self) -> dict[str, Any]:
        """The options of every run."""
        return {"root": self.directory / "runs", "summary": False}

    @abstractmethod
    def train(self, *callbacks: Any, resume: Path | None = None) -> None:
        """Train to the end, or resume from a checkpoint; errors propagate."""
