"""Checkpoints as versions of an artifact."""

import hookline as hl
from hookline._record.artifact_versions import ArtifactFolder
from hookline.callbacks import CheckpointCallback


def train(root, losses, **options):
    """Train a counter, log these losses, and save a checkpoint every two steps."""
    rule = CheckpointCallback(every_n_steps=2, artifact="model", **options)

    def save(directory):
        (directory / "weights").write_text(f"weights of step {run.step}")

    run = hl.run("r", root=root, project="p", callbacks=[rule], save=save, load=lambda directory: None, summary=False)
    with run:
        for loss in run.steps(losses):
            run.log(loss=loss)
    return run


def test_kept_checkpoints_are_versions_that_outlive_them(tmp_path):
    run = train(tmp_path, [5, 4, 3, 2, 9, 8, 7, 6], monitor="loss", mode="min")
    folder = ArtifactFolder(tmp_path, "p", "model")
    versions = [hl.Artifact(folder, number) for number in folder.versions()]
    assert [version.metadata for version in versions] == [
        {"step": step, "metrics": {"loss": loss}} for step, loss in [(2, 4), (4, 2), (6, 8), (8, 6)]
    ]
    assert folder.aliases() == {"latest": 3, "best": 1}
    assert sorted(path.name for path in (run.dir / "checkpoints").iterdir()) == ["step-00000004", "step-00000008"]
    texts = [version.path("weights").read_text() for version in versions]
    assert texts == [f"weights of step {step}" for step in (2, 4, 6, 8)]


def test_checkpoint_files_are_linked_and_not_copied(tmp_path):
    run = train(tmp_path, [1, 2])
    version = hl.artifact("p/model", root=tmp_path)
    saved = run.dir / "checkpoints" / "step-00000002"
    assert {file.path for file in version.files} == {path.name for path in saved.iterdir()}
    assert all(version.path(file.path).samefile(saved / file.path) for file in version.files)
    assert (version.kind, version.aliases) == ("model", ["latest"])


def test_evaluation_after_the_checkpoint_moves_the_alias(tmp_path):
    rule = CheckpointCallback(monitor="val/loss", mode="min", every_n_steps=1, save_top_k=-1, artifact="model")
    with hl.run("r", root=tmp_path, project="p", callbacks=[rule], summary=False) as run:
        for value in run.steps([3.0, 1.0, 2.0]):
            run.log(loss=value)
            if run.step:
                run.record_evaluation("val", {"val/loss": 4.0 - run.step}, step=run.step)
    assert ArtifactFolder(tmp_path, "p", "model").aliases() == {"latest": 2, "best": 1}


def test_checkpoint_artifact_that_cannot_be_saved_does_not_stop_training(tmp_path, caplog):
    (tmp_path / ".artifacts").write_text("in the way")
    run = train(tmp_path, [1, 2, 3, 4])
    assert (run.state, run.step) == ("completed", 4)
    assert "The artifact 'model' is not saved" in caplog.text
