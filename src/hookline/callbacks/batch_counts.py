"""How many samples and tokens a batch has, as far as it shows without waiting for a device.

A batch of a mapping may bring its counts along, as those of `hookline.loops.sft` do: ``batch["counts"]`` with
``examples`` and ``tokens``.
"""

from collections.abc import Mapping, Sized
from typing import Any

from hookline.core.state import TrainingBatch


def samples_of(batch: Any) -> int | None:
    """What a `TrainingBatch` says, the first dimension of the first tensor, or the length; None where nothing tells."""
    if isinstance(batch, TrainingBatch):
        return samples_of(batch.data) if batch.size is None else batch.size
    if isinstance(batch, Mapping):
        brought = _brought(batch, "examples")
        return brought if brought is not None else samples_of(next(iter(batch.values()), None))
    if getattr(batch, "shape", None):
        return int(batch.shape[0])
    if isinstance(batch, list | tuple) and batch and _is_column(batch):
        return samples_of(batch[0])
    return len(batch) if isinstance(batch, Sized) and not isinstance(batch, str) and not _is_scalar(batch) else None


def _brought(batch: Any, name: str) -> int | None:
    count = getattr(batch.get("counts"), name, None) if isinstance(batch, Mapping) else None
    return count if isinstance(count, int) else None


def _is_scalar(value: Any) -> bool:
    return getattr(value, "ndim", 1) == 0


def _is_column(batch: list[Any] | tuple[Any, ...]) -> bool:
    """Whether the items are the parts of all samples, as in ``(inputs, targets)``, rather than samples."""
    return bool(getattr(batch[0], "shape", None)) or (isinstance(batch, tuple) and isinstance(batch[0], Mapping))


def tokens_of(batch: Any) -> int | None:
    """What a `TrainingBatch` says, what it brings, or the elements of ``input_ids``: then padding counts."""
    if isinstance(batch, TrainingBatch):
        return tokens_of(batch.data) if batch.tokens is None else batch.tokens
    if (brought := _brought(batch, "tokens")) is not None:
        return brought
    ids = batch.get("input_ids") if isinstance(batch, Mapping) else None
    if ids is not None and callable(getattr(ids, "numel", None)):
        return int(ids.numel())
    return sum(map(len, ids)) if isinstance(ids, list) and all(isinstance(row, Sized) for row in ids) else None
