"""CheckpointCallback."""

import json
import math
import shutil

import pytest

import hookline as hl
from hookline.callbacks import CheckpointCallback
from hookline.testing import FakeLoop


def train(values, *callbacks, **options):
    """A run with one step for each value of ``val/loss``; None logs nothing."""
    with hl.run(callbacks=list(callbacks), summary=False, **options) as run:
        for i in run.steps(len(values)):
            if values[i] is not None:
                run.log({"val/loss": values[i]})
    return run


def on_disk(run):
    return sorted(int(path.name.removeprefix("step-")) for path in (run.dir / "checkpoints").glob("*"))


@pytest.mark.parametrize(
    ("values", "arguments", "left"),
    [
        ([5, 1, 4, 2, 3], {"save_top_k": 2}, [2, 4, 5]),
        ([5, 1, 4, 2, 3], {"save_top_k": 2, "save_last": False}, [2, 4]),
        ([5, 1, 4, 2, 3], {"save_top_k": 2, "save_last": False, "mode": "max"}, [1, 3]),
        ([5, 1, 4, 2, 3], {"save_top_k": 0}, [5]),
        ([5, 1, 4, 2, 3], {"save_top_k": -1}, [1, 2, 3, 4, 5]),
        ([1, 1, 1], {"save_last": False}, [1]),
        ([math.nan, 3, math.nan, 4], {"save_last": False}, [2]),
        ([-math.inf, math.nan, 3], {"save_last": False}, [3]),
        ([math.nan, math.nan], {"save_last": False}, [2]),
        ([None, 2, None, 1, None], {"save_last": False}, [4]),
        ([None, None], {"save_last": False}, [2]),
        ([5, 1, 4, 2, 3], {"monitor": None, "save_top_k": 2, "save_last": False}, [4, 5]),
    ],
)
def test_checkpoint_callback_keeps(values, arguments, left):
    run = train(values, CheckpointCallback(**{"monitor": "val_loss", "every_n_steps": 1, **arguments}))
    assert on_disk(run) == left


def test_checkpoint_callback_saves_once_and_keeps_the_best_where_steps_that_are_due_validate():
    saved = []
    watching = hl.on("checkpoint", lambda loop, row: saved.append(row.step))
    with hl.run(callbacks=[CheckpointCallback("val/loss", every_n_steps=2), watching], summary=False) as run:
        for step in run.steps(8):
            if step % 2 == 1:
                with run.validate() as val:
                    val.log(loss=abs(step - 3))
    assert (on_disk(run), saved) == ([4, 8], [2, 4, 6, 8])


def test_checkpoint_callback_knows_the_best_and_the_last():
    callback = CheckpointCallback("val_loss", every_n_steps=1)
    run = train([3, 1, 2], callback)
    checkpoints = run.dir / "checkpoints"
    assert (callback.best_value, callback.best_path) == (1.0, checkpoints / "step-00000002")
    assert callback.last_path == checkpoints / "step-00000003"


@pytest.mark.parametrize(
    ("arguments", "saved"),
    [
        ({}, [3, 6, 7]),
        ({"every_n_epochs": 2}, [6, 7]),
        ({"every_n_steps": 2}, [2, 4, 6, 7]),
        ({"every_n_steps": 2, "every_n_epochs": 1}, [2, 3, 4, 6, 7]),
        ({"every_n_epochs": 2, "save_last": False}, [6]),
    ],
)
def test_checkpoint_callback_saves_at(arguments, saved):
    with hl.run(callbacks=[CheckpointCallback(save_top_k=-1, **arguments)], summary=False) as run:
        for _ in run.steps(3, epochs=4):
            if run.step == 6:
                run.request_stop("enough")
    assert [row.step for row in run.checkpoints] == saved


def test_checkpoint_callback_without_a_cadence_saves_after_evaluations_of_its_metric_once_the_step_is_complete():
    callback = CheckpointCallback("val_loss", save_top_k=-1)
    with hl.run(callbacks=[callback], summary=False) as run:
        for i in run.steps(6):
            for name in ("other", "val", "third"):
                if i in (1, 3) or name != "val":
                    with run.validate(name) as evaluation:
                        evaluation.log(loss=i)
            run.log(loss=i)
    assert [(row.step, row.metrics["loss"], row.metrics["val/loss"]) for row in run.checkpoints] == [
        (2, 1, 1.0),
        (4, 3, 3.0),
        (6, 5, 3.0),
    ]
    assert callback.best_path.name == "step-00000002"


def test_checkpoint_callback_metric_of_an_earlier_checkpoint_does_not_make_a_later_one_the_best():
    callback = CheckpointCallback("val_loss", mode="max", every_n_steps=1, save_top_k=2, save_last=False)
    assert on_disk(train([9, None, None, 1], callback)) == [1, 4]


def test_checkpoint_callback_holds_what_the_other_callbacks_made_of_the_step():
    stopping = hl.callbacks.EarlyStoppingCallback("val_loss", patience=9)
    run = train([1, 2, 3], CheckpointCallback(every_n_steps=3), stopping)
    state = json.loads((run.dir / "checkpoints" / "step-00000003" / "state.json").read_text())
    assert (state["step"], state["callbacks"]["early_stopping"]["waited"]) == (3, 2)


def test_checkpoint_callback_continues_after_a_resume_without_losing_track_of_a_file():
    first = train([5, 1, 4], CheckpointCallback("val_loss", every_n_steps=1))
    assert on_disk(first) == [2, 3]
    second = train([5, 1, 4, 3, 0, 2], CheckpointCallback("val_loss", every_n_steps=1), resume=first.dir)
    assert second.dir == first.dir
    assert on_disk(second) == [5, 6]


def test_checkpoint_callback_run_that_was_moved_continues(tmp_path):
    first = train([5, 1, 4], CheckpointCallback("val_loss", every_n_steps=1))
    moved = shutil.move(first.dir, tmp_path / "runs" / "default" / "moved")
    callback = CheckpointCallback("val_loss", every_n_steps=1)
    second = train([5, 1, 4, 3], callback, resume=moved)
    assert on_disk(second) == [2, 4]
    assert callback.best_path == second.dir / "checkpoints" / "step-00000002"


def test_checkpoint_callback_of_another_run_deletes_nothing_there():
    first = train([5, 1, 4], CheckpointCallback("val_loss", every_n_steps=1))
    callback = CheckpointCallback("val_loss", every_n_steps=1)
    with hl.run("fork", callbacks=[callback], summary=False) as second:
        second.load_checkpoint(first.checkpoints[-1].path)
        for i in second.steps(6):
            second.log({"val/loss": 10 - i})
    assert (on_disk(first), on_disk(second), callback.best_value) == ([2, 3], [6], 5.0)


def test_checkpoint_callback_never_deletes_what_others_saved(tmp_path):
    asking = hl.on("step_end", lambda loop: loop.request_checkpoint(), every=2)
    mine = tmp_path / "mine"
    with hl.run(callbacks=[CheckpointCallback(every_n_steps=1), asking], summary=False) as run:
        for i in run.steps(5):
            if i == 0:
                run.save_checkpoint(mine)
                run.save_checkpoint()
    assert mine.exists()
    assert on_disk(run) == [1, 2, 4, 5]


class SavesOutside(FakeLoop):
    """A loop that saves beside its output directory."""

    def save_checkpoint(self, path=None):
        place = self.output_dir.parent / f"elsewhere-{self.step}"
        place.mkdir()
        return super().save_checkpoint(place)


def test_checkpoint_callback_never_deletes_outside_of_the_output_directory(tmp_path):
    loop = SavesOutside(callbacks=[CheckpointCallback(every_n_steps=1)], output_dir=tmp_path / "run")
    loop.callbacks.on_train_start(loop)
    loop.run_steps(3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere-1", "elsewhere-2", "elsewhere-3"]


def test_checkpoint_callback_on_another_rank_deletes_nothing(tmp_path):
    loop = FakeLoop(callbacks=[CheckpointCallback(every_n_steps=1)], output_dir=tmp_path, rank=1, world_size=2)
    (tmp_path / "step-00000001").mkdir()
    loop.callbacks.on_train_start(loop)
    loop.run_steps(3)
    assert [row.step for row in loop.checkpoints] == [1, 2, 3]
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


def test_checkpoint_callback_that_cannot_write_ends_the_training_and_keeps_the_earlier_one():
    def save(path):
        if path.name == ".step-00000003.partial":
            raise OSError(28, "No space left on device")

    runs = []
    note = hl.on("train_start", runs.append)
    with pytest.raises(hl.CheckpointError, match="No space left"):
        train([3, 2, 1, 0], CheckpointCallback("val_loss", every_n_steps=1), note, save=save)
    assert [path.name for path in (runs[0].dir / "checkpoints").glob("step-*")] == ["step-00000002"]


def test_checkpoint_callback_deletion_that_was_cut_short_is_completed():
    with hl.run(callbacks=[CheckpointCallback(every_n_steps=1)], summary=False) as run:
        for i in run.steps(3):
            if i == 1:
                (run.dir / "checkpoints" / ".deleted" / "half").mkdir(parents=True)
    assert [path.name for path in (run.dir / "checkpoints").iterdir()] == ["step-00000003"]


def test_checkpoint_callback_leaves_directories_that_it_did_not_write(caplog):
    with hl.run(callbacks=[CheckpointCallback(every_n_steps=1)], summary=False) as run:
        for i in run.steps(3):
            if i == 2:  # the user's own, in the place of a checkpoint that is deleted next
                place = run.dir / "checkpoints" / "step-00000002"
                shutil.rmtree(place)
                place.mkdir()
                (place / "mine.txt").write_text("mine")
    assert (place / "mine.txt").read_text() == "mine"
    assert "is not a hookline checkpoint; not deleting it" in caplog.text


def test_checkpoint_callback_metric_never_seen_is_warned_about_with_the_names_seen(caplog):
    run = train([1, 2], CheckpointCallback("val/acuracy", every_n_steps=1))
    assert on_disk(run) == [2]
    assert [record.getMessage() for record in caplog.records] == [
        "checkpoint never saw 'val/acuracy': no checkpoint counts as the best. Metrics seen: val/loss."
    ]


def test_checkpoint_callback_metric_that_is_no_number_is_an_error():
    with pytest.raises(hl.OptionError, match="monitor='val_loss' is 'low'"):
        train(["low"], CheckpointCallback("val_loss"))


def test_checkpoint_callback_without_an_output_directory_is_warned_about_at_the_start(caplog):
    loop = FakeLoop(callbacks=[CheckpointCallback()])
    loop.callbacks.on_train_start(loop)
    assert "has no output_dir" in caplog.text


def test_checkpoint_callback_in_a_loop_that_writes_no_rows_saves_before_the_next_one(tmp_path):
    callback = CheckpointCallback(every_n_steps=2, save_top_k=-1)
    loop = FakeLoop(callbacks=[callback], output_dir=tmp_path)
    for step_idx in range(5):
        loop.step = step_idx + 1
        loop.callbacks.on_step_end(loop, step_idx, None, {})
    loop.callbacks.on_train_end(loop, None)
    assert [row.step for row in loop.checkpoints] == [3, 5]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"monitor": ""}, "monitor=''"),
        ({"mode": "up"}, "mode='up'"),
        ({"save_top_k": -2}, "save_top_k=-2"),
        ({"save_top_k": 0, "save_last": False}, "keeps no checkpoint"),
        ({"every_n_steps": 0}, "every_n_steps=0"),
        ({"every_n_epochs": True}, "every_n_epochs=True"),
    ],
)
def test_checkpoint_callback_bad_arguments_are_errors(arguments, message):
    with pytest.raises(hl.OptionError, match=message):
        CheckpointCallback(**arguments)


def test_checkpoint_callbacks_side_by_side_do_not_delete_each_others_best():
    lowest = CheckpointCallback("val_loss", every_n_steps=1, save_last=False)
    highest = CheckpointCallback("val_loss", mode="max", every_n_steps=1, save_last=False)
    train([3, 9, 1, 5], lowest, highest)
    assert [callback.best_path.exists() for callback in (lowest, highest)] == [True, True]
    assert (lowest.best_path.name, highest.best_path.name) == ("step-00000003", "step-00000002")


@pytest.mark.parametrize(
    "rules",
    [
        {"every_n_steps": 2, "save_last": False},
        {"save_last": False},
        {"every_n_steps": 2},
        {"every_n_steps": 2, "save_top_k": 2},
    ],
)
def test_checkpoint_callback_in_a_trainer_keeps_the_step_that_was_validated_best(torch, rules, tmp_path):
    losses = {2: 3.0, 4: 1.0, 6: 2.0, 8: 4.0}

    class Scripted(hl.Trainer):
        def validation_step(self, model, batch):
            return {"loss": torch.tensor(losses[self.step])}

    data = [(torch.randn(4, 2), torch.randn(4, 1)) for _ in range(8)]
    config = hl.TrainerConfig(
        epochs=1,
        validate_every_steps=2,
        checkpoint={"monitor": "val/loss", **rules},
        output_dir=str(tmp_path),
        strict=True,
        summary=False,
    )
    trainer = Scripted(torch.nn.Linear(2, 1), data, data[:1], config=config, loss=torch.nn.functional.mse_loss)
    trainer.fit()
    keeper = trainer.callbacks["checkpoint"]
    assert (keeper.best_value, keeper.best_path.name) == (1.0, "step-00000004")
    assert trainer.best_checkpoint == keeper.best_path
    assert keeper.best_path.exists()


@pytest.mark.parametrize(
    ("monitor", "mode", "expected"),
    [
        ("val/loss", None, "min"),
        ("val_loss", None, "min"),
        ("val/accuracy", None, "max"),
        ("eval/f1", None, "max"),
        ("reward/mean", None, "max"),
        ("val/accuracy_loss", None, "min"),
        ("val/perplexity", None, "min"),
        ("something", None, "min"),
        ("val/accuracy", "min", "min"),
        ("val/loss", "max", "max"),
    ],
)
def test_checkpoint_callback_and_early_stopping_take_the_direction_from_the_name(monitor, mode, expected):
    assert CheckpointCallback(monitor, mode=mode).mode == expected
    assert hl.callbacks.EarlyStoppingCallback(monitor, mode=mode).mode == expected


def test_checkpoint_callback_in_a_second_training_begins_with_none_of_the_first():
    callback = CheckpointCallback("val_loss", every_n_steps=1)
    first, second = train([1, 2], callback), train([4, 3, 5], callback)
    assert (on_disk(first), on_disk(second)) == ([1, 2], [2, 3])
    assert callback.best_path == second.dir / "checkpoints" / "step-00000002"


@pytest.mark.parametrize(("often", "rarely", "left"), [(1, 1, [5]), (2, 1, [5]), (2, 4, [5])])
def test_checkpoint_callbacks_that_save_the_same_steps_leave_what_one_of_them_keeps(often, rarely, left):
    rules = [CheckpointCallback(every_n_steps=often), CheckpointCallback(every_n_steps=rarely)]
    assert on_disk(train([None] * 5, *rules)) == left


@pytest.mark.parametrize(
    "arranged",
    [
        lambda one, other: [hl.CallbackCollection([one]), other],
        lambda one, other: [one, hl.CallbackCollection([other])],
        lambda one, other: [hl.CallbackCollection([one]), hl.CallbackCollection([other])],
        lambda one, other: [hl.CallbackCollection([hl.CallbackCollection([one, other])])],
    ],
)
def test_checkpoint_callbacks_in_groups_leave_what_one_of_them_keeps(arranged):
    rules = arranged(CheckpointCallback(every_n_steps=1), CheckpointCallback(every_n_steps=1))
    assert on_disk(train([None] * 6, *rules)) == [6]


def test_checkpoint_callbacks_of_a_kind_of_ones_own_leave_what_one_of_them_keeps():
    class Own(CheckpointCallback):
        pass

    assert on_disk(train([None] * 5, CheckpointCallback(every_n_steps=1), Own(every_n_steps=1))) == [5]


def test_checkpoint_callbacks_one_of_which_keeps_all_leave_all():
    rules = [CheckpointCallback(every_n_steps=1), CheckpointCallback(every_n_steps=1, save_top_k=-1)]
    assert on_disk(train([None] * 3, *rules)) == [1, 2, 3]


class Noted(hl.Callback):
    def __init__(self):
        self.notes = []

    def on_checkpoint(self, loop, row):
        self.notes.append(row.step)

    def on_train_end(self, loop, artifacts):
        self.notes.append([(row.step, row.path.exists()) for row in artifacts.checkpoints])


def test_checkpoint_callback_has_saved_when_the_others_are_notified_of_the_end(torch, tmp_path):
    rule = {"checkpoint": {"every_n_steps": 2}, "output_dir": str(tmp_path), "summary": False}
    noted, bare = Noted(), Noted()
    data = [(torch.ones(1), torch.ones(1))] * 6
    config = hl.TrainerConfig(max_steps=3, batch_size=2, callbacks=[noted], **rule)
    hl.Trainer(torch.nn.Linear(1, 1), data, config=config, loss=torch.nn.functional.mse_loss).fit()
    train([None] * 3, CheckpointCallback(every_n_steps=2), bare)
    assert noted.notes == bare.notes == [2, 3, [(3, True)]]
