"""``hookline runs delete``: what goes, and what never does."""

import json
import time

import pytest
from finished_runs import record
from typer.testing import CliRunner

import hookline as hl
from hookline._record import run_directory
from hookline._record.records import Status, encode
from hookline.cli import app
from hookline.server.audit import AuditLog


def there(tmp_path, project="default"):
    return {path.name for path in (tmp_path / "runs" / project).iterdir()}


def ended_days_ago(days, **facts):
    """A run that ended then."""
    directory = run_directory.create("runs", "default", {"name": "old", "git": None})
    (directory / "journal").mkdir()
    ended = Status(time=time.time() - days * 86400, status="finished", step=1)
    (directory / "journal" / "main-0000-1-abc-000000.jsonl").write_bytes(encode(ended) + b"\n")
    return directory


def test_delete_of_a_run_removes_it_and_leaves_the_others(tmp_path, cli):
    gone, kept = record(), record()
    result = cli("runs", "delete", gone.name, "--yes")
    assert (result.exit_code, there(tmp_path)) == (0, {kept.name})
    assert "Deleted 1 run" in result.stdout
    assert gone.name not in cli("runs", "list").stdout


@pytest.mark.parametrize("has_log", [True, False])
def test_delete_on_a_server_is_noted_in_its_audit_log(tmp_path, cli, has_log):
    log, gone = AuditLog(tmp_path / "runs"), record()
    if has_log:
        log.record("run.claimed")
    assert cli("runs", "delete", gone.name, "--yes").exit_code == 0
    noted = [(event.action, event.project, event.target) for event in log.read(10)]
    assert noted == ([("run.deleted", "default", gone.name), ("run.claimed", "", "")] if has_log else [])
    log.close()


def test_delete_asks_first_and_does_nothing_without_a_yes(tmp_path, cli):
    directory = record()
    for answer, code in (("n\n", 1), ("", 1), ("y\n", 0)):
        assert directory.exists()
        result = CliRunner().invoke(app, ["runs", "delete", "latest"], input=answer)
        assert (result.exit_code, "Delete 1 run permanently?" in result.stdout) == (code, True)
    assert not directory.exists()


def test_delete_as_a_dry_run_shows_what_would_go_and_how_much_room_it_takes(tmp_path, cli):
    directory = record()
    (directory / "weights.bin").write_bytes(b"x" * 3_000_000)
    text, document = (
        cli("runs", "delete", "latest", "--dry-run"),
        cli("runs", "delete", "latest", "--dry-run", "--json"),
    )
    (row,) = json.loads(document.stdout)["runs"]
    assert (row["id"], 3_000_000 <= row["bytes"] < 3_400_000) == (f"default/{directory.name}", True)
    (line,) = [line for line in text.stdout.splitlines() if directory.name in line]
    assert line.split()[1:] == ["finished", "0", "s", "ago", f"{row['bytes'] / 1e6:.1f}", "MB"]
    assert there(tmp_path) == {directory.name}


def test_delete_by_age_and_status_takes_only_runs_to_which_both_apply(tmp_path, cli):
    old, young, failed = ended_days_ago(31), ended_days_ago(29), record(error="no")
    by_age = json.loads(cli("runs", "delete", "--older-than", "30d", "--json", "--dry-run").stdout)
    by_both = json.loads(cli("runs", "delete", "--older-than", "30d", "--status", "failed", "--json", "--yes").stdout)
    assert ([run["id"] for run in by_age["runs"]], by_both["runs"]) == ([f"default/{old.name}"], [])
    cli("runs", "delete", "--status", "failed", "--yes")
    assert there(tmp_path) == {old.name, young.name}
    assert failed.exists() is False


@pytest.mark.parametrize(
    ("metric", "mode", "kept"),
    [
        ("loss", [], [0.1, 0.5]),
        ("accuracy", [], [0.9, 0.5]),
        ("loss", ["--mode", "max"], [0.9, 0.5]),
        ("accuracy", ["--mode", "min"], [0.1, 0.5]),
    ],
)
def test_delete_but_the_best_keeps_those_that_are_best_by_the_metric(metric, mode, kept, tmp_path, cli):
    made = {}
    for value in (0.5, 0.1, 0.9):
        with hl.run("one", summary=False) as run:
            for _ in run.steps(1):
                run.log({metric: value})
        made[value] = run.dir.name
    without = record(losses=[])
    result = cli("runs", "delete", "--keep-best", "2", "--by", metric, *mode, "--yes")
    assert (result.exit_code, there(tmp_path)) == (0, {made[value] for value in kept})
    assert without.exists() is False


def test_delete_of_the_best_by_a_metric_that_no_run_has_names_the_closest(tmp_path, cli):
    directory = record()
    result = cli("runs", "delete", "--keep-best", "1", "--by", "los", "--yes")
    assert (result.exit_code, "Did you mean 'loss'?" in result.stderr) == (2, True)
    assert there(tmp_path) == {directory.name}


def test_delete_of_a_running_one_is_refused_and_nothing_goes(tmp_path, cli):
    finished = record()
    with hl.run("live", summary=False) as run:
        given = cli("runs", "delete", run.dir.name, finished.name, "--yes")
        chosen = cli("runs", "delete", "--older-than", "0s", "--yes")
    assert (given.exit_code, "still running" in given.stderr) == (2, True)
    assert (chosen.exit_code, there(tmp_path)) == (0, {run.dir.name})
    assert f"Kept, because they are running: default/{run.dir.name}" in chosen.stdout


def test_delete_of_a_run_with_links_leaves_what_they_lead_to(tmp_path, cli):
    directory, precious = record(), tmp_path / "precious"
    precious.mkdir()
    (precious / "data").write_text("keep")
    (directory / "link").symlink_to(precious)
    assert cli("runs", "delete", "latest", "--yes").exit_code == 0
    assert (directory.exists(), (precious / "data").read_text()) == (False, "keep")


def test_delete_of_a_link_to_a_run_or_of_one_outside_the_root_is_refused(tmp_path, cli):
    record()
    outside = record(root=tmp_path / "elsewhere")
    link = tmp_path / "runs" / "default" / "link"
    link.symlink_to(outside)
    for given, said in ((link, "is a link"), (outside, "is outside of"), ("link", "There is no run 'link'")):
        result = cli("runs", "delete", given, "--yes")
        assert (result.exit_code, said in result.stderr) == (2, True)
    assert cli("runs", "delete", "--older-than", "0s", "--yes").exit_code == 0
    assert (outside / "run.json").exists()
    assert (there(tmp_path), link.is_symlink()) == ({"link"}, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "this command never deletes all runs"),
        (["--yes"], "this command never deletes all runs"),
        (["latest", "--json"], "--json cannot ask"),
        (["--keep-best", "2"], "--keep-best and --by go together"),
        (["--older-than", "1d", "--mode", "max"], "--mode max needs a metric"),
        (["--older-than", "month", "--yes"], "give a number and s, m, h, d or w"),
        (["--status", "faild", "--yes"], "Did you mean 'failed'?"),
    ],
)
def test_delete_given_wrongly_deletes_nothing_and_exits_with_two(arguments, said, tmp_path, cli):
    directory = record()
    result = cli("runs", "delete", *arguments)
    assert (result.exit_code, said in result.stderr) == (2, True)
    assert there(tmp_path) == {directory.name}


def test_delete_that_the_system_refuses_says_so_and_exits_with_one(tmp_path, cli, monkeypatch):
    directory = record()
    monkeypatch.setattr(type(directory), "rename", lambda self, target: (_ for _ in ()).throw(OSError("read-only")))
    result = cli("runs", "delete", "latest", "--yes")
    assert (result.exit_code, "is not deleted: read-only" in result.stderr) == (1, True)


def test_delete_frees_what_the_index_holds_of_a_run(tmp_path, monkeypatch, cli):
    monkeypatch.setattr("hookline.store.ingest.COMPACT_ROWS", 0)  # Parquet files for a short run
    record()
    cli("sql", "select count(*) from metrics")
    compacted = list((tmp_path / "runs" / ".hookline").rglob("*.parquet"))
    cli("runs", "delete", "latest", "--yes")
    assert (len(compacted) > 0, list((tmp_path / "runs" / ".hookline").rglob("*.parquet"))) == (True, [])
