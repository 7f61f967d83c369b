"""What recording device scalars costs a training loop on a GPU, and whether anything waits for the device.

One loop, trained three ways in turns, round by round: recording nothing; recording twenty device
scalars every step with ``run.log``; and calling ``.item()`` on each of the twenty, as loggers want it.
All three compute the scalars. Two sizes: one where the device is the bottleneck, one where the Python
thread is. hookline's rounds run under ``torch.cuda.set_sync_debug_mode("error")``, in which torch
raises at every operation that waits for the device; so does each first round, which is not counted.

Afterwards the record is read back and compared with the values that ``.item()`` gives.
"""

import argparse
import json
import math
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import torch
from measure import require_whole

import hookline as hl

SCALARS = 20
SIZES = {"device-bound": (4096, 8192), "thread-bound": (512, 256)}
"""Width and batch of the network that is trained."""
BAR = 1.02
WAYS = ("nothing", "hookline", "item")

Step = Callable[[], dict[str, Any]]


def make_step(width: int, batch: int) -> Step:
    """A training step that returns twenty scalars, all of them on the device."""
    torch.manual_seed(0)
    blocks = [layer for _ in range(4) for layer in (torch.nn.Linear(width, width), torch.nn.GELU())]
    model = torch.nn.Sequential(*blocks, torch.nn.Linear(width, 1)).cuda().to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
    inputs = torch.randn(batch, width, device="cuda", dtype=torch.bfloat16)
    targets = torch.randn(batch, 1, device="cuda", dtype=torch.bfloat16)
    parameters = list(model.parameters())

    def step() -> dict[str, Any]:
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


def train(way: str, step: Step, steps: int, root: str) -> float:
    """Milliseconds a step."""
    torch.cuda.synchronize()
    if way == "hookline":
        return _train_recorded(step, steps, root)
    start = time.perf_counter()
    for _ in range(steps):
        scalars = step()
        if way == "item":
            {name: value.item() for name, value in scalars.items()}
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / steps * 1e3


def _train_recorded(step: Step, steps: int, root: str) -> float:
    with hl.run("gpu", root=root, summary=False) as run:
        start = time.perf_counter()
        with no_waiting():
            for _ in run.steps(steps):
                run.log(step())
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
    require_whole(run)
    return seconds / steps * 1e3


def log_microseconds(step: Step, root: str, calls: int = 200) -> dict[str, float]:
    """What one call of ``run.log`` with twenty device scalars takes of the training thread."""
    taken = []
    with hl.run("gpu", root=root, summary=False) as run, no_waiting():
        for _ in run.steps(calls):
            scalars = step()
            start = time.perf_counter_ns()
            run.log(scalars)
            taken.append((time.perf_counter_ns() - start) / 1e3)
    require_whole(run)
    taken.sort()
    return {"median": median(taken), "p99": taken[int(0.99 * len(taken))]}


def check_values(step: Step, root: str) -> int:
    """Record some steps, read them back, and count the values that are the device's own."""
    wanted = []
    with hl.run("check", root=root, summary=False) as run:
        for _ in run.steps(50):
            scalars = step()
            run.log(scalars)
            wanted.append({name: value.item() for name, value in scalars.items()})
    require_whole(run)
    read = [row.metrics for row in run.history]
    same = [read[i][name] == value for i, row in enumerate(wanted) for name, value in row.items()]
    if len(read) != len(wanted) or not all(same):
        raise SystemExit(f"{same.count(False)} of {len(same)} values read back differ from the device's")
    return len(same)


def measure(size: str, rounds: int, steps: int) -> dict[str, Any]:
    """All three ways in turns, and their ratios to recording nothing within each round."""
    step = make_step(*SIZES[size])
    taken: dict[str, list[float]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as root:
        for number in range(rounds + 1):
            for way in WAYS:
                milliseconds = train(way, step, steps, root)
                if number:
                    taken[way].append(milliseconds)
        facts: dict[str, Any] = {"log_microseconds": log_microseconds(step, root), "values": check_values(step, root)}
    for way in WAYS:
        ratios = [own / none for own, none in zip(taken[way], taken["nothing"], strict=True)]
        facts[way] = {"milliseconds": median(taken[way]), "ratio": median(ratios)}
    return facts


def main() -> None:
    """Measure, and print a table or one object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--json", action="store_true", help="print one object")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("There is no CUDA device here: this benchmark needs one.")
    found = {size: measure(size, options.rounds, options.steps) for size in SIZES}
    device = torch.cuda.get_device_name()
    print(json.dumps({"device": device, "torch": torch.__version__, "sizes": found}) if options.json else "", end="")
    if not options.json:
        print_table(device, found)


def print_table(device: str, found: dict[str, dict[str, Any]]) -> None:
    """The step times, and what a call of log takes."""
    print(f"{device}, torch {torch.__version__}; {SCALARS} device scalars a step")
    for size, facts in found.items():
        for way in WAYS:
            took, ratio = facts[way]["milliseconds"], facts[way]["ratio"]
            print(f"  {size:13} {way:9} {took:8.3f} ms a step  x {ratio:.3f}{verdict(way, ratio)}")
        log = facts["log_microseconds"]
        print(f"  {size:13} log()     {log['median']:8.1f} us median, {log['p99']:.1f} us p99")
        print(f"  {size:13} {facts['values']} values read back are the device's own; nothing waited for the device")


def verdict(way: str, ratio: float) -> str:
    """Whether the bar is met, where there is one."""
    met = "met" if ratio <= BAR and not math.isnan(ratio) else "not met"
    return f"  (bar {BAR}: {met})" if way == "hookline" else ""


if __name__ == "__main__":
    main()
