"""The weights of a model in training in the forms that policies take: whole, merged with adapters, or adapters alone.

A policy says what it takes in ``weights_format``:

- ``"model"`` (the default): the ``state_dict()``; of a model with adapters of PEFT without its frozen parameters, for a
  policy that has the same model with adapters.
- ``"merged"``: that of the model without adapters, into whose weights they are merged.
- ``"adapter"``: what PEFT saves as ``adapter_model.safetensors``, for an inference server.

Sharded weights are gathered, which is a collective: all processes have to ask for them.
"""

import copy
from typing import Any, Literal

import torch

from hookline._engine.errors import OptionError
from hookline._engine.torch_models import is_adapted, is_sharded, plain_name, trained_state, unwrapped

WeightsFormat = Literal["model", "merged", "adapter"]


def weights_of(model: Any, form: WeightsFormat = "model") -> dict[str, Any]:
    """Return the weights of a model in a form.

    Raises:
        OptionError: The model has no such form.
    """
    if form == "adapter":
        return adapter_weights(model)
    if form == "merged" and is_adapted(model):
        return merged_weights(model)
    if form not in ("model", "merged"):
        raise OptionError(f"weights_format={form!r}: give 'model', 'merged' or 'adapter'.")
    return _whole_state(model)


def adapter_weights(model: Any) -> dict[str, Any]:
    """Return the weights of the active adapter under the names that PEFT saves them by.

    Raises:
        OptionError: The model has no adapters.
    """
    if not is_adapted(model):
        raise OptionError(
            f"{type(unwrapped(model)).__name__} has no adapters: make them with peft.get_peft_model(model, config)."
        )
    from peft import get_peft_model_state_dict

    found: dict[str, Any] = get_peft_model_state_dict(unwrapped(model), state_dict=_whole_state(model))
    return found


def merged_weights(model: Any) -> dict[str, Any]:
    """Return the weights of the model under its adapters, with the active adapters merged into them.

    The model itself does not change: a copy of one layer at a time is merged.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils import ModulesToSaveWrapper

    merged: dict[str, Any] = {}
    inside: list[str] = []  # names of modules whose weights are there already
    for name, module in unwrapped(model).get_base_model().named_modules(remove_duplicate=False):
        if any(name.startswith(f"{place}.") for place in inside):
            continue
        prefix = plain_name(f"{name}.") if name else ""
        if isinstance(module, BaseTunerLayer):
            inside.append(name)
            layer = copy.deepcopy(module)
            with torch.no_grad():
                layer.merge()
            own = layer.get_base_layer().state_dict()
        elif isinstance(module, ModulesToSaveWrapper):
            inside.append(name)
            own = module.modules_to_save[module.active_adapters[0]].state_dict()
        else:
            names = (*module._parameters, *module._buffers)
            own = {key: value for key, value in module.state_dict().items() if key in names}
        merged |= {f"{prefix}{key}": _whole(value) for key, value in own.items()}
    return merged


def whole_copy(model: Any) -> Any:
    """Return a copy of a model that is whole in this process, also where the model is sharded; a collective then.

    Raises:
        OptionError: A sharded model is not one of transformers, so it cannot be made again.
    """
    if not is_sharded(model):
        return copy.deepcopy(model)
    inner = unwrapped(model)
    if not hasattr(inner, "config") or is_adapted(inner):
        raise OptionError(
            f"A copy of {type(inner).__name__} cannot be made, because it is sharded and is not a plain model of "
            "transformers: give the policy its own model, and shard the model that is trained afterwards."
        )
    from transformers import AutoModelForCausalLM

    weights = weights_of(inner)
    device, dtype = next(inner.parameters()).device, next(inner.parameters()).dtype
    whole = AutoModelForCausalLM.from_config(inner.config).to(device=device, dtype=dtype)
    whole.generation_config = inner.generation_config
    whole.load_state_dict(weights)
    return whole


def _whole_state(model: Any) -> dict[str, Any]:
    return {name: _whole(value) for name, value in trained_state(model).items()}


def _whole(value: Any) -> Any:
    return value.full_tensor() if is_sharded(value) else value
