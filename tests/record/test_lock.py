"""Locks on files: who holds one, in this process, in a child, in another."""

import itertools
import json
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import hookline as hl
from hookline._record import files


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "lock"
    yield path
    files.release_lock(path)


def python(code, *arguments):
    """Another process that runs ``code``, its output as it comes."""
    command = [sys.executable, "-u", "-c", "import os, sys\nfrom pathlib import Path\n" + textwrap.dedent(code)]
    return subprocess.Popen([*command, *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


HOLD = """
    from hookline._record import files
    print(files.acquire_lock(Path(sys.argv[1])))
    sys.stdin.read()
"""


def test_lock_is_free_then_held_then_free(path):
    assert not files.is_locked(path)
    assert files.acquire_lock(path)
    assert files.is_locked(path)
    files.release_lock(path)
    assert not files.is_locked(path)


def test_lock_is_given_once_in_a_process(path):
    assert [files.acquire_lock(path), files.acquire_lock(path)] == [True, False]
    assert files.is_locked(path)


def test_lock_looked_at_in_its_own_process_stays_held_for_others(path):
    assert files.acquire_lock(path)
    files.is_locked(path)
    files.acquire_lock(path)
    other = python(HOLD, path)
    assert other.stdout.readline() == "False\n"
    other.communicate("")


def test_lock_by_way_of_a_link_is_the_same_lock(path, tmp_path):
    files.acquire_lock(path)
    (tmp_path / "link").symlink_to(path)
    assert not files.acquire_lock(tmp_path / "link")


def test_lock_of_a_killed_process_is_free(path):
    other = python(HOLD, path)
    assert other.stdout.readline() == "True\n"
    assert files.is_locked(path)
    assert not files.acquire_lock(path)
    other.kill()
    other.communicate()
    assert files.acquire_lock(path)


def test_lock_of_a_killed_process_with_a_living_child_is_free(path):
    code = """
        from hookline._record import files
        files.acquire_lock(Path(sys.argv[1]))
        child = os.fork()
        if child == 0:
            sys.stdin.read()
            os._exit(0)
        print(child)
        os.kill(os.getpid(), 9)
    """
    other = python(code, path)
    child = int(other.stdout.readline())
    other.wait()
    assert os.kill(child, 0) is None  # type: ignore[func-returns-value]
    assert files.acquire_lock(path)
    other.communicate("")


def test_lock_that_a_forked_child_lets_go_of_stays_its_parents(path):
    code = """
        from hookline._record import files
        files.acquire_lock(Path(sys.argv[1]))
        if os.fork() == 0:
            files.release_lock(Path(sys.argv[1]))
            os._exit(0 if not files.acquire_lock(Path(sys.argv[1])) else 1)
        print(os.wait()[1])
        sys.stdin.read()
    """
    other = python(code, path)
    assert other.stdout.readline() == "0\n"
    assert files.is_locked(path)
    other.communicate("")


def test_lock_that_others_only_look_at_can_always_be_taken(path):
    code = """
        from hookline._record import files
        print("ready")
        while not Path(sys.argv[1] + ".done").exists():
            for _ in range(1000):
                files.is_locked(Path(sys.argv[1]))
    """
    path.touch()
    other = python(code, path)
    other.stdout.readline()
    taken = []
    for _ in range(3000):
        taken.append(files.acquire_lock(path))
        files.release_lock(path)
    path.with_name("lock.done").touch()
    other.communicate()
    assert taken.count(False) == 0


def test_lock_that_another_process_tests_for_long_is_waited_for(path, monkeypatch):
    code = """
        import fcntl
        file = open(sys.argv[1])
        fcntl.lockf(file, fcntl.LOCK_SH)
        print("tested")
        sys.stdin.read()
    """
    path.touch()
    other = python(code, path)
    assert other.stdout.readline() == "tested\n"
    waits = itertools.count(1)
    monkeypatch.setattr(time, "sleep", lambda seconds: other.communicate("") if next(waits) == 100 else None)
    assert files.acquire_lock(path)
    assert next(waits) > 100


NO_LOCKS = """
import errno, fcntl, os

def refuse(*_):
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

fcntl.flock = fcntl.lockf = refuse
"""


@pytest.fixture
def no_locks(tmp_path, monkeypatch):
    """Programs that are started run on a system whose files cannot be locked, as Lustre without ``-o flock``."""
    (tmp_path / "system").mkdir()
    (tmp_path / "system" / "sitecustomize.py").write_text(NO_LOCKS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "system"), prepend=os.pathsep)


LOOK = """
    from hookline._record import files
    path = Path(sys.argv[1])
    print([files.is_locked(path), files.acquire_lock(path), files.is_locked(path)])
"""


def looked(path):
    return python(LOOK, path).communicate()[0]


def test_lock_without_file_locks_is_held_until_its_process_dies(path, no_locks):
    holder = python(HOLD, path)
    assert holder.stdout.readline() == "True\n"
    assert (looked(path), files.is_locked(path), files.acquire_lock(path)) == ("[True, False, True]\n", True, False)
    holder.kill()
    holder.communicate()
    assert (looked(path), files.acquire_lock(path)) == ("[False, True, True]\n", True)
    assert [file.name for file in path.parent.glob("*lock*")] == ["lock"]


def test_lock_without_file_locks_that_is_given_back_is_free(path, no_locks):
    code = """
        from hookline._record import files
        path = Path(sys.argv[1])
        print(files.acquire_lock(path), files.release_lock(path), files.is_locked(path), [*path.parent.glob("*.owner")])
    """
    again = python(code, path)
    assert again.communicate()[0] == "True None False []\n"


def test_lock_of_an_owner_on_another_machine_is_held_while_its_file_is_touched(path, no_locks):
    holder = python(HOLD, path)
    holder.stdout.readline()
    holder.kill()
    holder.communicate()
    owner = path.with_name("lock.owner")
    owner.write_text(json.dumps(json.loads(owner.read_text()) | {"machine": "another"}))
    assert (files.is_locked(path), looked(path)) == (True, "[True, False, True]\n")
    os.utime(owner, (1.0, 1.0))
    assert (files.is_locked(path), looked(path)) == (False, "[False, True, True]\n")


def test_lock_of_an_owner_whose_number_another_process_has_is_free(path, no_locks):
    holder = python(HOLD, path)
    holder.stdout.readline()
    owner = path.with_name("lock.owner")
    facts = json.loads(owner.read_text())
    assert files.is_locked(path)
    owner.write_text(json.dumps(facts | {"started": "1"}))
    assert not files.is_locked(path)
    holder.communicate("")


RUN = """
    import hookline as hl
    with hl.run(root=sys.argv[1], name="a", resume=sys.argv[2] or None, sinks=["csv"]) as run:
        run.log(loss=1.0, step=len(sys.argv[2]) + 1)
        print(run.dir)
        sys.stdin.read()
"""


def test_run_on_a_file_system_without_locks_is_recorded_seen_and_resumed(tmp_path, no_locks):
    first = python(RUN, tmp_path / "runs", "")
    directory = Path(first.stdout.readline().strip())
    assert hl.runs(tmp_path / "runs")[0].status == "running"
    assert python(RUN, tmp_path / "runs", "auto").communicate("")[0] != f"{directory}\n"
    first.kill()
    first.communicate()
    assert {run.status for run in hl.runs(tmp_path / "runs")} == {"killed", "finished"}
    assert python(RUN, tmp_path / "runs", "auto").communicate("")[0] == f"{directory}\n"
    assert (directory / "metrics.csv").read_text().splitlines()[1:] != []


def test_lock_of_the_facts_of_a_run_is_free_in_a_child_that_is_forked_while_they_change(tmp_path):
    code = """
        import signal
        from hookline._record import run_directory
        directory = run_directory.create(sys.argv[1], "p", {})
        run_directory.update(directory, "notes", "")
        with run_directory._UPDATES:
            child = os.fork()
            if child == 0:
                signal.alarm(120)
                run_directory.update(directory, "notes", "by the child")
                os._exit(0)
            os.waitpid(child, 0)
        print(run_directory.read_metadata(directory)["notes"])
    """
    assert python(code, tmp_path).communicate()[0] == "by the child\n"
