"""Settings of an `SFTPolicyWorker` that are seen in the model it makes, the data it takes and what it leaves behind."""

import pytest

import hookline as hl
from hookline.loops.worker_config import ModelOptions, TinyModel, WorkerConfig

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

ROW = {"prompt": "1+1=", "completion": "2"}


def worker(*, tiny=None, model=None, callbacks=(), data=None, **settings):
    """A worker with a model of almost no size, for one step."""
    config = WorkerConfig(
        model=model or ModelOptions(tiny=TinyModel(**{"hidden_size": 8, "layers": 1, "heads": 2} | (tiny or {}))),
        data={"train": [ROW], **(data or {})},
        train=hl.TrainerConfig(max_steps=1, device="cpu", strict=True, summary=False),
        **settings,
    )
    return hl.SFTPolicyWorker(config, callbacks=callbacks)


def weights(made):
    return next(iter(made.model.state_dict().values()))


def test_tiny_model_has_the_sizes_and_the_weights_of_its_settings():
    config = worker(tiny={"hidden_size": 16, "layers": 3, "heads": 2}).model.config
    assert (config.hidden_size, config.num_hidden_layers, config.num_attention_heads) == (16, 3, 2)
    one, same, other = (weights(worker(tiny={"seed": seed})) for seed in (1, 1, 2))
    assert (torch.equal(one, same), torch.equal(one, other)) == (True, False)


@pytest.mark.parametrize("save_model", [True, False])
def test_trained_model_is_left_behind_where_it_is_wanted(save_model):
    made = worker(save_model=save_model).run()
    assert (made.output_dir / "model" / "config.json").exists() == save_model


def test_tokenizer_from_elsewhere_takes_the_place_of_the_models_own(tmp_path):
    tuned = worker()
    tuned.model.save_pretrained(tmp_path / "model")
    tuned.tokenizer.add_tokens(["<sum>"])
    tuned.tokenizer.save_pretrained(tmp_path / "tokenizer")
    there = {"path": str(tmp_path / "model"), "tokenizer": str(tmp_path / "tokenizer")}
    assert "<sum>" in worker(model=ModelOptions(**there)).tokenizer.get_vocab()


def test_validation_rows_and_callbacks_are_those_that_are_given():
    recording = hl.testing.RecordingCallback()
    worker(data={"validation": [ROW]}, callbacks=[recording]).run()
    assert "on_validation_end" in recording.names()
