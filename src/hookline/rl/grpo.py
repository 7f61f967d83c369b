"""GRPO: group-relative policy optimisation, its arithmetic and nothing else.

Completions of one prompt are a group; the advantage of each is how much better it did than its group. The
probability of its tokens is moved in that direction, as far as a clipped ratio to the policy that wrote them
allows, and held near a reference by an estimate of the divergence from it.
"""

from typing import Any

import torch

from hookline.rl.decoding import in_nucleus


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
