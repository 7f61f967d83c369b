"""A host for each trainer in which hookline's callbacks run, all with the same small training."""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from hosts.base import Host

PLACES = {
    "trainer": ("hosts.trainer:OwnTrainer", "torch"),
    "bare_loop": ("hosts.bare_loop:BareLoop", "torch"),
    "torch": ("hosts.torch_loop:TorchLoop", "torch"),
    "jax": ("hosts.jax_loop:JaxLoop", "jax"),
    "accelerate": ("hosts.accelerate_loop:Accelerate", "accelerate"),
    "huggingface": ("hosts.huggingface:HuggingFace", "transformers"),
    "trl_sft": ("hosts.trl_sft:TrlSFT", "trl"),
    "trl_grpo": ("hosts.trl_grpo:TrlGRPO", "trl"),
    "learner": ("hosts.learner:Learner", "transformers"),
    "lightning": ("hosts.lightning:Lightning", "lightning"),
    "keras": ("hosts.keras:Keras", "keras"),
}
"""The module of each host by name, and the package it needs."""
HOSTS = list(PLACES)
"""Those that train in the process of the test; Ray Train has workers."""
REGRESSING = [name for name in HOSTS if name not in ("learner", "trl_sft", "trl_grpo")]
"""Those that train the linear regression; the others train language models."""


def make(name: str, directory: Path) -> Host:
    """Return a host; skips the test if its package is not installed."""
    place, package = PLACES[name]
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    module, _, kind = place.partition(":")
    host: Host = getattr(import_module(module), kind)(directory)
    return host


__all__ = ["HOSTS", "REGRESSING", "Host", "make"]
