"""`hookline runs edit`: names, tags, notes and archived runs."""

import json

import pytest
from typer.testing import CliRunner

import hookline as hl
from hookline.cli.app import app
from hookline.store.edits import EDITS_FILE


@pytest.fixture
def ids(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = []
    for name in ("one", "two"):
        with hl.run(name, project="p", tags=["old"], summary=False) as run:
            run.log(loss=1.0)
        found.append(f"p/{run.dir.name}")
    return found


def edit(*arguments):
    return CliRunner().invoke(app, ["runs", "edit", *arguments])


def listed(*arguments):
    result = CliRunner().invoke(app, ["runs", "list", "--json", *arguments])
    return [run["name"] for run in json.loads(result.stdout)["runs"]]


def test_edit_changes_all_given_runs_and_keeps_what_was_recorded(ids):
    result = edit(*ids, "--tag", "new", "--untag", "old", "--notes", "why")
    assert (result.exit_code, "Edited 2 runs" in result.stdout) == (0, True)
    assert [(info.tags, info.notes) for info in hl.runs()] == [(("new",), "why")] * 2
    assert edit("one", "--name", "renamed").exit_code == 0
    assert {info.name for info in hl.runs()} == {"renamed", "two"}
    assert edit(ids[0], "--name", "").exit_code == 0
    assert {info.name for info in hl.runs()} == {"one", "two"}


def test_archived_runs_are_listed_when_asked_for_and_python_sees_all(ids):
    reply = json.loads(edit("one", "--archive", "--json").stdout)
    assert reply == {"runs": [{"id": ids[0], "edits": {"archived": True}}]}
    assert listed() == ["two"]
    assert sorted(listed("--archived")) == ["one", "two"]
    assert listed("--where", "archived = true") == ["one"]
    assert sorted(info.name for info in hl.runs()) == ["one", "two"]
    assert [info.name for info in hl.runs(where="archived = false")] == ["two"]
    edit("one", "--unarchive")
    assert sorted(listed()) == ["one", "two"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["one"], "Give something to change"),
        (["one", "--tag", " "], "A tag is empty"),
        (["one", "nope", "--archive"], "There is no run 'nope'"),
        (["one", "--name", "n" * 201], "at most 200 characters"),
        (["one", "two", "--tag", "x"], "Remove the file"),
    ],
)
def test_change_that_is_not_accepted_for_one_run_changes_none(ids, tmp_path, arguments, words):
    (tmp_path / "runs" / ids[1] / EDITS_FILE).write_text("no json")
    result = edit(*arguments)
    assert (result.exit_code, words in " ".join(result.output.split())) == (2, True)
    assert not (tmp_path / "runs" / ids[0] / EDITS_FILE).exists()


def test_edit_of_runs_below_another_root(ids, tmp_path):
    (tmp_path / "runs").rename(tmp_path / "elsewhere")
    assert edit("one", "--archive").exit_code == 2
    assert edit("one", "--archive", "--root", "elsewhere").exit_code == 0
    assert {info.name: info.archived for info in hl.runs("elsewhere")} == {"one": True, "two": False}
