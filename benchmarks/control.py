"""What control costs a loop, and how long a command takes to reach a run.

    python benchmarks/control.py

The step times are thread CPU time, the least of several rounds that alternate: the machine may be busy.
"""

import argparse
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from measure import met

import hookline as hl
from hookline._record.commands import RunControl
from hookline.server import Tokens, WebServer

MODES = ("off", "unused", "used")
WAYS = {"local": 1.0, "through a server": 2.0, "through a server, nothing recorded": 2.0}
"""How commands come, with the seconds that they may take."""
WORK = 1e-3
"""Seconds of CPU time of a step that does more than log."""
TOKEN = "a-token-of-the-benchmark"  # noqa: S105 - for a server on loopback that ends with it


def step_microseconds(root: Path, mode: str, steps: int, *, work: float = 0.0) -> float:
    """The CPU time of a step that logs one number: with control off, unused, or with a command every 100 steps.

    Args:
        root: Where the run is recorded.
        mode: One of `MODES`.
        steps: How many.
        work: How many seconds of CPU time each step takes besides.
    """
    with hl.run("control", root=root, summary=False, console=False, code=False, control=mode != "off") as run:
        rate = run.tunable("rate", 0.5, min=0.0, max=1.0)
        control = hl.control(run)
        sending = 0.0
        begin = 0.0
        for step in run.steps(steps + 1):
            if step == 1:  # the first step compiles the moments
                begin = time.thread_time()
            if mode == "used" and step % 100 == 50:
                before = time.thread_time()
                control.set("rate", step % 2)
                sending += time.thread_time() - before
            end = time.thread_time() + work
            while work and time.thread_time() < end:
                pass
            run.log(loss=rate.value)
        return (time.thread_time() - begin - sending) / steps * 1e6


def latencies(root: Path, count: int, way: str) -> list[float]:
    """The seconds from sending a command to seeing it applied, for a run with steps of a millisecond.

    Args:
        root: An empty directory.
        count: How many commands.
        way: One of `WAYS`: in the run's directory, or in that of a server to which the run sends its records.
    """
    found: list[float] = []

    def send(control: Any) -> None:
        while control.offer() is None:
            time.sleep(0.01)
        for number in range(count):
            begin = time.perf_counter()
            assert control.set("rate", number % 2, wait=60).state == "applied"
            found.append(time.perf_counter() - begin)
        control.stop()

    with WebServer(root / "received", tokens=Tokens(write=TOKEN)) as server:
        sinks = [{"hookline": {"url": server.url, "token": TOKEN}}] if way != "local" else []
        with hl.run("latency", root=root / "runs", sinks=sinks, summary=False, console=False, code=False) as run:
            run.tunable("rate", 0.5, min=0.0, max=1.0)
            assert run.dir is not None
            place = run.dir if way == "local" else root / "received" / "default" / run.dir.name
            person = threading.Thread(target=send, args=(RunControl(place),))
            person.start()
            for _ in run.steps(10**9):
                if way != "through a server, nothing recorded":
                    run.log(loss=1.0)
                time.sleep(0.001)
        person.join()
    return found


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--commands", type=int, default=50)
    arguments = parser.parse_args()
    times: dict[str, list[float]] = {mode: [] for mode in MODES}
    busy: dict[str, list[float]] = {mode: [] for mode in MODES[1:]}
    with tempfile.TemporaryDirectory() as place:
        for _ in range(arguments.rounds):
            for mode in MODES:
                times[mode].append(step_microseconds(Path(place), mode, arguments.steps))
            for mode in MODES[1:]:
                busy[mode].append(step_microseconds(Path(place), mode, arguments.steps // 10, work=WORK))
        waited = {}
        for number, (way, bar) in enumerate(WAYS.items()):
            (Path(place) / str(number) / "received").mkdir(parents=True)
            waited[way, bar] = latencies(Path(place) / str(number), arguments.commands, way)
    for mode in MODES:
        print(f"control {mode:7} {min(times[mode]):7.2f} us/step  (median {statistics.median(times[mode]):.2f})")
    for mode in MODES[1:]:
        print(f"a millisecond of work, control {mode:7} {min(busy[mode]):8.2f} us/step")
    for (way, bar), found in waited.items():
        middle, most = statistics.median(found) * 1e3, max(found) * 1e3
        shown = f"bar {bar * 1e3:,.0f} ms: {met(max(found) <= bar)}"
        print(f"latency, {way}: median {middle:.1f} ms, most {most:.1f} ms, {len(found)} commands, {shown}")


if __name__ == "__main__":
    main()
