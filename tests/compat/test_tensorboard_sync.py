"""`hookline.compat.tensorboard.sync`: a run records what the writers of torch, tensorboardX and TensorBoard write."""

import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary import Writer
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from torch.utils.tensorboard import SummaryWriter as TorchWriter

import hookline as hl
from hookline.compat.tensorboard import SummaryWriter, sync

tensorboardX = pytest.importorskip("tensorboardX")

WRITERS = {"torch": TorchWriter, "tensorboardX": tensorboardX.SummaryWriter}


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with hl.run("synced", root=tmp_path / "records", summary=False, console=False, code=False) as run:
        yield run


def recorded(run, kind="Metrics"):
    run.recorder.flush()
    return [record for record in hl.read(run.dir) if type(record).__name__ == kind]


def rows(run):
    return [(record.axis, record.step, record.values) for record in recorded(run)]


@pytest.mark.parametrize("library", WRITERS)
def test_sync_records_every_kind_of_value_and_leaves_the_files_as_they_are(run, library):
    with sync(run):
        writer = WRITERS[library]("exp")
        writer.add_scalar("loss", 0.5, 3, 1000.5)
        writer.add_scalars("both", {"a": 1.0, "b": 2.0}, 4)
        writer.add_text("note", "**hi**", 1)
        writer.add_image("image", np.zeros((3, 4, 5)), 2)
        writer.add_histogram("histogram", torch.arange(10.0), 2)
        if library == "torch":  # tensorboardX needs another package for it
            writer.add_audio("audio", np.zeros((1, 100)), 2, 8000)
        writer.add_pr_curve("curve", np.array([0, 1]), np.array([0.1, 0.9]), 2)
        writer.add_hparams({"lr": 0.5, "name": "x"}, {"accuracy": 0.25})
        writer.close()
    found = rows(run)
    assert [row[1:] for row in found] == [
        (3, {"loss": 0.5}),
        (4, {"both/a": 1.0}),
        (4, {"both/b": 2.0}),
        (0, {"accuracy": 0.25}),
    ]
    assert recorded(run)[0].time == 1000.5
    sound = {("audio", "audio", 2)} if library == "torch" else set()
    assert {(record.name, record.type, record.step) for record in recorded(run, "Media")} == sound | {
        ("note", "markdown", 1),
        ("image", "image", 2),
        ("histogram", "histogram", 2),
        ("curve", "plot", 2),
    }
    assert dict(run.config) == {"lr": 0.5, "name": "x"}
    files = EventAccumulator("exp").Reload()
    assert ([event.value for event in files.Scalars("loss")], files.Tags()["images"]) == ([0.5], ["image"])


def test_sync_records_writers_of_tensorboard_itself(run):
    with sync(run):
        writer = Writer(_directory_output("exp"))
        writer.add_scalar("loss", 0.5, 3)
        writer.close()
    assert rows(run) == [("train", 3, {"loss": 0.5})]


def _directory_output(path):
    from tensorboard.summary import _output  # the one kind of output that there is, which has no public name yet

    return _output.DirectoryOutput(path)


def test_sync_names_values_by_directory_and_records_writers_of_hookline_in_the_run(run):
    with sync(run):
        for directory in ("exp/train", "exp/val", "other/deep"):
            writer = TorchWriter(directory)
            writer.add_scalar("loss", 1.0, 1)
            writer.close()
        own = SummaryWriter("exp/more")
        own.add_scalar("loss", 1.0, 1)
        own.close()
    assert own.run is run
    assert [(axis, next(iter(values))) for axis, _, values in rows(run)] == [
        ("train", "train/loss"),
        ("eval", "val/loss"),
        ("train", "deep/loss"),
        ("train", "loss"),
    ]


@pytest.mark.parametrize("library", WRITERS)
def test_stop_restores_the_methods_and_nothing_is_recorded_after_it(run, library):
    patched = [EventFileWriter, tensorboardX.event_file_writer.EventFileWriter]
    originals = [each.add_event for each in patched]
    first, second = sync(run), sync(run)
    writer = WRITERS[library]("exp")
    second.stop()
    writer.add_scalar("loss", 1.0, 1)
    assert all(each.add_event is not original for each, original in zip(patched, originals, strict=True))
    first.stop()
    first.stop()
    writer.add_scalar("loss", 2.0, 2)
    writer.close()
    assert [step for _, step, _ in rows(run)] == [1]
    assert [each.add_event for each in patched] == originals


def test_patch_of_someone_else_stays_when_sync_stops(run, monkeypatch):
    calls = []
    synced = sync(run)
    ours = EventFileWriter.add_event

    def theirs(self, event):
        calls.append(event.step)
        ours(self, event)

    monkeypatch.setattr(EventFileWriter, "add_event", theirs)
    synced.stop()
    with TorchWriter("exp") as writer, sync(run):
        writer.add_scalar("loss", 1.0, 5)
    assert EventFileWriter.add_event is theirs
    assert (calls[-1], [step for _, step, _ in rows(run)]) == (5, [5])


def test_method_that_someone_has_saved_and_put_back_records_nothing_twice(run, monkeypatch):
    synced = sync(run)
    saved = EventFileWriter.add_event
    synced.stop()
    monkeypatch.setattr(EventFileWriter, "add_event", saved)
    with TorchWriter("exp") as writer, sync(run):
        writer.add_scalar("loss", 1.0, 5)
    assert EventFileWriter.add_event is saved
    assert [step for _, step, _ in rows(run)] == [5]


def test_event_that_cannot_be_recorded_does_not_reach_the_program(run, caplog):
    with sync(run):
        writer = TorchWriter("exp")
        writer.add_histogram_raw("bad", float("nan"), 1, 1, 1, 1, [1.0], [1], 1)
        writer.add_tensor("several", torch.zeros(3))
        writer.add_mesh("mesh", torch.zeros(1, 3, 3))
        writer.add_scalar("loss", 1.0, 1)
        writer.close()
    assert [step for _, step, _ in rows(run)] == [1]
    warned = Counter(record.message.partition(":")[0] for record in caplog.records if record.name == "hookline")
    assert warned == {
        "An event of TensorBoard is not recorded": 1,
        "SummaryWriter.add_tensor is accepted, but tensors of several values are not recorded.": 1,
        "Values of TensorBoard's plugin 'mesh' are not recorded.": 1,
    }


def test_run_that_has_ended_gets_nothing_and_sync_of_something_else_is_refused(run, tmp_path):
    synced = sync(run)
    with TorchWriter("exp") as writer:
        run.finish()
        writer.add_scalar("loss", 1.0, 1)
    synced.stop()
    assert rows(run) == []
    with pytest.raises(hl.OptionError, match="give a run that has begun"):
        sync(hl.run("new", root=tmp_path))
    with pytest.raises(hl.OptionError, match="give a run that has begun"):
        sync("run")


LATER = """
import sys
import hookline as hl
from hookline.compat.tensorboard import sync

with hl.run("late", summary=False) as run, sync(run):
    assert not {"tensorboard", "tensorboardX", "torch"} & set(sys.modules)
    from tensorboardX import SummaryWriter
    with SummaryWriter("exp") as writer:
        writer.add_scalar("loss", 1.0, 1)
    from tensorboard.summary.writer.event_file_writer import EventFileWriter
    import tensorboard.summary as summary
    assert EventFileWriter.add_event.__wrapped__
print(*(record.values for record in hl.read(run.dir) if type(record).__name__ == "Metrics"))
"""


def test_sync_patches_a_library_that_is_imported_later(tmp_path):
    done = subprocess.run([sys.executable, "-c", LATER], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("{'loss': 1.0}\n", 0), done.stderr
