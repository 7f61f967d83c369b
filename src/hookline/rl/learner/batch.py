"""Rollouts as tensors: a rollout step divided into mini-batches, and these into micro-batches.

A mini-batch is what one optimizer step learns from of a rollout step. It has consecutive rollouts, so the completions
of a prompt stay together. A micro-batch is what goes through the model at once. The completions of a mini-batch are
ordered by their length before they are divided, so that little of a micro-batch is padding; the longest come first,
since a lack of memory should show at once. Sequences are padded on the right to the longest of their micro-batch.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hookline._engine.errors import OptionError
from hookline.rl.types import Completion, Rollout

Batch = dict[str, Any]
"""A micro-batch.

- ``ids``: the sequences, and ``first``, the first position of a completion; all other tensors of tokens begin there.
- ``mask``: 1 for the tokens to learn from, 0 for prompts, padding, tokens of the environment and masked completions.
- ``reported``: the log-probabilities that the policy reported, or None.
- ``advantages``: one for each completion.
- ``tokens`` and ``sequences``: the numbers of tokens to learn from and of completions.
- ``samples``: the names of the completions that are recorded as samples.
- ``token_places``: of those that are recorded with their tokens, by row: the name, and where in the tensors of tokens
  the completion begins and ends.
"""


def mini_batches(
    rollouts: Sequence[Rollout],
    count: int,
    *,
    pad_id: int,
    micro_batch_size: int | None = None,
    as_sampled: bool | None = False,
    mask_truncated: bool = False,
    device: Any = "cpu",
) -> list[list[Batch]]:
    """Return the micro-batches of each mini-batch; rollouts without tokens are left out.

    Args:
        rollouts: At least one of them has tokens.
        count: The number of mini-batches.
        pad_id: The padding token.
        micro_batch_size: The most completions of a micro-batch; None sets no limit.
        as_sampled: Whether the reported log-probabilities are those of the sampled distribution instead of the model's;
            None leaves them out.
        mask_truncated: Learn nothing from completions that did not end by themselves.

    Raises:
        OptionError: A completion has no prompt tokens, or not one log-probability and mask per token.
    """
    kept = [each for each in rollouts if each.completion.token_ids]
    for each in kept:
        _check(each.completion, as_sampled)
    parts = []
    for number in range(count):
        own = kept[number * len(kept) // count : (number + 1) * len(kept) // count]
        options = {"pad_id": pad_id, "as_sampled": as_sampled, "mask_truncated": mask_truncated, "device": device}
        parts.append([micro_batch(some, **options) for some in _divided(own, micro_batch_size)])
    # With fewer rollouts than mini-batches, the optimizer steps are made all the same, as in the other processes.
    some = next(batch for part in parts for batch in part)
    return [part or [empty_like(some)] for part in parts]


def micro_batch(
    rollouts: Sequence[Rollout], *, pad_id: int, as_sampled: bool | None, mask_truncated: bool, device: Any
) -> Batch:
    """Return rollouts as tensors on a device."""
    made = [each.completion for each in rollouts]
    first = min(len(each.prompt_ids) for each in made)
    # Where each completion begins in the tensors of tokens.
    starts = [len(each.prompt_ids) - first for each in made]
    # A scalar fills its row, which is cheaper than a list of ones.
    masks = [0 if mask_truncated and each.finish != "stop" else each.mask or 1 for each in made]
    lengths = [len(each.token_ids) for each in made]
    mask = _padded(masks, lengths, 0.0, np.float32, starts)
    ids = [[*each.prompt_ids, *each.token_ids] for each in made]
    batch: Batch = {
        "ids": _padded(ids, map(len, ids), pad_id, np.int64),
        "mask": mask,
        "advantages": torch.tensor([each.advantage or 0.0 for each in rollouts], dtype=torch.float32),
    }
    if as_sampled is not None:
        batch["reported"] = _padded([_reported(each, as_sampled) for each in made], lengths, 0.0, np.float32, starts)
    batch = {name: _moved(tensor, device) for name, tensor in batch.items()}
    token_places = {
        row: (each.id, start, start + len(each.completion.token_ids))
        for row, (each, start) in enumerate(zip(rollouts, starts, strict=True))
        if each.recorded == "tokens"
    }
    batch |= {"first": first, "tokens": int(mask.sum()), "sequences": len(made)}
    return batch | {"samples": [each.id for each in rollouts if each.recorded], "token_places": token_places}


def _moved(tensor: Tensor, device: Any) -> Tensor:
    """Return a tensor on a device; one on a GPU may still be on its way there.

    Waiting for it would also mean waiting for everything the GPU was given before.
    """
    if torch.device(device).type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def empty_like(batch: Batch) -> Batch:
    """Return a micro-batch of one sequence that nothing is learnt from.

    Processes whose model is sharded compute together, so all of them need as many micro-batches as any has.
    """
    cut = {name: value[:1] if isinstance(value, Tensor) else value for name, value in batch.items()}
    return cut | {"mask": torch.zeros_like(cut["mask"]), "tokens": 0, "sequences": 0, "samples": [], "token_places": {}}


def _divided(rollouts: Sequence[Rollout], size: int | None) -> list[Sequence[Rollout]]:
    """Divide rollouts into parts of nearly equal numbers, the longest sequences first."""
    if size is None or len(rollouts) <= size:
        return [rollouts] if rollouts else []
    ordered = sorted(rollouts, key=lambda each: -len(each.completion.prompt_ids) - len(each.completion.token_ids))
    count = -(-len(ordered) // size)
    return [ordered[part * len(ordered) // count : (part + 1) * len(ordered) // count] for part in range(count)]


def _reported(completion: Completion, as_sampled: bool) -> Sequence[float]:
    return completion.sampled_logprobs if as_sampled else completion.logprobs


def _check(completion: Completion, as_sampled: bool | None) -> None:
    tokens = len(completion.token_ids)
    given = tokens if as_sampled is None else len(_reported(completion, as_sampled))
    if not completion.prompt_ids or given != tokens:
        raise OptionError(
            f"The completion {completion.text[:40]!r} has {len(completion.prompt_ids)} prompt tokens, {tokens} tokens "
            f"and {given} log-probabilities. A learner needs at least one prompt token, and one log-probability per "
            "token: use a policy that returns them."
        )
    if completion.mask and len(completion.mask) != tokens:
        raise OptionError(
            f"The completion {completion.text[:40]!r} has {tokens} tokens and a mask of {len(completion.mask)}: give a "
            "mask with 1 or 0 for each token, or none."
        )


def _padded(
    rows: Sequence[Sequence[Any] | int],
    lengths: Iterable[int],
    padding: Any,
    dtype: Any,
    starts: Sequence[int] | None = None,
) -> Tensor:
    """Return rows as a tensor, padded to the longest; before its start too, where a row does not begin at 0."""
    begins = [0] * len(rows) if starts is None else starts
    ends = [start + length for start, length in zip(begins, lengths, strict=True)]
    made = np.full((len(rows), max(ends)), padding, dtype)
    for own, start, end, row in zip(made, begins, ends, rows, strict=True):
        own[start:end] = row
    return torch.from_numpy(made)
