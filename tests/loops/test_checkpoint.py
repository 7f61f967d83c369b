"""Checkpoints of a bare loop."""

import enum
import json
import math
from collections import Counter, OrderedDict, defaultdict, deque
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy
import pytest
import torch

import hookline as hl
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
    assert (state["step"], state["callbacks"]["early_stopping"]) == (3, {"best": 1.0, "waited": 2})
    assert json.loads((row.path / "model.json").read_text()) == {"w": 2}


def test_checkpoint_loaded_continues_where_it_was(tmp_path):
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
    with hl.run(root=None, summary=False) as run, pytest.raises(hl.CheckpointError, match="is not a checkpoint"):
        run.save_checkpoint(path)
    assert [file.read_text() for file in (tmp_path / "mine").iterdir()] == ["mine"]


def test_checkpoint_at_a_directory_of_the_user_called_like_one_is_refused_and_leaves_it(tmp_path):
    own = tmp_path / "checkpoints" / "step-00000000"
    own.mkdir(parents=True)
    (own / "results.txt").write_text("mine")
    with hl.run(root=None, summary=False) as run, pytest.raises(hl.CheckpointError, match="is not a checkpoint"):
        run.save_checkpoint(own)
    assert [file.read_text() for file in own.iterdir()] == ["mine"]


def test_checkpoint_at_the_name_of_a_file_is_one_that_torch_loads(tmp_path):
    model, loaded = torch.nn.Linear(2, 1), {}
    save = lambda path: (torch.save(model.state_dict(), path / "model.pt"), (path / "notes.txt").write_text("mine"))  # noqa: E731
    load = lambda path: loaded.update(torch.load(path / "model.pt"), notes=(path / "notes.txt").read_text())  # noqa: E731
    with hl.run(root=None, save=save, callbacks=[Holder((1, {2}))], strict=True, summary=False) as run:
        for _ in run.steps(2):
            run.log(loss=1.0)
            row = run.save_checkpoint(tmp_path / "x.pt")
    assert (row.path, row.bytes) == (tmp_path / "x.pt", (tmp_path / "x.pt").stat().st_size)
    assert torch.equal(torch.load(tmp_path / "x.pt", weights_only=True)["model"]["weight"], model.weight)
    holder = Holder()
    with hl.run(root=None, load=load, callbacks=[holder], strict=True, summary=False) as again:
        row = again.load_checkpoint(tmp_path / "x.pt")
    assert (row.path, row.step, holder.value, loaded["notes"]) == (tmp_path / "x.pt", 2, (1, {2}), "mine")
    assert torch.equal(loaded["weight"], model.weight)
    assert [path.name for path in tmp_path.iterdir()] == ["x.pt"]


def test_checkpoint_at_a_file_of_the_user_is_refused_and_leaves_it(tmp_path):
    torch.save({"model": 1}, tmp_path / "x.pt")
    with hl.run(root=None, summary=False) as run:
        with pytest.raises(hl.CheckpointError, match="is not a checkpoint"):
            run.save_checkpoint(tmp_path / "x.pt")
        with pytest.raises(hl.CheckpointError, match="is not a checkpoint"):
            run.load_checkpoint(tmp_path / "x.pt")
    assert torch.load(tmp_path / "x.pt") == {"model": 1}


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


@pytest.mark.parametrize("name", ["state.json", "tensors.pt", "manifest.json"])
def test_checkpoint_save_that_writes_a_file_of_hookline_is_refused(tmp_path, name):
    def save(path):
        (path / name).write_text("the user's own")

    with hl.run(save=save, summary=False) as run:
        for _ in run.steps(1):
            with pytest.raises(hl.CheckpointError, match=f"wrote {name}.*another name, such as my_{name}"):
                run.save_checkpoint(tmp_path / "latest")
    assert list(tmp_path.glob("*latest*")) == []


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
    assert json.loads((tmp_path / "x" / "state.json").read_text())["callbacks"] == {}
    assert "The state of 'odd' cannot be saved: 'thing' is <object object" in caplog.text
    assert [(failure.subscriber, failure.moment) for failure in run.callbacks.failures] == [("odd", "state_dict")]


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


class Deep(hl.Callback):
    """A callback whose state has an object deep inside, and that keeps what it is given."""

    def __init__(self):
        self.given = []

    def state_dict(self):
        return {"steps": 3, "seen": {"rows": [1, object()]}}

    def load_state_dict(self, state):
        self.given.append(state)


def test_checkpoint_state_that_could_not_be_saved_is_not_given_back(tmp_path, caplog):
    with hl.run(callbacks=[Deep()], root=None, summary=False) as run:
        run.save_checkpoint(tmp_path / "x")
    again = Deep()
    with hl.run(callbacks=[again], root=None, summary=False) as run:
        run.load_checkpoint(tmp_path / "x")
    assert again.given == []
    assert "The state of 'deep' cannot be saved: 'seen.rows[1]' is <object object" in caplog.text


@pytest.mark.parametrize(
    ("state", "place"),
    [
        ({"a": {2: {"b": object()}}}, "'a.2.b' is <object"),
        ({"a": {("x", object()): 3}}, r"a\.\('x', <object .*\[1\]. is <object"),
        ({"f": [len]}, r"'f\[0\]' is <built-in function len>"),
        ({"x": numpy.array([None])}, r"'x' is array\(\[None\]"),
        (object(), "it is <object"),
    ],
)
def test_checkpoint_value_that_cannot_be_held_is_named_by_its_place(tmp_path, state, place):
    class Given(hl.Callback):
        def state_dict(self):
            return state

    callbacks = hl.CallbackCollection()
    callbacks.add(Given(), critical=True)
    with hl.run(callbacks=callbacks, root=None, summary=False) as run, pytest.raises(hl.CheckpointError, match=place):
        run.save_checkpoint(tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


def test_checkpoint_state_in_a_critical_group_that_cannot_be_saved_is_an_error(tmp_path):
    callbacks = hl.CallbackCollection()
    callbacks.add(hl.CallbackCollection([Odd()], name="group"), critical=True)
    with (
        hl.run(callbacks=callbacks, root=None, summary=False) as run,
        pytest.raises(hl.CheckpointError, match="state of 'group/odd' cannot be saved"),
    ):
        run.save_checkpoint(tmp_path / "x")


class Holder(hl.Callback):
    """A callback whose state is whatever it holds."""

    def __init__(self, value=None, **arguments):
        self.value = value
        vars(self).update(arguments)

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


class Color(enum.Enum):
    RED = "red"


class Flags(enum.IntFlag):
    A = 1
    B = 2


def described(value):
    """A value with the type of everything in it."""
    if isinstance(value, dict):
        items = [(described(key), described(item)) for key, item in value.items()]
        return type(value), getattr(value, "default_factory", None), items
    if isinstance(value, (list, tuple, deque)):
        return type(value), getattr(value, "maxlen", None), [described(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return type(value), sorted(repr(described(item)) for item in value)
    if isinstance(value, numpy.ndarray):
        return type(value), value.dtype, value.shape, value.tobytes(), value.flags.f_contiguous
    return type(value), repr(value)


@pytest.mark.parametrize(
    "value",
    [
        {1: "a", (2, 3): [4], None: True, 1.5: 0, frozenset({1}): 2},
        ((), (1, (2, "x")), [(3,)]),
        {"a", "b", ("c", 1)},
        deque([1, (2,)], maxlen=5),
        deque(),
        numpy.arange(6.0, dtype="float32").reshape(2, 3).T,
        [numpy.float32(0.1), numpy.int64(7), numpy.bool_(True), numpy.float64("nan"), numpy.datetime64("2024-01-01")],
        numpy.array("2024-01-01", dtype="datetime64[D]"),
        numpy.zeros(2, dtype=[("x", "i4"), ("y", "f8")]),
        Path("data/a.txt"),
        [datetime(2024, 1, 2, 3, 4, 5, 6), datetime(2024, 1, 2, tzinfo=UTC), date(2024, 1, 2), time(1, 2)],
        datetime(2024, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1),
        timedelta(days=-1, microseconds=3),
        b"\x00\xff",
        [math.nan, math.inf, -math.inf, -0.0, 2**80],
        1 + 2j,
        [Color.RED, Flags.A | Flags.B],
        [OrderedDict(b=1, a=2), Counter("aab"), defaultdict(list, {1: [2]})],
        {"$tuple": [1]},
        {"$tensor": 0, "other": {"$set": ()}},
        {},
    ],
    ids=lambda value: type(value).__name__,  # the order of a set differs from process to process
)
def test_checkpoint_state_comes_back_with_its_types(tmp_path, value):
    with hl.run(callbacks=[Holder(value)], root=None, strict=True, summary=False) as run:
        run.save_checkpoint(tmp_path / "x")
    loaded = Holder()
    with hl.run(callbacks=[loaded], root=None, strict=True, summary=False) as run:
        run.load_checkpoint(tmp_path / "x")
    assert described(loaded.value) == described(value)


def test_checkpoint_of_an_earlier_version_is_loaded(tmp_path, caplog):
    """Plain JSON, with states by name and those that could not be saved listed."""
    states = {
        "early_stopping": {"best": 0.5, "waited": 1},
        "early_stopping_2": {"best": 0.25, "waited": 2},
        "holder": {"value": {"1": [2, 3], "tensor": {"$tensor": 0}}},
        "odd": {},
    }
    state = {"step": 3, "epoch": 0, "metrics": {"loss": 1.0}, "callbacks": states, "left_out": ["odd"]}
    state |= {"batches_done": 3, "open_row": {}, "has_files": False}
    place = tmp_path / "old"
    place.mkdir()
    (place / "state.json").write_text(json.dumps(state))
    torch.save([torch.tensor([1.5])], place / "tensors.pt")
    sizes = {file.name: file.stat().st_size for file in place.iterdir()}
    manifest = {"step": 3, "kind": "step", "metrics": {"loss": 1.0}, "time": 1.0, "files": sizes}
    (place / "manifest.json").write_text(json.dumps(manifest))
    first, second = (hl.callbacks.EarlyStoppingCallback(monitor) for monitor in ("val/loss", "train/loss"))
    holder = Holder()
    with hl.run(callbacks=[first, second, holder, Deep()], root=None, summary=False) as run:
        run.load_checkpoint(place)
    assert (first.best, second.best, holder.value) == (0.5, 0.25, {"1": [2, 3], "tensor": torch.tensor([1.5])})


# Which subscriber a state belongs to


def moved(tmp_path, before, after):
    """Save a checkpoint with some callbacks, and load it with others."""
    with hl.run(callbacks=before, root=None, strict=True, summary=False) as run:
        run.save_checkpoint(tmp_path / "x")
    with hl.run(callbacks=after, root=None, strict=True, summary=False) as run:
        run.load_checkpoint(tmp_path / "x")
    return [callback.value for callback in after]


def test_checkpoint_states_of_swapped_twins_go_to_the_same_ones(tmp_path):
    stops = [hl.callbacks.EarlyStoppingCallback(monitor, patience=50) for monitor in ("val/loss", "val/accuracy")]
    with hl.run(callbacks=stops, root=None, strict=True, summary=False) as run:
        for _ in run.steps(2):
            run.log({"val/loss": 0.5, "val/accuracy": 0.75})
        run.save_checkpoint(tmp_path / "x")
    accuracy, loss = (hl.callbacks.EarlyStoppingCallback(name, patience=3) for name in ("val/accuracy", "val/loss"))
    with hl.run(callbacks=[accuracy, loss], root=None, strict=True, summary=False) as run:
        run.load_checkpoint(tmp_path / "x")
    assert (accuracy.best, accuracy.waited, loss.best) == (0.75, 1, 0.5)


@pytest.mark.parametrize(
    "made",
    [
        lambda value, which: Holder(value, name=which),
        lambda value, which: Holder(value, state_key=which),
        lambda value, which: Holder(value).configure(name=which),
        lambda value, which: Holder(value, monitor=which, patience=value),
        lambda value, which: Holder(value, path=Path(which), limit=value),
        lambda value, which: Holder(value, log_dir=which),
    ],
    ids=["name", "state_key", "configured", "monitor", "path", "text path"],
)
def test_checkpoint_state_is_matched_by_what_identifies_a_callback(tmp_path, made):
    assert moved(tmp_path, [made(1, "a"), made(2, "b")], [made(0, "b"), made(0, "a")]) == [2, 1]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([Holder(1)], [Holder(patience=9)]),
        ([Holder(1, name="a")], [Holder()]),
        ([Holder(1)], [Holder(name="a")]),
        ([Holder(1, path="a")], [Holder(path="b")]),
        ([Holder(1, name="a"), Holder(2)], [Holder(), Holder(name="a")]),
    ],
    ids=["tuning", "name dropped", "name given", "moved", "one named"],
)
def test_checkpoint_state_is_matched_by_class_where_there_is_one(tmp_path, before, after):
    assert moved(tmp_path, before, after) == [before[-1].value, *(callback.value for callback in before[:-1])]


def test_checkpoint_state_of_another_metric_is_not_given(tmp_path, caplog):
    assert moved(tmp_path, [Holder(0.5, monitor="loss")], [Holder(monitor="accuracy")]) == [None]
    assert "The checkpoint has state for 'holder', which is not registered" in caplog.text


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        ([Holder(1), Holder(2)], [Holder(), Holder()], ["'holder'", "'holder_2'"]),
        ([Holder(1)], [Holder(), Holder()], ["'holder'", "'holder_2'"]),
        ([Holder(1), Holder(2)], [Holder()], ["'holder'", "'holder_2'"]),
        ([Holder(1, name="a"), Holder(2, name="b")], [Holder()], ["'a'", "'b'", "'holder'"]),
        ([Holder(1)], [Holder(monitor="a"), Holder(monitor="b")], ["'holder'", "'holder_2'"]),
    ],
    ids=["twins", "one became two", "two became one", "names dropped", "arguments came"],
)
def test_checkpoint_states_that_fit_several_are_an_error_that_names_them(tmp_path, before, after, named):
    with pytest.raises(hl.CheckpointError, match="cannot be matched") as caught:
        moved(tmp_path, before, after)
    assert all(name in str(caught.value) for name in named)
    assert [callback.value for callback in after] == [None] * len(after)


def test_checkpoint_equal_states_of_twins_need_no_names(tmp_path):
    assert moved(tmp_path, [Holder(1), Holder(1)], [Holder(), Holder()]) == [1, 1]


def test_checkpoint_states_in_groups_are_matched_within_their_group(tmp_path):
    first = [Holder(1, monitor="a"), Holder(2, monitor="b")]
    second = [Holder(monitor="b"), Holder(monitor="a")]
    with hl.run(callbacks=[hl.CallbackCollection(first, name="g")], root=None, strict=True, summary=False) as run:
        run.save_checkpoint(tmp_path / "x")
    with hl.run(callbacks=[hl.CallbackCollection(second, name="g")], root=None, strict=True, summary=False) as run:
        run.load_checkpoint(tmp_path / "x")
    assert [holder.value for holder in second] == [2, 1]


def test_state_key_that_is_taken_is_refused():
    with pytest.raises(hl.DuplicateError, match="state_key 'a' is taken, by 'holder'"):
        hl.CallbackCollection([Holder(state_key="a"), Holder(state_key="a")])


def test_checkpoint_in_one_file_with_a_flipped_bit_is_refused(tmp_path):
    model = torch.nn.Linear(100, 100)
    place = tmp_path / "x.pt"
    save = lambda path: torch.save(model.state_dict(), path / "model.pt")  # noqa: E731
    with hl.run("x", root=None, save=save, summary=False) as run:
        list(run.steps(2))
        run.save_checkpoint(place)
    data = bytearray(place.read_bytes())
    data[data.index(model.weight.detach().numpy().tobytes()) + 3] ^= 0x40
    place.write_bytes(data)
    with hl.run("x", root=None, load=lambda path: None, summary=False) as again:
        with pytest.raises(hl.CheckpointError, match=r"x\.pt is damaged: the content of .* changed"):
            again.load_checkpoint(place)
        place.write_bytes(bytes(100) + data[100:])  # so that torch cannot read it at all
        with pytest.raises(hl.CheckpointError, match=r"x\.pt is damaged: the content of .*data.pkl in it changed"):
            again.load_checkpoint(place)
        assert again.step == 0
