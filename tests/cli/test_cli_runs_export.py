"""``hookline runs export``: what is in the files."""

import csv
import json
import math

import pyarrow.parquet
import pytest
from finished_runs import record

import hookline as hl


def talking_run():
    with hl.run("talk", summary=False) as run:
        for step in run.steps(2):
            run.log(loss=math.nan if step else 0.5)
            run.log_samples([{"prompt": "1,2", "completion": 'say "ä"\n', "rewards": {"exact": 1.0}, "mood": "good"}])
    return run.dir


def test_export_to_csv_has_a_row_a_value(tmp_path, cli):
    directory = record(losses=[0.5, 0.25])
    result = cli("runs", "export", directory, "-o", "out.csv")
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert (result.exit_code, "2 rows of metrics" in result.stdout) == (0, True)
    assert [(row["run"], row["axis"], row["step"], row["name"], row["value"]) for row in rows] == [
        (f"default/{directory.name}", "train", "1", "loss", "0.5"),
        (f"default/{directory.name}", "train", "2", "loss", "0.25"),
    ]


def test_export_of_samples_to_jsonl_keeps_texts_and_nesting(tmp_path, cli):
    talking_run()
    assert cli("runs", "export", "latest", "--what", "samples", "-o", "out.jsonl").exit_code == 0
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [(row["step"], row["prompt"], row["completion"], row["rewards"], row["extra"]) for row in rows] == [
        (step, "1,2", 'say "ä"\n', {"exact": 1.0}, {"mood": "good"}) for step in (1, 2)
    ]


def test_export_to_parquet_keeps_types_and_values_that_are_not_finite(tmp_path, cli):
    talking_run()
    result = cli("runs", "export", "latest", "-o", "out.parquet", "--json")
    table = pyarrow.parquet.read_table(tmp_path / "out.parquet")
    value = table.column("value").to_pylist()
    assert (json.loads(result.stdout)["rows"], str(table.schema.field("step").type)) == (2, "int64")
    assert (value[0], math.isnan(value[1])) == (0.5, True)


def test_export_of_events_to_standard_output_is_nothing_but_rows(cli):
    record()
    result = cli("runs", "export", "latest", "--what", "events", "--format", "jsonl", "-o", "-")
    assert [json.loads(line)["name"] for line in result.stdout.splitlines()] == ["running", "finished"]


def test_export_refuses_to_replace_a_file_unless_forced(tmp_path, cli):
    record()
    (tmp_path / "out.csv").write_text("precious")
    refused = cli("runs", "export", "latest", "-o", "out.csv")
    assert (refused.exit_code, (tmp_path / "out.csv").read_text()) == (2, "precious")
    assert "--force" in refused.stderr
    assert cli("runs", "export", "latest", "-o", "out.csv", "--force").exit_code == 0
    assert (tmp_path / "out.csv").read_text().startswith("run,writer")
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".partial")] == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-o", "out.xls"], "Give --format: parquet, csv, jsonl."),
        (["-o", "-", "--format", "parquet"], "cannot be written to standard output"),
        (["-o", "nowhere/out.csv"], "there is no such directory"),
        (["-o", "runs", "--format", "csv"], "is a directory"),
    ],
)
def test_export_to_a_place_that_cannot_be_exits_with_two(arguments, said, cli):
    record()
    result = cli("runs", "export", "latest", *arguments)
    assert (result.exit_code, said in result.stderr) == (2, True)


def test_export_without_rows_writes_the_columns(tmp_path, cli):
    record()
    cli("runs", "export", "latest", "--what", "rewards", "-o", "out.csv")
    assert (tmp_path / "out.csv").read_text().split() == ["run,writer,step,time,name,position,value,sample"]


def test_export_accepts_every_table_of_sql(tmp_path, cli):
    record()
    for name, columns in json.loads(cli("sql", "--schema", "--json").stdout).items():
        assert cli("runs", "export", "latest", "--what", name, "-o", f"{name}.csv").exit_code == 0
        assert (tmp_path / f"{name}.csv").read_text().splitlines()[0].split(",") == list(columns)


def test_export_of_an_unknown_table_names_the_choices(cli):
    record()
    result = cli("runs", "export", "latest", "--what", "weights", "-o", "out.csv")
    assert (result.exit_code, "Value error" in result.stderr) == (2, False)
    assert "'weights' is not one of 'metrics'" in " ".join(result.stderr.replace("│", " ").split())
