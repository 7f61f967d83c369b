"""The state of a `HostLoop` as a folder in a host's checkpoint directory.

It is an ordinary checkpoint of hookline, so one of which a file is missing or cut short is noticed: it is named, and
the training goes on without it.
"""

import logging
from pathlib import Path
from typing import Any

from hookline.core.errors import CheckpointError
from hookline.integrations.host_loop import HostLoop
from hookline.loops import checkpoint

logger = logging.getLogger("hookline")

FOLDER = "hookline"


def save(directory: str | Path, loop: HostLoop) -> None:
    """Put the state into a checkpoint that the host has saved; rank zero writes.

    Raises:
        CheckpointError: It cannot be written.
    """
    state = loop.state_dict()
    if loop.rank == 0:
        checkpoint.save(Path(directory) / FOLDER, state, lambda place: None, step=state["step"], kind="host")


def load(directory: str | Path) -> dict[str, Any] | None:
    """The state in a host's checkpoint; None where there is none, or none that can be read."""
    place = Path(directory) / FOLDER
    checkpoint.recover(place)
    if not checkpoint.is_one(place):
        logger.warning("%s holds no state of callbacks: they start anew.", directory)
        return None
    try:
        return checkpoint.load(place)
    except CheckpointError as error:
        logger.warning("The callbacks start anew, without the state in %s. %s", directory, error)
        return None
