"""Whether a model keeps the examples of a packed row apart, found out by asking it."""

import inspect
from collections.abc import Mapping
from typing import Any
from weakref import WeakSet

import torch

from hookline.core.errors import OptionError
from hookline.core.model_names import unwrapped
from hookline.loops.evaluation_mode import set_to_evaluate

_KEPT_APART: "WeakSet[torch.nn.Module]" = WeakSet()
_PREFIX = 8


def model_inputs(model: Any, batch: Mapping[str, Any]) -> dict[str, Any]:
    """What of a batch goes into the model.

    Flash attention finds the borders of sequences in a single row only, so packed rows are laid end to end for it;
    this changes nothing else, as each row begins with an example and so at position 0.
    """
    names = ("input_ids", "attention_mask", "position_ids")
    inputs = {name: batch[name] for name in names if batch.get(name) is not None}
    if is_packed(batch) and "flash" in _attention_of(model):
        return {name: values.reshape(1, -1) for name, values in inputs.items()}
    return inputs


def is_packed(batch: Mapping[str, Any]) -> bool:
    """Whether rows of the batch may hold several examples."""
    return batch.get("attention_mask") is None and batch.get("position_ids") is not None


def check_packing(model: torch.nn.Module) -> None:
    """Make sure that no attention goes from one packed example to another in this model.

    Two rows are given that end with the same example after different ones; what the model says about it must be the
    same. `training_step` does this once for each model, with its first packed batch, and waits for the device then.

    Raises:
        OptionError: It is not: the model mixes packed examples.
    """
    if model in _KEPT_APART:
        return
    if not _takes_positions(model) or not _keeps_apart(model):
        raise OptionError(
            f"packing: {type(unwrapped(model)).__name__} (attention {_attention_of(model) or 'unknown'}) lets packed "
            "examples see each other, as it does not heed position_ids: set packing to false, or load the model with "
            "attn_implementation='sdpa' or 'eager' where it has them."
        )
    _KEPT_APART.add(model)


def _keeps_apart(model: torch.nn.Module) -> bool:
    device = next(model.parameters()).device
    same = [1, 2]
    ids = torch.tensor([[0, 1] * (_PREFIX // 2) + same, [2, 3] * (_PREFIX // 2) + same], device=device)
    positions = torch.tensor([[*range(_PREFIX), *range(len(same))]] * 2, device=device)
    inputs = model_inputs(model, {"input_ids": ids, "position_ids": positions})
    with set_to_evaluate(model), torch.no_grad():
        logits = model(**inputs, use_cache=False).logits
    first, second = logits.view(*ids.shape, -1)[:, _PREFIX:].float()
    tolerance = max(1e-5, 8 * torch.finfo(logits.dtype).eps)
    return bool((first - second).abs().max() <= tolerance * first.std())


def _takes_positions(model: Any) -> bool:
    parameters = inspect.signature(unwrapped(model).forward).parameters
    return "position_ids" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _attention_of(model: Any) -> str:
    return str(getattr(getattr(unwrapped(model), "config", None), "_attn_implementation", None) or "")
