"""The gradients of a loop's model, and their norms by one operation for all of them.

Nothing here waits for a device. A gradient that is spread over processes stands for this process's
part of it: nobody here runs a collective.
"""

import sys
from typing import Any

from hookline.core.state import LoopState


def parameters_by_name(loop: LoopState, optimizer: Any) -> dict[str, Any]:
    """The parameters that the optimizer moves, under the model's names for them; all of the model's without one.

    One that the model has no name for is numbered. An optimizer that holds copies of its own (in mixed
    precision) shares none with the model, whose parameters then are the ones with gradients.
    """
    named = getattr(loop.model, "named_parameters", None)
    of_model = dict(named()) if callable(named) else {}
    names = {id(parameter): name for name, parameter in of_model.items()}
    groups = getattr(loop.optimizer if optimizer is None else optimizer, "param_groups", ())
    moved = [parameter for group in groups for parameter in group["params"]]
    if of_model and not any(id(parameter) in names for parameter in moved):
        return of_model
    return {names.get(id(parameter), f"parameter {index}"): parameter for index, parameter in enumerate(moved)}


def gradients_by_name(loop: LoopState, optimizer: Any) -> dict[str, Any]:
    """Those of the parameters' gradients that are there and have elements."""
    parameters = parameters_by_name(loop, optimizer)
    found = {name: _values(p.grad) for name, p in parameters.items() if getattr(p, "grad", None) is not None}
    return {name: gradient for name, gradient in found.items() if gradient.numel()}


def _values(gradient: Any) -> Any:
    if callable(getattr(gradient, "to_local", None)):
        gradient = gradient.to_local()
    return gradient.coalesce().values() if gradient.is_sparse else gradient


def norms(gradients: list[Any], order: float) -> Any:
    """The norm of each gradient, as one tensor on the device of the first, wide enough for half precision's."""
    torch = sys.modules["torch"]
    wide = torch.float64 if any(gradient.dtype == torch.float64 for gradient in gradients) else torch.float32
    with torch.no_grad():
        each = torch._foreach_norm(gradients, order, dtype=wide)
        return torch.stack([norm.to(each[0].device, non_blocking=True) for norm in each])


def first_not_finite(gradients: list[Any]) -> Any:
    """The index of the first gradient with a NaN or an infinity in it, as a tensor; -1 where there is none."""
    bad = ~norms(gradients, float("inf")).isfinite()  # the largest element: no sum that could overflow
    return bad.int().argmax() - bad.logical_not().all().int()
