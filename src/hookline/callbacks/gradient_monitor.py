"""Logs gradient norms of the whole model and of each layer, and provides gradient norms to other callbacks.

Nothing here waits for a device. All norms are computed with a few operations, however many parameters there are. If the
model is sharded over processes (FSDP2), the norms are those of the whole model: the processes combine theirs with one
small all-reduce, so the callback has to be added on all ranks.

`GradientMonitor` reads the gradients at `on_before_optimizer_step`: before clipping if the loop clips after it,
otherwise after clipping. If a host exposes its gradients only after clipping them, the norms are logged as
``clipped_grad_norm``, because the ``grad_norm`` that such a host logs itself is the norm before clipping. If several
optimizers step in one training step, the norms are those of all of them together.

A bare loop cannot see its optimizer step unless it registers this hook once, before the first step::

    optimizer.register_step_pre_hook(lambda *_: run.callbacks.on_before_optimizer_step(run, optimizer))

or calls ``run.callbacks.on_before_optimizer_step(run, optimizer)`` itself, for example before it clips. A loop in JAX
passes its gradients to ``run.before_update(gradients)``. The monitor warns if it sees no gradients: at the start if the
loop never exposes any (Keras), else after the first due step.
"""

import logging
import sys
from collections.abc import Iterable
from typing import Any

from hookline._engine import jax_trees
from hookline._engine.errors import OptionError
from hookline._engine.moments import Callback
from hookline._engine.registry import register
from hookline._engine.state import LoopState
from hookline._engine.torch_models import is_sharded, local_part, named_parameters

logger = logging.getLogger("hookline")

ALL_FINITE = 2**31 - 1
"""Stands for an index if no gradient is bad: larger than any, so that the minimum over processes is right."""


def parameters_by_name(loop: LoopState, optimizer: Any) -> dict[str, Any]:
    """The optimizer's parameters by their names in the model; without an optimizer, all parameters of the model.

    A parameter that is not in the model is numbered. An optimizer that holds its own copies (mixed precision) shares no
    parameter with the model; then the model's parameters are the ones with gradients.
    """
    in_model = named_parameters(loop.model)
    names = {id(parameter): name for name, parameter in in_model.items()}
    groups = getattr(loop.optimizer if optimizer is None else optimizer, "param_groups", ())
    optimized = [parameter for group in groups for parameter in group["params"]]
    if in_model and not any(id(parameter) in names for parameter in optimized):
        return in_model
    return {names.get(id(parameter), f"parameter {index}"): parameter for index, parameter in enumerate(optimized)}


def gradients_by_name(loop: LoopState, optimizer: Any) -> dict[str, Any]:
    """The gradients that exist and are not empty; of a sparse one, its values."""
    tree = getattr(loop, "gradients", None)
    if tree is not None:  # those of a loop in JAX, during `before_update`
        return {name: gradient for name, gradient in jax_trees.named_leaves(tree).items() if gradient.size}
    found = {}
    for name, parameter in parameters_by_name(loop, optimizer).items():
        gradient = getattr(parameter, "grad", None)
        if gradient is not None and not is_sharded(gradient) and gradient.is_sparse:
            gradient = gradient.coalesce().values()
        if gradient is not None and gradient.numel():
            found[name] = gradient
    return found


def require_on_all_ranks(loop: LoopState, callback: Callback) -> None:
    """Check that a callback that communicates with other processes runs on all of them; otherwise it would hang."""
    registered: Iterable[Any] = getattr(getattr(loop, "callbacks", None), "flatten", tuple)()
    if loop.world_size > 1 and any(flat.rank_zero for flat in registered if flat.registration.is_for(callback)):
        raise OptionError(
            f"{type(callback).__name__} runs on rank zero only (ranks='zero'), and needs the gradients of all "
            "processes. Add it without ranks=."
        )


def norms(gradients: list[Any], order: float) -> Any:
    """The norm of each gradient, as one tensor on the device of the first, at least in float32.

    If gradients are sharded, every process has to call it.
    """
    if jax_trees.is_array(gradients[0]):
        return jax_trees.norms(gradients, order)
    torch = sys.modules["torch"]
    with torch.no_grad():
        each = _own_norms(gradients, order)
        if any(map(is_sharded, gradients)):
            each = _combined(each, gradients, order)
        return torch.stack([norm.to(each[0].device, non_blocking=True) for norm in each])


def norm_of(values: Any, order: float) -> Any:
    """The norm of a tensor or an array of one dimension."""
    if jax_trees.is_array(values):
        return jax_trees.norm(values, order)
    return sys.modules["torch"].linalg.vector_norm(values, order)


def norms_of_parts(values: Any, sizes: list[int], order: float) -> Iterable[Any]:
    """The norm of each part of a tensor or an array of one dimension, by one operation."""
    if jax_trees.is_array(values):
        return jax_trees.norms_of_parts(values, sizes, order)
    parts: Iterable[Any] = sys.modules["torch"]._foreach_norm(values.split(sizes), order)
    return parts


class StepNorms:
    """Combines the norms of several optimizers in one step, such as one for matrices and one for the rest."""

    def __init__(self, order: float = 2.0) -> None:
        self._order = order
        self._step: int | None = None
        self._parts: dict[Any, dict[str, Any]] = {}

    def add(self, values: dict[str, Any], *, step: int, key: Any) -> dict[str, Any]:
        """Add one optimizer's norms and return those of all optimizers of the step so far.

        Args:
            values: The norms by name.
            step: The step they belong to; those of an earlier step are dropped.
            key: Identifies the optimizer: if it steps again within the step, it replaces its norms.
        """
        if step != self._step:
            self._step, self._parts = step, {}
        self._parts[key] = values
        if len(self._parts) == 1:
            return values
        torch, device = sys.modules["torch"], next(iter(values.values())).device
        found: dict[str, list[Any]] = {}
        for part in self._parts.values():
            for name, norm in part.items():
                found.setdefault(name, []).append(norm.to(device, non_blocking=True))
        return {name: torch.linalg.vector_norm(torch.stack(each), self._order) for name, each in found.items()}


def _own_norms(gradients: list[Any], order: float) -> list[Any]:
    """The norm of this process's part of each gradient."""
    torch = sys.modules["torch"]
    wide = torch.float64 if any(gradient.dtype == torch.float64 for gradient in gradients) else torch.float32
    own = [local_part(gradient) for gradient in gradients]
    found = iter(torch._foreach_norm([part for part in own if part.numel()], order, dtype=wide))
    return [next(found) if part.numel() else part.new_zeros((), dtype=wide) for part in own]


def _combined(each: list[Any], gradients: list[Any], order: float) -> list[Any]:
    """The norms of whole gradients from those of their parts: one all-reduce for each kind of sharding."""
    torch, distributed = sys.modules["torch"], sys.modules["torch.distributed"]
    is_largest = order == float("inf")
    shardings: dict[Any, list[int]] = {}
    for index, gradient in enumerate(gradients):
        if is_sharded(gradient):
            dims = tuple(dim for dim, placement in enumerate(gradient.placements) if not placement.is_replicate())
            shardings.setdefault((gradient.device_mesh, dims), []).append(index)
    each = list(each)
    for (mesh, dims), indices in shardings.items():
        # An all-reduce to the maximum may lose a NaN, so it becomes infinite first.
        part = torch.stack([each[index] for index in indices])
        part = part.nan_to_num(nan=float("inf"), posinf=float("inf")) if is_largest else part.pow(order)
        for dim in dims:
            operation = distributed.ReduceOp.MAX if is_largest else distributed.ReduceOp.SUM
            distributed.all_reduce(part, op=operation, group=mesh.get_group(dim))
        whole = part if is_largest else part.pow(1 / order)
        for index, norm in zip(indices, whole.unbind(), strict=True):
            each[index] = norm
    return each


def first_not_finite(gradients: list[Any], *, together: bool = False) -> Any:
    """The index of the first gradient that has a NaN or an infinity, as a tensor; -1 if there is none.

    Args:
        together: Agree with all other processes, with one all-reduce; every process has to call it.
    """
    if jax_trees.is_array(gradients[0]):
        return jax_trees.first_not_finite(gradients)
    torch = sys.modules["torch"]
    with torch.no_grad():
        own = _own_norms(gradients, float("inf"))  # the largest element, because a sum could overflow
        bad = ~torch.stack([norm.to(own[0].device, non_blocking=True) for norm in own]).isfinite()
        first = torch.where(bad.any(), bad.int().argmax(), ALL_FINITE)
        if together:
            distributed = sys.modules["torch.distributed"]
            distributed.all_reduce(first, op=distributed.ReduceOp.MIN)
        return torch.where(first == ALL_FINITE, -1, first)


@register("gradient_monitor")
class GradientMonitor(Callback):
    """Logs ``grad_norm``, and ``grad_norm/<layer>`` for each module that has parameters of its own.

    If the host has clipped the gradients already, the names are ``clipped_grad_norm`` and
    ``clipped_grad_norm/<layer>``.

    Args:
        every: Log every N steps.
        by_layer: Also log the layers, if the loop has a model.
        norm_type: The order of the norm: 2 is the usual one, ``float("inf")`` the largest element.
    """

    def __init__(self, every: int = 10, by_layer: bool = True, *, norm_type: float = 2.0) -> None:
        if isinstance(norm_type, bool) or not isinstance(norm_type, int | float) or not norm_type > 0:
            raise OptionError(f"norm_type={norm_type!r}: give a number above 0, or float('inf').")
        self.configure(every=every)
        self.by_layer = by_layer
        self.norm_type = float(norm_type)
        self._has_fired = self._has_warned = False
        self._step_norms = StepNorms(self.norm_type)

    def on_train_start(self, loop: LoopState, /) -> None:
        self._has_warned = False
        if reason := getattr(loop, "no_gradients", None):
            self._has_warned = True
            logger.warning("gradient_monitor logs nothing: %s.", reason)
        elif loop.model is None and loop.optimizer is None:
            logger.warning(
                "gradient_monitor sees only the gradients of on_before_optimizer_step: the loop has no model and no "
                "optimizer. Set one before the first step: run.model = model."
            )

    def on_before_optimizer_step(self, loop: LoopState, optimizer: Any, /) -> None:
        self._has_fired = True
        gradients = gradients_by_name(loop, optimizer)
        if any(map(is_sharded, gradients.values())):
            require_on_all_ranks(loop, self)
        if gradients:
            values = self._norms(gradients, by_layer=self.by_layer and loop.model is not None)
            key = id(optimizer) if loop.model is None else tuple(gradients)
            values = self._step_norms.add(values, step=loop.step, key=key)
            if getattr(loop, "gradients_clipped", False):
                values = {f"clipped_{name}": norm for name, norm in values.items()}
            loop.log(values)

    def on_step_end(self, loop: LoopState, step_idx: int, batch: Any, metrics: dict[str, Any], /) -> None:
        if self._has_fired or self._has_warned:
            return
        if hasattr(loop, "before_update"):
            self._has_warned = True
            logger.warning(
                "gradient_monitor saw no gradients: pass them to run.before_update(gradients) before the update."
            )
        elif loop.optimizer is not None:
            self._has_warned = True
            logger.warning(
                "gradient_monitor saw no gradients: on_before_optimizer_step never fired. In a loop of your own, "
                "call run.callbacks.on_before_optimizer_step(run, optimizer) before optimizer.step()."
            )

    def _norms(self, gradients: dict[str, Any], *, by_layer: bool) -> dict[str, Any]:
        """The norms by metric name: three operations on the device, however many layers there are."""
        layers: dict[str, list[Any]] = {}
        for name, gradient in gradients.items():
            layers.setdefault(name.rpartition(".")[0] or name, []).append(gradient)
        each = norms([gradient for members in layers.values() for gradient in members], self.norm_type)
        values = {"grad_norm": norm_of(each, self.norm_type)}
        if by_layer:
            of_layers = norms_of_parts(each, [len(members) for members in layers.values()], self.norm_type)
            values |= {f"grad_norm/{layer}": norm for layer, norm in zip(layers, of_layers, strict=True)}
        return values
