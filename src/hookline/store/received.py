"""``received.json``: in the directory of a run that another machine sends. Its time is the last sign of life."""

import os
from pathlib import Path
from typing import NamedTuple

import msgspec

RECEIVED = "received.json"
_MOST_BYTES = 64 << 10


class Received(msgspec.Struct, frozen=True):
    """Whose the run is.

    Attributes:
        origin: Who sends it.
        received: When it was first heard of.
        every_seconds: How often its process says that it lives; None where nobody promised anything.
    """

    origin: str
    received: float = 0.0
    every_seconds: float | None = None

    @classmethod
    def decoded(cls, text: bytes) -> "Received":
        """What the file says; one that cannot be read is nobody's."""
        try:
            return msgspec.json.decode(text, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return cls("")


class Sign(NamedTuple):
    """The last sign of life of a received run, and when the next was promised."""

    time: float
    every_seconds: float | None


def last_sign(directory: Path) -> Sign | None:
    """The last sign of life; None where a run was not received."""
    try:
        descriptor = os.open(directory / RECEIVED, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        held = Received.decoded(os.read(descriptor, _MOST_BYTES))
        return Sign(os.fstat(descriptor).st_mtime, held.every_seconds)
    except OSError:
        return None
    finally:
        os.close(descriptor)
