"""Importing the tables that ``hookline runs export`` wrote."""

import json
import math
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import hookline as hl
from hookline._engine.errors import ConfigError, MissingExtraError
from hookline._record.recorder import Recorder
from hookline.cli import app
from hookline.importers import detect, import_runs
from hookline.store.tables import RUN_COLUMNS

pytest.importorskip("duckdb")
pyarrow = pytest.importorskip("pyarrow")
pytest.importorskip("pyarrow.parquet")

TABLES = ("metrics", "samples", "events")
NOTATIONS = ("csv", "jsonl", "parquet")
OWN = ("run", "id")
"""The columns that an imported run has of its own."""


@pytest.fixture(autouse=True)
def _in_an_empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def record(name="talk"):
    """A run that has something of everything."""
    rewards = {"exact": 1.0, "bad": math.nan}
    sample = {"prompt": "1,2", "completion": 'say "ä"\n', "rewards": rewards, "advantage": -0.5, "seed": [7, math.inf]}
    with hl.run(name, summary=False) as run:
        for step in run.steps(2):
            run.log({"loss": math.nan if step else 1 / 3, "top": math.inf, "note": "3.5", "none": None, "count": 7})
            run.log_samples([sample])
        run.recorder.metrics({"val/loss": 0.5, "loss": 0.25}, 2, "eval")
        run.recorder.event("checkpoint", step=2, path="last.pt", sizes={"model": 3})
        run.recorder.event("pause", reason="lunch")
        record_other(run.dir)
    return run.dir


def record_other(directory):
    other = Recorder(directory, name="rank1", text_bytes=20)
    other.log(loss=9.0, step=2)
    other.samples([{"prompt": "long " * 100, "completion": "7", "total": 0.25, "lesson": "sums"}], 2, "eval")
    other.close()


def export(directory, what, file):
    result = CliRunner().invoke(app, ["runs", "export", str(directory), "--what", what, "-o", str(file)])
    assert result.exit_code == 0, result.output
    return file


def rows(run, what, root):
    """A table of a run without what an imported run has of its own, as a text, in which NaN equals itself."""
    found = getattr(hl.runs(root).filter(id=f"{run.parent.name}/{run.name}"), what)().rows()
    return sorted(str({name: value for name, value in row.items() if name not in OWN}) for row in found)


@pytest.mark.parametrize("what", TABLES)
@pytest.mark.parametrize("notation", NOTATIONS)
def test_exported_table_round_trips(tmp_path, what, notation):
    directory = record()
    (run,) = import_runs(export(directory, what, tmp_path / f"out.{notation}"), root="again")
    assert (run.name, run.format, run.skipped_count) == (f"default/{directory.name}", "hookline", 0)
    assert rows(run.directory, what, "again") == rows(directory, what, "runs") != []


def test_values_logged_together_become_one_row_of_their_writer(tmp_path):
    directory = record()
    (run,) = import_runs(export(directory, "metrics", tmp_path / "out.csv"), root="again")
    kept = [
        [(r.step, r.axis, r.time, set(r.values)) for r in hl.read(d) if hasattr(r, "values")]
        for d in (directory, run.directory)
    ]
    assert (kept[1], run.rows) == (kept[0], 4)
    assert any("rank1/loss" in names for *_, names in kept[1])


def export_both(first, second, what, notation):
    """One file with a table of two runs."""
    one, two = (export(run, what, f"{place}.{notation}") for place, run in enumerate((first, second)))
    both = Path(f"both.{notation}")
    if notation == "parquet":
        pyarrow.parquet.write_table(pyarrow.concat_tables(map(pyarrow.parquet.read_table, (one, two))), both)
        return both
    added = Path(two).read_bytes()
    header = added.index(b"\n") + 1 if notation == "csv" else 0
    both.write_bytes(Path(one).read_bytes() + added[header:])
    return both


@pytest.mark.parametrize("what", TABLES)
@pytest.mark.parametrize("notation", NOTATIONS)
def test_two_runs_in_one_file_become_two_runs_named_after_them(what, notation):
    directories = [record("low"), record("high")]
    file = export_both(*directories, what, notation)  # type: ignore[call-arg]
    made = import_runs(file, root="again")
    assert [run.name for run in made] == [f"default/{directory.name}" for directory in directories]
    for run, directory in zip(made, directories, strict=True):
        assert rows(run.directory, what, "again") == rows(directory, what, "runs")
    again = import_runs(file, root="again")
    assert [(run.already, run.directory) for run in again] == [(True, run.directory) for run in made]


def test_tables_of_one_run_in_a_directory_become_one_run(tmp_path):
    directory = record()
    (tmp_path / "out").mkdir()
    for what, notation in zip(TABLES, NOTATIONS, strict=True):
        export(directory, what, tmp_path / "out" / f"{what}.{notation}")
    export(directory, "metrics", tmp_path / "out" / "same.jsonl")
    export(directory, "hooks", tmp_path / "out" / "hooks.csv")
    (run,) = import_runs(tmp_path / "out", root="again")
    assert [rows(run.directory, what, "again") for what in TABLES] == [rows(directory, what, "runs") for what in TABLES]
    assert {left.what.rpartition("/")[2] for left in run.left} == {"same.jsonl", "hooks.csv"}


def test_status_of_a_failed_run_is_restored_from_its_events(tmp_path):
    with pytest.raises(RuntimeError), hl.run("bad", summary=False) as run:
        raise RuntimeError("no luck")
    (made,) = import_runs(export(run.dir, "events", tmp_path / "out.jsonl"), root="again")
    (info,) = hl.runs("again")
    assert (info.status, made.rows, made.events) == ("failed", 0, 2)  # the failure with its traceback, and the status


@pytest.mark.parametrize("what", ["hooks", "rewards", "logs"])
@pytest.mark.parametrize("notation", ["csv", "parquet"])
def test_other_tables_are_refused_with_the_accepted_ones(tmp_path, what, notation):
    file = export(record(), what, tmp_path / f"out.{notation}")
    with pytest.raises(
        ConfigError, match=f"holds hookline's table '{what}'.*Accepted are whole tables of metrics, sam"
    ):
        import_runs(file)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (",".join(RUN_COLUMNS), "holds hookline's table 'runs'"),
        ("run,step,name,value", "table 'metrics', with 'axis', 'text', 'time', 'writer' missing"),
        ("run,writer,axis,step,time,name,value,text,rank", "table 'metrics', with 'rank' added"),
    ],
)
def test_query_result_is_refused_unless_read_as_plain_csv(tmp_path, columns, said):
    (tmp_path / "out.csv").write_text(columns + "\n" + ",".join("1" for _ in columns.split(",")) + "\n")
    with pytest.raises(ConfigError, match=rf"{said}.*--format csv reads it like any other CSV file\.$"):
        import_runs(tmp_path / "out.csv")
    assert [each.format for each in detect(tmp_path / "out.csv", format="csv")] == ["csv"]


def test_broken_rows_are_skipped_and_reported(tmp_path):
    good = {
        "run": "a",
        "writer": "main",
        "axis": "train",
        "step": 1,
        "time": 5.0,
        "name": "x",
        "value": 1,
        "text": None,
    }
    bad = [good | {"step": "soon"}, good | {"time": None}, good | {"value": "much"}, good | {"run": None}]
    bad += [good | {"writer": "../up"}]
    lines = [json.dumps(each) for each in (good, *bad, good | {"run": "b"})]
    (tmp_path / "out.jsonl").write_text("\n".join([*lines, '{"run": "b']))
    first, second = import_runs(tmp_path / "out.jsonl")
    assert [(run.rows, run.skipped_count) for run in (first, second)] == [(1, 6), (1, 0)]
    assert "step='soon' is not a whole number" in [skip.reason for skip in first.skipped]


def test_table_without_rows_is_refused(tmp_path):
    (tmp_path / "out.csv").write_text("run,writer,axis,step,time,name,value,text\n")
    with pytest.raises(ConfigError, match="the tables have no rows"):
        import_runs(tmp_path / "out.csv")


def test_file_with_any_suffix_is_read_if_the_format_is_given(tmp_path):
    file = export(record(), "metrics", tmp_path / "out.csv").rename(tmp_path / "numbers [1]")
    parquet = export(record(), "metrics", tmp_path / "out [1].parquet")
    assert [run.rows for path in (file, parquet) for run in import_runs(path, format="hookline")] == [4, 4]


def test_parquet_without_duckdb_names_the_extra(tmp_path, monkeypatch):
    file = export(record(), "metrics", tmp_path / "out.parquet")
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'hookline\[ui\]'"):
        import_runs(file)
