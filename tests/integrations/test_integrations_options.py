"""Options of integrations that their own tests leave at the default: name, configuration, project, sinks, delivery,
summary, and whether a failing callback ends the training.
"""

import json
import os
import warnings
from pathlib import Path

import pytest

os.environ.setdefault("KERAS_BACKEND", "torch")

import hookline as hl
from hookline._engine.errors import OptionError
from hookline._engine.moments import Callback
from hookline.importers import detect
from hookline.testing import RecordingCallback

NAME = "first-try"
LABELS = {"tags": ["nightly"], "notes": "Does it learn at all?"}
OPTIONS = {
    "project": "warmups",
    "sinks": ["csv"],
    "delivery": "process",
    "drain_seconds": 30,
    "durability": "process",
    "summary": False,
    **LABELS,
}


@pytest.fixture(autouse=True)
def _one_thread(torch):
    """Every integration here trains with torch."""


class Failing(Callback):
    """Raises at the end of the epoch."""

    def on_train_epoch_end(self, loop):
        raise ZeroDivisionError


@pytest.fixture
def synced(monkeypatch):
    """Collects the journals that were synced to disk."""
    journals, sync = [], os.fdatasync

    def note(descriptor):
        file = Path(f"/proc/self/fd/{descriptor}").readlink()
        journals.extend([file] if file.suffix == ".jsonl" else [])
        sync(descriptor)

    monkeypatch.setattr("os.fdatasync", note)
    return journals


@pytest.fixture
def check(tmp_path, capsys, synced):
    """Checks a run: it is in its project with its name, its rows were delivered, no summary was printed, and with
    ``durability="process"`` its journal was not synced."""

    def check(directory, **facts):
        assert directory.parent == tmp_path / "warmups"
        told = json.loads((directory / "run.json").read_text())
        expected = {"name": NAME, **LABELS, **facts}
        assert {key: told.get(key) for key in expected} == expected
        assert (directory / "metrics.csv").read_text().count("\n") >= 2
        assert (NAME in capsys.readouterr().err, synced) == (False, [])

    return check


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")
def test_keras_callback_passes_options_to_its_run(tmp_path, check):
    np = pytest.importorskip("numpy")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its imports use what others deprecate
        keras = pytest.importorskip("keras")
        from hookline.integrations.keras import HooklineCallback
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    callback = HooklineCallback(name=NAME, root=tmp_path, config={"units": 1}, **OPTIONS)
    model.fit(np.ones((2, 2)), np.ones((2, 1)), batch_size=2, verbose=0, callbacks=[callback])
    check(callback.loop.dir, config={"units": 1})


@pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers")
@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated")
def test_lightning_callback_passes_options_to_its_run(torch, tmp_path, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lightning = pytest.importorskip("lightning.pytorch")
        from hookline.integrations.lightning import HooklineCallback

    class Layer(lightning.LightningModule):  # type: ignore[name-defined]
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def training_step(self, batch, batch_idx):
            return self.layer(batch).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    facts = {"name": NAME, "config": {"units": 1}}
    callback = HooklineCallback([Failing()], root=tmp_path, strict=True, **facts, **OPTIONS)
    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False)
    trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", callbacks=[callback], **quiet)
    with pytest.raises(ZeroDivisionError):
        trainer.fit(Layer(), torch.utils.data.DataLoader(torch.ones(2, 2), batch_size=1))
    check(callback.loop.dir, **facts)


def test_lightning_logger_passes_options_to_its_run(tmp_path, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("lightning.pytorch")
        from hookline.integrations.lightning import HooklineLogger
    logger = HooklineLogger(NAME, root=tmp_path, **OPTIONS)
    logger.log_metrics({"loss": 0.5}, step=1)
    logger.finalize("success")
    check(logger.experiment.dir)


@pytest.mark.parametrize("how", ["attach", "callback"])
def test_transformers_passes_options_to_its_run(torch, tmp_path, check, how):
    transformers = pytest.importorskip("transformers")
    from hookline.integrations.transformers import HooklineCallback, attach
    from hookline.testing import character_tokenizer, tiny_causal_lm

    tokenizer = character_tokenizer()
    ids = torch.tensor(tokenizer("12+12=24")["input_ids"])
    options = {"callbacks": [Failing()], "name": NAME, "root": tmp_path, "strict": True, **OPTIONS}
    callback = HooklineCallback(**options) if how == "callback" else None
    settings = {"max_steps": 1, "logging_steps": 1, "report_to": "none", "use_cpu": True, "disable_tqdm": True}
    trainer = transformers.Trainer(
        tiny_causal_lm(tokenizer, hidden_size=16, heads=2),
        transformers.TrainingArguments(
            str(tmp_path / "out"), save_strategy="no", dataloader_pin_memory=False, **settings
        ),
        train_dataset=[{"input_ids": ids, "labels": ids}],
        callbacks=[callback] if callback else None,
    )
    callback = callback or attach(trainer, **options)
    with pytest.raises(ZeroDivisionError) as raised:
        trainer.train()
    callback.loop.failed(raised.value)  # a callback that is not attached is not told
    check(callback.loop.dir)


def test_accelerate_tracker_passes_options_to_its_run(tmp_path, check):
    pytest.importorskip("accelerate")
    from hookline.integrations.accelerate import HooklineTracker

    heard = RecordingCallback()
    tracker = HooklineTracker(NAME, root=tmp_path, callbacks=[heard], **OPTIONS)
    tracker.log({"loss": 0.5}, step=1)
    directory = tracker.tracker.dir
    tracker.finish()
    check(directory)
    assert heard.names() == ["on_train_start", "on_log", "on_train_end"]


def test_ray_train_callback_passes_options_to_its_run(tmp_path, synced):
    pytest.importorskip("ray")
    from hookline.integrations.ray import HooklineTrainCallback

    for option in ({"delivery": "pigeon"}, {"drain_seconds": -1}, {"durability": "luck"}):
        with pytest.raises(OptionError, match=f"^{next(iter(option))}="):
            HooklineTrainCallback(root=tmp_path, **option)
    options = {"sinks": ["csv"], "delivery": "process", "drain_seconds": 30, "durability": "process", **LABELS}
    with HooklineTrainCallback(root=tmp_path, **options) as recorded:
        recorded.after_report(None, [{"loss": 0.5}], None)
    assert (recorded.dir / "metrics.csv").read_text().count("\n") == 2
    assert LABELS.items() <= json.loads((recorded.dir / "run.json").read_text()).items()
    assert synced == []


def test_detect_step_column_accepts_any_csv(tmp_path):
    (tmp_path / "losses.csv").write_text("tokens,loss\n1000,0.5\n")
    (found,) = detect(tmp_path / "losses.csv", step_column="tokens")
    assert found.path == tmp_path / "losses.csv"
    with pytest.raises(OptionError, match="step_column"):
        detect(tmp_path / "losses.csv", step_column="steps")


def test_bare_loops_accept_the_options_of_every_run(torch, tmp_path, check):
    from hookline.integrations.torch import run

    model = torch.nn.Linear(1, 1)
    with run(model, torch.optim.SGD(model.parameters(), lr=0.1), name=NAME, root=tmp_path, **OPTIONS) as loop:
        for _ in loop.steps(1):
            loop.log(loss=0.5)
    check(loop.dir)


def test_trainer_config_accepts_the_options_of_every_run(torch, tmp_path, check):
    config = hl.TrainerConfig(max_steps=1, name=NAME, output_dir=str(tmp_path), **OPTIONS)
    data = [(torch.ones(1), torch.ones(1))]
    trainer = hl.Trainer(torch.nn.Linear(1, 1), data, config=config, loss=torch.nn.functional.mse_loss)
    trainer.fit()
    check(trainer.dir)


def test_unknown_run_option_is_refused_by_name():
    with pytest.raises(TypeError, match="tag"):
        hl.run(tag=["nightly"])  # type: ignore[call-arg]
