"""``hookline sql``: queries over runs, their formats, and what is said about wrong ones."""

import csv
import io
import json

import pytest
from finished_runs import record

import hookline as hl


def test_sql_as_a_table_has_a_line_a_row(cli):
    record(losses=[3.0, 1.0])
    result = cli("sql", "select name, count(*) as n, min(value) as best from metrics group by name")
    assert result.exit_code == 0
    assert [line.split() for line in result.stdout.splitlines()][1:4:2] == [["name", "n", "best"], ["loss", "2", "1"]]
    assert result.stderr == "1 row\n"


def test_sql_as_json_and_csv_has_the_same_rows(cli):
    record(losses=[3.0, float("nan")])
    query = "select step, value, {'a': [1, null]} as nested, date '2026-01-02' as day from metrics order by step"
    rows = json.loads(cli("sql", query, "--json").stdout)
    assert rows == [
        {"step": 1, "value": 3.0, "nested": {"a": [1, None]}, "day": "2026-01-02"},
        {"step": 2, "value": "NaN", "nested": {"a": [1, None]}, "day": "2026-01-02"},
    ]
    table = list(csv.reader(io.StringIO(cli("sql", query, "--format", "csv").stdout)))
    assert table == [
        ["step", "value", "nested", "day"],
        ["1", "3.0", '{"a": [1, null]}', "2026-01-02"],
        ["2", "nan", '{"a": [1, null]}', "2026-01-02"],
    ]


def test_sql_over_all_tables_sees_what_was_recorded(cli):
    with hl.run("talk", summary=False) as run:
        for _ in run.steps(1):
            run.log(loss=1.0)
            run.log_samples([{"prompt": "p", "completion": "c", "total": 0.5}])
            run.recorder.line("INFO", "me", "hello")
    query = (
        "select (select count(*) from runs) as runs, (select status from runs) as status, "
        "(select max(total) from samples) as best, (select count(*) from events) as events, "
        "(select message from logs) as said, (select count(*) from hooks) as hooks"
    )
    (row,) = json.loads(cli("sql", query, "--json").stdout)
    assert row == {"runs": 1, "status": "finished", "best": 0.5, "events": 2, "said": "hello", "hooks": 0}


def test_sql_table_of_many_rows_shows_some_and_says_how_many_more(cli):
    record(losses=[1.0] * 120)
    some = cli("sql", "select step from metrics order by step")
    assert "70 more rows; --limit 0 prints all." in some.stderr
    assert [line.strip() for line in some.stdout.splitlines() if line.strip().isdigit()] == [*map(str, range(1, 51))]
    assert "120 rows" in cli("sql", "from metrics", "--limit", "0").stderr
    few = cli("sql", "select step from metrics order by step", "--limit", "2", "--format", "csv")
    assert (few.stdout, few.stderr) == ("step\n1\n2\n", "118 more rows; --limit 0 prints all.\n")


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("select foo from metrics", 'Referenced column "foo" not found'),
        ("select * from metric", "metrics"),
        ("selct 1", "syntax error"),
        ("drop table runs", "give one SELECT"),
        ("select 1; select 2", "give one SELECT"),
        ("", "is nothing; give one SELECT"),
        ("select * from read_csv('/etc/passwd')", "Permission Error"),
    ],
)
def test_sql_that_is_wrong_exits_with_two_and_shows_tables_and_columns(query, said, cli):
    record()
    result = cli("sql", query)
    assert (result.exit_code, result.stdout, said in result.stderr) == (2, "", True), result.stderr
    assert "metrics(run, writer, axis, step, time, name, value, text)" in result.stderr


def test_sql_that_takes_too_long_is_ended(cli):
    record()
    result = cli("sql", "select sum(a.range * b.range) from range(1000000) a, range(1000000) b", "--timeout", "0.2")
    assert (result.exit_code, "took longer than 0.2 s" in result.stderr) == (2, True)


def test_sql_schema_lists_every_column_with_its_type(cli):
    record()
    text, document = cli("sql", "--schema").stdout, json.loads(cli("sql", "--schema", "--json").stdout)
    recorded = ["runs", "metrics", "metric_names", "samples", "sample_uses", "rewards"]
    recorded += ["events", "hooks", "logs", "console"]
    assert list(document) == [*recorded, "media", "table_rows", "blobs"]
    assert (document["metrics"]["value"], document["samples"]["rewards"]) == ("DOUBLE", "MAP(VARCHAR, DOUBLE)")
    assert [column for columns in document.values() for column in columns if f"  {column} " not in text] == []


def test_sql_error_lists_the_names_of_metrics_among_the_tables(cli):
    record()
    said = cli("sql", "select * from nothing").stderr
    assert "  metric_names(run, name, axis, points, texts, first_step, last_step)" in said


def test_sql_without_a_query_or_with_too_much_exits_with_two(cli):
    record()
    assert [cli("sql").exit_code, cli("sql", "select 1", "--schema").exit_code] == [2, 2]


def test_sql_of_hostile_text_obeys_no_terminal_codes(cli):
    record("red\x1b[31m[bold]")
    result = cli("sql", "select name from runs")
    assert ("\x1b" in result.stdout, "red\\x1b[31m[bold]" in result.stdout) == (False, True)


def test_sql_in_a_real_process_prints_only_rows_on_standard_output(tmp_path, program, monkeypatch):
    monkeypatch.chdir(tmp_path)
    record()
    result = program("sql", "select name, step from runs", "--format", "csv")
    assert (result.returncode, result.stdout) == (0, "name,step\nwarm,3\n")


def test_sql_with_columns_of_one_name_prints_all_of_them_in_every_format(cli):
    record(losses=[3.0])
    query = "select m.name, r.name, m.value from metrics m join runs r on r.id = m.run"
    assert json.loads(cli("sql", query, "--json").stdout) == [{"name": "loss", "name_1": "warm", "value": 3.0}]
    assert cli("sql", query, "--format", "csv").stdout == "name,name_1,value\nloss,warm,3.0\n"
    lines = [line.split() for line in cli("sql", query).stdout.splitlines()]
    assert (["name", "name_1", "value"] in lines, ["loss", "warm", "3"] in lines) == (True, True)


def test_sql_with_a_comment_behind_its_semicolon_is_run(cli):
    record(losses=[3.0, 1.0])
    for options in ((), ("--format", "csv"), ("--limit", "1")):
        result = cli("sql", "select count(*) c from metrics; -- done", *options)
        assert (result.exit_code, "2" in result.stdout.split()) == (0, True), result.stderr


def test_sql_with_points_in_time_prints_them_as_iso_text_in_utc(cli):
    record(losses=[3.0])
    query = "select to_timestamp(step + 0.5) as at, timestamp '2026-01-02 03:04:05' as day from metrics"
    at, day = "1970-01-01T00:00:01.500000+00:00", "2026-01-02T03:04:05"
    assert json.loads(cli("sql", query, "--json").stdout) == [{"at": at, "day": day}]
    assert cli("sql", query, "--format", "csv").stdout == f"at,day\n{at},{day}\n"
    assert at in cli("sql", query).stdout
    assert cli("sql", "select now()").exit_code == 0
