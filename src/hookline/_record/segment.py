"""The files of a journal: their names, preallocated mapped segments, and what survives of them after a crash.

A segment in use is locked, so that `reclaim_abandoned` can tell segments of killed writers from others, on any machine
that shares the file system. It has zeros after its last line.

The files of an ended run may be compressed (`hookline._record.compression`): ``X.jsonl`` is then ``X.jsonl.zst``. Both
are one file for readers, under the name ``X.jsonl``: `journal_files` lists that name, and `open_journal` opens what is
there. Names, offsets and digests therefore stay the same, and a file may be compressed while it is read.

Storing into a page past the end of a truncated file raises SIGBUS, which would end the training. No check before
the store closes the gap between the two, and a system call for each line is what the map avoids. So the signal itself
is handled, at no cost until it comes: the handler restores the file's size, or replaces the map by anonymous memory,
and the processor repeats the interrupted store.

The handler is a Python function called from C (ctypes). That is safe for this signal, unlike for others: it arrives at
the store itself, in a thread that holds the interpreter lock or waits for it, and never inside the allocator. A SIGBUS
from elsewhere goes to the handler that was installed before.
"""

import contextlib
import ctypes
import errno
import fcntl
import functools
import hashlib
import mmap
import os
import re
import signal
import stat
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol, Self

from hookline._record.seekable import SUFFIX, CompressedFile

DIGESTS = ".sha256"
"""The suffix of the file that lists the digests of a writer's complete files, in the format of ``sha256sum``."""
_DIGEST = re.compile(rb"([0-9a-f]{64})  ([^\x00-\x20]+\.jsonl)")
_ENDINGS = (".jsonl", f".jsonl{SUFFIX}")
_UNMAPPABLE = {"nfs", "nfs4", "cifs", "smb3", "9p", "afs", "ceph", "lustre", "gpfs", "beegfs", "wekafs", "virtiofs"}
_UNMAPPABLE |= {"btrfs", "zfs", "vboxsf", "prl_fs", "fuse"}
"""File systems that do not guarantee space for preallocated files, or do not show mapped pages to other machines."""
_MAX_FAULTS = 3
_WINDOW = 128 << 10
_ZEROS = bytes(_WINDOW)
_PIECE = 1 << 20

_MAP_FIXED = 0x10
_SA_SIGINFO = 4
_CODE, _ADDRESS = 8, 16
"""Offsets of these fields in the C library's ``siginfo_t``."""


class JournalFile(NamedTuple):
    """A journal file and the parts of its name; open it with `open_journal`, because it may be compressed."""

    path: Path
    name: str
    session: int
    writer: str
    number: int


def journal_files(directory: Path, *, follow_links: bool = True) -> list[JournalFile]:
    """Return the journal files in a directory, each writer's in order; a compressed one under its original name."""
    return _scan(directory, lambda entry: (follow_links or not entry.is_symlink()) and _is_regular(entry))


def irregular_files(directory: Path) -> list[JournalFile]:
    """Return what has a journal file's name and is not a regular file: opening a pipe would block for ever."""
    regular = set(journal_files(directory))
    found = _scan(directory, lambda entry: not entry.is_symlink() and not _is_regular(entry))
    return [file for file in found if file not in regular]


def _scan(directory: Path, accept: Callable[["os.DirEntry[str]"], bool]) -> list[JournalFile]:
    try:
        with os.scandir(directory) as entries:
            accepted = (entry.name for entry in entries if entry.name.endswith(_ENDINGS) and accept(entry))
            names = {name.removesuffix(SUFFIX) for name in accepted}  # both are there while a file is compressed
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []
    found = []
    for name in names:
        writer, _, number = name.removesuffix(".jsonl").rpartition("-")
        parts = writer.split("-")
        if len(parts) == 4 and parts[1].isdigit() and number.isdigit():
            found.append(JournalFile(directory / name, parts[0], int(parts[1]), writer, int(number)))
    return sorted(found, key=lambda file: (file.name, file.session, file.writer, file.number))


def _is_regular(entry: "os.DirEntry[str]") -> bool:
    with contextlib.suppress(OSError):  # a link to itself, or into a directory without permission
        return entry.is_file()
    return False


class PlainFile:
    """A journal file that is not compressed, open for reading.

    Args:
        descriptor: An open regular file, which `close` closes.
    """

    is_compressed = False

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def size(self) -> int:
        """The size of the file; a segment in use is longer than its lines, and may grow."""
        return os.fstat(self._descriptor).st_size

    def stat(self) -> os.stat_result:
        """Return the status of the file."""
        return os.fstat(self._descriptor)

    def pread(self, count: int, offset: int) -> bytes:
        """Return at most so many bytes at an offset."""
        return os.pread(self._descriptor, count, offset)

    def pieces(self) -> Iterator[bytes]:
        """Yield all of the content."""
        offset = 0
        while piece := self.pread(_PIECE, offset):
            yield piece
            offset += len(piece)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


OpenJournal = PlainFile | CompressedFile
"""An open journal file: ``size``, ``pread(count, offset)``, ``pieces()``, ``stat()``, ``is_compressed``, ``close``."""


def open_journal(path: Path | str, *, follow_links: bool = True, directory: int | None = None) -> OpenJournal:
    """Open a journal file for reading, compressed or not: sizes and offsets are those of its content.

    Args:
        path: The name without ``.zst``.
        follow_links: Whether the file may be a link.
        directory: A descriptor of the directory that a relative path is in.

    Raises:
        FileNotFoundError: There is neither.
        OSError: It cannot be read, or is not a regular file.
        MissingExtraError: It is compressed, its index is damaged, and the package for zstd is not installed.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow_links else os.O_NOFOLLOW)
    # The original first: where both are there, it has at least as much. It is tried a second time for the case that
    # the compressed file was unpacked between the two attempts.
    for suffix in ("", SUFFIX, ""):
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(f"{os.fspath(path)}{suffix}", flags, dir_fd=directory)
            break
    else:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path))
    try:
        found = os.fstat(descriptor)
        mode = found.st_mode
        # An empty file beside a compressed one: a server was killed before it could lock what it had just created.
        if not suffix and not found.st_size and stat.S_ISREG(mode):
            with contextlib.suppress(FileNotFoundError):
                beside = os.open(f"{os.fspath(path)}{SUFFIX}", flags, dir_fd=directory)
                os.close(descriptor)
                descriptor, suffix = beside, SUFFIX
                mode = os.fstat(descriptor).st_mode
        if stat.S_ISREG(mode):
            return CompressedFile(descriptor) if suffix else PlainFile(descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    raise OSError(errno.EINVAL, "Not a regular file", os.fspath(path))


def recorded_digests(directory: Path) -> tuple[dict[str, str], list[str]]:
    """Return the SHA-256 of each complete journal file as its writer recorded it, and the damaged digest files."""
    digests: dict[str, str] = {}
    damaged: list[str] = []
    for path in sorted(directory.glob(f"*{DIGESTS}")):
        if path.is_symlink() or not path.is_file():
            continue
        try:
            lines = path.read_bytes().removesuffix(b"\n").split(b"\n")
        except OSError:
            lines = [b""]
        matches = [_DIGEST.fullmatch(line) for line in lines]
        digests |= {os.fsdecode(match[2]): match[1].decode() for match in matches if match}
        damaged += [path.name] if not all(matches) else []
    return digests, damaged


class Segment:
    """One preallocated, mapped file. Readers ignore its first name; `rename` makes it visible."""

    def __init__(self, path: Path, size: int) -> None:
        self.path, self.size = path, size
        self.faults = 0
        self.on_fault: Callable[[Segment], None] | None = None
        # A new file each time: two writers never share one.
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        # flock, not a record lock: a reader in this process that closes the same file would drop the latter.
        with contextlib.suppress(OSError):  # marks it as in use, where files can be locked
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            # All blocks now: with a hole, a full disk would be a SIGBUS in the middle of a store.
            os.posix_fallocate(self.descriptor, 0, size)
            self.map = mmap.mmap(self.descriptor, size)
        except BaseException:
            os.close(self.descriptor)
            path.unlink(missing_ok=True)
            raise
        # Fault in all pages here, off the training thread. A read into the map does it without the interpreter lock.
        with contextlib.suppress(OSError), Path("/dev/zero").open("rb", buffering=0) as zeros:
            os.readv(zeros.fileno(), [self.map])
        guard(self)

    def rename(self, path: Path) -> None:
        """Give the file its final name when it comes into use: the number in it counts uses."""
        self.path = self.path.rename(path)

    def restore(self) -> bool:
        """Give a truncated file its size back; called in the middle of the store that faulted."""
        self.faults += 1
        if self.on_fault is not None:
            self.on_fault(self)
        # Each further attempt would fault again, for ever.
        if self.faults > _MAX_FAULTS:  # the size is not the problem; perhaps the memory is
            return False
        try:
            # Allocated, not merely extended: on a full disk a hole would fault again at once.
            os.posix_fallocate(self.descriptor, 0, self.size)
        except OSError:
            return False
        return True

    def is_cut(self) -> bool:
        """Return whether another program truncated or removed the file."""
        status = os.fstat(self.descriptor)
        # The faults count, because `restore` has given the file its size back since.
        return self.faults > 0 or status.st_size < self.size or status.st_nlink == 0

    def restore_removed(self, used: int) -> None:
        """Write the file again if it was removed: the map still has its content."""
        if os.fstat(self.descriptor).st_nlink == 0:
            # "x": what another program has put in its place is not overwritten.
            with self.path.open("xb") as file, memoryview(self.map) as whole, whole[:used] as written:
                file.write(written)

    def digest(self, used: int) -> str:
        """Return the SHA-256 of the lines."""
        with memoryview(self.map) as whole, whole[:used] as written:
            return hashlib.sha256(written).hexdigest()

    def close(self, used: int) -> None:
        """Unmap the file and truncate it to its lines."""
        # First: another map may get the same address as soon as this one is closed.
        release(self)
        self.map.close()
        try:
            # Never longer: that would put zeros past the end of a truncated file, where readers would take them for a
            # hole.
            os.ftruncate(self.descriptor, min(used, os.fstat(self.descriptor).st_size))
        finally:
            with contextlib.suppress(OSError):  # closing is not enough: forked children have it open as well
                fcntl.flock(self.descriptor, fcntl.LOCK_UN)
            os.close(self.descriptor)


def reclaim_abandoned(directory: Path) -> None:
    """Free what killed writers had preallocated: the rest of their segments, and segments they never used."""
    for path in [*directory.glob("*.prepared"), *directory.glob("*.jsonl")]:
        with contextlib.suppress(OSError), path.open("r+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while a writer uses it
            size = file.seek(0, os.SEEK_END)
            # Never in use under this name, so it holds no line.
            if path.suffix == ".prepared":
                path.unlink(missing_ok=True)
            # Only a file that ends with zeros has something to give back. A complete one is left alone.
            elif size and os.pread(file.fileno(), 1, size - 1) == b"\0":
                os.ftruncate(file.fileno(), _last_byte(file.fileno(), size))


def _last_byte(descriptor: int, end: int) -> int:
    """Find where the trailing zeros begin, backwards: by halving, a hole between lines could be mistaken for them."""
    while end:
        begin = max(0, end - _WINDOW)
        written = os.pread(descriptor, end - begin, begin).rstrip(b"\0")
        if written:
            return begin + len(written)
        end = begin
    return 0


def end_of_data(file: OpenJournal, low: int, high: int) -> int:
    """Find where the zeros of a segment begin, by halving: no line contains one.

    Small holes between lines are passed, as a reader does.
    """
    if file.is_compressed:  # only complete files are compressed, and those have no zeros
        return high
    end = high
    while True:
        high = end
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if file.pread(1, middle) == b"\0" else (middle + 1, high)
        behind = file.pread(min(_WINDOW, end - low), low)
        if behind == _ZEROS[: len(behind)]:
            return low
        low += len(behind) - len(behind.lstrip(b"\0"))


def can_map(directory: Path) -> bool:
    """Return whether files in a directory can be preallocated and mapped with the guarantees of the journal."""
    return hasattr(os, "posix_fallocate") and hasattr(os, "fdatasync") and _file_system(directory) not in _UNMAPPABLE


def _file_system(directory: Path) -> str:
    """Return the type of a directory's file system, or an empty string if it is unknown."""
    try:
        mounts = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return ""
    resolved = directory.resolve()
    longest, kind = -1, ""
    for mount in mounts:
        _, point, found, *_ = mount.split(" ")
        # The kernel writes a space in a path that way.
        point = point.replace("\\040", " ")
        if resolved.is_relative_to(point) and len(point) >= longest:  # a later mount at the same point covers others
            longest, kind = len(point), found
    return "fuse" if kind.startswith("fuse") else kind


class MappedFile(Protocol):
    """The owner of a mapped file."""

    map: mmap.mmap

    def restore(self) -> bool:
        """Give the file its size back; returns whether that was possible."""


_guarded: dict[int, tuple[int, "weakref.ref[MappedFile]"]] = {}
"""The size and the owner of each guarded map, by its address."""


def guard(owner: MappedFile) -> None:
    """Survive the truncation of a mapped file, on systems where that is supported."""
    if install_handler():
        # A weak reference: guarding must not keep a segment's map and descriptor open.
        _guarded[_address(owner.map)] = (len(owner.map), weakref.ref(owner))


def release(owner: MappedFile) -> None:
    """Stop guarding a map that is about to be closed."""
    _guarded.pop(_address(owner.map), None)


def install_handler() -> bool:
    """Install the SIGBUS handler, again if another library (Ray, faulthandler) has replaced it.

    Returns:
        Whether truncations are survived on this system.
    """
    handler = _handler()
    return handler is not None and handler.install()


def _address(pages: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(pages))


class _Action(ctypes.Structure):
    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ubyte * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


@functools.cache
def _handler() -> "_Handler | None":
    if sys.platform != "linux" or os.uname().machine not in ("x86_64", "aarch64") or sys.maxsize < 2**32:
        return None  # other layouts of `siginfo_t` and `sigaction`
    return _Handler()


class _Handler:
    """The process's SIGBUS handler, and the one that was installed before."""

    def __init__(self) -> None:
        self._library = ctypes.PyDLL(None)  # PyDLL keeps the interpreter lock: no other thread runs in between
        self._library.mmap.restype = ctypes.c_void_p
        self._library.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
        # The C library points to these, so they live as long as the process.
        self._callback = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(self._on_fault)
        self._action = _Action(handler=ctypes.cast(self._callback, ctypes.c_void_p).value, flags=_SA_SIGINFO)
        self._previous = _Action()
        self._has_passed_on = False

    def install(self) -> bool:
        current = _Action()
        if self._library.sigaction(signal.SIGBUS, None, ctypes.byref(current)) != 0:
            return False
        if current.handler == self._action.handler:
            return True
        # Remembered each time, so that a signal that is not ours goes to the handler that was there last.
        self._previous = current
        return bool(self._library.sigaction(signal.SIGBUS, ctypes.byref(self._action), None) == 0)

    def _on_fault(self, _: int, info: int, __: int) -> None:
        address = ctypes.c_void_p.from_address(info + _ADDRESS).value or 0
        is_fault = ctypes.c_int.from_address(info + _CODE).value > 0  # not sent by `kill`
        for begin, (size, owner) in list(_guarded.items()):
            found = owner()
            if is_fault and begin <= address < begin + size and found is not None:
                if not found.restore():
                    # The size cannot be given back, as on a full disk. Anonymous memory takes the store, so the
                    # training continues; the lines in it are lost, and counted when the segment is closed.
                    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
                    self._library.mmap(begin, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
                return
        # Not ours: reinstate the previous handler, which gets the signal when the store is repeated and faults again.
        # If that one calls this one, as a handler installed on top of it would, use the default action.
        previous = _Action() if self._has_passed_on else self._previous
        self._library.sigaction(signal.SIGBUS, ctypes.byref(previous), None)
        self._has_passed_on = True
        # Nothing repeats a signal that was sent, so it is sent again for the handler that is installed now.
        if not is_fault:
            os.kill(os.getpid(), signal.SIGBUS)
