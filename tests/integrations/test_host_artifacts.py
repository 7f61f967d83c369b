"""Artifacts saved and used by callbacks under hookline's Trainer and by runs that other programs drive."""

import torch

import hookline as hl
from hookline.integrations.passive_run import PassiveRun


class SaveWeights(hl.Callback):
    """Saves the model at the end, as anybody's callback would."""

    def __init__(self, path):
        self.path = path

    def on_train_end(self, loop, artifacts):
        torch.save(loop.model.state_dict(), self.path)
        loop.save_artifact("weights", self.path, kind="model", metadata={"step": loop.step})


def test_callback_saves_an_artifact_under_the_trainer(tmp_path):
    model = torch.nn.Linear(2, 1)
    trainer = hl.Trainer(
        model,
        [(torch.ones(4, 2), torch.ones(4, 1))] * 3,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        loss=torch.nn.functional.mse_loss,
        callbacks=[SaveWeights(tmp_path / "weights.pt")],
        config=hl.TrainerConfig(output_dir=tmp_path / "runs", project="p", epochs=1),
    )
    trainer.fit()
    found = hl.artifact("p/weights", root=tmp_path / "runs")
    assert (found.metadata, found.run) == ({"step": 3}, f"p/{trainer.dir.name}")
    assert torch.equal(torch.load(found.path())["weight"], model.weight)


def test_passive_run_saves_and_uses_artifacts(tmp_path):
    (tmp_path / "notes.txt").write_text("kept")
    run = PassiveRun("tracked", root=tmp_path / "runs", project="p", summary=False)
    run.begin()
    assert run.save_artifact("notes", tmp_path / "notes.txt").wait().version == "v0"
    assert run.use_artifact("notes").path().read_text() == "kept"
    run.finish()
    assert [each.role for each in hl.artifact("p/notes", root=tmp_path / "runs").runs] == ["saved", "used"]
