"""Checkpoints of a bare loop."""

import json

import pytest

import hookline as hl
from hookline.testing import RecordingCallback


def test_checkpoint_holds_counters_states_and_what_the_user_saves(tmp_path):
    model = {"w": 0}
    save = lambda path: (path / "model.json").write_text(json.dumps(model))  # noqa: E731
    stopper = hl.callbacks.EarlyStoppingCallback("loss", patience=50)
    with hl.run(callbacks=[stopper], output_dir=tmp_path, save=save, strict=True, summary=False) as run:
        for i in run.steps(4):
            model["w"] = i
            run.log(loss=1.0)
            if i == 2:
                run.request_checkpoint()
    (row,) = run.checkpoints
    assert (row.step, row.path, row.metrics) == (3, tmp_path / "checkpoints" / "step-00000003", {"loss": 1.0})
    assert row.bytes == sum(file.stat().st_size for file in row.path.iterdir())
    state = json.loads((row.path / "state.json").read_text())
    assert (state["step"], state["callbacks"]) == (3, {"early_stopping": {"best": 1.0, "waited": 2}})
    assert json.loads((row.path / "model.json").read_text()) == {"w": 2}


def test_checkpoint_loaded_goes_on_where_it_was(tmp_path):
    loaded = []
    with hl.run(output_dir=tmp_path, summary=False) as first:
        for i in first.steps(5, total=3):
            first.log(loss=i)
        first.save_checkpoint()
    recording = RecordingCallback()
    with hl.run(callbacks=[recording], load=loaded.append, strict=True, summary=False) as second:
        second.load_checkpoint(first.checkpoints[0].path)
        seen = [second.step for _ in second.steps(iter(range(100)), total=5)]
    assert (seen, second.step, second.get_metric("loss")) == ([3, 4], 5, 2)
    assert recording.names()[:2] == ["on_train_start", "on_checkpoint_load"]
    assert loaded == [first.checkpoints[0].path]


def test_checkpoint_at_the_same_path_replaces_the_old_one_whole(tmp_path):
    with hl.run(summary=False) as run:
        for _ in run.steps(2):
            run.save_checkpoint(tmp_path / "latest")
    assert json.loads((tmp_path / "latest" / "state.json").read_text())["step"] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["latest"]


def test_checkpoint_save_that_fails_leaves_the_previous_one_whole(tmp_path):
    def save(path):
        (path / "half").write_text("half")
        if run.step == 1:
            raise OSError(28, "No space left on device")

    with hl.run(save=save, summary=False) as run:
        for i in run.steps(2):
            if i == 0:
                run.save_checkpoint(tmp_path / "latest")
            else:
                with pytest.raises(hl.CheckpointError, match="No space left"):
                    run.save_checkpoint(tmp_path / "latest")
    assert json.loads((tmp_path / "latest" / "state.json").read_text())["step"] == 0


def test_checkpoint_without_a_place_or_with_unsaveable_state_is_an_error(tmp_path):
    class Odd(hl.Callback):
        def state_dict(self):
            return {"thing": object()}

    with hl.run(callbacks=[Odd()], summary=False) as run:
        with pytest.raises(hl.CheckpointError, match="output_dir"):
            run.save_checkpoint()
        with pytest.raises(hl.CheckpointError, match="state of 'odd'"):
            run.save_checkpoint(tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


def test_checkpoint_that_is_none_or_torn_is_an_error(tmp_path):
    with hl.run(summary=False) as run:
        with pytest.raises(hl.CheckpointError, match="no state.json"):
            run.load_checkpoint(tmp_path)
        (tmp_path / "state.json").write_text('{"step": 3, "epo')
        with pytest.raises(hl.CheckpointError, match="cannot be read"):
            run.load_checkpoint(tmp_path)
    assert run.step == 0
