"""What a power cut leaves of a run. The cuts themselves are in `soak.power_cut`, which makes more of them."""

import contextlib
import shutil
from pathlib import Path

import pytest
from soak.power_cut import PowerCuts, why_not

import hookline as hl
from hookline._engine.errors import CheckpointError, OptionError
from hookline._record.records import Event

FILES = {"save": lambda path: None, "load": lambda path: None}


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_power_cut_takes_nothing_that_a_checkpoint_covers(tmp_path):
    with contextlib.closing(PowerCuts(tmp_path, seed=7)) as cuts:
        found = [cuts.cut() for _ in range(3)]
    assert [(cut.missing, cut.wrong) for cut in found] == 3 * [(0, ())]
    assert [cut.acknowledged > 0 for cut in found] == [False, True, True]


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_power_cut_of_a_run_that_is_not_synced_leaves_its_checkpoint_and_missing_rows_are_recorded(tmp_path):
    with contextlib.closing(PowerCuts(tmp_path, seed=7, durability="process")) as cuts:
        found = [cuts.cut() for _ in range(2)]
    assert [cut.wrong for cut in found] == [(), ()]
    assert found[1].missing > 0


class Killed(Exception):
    """Ends a run."""


def broken_run(root, **options):
    """The directory of a run with a checkpoint at step 6 that failed at step 8."""
    with contextlib.suppress(Killed), hl.run("cut", root=root, summary=False, **FILES, **options) as run:
        for _ in run.steps(100):
            run.log(loss=1.0)
            if run.step == 5:
                run.request_checkpoint()
            if run.step == 8:
                raise Killed
    return run.dir


def lose_rows(directory, first, last):
    """Have zeros where some lines were, as a power cut leaves them."""
    (file,) = (directory / "journal").glob("*.jsonl")
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:first]) + bytes(sum(map(len, lines[first:last]))))


def test_resume_reports_and_records_rows_that_are_missing_below_the_checkpoint(tmp_path, caplog):
    directory = broken_run(tmp_path)
    lose_rows(directory, 4, 12)
    with hl.run("cut", root=tmp_path, resume="auto", summary=False, **FILES) as run:
        assert run.step == 6
    found = [record for record in hl.read(directory) if isinstance(record, Event) and record.name == "records_missing"]
    assert [(record.step, record.data["count"]) for record in found] == [(6, 3)]
    assert "3 of the 7 lines" in caplog.text
    assert "checkpoint of step 6 are missing" in caplog.text


def test_resume_with_all_rows_below_the_checkpoint_reports_nothing(tmp_path, caplog):
    directory = broken_run(tmp_path)
    lose_rows(directory, 8, 12)
    with hl.run("cut", root=tmp_path, resume="auto", summary=False, **FILES):
        pass
    assert [record.name for record in hl.read(directory) if isinstance(record, Event)] == ["checkpoint", "resume"]
    assert "missing" not in caplog.text


@pytest.mark.parametrize("durability", ["process", "checkpoint", "power"])
def test_checkpoint_is_saved_after_the_journal_was_synced_unless_only_the_process_counts(
    tmp_path, monkeypatch, durability
):
    synced = []

    def note(descriptor):
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)

    monkeypatch.setattr("os.fdatasync", note)
    with hl.run("cut", root=tmp_path, summary=False, durability=durability, **FILES) as run:
        for _ in run.steps(1):
            run.log(loss=1.0)
        synced.clear()
        run.save_checkpoint()
    journal = [name.endswith(".jsonl") for name in synced]
    manifest = next(place for place, name in enumerate(synced) if "manifest" in name)
    assert any(journal[:manifest]) == (durability != "process")


@pytest.mark.parametrize(
    "make",
    [
        lambda root: hl.run("x", root=root, durability="luck"),
        lambda root: hl.start("x", root=root, durability="luck"),
        lambda root: hl.TrainerConfig(output_dir=str(root), durability="luck"),
        lambda root: hl.Recorder(root, durability="luck"),
    ],
    ids=["run", "start", "Trainer", "Recorder"],
)
def test_durability_that_does_not_exist_is_refused_before_anything_is_made(tmp_path, make):
    with pytest.raises(OptionError, match="durability='luck'|durability"):
        make(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_checkpoint_whose_record_cannot_be_synced_is_refused(tmp_path, monkeypatch):
    def fail(descriptor):
        raise OSError(5, "Input/output error")

    with hl.run("cut", root=tmp_path, summary=False, **FILES) as run:
        for _ in run.steps(1):
            run.log(loss=1.0)
        with monkeypatch.context() as disk:
            disk.setattr("os.fdatasync", fail)
            with pytest.raises(CheckpointError, match="record before the checkpoint cannot be synced to the disk"):
                run.save_checkpoint()
    assert list((run.dir / "checkpoints").glob("*")) == []


@pytest.mark.parametrize("sink", ["csv", "jsonl"])
def test_sink_whose_file_has_zeros_after_a_power_cut_is_delivered_again(tmp_path, sink):
    directory = broken_run(tmp_path, sinks=[sink])
    file = directory / {"csv": "metrics.csv", "jsonl": "records.jsonl"}[sink]
    whole = file.read_bytes()
    file.write_bytes(whole[:100] + bytes(len(whole) - 100))
    before = shutil.copy(file, tmp_path / "before")
    with hl.run("cut", root=tmp_path, resume="auto", sinks=[sink], summary=False, **FILES):
        pass
    assert (b"\0" in file.read_bytes(), file.read_bytes()[:100]) == (False, whole[:100])
    assert file.with_name(f"{file.name}.damaged").read_bytes() == before.read_bytes()
