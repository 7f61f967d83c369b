"""What the contract suite needs to know of a destination."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from hookline.sinks import Sink

LEFT_OUT = object()


class Destination(ABC):
    """A place that a sink delivers to, made afresh below a directory for each test."""

    name = ""
    """The sink's registered name."""
    keeps_history = True
    """Whether all rows can be read back, or only the latest of each metric."""
    keeps_samples = False
    """Whether the texts of samples arrive."""
    faults: tuple[str, ...] = ()
    """What `fail` accepts: ``disk_full``, ``unreachable``, ``refused``, ``hanging``, ``error``, ``half_closed``."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @abstractmethod
    def sink(self) -> Sink:
        """A new sink for this place, as another process would make it."""

    @abstractmethod
    def metrics(self) -> list[tuple[int, str, Any]]:
        """(step, name, value) of all metrics that arrived, in the order of arrival."""

    def texts(self) -> list[str]:
        """The completions of the samples that arrived, in the order of arrival."""
        return []

    def media(self) -> dict[str, Any]:
        """The media that arrived, by name, as plain values (see `media_values`)."""
        return {}

    def artifacts(self) -> list[dict[str, Any]]:
        """The versions of artifacts that arrived: name, kind, metadata, aliases, files, and references."""
        return []

    def shown(self, value: Any) -> Any:
        """A metric's value as it is read back here, or LEFT_OUT where this place has no way to hold it."""
        return value

    def fail(self, fault: str) -> None:
        """Begin to fail in this way."""
        raise NotImplementedError(fault)

    def heal(self) -> None:  # noqa: B027
        """Work again."""

    def close(self) -> None:  # noqa: B027
        """End what was started for the test."""
