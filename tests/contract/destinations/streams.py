"""Destinations that are no place: a stream of lines, and a function that is called."""

import math
import sys
from pathlib import Path

from destinations.base import Destination
from hookline.sinks import ConsoleSink, FunctionSink


class ConsoleDestination(Destination):
    """Standard output, redirected into a file as a shell does it."""

    name = "console"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.path = directory / "stdout.txt"
        self._before, self._file = sys.stdout, self.path.open("w", encoding="utf-8")
        sys.stdout = self._file

    def sink(self):
        return ConsoleSink("stdout", every_seconds=0)

    def metrics(self):
        found = []
        for line in self.path.read_text(encoding="utf-8").splitlines():
            _, place, *pairs = line.split("  ")
            step = int(place.removeprefix("step "))
            found += [(step, *pair.rsplit(" ", 1)) for pair in pairs if " " in pair]
        return found

    def shown(self, value):
        if isinstance(value, float):
            return f"{value:.4g}" if math.isfinite(value) else f"{value}!".replace("nan", "NaN")
        return str(value)

    def close(self) -> None:
        if sys.stdout is self._file:  # pytest puts its own there between the phases of a test
            sys.stdout = self._before
        self._file.close()


CALLS: list[tuple[dict, int]] = []
BROKEN: list[str] = []


def log_row(report_data, step):
    """A user's logger function, which works or does not."""
    if BROKEN:
        raise ConnectionError(BROKEN[0])
    CALLS.append((report_data, step))


class FunctionDestination(Destination):
    """A function of this module; what it was called with is kept."""

    name = "function"
    faults = ("error",)

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.close()

    def sink(self):
        return FunctionSink(log_row)

    def metrics(self):
        return [(step, key, value) for report_data, step in CALLS for key, value in report_data.items()]

    def fail(self, fault: str) -> None:
        BROKEN.append("the logger's server is down")

    def heal(self) -> None:
        BROKEN.clear()

    def close(self) -> None:
        CALLS.clear()
        BROKEN.clear()
