"""``hookline runs import``: what it prints, and how it ends."""

import json

import pytest
from finished_runs import record

import hookline as hl


@pytest.fixture
def table(tmp_path):
    file = tmp_path / "exp.csv"
    file.write_text("step,loss\n1,0.5\n2,0.25\n")
    return file


def test_import_prints_the_run_that_it_made(table, tmp_path, cli):
    result = cli("runs", "import", table)
    (directory,) = (tmp_path / "runs" / "imported").iterdir()
    row = next(line for line in result.stdout.splitlines() if directory.name in line)
    assert (result.exit_code, row.split()) == (0, [directory.name, "exp", "csv", "2", "0"])


def test_import_as_json_is_one_document(table, cli):
    result = cli("runs", "import", table, "--json", "--project", "papers", "--name", "baseline", "--root", "kept")
    (run,) = json.loads(result.stdout)
    assert {key: run[key] for key in ("name", "format", "rows", "samples", "already", "taken", "left", "skipped")} == {
        "name": "baseline",
        "format": "csv",
        "rows": 2,
        "samples": 0,
        "already": False,
        "taken": [str(table)],
        "left": [],
        "skipped": [],
    }
    assert [r.values for r in hl.read(run["directory"]) if hasattr(r, "values")] == [{"loss": 0.5}, {"loss": 0.25}]
    assert "/kept/papers/" in run["directory"]


def test_import_of_the_same_thing_says_so_and_again_imports_it(table, tmp_path, cli):
    cli("runs", "import", table)
    second, third = cli("runs", "import", table), cli("runs", "import", table, "--again")
    assert (second.exit_code, "already imported as" in second.stdout, third.exit_code) == (0, True, 0)
    assert len(list((tmp_path / "runs" / "imported").iterdir())) == 2


def test_import_names_what_it_skipped_and_left(table, tmp_path, cli):
    table.write_text(table.read_text() + "".join(f"x{line},0\n" for line in range(20)))
    result = cli("runs", "import", table)
    assert result.exit_code == 0
    assert f"skipped {table}, line 4: step='x0' is not a whole number" in result.stdout
    assert "skipped 10 more places" in result.stdout


def test_trial_import_writes_nothing(table, tmp_path, cli):
    result = cli("runs", "import", table, "--dry-run")
    assert (result.exit_code, "(would be new)" in result.stdout, (tmp_path / "runs").exists()) == (0, True, False)


def test_import_where_one_run_has_nothing_in_it_exits_with_one(table, tmp_path, cli):
    (tmp_path / "broken.csv").write_text("step,loss\nx,1\n")
    result = cli("runs", "import", tmp_path)
    assert (result.exit_code, "(nothing in it)" in result.stdout, "exp" in result.stdout) == (1, True, True)


def test_import_of_an_unknown_format_is_one_message(tmp_path, cli):
    (tmp_path / "weights.bin").write_bytes(b"\0")
    result = cli("runs", "import", tmp_path / "weights.bin")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "is not in a format that can be imported. Accepted are tensorboard: event files" in result.stderr


def test_import_takes_the_column_of_steps_and_the_format_that_are_given(table, cli):
    table.write_text("tokens,loss\n1000,0.5\n")
    result = cli("runs", "import", table, "--step-column", "tokens", "--format", "csv", "--json")
    (run,) = json.loads(result.stdout)
    assert [r.step for r in hl.read(run["directory"]) if hasattr(r, "values")] == [1000]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nofile"], "nofile: there is no such file or directory."),
        (["exp.csv", "--format", "cvs"], "Did you mean 'csv'?"),
        (["exp.csv", "--step-column", "stepp"], "Did you mean 'step'?"),
    ],
)
def test_import_of_what_is_not_there_exits_with_two_and_nothing_but_the_message(arguments, said, table, program):
    result = program("runs", "import", *arguments)
    assert (result.returncode, result.stdout, result.stderr.startswith("Error: ")) == (2, "", True)
    assert result.stderr.endswith(f"{said}\n")


def test_import_of_exported_events_counts_them(tmp_path, cli):
    directory = record()
    cli("runs", "export", directory, "--what", "events", "-o", "out.jsonl")
    result = cli("runs", "import", "out.jsonl", "--root", "again")
    assert result.exit_code == 0
    assert [line.split()[1:] for line in result.stdout.splitlines() if "hookline" in line] == [
        [f"default/{directory.name}", "hookline", "0", "0", "2"]
    ]
