"""``hookline demo``: a loop of one's own, and what hookline adds to it.

The loop is plain Python and trains a logistic regression by gradient descent. Most of the made-up
measurements mean nothing, so the model at first learns and then begins to learn the noise by heart:
the validation loss rises again and early stopping ends the run. The same numbers come out every time.
"""

import logging
import math
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import mul
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

import hookline as hl
from hookline.callbacks import EarlyStoppingCallback, ProgressBar
from hookline.cli.output import console, indented
from hookline.hooks import HookContext, PeriodicHook

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
        """How likely the answer is yes."""
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


def train(callbacks: list[Any], *, epochs: int) -> hl.Run:
    """The loop: ``run`` and ``val`` are hookline's, the rest is what anybody would write."""
    generator = random.Random(7)  # noqa: S311 - made-up data, the same each time
    training, validation = _examples(TRAINING, generator), _examples(VALIDATION, generator)
    batches = [training[i : i + BATCH] for i in range(0, TRAINING, BATCH)]
    model = Model()
    with hl.run("demo", callbacks=callbacks) as run:
        run.model = model
        for batch in run.steps(batches, epochs=epochs):
            run.log(loss=model.update(batch))
            if (run.step + 1) % VALIDATE_EVERY == 0:
                with run.validate() as val:
                    val.log(loss=model.loss(validation))
    return run


def overfitting(loop: hl.LoopState) -> dict[str, float]:
    """A function for one moment; the dict that it returns lands in the step's row."""
    return {"gap": loop.get_metric("val/loss") - loop.get_metric("loss")}


class WeightNorm(PeriodicHook):
    """A hook, as a rollout worker would have it: it decides when to run, and runs on a context."""

    def run(self, context: HookContext) -> dict[str, float]:
        return {"l2": math.hypot(*context.worker.model.weights)}


class BrokenPager(hl.Callback):
    """An observer that is broken: each time it is to report, it fails."""

    every = 200

    def on_log(self, loop: hl.LoopState, step: int, metrics: dict[str, Any], /) -> None:
        raise OSError("no answer")


def demo(
    epochs: Annotated[int, typer.Option(min=1, help="How many epochs to train for at most.")] = 400,
) -> None:
    """Train a small model in a bare loop, with callbacks, hooks and one broken observer."""
    out, terminal = console(), Console(stderr=True, highlight=False)
    _introduce(out)
    with _one_line_logs(terminal):
        run = train(
            [
                ProgressBar(console=terminal),
                EarlyStoppingCallback(monitor="val/loss", patience=5),
                hl.on("step_end", overfitting, every=VALIDATE_EVERY),
                WeightNorm(frequency=50),
                BrokenPager(),
            ],
            epochs=epochs,
        )
    _explain(out, run)


def _introduce(out: Console) -> None:
    out.print("A plain Python loop trains a logistic regression. Beside it run", style="bold")
    for line in (
        "progress_bar     a callback that shows how far it is",
        "early_stopping   a callback that ends the run when val/loss no longer improves",
        f"overfitting      a function, called every {VALIDATE_EVERY} steps, that adds a metric",
        "weight_norm      a hook, asked after each step, that runs at every 50th",
        "broken_pager     an observer that is broken on purpose, to show isolation",
    ):
        out.print(indented(line))
    out.print()


def _explain(out: Console, run: hl.Run) -> None:
    costs = run.callbacks.costs()
    share = sum(cost.total_seconds for cost in costs) / run.seconds
    lines = [f"The run {run.state} at step {run.step} of {run.num_steps}: {run.stop_reason or 'all steps are done'}."]
    lines += [
        f"{cost.name} ({cost.note}) hurt nobody: errors are counted, not passed on." for cost in costs if cost.errors
    ]
    lines += [f"All {len(costs)} subscribers together took {share:.1%} of the run's time."]
    out.print("What happened", style="bold")
    for line in lines:
        out.print(indented(line))
    out.print("\nNext", style="bold")
    out.print("  hookline hooks list            what there is to add to a loop")
    out.print("  hookline hooks new my-hook     a hook of your own, as a package with tests")


def _examples(number: int, generator: random.Random) -> list[Example]:
    """Measurements of which only the first few, and chance, decide the answer."""
    measured = [[generator.gauss() for _ in range(FEATURES)] for _ in range(number)]
    return [(x, 0.8 * sum(x[:INFORMATIVE]) + generator.gauss() > 0) for x in measured]


def _cross_entropy(probability: float, answer: bool) -> float:
    return -math.log(probability if answer else 1 - probability)


@contextmanager
def _one_line_logs(terminal: Console) -> Iterator[None]:
    """Show what hookline logs above the progress bar, a line each; in a real run tracebacks are part of it."""
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
