"""A run's sinks and the delivery that feeds them; nothing is loaded for a run without sinks."""

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from hookline._engine.errors import HooklineError, OptionError
from hookline._engine.factories import Entries

if TYPE_CHECKING:
    from hookline._engine.factories import Source
    from hookline._record.delivery import Pace, SinkState
    from hookline._record.delivery_manager import DeliveryManager, DeliveryProcess
    from hookline._record.sink import Sink


logger = logging.getLogger("hookline")

DeliveryMode: TypeAlias = Literal["thread", "process"]
DRAIN_SECONDS = 10.0


class RunSinks:
    """Where a run's record is delivered to.

    Args:
        sinks: What `make_sinks` takes.
        delivery: Whether from threads of this process or from a process of its own.
        drain_seconds: How long `close` waits for what is left to be delivered.
    """

    def __init__(self, sinks: Iterable[Any], *, delivery: DeliveryMode, drain_seconds: float) -> None:
        if delivery not in ("thread", "process"):
            raise OptionError(f"delivery={delivery!r}: give 'thread' or 'process'.")
        if not isinstance(drain_seconds, int | float) or not drain_seconds >= 0:
            raise OptionError(f"drain_seconds={drain_seconds!r}: give a number of seconds.")
        self._sinks = _made(sinks)
        for sink in self._sinks.values():
            sink.check()  # before anything is made
        self._delivery, self._drain_seconds = delivery, drain_seconds
        self.pace: Pace | None = None
        self._manager: DeliveryManager | DeliveryProcess | None = None

    def __len__(self) -> int:
        return len(self._sinks)

    def open(self, run_dir: Path) -> None:
        """Begin to deliver."""
        if not self._sinks:
            return
        if self._delivery == "thread":
            from hookline._record.delivery_manager import DeliveryManager

            self._manager = DeliveryManager(run_dir, self._sinks, pace=self.pace)
        else:
            from hookline._record.delivery_manager import DeliveryProcess

            self._manager = DeliveryProcess(run_dir, self._sinks, pace=self.pace)
        self._manager.start()

    def close(self) -> None:
        """Deliver what is left, within the time for it."""
        if self._manager is not None:
            self._manager.close(self._drain_seconds)

    def states(self) -> list["SinkState"]:
        """How each sink stands."""
        return [] if self._manager is None else self._manager.states()

    def ids(self) -> dict[str, str]:
        """What the destinations call the run, as ``<sink>_<id>``, say ``wandb_run_id``: of the sinks opened so far."""
        if self._manager is None:
            return {}
        from hookline._record.delivery import SINKS_FOLDER, Progress
        from hookline._record.records import clean

        found: dict[str, str] = {}
        for name, sink in self._sinks.items():
            saved = Progress.load(self._manager.run_dir / SINKS_FOLDER / f"{name}.json", clean(sink.spec()))
            found |= {f"{name}_{key}": value for key, value in _ids(name, sink, saved.state).items()}
        return found


def _ids(name: str, sink: "Sink", state: Any) -> dict[str, str]:
    try:
        return {} if state is None else sink.ids(state)
    except Exception:  # a sink that is wrong stops nothing
        logger.warning("%s cannot tell its ids.", name, exc_info=True)
        return {}


def _made(sinks: Iterable[Any]) -> "dict[str, Sink]":
    if isinstance(sinks, list | tuple) and not sinks:
        return {}
    from hookline._record.sink import make_sinks

    return make_sinks(_found(sinks, sinks.source) if isinstance(sinks, Entries) and sinks.source else sinks)


def _found(entries: Entries, source: "Source") -> "list[Sink]":
    """The sinks that entries of a file describe; errors say where in the file."""
    from hookline._record.sink import make_sink

    found = []
    for index, entry in enumerate(entries):
        try:
            found.append(make_sink(entry))
        except HooklineError as error:
            raise source.error(f"{entries.path}[{index}]", str(error).removeprefix("sinks: ")) from error
    return found
