"""Keeps the process alive when another program truncates a file that it writes through a map.

Storing into a page behind the end of its file raises SIGBUS, which would end the training. No check before the store
closes the gap between the two, and a system call for each line is what the map is there to avoid. So the signal itself
is handled, at no cost before it comes: the handler has the file restored to its size, or puts other memory in
the place of the map, and the interrupted store is repeated.

The handler is Python called by C (ctypes). That is safe for this signal where it is not for others: it comes at the
store itself, in a thread that holds the interpreter's lock or waits for it, and never inside of the allocator. A SIGBUS
that is none of ours goes to the handler that was there before.
"""

import ctypes
import functools
import mmap
import os
import signal
import sys
import weakref
from typing import Any, Protocol

_MAP_FIXED = 0x10
_SA_SIGINFO = 4
_CODE, _ADDRESS = 8, 16
"""Where the C library has these fields in a ``siginfo_t``."""


class Guarded(Protocol):
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


_guarded: dict[int, tuple[int, "weakref.ref[Guarded]"]] = {}
"""The size of each map and what it belongs to, by its address."""
_kept: list[Any] = []
"""What the C library points to."""


def guard(owner: Guarded) -> None:
    """Survive the truncation of a mapped file, where the system is one that is known."""
    if _install():
        _guarded[_address(owner.map)] = (len(owner.map), weakref.ref(owner))


def release(owner: Guarded) -> None:
    """Guard a map no longer; it is about to be closed."""
    _guarded.pop(_address(owner.map), None)


def _address(pages: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(pages))


@functools.cache
def _install() -> bool:
    if sys.platform != "linux" or os.uname().machine not in ("x86_64", "aarch64") or sys.maxsize < 2**32:
        return False
    library = ctypes.PyDLL(None)  # which keeps the interpreter's lock: no other thread comes in between
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
    before = _Action()

    def on_fault(_: int, info: int, __: int) -> None:
        address = ctypes.c_void_p.from_address(info + _ADDRESS).value or 0
        is_fault = ctypes.c_int.from_address(info + _CODE).value > 0  # and not sent by `kill`
        for begin, (size, owner) in list(_guarded.items()):
            found = owner()
            if is_fault and begin <= address < begin + size and found is not None:
                if not found.restore():
                    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
                    library.mmap(begin, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
                return
        library.sigaction(signal.SIGBUS, ctypes.byref(before), None)  # the store is repeated, and faults there
        if not is_fault:
            os.kill(os.getpid(), signal.SIGBUS)

    callback = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(on_fault)
    action = _Action(handler=ctypes.cast(callback, ctypes.c_void_p).value, flags=_SA_SIGINFO)
    _kept.extend((callback, action, before))
    return bool(library.sigaction(signal.SIGBUS, ctypes.byref(action), ctypes.byref(before)) == 0)
