"""TrainerConfig: made in Python, and read from files with overrides on top."""

import inspect
from pathlib import Path

import pytest

import hookline as hl
from hookline._engine.errors import ConfigError, HooklineError, OptionError
from hookline.callbacks import CheckpointCallback
from hookline.loops.trainer_config import CheckpointRules

YAML = """\
name: sums
epochs: 2
batch_size: 4
device: cpu
learning_rate: 1e-2
schedule: cosine
output_dir: here
summary: false
validate_every_steps: 2
checkpoint:
  monitor: val/loss
  save_top_k: 2
  every_n_steps: 1
callbacks:
  - timer
  - early_stopping: {monitor: val/loss, patience: 7}
"""


def written(text, name="train.yaml"):
    path = Path(name)
    path.write_text(text, encoding="utf-8")
    return path


# In Python


def test_trainer_config_defaults_say_nothing_about_how_long_to_train():
    config = hl.TrainerConfig()
    assert (config.epochs, config.max_steps, config.output_dir, config.seed) == (None, None, "runs", 0)


def test_trainer_config_takes_paths_and_whole_numbers_for_floats():
    config = hl.TrainerConfig(output_dir=Path("here"), resume=Path("there"), learning_rate=1, gradient_clip_norm=2)
    assert (config.output_dir, config.resume, config.learning_rate) == ("here", "there", 1.0)
    assert type(config.learning_rate) is type(config.gradient_clip_norm) is float


def test_trainer_config_takes_the_rules_of_checkpoints_as_a_mapping():
    config = hl.TrainerConfig(checkpoint={"monitor": "val/loss", "save_top_k": 3})
    assert config.checkpoint == CheckpointRules(monitor="val/loss", save_top_k=3)


def test_trainer_config_keeps_callbacks_as_they_are():
    callbacks = hl.CallbackCollection()
    assert hl.TrainerConfig(callbacks=callbacks).callbacks is callbacks
    mine = hl.Callback()
    assert hl.TrainerConfig(callbacks=[mine]).callbacks[0] is mine


def test_trainer_config_rules_of_checkpoints_have_the_defaults_of_the_callback():
    given = inspect.signature(CheckpointCallback).parameters
    assert {name: given[name].default for name in CheckpointRules.__struct_fields__} == {
        name: getattr(CheckpointRules(), name) for name in given
    }


@pytest.mark.parametrize(
    ("name", "value", "accepted"),
    [
        ("epochs", "3", "int"),
        ("epochs", 1.5, "int"),
        ("epochs", True, "int"),
        ("epochs", 0, "a whole number of at least 1"),
        ("max_steps", -1, "a whole number of at least 1"),
        ("batch_size", 0, "a whole number of at least 1"),
        ("accumulation", 0, "a whole number of at least 1"),
        ("validate_every_steps", 0, "a whole number of at least 1"),
        ("validate_every_epochs", 0, "a whole number of at least 1"),
        ("validation_batches", 0, "a whole number of at least 1"),
        ("workers", -1, "a number of at least 0"),
        ("warmup_steps", -1, "a number of at least 0"),
        ("weight_decay", -0.1, "a number of at least 0"),
        ("weight_decay", float("nan"), "a number of at least 0"),
        ("learning_rate", 0.0, "a number above 0"),
        ("learning_rate", float("nan"), "a number above 0"),
        ("learning_rate", float("inf"), "a number above 0"),
        ("learning_rate", "1e-3", "float"),
        ("gradient_clip_norm", 0.0, "a number above 0"),
        ("shuffle", "yes", "bool"),
        ("name", 3, "str"),
        ("output_dir", 3, "str"),
        ("seed", "a", "int"),
        ("checkpoint", "best", "mapping"),
    ],
)
def test_trainer_config_of_a_wrong_value_is_an_error_that_names_it(name, value, accepted):
    with pytest.raises(OptionError) as caught:
        hl.TrainerConfig(**{name: value})
    assert str(caught.value).startswith(f"TrainerConfig({name}={value!r}): ")
    assert accepted in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "choices"),
    [
        ("precision", "fp8", "'fp32', 'bf16', 'fp16'"),
        ("optimizer", "lion", "'adamw', 'adam', 'sgd', null"),
        ("schedule", "linaer", "'constant', 'linear', 'cosine'"),
        ("nan_loss", 1, "'error', 'pass'"),
    ],
)
def test_trainer_config_of_an_unknown_choice_is_an_error_that_lists_them(name, value, choices):
    with pytest.raises(OptionError) as caught:
        hl.TrainerConfig(**{name: value})
    assert str(caught.value) == f"TrainerConfig({name}={value!r}): give one of {choices}."


def test_trainer_config_of_an_unknown_field_is_an_error_that_names_it():
    with pytest.raises(OptionError, match="TrainerConfig has no 'epoch'. Did you mean 'epochs'?"):
        hl.TrainerConfig(epoch=3)  # type: ignore[call-arg]


@pytest.mark.parametrize(("name", "value"), [("save_top_k", "1"), ("mode", "lower"), ("every_n_steps", 0.5)])
def test_trainer_config_checkpoint_rules_of_a_wrong_value_are_an_error_that_names_it(name, value):
    with pytest.raises(OptionError, match=f"CheckpointRules\\({name}={value!r}\\)"):
        CheckpointRules(**{name: value})


# From files


@pytest.mark.parametrize("read", [hl.TrainerConfig.from_yaml, hl.TrainerConfig.from_file])
def test_trainer_config_from_yaml_has_everything_in_it(read):
    config = read(written(YAML))
    assert (config.name, config.epochs, config.learning_rate, config.schedule) == ("sums", 2, 0.01, "cosine")
    assert config.checkpoint == CheckpointRules(monitor="val/loss", save_top_k=2, every_n_steps=1)
    assert config.callbacks == ["timer", {"early_stopping": {"monitor": "val/loss", "patience": 7}}]
    assert config.weight_decay is None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", '{"epochs": 2, "checkpoint": {"save_top_k": 3}, "callbacks": ["timer"]}'),
        ("a.toml", 'epochs = 2\ncallbacks = ["timer"]\n[checkpoint]\nsave_top_k = 3\n'),
    ],
)
def test_trainer_config_from_other_files_is_the_same(name, text):
    config = hl.TrainerConfig.from_file(written(text, name))
    assert config == hl.TrainerConfig(epochs=2, checkpoint=CheckpointRules(save_top_k=3), callbacks=["timer"])


def test_trainer_config_overrides_stand_above_the_file():
    overrides = [
        "epochs=5",
        "--learning_rate",
        "3e-4",
        "checkpoint.save_top_k=-1",
        "callbacks.1.early_stopping.patience=1",
    ]
    config = hl.TrainerConfig.from_file(written(YAML), [*overrides, "output_dir=null"])
    assert (config.epochs, config.learning_rate, config.output_dir) == (5, 3e-4, None)
    assert config.checkpoint == CheckpointRules(monitor="val/loss", save_top_k=-1, every_n_steps=1)
    assert config.callbacks[1]["early_stopping"]["patience"] == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epoch: 3\n", r"train\.yaml:1: epoch: .*'epochs'"),
        ("epochs: 3\ncheckpoint: {save_top: 2}\n", r"train\.yaml:2: checkpoint\.save_top: .*'save_top_k'"),
        ("epochs: three\n", r"train\.yaml:1: epochs: 'three' was given, int"),
        ("epochs: 0\n", r"epochs=0.*at least 1"),
        ("schedule: cosin\n", r"train\.yaml:1: schedule: 'cosin' was given, one of 'constant', 'linear', 'cosine'"),
        ("checkpoint: {mode: best}\n", r"train\.yaml:1: checkpoint\.mode: 'best' was given, one of 'min', 'max'"),
        ("- epochs\n", r"a mapping is needed at the top"),
    ],
)
def test_trainer_config_from_yaml_that_does_not_fit_is_an_error_with_its_place(text, message):
    with pytest.raises(ConfigError, match=message):
        hl.TrainerConfig.from_yaml(written(text))


def test_trainer_config_override_that_does_not_fit_is_an_error_that_names_the_command_line():
    with pytest.raises(ConfigError, match="command line: epochs: 'many' was given"):
        hl.TrainerConfig.from_yaml(written(YAML), ["epochs=many"])


def test_trainer_config_from_a_file_that_is_not_there_is_an_error_with_a_close_name():
    written(YAML)
    with pytest.raises(ConfigError, match="there is no such configuration file. Did you mean 'train.yaml'"):
        hl.TrainerConfig.from_yaml("trains.yaml")


# In a Trainer


def test_trainer_config_from_yaml_trains_as_it_says():
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    inputs = torch.randn(8, 3)
    data = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
    config = hl.TrainerConfig.from_yaml(written(YAML))
    trainer = hl.Trainer(torch.nn.Linear(3, 1), data, data, config=config, loss=torch.nn.functional.mse_loss)
    trainer.fit()
    assert trainer.callbacks.names() == ["timer", "early_stopping", "checkpoint"]
    assert trainer.callbacks["early_stopping"].patience == 7
    assert trainer.callbacks["checkpoint"].best_value == min(
        row.metrics["val/loss"] for row in trainer.history if "val/loss" in row.metrics
    )
    assert (trainer.step, trainer.dir.parent.name, trainer.dir.parent.parent.name) == (4, "default", "here")
    assert trainer.history[0].metrics["learning_rate"] == 0.01


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("callbacks: [timers]\n", "'timers'.*Did you mean 'timer'"),
        ("callbacks: [{early_stopping: {patince: 3}}]\n", "patince.*'patience'"),
        ("callbacks: [{early_stopping: {patience: 0}}]\n", "patience=0.*at least 1"),
        ("checkpoint: {save_top_k: 0, save_last: false}\n", "save_top_k=0 with save_last=False keeps no checkpoint"),
        ("checkpoint: {every_n_steps: 0}\n", "every_n_steps=0"),
    ],
)
def test_trainer_config_of_callbacks_that_do_not_fit_is_an_error_before_training(text, message):
    torch = pytest.importorskip("torch")
    config = hl.TrainerConfig.from_yaml(written("epochs: 1\n" + text))
    with pytest.raises(HooklineError, match=message):
        hl.Trainer(torch.nn.Linear(3, 1), [1], config=config)


# What is wrong inside


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"monitr": "val/loss"}, "monitr: unknown key. Did you mean 'monitor'?"),
        ({"mode": "mini"}, "mode: 'mini' was given, one of 'min', 'max', null is accepted."),
        ({"save_top_k": "x"}, "save_top_k: 'x' was given, int is accepted."),
    ],
)
def test_trainer_config_in_python_says_what_is_wrong_inside_its_rules(rules, message):
    with pytest.raises(OptionError) as caught:
        hl.TrainerConfig(checkpoint=rules)
    assert str(caught.value) == f"TrainerConfig(checkpoint={rules!r}): {message}"


def test_trainer_config_of_text_for_a_list_says_that_a_list_is_expected():
    with pytest.raises(OptionError) as caught:
        hl.TrainerConfig(tags="mine")
    assert str(caught.value) == "TrainerConfig(tags='mine'): give list."


@pytest.mark.parametrize(
    ("text", "overrides", "message"),
    [
        (
            "callbacks:\n  - timer\n  - early_stopping:\n      patience: x",
            [],
            "train.yaml:5: callbacks[1].early_stopping.",
        ),
        ("callbacks:\n  - timer\n  - tmer", [], "train.yaml:4: callbacks[1]: Nothing is registered as 'tmer'."),
        ("callbacks: [timer]", ["callbacks=[timer, tmer]"], "command line: callbacks[1]: Nothing is registered"),
        ("sinks: [cvs]", [], "train.yaml:2: sinks[0]: Nothing is registered as 'cvs'. Did you mean 'csv'?"),
    ],
)
def test_trainer_of_a_file_with_a_wrong_entry_names_its_line(text, overrides, message):
    torch = pytest.importorskip("torch")
    config = hl.TrainerConfig.from_file(written(f"epochs: 1\n{text}\n"), overrides)
    with pytest.raises(ConfigError) as caught:
        hl.Trainer(torch.nn.Linear(1, 1), [torch.zeros(1, 1)], config=config)
    assert str(caught.value).startswith(message)


def test_trainer_config_from_a_file_is_equal_to_that_made_in_python_and_can_be_added_to():
    config = hl.TrainerConfig.from_file(written("epochs: 1\ncallbacks: [timer]\nsinks: [csv]\n"))
    assert config == hl.TrainerConfig(epochs=1, callbacks=["timer"], sinks=["csv"])
    config.callbacks.append(CheckpointCallback())
    assert hl.CallbackCollection(config.callbacks).names() == ["timer", "checkpoint"]


def test_main_with_wrong_callbacks_names_their_line_or_their_index(capsys):
    pytest.importorskip("transformers")
    text = "model: {tiny: {layers: 1}}\ndata: {train: [{text: abc}]}\ntrain:\n  epochs: 1\n"
    file, wrong = written(text), {"early_stopping": {"patience": "x"}}
    with pytest.raises(SystemExit):
        hl.main(callbacks=["timer", wrong], argv=["--config", str(file)])
    written(f"{text}  callbacks:\n    - timer\n    - early_stopping: {{patience: x}}\n")
    with pytest.raises(SystemExit):
        hl.main(argv=["--config", str(file)])
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("error: callbacks[1].early_stopping.patience: 'x' was given")
    assert second.startswith("error: train.yaml:7: train.callbacks[1].early_stopping.patience: 'x' was given")
