"""What recording costs and what a killed process loses: hookline beside the peers that are installed.

- Microseconds a call (median, 99th percentile, maximum) for rows of 1, 10 and 100 scalars, of 20
  tensors on the CPU, of 20 NumPy numbers and for 8 samples of 2 kB, in short bursts after a rest: a
  flood would keep the threads of some peers awake, and so flatter them. Every call is timed by itself,
  by the clock and by the CPU time of the calling thread (median), which other processes on the machine
  do not change; the garbage collector is on. Peers that take no tensors get them as Python's numbers.
- Scalars a second with 10 in a row, from the first call until the run is closed, less what closing
  a run of one row takes, and in a second of the calling thread's CPU time; and bytes a scalar in the
  closed run's directory, less that run's.
- How much slower a training step of 2 ms gets (PyTorch, one thread), and what the call takes inside
  it, where caches are cold, both by the clock and in CPU time. Blocks with and without recording
  alternate; the ratio is the median over the pairs. What a peer does in the background while its blocks
  rest is not counted against it.
- Memory that the same process, and those that the peer started, hold more at the end of that training
  than before the peer was imported. The row "nothing" is the noise of both.
- Rows lost by ``kill -9``: those whose call had returned, and that are not found when its files are
  read. Only the process itself is killed; what it had started may finish. That the same reader finds
  every row of a run that was closed is checked, too.

hookline is a `Recorder`, and beside it `run.log()` in `run.steps()` with everything that a step does.
Each system works in a process and a directory of its own (`recording_child`, `recorders`). Processes
take turns, round by round, each waits until the last one has nothing left to do, and figures are
medians over rounds. Nothing is asserted: the bars are marked as met or not.
"""

import argparse
import contextlib
import importlib.metadata
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from statistics import median, quantiles

from recorders import SYSTEMS
from recording_child import HUNDRED, LIBRARIES, NUMBERS, ONE, SAMPLES, TEN, TENSORS, Child
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

KINDS = {
    ONE: "1 scalar",
    TEN: "10 scalars",
    HUNDRED: "100 scalars",
    TENSORS: "20 CPU tensors",
    NUMBERS: "20 NumPy numbers",
    SAMPLES: "8 samples of 2 kB",
}
PAUSES = {"paced": 0.002, "full_speed": 0.0}
"""Seconds between the rows that a process logs until it is killed."""
NOTHING = "nothing"
CALL_BARS = {(TEN, "wandb"): 60, (TEN, "tensorboard"): 60, (TEN, "trackio"): 5, (HUNDRED, "wandb"): 40}
"""At least so many times as fast a call as theirs."""
RATE_BARS = {"wandb": 60, "tensorboard": 60}
"""At least so many times their scalars a second."""
SLOWDOWN_BARS = {TEN: 1.01, SAMPLES: 1.03}
MEGABYTES_BAR = 40.0

Turn = Callable[[str], None]
"""Called before each piece of work, with what it is."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured; seconds end what a slow system would make long."""

    bursts: int
    calls: dict[str, int]
    call_seconds: float
    fill_rows: int
    fill_seconds: float
    rounds: int
    pairs: int
    steps: int
    kill_rows: int
    kill_seconds: float
    idle_seconds: float

    def turns(self, systems: int) -> int:
        """How often work is announced."""
        calls = (self.bursts + 1) * len(measured_kinds())
        return systems * (calls + 2 + self.rounds * len(SLOWDOWN_BARS) + len(PAUSES))


FULL = Sizes(
    bursts=9,
    calls={ONE: 300, TEN: 300, HUNDRED: 150, TENSORS: 150, NUMBERS: 150, SAMPLES: 50},
    call_seconds=0.15,
    fill_rows=200_000,
    fill_seconds=2.0,
    rounds=5,
    pairs=6,
    steps=25,
    kill_rows=10_000,
    kill_seconds=1.5,
    idle_seconds=0.06,
)
QUICK = Sizes(
    bursts=1,
    calls={ONE: 50, TEN: 50, HUNDRED: 20, TENSORS: 20, NUMBERS: 20, SAMPLES: 10},
    call_seconds=0.1,
    fill_rows=500,
    fill_seconds=0.2,
    rounds=1,
    pairs=2,
    steps=5,
    kill_rows=100,
    kill_seconds=0.5,
    idle_seconds=0.02,
)


@dataclass(frozen=True, slots=True)
class Spread:
    """Microseconds of a call."""

    median: float
    p99: float
    max: float
    cpu: float
    """The median of the calling thread's CPU time."""


@dataclass(frozen=True, slots=True)
class Kill:
    """How many calls had returned when the process was killed, and how many of their rows are not there."""

    acknowledged: int
    lost: int


@dataclass(slots=True)
class Figures:
    """What was measured of one system."""

    call_microseconds: dict[str, Spread] = field(default_factory=dict)
    scalars_per_second: float | None = None
    scalars_per_cpu_second: float | None = None
    bytes_per_scalar: float | None = None
    missing_after_close: int | None = None
    step_slowdown: dict[str, float] = field(default_factory=dict)
    step_cpu_slowdown: dict[str, float] = field(default_factory=dict)
    in_step_microseconds: dict[str, float] = field(default_factory=dict)
    in_step_cpu_microseconds: dict[str, float] = field(default_factory=dict)
    megabytes: float | None = None
    killed: dict[str, Kill] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Bar:
    """What hookline wants to reach."""

    claim: str
    measured: float
    limit: float
    is_met: bool


@dataclass(slots=True)
class Report:
    """Everything that was measured, by system."""

    environment: dict[str, str]
    not_installed: list[str]
    numbers: dict[str, Figures]
    step_milliseconds: float | None = None

    @property
    def bars(self) -> list[Bar]:
        """The bars for which everything was measured."""
        return list(_bars(self.numbers)) if "hookline" in self.numbers else []


def measured_kinds() -> list[str]:
    """The kinds of rows whose values can be made here."""
    return [kind for kind in KINDS if kind not in LIBRARIES or find_spec(LIBRARIES[kind]) is not None]


def measure(systems: Iterable[str], sizes: Sizes, turn: Turn) -> Report:
    """Measure these systems as far as they are installed."""
    wanted = list(systems)
    found = [name for name in wanted if SYSTEMS[name].is_installed()]
    report = Report(_environment(found), sorted(set(wanted).difference(found)), {name: Figures() for name in found})
    timed = [name for name in found if SYSTEMS[name].is_timed]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        place = Path(folder)
        measure_calls(timed, place / "calls", sizes, report, turn)
        measure_rates(timed, place / "rates", sizes, report, turn)
        if find_spec("torch") is not None:
            measure_training([NOTHING, *timed], place / "training", sizes, report, turn)
        for pace in PAUSES:
            measure_losses(found, place / pace, pace, sizes, report, turn)
    return report


def measure_calls(systems: list[str], place: Path, sizes: Sizes, report: Report, turn: Turn) -> None:
    """What a call takes; the first burst is not counted."""
    taken: dict[tuple[str, str], list[list[list[int]]]] = {}
    with _children(systems, place, sizes) as children:
        _open(children)
        for _ in range(sizes.bursts + 1):
            for kind in measured_kinds():
                for child in children:
                    turn(f"{child.name}: {KINDS[kind]}")
                    calls = child.ask("time_calls", kind, sizes.calls[kind], sizes.call_seconds)
                    taken.setdefault((child.name, kind), []).append(calls)
                    child.settle()
    for (name, kind), rounds in taken.items():
        report.numbers[name].call_microseconds[kind] = _spread(rounds[1:])


def measure_rates(systems: list[str], place: Path, sizes: Sizes, report: Report, turn: Turn) -> None:
    """Scalars a second until they are in the file, and how large it is, beside a run of one row."""
    for name in systems:
        turn(f"{name}: a run of one row")
        *_, least_seconds, least_bytes = _filled(name, place / "least", 1, sizes)
        turn(f"{name}: scalars a second")
        rows, seconds, cpu_seconds, close_seconds, size = _filled(name, place / "full", sizes.fill_rows, sizes)
        figures = report.numbers[name]
        figures.scalars_per_second = 10 * rows / (seconds + max(0.0, close_seconds - least_seconds))
        figures.scalars_per_cpu_second = 10 * rows / cpu_seconds
        figures.bytes_per_scalar = (size - least_bytes) / (10 * (rows - 1))
        figures.missing_after_close = _missing({name: rows}, place / "full", sizes)[name]


def _filled(name: str, place: Path, rows: int, sizes: Sizes) -> tuple[int, float, float, float, int]:
    """How many rows were logged, the seconds and CPU seconds that took, those of closing the run, and its bytes."""
    with _children([name], place, sizes) as [child]:
        _open([child])
        logged, seconds, cpu_seconds = child.ask("fill", rows, sizes.fill_seconds)
        close_seconds = child.ask("close")
    files = (path for path in child.directory.rglob("*") if path.is_file() and not path.is_symlink())
    return int(logged), seconds, cpu_seconds, close_seconds, sum(path.stat().st_size for path in files)


def measure_training(systems: list[str], place: Path, sizes: Sizes, report: Report, turn: Turn) -> None:
    """What recording does to a training step, and to the process's memory."""
    taken: dict[tuple[str, str], list[list[float]]] = {}
    report.numbers[NOTHING] = Figures()
    with _children(systems, place, sizes) as children:
        batch_size = children[0].ask("calibrate")
        _all(children, "prepare_training", batch_size)
        report.step_milliseconds = children[0].ask("step_milliseconds")
        before = {child.name: child.megabytes() for child in children}
        _open(children)
        for _ in range(sizes.rounds):
            for child in children:
                for kind in SLOWDOWN_BARS:
                    turn(f"{child.name}: training with {KINDS[kind]}")
                    taken.setdefault((child.name, kind), []).extend(child.ask("train", kind, sizes.pairs, sizes.steps))
                    child.settle()
        for child in children:
            report.numbers[child.name].megabytes = child.megabytes() - before[child.name]
    for (name, kind), pairs in taken.items():
        slowdown, cpu_slowdown, call, cpu_call = map(median, zip(*pairs, strict=True))
        figures = report.numbers[name]
        figures.step_slowdown[kind], figures.step_cpu_slowdown[kind] = slowdown, cpu_slowdown
        figures.in_step_microseconds[kind], figures.in_step_cpu_microseconds[kind] = call / 1e3, cpu_call / 1e3


def measure_losses(systems: list[str], place: Path, pace: str, sizes: Sizes, report: Report, turn: Turn) -> None:
    """What a killed process had logged, and is not there."""
    acknowledged = {}
    with _children(systems, place, sizes) as children:
        _open(children)
        for child in children:
            turn(f"{child.name}: kill -9")
            acknowledged[child.name] = child.kill_while_logging(PAUSES[pace], sizes.kill_rows, sizes.kill_seconds)
    for name, lost in _missing(acknowledged, place, sizes).items():
        report.numbers[name].killed[pace] = Kill(acknowledged[name], lost)


def _missing(rows: dict[str, int], place: Path, sizes: Sizes) -> dict[str, int]:
    """How many of the first rows are not found when each system's files are read."""
    with _children(list(rows), place, sizes) as children:
        for child in children:
            child.tell("count_missing", rows[child.name])
        return {child.name: child.hear() for child in children}


@contextlib.contextmanager
def _children(systems: list[str], place: Path, sizes: Sizes) -> Iterator[list[Child]]:
    """A process for each system, in folders of their own; they are ended with the block."""
    with contextlib.ExitStack() as ends:
        children = []
        for name in systems:
            children.append(child := Child(name, place / name, idle_seconds=sizes.idle_seconds))
            ends.callback(child.end)
        yield children


def _open(children: list[Child]) -> None:
    _all(children, "open")


def _all(children: list[Child], command: str, *arguments: object) -> None:
    """Have all of them do something at the same time."""
    for child in children:
        child.tell(command, *arguments)
    for child in children:
        child.hear()
    for child in children:
        child.settle()


def _spread(rounds: list[list[list[int]]]) -> Spread:
    """Of rounds of calls, each with its nanoseconds by the clock and of CPU time."""
    wall = [[taken for taken, _ in calls] for calls in rounds]
    cpu = median(median(used for _, used in calls) for calls in rounds)
    p99 = median(quantiles(calls, n=100, method="inclusive")[98] for calls in wall)
    return Spread(median(map(median, wall)) / 1e3, p99 / 1e3, max(map(max, wall)) / 1e3, cpu / 1e3)


def _environment(systems: Iterable[str]) -> dict[str, str]:
    found = {"Python": platform.python_version(), "CPUs": str(os.cpu_count()), "kernel": platform.release()}
    packages = {package for name in systems for package in SYSTEMS[name].packages}
    if find_spec("torch") is not None:
        packages.add("torch")
    return found | {package: importlib.metadata.version(package) for package in sorted(packages)}


def _bars(numbers: dict[str, Figures]) -> Iterator[Bar]:
    own = numbers["hookline"]
    for (kind, peer), times in CALL_BARS.items():
        if peer in numbers:
            lead = numbers[peer].call_microseconds[kind].median / own.call_microseconds[kind].median
            yield Bar(f"{KINDS[kind]}: times as fast a call as {peer}'s, at least", lead, times, lead >= times)
    for peer, times in RATE_BARS.items():
        if peer in numbers:
            lead = (own.scalars_per_second or 0.0) / (numbers[peer].scalars_per_second or 1.0)
            yield Bar(f"times {peer}'s scalars a second, at least", lead, times, lead >= times)
    lost = sum(kill.lost for kill in own.killed.values())
    yield Bar("rows lost by kill -9, at most", lost, 0, lost == 0)
    for kind, limit in SLOWDOWN_BARS.items():
        if (slowdown := own.step_slowdown.get(kind)) is not None:
            yield Bar(f"times a step of 2 ms with {KINDS[kind]}, at most", slowdown, limit, slowdown <= limit)
    if own.megabytes is not None:
        yield Bar("MB of memory more, less than", own.megabytes, MEGABYTES_BAR, own.megabytes < MEGABYTES_BAR)


def show(report: Report, console: Console) -> None:
    """Print the tables, the bars and what was measured with."""
    console.print(_calls_table(report), _training_table(report), _others_table(report))
    bars = Table("bar", "", title="hookline's bars")
    bars.add_column("limit", justify="right")
    bars.add_column("measured", justify="right")
    for bar in report.bars:
        bars.add_row(bar.claim, "met" if bar.is_met else "NOT MET", f"{bar.limit:g}", f"{bar.measured:,.3f}")
    console.print(bars)
    for line in _lines(report):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _calls_table(report: Report) -> Table:
    table = Table("a row of", "", title="Microseconds a call, by the clock and of the thread's CPU time")
    for heading in ("median", "p99", "max", "CPU median"):
        table.add_column(heading, justify="right")
    for kind, heading in KINDS.items():
        for name, figures in report.numbers.items():
            if (spread := figures.call_microseconds.get(kind)) is not None:
                times = (f"{spread.median:,.1f}", f"{spread.p99:,.1f}", f"{spread.max:,.0f}", f"{spread.cpu:,.1f}")
                table.add_row(heading, name, *times)
        table.add_section()
    return table


def _training_table(report: Report) -> Table:
    table = Table("recorded in a step", "", title=f"In a training step of {report.step_milliseconds or 0:.2f} ms")
    for heading in ("slower", "CPU", "µs a call", "CPU µs"):
        table.add_column(heading, justify="right")
    for kind in SLOWDOWN_BARS:
        for name, figures in report.numbers.items():
            slowdowns = (figures.step_slowdown.get(kind), figures.step_cpu_slowdown.get(kind))
            percents = (_number(None if each is None else 100 * (each - 1), "+,.2f", "%") for each in slowdowns)
            calls = (figures.in_step_microseconds.get(kind), figures.in_step_cpu_microseconds.get(kind))
            table.add_row(KINDS[kind], name, *percents, *(_number(each, ",.1f") for each in calls))
        table.add_section()
    return table


def _others_table(report: Report) -> Table:
    table = Table("", title="The rest")
    for heading in ("scalars/s", "scalars/CPU s", "bytes each", "MB"):
        table.add_column(heading, justify="right")
    for heading in ("lost of rows, one in 2 ms", "lost of rows, full speed"):
        table.add_column(heading, justify="right")
    for name, figures in report.numbers.items():
        table.add_row(name, *_cells(figures))
    return table


def _cells(figures: Figures) -> Iterator[str]:
    yield _number(figures.scalars_per_second, ",.0f")
    yield _number(figures.scalars_per_cpu_second, ",.0f")
    yield _number(figures.bytes_per_scalar, ".1f")
    yield _number(figures.megabytes, "+.1f")
    for pace in PAUSES:
        kill = figures.killed.get(pace)
        yield "-" if kill is None else f"{kill.lost:,} of {kill.acknowledged:,}"


def _number(value: float | None, form: str, unit: str = "") -> str:
    return "-" if value is None else f"{value:{form}}{unit}"


def _lines(report: Report) -> Iterator[str]:
    for name, figures in report.numbers.items():
        if figures.missing_after_close:
            yield f"{name}: {figures.missing_after_close} rows are missing from a run that was closed"
    if report.not_installed:
        yield f"not installed: {', '.join(report.not_installed)}"
    yield ", ".join(f"{name} {version}" for name, version in report.environment.items())


def main() -> None:
    """Measure, and print tables or one JSON object."""
    parser = argparse.ArgumentParser(description="What recording costs and loses, beside hookline's peers.")
    parser.add_argument("--only", nargs="+", choices=SYSTEMS, default=list(SYSTEMS), help="the systems to measure")
    parser.add_argument("--quick", action="store_true", help="measure little, to see that it works")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the tables")
    options = parser.parse_args()
    sizes = QUICK if options.quick else FULL
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("", total=sizes.turns(len(options.only)))
        report = measure(options.only, sizes, lambda work: progress.update(task, advance=1, description=work))
    if options.json:
        print(json.dumps(asdict(report) | {"bars": [asdict(bar) for bar in report.bars]}))
    else:
        show(report, Console())


if __name__ == "__main__":
    main()
