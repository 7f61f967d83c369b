"""Both ends of a process in which one system records: `Child` commands it, `Worker` obeys.

A command is a line of JSON with the name of a method of `Worker` and its arguments; the answer is a
line of JSON. What the system itself prints goes nowhere. Linux only: `/proc` tells which processes a
system started, what they hold in memory and whether they still work.
"""

import contextlib
import itertools
import json
import mmap
import os
import random
import signal
import string
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

from recorders import SYSTEMS, Nothing, Samples, System, Values, environment, names

ONE, TEN, HUNDRED, SAMPLES = "one", "ten", "hundred", "samples"
TENSORS, NUMBERS = "tensors", "numpy"
SCALARS = {ONE: 1, TEN: 10, HUNDRED: 100, TENSORS: 20, NUMBERS: 20}
LIBRARIES = {TENSORS: "torch", NUMBERS: "numpy"}
"""What the values of a row are made by, where it is not Python."""
SAMPLE_COUNT, PROMPT_BYTES, COMPLETION_BYTES = 8, 512, 1536
STEP_MILLISECONDS = 2.0
UNKILLED_ROWS = 1_000_000
"""Rows after which a process that should have been killed gives up, rather than fill the disk."""


class Worker:
    """The commands of a process."""

    def __init__(self, system: type[System], directory: Path) -> None:
        self._system, self._directory = system, directory
        self._next_step = itertools.count().__next__
        self._random = random.Random(0)

    def open(self) -> None:
        """Begin the run."""
        self._run = self._system(self._directory)

    def close(self) -> float:
        """End the run; the seconds that took."""
        start = time.perf_counter()
        self._run.close()
        return time.perf_counter() - start

    def time_calls(self, kind: str, calls: int, seconds: float) -> list[list[int]]:
        """Nanoseconds of each call, and of the thread's CPU time, as fast as they go, for at most so long."""
        record, make, taken = self._record(kind), self._maker(kind), []
        clock, cpu_clock, reading = time.perf_counter_ns, time.thread_time_ns, _clock_nanoseconds()
        deadline = clock() + int(seconds * 1e9)
        for _ in range(calls):
            step = self._next_step()
            row = make(step)
            used = cpu_clock()
            start = clock()
            record(row, step)
            end = clock()
            used = cpu_clock() - used
            taken.append([end - start, max(used - reading, 0)])
            if end > deadline:
                break
        return taken

    def fill(self, rows: int, seconds: float) -> list[float]:
        """Log rows of ten as fast as they go; how many there were, the seconds, and those of the thread's CPU time."""
        log, kept = self._run.log, self._kept_rows()
        used = time.thread_time()
        start = time.perf_counter()
        deadline = start + seconds
        for step in range(rows):
            log(kept[step % len(kept)], step)
            if time.perf_counter() > deadline:
                break
        return [step + 1, time.perf_counter() - start, time.thread_time() - used]

    def calibrate(self) -> int:
        """The size of a batch whose training step takes about two milliseconds."""
        batch_size = 64
        for _ in range(4):
            self.prepare_training(batch_size)
            batch_size = max(1, round(batch_size * STEP_MILLISECONDS / self.step_milliseconds()))
        return batch_size

    def prepare_training(self, batch_size: int) -> None:
        """Make the training step, and warm it up."""
        self._train = _training_step(batch_size)
        self._block(TEN, 50)

    def step_milliseconds(self) -> float:
        """What a training step takes while nothing is recorded."""
        return median(self._block(TEN, 100)[0]) / 1e6

    def train(self, kind: str, pairs: int, steps: int) -> list[list[float]]:
        """Of each pair of blocks, with and without recording: the ratios of their medians, and a call's medians.

        The first of each two is by the clock, the second of the training thread's CPU time.
        """
        found, record = [], self._record(kind)
        for i in range(pairs):
            if i % 2:
                without, without_cpu, *_ = self._block(kind, steps)
                taken, used, *calls = self._block(kind, steps, record)
            else:
                taken, used, *calls = self._block(kind, steps, record)
                without, without_cpu, *_ = self._block(kind, steps)
            ratios = [median(taken) / median(without), median(used) / median(without_cpu)]
            found.append([*ratios, *(median(each) for each in calls)])
        return found

    def log_until_killed(self, pause_seconds: float, reported: str) -> None:
        """Log rows of ten, and after each call tell in a mapped file how many there are."""
        log, kept = self._run.log, self._kept_rows()
        with Path(reported).open("r+b") as file, mmap.mmap(file.fileno(), 8) as counter:
            for step in range(UNKILLED_ROWS):
                log(kept[step % len(kept)], step)
                counter[:] = (step + 1).to_bytes(8, "little")
                if pause_seconds:
                    time.sleep(pause_seconds)

    def count_missing(self, rows: int) -> int:
        """How many of the first rows are not in the directory."""
        return len(set(range(rows)).difference(self._system.recorded(self._directory)))

    def _record(self, kind: str) -> Callable[[Any, int], None]:
        log = self._run.log
        if kind in LIBRARIES and not self._system.takes_arrays:
            return lambda row, step: log({name: value.item() for name, value in row.items()}, step)
        return self._run.samples if kind == SAMPLES else log

    def _maker(self, kind: str) -> Callable[[int], Values | Samples]:
        """Makes rows: new ones each time, as in life, where values are in the cache when they are recorded."""
        if kind in LIBRARIES:
            library: Any = import_module(LIBRARIES[kind])
            scalars, value = names(SCALARS[kind]), self._random.random
            make = library.tensor if kind == TENSORS else library.float64
            return lambda step: {name: make(value()) for name in scalars}
        if kind != SAMPLES:
            scalars, value = names(SCALARS[kind]), self._random.random
            return lambda step: {name: value() for name in scalars}
        texts = [(self._text(PROMPT_BYTES), self._text(COMPLETION_BYTES)) for _ in range(SAMPLE_COUNT)]
        return lambda step: [{"prompt": f"{step} {prompt}", "completion": f"{step} {text}"} for prompt, text in texts]

    def _kept_rows(self) -> list[Values]:
        return [{name: self._random.random() for name in names(10)} for _ in range(16)]

    def _text(self, length: int) -> str:
        return "".join(self._random.choices(string.ascii_letters + "  \n", k=length))

    def _block(
        self, kind: str, steps: int, record: Callable[[Any, int], object] = lambda row, step: None
    ) -> tuple[list[int], list[int], list[int], list[int]]:
        """Nanoseconds of each training step, what is recorded included, the same in CPU time, and both of each call."""
        train, make, reading = self._train, self._maker(kind), _clock_nanoseconds()
        taken, used, calls, cpu_calls = [], [], [], []
        clock, cpu_clock = time.perf_counter_ns, time.thread_time_ns
        for i in range(steps):
            cpu_start = cpu_clock()
            start = clock()
            train()
            row, step = make(i), self._next_step()
            # Read in blocks without recording as well: reading the CPU time is a system call.
            cpu_called = cpu_clock()
            called = clock()
            record(row, step)
            calls.append(clock() - called)
            cpu_calls.append(max(cpu_clock() - cpu_called - reading, 0))
            taken.append(clock() - start)
            used.append(cpu_clock() - cpu_start)
        return taken, used, calls, cpu_calls


def _clock_nanoseconds() -> int:
    """What reading the clocks adds to the CPU time measured of a call."""
    clock, cpu_clock, taken = time.perf_counter_ns, time.thread_time_ns, []
    for _ in range(101):
        used = cpu_clock()
        clock()
        clock()
        taken.append(cpu_clock() - used)
    return round(median(taken))


def _training_step(batch_size: int) -> Callable[[], None]:
    """A step of a small network on one thread."""
    torch: Any = import_module("torch")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    nn = torch.nn
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.randn(batch_size, 256)

    def step() -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    return step


class Child:
    """A process with one system; killed at the end, with what it started."""

    def __init__(self, name: str, directory: Path, *, idle_seconds: float, script: str = __file__) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.name, self.directory = name, directory
        self._idle_seconds = idle_seconds
        self._process = subprocess.Popen(  # noqa: S603 - our own text
            [sys.executable, script, name, str(directory)],
            env=environment(directory),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, command: str, *arguments: Any) -> None:
        """Send a command whose answer is read later."""
        assert self._process.stdin is not None
        print(json.dumps([command, *arguments]), file=self._process.stdin, flush=True)

    def hear(self) -> Any:
        """The answer to the last command.

        Raises:
            RuntimeError: The command failed there.
        """
        assert self._process.stdout is not None
        answer = json.loads(self._process.stdout.readline() or '{"error": "it died"}')
        if "error" in answer:
            raise RuntimeError(f"{self.name}: {answer['error']}")
        return answer["answer"]

    def ask(self, command: str, *arguments: Any) -> Any:
        """Give a command and wait for its answer."""
        self.tell(command, *arguments)
        return self.hear()

    def megabytes(self) -> float:
        """What it and its processes hold in memory."""
        pages = sum(int(_proc(pid, "statm").split()[1]) for pid in self._family())
        return pages * os.sysconf("SC_PAGESIZE") / 1e6

    def settle(self, *, timeout_seconds: float = 5.0) -> None:
        """Wait until its processes have been idle for a while, so that they do not disturb the next one's turn."""
        deadline, before = time.monotonic() + timeout_seconds, -1
        while time.monotonic() < deadline and (now := sum(map(_cpu_ticks, self._family()))) != before:
            before = now
            time.sleep(self._idle_seconds)

    def kill(self, *, timeout_seconds: float = 15.0) -> None:
        """Kill the process alone, and wait until what it had started is done and gone."""
        family = self._family()
        self._process.kill()
        self._process.wait()
        deadline = time.monotonic() + timeout_seconds
        while time.monotonic() < deadline and any(map(_is_alive, family)):
            time.sleep(0.02)
        for pid in filter(_is_alive, family):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def kill_while_logging(self, pause_seconds: float, rows: int, seconds: float) -> int:
        """Kill it after so many rows, or so many seconds; how many calls had returned."""
        reported = self.directory.with_suffix(".reported")
        reported.write_bytes(bytes(8))
        with reported.open("r+b") as file, mmap.mmap(file.fileno(), 8) as counter:
            self.tell("log_until_killed", pause_seconds, str(reported))
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline and int.from_bytes(counter[:], "little") < rows:
                time.sleep(0.001)
            self.kill()
            return int.from_bytes(counter[:], "little")

    def end(self) -> None:
        """Let it go."""
        self.kill(timeout_seconds=2.0)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def _family(self) -> list[int]:
        return list(_descendants(self._process.pid))


def _proc(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return "0 0"


def _descendants(pid: int) -> Iterator[int]:
    """A process, and those that it and they started."""
    yield pid
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for child in path.read_text().split():
                yield from _descendants(int(child))


def _stat(pid: int) -> list[str]:
    """The fields of `/proc/<pid>/stat` from the state on; none of a process that is gone."""
    return _proc(pid, "stat").rpartition(") ")[2].split() if Path(f"/proc/{pid}").exists() else []


def _cpu_ticks(pid: int) -> int:
    fields = _stat(pid)
    return int(fields[11]) + int(fields[12]) if len(fields) > 12 else 0


def _is_alive(pid: int) -> bool:
    fields = _stat(pid)
    return len(fields) > 2 and fields[0] != "Z"


def obey(make_worker: Callable[[str, Path], object]) -> None:
    """Do what is commanded until nobody commands any more."""
    name, directory = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    worker = make_worker(name, Path(directory))
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        try:
            answer = {"answer": getattr(worker, command)(*arguments)}
        except Exception:
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    obey(lambda name, directory: Worker(SYSTEMS.get(name, Nothing), directory))
