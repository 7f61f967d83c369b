"""Looks through the wrappers of a torch model: plain parameter names, sharded parameters, and adapters.

`torch.compile`, `DistributedDataParallel`, Fabric and activation checkpointing each wrap the user's module, which
renames a parameter to ``_orig_mod.0.weight``, ``module.0.weight`` or ``_forward_module.module.0.weight``. Checkpoints,
monitors and averages use the user's name, ``0.weight``. This module does not import torch.
"""

import copy
import inspect
import re
import sys
from collections.abc import Iterable
from functools import cache
from typing import Any

_WRAPPED_ATTRIBUTES = ("_orig_mod", "_forward_module")
"""The attributes in which `torch.compile` and Fabric keep the wrapped module."""
_WRAPPERS = re.compile(r"(?:^|(?<=\.))(?:_orig_mod|_forward_module|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")


def unwrapped(model: Any) -> Any:
    """Return the model inside `torch.compile`, data parallelism and Fabric; any other object unchanged."""
    while (inner := _inside(model)) is not None:
        model = inner
    return model


def _inside(model: Any) -> Any:
    modules = getattr(model, "_modules", None)
    if not isinstance(modules, dict):
        return None
    for holder in _WRAPPED_ATTRIBUTES:
        if holder in modules:
            return modules[holder]
    torch = sys.modules.get("torch")
    if torch is not None:
        parallel = torch.nn.parallel
        if isinstance(model, parallel.DistributedDataParallel | parallel.DataParallel):
            return model.module
    return None


def forward_parameters(model: Any) -> frozenset[str]:
    """Return the names that a model's ``forward`` accepts; those of the model inside wrappers and adapters of PEFT."""
    model = unwrapped(model)
    return _parameters_of(type(model.get_base_model() if is_adapted(model) else model).forward)


@cache
def _parameters_of(function: Any) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)


def plain_name(name: str) -> str:
    """Return a parameter's name without the parts that wrappers inside the model add."""
    return _WRAPPERS.sub("", name)


def named_parameters(model: Any) -> dict[str, Any]:
    """Return the parameters of a model by their plain names; empty for an object without parameters."""
    named = getattr(unwrapped(model), "named_parameters", None)
    return {plain_name(name): parameter for name, parameter in named()} if callable(named) else {}


def is_sharded(value: Any) -> bool:
    """Return whether a tensor, or a parameter of a model, is sharded over processes (a `DTensor`)."""
    if not callable(getattr(value, "parameters", None)):
        return hasattr(value, "to_local")
    return bool(_sharding(value)) or any(hasattr(parameter, "to_local") for parameter in value.parameters())


def reshard(model: Any) -> None:
    """Let an FSDP2 model drop the unsharded weights that it may keep after a forward without a backward.

    While it keeps them they are its parameters, and changes of the shards do not reach them.
    """
    for module in _sharding(model):
        module.reshard()


def _sharding(model: Any) -> list[Any]:
    """Return the modules that `fully_shard` was called on."""
    return [module for module in _modules(model) if hasattr(type(module), "set_requires_gradient_sync")]


def is_fsdp1(model: Any) -> bool:
    """Return whether a part of a model is wrapped in `FullyShardedDataParallel`."""
    return any("_fsdp_wrapped_module" in getattr(module, "_modules", ()) for module in _modules(model))


def is_zero3(model: Any) -> bool:
    """Return whether DeepSpeed partitions the parameters of a model (ZeRO stage 3), so that none is whole."""
    parameters = getattr(model, "parameters", None)
    return callable(parameters) and any(hasattr(parameter, "ds_id") for parameter in parameters())


def _modules(model: Any) -> Iterable[Any]:
    modules = getattr(model, "modules", None)
    found: Iterable[Any] = modules() if callable(modules) else ()
    return found


def in_layout_of(value: Any, like: Any) -> Any:
    """Return a tensor on the device and with the sharding of another; a collective of all processes."""
    if not is_sharded(like):
        return value.full_tensor() if is_sharded(value) else value.to(like.device)
    if is_sharded(value):
        return value.redistribute(like.device_mesh, like.placements)
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements)


def local_part(tensor: Any) -> Any:
    """Return this process's shard of a tensor, or the tensor itself if it is not sharded."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def plain_state(model: Any) -> dict[str, Any]:
    """Return a model's ``state_dict()`` under plain names."""
    state: dict[str, Any] = unwrapped(model).state_dict()
    return _renamed(state, {name: plain_name(name) for name in state})


def is_adapted(model: Any) -> bool:
    """Return whether a model has adapters of PEFT."""
    peft = sys.modules.get("peft")
    return peft is not None and isinstance(unwrapped(model), peft.PeftModel)


def trained_state(model: Any) -> dict[str, Any]:
    """Return a model's ``state_dict()`` under plain names; of a model with adapters without its frozen parameters."""
    state = plain_state(model)
    if not is_adapted(model):
        return state
    # All names of tied parameters: named_parameters() has only the first by default.
    parameters = unwrapped(model).named_parameters(remove_duplicate=False)
    frozen = {plain_name(name) for name, parameter in parameters if not parameter.requires_grad}
    return {name: value for name, value in state.items() if name not in frozen}


def state_named_for(names: Iterable[str], state: dict[str, Any]) -> dict[str, Any]:
    """Rename a saved state to the names of a model, whichever wrapper it was saved with.

    Args:
        names: The names in the model's own ``state_dict()``.
        state: The saved state.
    """
    own = {plain_name(name): name for name in names}
    plain = {name: plain_name(name) for name in state}
    in_ddp = bool(plain) and all(name.startswith("module.") for name in plain.values())
    if in_ddp and not any(name.startswith("module.") for name in own):
        plain = {name: given.removeprefix("module.") for name, given in plain.items()}
    return _renamed(state, {name: own.get(given, given) for name, given in plain.items()})


def _renamed(state: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    if all(name == new for name, new in names.items()):
        return state
    renamed = copy.copy(state)  # keeps the attributes of torch's OrderedDict, such as module versions
    renamed.clear()
    renamed.update((names[name], value) for name, value in state.items())
    return renamed
