"""Keeps an exponential moving average of the model's parameters, and validates with it.

The average starts as a copy of the weights and is updated at the end of every step, or of the steps that ``every=`` and
``start=`` select. Weights in half precision, which would lose small changes, are averaged in float32. Buffers, such as
the running means of a batch norm, and frozen parameters are not averaged. If the model is sharded over processes
(FSDP2), each process averages its shards.

In a loop over a training state of JAX, the weights are the floating-point arrays of ``loop.model``: select the
parameters with ``run(state, model=...)``.
"""

import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from hookline._engine import jax_trees
from hookline._engine.errors import OptionError
from hookline._engine.registry import register
from hookline._engine.state import LoopArtifacts, LoopState, ManifestRow
from hookline._engine.torch_models import (
    in_layout_of,
    is_fsdp1,
    is_zero3,
    local_part,
    named_parameters,
    plain_name,
    reshard,
)
from hookline.callbacks.monitoring import StatefulCallback

logger = logging.getLogger("hookline")


@register("ema")
class EMA(StatefulCallback):
    """Averages the trainable parameters of ``loop.model`` and validates with the averages.

    From `on_validation_start` to `on_validation_end` the model holds the averages; training continues with its own
    weights. The average is part of every checkpoint. Use ``with ema.applied(model):`` to apply it at other times.

    Args:
        decay: The weight of the old average at an update: 0.999 averages over about a thousand updates.
        warmup: Use ``(1 + n) / (10 + n)`` at update n while that is smaller than ``decay``.
        use_at_end: Leave the averages in the model when training ends.
    """

    priority = 100  # runs first, so that a callback which saves after a validation saves the weights of training

    def __init__(self, decay: float = 0.999, *, warmup: bool = False, use_at_end: bool = False) -> None:
        if isinstance(decay, bool) or not isinstance(decay, int | float) or not 0 <= decay < 1:
            raise OptionError(f"decay={decay!r}: give a number of at least 0 and below 1, e.g. 0.999.")
        self.decay = float(decay)
        self.warmup = warmup
        self.use_at_end = use_at_end
        self._reset()
        self._target: Target | None = None
        self._applies_at_close = False
        self._weights: dict[str, Any] | None = None  # those of training, while the model holds the averages

    def _reset(self) -> None:
        self.updates = 0
        self.averages: dict[str, Any] = {}

    def on_train_start(self, loop: LoopState, /) -> None:
        super().on_train_start(loop)
        self._target = _target_of(loop)
        if self._target is None:
            given = "no model" if loop.model is None else f"a {type(loop.model).__name__} without named_parameters()"
            logger.warning(
                "ema averages nothing: the loop has %s. Set one before the first step: run.model = model.", given
            )
        elif self.averages:
            self._fit_averages(self._target)

    def on_checkpoint_load(self, loop: LoopState, row: ManifestRow, /) -> None:
        self._weights = None  # the checkpoint replaced them
        if self.averages and self._target is not None:
            self._fit_averages(self._target)

    def on_step_start(self, loop: LoopState, step_idx: int, /) -> None:
        self._restore_weights()  # after a validation that failed, and so never ended

    def on_step_end(self, loop: LoopState, step_idx: int, batch: Any, metrics: dict[str, Any], /) -> None:
        self._restore_weights()
        if self._target is not None:
            self._update(self._target)

    def on_validation_start(self, loop: LoopState, /) -> None:
        if self.averages and self._target is not None and self._weights is None:
            self._weights = self._target.exchange(self.averages)

    def on_validation_end(self, loop: LoopState, /) -> None:
        self._restore_weights()

    def on_train_end(self, loop: LoopState, artifacts: LoopArtifacts, /) -> None:
        super().on_train_end(loop, artifacts)
        self._restore_weights()
        self._applies_at_close = self.use_at_end and bool(self.averages) and self._target is not None

    def on_exception(self, loop: LoopState, error: BaseException, /) -> None:
        super().on_exception(loop, error)
        self._restore_weights()

    def close(self) -> None:
        if self._applies_at_close:  # not earlier: callbacks that save at the end save the weights of training
            self._applies_at_close = False
            if self._target is not None:
                self._target.exchange(self.averages)
        self._target = self._weights = None

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self.updates, "averages": dict(self.averages)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.updates = state["updates"]
        self.averages = {plain_name(name): _copied(average) for name, average in state["averages"].items()}

    @contextmanager
    def applied(self, model: Any) -> Iterator[Any]:
        """Puts the averages into a model of torch for the duration of the context."""
        if not self.averages:
            raise OptionError("ema.applied(): there is no average yet. Train a step or load a checkpoint first.")
        target = TorchTarget(model)
        self._fit_averages(target)
        weights = target.exchange(self.averages)
        try:
            yield model
        finally:
            target.exchange(weights)

    def _update(self, target: "Target") -> None:
        if not self.averages:
            self.averages = target.copies()
        else:
            decay = min(self.decay, (1 + self.updates) / (10 + self.updates)) if self.warmup else self.decay
            self.averages = target.averaged(self.averages, decay)
        self.updates += bool(self.averages)

    def _fit_averages(self, target: "Target") -> None:
        """Match loaded averages to the weights by name, device and layout."""
        own = target.shapes()
        if self.averages.keys() != own.keys() and [*own.values()] == [tuple(a.shape) for a in self.averages.values()]:
            # A framework may rename the parameters of a model that it loads.
            logger.warning("ema: the parameters were renamed since they were averaged; matching them by position.")
            self.averages = dict(zip(own, self.averages.values(), strict=True))
        wrong = sorted(self.averages.keys() ^ own.keys())
        wrong += [name for name, a in self.averages.items() if name not in wrong and tuple(a.shape) != own[name]]
        if wrong:
            raise OptionError(f"ema: the averages belong to another model: {wrong[0]!r} does not match this one.")
        self.averages = target.placed(self.averages)

    def _restore_weights(self) -> None:
        if self._weights is not None and self._target is not None:
            weights, self._weights = self._weights, None
            self._target.exchange(weights)


class Target(Protocol):
    """The weights that are averaged."""

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each weight by its name."""

    def copies(self) -> dict[str, Any]:
        """Return copies of the weights, those of half precision in float32."""

    def averaged(self, averages: dict[str, Any], decay: float) -> dict[str, Any]:
        """Return the averages after an update with the weights."""

    def placed(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return values on the devices and in the layout of the weights."""

    def exchange(self, values: dict[str, Any]) -> dict[str, Any]:
        """Replace the weights, and return those of before."""


def _target_of(loop: LoopState) -> Target | None:
    tree = getattr(loop, "weight_tree", None)
    if tree is not None:
        return TreeTarget(tree)
    return TorchTarget(loop.model) if callable(getattr(loop.model, "named_parameters", None)) else None


class TorchTarget:
    """The trainable parameters of a model of torch, which are changed in place."""

    def __init__(self, model: Any) -> None:
        self._model, self._parameters = model, _trainable(model)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each parameter by its name."""
        return {name: tuple(parameter.shape) for name, parameter in self._parameters.items()}

    def copies(self) -> dict[str, Any]:
        """Return copies of the parameters."""
        torch = sys.modules["torch"]
        half = (torch.float16, torch.bfloat16)
        given = {name: parameter.detach() for name, parameter in self._parameters.items()}
        return {n: w.to(torch.float32 if w.dtype in half else w.dtype, copy=True) for n, w in given.items()}

    def averaged(self, averages: dict[str, Any], decay: float) -> dict[str, Any]:
        """Update the averages in place."""
        own = [local_part(average) for average in averages.values()]
        given = [local_part(self._parameters[n].detach()).to(a.dtype) for n, a in averages.items()]
        sys.modules["torch"]._foreach_lerp_(own, given, 1 - decay)
        return averages

    def placed(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return values on the devices and with the sharding of the parameters."""
        return {name: in_layout_of(value, self._parameters[name]) for name, value in values.items()}

    def exchange(self, values: dict[str, Any]) -> dict[str, Any]:
        """Copy values into the parameters, and return copies of what they were."""
        torch = sys.modules["torch"]
        replaced = {name: self._parameters[name].detach().clone() for name in values}
        reshard(self._model)
        with torch.no_grad():
            parameters = [local_part(self._parameters[name].detach()) for name in values]
            torch._foreach_copy_(parameters, [local_part(value) for value in values.values()])
        return replaced


class TreeTarget:
    """The weights of a loop in JAX, whose arrays are replaced."""

    def __init__(self, tree: jax_trees.WeightTree) -> None:
        self._tree = tree

    def _weights(self) -> dict[str, Any]:
        return jax_trees.named_leaves(self._tree.read())

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each array by its name."""
        return {name: tuple(array.shape) for name, array in self._weights().items()}

    def copies(self) -> dict[str, Any]:
        """Return copies of the arrays."""
        return jax_trees.copies(self._weights())

    def averaged(self, averages: dict[str, Any], decay: float) -> dict[str, Any]:
        """Return new averages."""
        return jax_trees.averaged(averages, self._weights(), decay)

    def placed(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return values with the sharding of the arrays."""
        put = sys.modules["jax"].device_put
        return {n: put(values[n], getattr(w, "sharding", None)) for n, w in self._weights().items() if n in values}

    def exchange(self, values: dict[str, Any]) -> dict[str, Any]:
        """Replace the arrays in the state, in their own dtypes, and return those of before."""
        weights = {name: array for name, array in self._weights().items() if name in values}
        self._tree.write({name: values[name].astype(array.dtype) for name, array in weights.items()})
        return weights


def _copied(average: Any) -> Any:
    return average.clone() if hasattr(average, "clone") else average  # arrays of JAX do not change


def _trainable(model: Any) -> dict[str, Any]:
    if is_fsdp1(model):
        raise OptionError("ema: the model is wrapped in FullyShardedDataParallel (FSDP1). Shard it with fully_shard().")
    if is_zero3(model):
        raise OptionError("ema: the parameters are partitioned by DeepSpeed (ZeRO stage 3), and not whole here.")
    reshard(model)
    return {n: p for n, p in named_parameters(model).items() if p.requires_grad and p.is_floating_point()}
