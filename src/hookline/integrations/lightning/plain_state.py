"""A `HostLoop`'s state as Lightning's checkpoints can hold it, and be read back without running code of theirs."""

from collections.abc import Mapping
from typing import Any

import torch

from hookline.core.values import plain


def plain_state(value: Any) -> Any:
    """The value with nothing in it but dicts, lists, plain values, and tensors as they are."""
    if isinstance(value, torch.Tensor):
        return value.detach()
    if isinstance(value, Mapping):
        return {key: plain_state(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_state(item) for item in value]
    return plain(value)
