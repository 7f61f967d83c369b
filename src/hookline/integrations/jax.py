"""Loops in JAX: `hl.run` that keeps the training state, a pytree, and saves and restores it.

    from hookline.integrations.jax import run

    with run({"params": params, "opt": opt_state}, "warmup", key=jax.random.key(0), resume="auto") as loop:
        for batch in loop.steps(batches, epochs=3):
            loop.train_state, loss = train_step(loop.train_state, batch, loop.next_key())
            loop.log(loss=loss)

`log` never waits for a device: JAX's own asynchronous copy fetches an array, which is recorded when it has arrived.

An update is a function of the state, so a loop shows callbacks its gradients where it makes the update::

    loss, gradients = loss_and_gradients(loop.train_state["params"], batch)
    if loop.before_update(gradients):
        loop.train_state = updated(loop.train_state, gradients)

`on_before_optimizer_step` fires there, so gradient norms are logged and a `NaNGuard` can skip the update. `EMA`
averages ``loop.model``, which ``model=`` selects from the state, and validations find the averages in
``loop.train_state``. With ``optax.inject_hyperparams`` callbacks and commands find and set the learning rate.

Checkpoints hold the state, the random key, and the random states of Python and NumPy that the order of the data comes
from, so a resume is exact. A pytree is two files: the arrays in ``.npz``, and in ``.json`` the path and the type of
each leaf. The structure is not saved but taken from the tree that is filled: no class is looked up by a name in a
file, and nothing is unpickled. Both trees must have the same leaves, by path, shape and dtype. Arrays are placed where
those of the filled tree are.

It is for one process. Of several (`jax.distributed`) each has only a part of the state, which is not saved here.
"""

from hookline._engine.optional import require

require("jax", ">=0.4.30", extra="jax", what=__name__)
require("jaxlib", None, extra="jax", what=__name__)

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Unpack
from zipfile import BadZipFile

import jax
import jax.numpy as jnp
import numpy as np

from hookline._engine.errors import CheckpointError, OptionError
from hookline._engine.jax_trees import WeightTree, named_leaves
from hookline.integrations.host_callback import LearningRateView
from hookline.loops.checkpoint import require_equal_shapes
from hookline.loops.data_position import ReplayedOrder
from hookline.loops.options import LoopOptions
from hookline.loops.run import Run

__all__ = ["JaxRun", "run"]


PLAIN = (bool, int, float, str)


class Leaf(NamedTuple):
    """A leaf without its numbers.

    Attributes:
        kind: ``array``, ``key`` (a random key of JAX), or ``plain``.
        dtype: The dtype; of a key, its implementation; of a plain value, its type.
        value: The value of a plain leaf.
    """

    path: str
    kind: str
    dtype: str
    shape: tuple[int, ...] = ()
    value: Any = None

    def described(self) -> str:
        """Describe it without its path and value.

        A state that begins as NumPy's float64 becomes float32 in the first step, unless JAX was set to 64 bits. So
        both are described by the dtype that JAX converts them to.
        """
        if self.kind == "plain":
            return f"plain of {self.dtype}"
        dtype = jax.dtypes.canonicalize_dtype(jnp.dtype(self.dtype)) if self.kind == "array" else self.dtype
        return f"{self.kind} of {dtype} {list(self.shape)}"


def write(tree: Any, path: Path) -> None:
    """Write a tree to ``<path>.npz`` and ``<path>.json``.

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
    """Return a tree of the same structure with the saved leaves.

    Raises:
        CheckpointError: The saved tree has other leaves, or cannot be read.
    """
    here, places = _leaves(tree)
    try:
        text = path.with_suffix(".json").read_text(encoding="utf-8")
        there = [Leaf(**{**leaf, "shape": tuple(leaf["shape"])}) for leaf in json.loads(text)]
        saved_shapes, shapes = ({leaf.path: leaf.described() for leaf in leaves} for leaves in (there, here))
        require_equal_shapes(path, "state", saved_shapes, shapes)
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
    """Return the numbers of a leaf as NumPy can save them; None for a plain one."""
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
    """Return a leaf with its numbers, placed like that of the tree to be filled."""
    if leaf.kind == "plain":
        return leaf.value
    if leaf.kind == "key":
        return jax.random.wrap_key_data(jnp.asarray(array), impl=leaf.dtype)
    dtype = jnp.dtype(leaf.dtype)
    if array.dtype != dtype:  # a dtype that NumPy lacks is saved as bytes
        array = np.frombuffer(array.tobytes(), dtype).reshape(leaf.shape).copy()
    if isinstance(place, np.generic):
        return array[()]
    if isinstance(place, np.ndarray):
        return array
    alone = isinstance(place.sharding, jax.sharding.SingleDeviceSharding) and place.devices() == {jax.devices()[0]}
    return jnp.asarray(array) if alone else jax.device_put(array, place.sharding)


def _is_key(value: Any) -> bool:
    return isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)


STATE = "train_state"
KEY = "key"


class JaxRun(Run):
    """Drives a loop of your own over a training state, which the loop assigns in each step as ``loop.train_state``.

    Args:
        train_state: The pytree that training changes: parameters, the optimizer's state, counters. A resume needs one
            of the same structure, which it fills.
        name: The name of the run.
        model: Selects the part of the state that callbacks find as ``loop.model``; all of it by default.
        key: A random key that `next_key` splits.
        options: As for `hl.run`; the files of ``save`` and ``load`` come in addition.
    """

    restores_itself = True

    def __init__(
        self,
        train_state: Any,
        name: str | None = None,
        *,
        model: Callable[[Any], Any] | None = None,
        key: Any = None,
        **options: Unpack[LoopOptions],
    ) -> None:
        if model is not None and not callable(model):
            raise OptionError(f"model={model!r}: give a function of the state, such as lambda state: state['params'].")
        if jax.process_count() > 1:
            raise OptionError(
                f"{jax.process_count()} processes of JAX train together, and none has the whole state to save. "
                "Use hl.run() on process 0, hl.run(root=None) on the others, and a checkpointer of your own."
            )
        super().__init__(name, **options)
        self.train_state, self.key = train_state, key
        self._pick = model
        self._order: ReplayedOrder = ReplayedOrder()
        self._skips_update = False
        self._rate: LearningRateView | None = None
        self.weight_tree = WeightTree(lambda: self.model, self._set_weights)
        self.gradients: Any = None
        """The gradients that `before_update` was given, while `on_before_optimizer_step` fires."""

    @property
    def model(self) -> Any:
        """The part of the state that ``model`` selects."""
        return self.train_state if self._pick is None else self._pick(self.train_state)

    @model.setter
    def model(self, model: Any) -> None:
        if model is not None:  # `Loop` assigns None
            raise OptionError("loop.model is a part of loop.train_state: assign that, and say which part with model=.")

    @property
    def optimizer(self) -> Any:
        """The learning rate of ``optax.inject_hyperparams`` in ``param_groups``, where the state has one."""
        if self._rate is None and _rates_in(self.train_state):
            self._rate = LearningRateView(lambda: float(_rates_in(self.train_state)[0]), self._set_rate)
        return self._rate

    @optimizer.setter
    def optimizer(self, optimizer: Any) -> None:
        if optimizer is not None:  # `Loop` assigns None
            raise OptionError("In JAX the optimizer's state is a part of loop.train_state: it cannot be assigned.")

    def before_update(self, gradients: Any) -> bool:
        """Report the gradients of the step, before the update.

        Args:
            gradients: All gradients of the step, a pytree.

        Returns:
            Whether to make the update: a `NaNGuard` skips one with gradients that are not finite.
        """
        self._skips_update = False
        if self.in_step:
            self.gradients = gradients
            try:
                self.callbacks.on_before_optimizer_step(self, None)
            finally:
                self.gradients = None  # they may be donated to the update
        return not self._skips_update

    def skip_update(self) -> None:
        """Have `before_update` return False; for callbacks, in `on_before_optimizer_step`."""
        self._skips_update = True

    def _set_weights(self, weights: Mapping[str, Any]) -> None:
        new = {id(array): weights[name] for name, array in named_leaves(self.model).items() if name in weights}
        leaves, structure = jax.tree_util.tree_flatten(self.train_state)
        if new.keys() - set(map(id, leaves)):
            raise OptionError(
                "The model that callbacks are to change is not a part of the state: with model= return a part of it, "
                "such as lambda state: state['params'], and nothing that is computed from it."
            )
        self.train_state = structure.unflatten([new.get(id(leaf), leaf) for leaf in leaves])

    def _set_rate(self, rate: float) -> None:
        old = {id(array) for array in _rates_in(self.train_state)}
        leaves, structure = jax.tree_util.tree_flatten(self.train_state)
        new = [jnp.full_like(leaf, rate) if id(leaf) in old else leaf for leaf in leaves]
        self.train_state = structure.unflatten(new)

    def next_key(self) -> Any:
        """Return a new random key, split off the one that is part of every checkpoint."""
        if self.key is None:
            raise OptionError(
                "next_key(): there is no key to split. Give one: run(train_state, key=jax.random.key(0))."
            )
        self.key, new = jax.random.split(self.key)
        return new

    def _save_common_files(self, directory: Path) -> None:
        write(self.train_state, directory / STATE)
        write(self.key, directory / KEY)
        super()._save_common_files(directory)

    def _load_files(self, directory: Path) -> None:
        train_state = read(self.train_state, directory / STATE)
        key = read(self.key, directory / KEY)
        super()._load_files(directory)
        self.train_state, self.key = train_state, key

    def _checkpoint_state(self, step: int) -> dict[str, Any]:
        state = super()._checkpoint_state(step)
        nothing_done = self._epoch_state == "open" and state["batches_done"] == 0
        return state | {"replay": self._order.state(nothing_done=nothing_done)}

    def _restore_position(self, state: dict[str, Any]) -> None:
        super()._restore_position(state)
        if "replay" in state:
            self._order.load_state(state["replay"])


def _rates_in(state: Any) -> list[Any]:
    """Return the learning rates that ``optax.inject_hyperparams`` keeps in a state."""
    return [array for name, array in named_leaves(state).items() if name.endswith("hyperparams.learning_rate")]


run = JaxRun
