"""The log-probabilities of the tokens of completions under a model, and the entropies of their distributions.

Logits are computed for the positions that predict these tokens only, where the model can (``logits_to_keep``). They are
turned into float32 probabilities a chunk of rows at a time, and once more in the backward pass, so what is kept is one
tensor of logits in the type of the model; numbers of several times its size exist for one chunk only. The gradient is
written out, because autograd's goes through the probabilities several times as often.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from hookline._engine.torch_models import forward_parameters
from hookline.rl.policies.decoding import in_nucleus

CHUNK_NUMBERS = 1 << 25
"""The most logits that are float32 at the same time: 128 MiB, several times that with what is computed from them."""


def token_logprobs(
    model: Any,
    ids: Tensor,
    first: int,
    *,
    temperature: float = 1.0,
    top_p: float = 1.0,
    entropy_grad: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return the log-probability of each token from position ``first`` on, and the entropy of its distribution.

    Args:
        ids: Sequences, padded on the right. A causal model needs no mask for that: no token attends to later ones.
        first: The first position to predict, at least 1.
        temperature: The temperature of the sampling.
        top_p: The top-p of the sampling: log-probabilities are those within the nucleus, to which a token that was
            sampled with other weights is added. The entropy is that of all tokens.
        entropy_grad: Whether the entropy is differentiable.
    """
    targets = ids[:, first:]
    count = targets.shape[1]
    options = {"logits_to_keep": count} if "logits_to_keep" in forward_parameters(model) else {}
    logits = model(input_ids=ids[:, :-1], use_cache=False, **options).logits
    if logits.shape[1] != count:  # the backward pass of a slice copies all of them
        logits = logits[:, -count:]
    flat, chosen = logits.flatten(0, 1), targets.flatten()
    if top_p == 1:
        found: tuple[Tensor, Tensor] = _TokenLogprobs.apply(flat, chosen, temperature, entropy_grad)
    else:

        def of_nucleus(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
            return _nucleus_logprobs(logits, targets, temperature, top_p, entropy_grad)

        parts = [
            checkpoint(of_nucleus, *part, use_reentrant=False, preserve_rng_state=False)
            for part in _chunks(flat, chosen)
        ]
        found = torch.cat([logprobs for logprobs, _ in parts]), torch.cat([entropy for _, entropy in parts])
    return found[0].view(targets.shape), found[1].view(targets.shape)


def _chunks(logits: Tensor, *others: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Divide rows of logits, and others with them."""
    rows = max(1, CHUNK_NUMBERS // logits.shape[-1])
    return zip(*(each.split(rows) for each in (logits, *others)), strict=True)


def _scaled(logits: Tensor, temperature: float) -> Tensor:
    return logits.float() if temperature == 1 else logits.float() / temperature


class _TokenLogprobs(torch.autograd.Function):  # type: ignore[misc]
    """The log-probability of a token in each row of logits, and the entropy of the row."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, temperature: float, entropy_grad: bool
    ) -> tuple[Tensor, Tensor]:
        parts = []
        for own, chosen in _chunks(logits, targets):
            distribution = torch.log_softmax(_scaled(own, temperature), dim=-1)
            logprobs = distribution.gather(-1, chosen[:, None]).squeeze(-1)
            # Of an impossible token it is 0, where 0 times its infinite log-probability would be NaN.
            parts.append((logprobs, torch.special.entr(distribution.exp_()).sum(-1)))
        logprobs, entropy = (torch.cat(some) for some in zip(*parts, strict=True))
        ctx.temperature, ctx.entropy_grad = temperature, entropy_grad
        ctx.save_for_backward(logits, targets, entropy)
        if not entropy_grad:
            ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: Tensor, entropy_grad: Tensor) -> tuple[Tensor | None, ...]:
        logits, targets, entropy = ctx.saved_tensors
        made = torch.empty_like(logits)
        # With p the probabilities and H the entropy: d log p(token) = 1(token) - p, and d H = -p (log p + H).
        for own, chosen, its, its_entropy, into, of_entropy in _chunks(
            logits, targets, grad, entropy, made, entropy_grad
        ):
            scaled, token = _scaled(own, ctx.temperature), chosen[:, None]
            probabilities, weights = torch.softmax(scaled, dim=-1), its[:, None]
            if ctx.entropy_grad:
                finite = torch.log_softmax(scaled, dim=-1).clamp_(min=torch.finfo(scaled.dtype).min)
                weights = finite.add_(its_entropy[:, None]).mul_(of_entropy[:, None]).add_(weights)
            of_token = weights.expand_as(probabilities).gather(-1, token)
            of_token = its[:, None] - probabilities.gather(-1, token) * of_token
            torch.mul(probabilities, -weights / ctx.temperature, out=into)
            into.scatter_(-1, token, (of_token / ctx.temperature).to(into.dtype))
        return made, None, None, None


def _nucleus_logprobs(
    logits: Tensor, targets: Tensor, temperature: float, top_p: float, entropy_grad: bool
) -> tuple[Tensor, Tensor]:
    distribution = torch.log_softmax(_scaled(logits, temperature), dim=-1)
    chosen = distribution.gather(-1, targets[:, None]).squeeze(-1)
    probabilities = distribution.exp()
    kept = in_nucleus(probabilities.detach(), top_p).scatter(-1, targets[:, None], True)
    chosen = chosen - probabilities.masked_fill(~kept, 0).sum(-1).log()
    with torch.set_grad_enabled(entropy_grad and torch.is_grad_enabled()):
        # Clamped, since 0 times the infinite log-probability of an impossible token is NaN.
        finite = distribution.clamp(min=torch.finfo(distribution.dtype).min)
        entropy = -(distribution.exp() * finite).sum(-1)
    return chosen, entropy
