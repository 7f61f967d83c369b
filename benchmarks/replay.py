"""How fast a recorded run is replayed to callbacks.

A run of a million steps with three metrics is written as the recorder writes it, and replayed in this process to none
and to three callbacks: early stopping, an alert and a checkpoint rule. Steps a second are shown by the clock and by the
CPU time of the process, which a busy machine changes less. The bar is 100,000 steps a second with three callbacks.

Nothing is asserted: the bar is marked as met or not met.
"""

import argparse
import json
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from journals import metric_journal, write_run
from measure import met
from rich.console import Console
from rich.table import Table

import hookline as hl
from hookline.callbacks import Alert, CheckpointCallback, EarlyStoppingCallback

METRICS = ("loss", "reward", "grad_norm")
BAR = 100_000.0
STEPS, SMALL_STEPS, ROUNDS = 1_000_000, 2_000, 3


@dataclass(frozen=True, slots=True)
class Speed:
    """Steps a second of a replay, by the clock and by CPU time."""

    callbacks: int
    by_clock: float
    by_cpu: float
    bar: float | None = None

    @property
    def is_met(self) -> bool | None:
        """Whether the CPU time meets the bar; None without one."""
        return None if self.bar is None else self.by_cpu >= self.bar


def three_callbacks() -> list[Any]:
    """Rules that look at every row, and save a few checkpoints."""
    return [
        EarlyStoppingCallback("loss", patience=10**9),
        Alert("loss", above=1e9),
        CheckpointCallback("val/loss", every_n_steps=100_000),
    ]


def measure(run: Path, steps: int, callbacks: list[Any]) -> tuple[float, float]:
    """Replay a run once; returns its steps a second by the clock and by CPU time."""
    clock, cpu = time.perf_counter(), time.process_time()
    result = hl.replay(run, callbacks)
    took = time.perf_counter() - clock, time.process_time() - cpu
    if result.recording.step != steps or result.errors or result.stops:
        raise SystemExit(f"the replay ended at step {result.recording.step:,} of {steps:,}: {result.errors}")
    return steps / took[0], steps / took[1]


def speeds(steps: int, rounds: int) -> list[Speed]:
    """Measure replays to none and to three callbacks; medians over rounds."""
    with tempfile.TemporaryDirectory(prefix="hookline-bench-") as place:
        run = write_run(Path(place), "bench", 0, metric_journal(steps, names=METRICS))
        found = []
        for count, make in ((0, list), (3, three_callbacks)):
            taken = [measure(run, steps, make()) for _ in range(rounds)]
            by_clock, by_cpu = (median(each) for each in zip(*taken, strict=True))
            found.append(Speed(count, by_clock, by_cpu, BAR if count else None))
        return found


def main() -> None:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--small", action="store_true", help="few steps, to see that it works")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    steps = SMALL_STEPS if options.small else STEPS
    found = speeds(steps, 1 if options.small else ROUNDS)
    if options.json:
        print(json.dumps({"steps": steps, "speeds": [asdict(each) | {"met": each.is_met} for each in found]}))
        return
    table = Table("callbacks", "steps/s by the clock", "steps/s by CPU time", "bar", title=f"Replay of {steps:,} steps")
    for each in found:
        bar = "" if each.bar is None or each.is_met is None else f"{each.bar:,.0f} {met(each.is_met)}"
        table.add_row(str(each.callbacks), f"{each.by_clock:,.0f}", f"{each.by_cpu:,.0f}", bar)
    Console().print(table)


if __name__ == "__main__":
    main()
