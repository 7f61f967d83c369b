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
from typing import Protocol

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


def guard(owner: Guarded) -> None:
    """Survive the truncation of a mapped file, where the system is one that is known."""
    if keep_handler():
        _guarded[_address(owner.map)] = (len(owner.map), weakref.ref(owner))


def release(owner: Guarded) -> None:
    """Guard a map no longer; it is about to be closed."""
    _guarded.pop(_address(owner.map), None)


def keep_handler() -> bool:
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
