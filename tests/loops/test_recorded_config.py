"""The recorded configuration of a training: each setting by its name."""

import json

import pytest

import hookline as hl
from hookline.callbacks import EarlyStoppingCallback
from hookline.loops.worker_config import ModelOptions, TinyModel, WorkerConfig

torch = pytest.importorskip("torch")

ROW = {"prompt": "1+1=", "completion": "2"}


def recorded(run_dir):
    text = json.dumps(json.loads((run_dir / "run.json").read_text())["config"])
    assert "0x" not in text
    return json.loads(text)


def test_trainer_records_its_settings_by_name():
    data = [(torch.ones(3), torch.ones(1))] * 4
    watch = EarlyStoppingCallback("loss")
    config = hl.TrainerConfig(name="yam", epochs=1, learning_rate=0.5, callbacks=[watch], sinks=["csv"], summary=False)
    made = hl.Trainer(torch.nn.Linear(3, 1), data, config=config, loss=torch.nn.functional.mse_loss).fit()
    said = recorded(made.output_dir)
    assert (said["name"], said["learning_rate"], said["sinks"]) == ("yam", 0.5, ["csv"])
    assert said["callbacks"] == ["hookline.callbacks.early_stopping:EarlyStoppingCallback"]
    assert said.keys() == set(hl.TrainerConfig.__struct_fields__)


def test_worker_records_the_model_the_size_of_its_data_and_how_it_trains():
    pytest.importorskip("transformers")
    config = WorkerConfig(
        model=ModelOptions(tiny=TinyModel(hidden_size=8, layers=1, heads=2)),
        data={"train": [ROW] * 101, "validation": [ROW]},
        train=hl.TrainerConfig(max_steps=1, device="cpu", summary=False, callbacks=[]),
        save_model=False,
    )
    said = recorded(hl.SFTPolicyWorker(config).run().output_dir)
    assert said["model"]["tiny"]["hidden_size"] == 8
    assert said["data"] == {"train": "101 items", "validation": [ROW]}
    assert (said["train"]["max_steps"], said["save_model"]) == (1, False)
