"""Integrations with other frameworks' trainers, one module for each; a module is imported when it is first used.

hl.integrations.transformers.attach(trainer, callbacks=["early_stopping"])
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hookline.integrations.host_loop import HostLoop

__all__ = ["HostLoop"]

_FRAMEWORKS = (
    *("accelerate", "catboost", "composer", "deepspeed", "fabric", "fastai", "ignite", "jax", "keras", "levanter"),
    *("lightgbm", "lightning", "maxtext", "prime_rl", "ray", "sklearn", "skyrl", "stable_baselines3"),
    *("torch", "transformers", "trl", "tunix", "ultralytics", "verl", "xgboost"),
)


def __getattr__(name: str) -> Any:
    if name == "HostLoop":
        return import_module("hookline.integrations.host_loop").HostLoop
    if name not in _FRAMEWORKS:
        raise AttributeError(f"module 'hookline.integrations' has no attribute {name!r}")
    return import_module(f"hookline.integrations.{name}")


def __dir__() -> list[str]:
    return sorted({*globals(), "HostLoop", *_FRAMEWORKS})
