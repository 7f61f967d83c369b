"""The Keras integration with Keras's own ``fit`` (torch backend), with a model of three parameters."""

import importlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import warnings

os.environ.setdefault("KERAS_BACKEND", "torch")

import pytest
from host_runs import At

import hookline as hl
from hookline._engine.errors import CheckpointError, MissingExtraError, OptionError
from hookline._engine.registry import REGISTRY
from hookline._record.records import Metrics, Status
from hookline.testing import RecordingCallback

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its imports use what others deprecate
    keras = pytest.importorskip("keras")
    from hookline.integrations.keras import HooklineCallback

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def regression(**options):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1, **options), "mse", metrics=["mae"])
    return model


def data(batches):
    inputs = np.random.default_rng(0).normal(size=(2 * batches, 2)).astype("float32")
    return inputs, inputs.sum(axis=1, keepdims=True)


def hooks_with(*callbacks, **options):
    return HooklineCallback(callbacks, **{"strict": True, "summary": False, **options})


def fit(model, *hooks, batches=4, epochs=1, **options):
    inputs, targets = data(batches)
    return model.fit(inputs, targets, batch_size=2, epochs=epochs, verbose=0, callbacks=list(hooks), **options)


def rows(loop, axis="train"):
    return [(r.step, r.values) for r in hl.read(loop.dir) if isinstance(r, Metrics) and r.axis == axis]


def last_status(loop):
    return [(r.status, r.message) for r in hl.read(loop.dir) if isinstance(r, Status)][-1]


class Counter(hl.Callback):
    def __init__(self):
        self.steps = 0

    def on_step_end(self, loop, step_idx, batch, metrics):
        self.steps += 1

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state):
        self.steps = state["steps"]


class Broken(keras.callbacks.Callback):  # type: ignore[name-defined]
    """A Keras callback that fails."""

    def on_train_batch_end(self, batch, logs=None):
        if batch == 1:
            raise ValueError("no more")


def test_keras_fires_every_moment_in_order():
    seen = RecordingCallback()
    hooks = hooks_with(seen)
    fit(regression(), hooks, batches=2, epochs=2, validation_data=data(1))
    step = ["on_step_start", "on_train_batch_start", "on_train_batch_end", "on_step_end", "on_log"]
    validation = [
        "on_validation_start",
        "on_validation_epoch_start",
        "on_validation_batch_start",
        "on_validation_batch_end",
        "on_log",
        "on_validation_epoch_end",
        "on_validation_end",
        "on_eval",
    ]
    epoch = ["on_train_epoch_start", *step, *step, *validation, "on_train_epoch_end"]
    assert seen.names() == ["on_train_start", *epoch, *epoch, "on_train_end"]
    indices = [event.arguments[0] for event in seen.events if event.moment in ("on_step_start", "on_step_end")]
    assert indices == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [e.arguments[-1] for e in seen.events if e.moment == "on_train_batch_start"] == [0, 1, 0, 1]
    assert (hooks.loop.num_steps, hooks.loop.num_epochs, hooks.loop.state) == (4, 2, "completed")


def test_keras_metrics_have_the_frameworks_names_and_values():
    model, hooks = regression(), hooks_with()
    history = fit(model, hooks, batches=2, epochs=2, validation_data=data(1)).history
    found = rows(hooks.loop)
    assert [step for step, _ in found] == [1, 2, 3, 4]
    assert [found[1][1], found[3][1]] == [{name: history[name][n] for name in ("loss", "mae")} for n in (0, 1)]
    validations = [(2 * n + 2, {"val/loss": history["val_loss"][n], "val/mae": history["val_mae"][n]}) for n in (0, 1)]
    assert rows(hooks.loop, "eval") == validations
    assert hooks.loop.get_metric("val_loss") == history["val_loss"][-1]


def test_keras_logs_added_by_other_callbacks_are_recorded():
    class Adds(keras.callbacks.Callback):  # type: ignore[name-defined]
        def on_epoch_end(self, epoch, logs=None):
            logs["rate"] = 0.1

    hooks = hooks_with()
    fit(regression(), Adds(), hooks, batches=1, validation_data=data(1))
    assert rows(hooks.loop)[-1] == (1, {"rate": 0.1})


def test_keras_moments_fire_on_the_training_thread():
    threads = set()

    class Look(hl.Callback):
        def on_train_batch_end(self, loop, outputs, batch, batch_idx):
            threads.add(threading.get_ident())

        def on_validation_batch_end(self, loop, outputs, batch, batch_idx):
            threads.add(threading.get_ident())

    fit(regression(), hooks_with(Look()), validation_data=data(2))
    assert threads == {threading.get_ident()}


def test_keras_callback_outside_of_a_list_is_refused():
    inputs, targets = data(2)
    with pytest.raises(OptionError, match="callbacks=.hooks."), hooks_with() as hooks:
        regression().fit(inputs, targets, batch_size=2, verbose=0, callbacks=hooks)


def test_keras_loop_knows_the_model_and_the_learning_rate():
    found = {}

    class Look(hl.Callback):
        def on_train_start(self, loop):
            found.update(native=loop.native, model=loop.model, name=loop.optimizer.name)

    model, hooks = regression(), hooks_with(Look(), "learning_rate_monitor")
    fit(model, hooks, batches=1)
    assert found == {"native": model, "model": model, "name": model.optimizer.name}
    assert rows(hooks.loop)[0][1]["lr"] == pytest.approx(0.1)


def test_keras_step_is_an_update_of_the_optimizer():
    seen = RecordingCallback()
    hooks = hooks_with(seen)
    fit(regression(gradient_accumulation_steps=2), hooks, epochs=2)
    assert (hooks.loop.step, hooks.loop.num_steps) == (4, 4)
    assert seen.names()[2:8] == ["on_step_start", *["on_train_batch_start", "on_train_batch_end"] * 2, "on_step_end"]


def test_keras_step_without_an_update_is_completed_in_the_next_epoch():
    model, hooks = (
        regression(gradient_accumulation_steps=2),
        hooks_with(At(1, lambda loop: loop.request_checkpoint())),
    )
    fit(model, hooks, batches=3, epochs=1)
    assert [step for step, _ in rows(hooks.loop)] == [1]
    fit(model, hooks, batches=3, epochs=2, initial_epoch=1)
    assert [step for step, _ in rows(hooks.loop)] == [1, 2, 3]


def test_keras_validation_with_leftover_batches_is_recorded_at_the_last_update():
    seen = RecordingCallback()
    hooks = hooks_with(seen)
    fit(regression(gradient_accumulation_steps=2), hooks, batches=5, epochs=2, validation_data=data(1))
    moments = ("on_step_start", "on_step_end", "on_eval")
    reported = {name: [e.arguments[0] for e in seen.events if e.moment == name] for name in moments}
    assert reported["on_step_start"] == reported["on_step_end"] == [0, 1, 2, 3, 4]
    assert [step for step, _ in rows(hooks.loop, "eval")] == [2, 5]
    assert reported["on_eval"] == [1, 4]


def test_keras_accumulation_counts_updates_of_earlier_fits():
    model, hooks = regression(gradient_accumulation_steps=2), hooks_with()
    fit(model, batches=8)
    fit(model, hooks, batches=8, epochs=2, initial_epoch=1)
    assert [step for step, _ in rows(hooks.loop)] == [5, 6, 7, 8]
    assert hooks.loop.num_steps == 8


def test_keras_stop_request_ends_the_fit_at_that_step():
    model, hooks = regression(), hooks_with(At(6, lambda loop: loop.request_stop("enough")))
    fit(model, hooks, epochs=5)
    assert (int(model.optimizer.iterations), hooks.loop.step) == (6, 6)
    assert last_status(hooks.loop) == ("stopped", "enough")


def test_keras_stops_after_a_signal():
    hooks = hooks_with(At(2, lambda loop: os.kill(os.getpid(), signal.SIGINT)))
    fit(regression(), hooks, epochs=5)
    assert (hooks.loop.step, hooks.loop.stop_reason) == (2, "SIGINT")


def test_keras_early_stopping_callback_stops_the_fit():
    hooks = hooks_with(hl.callbacks.EarlyStoppingCallback("val_loss", patience=2, min_delta=100.0))
    fit(regression(), hooks, batches=2, epochs=9, validation_data=data(1))
    assert (hooks.loop.step, hooks.loop.state) == (6, "stopped")
    assert "early stopping: val_loss" in hooks.loop.stop_reason


@pytest.mark.parametrize("ask", ["request_checkpoint", "save_checkpoint"])
def test_keras_saves_a_requested_checkpoint(ask):
    kept = {}

    def act(loop):
        kept["weights"] = loop.model.get_weights()
        getattr(loop, ask)()

    seen = RecordingCallback()
    hooks = hooks_with(seen, At(2, act))
    fit(regression(), hooks)
    (row,) = (event.arguments[0] for event in seen.events if event.moment == "on_checkpoint")
    assert (row.step, row.path) == (2, hooks.loop.dir / "checkpoints" / "step-00000002")
    loaded = keras.saving.load_model(row.path / "model.keras")
    assert all(map(np.array_equal, loaded.get_weights(), kept["weights"]))


def test_keras_checkpoint_requested_within_a_step_is_saved_at_its_end(tmp_path):
    promised = []

    class Ask(hl.Callback):
        def on_train_batch_start(self, loop, batch, batch_idx):
            if batch_idx == 1:
                places = (tmp_path / "one", tmp_path / "two.keras", tmp_path / "three.weights.h5")
                promised.extend(loop.save_checkpoint(place) for place in places)

    seen = RecordingCallback()
    fit(regression(), hooks_with(seen, Ask(), weights_only=True), batches=2)
    rows = [event.arguments[0] for event in seen.events if event.moment == "on_checkpoint"]
    assert [(row.step, row.path) for row in rows] == [(row.step, row.path) for row in promised]
    assert {row.step for row in rows} == {2}
    assert (tmp_path / "one" / "model.weights.h5").is_file()
    keras.saving.load_model(tmp_path / "two.keras").load_weights(tmp_path / "three.weights.h5")


def test_keras_checkpoint_without_a_directory_is_refused():
    hooks = hooks_with(At(1, lambda loop: loop.save_checkpoint()), root=None)
    with pytest.raises(CheckpointError, match="give save_checkpoint"), hooks:
        fit(regression(), hooks)


def test_keras_validation_request_warns_that_it_waits_for_the_epoch_end(caplog):
    hooks = hooks_with(At(1, lambda loop: loop.request_validation()), At(2, lambda loop: loop.request_validation()))
    fit(regression(), hooks, validation_data=data(1))
    assert [r.getMessage() for r in caplog.records] == [
        "A validation was requested: Keras validates only at the end of an epoch."
    ]
    assert [step for step, _ in rows(hooks.loop, "eval")] == [4]


def test_keras_second_fit_from_an_initial_epoch_continues_the_run():
    model, seen = regression(), RecordingCallback()
    hooks = hooks_with(seen)
    fit(model, hooks, batches=2, epochs=2)
    first = hooks.loop.dir
    seen.clear()
    fit(model, hooks, batches=2, epochs=3, initial_epoch=2)
    assert (hooks.loop.dir, hooks.loop.epoch, hooks.loop.num_steps) == (first, 2, 6)
    assert [step for step, _ in rows(hooks.loop)] == [1, 2, 3, 4, 5, 6]
    assert [event.arguments[0] for event in seen.events if event.moment == "on_step_start"] == [4, 5]


def test_keras_second_fit_from_the_start_is_a_new_run():
    model, hooks = regression(), hooks_with()
    fit(model, hooks, batches=2)
    first = hooks.loop.dir
    fit(model, hooks, batches=1)
    assert hooks.loop.dir != first
    assert [step for step, _ in rows(hooks.loop)] == [1]


def test_keras_resume_continues_the_run_with_callback_states(tmp_path):
    saved = tmp_path / "saved"
    first = hooks_with(Counter(), At(4, lambda loop: loop.save_checkpoint(saved)))
    fit(regression(), first, batches=2, epochs=3)
    counter, seen = Counter(), RecordingCallback()
    again = hooks_with(counter, seen, resume=saved)
    fit(keras.saving.load_model(saved / "model.keras"), again, batches=2, epochs=3, initial_epoch=2)
    assert (again.loop.dir, counter.steps) == (first.loop.dir, 6)
    assert [step for step, _ in rows(again.loop)] == [1, 2, 3, 4, 5, 6]
    assert seen.names()[:2] == ["on_train_start", "on_checkpoint_load"]
    assert seen.events[1].arguments[0].path == saved


def test_keras_failure_within_the_context_is_reported_at_once():
    seen = RecordingCallback()
    with pytest.raises(ValueError, match="no more"), hooks_with(seen) as hooks:
        fit(regression(), hooks, Broken())
    assert seen.names()[-1] == "on_exception"
    assert last_status(hooks.loop) == ("failed", "ValueError: no more")
    assert [step for step, _ in rows(hooks.loop)] == [1, 2]


def test_keras_failure_without_the_context_is_reported_at_the_next_fit():
    hooks = hooks_with()
    with pytest.raises(ValueError, match="no more"):
        fit(regression(), hooks, Broken())
    failed = hooks.loop.dir
    fit(regression(), hooks, batches=1)
    assert last_status(hooks.loop)[0] == "finished"
    statuses = [(r.status, r.message) for r in hl.read(failed) if isinstance(r, Status)]
    assert statuses[-1] == ("failed", "RuntimeError: fit or evaluate did not finish: it raised an error")


def test_keras_signal_after_a_failed_fit_reaches_the_previous_handler():
    before = signal.getsignal(signal.SIGINT)
    hooks = hooks_with()
    with pytest.raises(ValueError, match="no more"):
        fit(regression(), hooks, Broken())
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
    assert (signal.getsignal(signal.SIGINT), hooks.loop.stop_reason) == (before, None)
    with hooks:
        pass
    assert last_status(hooks.loop)[0] == "failed"


CAUGHT = """
    import keras
    import numpy as np
    from hookline.integrations.keras import HooklineCallback

    class Broken(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            raise ValueError("no more")

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    hooks = HooklineCallback(summary=False)
    try:
        model.fit(np.ones((2, 2)), np.ones((2, 1)), verbose=0, callbacks=[hooks, Broken()])
    except ValueError:
        pass
"""


def test_keras_failure_caught_by_the_program_is_recorded_at_exit(torch_programs, tmp_path):
    torch_programs.run_ranks(1, "-c", textwrap.dedent(CAUGHT), cwd=tmp_path)
    (run,) = (tmp_path / "runs" / "default").iterdir()
    last = [(r.status, r.message) for r in hl.read(run) if isinstance(r, Status)][-1]
    assert last == ("failed", "RuntimeError: fit or evaluate did not finish: it raised an error")


ON_JAX = """
    import keras
    import numpy as np
    import hookline as hl
    from hookline.integrations.keras import HooklineCallback

    class Save(hl.Callback):
        def on_step_end(self, loop, step_idx, batch, metrics):
            if loop.step == 4:  # in the middle of an epoch, when JAX has the weights somewhere else
                np.savez("weights.npz", *loop.model.get_weights())
                loop.save_checkpoint("saved")

    class Broken(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 5:
                raise ValueError("no more")

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", steps_per_execution=2)
    hooks = HooklineCallback([Save(), "learning_rate_monitor", "ema", "gradient_monitor"], strict=True, summary=False)
    model.fit(np.ones((16, 2)), np.ones((16, 1)), batch_size=2, verbose=0, callbacks=[hooks, Broken()])
"""


@pytest.fixture(scope="module")
def jax_run(tmp_path_factory):
    """The directory of a training on JAX that an error ended."""
    home = tmp_path_factory.mktemp("jax")
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(ON_JAX)]
    environment = {**os.environ, "KERAS_BACKEND": "jax"}
    done = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, check=False)
    assert "ValueError: no more" in done.stderr
    (home / "stderr").write_text(done.stderr)
    return home


def test_keras_failure_that_ends_the_program_is_recorded_with_its_error(jax_run):
    (run,) = (jax_run / "runs" / "default").iterdir()
    assert [r.message for r in hl.read(run) if isinstance(r, Status)][-1] == "ValueError: no more"


def test_keras_on_jax_has_current_weights_and_counts_batches_per_execution(jax_run):
    (run,) = (jax_run / "runs" / "default").iterdir()
    records = [r for r in hl.read(run) if isinstance(r, Metrics)]
    assert [(r.step, sorted(r.values)) for r in records] == [(n, ["loss", "lr"]) for n in (2, 4, 6)]
    saved = keras.saving.load_model(jax_run / "saved" / "model.keras").get_weights()
    with np.load(jax_run / "weights.npz") as weights:
        assert all(map(np.array_equal, saved, weights.values()))


def test_keras_on_jax_warns_about_callbacks_that_need_torch(jax_run):
    said = (jax_run / "stderr").read_text()
    assert "ema averages nothing: the loop has a Sequential without named_parameters()" in said
    assert "gradient_monitor logs nothing: Keras updates the weights inside of a batch, and shows no gradients" in said


def test_keras_failing_observer_is_isolated():
    def fail(loop):
        raise RuntimeError("broken")

    hooks = hooks_with(At(1, fail), strict=False)
    fit(regression(), hooks, batches=2)
    assert [failure.moment for failure in hooks.loop.callbacks.failures] == ["on_step_end"]
    assert (hooks.loop.step, hooks.loop.state) == (2, "completed")


def test_keras_evaluation_alone_is_a_run_without_a_training():
    seen, model = RecordingCallback(), regression()
    hooks = hooks_with(seen)
    result = model.evaluate(*data(2), batch_size=2, verbose=0, callbacks=[hooks], return_dict=True)
    assert rows(hooks.loop, "eval") == [(0, {f"test/{name}": value for name, value in result.items()})]
    assert [event.arguments[1] for event in seen.events if event.moment == "on_eval"] == ["test"]
    assert [name for name in seen.names() if "train" in name] == []
    assert hooks.loop.state == "completed"


def test_keras_evaluation_after_a_fit_is_in_its_run():
    model, hooks = regression(), hooks_with()
    fit(model, hooks, batches=3)
    trained = hooks.loop.dir
    model.evaluate(*data(1), verbose=0, callbacks=[hooks])
    assert hooks.loop.dir == trained
    assert [step for step, _ in rows(hooks.loop, "eval")] == [3]
    assert [step for step, _ in rows(hooks.loop)] == [1, 2, 3]


def test_keras_evaluation_ends_after_a_signal():
    class Interrupt(hl.Callback):
        def on_validation_batch_end(self, loop, outputs, batch, batch_idx):
            os.kill(os.getpid(), signal.SIGINT)

    seen = RecordingCallback()
    regression().evaluate(*data(4), batch_size=2, verbose=0, callbacks=[hooks_with(seen, Interrupt())])
    assert seen.names().count("on_validation_batch_end") == 1


def test_keras_predictions_are_not_recorded():
    hooks = hooks_with()
    regression().predict(data(1)[0], verbose=0, callbacks=[hooks])
    assert (hooks.loop.state, hooks.loop.dir) == ("created", None)


def test_keras_not_installed_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "keras", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'hookline\[keras\]'"):
        importlib.reload(sys.modules["hookline.integrations.keras"])


def test_keras_without_its_backend_names_the_missing_package():
    code = (
        "import sys\nsys.modules['torch'] = None\n"
        "try:\n    import hookline.integrations.keras\n"
        "except ImportError as error:\n    print(type(error).__name__, error)"
    )
    environment = {**os.environ, "KERAS_BACKEND": "torch"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("MissingExtraError hookline.integrations.keras: Keras cannot be imported without")
    assert "'torch'" in done.stdout
    assert "KERAS_BACKEND" in done.stdout


def built_in():
    return sorted(name for name in REGISTRY.names() if REGISTRY.find(name).__module__.startswith("hookline."))
