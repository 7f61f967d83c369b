"""Comparing runs: settings, metrics with the spread of repeats, environments, and the code they were started with."""

import json
import math
import subprocess

import pytest
from recorded_runs import append, ended, finished_run, make_run, row

import hookline as hl
from hookline._engine.errors import OptionError
from hookline._record import run_directory
from hookline.store.code_comparison import compare_code, unified

NOTES = [f"    # {number}" for number in range(40)]
MODEL = "\n".join(["import torch", "", "def build(width):", "    layers = []", *NOTES, "END = 1", ""])


def values(found):
    return {each.name: each.values for each in found}


def set_environment(directory, **facts):
    (directory / "environment.json").write_text(json.dumps({"sessions": [facts]}))


def test_comparison_has_the_settings_that_differ_and_on_request_all(tmp_path):
    configs = {"a": {"lr": 0.1, "net": {"width": 8, "kinds": [1, 2]}}, "b": {"lr": 0.2, "net": {"width": 8}}}
    for name, config in configs.items():
        directory = finished_run(tmp_path, name)
        run_directory.update(directory, "config", config)
    found = hl.runs(tmp_path).compare("a", "b")
    assert values(found.config) == {"lr": [0.1, 0.2], "net.kinds": [[1, 2], None]}
    assert [each.missing for each in found.config] == [[], [1]]
    whole = hl.runs(tmp_path).compare("a", "b", everything=True)
    differs = {each.name: each.differs for each in whole.config}
    assert differs == {"lr": True, "net.width": False, "net.kinds": True}


def test_comparison_has_differences_from_the_baseline(tmp_path):
    finished_run(tmp_path, "a", losses=(3.0, 1.0, 2.0))
    finished_run(tmp_path, "b", losses=(3.0, 0.5))
    finished_run(tmp_path, "c", losses=(math.nan,))
    found = hl.runs(tmp_path).compare("a", "b", "c", baseline="b")
    [loss] = found.metrics
    assert (found.baseline, loss.better) == (1, "min")
    assert (loss.last[:2], loss.last_difference[:2]) == ([2.0, 0.5], [1.5, 0.0])
    assert math.isnan(loss.last[2])
    assert (loss.best, loss.best_difference, loss.arms) == ([1.0, 0.5, None], [0.5, 0.0, None], [])


def test_repeats_of_arms_have_mean_and_spread_and_a_diverged_one_does_not_count(tmp_path):
    results = {"low": [1.0, 2.0, 3.0], "high": [5.0, 6.0, math.nan]}
    for arm, losses in results.items():
        for repeat, loss in enumerate(losses):
            belongs = {"name": "sweep", "arm": arm, "repeat": repeat}
            finished_run(tmp_path, f"{arm}{repeat}", (loss,), experiment=belongs)
    ids = [f"{arm}{repeat}" for arm in results for repeat in range(3)]
    found = hl.runs(tmp_path).compare(*ids)
    assert [(arm.name, arm.runs) for arm in found.arms] == [("low", [0, 1, 2]), ("high", [3, 4, 5])]
    low, high = found.metrics[0].arms
    assert (low.n, low.mean, low.std, low.difference, low.interval) == (3, 2.0, 1.0, None, None)
    assert (high.n, high.mean, high.difference) == (2, 5.5, 3.5)
    low_end, high_end = high.interval or ()
    assert low_end < 3.5 < high_end


def test_environments_and_packages_that_differ_are_compared_where_they_are_known(tmp_path):
    directories = [finished_run(tmp_path, name) for name in "abc"]
    known = [("3.11.1", "torch==2.1"), ("3.12.0", "jax==0.5")]
    for directory, (python, package) in zip(directories, known, strict=False):
        facts = {"python": {"version": python}, "packages": ["numpy==2.0", package], "variables": {"RANK": "0"}}
        set_environment(directory, **facts)
    found = hl.runs(tmp_path).compare("a", "b", "c")
    assert values(found.environment) == {"python": ["3.11.1", "3.12.0", None]}
    assert values(found.packages) == {"jax": [None, "0.5", None], "torch": ["2.1", None, None]}
    assert [run.has_environment for run in found.runs] == [True, True, False]


@pytest.mark.parametrize(
    ("keys", "options", "message"),
    [
        (["a"], {}, "give two or more runs, each once"),
        (["a", "p/a"], {}, "give two or more runs, each once"),
        (["a", "b"], {"baseline": "c"}, "give one of the compared runs"),
    ],
)
def test_comparison_of_too_few_runs_or_with_another_baseline_is_refused(tmp_path, keys, options, message):
    for name in "abc":
        finished_run(tmp_path, name)
    with pytest.raises(OptionError, match=message):
        hl.runs(tmp_path).compare(*keys, **options)


def test_comparison_of_a_single_run_without_names_is_refused(tmp_path):
    finished_run(tmp_path, "a")
    with pytest.raises(OptionError, match="^compare these runs: give two or more runs"):
        hl.runs(tmp_path).compare()


def git(*arguments):
    options = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", *options, *arguments], check=True, capture_output=True)


def diff_of(before, after, folder):
    """The diff that git makes of two texts, with the path of the file in it."""
    folder.mkdir(exist_ok=True)
    for name, text in (("one", before), ("two", after)):
        (folder / name).write_text(text)
    command = ["git", "diff", "--no-index", "--no-color", "one", "two"]
    text = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False).stdout
    return text.replace("a/one", "a/model.py").replace("b/two", "b/model.py")


def run_with_code(root, name, diff, commit="c0ffee", **git_facts):
    directory = make_run(root, name)
    append(directory, row(1, loss=1.0), ended(1))
    (directory / "git.diff").write_text(diff)
    set_environment(directory, git={"commit": commit, "changed": bool(diff), **git_facts})
    return directory


@pytest.mark.parametrize(
    ("mine", "theirs", "difference"),
    [
        # Other lines of one part; the same change; one that only the second has, far from it.
        ({"import torch": "import jax"}, {"import torch": "import numpy"}, ["-import jax", "+import numpy"]),
        ({"import torch": "import jax"}, {"import torch": "import jax"}, []),
        (
            {"import torch": "import jax"},
            {"import torch": "import jax", "END = 1": "END = 2"},
            ["-END = 1", "+END = 2"],
        ),
        # Of overlapping parts that begin at different lines, and where lines were added before.
        (
            {"def build(width):": "def build(width, depth):"},
            {"    layers = []": "    layers = [1]"},
            ["-def build(width, depth):", "-    layers = []", "+def build(width):", "+    layers = [1]"],
        ),
        (
            {"import torch": "import a\nimport b\nimport c"},
            {"END = 1": ""},
            ["-import a", "-import b", "-import c", "+import torch", "-END = 1", "+"],
        ),
        ({}, {"    # 20": "    # twenty"}, ["-    # 20", "+    # twenty"]),
    ],
)
def test_code_of_one_commit_is_compared_as_files(tmp_path, mine, theirs, difference):
    texts = []
    for changes in (mine, theirs):
        text = MODEL
        for old, new in changes.items():
            text = text.replace(f"{old}\n", f"{new}\n", 1)
        texts.append(text)
    for name, text in zip("ab", texts, strict=True):
        run_with_code(tmp_path / "runs", name, diff_of(MODEL, text, tmp_path / name))
    found = hl.runs(tmp_path / "runs").compare_code("a", "b")
    lines = [line for file in found.files for line in unified(file) if line[:1] in "+-"]
    assert (found.same_commit, lines) == (True, difference)
    # The numbers of lines are those of the files.
    for file in found.files:
        for region in file.regions:
            sides = [(region.first_line_before, region.before), (region.first_line_after, region.after)]
            for text, (first, part) in zip(texts, sides, strict=True):
                own = part.split("\n")
                assert text.split("\n")[first - 1 : first - 1 + len(own)] == own


def test_code_of_different_commits_is_compared_as_changes(tmp_path):
    change = diff_of(MODEL, MODEL.replace("torch", "jax"), tmp_path / "x")
    run_with_code(tmp_path / "runs", "a", change)
    run_with_code(tmp_path / "runs", "b", "", commit="decade")
    found = hl.runs(tmp_path / "runs").compare_code("a", "b")
    [file] = found.files
    assert (found.same_commit, file.path, file.kind, file.is_patch) == (False, "model.py", "before", True)
    assert (found.before.commit, found.after.commit) == ("c0ffee", "decade")


def test_code_that_was_recorded_with_untracked_files_is_compared_with_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    git("init", "-q", "-b", "work")
    (tmp_path / "model.py").write_text(MODEL)
    git("add", "model.py")
    git("commit", "-q", "-m", "first")
    for text in ("one", "two"):
        (tmp_path / "train.py").write_text(f"print('{text}')\n")
        with hl.run(text, code="all", summary=False) as run:
            run.log(loss=1.0)
    [file] = hl.runs("runs").compare_code("one", "two").files
    assert (file.path, file.kind, unified(file)[1:]) == ("train.py", "changed", ["-print('one')", "+print('two')", " "])


def test_environment_with_an_impossible_number_is_compared_without_it(tmp_path):
    for name, memory in (("a", 10**400), ("b", 16_000_000_000)):
        set_environment(finished_run(tmp_path, name), hardware={"memory_bytes": memory})
    found = hl.runs(tmp_path).compare("a", "b")
    assert [(each.name, each.values) for each in found.environment] == [("memory", [None, "16.0 GB"])]


HOSTILE_DIFFS = [
    "diff --git a/x b/x\n@@ -999999999,5 +1 @@\n-a\n+b\n@@ -999999999,5 +1 @@\n-c\n",
    "diff --git a/x b/x\n@@ -5,0 +5,1 @@\n+b\n@@ -5,0 +5,1 @@\n+c\n@@ -3,9 +3 @@\n d\n",
    "diff --git a/x b/x\nBinary files a/x and b/x differ\n",
    "diff --git \n@@\n",
    "no diff at all",
    "\0\xff",
]


@pytest.mark.parametrize("diff", HOSTILE_DIFFS)
def test_diff_that_git_did_not_write_is_survived(tmp_path, diff):
    run_with_code(tmp_path, "a", diff)
    other = run_with_code(tmp_path, "b", "")
    files = [{"path": "../x", "blob": "no digest"}, 5]
    set_environment(other, git={"commit": 5, "files": files, "diff": {"left_out": "x"}})
    found = hl.runs(tmp_path)
    compared = compare_code(found["a"], found["b"])
    assert [file.kind for file in compared.files] in ([], ["before"], ["binary"])


def test_diff_with_very_many_parts_is_compared(tmp_path):
    for name in "ab":
        parts = "".join(f"@@ -{at} +{at} @@\n-x\n+{name if at == 60 else 'y'}\n" for at in range(3, 90_000, 3))
        run_with_code(tmp_path, name, f"diff --git a/x b/x\n{parts}")
    found = hl.runs(tmp_path)
    [file] = compare_code(found["a"], found["b"]).files
    assert [(region.first_line_before, region.before, region.after) for region in file.regions] == [(60, "a", "b")]
