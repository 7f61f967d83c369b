"""A model of Keras in a checkpoint's directory, or as a file."""

from pathlib import Path
from typing import Any

MODEL = "model.keras"
WEIGHTS = "model.weights.h5"
_SUFFIXES = (".keras", ".h5")


def is_file(place: Path) -> bool:
    """Whether a path names a model's file rather than a directory."""
    return place.suffix in _SUFFIXES


def save_file(model: Any, file: Path) -> None:
    """Write a model; to a file called ``*.weights.h5`` only its weights."""
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.name.endswith(".weights.h5"):
        model.save_weights(file)
    else:
        model.save(file)


def save_into(model: Any, directory: Path, *, weights_only: bool) -> None:
    """Write a model, or its weights, into a directory."""
    save_file(model, directory / (WEIGHTS if weights_only else MODEL))
