"""The checkpoints of a Trainer: their content, how they are written, and handling of damaged ones."""

import hashlib
import json
import os
import subprocess
import textwrap
import time

import pytest

import hookline as hl
from hookline.loops.trainer_config import CheckpointRules

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def network(width=4, *, name="linear"):
    torch.manual_seed(3)
    return torch.nn.ModuleDict({name: torch.nn.Linear(width, 1)})


def squares(model, batch):
    (layer,) = model.values()
    return {"loss": layer(batch).square().mean()}


def batches(width=4):
    return list(torch.randn(6, 2, width, generator=torch.Generator().manual_seed(1)))


def trainer_in(root, *callbacks, model=None, data=None, optimizer=None, scheduler=None, **settings):
    base = {"epochs": 1, "output_dir": str(root), "summary": False, "strict": True}
    config = hl.TrainerConfig(**(base | settings))
    given = {"optimizer": optimizer, "scheduler": scheduler, "callbacks": callbacks}
    return hl.Trainer(model or network(), data or batches(), config=config, training_step=squares, **given)


EVERY_TWO = CheckpointRules(every_n_steps=2, save_top_k=-1)


def saved_in(root):
    """A training with checkpoints at the steps 2, 4 and 6."""
    trainer = trainer_in(root, checkpoint=EVERY_TWO)
    trainer.fit()
    return trainer


def weights(trainer):
    return {name: value.tolist() for name, value in trainer.model.state_dict().items()}


class Stop(hl.Callback):
    """Ends a training at a step."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, loop, step_idx, batch, metrics):
        if loop.step == self.step:
            loop.request_stop("enough")


# What they hold


def test_checkpoint_of_a_trainer_has_everything_and_a_manifest_of_it(tmp_path):
    before = time.time()
    trainer = trainer_in(tmp_path, max_steps=3)
    trainer.fit()
    (row,) = trainer.checkpoints
    place = trainer.output_dir / "checkpoints" / "step-00000003"
    assert (row.step, row.path, row.kind, before <= row.time <= time.time()) == (3, place, "end", True)
    assert row.metrics == dict(trainer.metrics)
    files = {file.name: file.stat().st_size for file in place.iterdir()}
    assert set(files) == {"manifest.json", "state.json", "model.pt", "optimizer.pt", "random-rank0.pt"}
    assert row.bytes == sum(files.values())
    manifest = json.loads((place / "manifest.json").read_text())
    assert manifest.pop("files") == {name: size for name, size in files.items() if name != "manifest.json"}
    digests = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in place.iterdir()}
    assert manifest.pop("sha256") == {name: digest for name, digest in digests.items() if name != "manifest.json"}
    assert (manifest.pop("#"), len(manifest.pop("crc")) > 0) == (0, True)
    assert manifest == {"step": 3, "kind": "end", "time": row.time, "metrics": row.metrics}


def test_checkpoint_weights_are_read_by_torch_alone(tmp_path):
    trainer = trainer_in(tmp_path)
    trainer.fit()
    read = torch.load(trainer.checkpoints[-1].path / "model.pt", weights_only=True)
    other = network()
    other.load_state_dict(read)
    assert weights(trainer) == {name: value.tolist() for name, value in other.state_dict().items()}


def test_checkpoint_kinds_say_why_it_was_saved(tmp_path):
    class Best(hl.Callback):
        def on_step_end(self, loop, step_idx, batch, metrics):
            if step_idx == 1:
                self.row = loop.save_checkpoint(kind="best")

    best = Best()
    trainer = trainer_in(tmp_path, best, Stop(4))
    trainer.fit()
    assert [(row.step, row.kind) for row in trainer.checkpoints] == [(2, "best"), (4, "stop")]
    assert (best.row.step, best.row.path, best.row.kind) == (2, trainer.checkpoints[0].path, "best")
    events = [record for record in hl.read(trainer.output_dir) if getattr(record, "name", None) == "checkpoint"]
    assert [(event.step, event.data["kind"], event.data["path"]) for event in events] == [
        (row.step, row.kind, str(row.path)) for row in trainer.checkpoints
    ]


def test_checkpoint_asked_for_twice_in_a_step_is_saved_in_both_places_once(tmp_path):
    class Greedy(hl.Callback):
        def on_train_batch_end(self, loop, outputs, batch, batch_idx):
            if batch_idx == 1:
                loop.request_checkpoint()
                loop.save_checkpoint(tmp_path / "mine")
                loop.save_checkpoint(tmp_path / "mine")
                loop.save_checkpoint()
                self.early = (tmp_path / "mine").exists()

    greedy = Greedy()
    trainer = trainer_in(tmp_path, greedy, max_steps=3, save_at_end=False)
    trainer.fit()
    assert [row.path for row in trainer.checkpoints] == [
        tmp_path / "mine",
        trainer.output_dir / "checkpoints" / "step-00000002",
    ]
    assert greedy.early is False
    assert json.loads((tmp_path / "mine" / "state.json").read_text())["step"] == 2


def test_checkpoint_in_a_validation_has_the_weights_of_training_and_not_the_averages(tmp_path):
    class Saves(hl.Callback):
        def on_validation_batch_end(self, loop, outputs, batch, batch_idx):
            loop.save_checkpoint()

    seen = []

    class Weighs(hl.Callback):
        def on_step_end(self, loop, step_idx, batch, metrics):
            seen.append({name: value.tolist() for name, value in loop.model.state_dict().items()})

    config = hl.TrainerConfig(epochs=1, output_dir=str(tmp_path), summary=False, strict=True, validate_every_steps=3)
    callbacks = [hl.callbacks.EMA(0.9), Saves(), Weighs()]
    trainer = hl.Trainer(network(), batches(), batches()[:2], config=config, training_step=squares, callbacks=callbacks)
    trainer.fit()
    saved = torch.load(trainer.checkpoints[0].path / "model.pt", weights_only=True)
    assert [row.step for row in trainer.checkpoints] == [3, 6]
    assert {name: value.tolist() for name, value in saved.items()} == seen[2]


def test_checkpoint_without_a_record_needs_a_path(tmp_path):
    trainer = trainer_in(None, output_dir=None)
    trainer.fit()
    assert trainer.checkpoints == []
    with pytest.raises(hl.CheckpointError, match="save_checkpoint"):
        trainer.save_checkpoint()
    row = trainer.save_checkpoint(tmp_path / "mine")
    other = trainer_in(tmp_path)
    other.resume(row.path)
    assert (other.step, weights(other)) == (6, weights(trainer))


def test_checkpoint_before_the_training_begins_needs_a_path(tmp_path):
    with pytest.raises(hl.CheckpointError, match="no directory before it begins"):
        trainer_in(tmp_path).save_checkpoint()


def test_checkpoint_of_a_going_back_is_saved_although_one_of_that_step_is_there(tmp_path):
    trainer = trainer_in(tmp_path)
    trainer.fit()
    early = trainer_in(tmp_path / "other", Stop(2))
    early.fit()
    first = trainer.checkpoints[-1].time
    trainer.resume(early.checkpoints[-1].path)
    assert [row.step for row in trainer.checkpoints] == [6]
    assert trainer.checkpoints[-1].time > first
    assert early.output_dir in trainer.checkpoints[-1].path.parents


# How they are written


CHILD = """
    import sys, torch
    import hookline as hl
    from hookline.loops.trainer_config import CheckpointRules
    torch.set_num_threads(1)
    gate, root = sys.argv[1:]

    def wait():
        print("inside", flush=True)
        sys.stdin.readline()

    class Last(hl.Callback):
        def on_step_end(self, loop, step_idx, batch, metrics):
            if loop.step == 3 and gate == "torch.save":
                save = torch.save
                def half(values, path):
                    save(values, path)
                    wait()
                torch.save = half
            if loop.step == 3 and gate == "rename":
                from pathlib import Path
                rename = Path.rename
                def once(path, target):
                    rename(path, target)
                    if path.parent.name == "checkpoints":  # other threads rename files, too
                        wait()
                Path.rename = once

    torch.manual_seed(3)
    model = torch.nn.ModuleDict({"linear": torch.nn.Linear(4, 1)})
    data = list(torch.randn(6, 2, 4, generator=torch.Generator().manual_seed(1)))
    config = hl.TrainerConfig(epochs=1, output_dir=root, summary=False, strict=True)
    squares = lambda model, batch: {"loss": model["linear"](batch).square().mean()}
    class Saves(hl.Callback):
        def on_log(self, loop, step, metrics):
            if gate == "torch.save" and step in (2, 3):
                loop.save_checkpoint()
            if gate == "rename" and step in (2, 3):
                loop.save_checkpoint(loop.output_dir / "checkpoints" / "step-latest")
    trainer = hl.Trainer(model, data, config=config, training_step=squares, callbacks=[Last(), Saves()])
    trainer.fit()
"""


def killed_inside(programs, gate, root):
    """The directory of a training that was killed while it saved its second checkpoint."""
    program = programs.start("-c", textwrap.dedent(CHILD), gate, root, merge=False)
    assert program.stdout.readline() == "inside\n"
    program.kill()
    program.communicate()
    return next((root / "default").iterdir())


def test_checkpoint_whose_writer_is_killed_leaves_the_previous_one_whole(torch_programs, tmp_path):
    whole = trainer_in(tmp_path / "whole")
    whole.fit()
    run = killed_inside(torch_programs, "torch.save", tmp_path / "killed")
    names = lambda: sorted(path.name for path in (run / "checkpoints").iterdir())  # noqa: E731
    assert names() == [".step-00000003.partial", "step-00000002"]
    again = trainer_in(tmp_path / "killed", resume="auto")  # which saves at the end, at step 6
    again.fit()
    assert (again.output_dir, weights(again)) == (run, weights(whole))
    assert [row.metrics for row in again.history] == [row.metrics for row in whole.history]
    assert names() == ["step-00000002", "step-00000006"]


def test_checkpoint_whose_writer_is_killed_while_replacing_one_is_still_there(torch_programs, tmp_path):
    run = killed_inside(torch_programs, "rename", tmp_path)
    names = lambda: sorted(path.name for path in (run / "checkpoints").iterdir())  # noqa: E731
    assert names() == [".step-latest.old", ".step-latest.partial"]
    again = trainer_in(tmp_path)
    again.resume("last")
    assert (again.output_dir, again.step) == (run, 6)
    assert [row.step for row in again.history] == [1, 2, 3, 4, 5, 6]
    assert names() == [".step-latest.old", "step-00000006", "step-latest"]
    again.save_checkpoint(run / "checkpoints" / "step-latest")
    assert names() == ["step-00000006", "step-latest"]


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 64 megabytes: a run preallocates nine of them, and a checkpoint with `FillUp` takes eight."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", disk], check=True)
    yield disk
    subprocess.run(["umount", disk], check=True)


class FillUp(hl.Callback):
    """Fills a disk up at a step but for a few kilobytes.

    A thread of the run may be preallocating at that moment, and give back what it got when it finds no more. Its state
    makes a checkpoint larger than that, so there is never room for one.
    """

    def __init__(self, disk, step):
        self.disk, self.step = disk, step

    def state_dict(self):
        return {"padding": "x" * (8 << 20)}

    def on_step_end(self, loop, step_idx, batch, metrics):
        if loop.step == self.step:
            with (self.disk / "filler").open("wb", buffering=0) as filler:
                with pytest.raises(OSError, match="No space left"):
                    while filler.write(bytes(4096)):
                        pass
                filler.truncate(max(0, filler.tell() - 8192))


def test_checkpoint_on_a_full_disk_leaves_the_previous_one_whole(tmp_path, small_disk):
    whole = saved_in(tmp_path / "whole")
    first = trainer_in(small_disk, FillUp(small_disk, 4), checkpoint=EVERY_TWO)
    with pytest.raises(hl.CheckpointError, match="step-00000004.* cannot be written"):
        first.fit()
    assert [path.name for path in (first.output_dir / "checkpoints").iterdir()] == ["step-00000002"]
    (small_disk / "filler").unlink()
    again = trainer_in(small_disk, FillUp(small_disk, None), checkpoint=EVERY_TWO)
    again.resume()
    assert weights(again) == weights(whole)
    assert [row.metrics for row in again.history] == [row.metrics for row in whole.history]


# Those that are damaged


def cut(path):
    path.write_bytes(path.read_bytes()[:-7])


def flip(path):
    """Change one bit: of a weight, in a file of tensors."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x40
    path.write_bytes(data)


def spoil(path):
    path.write_bytes(b"\0" * path.stat().st_size)


FILES = ["model.pt", "optimizer.pt", "random-rank0.pt", "state.json", "manifest.json"]
DAMAGES = {"missing": lambda path: path.unlink(), "cut short": cut, "spoilt": spoil, "flipped": flip}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("file", FILES)
def test_resume_from_a_damaged_checkpoint_names_the_file_and_changes_nothing(tmp_path, file, damage):
    place = saved_in(tmp_path).checkpoints[1].path
    DAMAGES[damage](place / file)
    trainer = trainer_in(tmp_path, optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=0.5))
    before = weights(trainer)
    with pytest.raises(hl.CheckpointError) as caught:
        trainer.resume(place)
    assert file in str(caught.value)
    assert str(place) in str(caught.value)
    assert (weights(trainer), trainer.step, trainer.optimizer.state_dict()["state"]) == (before, 0, {})
    assert trainer.optimizer.param_groups[0]["lr"] == 0.5


def test_resume_from_a_damaged_checkpoint_says_which_others_are_whole(tmp_path):
    place = saved_in(tmp_path).checkpoints[1].path
    flip(place / "model.pt")
    said = r"content of model.pt changed since it was saved.*Intact checkpoints beside it: step-00000002, step-00000006"
    with pytest.raises(hl.CheckpointError, match=said):
        trainer_in(tmp_path).resume(place)


@pytest.mark.parametrize("damage", ["missing", "cut short", "flipped"])
@pytest.mark.parametrize("file", FILES)
def test_resume_of_the_last_skips_damaged_ones_with_a_warning(tmp_path, caplog, file, damage):
    whole = saved_in(tmp_path)
    for place in [row.path for row in whole.checkpoints][1:]:
        DAMAGES[damage](place / file)
    again = trainer_in(tmp_path, checkpoint=EVERY_TWO)
    recording = hl.testing.RecordingCallback()
    again.callbacks.add(recording)
    again.resume("last")
    warnings = [record.getMessage() for record in caplog.records if "Skipping the damaged" in record.getMessage()]
    assert [("step-00000006" in text, "step-00000004" in text, file in text) for text in warnings] == [
        (True, False, True),
        (False, True, True),
    ]
    assert recording.names().count("on_step_end") == 4
    assert weights(again) == weights(whole)
    assert [(row.step, row.metrics) for row in again.history] == [(row.step, row.metrics) for row in whole.history]


def test_resume_auto_passes_over_a_damaged_one(tmp_path, caplog):
    stopped = trainer_in(tmp_path, Stop(5), checkpoint=EVERY_TWO)
    stopped.fit()
    cut(stopped.checkpoints[-1].path / "model.pt")
    again = trainer_in(tmp_path, resume="auto", checkpoint=EVERY_TWO)
    again.fit()
    assert "step-00000005: model.pt has" in caplog.text
    assert (again.output_dir, weights(again)) == (stopped.output_dir, weights(saved_in(tmp_path / "whole")))


def test_resume_takes_the_newest_by_the_time_it_was_saved_also_after_files_were_copied(tmp_path):
    trainer = saved_in(tmp_path)
    place = trainer.checkpoints[0].path
    os.utime(place / "state.json")  # as a copy does, of one file after the other
    os.utime(place)
    again = trainer_in(tmp_path)
    again.resume("last")
    assert [row.step for row in again.checkpoints] == [6]
    assert [row.step for row in again.history] == [1, 2, 3, 4, 5, 6]


# Those that do not fit


def other_shapes():
    return {"model": network(5), "data": batches(5)}


def other_names():
    return {"model": network(name="dense")}


def other_optimizer():
    return {"optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.1)}


def other_groups():
    split = lambda parameters: torch.optim.AdamW([{"params": [one]} for one in parameters])  # noqa: E731
    return {"optimizer": split}


def adam():
    return {"optimizer": torch.optim.Adam}


def a_schedule():
    return {"schedule": "linear"}


MISFITS = [
    (other_shapes, r"another model: linear.weight is \(1, 4\) there and \(1, 5\) here"),
    (other_names, "another model: dense.bias is not in the checkpoint"),
    (other_optimizer, "another optimizer: AdamW there, SGD here"),
    (adam, "another optimizer: AdamW there, Adam here"),
    (other_groups, r"another optimizer: its groups have \[2\] parameters, and \[1, 1\] here"),
    (a_schedule, "only this training has a learning-rate schedule"),
]


@pytest.mark.parametrize(("made", "message"), MISFITS, ids=[made.__name__ for made, _ in MISFITS])
def test_resume_from_a_checkpoint_that_does_not_fit_says_why_and_changes_nothing(tmp_path, made, message):
    saved = saved_in(tmp_path)
    trainer = trainer_in(tmp_path, **made())
    before = weights(trainer)
    with pytest.raises(hl.CheckpointError, match=message):
        trainer.resume(saved.checkpoints[0].path)
    assert (weights(trainer), trainer.step, trainer.optimizer.state_dict()["state"]) == (before, 0, {})


def test_resume_without_the_schedule_of_the_checkpoint_says_so(tmp_path):
    trainer_in(tmp_path, schedule="linear").fit()
    with pytest.raises(hl.CheckpointError, match="only the checkpoint has a learning-rate schedule"):
        trainer_in(tmp_path).resume()


def test_resume_with_another_kind_of_schedule_says_so(tmp_path):
    trainer_in(tmp_path, schedule="linear").fit()
    other = lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2)  # noqa: E731
    with pytest.raises(hl.CheckpointError, match="another scheduler: LambdaLR there, StepLR here"):
        trainer_in(tmp_path, scheduler=other).resume()


def test_resume_from_a_checkpoint_of_a_bare_run_says_that_it_is_not_one_of_a_trainer(tmp_path):
    with hl.run(root=tmp_path, summary=False) as run:
        for _ in run.steps(2):
            pass
        run.save_checkpoint()
    trainer = trainer_in(tmp_path)
    with pytest.raises(hl.CheckpointError, match="model.pt is missing: that checkpoint was not saved by a Trainer"):
        trainer.resume(run.checkpoints[-1].path)
    assert trainer.step == 0


def test_resume_from_a_directory_that_is_no_checkpoint_says_so(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(hl.UnknownNameError, match="no such run"):
        trainer_in(tmp_path).resume(tmp_path / "empty")


def test_resume_from_a_checkpoint_that_is_gone_names_those_beside_it(tmp_path):
    folder = saved_in(tmp_path).output_dir / "checkpoints"
    with pytest.raises(hl.UnknownNameError) as caught:
        trainer_in(tmp_path).resume(folder / "step-7")
    said = f"resume='{folder}/step-7': there is no such checkpoint or run. {folder} has "
    assert str(caught.value) == f"{said}step-00000002, step-00000004, step-00000006."


@pytest.mark.parametrize(
    ("name", "hint"), [("gone/step-7", "There is no .*gone either"), ("x", "There is no checkpoint in")]
)
def test_resume_from_a_checkpoint_that_is_gone_says_that_there_is_none_beside_it(tmp_path, name, hint):
    with pytest.raises(hl.UnknownNameError, match=f"no such checkpoint or run. {hint}"):
        trainer_in(tmp_path).resume(tmp_path / name)


def test_resume_from_an_unknown_run_names_a_few_of_many(tmp_path):
    for number in range(9):
        (tmp_path / "default" / f"run-{number}").mkdir(parents=True)
        (tmp_path / "default" / f"run-{number}" / "run.json").write_text("{}")
    with pytest.raises(hl.UnknownNameError, match="Known: auto, last, run-8, run-7, run-6 and 6 more.$"):
        trainer_in(tmp_path).resume("zzzz")


# What callbacks keep


class Keeps(hl.Callback):
    """A state with tensors deep inside."""

    def __init__(self):
        self.state = {"list": [torch.zeros(2), {"deep": torch.ones(1, dtype=torch.int64)}], "word": "no", "none": None}

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


def test_state_with_tensors_comes_back_under_a_trainer_and_a_run(tmp_path):
    first, second, third = Keeps(), Keeps(), Keeps()
    first.state = {"list": [torch.arange(3.0), {"deep": torch.tensor([7])}], "word": "yes", "none": None}
    trainer = trainer_in(tmp_path / "trainer", first)
    trainer.fit()
    trainer_in(tmp_path / "trainer", second).resume()
    with hl.run(root=tmp_path, callbacks=[first], summary=False, strict=True) as run:
        run.save_checkpoint()
    with hl.run(root=tmp_path, callbacks=[third], resume=run.dir, summary=False, strict=True):
        pass
    for state in (second.state, third.state):
        assert (state["list"][0].tolist(), state["list"][1]["deep"].tolist()) == ([0.0, 1.0, 2.0], [7])  # type: ignore[index]
        assert (state["list"][1]["deep"].dtype, state["word"], state["none"]) == (torch.int64, "yes", None)  # type: ignore[index]


def test_state_of_an_average_comes_back_under_a_trainer_and_a_run(tmp_path):
    ema, again, bare = (hl.callbacks.EMA(0.5) for _ in range(3))
    trainer = trainer_in(tmp_path, ema, Stop(3))
    trainer.fit()
    kept = {name: average.tolist() for name, average in ema.averages.items()}
    assert kept != weights(trainer)
    second = trainer_in(tmp_path, again, max_steps=3)
    second.resume()
    with hl.run(root=tmp_path, callbacks=[bare], summary=False) as run:
        run.model = network()
        run.load_checkpoint(trainer.checkpoints[-1].path)
    for one in (again, bare):
        assert ({name: average.tolist() for name, average in one.averages.items()}, one.updates) == (kept, 3)


def test_state_that_a_callback_cannot_take_back_does_not_stop_a_training(tmp_path, caplog):
    class Picky(hl.Callback):
        def state_dict(self):
            return {"version": 1}

        def load_state_dict(self, state):
            raise ValueError(state["version"])

    trainer_in(tmp_path, Picky(), Stop(3)).fit()
    again = trainer_in(tmp_path, Picky(), strict=False)
    again.resume()
    assert (again.state, again.step) == ("completed", 6)
    assert "load_state_dict" in caplog.text


@pytest.mark.parametrize(
    ("length", "saved"),
    [({"epochs": 2}, [6, 12]), ({"epochs": None, "max_steps": 20}, list(range(2, 21, 2)))],
    ids=["by epochs", "by steps"],
)
def test_resume_auto_without_a_rule_saves_after_epochs_or_tenths_of_the_steps(tmp_path, length, saved):
    trainer = trainer_in(tmp_path, resume="auto", **length)
    trainer.fit()
    assert [row.step for row in trainer.checkpoints] == saved
