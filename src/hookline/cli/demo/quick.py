"""``hookline demo --quick``: a bare loop with callbacks, a hook and a broken observer; needs no extra packages.

The loop is plain Python and trains a logistic regression by gradient descent. Most features are noise, so after a
while the model overfits: the validation loss rises again, and early stopping ends the run. The numbers are the same
each time.
"""

import logging
import math
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from operator import mul
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

import hookline as hl
from hookline._record.records import clean
from hookline._record.terminal import terminal_console
from hookline.callbacks import EarlyStoppingCallback, ProgressBar
from hookline.cli.output import console, indented, print_json
from hookline.hooks import HookContext, PeriodicHook
from hookline.loops.signals import exit_status

FEATURES, INFORMATIVE = 200, 8
TRAINING, VALIDATION, BATCH = 800, 300, 100
LEARNING_RATE = 0.01
VALIDATE_EVERY = 100

Example = tuple[list[float], bool]


@dataclass
class Model:
    """A logistic regression."""

    weights: list[float] = field(default_factory=lambda: [0.0] * FEATURES)

    def probability(self, features: list[float]) -> float:
        """The probability of a positive answer."""
        return 1 / (1 + math.exp(-sum(map(mul, self.weights, features))))

    def loss(self, examples: Sequence[Example]) -> float:
        """The mean cross entropy."""
        return sum(_cross_entropy(self.probability(x), answer) for x, answer in examples) / len(examples)

    def update(self, batch: Sequence[Example]) -> float:
        """One step of gradient descent; returns the loss before it."""
        loss, gradient = 0.0, [0.0] * FEATURES
        for features, answer in batch:
            probability = self.probability(features)
            loss += _cross_entropy(probability, answer) / len(batch)
            slope = (probability - answer) / len(batch)
            gradient = [g + slope * x for g, x in zip(gradient, features, strict=True)]
        self.weights = [w - LEARNING_RATE * g for w, g in zip(self.weights, gradient, strict=True)]
        return loss


def train(callbacks: Sequence[Any] = (), *, root: Path = Path("runs"), epochs: int = 400) -> hl.Run:
    """The loop: ``run`` and ``val`` are hookline's, the rest is ordinary Python.

    Args:
        callbacks: Callbacks besides early stopping, a function, a hook, and a broken observer.
        root: The directory of the runs.
        epochs: The most epochs.
    """
    generator = random.Random(7)  # noqa: S311 - made-up data, the same each time
    training, validation = _examples(TRAINING, generator), _examples(VALIDATION, generator)
    batches = [training[i : i + BATCH] for i in range(0, TRAINING, BATCH)]
    model = Model()
    own = [
        EarlyStoppingCallback(monitor="val/loss", patience=5),
        hl.on("step_end", overfitting, every=VALIDATE_EVERY),
        WeightNorm(frequency=50),
        BrokenPager(),
    ]
    with hl.run("bare-loop", project="demo-quick", root=root, callbacks=[*callbacks, *own]) as run:
        run.model = model
        for batch in run.steps(batches, epochs=epochs):
            run.log(loss=model.update(batch))
            if (run.step + 1) % VALIDATE_EVERY == 0:
                with run.validate() as val:
                    val.log(loss=model.loss(validation))
    return run


def overfitting(loop: hl.LoopState) -> dict[str, float]:
    """A function for one moment; the dict it returns is added to the step's row."""
    return {"gap": loop.get_metric("val/loss") - loop.get_metric("loss")}


class WeightNorm(PeriodicHook):
    """A hook: decides when to run, and runs on a context."""

    def run(self, context: HookContext) -> dict[str, float]:
        return {"l2": math.hypot(*context.worker.model.weights)}


class BrokenPager(hl.Callback):
    """A broken observer: it fails each time."""

    every = 200

    def on_log(self, loop: hl.LoopState, step: int, metrics: dict[str, Any], /) -> None:
        raise OSError("no answer")


def _examples(number: int, generator: random.Random) -> list[Example]:
    """Examples whose answer depends only on the first few features, and on chance."""
    measured = [[generator.gauss() for _ in range(FEATURES)] for _ in range(number)]
    return [(x, 0.8 * sum(x[:INFORMATIVE]) + generator.gauss() > 0) for x in measured]


def _cross_entropy(probability: float, answer: bool) -> float:
    return -math.log(probability if answer else 1 - probability)


def quick_demo(root: Path, *, as_json: bool = False) -> None:
    """Train, and explain the run in text or as one JSON document."""
    terminal = terminal_console(stderr=True, markup=True)
    if not as_json:
        _introduce(console())
    with _one_line_logs(terminal), _root_errors(root):
        run = train([ProgressBar(console=terminal)], root=root)
    if as_json:
        print_json(_document(run))
    else:
        _explain(console(), run)
    status = exit_status(run.stop_reason)
    if status is not None:
        raise typer.Exit(status)


def _document(run: hl.Run) -> dict[str, Any]:
    facts = {"directory": str(run.dir), "state": run.state, "step": run.step, "num_steps": run.num_steps}
    facts |= {"stop_reason": run.stop_reason, "seconds": run.seconds, "metrics": dict(run.metrics)}
    document: dict[str, Any] = clean(facts)
    return document | {"costs": [asdict(cost) for cost in run.callbacks.costs()]}


def _introduce(out: Console) -> None:
    out.print("A plain Python loop trains a logistic regression. Beside it run", style="bold")
    for line in (
        "progress_bar     a callback that shows the progress",
        "early_stopping   a callback that ends the run when val/loss no longer improves",
        f"overfitting      a function, called every {VALIDATE_EVERY} steps, that adds a metric",
        "weight_norm      a hook that runs at every 50th step",
        "broken_pager     an observer that is broken on purpose, to show isolation",
    ):
        out.print(indented(line))
    out.print()


def _explain(out: Console, run: hl.Run) -> None:
    costs = run.callbacks.costs()
    share = sum(cost.total_seconds for cost in costs) / run.seconds
    lines = [f"The run {run.state} at step {run.step} of {run.num_steps}: {run.stop_reason or 'all steps are done'}."]
    lines += [
        f"{cost.name} ({cost.note}) did no harm: errors are counted, not raised." for cost in costs if cost.errors
    ]
    lines += [f"All {len(costs)} subscribers together took {share:.1%} of the run's time."]
    out.print("What happened", style="bold")
    for line in lines:
        out.print(indented(line))
    out.print("\nNext", style="bold")
    out.print("  hookline hooks list            all callbacks and hooks")
    out.print("  hookline hooks new my-hook     create your own hook, as a package with tests")
    out.print("  hookline demo                  SFT and GRPO as an experiment of two arms")


@contextmanager
def _root_errors(root: Path) -> Iterator[None]:
    """Suggest --root if the directory cannot be written."""
    try:
        yield
    except hl.ConfigError as error:
        if not isinstance(error.__cause__, OSError):
            raise
        raise hl.ConfigError(
            f"{root.resolve()} cannot be written: {error.__cause__.strerror}. Give another --root."
        ) from error


@contextmanager
def _one_line_logs(terminal: Console) -> Iterator[None]:
    """Show log messages above the progress bar, one line each, without tracebacks."""
    logger, handler = logging.getLogger("hookline"), _OneLine(terminal)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class _OneLine(logging.Handler):
    def __init__(self, terminal: Console) -> None:
        super().__init__()
        self.terminal = terminal

    def emit(self, record: logging.LogRecord) -> None:
        # A Text rather than a style for the whole print, which would colour the progress bar below it too.
        self.terminal.print(Text(record.getMessage(), style="yellow"))
