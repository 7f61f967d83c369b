"""``hookline runs list``: which runs are shown, in which order, and what is said about each."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from finished_runs import change_facts, journal_file, record

import hookline as hl


def shown_runs(result):
    return [line.split()[0] for line in result.stdout.splitlines() if line.strip().startswith(("default/", "other/"))]


def test_list_shows_the_latest_first_with_status_steps_and_last_metrics(cli):
    first, second = record("first"), record("second", losses=[0.5], error="out of memory")
    result = cli("runs", "list")
    assert (result.exit_code, shown_runs(result)) == (0, [f"default/{second.name}", f"default/{first.name}"])
    rows = {line.split()[1]: line.split()[2:] for line in result.stdout.splitlines() if "default/" in line}
    assert (rows["second"][:2], rows["second"][-2:]) == (["failed", "1/1"], ["loss", "0.5"])
    assert (rows["first"][:2], rows["first"][-2:]) == (["finished", "3/3"], ["loss", "1"])


def test_list_of_a_live_run_says_that_it_runs(cli):
    with hl.run("live", summary=False) as run:
        for step in run.steps(5):
            run.log(loss=float(step))
            if step == 2:
                result = cli("runs", "list", "--status", "running", "--json")
    (info,) = json.loads(result.stdout)["runs"]
    assert (info["id"], info["status"], info["step"], info["num_steps"]) == (f"default/{run.dir.name}", "running", 2, 5)


def test_list_with_filters_shows_only_what_all_of_them_apply_to(cli):
    wanted = record("cold", project="other")
    record("cold")
    record("warm", project="other")
    change_facts(wanted, experiment={"name": "sweep", "arm": "low"})
    by_name = cli("runs", "list", "--name", "cold", "--project", "other")
    by_experiment = cli("runs", "list", "--experiment", "swe*")
    assert shown_runs(by_name) == shown_runs(by_experiment) == [f"other/{wanted.name}"]
    assert "sweep/low" in by_experiment.stdout


def test_list_with_a_tag_shows_only_runs_that_have_it(cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    wanted = record("cold")
    record("warm")
    change_facts(wanted, tags=["nightly", "lr=0.1"])
    result = cli("runs", "list", "--tag", "night*", "--tag", "other")
    assert (shown_runs(result), "nightly, lr=0.1" in result.stdout) == ([f"default/{wanted.name}"], True)


def test_list_of_a_thousand_runs_shows_fifty_and_says_how_many_more(tmp_path, cli):
    original = record()
    for number in range(999):
        copy = original.with_name(f"copy-{number:03d}")
        copy.mkdir()
        (copy / "journal").mkdir()
        shutil.copy(original / "run.json", copy)
        shutil.copy(journal_file(original), copy / "journal")
    result = cli("runs", "list")
    assert (len(shown_runs(result)), "950 more; --latest 1000 shows all." in result.stderr) == (50, True)
    few = json.loads(cli("runs", "list", "--latest", "3", "--json").stdout)
    assert (len(few["runs"]), few["more"]) == (3, 997)


def test_list_of_a_name_with_terminal_codes_shows_them_and_obeys_none(cli):
    record("red\x1b[31m[bold]")
    result = cli("runs", "list")
    assert ("\x1b" in result.stdout, "red\\x1b[31m[bold]" in result.stdout) == (False, True)


def test_list_marks_runs_with_problems(cli):
    directory = record()
    with journal_file(directory).open("ab") as file:
        file.write(b'{"kind":"metr')
    result = cli("runs", "list")
    assert ("finished !" in result.stdout, "hookline runs verify" in result.stderr) == (True, True)


def test_list_without_runs_says_so(tmp_path, cli):
    (tmp_path / "runs").mkdir()
    result = cli("runs", "list")
    assert (result.exit_code, result.stdout, "There are no runs in" in result.stderr) == (0, "", True)
    assert "no such runs" in cli("runs", "list", "--name", "x").stderr


def test_list_of_a_root_that_is_not_there_exits_with_two(cli):
    result = cli("runs", "list", "--root", "nowhere")
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"There are no runs yet: the directory {Path('nowhere').resolve()} does not exist." in result.stderr
    assert "hookline demo --quick, or give another directory (--root)" in result.stderr


def test_list_of_a_root_that_is_a_file_says_so(cli):
    Path("taken").write_text("")
    result = cli("runs", "list", "--root", "taken")
    assert (result.exit_code, "taken is a file" in result.stderr) == (2, True)


@pytest.mark.parametrize("columns", [60, 80, 100])
def test_list_on_a_narrow_terminal_has_a_line_a_run_and_whole_names(columns, terminal, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = ["line-search", "a-rather-long-name"]
    directories = [record(name) for name in names]
    lines = [line for line in terminal("runs", "list", columns=columns).splitlines() if line.strip()]
    assert (len(lines), max(map(len, lines)) <= columns) == (4, True)
    for line, name, directory in zip(lines[:1:-1], names, directories, strict=True):
        run, shown, status, step = line.split()[:4]
        assert (shown, status, step) == (name, "finished", "3/3")
        assert f"default/{directory.name}".endswith(run.removeprefix("…"))
    assert ("last metrics" in lines[0]) == (columns == 100)


@pytest.fixture(scope="module")
def wordy_root(tmp_path_factory):
    """The root of fifty runs of ten metrics with long names, tagged, of an experiment."""
    root = tmp_path_factory.mktemp("wordy") / "runs"
    metrics = {f"validation/perplexity_of_held_out_documents/{i}": 0.001 * i + 1e-7 for i in range(10)}
    with hl.run("a-sweep-over-many-settings", root=root, summary=False) as run:
        for _ in run.steps(1):
            run.log(metrics)
    change_facts(run.dir, experiment={"name": "sweep", "arm": "low"}, tags=["nightly", "baseline"])
    for number in range(49):
        shutil.copytree(run.dir, run.dir.with_name(f"{run.dir.name}-{number}"))
    return root


def ids(root):
    return sorted(f"default/{path.name}" for path in (root / "default").iterdir() if path.is_dir())


@pytest.mark.parametrize("columns", [120, 137, 155, 200])
def test_list_of_runs_with_long_metric_names_has_a_line_a_run_with_whole_values(columns, wordy_root, terminal):
    shown = terminal("runs", "list", "--root", wordy_root, columns=columns)
    lines = [line for line in shown.splitlines() if line.strip()]
    assert (len(lines), max(map(len, lines)) <= columns) == (2 + 50, True)
    assert sorted(line.split()[0] for line in lines[2:]) == ids(wordy_root)
    assert all(re.search(r"/0 1e-07( |$)", line) for line in lines[2:])


def test_list_shortens_long_tags_at_their_end(wordy_root, tmp_path, terminal):
    for path in shutil.copytree(wordy_root, tmp_path / "runs").glob("default/*"):
        change_facts(path, tags=["abcdefghij" * 4, "klm"])
    lines = terminal("runs", "list", columns=200).splitlines()
    assert sum("abcdefghij" * 3 + "abcdefghi…" in line for line in lines) == 50


@pytest.mark.parametrize("columns", [None, 60, 120])
def test_list_in_a_pipe_has_whole_ids_and_nothing_but_the_listing(columns, wordy_root):
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    environment |= {} if columns is None else {"COLUMNS": str(columns)}
    command = [sys.executable, "-m", "hookline", "runs", "list", "--root", wordy_root, "--latest", "40"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    assert (len(lines), done.stderr) == (2 + 40, "10 more; --latest 50 shows all.\n")
    assert {line.split()[0] for line in lines[2:]} <= set(ids(wordy_root))


def test_list_on_a_narrow_terminal_cuts_the_name_of_a_metric_and_not_its_value(cli, monkeypatch):
    with hl.run("named", summary=False) as run:
        for _ in run.steps(1):
            run.log(**{"validation/of/everything/in/the/world/loss": 0.125})
    monkeypatch.setenv("COLUMNS", "90")
    lines = cli("runs", "list").stdout.splitlines()
    (row,) = [line for line in lines if run.dir.name in line]
    assert row.rstrip().endswith("/loss 0.125")
    assert "…" in row


def test_list_of_a_narrow_terminal_without_unicode_cuts_with_dots(tmp_path, terminal, monkeypatch):
    monkeypatch.chdir(tmp_path)
    record("a-name-that-leaves-no-room-for-whole-ids-in-eighty-columns")
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    shown = terminal("runs", "list", columns=100)
    assert (shown.isascii(), ".." in shown) == (True, True)


def test_list_by_an_unknown_status_names_the_closest(cli):
    record()
    result = cli("runs", "list", "--status", "runing", "--json")
    assert (result.exit_code, "Did you mean 'running'?" in json.loads(result.stdout)["error"]) == (2, True)
