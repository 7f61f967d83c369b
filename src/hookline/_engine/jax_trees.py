"""Pytrees of JAX: the names of their leaves, norms, and averages. This module does not import JAX.

A leaf is named like a parameter of torch: ``params.dense.kernel``. Everything here is computed by jitted functions, one
call for all leaves, and nothing waits for a device.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any


@dataclass(frozen=True, slots=True)
class WeightTree:
    """The weights in training of a loop in JAX, as ``loop.weight_tree``, for callbacks that average or exchange them.

    Attributes:
        read: Returns the tree of weights.
        write: Replaces arrays in it, by name.
    """

    read: Callable[[], Any]
    write: Callable[[Mapping[str, Any]], None]


def is_array(value: Any) -> bool:
    """Return whether a value is an array of JAX, without loading JAX."""
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(value, jax.Array)


def named_leaves(tree: Any) -> dict[str, Any]:
    """Return the arrays of floating-point numbers in a tree, by name; empty where JAX is not loaded."""
    jax = sys.modules.get("jax")
    if jax is None:
        return {}
    leaves, structure = jax.tree_util.tree_flatten(tree)
    named = zip(_names(tree, structure), leaves, strict=True)
    return {name: leaf for name, leaf in named if _is_floating(leaf)}


_NAMES: dict[Any, list[str]] = {}
"""The names of the leaves by the structure of a tree: finding them takes longer than flattening the tree."""
_MOST_STRUCTURES = 64


def _names(tree: Any, structure: Any) -> list[str]:
    names = _NAMES.get(structure)
    if names is None:
        if len(_NAMES) >= _MOST_STRUCTURES:
            _NAMES.clear()
        paths = [path for path, _ in sys.modules["jax"].tree_util.tree_flatten_with_path(tree)[0]]
        names = _NAMES[structure] = [_name(path) for path in paths]
    return names


def _name(path: Sequence[Any]) -> str:
    parts = [_part(key) for key in path]
    if len(parts) > 1 and getattr(path[-1], "name", None) == "value":  # the variables of Flax hold their arrays there
        parts.pop()
    return ".".join(parts) or "value"


def _part(key: Any) -> str:
    for attribute in ("key", "name", "idx"):  # of a dict, a dataclass or named tuple, a sequence
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def _is_floating(leaf: Any) -> bool:
    return isinstance(leaf, sys.modules["jax"].Array | sys.modules["numpy"].ndarray) and _is_inexact(leaf.dtype)


@cache
def _is_inexact(dtype: Any) -> bool:
    numbers = sys.modules["jax"].numpy
    return bool(numbers.issubdtype(dtype, numbers.inexact))


def norms(arrays: Sequence[Any], order: float) -> Any:
    """Return the norm of each array, as one array, at least in float32."""
    return _norms()(list(arrays), order)


def norm(values: Any, order: float) -> Any:
    """Return the norm of an array of one dimension."""
    return _norm()(values, order)


def norms_of_parts(values: Any, sizes: Sequence[int], order: float) -> list[Any]:
    """Return the norms of the parts of an array of one dimension, given their sizes."""
    found: list[Any] = _norms_of_parts()(values, tuple(sizes), order)
    return found


def first_not_finite(arrays: Sequence[Any]) -> Any:
    """Return the index of the first array with a NaN or an infinity, as an array; -1 if there is none."""
    return _first_not_finite()(list(arrays))


def copies(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Return copies, of half precision in float32. A step that the originals are donated to leaves them alone."""
    jnp = sys.modules["jax"].numpy
    return {name: jnp.array(array, jnp.promote_types(array.dtype, jnp.float32)) for name, array in arrays.items()}


def averaged(averages: Mapping[str, Any], arrays: Mapping[str, Any], decay: float) -> dict[str, Any]:
    """Return ``decay * average + (1 - decay) * array`` for each."""
    given = {name: arrays[name] for name in averages}
    result: dict[str, Any] = _averaged()(dict(averages), given, decay)
    return result


# Made when they are first used, and once: the functions keep what JAX has compiled.


@cache
def _norms() -> Any:
    jax = sys.modules["jax"]
    jnp = jax.numpy

    def compute(arrays: list[Any], order: float) -> Any:
        wide = [jnp.ravel(array).astype(jnp.promote_types(array.dtype, jnp.float32)) for array in arrays]
        return jnp.stack([jnp.linalg.norm(array, order) for array in wide])

    return jax.jit(compute, static_argnums=1)


@cache
def _norm() -> Any:
    jax = sys.modules["jax"]
    return jax.jit(lambda values, order: jax.numpy.linalg.norm(values, order), static_argnums=1)


@cache
def _norms_of_parts() -> Any:
    jax = sys.modules["jax"]

    def compute(values: Any, sizes: tuple[int, ...], order: float) -> list[Any]:
        ends = list(accumulate(sizes))
        return [jax.numpy.linalg.norm(values[end - size : end], order) for size, end in zip(sizes, ends, strict=True)]

    return jax.jit(compute, static_argnums=(1, 2))


@cache
def _first_not_finite() -> Any:
    jax = sys.modules["jax"]
    jnp = jax.numpy

    def compute(arrays: list[Any]) -> Any:
        bad = ~jnp.stack([jnp.isfinite(array).all() for array in arrays])
        return jnp.where(bad.any(), bad.argmax(), -1)

    return jax.jit(compute)


@cache
def _averaged() -> Any:
    jax = sys.modules["jax"]

    def compute(averages: Any, arrays: Any, decay: Any) -> Any:
        return jax.tree.map(
            lambda average, array: average + (array.astype(average.dtype) - average) * (1 - decay), averages, arrays
        )

    return jax.jit(compute)
