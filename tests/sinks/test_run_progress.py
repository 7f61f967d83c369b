"""`RunProgress`: states of earlier versions, and the record of a run."""

from types import SimpleNamespace

from hookline._record.reader import MAIN
from hookline._record.records import Status
from hookline.sinks.run_progress import RunProgress


def test_run_progress_restores_the_state_of_version_0_1():
    saved = {"status": "running", "steps": {"train": 7}, "told_epoch": 2, "metrics": {"train": {"loss": "NaN"}}}
    progress = RunProgress.restored(saved)
    assert (progress.status, progress.step, progress.epoch) == ("running", 7, 3)
    assert str(progress.metrics["train"]["loss"]) == "nan"
    assert progress.saved()["told_epoch"] == 2


def test_run_progress_after_a_late_report_of_a_death_keeps_the_newer_status():
    progress = RunProgress()
    for status, time in (("running", 1.0), ("finished", 3.0), ("failed", 2.0)):
        record = Status(status=status, time=time)
        progress.add(SimpleNamespace(record=record, file=SimpleNamespace(name=MAIN)))
    assert (progress.status, progress.has_ended) == ("finished", True)
