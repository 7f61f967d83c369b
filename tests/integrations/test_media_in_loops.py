"""Media that reach the record through a training step, an experiment, a logger or a report.

``contract/test_hosts.py`` has those of callbacks, hooks and functions in every trainer.
"""

import numpy as np
import pytest
import torch

import hookline as hl
from hookline._engine.errors import OptionError
from hookline._record.records import Media, TableRows
from hookline.integrations.passive_run import PassiveRun
from hookline.testing import FakeLoop

PIXELS = np.zeros((2, 2, 3), np.uint8)


def media_of(directory):
    """The name, the step and the position of each medium, and its axis where it is not that of training."""
    found = [record for record in hl.read(directory) if isinstance(record, Media | TableRows)]
    named = [(each.name, each.step, getattr(each, "index", 0), each.axis) for each in found]
    return sorted(each[:3] if each[3] == "train" else each for each in named)


class Drawing(hl.Callback):
    def on_step_end(self, loop, step_idx):
        return {"picture": hl.Image(PIXELS)} if loop.step == 2 else {}


@pytest.mark.parametrize("accumulated", [1, 2])
def test_trainer_records_the_media_that_its_steps_return(tmp_path, accumulated):
    model = torch.nn.Linear(1, 1)

    def step(model, batch):
        loss = model(batch).mean()
        return {"loss": loss, "shot": hl.Image(PIXELS)} if batch[0, 0] < 1 else {"loss": loss}

    config = hl.TrainerConfig(epochs=1, accumulation=accumulated, output_dir=str(tmp_path), summary=False)
    batches = [torch.full((2, 1), float(number)) for number in (0, 0, 1, 1)]
    trainer = hl.Trainer(model, batches, config=config, training_step=step)
    trainer.fit()
    shots = [("shot", 1, 0), ("shot", 2, 0)] if accumulated == 1 else [("shot", 1, 0), ("shot", 1, 1)]
    assert media_of(trainer.dir) == shots


def test_run_of_an_experiment_records_media(tmp_path):
    def train(ctx, run):
        for _ in run.steps(3):
            run.log(table=hl.Table(["n"], [[1]]), loss=1.0)

    hl.Experiment("drawn", [hl.Arm("one", {})], train=train, callbacks=[Drawing()], output_dir=tmp_path).run()
    (directory,) = (path.parent for path in tmp_path.glob("*/journal"))
    assert ("drawing/picture", 2, 0) in media_of(directory)
    assert [each for each in media_of(directory) if each[0] == "table"] == [("table", step, 0) for step in (1, 2, 3)]


def test_results_that_a_host_reports_keep_their_media(tmp_path):
    run = PassiveRun("reported", root=tmp_path, summary=False)
    run.begin()
    run.train_start()
    run.record({"loss": 1.0, "shots": [hl.Image(PIXELS), hl.Image(PIXELS)], "odd": object()}, step=4)
    run.validation_start()
    run.validation_end("val", {"val/loss": 1.0, "val/shot": hl.Image(PIXELS)}, step=4)
    run.train_end()
    assert media_of(run.dir) == [("shots", 4, 0), ("shots", 4, 1), ("val/shot", 4, 0, "eval")]


def test_lightning_logger_takes_images_audio_video_and_tables_like_that_of_wandb(tmp_path):
    lightning = pytest.importorskip("hookline.integrations.lightning")
    logger = lightning.HooklineLogger(root=tmp_path, summary=False)
    logger.log_image("samples", [PIXELS, PIXELS], step=3, caption=["one", "two"])
    logger.log_audio("sounds", [np.zeros(10, np.float32)], step=3, sample_rate=[100])
    logger.log_video("clips", [np.zeros((2, 4, 4, 3), np.uint8)], step=4)
    logger.log_table("answers", columns=["a"], data=[[1], [2]], step=4)
    logger.log_text("texts", columns=["a"], data=[["x"]], step=4)
    logger.finalize("success")
    found = media_of(logger.log_dir)
    assert found == [
        ("answers", 4, 0),
        ("clips", 4, 0),
        ("samples", 3, 0),
        ("samples", 3, 1),
        ("sounds", 3, 0),
        ("texts", 4, 0),
    ]
    captions = [each.caption for each in hl.read(logger.log_dir) if isinstance(each, Media) and each.name == "samples"]
    assert captions == ["one", "two"]


@pytest.mark.parametrize(
    ("images", "options", "text"),
    [(PIXELS, {}, "ndarray is not a list"), ([PIXELS], {"caption": "one"}, "one for each of the 1 values")],
)
def test_lightning_logger_refuses_what_is_no_list(tmp_path, images, options, text):
    lightning = pytest.importorskip("hookline.integrations.lightning")
    with pytest.raises(OptionError, match=text):
        lightning.HooklineLogger(root=tmp_path, summary=False).log_image("samples", images, **options)


def test_transformers_log_keeps_media():
    callback = pytest.importorskip("hookline.integrations.transformers.callback")
    shot = hl.Image(PIXELS)
    kept = callback.recordable({"loss": torch.tensor(0.5), "shot": shot, "odd": object})
    assert (kept["loss"], kept["shot"], type(kept["odd"])) == (0.5, shot, str)


def test_fake_loop_tells_which_media_were_logged():
    loop = FakeLoop(callbacks=[Drawing()])
    loop.run_steps(2, lambda step_idx: {"loss": 0.5, "weights": hl.Histogram([1.0])})
    assert loop.media == [(1, "weights", "histogram"), (2, "weights", "histogram"), (2, "drawing/picture", "image")]
    assert loop.history[-1].metrics == {"loss": 0.5}


def test_step_that_a_host_never_completes_keeps_its_media(tmp_path):
    run = PassiveRun("open", root=tmp_path, summary=False)
    run.begin()
    run.train_start()
    run.step_start()
    run.log(shot=hl.Image(PIXELS))
    run.train_end()
    assert media_of(run.dir) == [("shot", 1, 0)]
