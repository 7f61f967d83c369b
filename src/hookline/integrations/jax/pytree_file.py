"""A pytree as two files: the arrays in ``.npz``, and in ``.json`` the path of each leaf and what it is.

The structure is not saved but taken from the tree that is filled: no class is looked up by a name in a file, nothing is
unpickled. Both have to have the same leaves, by path, shape and kind of number. Arrays go back to where those of the
tree that is filled are.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import jax
import jax.numpy as jnp
import numpy as np

from hookline.core.errors import CheckpointError

PLAIN = (bool, int, float, str)


class Leaf(NamedTuple):
    """What is known of a leaf without its numbers.

    Attributes:
        kind: ``array``, ``key`` (a random key of JAX), or ``plain``.
        dtype: The kind of number; of a key, how it draws; of a plain value, its type.
        value: That of a plain one.
    """

    path: str
    kind: str
    dtype: str
    shape: tuple[int, ...] = ()
    value: Any = None

    def described(self) -> str:
        """It in words, without its path and value.

        A state that begins as NumPy's float64 becomes float32 in the first step, unless JAX was set to 64 bits. Both
        are what JAX makes of it.
        """
        if self.kind == "plain":
            return f"plain of {self.dtype}"
        dtype = jax.dtypes.canonicalize_dtype(jnp.dtype(self.dtype)) if self.kind == "array" else self.dtype
        return f"{self.kind} of {dtype} {list(self.shape)}"


def write(tree: Any, path: Path) -> None:
    """Write a tree beside each other to ``<path>.npz`` and ``<path>.json``.

    Raises:
        CheckpointError: A leaf cannot be saved, or the files cannot be written.
    """
    leaves, values = _leaves(tree)
    arrays = {str(index): _numbers(leaf, value) for index, (leaf, value) in enumerate(zip(leaves, values, strict=True))}
    try:
        np.savez(path.with_suffix(".npz"), **{name: array for name, array in arrays.items() if array is not None})
        path.with_suffix(".json").write_text(json.dumps([leaf._asdict() for leaf in leaves]), encoding="utf-8")
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written: {error}") from error


def read(tree: Any, path: Path) -> Any:
    """A tree of the same structure, with what was written.

    Raises:
        CheckpointError: It was one of other leaves, or cannot be read.
    """
    here, places = _leaves(tree)
    try:
        text = path.with_suffix(".json").read_text(encoding="utf-8")
        there = [Leaf(**{**leaf, "shape": tuple(leaf["shape"])}) for leaf in json.loads(text)]
        _require_fitting(path, there, here)
        with path.with_suffix(".npz").open("rb") as file, np.load(file, allow_pickle=False) as saved:
            arrays = {int(name): saved[name] for name in saved.files}
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{error.filename} is missing: that checkpoint was saved by another kind of run."
        ) from None
    except (OSError, ValueError, TypeError, KeyError, BadZipFile) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    values = [_put_back(leaf, arrays.get(index), places[index]) for index, leaf in enumerate(there)]
    return jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(tree), values)


def _leaves(tree: Any) -> tuple[list[Leaf], list[Any]]:
    found = jax.tree_util.tree_flatten_with_path(tree)[0]
    return [_leaf(jax.tree_util.keystr(path) or "it", value) for path, value in found], [value for _, value in found]


def _leaf(path: str, value: Any) -> Leaf:
    if _is_key(value):
        return Leaf(path, "key", str(jax.random.key_impl(value)), tuple(value.shape))
    if isinstance(value, jax.Array | np.ndarray | np.generic) and not np.dtype(value.dtype).hasobject:
        return Leaf(path, "array", str(value.dtype), tuple(value.shape))
    if type(value) in PLAIN:
        return Leaf(path, "plain", type(value).__name__, value=value)
    raise CheckpointError(
        f"The leaf {path} of the state is a {type(value).__name__}, which cannot be saved: keep arrays, numbers, texts "
        "and random keys in the state, and other things elsewhere."
    )


def _numbers(leaf: Leaf, value: Any) -> Any:
    """The numbers of a leaf as NumPy can save them; None for a plain one."""
    if leaf.kind == "plain":
        return None
    try:
        array = np.asarray(jax.random.key_data(value) if leaf.kind == "key" else value)
    except RuntimeError as error:
        raise CheckpointError(
            f"The leaf {leaf.path} of the state cannot be fetched: {error} A step that its arrays were donated to has "
            "to assign a new state before a checkpoint is saved."
        ) from error
    return array if array.dtype.isbuiltin == 1 else np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)


def _put_back(leaf: Leaf, array: Any, place: Any) -> Any:
    """A leaf with its numbers, where that of the tree to be filled is."""
    if leaf.kind == "plain":
        return leaf.value
    if leaf.kind == "key":
        return jax.random.wrap_key_data(jnp.asarray(array), impl=leaf.dtype)
    dtype = jnp.dtype(leaf.dtype)
    if array.dtype != dtype:  # one that NumPy does not know: its bytes
        array = np.frombuffer(array.tobytes(), dtype).reshape(leaf.shape).copy()
    if isinstance(place, np.generic):
        return array[()]
    if isinstance(place, np.ndarray):
        return array
    alone = isinstance(place.sharding, jax.sharding.SingleDeviceSharding) and place.devices() == {jax.devices()[0]}
    return jnp.asarray(array) if alone else jax.device_put(array, place.sharding)


def _require_fitting(path: Path, there: list[Leaf], here: list[Leaf]) -> None:
    saved, own = ({leaf.path: leaf.described() for leaf in leaves} for leaves in (there, here))
    wrong = [f"{name} is not in this state" for name in saved.keys() - own.keys()]
    wrong += [f"{name} is not in the checkpoint" for name in own.keys() - saved.keys()]
    both = saved.keys() & own.keys()
    wrong += [f"{name} is {saved[name]} there and {own[name]} here" for name in both if saved[name] != own[name]]
    if wrong:
        shown = "; ".join(sorted(wrong)[:3]) + (f"; and {len(wrong) - 3} more" if len(wrong) > 3 else "")
        raise CheckpointError(f"{path} is one of another state: {shown}. Nothing was changed.")


def _is_key(value: Any) -> bool:
    return isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
