"""`ToldRun`: a run that only records what a tracker or a coordinator is told, in the one process that hears it.

What is no number, text or truth value (an image, a histogram) is not recorded, and said once by name: others may be
told the same and know what to do with it.
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
    """A run of one process, whatever processes train: it settles nothing with others, and takes no signals."""

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
        self._signals.restore()  # nobody would ask whether to stop

    def tell(self, metrics: Mapping[str, Any], step: int) -> None:
        """Record what of the metrics can be, at a step."""
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
    """Agrees with itself, whatever processes train together."""

    def gather(self, value: Any) -> list[Any]:
        """Just this one's."""
        return [value]

    def share(self, value: Any) -> Any:
        """The value."""
        return value


def _leave(values: dict[str, Any]) -> None:
    """Leave what is on a device where it is: whether it can be recorded is seen without it."""
