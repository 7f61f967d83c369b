"""Files: durable and atomic writes, digests, and locks that end with their process.

Writes. Written data stays in memory until the system writes it back, and a new name is part of its directory, which
needs a sync of its own. `write_atomically` and `atomic_writer` write aside and rename, so a reader sees the old file or
the whole new one; with ``sync=True`` the file also survives a power cut.

Locks. `acquire_lock` takes a POSIX record lock. The system drops it when the process dies, and a forked child does not
inherit it, so no child keeps a dead process's lock. A process does not see its own record locks: a table holds those.
Looking at a lock only needs permission to read its file, so runs of other users can be listed.

Some file systems have no locks (NFS without its lock service, Lustre without ``-o flock``, some FUSE). There the owner
is named in ``<lock>.owner``, which it touches every `HEARTBEAT_SECONDS`. On the same machine an owner is alive while a
process with its pid and start time runs; on another machine, while its file is touched. Not guaranteed there: if two
processes take over a dead owner's lock at the same instant, both may briefly believe that they hold it.
"""

import contextlib
import errno
import fcntl
import functools
import hashlib
import json
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

logger = logging.getLogger("hookline")

HEARTBEAT_SECONDS = 10.0
STALE_SECONDS = 60.0
"""An owner on another machine counts as dead when it has not touched its file for this long."""
_ATTEMPTS = 10
_PROBE_SECONDS = 5.0
"""How long a lock is waited for that other processes hold only to test it."""
_IN_USE = (errno.EACCES, errno.EAGAIN)
_CANNOT_SYNC = (errno.EINVAL, errno.EBADF, errno.ENOTSUP, errno.EOPNOTSUPP)


def sync_descriptor(descriptor: int) -> None:
    """Write an open file's data to the disk.

    Raises:
        OSError: The data did not reach the disk.
    """
    # fdatasync includes the size, without which the data could not be read back. It leaves out the times.
    _sync(descriptor, getattr(os, "fdatasync", os.fsync))


def sync_file(path: Path) -> None:
    """Write a file's data to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        sync_descriptor(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Write the names in a directory to the disk, where it may be opened and its file system can do so.

    Raises:
        OSError: The names did not reach the disk.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:  # a directory that can be written to but not listed
        return
    try:
        _sync(descriptor, os.fsync)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:  # as on network file systems
            raise
    finally:
        os.close(descriptor)


def _sync(descriptor: int, sync: Callable[[int], None]) -> None:
    # macOS has no `os.fdatasync`, and its `os.fsync` leaves data in the drive's cache; F_FULLFSYNC does not.
    full_sync = getattr(fcntl, "F_FULLFSYNC", None)
    if full_sync is None:
        sync(descriptor)
        return
    try:
        fcntl.fcntl(descriptor, full_sync)
    except OSError:  # network volumes do not support it; a failing disk fails here as well
        os.fsync(descriptor)


@contextlib.contextmanager
def atomic_writer(path: Path, *, sync: bool = True, mode: int = 0o644) -> Iterator[BinaryIO]:
    """Open a file beside ``path`` for writing, and rename it to ``path`` when the block succeeds.

    Args:
        sync: Write the file and its name to the disk before returning. Without it, a power cut can leave an empty file.
        mode: The permissions of the new file, before the umask.
    """
    # A new name and O_EXCL: never through a link that another user placed there.
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            # Before the rename: otherwise a power cut may leave an empty file under the name, and no old one.
            if sync:
                sync_descriptor(descriptor)
        partial.replace(path)
    # Interrupts as well: nothing else would remove the file.
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    # After the rename: the name is part of the directory.
    if sync:
        sync_directory(path.parent)


def write_atomically(path: Path, content: bytes, *, sync: bool = True, parents: bool = False) -> None:
    """Replace a file as a whole; see `atomic_writer`.

    Args:
        parents: Create missing parent directories.
    """
    if parents:
        path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_writer(path, sync=sync) as file:
        file.write(content)


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class _Lock(NamedTuple):
    """A lock of this process: its open file, the process that opened it, and the content of its owner file."""

    descriptor: int
    pid: int
    owner: bytes


_LOCKS: dict[Path, _Lock] = {}
_TABLE = threading.Lock()
_FALLBACK = threading.RLock()
"""Separates the threads of this process in `exclusive` where files cannot be locked."""
_heartbeat_pid = 0
"""The process whose thread touches the owner files."""
_warned_errors: set[int | None] = set()


def acquire_lock(path: Path) -> bool:
    """Take a lock without waiting, until this process releases it or dies.

    Returns:
        Whether it was free. A lock that this process already holds is not.
    """
    _reset_table_in_children()
    path = path.resolve()
    with _TABLE:
        # Looked up, because the system would grant this process its own record lock again.
        if _is_own(path):
            return False
        # For writing as well: the system grants an exclusive record lock only then.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            owner = _try_lock(descriptor, path)
        except BaseException:
            os.close(descriptor)
            raise
        if owner is None:
            os.close(descriptor)
            return False
        _LOCKS[path] = _Lock(descriptor, os.getpid(), owner)
        if owner:
            _start_heartbeat()
        return True


def release_lock(path: Path) -> None:
    """Release a lock; does nothing if this process does not hold it."""
    path = path.resolve()
    with _TABLE:
        lock = _LOCKS.pop(path, None)
        if lock is None:
            return
        # Only what this process wrote: a forked child has a copy of the table, and another machine may have taken over.
        if lock.owner and lock.pid == os.getpid() and _read_owner(_owner_file(path)) == lock.owner:
            with contextlib.suppress(OSError):
                _owner_file(path).unlink()
        # Last: this drops the lock.
        os.close(lock.descriptor)


def is_locked(path: Path) -> bool | None:
    """Return whether a living process holds a lock, this one included; None if its file may not be read."""
    _reset_table_in_children()
    path = path.resolve()
    # Under the table's lock: closing any descriptor of a file drops all of this process's record locks on it.
    with _TABLE:
        if _is_own(path):
            return True
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe would block
        except OSError as error:
            return None if error.errno in (errno.EACCES, errno.EPERM) else False
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: needs no permission to write
        except OSError as error:
            if error.errno in _IN_USE:
                return True
        finally:
            os.close(descriptor)
    # Where the lock could be taken, or locks do not work, the owner file decides.
    return _is_owner_alive(_owner_file(path))


@contextlib.contextmanager
def exclusive(descriptor: int, *, shared: bool = False, seconds: float | None = None) -> Iterator[None]:
    """Wait for, and hold, the exclusive lock of an open file or directory.

    Where files cannot be locked, it only separates the threads of this process.

    Args:
        shared: Take the lock that any number may hold together, but none beside an exclusive one.
        seconds: How long to wait; without a limit by default.

    Raises:
        TimeoutError: Another process held the lock for so long.
    """
    _reset_table_in_children()
    deadline = None if seconds is None else time.monotonic() + seconds
    with contextlib.ExitStack() as stack:
        # flock, not a record lock: it belongs to the open file, so threads of one process exclude each other as well.
        try:
            operation = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
            while deadline is not None:
                try:
                    fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= deadline:
                        raise TimeoutError(errno.ETIMEDOUT, f"A lock was held for {seconds:g} seconds") from None
                    time.sleep(0.02)
            else:
                fcntl.flock(descriptor, operation)
        except TimeoutError:
            raise
        except OSError as error:
            _warn_no_locks(f"/dev/fd/{descriptor}", error)
            stack.enter_context(_FALLBACK)
        else:
            stack.callback(fcntl.flock, descriptor, fcntl.LOCK_UN)
        yield


def _try_lock(descriptor: int, path: Path) -> bytes | None:
    """Lock an open file; returns the owner file's content (empty with real locks), or None if another has the lock."""
    attempts, deadline = _ATTEMPTS, time.monotonic() + _PROBE_SECONDS
    while attempts:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _IN_USE:
                _warn_no_locks(path, error)
                return _write_owner(_owner_file(path))
            # A process in `is_locked` holds a shared lock, which is no owner's: only for a moment, but on a busy
            # machine it may be suspended just then. So only refusals by an exclusive lock are counted.
            if time.monotonic() >= deadline or not _is_shared(descriptor):
                attempts -= 1
            time.sleep(0.002)
        else:
            # Another machine may have mounted this file system without locks.
            return b"" if _remove_dead_owner(_owner_file(path)) else None
    return None


def _is_shared(descriptor: int) -> bool:
    """Whether the lock on a file that another process holds is a shared one."""
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    fcntl.lockf(descriptor, fcntl.LOCK_UN)
    return True


def _warn_no_locks(path: Path | str, error: OSError) -> None:
    if error.errno not in _warned_errors:
        _warned_errors.add(error.errno)
        logger.warning(
            "%s is on a file system without locks (%s). Files that end in .owner stand in for them: "
            "let only one process at a time write to a run, a log directory or a server's root there.",
            path,
            error.strerror,
        )


def _owner_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.owner")


def _write_owner(owner: Path) -> bytes | None:
    """Name this process as the owner; returns the file's content, or None if another living process is the owner."""
    pid = os.getpid()
    facts = {"machine": _machine(), "host": socket.gethostname(), "pid": pid, "started": _start_time(pid)}
    content = json.dumps(facts | {"token": secrets.token_hex(8)}).encode()
    for _ in range(_ATTEMPTS):
        try:
            # Creating it exclusively takes the place of a lock.
            descriptor = os.open(owner, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except FileExistsError:
            if not _remove_dead_owner(owner):
                return None
        else:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            return content
    return None


def _remove_dead_owner(owner: Path) -> bool:
    """Remove the file of a dead owner; returns whether there is no living owner."""
    judged = _read_owner(owner)
    if judged is None:
        return not owner.exists()
    if _is_owner_alive(owner):
        return False
    # Another process may have reached the same verdict and become the owner since: check what was moved away.
    aside = owner.with_name(f".{owner.name}.{secrets.token_hex(4)}")
    with contextlib.suppress(FileNotFoundError):
        owner.rename(aside)
        if _read_owner(aside) != judged:
            with contextlib.suppress(OSError):
                # A link, unlike a rename, does not replace the file of yet another owner.
                os.link(aside, owner)
        aside.unlink()
    return True


def _is_owner_alive(owner: Path) -> bool:
    content = _read_owner(owner)
    if content is None:
        return False
    with contextlib.suppress(ValueError, KeyError, TypeError):  # just created, and not written yet
        facts: dict[str, Any] = json.loads(content)
        machine, pid, started = facts["machine"], int(facts["pid"]), facts["started"]
        if machine and machine == _machine():
            # Without start times, as on macOS, the pid has to suffice.
            return _is_running(pid) and started in (None, _start_time(pid) or started)
    # On another machine, where the pid says nothing, or with content that cannot be understood.
    try:
        return time.time() - owner.stat().st_mtime < STALE_SECONDS
    except OSError:
        return False


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:  # a process of another user
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
    """Identify the scope in which pids are unique: one boot of a machine, and a pid namespace (container) on it."""
    try:
        return f"{boot_id()} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return socket.gethostname()


@functools.cache
def boot_id() -> str:
    """Identify this boot of the machine; empty where the system does not tell.

    What a process wrote can be lost in a power cut only, so a file written since the last boot is complete even if it
    was not synced.
    """
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _start_time(pid: int) -> str | None:
    """Return when a process started, in the system's own unit: pids are reused."""
    try:
        # After the last parenthesis: a process's name may contain spaces and parentheses.
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # not Linux, or processes of other users are hidden
        return None
    # A zombie keeps its pid until its parent waits for it, but holds nothing any more.
    return "dead" if after_name[0] in "ZX" else after_name[19]


def _start_heartbeat() -> None:
    global _heartbeat_pid
    if os.getpid() != _heartbeat_pid:  # not started yet, or in the parent of a fork
        _heartbeat_pid = os.getpid()
        with contextlib.suppress(RuntimeError):  # no more threads: processes of this machine need no heartbeat
            threading.Thread(target=_touch_owner_files, name="hookline-locks", daemon=True).start()


def _touch_owner_files() -> None:
    while True:
        time.sleep(HEARTBEAT_SECONDS)
        with _TABLE:
            owned = [path for path, lock in _LOCKS.items() if lock.owner and lock.pid == os.getpid()]
        # Without the lock of the table: a network file system may hang here.
        for path in owned:
            with contextlib.suppress(OSError):
                os.utime(_owner_file(path))


def _is_own(path: Path) -> bool:
    # With the pid: a forked child's table is a copy of its parent's, and the child holds none of those locks.
    return path in _LOCKS and _LOCKS[path].pid == os.getpid()


@functools.cache
def _reset_table_in_children() -> None:
    """Give forked children new locks; registered by the first use, not by the import."""
    os.register_at_fork(after_in_child=_reset_table)


def _reset_table() -> None:
    global _TABLE, _FALLBACK
    _TABLE, _FALLBACK = threading.Lock(), threading.RLock()  # a thread of the parent may have held the old ones
