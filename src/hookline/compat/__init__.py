"""Callbacks of other frameworks in hookline's loops, and drop-ins for other trackers, imported when first used."""

from importlib import import_module
from typing import Any

from hookline.compat.base import wrap

__all__ = ["wrap"]

_TRACKERS = ("mlflow", "tensorboard")


def __getattr__(name: str) -> Any:
    if name not in _TRACKERS:
        raise AttributeError(f"module 'hookline.compat' has no attribute {name!r}")
    return import_module(f"hookline.compat.{name}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_TRACKERS})
