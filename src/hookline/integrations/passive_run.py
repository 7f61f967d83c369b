"""`PassiveRun`: a run that records the values of a tracker or coordinator, in a single process.

Values that hookline cannot record are left out, with one warning per name (`HostLoop.recordable`).
"""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Unpack

from hookline._engine.state import ManifestRow
from hookline.integrations.host_loop import HostLoop
from hookline.loops.distributed import ProcessGroup
from hookline.loops.options import RunOptions


class PassiveRun(HostLoop):
    """A run of one process, even if others train: it does not synchronize with them, and handles no signals."""

    control_refusal: ClassVar[str | None] = "It only records another program's values, and has no steps itself."
    no_checkpoints = "the run only records another program's values"

    def __init__(
        self, name: str, *, native: Any = None, callbacks: Iterable[Any] = (), **options: Unpack[RunOptions]
    ) -> None:
        super().__init__(name, native=native, callbacks=callbacks, **options)
        self.rank, self.world_size = 0, 1
        self.processes = _Alone()

    def begin(
        self, *, trains: bool = True, state: Mapping[str, Any] | None = None, row: ManifestRow | None = None
    ) -> None:
        """Begin to record."""
        super().begin(trains=trains, state=state, row=row)
        self.leave_signals()

    def record(self, metrics: Mapping[str, Any], step: int) -> None:
        """Record those of the metrics that can be recorded, at a step."""
        self.step = max(self.step, step)
        self.host_log(self.recordable(metrics), step=step)


class _Alone(ProcessGroup):
    """A process by itself, even where torch.distributed connects it with others."""

    def gather(self, value: Any) -> list[Any]:
        """Return this process's value."""
        return [value]

    def share(self, value: Any) -> Any:
        """Return the value."""
        return value
