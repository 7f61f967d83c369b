"""What the `Trainer` adds to a plain training loop on a GPU, and whether it or its callbacks wait for the device.

One model, trained in turns, round by round: by a plain torch loop, by the Trainer alone, and by the Trainer with
the callbacks that look at every step (gradients, averages, NaN, learning rate, throughput). The Trainer's steps run
under ``torch.cuda.set_sync_debug_mode("error")``, in which torch raises at every operation that waits for the
device. Clipping is on, and the loss, the norm and the learning rate are recorded at every step.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from statistics import median
from typing import Any

import torch
from measure import require_whole

import hookline as hl
from hookline.callbacks import EMA, GradientMonitor, LearningRateMonitor, NaNGuard, ThroughputMonitor

WIDTH, BATCH = 2048, 4096
WARM_UP = 10


class Batches:
    """The same batch again and again; keeps the time between the first that counts and the last."""

    def __init__(self, steps: int, *, strict: bool) -> None:
        self._steps, self._strict = steps, strict
        self._batch = (torch.randn(BATCH, WIDTH, device="cuda"), torch.randn(BATCH, 1, device="cuda"))
        self.seconds = 0.0

    def __iter__(self) -> Iterator[Any]:
        for _ in range(WARM_UP):
            yield self._batch
        torch.cuda.synchronize()
        began = time.perf_counter()
        torch.cuda.set_sync_debug_mode("error" if self._strict else "default")
        for _ in range(self._steps):
            yield self._batch
        torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize()
        self.seconds = time.perf_counter() - began


def make_model() -> Any:
    """A network large enough to keep the device busy."""
    torch.manual_seed(0)
    blocks = [layer for _ in range(4) for layer in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU())]
    return torch.nn.Sequential(*blocks, torch.nn.Linear(WIDTH, 1)).cuda()


def plain(steps: int) -> float:
    """Milliseconds a step of a plain loop."""
    model, batches = make_model(), Batches(steps, strict=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for inputs, targets in batches:
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return batches.seconds / steps * 1e3


def trained(steps: int, callbacks: list[Any]) -> float:
    """Milliseconds a step of the Trainer; it raises where something waits for the device."""
    model, batches = make_model(), Batches(steps, strict=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    with tempfile.TemporaryDirectory() as directory:
        config = hl.TrainerConfig(
            epochs=1, output_dir=directory, gradient_clip_norm=1.0, save_at_end=False, summary=False, strict=True
        )
        loss = torch.nn.functional.mse_loss
        trainer = hl.Trainer(model, batches, config=config, loss=loss, optimizer=optimizer, callbacks=callbacks)
        require_whole(trainer.fit())
        rows = [row for row in trainer.history if "loss" in row.metrics]
        if len(rows) != steps + WARM_UP:
            raise RuntimeError(f"{len(rows)} rows were recorded of {steps + WARM_UP}.")
    return batches.seconds / steps * 1e3


def monitors() -> list[Any]:
    """The callbacks that look at every step."""
    return [GradientMonitor(), EMA(), NaNGuard("warn"), LearningRateMonitor(), ThroughputMonitor()]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("This benchmark needs a CUDA device.")
    taken: dict[str, list[float]] = {"plain": [], "Trainer": [], "Trainer with monitors": []}
    for _ in range(options.rounds + 1):
        taken["plain"].append(plain(options.steps))
        taken["Trainer"].append(trained(options.steps, []))
        taken["Trainer with monitors"].append(trained(options.steps, monitors()))
    counted = {name: times[1:] for name, times in taken.items()}
    ratios = {
        name: median(own / base for own, base in zip(times, counted["plain"], strict=True))
        for name, times in counted.items()
    }
    if options.json:
        print(json.dumps({"milliseconds": {n: median(t) for n, t in counted.items()}, "ratios": ratios}))
        return
    print(f"{torch.cuda.get_device_name()}, {options.rounds} rounds of {options.steps} steps, no synchronisation")
    for name, times in counted.items():
        print(f"{name:24} {median(times):8.3f} ms a step   x {ratios[name]:.3f}")


if __name__ == "__main__":
    main()
