"""A model set to evaluate for a while."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def set_to_evaluate(model: Any) -> Iterator[None]:
    """Every module of the model evaluates, and is afterwards in the mode that it was in: some evaluate for good.

    A model's own `train` is called too: some do more in it.
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        model.train(modes[0][1])
        for module, trains in modes:
            module.training = trains
