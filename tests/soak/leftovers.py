"""Processes of a soak that outlived their parents: delivery processes, wandb's own process."""

import contextlib
import os
import signal
from pathlib import Path

from soak.layout import Layout


def end_leftovers(layout: Layout) -> None:
    """Kill every process whose environment says that it belongs to this soak."""
    mark = f"SOAK_FUNCTION_FILE={layout.function_file}".encode()
    for environment in Path("/proc").glob("[0-9]*/environ"):
        pid = int(environment.parent.name)
        with contextlib.suppress(OSError):
            if pid != os.getpid() and mark in environment.read_bytes().split(b"\0"):
                os.kill(pid, signal.SIGKILL)
