"""`compat` measures here what ``add_scalar`` takes beside torch's ``SummaryWriter``, and what a kill loses of it."""

import contextlib
import mmap
import os
import random
import signal
import tempfile
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from measure import Case, quiet, round_robin

SITUATIONS = ("a number", "a tensor")
SYSTEMS = ("hookline", "torch")


class Lost(NamedTuple):
    """How many values ``add_scalar`` had returned for, and how many of them are not there after the kills."""

    logged: int
    lost: int


def microseconds(rounds: int, calls: int) -> dict[tuple[str, str], tuple[float, float]]:
    """What a call of each system takes, by the clock and by the CPU time of the thread."""
    import torch
    from torch.utils.tensorboard import SummaryWriter as Original

    from hookline.compat.tensorboard import SummaryWriter

    values: dict[str, Any] = dict(zip(SITUATIONS, (0.5, torch.tensor(0.5)), strict=True))
    with tempfile.TemporaryDirectory() as place, quiet():
        own = SummaryWriter(f"{place}/own", root=f"{place}/runs", summary=False, console=False, code=False)
        writers = dict(zip(SYSTEMS, (own, Original(f"{place}/theirs")), strict=True))
        loops = {
            Case(system, situation): _scalars(writer, value)
            for situation, value in values.items()
            for system, writer in writers.items()
        }
        measured = round_robin(loops, rounds=rounds, calls=calls)
        for writer in writers.values():
            writer.close()
    return {case: (measured.wall.nanoseconds(case) / 1e3, measured.cpu.nanoseconds(case) / 1e3) for case in loops}


def _scalars(writer: Any, value: Any) -> Callable[[int], None]:
    steps = [0]

    def loop(calls: int) -> None:
        start = steps[0]
        for step in range(start, start + calls):
            writer.add_scalar("train/loss", value, step)
        steps[0] = start + calls

    return loop


def lost(kills: int) -> dict[str, Lost]:
    """Kill programs that log as fast as they can, at varying moments."""
    found = {name: [_kill_writer(name, seed) for seed in range(kills)] for name in SYSTEMS}
    return {
        name: Lost(sum(logged for logged, _ in each), sum(max(0, logged - kept) for logged, kept in each))
        for name, each in found.items()
    }


def _kill_writer(name: str, seed: int) -> tuple[int, int]:
    """Log in a child until it is killed; returns how many values it had logged, and how many are there."""
    counter = mmap.mmap(-1, 8)
    with tempfile.TemporaryDirectory() as place:
        listening, ready = os.pipe()
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):
                _log_until_killed(name, place, counter, ready)
            os._exit(1)
        os.close(ready)
        os.read(listening, 1)
        os.close(listening)
        time.sleep(random.Random(seed).uniform(0.005, 0.05))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return int.from_bytes(counter[:8], "little"), _kept(name, place)


def _log_until_killed(name: str, place: str, counter: mmap.mmap, ready: int) -> None:
    writer: Any
    if name == "hookline":
        from hookline.compat.tensorboard import SummaryWriter

        writer = SummaryWriter(f"{place}/exp", root=f"{place}/runs", summary=False, console=False, code=False)
    else:
        from torch.utils.tensorboard import SummaryWriter as Original

        writer = Original(f"{place}/exp")
    os.write(ready, b".")
    step = 0
    while True:
        writer.add_scalar("loss", 0.5, step)
        step += 1
        counter[:8] = step.to_bytes(8, "little")


def _kept(name: str, place: str) -> int:
    if name == "hookline":
        import hookline as hl

        records = [record for run in hl.runs(f"{place}/runs") for record in hl.read(run.directory)]
        return sum(1 for record in records if type(record).__name__ == "Metrics")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(f"{place}/exp", size_guidance={"scalars": 0}).Reload()
    return len(events.Scalars("loss")) if "loss" in events.Tags()["scalars"] else 0
