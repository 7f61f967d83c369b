"""What every import guarantees: a readable run, imported once, complete or not at all."""

import json
import sys

import pytest

import hookline as hl
from hookline._engine.errors import ConfigError, MissingExtraError, UnknownNameError
from hookline._record import run_directory
from hookline._record.delivery_manager import DeliveryManager
from hookline._record.reader import last_step
from hookline.importers import FORMATS, detect, import_runs


@pytest.fixture
def source(tmp_path):
    """A table of three rows."""
    file = tmp_path / "work" / "exp.csv"
    file.parent.mkdir()
    file.write_text("step,time,loss\n1,1000.0,0.5\n2,1001.0,0.25\n3,1002.0,0.125\n")
    return file


def facts(run):
    return json.loads((run.directory / "run.json").read_text())


def everything(root):
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()) if root.exists() else None


def test_imported_run_can_be_read_like_any_run(source, tmp_path):
    (run,) = import_runs(source, root=tmp_path / "runs", project="papers", name="baseline")
    assert run.directory.parent == tmp_path / "runs" / "papers"
    kinds = [(record.__class__.__name__, record.time) for record in hl.read(run.directory)]
    assert kinds == [
        ("Status", 1000.0),
        ("Metrics", 1000.0),
        ("Metrics", 1001.0),
        ("Metrics", 1002.0),
        ("Status", 1002.0),
    ]
    assert (run_directory.is_finished(run.directory), last_step(run.directory)) == (True, 3)
    assert not run_directory.is_alive(run.directory)
    assert list(hl.follow(run.directory))[-1].status == "finished"


def test_run_json_describes_the_origin(source):
    (run,) = import_runs(source, name="baseline")
    reported = facts(run)
    assert (reported["id"], reported["name"], reported["project"]) == (run.directory.name, "baseline", "imported")
    assert (reported["started"], reported["git"]["commit"]) == (1000.0, None)
    imported = reported["imported"]
    assert (imported["path"], imported["format"], imported["times"]) == (str(source), "csv", "source")
    assert imported["files"] == [str(source)]


def test_imported_run_is_delivered_to_sinks(source):
    (run,) = import_runs(source)
    manager = DeliveryManager(run.directory, {"csv": hl.sinks.CsvSink()})
    manager.start()
    manager.close()
    assert (run.directory / "metrics.csv").read_text().splitlines() == [
        "step,axis,time,loss",
        "1,train,1000.0,0.5",
        "2,train,1001.0,0.25",
        "3,train,1002.0,0.125",
    ]


def test_same_contents_are_imported_once_from_any_path(source, tmp_path):
    (first,) = import_runs(source, name="first name")
    moved = tmp_path / "elsewhere" / "exp.csv"
    moved.parent.mkdir()
    source.rename(moved)
    (second,) = import_runs(moved)
    assert (second.already, second.directory, second.name) == (True, first.directory, "first name")
    assert len(list((tmp_path / "runs" / "imported").iterdir())) == 1


def test_same_contents_are_imported_again_on_request(source):
    (first,) = import_runs(source)
    (second,) = import_runs(source, again=True)
    assert (second.already, second.directory != first.directory, second.rows) == (False, True, 3)


def test_grown_contents_are_imported_as_a_new_run(source):
    (first,) = import_runs(source)
    with source.open("a") as file:
        file.write("4,1003.0,0.1\n")
    (second,) = import_runs(source)
    assert (second.already, second.rows, second.directory != first.directory) == (False, 4, True)


def test_dry_run_reads_everything_and_writes_nothing(source, tmp_path):
    with source.open("a") as file:
        file.write("x,1003.0,0.1\n")
    (run,) = import_runs(source, dry_run=True)
    assert (run.directory, run.rows, run.skipped_count) == (None, 3, 1)
    assert not (tmp_path / "runs").exists()


def test_failed_import_leaves_no_files(source, tmp_path):
    def fail(read, total):
        raise RuntimeError("out of patience")

    with pytest.raises(RuntimeError, match="out of patience"):
        import_runs(source, progress=fail)
    assert not (tmp_path / "runs").exists()


def test_failed_import_keeps_other_runs(source, tmp_path):
    import_runs(source)
    before = everything(tmp_path / "runs")
    with pytest.raises(ConfigError, match=r"project='a/b': give a name without '/'"):
        import_runs(source, project="a/b", again=True)
    assert everything(tmp_path / "runs") == before


def test_leftovers_of_a_killed_import_are_removed_by_the_next(source, tmp_path):
    left = tmp_path / "runs" / ".import-dead" / "imported" / "2026-01-01-calm-owl-1"
    left.mkdir(parents=True)
    (tmp_path / "runs" / ".import-dead" / "lock").touch()
    import_runs(source)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["imported"]


def test_import_in_progress_is_not_removed(source, tmp_path):
    other = tmp_path / "runs" / ".import-alive"
    other.mkdir(parents=True)
    run_directory.acquire(other)
    try:
        import_runs(source)
        assert other.exists()
    finally:
        run_directory.release(other)


def test_progress_counts_all_bytes(source):
    seen = []
    import_runs(source, progress=lambda read, total: seen.append((read, total)))
    size = source.stat().st_size
    assert seen[-1] == (size, size)


def test_several_runs_with_a_name_are_numbered(source, tmp_path):
    (source.parent / "other.csv").write_text("step,loss\n1,0.5\n")
    assert [run.name for run in import_runs(source.parent, name="try")] == ["try-1", "try-2"]


def test_directory_without_importable_files_lists_found_and_accepted(tmp_path):
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "notes.txt").write_text("hello")
    with pytest.raises(ConfigError, match=r"It has notes\.txt") as caught:
        import_runs(tmp_path / "work")
    assert all(name in str(caught.value) for name in FORMATS)


def test_file_of_an_unknown_format_lists_the_accepted_ones(tmp_path):
    (tmp_path / "weights.bin").write_bytes(b"\0\1\2")
    with pytest.raises(ConfigError, match="not in a format that can be imported. Accepted are tensorboard: "):
        import_runs(tmp_path / "weights.bin")


def test_missing_path_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no such file or directory"):
        import_runs(tmp_path / "nowhere")


def test_unknown_format_suggests_the_closest(source):
    with pytest.raises(UnknownNameError, match="Did you mean 'tensorboard'"):
        import_runs(source, format="tensorbord")


def test_run_of_hookline_is_not_imported(tmp_path):
    with hl.run("own", sinks=["csv"], summary=False) as made:
        made.log(loss=1.0)
    with pytest.raises(ConfigError, match="is already a hookline run"):
        import_runs(made.dir)
    with pytest.raises(ConfigError, match="holds nothing that can be imported"):
        import_runs(tmp_path / "runs")


def test_files_without_readable_rows_are_refused_with_reasons(tmp_path):
    (tmp_path / "exp.csv").write_text("step,loss\nx,1\n")
    with pytest.raises(ConfigError, match=r"exp\.csv, line 2: step='x' is not a whole number"):
        import_runs(tmp_path / "exp.csv")
    assert not (tmp_path / "runs").exists()


def test_unreadable_run_does_not_prevent_the_others(source):
    (source.parent / "broken.csv").write_text("step,loss\nx,1\n")
    broken, good = import_runs(source.parent)
    assert (broken.directory, broken.skipped_count, good.rows) == (None, 1, 3)


def test_only_the_given_format_is_imported(source):
    state = {"log_history": [{"loss": 1.0, "step": 1}], "global_step": 1}
    (source.parent / "trainer_state.json").write_text(json.dumps(state))
    assert [run.format for run in detect(source.parent)] == ["transformers"]
    assert [(run.format, run.name) for run in detect(source.parent, format="csv")] == [("csv", "exp")]


def test_table_beside_a_training_is_reported_as_left(source):
    state = {"log_history": [{"loss": 1.0, "step": 1}], "global_step": 1}
    (source.parent / "trainer_state.json").write_text(json.dumps(state))
    (run,) = import_runs(source.parent)
    assert (run.rows, run.left) == (1, ((str(source), "a separate table: import it by itself"),))


def test_broken_link_is_ignored(source):
    (source.parent / "gone.csv").symlink_to(source.parent / "nowhere.csv")
    assert [run.name for run in import_runs(source.parent)] == ["exp"]


def test_event_files_without_tensorboard_name_the_extra(tmp_path, monkeypatch):
    (tmp_path / "events.out.tfevents.1").touch()
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'hookline\[tensorboard\]'"):
        import_runs(tmp_path / "events.out.tfevents.1")
    assert not (tmp_path / "runs").exists()


def test_completions_without_pyarrow_are_left_beside_a_readable_state(tmp_path, monkeypatch):
    work = tmp_path / "grpo"
    (work / "completions").mkdir(parents=True)
    (work / "completions" / "completions_00001.parquet").touch()
    (work / "trainer_state.json").write_text(json.dumps({"log_history": [{"loss": 1.0, "step": 1}]}))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (run,) = import_runs(work)
    assert (run.format, run.taken) == ("transformers", (work / "trainer_state.json",))
    assert "pip install 'hookline[hf]'" in run.left[0].reason
