"""What hookline adds to a step of a Hugging Face `Trainer` and of a Lightning `Trainer`, beside their own integrations.

The base is the same trainer on the same data, which logs nothing, saves nothing and shows no progress. Cases:

- hookline, attached as its users attach it, with ten callbacks, each of a class of its own, that record ten scalars at
  each step between them, into a real journal; the bridge records the loss as well.
- The host's own logging of ten scalars at each step, to nobody. The host's integrations cannot be had without it.
- The host's own TensorBoard integration, which is given the same ten scalars at each step.
- The host's own W&B integration, the same, with an offline run that collects no statistics of the machine.
- The base once more: what it seems to add is the noise of the measurement.

What an integration adds is given over the base, so with the logging that it needs; it has no callbacks beside it, which
favours it. Bars are for the ordinary model: hookline adds at most 2% to a step, and less than either integration.

Two models, on one thread of a CPU, trained by AdamW: an ordinary one, as small as one is that people really train (a
transformer of 4 layers, d 256, 3.3 million parameters, 64 tokens a batch), and a tiny one (three layers, 9 thousand
parameters), whose step is next to nothing but the host's own work: there the microseconds are seen best, and the share
is the worst that there is.

Setting up and taking down are left out: the clock is read by the data, as in `trainer`. Turns are taken as `measure`
says, and a training of the base is made right before that of the case, or right after it, by turns; shown is the
median over the rounds of what the one took more than the other and, in brackets, the middle half of them. Shares and
bars are by the clock on the wall; the time of the CPU, of all threads of the process, is given beside it, since other
programs change it less. What W&B has its own process do is not in it.

Every training is checked: its weights must be those of the base, every callback must have been called at every step,
and every record must hold the scalars of every step, or nothing is printed but an error. Timings are not asserted: the
bars are marked as met or not.
"""

import argparse
import contextlib
import copy
import gc
import importlib.metadata
import json
import os
import platform
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles

import torch
from integration_hosts import (
    HOSTS,
    MODELS,
    NAMES,
    PEERS,
    Batches,
    Host,
    Task,
    Time,
    Train,
    WorkError,
    check_record,
    peer_run,
)
from measure import Case, Loop, at_least, met, quiet, round_robin
from recorders import environment
from rich.console import Console
from rich.table import Table
from torch import nn

import hookline as hl

BASE = "base"
CASES = {
    "hookline": "hookline",
    "logging": "own logging, to nobody",
    "tensorboard": "own TensorBoard",
    "wandb": "own W&B, offline",
    "again": "base again: noise",
}
SHARE_BAR = 0.02
"""At most so much of a step, for hookline."""
TOLERANCE = 1e-5
"""How far weights may be from the base's."""


class Bench:
    """Has a host train one model from one start and on the same data, checks it, and keeps what a step took.

    Attributes:
        taken: What a step of each training took, and one of the base's beside it.
        off: How far weights were from those of the first training, at most.
    """

    def __init__(self, host: str, train: Train, model: str, steps: int, directory: Path) -> None:
        torch.manual_seed(0)
        self.host, self.model, self.steps = host, model, steps
        self._host_train, self._directory = train, directory
        self._start = MODELS[model].make()
        self._batches = [MODELS[model].batch() for _ in range(64)]
        self._goal: nn.Module | None = None
        self.taken: dict[str, list[tuple[Time, Time]]] = {}
        self.off = 0.0

    def loop(self, case: str) -> Loop:
        """What makes trainings of this case, each beside one of the base."""

        def loop(trainings: int) -> None:
            for _ in range(trainings):
                self._compare(case)

        return loop

    def _compare(self, case: str) -> None:
        pairs = self.taken.setdefault(case, [])
        if len(pairs) % 2:
            own, base = self._train(case), self._train(BASE)
        else:
            base, own = self._train(BASE), self._train(case)
        pairs.append((own, base))

    def _train(self, case: str) -> Time:
        model = copy.deepcopy(self._start)
        data = Batches(self._batches, MODELS[self.model].warm_up, self.steps)
        gc.collect()  # the parts of the last trainer
        with tempfile.TemporaryDirectory(dir=self._directory) as name:
            task = Task(case, model, torch.optim.AdamW(model.parameters(), lr=1e-3), data, Path(name))
            with peer_run(case, task.directory):
                counts = [callback.count for callback in self._host_train(task)]
            self._check(task, counts)
        return data.step_time

    def _check(self, task: Task, counts: list[int]) -> None:
        who, steps = f"{self.host}, {task.case}", len(task.data)
        if self._goal is None:
            self._goal = task.model
        off = _distance(task.model, self._goal)
        if not off <= TOLERANCE:  # true for NaN as well
            raise WorkError(f"{who}: its weights are {off:g} off from the base's: it did other work.")
        self.off = max(off, self.off)
        callbacks = len(NAMES) if task.case == "hookline" else 0
        if counts != [steps] * callbacks:
            raise WorkError(f"{who}: {callbacks} callbacks were called {counts} times in {steps} steps.")
        check_record(task.case, task.directory, steps)


def _distance(model: nn.Module, other: nn.Module) -> float:
    """The largest difference between two weights."""
    own, its = (nn.utils.parameters_to_vector(each.parameters()).detach() for each in (model, other))
    return float((own - its).abs().max())


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of the rounds, and the middle half of them."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Added:
    """What a step took more than the base's, by the clock on the wall; and in microseconds of the CPU."""

    share: Spread
    microseconds: Spread
    cpu_microseconds: Spread


@dataclass(frozen=True, slots=True)
class Figures:
    """One host with one model."""

    host: str
    model: str
    steps: int
    base_milliseconds: float
    weights_off: float
    added: dict[str, Added]

    @property
    def peers(self) -> dict[str, float]:
        """Microseconds that each integration of the host's own adds: hookline is to add less."""
        return {name: self.added[name].microseconds.median for name in PEERS if name in self.added}

    @property
    def bars(self) -> dict[str, bool]:
        """Whether hookline keeps within its bars: its share of a step, and each integration that was measured."""
        own = self.added["hookline"]
        less = {name: own.microseconds.median < taken for name, taken in self.peers.items()}
        return {"share": own.share.median <= SHARE_BAR, **less}


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that was measured."""

    cpus: int | None
    rounds: int
    versions: dict[str, str]
    not_installed: list[str]
    figures: list[Figures]

    @property
    def bars(self) -> dict[str, dict[str, bool]]:
        """The bars of each host, which are for the ordinary model."""
        return {each.host: each.bars for each in self.figures if each.model == "ordinary"}


def measure(*, rounds: int, steps: int, models: Sequence[str] = tuple(MODELS)) -> Report:
    """Measure everything there is, with some of the models."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name, _surroundings(Path(name)), quiet():
        hosts, missing = _installed()
        cases = [case for case in CASES if case not in PEERS or PEERS[case].is_installed()]
        benches = [
            Bench(host.name, train, model, steps * MODELS[model].times, Path(name))
            for model in models
            for host, train in hosts.items()
        ]
        timed = {Case(f"{bench.host}, {bench.model}", case): bench.loop(case) for bench in benches for case in cases}
        with _collector_spared():
            round_robin(timed, rounds=rounds, calls=1)
    missing += [case for case in PEERS if case not in cases]
    return Report(os.cpu_count(), rounds, _versions(hosts, cases), missing, [_figures(bench) for bench in benches])


def _figures(bench: Bench) -> Figures:
    taken = {case: pairs[1:] for case, pairs in bench.taken.items()}  # the first ones warmed up
    base = median(base.wall for pairs in taken.values() for _, base in pairs) / 1e6
    added = {case: _added(pairs) for case, pairs in taken.items()}
    return Figures(bench.host, bench.model, bench.steps, base, bench.off, added)


def _added(pairs: Sequence[tuple[Time, Time]]) -> Added:
    return Added(
        share=_spread([own.wall / base.wall - 1 for own, base in pairs]),
        microseconds=_spread([(own.wall - base.wall) / 1e3 for own, base in pairs]),
        cpu_microseconds=_spread([(own.cpu - base.cpu) / 1e3 for own, base in pairs]),
    )


def _spread(values: list[float]) -> Spread:
    low, _, high = quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    return Spread(median(values), low, high)


@contextlib.contextmanager
def _surroundings(directory: Path) -> Iterator[None]:
    """An environment without telemetry, in which no files are left behind."""
    before = dict(os.environ)
    os.environ.update(environment(directory))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def _collector_spared() -> Iterator[None]:
    """What is there already is not searched: before each training the parts of the last one are collected."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _installed() -> tuple[dict[Host, Train], list[str]]:
    found, missing = {}, []
    for host in HOSTS:
        try:
            found[host] = host.training()
        except ImportError as error:
            missing.append(f"{host.name} ({error})")
    return found, missing


def _versions(hosts: Iterable[Host], cases: Iterable[str]) -> dict[str, str]:
    own = {"Python": platform.python_version(), "torch": torch.__version__, "hookline": hl.__version__}
    others = [*(host.package for host in hosts), *(case for case in cases if case in PEERS)]
    return own | {package: importlib.metadata.version(package) for package in others}


def show(report: Report, console: Console) -> None:
    """Print a table for each host and model, hookline's bars in those of the ordinary one, and the lines beneath."""
    for figures in report.figures:
        console.print(_table(figures))
    for line in _lines(report):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _table(figures: Figures) -> Table:
    title = f"{figures.host}, {figures.model} model: what is added to a step of {figures.base_milliseconds:.2f} ms"
    table = Table("", title=title)
    for heading in ("share", "microseconds", "of the CPU"):
        table.add_column(heading, justify="right")
    for case, added in figures.added.items():
        on_cpu = f"{added.cpu_microseconds.median:+,.0f}"
        table.add_row(CASES[case], _percents(added.share), _microseconds(added.microseconds), on_cpu)
        if case == "hookline" and figures.model == "ordinary":
            table.add_row("  bar", *_bars(figures), end_section=True)
    return table


def _bars(figures: Figures) -> Iterator[str]:
    share, *less = figures.bars.values()
    yield f"{SHARE_BAR:+.0%} {met(share)}"
    if less:
        yield f"< {min(figures.peers.values()):+,.0f} {met(all(less))}"


def _percents(spread: Spread) -> str:
    return f"{spread.median:+.2%} ({spread.low:+.2%} .. {spread.high:+.2%})"


def _microseconds(spread: Spread) -> str:
    return f"{spread.median:+,.0f} ({spread.low:+,.0f} .. {spread.high:+,.0f})"


def _lines(report: Report) -> Iterator[str]:
    off = max((figures.weights_off for figures in report.figures), default=0.0)
    yield f"weights after training: at most {off:g} off from the base's"
    if report.not_installed:
        yield f"not installed: {', '.join(report.not_installed)}"
    steps = " and ".join(dict.fromkeys(f"{each.steps:,} ({each.model})" for each in report.figures))
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    yield f"{report.rounds} rounds of {steps} steps; {report.cpus} CPUs, one thread; {versions}"


def main() -> None:
    """Measure, and print tables or one JSON object."""
    parser = argparse.ArgumentParser(description="What hookline adds to a step of Hugging Face and of Lightning.")
    parser.add_argument("--rounds", type=at_least(1), default=11, help="times that every case is measured")
    parser.add_argument("--steps", type=at_least(1), default=30, help="timed steps of the ordinary model; tiny: 10x")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), help="which to train")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the tables")
    options = parser.parse_args()
    report = measure(rounds=options.rounds, steps=options.steps, models=options.models)
    if options.json:
        print(json.dumps(asdict(report) | {"bars": report.bars}))
    else:
        show(report, Console())


if __name__ == "__main__":
    main()
