"""GRPO: group-relative policy optimisation, its arithmetic and nothing else.

Completions of one prompt are a group; the advantage of each is how much better it did than its group. The
probability of its tokens is moved in that direction, as far as a clipped ratio to the policy that wrote them
allows, and held near a reference by an estimate of the divergence from it.

Rollouts as tensors: prompts with their completions, padded, and which of the tokens are trained on.
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
    """The log-probability of each token given those before it, and the entropy there: both one shorter than ``ids``.

    Args:
        temperature: At which the tokens are sampled.
        top_p: The share of probability that they are sampled from: log-probabilities are those among the tokens that
            it leaves. A token that other weights sampled counts among them. The entropy is that of all tokens.
    """
    logits = model(input_ids=ids, attention_mask=attention, use_cache=False).logits[:, :-1].float()
    distribution = torch.log_softmax(logits if temperature == 1 else logits / temperature, dim=-1)
    chosen = distribution.gather(-1, ids[:, 1:, None]).squeeze(-1)
    if top_p != 1:
        probabilities = distribution.exp()
        kept = in_nucleus(probabilities.detach(), top_p).scatter(-1, ids[:, 1:, None], True)
        chosen = chosen - probabilities.masked_fill(~kept, 0).sum(-1).log()
    with torch.no_grad():
        entropy = torch.special.entr(distribution.exp()).sum(-1)  # 0 for what is impossible
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
    """The loss over all tokens of the completions, and what is worth knowing about it.

    Args:
        logprobs: Under the policy that is trained, for each token.
        old: Under the policy that wrote them.
        advantages: One for each completion.
        mask: 1 for the tokens of completions, 0 for prompts and padding: whatever stands there does not matter.
        clip: How far the ratio of probabilities counts, to either side of 1.
        reference: Under the reference policy.
        kl: How much the divergence from the reference weighs.
    """
    tokens, outside = mask.sum().clamp(min=1), mask == 0
    ratio = (logprobs - old).masked_fill(outside, 0).exp()  # before exp: an overflow times 0 is NaN
    free, bounded = ratio * advantages[:, None], ratio.clamp(1 - clip, 1 + clip) * advantages[:, None]
    loss = -torch.minimum(free, bounded).masked_fill(outside, 0).sum() / tokens
    is_clipped = (bounded < free) & ~outside  # beyond the band on the other side of 1, the clip has no effect
    facts = {"clip_share": is_clipped.sum() / tokens, "ratio": ratio.masked_fill(outside, 0).sum() / tokens}
    if reference is not None:
        behind = (reference - logprobs).masked_fill(outside, 0)
        divergence = (behind.exp() - behind - 1).sum() / tokens  # never negative, and right on average
        loss = loss + kl * divergence
        facts["kl"] = divergence
    return loss, {name: value.detach() for name, value in facts.items()}


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
