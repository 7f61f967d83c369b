"""The sink `csv`: a table whose header is complete, which survives crashes and resumes."""

import csv
import json

import pytest

import hookline as hl
from hookline._record.delivery import Delivery
from hookline._record.recorder import Recorder
from hookline.sinks import CsvSink


@pytest.fixture
def recorder(tmp_path):
    recorder = Recorder(tmp_path, clock=lambda: 1.0)
    yield recorder
    recorder.close()


def deliver(tmp_path, sink=None):
    delivery = Delivery(tmp_path, "csv", sink or CsvSink())
    delivery.round()
    delivery.close(0)
    delivery.run()
    assert delivery.progress.error == ""
    return delivery.progress.path


def table(tmp_path, name="metrics.csv"):
    with (tmp_path / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file, strict=True))


def steps(tmp_path, name="metrics.csv"):
    return [int(row["step"]) for row in table(tmp_path, name)]


def record(tmp_path, *, name="main", resume=None, rows=(), axis="train"):
    """One session of a writer: a resume, perhaps, and rows."""
    recorder = Recorder(tmp_path, name=name)
    if resume is not None:
        recorder.resume(resume)
    for step in rows:
        recorder.log(loss=float(step), step=step, axis=axis)
    recorder.close()


def test_csv_header_grows_with_new_names_and_old_rows_stay(recorder, tmp_path):
    recorder.log(loss=1.0, step=1)
    deliver(tmp_path)
    recorder.log(accuracy=0.5, loss=0.5, step=2)
    deliver(tmp_path)
    fixed = {"axis": "train", "time": "1.0"}
    assert table(tmp_path) == [
        {"step": "1", **fixed, "loss": "1.0", "accuracy": ""},
        {"step": "2", **fixed, "loss": "0.5", "accuracy": "0.5"},
    ]


def test_csv_given_columns_stay_and_the_rest_is_json_in_extra(recorder, tmp_path):
    recorder.log({"loss": 1.0, "other": 2.0, "bad": float("nan")}, step=1)
    deliver(tmp_path, CsvSink(columns=("step", "loss")))
    (row,) = table(tmp_path)
    assert list(row) == ["step", "loss", "extra"]
    assert json.loads(row["extra"]) == {"axis": "train", "time": 1.0, "other": 2.0, "bad": "NaN"}


@pytest.mark.parametrize(("columns", "column"), [(("step",), None), (("step", "extra_"), "extra_")])
def test_csv_metric_called_extra_is_kept_under_another_name_where_columns_are_given(
    recorder, tmp_path, columns, column
):
    recorder.log({"extra": 2.0, "other": 3.0}, step=1)
    deliver(tmp_path, CsvSink(columns=columns))
    (row,) = table(tmp_path)
    rest = json.loads(row["extra"])
    assert (rest["other"], row[column] if column else rest["extra_"]) == (3.0, "2.0" if column else 2.0)


def test_csv_column_called_extra_is_refused():
    with pytest.raises(hl.OptionError, match="'extra' is reserved"):
        CsvSink(columns=("step", "extra"))


def test_csv_columns_given_twice_are_refused():
    with pytest.raises(hl.OptionError, match="given twice"):
        CsvSink(columns=("loss", "loss"))


def test_csv_unknown_kind_is_refused_with_the_nearest():
    with pytest.raises(hl.OptionError, match="Did you mean 'metrics'"):
        CsvSink(kind="metric")


def test_csv_file_that_is_there_is_appended_to(recorder, tmp_path):
    (tmp_path / "mine.csv").write_text("step,loss\n1,9.0\n")
    recorder.log(loss=1.0, step=2)
    deliver(tmp_path, CsvSink(tmp_path / "mine.csv"))
    assert [(row["step"], row["loss"]) for row in table(tmp_path, "mine.csv")] == [("1", "9.0"), ("2", "1.0")]


def test_csv_file_whose_last_line_has_no_end_is_appended_to_on_a_new_line(recorder, tmp_path):
    (tmp_path / "mine.csv").write_text("step,axis,time,loss\n1,train,1.0,9.0")
    recorder.log(loss=1.0, step=2)
    deliver(tmp_path, CsvSink(tmp_path / "mine.csv"))
    assert steps(tmp_path, "mine.csv") == [1, 2]


@pytest.mark.parametrize("name", ["step", "axis", "time", "writer"])
def test_csv_metric_named_like_a_column_of_ours_is_not_lost(recorder, tmp_path, name):
    recorder.log({name: 12.5, "loss": 1.0}, step=1)
    deliver(tmp_path)
    (row,) = table(tmp_path)
    assert row["step"] == "1"
    assert "12.5" in row.values()


def test_csv_metric_called_writer_does_not_hide_a_row_from_a_resume(tmp_path):
    recorder = Recorder(tmp_path)
    recorder.log({"writer": 3.0}, step=5)
    recorder.close()
    record(tmp_path, resume=1, rows=[2])
    deliver(tmp_path)
    assert steps(tmp_path) == [2]


def test_csv_resume_takes_out_what_is_done_again(tmp_path):
    record(tmp_path, rows=range(1, 11))
    deliver(tmp_path)
    record(tmp_path, resume=6, rows=range(7, 9))
    deliver(tmp_path)
    assert steps(tmp_path) == [*range(1, 7), 7, 8]


def test_csv_resume_concerns_its_own_writer_only(tmp_path):
    record(tmp_path, rows=range(1, 6))
    record(tmp_path, name="rank1", rows=range(1, 6))
    record(tmp_path, resume=2, rows=[3])
    deliver(tmp_path)
    found = [(row["writer"] or "main", int(row["step"])) for row in table(tmp_path)]
    assert sorted(found) == [("main", 1), ("main", 2), ("main", 3), *(("rank1", step) for step in range(1, 6))]


def test_csv_resume_of_several_writers_leaves_what_read_gives(tmp_path):
    for name in ("main", "rank1", "actor"):
        record(tmp_path, name=name, rows=range(1, 9))
    deliver(tmp_path)
    for name, at in (("main", 4), ("rank1", 6)):
        record(tmp_path, name=name, resume=at, rows=range(at + 1, at + 3))
    deliver(tmp_path)
    assert sorted(steps(tmp_path)) == sorted(row.step for row in hl.read(tmp_path) if hasattr(row, "values"))  # type: ignore[type-var]


def test_csv_resume_concerns_the_axes_it_names(tmp_path):
    record(tmp_path, rows=[1, 2, 3])
    record(tmp_path, rows=[2, 3], axis="rollout")
    recorder = Recorder(tmp_path)
    recorder.resume(train=1)
    recorder.close()
    deliver(tmp_path)
    assert [(row["axis"], row["step"]) for row in table(tmp_path)] == [
        ("train", "1"),
        ("rollout", "2"),
        ("rollout", "3"),
    ]


def test_csv_of_events_keeps_all_of_them_and_the_resume_itself(tmp_path):
    recorder = Recorder(tmp_path)
    recorder.event("checkpoint", step=8)
    recorder.close()
    record(tmp_path, resume=4)
    deliver(tmp_path, CsvSink(kind="event"))
    assert [row["name"] for row in table(tmp_path, "event.csv")] == ["checkpoint", "resume"]


def test_csv_killed_after_a_resume_was_carried_out_but_not_saved_is_exact(tmp_path):
    record(tmp_path, rows=range(1, 11))
    saved = deliver(tmp_path)
    before = saved.read_text()
    record(tmp_path, resume=3)
    deliver(tmp_path)
    saved.write_text(before)
    record(tmp_path, resume=3, rows=range(4, 30))
    deliver(tmp_path)
    assert steps(tmp_path) == list(range(1, 30))


def test_csv_killed_after_columns_were_added_but_not_saved_is_exact(recorder, tmp_path):
    for step in range(1, 5):
        recorder.log({f"m{step}": 1.0}, step=step)
    saved = deliver(tmp_path)
    before = saved.read_text()
    for step in range(5, 9):
        recorder.log({f"m{step}": 1.0}, step=step)
    deliver(tmp_path)
    saved.write_text(before)
    deliver(tmp_path)
    assert steps(tmp_path) == list(range(1, 9))
    assert all(row[f"m{row['step']}"] == "1.0" for row in table(tmp_path))


def test_csv_left_behind_half_a_row_is_cut_off(recorder, tmp_path):
    recorder.log(loss=1.0, step=1)
    deliver(tmp_path)
    with (tmp_path / "metrics.csv").open("a") as file:
        file.write('2,train,1.0,"0.')
    recorder.log(loss=0.5, step=2)
    deliver(tmp_path)
    assert steps(tmp_path) == [1, 2]


def test_csv_with_other_columns_from_now_on_has_every_row_once(recorder, tmp_path):
    for step in range(1, 4):
        recorder.log(loss=1.0, step=step)
    deliver(tmp_path)
    deliver(tmp_path, CsvSink(columns=("step", "loss")))  # other settings: from the beginning
    assert steps(tmp_path) == [1, 2, 3]


def test_csv_rewritten_just_before_a_crash_is_not_taken_for_a_replaced_one(recorder, tmp_path, caplog):
    recorder.log(loss=1.0, step=1)
    deliver(tmp_path)
    saved = (tmp_path / "sinks" / "csv.json").read_bytes()
    recorder.log(loss=1.0, more=1.0, step=2)
    deliver(tmp_path)
    (tmp_path / "sinks" / "csv.json").write_bytes(saved)  # as if the process had died before that was saved
    deliver(tmp_path)
    assert (steps(tmp_path), list(tmp_path.glob("*.damaged")), caplog.messages) == ([1, 2], [], [])


def test_csv_of_samples_holds_their_texts(recorder, tmp_path):
    text = 'two\r\nlines, "quoted" \0'
    recorder.samples([{"prompt": "p", "completion": text, "rewards": {"right": 1.0}, "mine": "x"}], step=1)
    deliver(tmp_path, CsvSink(kind="sample"))
    (row,) = table(tmp_path, "sample.csv")
    assert (row["completion"], row["rewards/right"], row["mine"]) == (text, "1.0", "x")


def test_csv_given_twice_with_one_path_is_refused(tmp_path):
    with pytest.raises(hl.HooklineError, match="are the same sink"):
        hl.run(root=tmp_path, sinks=["csv", "csv"])
