"""Both ends of processes in which a drop-in for wandb, or wandb itself, records what one script logs.

Each system works in a process and a directory of its own (`recording_child`), in turns. As in `recording`, a call is
timed by itself in short bursts after a rest, by the clock and by the CPU time of the calling thread. Trackio is not
wandb, but calls itself a drop-in for it.
"""

import contextlib
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import recorders
from recording_child import TEN, Child, Worker, obey

IMPLICIT, EXPLICIT = "wandb.log(row)", "wandb.log(row, step=n)"
KINDS = (IMPLICIT, EXPLICIT)


class DropIn(recorders.System):
    """A run of the drop-in with its defaults."""

    packages = ("hookline",)
    takes_arrays = True

    def __init__(self, directory: Path) -> None:
        self._wandb: Any = import_module("hookline.compat.wandb")
        off: dict[str, Any] = {"console": "off", "disable_git": True, "silent": True}
        self._wandb.init(project="benchmark", dir=str(directory), settings=off)

    @property
    def call(self) -> Callable[..., None]:
        """What the script calls."""
        log: Callable[..., None] = self._wandb.log
        return log

    def log(self, values: recorders.Values, step: int) -> None:
        self._wandb.log(values)

    def samples(self, samples: recorders.Samples, step: int) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self._wandb.finish()

    @staticmethod
    def recorded(directory: Path) -> Iterable[int]:
        read = import_module("hookline").read
        found = (record for run in directory.glob("runs/*/*/run.json") for record in read(run.parent))
        return [record.step for record in found if recorders.LAST_OF_TEN in getattr(record, "values", ())]


class Wandb(recorders.Wandb):
    """wandb, offline."""

    @property
    def call(self) -> Callable[..., None]:
        """What the script calls."""
        log: Callable[..., None] = self._run.log
        return log

    def log(self, values: recorders.Values, step: int) -> None:
        self._run.log(values)


class Trackio(recorders.Trackio):
    """Trackio, locally."""

    @property
    def call(self) -> Callable[..., None]:
        """What the script calls."""
        log: Callable[..., None] = self._run.log
        return log

    def log(self, values: recorders.Values, step: int) -> None:
        self._run.log(values)


SYSTEMS: dict[str, type[DropIn | Wandb | Trackio]] = {"hookline": DropIn, "wandb": Wandb, "trackio": Trackio}


class LogWorker(Worker):
    """The commands of a process in which a script logs rows of ten scalars."""

    _run: DropIn | Wandb | Trackio

    def _record(self, kind: str) -> Callable[[Any, int], None]:
        log = self._run.call
        return (lambda row, step: log(row)) if kind == IMPLICIT else (lambda row, step: log(row, step=step))

    def _maker(self, kind: str) -> Callable[[int], recorders.Values | recorders.Samples]:
        return super()._maker(TEN)


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured; seconds end what a slow system would make long."""

    bursts: int
    calls: int
    burst_seconds: float
    kills: int
    kill_rows: int
    kill_seconds: float
    idle_seconds: float


@dataclass(slots=True)
class Figures:
    """What was measured of one system.

    Attributes:
        wall: Microseconds a call by the clock, by kind.
        cpu: The same in CPU time of the calling thread.
        logged: Rows whose call had returned when their process was killed.
        lost: Those of them that are not there.
    """

    wall: dict[str, float]
    cpu: dict[str, float]
    logged: int = 0
    lost: int = 0


def measure(sizes: Sizes) -> dict[str, Figures]:
    """Measure the systems that are installed; hookline's comes first."""
    found = [name for name, system in SYSTEMS.items() if system.is_installed()]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        figures = _time_calls(found, Path(folder, "calls"), sizes)
        for number in range(sizes.kills):
            place = Path(folder, f"kill-{number}")
            # At another moment each time.
            for name, logged in _kill(found, place, sizes.kill_rows * (number + 1) // sizes.kills, sizes).items():
                figures[name].logged += logged
                with _children([name], place, sizes) as [reader]:
                    figures[name].lost += reader.ask("count_missing", logged)
    return figures


def _time_calls(systems: list[str], place: Path, sizes: Sizes) -> dict[str, Figures]:
    """What a call takes; the first burst is not counted."""
    taken: dict[tuple[str, str], list[list[list[int]]]] = {}
    with _children(systems, place, sizes) as children:
        for child in children:
            child.ask("open")
            child.settle()
        for _ in range(sizes.bursts + 1):
            for kind in KINDS:
                for child in children:
                    calls = child.ask("time_calls", kind, sizes.calls, sizes.burst_seconds)
                    taken.setdefault((child.name, kind), []).append(calls)
                    child.settle()
    figures = {name: Figures({}, {}) for name in systems}
    for (name, kind), bursts in taken.items():
        for index, times in enumerate((figures[name].wall, figures[name].cpu)):
            times[kind] = median(median(call[index] for call in calls) for calls in bursts[1:]) / 1e3
    return figures


def _kill(systems: list[str], place: Path, rows: int, sizes: Sizes) -> dict[str, int]:
    """How many rows each system had logged when its process was killed."""
    logged = {}
    with _children(systems, place, sizes) as children:
        for child in children:
            child.ask("open")
            logged[child.name] = child.kill_while_logging(0.0, rows, sizes.kill_seconds)
    return logged


@contextlib.contextmanager
def _children(systems: list[str], place: Path, sizes: Sizes) -> Iterator[list[Child]]:
    """A process for each system, in folders of their own; they are ended with the block."""
    with contextlib.ExitStack() as ends:
        children = []
        for name in systems:
            child = Child(name, place / name, idle_seconds=sizes.idle_seconds, script=__file__)
            children.append(child)
            ends.callback(child.end)
        yield children


if __name__ == "__main__":
    obey(lambda name, directory: LogWorker(SYSTEMS[name], directory))
