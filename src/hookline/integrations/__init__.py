"""Bridges to other frameworks' trainers: a module each, imported when it is first used, and what they have in common.

hl.integrations.transformers.attach(trainer, callbacks=["early_stopping"])
"""

from importlib import import_module
from typing import Any

_BRIDGES = ("accelerate", "foreign", "ingest", "jax", "keras", "lightning", "ray", "torch", "transformers", "trl")


def __getattr__(name: str) -> Any:
    if name not in _BRIDGES:
        raise AttributeError(f"module 'hookline.integrations' has no attribute {name!r}")
    return import_module(f"hookline.integrations.{name}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_BRIDGES})
