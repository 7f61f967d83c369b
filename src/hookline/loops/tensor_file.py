"""A file of a checkpoint that holds tensors and plain values, and is read back without running any code."""

import shutil
from pathlib import Path
from typing import Any

import torch

from hookline.core.errors import CheckpointError

FULL_BYTES = 64 << 10
"""Below so much free space a write that failed did so for want of it, whatever torch says."""


def write_tensors(values: dict[str, Any], path: Path) -> None:
    """Write values, for `read_tensors` to read.

    Raises:
        CheckpointError: They cannot be written.
    """
    try:
        with path.open("wb") as file:  # which torch, given a path, would leave open when the disk is full
            torch.save(_plain(values), file)
    except (OSError, RuntimeError) as error:  # torch's own writer says it in its own way
        free = shutil.disk_usage(path.parent).free
        full = f"No space left on device ({free:,} bytes are free)" if free < FULL_BYTES else ""
        raise CheckpointError(f"{path} cannot be written: {full or str(error).partition(chr(10))[0]}") from error


def _plain(value: Any) -> Any:
    """Numbers of NumPy, such as a learning rate that was computed with it, as Python's: only those are read back."""
    if type(value) is dict:  # and not that of a model's weights, which knows more than its items
        return {key: _plain(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_plain(item) for item in value)
    return value.item() if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0 else value
