"""The random states of every library that a training draws from: Python, NumPy, torch, its devices.

What is not loaded draws nothing and is left alone. A captured state consists of plain values and tensors
of bytes, so that it can be saved and read back without running any code.
"""

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def capture() -> dict[str, Any]:
    """The states as they are now."""
    state: dict[str, Any] = {"python": random.getstate()}
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        kind, keys, *rest = numpy.random.get_state()
        state["numpy"] = (kind, keys.tolist(), *rest)
    if torch is not None:
        state["torch"] = torch.get_rng_state()
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            state["cuda"] = torch.cuda.get_rng_state_all()
        if torch.backends.mps.is_available():
            state["mps"] = torch.mps.get_rng_state()
    return state


def restore(state: dict[str, Any]) -> None:
    """Put the libraries into a state that was captured; what is not here is left out."""
    version, keys, gauss = state["python"]
    random.setstate((version, tuple(keys), gauss))
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and "numpy" in state:
        kind, keys, *rest = state["numpy"]
        numpy.random.set_state((kind, numpy.array(keys, dtype=numpy.uint32), *rest))
    if torch is None:
        return
    if "torch" in state:
        torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        for device, own in enumerate(state["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(own, device)
    if "mps" in state and torch.backends.mps.is_available():
        torch.mps.set_rng_state(state["mps"])


def seed(number: int) -> None:
    """Seed all of them."""
    random.seed(number)
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        numpy.random.seed(number % 2**32)
    if torch is not None:
        torch.manual_seed(number)


@contextmanager
def kept() -> Iterator[None]:
    """Whatever is drawn inside leaves no trace outside."""
    state = capture()
    try:
        yield
    finally:
        restore(state)
