"""Keeps an exponential moving average of the model's parameters, and validates with it.

The average starts as a copy of the weights and is updated at the end of every step, or of the steps that ``every=`` and
``start=`` select. Weights in half precision, which would lose small changes, are averaged in float32. Buffers, such as
the running means of a batch norm, and frozen parameters are not averaged. If the model is sharded over processes
(FSDP2), each process averages its shards.
"""

import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from hookline._engine.errors import OptionError
from hookline._engine.registry import register
from hookline._engine.state import LoopArtifacts, LoopState, ManifestRow
from hookline._engine.torch_models import in_layout_of, is_fsdp1, local_part, named_parameters, plain_name, reshard
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
        self._parameters: dict[str, Any] = {}
        self._model: Any = None
        self._applies_at_close = False
        self._weights: list[Any] | None = None  # those of training, while the model holds the averages

    def _reset(self) -> None:
        self.updates = 0
        self.averages: dict[str, Any] = {}

    def on_train_start(self, loop: LoopState, /) -> None:
        super().on_train_start(loop)
        if not callable(getattr(loop.model, "named_parameters", None)):
            given = "no model" if loop.model is None else f"a {type(loop.model).__name__} without named_parameters()"
            logger.warning(
                "ema averages nothing: the loop has %s. Set one before the first step: run.model = model.", given
            )
            return
        self._model, self._parameters = loop.model, _trainable(loop.model)
        if self.averages:
            self._fit_averages()

    def on_checkpoint_load(self, loop: LoopState, row: ManifestRow, /) -> None:
        self._weights = None  # the checkpoint replaced them
        if self.averages and self._parameters:
            self._fit_averages()

    def on_step_start(self, loop: LoopState, step_idx: int, /) -> None:
        self._restore_weights()  # after a validation that failed, and so never ended

    def on_step_end(self, loop: LoopState, step_idx: int, batch: Any, metrics: dict[str, Any], /) -> None:
        self._restore_weights()
        if self._parameters:
            self._update()

    def on_validation_start(self, loop: LoopState, /) -> None:
        if self.averages and self._parameters and self._weights is None:
            self._weights = self._apply_averages()

    def on_validation_end(self, loop: LoopState, /) -> None:
        self._restore_weights()

    def on_train_end(self, loop: LoopState, artifacts: LoopArtifacts, /) -> None:
        super().on_train_end(loop, artifacts)
        self._restore_weights()
        self._applies_at_close = self.use_at_end and bool(self.averages) and bool(self._parameters)

    def on_exception(self, loop: LoopState, error: BaseException, /) -> None:
        super().on_exception(loop, error)
        self._restore_weights()

    def close(self) -> None:
        if self._applies_at_close:  # not earlier: callbacks that save at the end save the weights of training
            self._applies_at_close = False
            self._apply_averages()
        self._model, self._parameters, self._weights = None, {}, None

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self.updates, "averages": dict(self.averages)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.updates = state["updates"]
        self.averages = {plain_name(name): average.clone() for name, average in state["averages"].items()}

    @contextmanager
    def applied(self, model: Any) -> Iterator[Any]:
        """Puts the averages into the model for the duration of the context."""
        if not self.averages:
            raise OptionError("ema.applied(): there is no average yet. Train a step or load a checkpoint first.")
        previous = self._model, self._parameters
        self._model, self._parameters = model, _trainable(model)
        try:
            self._fit_averages()
            weights = self._apply_averages()
            try:
                yield model
            finally:
                self._copy_in(weights)
        finally:
            self._model, self._parameters = previous

    def _update(self) -> None:
        torch = sys.modules["torch"]
        weights = {name: parameter.detach() for name, parameter in self._parameters.items()}
        if not self.averages:
            half = (torch.float16, torch.bfloat16)
            wide_types = {n: torch.float32 if w.dtype in half else w.dtype for n, w in weights.items()}
            self.averages = {name: weight.to(wide_types[name], copy=True) for name, weight in weights.items()}
        else:
            averages = [local_part(average) for average in self.averages.values()]
            wide = [local_part(weights[name]).to(average.dtype) for name, average in self.averages.items()]
            decay = min(self.decay, (1 + self.updates) / (10 + self.updates)) if self.warmup else self.decay
            torch._foreach_lerp_(averages, wide, 1 - decay)
        self.updates += 1

    def _fit_averages(self) -> None:
        """Match loaded averages to the model's parameters by name, device and layout."""
        names, shapes = self._parameters.keys(), [parameter.shape for parameter in self._parameters.values()]
        if self.averages.keys() != names and shapes == [average.shape for average in self.averages.values()]:
            # A framework may rename the parameters of a model that it loads.
            logger.warning("ema: the parameters were renamed since they were averaged; matching them by position.")
            self.averages = dict(zip(names, self.averages.values(), strict=True))
        wrong = sorted(self.averages.keys() ^ names)
        wrong += [n for n, a in self.averages.items() if n not in wrong and a.shape != self._parameters[n].shape]
        if wrong:
            raise OptionError(f"ema: the averages belong to another model: {wrong[0]!r} does not match this one.")
        self.averages = {name: in_layout_of(a, self._parameters[name]) for name, a in self.averages.items()}

    def _apply_averages(self) -> list[Any]:
        """Copy the averages into the model and return the weights they replace."""
        weights = [self._parameters[name].detach().clone() for name in self.averages]
        self._copy_in(list(self.averages.values()))
        return weights

    def _restore_weights(self) -> None:
        if self._weights is not None:
            weights, self._weights = self._weights, None
            self._copy_in(weights)

    def _copy_in(self, values: list[Any]) -> None:
        torch = sys.modules["torch"]
        reshard(self._model)
        with torch.no_grad():
            parameters = [local_part(self._parameters[name].detach()) for name in self.averages]
            torch._foreach_copy_(parameters, [local_part(value) for value in values])


def _trainable(model: Any) -> dict[str, Any]:
    if is_fsdp1(model):
        raise OptionError("ema: the model is wrapped in FullyShardedDataParallel (FSDP1). Shard it with fully_shard().")
    reshard(model)
    return {n: p for n, p in named_parameters(model).items() if p.requires_grad and p.is_floating_point()}
