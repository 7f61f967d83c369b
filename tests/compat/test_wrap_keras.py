"""Keras's callbacks in hookline's loops, beside Keras's own ``fit`` where the order matters."""

import csv
import os
import warnings

os.environ.setdefault("KERAS_BACKEND", "torch")

import pytest

import hookline as hl
from hookline._engine.errors import NotOfferedError
from hookline.compat import wrap
from hookline.loops.trainer_config import CheckpointRules

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its imports use what others deprecate
    keras = pytest.importorskip("keras")

from keras import callbacks as theirs  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils.data import TensorDataset  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")
CONFIG = {"device": "cpu", "batch_size": 2, "summary": False, "strict": True, "epochs": 2, "save_at_end": False}
EVENTS = [name for name in vars(theirs.Callback) if name.startswith("on_") and "predict" not in name]
EVENTS = [name for name in EVENTS if not name.startswith("on_batch")]


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def recording(seen, notes=lambda event, args: event):
    def noting(event):
        return lambda *args, **logs: seen.append(notes(event, (*args, *logs.values())))

    return theirs.LambdaCallback(**{event: noting(event) for event in EVENTS})


def samples(count=8, seed=1):
    inputs = torch.randn(count, 3, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(inputs, inputs.sum(1, keepdim=True))


def make(*callbacks, **settings):
    torch.manual_seed(7)
    own = {name: settings.pop(name) for name in ("optimizer", "training_step") if name in settings}
    loss = {} if "training_step" in own else {"loss": functional.mse_loss}
    wrapped = [one if isinstance(one, hl.Callback) else wrap(one) for one in callbacks]
    config = hl.TrainerConfig(**{**CONFIG, **settings})
    parts = {"config": config, "callbacks": wrapped, **loss}
    return hl.Trainer(torch.nn.Linear(3, 1), samples(), samples(4, 2), **parts, **own)


def under_keras(callback):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    inputs, targets = (part.numpy() for part in samples().tensors)
    validation = tuple(part.numpy() for part in samples(4, 2).tensors)
    model.fit(inputs, targets, batch_size=2, epochs=2, validation_data=validation, callbacks=[callback], verbose=0)


def notes_with_names(event, args):
    *index, logs = args
    return (event, *index, sorted(logs or {}))


def test_events_have_keras_order():
    here, there = [], []
    make(recording(here, notes_with_names)).fit()
    under_keras(recording(there, notes_with_names))
    assert here == there
    batches = [(name, index) for index in range(4) for name in ("on_train_batch_begin", "on_train_batch_end")]
    validation = [(name, index) for index in range(2) for name in ("on_test_batch_begin", "on_test_batch_end")]
    names = ["on_epoch_begin", *(name for name, _ in batches), "on_test_begin", *(name for name, _ in validation)]
    epoch = [*names, "on_test_end", "on_epoch_end"]
    assert [note[0] for note in here] == ["on_train_begin", *epoch, *epoch, "on_train_end"]
    assert here[-2] == ("on_epoch_end", 1, ["loss", "val_loss"])


def test_batch_that_completes_a_step_ends_after_the_step():
    seen = []
    notes = lambda event, args: (event, args[0], trainer.step)  # type: ignore[has-type]  # noqa: E731
    trainer = make(recording(seen, notes), accumulation=2, epochs=1)
    trainer.fit()
    assert [note for note in seen if note[0].startswith("on_train_batch_end")] == [
        ("on_train_batch_end", 0, 0),
        ("on_train_batch_end", 1, 1),
        ("on_train_batch_end", 2, 1),
        ("on_train_batch_end", 3, 2),
    ]


def test_logs_are_means_over_the_epoch_as_floats():
    batches, epochs = [], []
    callback = theirs.LambdaCallback(
        on_train_batch_end=lambda batch, logs: batches.append(logs["loss"]),
        on_epoch_end=lambda epoch, logs: epochs.append(logs),
    )
    trainer = make(callback)
    trainer.fit()
    losses = [row.metrics["loss"] for row in trainer.history if "loss" in row.metrics]
    means = [sum(losses[first : last + 1]) / (last + 1 - first) for first in (0, 4) for last in range(first, first + 4)]
    assert batches == pytest.approx(means)
    assert [logs["loss"] for logs in epochs] == pytest.approx([means[3], means[7]])
    assert epochs[-1]["val_loss"] == pytest.approx(trainer.get_metric("val/loss"))
    assert {type(value) for logs in epochs for value in logs.values()} == {float}


def test_params_and_model_reflect_the_loop():
    history = theirs.History()
    trainer = make(history)
    trainer.fit()
    assert history.params == {"verbose": 1, "epochs": 2, "steps": 4}
    assert (history.epoch, sorted(history.history)) == ([0, 1], ["loss", "val_loss"])
    model = history.model
    assert (model.torch_module, model.history, model.count_params()) == (trainer.model, history, 4)
    assert [array.shape for array in model.get_weights()] == [(1, 3), (1,)]
    with pytest.raises(NotOfferedError, match="Keras's History asks for model.fit: a hookline loop does not have that"):
        model.fit()


class Worsening(hl.Callback):
    """The weights jump after the second epoch, so that the loss gets worse."""

    priority = 10

    def on_train_epoch_start(self, loop):
        if loop.epoch > 1:
            with torch.no_grad():
                loop.model.weight.add_(loop.epoch)


def test_early_stopping_stops_and_restores_the_best_weights():
    best = []
    keeping = hl.on("train_epoch_end", lambda loop: best.append(loop.model.weight.detach().clone()))
    trainer = make(Worsening(), theirs.EarlyStopping(patience=2, restore_best_weights=True), epochs=9)
    trainer.callbacks.add(keeping)
    trainer.fit()
    assert (trainer.step, trainer.stop_reason) == (16, "early_stopping set model.stop_training")
    assert torch.equal(trainer.model.weight, best[1])


def test_reduce_on_plateau_sets_the_learning_rate_of_the_torch_optimizer():
    trainer = make(Worsening(), theirs.ReduceLROnPlateau(patience=1, factor=0.5), epochs=4, learning_rate=0.1)
    trainer.fit()
    rates = [row.metrics["learning_rate"] for row in trainer.history if "loss" in row.metrics]
    assert rates == pytest.approx([0.1] * 12 + [0.05] * 4)
    assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(0.025)


def test_setting_the_learning_rate_keeps_group_ratios():
    def groups(parameters):
        weight, bias = parameters
        return torch.optim.SGD([{"params": [weight], "lr": 0.1}, {"params": [bias], "lr": 0.2}])

    trainer = make(theirs.LearningRateScheduler(lambda epoch, rate: rate / 2), epochs=1, optimizer=groups)
    trainer.fit()
    assert [group["lr"] for group in trainer.optimizer.param_groups] == pytest.approx([0.05, 0.1])


def test_setting_a_scheduled_learning_rate_is_refused():
    with pytest.raises(NotOfferedError, match="to set model.optimizer.learning_rate: .*schedule, a LambdaLR"):
        make(theirs.LearningRateScheduler(lambda epoch, rate: rate / 2), warmup_steps=2).fit()


def test_csv_logger_writes_a_row_for_each_epoch(tmp_path):
    trainer = make(theirs.CSVLogger(tmp_path / "log.csv"))
    trainer.fit()
    with (tmp_path / "log.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["epoch"] for row in rows] == ["0", "1"]
    assert float(rows[1]["val_loss"]) == pytest.approx(trainer.get_metric("val/loss"))


def test_terminate_on_nan_stops_the_training(capsys):
    def step(model, batch):
        loss = functional.mse_loss(model(batch[0]), batch[1])
        return {"loss": loss * (float("nan") if trainer.step == 2 else 1.0)}

    trainer = make(theirs.TerminateOnNaN(), nan_loss="pass", training_step=step)
    trainer.fit()
    assert (trainer.step, trainer.stop_reason) == (3, "terminate_on_nan set model.stop_training")
    assert "Batch 2: Invalid loss" in capsys.readouterr().out


def test_model_checkpoint_fails_with_the_alternative():
    trainer = make(theirs.ModelCheckpoint("best.keras", save_best_only=True), strict=False)
    assert trainer.fit().step == 8
    assert str(trainer.callbacks.failures[0].error) == (
        "Keras's ModelCheckpoint in on_epoch_end() asks for model.save: a hookline loop does not have that. "
        "hl.callbacks.CheckpointCallback saves the model with everything needed to resume."
    )


class Keeping(theirs.Callback):
    """Has numbers, lists, arrays and other things, some of them from its user."""

    def __init__(self, limit):
        super().__init__()
        self.limit, self.other = limit, object()

    def on_train_begin(self, logs=None):
        self.losses, self.arrays, self.count = [], [], 0

    def on_train_batch_end(self, batch, logs=None):
        self.count += 1
        self.arrays = [np.arange(self.count)]

    def on_epoch_end(self, epoch, logs=None):
        self.losses.append(dict(logs))


def test_state_survives_a_resume():
    rules = CheckpointRules(every_n_epochs=1, save_top_k=-1)
    settings = {"epochs": 9, "checkpoint": rules, "learning_rate": 0.1}

    def callbacks(limit):
        stopping = theirs.EarlyStopping(patience=4, min_delta=0.01, restore_best_weights=True)
        return [Worsening(), stopping, theirs.ReduceLROnPlateau(patience=2), Keeping(limit)]

    whole, again = make(*callbacks(1), **settings), make(*callbacks(2), **settings)
    whole.fit()
    at = whole.checkpoints[3]
    again.resume(at.path)
    assert (whole.step, at.step, again.step) == (24, 16, 24)
    assert torch.equal(whole.model.weight, again.model.weight)
    assert whole.optimizer.param_groups[0]["lr"] == again.optimizer.param_groups[0]["lr"] < 0.1
    one, other = (trainer.callbacks["early_stopping"].foreign for trainer in (whole, again))
    assert (one.min_delta, one.best, one.wait) == (other.min_delta, other.best, other.wait)
    one, other = (trainer.callbacks["keeping"].foreign for trainer in (whole, again))
    assert (one.limit, other.limit) == (1, 2)
    assert one.count == other.count == 24
    assert one.losses == other.losses
    assert np.array_equal(one.arrays[0], other.arrays[0])


def test_epoch_resumed_in_the_middle_has_logs_of_the_whole_epoch():
    rules = CheckpointRules(every_n_steps=3, save_top_k=-1)
    whole, again = (make(theirs.History(), checkpoint=rules) for _ in range(2))
    whole.fit()
    assert whole.checkpoints[1].step == 6
    again.resume(whole.checkpoints[1].path)
    assert again.callbacks["history"].foreign.history == whole.callbacks["history"].foreign.history


def test_bare_loop_fires_the_events_it_knows():
    seen, run = [], hl.run("bare", callbacks=[wrap(theirs.EarlyStopping(patience=1))], strict=True, summary=False)
    run.callbacks.add(wrap(recording(seen)))
    with run:
        for epoch in run.epochs(9):
            for batch in run.steps([1.0, 2.0]):
                run.log(loss=batch)
            with run.validate() as val:
                val.log(loss=[3.0, 2.0, 2.5][epoch])
            run.close_steps()
    assert (run.step, run.epoch) == (6, 2)
    assert seen[:3] == ["on_train_begin", "on_epoch_begin", "on_train_batch_begin"]


def test_bare_loop_without_a_model_raises():
    stopping = theirs.EarlyStopping("loss", restore_best_weights=True)
    with (
        pytest.raises(NotOfferedError, match="for the model: this loop does not know it. Set run.model before"),
        hl.run("bare", callbacks=[wrap(stopping)], strict=True, summary=False) as run,
    ):
        for batch in run.steps([1.0]):
            run.log(loss=batch)
