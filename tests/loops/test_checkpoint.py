"""Checkpoints of a bare loop."""

import json

import pytest

import hookline as hl
from hookline.loops import checkpoint
from hookline.testing import RecordingCallback


def test_checkpoint_holds_counters_states_and_what_the_user_saves(tmp_path):
    model = {"w": 0}
    save = lambda path: (path / "model.json").write_text(json.dumps(model))  # noqa: E731
    stopper = hl.callbacks.EarlyStoppingCallback("loss", patience=50)
    with hl.run(callbacks=[stopper], root=tmp_path, save=save, strict=True, summary=False) as run:
        for i in run.steps(4):
            model["w"] = i
            run.log(loss=1.0)
            if i == 2:
                run.request_checkpoint()
    (row,) = run.checkpoints
    assert (row.step, row.path, row.metrics) == (3, run.dir / "checkpoints" / "step-00000003", {"loss": 1.0})
    assert row.bytes == sum(file.stat().st_size for file in row.path.iterdir())
    state = json.loads((row.path / "state.json").read_text())
    assert (state["step"], state["callbacks"]) == (3, {"early_stopping": {"best": 1.0, "waited": 2}})
    assert json.loads((row.path / "model.json").read_text()) == {"w": 2}


def test_checkpoint_loaded_goes_on_where_it_was(tmp_path):
    loaded = []
    with hl.run(root=tmp_path, summary=False) as first:
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
    with hl.run(root=None, summary=False) as run:
        for _ in run.steps(2):
            run.save_checkpoint(tmp_path / "latest")
    assert json.loads((tmp_path / "latest" / "state.json").read_text())["step"] == 2
    assert [path.name for path in tmp_path.iterdir()] == ["latest"]


@pytest.mark.parametrize("kind", ["directory", "file"])
def test_checkpoint_at_the_path_of_something_else_is_refused_and_leaves_it(tmp_path, kind):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "results.txt").write_text("mine")
    path = tmp_path / "mine" if kind == "directory" else tmp_path / "mine" / "results.txt"
    with hl.run(root=None, summary=False) as run, pytest.raises(hl.CheckpointError, match="is no checkpoint"):
        run.save_checkpoint(path)
    assert [file.read_text() for file in (tmp_path / "mine").iterdir()] == ["mine"]


def test_checkpoint_at_a_directory_of_the_user_called_like_one_is_refused_and_leaves_it(tmp_path):
    own = tmp_path / "checkpoints" / "step-00000000"
    own.mkdir(parents=True)
    (own / "results.txt").write_text("mine")
    with hl.run(root=None, summary=False) as run, pytest.raises(hl.CheckpointError, match="is no checkpoint"):
        run.save_checkpoint(own)
    assert [file.read_text() for file in own.iterdir()] == ["mine"]


@pytest.mark.parametrize("name", ["x.pt", "model.pth", "weights.safetensors"])
def test_checkpoint_at_the_name_of_a_file_is_refused(tmp_path, name):
    with (
        hl.run(root=None, summary=False) as run,
        pytest.raises(hl.CheckpointError, match="is a directory with several"),
    ):
        run.save_checkpoint(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_checkpoint_in_an_empty_directory_is_saved_there(tmp_path):
    (tmp_path / "mine").mkdir()
    with hl.run(root=None, summary=False) as run:
        run.save_checkpoint(tmp_path / "mine")
    assert (tmp_path / "mine" / "state.json").exists()


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
    assert json.loads((tmp_path / "latest" / "state.json").read_text())["step"] == 1


class Odd(hl.Callback):
    """A callback whose state JSON cannot hold."""

    def state_dict(self):
        return {"thing": object()}


def test_checkpoint_without_a_place_is_an_error():
    with hl.run(root=None, summary=False) as run, pytest.raises(hl.CheckpointError, match="give save_checkpoint"):
        run.save_checkpoint()


def test_checkpoint_state_of_an_observer_that_cannot_be_saved_is_left_out(tmp_path, caplog):
    with hl.run(callbacks=[Odd()], summary=False) as run:
        run.save_checkpoint(tmp_path / "x")
    assert json.loads((tmp_path / "x" / "state.json").read_text())["callbacks"] == {"odd": {}}
    assert "The state of 'odd' is not part of the checkpoint" in caplog.text


def test_checkpoint_state_of_a_critical_subscriber_that_cannot_be_saved_is_an_error(tmp_path):
    critical = Odd()
    critical.critical = True
    with (
        hl.run(callbacks=[critical], root=None, summary=False) as run,
        pytest.raises(hl.CheckpointError, match="state of 'odd'"),
    ):
        run.save_checkpoint(tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


def resumed_steps(tmp_path, stop_after, epochs=3):
    """What a run and its resume go through, when the first is preempted after some steps."""
    seen = []
    with hl.run(root=tmp_path, summary=False) as first:
        for batch in first.steps("abcd", epochs=epochs):
            seen.append((first.epoch, batch))
            if first.step + 1 == stop_after:
                first.request_checkpoint()
                first.request_stop("preempted")
    with hl.run(root=tmp_path, summary=False) as second:
        second.load_checkpoint(first.checkpoints[-1].path)
        seen += [(second.epoch, batch) for batch in second.steps("abcd", epochs=epochs)]
    return seen, second


@pytest.mark.parametrize("stop_after", [1, 3, 4, 5, 8, 11])
def test_checkpoint_resume_does_each_batch_once(tmp_path, stop_after):
    seen, second = resumed_steps(tmp_path, stop_after)
    assert seen == [(epoch, batch) for epoch in range(3) for batch in "abcd"]
    assert (second.step, second.num_steps) == (12, 12)


def test_checkpoint_resume_inside_epochs_skips_only_once(tmp_path):
    with hl.run(root=tmp_path, summary=False) as first:
        for _ in first.epochs(2):
            for _ in first.steps("ab"):
                if first.step == 2:
                    first.save_checkpoint()
    seen = []
    with hl.run(summary=False) as second:
        second.load_checkpoint(first.checkpoints[0].path)
        for phase in (1, 2):
            for epoch in second.epochs(2):
                seen += [(phase, epoch, batch) for batch in second.steps("ab")]
    assert seen == [(1, 1, "b"), (2, 0, "a"), (2, 0, "b"), (2, 1, "a"), (2, 1, "b")]


def test_checkpoint_asked_for_by_a_validation_between_steps_is_saved_there(tmp_path):
    with hl.run(root=tmp_path, callbacks=[hl.on("eval", lambda loop: loop.request_checkpoint())]) as run:
        for _ in run.epochs(2):
            for _ in run.steps(3):
                pass
            with run.validate() as val:
                val.log(loss=1.0)
    assert [row.step for row in run.checkpoints] == [3, 6]


def test_checkpoint_holds_the_state_of_background_subscribers(tmp_path):
    class Counter(hl.Callback):
        background = True

        def __init__(self):
            self.count = 0

        def on_step_end(self, loop):
            self.count += 1

        def state_dict(self):
            return {"count": self.count}

    with hl.run(root=tmp_path, callbacks=[Counter()], strict=True, summary=False) as run:
        for i in run.steps(40):
            if i == 38:
                run.request_checkpoint()
    state = json.loads((run.checkpoints[0].path / "state.json").read_text())
    assert state["callbacks"] == {"counter": {"count": 39}}


def test_checkpoint_that_is_none_or_torn_is_an_error(tmp_path):
    with hl.run(summary=False) as run:
        with pytest.raises(hl.CheckpointError, match="no state.json"):
            run.load_checkpoint(tmp_path)
        (tmp_path / "state.json").write_text('{"step": 3, "epo')
        with pytest.raises(hl.CheckpointError, match="cannot be read"):
            run.load_checkpoint(tmp_path)
    assert run.step == 0


class Sets(hl.Callback):
    """A callback whose state has a set deep inside, and that keeps what it is given."""

    name = "sets"

    def __init__(self):
        self.given = []

    def state_dict(self):
        return {"steps": 3, "seen": {"rows": [1, {2}]}}

    def load_state_dict(self, state):
        self.given.append(state)


def test_checkpoint_state_that_could_not_be_saved_is_not_given_back(tmp_path, caplog):
    with hl.run(callbacks=[Sets()], root=None, summary=False) as run:
        run.save_checkpoint(tmp_path / "x")
    again = Sets()
    with hl.run(callbacks=[again], root=None, summary=False) as run:
        run.load_checkpoint(tmp_path / "x")
    assert again.given == []
    assert "The checkpoint has no state for 'sets': it starts anew." in caplog.text
    assert "The state of 'sets' is not part of the checkpoint: 'seen.rows[1]' cannot be saved as JSON" in caplog.text


@pytest.mark.parametrize(
    ("state", "place"), [({"a": {2: {"b": {1}}}}, "'a.2.b'"), ({"a": {(1, 2): 3}}, "'a.(1, 2)'"), ({1}, "it")]
)
def test_unsaveable_value_is_named_by_its_place(state, place):
    assert checkpoint.unsaveable_in(state) == place
