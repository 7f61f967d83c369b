"""Locks on files that show which process is at work, and vanish with it.

They are record locks: a forked child does not inherit them, so none of them keeps a dead process's
lock alive. A process does not see its own record locks, so those of this one are kept in a table.
"""

import contextlib
import errno
import fcntl
import functools
import os
import threading
import time
from pathlib import Path

_HELD: dict[Path, tuple[int, int]] = {}
"""The locks of this process: a descriptor each, and the process that opened it."""
_TABLE = threading.Lock()
_ATTEMPTS = 10


def hold(path: Path) -> bool:
    """Take a lock until this process lets go of it or dies; whether it was free."""
    _free_table_after_fork()
    path = path.resolve()
    with _TABLE:
        if _is_mine(path):
            return False
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if _is_locked(descriptor):
            os.close(descriptor)
            return False
        _HELD[path] = (descriptor, os.getpid())
        return True


def let_go(path: Path) -> None:
    """Give a lock back; one that is not held is left alone."""
    with _TABLE:
        descriptor, _ = _HELD.pop(path.resolve(), (None, None))
        if descriptor is not None:
            os.close(descriptor)


def is_held(path: Path) -> bool:
    """Whether a living process holds a lock, this one or another."""
    _free_table_after_fork()
    path = path.resolve()
    with _TABLE:
        if _is_mine(path):
            return True
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                return error.errno in (errno.EACCES, errno.EAGAIN)
            finally:
                os.close(descriptor)
        return False


def _is_locked(descriptor: int) -> bool:
    """Try to lock it; somebody who only looks, as `is_held` does, has it for a moment at most."""
    for _ in range(_ATTEMPTS):
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                return False  # a file system without locks
            time.sleep(0.002)
        else:
            return False
    return True


def _is_mine(path: Path) -> bool:
    """Whether this process holds it; a forked child's table is a copy of what its parent holds."""
    return _HELD.get(path, (None, None))[1] == os.getpid()


@functools.cache
def _free_table_after_fork() -> None:
    """A thread of the parent may hold the table when a child is forked; asked for by the first lock."""
    os.register_at_fork(after_in_child=_new_table)


def _new_table() -> None:
    global _TABLE
    _TABLE = threading.Lock()
