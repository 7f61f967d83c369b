"""The random states of every library that a training draws from: Python, NumPy, torch and its devices.

A library that is not imported draws nothing and is left alone. A captured state consists of plain values and tensors of
bytes, so it can be saved and read back without running any code.
"""

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def capture() -> dict[str, Any]:
    """Return the present states."""
    state: dict[str, Any] = {"python": random.getstate()}
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        kind, keys, *rest = numpy.random.get_state()
        state["numpy"] = (kind, keys.tolist(), *rest)
    if torch is not None:
        state["torch"] = torch.get_rng_state()
        # To ask an unused device for its state would initialize it: memory on every GPU, and forked workers could not
        # use CUDA.
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            state["cuda"] = torch.cuda.get_rng_state_all()
        if torch.backends.mps.is_available():
            state["mps"] = torch.mps.get_rng_state()
    return state


def restore(state: dict[str, Any]) -> None:
    """Set the libraries to captured states; libraries and devices that are missing here are skipped."""
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
        # One by one: set_rng_state_all() fails where there are fewer devices than before.
        for device, own in enumerate(state["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(own, device)
    if "mps" in state and torch.backends.mps.is_available():
        torch.mps.set_rng_state(state["mps"])


def seed(number: int) -> None:
    """Seed all libraries that are loaded."""
    random.seed(number)
    for name, seed_it in _SEEDS.items():
        if name in sys.modules:
            seed_it(sys.modules[name], number)


_SEEDS: dict[str, Callable[[Any, int], object]] = {
    "numpy": lambda numpy, number: numpy.random.seed(number % 2**32),
    "torch": lambda torch, number: torch.manual_seed(number),
}


@contextmanager
def seeded(number: int) -> Iterator[None]:
    """Seed all libraries, including those that are first imported inside."""
    seed(number)
    finder = _SeedOnImport(number)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        with suppress(ValueError):
            sys.meta_path.remove(finder)


class _SeedOnImport(MetaPathFinder):
    """Seeds a library when it has been imported."""

    def __init__(self, number: int) -> None:
        self._number = number

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name not in ("numpy", "torch"):
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        found = (finder.find_spec(name, path, target) for finder in others)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_seed(module: ModuleType) -> None:
                load(module)
                _SEEDS[name](module, self._number)

            spec.loader.exec_module = load_and_seed  # type: ignore[method-assign]
        return spec


@contextmanager
def kept() -> Iterator[None]:
    """Restore the states afterwards: draws inside do not affect the program."""
    state = capture()
    try:
        yield
    finally:
        restore(state)
