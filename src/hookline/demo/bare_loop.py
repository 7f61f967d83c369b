"""A loop of one's own, and what hookline adds to it: ``hookline demo --quick``, which needs nothing installed besides.

The loop is plain Python and trains a logistic regression by gradient descent. Most of the made-up
measurements mean nothing, so the model at first learns and then begins to learn the noise by heart:
the validation loss rises again and early stopping ends the run. The same numbers come out every time.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import mul
from pathlib import Path
from typing import Any

import hookline as hl
from hookline.callbacks import EarlyStoppingCallback
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


def train(callbacks: Sequence[Any] = (), *, root: Path = Path("runs"), epochs: int = 400) -> hl.Run:
    """The loop: ``run`` and ``val`` are hookline's, the rest is what anybody would write.

    Args:
        callbacks: Those besides its own: early stopping, a function, a hook, and an observer that is broken.
        root: Where it is recorded.
        epochs: How long it trains at most.
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


def _examples(number: int, generator: random.Random) -> list[Example]:
    """Measurements of which only the first few, and chance, decide the answer."""
    measured = [[generator.gauss() for _ in range(FEATURES)] for _ in range(number)]
    return [(x, 0.8 * sum(x[:INFORMATIVE]) + generator.gauss() > 0) for x in measured]


def _cross_entropy(probability: float, answer: bool) -> float:
    return -math.log(probability if answer else 1 - probability)
