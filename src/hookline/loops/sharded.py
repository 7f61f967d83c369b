"""Tensors sharded over processes (FSDP2, `fully_shard`) in checkpoints, through `torch.distributed.checkpoint`.

Every process writes its own shards into one folder of the checkpoint; no process gathers a whole model. In the files
beside it, a mark stands in place of each sharded tensor. A process reads what its own layout needs, without the others,
so a checkpoint also fits another number of processes, or one process that has the whole model.

The index of such a folder is a pickle. Only the few classes of torch that it consists of are accepted when it is read,
so reading a checkpoint runs no code.
"""

import copy
import pickle
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from hookline._engine.errors import CheckpointError, OptionError
from hookline._engine.torch_models import (
    in_layout_of,
    is_adapted,
    is_fsdp1,
    is_sharded,
    named_parameters,
    plain_state,
    reshard,
    state_named_for,
    unwrapped,
)
from hookline.loops.checkpoint import CALLBACK_SHARDS

_MARK = "$sharded"
Layouts = Callable[[str], Any]
"""Returns the sharded tensor whose layout a tensor is read in, by its key; None to read the whole tensor."""


def require_supported(model: torch.nn.Module, optimizer: Any = None) -> None:
    """Refuse a model of FSDP1, and an optimizer that was made before its model was sharded.

    Raises:
        OptionError: The training would hang at its first checkpoint, or update parameters that are not the model's.
    """
    if is_fsdp1(model):
        raise OptionError(
            "The model is wrapped in FullyShardedDataParallel (FSDP1), whose checkpoints hookline cannot save. Shard "
            "it with torch.distributed.fsdp.fully_shard(model) (FSDP2), or use Accelerate and "
            "hookline.integrations.accelerate."
        )
    if not hasattr(optimizer, "param_groups") or not is_sharded(model):
        return
    # Whole weights that it keeps after a forward are its parameters meanwhile, and no optimizer has those.
    reshard(model)
    known = set(map(id, model.parameters()))
    if any(id(parameter) not in known and not is_sharded(parameter) for parameter in moved_parameters(optimizer)):
        raise OptionError(
            "The optimizer has parameters that are not those of the sharded model: fully_shard() replaces a model's "
            "parameters. Make the optimizer from model.parameters() after fully_shard(model)."
        )


def taken_from(value: Any, key: str, taken: dict[str, Any]) -> Any:
    """Return a state with a mark in place of each sharded tensor; the tensors go into ``taken`` by their keys."""
    if isinstance(value, torch.Tensor):
        if not is_sharded(value):
            return value
        taken[key] = value.detach()
        placements = [getattr(placement, "dim", None) for placement in value.placements]
        return {_MARK: key, "shape": list(value.shape), "placements": placements}
    if isinstance(value, Mapping):
        return _kept(value, {each: taken_from(item, f"{key}.{each}", taken) for each, item in value.items()})
    if type(value) in (list, tuple):
        return type(value)(taken_from(item, f"{key}.{index}", taken) for index, item in enumerate(value))
    return value


def _kept(value: Mapping[Any, Any], items: dict[Any, Any]) -> Mapping[Any, Any]:
    """The mapping itself where nothing in it was replaced: that of a model knows more than its items."""
    if all(value[key] is item for key, item in items.items()):
        return value
    if not isinstance(value, dict):
        return items
    changed = copy.copy(value)
    changed.update(items)
    return changed


def write_sharded(tensors: dict[str, Any], folder: Path, group: Any) -> None:
    """Write this process's shards; all processes of the group have to.

    Raises:
        CheckpointError: One of them cannot write.
    """
    from torch.distributed import checkpoint

    try:
        checkpoint.save(tensors, checkpoint_id=folder, process_group=group)
    except checkpoint.CheckpointException as error:  # a BaseException, which `except Exception` would miss
        why = "; ".join(f"rank {rank}: {failure[0]}" for rank, failure in error.failures.items())
        raise CheckpointError(f"{folder} cannot be written: {why}") from None


def shape_of(value: Any) -> tuple[int, ...] | None:
    """Return the shape of a tensor, or of one that a mark stands for; None for anything else."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape)
    return tuple(value["shape"]) if _is_mark(value) else None


def put_into(value: Any, folder: Path, layouts: Layouts) -> Any:
    """Return a state with every sharded tensor back in place, read from the folder that has them.

    Raises:
        CheckpointError: Some are missing or cannot be read.
    """
    marks = _marks_in(value)
    return _replaced(value, _read(marks, folder, layouts)) if marks else value


def _read(marks: Iterable[dict[str, Any]], folder: Path, layouts: Layouts) -> dict[str, Any]:
    from torch.distributed import checkpoint  # slow to import, and rarely needed

    class Reader(checkpoint.FileSystemReader):  # type: ignore[misc]
        def read_metadata(self, *args: Any, **kwargs: Any) -> Any:
            with (Path(self.path) / ".metadata").open("rb") as file:
                return _Unpickler(file).load()

    reader = Reader(folder)
    try:
        index = reader.read_metadata().state_dict_metadata
        tensors = {mark[_MARK]: _empty(index[mark[_MARK]], mark, layouts(mark[_MARK])) for mark in marks}
        with warnings.catch_warnings():  # about loading without the other processes
            warnings.simplefilter("ignore", UserWarning)
            checkpoint.load(tensors, storage_reader=reader, no_dist=True)
    # The first is a BaseException.
    except (checkpoint.CheckpointException, Exception) as error:
        raise CheckpointError(f"{folder} cannot be read: {str(error).partition(chr(10))[0]}") from error
    return tensors


def _empty(entry: Any, mark: dict[str, Any], like: Any) -> Any:
    """Return a tensor to read into: sharded like another one, as saved where the shapes differ, or whole."""
    dtype, dims = entry.properties.dtype, mark["placements"]
    if like is None or not is_sharded(like) or (like.shape != entry.size and len(dims) != like.device_mesh.ndim):
        return torch.empty(entry.size, dtype=dtype)
    from torch.distributed.tensor import Replicate, Shard, empty

    placements = like.placements
    if like.shape != entry.size:
        placements = [Replicate() if dim is None else Shard(dim) for dim in dims]
    return empty(entry.size, dtype=dtype, device_mesh=like.device_mesh, placements=placements)


def whole_state(model: torch.nn.Module, *, keep: bool) -> dict[str, Any]:
    """Return the weights of a model under plain names, gathered where they are sharded; a collective.

    Args:
        keep: Whether this process keeps them; the others return nothing.
    """
    found: dict[str, Any] = {}
    for name, value in plain_state(model).items():
        # Also where it is not kept: full_tensor() is a collective. One at a time and to the CPU, since the device may
        # not have room for the whole model.
        whole = value.full_tensor().cpu() if is_sharded(value) else value
        if keep:
            found[name] = whole
    return found


def load_weights_into(model: torch.nn.Module, state: dict[str, Any]) -> None:
    """Set a model to weights that fit it; whole ones are sharded as the model is."""
    inner = unwrapped(model)
    own = inner.state_dict()
    state = state_named_for(own, state)
    if any(map(is_sharded, own.values())):
        state = {name: _spread(value, own[name]) for name, value in state.items()}
    inner.load_state_dict(state, strict=not is_adapted(inner))  # its frozen weights are not saved


def load_optimizer_state(optimizer: Any, state: dict[str, Any]) -> None:
    """Set an optimizer to a state that fits it; whole tensors are sharded as its parameters are."""
    parameters = moved_parameters(optimizer)
    if any(map(is_sharded, parameters)):
        states = {
            index: {name: _spread(value, parameters[index]) for name, value in own.items()}
            for index, own in state["state"].items()
        }
        state = {**state, "state": states}
    optimizer.load_state_dict(state)


def moved_parameters(optimizer: Any) -> list[Any]:
    """Return the parameters that an optimizer updates."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def layouts_of(model: torch.nn.Module, optimizer: Any) -> Layouts:
    """Return how tensors ``model.<name>`` and ``optimizer.state.<index>.<name>`` are laid out in this process."""
    weights, parameters = plain_state(model), moved_parameters(optimizer)

    def layout(key: str) -> Any:
        kind, _, name = key.partition(".")
        if kind == "model":
            return weights.get(name)
        _, index, *_ = name.split(".")
        return parameters[int(index)]

    return layout


def _spread(value: Any, like: Any) -> Any:
    fits = isinstance(value, torch.Tensor) and is_sharded(like) and value.shape == like.shape
    return in_layout_of(value, like) if fits else value


def write_callback_shards(states: Mapping[str, Any], directory: Path, group: Any) -> None:
    """Write the sharded tensors among the callbacks' states; all processes have to."""
    shards: dict[str, Any] = {}
    taken_from(states, "callbacks", shards)
    if shards:
        write_sharded(shards, directory / CALLBACK_SHARDS, group)


def read_callback_shards(states: Mapping[str, Any], directory: Path, model: Any) -> Any:
    """Return the callbacks' states with their sharded tensors, laid out like parameters of the same shape."""
    # A callback names its tensors as it likes, so their layout is found by their shape.
    by_shape = {tuple(parameter.shape): parameter for parameter in named_parameters(model).values()}
    index = {mark[_MARK]: tuple(mark["shape"]) for mark in _marks_in(states)}
    return put_into(states, directory / CALLBACK_SHARDS, lambda key: by_shape.get(index[key]))


def _is_mark(value: Any) -> bool:
    return isinstance(value, dict) and _MARK in value


def _marks_in(value: Any) -> list[dict[str, Any]]:
    if _is_mark(value):
        return [value]
    if not isinstance(value, Mapping | list | tuple):
        return []
    return [mark for item in (value.values() if isinstance(value, Mapping) else value) for mark in _marks_in(item)]


def _replaced(value: Any, tensors: dict[str, Any]) -> Any:
    if _is_mark(value):
        return tensors[value[_MARK]]
    if isinstance(value, Mapping):
        return _kept(value, {key: _replaced(item, tensors) for key, item in value.items()})
    if type(value) in (list, tuple):
        return type(value)(_replaced(item, tensors) for item in value)
    return value


class _Unpickler(pickle.Unpickler):
    """Reads the index of shards, which consists of a few classes of torch."""

    def find_class(self, module: str, name: str) -> Any:
        """Return the class of a name, if an index may contain it."""
        is_torch = module == "torch" and (name == "Size" or isinstance(getattr(torch, name, None), torch.dtype))
        is_index = module == "torch.distributed.checkpoint.metadata" and name in _OF_INDEX
        if is_torch or is_index or (module, name) in _OTHERS:
            return super().find_class(module, name)
        raise CheckpointError(f"it names {module}.{name}, which does not belong in a checkpoint's index")


_OF_INDEX = {
    *("Metadata", "MetadataIndex", "StorageMeta", "TensorStorageMetadata", "TensorProperties", "ChunkStorageMetadata"),
    "_MEM_FORMAT_ENCODING",
}
_OTHERS = {
    ("torch.serialization", "_get_layout"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    *(("pathlib", name) for name in ("Path", "PosixPath", "WindowsPath", "PurePosixPath")),
    ("pathlib._local", "PosixPath"),
    ("collections", "OrderedDict"),
}
