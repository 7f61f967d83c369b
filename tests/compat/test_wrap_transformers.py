"""Hugging Face's callbacks in hookline's loops, beside Hugging Face's own Trainer where the order matters."""

import math
import warnings
from types import SimpleNamespace

import pytest

import hookline as hl
from hookline._engine.errors import NotOfferedError, OptionError
from hookline.compat import wrap
from hookline.loops.trainer_config import CheckpointRules

torch = pytest.importorskip("torch")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its imports use what others deprecate
    transformers = pytest.importorskip("transformers")

from torch.nn import functional  # noqa: E402
from torch.utils.data import TensorDataset  # noqa: E402

CONFIG = {"device": "cpu", "batch_size": 2, "summary": False, "strict": True, "epochs": 2, "save_at_end": False}
EVENTS = [name for name in vars(transformers.TrainerCallback) if name.startswith("on_") and name != "on_push_begin"]


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


class Recording(transformers.TrainerCallback):  # type: ignore[name-defined]
    """Notes each event and, with `notes`, something about it; makes the requests in `asks`."""

    def __init__(self, *, notes=lambda event, args, state, kwargs: event, asks=()):
        self.seen, self.notes, self.asks = [], notes, dict(asks)

    def note(self, event, args, state, control, **kwargs):
        self.seen.append(self.notes(event, args, state, kwargs))
        if event in self.asks and self.asks[event][1] == state.global_step:
            setattr(control, self.asks[event][0], True)


def _noting(event):
    return lambda self, args, state, control, **kwargs: self.note(event, args, state, control, **kwargs)


for name in EVENTS:
    if name != "on_predict":
        setattr(Recording, name, _noting(name))


def samples(count=8, seed=1):
    inputs = torch.randn(count, 3, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(inputs, inputs.sum(1, keepdim=True))


def make(*callbacks, args=None, **settings):
    torch.manual_seed(7)
    own = {name: settings.pop(name) for name in ("optimizer",) if name in settings}
    val = settings.pop("val", samples(4, 2))
    config = hl.TrainerConfig(**{**CONFIG, **settings})
    wrapped = [wrap(one, args=args) if isinstance(one, transformers.TrainerCallback) else one for one in callbacks]
    parts = {"config": config, "loss": functional.mse_loss, "callbacks": wrapped}
    return hl.Trainer(torch.nn.Linear(3, 1), samples(), val, **parts, **own)


class Model(torch.nn.Module):  # type: ignore[name-defined]
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)

    def forward(self, inputs, labels):
        prediction = self.layer(inputs)
        return {"loss": functional.mse_loss(prediction, labels), "logits": prediction}


def under_hugging_face(callback):
    rows = [{"inputs": inputs, "labels": targets} for inputs, targets in samples()]
    args = transformers.TrainingArguments(
        "hf", num_train_epochs=2, per_device_train_batch_size=2, gradient_accumulation_steps=2, logging_steps=1,
        eval_strategy="steps", eval_steps=2, per_device_eval_batch_size=2, save_strategy="no",
        report_to="none", use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    data = {"train_dataset": rows, "eval_dataset": rows[:4]}
    transformers.Trainer(Model(), args, **data, callbacks=[callback]).train()


def test_events_have_hugging_face_order():
    here, there = Recording(), Recording()
    make(here, accumulation=2, validate_every_steps=2).fit()
    under_hugging_face(there)
    assert there.seen[-2:] == ["on_log", "on_train_end"]  # it logs a summary, which is no row of a step
    del there.seen[-2]
    step = ["on_step_begin", "on_substep_end", "on_pre_optimizer_step", "on_optimizer_step", "on_step_end", "on_log"]
    evaluation = ["on_prediction_step", "on_prediction_step", "on_log", "on_evaluate"]
    epoch = ["on_epoch_begin", *step, *step, *evaluation, "on_epoch_end"]
    assert here.seen == there.seen == ["on_init_end", "on_train_begin", *epoch, *epoch, "on_train_end"]


def test_state_reflects_the_loop():
    def notes(event, args, state, kwargs):
        return (event, state.global_step, state.epoch, state.max_steps, state.num_train_epochs)

    recording = Recording(notes=notes)
    make(recording, epochs=1, accumulation=2).fit()
    wanted = {"on_step_begin", "on_step_end", "on_evaluate", "on_epoch_end", "on_train_end"}
    assert [note for note in recording.seen if note[0] in wanted] == [
        ("on_step_begin", 0, 0.0, 2, 1),
        ("on_step_end", 1, 0.5, 2, 1),
        ("on_step_begin", 1, 0.5, 2, 1),
        ("on_step_end", 2, 1.0, 2, 1),
        ("on_evaluate", 2, 1.0, 2, 1),
        ("on_epoch_end", 2, 1.0, 2, 1),
        ("on_train_end", 2, 1.0, 2, 1),
    ]


def test_arguments_reflect_the_loop():
    found = []
    recording = Recording(notes=lambda event, args, state, kwargs: found.append((args, kwargs)))
    trainer = make(recording, learning_rate=0.5, accumulation=2, gradient_clip_norm=1.0, validate_every_steps=2)
    trainer.worker = SimpleNamespace(tokenizer="tokenizer")
    trainer.fit()
    args, kwargs = found[0]
    assert (args.output_dir, args.num_train_epochs, args.max_steps) == (str(trainer.output_dir), 2.0, 4)
    assert (args.learning_rate, args.per_device_train_batch_size, args.gradient_accumulation_steps) == (0.5, 2, 2)
    assert (args.eval_strategy, args.eval_steps, args.max_grad_norm, args.logging_steps) == ("steps", 2, 1.0, 1)
    assert args.to_dict()["eval_strategy"] == "steps"
    assert (kwargs["model"], kwargs["optimizer"]) == (trainer.model, trainer.optimizer)
    assert (kwargs["processing_class"], kwargs["lr_scheduler"]) == ("tokenizer", None)
    assert [len(kwargs[name]) for name in ("train_dataloader", "eval_dataloader")] == [4, 2]


def test_unknown_arguments_raise():
    class Pushing(transformers.TrainerCallback):  # type: ignore[name-defined]
        def on_train_begin(self, args, state, control, **kwargs):
            return args.hub_model_id

    with pytest.raises(NotOfferedError, match=r"Pushing in on_train_begin\(\) asks for args.hub_model_id: .*not have"):
        make(Pushing()).fit()
    trainer = make(Pushing(), strict=False)
    assert trainer.fit().step == 8
    assert [failure.moment for failure in trainer.callbacks.failures] == ["on_train_start"]


def test_given_arguments_are_validated():
    with pytest.raises(OptionError, match="TrainingArguments has no 'eval_delays'. Did you mean 'eval_delay'"):
        wrap(Recording(), args={"eval_delays": 1})
    with pytest.raises(OptionError, match="'max_steps' comes from the loop"):
        wrap(Recording(), args={"max_steps": 1})


def test_evaluations_of_several_sets_have_hugging_face_names():
    recording = Recording(notes=lambda event, args, state, kwargs: (event, kwargs.get("logs"), kwargs.get("metrics")))
    make(recording, epochs=1, val={"easy": samples(4, 2), "hard": samples(4, 3)}).fit()
    reported = [set(metrics) for event, _, metrics in recording.seen if event == "on_evaluate"]
    logged = [set(logs) for event, logs, _ in recording.seen if event == "on_log"][-2:]
    assert reported == logged == [{"eval_easy_loss", "epoch"}, {"eval_hard_loss", "epoch"}]


def test_logs_have_hugging_face_names():
    recording = Recording(notes=lambda event, args, state, kwargs: (event, kwargs.get("logs"), kwargs.get("metrics")))
    trainer = make(recording, epochs=1)
    trainer.fit()
    logs = [logs for event, logs, _ in recording.seen if event == "on_log"]
    assert [set(one) for one in logs] == [{"loss", "learning_rate", "epoch"}] * 4 + [{"eval_loss", "epoch"}]
    (metrics,) = [metrics for event, _, metrics in recording.seen if event == "on_evaluate"]
    assert metrics == {"eval_loss": trainer.get_metric("val/loss"), "epoch": 1.0}
    history = trainer.callbacks["recording"].state.log_history
    assert [row["step"] for row in history] == [1, 2, 3, 4, 4]


@pytest.mark.parametrize(
    ("asks", "steps"),
    [
        (("should_training_stop", 3), (3, [], [])),
        (("should_save", 3), (8, [3], [4, 8])),
        (("should_evaluate", 3), (8, [], [3, 4, 8])),
        (("should_log", 3), (8, [], [4, 8])),
    ],
)
def test_control_requests_reach_the_loop(asks, steps):
    trainer = make(Recording(asks={"on_step_end": asks}))
    done = trainer.fit().step
    validated = [row.step for row in trainer.history if "val/loss" in row.metrics]
    assert (done, [row.step for row in trainer.checkpoints], validated) == steps
    if done == 3:
        assert trainer.stop_reason == "recording set control.should_training_stop"


def test_control_cannot_cut_an_epoch_short():
    with pytest.raises(NotOfferedError, match="to end the epoch: hookline's loops do not cut an epoch short"):
        make(Recording(asks={"on_step_end": ("should_epoch_stop", 2)})).fit()


def test_default_flow_callback_causes_no_duplicate_work():
    trainer = make(transformers.DefaultFlowCallback())
    trainer.fit()
    assert (trainer.state, trainer.stop_reason, trainer.step) == ("completed", None, 8)
    assert [row.step for row in trainer.history if "val/loss" in row.metrics] == [4, 8]


def test_default_flow_callback_uses_given_settings():
    args = {"eval_strategy": "steps", "eval_steps": 3, "save_strategy": "steps", "save_steps": 5}
    trainer = make(transformers.DefaultFlowCallback(), args=args)
    trainer.fit()
    assert [row.step for row in trainer.history if "val/loss" in row.metrics] == [3, 4, 6, 8]
    assert [row.step for row in trainer.checkpoints] == [5, 8]


def test_early_stopping_callback_stops_at_the_first_worse_validation():
    trainer = make(transformers.EarlyStoppingCallback(1), epochs=9, learning_rate=10.0)
    trainer.fit()
    losses = [row.metrics["val/loss"] for row in trainer.history if "val/loss" in row.metrics]
    assert losses[-1] >= min(losses[:-1])
    assert losses[:-1] == sorted(losses[:-1], reverse=True)
    assert trainer.stop_reason == "early_stopping_callback set control.should_training_stop"
    state = trainer.callbacks["early_stopping_callback"].state
    assert (state.best_metric, state.best_global_step) == (min(losses), 4 * len(losses) - 4)


def test_early_stopping_callback_monitors_the_given_metric():
    args = {"metric_for_best_model": "accuracy", "greater_is_better": True}
    callback = transformers.EarlyStoppingCallback(2)
    with hl.run("bare", callbacks=[wrap(callback, args=args)], strict=True, summary=False) as run:
        for step in run.steps(9):
            with run.validate() as val:
                val.log(accuracy=[0.1, 0.5, 0.4, 0.3, 0.9][step])
    assert (run.step, callback.early_stopping_patience_counter) == (4, 2)


class Worsening(hl.Callback):
    """The weights jump after the first epoch, so that the loss gets worse."""

    def on_train_epoch_start(self, loop):
        if loop.epoch > 0:
            with torch.no_grad():
                loop.model.weight.add_(10 * loop.epoch)


def test_state_of_an_exportable_callback_survives_a_resume():
    rules = CheckpointRules(every_n_epochs=1, save_top_k=-1)
    whole, again = (
        make(Worsening(), transformers.EarlyStoppingCallback(3), epochs=9, checkpoint=rules) for _ in range(2)
    )
    whole.fit()
    again.resume(whole.checkpoints[2].path)
    assert (whole.checkpoints[2].step, again.step, whole.step) == (12, 16, 16)
    assert again.stop_reason == whole.stop_reason
    one, other = (trainer.callbacks["early_stopping_callback"].state for trainer in (whole, again))
    assert (one.best_metric, one.best_global_step) == (other.best_metric, other.best_global_step)
    assert [(row["step"], row.get("loss")) for row in one.log_history] == [
        (row["step"], row.get("loss")) for row in other.log_history
    ]


def test_printer_and_progress_callbacks_print(capsys):
    make(transformers.PrinterCallback(), epochs=1).fit()
    assert [line.startswith("{'loss'") for line in capsys.readouterr().out.splitlines()] == [True] * 4 + [False]
    trainer = make(transformers.ProgressCallback(), epochs=1)
    trainer.fit()
    assert "4/4" in capsys.readouterr().err
    assert trainer.callbacks["progress_callback"].foreign.training_bar is None


def test_optimizer_step_event_comes_before_gradients_are_cleared():
    norms = []

    class Gradients(transformers.TrainerCallback):  # type: ignore[name-defined]
        def on_optimizer_step(self, args, state, control, model, **kwargs):
            norms.append((state.global_step, model.weight.grad.norm().item()))

        def on_step_end(self, args, state, control, model, **kwargs):
            assert model.weight.grad is None

    trainer = make(Gradients(), epochs=1)
    trainer.fit()
    assert [step for step, norm in norms if math.isfinite(norm)] == [0, 1, 2, 3]
    trainer.optimizer.step()
    assert len(norms) == 4  # it does not listen any more


def test_error_in_the_optimizer_step_is_isolated():
    class Failing(transformers.TrainerCallback):  # type: ignore[name-defined]
        def on_optimizer_step(self, args, state, control, **kwargs):
            raise ValueError("no")

    trainer = make(Failing(), strict=False)
    assert trainer.fit().step == 8
    assert [failure.moment for failure in trainer.callbacks.failures] == ["on_step_end"] * 3
    assert trainer.callbacks.failures[-1].disabled


def test_bare_loop_fires_the_events_it_knows(caplog):
    recording = Recording()
    with hl.run("bare", callbacks=[wrap(recording)], strict=True, summary=False) as run:
        for batch in run.steps([1.0, 2.0]):
            run.log(loss=batch)
    step = ["on_step_begin", "on_step_end", "on_log"]
    assert recording.seen == [
        *("on_init_end", "on_train_begin", "on_epoch_begin", *step, *step, "on_epoch_end", "on_train_end")
    ]
    assert "this loop has no torch optimizer" in caplog.text


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (AssertionError(), "Hugging Face's Asserts failed in its on_step_end(): no message"),
        (ValueError("loss"), "Hugging Face's Asserts failed in its on_step_end(): loss"),
    ],
)
def test_error_without_message_names_the_callback_and_the_event(error, message):
    class Asserts(transformers.TrainerCallback):  # type: ignore[name-defined]
        def on_step_end(self, args, state, control, **kwargs):
            raise error

    with pytest.raises(type(error)) as caught:
        make(Asserts()).fit()
    assert str(caught.value) == message
