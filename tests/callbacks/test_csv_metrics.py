"""CsvMetrics: the file, its header, and a resume."""

import csv
import threading

import pytest

import hookline as hl
from hookline._engine.metrics import Deferred, MetricsRow
from hookline._engine.state import LoopArtifacts
from hookline.callbacks import CsvMetrics
from hookline.testing import FakeLoop


def cells(path):
    with path.open(newline="") as file:
        return list(csv.reader(file))


def column(path, name):
    with path.open(newline="") as file:
        return [row[name] for row in csv.DictReader(file)]


def trained(path, losses, state=None):
    """A loop with a row for each loss, and the callback's state after it."""
    callback = CsvMetrics(path, clock=lambda: 5.0)
    if state is not None:
        callback.load_state_dict(state)
    loop = FakeLoop(callbacks=[callback])
    loop.callbacks.on_train_start(loop)
    loop.run_steps(len(losses), lambda step_idx: {"loss": losses[step_idx]})
    state = callback.state_dict()
    loop.callbacks.close()
    return state


def test_csv_metrics_has_a_line_for_each_row_and_a_complete_header(tmp_path):
    path = tmp_path / "deep" / "rows.csv"
    with hl.run(root=None, callbacks=[CsvMetrics(path, clock=lambda: 5.0)], strict=True, summary=False) as run:
        for i in run.steps(2):
            run.log(loss=0.5, time="noon")
            if i == 1:
                run.log(extra=True)
    assert cells(path) == [
        ["step", "epoch", "time", "loss", "values/time", "extra"],
        ["1", "0", "5.0", "0.5", "noon", ""],
        ["2", "0", "5.0", "0.5", "noon", "True"],
    ]


def test_csv_metrics_relative_path_lies_in_the_directory_of_the_loop(tmp_path):
    with hl.run(root=tmp_path, callbacks=[CsvMetrics()], strict=True, summary=False) as run:
        for _ in run.steps(2):
            run.log(loss=1)
    assert column(run.dir / "metrics.csv", "step") == ["1", "2"]


def test_csv_metrics_after_a_resume_has_every_row_once(tmp_path):
    path = tmp_path / "metrics.csv"
    state = trained(path, [1, 2])
    trained(path, [3, 4])  # done again below, after a crash
    trained(path, [5], state)
    assert column(path, "loss") == ["1", "2", "5"]


def test_csv_metrics_goes_back_when_an_earlier_state_is_loaded(tmp_path):
    callback = CsvMetrics(tmp_path / "metrics.csv")
    loop = FakeLoop(callbacks=[callback])
    loop.callbacks.on_train_start(loop)
    loop.commit(1, {"loss": 1})
    state = callback.state_dict()
    loop.commit(2, {"loss": 2, "new": 1})
    callback.load_state_dict(state)
    loop.commit(2, {"loss": 3})
    loop.callbacks.close()
    assert column(callback.path, "loss") == ["1", "3"]


def test_csv_metrics_without_a_state_appends_to_the_file_that_is_there(tmp_path):
    path = tmp_path / "metrics.csv"
    trained(path, [1])
    trained(path, [2])
    assert column(path, "loss") == ["1", "2"]


def test_csv_metrics_waits_for_a_device_on_its_own_thread_only(tmp_path, monkeypatch):
    monkeypatch.setattr("hookline.callbacks.csv_metrics.WRITE_SECONDS", 0.001)
    threads, arrived = [], threading.Event()

    class Device:
        arrives = True

        def ready(self):
            return False

        def number(self, index):
            threads.append(threading.current_thread().name)
            arrived.set()
            return 0.5

    loop = FakeLoop(callbacks=[CsvMetrics(tmp_path / "metrics.csv")])
    loop.callbacks.on_train_start(loop)
    loop.commit(1, MetricsRow(loss=Deferred(Device())))
    assert arrived.wait(60)
    loop.callbacks.close()
    assert (threads, column(tmp_path / "metrics.csv", "loss")) == (["hookline-csv_metrics"], ["0.5"])


def test_csv_metrics_that_cannot_be_written_are_kept_and_tried_again(tmp_path, monkeypatch):
    callback = CsvMetrics(tmp_path / "metrics.csv")
    loop = FakeLoop(callbacks=[callback])
    loop.callbacks.on_train_start(loop)
    loop.commit(1, {"loss": 1})

    def full(self, rows):
        raise OSError("no space left")

    with monkeypatch.context() as patched:
        patched.setattr("hookline.sinks.csv.Table.append", full)
        with pytest.raises(OSError, match="no space left"):
            loop.callbacks.on_train_end(loop, LoopArtifacts(step=1))
    loop.callbacks.close()
    assert column(tmp_path / "metrics.csv", "loss") == ["1"]


def test_csv_metrics_file_of_another_is_refused(tmp_path):
    first, second = (FakeLoop(callbacks=[CsvMetrics(tmp_path / "metrics.csv")]) for _ in range(2))
    first.callbacks.on_train_start(first)
    with pytest.raises(PermissionError, match="is being written to by another"):
        second.callbacks.on_train_start(second)
    first.callbacks.close()
