"""``hookline runs code``, and the environment in ``show`` and ``compare``."""

import json
import subprocess

import pytest

import hookline as hl


def git(*arguments):
    options = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", *options, *arguments], check=True, capture_output=True)


@pytest.fixture
def runs(tmp_path, cli):
    """Two runs of one commit with different changes."""
    git("init", "-q", "-b", "work")
    (tmp_path / "model.py").write_text("layers = 1\n")
    git("add", "model.py")
    git("commit", "-q", "-m", "first")
    made = []
    for layers in (2, 3):
        (tmp_path / "model.py").write_text(f"layers = {layers}\n")
        (tmp_path / "train.py").write_text("train()\n")
        with hl.run("r", code="all", summary=False) as run:
            run.log(loss=1.0)
        made.append(run.dir)
    return made


def test_code_shows_the_commit_and_what_is_kept(runs, cli):
    shown = cli("runs", "code", runs[0]).stdout
    commit = json.loads((runs[0] / "run.json").read_text())["git"]["commit"]
    assert f"commit     {commit}" in shown
    assert "untracked  1 of 1 files kept\n    train.py" in shown
    assert cli("runs", "code", runs[0], "--diff").stdout.endswith("-layers = 1\n+layers = 2\n")


def test_code_restores_into_a_new_directory(runs, cli, tmp_path):
    result = cli("runs", "code", runs[1], "restored", "--json")
    assert json.loads(result.stdout)["restored"]["written"] == ["git.diff", "train.py"]
    assert cli("runs", "code", runs[1].name, "--root", "runs").stdout.startswith("  commit")
    assert (tmp_path / "restored" / "train.py").read_text() == "train()\n"
    refused = cli("runs", "code", runs[1], "restored")
    assert (refused.exit_code, "neither a git checkout nor empty" in refused.stderr) == (2, True)


def test_code_of_a_session_that_does_not_exist_is_an_error(runs, cli):
    result = cli("runs", "code", runs[0], "--session", "2")
    assert (result.exit_code, "the run has 1" in result.stderr) == (2, True)


def test_code_of_a_run_without_a_repository_says_so(cli):
    with hl.run("r", summary=False) as run:
        pass
    assert "was not started in a git repository" in cli("runs", "code", run.dir).stdout


def test_show_has_the_environment(runs, cli):
    shown = cli("runs", "show", runs[0]).stdout
    assert " (work) and changes in git.diff" in shown
    assert " installed)" in shown
    assert "hardware" in shown
    assert len(json.loads(cli("runs", "show", runs[0], "--json").stdout)["environments"]) == 1


def test_compare_shows_what_differs_in_the_environment(runs, cli):
    path = runs[1] / "environment.json"
    found = json.loads(path.read_text())
    found["sessions"][0]["packages"].append("extra-package==1.5")
    path.write_text(json.dumps(found))
    compared = json.loads(cli("runs", "compare", *runs, "--json").stdout)["environment"]
    assert (set(compared), compared["extra-package"]) == ({"changes", "extra-package"}, [None, "1.5"])
    assert "extra-package" in cli("runs", "compare", *runs).stdout


def test_compare_shows_the_difference_of_the_code(runs, cli):
    shown = cli("runs", "compare", *runs).stdout
    assert "-layers = 2\n+layers = 3\n" in shown
    [code] = json.loads(cli("runs", "compare", *runs, "--json").stdout)["code"]
    assert (code["same_commit"], code["same_files"]) == (True, 1)
    assert [(file["path"], file["kind"]) for file in code["files"]] == [("model.py", "changed")]


def test_compare_of_long_code_is_cut_unless_it_is_asked_for(runs, cli):
    lines = "".join(f"+line {number}\n" for number in range(100))
    diff = f"diff --git a/long.py b/long.py\nnew file mode 100644\n@@ -0,0 +1,100 @@\n{lines}"
    path = runs[1] / "environment.json"
    found = json.loads(path.read_text())
    del found["sessions"][0]["git"]["diff"]
    path.write_text(json.dumps(found))
    (runs[1] / "git.diff").write_text(diff)
    shown = cli("runs", "compare", *runs).stdout
    assert ("+line 30" in shown, "+line 90" in shown, "more lines: use --code" in shown) == (True, False, True)
    assert "+line 90" in cli("runs", "compare", *runs, "--code").stdout
