"""Heartbeat: what is recorded, how monitors take it, and that its thread ends."""

import threading
from types import SimpleNamespace

import pytest

import hookline as hl
from hookline._record.reader import MAIN, read
from hookline._record.records import Status
from hookline.callbacks import Heartbeat
from hookline.sinks.run_progress import RunProgress
from hookline.testing import FakeLoop


def statuses(run):
    return [record for record in read(run.dir) if isinstance(record, Status)]


def beaten(tmp_path):
    """A run with a heartbeat in a step and in a validation."""
    heartbeat = Heartbeat(every_seconds=3600)
    with hl.run(root=tmp_path, callbacks=[heartbeat], strict=True, summary=False) as run:
        for _ in run.epochs(2):
            for i in run.steps(2):
                run.log(loss=1.0)
                if i == 1:
                    heartbeat.beat()
            with run.validate():
                heartbeat.beat()
    return run


def test_heartbeat_tells_how_far_the_run_is(tmp_path):
    reported = [(record.step, record.data) for record in statuses(beaten(tmp_path)) if record.status == "heartbeat"]
    total = {"total_steps": 4, "total_epochs": 2}
    assert reported == [
        (1, {"phase": "training", "epoch": 0, **total}),
        (2, {"phase": "validation", "epoch": 0, **total}),
        (3, {"phase": "training", "epoch": 1, **total}),
        (4, {"phase": "validation", "epoch": 1, **total}),
    ]


def test_heartbeat_comes_between_the_beginning_and_the_end_of_a_run(tmp_path):
    words = [record.status for record in statuses(beaten(tmp_path))]
    assert words == ["running", "heartbeat", "heartbeat", "heartbeat", "heartbeat", "finished"]


def test_heartbeat_does_not_restart_the_run_for_monitors(tmp_path):
    standing = RunProgress()
    for record in read(beaten(tmp_path).dir):
        standing.add(SimpleNamespace(record=record, file=SimpleNamespace(name=MAIN)))
    assert (standing.num_steps, standing.num_epochs, standing.began_step, standing.step) == (4, 2, 0, 4)


def test_heartbeat_beats_on_a_thread_of_its_own_during_a_long_validation(tmp_path):
    heartbeat, reported = Heartbeat(every_seconds=0.001), threading.Semaphore(0)
    with hl.run(root=tmp_path, callbacks=[heartbeat], strict=True, summary=False) as run:
        record = run.recorder.status
        run.recorder.status = lambda *args, **data: (record(*args, **data), reported.release())  # type: ignore[func-returns-value]
        with run.validate():
            assert [reported.acquire(timeout=60) for _ in range(3)] == [True, True, True]
    assert statuses(run)[-1].status == "finished"
    assert "hookline-heartbeat" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize("fails", [False, True])
def test_heartbeat_thread_ends_with_the_run(tmp_path, fails):
    seen = []
    try:
        with hl.run(root=tmp_path, callbacks=[Heartbeat()], strict=True, summary=False) as run:
            for _ in run.steps(1):
                seen.append("hookline-heartbeat" in {thread.name for thread in threading.enumerate()})
                if fails:
                    raise RuntimeError("as it goes")
    except RuntimeError:
        pass
    seen.append("hookline-heartbeat" in {thread.name for thread in threading.enumerate()})
    assert seen == [True, False]


def test_heartbeat_without_a_record_does_nothing():
    heartbeat = Heartbeat()
    loop = FakeLoop(callbacks=[heartbeat])
    loop.callbacks.on_train_start(loop)
    heartbeat.beat()
    assert "hookline-heartbeat" not in {thread.name for thread in threading.enumerate()}


def test_heartbeat_refuses_a_pace_of_zero():
    with pytest.raises(hl.OptionError, match="every_seconds=0"):
        Heartbeat(every_seconds=0)
