"""The arithmetic of GRPO (group-relative policy optimization), and rollouts as tensors.

The completions of one prompt form a group, and the advantage of each is its reward relative to the group. The loss
raises the probability of completions with a positive advantage, within a clipped ratio to the policy that generated
them, and optionally penalizes the divergence from a reference model. Advantages are computed with the rollouts: see
`hookline.rl.rollouts.metrics`.
"""

from collections.abc import Sequence
from typing import Any

import torch

from hookline._engine.errors import OptionError
from hookline.rl.policies.decoding import in_nucleus
from hookline.rl.types import Rollout


def token_logprobs(
    model: Any, ids: torch.Tensor, attention: torch.Tensor, *, temperature: float = 1.0, top_p: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the log-probability of each token given the previous ones, and the entropy; both one shorter than ``ids``.

    Args:
        temperature: The temperature of the sampling.
        top_p: The top-p of the sampling: log-probabilities are those within the nucleus, to which a token that was
            sampled with other weights is added. The entropy is that of all tokens.
    """
    logits = model(input_ids=ids, attention_mask=attention, use_cache=False).logits[:, :-1].float()
    distribution = torch.log_softmax(logits if temperature == 1 else logits / temperature, dim=-1)
    chosen = distribution.gather(-1, ids[:, 1:, None]).squeeze(-1)
    if top_p != 1:
        probabilities = distribution.exp()
        kept = in_nucleus(probabilities.detach(), top_p).scatter(-1, ids[:, 1:, None], True)
        chosen = chosen - probabilities.masked_fill(~kept, 0).sum(-1).log()
    with torch.no_grad():
        entropy = torch.special.entr(distribution.exp()).sum(-1)  # 0 for a probability of 0
    return chosen, entropy


def grpo_loss(
    logprobs: torch.Tensor,
    old: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    *,
    clip: float,
    reference: torch.Tensor | None = None,
    kl: float = 0.0,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the mean loss over the tokens of all completions, and its diagnostics.

    Args:
        logprobs: The log-probability of each token under the policy in training.
        old: The same under the policy that generated them.
        advantages: One for each completion.
        mask: 1 for tokens of completions, 0 for prompts and padding, where all other values are ignored.
        clip: The probability ratio is clipped to this distance from 1.
        reference: The log-probabilities under the reference model.
        kl: The weight of the divergence from the reference model.
    """
    tokens, outside = mask.sum().clamp(min=1), mask == 0
    ratio = (logprobs - old).masked_fill(outside, 0).exp()  # masked before exp(), as an overflow times 0 is NaN
    plain, clipped = ratio * advantages[:, None], ratio.clamp(1 - clip, 1 + clip) * advantages[:, None]
    loss = -torch.minimum(plain, clipped).masked_fill(outside, 0).sum() / tokens
    is_clipped = (clipped < plain) & ~outside  # on the other side of 1, clipping has no effect
    diagnostics = {"clip_share": is_clipped.sum() / tokens, "ratio": ratio.masked_fill(outside, 0).sum() / tokens}
    if reference is not None:
        log_ratio = (reference - logprobs).masked_fill(outside, 0)
        divergence = (log_ratio.exp() - log_ratio - 1).sum() / tokens  # an unbiased estimate that is never negative
        loss = loss + kl * divergence
        diagnostics["kl"] = divergence
    return loss, {name: value.detach() for name, value in diagnostics.items()}


Batch = dict[str, Any]


def rollout_batch(rollouts: Sequence[Rollout], *, pad_id: int, device: Any = "cpu", as_sampled: bool = False) -> Batch:
    """Return tensors of ``ids``, ``attention``, ``old`` log-probabilities, ``mask`` and ``advantages``.

    ``old`` and ``mask`` are one shorter than ``ids``: they belong to the predicted tokens. Rollouts without tokens are
    left out.

    Args:
        as_sampled: Use the log-probabilities of the sampled distribution as ``old``, instead of the model's.

    Raises:
        OptionError: A completion has no prompt tokens, or not one log-probability per token.
    """
    kept = [each for each in rollouts if each.completion.token_ids]
    logprobs: list[float] = []
    for each in kept:
        completion = each.completion
        own = completion.sampled_logprobs if as_sampled else completion.logprobs
        if not completion.prompt_ids or len(own) != len(completion.token_ids):
            raise OptionError(
                f"The completion {completion.text[:40]!r} has {len(completion.prompt_ids)} prompt tokens, "
                f"{len(completion.token_ids)} tokens and {len(own)} log-probabilities. A learner needs at least one "
                "prompt token, and one log-probability per token: use a policy that returns them."
            )
        logprobs += own
    rows = [[*each.completion.prompt_ids, *each.completion.token_ids] for each in kept]
    width = max(map(len, rows), default=1)
    padded = [row + [pad_id] * (width - len(row)) for row in rows]
    ids = torch.tensor(padded, dtype=torch.long).reshape(len(rows), width)  # a shape without rows, too
    lengths = torch.tensor([len(row) for row in rows])
    prompts = torch.tensor([len(each.completion.prompt_ids) for each in kept])
    positions = torch.arange(width)
    attention = (positions < lengths[:, None]).long()
    is_completion = (positions[1:] >= prompts[:, None]) & (positions[1:] < lengths[:, None])
    old = torch.zeros(len(rows), width - 1)
    old[is_completion] = torch.tensor(logprobs, dtype=old.dtype)
    advantages = torch.tensor([each.advantage or 0.0 for each in kept], dtype=torch.float32)
    batch = {"ids": ids, "attention": attention, "old": old, "mask": is_completion.float(), "advantages": advantages}
    return {name: tensor.to(device) for name, tensor in batch.items()}
