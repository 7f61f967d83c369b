"""Options of integrations that their own tests leave at the default: name, configuration, project, sinks, delivery,
summary, and whether a failing callback ends the training.
"""

import asyncio
import json
import os
import sys
import warnings
from pathlib import Path

import hosts
import pytest

os.environ.setdefault("KERAS_BACKEND", "torch")

import hookline as hl
from hookline._engine.errors import OptionError
from hookline._engine.moments import Callback
from hookline._record.environment import read_environments
from hookline.importers import detect
from hookline.testing import RecordingCallback

NAME = "first-try"
LABELS = {"tags": ["nightly"], "notes": "Does it learn at all, [redacted]?"}
GIVEN = {**LABELS, "notes": "Does it learn at all, Alice?", "redact": ["Alice"], "code": "none"}
OPTIONS = {
    "project": "warmups",
    "sinks": ["csv"],
    "delivery": "process",
    "drain_seconds": 30,
    "durability": "process",
    "console": "python",
    "summary": False,
    "control": False,
    "resume_commands": "drop",
    **GIVEN,
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
    """Checks a run: it is in its project with its name, its rows were delivered, no summary was printed, with
    ``durability="process"`` its journal was not synced, with ``console="python"`` the stream was given back, and with
    ``control=False`` it has no mailbox."""

    def check(directory, **facts):
        assert directory.parent == tmp_path / "warmups"
        reported = json.loads((directory / "run.json").read_text())
        expected = {"name": NAME, **LABELS, **facts}
        assert {key: reported.get(key) for key in expected} == expected
        assert (directory / "metrics.csv").read_text().count("\n") >= 2
        assert [environment.packages != [] for environment in read_environments(directory)] == [True]
        assert (NAME in capsys.readouterr().err, synced) == (False, [])
        assert "write" not in vars(sys.stdout)
        assert not (directory / "control").exists()

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
    callback.loop.failed(raised.value)  # a callback that is not attached gets nothing
    check(callback.loop.dir)


def numbers():
    np = pytest.importorskip("numpy")
    features = np.random.default_rng(0).normal(size=(20, 2))
    return features, features.sum(axis=1)


def test_xgboost_callback_passes_options_to_its_run(tmp_path, check):
    xgboost = pytest.importorskip("xgboost")
    from hookline.integrations.xgboost import HooklineCallback

    facts = {"name": NAME, "config": {"units": 1}}
    data = xgboost.DMatrix(*numbers())
    failing = HooklineCallback([Failing()], root=tmp_path, strict=True, rounds=1, **facts, **OPTIONS)
    with pytest.raises(ZeroDivisionError), failing as hooks:
        xgboost.train({"nthread": 1}, data, 1, evals=[(data, "train")], verbose_eval=False, callbacks=[hooks])
    assert failing.loop.num_steps == 1
    check(failing.loop.dir, **facts)


def test_lightgbm_callback_passes_options_to_its_run(tmp_path, check):
    lightgbm = pytest.importorskip("lightgbm")
    from hookline.integrations.lightgbm import HooklineCallback

    facts = {"name": NAME, "config": {"units": 1}}
    data = lightgbm.Dataset(*numbers())
    failing = HooklineCallback([Failing()], root=tmp_path, strict=True, **facts, **OPTIONS)
    with pytest.raises(ZeroDivisionError), failing as hooks:
        lightgbm.train({"num_threads": 1, "verbosity": -1}, data, 1, [data], callbacks=[*hooks])
    check(failing.loop.dir, **facts)


def test_catboost_attachment_passes_options_to_its_run(tmp_path, check):
    catboost = pytest.importorskip("catboost")
    from hookline.integrations.catboost import attach

    facts = {"name": NAME, "config": {"units": 1}}
    model = catboost.CatBoostRegressor(iterations=1, thread_count=1, verbose=False, allow_writing_files=False)
    loop = attach(model, [Failing()], root=tmp_path, strict=True, snapshots=False, **facts, **OPTIONS).loop
    with pytest.raises(ZeroDivisionError):
        model.fit(*numbers())
    check(loop.dir, **facts)


def test_sklearn_callback_passes_options_to_its_run(tmp_path, check):
    pytest.importorskip("sklearn")
    from sklearn.linear_model import LogisticRegression

    from hookline.integrations.sklearn import HooklineCallback

    facts = {"name": NAME, "config": {"units": 1}}
    hooks = HooklineCallback([Failing()], root=tmp_path, strict=True, **facts, **OPTIONS)
    with pytest.raises(ZeroDivisionError):
        features, target = numbers()
        LogisticRegression().set_callbacks(hooks).fit(features, target > 0)
    check(hooks.loop.dir, **facts)


def test_stable_baselines3_callback_passes_options_to_its_run(tmp_path, check):
    sb3 = pytest.importorskip("stable_baselines3")
    from hookline.integrations.stable_baselines3 import HooklineCallback

    facts = {"name": NAME, "config": {"units": 1}}
    model = sb3.A2C("MlpPolicy", "CartPole-v1", n_steps=4, policy_kwargs={"net_arch": [4]}, seed=0, device="cpu")
    failing = HooklineCallback([Failing()], root=tmp_path, strict=True, **facts, **OPTIONS)
    with pytest.raises(ZeroDivisionError), failing as hooks:
        model.learn(4, callback=hooks)
    check(failing.loop.dir, **facts)


CALLS = {
    **dict.fromkeys(("ignite", "levanter", "tunix", "ultralytics", "verl"), "attach"),
    **dict.fromkeys(("deepspeed", "fabric"), "run"),
    **dict.fromkeys(("composer", "fastai"), "HooklineCallback"),
    "maxtext": "observe",
    "prime_rl": "HooklineMonitor",
}
"""What takes the options in hosts of the contract suite."""


@pytest.mark.parametrize("host", CALLS)
def test_host_of_the_contract_passes_options_to_its_run(tmp_path, check, monkeypatch, host):
    facts = {"config": {"units": 1}}
    training = hosts.make(host, tmp_path / "host")
    monkeypatch.setattr(type(training), "name", NAME)
    monkeypatch.setattr(type(training), "options", {"root": tmp_path, "strict": True, **facts, **OPTIONS})
    with pytest.raises(ZeroDivisionError):
        training.train(Failing())
    check(training.loop.dir, **facts)


def test_accelerate_tracker_passes_options_to_its_run(tmp_path, check):
    pytest.importorskip("accelerate")
    from hookline.integrations.accelerate import HooklineTracker

    received = RecordingCallback()
    tracker = HooklineTracker(NAME, root=tmp_path, callbacks=[received], **OPTIONS)
    tracker.log({"loss": 0.5}, step=1)
    directory = tracker.tracker.dir
    tracker.finish()
    check(directory)
    assert received.names() == ["on_train_start", "on_log", "on_train_end"]


def test_skyrl_generator_passes_options_to_its_run(tmp_path, check):
    from hookline.integrations.skyrl import ObservedGenerator

    class Generator:
        async def generate(self, given):
            ids = {name: [[1]] for name in ("prompt_token_ids", "response_ids", "loss_masks")}
            return ids | {"rewards": [1.0], "rollout_metrics": {"tokens": 1.0}}

    class FailingRollout(Callback):
        def on_rollout_end(self, loop, step_idx, rollouts):
            raise ZeroDivisionError

    given = {"prompts": [[{"role": "user", "content": "one?"}]], "env_classes": ["one"]}
    options = {"root": tmp_path, "config": {"host": "skyrl"}, "strict": True, **OPTIONS}
    observed = ObservedGenerator(Generator(), callbacks=[], name=NAME, tokenizer=None, samples=1, **options)
    with observed:
        asyncio.run(observed.generate(given))
    check(observed.loop.dir, config={"host": "skyrl"})
    with pytest.raises(ZeroDivisionError), ObservedGenerator(Generator(), [FailingRollout()], **options) as observed:
        asyncio.run(observed.generate(given))


def test_ray_train_callback_passes_options_to_its_run(tmp_path, synced):
    pytest.importorskip("ray")
    from hookline.integrations.ray import HooklineTrainCallback

    for option in ({"delivery": "pigeon"}, {"drain_seconds": -1}, {"durability": "luck"}, {"code": "x"}, {"redact": 1}):
        with pytest.raises(OptionError, match=f"^{next(iter(option))}="):
            HooklineTrainCallback(root=tmp_path, **option)
    options = {"sinks": ["csv"], "delivery": "process", "drain_seconds": 30, "durability": "process", **GIVEN}
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
