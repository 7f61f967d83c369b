"""Logs gradient norms, of the whole model and of each layer, without waiting for a device.

Norms of a model that is sharded over processes (FSDP2) are those of the whole model: the processes exchange theirs, so
it has to be added on all ranks.

The norms are those at `on_before_optimizer_step`: before clipping if the loop clips behind it, after
it otherwise. A host that shows its gradients only when it has clipped them says so; then the norms are called
``clipped_grad_norm``, because the ``grad_norm`` that such a host logs itself is the norm before clipping. Where several
optimizers move in a step, the norms are those of all of them together.

A bare loop does not know when its optimizer moves, unless it is told once, before the
first step::

    optimizer.register_step_pre_hook(lambda *_: run.callbacks.on_before_optimizer_step(run, optimizer))

or calls ``run.callbacks.on_before_optimizer_step(run, optimizer)`` itself, e.g. before it clips. Where no gradients are
seen, that is logged: when training starts if the loop never shows any (JAX, Keras), else after the first step due.
"""

import logging
import sys
from typing import Any

from hookline.callbacks.gradients import StepNorms, gradients_by_name, norms, require_on_all_ranks
from hookline.core.callback import Callback
from hookline.core.errors import OptionError
from hookline.core.model_names import is_sharded
from hookline.core.registry import register
from hookline.core.state import LoopState

logger = logging.getLogger("hookline")


@register("gradient_monitor")
class GradientMonitor(Callback):
    """Logs ``grad_norm``, and ``grad_norm/<layer>`` for each module that has parameters of its own.

    Where the host has clipped the gradients already, they are ``clipped_grad_norm`` and ``clipped_grad_norm/<layer>``.

    Args:
        every: Look every so many steps.
        by_layer: Log the layers as well; they are known where the loop has a model.
        norm_type: Which norm: 2 is the usual one, ``float("inf")`` the largest element.
    """

    def __init__(self, every: int = 10, by_layer: bool = True, *, norm_type: float = 2.0) -> None:
        if isinstance(norm_type, bool) or not isinstance(norm_type, int | float) or not norm_type > 0:
            raise OptionError(f"norm_type={norm_type!r}: give a number above 0, or float('inf').")
        self.configure(every=every)
        self.by_layer = by_layer
        self.norm_type = float(norm_type)
        self._looked = self._has_warned = False
        self._of_step = StepNorms(self.norm_type)

    def on_train_start(self, loop: LoopState, /) -> None:
        self._has_warned = False
        if reason := getattr(loop, "no_gradients", None):
            self._has_warned = True
            logger.warning("gradient_monitor logs nothing: %s.", reason)
        elif loop.model is None and loop.optimizer is None:
            logger.warning(
                "gradient_monitor logs only what it is handed: the loop has no model and no optimizer. "
                "Set one before the first step: run.model = model."
            )

    def on_before_optimizer_step(self, loop: LoopState, optimizer: Any, /) -> None:
        self._looked = True
        gradients = gradients_by_name(loop, optimizer)
        if any(map(is_sharded, gradients.values())):
            require_on_all_ranks(loop, self)
        if gradients:
            values = self._norms(gradients, by_layer=self.by_layer and loop.model is not None)
            key = id(optimizer) if loop.model is None else tuple(gradients)
            values = self._of_step.add(values, step=loop.step, key=key)
            if getattr(loop, "gradients_clipped", False):
                values = {f"clipped_{name}": norm for name, norm in values.items()}
            loop.log(values)

    def on_step_end(self, loop: LoopState, step_idx: int, batch: Any, metrics: dict[str, Any], /) -> None:
        if not self._looked and not self._has_warned and loop.optimizer is not None:
            self._has_warned = True
            logger.warning(
                "gradient_monitor saw no gradients: on_before_optimizer_step never fired. In a loop of your own, "
                "call run.callbacks.on_before_optimizer_step(run, optimizer) before optimizer.step()."
            )

    def _norms(self, gradients: dict[str, Any], *, by_layer: bool) -> dict[str, Any]:
        """Three operations on the device, however many layers there are."""
        vector_norm = sys.modules["torch"].linalg.vector_norm
        layers: dict[str, list[Any]] = {}
        for name, gradient in gradients.items():
            layers.setdefault(name.rpartition(".")[0] or name, []).append(gradient)
        each = norms([gradient for members in layers.values() for gradient in members], self.norm_type)
        values = {"grad_norm": vector_norm(each, self.norm_type)}
        if by_layer:
            parts = each.split([len(members) for members in layers.values()])
            of_layers = sys.modules["torch"]._foreach_norm(parts, self.norm_type)
            values |= {f"grad_norm/{layer}": norm for layer, norm in zip(layers, of_layers, strict=True)}
        return values
