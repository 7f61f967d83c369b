"""A loop in JAX: lazy values, the training state in checkpoints, and an exact resume."""

import json
import random
from typing import NamedTuple

import pytest

import hookline as hl
from hookline._engine.errors import CheckpointError, OptionError
from hookline.loops import checkpoint

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

from hookline.integrations import jax as jax_integration  # noqa: E402
from hookline.integrations.jax import run  # noqa: E402


class State(NamedTuple):
    params: dict
    momentum: dict
    count: jax.Array  # type: ignore[name-defined]


def initial(seed=0, width=8):
    one, two = jax.random.split(jax.random.key(seed))
    params = {"in": jax.random.normal(one, (4, width)), "out": jax.random.normal(two, (width, 1))}
    return State(params, jax.tree.map(jnp.zeros_like, params), jnp.zeros((), jnp.int32))


def loss_of(params, inputs, targets, key):
    hidden = jax.nn.relu(inputs @ params["in"])
    kept = jax.random.bernoulli(key, 0.5, hidden.shape)
    return jnp.mean((jnp.where(kept, hidden * 2, 0) @ params["out"] - targets) ** 2)


def learn(state, inputs, targets, key):
    loss, gradients = jax.value_and_grad(loss_of)(state.params, inputs, targets, key)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, state.momentum, gradients)
    params = jax.tree.map(lambda p, m: p - 0.01 * m, state.params, momentum)
    return State(params, momentum, state.count + 1), loss


train_step = jax.jit(learn, donate_argnums=0)


class Shuffled:
    """Twelve samples, two a batch, in an order that NumPy and Python draw when an epoch begins."""

    def __init__(self):
        self.inputs = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32)

    def __len__(self):
        return 6

    def __iter__(self):
        order = np.random.permutation(12)
        if random.random() < 0.5:
            order = order[::-1]
        for start in range(0, 12, 2):
            inputs = self.inputs[order[start : start + 2]]
            yield inputs, inputs.sum(axis=1, keepdims=True)


def train(name="jax", *, callbacks=(), seed=0, until=None, **options):
    np.random.seed(seed)
    random.seed(seed)
    losses = []
    options = {"summary": False, "strict": True, "key": jax.random.key(seed)} | options
    with run(initial(seed), name, model=lambda state: state.params, callbacks=callbacks, **options) as loop:
        for inputs, targets in loop.steps(Shuffled(), epochs=2):
            loop.train_state, loss = train_step(loop.train_state, inputs, targets, loop.next_key())
            losses.append(loss)
            loop.log(loss=loss)
            if loop.step + 1 == until:
                loop.request_checkpoint()
                loop.request_stop("for now")
    return loop, [float(loss) for loss in losses]


def test_run_records_arrays_and_callbacks_find_the_model():
    shapes = []

    class Look(hl.Callback):
        def on_step_end(self, loop, step_idx, batch, metrics):
            shapes.append(jax.tree.map(jnp.shape, loop.model))
            return {"seen": metrics["loss"]}

    loop, losses = train(callbacks=[Look()])
    assert [(row.step, row.metrics["loss"], row.metrics["look/seen"]) for row in loop.history] == [
        (step, pytest.approx(loss), pytest.approx(loss)) for step, loss in enumerate(losses, 1)
    ]
    assert shapes == 12 * [{"in": (4, 8), "out": (8, 1)}]
    assert (loop.num_steps, int(loop.train_state.count)) == (12, 12)


@pytest.mark.parametrize("until", [2, 6, 9])
def test_resume_repeats_losses_and_state_exactly(until):
    straight, whole = train("straight")
    halved, first = train("halved", until=until)
    resumed, second = train("halved", seed=5, resume="last")
    assert (halved.step, halved.state, resumed.dir) == (until, "stopped", halved.dir)
    assert first + second == whole
    assert [row.metrics["loss"] for row in resumed.history] == [row.metrics["loss"] for row in straight.history]
    both = zip(jax.tree.leaves(resumed.train_state), jax.tree.leaves(straight.train_state), strict=True)
    assert all(bool((mine == theirs).all()) for mine, theirs in both)
    assert isinstance(resumed.train_state, State)


class SaveAtEpoch(hl.Callback):
    """Saves as the second epoch starts."""

    def on_train_epoch_start(self, loop):
        if loop.epoch == 1:
            loop.save_checkpoint()


def test_resume_from_a_checkpoint_saved_as_an_epoch_starts_is_exact():
    _, whole = train("straight")
    first, _ = train("first", callbacks=[SaveAtEpoch()])
    (saved,) = (row.path for row in first.checkpoints)
    resumed, second = train("first", seed=5, resume=saved)
    assert (len(second), resumed.step) == (6, 12)
    assert second == whole[6:]


def test_checkpoint_is_arrays_and_json_and_nothing_else():
    halved, _ = train(until=2)
    (row,) = halved.checkpoints
    assert checkpoint.damage_of(row.path) is None
    leaves = json.loads((row.path / "train_state.json").read_text())
    assert [leaf["path"] for leaf in leaves] == [
        *(".params['in']", ".params['out']", ".momentum['in']", ".momentum['out']", ".count"),
    ]
    with np.load(row.path / "train_state.npz", allow_pickle=False) as arrays:
        assert int(arrays["4"]) == 2


def test_resume_from_a_checkpoint_with_a_flipped_bit_names_the_file_and_changes_nothing():
    (row,) = train(until=2)[0].checkpoints
    for file in sorted(row.path.iterdir()):
        whole = file.read_bytes()
        file.write_bytes(whole[:-40] + bytes([whole[-40] ^ 2]) + whole[-39:])
        loop = run(initial(), "other", key=jax.random.key(0), resume=row.path, summary=False)
        with pytest.raises(CheckpointError, match=f"is damaged: .*{file.name}"), loop:
            pass
        assert (loop.step, int(loop.train_state.count)) == (0, 0)
        file.write_bytes(whole)


def test_resume_with_another_state_is_refused_and_changes_nothing():
    halved, _ = train(until=2)
    (row,) = halved.checkpoints
    other = run(initial(width=9), "other", key=jax.random.key(0), resume=row.path, summary=False)
    message = r"array of float32 \[4, 8\] there and array of float32 \[4, 9\] here"
    with pytest.raises(CheckpointError, match=message), other:
        pass
    assert other.train_state.params["in"].shape == (4, 9)
    keyless = run(initial(), "other", resume=row.path, summary=False)
    with pytest.raises(CheckpointError, match="it is not in this state"), keyless:
        pass


def test_state_whose_arrays_were_donated_cannot_be_saved_and_says_why():
    with run(initial(), "donated", summary=False) as loop:
        inputs, targets = next(iter(Shuffled()))
        train_step(loop.train_state, inputs, targets, jax.random.key(0))
        with pytest.raises(CheckpointError, match="to assign a new state before a checkpoint is saved"):
            loop.save_checkpoint()


def test_next_key_gives_another_one_each_time_and_needs_one():
    loop = run({}, "keys", key=jax.random.key(0), root=None)
    drawn = {tuple(jax.random.key_data(loop.next_key()).tolist()) for _ in range(5)}
    assert len(drawn) == 5
    with pytest.raises(OptionError, match="there is no key to split"):
        run({}, "keys", root=None).next_key()


def test_model_is_picked_by_a_function_and_not_assigned():
    with pytest.raises(OptionError, match="model='params': give a function"):
        run({}, model="params")
    loop = run({"params": 1}, root=None)
    assert loop.model == {"params": 1}
    with pytest.raises(OptionError, match="loop.model is a part of loop.train_state"):
        loop.model = 3


def test_pytree_file_every_kind_of_leaf_comes_back_as_it_was(tmp_path):
    tree = {
        "half": jnp.arange(6, dtype=jnp.bfloat16).reshape(2, 3),
        "scalar": jnp.asarray(2.5, jnp.bfloat16),
        "key": jax.random.split(jax.random.key(3)),
        "old_key": jax.random.PRNGKey(3),
        "numpy": np.arange(4.0),
        "element": np.float32(1.5),
        "plain": [1, 2.5, True, "text"],
        "none": None,
        "empty": jnp.zeros((0, 3)),
    }
    jax_integration.write(tree, tmp_path / "tree")
    blank = jax.tree.map(
        lambda leaf: leaf * 0 if isinstance(leaf, jax.Array | np.ndarray) and not _is_key(leaf) else leaf, tree
    )
    found = jax_integration.read(blank, tmp_path / "tree")
    assert jax.tree.structure(found) == jax.tree.structure(tree)
    for mine, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(tree), strict=True):
        assert type(mine) is type(theirs)
        assert str(getattr(mine, "dtype", "")) == str(getattr(theirs, "dtype", ""))
        assert np.array_equal(_comparable(mine), _comparable(theirs))


def _is_key(leaf):
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _comparable(leaf):
    return jax.random.key_data(leaf) if isinstance(leaf, jax.Array) and _is_key(leaf) else leaf


def test_pytree_file_sharded_array_goes_back_to_its_devices(tmp_path):
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("data",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    tree = {"w": jax.device_put(jnp.arange(4.0), sharding)}
    jax_integration.write(tree, tmp_path / "tree")
    assert jax_integration.read(tree, tmp_path / "tree")["w"].sharding == sharding


def test_pytree_file_leaf_that_is_no_value_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"The leaf \['apply'\] of the state is a function"):
        jax_integration.write({"apply": lambda: 1}, tmp_path / "tree")


def test_pytree_file_that_is_missing_or_cut_short_is_an_error(tmp_path):
    with pytest.raises(CheckpointError, match="tree.json is missing"):
        jax_integration.read({}, tmp_path / "tree")
    jax_integration.write({"w": np.arange(100)}, tmp_path / "tree")
    whole = (tmp_path / "tree.npz").read_bytes()
    (tmp_path / "tree.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match="cannot be read"):
        jax_integration.read({"w": np.zeros(100, int)}, tmp_path / "tree")


def test_resume_of_a_state_that_began_as_numpy_float64_repeats_the_losses_exactly(tmp_path):
    def train_numpy(name, *, until=None, **options):
        state = {"w": np.ones((4, 1)), "steps": np.zeros((), np.int64)}  # float64 and int64 until the first step
        losses = []
        with run(state, name, root=tmp_path, summary=False, **options) as loop:
            for inputs, targets in loop.steps(fixed()):
                gradient = jax.grad(lambda w, x=inputs, y=targets: jnp.mean((x @ w - y) ** 2))(loop.train_state["w"])
                new = loop.train_state["w"] - 0.1 * gradient
                loop.train_state = {"w": jnp.asarray(new), "steps": jnp.asarray(loop.train_state["steps"] + 1)}
                losses.append(float(jnp.sum(loop.train_state["w"])))
                if loop.step + 1 == until:
                    loop.request_checkpoint()
                    loop.request_stop("for now")
        return losses

    def fixed():
        inputs = np.random.default_rng(0).normal(size=(4, 2, 4)).astype(np.float32)
        return [(each, each.sum(axis=1, keepdims=True) * 2) for each in inputs]

    whole = train_numpy("straight")
    assert train_numpy("halved", until=2) + train_numpy("halved", resume="last") == whole
