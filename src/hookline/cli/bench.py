"""``hookline bench``: measures hookline's costs on this machine.

- ``dispatch``: firing a moment, as a ratio to a direct method call.
- ``recording``: microseconds of the training thread per call, each call timed separately.
- ``journal``: rows per second from the first call until the journal is closed, and when reading them back.

Cases are timed in turns, so that a slow phase of the machine affects all of them, and figures are medians. The CPU
time of the calling thread is shown too: on a busy machine it is more reliable. ``benchmarks/`` in the repository
compares hookline with other libraries.
"""

import gc
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles
from types import FunctionType
from typing import Annotated, Any

import typer

import hookline
from hookline._engine.collection import CallbackCollection
from hookline._engine.errors import ConfigError, UnknownNameError, closest
from hookline._engine.moments import Callback
from hookline.cli.output import AsJson, console, print_json, table, wrong_input

_NEVER = 10**9
"""A cadence that is never due."""
_SAMPLE = {"prompt": "p" * 1000, "completion": "c" * 1000, "rewards": {"exact": 1.0}, "total": 1.0}
_ROW = {f"metric_{i}": 0.5 * i for i in range(10)}

Loop = Callable[[int], object]
"""Makes the given number of calls."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The amount of work to measure."""

    rounds: int = 15
    calls: int = 20_000
    records: int = 3_000
    rows: int = 100_000


@dataclass(frozen=True, slots=True)
class Figure:
    """A measurement."""

    benchmark: str
    what: str
    value: float
    unit: str
    note: str = ""
    cpu: float | None = None
    """The value in CPU time of the calling thread, which other processes hardly affect."""


def bench_command(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="dispatch, recording, journal; all by default.", show_default=False),
    ] = None,
    *,
    directory: Annotated[
        Path | None,
        typer.Option("--dir", help="A directory on the disk to measure; by default a temporary one."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Take about a second, with less precise results.")] = False,
    as_json: AsJson = False,
) -> None:
    """Measure hookline's costs on this machine: dispatch, recording, journal. Takes a few seconds."""
    with wrong_input(as_json=as_json):
        wanted = _known(names or list(BENCHMARKS))
        if directory is not None and not directory.is_dir():
            raise ConfigError(f"--dir {directory}: there is no such directory.")
    sizes = Sizes(rounds=3, calls=2_000, records=200, rows=5_000) if quick else Sizes()
    figures = []
    with tempfile.TemporaryDirectory(prefix="hookline-bench-", dir=directory) as scratch:
        for name in wanted:
            figures += BENCHMARKS[name](sizes, Path(scratch) / name)
    if as_json:
        print_json({"environment": _environment(), "figures": [asdict(figure) for figure in figures]})
    else:
        _print(figures)


def measure_dispatch(sizes: Sizes, place: Path) -> list[Figure]:
    """Fire ``on_step_end`` for no callback, one, ten, and ten that are not due."""
    loops: dict[str, Loop] = {"direct": _firing(_observer())}
    loops["nobody listens"] = _firing(CallbackCollection([]))
    loops["one callback"] = _firing(CallbackCollection([_observer()]))
    loops["ten callbacks"] = _firing(CallbackCollection([_observer() for _ in range(10)]))
    idle = [_observer().configure(every=_NEVER) for _ in range(10)]
    loops["ten that are not due"] = _firing(CallbackCollection(idle))
    # Nanoseconds per call of each loop in each round, in wall and CPU time.
    taken: dict[str, list[float]] = {name: [] for name in loops}
    used: dict[str, list[float]] = {name: [] for name in loops}
    for loop in loops.values():
        loop(sizes.calls)
    with _collector_off():
        for _ in range(sizes.rounds):
            for name, loop in loops.items():
                began_cpu, began = time.thread_time_ns(), time.perf_counter_ns()
                loop(sizes.calls)
                taken[name].append((time.perf_counter_ns() - began) / sizes.calls)
                used[name].append(max(time.thread_time_ns() - began_cpu, 1) / sizes.calls)
    base, base_cpu = taken.pop("direct"), used.pop("direct")
    direct = f"a direct call takes {median(base):,.0f} ns"
    return [
        Figure("dispatch", what, _ratio(rounds, base), "x a direct call", direct, _ratio(used[what], base_cpu))
        for what, rounds in taken.items()
    ]


def measure_recording(sizes: Sizes, place: Path) -> list[Figure]:
    """Time each call of `Recorder.log` and `Recorder.samples`."""
    from hookline._record.recorder import Recorder

    recorder = Recorder(place)
    rows = [dict(_SAMPLE) for _ in range(8)]
    calls: dict[str, Callable[[int], object]] = {
        "1 scalar": lambda step: recorder.log(loss=0.5, step=step),
        "10 scalars": lambda step: recorder.log(_ROW, step=step),
        "8 samples of 2 kB": lambda step: recorder.samples(rows, step),
    }
    try:
        return [_spread(what, *_timed_calls(call, sizes.records)) for what, call in calls.items()]
    finally:
        recorder.close()


def measure_journal(sizes: Sizes, place: Path) -> list[Figure]:
    """Write many rows of ten scalars, close, and read all of them back."""
    from hookline._record.reader import read
    from hookline._record.recorder import Recorder

    began = time.perf_counter()
    recorder = Recorder(place)
    for step in range(sizes.rows):
        recorder.log(_ROW, step=step)
    recorder.close()
    written = time.perf_counter() - began
    size = recorder.journal.bytes_written
    began = time.perf_counter()
    there = sum(1 for _ in read(place))
    back = time.perf_counter() - began
    note = f"{sizes.rows:,} rows of 10 scalars, {size / 1e6 / written:,.0f} MB/s"
    return [
        Figure("journal", "write", sizes.rows / written, "rows/s", note),
        Figure(
            "journal", "read back", there / back, "rows/s", f"{sizes.rows - there:,} of {sizes.rows:,} rows missing"
        ),
        Figure("journal", "size", size / sizes.rows / len(_ROW), "bytes a scalar"),
    ]


BENCHMARKS: Mapping[str, Callable[[Sizes, Path], list[Figure]]] = {
    "dispatch": measure_dispatch,
    "recording": measure_recording,
    "journal": measure_journal,
}


def _known(names: list[str]) -> list[str]:
    for name in names:
        if name not in BENCHMARKS:
            raise UnknownNameError(f"There is no benchmark {name!r}. {closest(name, BENCHMARKS)}")
    return list(dict.fromkeys(names))


def _listen(self: Any, loop: Any, step_idx: int, batch: Any, metrics: Any) -> None:
    pass


def _fire(target: Any, metrics: dict[str, Any], calls: int) -> None:
    for i in range(calls):
        target.on_step_end(None, i, None, metrics)


def _observer() -> Any:
    """A callback of its own class, as in real use."""
    return type("Observer", (Callback,), {"on_step_end": _fresh(_listen)})()


def _firing(target: Any) -> Loop:
    fire = _fresh(_fire)
    return lambda calls: fire(target, {}, calls)


def _fresh(function: Any) -> Any:
    """A copy with its own code object: the interpreter specializes code for the types it sees."""
    return FunctionType(function.__code__.replace(), function.__globals__, function.__name__)


def _timed_calls(call: Callable[[int], object], count: int) -> tuple[list[float], float]:
    """Microseconds of each call after a warm-up, and the mean CPU time.

    CPU time is read once around all calls: reading it is a system call, which would distort each of them.
    """
    taken = []
    for step in range(20):
        call(step)
    began_cpu = time.thread_time_ns()
    for step in range(20, count + 20):
        began = time.perf_counter_ns()
        call(step)
        taken.append((time.perf_counter_ns() - began) / 1000)
    return taken, (time.thread_time_ns() - began_cpu) / 1000 / count


def _spread(what: str, taken: list[float], cpu: float) -> Figure:
    worst = quantiles(taken, n=100)[98]
    return Figure("recording", what, median(taken), "µs a call", f"99th percentile {worst:,.1f} µs", cpu)


def _ratio(own: list[float], base: list[float]) -> float:
    return median(one / other for one, other in zip(own, base, strict=True))


@contextmanager
def _collector_off() -> Iterator[None]:
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _environment() -> dict[str, Any]:
    return {
        "hookline": hookline.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "load": os.getloadavg()[0],
    }


def _print(figures: list[Figure]) -> None:
    facts = _environment()
    line = f"hookline {facts['hookline']}, Python {facts['python']}, {facts['cpus']} CPUs, load {facts['load']:.1f}"
    console().print(line, style="dim", soft_wrap=True)
    listing = table("benchmark", "what", "value", "CPU time", "unit", "remark", numbers=("value", "CPU time"))
    for figure in figures:
        value, cpu = (
            "" if number is None else f"{number:,.0f}" if number >= 1000 else f"{number:.3g}"
            for number in (figure.value, figure.cpu)
        )
        listing.add_row(figure.benchmark, figure.what, value, cpu, figure.unit, figure.note)
    console().print(listing)
    if facts["load"] > (facts["cpus"] or 1):
        console().print("This machine is busy: hookline costs less on an idle one.", style="yellow")
