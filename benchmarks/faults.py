"""What a sink that fails does to `log()`: the time a call takes of the training thread, under each fault.

A training step of a few hundred microseconds logs three metrics; the sink posts every row to a server on
loopback that is well, refuses connections, never answers, answers 500 or 401, or closes half way; or it is
a CSV file on a full file system (where one can be mounted). The record itself is well in all cases. Each
case has a process of its own. The bar is on the 99th percentile; nothing is asserted.
"""

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from measure import require_whole
from rich.console import Console
from rich.progress import track
from rich.table import Table

import hookline as hl
from hookline.sinks import CsvSink, Sink, StatusSink

BAR_MICROSECONDS = 100.0
ANSWERS = {
    "well": b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
    "error 500": b"HTTP/1.1 500 Broken\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
    "bad credentials": b"HTTP/1.1 401 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
    "half closed": b"HTTP/1.1 200 OK\r\nContent-Le",
    "hanging": b"",
}
CASES = ("no sink", "refused", *ANSWERS, "disk full")


@contextlib.contextmanager
def server(answer: bytes) -> Iterator[str]:
    """A server that reads a request and answers so; with nothing to answer it keeps the connection open."""
    listening = socket.create_server(("127.0.0.1", 0))
    kept: list[socket.socket] = []

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listening.accept()
                kept.append(connection)
                connection.recv(65536)
                if answer:
                    connection.sendall(answer)
                    connection.close()

    threading.Thread(target=serve, daemon=True).start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}/status"
    listening.close()


@contextlib.contextmanager
def full_disk() -> Iterator[Path | None]:
    """A directory without room, or None where none can be made."""
    with tempfile.TemporaryDirectory() as directory:
        mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", directory]
        if os.getuid() or subprocess.run(mount, capture_output=True, check=False).returncode:  # noqa: S603
            yield None
            return
        with contextlib.suppress(OSError), (Path(directory) / "ballast").open("wb", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)
        yield Path(directory)
        subprocess.run(["umount", "-l", directory], check=True)  # noqa: S603, S607


@contextlib.contextmanager
def faulty_sink(case: str) -> Iterator[list[Sink] | None]:
    """The sinks of a case, or None where it cannot be had here."""
    if case == "no sink":
        yield []
    elif case == "disk full":
        with full_disk() as place:
            yield None if place is None else [CsvSink(place / "metrics.csv")]
    elif case == "refused":
        yield [_posting("http://127.0.0.1:9/status")]
    else:
        with server(ANSWERS[case]) as address:
            yield [_posting(address)]


def _posting(address: str) -> Sink:
    return StatusSink(address, metrics="all", heartbeat_seconds=0, timeout_seconds=60)


def train(sinks: list[Sink], steps: int) -> list[float]:
    """The microseconds of each call of `log`."""
    taken, weights = [], [float(i) for i in range(2000)]
    with (
        tempfile.TemporaryDirectory() as root,
        hl.run("faults", root=root, sinks=sinks, summary=False, drain_seconds=0.0) as run,
    ):
        for step in run.steps(steps):
            loss = sum(weight * 0.999 for weight in weights)
            start = time.perf_counter_ns()
            run.log(loss=loss, lr=0.1, index=step, step=step + 1)  # at a step: written at once
            taken.append((time.perf_counter_ns() - start) / 1e3)
    require_whole(run)
    return sorted(taken)


def measure(case: str, steps: int) -> dict[str, Any] | None:
    """One case, in this process."""
    import logging

    logging.getLogger("hookline").setLevel(logging.CRITICAL)
    with faulty_sink(case) as sinks:
        if sinks is None:
            return None
        taken = train(sinks, steps)
        return {"median": median(taken), "p99": taken[int(0.99 * len(taken))], "max": taken[-1]}


def main() -> None:
    """Measure every case, and print a table or one object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--case", choices=CASES, help="measure this one in this process, and print it as JSON")
    parser.add_argument("--json", action="store_true", help="print one object")
    options = parser.parse_args()
    if options.case:
        print(json.dumps(measure(options.case, options.steps)), flush=True)
        os._exit(0)  # a request that hangs must not hold up the end
    found = {}
    for case in track(CASES, "measuring", console=Console(stderr=True), transient=True):
        command = [sys.executable, __file__, "--case", case, "--steps", str(options.steps)]
        found[case] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)  # noqa: S603
    if options.json:
        print(json.dumps({"bar_microseconds": BAR_MICROSECONDS, "cases": found}))
    else:
        print_table(found)


def print_table(found: dict[str, dict[str, Any] | None]) -> None:
    """The cases, and whether each meets the bar."""
    table = Table("the sink", "median µs", "p99 µs", "max µs", f"p99 under {BAR_MICROSECONDS:.0f} µs")
    for case, taken in found.items():
        if taken is None:
            table.add_row(case, "-", "-", "-", "needs root")
        else:
            met = "met" if taken["p99"] < BAR_MICROSECONDS else "NOT MET"
            table.add_row(case, *(f"{taken[key]:,.1f}" for key in ("median", "p99", "max")), met)
    Console().print(table)


if __name__ == "__main__":
    main()
