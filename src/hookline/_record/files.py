"""Bringing files to the disk, so that they survive a power cut: their content, their names, and their folders.

A file that was written is in memory until the system writes it back; its name is in its folder, which has to be brought
to the disk, too. `replace_file` is how small files are written that have to be there as a whole or not at all.

Locks on files that show which process is at work, and vanish with it.

They are record locks: a forked child does not inherit them, so none of them keeps a dead process's
lock alive. A process does not see its own record locks, so those of this one are kept in a table. To look at a lock,
a process needs no more than to read its file: runs of other users can be listed.

Some file systems have no locks (NFS without its lock service, Lustre without ``-o flock``, some of FUSE). There the
process is named in a file beside the lock, ``<lock>.owner``, which it touches every `BEAT_SECONDS`. On the same
machine, an owner is alive while a process of its number and start time is; on another machine, while its file is
touched. What the system cannot give there: of two processes that take over a dead owner's lock in the same
instant, both may believe for a moment that they have it.

Files that are there as a whole or not at all: written aside, then put in their place.
"""

import contextlib
import errno
import fcntl
import functools
import json
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple


def sync_descriptor(descriptor: int) -> None:
    """Bring an open file to the disk.

    Raises:
        OSError: It did not get there.
    """
    _sync_descriptor_or_raise(descriptor, getattr(os, "fdatasync", os.fsync))


def _sync_descriptor_or_raise(descriptor: int, sync: Callable[[int], None]) -> None:
    # On macOS there is no `os.fdatasync`, and `os.fsync` leaves data in the drive's own cache; F_FULLFSYNC does not.
    full_sync = getattr(fcntl, "F_FULLFSYNC", None)
    if full_sync is None:
        sync(descriptor)
        return
    try:
        fcntl.fcntl(descriptor, full_sync)
    except OSError:  # network volumes do not have it; where the disk is at fault, this fails, too
        os.fsync(descriptor)


def sync_file(path: Path) -> None:
    """Bring a file to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        sync_descriptor(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Bring the names in a directory to the disk; one that may not be opened or cannot be synced is left alone.

    Raises:
        OSError: They did not get there.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:  # files can be made in a directory that cannot be listed
        return
    try:
        _sync_descriptor_or_raise(descriptor, os.fsync)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EBADF, errno.ENOTSUP, errno.EOPNOTSUPP):  # network file systems
            raise
    finally:
        os.close(descriptor)


def replace_file(path: Path, content: bytes) -> None:
    """Write a file aside and put it in its place: a reader finds what was there before, or all that is new.

    It is on the disk when this returns. Without that, a power cut could leave an empty file.
    """
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        with aside.open("xb") as file:
            file.write(content)
            file.flush()
            sync_descriptor(file.fileno())
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


logger = logging.getLogger("hookline")

BEAT_SECONDS = 10.0
SILENT_SECONDS = 60.0
"""For how long an owner on another machine may leave its file alone and still count as alive."""
_ATTEMPTS = 10
_IN_USE = (errno.EACCES, errno.EAGAIN)


class _Held(NamedTuple):
    """A lock of this process: its open file, the process that opened it, and what it wrote to the owner's file."""

    descriptor: int
    pid: int
    owner: bytes


_HELD: dict[Path, _Held] = {}
_TABLE = threading.Lock()
_BEATING = 0
"""The process whose thread touches the owners' files."""
_WARNED_OF: set[int | None] = set()
_ALONE = threading.RLock()
"""Keeps threads of this process apart in `alone` where files cannot be locked."""


def hold(path: Path) -> bool:
    """Take a lock until this process lets go of it or dies; whether it was free."""
    _free_table_after_fork()
    path = path.resolve()
    with _TABLE:
        if _is_mine(path):
            return False
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            owner = _taken(descriptor, path)
        except BaseException:
            os.close(descriptor)
            raise
        if owner is None:
            os.close(descriptor)
            return False
        _HELD[path] = _Held(descriptor, os.getpid(), owner)
        if owner:
            _start_beating()
        return True


def let_go(path: Path) -> None:
    """Give a lock back; one that is not held is left alone."""
    path = path.resolve()
    with _TABLE:
        held = _HELD.pop(path, None)
        if held is None:
            return
        if held.owner and held.pid == os.getpid() and _read_owner(_owner_file(path)) == held.owner:
            with contextlib.suppress(OSError):
                _owner_file(path).unlink()
        os.close(held.descriptor)


def is_held(path: Path) -> bool | None:
    """Whether a living process holds a lock, this one or another; None where the user may not read its file."""
    _free_table_after_fork()
    path = path.resolve()
    with _TABLE:  # closing a second descriptor of a file gives up this process's lock on it
        if _is_mine(path):
            return True
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe would block
        except OSError as error:
            return None if error.errno in (errno.EACCES, errno.EPERM) else False
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # a shared one needs no permission to write
        except OSError as error:
            if error.errno in _IN_USE:
                return True
        finally:
            os.close(descriptor)
    return _lives(_owner_file(path))


@contextlib.contextmanager
def alone(descriptor: int) -> Iterator[None]:
    """Be the only one in a block of code that locks this open file or directory.

    Where files cannot be locked, only the threads of this process are kept apart.
    """
    _free_table_after_fork()
    with contextlib.ExitStack() as at_end:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            _warn_of_no_locks(f"/dev/fd/{descriptor}", error)
            at_end.enter_context(_ALONE)
        else:
            at_end.callback(fcntl.flock, descriptor, fcntl.LOCK_UN)
        yield


def _taken(descriptor: int, path: Path) -> bytes | None:
    """Lock an open file: None where another process has it, what the owner's file says where files cannot be locked."""
    for _ in range(_ATTEMPTS):  # a process that only looks, as `is_held` does, has the lock for a moment
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _IN_USE:
                _warn_of_no_locks(path, error)
                return _claimed(_owner_file(path))
            time.sleep(0.002)
        else:
            # Another machine may have mounted the file system without locks.
            return b"" if _remove_dead(_owner_file(path)) else None
    return None


def _warn_of_no_locks(path: Path | str, error: OSError) -> None:
    if error.errno not in _WARNED_OF:
        _WARNED_OF.add(error.errno)
        said = (
            "%s is on a file system without locks (%s). Files that end in .owner stand in for them: "
            "let only one process at a time write to a run, a log directory or a server's root there."
        )
        logger.warning(said, path, error.strerror)


def _owner_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.owner")


def _claimed(owner: Path) -> bytes | None:
    """Name this process as the owner: what the file says then; None where another process lives that is."""
    pid = os.getpid()
    facts = {"machine": _machine(), "host": socket.gethostname(), "pid": pid, "started": _started(pid)}
    content = json.dumps(facts | {"token": secrets.token_hex(8)}).encode()
    for _ in range(_ATTEMPTS):
        try:
            descriptor = os.open(owner, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except FileExistsError:
            if not _remove_dead(owner):
                return None
        else:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            return content
    return None


def _remove_dead(owner: Path) -> bool:
    """Remove the file of an owner that is dead; whether there is none alive."""
    judged = _read_owner(owner)
    if judged is None:
        return not owner.exists()
    if _lives(owner):
        return False
    # Another process may have judged the same and named itself since: what is moved away is looked at once more.
    aside = owner.with_name(f".{owner.name}.{secrets.token_hex(4)}")
    with contextlib.suppress(FileNotFoundError):
        owner.rename(aside)
        if _read_owner(aside) != judged:
            with contextlib.suppress(OSError):
                os.link(aside, owner)
        aside.unlink()
    return True


def _lives(owner: Path) -> bool:
    """Whether the process that an owner's file names is alive; one of another machine is while it touches the file."""
    content = _read_owner(owner)
    if content is None:
        return False
    with contextlib.suppress(ValueError, KeyError, TypeError):  # just made, and not written yet
        facts: dict[str, Any] = json.loads(content)
        machine, pid, started = facts["machine"], int(facts["pid"]), facts["started"]
        if machine and machine == _machine():
            return _is_running(pid) and started in (None, _started(pid) or started)
    try:
        return time.time() - owner.stat().st_mtime < SILENT_SECONDS
    except OSError:
        return False


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:  # it is another user's
        return True
    except (OSError, OverflowError):
        return False
    return True


def _read_owner(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _machine() -> str:
    """What processes share whose numbers mean the same: a machine since its start, and a container on it."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return socket.gethostname()


def _started(pid: int) -> str | None:
    """When a process started, as the system writes it: another one may get the same number later."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # not Linux, or the processes of other users are hidden
        return None
    return "dead" if after_name[0] in "ZX" else after_name[19]


def _start_beating() -> None:
    """Have the owner's files of this process touched, for other machines; a forked child has no such thread."""
    global _BEATING
    if os.getpid() != _BEATING:
        _BEATING = os.getpid()
        with contextlib.suppress(RuntimeError):  # no more threads: processes of this machine need no beats
            threading.Thread(target=_beat, name="hookline-locks", daemon=True).start()


def _beat() -> None:
    while True:
        time.sleep(BEAT_SECONDS)
        with _TABLE:
            owned = [path for path, held in _HELD.items() if held.owner and held.pid == os.getpid()]
        for path in owned:
            with contextlib.suppress(OSError):
                os.utime(_owner_file(path))


def _is_mine(path: Path) -> bool:
    """Whether this process holds it; a forked child's table is a copy of what its parent holds."""
    return path in _HELD and _HELD[path].pid == os.getpid()


@functools.cache
def _free_table_after_fork() -> None:
    """A thread of the parent may hold the table when a child is forked; asked for by the first lock."""
    os.register_at_fork(after_in_child=_new_table)


def _new_table() -> None:
    global _TABLE, _ALONE
    _TABLE, _ALONE = threading.Lock(), threading.RLock()


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file, making its folder if need be. A reader finds what was there before or all that is new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, content)
