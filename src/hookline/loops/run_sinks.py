"""The sinks of a run, and the threads or the process that feed them from its record; loaded only with sinks."""

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from hookline._engine.defaults import mode
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
    """The sinks of a run.

    Args:
        sinks: Anything `make_sinks` accepts.
        delivery: Whether to deliver from threads of this process or from a process of its own.
        drain_seconds: How long `close` waits for the remaining records.
    """

    def __init__(self, sinks: Iterable[Any], *, delivery: DeliveryMode, drain_seconds: float) -> None:
        if delivery not in ("thread", "process"):
            raise OptionError(f"delivery={delivery!r}: give 'thread' or 'process'.")
        if not isinstance(drain_seconds, int | float) or not drain_seconds >= 0:
            raise OptionError(f"drain_seconds={drain_seconds!r}: give a number of seconds.")
        self._sinks = _made(sinks)
        for sink in self._sinks.values():
            sink.check()  # before anything is created
        self._mode, self._drain_seconds = delivery, drain_seconds
        self.pace: Pace | None = None
        self._manager: DeliveryManager | DeliveryProcess | None = None
        self._left_to_sync: Path | None = None  # the directory of a run whose sinks are all left to `runs sync`

    def __len__(self) -> int:
        return len(self._sinks)

    def open(self, run_dir: Path) -> None:
        """Start delivery."""
        if not self._sinks:
            return
        sinks = self._sinks if mode() == "online" else self._without_network(run_dir)
        if not sinks:
            self._left_to_sync = run_dir
            return
        if self._mode == "thread":
            from hookline._record.delivery_manager import DeliveryManager

            self._manager = DeliveryManager(run_dir, sinks, pace=self.pace)
        else:
            from hookline._record.delivery_manager import DeliveryProcess

            self._manager = DeliveryProcess(run_dir, sinks, pace=self.pace)
        self._manager.start()

    def _without_network(self, run_dir: Path) -> "dict[str, Sink]":
        """Leave the sinks that use more than files of the run to ``hookline runs sync``; returns the others."""
        from hookline._record.delivery import Delivery
        from hookline._record.sink import external_access

        later = {name for name, sink in self._sinks.items() if external_access(sink.spec(), run_dir)}
        for name in later:
            Delivery(run_dir, name, self._sinks[name])  # only lists the sink, for `hookline runs sync`
        return {name: sink for name, sink in self._sinks.items() if name not in later}

    def close(self) -> None:
        """Deliver the remaining records, within the time limit."""
        if self._manager is not None:
            self._manager.close(self._drain_seconds)

    def states(self) -> list["SinkState"]:
        """Return the state of each sink."""
        if self._manager is not None:
            return self._manager.states()
        if self._left_to_sync is None:
            return []
        from hookline._record.delivery import sink_states

        return sink_states(self._left_to_sync)

    def ids(self) -> dict[str, str]:
        """Return the ids of the run at its destinations, as ``<sink>_<id>``, e.g. ``wandb_run_id``."""
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
    except Exception:  # a broken sink stops nothing
        logger.warning("%s failed to return its ids.", name, exc_info=True)
        return {}


def _made(sinks: Iterable[Any]) -> "dict[str, Sink]":
    if isinstance(sinks, list | tuple) and not sinks:
        return {}
    from hookline._record.sink import make_sinks

    return make_sinks(_found(sinks, sinks.source) if isinstance(sinks, Entries) and sinks.source else sinks)


def _found(entries: Entries, source: "Source") -> "list[Sink]":
    """Create the sinks that a configuration file describes; errors name the place in the file."""
    from hookline._record.sink import make_sink

    found = []
    for index, entry in enumerate(entries):
        try:
            found.append(make_sink(entry))
        except HooklineError as error:
            raise source.error(f"{entries.path}[{index}]", str(error).removeprefix("sinks: ")) from error
    return found
