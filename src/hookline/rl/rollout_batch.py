"""Rollouts as tensors: prompts with their completions, padded, and which of the tokens are trained on."""

from collections.abc import Sequence
from typing import Any

import torch

from hookline.core.errors import OptionError
from hookline.rl.types import Rollout

Batch = dict[str, Any]


def rollout_batch(rollouts: Sequence[Rollout], *, pad_id: int, device: Any = "cpu", as_sampled: bool = False) -> Batch:
    """A batch of ``ids``, ``attention``, ``old`` log-probabilities, ``mask`` and ``advantages``.

    ``old`` and ``mask`` are one shorter than ``ids``: they belong to the tokens that are predicted. Rollouts without
    a token are left out: there is nothing to make more or less likely.

    Args:
        as_sampled: Let ``old`` be those of the distribution that was sampled from, instead of the model's own.

    Raises:
        OptionError: A completion comes without the tokens of its prompt, or without its log-probabilities.
    """
    kept = [each for each in rollouts if each.completion.token_ids]
    for each in kept:
        _require_ids(each, as_sampled=as_sampled)
    rows = [[*each.completion.prompt_ids, *each.completion.token_ids] for each in kept]
    width = max(map(len, rows), default=1)
    ids = torch.tensor([row + [pad_id] * (width - len(row)) for row in rows], dtype=torch.long).reshape(
        len(rows), width
    )
    lengths = torch.tensor([len(row) for row in rows])
    prompts = torch.tensor([len(each.completion.prompt_ids) for each in kept])
    places = torch.arange(width)
    attention = (places < lengths[:, None]).long()
    is_written = (places[1:] >= prompts[:, None]) & (places[1:] < lengths[:, None])
    old = torch.zeros(len(rows), width - 1)
    logprobs = [logprob for each in kept for logprob in _logprobs(each, as_sampled=as_sampled)]
    old[is_written] = torch.tensor(logprobs, dtype=old.dtype)
    advantages = torch.tensor([each.advantage or 0.0 for each in kept], dtype=torch.float32)
    batch = {"ids": ids, "attention": attention, "old": old, "mask": is_written.float(), "advantages": advantages}
    return {name: tensor.to(device) for name, tensor in batch.items()}


def _logprobs(rollout: Rollout, *, as_sampled: bool) -> Sequence[float]:
    return rollout.completion.sampled_logprobs if as_sampled else rollout.completion.logprobs


def _require_ids(rollout: Rollout, *, as_sampled: bool) -> None:
    completion, logprobs = rollout.completion, _logprobs(rollout, as_sampled=as_sampled)
    if not completion.prompt_ids or len(logprobs) != len(completion.token_ids):
        raise OptionError(
            f"The completion {completion.text[:40]!r} has {len(completion.prompt_ids)} tokens of a prompt, "
            f"{len(completion.token_ids)} tokens and {len(logprobs)} log-probabilities. To be learnt from, "
            "it needs at least one, and as many log-probabilities as tokens: have the policy give them."
        )
