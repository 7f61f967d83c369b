"""Keeps an exponential moving average of the model's parameters, and validates with it.

The average takes in the weights at the end of every step (or of those that ``every=`` and ``start=``
choose) and starts as a copy at the first of them. It is kept in float32 where the weights are in half
precision, which would lose small changes. Buffers, such as the running means of a batch norm, and
frozen parameters are not averaged. Of a model that is sharded over processes (FSDP2) each process averages its shards.
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
from hookline.callbacks.monitoring import FreshStart

logger = logging.getLogger("hookline")


@register("ema")
class EMA(FreshStart):
    """Averages the trainable parameters of ``loop.model``; they stand in the model during validations.

    From `on_validation_start` to `on_validation_end` the model has the averages; training goes on with
    the weights it had. The average is part of every checkpoint. After training, or for a sample in
    between, ``with ema.applied(model):`` puts the averages in for a while.

    Args:
        decay: How much of the average stays at an update: 0.999 averages over about a thousand.
        warmup: Let the first updates count more, ``(1 + n) / (10 + n)`` at the n-th, up to ``decay``.
        use_at_end: Leave the averages in the model when training ends.
    """

    priority = 100  # first in and first out: whoever saves at the end of a validation saves the weights of training

    def __init__(self, decay: float = 0.999, *, warmup: bool = False, use_at_end: bool = False) -> None:
        if isinstance(decay, bool) or not isinstance(decay, int | float) or not 0 <= decay < 1:
            raise OptionError(f"decay={decay!r}: give a number of at least 0 and below 1, e.g. 0.999.")
        self.decay = float(decay)
        self.warmup = warmup
        self.use_at_end = use_at_end
        self._forget()
        self._parameters: dict[str, Any] = {}
        self._model: Any = None  # whose parameters they are
        self._puts_in_at_close = False
        self._weights: list[Any] | None = None  # those of training, while the averages stand in the model

    def _forget(self) -> None:
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
            self._place()

    def on_checkpoint_load(self, loop: LoopState, row: ManifestRow, /) -> None:
        self._weights = None  # the model has those of the checkpoint
        if self.averages and self._parameters:
            self._place()

    def on_step_start(self, loop: LoopState, step_idx: int, /) -> None:
        self._put_back()  # a validation that failed never ended

    def on_step_end(self, loop: LoopState, step_idx: int, batch: Any, metrics: dict[str, Any], /) -> None:
        self._put_back()
        if self._parameters:
            self._update()

    def on_validation_start(self, loop: LoopState, /) -> None:
        if self.averages and self._parameters and self._weights is None:
            self._weights = self._put_in()

    def on_validation_end(self, loop: LoopState, /) -> None:
        self._put_back()

    def on_train_end(self, loop: LoopState, artifacts: LoopArtifacts, /) -> None:
        super().on_train_end(loop, artifacts)
        self._put_back()
        self._puts_in_at_close = self.use_at_end and bool(self.averages) and bool(self._parameters)

    def on_exception(self, loop: LoopState, error: BaseException, /) -> None:
        super().on_exception(loop, error)
        self._put_back()

    def close(self) -> None:
        if self._puts_in_at_close:  # not before: whoever saves when training ends saves the weights of training
            self._puts_in_at_close = False
            self._put_in()
        self._model, self._parameters, self._weights = None, {}, None

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self.updates, "averages": dict(self.averages)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.updates = state["updates"]
        self.averages = {plain_name(name): average.clone() for name, average in state["averages"].items()}

    @contextmanager
    def applied(self, model: Any) -> Iterator[Any]:
        """The model with the averages in it, for as long as the context is open."""
        if not self.averages:
            raise OptionError("ema.applied(): nothing is averaged yet; an average takes a step, or a checkpoint.")
        mine = self._model, self._parameters
        self._model, self._parameters = model, _trainable(model)
        try:
            self._place()
            weights = self._put_in()
            try:
                yield model
            finally:
                self._copy_in(weights)
        finally:
            self._model, self._parameters = mine

    def _update(self) -> None:
        torch = sys.modules["torch"]
        weights = {name: parameter.detach() for name, parameter in self._parameters.items()}
        if not self.averages:
            self.averages = {name: weight.to(_wide(weight.dtype), copy=True) for name, weight in weights.items()}
        else:
            averages = [local_part(average) for average in self.averages.values()]
            wide = [local_part(weights[name]).to(average.dtype) for name, average in self.averages.items()]
            torch._foreach_lerp_(averages, wide, 1 - self._decay_now())
        self.updates += 1

    def _decay_now(self) -> float:
        return min(self.decay, (1 + self.updates) / (10 + self.updates)) if self.warmup else self.decay

    def _place(self) -> None:
        """Bring averages that were loaded to where the model's parameters are."""
        self._rename()
        wrong = sorted(self.averages.keys() ^ self._parameters.keys())
        wrong += [n for n, a in self.averages.items() if n not in wrong and a.shape != self._parameters[n].shape]
        if wrong:
            raise OptionError(f"ema: the averages are those of another model: {wrong[0]!r} does not fit this one.")
        self.averages = {name: in_layout_of(a, self._parameters[name]) for name, a in self.averages.items()}

    def _rename(self) -> None:
        """Follow a framework that calls the parameters of a loaded model by other names: by their order."""
        shapes = [parameter.shape for parameter in self._parameters.values()]
        if self.averages.keys() != self._parameters.keys() and shapes == [a.shape for a in self.averages.values()]:
            logger.warning("ema: the parameters have other names than when they were averaged; their order counts.")
            self.averages = dict(zip(self._parameters, self.averages.values(), strict=True))

    def _put_in(self) -> list[Any]:
        """Copy the averages into the model, and return what was there."""
        weights = [self._parameters[name].detach().clone() for name in self.averages]
        self._copy_in(list(self.averages.values()))
        return weights

    def _put_back(self) -> None:
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


def _wide(dtype: Any) -> Any:
    torch = sys.modules["torch"]
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
