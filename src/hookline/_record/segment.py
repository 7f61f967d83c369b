"""The files of a journal: their names, how they are allocated and mapped, and what is left of them.

A segment that is in use is locked, so that `tidy` can tell those of killed writers from others, on
any machine that shares the file system. It has zeros behind its last line.

Keeps the process alive when another program truncates a file that it writes through a map.

Storing into a page behind the end of its file raises SIGBUS, which would end the training. No check before the store
closes the gap between the two, and a system call for each line is what the map is there to avoid. So the signal itself
is handled, at no cost before it comes: the handler has the file restored to its size, or puts other memory in
the place of the map, and the interrupted store is repeated.

The handler is Python called by C (ctypes). That is safe for this signal where it is not for others: it comes at the
store itself, in a thread that holds the interpreter's lock or waits for it, and never inside of the allocator. A SIGBUS
that is none of ours goes to the handler that was there before.
"""

import contextlib
import ctypes
import fcntl
import functools
import hashlib
import mmap
import os
import re
import signal
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

_MAP_FIXED = 0x10
_SA_SIGINFO = 4
_CODE, _ADDRESS = 8, 16
"""Where the C library has these fields in a ``siginfo_t``."""


class MappedFile(Protocol):
    """A map of a file."""

    map: mmap.mmap

    def restore(self) -> bool:
        """Give the file its size back; whether that was possible."""


class _Action(ctypes.Structure):
    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ubyte * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


_guarded: dict[int, tuple[int, "weakref.ref[MappedFile]"]] = {}
"""The size of each map and what it belongs to, by its address."""


def guard(owner: MappedFile) -> None:
    """Survive the truncation of a mapped file, where the system is one that is known."""
    if install_handler():
        _guarded[_address(owner.map)] = (len(owner.map), weakref.ref(owner))


def release(owner: MappedFile) -> None:
    """Guard a map no longer; it is about to be closed."""
    _guarded.pop(_address(owner.map), None)


def install_handler() -> bool:
    """Install the handler, also where another library (Ray, faulthandler) has put its own in its place since.

    Returns:
        Whether truncations are survived on this system.
    """
    handler = _handler()
    return handler is not None and handler.install()


def _address(pages: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(pages))


@functools.cache
def _handler() -> "_Handler | None":
    if sys.platform != "linux" or os.uname().machine not in ("x86_64", "aarch64") or sys.maxsize < 2**32:
        return None
    return _Handler()


class _Handler:
    """The process's handler of SIGBUS, and the one that was there before."""

    def __init__(self) -> None:
        self._library = ctypes.PyDLL(None)  # which keeps the interpreter's lock: no other thread comes in between
        self._library.mmap.restype = ctypes.c_void_p
        self._library.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
        # The C library points to these: the handler lives as long as the process.
        self._callback = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(self._on_fault)
        self._action = _Action(handler=ctypes.cast(self._callback, ctypes.c_void_p).value, flags=_SA_SIGINFO)
        self._before = _Action()
        self._has_passed_on = False

    def install(self) -> bool:
        """Handle the signal from now on; whether that was possible."""
        current = _Action()
        if self._library.sigaction(signal.SIGBUS, None, ctypes.byref(current)) != 0:
            return False
        if current.handler == self._action.handler:
            return True
        self._before = current
        return bool(self._library.sigaction(signal.SIGBUS, ctypes.byref(self._action), None) == 0)

    def _on_fault(self, _: int, info: int, __: int) -> None:
        address = ctypes.c_void_p.from_address(info + _ADDRESS).value or 0
        is_fault = ctypes.c_int.from_address(info + _CODE).value > 0  # and not sent by `kill`
        for begin, (size, owner) in list(_guarded.items()):
            found = owner()
            if is_fault and begin <= address < begin + size and found is not None:
                if not found.restore():
                    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
                    self._library.mmap(begin, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
                return
        # Not ours: the handler from before gets it, as the store is repeated and faults again. If that one comes back
        # to this one, as it does where it was installed after it, the default action ends the process.
        self._library.sigaction(signal.SIGBUS, ctypes.byref(_Action() if self._has_passed_on else self._before), None)
        self._has_passed_on = True
        if not is_fault:
            os.kill(os.getpid(), signal.SIGBUS)


_UNMAPPABLE = {"nfs", "nfs4", "cifs", "smb3", "9p", "afs", "ceph", "lustre", "gpfs", "beegfs", "wekafs", "virtiofs"}
_UNMAPPABLE |= {"btrfs", "zfs", "vboxsf", "prl_fs", "fuse"}
"""File systems where preallocating is no promise, or where mapped pages do not reach other machines."""


DIGESTS = ".sha256"
"""Behind a writer's name: the file that lists the digests of its complete files, as ``sha256sum`` writes them."""
_DIGEST = re.compile(rb"([0-9a-f]{64})  ([^\x00-\x20]+\.jsonl)")


_MOST_FAULTS = 3
_WINDOW = 128 << 10
_ZEROS = bytes(_WINDOW)


class JournalFile(NamedTuple):
    """What a journal file's name says."""

    path: Path
    name: str
    session: int
    writer: str
    number: int


def journal_files(directory: Path) -> list[JournalFile]:
    """The journal files in a directory, each writer's in order."""
    return _named(directory, _is_file)


def recorded_digests(directory: Path) -> tuple[dict[str, str], list[str]]:
    """The SHA-256 of each complete journal file by its name, as its writer noted it, and the notes that are damaged."""
    noted: dict[str, str] = {}
    damaged: list[str] = []
    for path in sorted(directory.glob(f"*{DIGESTS}")):
        if path.is_symlink() or not path.is_file():
            continue
        try:
            lines = path.read_bytes().removesuffix(b"\n").split(b"\n")
        except OSError:
            lines = [b""]
        found = [_DIGEST.fullmatch(line) for line in lines]
        noted |= {os.fsdecode(match[2]): match[1].decode() for match in found if match}
        damaged += [path.name] if not all(found) else []
    return noted, damaged


def irregular_files(directory: Path) -> list[JournalFile]:
    """What has the name of a journal file and is something else: whoever opens a pipe waits for ever."""
    return _named(directory, lambda entry: not entry.is_symlink() and not _is_file(entry))


def _named(directory: Path, chosen: Callable[["os.DirEntry[str]"], bool]) -> list[JournalFile]:
    found = []
    for name in _names(directory, chosen):
        writer, _, number = name.removesuffix(".jsonl").rpartition("-")
        parts = writer.split("-")
        if len(parts) == 4 and parts[1].isdigit() and number.isdigit():
            found.append(JournalFile(directory / name, parts[0], int(parts[1]), writer, int(number)))
    return sorted(found, key=lambda file: (file.name, file.session, file.writer, file.number))


def _names(directory: Path, chosen: Callable[["os.DirEntry[str]"], bool]) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            return [entry.name for entry in entries if entry.name.endswith(".jsonl") and chosen(entry)]
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []


def _is_file(entry: "os.DirEntry[str]") -> bool:
    with contextlib.suppress(OSError):  # a link that leads to itself, or to where nobody may look
        return entry.is_file()
    return False


class Segment:
    """One preallocated, mapped file. It is made under a name that readers ignore, until it is `taken`."""

    def __init__(self, path: Path, size: int) -> None:
        self.path, self.size = path, size
        self.faults = 0
        self.on_fault: Callable[[Segment], None] | None = None
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        with contextlib.suppress(OSError):  # shows that it is in use, where files can be locked
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            os.posix_fallocate(self.descriptor, 0, size)
            self.map = mmap.mmap(self.descriptor, size)
        except BaseException:
            os.close(self.descriptor)
            path.unlink(missing_ok=True)
            raise
        _touch(self.map)
        guard(self)

    def restore(self) -> bool:
        """Give a file that was truncated its size back; called in the middle of the store that found out."""
        self.faults += 1
        if self.on_fault is not None:
            self.on_fault(self)
        if self.faults > _MOST_FAULTS:  # something else is wrong than its size, such as the memory
            return False
        try:
            os.posix_fallocate(self.descriptor, 0, self.size)
        except OSError:
            return False
        return True

    def is_cut(self) -> bool:
        """Whether somebody truncated or removed the file since it was made."""
        status = os.fstat(self.descriptor)
        return self.faults > 0 or status.st_size < self.size or status.st_nlink == 0

    def put_back(self, used: int) -> None:
        """Write the file again if somebody removed it: what was written is still in memory."""
        if os.fstat(self.descriptor).st_nlink == 0:
            with self.path.open("xb") as file, memoryview(self.map) as whole, whole[:used] as written:
                file.write(written)

    def taken(self, path: Path) -> None:
        """Give the file its name: its number is that of its use, not of its making."""
        self.path = self.path.rename(path)

    def digest(self, used: int) -> str:
        """The SHA-256 of what was written to it."""
        with memoryview(self.map) as whole, whole[:used] as written:
            return hashlib.sha256(written).hexdigest()

    def close(self, used: int) -> None:
        """Give back what was not used."""
        release(self)
        self.map.close()
        try:
            os.ftruncate(self.descriptor, min(used, os.fstat(self.descriptor).st_size))
        finally:
            with contextlib.suppress(OSError):  # forked children have it open, too: closing alone would not unlock it
                fcntl.flock(self.descriptor, fcntl.LOCK_UN)
            os.close(self.descriptor)


def _touch(pages: mmap.mmap) -> None:
    """Have all pages of a map made now. Reading zeros into them does it without the interpreter's lock."""
    with contextlib.suppress(OSError), Path("/dev/zero").open("rb", buffering=0) as zeros:
        os.readv(zeros.fileno(), [pages])


def reclaim_abandoned(directory: Path) -> None:
    """Give back what killed writers had set aside: the rest of their segments, and segments they never used."""
    for path in [*directory.glob("*.prepared"), *directory.glob("*.jsonl")]:
        with contextlib.suppress(OSError), path.open("r+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while somebody writes to it
            size = file.seek(0, os.SEEK_END)
            if path.suffix == ".prepared":
                path.unlink(missing_ok=True)
            elif size and os.pread(file.fileno(), 1, size - 1) == b"\0":
                os.ftruncate(file.fileno(), _last_byte(file.fileno(), size))


def _last_byte(descriptor: int, end: int) -> int:
    """Where the zeros at the end of a file begin, read backwards: what is cut off must not be behind a hole."""
    while end:
        begin = max(0, end - _WINDOW)
        written = os.pread(descriptor, end - begin, begin).rstrip(b"\0")
        if written:
            return begin + len(written)
        end = begin
    return 0


def end_of_data(descriptor: int, low: int, high: int) -> int:
    """Where the zeros of a segment begin, by halving: there is none in a line.

    Holes within the lines are passed where they are small, as a reader does.
    """
    end = high
    while True:
        high = end
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if os.pread(descriptor, 1, middle) == b"\0" else (middle + 1, high)
        behind = os.pread(descriptor, min(_WINDOW, end - low), low)
        if behind == _ZEROS[: len(behind)]:
            return low
        low += len(behind) - len(behind.lstrip(b"\0"))


def can_map(directory: Path) -> bool:
    """Whether files there can be allocated in full and mapped, with all that this promises."""
    return hasattr(os, "posix_fallocate") and hasattr(os, "fdatasync") and _file_system(directory) not in _UNMAPPABLE


def _file_system(directory: Path) -> str:
    """The type of the file system that a directory lies on, as far as the system tells."""
    try:
        mounts = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return ""
    where = directory.resolve()
    best, kind = -1, ""
    for mount in mounts:
        _, point, found, *_ = mount.split(" ")
        point = point.replace("\\040", " ")
        if where.is_relative_to(point) and len(point) >= best:  # a later mount on the same point covers the earlier
            best, kind = len(point), found
    return "fuse" if kind.startswith("fuse") else kind
