"""`PassiveRun`: a run that records what a tracker or a coordinator passes on, in the one process that has it.

Values that are no numbers, texts or truth values (images, histograms) are left out, with one warning per name: other
trackers may get the same values and support them.
"""

import logging
from collections.abc import Iterable, Mapping
from typing import Any, Unpack

from hookline._engine.errors import OptionError
from hookline._engine.metrics import collect
from hookline._engine.state import ManifestRow
from hookline.integrations.host_loop import HostLoop
from hookline.loops.distributed import ProcessGroup
from hookline.loops.options import RunOptions

logger = logging.getLogger("hookline")


class PassiveRun(HostLoop):
    """A run of one process, whatever processes train: it agrees on nothing with others, and takes no signals."""

    def __init__(
        self, name: str, *, native: Any = None, callbacks: Iterable[Any] = (), **options: Unpack[RunOptions]
    ) -> None:
        super().__init__(name, native=native, callbacks=callbacks, **options)
        self.rank, self.world_size = 0, 1
        self.processes = _Alone()
        self._left_out: set[str] = set()

    def begin(
        self, *, trains: bool = True, state: Mapping[str, Any] | None = None, row: ManifestRow | None = None
    ) -> None:
        """Begin to record."""
        super().begin(trains=trains, state=state, row=row)
        self._signals.restore()  # nothing would check whether to stop

    def record(self, metrics: Mapping[str, Any], step: int) -> None:
        """Record those of the metrics that can be recorded, at a step."""
        self.step = max(self.step, step)
        self.host_log({name: value for name, value in metrics.items() if self._can_log(name, value)}, step=step)

    def _can_log(self, name: str, value: Any) -> bool:
        try:
            collect(({name: value},), {}, _leave)
        except OptionError as error:
            if name not in self._left_out:
                self._left_out.add(name)
                logger.warning("%s does not record %r: %s", self.name, name, error)
            return False
        return True


class _Alone(ProcessGroup):
    """A process by itself, even where torch.distributed connects it with others."""

    def gather(self, value: Any) -> list[Any]:
        """Return this process's value."""
        return [value]

    def share(self, value: Any) -> Any:
        """Return the value."""
        return value


def _leave(values: dict[str, Any]) -> None:
    """Fetch nothing from a device: whether a value can be recorded shows without it."""
