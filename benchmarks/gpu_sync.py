"""What recording device scalars costs a training loop on a GPU, and whether anything waits for the device.

One loop, trained in several ways in turns, round by round. Every way computes the same twenty scalars
a step, all of them on the device:

- ``nothing``: they are dropped.
- ``hookline``: ``run.log`` of the twenty device scalars.
- ``item``: ``.item()`` for each of the twenty, as loggers want them; nothing is recorded.
- ``stack``: one ``torch.stack`` of the twenty into a row of a table on the device; nothing is recorded.
- ``foreach``: one ``torch._foreach_copy_`` into preallocated slots, the least a copy costs; nothing is recorded.
- ``floats``: ``run.log`` of twenty floats that are on the host already.

Two sizes: one where the device is the bottleneck, one where the Python thread is. A way's ratio is the
median of its ratios to ``nothing`` within each round, by the clock and by the CPU time of the training
thread. Each training warms up before it is timed, and the first round is not counted.

hookline's runs have ``code="none"``: a large git diff, which is redacted once when a run starts, would be part of these
short measurements. Its steps run under ``torch.cuda.set_sync_debug_mode("error")``, in which torch raises at every
operation that waits for the device. Afterwards the record is read back and compared with the values
that ``.item()`` gives.
"""

import argparse
import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import torch
from measure import require_whole

import hookline as hl

SCALARS = 20
SIZES = {"device-bound": (4096, 8192), "thread-bound": (512, 256)}
"""Width and batch of the network that is trained."""
WARM_UP = 20
"""Steps of each training before the clocks are read."""
LOG_BAR = 60.0
"""At most so many microseconds for a call of ``run.log``."""
RATIO_BARS = {"device-bound": 1.02, "thread-bound": 1.08}
"""At most so many times a step that records nothing."""
WAYS = ("nothing", "hookline", "item", "stack", "foreach", "floats")

Scalars = dict[str, Any]
Step = Callable[[], Scalars]
Way = tuple[Callable[[int], Iterable[int]], Callable[[Scalars], object]]
"""The numbers of so many steps, and what is done with the scalars of each."""


def make_step(width: int, batch: int) -> Step:
    """A training step that returns twenty scalars, all of them on the device."""
    torch.manual_seed(0)
    blocks = [layer for _ in range(4) for layer in (torch.nn.Linear(width, width), torch.nn.GELU())]
    model = torch.nn.Sequential(*blocks, torch.nn.Linear(width, 1)).cuda().to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
    inputs = torch.randn(batch, width, device="cuda", dtype=torch.bfloat16)
    targets = torch.randn(batch, 1, device="cuda", dtype=torch.bfloat16)
    parameters = list(model.parameters())

    def step() -> Scalars:
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        norms = torch._foreach_norm([parameter.grad for parameter in parameters if parameter.grad is not None])
        total = torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        scalars = {"loss": loss.detach(), "grad_norm": total}
        scalars |= {f"norm/{index}": norm for index, norm in enumerate(norms)}
        scalars |= {f"half/{index}": norm * 0.5 for index, norm in enumerate(norms)}
        return dict(list(scalars.items())[:SCALARS])

    return step


@contextmanager
def no_waiting() -> Iterator[None]:
    """Let torch raise at every operation that waits for the device."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@contextmanager
def opened(way: str, like: Scalars, root: str) -> Iterator[Way]:
    """A way of recording, until the block ends; ``like`` are scalars as they will come."""
    if way in ("hookline", "floats"):
        numbers = dict.fromkeys(like, 0.5)
        with hl.run("gpu", root=root, summary=False, code="none") as run:
            yield run.steps, run.log if way == "hookline" else lambda scalars: run.log(numbers)
        require_whole(run)
        return
    table = torch.empty(len(like), device="cuda", dtype=next(iter(like.values())).dtype)
    slots = table.unbind(0)
    ways: dict[str, Callable[[Scalars], object]] = {
        "nothing": lambda scalars: None,
        "item": lambda scalars: {name: value.item() for name, value in scalars.items()},
        "stack": lambda scalars: torch.stack(list(scalars.values()), out=table),
        "foreach": lambda scalars: torch._foreach_copy_(slots, list(scalars.values())),
    }
    yield range, ways[way]


def train(way: str, step: Step, steps: int, root: str) -> tuple[float, float]:
    """Milliseconds a step, by the clock and of the training thread's CPU time."""
    with opened(way, step(), root) as (numbers, record), contextlib.ExitStack() as guard:
        start = used = 0
        for number in numbers(WARM_UP + steps):
            if number == WARM_UP:
                torch.cuda.synchronize()
                if way == "hookline":
                    guard.enter_context(no_waiting())
                start, used = time.perf_counter_ns(), time.thread_time_ns()
            record(step())
        used = time.thread_time_ns() - used
        guard.close()
        torch.cuda.synchronize()
        return (time.perf_counter_ns() - start) / steps / 1e6, used / steps / 1e6


def log_microseconds(step: Step, root: str, calls: int = 500) -> dict[str, float]:
    """What one call of ``run.log`` with twenty device scalars takes of the training thread.

    Every other step times ``torch._foreach_copy_`` alone in its place: no way that copies the scalars takes less.
    """
    taken: dict[bool, list[float]] = {False: [], True: []}
    used: dict[bool, list[float]] = {False: [], True: []}
    clock, cpu_clock = time.perf_counter_ns, time.thread_time_ns
    reading = median(-cpu_clock() + cpu_clock() for _ in range(101))
    with hl.run("gpu", root=root, summary=False, code="none") as run, opened("foreach", step(), root) as (_, copy_only):
        for number in run.steps(WARM_UP + 2 * calls):
            scalars, is_log = step(), number % 2 == 0
            record = run.log if is_log else copy_only
            with no_waiting():
                cpu_start, start = cpu_clock(), clock()
                record(scalars)
                end, cpu_end = clock(), cpu_clock()
            if number >= WARM_UP:
                taken[is_log].append((end - start) / 1e3)
                used[is_log].append((cpu_end - cpu_start - reading) / 1e3)
    require_whole(run)
    log = sorted(taken[True])
    return {
        "median": median(log),
        "p99": log[int(0.99 * len(log))],
        "cpu_median": median(used[True]),
        "copy_median": median(taken[False]),
        "copy_cpu_median": median(used[False]),
    }


def check_values(step: Step, root: str) -> int:
    """Record some steps, read them back, and count the values that are the device's own."""
    wanted = []
    with hl.run("check", root=root, summary=False) as run:
        for _ in run.steps(500):
            scalars = step()
            run.log(scalars)
            wanted.append({name: value.item() for name, value in scalars.items()})
            for value in scalars.values():
                value.zero_()  # the record has the values of the call
    require_whole(run)
    read = [row.metrics for row in run.history]
    same = [read[i][name] == value for i, row in enumerate(wanted) for name, value in row.items()]
    if len(read) != len(wanted) or not all(same):
        raise SystemExit(f"{same.count(False)} of {len(same)} values read back differ from the device's")
    return len(same)


def measure(size: str, rounds: int, steps: int) -> dict[str, Any]:
    """All ways in turns, and their ratios to recording nothing within each round."""
    step = make_step(*SIZES[size])
    taken: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as root:
        for number in range(rounds + 1):
            for way in WAYS:
                milliseconds = train(way, step, steps, root)
                if number:
                    taken[way].append(milliseconds)
        facts: dict[str, Any] = {"log_microseconds": log_microseconds(step, root), "values": check_values(step, root)}
    for way in WAYS:
        facts[way] = {}
        for index, clock in enumerate(("wall", "cpu")):
            own, none = [each[index] for each in taken[way]], [each[index] for each in taken["nothing"]]
            facts[way][f"{clock}_milliseconds"] = median(own)
            facts[way][f"{clock}_ratio"] = median(one / other for one, other in zip(own, none, strict=True))
    facts["bars"] = bars(size, facts)
    return facts


def bars(size: str, facts: dict[str, Any]) -> dict[str, bool]:
    """Which of hookline's bars are met."""
    own, item, log = facts["hookline"], facts["item"], facts["log_microseconds"]
    met = {}
    for clock in ("wall", "cpu"):
        ratio = own[f"{clock}_ratio"]
        met[f"{clock} ratio at most {RATIO_BARS[size]}"] = ratio <= RATIO_BARS[size]
        met[f"{clock} ratio below .item()"] = ratio < item[f"{clock}_ratio"]
    met[f"log() at most {LOG_BAR:.0f} us by the clock"] = log["median"] <= LOG_BAR
    met[f"log() at most {LOG_BAR:.0f} us of CPU time"] = log["cpu_median"] <= LOG_BAR
    return met


def main() -> None:
    """Measure, and print a table or one object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--only", choices=SIZES, help="measure one size")
    parser.add_argument("--json", action="store_true", help="print one object")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("There is no CUDA device here: this benchmark needs one.")
    sizes = [options.only] if options.only else list(SIZES)
    found = {size: measure(size, options.rounds, options.steps) for size in sizes}
    device = torch.cuda.get_device_name()
    if options.json:
        print(json.dumps({"device": device, "torch": torch.__version__, "sizes": found}))
    else:
        print_table(device, found)


def print_table(device: str, found: dict[str, dict[str, Any]]) -> None:
    """The step times, what a call of log takes, and the bars."""
    print(f"{device}, torch {torch.__version__}; {SCALARS} device scalars a step")
    for size, facts in found.items():
        print(f"\n{size:14} {'ms a step':>10} {'ratio':>7} {'CPU ms':>8} {'ratio':>7}")
        for way in WAYS:
            own = facts[way]
            wall = f"{own['wall_milliseconds']:10.3f} {own['wall_ratio']:7.3f}"
            print(f"  {way:12} {wall} {own['cpu_milliseconds']:8.3f} {own['cpu_ratio']:7.3f}")
        log = facts["log_microseconds"]
        print(
            f"  log(): {log['median']:.1f} us median, {log['p99']:.1f} us p99; {log['cpu_median']:.1f} us of CPU time"
        )
        print(f"  {facts['values']} values read back are the device's own; nothing waited for the device")
        for claim, is_met in facts["bars"].items():
            print(f"  {'met' if is_met else 'NOT MET':8} {claim}")


if __name__ == "__main__":
    main()
