"""A torch model without its wrappers: plain parameter names, and whether parameters are sharded.

`torch.compile`, `DistributedDataParallel`, Fabric and activation checkpointing each put a module around the user's, so
that a parameter is called ``_orig_mod.0.weight``, ``module.0.weight`` or ``_forward_module.module.0.weight``.
Checkpoints, monitors and averages use the user's name for it, ``0.weight``. torch itself is not imported here.
"""

import copy
import re
import sys
from collections.abc import Iterable
from typing import Any

_HOLDERS = ("_orig_mod", "_forward_module")
"""Where `torch.compile` and Fabric keep the module that they wrap."""
_WRAPPERS = re.compile(r"(?:^|(?<=\.))(?:_orig_mod|_forward_module|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")


def unwrapped(model: Any) -> Any:
    """The model inside of `torch.compile`, data parallelism and Fabric; any other object is returned as given."""
    while (inner := _inside(model)) is not None:
        model = inner
    return model


def _inside(model: Any) -> Any:
    modules = getattr(model, "_modules", None)
    if not isinstance(modules, dict):
        return None
    for holder in _HOLDERS:
        if holder in modules:
            return modules[holder]
    torch = sys.modules.get("torch")
    if torch is not None:
        parallel = torch.nn.parallel
        if isinstance(model, parallel.DistributedDataParallel | parallel.DataParallel):
            return model.module
    return None


def plain_name(name: str) -> str:
    """A parameter's name without what wrappers inside of the model add to it."""
    return _WRAPPERS.sub("", name)


def named_parameters(model: Any) -> dict[str, Any]:
    """The parameters of a model by their plain names; empty for something that has none."""
    named = getattr(unwrapped(model), "named_parameters", None)
    return {plain_name(name): parameter for name, parameter in named()} if callable(named) else {}


def is_sharded(value: Any) -> bool:
    """Whether a tensor, or some parameter of a model, is spread over processes (a `DTensor`)."""
    if not callable(getattr(value, "parameters", None)):
        return hasattr(value, "to_local")
    return bool(_sharding(value)) or any(hasattr(parameter, "to_local") for parameter in value.parameters())


def reshard(model: Any) -> None:
    """Let a model of FSDP2 drop the whole weights that it may keep after a forward without a backward.

    As long as it has them, they are its parameters, and changes of the shards do not reach them.
    """
    for module in _sharding(model):
        module.reshard()


def _sharding(model: Any) -> list[Any]:
    """The modules that `fully_shard` was called on."""
    return [module for module in _modules(model) if hasattr(type(module), "set_requires_gradient_sync")]


def is_fsdp1(model: Any) -> bool:
    """Whether some part of a model is wrapped in `FullyShardedDataParallel`."""
    return any("_fsdp_wrapped_module" in getattr(module, "_modules", ()) for module in _modules(model))


def _modules(model: Any) -> Iterable[Any]:
    modules = getattr(model, "modules", None)
    found: Iterable[Any] = modules() if callable(modules) else ()
    return found


def in_layout_of(value: Any, like: Any) -> Any:
    """A tensor where another one of its shape is, and sharded as that is; all processes have to take part."""
    if not is_sharded(like):
        return value.full_tensor() if is_sharded(value) else value.to(like.device)
    if is_sharded(value):
        return value.redistribute(like.device_mesh, like.placements)
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements)


def local_part(tensor: Any) -> Any:
    """What this process has of a tensor: the storage of its shard, or the tensor itself where it is whole."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def plain_state(model: Any) -> dict[str, Any]:
    """A model's ``state_dict()`` under plain names."""
    state: dict[str, Any] = unwrapped(model).state_dict()
    return _renamed(state, {name: plain_name(name) for name in state})


def state_named_for(names: Iterable[str], state: dict[str, Any]) -> dict[str, Any]:
    """A saved state under the names that a model has for it, whichever wrapper it was saved with.

    Args:
        names: The names in the model's own ``state_dict()``.
        state: What was saved.
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
    renamed = copy.copy(state)  # an OrderedDict of torch knows the versions of its modules
    renamed.clear()
    renamed.update((names[name], value) for name, value in state.items())
    return renamed
