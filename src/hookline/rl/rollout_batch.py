"""Rollouts as tensors: prompts with their completions, padded, and which of the tokens are trained on."""

from collections.abc import Sequence
from typing import Any

import torch

from hookline.rl.types import Rollout

Batch = dict[str, Any]


def rollout_batch(rollouts: Sequence[Rollout], *, pad_id: int, device: Any = "cpu") -> Batch:
    """A batch of ``ids``, ``attention``, ``old`` log-probabilities, ``mask`` and ``advantages``.

    ``old`` and ``mask`` are one shorter than ``ids``: they belong to the tokens that are predicted. Rollouts without
    a token are left out: there is nothing to make more or less likely.
    """
    kept = [each for each in rollouts if each.completion.token_ids]
    rows = [[*each.completion.prompt_ids, *each.completion.token_ids] for each in kept]
    width = max(map(len, rows), default=1)
    ids = torch.tensor([row + [pad_id] * (width - len(row)) for row in rows], dtype=torch.long).reshape(
        len(rows), width
    )
    lengths = torch.tensor([len(row) for row in rows])
    prompts = torch.tensor([len(each.completion.prompt_ids) for each in kept])
    places = torch.arange(width)
    attention = (places < lengths[:, None]).long()
    mask = ((places[1:] >= prompts[:, None]) & (places[1:] < lengths[:, None])).float()
    old = torch.zeros(len(rows), width - 1)
    for row, each in zip(old, kept, strict=True):
        start = len(each.completion.prompt_ids) - 1
        row[start : start + len(each.completion.logprobs)] = torch.tensor(list(each.completion.logprobs))
    advantages = torch.tensor([each.advantage or 0.0 for each in kept], dtype=torch.float32)
    batch = {"ids": ids, "attention": attention, "old": old, "mask": mask, "advantages": advantages}
    return {name: tensor.to(device) for name, tensor in batch.items()}
