"""Locks on files: who holds one, in this process, in a child, in another."""

import os
import subprocess
import sys
import textwrap

import pytest

from hookline.record import lock


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "lock"
    yield path
    lock.let_go(path)


def python(code, *arguments):
    """Another process that runs ``code``, its output as it comes."""
    command = [sys.executable, "-u", "-c", "import os, sys\nfrom pathlib import Path\n" + textwrap.dedent(code)]
    return subprocess.Popen([*command, *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


HOLD = """
    from hookline.record import lock
    print(lock.hold(Path(sys.argv[1])))
    sys.stdin.read()
"""


def test_lock_is_free_then_held_then_free(path):
    assert not lock.is_held(path)
    assert lock.hold(path)
    assert lock.is_held(path)
    lock.let_go(path)
    assert not lock.is_held(path)


def test_lock_is_given_once_in_a_process(path):
    assert [lock.hold(path), lock.hold(path)] == [True, False]
    assert lock.is_held(path)


def test_lock_looked_at_in_its_own_process_stays_held_for_others(path):
    assert lock.hold(path)
    lock.is_held(path)
    lock.hold(path)
    other = python(HOLD, path)
    assert other.stdout.readline() == "False\n"
    other.communicate("")


def test_lock_by_way_of_a_link_is_the_same_lock(path, tmp_path):
    lock.hold(path)
    (tmp_path / "link").symlink_to(path)
    assert not lock.hold(tmp_path / "link")


def test_lock_of_a_killed_process_is_free(path):
    other = python(HOLD, path)
    assert other.stdout.readline() == "True\n"
    assert lock.is_held(path)
    assert not lock.hold(path)
    other.kill()
    other.communicate()
    assert lock.hold(path)


def test_lock_of_a_killed_process_with_a_living_child_is_free(path):
    code = """
        from hookline.record import lock
        lock.hold(Path(sys.argv[1]))
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
    assert os.kill(child, 0) is None
    assert lock.hold(path)
    other.communicate("")


def test_lock_that_a_forked_child_lets_go_of_stays_its_parents(path):
    code = """
        from hookline.record import lock
        lock.hold(Path(sys.argv[1]))
        if os.fork() == 0:
            lock.let_go(Path(sys.argv[1]))
            os._exit(0 if not lock.hold(Path(sys.argv[1])) else 1)
        print(os.wait()[1])
        sys.stdin.read()
    """
    other = python(code, path)
    assert other.stdout.readline() == "0\n"
    assert lock.is_held(path)
    other.communicate("")


def test_lock_that_others_only_look_at_can_always_be_taken(path):
    code = """
        from hookline.record import lock
        print("ready")
        while not Path(sys.argv[1] + ".done").exists():
            for _ in range(1000):
                lock.is_held(Path(sys.argv[1]))
    """
    path.touch()
    other = python(code, path)
    other.stdout.readline()
    taken = []
    for _ in range(3000):
        taken.append(lock.hold(path))
        lock.let_go(path)
    path.with_name("lock.done").touch()
    other.communicate()
    assert taken.count(False) == 0
