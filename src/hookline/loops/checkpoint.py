"""Checkpoints of a bare loop: a directory each, written aside and then renamed.

A checkpoint holds the loop's counters and metrics and every callback's state (``state.json``), and
whatever the user's own save function puts beside it. A crash while saving leaves the previous
checkpoint whole and at most a hidden directory that the next save removes.
"""

import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hookline.core.errors import CheckpointError
from hookline.core.state import ManifestRow
from hookline.core.values import plain

STATE_FILE = "state.json"
Save = Callable[[Path], object]


def save(path: Path, state: Mapping[str, Any], save_more: Save | None, *, step: int) -> ManifestRow:
    """Write a checkpoint at ``path``, replacing what was there only once the new one is complete."""
    text = json.dumps(plain(state))
    aside = path.with_name(f".{path.name}.partial")
    try:
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        (aside / STATE_FILE).write_text(text, encoding="utf-8")
        if save_more is not None:
            save_more(aside)
        _sync(aside)
        size = sum(file.stat().st_size for file in aside.rglob("*") if file.is_file())
        _replace(aside, path)
    except OSError as error:
        raise CheckpointError(f"The checkpoint {path} cannot be written: {error}") from error
    return ManifestRow(step=step, path=path, metrics=dict(state["metrics"]), bytes=size, time=time.time())


def load(path: Path) -> dict[str, Any]:
    """The state in a checkpoint."""
    try:
        state: dict[str, Any] = json.loads((path / STATE_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path} is not a checkpoint: it has no {STATE_FILE}.") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path / STATE_FILE} cannot be read: {error}") from error
    return state


def last(run_dir: Path) -> Path | None:
    """The latest complete checkpoint in a run's directory."""
    found = [path.parent for path in run_dir.glob(f"checkpoints/step-*/{STATE_FILE}")]
    return max(found, key=lambda path: path.name, default=None)


def _sync(directory: Path) -> None:
    for file in directory.rglob("*"):
        if file.is_file():
            descriptor = os.open(file, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def _replace(aside: Path, path: Path) -> None:
    if path.exists():
        old = path.with_name(f".{path.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        path.rename(old)
        aside.rename(path)
        shutil.rmtree(old, ignore_errors=True)
    else:
        aside.rename(path)
