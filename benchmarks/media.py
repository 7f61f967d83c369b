"""What images, histograms, tables and artifacts cost the training thread: hookline beside the peers that are installed.

- Microseconds of a call on the training thread, by the clock and by the thread's CPU time (medians), for an image of
  256 x 256 pixels, a histogram of a million float32 values in host memory, 100 rows added to a table, and an artifact
  of 100 files of 10 kB. Each call has new values and comes after a pause, as between the steps of a training. Beside
  the histogram, a plain copy of its values that another thread reads is timed in the same way: the values may change
  afterwards, so nothing can cost less.
- Bytes on the disk for ten equal images, less those of an empty run.
- Milliseconds until an image that was logged can be read back.
- Nanoseconds of CPU time for an append to hookline's table while it grows to 100,000 rows; a million with ``--full``.

Each system works in a process and a directory of its own (`media_systems`). Processes take turns, round by round, and
each waits until the last one has nothing left to do. Nothing is asserted: the bars are marked as met or not.
"""

import argparse
import contextlib
import importlib.metadata
import itertools
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import media_systems
from measure import met
from media_systems import ARTIFACT, COPY, HISTOGRAM, IMAGE, SYSTEMS, TABLE
from recording_child import Child
from rich.console import Console
from rich.table import Table

KINDS = {
    IMAGE: "image 256 x 256",
    HISTOGRAM: "histogram of 1e6",
    COPY: "a copy of 1e6",
    TABLE: "100 rows of a table",
    ARTIFACT: "artifact of 100 files",
}
EQUAL_IMAGES = 10
PAUSE_SECONDS = 0.01
CASE_SECONDS = 4.0
READABLE_SECONDS = 5.0
IMAGE_BAR, HISTOGRAM_BAR, TABLE_BAR, WANDB_BAR, FLAT_BAR = 100.0, 50.0, 200.0, 20.0, 1.5


@dataclass(frozen=True, slots=True)
class Call:
    """Microseconds of a call: medians by the clock and of the thread's CPU time, and the 90th percentile."""

    wall: float
    cpu: float
    p90: float


@dataclass(slots=True)
class Figures:
    """What was measured of one system."""

    calls: dict[str, Call] = field(default_factory=dict)
    equal_images_bytes: int | None = None
    readable_milliseconds: float | None = None


@dataclass(frozen=True, slots=True)
class Bar:
    """What hookline wants to reach."""

    claim: str
    measured: float
    limit: float
    is_met: bool


def measure(
    systems: list[str], *, rounds: int, calls: int, table_rows: int, turn: Callable[[str], None]
) -> dict[str, Any]:
    """Measure the systems, in turns."""
    found = {name: Figures() for name in systems}
    growth: list[list[float]] = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        place = Path(folder)
        with _children(systems, place / "calls") as children:
            _measure_calls(children, found, rounds, calls, turn)
            for child in children:
                turn(f"{child.name}: time until readable")
                seconds = [child.ask("readable_seconds", READABLE_SECONDS) for _ in range(3)]
                known = [each for each in seconds if each is not None]
                found[child.name].readable_milliseconds = 1e3 * median(known) if known else None
        for name in systems:
            turn(f"{name}: {EQUAL_IMAGES} equal images")
            empty, full = (_bytes_of(name, count, place / f"equal-{count}") for count in (0, EQUAL_IMAGES))
            found[name].equal_images_bytes = full - empty
        if "hookline" in systems:
            turn(f"hookline: a table of {table_rows:,} rows")
            with _children(["hookline"], place / "table") as [child]:
                growth = child.ask("grow_table", table_rows)
    return {"systems": found, "table_growth": growth}


def _measure_calls(
    children: list[Child], found: dict[str, Figures], rounds: int, calls: int, turn: Callable[[str], None]
) -> None:
    """Time the calls; the first round warms up."""
    taken: dict[tuple[str, str], list[list[int]]] = {}
    for number in range(rounds + 1):
        for kind, child in itertools.product(KINDS, children):
            if kind == COPY and child.name != "hookline":
                continue
            turn(f"{child.name}: {KINDS[kind]}")
            times = child.ask("time_calls", kind, calls, PAUSE_SECONDS, CASE_SECONDS)
            child.settle()
            if times is not None and number:
                taken.setdefault((child.name, kind), []).extend(times)
    for (name, kind), times in taken.items():
        wall = sorted(each[0] / 1e3 for each in times)
        cpu = median(each[1] / 1e3 for each in times)
        found[name].calls[kind] = Call(median(wall), cpu, wall[int(0.9 * len(wall))])


def _bytes_of(name: str, images: int, place: Path) -> int:
    with _children([name], place) as [child]:
        child.ask("equal_images", images)
        return int(child.ask("close"))


@contextlib.contextmanager
def _children(systems: list[str], place: Path) -> Iterator[list[Child]]:
    with contextlib.ExitStack() as ends:
        children = []
        for name in systems:
            child = Child(name, place / name, idle_seconds=0.06, script=media_systems.__file__)
            children.append(child)
            ends.callback(child.end)
        for child in children:
            child.ask("open")
            child.settle()
        yield children


def bars(found: dict[str, Figures], growth: list[list[float]]) -> list[Bar]:
    """Return the bars for which everything was measured."""
    if "hookline" not in found:
        return []
    own = found["hookline"]
    calls, made = own.calls, []

    def at_most(claim: str, measured: float, limit: float) -> None:
        made.append(Bar(f"{claim}, at most", measured, limit, measured <= limit))

    at_most("microseconds for an image of 256 x 256", calls[IMAGE].wall, IMAGE_BAR)
    limit = calls[COPY].wall + HISTOGRAM_BAR
    at_most("microseconds for a histogram of 1e6 (a copy of them + 50)", calls[HISTOGRAM].wall, limit)
    at_most("microseconds for 100 rows of a table", calls[TABLE].wall, TABLE_BAR)
    if "wandb" in found:
        lead = found["wandb"].calls[IMAGE].wall / calls[IMAGE].wall
        made.append(Bar("times less than W&B for an image, at least", lead, WANDB_BAR, lead >= WANDB_BAR))
    equal, single = own.equal_images_bytes or 0, 3 * media_systems.SIDE**2
    at_most("bytes for ten equal images (one, not compressed)", equal, single)
    if growth:
        costs = [each[1] for each in growth]
        at_most("times the first tenth's cost of an append in the last", costs[-1] / costs[0], FLAT_BAR)
    return made


def show(report: dict[str, Any], console: Console) -> None:
    """Print the tables and the bars."""
    table = Table("", title="Microseconds a call: median by the clock; CPU time of the thread; 90th percentile")
    for heading in [*KINDS.values(), "10 equal images", "readable after"]:
        table.add_column(heading, justify="right")
    for name, figures in report["systems"].items():
        cells = [figures.calls.get(kind) for kind in KINDS]
        readable = figures.readable_milliseconds
        table.add_row(
            name,
            *("-" if call is None else f"{call.wall:,.0f}; {call.cpu:,.0f}; {call.p90:,.0f}" for call in cells),
            f"{figures.equal_images_bytes or 0:,} B",
            f"> {READABLE_SECONDS:g} s" if readable is None else f"{readable:,.0f} ms",
        )
    console.print(table)
    for rows, nanoseconds in report["table_growth"]:
        console.print(f"table of {int(rows):>9,} rows: {nanoseconds / 1e3:,.1f} µs of CPU time for 100 more")
    for bar in report["bars"]:
        console.print(f"{met(bar.is_met):8} {bar.claim}: {bar.limit:,.1f}; measured {bar.measured:,.1f}")
    console.print(", ".join(f"{name} {version}" for name, version in report["environment"].items()))


def main() -> None:
    """Measure, and print tables or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=SYSTEMS, default=list(SYSTEMS), help="the systems to measure")
    parser.add_argument("--quick", action="store_true", help="measure little, to see that it works")
    parser.add_argument("--full", action="store_true", help="grow the table to a million rows")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the tables")
    options = parser.parse_args()
    systems = [name for name in options.only if SYSTEMS[name].is_installed()]
    rounds, calls = (1, 5) if options.quick else (5, 20)
    table_rows = 1_000_000 if options.full else 10_000 if options.quick else 100_000
    show_turn = print if sys.stderr.isatty() else lambda *_, **__: None
    report = measure(
        systems,
        rounds=rounds,
        calls=calls,
        table_rows=table_rows,
        turn=lambda work: show_turn(f"{work:60}", end="\r", file=sys.stderr),
    )
    report["bars"] = bars(report["systems"], report["table_growth"])
    packages = sorted({package for name in systems for package in SYSTEMS[name].packages})
    versions = {package: importlib.metadata.version(package) for package in packages}
    report["environment"] = {"Python": platform.python_version(), "CPUs": str(os.cpu_count())} | versions
    if options.json:
        plain = {name: asdict(figures) for name, figures in report["systems"].items()}
        print(json.dumps(report | {"systems": plain, "bars": [asdict(bar) for bar in report["bars"]]}))
    else:
        show(report, Console())


if __name__ == "__main__":
    main()
