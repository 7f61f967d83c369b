"""Invalid arguments of a Trainer: each error states what was given and what to do."""

import logging
from pathlib import Path

import pytest

import hookline as hl
from hookline._engine.errors import CheckpointError, HooklineError, MomentError, OptionError, UnknownNameError
from hookline.callbacks import CheckpointCallback, EarlyStoppingCallback
from hookline.loops.trainer_config import CheckpointRules
from hookline.testing import RecordingCallback

torch = pytest.importorskip("torch")

from torch.nn import functional  # noqa: E402
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

CONFIG = {"device": "cpu", "epochs": 1, "batch_size": 4, "output_dir": None, "summary": False, "strict": True}


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def samples(count=8):
    inputs = torch.randn(count, 3, generator=torch.Generator().manual_seed(1))
    return TensorDataset(inputs, inputs.sum(1, keepdim=True))


def make(model=None, train=None, val=None, *, loss=functional.mse_loss, **settings):
    """A Trainer with these settings; those that are no settings go to the Trainer itself."""
    fields = set(hl.TrainerConfig.__struct_fields__) - {"optimizer", "callbacks"}
    own = {name: settings.pop(name) for name in list(settings) if name not in fields}
    config = hl.TrainerConfig(**{**CONFIG, **settings})
    train = samples() if train is None else train
    return hl.Trainer(model or torch.nn.Linear(3, 1), train, val, config=config, loss=loss, **own)


# How it is made


@pytest.mark.parametrize("config", [None, {"epochs": 3}, "train.yaml", hl.TrainerConfig])
def test_trainer_config_of_another_kind_is_an_error(config):
    with pytest.raises(OptionError, match=r"config=.*: give a TrainerConfig, e\.g\. hl\.TrainerConfig\(epochs=3\)"):
        hl.Trainer(torch.nn.Linear(3, 1), samples(), config=config)


def test_trainer_without_a_length_is_an_error():
    with pytest.raises(OptionError, match=r"give TrainerConfig\(epochs=\.\.\.\) or TrainerConfig\(max_steps=\.\.\.\)"):
        make(epochs=None)


@pytest.mark.parametrize("model", [lambda inputs: inputs, "linear", torch.nn.Linear])
def test_trainer_of_something_that_is_no_model_is_an_error(model):
    with pytest.raises(OptionError, match=r"model=.*: give a torch\.nn\.Module"):
        make(model)


@pytest.mark.parametrize("settings", [{}, {"optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.1)}])
def test_trainer_of_a_frozen_model_is_an_error(settings):
    with pytest.raises(OptionError, match="Linear has no parameter to train: all are frozen, or there are none"):
        make(torch.nn.Linear(3, 1).requires_grad_(False), **settings)


def test_trainer_of_a_loss_and_a_training_step_is_an_error():
    with pytest.raises(OptionError, match="loss= and training_step= were both given: give one of them"):
        make(training_step=lambda model, batch: model(batch[0]).mean())


@pytest.mark.parametrize("name", ["loss", "training_step"])
def test_trainer_of_a_step_that_is_no_function_is_an_error(name):
    with pytest.raises(OptionError, match=f"{name}='mse': give a function"):
        make(**{"loss": None, name: "mse"})


@pytest.mark.parametrize(
    "settings", [{"validate_every_steps": 2}, {"validate_every_epochs": 1}, {"validate_at_start": True}]
)
def test_trainer_settings_of_validations_without_data_are_an_error(settings):
    ((name, value),) = settings.items()
    with pytest.raises(OptionError, match=f"{name}={value} without val_data: there is nothing to validate on"):
        make(**settings)


def test_trainer_validate_without_data_is_an_error():
    with pytest.raises(OptionError, match=r"validate\(\): this Trainer has no val_data"):
        make().validate()


@pytest.mark.parametrize(
    "settings",
    [{"checkpoint": CheckpointRules()}, {"sinks": ["csv"]}, {"resume": "auto"}],
    ids=lambda given: str(*given),
)
def test_trainer_settings_that_need_a_directory_without_one_are_an_error(settings):
    with pytest.raises(OptionError, match=f"{next(iter(settings))}=.* with output_dir=None"):
        make(**settings)


def test_trainer_save_without_a_directory_is_an_error():
    with pytest.raises(CheckpointError, match=r"Nothing is recorded.*give save_checkpoint\(path\)"):
        make().save_checkpoint()


def test_trainer_resume_without_a_directory_is_an_error():
    with pytest.raises(OptionError, match=r"resume\(\) with output_dir=None"):
        make().resume()


# Optimizer and scheduler


def test_trainer_optimizer_of_another_model_is_an_error():
    other = torch.optim.SGD(torch.nn.Linear(3, 1).parameters(), lr=0.1)
    with pytest.raises(OptionError, match="The optimizer holds no parameter of this Linear: was it made for another"):
        make(optimizer=other)


@pytest.mark.parametrize("optimizer", ["sgd", lambda parameters: None, 3])
def test_trainer_optimizer_of_another_kind_is_an_error(optimizer):
    with pytest.raises(OptionError, match="optimizer=.*: give a torch optimizer, or a function of the parameters"):
        make(optimizer=optimizer)


@pytest.mark.parametrize("settings", [{"learning_rate": 0.1}, {"weight_decay": 0.1}])
def test_trainer_settings_of_an_optimizer_besides_one_are_an_error(settings):
    ((name, value),) = settings.items()
    with pytest.raises(OptionError, match=f"{name}={value} is for an optimizer that the Trainer makes; one was given"):
        make(optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1), **settings)


@pytest.mark.parametrize("scheduler", ["cosine", lambda optimizer: None, 3])
def test_trainer_scheduler_of_another_kind_is_an_error(scheduler):
    with pytest.raises(OptionError, match="scheduler=.*: give a torch scheduler, or a function of the optimizer"):
        make(scheduler=scheduler)


def test_trainer_scheduler_of_another_optimizer_is_an_error():
    other = StepLR(torch.optim.SGD(torch.nn.Linear(3, 1).parameters(), lr=0.1), step_size=1)
    with pytest.raises(OptionError, match="The scheduler belongs to another optimizer"):
        make(scheduler=other)


@pytest.mark.parametrize("settings", [{"schedule": "linear"}, {"warmup_steps": 3}])
def test_trainer_settings_of_a_schedule_besides_one_are_an_error(settings):
    with pytest.raises(OptionError, match="warmup_steps and schedule are for a scheduler that the Trainer makes"):
        make(scheduler=lambda optimizer: StepLR(optimizer, 1), **settings)


def test_trainer_scheduler_that_waits_for_validations_without_any_is_an_error():
    with pytest.raises(OptionError, match="ReduceLROnPlateau needs the loss of validations: give val_data"):
        make(scheduler=ReduceLROnPlateau)


def test_trainer_scheduler_that_waits_for_a_loss_that_validations_lack_is_an_error():
    class Own(hl.Trainer):
        def validation_step(self, model, batch):
            return {"accuracy": 0.5}

    config = hl.TrainerConfig(**CONFIG)
    trainer = Own(
        torch.nn.Linear(3, 1),
        samples(),
        samples(),
        config=config,
        loss=functional.mse_loss,
        scheduler=ReduceLROnPlateau,
    )
    with pytest.raises(OptionError, match="which have val/accuracy: return a 'loss' from validation_step"):
        trainer.fit()


def test_trainer_schedule_without_a_number_of_steps_is_an_error():
    with pytest.raises(OptionError, match="schedule='cosine' needs to know the number of steps: give max_steps"):
        make(train=iter([1]), schedule="cosine")


# Data


@pytest.mark.parametrize("which", ["train_data", "val_data"])
@pytest.mark.parametrize(
    "empty",
    [[], TensorDataset(torch.ones(0, 3)), DataLoader(samples(2), batch_size=4, drop_last=True)],
    ids=["list", "data set", "loader"],
)
def test_trainer_of_empty_data_is_an_error(which, empty):
    data = (empty, None) if which == "train_data" else (None, empty)
    with pytest.raises(OptionError, match=f"{which} is empty: a .* (gives no batch|has no samples)"):
        make(train=data[0], val=data[1])


@pytest.mark.parametrize(
    ("batch", "described"),
    [
        (torch.ones(4, 3), r"a Tensor of shape \(4, 3\)"),
        ({"x": torch.ones(4, 3), "y": torch.ones(4, 1)}, "a mapping with 'x', 'y'"),
        ((torch.ones(4, 3),) * 3, "a tuple of 3"),
        ("text", "'text'"),
    ],
    ids=["tensor", "mapping", "tuple", "text"],
)
def test_trainer_loss_of_batches_that_are_no_pairs_is_an_error(batch, described):
    with pytest.raises(
        OptionError, match=rf"takes batches of \(inputs, targets\); this one is {described}\. Give training_step="
    ):
        make(train=[batch]).fit()


# The loss


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda loss: None, "training_step returned None: give .*'loss'"),
        (lambda loss: {}, "training_step returned a mapping with nothing in it: give .*'loss'"),
        (lambda loss: {"lose": loss}, "training_step returned a mapping with 'lose': give .*'loss'"),
        (lambda loss: {"loss": None}, "training_step returned a mapping with 'loss': give .*'loss'"),
        (lambda loss: loss.repeat(4), r"The loss has shape \(4,\): give one number, e\.g\. its mean\(\), not 4"),
        (lambda loss: loss.item(), r"The loss is \d\.\d+: give a tensor with one element"),
        (lambda loss: loss.detach().numpy(), r"The loss is a ndarray of shape \(\): give a tensor"),
        (lambda loss: (loss, loss), "The loss is a tuple of 2: give a tensor"),
        (lambda loss: {"loss": "low"}, "The loss is 'low': give a tensor"),
        (
            lambda loss: loss.detach(),
            r"does not depend on a trainable parameter: it was detached, computed under no_grad",
        ),
    ],
    ids=["None", "empty", "misspelt", "loss None", "vector", "float", "array", "tuple", "text", "detached"],
)
def test_trainer_step_that_returns_no_loss_to_train_on_is_an_error(returned, message):
    def step(model, batch):
        return returned(functional.mse_loss(model(batch[0]), batch[1]))

    recording = RecordingCallback()
    trainer = make(loss=None, training_step=step, callbacks=[recording])
    with pytest.raises(OptionError, match=message):
        trainer.fit()
    assert trainer.state == "failed"
    assert recording.names()[-1] == "on_exception"


def test_trainer_validation_step_that_returns_nothing_is_an_error():
    class Own(hl.Trainer):
        def validation_step(self, model, batch):
            return None

    trainer = Own(torch.nn.Linear(3, 1), samples(), samples(), config=hl.TrainerConfig(**CONFIG))
    with pytest.raises(OptionError, match="validation_step returned None"):
        trainer.validate()


def test_trainer_model_that_returns_no_loss_without_a_loss_function_is_an_error():
    with pytest.raises(
        OptionError, match=r"The model returned a Tensor of shape \(4, 1\), which has no loss. Give loss="
    ):
        make(train=[torch.ones(4, 3)], loss=None).fit()


def test_trainer_model_that_was_frozen_after_it_was_given_is_an_error():
    model = torch.nn.Linear(3, 1)
    trainer = make(model)
    model.requires_grad_(False)
    with pytest.raises(OptionError, match="or the whole model is frozen"):
        trainer.fit()


# Metrics that never come


@pytest.mark.parametrize(
    "callback",
    [EarlyStoppingCallback("val/accuracy"), CheckpointCallback("val/accuracy")],
    ids=["stopping", "checkpoint"],
)
def test_trainer_monitor_of_a_metric_that_never_comes_is_a_warning_that_lists_those_seen(callback, caplog):
    trainer = make(val=samples(), output_dir="runs", callbacks=[callback])
    with caplog.at_level(logging.WARNING, logger="hookline"):
        trainer.fit()
    assert "never saw 'val/accuracy'" in caplog.text
    assert "Metrics seen: learning_rate, loss, val/loss." in caplog.text


def test_trainer_rules_that_keep_no_checkpoint_are_an_error():
    with pytest.raises(OptionError, match="save_top_k=0 with save_last=False keeps no checkpoint at all"):
        make(output_dir="runs", checkpoint=CheckpointRules(save_top_k=0, save_last=False))


def test_trainer_rules_that_keep_only_the_last_checkpoint_are_none():
    trainer = make(output_dir="runs", epochs=3, checkpoint=CheckpointRules(save_top_k=0))
    trainer.fit()
    assert [path.name for path in (trainer.dir / "checkpoints").iterdir() if path.is_dir()] == ["step-00000006"]


# The machine


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("gpu", "device='gpu': .*cpu, cuda"),
        ("meta", "device='meta' cannot be used: .* Give 'cpu', or leave it out"),
        ("xpu", "device='xpu' cannot be used: .* Give 'cpu', or leave it out"),
    ],
)
def test_trainer_device_that_is_not_there_is_an_error(device, message):
    with pytest.raises(OptionError, match=message):
        make(device=device)


@pytest.mark.parametrize("way", ["FSDP", "DEEPSPEED"])
def test_trainer_sharding_whose_weights_could_not_be_saved_whole_is_an_error(monkeypatch, way):
    monkeypatch.setenv(f"ACCELERATE_USE_{way}", "true")
    with pytest.raises(OptionError, match="--fsdp_version 2"):
        make()


def test_trainer_cuda_device_that_is_not_there_is_an_error():
    device = f"cuda:{torch.cuda.device_count()}"
    with pytest.raises(OptionError, match=rf"device='{device}': torch finds (no|\d+) CUDA device"):
        make(device=device)


@pytest.mark.parametrize("below", ["", "/deeper"])
def test_trainer_directory_that_cannot_be_written_is_an_error_before_anything_is_trained(below):
    Path("file").write_text("in the way", encoding="utf-8")
    recording = RecordingCallback()
    trainer = make(output_dir="file" + below, callbacks=[recording])
    with pytest.raises(HooklineError, match=r"file.* cannot be written: Not a directory"):
        trainer.fit()
    assert recording.names() == []
    assert trainer.step == 0


# Callbacks


def test_trainer_of_one_logger_function_without_a_list_is_an_error():
    with pytest.raises(OptionError, match="custom_logger_fns=.*: give a list of functions"):
        make(custom_logger_fns=lambda report_data, step: None)


@pytest.mark.parametrize("given", ["foo", {"a": print}, 3])
def test_trainer_of_logger_functions_that_are_no_list_is_an_error(given):
    with pytest.raises(OptionError, match="custom_logger_fns=.*: give a list of functions"):
        make(custom_logger_fns=given)


@pytest.mark.parametrize("given", ["foo", None, {"pre_training_hook": print}])
def test_trainer_of_a_logger_function_that_cannot_be_called_is_an_error_that_asks_for_functions(given):
    with pytest.raises(OptionError, match=r"custom_logger_fns: .* is not a function. Give functions \(report_data"):
        make(custom_logger_fns=[print, given])


@pytest.mark.parametrize("given", [print, [print], [{"pre_training_hook": print}], "pre_training_hook"])
def test_trainer_of_hook_functions_that_are_no_dict_is_an_error_that_asks_for_one(given):
    with pytest.raises(OptionError, match=r"hook_fns=.*: give a dict of functions \(worker, report_data\)"):
        make(hook_fns=given)


@pytest.mark.parametrize("name", [1, None, ("pre_training_hook", 2)])
def test_trainer_of_a_hook_function_whose_name_is_no_text_is_an_error(name):
    with pytest.raises(UnknownNameError, match="is not a hook function"):
        make(hook_fns={name: print})


def test_trainer_of_one_callback_without_a_list_is_an_error():
    with pytest.raises(MomentError, match="is one subscriber: give a list of them"):
        make(callbacks=RecordingCallback())


def test_trainer_of_a_misspelt_hook_function_is_an_error_with_the_closest_name():
    with pytest.raises(HooklineError, match="'post_step_hook' is not a hook function. Did you mean"):
        make(hook_fns={"post_step_hook": lambda worker, report_data: None})


@pytest.mark.parametrize("callbacks", ["timer", {"timer": {}}])
def test_trainer_of_the_name_of_one_callback_without_a_list_says_to_give_one(callbacks):
    with pytest.raises(HooklineError, match="one callback.*: give a list of them"):
        make(callbacks=callbacks)


@pytest.mark.parametrize("resume", [3, None, b"last"])
def test_resume_from_something_that_is_no_path_is_an_error(resume, tmp_path):
    with pytest.raises(OptionError, match="resume=.*: give 'last', 'auto', a run's id, or the directory of a run"):
        make(output_dir=str(tmp_path)).resume(resume)
