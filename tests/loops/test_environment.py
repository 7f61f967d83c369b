"""What a run records about its environment and its code, and how the code is restored."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from importlib import metadata
from pathlib import Path

import pytest
from typer.testing import CliRunner
from waiting import wait_until

import hookline as hl
from hookline._record import source_code
from hookline._record.blobs import BlobError, root_references
from hookline._record.environment import (
    EnvironmentGathering,
    RankEnvironment,
    RankEnvironmentGathering,
    installed_packages,
    read_environments,
    read_rank_environments,
    shared_facts,
)
from hookline._record.redaction import Redactor
from hookline._record.source_code import CodeLimits, RestoreError, restore_code
from hookline.cli import app

GITHUB = "ghp_abcdefghijklmnopqrstuvwxyz0123456789"


def git(*arguments, cwd=None):
    options = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    return subprocess.run(["git", *options, *arguments], check=True, cwd=cwd, capture_output=True, text=True).stdout


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository with a commit, a change and untracked files, as the working directory."""
    home = tmp_path / "code"
    home.mkdir()
    monkeypatch.chdir(home)
    git("init", "-q", "-b", "work")
    git("remote", "add", "origin", "https://me:s3cretpass@example.org/team/code.git")
    (home / ".gitignore").write_text("*.ignored\n")
    (home / "model.py").write_text("layers = 1\n")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    (home / "model.py").write_text("layers = 2\n")
    (home / "new").mkdir()
    (home / "new" / "train.py").write_text("train()\n")
    return home


def recorded(**options):
    with hl.run(summary=False, **options) as run:
        pass
    return run.dir, read_environments(run.dir)[-1]


def test_environment_says_what_ran_where(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    monkeypatch.setenv("MY_PRIVATE_VARIABLE", "private")
    run_dir, found = recorded()
    assert found.variables["SLURM_JOB_ID"] == "4711"
    assert b"private" not in (run_dir / "environment.json").read_bytes()
    assert found.python["version"] == json.loads((run_dir / "run.json").read_text())["python"]
    assert found.hardware["cores"] == os.cpu_count()
    assert found.hardware["memory_bytes"] > 1 << 20
    assert {"name", "user", "platform"} <= found.host.keys()
    assert found.git == {}


def test_environment_lists_every_installed_package_with_its_version():
    listed = set(installed_packages())
    known = [each for each in metadata.distributions() if each.metadata["Name"]]
    expected = {f"{re.sub('[-_.]+', '-', each.metadata['Name']).lower()}=={each.version}" for each in known}
    # A name that is installed twice counts once; versions that directories spell in another way are few.
    assert len(listed & expected) >= 0.95 * len(expected)
    assert f"msgspec=={metadata.version('msgspec')}" in recorded()[1].packages


FORKING = """
import os, sys
import hookline as hl

reading, writing = os.pipe()
children = []

def fork_as_git_starts(event, arguments):
    if event == "subprocess.Popen" and arguments[1][0].endswith("git") and not children:
        child = os.fork()  # as a data loader's worker, it has the pipes that are open now
        if child == 0:
            os.close(writing)
            os.read(reading, 1)
            os._exit(0)
        children.append(child)

sys.addaudithook(fork_as_git_starts)
with hl.run("forking", summary=False, console=False) as run:
    pass
os.close(writing)
os.waitpid(children[0], 0)
print(run.dir)
"""


@pytest.mark.usefixtures("repository")
def test_environment_is_recorded_if_the_program_forks_as_git_starts():
    run_dir = subprocess.run([sys.executable, "-c", FORKING], check=True, capture_output=True, text=True).stdout.strip()
    assert read_environments(Path(run_dir))[-1].git["branch"] == "work"


def test_environment_has_the_commit_the_branch_and_the_remote_without_credentials(repository):
    run_dir, found = recorded()
    commit = git("rev-parse", "HEAD").strip()
    facts = {"commit": commit, "branch": "work", "remote": "https://example.org/team/code.git", "changed": True}
    assert json.loads((run_dir / "run.json").read_text())["git"] == facts
    assert facts.items() <= found.git.items()
    assert found.git["untracked"] == 1  # what is in runs/ is not code
    assert (run_dir / "git.diff").read_text().endswith("-layers = 1\n+layers = 2\n")
    assert source_code.read_diff(run_dir, found.git) == (run_dir / "git.diff").read_bytes()
    assert found.git["diff"]["blob"] in root_references(run_dir.parent.parent)


@pytest.mark.parametrize("has_commit", [True, False])
def test_environment_of_a_repository_without_changes_or_commits_has_no_diff(repository, caplog, has_commit):
    git("checkout", "-q", ".") if has_commit else git("checkout", "-q", "--orphan", "empty")
    run_dir, found = recorded()
    assert (found.git["commit"] is not None, found.git.get("changed", False), "diff" in found.git) == (
        has_commit,
        False,
        False,
    )
    assert not (run_dir / "git.diff").exists()
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("code", "keys"),
    [
        ("none", {"commit", "branch", "remote", "directory"}),
        (False, {"commit", "branch", "remote", "directory"}),
        ("diff", {"commit", "branch", "remote", "directory", "changed", "diff", "untracked"}),
        ("all", {"commit", "branch", "remote", "directory", "changed", "diff", "untracked", "files"}),
    ],
)
def test_code_says_how_much_of_it_is_kept(repository, code, keys):
    run_dir, found = recorded(code=code)
    assert set(found.git) == keys
    assert (run_dir / "git.diff").exists() == ("diff" in keys)


def test_code_of_another_value_is_an_error():
    with pytest.raises(hl.OptionError, match="code='everything': give 'diff', 'all'"):
        hl.run(code="everything")


def test_untracked_files_leave_out_ignored_ones_links_secrets_and_what_is_too_large(repository, tmp_path):
    (tmp_path / "outside.txt").write_text("outside")
    (repository / "link").symlink_to(tmp_path / "outside.txt")
    (repository / ".env").write_text("A=1")
    (repository / "data.ignored").write_text("ignored")
    (repository / "large.bin").write_bytes(b"\0" * (2 << 20))
    (repository / "settings.py").write_text(f"token = '{GITHUB}'\n")
    run_dir, found = recorded(code="all")
    assert [file["path"] for file in found.git["files"]] == ["new/train.py", "settings.py"]
    left_out = {each["path"]: each["reason"] for each in found.git["files_left_out"]}
    assert left_out == {
        "link": "not a regular file",
        ".env": "may hold secrets",
        "large.bin": "larger than 1048576 bytes",
    }
    stored = b"".join(path.read_bytes() for path in run_dir.parent.parent.rglob("*") if path.is_file())
    assert GITHUB.encode() not in stored
    assert b"token = '[redacted]'" in stored


def test_limits_cut_whole_files_and_say_so(repository):
    for number in range(5):
        (repository / f"f{number}.py").write_text("x" * 100)
    (repository / "model.py").write_text("y\n" * 1000)
    (repository / ".gitignore").write_text("")
    git("add", "f0.py")
    run_dir = repository / "runs" / "default" / "r0"
    run_dir.mkdir(parents=True)
    (run_dir / "run.json").write_text("{}")
    gathering = EnvironmentGathering(
        run_dir, Redactor(), code="all", limits=CodeLimits(diff_bytes=600, total_bytes=250, files=9)
    )
    gathering.start()
    gathering.finish()
    found = read_environments(run_dir)[-1].git
    assert found["diff"]["left_out"] == ["model.py"]
    assert b"f0.py" in source_code.read_diff(run_dir, found)
    assert (len(found["files"]), found["files_left_out_count"]) == (3, 2)


def test_resumed_run_has_the_environment_of_each_session(repository):
    def step(resume):
        with hl.run("r", resume=resume, summary=False, save=lambda path: None, load=lambda path: None) as run:
            for _ in run.steps(3):
                pass
            run.save_checkpoint()
            run.request_stop("later")
        return run.dir

    step(None)
    (repository / "model.py").write_text("layers = 3\n")
    run_dir = step("last")
    diffs = [source_code.read_diff(run_dir, each.git)[-12:] for each in read_environments(run_dir)]
    assert diffs == [b"+layers = 2\n", b"+layers = 3\n"]
    # ``run.json`` describes the first session.
    assert len(list(run_dir.parent.iterdir())) == 1


SHARED = {"host": "", "python": "", "variables": {}, "packages": ""}


def other_rank(run_dir, *, rank=1, changes=()):
    """Record the environment of a rank that differs from rank zero's in some facts."""
    recorder = hl.Recorder(run_dir, name=f"rank{rank}")
    shared = shared_facts() | {name: SHARED[name] for name in changes}
    gathering = RankEnvironmentGathering(run_dir, Redactor(None), shared, recorder.event)
    gathering.start()
    gathering.finish()
    recorder.log(loss=1.0)
    recorder.close()
    return next(each for each in read_rank_environments(run_dir) if each.rank == rank)


def test_environment_of_another_rank_that_is_the_same_names_its_host_alone(tmp_path):
    found = other_rank(tmp_path)
    assert found == RankEnvironment(rank=1, time=found.time, host=socket.gethostname())


@pytest.mark.parametrize("changed", ["python", "variables", "packages", "host"])
def test_environment_of_another_rank_has_what_differs(tmp_path, monkeypatch, changed):
    monkeypatch.setenv("SLURM_PROCID", "7")
    found = other_rank(tmp_path, rank=12, changes=[changed])
    differing = [name for name in ("python", "variables", "packages", "hardware") if getattr(found, name)]
    assert differing == ["hardware" if changed == "host" else changed]
    assert changed != "variables" or found.variables["SLURM_PROCID"] == "7"
    assert changed != "packages" or found.packages == installed_packages()


def test_hardware_of_another_host_is_gathered_by_one_rank_of_it(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert other_rank(tmp_path, changes=["host"]).hardware == {}


def test_environments_of_ranks_are_shown_by_host(tmp_path):
    with hl.run("r", root=tmp_path, summary=False) as run:
        pass
    for rank in (1, 2, 10):
        other_rank(run.dir, rank=rank, changes=["host", "packages"] if rank == 2 else [])
    shown = CliRunner().invoke(app, ["runs", "show", run.dir.name, "--root", str(tmp_path)]).output
    (line,) = [line for line in shown.splitlines() if line.strip().startswith("ranks on")]
    assert line.split(socket.gethostname())[1].strip().startswith("1, 2, 10; ")
    assert line.endswith("other packages on 2")


def test_rank_environment_that_is_not_valid_is_left_out(tmp_path):
    recorder = hl.Recorder(tmp_path, name="rank1")
    recorder.event("environment", host=["x"], packages=3)
    recorder.close()
    assert read_rank_environments(tmp_path) == []


def test_restored_code_is_what_ran(repository, tmp_path):
    run_dir, found = recorded(code="all")
    checkout = tmp_path / "checkout"
    git("worktree", "add", "-q", str(checkout), "HEAD", "--detach")
    restored = restore_code(run_dir, found.git, checkout)
    assert (restored.is_applied, restored.written, restored.left_out) == (True, ["new/train.py"], [])
    assert (checkout / "model.py").read_text() == "layers = 2\n"
    assert (checkout / "new" / "train.py").read_text() == "train()\n"
    with pytest.raises(RestoreError, match="has local changes"):
        restore_code(run_dir, found.git, checkout)


def test_restore_writes_a_diff_to_a_new_directory_and_refuses_others(repository, tmp_path):
    run_dir, found = recorded()
    restored = restore_code(run_dir, found.git, tmp_path / "new")
    assert (restored.written, (tmp_path / "new" / "git.diff").read_bytes()[:10]) == (["git.diff"], b"diff --git")
    with pytest.raises(RestoreError, match="neither a git checkout nor empty"):
        restore_code(run_dir, found.git, tmp_path / "new")


@pytest.mark.parametrize(
    "path",
    ["../outside.py", "/tmp/outside.py", ".git/hooks/pre-commit", "a/../../b", "", "sub/.GIT/config", "link/x.py"],
)
def test_restore_of_a_hostile_run_writes_nothing_elsewhere(repository, tmp_path, path):
    run_dir, found = recorded(code="all")
    target, outside = tmp_path / "target", tmp_path / "elsewhere"
    outside.mkdir()
    git("clone", "-q", str(repository), str(target))
    (target / "link").symlink_to(outside)
    hostile = {**found.git, "files": [{**found.git["files"][0], "path": path}]}
    restored = restore_code(run_dir, hostile, target)
    assert (restored.written, len(restored.left_out)) == ([], 1)
    assert list(outside.iterdir()) == []
    assert not (tmp_path / "outside.py").exists()


def test_restore_refuses_a_blob_whose_content_changed(repository, tmp_path):
    run_dir, found = recorded(code="all")
    digest = found.git["files"][0]["blob"]
    (run_dir.parent.parent / ".blobs" / digest[:2] / digest).write_text("something else")
    with pytest.raises(BlobError, match="damaged"):
        restore_code(run_dir, found.git, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_copied_directory_without_its_blobs_still_has_the_diff(repository, tmp_path):
    run_dir, found = recorded()
    copy = Path(shutil.copytree(run_dir, tmp_path / "elsewhere" / "p" / "r"))
    assert source_code.read_diff(copy, found.git).endswith(b"+layers = 2\n")


@pytest.mark.parametrize(
    "content", ["", "[]", '{"sessions": 3}', '{"sessions": [3, {"git": 1, "packages": ["a==1"]}]}']
)
def test_environment_file_from_elsewhere_is_read_as_far_as_it_is_one(tmp_path, content):
    (tmp_path / "environment.json").write_text(content)
    assert [each.packages for each in read_environments(tmp_path)] in ([], [["a==1"]])


def test_finish_does_not_wait_for_ever_and_nothing_is_written_afterwards(tmp_path, monkeypatch, caplog):
    os.mkfifo(tmp_path / "gate")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "git").write_text(f"#!/bin/sh\nread line < {tmp_path}/gate\nexit 1\n")
    (tmp_path / "bin" / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    run_dir = tmp_path / "root" / "p" / "r"
    run_dir.mkdir(parents=True)
    gathering = EnvironmentGathering(run_dir, Redactor())
    gathering.start()
    gathering.finish(0.01)
    (tmp_path / "gate").write_text("go on\n")
    wait_until(lambda: "hookline-environment" not in [thread.name for thread in threading.enumerate()])
    assert list(run_dir.iterdir()) == []
    assert "took too long" in caplog.text
