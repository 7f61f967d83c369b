"""`LoggerRun`: the run of a logger, which is told metrics and nothing else."""

from collections.abc import Mapping
from typing import Any

from hookline.core.state import ManifestRow
from hookline.integrations.host_loop import HostLoop
from hookline.loops.ranks import Agreement


class LoggerRun(HostLoop):
    """A run that only records, in the one process that logs: it settles nothing with others, and takes no signals."""

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(name, native=None, **options)
        self.rank, self.world_size = 0, 1
        self.agreement = _Alone()

    def begin(
        self, *, trains: bool = True, state: Mapping[str, Any] | None = None, row: ManifestRow | None = None
    ) -> None:
        """Begin to record."""
        super().begin(trains=trains, state=state, row=row)
        self._signals.restore()  # nobody would ask whether to stop


class _Alone(Agreement):
    """Agrees with itself, whatever processes train together."""

    def gather(self, value: Any) -> list[Any]:
        """Just this one's."""
        return [value]

    def share(self, value: Any) -> Any:
        """The value."""
        return value
