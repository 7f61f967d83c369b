"""Options of the recorder that its other tests leave at the default."""

import os
import threading

import pytest

import hookline as hl
from hookline.core.errors import OptionError
from hookline.record.recorder import Recorder


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
