"""The reference model that the policy is kept close to: a copy of the initial model, or the model without its adapters.

A model with adapters of PEFT needs no copy, since its frozen weights are the reference: the adapters are disabled while
it is computed. A copy is whole in every process, also where the model in training is sharded.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch

from hookline._engine.torch_models import is_adapted, unwrapped
from hookline.rl.learner.weights import whole_copy

RELATIVE_ROUNDING = 1e-11
"""How much sums of equal weights may differ, relative to the sum of their absolute values."""


class Reference(ABC):
    """The reference model."""

    def __init__(self) -> None:
        self._fingerprint: list[float] | None = None  # computed once: it reads all weights

    @abstractmethod
    def compute(self, function: Callable[[Any], torch.Tensor], device: Any) -> torch.Tensor:
        """Call a function with the reference model and return its result."""

    @abstractmethod
    def _parameters(self) -> list[torch.Tensor]: ...

    def fingerprint(self) -> list[float]:
        """Return numbers that are equal for equal weights, up to rounding, and different for others."""
        if self._fingerprint is None:
            self._fingerprint = [float(parameter.detach().double().sum()) for parameter in self._parameters()]
        return self._fingerprint

    def has_fingerprint(self, fingerprint: list[float]) -> bool:
        """Whether the weights are those of a fingerprint."""
        # Not an exact comparison: the rounding of sums depends on the number of threads and on the device.
        sizes = [float(parameter.detach().double().abs().sum()) for parameter in self._parameters()]
        return len(fingerprint) == len(sizes) and all(
            math.isclose(saved, own, rel_tol=0, abs_tol=RELATIVE_ROUNDING * size)
            for saved, own, size in zip(fingerprint, self.fingerprint(), sizes, strict=True)
        )


class CopiedReference(Reference):
    """A copy of a model, which is frozen, but may follow the policy."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model.eval().requires_grad_(False)

    def compute(self, function: Callable[[Any], torch.Tensor], device: Any) -> torch.Tensor:
        """Call a function with the copy and return its result."""
        return function(self.model.to(device))  # it was copied before the model in training was moved

    def mix(self, weights: Mapping[str, torch.Tensor], share: float) -> None:
        """Move towards the policy's weights: the result has this share of them."""
        self._fingerprint = None
        with torch.no_grad():
            for name, own in self.model.named_parameters():
                own.mul_(1 - share).add_(weights[name].to(own.device), alpha=share)

    def _parameters(self) -> list[torch.Tensor]:
        return list(self.model.parameters())


class DisabledAdapters(Reference):
    """A model whose adapters are disabled while it is the reference."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self._model = unwrapped(model)

    def compute(self, function: Callable[[Any], torch.Tensor], device: Any) -> torch.Tensor:
        """Call a function with the model, its adapters disabled, and return its result."""
        with self._model.disable_adapter():
            return function(self._model)

    def _parameters(self) -> list[torch.Tensor]:
        return [parameter for parameter in self._model.parameters() if not parameter.requires_grad]


def reference_of(model: Any) -> Reference:
    """Return the reference for a model in training; a collective where it is sharded."""
    return DisabledAdapters(model) if is_adapted(model) else CopiedReference(whole_copy(model))
