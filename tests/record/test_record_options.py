"""Options of the recorder that its other tests leave at the default."""

import os
import threading

import pytest

import hookline as hl
from hookline._engine.errors import ConfigError, OptionError
from hookline._record import run_directory
from hookline._record.recorder import Recorder


def test_recorder_durability_power_brings_rows_to_the_disk_off_the_training_thread(tmp_path, monkeypatch):
    synced, threads = threading.Event(), []

    def fdatasync(descriptor):
        threads.append(threading.current_thread())
        synced.set()

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    monkeypatch.setattr(os, "fsync", fdatasync)
    recorder = Recorder(tmp_path, durability="power", sync_seconds=0.01)
    recorder.log(loss=0.5, step=1)
    assert synced.wait(20)
    assert threads[0] is not threading.current_thread()
    recorder.close()


def test_recorder_durability_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(OptionError, match="durability='luck'"):
        Recorder(tmp_path, durability="luck")


def test_read_of_one_writer_has_only_its_records_under_their_own_names(tmp_path):
    for name in ("main", "rank1"):
        recorder = Recorder(tmp_path, name=name)
        recorder.log(loss=1.0, step=1)
        recorder.close()
    named = {writer: [list(record.values) for record in hl.read(tmp_path, writer=writer)] for writer in (None, "rank1")}
    assert named == {None: [["loss"], ["rank1/loss"]], "rank1": [["loss"]]}


def test_recorder_name_too_long_for_a_file_is_refused_before_anything_is_made(tmp_path):
    with pytest.raises(OptionError, match="name='www.*100 bytes at most"):
        hl.Recorder(tmp_path / "run", name="w" * 300)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("project", "said"),
    [
        (".h", "project='.h': runs of a project that begins with '.' are never listed"),
        ("a\0b", "project='a.x00b': give a name without '/'"),
        ("a/b", "project='a/b': give a name without '/'"),
        ("..", "project='..': give a name"),
        ("", "project='': give a name"),
        ("half \ud800", "project='half .ud800': give a name"),
        ("é" * 128, "project='éé.*at most 255 bytes"),
    ],
)
def test_run_in_a_project_that_is_no_name_is_refused_and_nothing_is_made(project, said, tmp_path):
    with pytest.raises(ConfigError, match=said), hl.run("odd", project=project, root=tmp_path, summary=False):
        pass
    assert list(tmp_path.iterdir()) == []


def test_run_in_a_project_of_the_longest_name_is_recorded(tmp_path):
    directory = run_directory.create(tmp_path, "e" * 255, {"git": None})
    assert (directory / "run.json").is_file()
