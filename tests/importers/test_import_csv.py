"""CSV files with a column of steps as runs: anybody's, and those of hookline's own sink."""

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
def test_column_of_steps_is_found_by_its_usual_names(tmp_path, column):
    (run,) = import_runs(table(tmp_path, f"{column},loss\n1,0.5\n2,0.25\n"))
    assert (run.name, run.format) == ("table", "csv")
    assert values(run) == [("train", 1, {"loss": 0.5}), ("train", 2, {"loss": 0.25})]


def test_column_of_steps_can_be_named(tmp_path):
    (run,) = import_runs(table(tmp_path, "tokens,step,loss\n1000,1,0.5\n"), step_column="tokens")
    assert values(run) == [("train", 1000, {"step": 1, "loss": 0.5})]


def test_file_without_a_column_of_steps_says_what_it_has(tmp_path):
    with pytest.raises(OptionError, match=r"among 'tokens', 'loss': name it with step_column="):
        import_runs(table(tmp_path, "tokens,loss\n1,0.5\n"))


def test_column_that_is_not_there_names_the_closest(tmp_path):
    with pytest.raises(OptionError, match="Did you mean 'tokens'"):
        import_runs(table(tmp_path, "tokens,loss\n1,0.5\n"), step_column="token")


def test_cells_are_numbers_bools_or_texts_and_empty_ones_are_none(tmp_path):
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
def test_column_of_times_gives_the_rows_times(tmp_path, header, cell, seconds):
    (run,) = import_runs(table(tmp_path, f"{header},step,loss\n{cell},1,0.5\n"))
    assert [(row.time, row.values) for row in records(run)] == [(seconds, {"loss": 0.5})]


def test_rows_without_times_have_that_of_the_file(tmp_path):
    file = table(tmp_path, "step,loss\n1,0.5\n")
    (run,) = import_runs(file)
    assert [row.time for row in records(run)] == [file.stat().st_mtime]


@pytest.mark.parametrize("mark", [";", "\t"])
def test_other_delimiters_are_recognised(tmp_path, mark):
    (run,) = import_runs(table(tmp_path, mark.join(["step", "loss"]) + "\n" + mark.join(["1", "0.5"]) + "\n"))
    assert values(run) == [("train", 1, {"loss": 0.5})]


def test_column_that_stands_twice_is_kept_twice(tmp_path):
    (run,) = import_runs(table(tmp_path, "step,loss,loss\n1,0.5,0.25\n"))
    assert values(run) == [("train", 1, {"loss": 0.5, "loss.1": 0.25})]


def test_lines_that_do_not_fit_are_named_and_the_rest_is_read(tmp_path):
    file = table(tmp_path, "step,loss\n1,0.5\nx,0.5\n2,0.5,9\n\n3,0.25\n1.5,0\n4")
    (run,) = import_runs(file)
    assert [row.step for row in records(run)] == [1, 3]
    assert [tuple(skip) for skip in run.skipped] == [
        (f"{file}, line 3", "step='x' is no whole number"),
        (f"{file}, line 4", "it has 3 cells for 2 columns"),
        (f"{file}, line 7", "step='1.5' is no whole number"),
        (f"{file}, line 8", "it has 1 cells for 2 columns"),
    ]


def test_last_line_of_a_file_by_hand_needs_no_end(tmp_path):
    (run,) = import_runs(table(tmp_path, "step,loss\n1,0.5\n2,0.25"))
    assert [row.step for row in records(run)] == [1, 2]


def test_time_that_is_none_is_named_and_the_row_is_read(tmp_path):
    file = table(tmp_path, "step,time,loss\n1,soon,0.5\n")
    (run,) = import_runs(file)
    assert (run.rows, run.skipped[0].place) == (1, f"{file}, line 2, time='soon'")


def test_what_hooklines_own_sink_wrote_comes_back_as_it_was_recorded(tmp_path):
    with hl.run("own", sinks=["csv"], summary=False) as made:
        for step in made.steps(3):
            made.log({"loss": 1 / (step + 3), "bad": math.nan, "note": "ok", "epoch": step, "axis": 1})
        made.recorder.metrics({"val/loss": 0.5}, 3, "eval")
    (run,) = import_runs(made.dir / "metrics.csv")
    recorded = [
        (row.axis, row.step, row.time, row.values) for row in hl.read(made.dir) if type(row) is type(records(run)[0])
    ]
    assert str([(row.axis, row.step, row.time, row.values) for row in records(run)]) == str(recorded)


def test_samples_of_hooklines_own_sink_come_back_as_samples(tmp_path):
    with hl.run("own", sinks=[{"csv": {"kind": "sample"}}], summary=False) as made:
        for _ in made.steps(2):
            rewards = {"exact": 1.0, "bad": math.nan}
            made.log_samples([{"prompt": "2", "completion": 'a,\n"b"', "rewards": rewards, "total": 0.5, "seed": 7}])
    (run,) = import_runs(made.dir / "sample.csv")
    assert run.samples == 2
    assert str(records(run, "Sample")) == str([r for r in hl.read(made.dir) if r.__class__.__name__ == "Sample"])


def test_last_line_of_hooklines_own_file_without_an_end_is_named(tmp_path):
    file = table(tmp_path, "step,axis,time,loss\n1,train,1000.0,0.5\n2,train,1001.0,0.2")
    (run,) = import_runs(file)
    assert ([row.step for row in records(run)], run.skipped[0].place) == ([1], f"{file}, line 3")


def test_samples_with_columns_that_are_no_fields_keep_them_in_extra(tmp_path):
    text = (
        'step,prompt,completion,rewards,total,extra\n1,2,3,7,high,not json\n2,a,b,,0.5,"{""k"": 1, ""rewards/x"": 2}"\n'
    )
    (run,) = import_runs(table(tmp_path, text))
    (sample,) = records(run, "Sample")[1:]
    assert (sample.prompt, sample.total, sample.rewards, sample.extra) == ("a", 0.5, {"x": 2}, {"k": 1})
    (odd,) = records(run, "Sample")[:1]
    assert (odd.prompt, odd.total, odd.extra) == ("2", "high", {"rewards": 7, "extra_text": "not json"})
