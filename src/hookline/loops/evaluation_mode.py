"""A model set to evaluate for a while."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def set_to_evaluate(model: Any) -> Iterator[None]:
    """Every module of the model evaluates, and is afterwards in the mode that it was in: some evaluate for good."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, trains in modes:
            module.training = trains
