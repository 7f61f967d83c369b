"""What logging a GRPO training of TRL costs: throughput, CPU, memory and threads before and after.

The base is a `GRPOTrainer` with a tiny model on one thread of a CPU, which logs nothing. Cases:

- plain: the base once more; what it seems to add is the noise of the measurement.
- enhanced: `EnhancedLoggingCallback` and wrapped reward functions, every metric at every step, with a table of all
  outputs, TensorBoard and a log file.
- optimized: `OptimizedLoggingCallback` with the same destinations, progress every 5 steps and metrics every 20.

Each is trained with several sizes of a batch, in turns; a round trains all of them once. Shown are medians over the
rounds: samples a second; the share that a step takes longer than the base of the same round, by the clock and in time
of the CPU of all threads; the share of a core that threads beside the training used; by how many MiB the process grew.

Every training is checked: its losses must be those of the base, and the table must hold every output, or nothing is
printed but an error. Timings are not asserted. The model is as small as one can be, so the shares are the worst there
are: a step of a real model takes seconds, and logging takes the same.
"""

import argparse
import contextlib
import csv
import gc
import io
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from datasets import Dataset  # type: ignore[import-untyped]
from measure import at_least
from rich.console import Console
from rich.table import Table
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer  # type: ignore[attr-defined]

import hookline.logging
from hookline import rewards
from hookline.integrations.transformers import EnhancedLoggingCallback, OptimizedLoggingCallback
from hookline.logging.metrics import memory_metrics
from hookline.testing import character_tokenizer, tiny_causal_lm

CASES: dict[str, Callable[[], Any] | None] = {
    "base": None,
    "plain": None,
    "enhanced": EnhancedLoggingCallback,
    "optimized": OptimizedLoggingCallback,
}
TOKENIZER = character_tokenizer("0123456789+=")
WARM_UP_STEPS = 2


class CheckError(Exception):
    """A training was not what it has to be."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What one training took after its first steps, and what came of it."""

    seconds: float
    cpu_seconds: float
    beside_seconds: float
    grown_mib: float
    losses: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Line:
    """A case with one size of a batch, over all rounds."""

    case: str
    batch_size: int
    samples_per_second: float
    longer: float
    more_cpu: float
    beside: float
    grown_mib: float


class Clock(TrainerCallback):  # type: ignore[misc]
    """Reads the clocks when the first steps are made, and at the end."""

    def __init__(self) -> None:
        self.first: tuple[float, float, float] = (0.0, 0.0, 0.0)
        self.last = self.first

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The clocks start once."""
        if state.global_step == WARM_UP_STEPS:
            self.first = (time.perf_counter(), time.process_time(), time.thread_time())

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The time ends when the callbacks before this one have been called."""
        self.last = (time.perf_counter(), time.process_time(), time.thread_time())


def correctness(completions: list[str], answer: list[str], **columns: Any) -> list[float]:
    """Whether the right digit is there."""
    return [float(right in text) for right, text in zip(answer, completions, strict=True)]


def brevity(completions: list[str], **columns: Any) -> list[float]:
    """Less is better."""
    return [-len(text) / 100 for text in completions]


def train(case: str, batch_size: int, steps: int, directory: Path) -> Measured:
    """One training; raises `CheckError` where the table of outputs lacks one."""
    make, functions = CASES[case], [correctness, brevity]
    if make is not None:
        hookline.logging.initialize(settings(directory))
    callbacks = [] if make is None else [make()]
    clock = Clock()
    gc.collect()
    before = memory_metrics().get("rss_mib", 0.0)
    torch.manual_seed(0)
    trainer = GRPOTrainer(
        tiny_causal_lm(TOKENIZER, hidden_size=32),
        args=arguments(batch_size, steps, directory),
        reward_funcs=functions if make is None else rewards.wrap(functions),
        train_dataset=Dataset.from_list([{"prompt": f"{n}+1=", "answer": str(n + 1)} for n in range(9)]),
        processing_class=TOKENIZER,
        callbacks=[*callbacks, clock],
    )
    trainer.train()
    grown = memory_metrics().get("rss_mib", 0.0) - before
    if make is not None:
        hookline.logging.shutdown()
        check_table(directory / "outputs.csv", steps * batch_size)
    wall, cpu, own = (last - first for first, last in zip(clock.first, clock.last, strict=True))
    losses = tuple(row["loss"] for row in trainer.state.log_history if "loss" in row)
    return Measured(wall, cpu, max(0.0, cpu - own), grown, losses)


def arguments(batch_size: int, steps: int, directory: Path) -> Any:
    """The settings of the trainer."""
    return GRPOConfig(
        str(directory / "checkpoints"),
        max_steps=steps,
        per_device_train_batch_size=batch_size,
        num_generations=4,
        max_completion_length=16,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
    )


def settings(directory: Path) -> dict[str, Any]:
    """The configuration of logging: topics, and all destinations of them."""
    topic = {"level": "INFO", "handlers": ["file", "tensorboard"], "propagate": False}
    columns = ["timestamp", "question", "answer", "llm_reasoning", "llm_answer"]
    return {
        "version": 1,
        "loggers": {
            **{f"hookline.{name}": topic for name in ("training", "reward", "metrics", "system")},
            "hookline.model": {"level": "INFO", "handlers": ["file", "csv"], "propagate": False},
        },
        "handlers": {
            "file": {"class": "logging.FileHandler", "filename": str(directory / "training.log")},
            "csv": {
                "class": "hookline.logging.CSVHandler",
                "filename": str(directory / "outputs.csv"),
                "columns": columns,
            },
            "tensorboard": {"class": "hookline.logging.TensorBoardHandler", "log_dir": str(directory / "board")},
        },
    }


def check_table(path: Path, count: int) -> None:
    """Refuse a table that has not every output."""
    with path.open(newline="", encoding="utf-8") as file:
        found = sum(1 for _ in csv.DictReader(file))
    if found != count:
        raise CheckError(f"{found} of {count} outputs are in the table.")


def measure(rounds: int, steps: int, batch_sizes: Sequence[int]) -> list[Line]:
    """All cases with all sizes, in turns; every other round goes the other way."""
    taken: dict[tuple[str, int], list[Measured]] = {(case, size): [] for size in batch_sizes for case in CASES}
    for number in range(rounds):
        for case, size in list(taken)[:: -1 if number % 2 else 1]:
            with tempfile.TemporaryDirectory() as directory, contextlib.redirect_stdout(io.StringIO()):
                taken[case, size].append(train(case, size, steps, Path(directory)))
    return [line(case, size, taken[case, size], taken["base", size], steps) for case, size in taken if case != "base"]


def line(case: str, size: int, own: list[Measured], base: list[Measured], steps: int) -> Line:
    """A case over the base of the same rounds.

    Raises:
        CheckError: It was another training.
    """
    for one, other in zip(own, base, strict=True):
        if one.losses != other.losses:
            raise CheckError(f"{case} with batches of {size} has other losses than the base.")
    pairs = list(zip(own, base, strict=True))
    return Line(
        case,
        size,
        samples_per_second=size * (steps - WARM_UP_STEPS) / median(one.seconds for one in own),
        longer=median(one.seconds / other.seconds - 1 for one, other in pairs),
        more_cpu=median(one.cpu_seconds / other.cpu_seconds - 1 for one, other in pairs),
        beside=median(one.beside_seconds / one.seconds for one in own),
        grown_mib=median(one.grown_mib - other.grown_mib for one, other in pairs),
    )


def show(lines: Sequence[Line], console: Console) -> None:
    """Print the table."""
    table = Table(
        "case", "batch", "samples/s", "step", "CPU", "threads beside", "MiB", title="GRPO with TRL, over the base"
    )
    for each in lines:
        shares = (f"{each.longer:+.1%}", f"{each.more_cpu:+.1%}", f"{each.beside:.1%}", f"{each.grown_mib:+.1f}")
        table.add_row(each.case, str(each.batch_size), f"{each.samples_per_second:.1f}", *shares)
    console.print(table)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=at_least(1), default=5)
    parser.add_argument("--steps", type=at_least(WARM_UP_STEPS + 1), default=22)
    parser.add_argument("--batch-sizes", type=at_least(4), nargs="+", default=[4, 16])
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(argv)
    torch.set_num_threads(1)
    lines = measure(given.rounds, given.steps, given.batch_sizes)
    if given.json:
        print(json.dumps({"cases": [asdict(each) for each in lines]}))
    else:
        show(lines, Console())


if __name__ == "__main__":
    main()
