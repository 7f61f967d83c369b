"""Makes and splits random generators of Python, NumPy, torch and JAX.

The library is recognized by the generator's module, so splitting imports nothing.
"""

import importlib
import random
import sys
from typing import Any, Literal, get_args

from hookline._engine.errors import OptionError

Kind = Literal["python", "numpy", "torch", "jax"]
"""The libraries whose generators `make` and `split` support."""


def make(kind: Kind, seed: str) -> Any:
    """Return a generator of a library, or a JAX key, that depends on the seed only."""
    if kind == "python":
        return random.Random(seed)
    if kind not in get_args(Kind):
        raise OptionError(f"rng={kind!r}: give one of {', '.join(map(repr, get_args(Kind)))}.")
    number = random.Random(seed).getrandbits(31)
    try:
        library = importlib.import_module(kind)
    except ImportError as error:
        raise OptionError(f"rng={kind!r} needs the package {kind}, which is not installed.") from error
    if kind == "numpy":
        return library.random.default_rng(number)
    return library.Generator().manual_seed(number) if kind == "torch" else library.random.PRNGKey(number)


def split(rng: Any) -> tuple[Any, Any, Any]:
    """Return the advanced generator and two new ones of its kind, all different."""
    library = type(rng).__module__.partition(".")[0]
    if isinstance(rng, random.Random):
        return rng, random.Random(rng.getrandbits(64)), random.Random(rng.getrandbits(64))
    if library == "numpy" and hasattr(rng, "spawn"):
        first, second = rng.spawn(2)
        return rng, first, second
    if library == "torch" and hasattr(rng, "manual_seed"):
        return rng, _torch_child(rng), _torch_child(rng)
    if "jax" in sys.modules and _is_jax_key(rng):
        return tuple(sys.modules["jax"].random.split(rng, 3))
    raise OptionError(
        f"rng={rng!r} cannot be split; give a numpy.random.Generator, a torch.Generator, a JAX key or a random.Random."
    )


def _torch_child(rng: Any) -> Any:
    torch = sys.modules["torch"]
    seed = torch.empty((), dtype=torch.int64, device=rng.device).random_(generator=rng).item()
    return torch.Generator(device=rng.device).manual_seed(seed)


def _is_jax_key(rng: Any) -> bool:
    """Whether it is a typed key, or the older form: an array of unsigned integers whose last axis has length two."""
    jax = sys.modules["jax"]
    if isinstance(rng, jax.Array) and jax.numpy.issubdtype(rng.dtype, jax.dtypes.prng_key):
        return True
    return str(getattr(rng, "dtype", "")) == "uint32" and getattr(rng, "shape", ())[-1:] == (2,)
