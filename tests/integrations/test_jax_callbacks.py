"""Built-in callbacks on the pytrees of JAX, Flax and Optax: their values are those of Optax."""

import pytest

import hookline as hl
from hookline._engine.errors import OptionError
from hookline._engine.jax_trees import named_leaves
from hookline.callbacks import EMA, GradientMonitor, LoggerCallback, NaNGuard

jax = pytest.importorskip("jax")
nnx = pytest.importorskip("flax.nnx")
optax = pytest.importorskip("optax")

import flax.linen as nn  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

from hookline.integrations.jax import run  # noqa: E402

BATCHES = np.random.default_rng(0).normal(size=(6, 2, 4)).astype(np.float32)


class Network(nn.Module):
    """Two dense layers of Flax's linen."""

    @nn.compact
    def __call__(self, inputs):
        return nn.Dense(1)(nn.relu(nn.Dense(3)(inputs)))


def loss_of(params, batch):
    return jnp.mean((Network().apply({"params": params}, batch) - batch.sum(axis=1, keepdims=True)) ** 2)


def train(*callbacks, rate=0.1, spoil=(), batches=BATCHES, **options):
    """Train, and keep the parameters and the gradients of each step; gradients of some steps are spoilt."""
    params = Network().init(jax.random.key(0), BATCHES[0])["params"]
    optimizer = optax.inject_hyperparams(optax.adam)(learning_rate=rate)
    state = {"params": params, "optimizer": optimizer.init(params)}
    options = {"root": None, "summary": False, "strict": True, **options}
    weights, slopes, losses = [], [], []
    with run(state, model=lambda state: state["params"], callbacks=callbacks, **options) as loop:
        for batch in loop.steps(batches):
            loss, gradients = jax.value_and_grad(loss_of)(loop.model, batch)
            if loop.step in spoil:
                gradients = {**gradients, "Dense_1": jax.tree.map(lambda each: each / 0, gradients["Dense_1"])}
            if loop.before_update(gradients):
                updates, new = optimizer.update(gradients, loop.train_state["optimizer"], loop.model)
                loop.train_state = {"params": optax.apply_updates(loop.model, updates), "optimizer": new}
            loop.log(loss=loss)
            weights.append(loop.model)
            slopes.append(gradients)
            with loop.validate(before_update=False) as validation:
                validation.log(loss=loss_of(loop.model, batch))
            losses.append(loss_of(loop.model, batch))
    return loop, weights, slopes, losses


def values(loop, name):
    return [row.metrics[name] for row in loop.history if name in row.metrics]


def norm(tree, order=2.0):
    """The global norm of Optax."""
    return float(optax.tree.norm(tree, ord=order))


def close(tree, other):
    return all(jnp.allclose(one, two, rtol=1e-5) for one, two in zip(*map(jax.tree.leaves, (tree, other)), strict=True))


@pytest.mark.parametrize("decay", [0.0, 0.9])
def test_ema_has_the_values_of_optax_ema(decay):
    ema = EMA(decay)
    _, weights, _, _ = train(ema)
    theirs = optax.ema(decay, debias=False)
    state = theirs.init(weights[0])._replace(ema=weights[0])  # hookline begins with a copy, Optax with zeros
    for each in weights[1:]:
        averaged, state = theirs.update(each, state)
    assert ema.updates == len(weights)
    assert list(ema.averages) == ["Dense_0.bias", "Dense_0.kernel", "Dense_1.bias", "Dense_1.kernel"]
    assert close(list(ema.averages.values()), averaged)


def test_validations_use_the_averages_and_training_its_own_weights():
    plain, weights, _, losses = train()
    ema = EMA(0.5)
    averaging, same_weights, _, _ = train(ema)
    assert close(weights, same_weights)
    assert values(plain, "val/loss") == pytest.approx([float(loss) for loss in losses])
    # The first validation comes before the first average.
    first, *rest = zip(values(plain, "val/loss"), values(averaging, "val/loss"), strict=True)
    assert first[0] == first[1]
    assert all(one != other for one, other in rest)


def test_ema_use_at_end_leaves_the_averages_in_the_state():
    ema = EMA(0.5, use_at_end=True)
    loop, _, _, _ = train(ema)
    assert close(loop.model, list(ema.averages.values()))


def test_ema_is_resumed_with_its_averages(tmp_path):
    def stop(loop, step_idx):
        if loop.step == 3:
            loop.request_checkpoint()
            loop.request_stop("for now")

    whole, halved, resumed = EMA(0.5), EMA(0.5), EMA(0.5)
    train(whole)
    first, _, _, _ = train(halved, hl.on("step_end", stop), root=tmp_path)
    again, _, _, _ = train(resumed, root=tmp_path, resume=first.dir)
    assert (again.step, resumed.updates) == (6, 6)
    assert close(list(resumed.averages.values()), list(whole.averages.values()))


def test_ema_averages_half_precision_in_single():
    ema = EMA(0.5)
    state = {"w": jnp.ones(2, jnp.bfloat16)}
    with run(state, callbacks=[ema], root=None, summary=False, strict=True) as loop:
        for step in loop.steps(3):
            loop.train_state = {"w": jnp.full(2, step, jnp.bfloat16)}
            with loop.validate():
                seen = loop.train_state["w"].dtype
    assert (ema.averages["w"].dtype, seen, loop.train_state["w"].dtype) == (jnp.float32, jnp.bfloat16, jnp.bfloat16)
    assert ema.averages["w"].tolist() == [1.25, 1.25]


def test_ema_of_a_model_that_is_computed_from_the_state_is_refused():
    options = {"root": None, "summary": False, "callbacks": [EMA(0.5).configure(critical=True)]}
    state = {"w": jnp.ones(2)}
    with (
        pytest.raises(OptionError, match="not a part of the state"),
        run(state, model=lambda state: {"w": state["w"] * 2}, **options) as loop,
    ):
        for _ in loop.steps(2):
            pass
        with loop.validate():
            pass


@pytest.mark.parametrize("order", [2.0, float("inf")])
def test_gradient_norms_are_those_of_optax(order):
    loop, _, slopes, _ = train(GradientMonitor(every=1, norm_type=order))
    assert values(loop, "grad_norm") == pytest.approx([norm(each, order) for each in slopes], rel=1e-5)
    layers = [norm(each["Dense_0"], order) for each in slopes]
    assert values(loop, "grad_norm/Dense_0") == pytest.approx(layers, rel=1e-5)


def test_logger_records_the_norms_of_gradients_and_parameters():
    loop, weights, slopes, _ = train(LoggerCallback(log_metrics=False, log_gradients=True, log_parameters=True))
    for topic, trees in (("gradients", slopes), ("parameters", weights)):
        assert values(loop, f"{topic}/norm") == pytest.approx([norm(each) for each in trees])
        kernels = [norm(each["Dense_1"]["kernel"]) for each in trees]
        assert values(loop, f"{topic}/Dense_1.kernel") == pytest.approx(kernels)


def test_nan_guard_skips_the_update_and_names_the_gradient(caplog):
    loop, weights, _, _ = train(NaNGuard("skip"), spoil={2})
    assert close(weights[2], weights[1])  # Adam's momentum did not move it either
    assert not close(weights[3], weights[2])
    assert (loop.step, loop.stop_reason) == (6, None)
    assert "nan_guard: at step 3 the gradient of Dense_1.bias is not finite. The update was skipped." in caplog.text


def test_nan_guard_stops_with_finite_weights():
    loop, weights, _, _ = train(NaNGuard(), spoil={2})
    assert loop.step == 3
    assert loop.stop_reason == "nan_guard: the gradient of Dense_1.bias is not finite"
    assert all(bool(jnp.isfinite(each).all()) for each in jax.tree.leaves(loop.model))
    assert close(weights[2], weights[1])


def test_nan_guard_warns_of_a_gradient_without_waiting(caplog):
    train(NaNGuard("warn"), spoil={2})
    assert "nan_guard: at step 3 the gradient of Dense_1.bias is not finite." in caplog.text


def test_nan_guard_without_gradients_names_the_parameter_of_a_bad_loss():
    with run({"w": jnp.ones(1)}, callbacks=[NaNGuard()], root=None, summary=False) as loop:
        for _ in loop.steps(3):
            loop.train_state = {"w": loop.train_state["w"] * jnp.nan}
            loop.log(loss=loop.train_state["w"][0])
    assert loop.stop_reason == "nan_guard: loss is nan; the first parameter that is not finite is w"


def test_gradient_monitor_without_gradients_says_what_to_call(caplog):
    with run({"w": jnp.ones(1)}, callbacks=[GradientMonitor(every=1)], root=None, summary=False) as loop:
        for _ in loop.steps(3):
            pass
    said = [record.getMessage() for record in caplog.records]
    expected = "gradient_monitor saw no gradients: pass them to run.before_update(gradients) before the update."
    assert [text for text in said if "gradient" in text] == [expected]


def test_learning_rate_of_optax_is_monitored_and_set():
    class Lower(hl.Callback):
        def on_step_end(self, loop, step_idx):
            if loop.step == 3:
                loop.optimizer.param_groups[0]["lr"] = 0.025

    loop, _, _, _ = train(Lower(), "learning_rate_monitor", rate=0.1)
    assert values(loop, "lr") == pytest.approx(3 * [0.1] + 3 * [0.025])


def test_before_update_outside_of_a_step_fires_nothing():
    seen = hl.testing.RecordingCallback()
    with run({"w": jnp.ones(1)}, callbacks=[seen], root=None, summary=False) as loop:
        assert loop.before_update({"w": jnp.ones(1)})
        assert loop.gradients is None
    assert "on_before_optimizer_step" not in seen.names()


def test_names_of_a_module_of_nnx_are_its_attributes():
    _, state = nnx.split(nnx.Linear(2, 1, rngs=nnx.Rngs(0)))
    assert list(named_leaves(state)) == ["bias", "kernel"]
    assert named_leaves({"count": jnp.zeros((), jnp.int32), "key": jax.random.key(0), "name": "x"}) == {}
