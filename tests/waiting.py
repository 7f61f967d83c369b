"""Waiting for what another process or thread does, where nothing says when it is done."""

import threading
import time
from collections.abc import Callable


def wait_until(holds: Callable[[], object], seconds: float = 60) -> None:
    """Look again and again; the time limit is for what never comes."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it never came"
        threading.Event().wait(0.01)
