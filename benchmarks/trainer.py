"""What a trainer adds to a step, in microseconds over a plain torch loop, beside the peers that are installed.

A step is the forward and backward pass of a small network on a batch of 32, an optimizer step and
`zero_grad`, on one thread of a CPU. Two situations: no callbacks, and ten, each of a class of its own
that adds one to a counter at the end of every step. Everybody gets the same model, the same SGD and
the same ready-made batches from a plain iterable, which costs next to nothing and which the plain
loop goes through as well.

hookline records ten scalars at each step into a real journal in both situations. Its peers record
nothing: their loggers, progress bars, checkpoints and whatever else can be left out are off, which
favours them. Ignite and torchtnt are given the whole step as a function of their user's, and only
call it; hookline, Lightning and Hugging Face are given the loss, and do the rest themselves.

Setting up and taking down are left out: the iterable reads the clock when it is asked for the first
timed batch and when it is asked for the one after the last. What lies between is a whole number of
complete steps, data and callbacks included, also for a loop that fetches some batches ahead, and no
clock is read at any other step. The difference of a short and a long training would leave the same
out, but it would add the noise of two set-ups, which take some of the peers as long as many steps.

Turns are taken as `measure` says, and in each turn the plain loop goes first: what is added is the
difference to a plain loop a moment ago. Shown is the median over the rounds and, in brackets, the
middle half of them.

Every training is checked: its weights must be those of the plain loop, every callback must have been
called at every step, and hookline's record must hold every scalar, or nothing is printed but an error.
Timings are not asserted: the bars are marked as met or not.
"""

import argparse
import copy
import importlib.metadata
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import cycle, islice
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
from measure import Case, Loop, at_least, fresh, met, quiet, require_whole, round_robin
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn.functional import cross_entropy

import hookline as hl
from hookline._record.records import Metrics

SITUATIONS = {"none": 0, "ten": 10}
"""How many callbacks there are."""
HEADINGS = {"none": "no callbacks", "ten": "ten callbacks"}
BARS = {"none": 30.0, "ten": 40.0}
"""At most so many microseconds more than the plain loop, for hookline."""
BATCH_SIZE = 32
WARM_UP = 200
"""Steps of each training before the clock is read. The thread that gathers a run's environment is done by then."""
METRICS = {f"m{number}": float(number) for number in range(1, 10)}
"""What hookline records beside the loss."""
TOLERANCE = 1e-5
"""How far weights may be from the plain loop's."""
CAPTION = "hookline records ten scalars a step in both columns; the others record nothing, which favours them"

Batch = dict[str, Any]


class WorkError(RuntimeError):
    """A system did not do the work that it was timed for."""


class Batches:
    """The loader that everybody gets: ready-made batches, the clock read before and after those that are timed."""

    def __init__(self, batches: Sequence[Batch], steps: int) -> None:
        self._batches = list(islice(cycle(batches), WARM_UP + steps + 1))
        self._steps = steps
        self._start = self._end = self._cpu_start = self._cpu_end = 0

    @property
    def nanoseconds(self) -> float:
        """What a step took."""
        if not 0 < self._start < self._end:
            raise WorkError("The data were not gone through once, from the first batch to the last.")
        return (self._end - self._start) / self._steps

    @property
    def cpu_nanoseconds(self) -> float:
        """What a step took of the thread's CPU time."""
        return (self._cpu_end - self._cpu_start) / self._steps

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Batch]:
        yield from self._batches[:WARM_UP]
        self._start, self._cpu_start = time.perf_counter_ns(), time.thread_time_ns()
        yield from self._batches[WARM_UP:-1]
        self._end, self._cpu_end = time.perf_counter_ns(), time.thread_time_ns()
        yield self._batches[-1]


@dataclass(frozen=True, slots=True)
class Task:
    """One training: all that a system needs for it."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    data: Batches
    callbacks: int
    directory: Path


Train = Callable[[Task], Iterable[Any]]
"""Trains, and gives back the callbacks, each with its ``count``."""


def loss_of(model: Any, batch: Batch) -> Any:
    """The forward pass, the same for everybody."""
    return cross_entropy(model(batch["x"]), batch["y"])


def take_step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any) -> None:
    """One whole step, as the plain loop and the users of some peers write it."""
    loss_of(model, batch).backward()
    optimizer.step()
    optimizer.zero_grad()


def counting(base: type, moment: str, method: Callable[..., None]) -> Callable[[int], list[Any]]:
    """Makes callbacks, each of a class of its own, whose method adds one to their ``count``."""
    return lambda number: [type("Counting", (base,), {moment: fresh(method), "count": 0})() for _ in range(number)]


def train_plain(task: Task) -> Iterable[Any]:
    """The base: no trainer at all."""
    model, optimizer = task.model, task.optimizer
    for batch in task.data:
        take_step(model, optimizer, batch)
    return []


def hookline_training() -> Train:
    """Its `Trainer`, with a step that returns ten scalars."""

    def count(self: Any, loop: Any, step_idx: int, batch: Any, metrics: Any) -> None:
        self.count += 1

    callbacks = counting(hl.Callback, "on_step_end", count)

    def training_step(model: Any, batch: Any) -> dict[str, Any]:
        return {"loss": loss_of(model, batch), **METRICS}

    def train(task: Task) -> Iterable[Any]:
        steps, listeners = len(task.data), callbacks(task.callbacks)
        config = hl.TrainerConfig(max_steps=steps, output_dir=str(task.directory), save_at_end=False, summary=False)
        trainer = hl.Trainer(
            task.model,
            task.data,
            config=config,
            training_step=training_step,
            optimizer=task.optimizer,
            callbacks=listeners,
        )
        require_whole(trainer.fit())
        check_record(task.directory, steps)
        return listeners

    return train


def check_record(directory: Path, steps: int) -> None:
    """See that all ten scalars of all steps can be read back from the journal beneath a directory."""
    names = {"loss", *METRICS}
    records = (record for journal in directory.rglob("journal") for record in hl.read(journal.parent))
    rows = [record for record in records if isinstance(record, Metrics) and names <= record.values.keys()]
    if [row.step for row in rows] != list(range(1, steps + 1)):
        raise WorkError(f"hookline recorded {len(rows)} whole rows in {steps} steps: there must be one for each step.")


def ignite_training() -> Train:
    """Its `Engine`; callbacks are handlers of the event at an iteration's end."""
    from ignite.engine import Engine, Events

    def count(self: Any, engine: Any) -> None:
        self.count += 1

    handlers = counting(object, "handle", count)

    def train(task: Task) -> Iterable[Any]:
        engine = Engine(lambda engine, batch: take_step(task.model, task.optimizer, batch))
        listeners = handlers(task.callbacks)
        for listener in listeners:
            engine.add_event_handler(Events.ITERATION_COMPLETED, listener.handle)
        engine.run(task.data, max_epochs=1)
        return listeners

    return train


def torchtnt_training() -> Train:
    """Its `train` with a `TrainUnit`; its `AutoUnit`, which does more, adds more."""
    from torchtnt.framework.callback import Callback as Base
    from torchtnt.framework.train import train as fit
    from torchtnt.framework.unit import TrainUnit

    class Unit(TrainUnit):  # type: ignore[misc]
        def __init__(self, task: Task) -> None:
            super().__init__()
            self.module, self.optimizer = task.model, task.optimizer

        def train_step(self, state: Any, data: Any) -> None:
            take_step(self.module, self.optimizer, data)

    def count(self: Any, state: Any, unit: Any) -> None:
        self.count += 1

    callbacks = counting(Base, "on_train_step_end", count)

    def train(task: Task) -> Iterable[Any]:
        listeners = callbacks(task.callbacks)
        fit(Unit(task), task.data, max_epochs=1, callbacks=listeners)
        return listeners

    return train


def lightning_training() -> Train:
    """Its `Trainer` in the mode that it has for measuring its own overhead, with automatic optimization."""
    from lightning.pytorch import Callback as Base
    from lightning.pytorch import LightningModule, Trainer

    class Module(LightningModule):  # type: ignore[misc]
        def __init__(self, task: Task) -> None:
            super().__init__()
            self.model = task.model
            self._optimizer = task.optimizer

        def configure_optimizers(self) -> Any:
            return self._optimizer

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return loss_of(self.model, batch)

    def count(self: Any, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.count += 1

    callbacks = counting(Base, "on_train_batch_end", count)

    def train(task: Task) -> Iterable[Any]:
        listeners = callbacks(task.callbacks)
        trainer = Trainer(
            accelerator="cpu", max_epochs=1, barebones=True, callbacks=listeners, default_root_dir=task.directory
        )
        trainer.fit(Module(task), task.data)
        return listeners

    return train


def hugging_face_training() -> Train:
    """Its `Trainer`; of its own callbacks only the one stays that ends the training."""
    from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

    class LoaderTrainer(Trainer):  # type: ignore[misc]
        loader: Batches

        def get_train_dataloader(self) -> Any:
            return self.loader

        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            return loss_of(model, inputs)

    def count(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.count += 1

    callbacks = counting(TrainerCallback, "on_step_end", count)

    def train(task: Task) -> Iterable[Any]:
        listeners = callbacks(task.callbacks)
        args = TrainingArguments(
            output_dir=str(task.directory),
            max_steps=len(task.data),
            lr_scheduler_type="constant",
            max_grad_norm=0.0,
            logging_strategy="no",
            logging_nan_inf_filter=False,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        )
        trainer = LoaderTrainer(task.model, args, callbacks=listeners, optimizers=(task.optimizer, None))
        trainer.remove_callback(PrinterCallback)
        trainer.loader = task.data
        trainer.train()
        return listeners

    return train


@dataclass(frozen=True, slots=True)
class Peer:
    """A trainer to measure; ``training`` raises ImportError where it is missing."""

    name: str
    package: str
    distribution: str
    training: Callable[[], Train]


PEERS = (
    Peer("Ignite", "ignite", "pytorch-ignite", ignite_training),
    Peer("torchtnt", "torchtnt", "torchtnt", torchtnt_training),
    Peer("Lightning", "lightning", "lightning", lightning_training),
    Peer("Hugging Face", "transformers", "transformers", hugging_face_training),
)


class Bench:
    """Has trainings made from one start and on the same data, checks them, and keeps what a step of each took.

    Attributes:
        taken: Nanoseconds a step of each training, and of the plain loop before it.
        off: How far the weights were from the plain loop's, at most.
    """

    def __init__(self, steps: int, directory: Path) -> None:
        torch.manual_seed(0)
        self._steps, self._directory = steps, directory
        self._start = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        self._batches = [{"x": torch.randn(BATCH_SIZE, 64), "y": torch.randint(10, (BATCH_SIZE,))} for _ in range(64)]
        self._goal = self._train(train_plain, 0, directory)[0].model
        self.taken: dict[Case, list[tuple[float, float]]] = {}
        self.used: dict[Case, list[tuple[float, float]]] = {}
        self.off: dict[Case, float] = {}

    def loop(self, case: Case, train: Train) -> Loop:
        """What makes trainings of this case, each after one by the plain loop."""

        def loop(trainings: int) -> None:
            for _ in range(trainings):
                with tempfile.TemporaryDirectory(dir=self._directory) as directory:
                    self._compare(case, train, Path(directory))

        return loop

    def _compare(self, case: Case, train: Train, directory: Path) -> None:
        plain, _ = self._train(train_plain, 0, directory)
        task, counts = self._train(train, SITUATIONS[case.situation], directory)
        self._check(case, task, counts)
        self.taken.setdefault(case, []).append((task.data.nanoseconds, plain.data.nanoseconds))
        self.used.setdefault(case, []).append((task.data.cpu_nanoseconds, plain.data.cpu_nanoseconds))

    def _train(self, train: Train, callbacks: int, directory: Path) -> tuple[Task, list[int]]:
        """Make a training, and say how often each callback was called in it."""
        model = copy.deepcopy(self._start)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        task = Task(model, optimizer, Batches(self._batches, self._steps), callbacks, directory)
        return task, [callback.count for callback in train(task)]

    def _check(self, case: Case, task: Task, counts: list[int]) -> None:
        off = _distance(task.model, self._goal)
        if not off <= TOLERANCE:  # true for NaN as well
            raise WorkError(f"{case.system}: its weights are {off:g} off from the plain loop's: it did other work.")
        steps = len(task.data)
        if counts != [steps] * task.callbacks:
            raise WorkError(f"{case.system}: {task.callbacks} callbacks were called {counts} times in {steps} steps.")
        self.off[case] = max(off, self.off.get(case, 0.0))


def _distance(model: nn.Module, other: nn.Module) -> float:
    """The largest difference between two weights."""
    own, its = (nn.utils.parameters_to_vector(each.parameters()).detach() for each in (model, other))
    return float((own - its).abs().max())


@dataclass(frozen=True, slots=True)
class Added:
    """Microseconds a step more than the plain loop took: the median of the rounds, and the middle half of them."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that was measured, by system and situation."""

    cpus: int | None
    rounds: int
    steps: int
    versions: dict[str, str]
    not_installed: list[str]
    plain_microseconds: float
    added_microseconds: dict[str, dict[str, Added]]
    added_cpu_microseconds: dict[str, dict[str, Added]]
    weights_off: dict[str, dict[str, float]]

    @property
    def bars(self) -> dict[str, bool]:
        """Whether hookline keeps within its bars."""
        own = self.added_microseconds["hookline"]
        return {name: own[name].median <= limit for name, limit in BARS.items()}


def measure(*, rounds: int, steps: int) -> Report:
    """Measure everything there is."""
    torch.set_num_threads(1)
    with quiet(), tempfile.TemporaryDirectory() as directory:
        found, missing = _installed()
        systems = {"hookline": hookline_training(), **{peer.name: train for peer, train in found.items()}}
        bench = Bench(steps, Path(directory))
        cases = {Case(system, name): train for system, train in systems.items() for name in SITUATIONS}
        round_robin({case: bench.loop(case, train) for case, train in cases.items()}, rounds=rounds, calls=1)
    taken = {case: pairs[1:] for case, pairs in bench.taken.items()}  # the first ones warmed up
    used = {case: pairs[1:] for case, pairs in bench.used.items()}

    def of_each(figure: Callable[[Case], Any]) -> dict[str, dict[str, Any]]:
        return {system: {name: figure(Case(system, name)) for name in SITUATIONS} for system in systems}

    return Report(
        cpus=os.cpu_count(),
        rounds=rounds,
        steps=steps,
        versions=_versions(found),
        not_installed=missing,
        plain_microseconds=median(plain for pairs in taken.values() for _, plain in pairs) / 1e3,
        added_microseconds=of_each(lambda case: _added(taken[case])),
        added_cpu_microseconds=of_each(lambda case: _added(used[case])),
        weights_off=of_each(bench.off.__getitem__),
    )


def _added(pairs: Iterable[tuple[float, float]]) -> Added:
    differences = [(own - plain) / 1e3 for own, plain in pairs]
    low, _, high = quantiles(differences, n=4, method="inclusive") if len(differences) > 1 else differences * 3
    return Added(median(differences), low, high)


def _installed() -> tuple[dict[Peer, Train], list[str]]:
    found, missing = {}, []
    for peer in PEERS:
        try:
            found[peer] = peer.training()
        except ImportError as error:
            absent = error.name == peer.package
            missing.append(peer.name if absent else f"{peer.name} ({error})")
    return found, missing


def _versions(peers: Iterable[Peer]) -> dict[str, str]:
    own = {"Python": platform.python_version(), "torch": torch.__version__, "hookline": hl.__version__}
    return own | {peer.name: importlib.metadata.version(peer.distribution) for peer in peers}


def show(report: Report, console: Console) -> None:
    """Print the table, hookline's bars in it, and the lines beneath."""
    title = f"Microseconds a step more than a plain torch loop ({report.plain_microseconds:.1f} µs)"
    table = Table("", title=title, caption=CAPTION)
    for heading in HEADINGS.values():
        table.add_column(heading, justify="right")
    for heading in HEADINGS.values():
        table.add_column(f"CPU, {heading}", justify="right")
    for system, added in report.added_microseconds.items():
        used = report.added_cpu_microseconds[system]
        table.add_row(system, *(_range(each[name]) for each in (added, used) for name in SITUATIONS))
        if system == "hookline":
            bars = (f"{BARS[name]:+.0f} {met(is_met)}" for name, is_met in report.bars.items())
            table.add_row("  bar", *bars, end_section=True)
    console.print(table)
    for line in _lines(report):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _range(added: Added) -> str:
    return f"{added.median:+.1f} ({added.low:+.1f} .. {added.high:+.1f})"


def _lines(report: Report) -> Iterator[str]:
    off = max(off for situations in report.weights_off.values() for off in situations.values())
    yield f"weights after training: at most {off:g} off from the plain loop's"
    if report.not_installed:
        yield f"not installed: {', '.join(report.not_installed)}"
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    yield f"{report.rounds} rounds of {report.steps:,} steps; {report.cpus} CPUs, one thread; {versions}"


def main() -> None:
    """Measure, and print a table or one JSON object."""
    parser = argparse.ArgumentParser(description="What a trainer adds to a step, beside hookline's peers.")
    parser.add_argument("--rounds", type=at_least(1), default=31, help="times that every case is measured")
    parser.add_argument("--steps", type=at_least(1), default=200, help="timed steps in each measurement")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    options = parser.parse_args()
    report = measure(rounds=options.rounds, steps=options.steps)
    if options.json:
        print(json.dumps(asdict(report) | {"bars": report.bars}))
    else:
        show(report, Console())


if __name__ == "__main__":
    main()
