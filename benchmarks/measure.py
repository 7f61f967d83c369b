"""What benchmarks share: cases timed in turns, the cost of an import, and quiet set-up of other libraries.

Cases are timed round-robin: a round times every case once, so that a machine that is slow for a
while is slow for all of them. A case's nanoseconds are the median over the rounds; its ratio to
another case is the median of the ratios within each round. Both are measured by the clock and by the
CPU time of the calling thread: the first counts what is waited for, the second does not count what
other processes take on a busy machine. Every case is warmed up first and the garbage collector only
runs between rounds. The loop around the calls is part of what is measured.
"""

import argparse
import contextlib
import gc
import io
import logging
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import FunctionType
from typing import Any, NamedTuple

Loop = Callable[[int], object]
"""Makes the given number of calls."""


def met(is_met: bool) -> str:
    """How a bar is shown."""
    return "met" if is_met else "NOT MET"


def require_whole(trained: Any) -> None:
    """End the program where a signal cut a training short: what it has to show is no measurement.

    Args:
        trained: What has the reason of a stop: a run, a Trainer, or what training returned.
    """
    from hookline.loops.signals import exit_status  # here: benchmarks of imports must not have it already

    status = exit_status(trained.stop_reason)
    if status is not None:
        print(f"stopped by {trained.stop_reason} at step {trained.step}: nothing is measured", file=sys.stderr)
        raise SystemExit(status)


def at_least(least: int) -> Callable[[str], int]:
    """Reads a number of rounds, steps or calls from the command line."""

    def number(text: str) -> int:
        given = int(text)
        if given < least:
            raise argparse.ArgumentTypeError(f"{text}: give a whole number of at least {least}")
        return given

    return number


class Taken(NamedTuple):
    """Seconds that something took, by the clock and of this process's CPU time, all of its threads together."""

    wall: float
    cpu: float


def taken(work: Callable[[], object]) -> Taken:
    """Time one call."""
    used, start = time.process_time(), time.perf_counter()
    work()
    return Taken(time.perf_counter() - start, time.process_time() - used)


def usual(times: Iterable[Taken]) -> Taken:
    """The medians of several times."""
    walls, cpus = zip(*times, strict=True)
    return Taken(median(walls), median(cpus))


class Case(NamedTuple):
    """What is timed: a system, in one situation."""

    system: str
    situation: str


@dataclass(frozen=True, slots=True)
class Timings:
    """Nanoseconds a call, of each case in each round."""

    rounds: Mapping[Case, list[float]]

    def nanoseconds(self, case: Case) -> float:
        """What a call took, usually."""
        return median(self.rounds[case])

    def ratio(self, case: Case, base: Case) -> float:
        """How many times as long as ``base`` a call took, usually."""
        return median(own / other for own, other in zip(self.rounds[case], self.rounds[base], strict=True))


@dataclass(frozen=True, slots=True)
class Measured:
    """The same calls by the clock and by the CPU time of the thread that made them."""

    wall: Timings
    cpu: Timings


def round_robin(loops: Mapping[Case, Loop], *, rounds: int, calls: int) -> Measured:
    """Time every loop once in each round, in the order given."""
    wall: dict[Case, list[float]] = {case: [] for case in loops}
    cpu: dict[Case, list[float]] = {case: [] for case in loops}
    for loop in loops.values():
        loop(calls)
    with _collector_off():
        for _ in range(rounds):
            gc.collect()
            for case, loop in loops.items():
                taken, used = _time(loop, calls)
                wall[case].append(taken)
                cpu[case].append(used)
    return Measured(Timings(wall), Timings(cpu))


def fresh(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function with code of its own, as if it had been written out a second time.

    The interpreter adapts code to what it meets there. Two cases that share a loop, or two callbacks
    that share a method, would be measured as something that real ones are not.
    """
    if not isinstance(function, FunctionType):
        raise TypeError(f"{function!r} is not a plain function: its code cannot be copied.")
    code, names = function.__code__.replace(), function.__globals__
    copy = FunctionType(code, names, function.__name__, function.__defaults__, function.__closure__)
    copy.__dict__.update(function.__dict__)
    return copy


def import_milliseconds(module: str, source: Path, *, starts: int) -> tuple[float, float]:
    """What ``import module`` adds to a bare interpreter, by the clock and in CPU time.

    Bytecode is cached, and the first start of each is discarded.
    """
    bare, full = "pass", f"import {module}"
    with tempfile.TemporaryDirectory() as cache:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        path = os.pathsep.join(filter(None, [str(source), environment.get("PYTHONPATH")]))
        environment |= {"PYTHONPYCACHEPREFIX": cache, "PYTHONPATH": path}
        for code in (bare, full):
            _start(code, environment)
        pairs = [(_start(bare, environment), _start(full, environment)) for _ in range(starts)]
        wall, cpu = (median(after[i] - before[i] for before, after in pairs) for i in (0, 1))
        return wall, cpu


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence what libraries say while they are imported and set up; their exceptions still come through."""
    nowhere = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        warnings.simplefilter("ignore")
        logging.disable()
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)


@contextlib.contextmanager
def _collector_off() -> Iterator[None]:
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _time(loop: Loop, calls: int) -> tuple[float, float]:
    """Nanoseconds a call, by the clock and of the thread's CPU time."""
    used, start = time.thread_time_ns(), time.perf_counter_ns()
    loop(calls)
    taken, used = time.perf_counter_ns() - start, time.thread_time_ns() - used
    return taken / calls, max(used, 1) / calls


def _start(code: str, environment: Mapping[str, str]) -> tuple[float, float]:
    """Milliseconds that an interpreter takes, by the clock and of its own CPU time."""
    used, start = _children_seconds(), time.perf_counter_ns()
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)  # noqa: S603 - our own text
    taken = time.perf_counter_ns() - start
    return taken / 1e6, (_children_seconds() - used) * 1e3


def _children_seconds() -> float:
    """The CPU time of all processes that this one has started and waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
