"""Importing CSV files with a step column, including those of hookline's sink."""

import math

import pytest

import hookline as hl
from hookline._engine.errors import OptionError
from hookline.importers import import_runs


def records(run, kind="Metrics"):
    return [record for record in hl.read(run.directory) if record.__class__.__name__ == kind]


def values(run):
    return [(row.axis, row.step, row.values) for row in records(run)]


def table(tmp_path, text, name="table.csv"):
    file = tmp_path / name
    file.write_text(text)
    return file


@pytest.mark.parametrize("column", ["step", "global_step", "Step", "iteration", "_step", "epoch"])
def test_step_column_is_found_by_its_usual_names(tmp_path, column):
    (run,) = import_runs(table(tmp_path, f"{column},loss\n1,0.5\n2,0.25\n"))
    assert (run.name, run.format) == ("table", "csv")
    assert values(run) == [("train", 1, {"loss": 0.5}), ("train", 2, {"loss": 0.25})]


def test_step_column_can_be_given(tmp_path):
    (run,) = import_runs(table(tmp_path, "tokens,step,loss\n1000,1,0.5\n"), step_column="tokens")
    assert values(run) == [("train", 1000, {"step": 1, "loss": 0.5})]


def test_file_without_a_step_column_is_refused_with_its_columns(tmp_path):
    with pytest.raises(OptionError, match=r"among 'tokens', 'loss': name it with step_column="):
        import_runs(table(tmp_path, "tokens,loss\n1,0.5\n"))


def test_unknown_step_column_suggests_the_closest(tmp_path):
    with pytest.raises(OptionError, match="Did you mean 'tokens'"):
        import_runs(table(tmp_path, "tokens,loss\n1,0.5\n"), step_column="token")


def test_cells_are_parsed_and_empty_ones_are_ignored(tmp_path):
    text = "step,a,b,c,d,e,f\n1,7,0.1,nan,-inf,True,x\n2,,,,,,\n3.0,1_000,9223372036854775808,1e400,,False,\n"
    (run,) = import_runs(table(tmp_path, text))
    assert str(values(run)) == str(
        [
            ("train", 1, {"a": 7, "b": 0.1, "c": math.nan, "d": -math.inf, "e": True, "f": "x"}),
            ("train", 3, {"a": "1_000", "b": 2**63, "c": math.inf, "e": False}),
        ]
    )


@pytest.mark.parametrize(
    ("header", "cell", "seconds"),
    [("time", "1000.5", 1000.5), ("Wall time", "1000.5", 1000.5), ("timestamp", "1970-01-01T00:16:40+00:00", 1000.0)],
)
def test_time_column_gives_the_times_of_rows(tmp_path, header, cell, seconds):
    (run,) = import_runs(table(tmp_path, f"{header},step,loss\n{cell},1,0.5\n"))
    assert [(row.time, row.values) for row in records(run)] == [(seconds, {"loss": 0.5})]


def test_rows_without_times_get_the_modification_time(tmp_path):
    file = table(tmp_path, "step,loss\n1,0.5\n")
    (run,) = import_runs(file)
    assert [row.time for row in records(run)] == [file.stat().st_mtime]


@pytest.mark.parametrize("mark", [";", "\t"])
def test_other_delimiters_are_recognised(tmp_path, mark):
    (run,) = import_runs(table(tmp_path, mark.join(["step", "loss"]) + "\n" + mark.join(["1", "0.5"]) + "\n"))
    assert values(run) == [("train", 1, {"loss": 0.5})]


def test_repeated_column_is_numbered(tmp_path):
    (run,) = import_runs(table(tmp_path, "step,loss,loss\n1,0.5,0.25\n"))
    assert values(run) == [("train", 1, {"loss": 0.5, "loss.1": 0.25})]


def test_malformed_lines_are_skipped_and_reported(tmp_path):
    file = table(tmp_path, "step,loss\n1,0.5\nx,0.5\n2,0.5,9\n\n3,0.25\n1.5,0\n4")
    (run,) = import_runs(file)
    assert [row.step for row in records(run)] == [1, 3]
    assert [tuple(skip) for skip in run.skipped] == [
        (f"{file}, line 3", "step='x' is not a whole number"),
        (f"{file}, line 4", "3 cells for 2 columns"),
        (f"{file}, line 7", "step='1.5' is not a whole number"),
        (f"{file}, line 8", "1 cells for 2 columns"),
    ]


def test_unterminated_last_line_of_a_foreign_file_is_read(tmp_path):
    (run,) = import_runs(table(tmp_path, "step,loss\n1,0.5\n2,0.25"))
    assert [row.step for row in records(run)] == [1, 2]


def test_invalid_time_is_reported_and_the_row_is_read(tmp_path):
    file = table(tmp_path, "step,time,loss\n1,soon,0.5\n")
    (run,) = import_runs(file)
    assert (run.rows, run.skipped[0].place) == (1, f"{file}, line 2, time='soon'")


def test_rows_of_the_csv_sink_round_trip(tmp_path):
    with hl.run("own", sinks=["csv"], summary=False) as made:
        for step in made.steps(3):
            made.log({"loss": 1 / (step + 3), "bad": math.nan, "note": "ok", "epoch": step, "axis": 1})
        made.recorder.metrics({"val/loss": 0.5}, 3, "eval")
    (run,) = import_runs(made.dir / "metrics.csv")
    recorded = [
        (row.axis, row.step, row.time, row.values) for row in hl.read(made.dir) if type(row) is type(records(run)[0])
    ]
    assert str([(row.axis, row.step, row.time, row.values) for row in records(run)]) == str(recorded)


def test_samples_of_the_csv_sink_round_trip(tmp_path):
    with hl.run("own", sinks=[{"csv": {"kind": "sample"}}], summary=False) as made:
        for _ in made.steps(2):
            rewards = {"exact": 1.0, "bad": math.nan}
            made.log_samples([{"prompt": "2", "completion": 'a,\n"b"', "rewards": rewards, "total": 0.5, "seed": 7}])
    (run,) = import_runs(made.dir / "sample.csv")
    assert run.samples == 2
    assert str(records(run, "Sample")) == str([r for r in hl.read(made.dir) if r.__class__.__name__ == "Sample"])


def test_unterminated_last_line_of_the_csv_sink_is_skipped(tmp_path):
    file = table(tmp_path, "step,axis,time,loss\n1,train,1000.0,0.5\n2,train,1001.0,0.2")
    (run,) = import_runs(file)
    assert ([row.step for row in records(run)], run.skipped[0].place) == ([1], f"{file}, line 3")


def test_unknown_columns_of_samples_go_to_extra(tmp_path):
    text = (
        'step,prompt,completion,rewards,total,extra\n1,2,3,7,high,not json\n2,a,b,,0.5,"{""k"": 1, ""rewards/x"": 2}"\n'
    )
    (run,) = import_runs(table(tmp_path, text))
    (sample,) = records(run, "Sample")[1:]
    assert (sample.prompt, sample.total, sample.rewards, sample.extra) == ("a", 0.5, {"x": 2}, {"k": 1})
    (odd,) = records(run, "Sample")[:1]
    assert (odd.prompt, odd.total, odd.extra) == ("2", "high", {"rewards": 7, "extra_text": "not json"})


def test_step_that_is_too_large_for_an_index_is_skipped(tmp_path):
    text = f"step,loss\n1,0.5\n{1 << 53},1\n{(1 << 53) + 1},2\n{'9' * 400},3\n-{'9' * 30},4\n"
    (run,) = import_runs(table(tmp_path, text))
    assert values(run) == [("train", 1, {"loss": 0.5}), ("train", 1 << 53, {"loss": 1})]
    assert [(skip.place, skip.reason) for skip in run.skipped] == [
        ("step 9007199254740993", "the step does not fit 53 bits"),
        (f"step {'9' * 40}", "the step does not fit 53 bits"),
        (f"step -{'9' * 30}", "the step does not fit 53 bits"),
    ]
